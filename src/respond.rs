//! Answers overload the way the protocol expects: HTTP, gRPC, gRPC-Web, Connect and WebSocket.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower::ServiceBuilder;
//! use tower_backpressure::{ConcurrencyLimitLayer, LoadShedLayer, OverloadResponseLayer};
//!
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(
//!     ServiceBuilder::new()
//!         .layer(OverloadResponseLayer::new()) // outermost; no HandleErrorLayer is needed
//!         .layer(LoadShedLayer::new())
//!         .layer(ConcurrencyLimitLayer::new(100)),
//! );
//! # let _ = app;
//! ```
//!
//! # When to use it
//! In every HTTP server, outside the layers of this crate. Their refusals are errors, and an error that
//! leaves a server's stack ends a connection or a stream without a word: a tonic client sees `Internal,
//! h2 protocol error`. This layer makes answers of them. Its own error is [`Infallible`], which is what
//! axum asks for: without it the compiler says ``the trait bound `Infallible: From<Box<dyn Error + Send +
//! Sync>>` is not satisfied``.
//!
//! **When not to use it:** in a client or a worker: there the caller wants the error, with [`Overloaded::find`](crate::Overloaded::find).
//!
//! # Behaviour
//! | the request | the answer to [`Overloaded`] |
//! | --- | --- |
//! | HTTP | 503, or 429 if it is the client that asks for too much ([`Reason::Quota`]), `retry-after` in whole seconds, at least 1, `cache-control: no-store` |
//! | gRPC, gRPC-Web | `RESOURCE_EXHAUSTED` in a response without a body, with `grpc-retry-pushback-ms` and a `google.rpc.RetryInfo` |
//! | Connect, unary | 429, `resource_exhausted` with a `google.rpc.RetryInfo`, `retry-after` |
//! | Connect, streaming | an end-of-stream message with the same |
//! | WebSocket (feature `ws`) | the handshake is accepted and the socket closed with 1013 (try again later) and the hint as the reason: of a handshake that fails, a script in a browser is only told that it failed |
//!
//! A request whose [deadline](crate::deadline) has passed ([`Reason::Deadline`]) is answered with `DEADLINE_EXCEEDED` to gRPC
//! and `deadline_exceeded` (504 if unary) to Connect, without a retry hint: those clients do not try again what is too late. HTTP
//! and WebSocket clients get the answers above. A request that was rejected because it would be late
//! ([`Reason::WouldBeLate`]), or because a more important one took its place ([`Reason::Displaced`]), may be served by
//! another server, so all clients get the answers above.
//!
//! Which it is is told by the request's method and headers, in the order of [`Protocol`], or by a
//! `Protocol` among its extensions.
//!
//! The retry hint is the rejecting layer's with jitter, so that the rejected clients do not come back all at once
//! ([`jitter`](OverloadResponseLayer::jitter)): up to half of the hint is added at random. A hint that is
//! [exact](Overloaded::is_exact), as that of an open circuit, gets up to a tenth of it, and at most 2 s. The `Overloaded` is
//! put into the response's extensions, where layers further out can see it.
//!
//! If the rejection was not made here but [further in](Overloaded#rejected-here-or-further-in), the answer has a header
//! `x-rejected: further-in`: the request had been started. Without it, an answer to a rejection says that nothing
//! was done, and clients that know that, as those with a `RetryPolicy`, send any request again.
//!
//! # Unread bodies
//! An HTTP/1 connection on which a body was not read to its end has to be closed, and a client that is still sending the
//! body then sees a broken connection and not the answer. So before it answers a request that was rejected, this layer
//! reads and discards what comes: at most 64 KiB, for at most 100 ms ([`drain_body`](OverloadResponseLayer::drain_body)).
//! The connection can be used again after that. It answers at once
//! - on HTTP/2 and later, where a stream can end early,
//! - if the body is at its end, as that of every `GET`,
//! - if the client has announced more than 64 KiB: some of those clients will not see the answer,
//! - if the client waits for permission to send the body (`expect: 100-continue`), which this answer denies.
//!
//! It gets the body from the layers of this crate that reject a request. It does not get it if another task rejects the
//! request (behind a `Buffer`), or if a layer in between gives the request a body of another type.
//!
//! So a request's body has to be a [`Body`]. A `()` is none: in a test, take a `Request<String>`. The wait for a body needs a
//! tokio runtime with time enabled; outside of any runtime there is no wait.
//!
//! # Errors
//! None. An error of the inner service that is no `Overloaded`, nor has one as its source, is logged and
//! answered with 500 (`INTERNAL`, `internal`), without a word of what it was;
//! [`on_error`](OverloadResponseLayer::on_error) is for those who want another answer. An error of the
//! inner service's `poll_ready` is answered likewise, in `call`.
//!
//! # Cancellation
//! Nothing is held. A WebSocket is closed in a task of its own, which ends after two seconds at the
//! latest; there are at most 1024 of them in a process, and past that it is a plain 503. While the body of a rejected
//! request is read, the layers inside hold nothing for the request any more. Layers outside this one hold their permits until
//! it is answered: make this layer the outermost, or let an inner one `leave_body_unread()`.
//!
//! # Cloning
//! Clones share their settings.

mod body;
mod connect;
mod encode;
mod grpc;
mod http;
mod protocol;
mod unread;
#[cfg(feature = "ws")]
mod websocket;

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use ::http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

pub(crate) use self::protocol::Caller;
use self::unread::Unread;
pub(crate) use self::unread::is_unread;
pub use self::{body::OverloadBody, http::RateLimitPolicy, protocol::Protocol};
use crate::{
    BoxError, Overloaded, Reason,
    gate::{
        aside::{
            hand_back::{self, Wanting},
            handover::{Handover, KeptBack},
        },
        response::pass_on,
    },
    jitter::Jitter,
    observe::events,
};

/// The header of a rejection that was not made here, and its value.
pub(crate) const REJECTED: HeaderName = HeaderName::from_static("x-rejected");
pub(crate) const FURTHER_IN: HeaderValue = HeaderValue::from_static("further-in");

/// Answers [`Overloaded`] as the protocol expects. See the [module](self) for all of it.
#[derive(Clone, Debug, Default)]
pub struct OverloadResponseLayer {
    settings: Shared,
}

/// The settings that a layer and all it makes share. Those of most layers are the usual ones, of which
/// there is only one: so nothing is counted when servers clone a service for each request.
#[derive(Clone, Default)]
struct Shared(Option<Arc<Settings>>);

static USUAL: LazyLock<Settings> = LazyLock::new(Settings::default);

impl Deref for Shared {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        match &self.0 {
            Some(settings) => settings,
            None => &USUAL,
        }
    }
}

