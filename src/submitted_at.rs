//! When a request was submitted: the stamp that its age is counted from.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, SubmittedAt, SubmittedAtLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let mut service = ServiceBuilder::new()
//!     .layer(SubmittedAtLayer::new()) // outermost
//!     .service(service_fn(|request: Request<()>| async move {
//!         let submitted: &SubmittedAt = request.extensions().get().expect("stamped");
//!         Ok::<_, BoxError>(Response::new(submitted.elapsed()))
//!     }));
//!
//! service.ready().await?.call(Request::new(())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! With a [`CoDelLayer`](crate::CoDelLayer), and further out than anything that takes time. Without a
//! stamp `CoDel` counts only the time that a request waited in a [`Wfq`](crate::Wfq) around it, or for
//! `CoDel` to be ready.
//!
//! The stamp is made in `call`. A server calls a service when it is ready, so put the layer where nothing
//! is ever not ready: outside a `Wfq`, or, in axum, by a `Router::layer` of its own after the one that
//! adds the others. hyper has no readiness: with the feature `hyper` there is `StampDecoded`, which
//! stamps a request at the moment hyper has decoded its head.
//!
//! What happens before is not seen: the time in the kernel's backlog, in the buffers of the connection,
//! and until the executor gets to it.
//!
//! **When not to use it:** for an [`edge()`](fn@crate::edge) alone, which counts from when a request reaches it: only if something further out
//! takes time.
//!
//! # Behaviour
//! A request that has a stamp keeps it: the outermost one counts, and the layer may be there twice. The
//! stamp is an extension of the request, which clients cannot set; no header is looked at unless
//! [`dangerously_trust_header`](SubmittedAtLayer::dangerously_trust_header) says so.
//!
//! Extensions are a map on the heap, which is how `http` has them: a stamp takes one allocation, and up
//! to two more if it is the first extension of its request.
//!
//! # Errors, cancellation, cloning
//! It refuses nothing, holds nothing, and passes its inner service's readiness on. Clones share the
//! counts of the [`handle`](SubmittedAtLayer::handle).

#[cfg(feature = "hyper")]
mod decoded;
mod header;

use std::{
    task::{Context, Poll},
    time::Duration,
};

use http::{Extensions, HeaderName, Request};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

#[cfg(feature = "hyper")]
pub use self::decoded::StampDecoded;
use self::header::TrustedHeader;
pub use self::header::{MAX_AGE, Snapshot};
use crate::{clock, sync::Arc};

/// When a request was submitted. An extension of HTTP requests; see the [module](self).
///
/// Monotonic: it follows neither the clock on the wall nor what a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubmittedAt(Instant);

impl SubmittedAt {
    /// Now.
    #[inline]
    pub fn now() -> Self {
        Self(clock::instant())
    }

    /// So long ago: for a job out of a queue that tells how long it was there. `None` if the system's
    /// clock does not go back that far.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_backpressure::SubmittedAt;
    ///
    /// let submitted = SubmittedAt::ago(Duration::from_secs(3)).unwrap_or_else(SubmittedAt::now);
    /// assert!(submitted.elapsed() >= Duration::from_secs(3));
    /// ```
    pub fn ago(age: Duration) -> Option<Self> {
        Some(Self(clock::instant().checked_sub(age)?))
    }

    /// The time since then.
    pub fn elapsed(self) -> Duration {
        self.age_at(clock::instant())
    }

    #[inline]
    pub(crate) fn age_at(self, now: Instant) -> Duration {
        now.saturating_duration_since(self.0)
    }

    #[inline]
    pub(crate) fn instant(self) -> Instant {
        self.0
    }

    /// Stamps a request, unless it has a stamp.
    pub fn stamp(extensions: &mut Extensions) {
        if extensions.get::<Self>().is_none() {
            extensions.insert(Self::now());
        }
    }
}

impl From<Instant> for SubmittedAt {
    fn from(instant: Instant) -> Self {
        Self(instant)
    }
}

