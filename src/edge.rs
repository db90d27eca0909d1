//! The whole stack in one line.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_backpressure::edge;
//!
//! let edge = edge();
//! let handle = edge.handle(); // to look at all of it, and change it
//!
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(edge);
//! # let _ = (app, handle);
//! ```
//!
//! # What is in it
//! From the outside in:
//!
//! | layer | with | does |
//! | --- | --- | --- |
//! | [`OverloadResponseLayer`] | [`response`](Edge::response) | answers what the others refuse |
//! | [`WfqLayer`] | [`tenant`](Edge::tenant), [`wfq`](Edge::wfq) | notes when a request came, and takes turns between tenants; requests wait here |
//! | [`CoDelLayer`] | [`codel`](Edge::codel) | refuses what has waited too long |
//! | [`AdaptiveConcurrencyLayer`] | [`adaptive`](Edge::adaptive) | finds out how much the service can do |
//! | [`LoadShedLayer`](crate::LoadShedLayer) | | refuses what the service itself is not ready for |
//!
//! A request that waits is served or rejected within a [second](Edge::max_wait), whatever the service does: admission by
//! age rejects when places get free, and a timer does it where the service hangs.
//!
//! The age of a request counts from when it gets here, or from its [`SubmittedAt`](crate::SubmittedAt) if
//! it has been stamped further out; a stamp of its own would say no more than the fair queue knows.
//!
//! # Tenants
//! Tenants are found by the [`TenantId`](crate::wfq::TenantId) that a layer further out has put into a
//! request's extensions; those without one are all the same tenant, which is to say that requests wait in
//! one line.
//!
//! **What puts it there has to be outside the edge.** A tonic interceptor that is given to a service
//! (`HealthServer::with_interceptor`) is inside every layer of the server, and then all requests are anonymous. Make a layer
//! of it, and put it before the edge: of a tonic server, as of a `ServiceBuilder`, the layer that is added first is the
//! outermost.
//!
//! ```
//! use tonic::{Request, Status, service::InterceptorLayer, transport::Server};
//! use tower_backpressure::{WfqConfig, WfqLayer, edge, wfq::{FromExtension, TenantId}};
//!
//! fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
//!     let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok());
//!     let customer = match token {
//!         Some("Bearer secret") => "acme", // look it up
//!         _ => return Err(Status::unauthenticated("who is it?")),
//!     };
//!     request.extensions_mut().insert(TenantId::new(customer));
//!     Ok(request)
//! }
//!
//! let config = WfqConfig::default().weight("acme", 10);
//! let server = Server::builder()
//!     .layer(InterceptorLayer::new(authenticate)) // first, so outermost
//!     .layer(edge().wfq(WfqLayer::new(config, FromExtension)));
//! # let _ = server;
//! ```
//!
//! In axum the layer that is added *last* is the outermost: `Router::layer(edge()).layer(authenticate)`. A queue that has
//! weights, and in which none of a hundred requests had a tenant, says so in the log, once;
//! [`wfq::Snapshot::anonymous`](crate::wfq::Snapshot::anonymous) counts them.
//!
//! # Requests and responses
//! It is for HTTP and gRPC services: responses tell successes from failures by their
//! [status](crate::ByStatus). A request's body is a [`Body`], because that of a rejected HTTP/1 request is
//! [read before it is answered](crate::respond#unread-bodies); where there is none, an empty `String` will do. Each part has its own documentation; another stack can be put
//! together by hand, in [this order](crate#stacking).
//!
//! # Errors, cancellation, cloning
//! There are no errors: rejections are answers. Otherwise as its parts. One value is one stack with one
//! state, however often it is cloned and however many routes it is put around.
//!
//! Use one value once on the path of a request: not both as `route_layer` and as `layer`. Each request would hold a permit
//! and wait for another of the same limit. Debug builds panic where that happens, with a message that says so. In
//! release builds such a request is rejected after [`max_wait`](Edge::max_wait).