type Respond = dyn Fn(&Refusal<'_>) -> Option<Response<Bytes>> + Send + Sync;
type OnError = dyn Fn(BoxError) -> Response<Bytes> + Send + Sync;

#[derive(Clone)]
struct Settings {
    message: &'static str,
    jitter: Option<Arc<Jitter>>,
    too_many_requests: fn(Reason) -> bool,
    problem_json: bool,
    rate_limit: Option<RateLimitPolicy>,
    unavailable: bool,
    respond: Option<Arc<Respond>>,
    on_error: Option<Arc<OnError>>,
    drain: Option<unread::Bounds>,
    #[cfg(feature = "ws")]
    closing: Arc<websocket::Closing>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            message: "overloaded",
            jitter: Some(Arc::default()),
            too_many_requests: |reason| reason == Reason::Quota,
            problem_json: false,
            rate_limit: None,
            unavailable: false,
            respond: None,
            on_error: None,
            drain: Some(unread::Bounds::default()),
            #[cfg(feature = "ws")]
            closing: Arc::default(),
        }
    }
}

/// A refusal that is to be answered.
#[derive(Debug)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// Who refused, and why.
    pub overloaded: &'a Overloaded,
    /// What the client speaks.
    pub protocol: Protocol,
    /// When the client is to be told to come back, with jitter.
    pub retry_after: Duration,
}

