//! Layers on trial: they decide, what they decide is counted, and every request is served all the same.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, ConcurrencyLimitLayer, LoadShedLayer, ShadowLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! // What would happen if there were a limit of 1?
//! let limit = ServiceBuilder::new()
//!     .layer(LoadShedLayer::new())
//!     .layer(ConcurrencyLimitLayer::new(1).name("orders"));
//! let shadow = ShadowLayer::new(limit);
//! let handle = shadow.handle();
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(shadow)
//!     .service(service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new("served")) }));
//!
//! let first = service.ready().await?.call(Request::new(()));
//! let second = service.ready().await?.call(Request::new(())); // the first is still in flight
//! let (first, second) = tokio::join!(first, second);
//! assert_eq!((*first?.body(), *second?.body()), ("served", "served"));
//!
//! let seen = handle.snapshot();
//! assert_eq!((seen.requests, seen.refused), (2, 1));
//! println!("{} would have refused: {}", seen.refusals[0].layer, seen.refusals[0].reason);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Before a limit is put in front of a service that has none, or another one is chosen: leave it on trial for
//! a day, and look what it would have done. [`Edge::shadow`](crate::Edge::shadow) is the whole stack on
//! trial.
//!
//! **When not to use it:** to find out what a server can do: a dry run tells what would have been rejected under the load that there is. For
//! the other question send it more load, or use the overload lab.
//!
//! # Behaviour
//! Each request goes to the inner service at once, as if there were no layer. A likeness of it goes through the
//! layers on trial: it is refused at once, or waits in a task of its own, or gets to a stand-in for the service,
//! which takes as long as the real one takes for the request, and succeeds or fails as that does. So the layers see
//! what they would see in earnest, and their handles show it. What they log has the field `shadow=true`.
//!
//! The likeness of an HTTP request is its head, extensions included; that of a response is its status. For
//! other types [`likeness`](ShadowLayer::likeness) says what layers are shown: where requests can be cloned,
//! `ShadowLayer::new(layer).likeness(Job::clone)`.
//!
//! # What is different from the real thing
//! - What would have been refused is served, so the service is as busy as it is without the layers. Where it is
//!   overloaded, requests take longer than they would in earnest, and a limit that goes by that sinks lower: what
//!   a trial shows to be refused is then more than would be.
//! - `hold_until_body_end` ends with the response: bodies are not in a likeness.
//! - Times are good to a millisecond.
//! - An [`OverloadResponseLayer`](crate::OverloadResponseLayer) has nothing to do here: what it answers is
//!   counted as failed, without a reason. Leave it out.
//! - A likeness that waits keeps the extensions of its request, for as long as it would have waited. If there is
//!   something in them that is to be given back, such as a permit, show less by
//!   [`likeness`](ShadowLayer::likeness).
//! - What layers are shown is a `Request<()>`, whatever the real body is. A function that looks at requests has to
//!   be for any: `fn tenant<B>(request: &Request<B>) -> Option<String>`.
//! - Layers have to keep their state in the layer value, as all of this crate do: for each request, one
//!   service is made of it.
//!
//! # Costs
//! A task and a copy of the head for each request, and what the layers cost. It needs a tokio runtime with
//! time enabled; without one there is no trial, and requests are served.
//!
//! # Errors
//! Those of the inner service. Those of the layers are counted, and so are their panics, which do not reach the real
//! request (unless panics abort the process).
//!
//! # Cancellation
//! If a request is cancelled, so is its likeness.
//!
//! # Cloning
//! One layer value is one trial, however often [`Layer::layer`] is called and services are cloned.

mod response;
mod stand_in;