/// Finds out when a request was submitted. Implemented by [`FromExtension`], and by any `Fn(&Request) ->
/// Option<SubmittedAt>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell when a request of type `{R}` was submitted",
    note = "requests that are no `http::Request` need `.submitted_at(|request: &{R}| …)` on the `CoDelLayer`"
)]
pub trait ExtractSubmittedAt<R> {
    /// When it was, if that is known.
    fn submitted_at(&self, request: &R) -> Option<SubmittedAt>;
}

#[diagnostic::do_not_recommend]
impl<R, F> ExtractSubmittedAt<R> for F
where
    F: Fn(&R) -> Option<SubmittedAt>,
{
    #[inline]
    fn submitted_at(&self, request: &R) -> Option<SubmittedAt> {
        self(request)
    }
}

/// Takes the [`SubmittedAt`] in the extensions of an HTTP request.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct FromExtension;

impl<B> ExtractSubmittedAt<Request<B>> for FromExtension {
    #[inline]
    fn submitted_at(&self, request: &Request<B>) -> Option<SubmittedAt> {
        request.extensions().get().copied()
    }
}

/// Stamps each request with the time at which it came. See the [module](self) for all of it.
#[derive(Clone, Debug, Default)]
pub struct SubmittedAtLayer {
    trusted: Option<Arc<TrustedHeader>>,
}

impl SubmittedAtLayer {
    /// Stamps with the time of `call`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Believes what a header such as `x-request-start` says, **which any client can set to whatever it
    /// likes**.
    ///
    /// A client that claims to have waited makes the server look overloaded, and has the requests of
    /// others refused. So this is for a server that only a proxy can reach, and only if the proxy removes
    /// what clients send and sets the header itself; and the two should agree on what time it is.
    ///
    /// The value is the time since 1970 in seconds, milliseconds, microseconds or nanoseconds, told apart
    /// by their size, with or without a fraction and with or without `t=` in front: `t=1700000000.123` as
    /// nginx writes it, `1700000000123`, `t=1700000000123456`.
    ///
    /// A time in the future is not believed, nor is a header that cannot be read, nor are two
    /// values: such a request is stamped with the time at which it came, and [counted](Snapshot). One
    /// longer ago than [`MAX_AGE`] is taken for that.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_backpressure::SubmittedAtLayer;
    ///
    /// let header = HeaderName::from_static("x-request-start");
    /// let stamp = SubmittedAtLayer::new().dangerously_trust_header(header);
    /// # let _ = stamp;
    /// ```
    pub fn dangerously_trust_header(self, header: HeaderName) -> Self {
        Self {
            trusted: Some(Arc::new(TrustedHeader::new(header))),
        }
    }

    /// A handle that tells how often the trusted header was believed, and why not. Taken after
    /// [`dangerously_trust_header`](Self::dangerously_trust_header): before that there is none.
    pub fn handle(&self) -> Handle {
        Handle {
            trusted: self.trusted.clone(),
        }
    }

    fn stamp<B>(&self, request: &mut Request<B>) {
        let Some(trusted) = &self.trusted else {
            return SubmittedAt::stamp(request.extensions_mut());
        };
        if request.extensions().get::<SubmittedAt>().is_none() {
            let submitted = trusted.read(request.headers());
            let submitted = submitted.unwrap_or_else(SubmittedAt::now);
            request.extensions_mut().insert(submitted);
        }
    }
}

impl<S> Layer<S> for SubmittedAtLayer {
    type Service = StampSubmittedAt<S>;

    fn layer(&self, inner: S) -> StampSubmittedAt<S> {
        StampSubmittedAt {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose requests are stamped. Made by [`SubmittedAtLayer`].
#[derive(Clone, Debug)]
pub struct StampSubmittedAt<S> {
    inner: S,
    layer: SubmittedAtLayer,
}

impl<S, B> Service<Request<B>> for StampSubmittedAt<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        self.layer.stamp(&mut request);
        self.inner.call(request)
    }
}

/// Looks at what became of a header that is trusted.
#[derive(Clone, Debug)]
pub struct Handle {
    trusted: Option<Arc<TrustedHeader>>,
}

impl Handle {
    /// The counts now. All are 0 where no header is trusted.
    pub fn snapshot(&self) -> Snapshot {
        let trusted = self.trusted.as_ref();
        trusted
            .map(|trusted| trusted.snapshot())
            .unwrap_or_default()
    }
}