mod gates;

use std::{
    convert::Infallible,
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use self::gates::{Admission, Held, LongWay, Parts};
pub use self::gates::{Gates, GatesFuture, GatesService};
use crate::{
    AdaptiveConcurrencyLayer, BoxError, ByStatus, Classify, Clock, CoDelConfig, CoDelLayer,
    ConfigError, Hold, OverloadResponseLayer, Permit, ShadowLayer, UntilBodyEnd, UntilResponse,
    WfqLayer, adaptive_concurrency,
    admission::{
        hand_back,
        handover::{Handover, can_be},
    },
    codel,
    config::EdgeConfig,
    hold::HoldKind,
    respond::{Caller, OverloadBody, OverloadResponseFuture, is_unread},
    wfq::{self, ExtractTenant, FromExtension, Running},
};

/// The recommended stack, with what suits most servers. See the [module](mod@self) for what is in it.
pub fn edge() -> Edge {
    let EdgeConfig {
        wfq,
        codel,
        adaptive,
    } = EdgeConfig::default();
    let clock = Clock::default(); // one for all: what time it is, is worked out once
    Edge {
        response: OverloadResponseLayer::new(),
        gates: Gates::new(Parts {
            wfq: WfqLayer::new(wfq.clock(clock.clone()), FromExtension),
            codel: CoDelLayer::with_clock(codel, clock.clone()),
            adaptive: AdaptiveConcurrencyLayer::named_with_clock(adaptive.law, clock)
                .classify(ByStatus),
        }),
    }
}

/// The whole stack as one layer. Made by [`edge`](fn@edge).
///
/// `E` finds a request's tenant. `H` says how long a request counts as in flight.
pub struct Edge<E = FromExtension, H: HoldKind = UntilResponse> {
    response: OverloadResponseLayer,
    gates: Gates<E, H>,
}

impl<E> Edge<E> {
    /// Finds tenants this way, see [`ExtractTenant`]. Weights and bounds stay as they are.
    pub fn tenant<E2>(self, extract: E2) -> Edge<E2> {
        let wfq = self.gates.parts().wfq.extract(extract);
        self.wfq(wfq)
    }

    /// No request waits longer than this; one that has is rejected, by a timer, whatever the service does. The default
    /// is one second; `None` turns it off.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_backpressure::edge;
    ///
    /// let patient = edge().max_wait(Duration::from_secs(5));
    /// # let _ = patient;
    /// ```
    pub fn max_wait(self, max_wait: impl Into<Option<Duration>>) -> Self {
        self.gates
            .parts()
            .wfq
            .handle()
            .set_max_wait(max_wait.into());
        self
    }

    /// With what this config says. All parts that there are by now are changed.
    ///
    /// ```
    /// use http::Request;
    /// use tower_backpressure::{config::EdgeConfig, edge};
    ///
    /// # fn main() -> Result<(), tower_backpressure::ConfigError> {
    /// let customer = |request: &Request<()>| request.extensions().get::<String>().cloned();
    /// let gold = ["acme", "initech"]; // customers that pay for ten times the share of others
    /// let mut config = EdgeConfig::default();
    /// config.wfq = (config.wfq)
    ///     .weight_of(move |customer| if gold.contains(&customer) { 10 } else { 1 });
    /// let stack = edge().tenant(customer).configured(&config)?;
    /// # let _ = stack;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a field's value is not allowed.
    pub fn configured(self, config: &EdgeConfig) -> Result<Self, ConfigError> {
        config.check()?;
        (self.gates.parts().adaptive).start_over(&config.adaptive)?;
        self.handle().apply(config)?;
        Ok(self)
    }

    /// With this fair queue, for weights and bounds of its own.
    pub fn wfq<E2>(self, wfq: WfqLayer<E2>) -> Edge<E2> {
        self.change(
            |Parts {
                 codel, adaptive, ..
             }| Parts {
                wfq,
                codel,
                adaptive,
            },
        )
    }

    /// With this admission by age.
    ///
    /// # Panics
    /// As [`CoDelLayer::new`].
    pub fn codel(self, config: CoDelConfig) -> Self {
        let codel = CoDelLayer::with_clock(config, self.clock());
        self.change(|parts| Parts { codel, ..parts })
    }

    /// With this adaptive limit, for bounds or a law of its own.
    pub fn adaptive(self, adaptive: AdaptiveConcurrencyLayer) -> Self {
        let adaptive = adaptive.classify(ByStatus);
        self.change(|parts| Parts { adaptive, ..parts })
    }

    /// With these answers.
    pub fn response(mut self, response: OverloadResponseLayer) -> Self {
        self.response = response;
        self
    }

    /// Counts a request as in flight in the adaptive limit, and as served by the fair queue, until its
    /// response's body ends, fails or is dropped. See [`hold`](crate::hold). It comes last.
    pub fn hold_until_body_end(self) -> Edge<E, UntilBodyEnd> {
        self.change(|parts| Parts {
            wfq: parts.wfq.hold_until_body_end(),
            codel: parts.codel,
            adaptive: parts.adaptive.hold_until_body_end(),
        })
    }

    /// Tokio's, as its parts have it unless they are given another: the admission by age cannot be.
    fn clock(&self) -> Clock {
        self.gates.parts().codel.gate().clock()
    }

    fn change<E2, H: HoldKind>(
        self,
        change: impl FnOnce(Parts<E, UntilResponse>) -> Parts<E2, H>,
    ) -> Edge<E2, H> {
        Edge {
            response: self.response,
            gates: Gates::new(change(self.gates.parts().clone())),
        }
    }
}

impl<E, H: HoldKind> Edge<E, H> {
    /// Handles on its parts.
    pub fn handle(&self) -> Handle {
        let Parts {
            wfq,
            codel,
            adaptive,
        } = self.gates.parts();
        Handle {
            wfq: wfq.handle(),
            codel: codel.handle(),
            adaptive: adaptive.handle(),
        }
    }

    /// Only what decides: refusals are errors, for those who have their own way to answer.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
    /// use tower_backpressure::{BoxError, edge};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let mut service = ServiceBuilder::new()
    ///     .layer(edge().gates())
    ///     .service(service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new("served")) }));
    ///
    /// assert_eq!(*service.ready().await?.call(Request::new(())).await?.body(), "served");
    /// # Ok(())
    /// # }
    /// ```
    pub fn gates(self) -> Gates<E, H> {
        self.gates
    }

    /// The whole stack on trial: it decides, and every request is served all the same. See
    /// [`shadow`](crate::shadow).
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tower_backpressure::edge;
    ///
    /// let trial = edge().shadow();
    /// let handle = trial.handle(); // what would have been refused
    ///
    /// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(trial);
    /// # let _ = (app, handle);
    /// ```
    pub fn shadow(self) -> ShadowLayer<Gates<E, H>> {
        ShadowLayer::new(self.gates)
    }
}

impl<S, E, H: HoldKind> Layer<S> for Edge<E, H> {
    type Service = EdgeService<S, E, H>;

    fn layer(&self, inner: S) -> Self::Service {
        EdgeService {
            gates: self.gates.layer(inner),
            response: self.response.clone(),
        }
    }
}

/// A service behind an [`Edge`]: what [`OverloadResponse`](crate::OverloadResponse) around a [`GatesService`] would
/// be, but that it looks at what a client speaks only if there may be something to tell it.
pub struct EdgeService<S, E = FromExtension, H: HoldKind = UntilResponse> {
    gates: GatesService<S, E, H>,
    response: OverloadResponseLayer,
}

impl<S, B, C, E, H> Service<Request<B>> for EdgeService<S, E, H>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    E: ExtractTenant<Request<B>>,
    ByStatus: Classify<S::Response>,
    H: HoldKind,
    Held<E, H>: Hold<S::Response, Response = Response<C>>,
    H::Of<Permit>: Hold<S::Response> + From<Permit>,
    H::Of<Running>: Hold<<H::Of<Permit> as Hold<S::Response>>::Response, Response = Response<C>>
        + From<Running>,
    B: Body + 'static,
{
    type Response = Response<OverloadBody<C>>;
    type Error = Infallible;
    type Future = Answered<S::Future, LongWay<S, Request<B>, H>, E, H, B>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    // A function of its own: the response future is large, and where this is called in line it is copied once more.
    #[inline(never)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.gates.admit(&request) {
            Admission::Sent(held) => {
                if can_be::<S::Error>() && is_unread(&request) {
                    return self.send_watched(request, held);
                }
                // Routers have errors of which there are no values: nothing has to be known to answer one.
                let caller = can_be::<S::Error>().then(|| Caller::of(&request));
                let handover = Handover::<S::Error>::begin();
                let future = GatesFuture::sent(
                    self.gates.inner.get_mut().call(request),
                    held,
                    handover.end(),
                );
                self.response.around(future, caller)
            }
            Admission::Waits(place) => {
                let caller = Caller::of(&request);
                let future = self.gates.wait(request, place);
                self.response.around_waiting(future, caller)
            }
            Admission::Failed(error) => self.response.reject(error, request),
        }
    }
}