use std::{
    fmt,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use self::response::harmless;
pub use self::{
    response::ShadowFuture,
    stand_in::{NoBody, StandIn},
};
use crate::{
    BoxError, Overloaded, Reason,
    gate::{
        aside::handover::{self, Handover},
        bounds::Name,
    },
    sync::{Arc, AtomicU64, Mutex, Ordering::Relaxed, lock},
};

/// Puts layers on trial. See the [module](self) for all of it.
///
/// `L` is the layer, or several by a [`ServiceBuilder`](https://docs.rs/tower/latest/tower/struct.ServiceBuilder.html).
/// `M` makes the likeness of requests and responses.
#[derive(Clone, Debug)]
pub struct ShadowLayer<L, M = OfHttp> {
    trial: Trial<L, M>,
}

impl<L> ShadowLayer<L> {
    /// A trial of that layer, in front of an HTTP service.
    pub fn new(layer: L) -> Self {
        Self {
            trial: Trial {
                layer,
                likeness: OfHttp,
                counts: Arc::default(),
            },
        }
    }
}

impl<L, M> ShadowLayer<L, M> {
    /// For requests of any type: shows the layers this instead of a request, and `()` instead of a response.
    /// A closure needs the type of its argument written out.
    pub fn likeness<M2>(self, likeness: M2) -> ShadowLayer<L, M2> {
        ShadowLayer {
            trial: Trial {
                layer: self.trial.layer,
                likeness,
                counts: self.trial.counts,
            },
        }
    }

    /// A name of its own, by which metrics tell trials apart. The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.trial.counts.name.set(name);
        self
    }

    /// A handle on this trial.
    pub fn handle(&self) -> Handle {
        Handle {
            counts: Arc::clone(&self.trial.counts),
        }
    }
}

impl<S, L: Clone, M: Clone> Layer<S> for ShadowLayer<L, M> {
    type Service = Shadow<S, L, M>;

    fn layer(&self, inner: S) -> Shadow<S, L, M> {
        Shadow {
            inner,
            trial: self.trial.clone(),
        }
    }
}

/// A service with layers in front of it that are on trial. Made by [`ShadowLayer`].
#[derive(Clone, Debug)]
pub struct Shadow<S, L, M = OfHttp> {
    inner: S,
    trial: Trial<L, M>,
}

/// What a layer and all its services share.
#[derive(Clone, Debug)]
struct Trial<L, M> {
    layer: L,
    likeness: M,
    counts: Arc<Counts>,
}

impl<S, R, L, M> Service<R> for Shadow<S, L, M>
where
    S: Service<R, Error: 'static>,
    M: Likeness<R, S::Response>,
    L: Layer<StandIn<M::Response>>,
    L::Service: Service<M::Request, Error: Into<BoxError>, Future: Send> + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ShadowFuture<S::Future, S::Response, M::Response>;

    /// Ready when the inner service is.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let Trial {
            layer,
            likeness,
            counts,
        } = &self.trial;
        counts.requests.fetch_add(1, Relaxed);
        let shown = harmless(|| likeness.request(&request));
        let layer = |stand_in| layer.layer(stand_in);
        let handover = Handover::<S::Error>::begin();
        let real = self.inner.call(request);
        let kept_back = handover.end();
        let _told = handover::restore_after(); // what the layers on trial reject is not kept back
        ShadowFuture::new(real, kept_back, layer, shown, M::response, counts)
    }
}

/// What layers on trial are shown of a request and of its response.
///
/// Any `Fn(&Request) -> Likeness` is one, which shows nothing of responses.
#[diagnostic::on_unimplemented(
    message = "`{Self}` makes no likeness of a `{R}`",
    note = "for requests that are not HTTP: `ShadowLayer::likeness(|request: &MyRequest| …)`"
)]
pub trait Likeness<R, Res> {
    /// Of the request: what extractors look at.
    type Request: Send + 'static;
    /// Of the response: what classifiers look at.
    type Response: Send + 'static;

    /// Of this request.
    fn request(&self, request: &R) -> Self::Request;
    /// Of this response.
    fn response(response: &Res) -> Self::Response;
}

/// Of HTTP: the head of the request, with its extensions, and of the response its status and whether it is a rejection.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct OfHttp;

impl<B, C> Likeness<Request<B>, Response<C>> for OfHttp {
    type Request = Request<()>;
    type Response = Response<NoBody>;