impl OverloadResponseLayer {
    /// With the answers that the [module](self) has.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers what this future fails with. The caller has to be known unless it cannot fail. Rejections are marked
    /// already.
    #[inline]
    pub(crate) fn around<F, B>(
        &self,
        future: F,
        caller: Option<Caller>,
    ) -> OverloadResponseFuture<F, B> {
        OverloadResponseFuture {
            state: State::Called { future },
            handed_back: None,
            caller,
            settings: self.settings.clone(),
            watched: false,
            kept_back: KeptBack::YES,
        }
    }

    /// The same, of a request that may yet be rejected, and whose body is to be read then.
    #[inline]
    pub(crate) fn around_waiting<F, B>(
        &self,
        future: F,
        caller: Caller,
    ) -> OverloadResponseFuture<F, B> {
        let mut response = self.around(future, Some(caller));
        response.watched = true;
        response
    }

    /// The same, of a request that was sent, and may have been rejected in that call.
    #[inline]
    pub(crate) fn around_watched<F, B: Body + 'static>(
        &self,
        future: F,
        caller: Caller,
        wanting: Wanting,
    ) -> OverloadResponseFuture<F, B> {
        let mut response = self.around_waiting(future, caller);
        unread::keep(Some(wanting), &mut response.handed_back);
        response
    }

    /// Answers a request that was not sent.
    #[cold]
    pub(crate) fn reject<F, B: Body>(
        &self,
        error: BoxError,
        request: Request<B>,
    ) -> OverloadResponseFuture<F, B> {
        let caller = Some(Caller::of(&request));
        OverloadResponseFuture {
            state: State::Failed {
                error: Some(error),
                unread: self.settings.unread(request),
            },
            handed_back: None,
            caller,
            settings: self.settings.clone(),
            watched: false,
            kept_back: KeptBack::YES,
        }
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::clone(&self.settings);
        set(&mut settings);
        self.settings = Shared(Some(Arc::new(settings)));
        self
    }

    /// Whether up to half of the retry hint is added to it at random; of an exact one up to a tenth, and at most 2 s. On by
    /// default.
    pub fn jitter(self, jitter: bool) -> Self {
        self.set(|settings| settings.jitter = jitter.then(Arc::default))
    }

    /// What clients are told, instead of `overloaded`. Of a request that is too late, they are told `deadline exceeded`.
    pub fn message(self, message: &'static str) -> Self {
        self.set(|settings| settings.message = message)
    }

    /// For which reasons HTTP clients get 429 (Too Many Requests) instead of 503 (Service Unavailable).
    /// The default is only for [`Reason::Quota`].
    ///
    /// ```
    /// use tower_backpressure::OverloadResponseLayer;
    ///
    /// let always_503 = OverloadResponseLayer::new().too_many_requests(|_| false);
    /// # let _ = always_503;
    /// ```
    pub fn too_many_requests(self, reasons: fn(Reason) -> bool) -> Self {
        self.set(|settings| settings.too_many_requests = reasons)
    }

    /// HTTP clients get a body of type `application/problem+json` (RFC 9457) instead of plain text.
    pub fn problem_json(self) -> Self {
        self.set(|settings| settings.problem_json = true)
    }

    /// HTTP clients also get the headers `ratelimit-policy` and `ratelimit`, of the IETF's draft, with
    /// 429.
    pub fn rate_limit_headers(self, policy: RateLimitPolicy) -> Self {
        self.set(|settings| settings.rate_limit = Some(policy))
    }

    /// gRPC and Connect clients get UNAVAILABLE instead of RESOURCE_EXHAUSTED: for clients that retry the
    /// one and not the other. DEADLINE_EXCEEDED stays what it is.
    pub fn unavailable(self) -> Self {
        self.set(|settings| settings.unavailable = true)
    }

    /// Builds the answer to a refusal some other way; `None` is for the usual one. For a WebSocket it is
    /// an answer to the handshake.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::Response;
    /// use tower_backpressure::{OverloadResponseLayer, respond::Protocol};
    ///
    /// let layer = OverloadResponseLayer::new().respond_with(|refusal| {
    ///     let seconds = refusal.retry_after.as_secs().max(1);
    ///     let text = format!("{} is busy, come back in {seconds} s", refusal.overloaded.layer());
    ///     let response = Response::builder().status(503).header("retry-after", seconds);
    ///     (refusal.protocol == Protocol::Http).then(|| response.body(Bytes::from(text)).expect("valid"))
    /// });
    /// # let _ = layer;
    /// ```
    pub fn respond_with<F>(self, respond: F) -> Self
    where
        F: Fn(&Refusal<'_>) -> Option<Response<Bytes>> + Send + Sync + 'static,
    {
        self.set(|settings| settings.respond = Some(Arc::new(respond)))
    }

    /// Answers errors that are no refusals, whatever the protocol. By default they are logged and
    /// answered as the protocol has it.
    pub fn on_error<F>(self, on_error: F) -> Self
    where
        F: Fn(BoxError) -> Response<Bytes> + Send + Sync + 'static,
    {
        self.set(|settings| settings.on_error = Some(Arc::new(on_error)))
    }

    /// How much is read of the body of a rejected HTTP/1 request before it is answered, and for how long. 64 KiB and
    /// 100 ms by default. See [unread bodies](self#unread-bodies).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_backpressure::OverloadResponseLayer;
    ///
    /// // For uploads over slow connections.
    /// let layer = OverloadResponseLayer::new().drain_body(1 << 20, Duration::from_secs(1));
    /// # let _ = layer;
    /// ```
    pub fn drain_body(self, max_bytes: u64, max_time: Duration) -> Self {
        let bounds = unread::Bounds {
            bytes: max_bytes,
            time: max_time,
        };
        self.set(|settings| settings.drain = Some(bounds))
    }

    /// Answers at once, whatever the client is still sending. See [unread bodies](self#unread-bodies).
    pub fn leave_body_unread(self) -> Self {
        self.set(|settings| settings.drain = None)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("message", &self.message)
            .field("jitter", &self.jitter.is_some())
            .field("problem_json", &self.problem_json)
            .field("rate_limit", &self.rate_limit)
            .field("unavailable", &self.unavailable)
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}

/// What a client is told, before it is put into the words of its protocol.
struct Answer {
    message: &'static str,
    code: Code,
    status: StatusCode,
    /// For a refusal.
    retry_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    DeadlineExceeded,
    ResourceExhausted,
    Unavailable,
    Internal,
}

impl Answer {
    const INTERNAL: Self = Self {
        message: "internal error",
        code: Code::Internal,
        status: StatusCode::INTERNAL_SERVER_ERROR,
        retry_after: None,
    };

    /// In whole seconds, at least one: to be told to come back at once is to be told nothing.
    fn retry_after_seconds(&self) -> Option<u64> {
        let retry_after = self.retry_after?;
        let started = u64::from(retry_after.subsec_nanos() > 0);
        Some(retry_after.as_secs().saturating_add(started).max(1))
    }
}

impl Settings {
    /// The body of a rejected request, if it is to be read.
    #[cold]
    fn unread<B: Body>(&self, request: Request<B>) -> Option<Box<Unread<B>>> {
        Unread::of(request, self.drain?).map(Box::new)
    }

    #[cold]
    fn answer(&self, error: BoxError, caller: Caller) -> Response<Bytes> {
        match Overloaded::find(error.as_ref()) {
            Some(overloaded) => self.refuse(overloaded, caller),
            None => self.fail(error, caller),
        }
    }

    fn refuse(&self, overloaded: &Overloaded, caller: Caller) -> Response<Bytes> {
        let hint = overloaded.retry_after();
        let retry_after = match &self.jitter {
            Some(jitter) => jitter.on(hint, overloaded.is_exact()),
            None => hint,
        };
        let refusal = Refusal {
            overloaded,
            protocol: caller.protocol(),
            retry_after,
        };
        let own = (self.respond.as_ref()).and_then(|respond| respond(&refusal));
        let mut response = own.unwrap_or_else(|| {
            let (message, code) = match overloaded.reason() {
                Reason::Deadline => ("deadline exceeded", Code::DeadlineExceeded),
                _ if self.unavailable => (self.message, Code::Unavailable),
                _ => (self.message, Code::ResourceExhausted),
            };
            // RPC clients do not retry what is too late, so they get no hint.
            let waits = code != Code::DeadlineExceeded || !refusal.protocol.calls_procedures();
            let answer = Answer {
                message,
                code,
                status: match (self.too_many_requests)(overloaded.reason()) {
                    true => StatusCode::TOO_MANY_REQUESTS,
                    false => StatusCode::SERVICE_UNAVAILABLE,
                },
                retry_after: waits.then_some(retry_after),
            };
            self.respond(&answer, caller)
        });
        if !overloaded.rejected_here() {
            response.headers_mut().insert(REJECTED, FURTHER_IN);
        }
        response.extensions_mut().insert(overloaded.clone());
        response
    }

    fn fail(&self, error: BoxError, caller: Caller) -> Response<Bytes> {
        match &self.on_error {
            Some(on_error) => on_error(error),
            None => {
                events::request_failed(error.as_ref());
                self.respond(&Answer::INTERNAL, caller)
            }
        }
    }

    fn respond(&self, answer: &Answer, caller: Caller) -> Response<Bytes> {
        #[cfg(feature = "ws")]
        let caller = match caller {
            Caller::WebSocket(handshake) => {
                return websocket::close(answer, *handshake, &self.closing)
                    .unwrap_or_else(|| http::respond(answer, self));
            }
            caller => caller,
        };
        match caller.protocol() {
            Protocol::Grpc | Protocol::GrpcWeb => grpc::respond(answer, caller.content_type()),
            Protocol::ConnectStreaming => connect::streaming(answer, caller.content_type()),
            Protocol::ConnectUnary => connect::unary(answer),
            Protocol::Http | Protocol::WebSocket => http::respond(answer, self),
        }
    }
}

impl<S> Layer<S> for OverloadResponseLayer {
    type Service = OverloadResponse<S>;

    fn layer(&self, inner: S) -> OverloadResponse<S> {
        OverloadResponse {
            inner,
            layer: self.clone(),
            failed: None,
        }
    }
}

/// A service that answers overload. Made by [`OverloadResponseLayer`].
#[derive(Debug)]
pub struct OverloadResponse<S> {
    inner: S,
    layer: OverloadResponseLayer,
    /// The error of the inner service's `poll_ready`, for `call` to answer with.
    failed: Option<BoxError>,
}

impl<S, B, C> Service<Request<B>> for OverloadResponse<S>
where
    S: Service<Request<B>, Response = Response<C>>,
    S::Error: Into<BoxError>,
    B: Body + 'static,
{
    type Response = Response<OverloadBody<C>>;
    type Error = Infallible;
    type Future = OverloadResponseFuture<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.failed.is_none() {
            if let Err(error) = ready!(self.inner.poll_ready(cx)) {
                self.failed = Some(error.into());
            }
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        if let Some(error) = self.failed.take() {
            return self.layer.reject(error, request);
        }
        let caller = Some(Caller::of(&request));
        let settings = self.layer.settings.clone();
        let watched = is_unread(&request);
        let wanting = watched.then(hand_back::want);
        let handover = Handover::<S::Error>::begin();
        // The future is large, so it is put where it belongs without a stop in between.
        OverloadResponseFuture {
            state: State::Called {
                future: self.inner.call(request),
            },
            kept_back: handover.end(),
            handed_back: wanting.and_then(unread::handed_back),
            caller,
            settings,
            watched,
        }
    }
}

impl<S: Clone> Clone for OverloadResponse<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
            failed: None,
        }
    }
}