/// The future of a request whose rejection is answered.
type Answered<F, W, E, H, B> = OverloadResponseFuture<GatesFuture<F, W, Held<E, H>>, B>;

impl<S, E, H: HoldKind> EdgeService<S, E, H> {
    /// Sends a request that what is inside may reject yet: then its body is to be read.
    #[inline(never)] // out of the way of services that cannot fail
    fn send_watched<B, W>(
        &mut self,
        request: Request<B>,
        held: Held<E, H>,
    ) -> Answered<S::Future, W, E, H, B>
    where
        S: Service<Request<B>>,
        B: Body + 'static,
    {
        let caller = Caller::of(&request);
        let wanting = hand_back::want();
        let handover = Handover::<S::Error>::begin();
        let future = self.gates.inner.get_mut().call(request);
        let future = GatesFuture::sent(future, held, handover.end());
        self.response.around_watched(future, caller, wanting)
    }
}

impl<S: Clone, E, H: HoldKind> Clone for EdgeService<S, E, H> {
    fn clone(&self) -> Self {
        Self {
            gates: self.gates.clone(),
            response: self.response.clone(),
        }
    }
}

impl<S: fmt::Debug, E, H: HoldKind> fmt::Debug for EdgeService<S, E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EdgeService").field(&self.gates).finish()
    }
}

impl<E, H: HoldKind> Clone for Edge<E, H> {
    fn clone(&self) -> Self {
        Self {
            response: self.response.clone(),
            gates: self.gates.clone(),
        }
    }
}

impl<E, H: HoldKind> fmt::Debug for Edge<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Edge").field(&self.gates).finish()
    }
}

/// Handles on the parts of an [`Edge`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Handle {
    /// On the fair queue: who waits, who gets what.
    pub wfq: wfq::Handle,
    /// On the admission by age: whether a queue stands.
    pub codel: codel::Handle,
    /// On the adaptive limit: how many are in flight, and how many may be.
    pub adaptive: adaptive_concurrency::Handle,
}

impl Handle {
    /// Changes all parts to what this config says, as their own `apply` does: all of them, or, if one makes
    /// no sense, none.
    ///
    /// # Errors
    /// If it makes no sense; nothing changes. The field is named with its part: `codel.target`.
    pub fn apply(&self, config: &EdgeConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.wfq.apply(&config.wfq)?;
        self.codel.apply(&config.codel)?;
        self.adaptive.apply(&config.adaptive)
    }
}