    fn request(&self, request: &Request<B>) -> Request<()> {
        let mut likeness = Request::new(());
        *likeness.method_mut() = request.method().clone();
        *likeness.uri_mut() = request.uri().clone();
        *likeness.version_mut() = request.version();
        *likeness.headers_mut() = request.headers().clone();
        *likeness.extensions_mut() = request.extensions().clone();
        // The connection is the real request's alone.
        #[cfg(feature = "ws")]
        likeness
            .extensions_mut()
            .remove::<hyper::upgrade::OnUpgrade>();
        likeness
    }

    fn response(response: &Response<C>) -> Response<NoBody> {
        let mut likeness = Response::new(NoBody);
        *likeness.status_mut() = response.status();
        // What a classifier goes by: where gRPC says how it went, if it has nothing else to say, and whether the server
        // rejects.
        for name in ["grpc-status", "grpc-retry-pushback-ms", "retry-after"] {
            if let Some(value) = response.headers().get(name) {
                likeness.headers_mut().insert(name, value.clone());
            }
        }
        // A layer further in has refused it, and another has made an answer of that.
        if let Some(refusal) = response.extensions().get::<Overloaded>() {
            likeness.extensions_mut().insert(refusal.clone());
        }
        likeness
    }
}

#[diagnostic::do_not_recommend]
impl<R, Res, Q, F> Likeness<R, Res> for F
where
    F: Fn(&R) -> Q,
    Q: Send + 'static,
{
    type Request = Q;
    type Response = ();

    fn request(&self, request: &R) -> Q {
        self(request)
    }

    fn response(_: &Res) {}
}

/// What was decided so far.
struct Counts {
    name: Name,
    requests: AtomicU64,
    waited: AtomicU64,
    failed: AtomicU64,
    refusals: Mutex<Vec<Refusals>>,
}

/// Different refusals that are told apart, at most. There are as many as layers have names and reasons.
const MAX_REFUSALS: usize = 256;

impl Default for Counts {
    fn default() -> Self {
        Self {
            name: Name::new("shadow"),
            requests: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            refusals: Mutex::default(),
        }
    }
}

impl Counts {
    fn refused(&self, refusal: &Overloaded) {
        let (layer, reason) = (refusal.layer(), refusal.reason());
        let mut refusals = lock(&self.refusals);
        let known = |known: &Refusals| (known.layer, known.reason) == (layer, reason);
        match refusals.iter().position(known) {
            Some(known) => refusals[known].count += 1,
            None if refusals.len() < MAX_REFUSALS => refusals.push(Refusals {
                layer,
                reason,
                count: 1,
            }),
            None => _ = self.failed.fetch_add(1, Relaxed),
        }
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts")
            .field("requests", &self.requests.load(Relaxed))
            .finish_non_exhaustive()
    }
}

/// Looks at a trial.
#[derive(Clone, Debug)]
pub struct Handle {
    counts: Arc<Counts>,
}

impl Handle {
    /// The trial's own name, if it was given one, else `shadow`.
    pub fn name(&self) -> &'static str {
        self.counts.name.get()
    }

    /// What was decided so far.
    pub fn snapshot(&self) -> Snapshot {
        let counts = &self.counts;
        let refusals = lock(&counts.refusals).clone();
        Snapshot {
            requests: counts.requests.load(Relaxed),
            waited: counts.waited.load(Relaxed),
            refused: refusals.iter().map(|refusals| refusals.count).sum(),
            refusals,
            failed: counts.failed.load(Relaxed),
        }
    }
}

/// What layers on trial have decided so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many requests there were. All of them were served.
    pub requests: u64,
    /// How many would have had to wait.
    pub waited: u64,
    /// How many would have been refused, some of them after a wait.
    pub refused: u64,
    /// By whom, and why.
    pub refusals: Vec<Refusals>,
    /// How many the layers failed, or answered, without saying that they refuse; where they panicked; and where there
    /// was no runtime to try them in.
    pub failed: u64,
}

/// Requests that one layer would have refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// The name of the layer.
    pub layer: &'static str,
    /// Its reason.
    pub reason: Reason,
    /// How many.
    pub count: u64,
}