pin_project! {
    /// The response of the inner service, or the answer to its refusal.
    pub struct OverloadResponseFuture<F, B> {
        #[pin]
        state: State<F, B>,
        // The request, if it was rejected.
        handed_back: Option<Box<Request<B>>>,
        // Until it is answered; unless it cannot fail.
        caller: Option<Caller>,
        settings: Shared,
        // If the request is rejected, it is wanted back.
        watched: bool,
        kept_back: KeptBack,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, B> {
        Called { #[pin] future: F },
        // With the body that is read before it is answered.
        Failed { error: Option<BoxError>, unread: Option<Box<Unread<B>>> },
    }
}

impl<F, B, C, E> Future for OverloadResponseFuture<F, B>
where
    F: Future<Output = Result<Response<C>, E>>,
    E: Into<BoxError>,
    B: Body + 'static,
{
    type Output = Result<Response<OverloadBody<C>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        if let StateProjection::Called { future } = this.state.project() {
            let wanting = this.watched.then(hand_back::want);
            match future.poll(cx) {
                Poll::Ready(Ok(response)) => {
                    return Poll::Ready(Ok(response.map(OverloadBody::inner)));
                }
                Poll::Ready(Err(error)) => {
                    unread::keep(wanting, this.handed_back);
                    let error = pass_on(error.into(), *this.kept_back);
                    self.as_mut().fail(error);
                }
                Poll::Pending => {
                    // If it was rejected in `call`, a layer further in has made something else of that.
                    *this.handed_back = None;
                    return Poll::Pending;
                }
            }
        }
        self.answer(cx)
    }
}

impl<F, B: Body> OverloadResponseFuture<F, B> {
    /// Drops the inner future, and with it all that was held for the request, before the body is read.
    #[cold]
    fn fail(self: Pin<&mut Self>, error: BoxError) {
        let mut this = self.project();
        let error = Some(error);
        this.state.set(State::Failed {
            error,
            unread: None,
        });
        let handed_back = this.handed_back.take();
        let body = handed_back.and_then(|request| this.settings.unread(*request));
        if let StateProjection::Failed { unread, .. } = this.state.project() {
            *unread = body;
        }
    }

    /// Answers, after it has read the body if there is one to be read.
    #[cold]
    fn answer<C>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<OverloadBody<C>>, Infallible>> {
        let this = self.project();
        let StateProjection::Failed { error, unread } = this.state.project() else {
            unreachable!("there is nothing to answer yet")
        };
        if let Some(unread) = unread {
            ready!(unread.poll(cx));
        }
        *unread = None;
        let failed = error.take().zip(this.caller.take());
        let (error, caller) = failed.expect("polled after it completed");
        let response = this.settings.answer(error, caller);
        Poll::Ready(Ok(response.map(OverloadBody::own)))
    }
}

impl<F, B> fmt::Debug for OverloadResponseFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverloadResponseFuture")
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_late_is_deadline_exceeded() {
        let grpc_status = |reason| {
            let rejection = Overloaded::new("layer", reason, Duration::from_secs(2));
            let response = OverloadResponseLayer::new()
                .settings
                .refuse(&rejection, Caller::Grpc);
            let headers = response.headers().clone();
            let has_hint = headers.contains_key("grpc-retry-pushback-ms");
            (
                headers["grpc-status"].to_str().unwrap().to_owned(),
                has_hint,
            )
        };
        for reason in [
            Reason::AtLimit,
            Reason::QueueFull,
            Reason::WaitTimeout,
            Reason::TooOld,
            Reason::WouldBeLate,
            Reason::Displaced,
            Reason::ExceedsBurst,
            Reason::Quota,
            Reason::CircuitOpen,
            Reason::Saturated,
            Reason::NotReady,
        ] {
            assert_eq!(grpc_status(reason), ("8".into(), true), "{reason:?}");
        }
        assert_eq!(grpc_status(Reason::Deadline), ("4".into(), false));
    }
}
