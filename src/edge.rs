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
//! # When to use it
//! In front of an HTTP or gRPC server that strangers can reach. It needs no number.
//!
//! **When not to use it:** where you answer rejections yourself: [`gates`](Edge::gates) is the same without the responses. Where one bound is
//! all that is needed: take a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer). For a quota of each client:
//! put a [`KeyedRateLimitLayer`](crate::KeyedRateLimitLayer) outside it.
//!
//! # What it does
//! An edge is one gate with a waiting room:
//!
//! | part | set by | does |
//! | --- | --- | --- |
//! | limit | [`adaptive`](Edge::adaptive), [`law`](Edge::law) | finds out how many requests the service can work on at once, as an [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) does |
//! | order | [`priority`](Edge::priority), [`tenant`](Edge::tenant), [`cost`](Edge::cost), [`wfq`](Edge::wfq), [`newest_first`](Edge::newest_first) | when a permit is free, gives it to the most important request, and of equals to the tenant that has had the least service for its weight, as a [`WfqLayer`](crate::WfqLayer) does |
//! | age | [`codel`](Edge::codel) | while a queue stands, rejects what has waited too long, as a [`CoDelLayer`](crate::CoDelLayer) does |
//! | service | | what the service itself is not ready for is rejected, as by a [`LoadShedLayer`](crate::LoadShedLayer) |
//! | answers | [`response`](Edge::response) | a rejected request gets the response that its protocol expects, from an [`OverloadResponseLayer`] |
//!
//! All of it is decided at one moment: when a permit is free, and the gate looks who is next.
//!
//! A request that waits is served or rejected within a [second](Edge::max_wait), whatever the service does: admission by
//! age rejects when a permit is free, and a timer does it where the service hangs.
//!
//! The age of a request counts from when it gets here, or from its [`SubmittedAt`](crate::SubmittedAt) if
//! it has been stamped further out; a stamp of its own would say no more than the gate knows.
//!
//! # Order
//! The requests of one tenant are served in the order in which they came. Under plain overload (a queue stands, and at least
//! a quarter as many requests are rejected as served) the newest is served first. Then those that are served have hardly
//! waited. In the order of arrival, each of them waits for almost twice CoDel's target first, whatever the load. At three times
//! the capacity, p50 is 7 times the unloaded p50 in the order of arrival, and 1.6 times with the newest first (16 workers,
//! exponential service times; overload lab).
//!
//! Meanwhile only so many requests may wait as can be served soon, 1 to 2.5 times as many as are in flight. A newcomer takes
//! the place of the oldest request of the tenant that has the most waiting for its weight; that one is rejected at once, with
//! [`Reason::QueueFull`](crate::Reason::QueueFull).
//!
//! In the long run the shares of tenants do not change. But a burst of one tenant that is larger than the places there are is
//! cut, although the tenant has had less than its share. If every request is of another tenant, requests are served in the order in which they
//! came, and a newcomer for which there is no place is rejected.
//!
//! [`newest_first(false)`](Edge::newest_first) keeps the order of arrival, for clients that would rather wait.
//!
//! # Priorities
//! The [`Priority`] of a request is what [`priority`](Edge::priority) finds, or else the one in its extensions, and without
//! one it is `Normal`. The most important waiters go first, whosever they are; tenants share what there is for one priority.
//! If there is no place for a more important request, the least important waiter is rejected instead, at once, with
//! [`Reason::Displaced`](crate::Reason::Displaced), and was never called. What waits too long is rejected from the least
//! important up: a request is not too old while a less important one waits.
//!
//! Each priority that has waiters gets at least one percent of the starts:
//! [`priority_floor`](crate::WfqConfig::priority_floor). If all requests have the same priority, or nobody has to wait,
//! priorities decide nothing.
//!
//! With 20, 30, 30 and 20 % of the requests in four priorities, all requests of the highest one are served at three times the
//! capacity, in the first second of a step from 0.7 to 4 times, and in spikes of 200 ms; and as much is served in all as
//! without priorities (`tests/conformance/who_is_served.rs`).
//!
//! # Deadlines
//! A request that has to wait is asked for its [`Deadline`](crate::Deadline): the one in its extensions, or else the one that
//! its protocol states (`grpc-timeout`, `connect-timeout-ms`). It is rejected
//! - when it comes, if those ahead of it would make it miss the deadline: [`Reason::WouldBeLate`](crate::Reason::WouldBeLate);
//! - when the deadline passes while it waits, by a timer: [`Reason::Deadline`](crate::Reason::Deadline);
//! - at its turn, if nearly all requests take longer than the time that is left: `WouldBeLate`. It is not sent to the service.
//!
//! Where a queue of at least half CoDel's target makes more than one request miss its deadline for each ten waiters that are
//! served, the newest is served first until the queue has drained, as under plain overload. A request that starts at once is not asked: put a [`DeadlineLayer`](crate::DeadlineLayer) around the edge to
//! reject what has expired before.
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
//! use tower_backpressure::{WfqConfig, edge, wfq::TenantId};
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
//!     .layer(edge().wfq(config));
//! # let _ = server;
//! ```
//!
//! In axum the layer that is added *last* is the outermost: `Router::layer(edge()).layer(authenticate)`. A queue that has
//! weights, and in which none of a hundred requests had a tenant, says so in the log, once;
//! [`Snapshot::anonymous`] counts them.
//!
//! A request that starts while nobody waits is not charged to its tenant. If others come to wait before it is done, its tenant
//! is charged for that time. [`Handle::tenants`] counts it in any case.
//!
//! # Requests and responses
//! It is for HTTP and gRPC services: responses tell successes from failures by their
//! [status](crate::ByStatus). A request's body is a [`Body`], because that of a rejected HTTP/1 request is
//! [read before it is answered](crate::respond#unread-bodies); where there is none, an empty `String` will do. Each part has its own documentation; another stack can be put
//! together by hand, in [this order](crate#stacking).
//!
//! # Errors, cancellation, cloning
//! There are no errors: rejections are answers. A response future may be dropped at any point: one that waits leaves its
//! place, and an admitted one releases its permit. One value is one stack with one state, however often it is cloned and
//! however many routes it is put around.
//!
//! Use one value once on the path of a request: not both as `route_layer` and as `layer`. Each request would hold a permit
//! and wait for another of the same limit. Debug builds panic where that happens, with a message that says so. In
//! release builds such a request is rejected after [`max_wait`](Edge::max_wait).

mod admitted;
mod handle;
mod service;
mod waiter;

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

use self::{
    admitted::{Admitted, Holding},
    service::{Admission, Shared},
};
pub use self::{
    handle::{AgeSnapshot, Handle, Permit, Snapshot},
    service::{Gates, GatesFuture, GatesService},
};
use crate::{
    BoxError, Clock, CoDelConfig, ConfigError, Hold, OverloadResponseLayer, Priority, ShadowLayer,
    UntilBodyEnd, UntilResponse, WfqConfig,
    adaptive_concurrency::Limit,
    config::{AdaptiveConcurrencyConfig, EdgeConfig},
    gate::{
        aside::{
            hand_back,
            handover::{Handover, can_be},
        },
        gate::Gate,
        governor::Governor,
    },
    head::Head,
    respond::{Caller, OverloadBody, OverloadResponseFuture, is_unread},
    sync::Arc,
    wfq::{ExtractTenant, FromExtension, WithCost},
};

/// The recommended stack, with what suits most servers. See the [module](mod@self) for what is in it.
pub fn edge() -> Edge {
    Edge::with_clock(Clock::default())
}

/// The whole stack as one layer. Made by [`edge`](fn@edge).
///
/// `E` finds a request's tenant. `H` says how long a request counts as in flight.
///
/// Settings can be made in any order, and each leaves the others as they are. They are the stack's, not the layer value's:
/// a [handle](Self::handle) that was taken before sees them too.
pub struct Edge<E = FromExtension, H = UntilResponse> {
    response: OverloadResponseLayer,
    gates: Gates<E, H>,
}

impl Edge {
    /// As [`edge`](fn@edge), with a clock of its own.
    #[allow(clippy::missing_panics_doc, reason = "the default is allowed")]
    pub fn with_clock(clock: Clock) -> Self {
        let EdgeConfig {
            wfq,
            codel,
            adaptive,
            newest_first,
        } = EdgeConfig::default();
        let Ok(ages) = codel.settings() else {
            unreachable!("the default is allowed")
        };
        let governor = Governor::named(adaptive.law, clock.clone());
        let gate = Gate::fair("edge", wfq, ages, governor, clock);
        gate.set_newest_first(newest_first);
        Self {
            response: OverloadResponseLayer::new(),
            gates: Gates::new(Shared {
                gate: Arc::new(gate),
                extract: Arc::new(FromExtension),
                priority: None,
            }),
        }
    }
}

impl<E, H> Edge<E, H> {
    /// Finds tenants this way, see [`ExtractTenant`]. What requests [cost](Self::cost) is to be said after that.
    pub fn tenant<E2>(self, extract: E2) -> Edge<E2, H> {
        self.extract(Arc::new(extract))
    }

    /// What requests cost, where that is not only a matter of how long they take: `cost` is a
    /// `Fn(&Request) -> NonZeroU32`. One of cost 2 counts for as much as two that take as long.
    pub fn cost<C>(self, cost: C) -> Edge<WithCost<E, C>, H> {
        let extract = Arc::clone(&self.gates.shared().extract);
        self.extract(Arc::new(WithCost { extract, cost }))
    }

    fn extract<E2>(self, extract: Arc<E2>) -> Edge<E2, H> {
        let Shared { gate, priority, .. } = self.gates.shared();
        let (gate, priority) = (Arc::clone(gate), priority.clone());
        Edge {
            response: self.response,
            gates: Gates::new(Shared {
                gate,
                extract,
                priority,
            }),
        }
    }

    /// How much each request matters: it goes before those that matter less, and displaces one of them if the queue is
    /// full. Unless this says otherwise, requests have the [`Priority`] in their extensions, which a
    /// [`PriorityLayer`](crate::PriorityLayer) further out may have put there. See [priorities](mod@self#priorities).
    ///
    /// ```
    /// use tower_backpressure::{Priority, edge};
    ///
    /// let stack = edge().priority(|head| match head.uri.path() {
    ///     "/checkout" => Priority::Critical,
    ///     path if path.starts_with("/report") => Priority::Background,
    ///     _ => Priority::Normal,
    /// });
    /// # let _ = stack;
    /// ```
    pub fn priority(self, priority: impl Fn(Head<'_>) -> Priority + Send + Sync + 'static) -> Self {
        let Shared { gate, extract, .. } = self.gates.shared();
        gate.ask_urgency();
        let shared = Shared {
            gate: Arc::clone(gate),
            extract: Arc::clone(extract),
            priority: Some(std::sync::Arc::new(priority)),
        };
        Self {
            response: self.response,
            gates: Gates::new(shared),
        }
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
        self.handle().set_max_wait(max_wait.into());
        self
    }

    /// Whether the newest of a tenant's waiters is served first under plain overload. It is, unless this says otherwise.
    /// See [order](mod@self#order).
    ///
    /// ```
    /// use tower_backpressure::edge;
    ///
    /// let in_order = edge().newest_first(false);
    /// # let _ = in_order;
    /// ```
    pub fn newest_first(self, newest_first: bool) -> Self {
        self.handle().set_newest_first(newest_first);
        self
    }

    /// With what this config says. All parts are changed.
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
        let gate = &self.gates.shared().gate;
        let bounds = config.adaptive.bounds()?;
        gate.governor().restart(gate, bounds);
        self.handle().apply(config)?;
        Ok(self)
    }

    /// With these weights of tenants, and bounds for what waits. The clock stays that of the edge.
    ///
    /// # Panics
    /// If a field's value is not allowed: see [`WfqConfig::check`].
    pub fn wfq(self, config: WfqConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("Edge::wfq: {error}");
        }
        self.gates.shared().gate.set_tenants(&config);
        self
    }

    /// With this admission by age.
    ///
    /// # Panics
    /// As [`CoDelLayer::new`](crate::CoDelLayer::new).
    pub fn codel(self, config: CoDelConfig) -> Self {
        match config.settings() {
            Ok(settings) => self.gates.shared().gate.set_ages(settings),
            Err(error) => panic!("Edge::codel: {error}"),
        }
        self
    }

    /// With this law and these bounds of the limit, starting over. What the config says of waiting does not apply: see
    /// [`wfq`](Self::wfq).
    ///
    /// # Panics
    /// If a field's value is not allowed: see [`AdaptiveConcurrencyConfig::check`].
    pub fn adaptive(self, config: AdaptiveConcurrencyConfig) -> Self {
        let bounds = match config.bounds() {
            Ok(bounds) => bounds,
            Err(error) => panic!("Edge::adaptive: {error}"),
        };
        let gate = &self.gates.shared().gate;
        (gate.governor()).set_law(gate, config.law, bounds, config.pinned);
        gate.governor().restart(gate, bounds);
        self
    }

    /// With a law of your own for the limit.
    pub fn law(self, limit: impl Limit) -> Self {
        let gate = &self.gates.shared().gate;
        gate.governor().replace_law(gate, limit);
        self
    }

    /// From `min` to `max` requests in flight, starting over with `initial`. A limit above 16 777 215 is held at that.
    ///
    /// # Panics
    /// Unless 1 ≤ `min` ≤ `initial` ≤ `max`.
    pub fn limits(self, min: usize, initial: usize, max: usize) -> Self {
        let bounds = crate::adaptive_concurrency::Bounds::new(min, initial, max);
        let gate = &self.gates.shared().gate;
        gate.governor().restart(gate, bounds);
        self
    }

    /// With these answers.
    pub fn response(mut self, response: OverloadResponseLayer) -> Self {
        self.response = response;
        self
    }

    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer) and metrics. The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.gates.shared().gate.bounds.set_name(name);
        self
    }

    /// Counts a request as in flight, and as served, until its response's body ends, fails or is dropped. See
    /// [`hold`](crate::hold).
    pub fn hold_until_body_end(self) -> Edge<E, UntilBodyEnd> {
        Edge {
            response: self.response,
            gates: self.gates.held(),
        }
    }

    /// A handle on the whole stack.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.gates.shared().gate))
    }

    /// Only what decides: rejections are errors, for those who have their own way to answer.
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
    /// let handle = trial.handle(); // what would have been rejected
    ///
    /// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(trial);
    /// # let _ = (app, handle);
    /// ```
    pub fn shadow(self) -> ShadowLayer<Gates<E, H>> {
        ShadowLayer::new(self.gates)
    }
}

impl<S, E, H> Layer<S> for Edge<E, H> {
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
pub struct EdgeService<S, E = FromExtension, H = UntilResponse> {
    gates: GatesService<S, E, H>,
    response: OverloadResponseLayer,
}

impl<S, B, C, E, H> Service<Request<B>> for EdgeService<S, E, H>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    E: ExtractTenant<Request<B>>,
    Holding<H>: Hold<S::Response, Response = Response<C>>,
    B: Body + 'static,
{
    type Response = Response<OverloadBody<C>>;
    type Error = Infallible;
    type Future = OverloadResponseFuture<GatesFuture<S, S::Future, Request<B>, H>, B>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    // A function of its own: the response future is large, and where this is called in line it is copied once more.
    #[inline(never)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.gates.admit(&request) {
            Admission::Sent(admitted) => {
                if can_be::<S::Error>() && is_unread(&request) {
                    return self.send_watched(request, admitted);
                }
                // Routers have errors of which there are no values: nothing has to be known to answer one.
                let caller = can_be::<S::Error>().then(|| Caller::of(&request));
                let handover = Handover::<S::Error>::begin();
                let future = self.gates.inner.call(request);
                let future = GatesFuture::sent(future, admitted.into(), handover.end());
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

impl<S, E, H> EdgeService<S, E, H> {
    /// Sends a request that what is inside may reject yet: then its body is to be read.
    #[inline(never)] // out of the way of services that cannot fail
    fn send_watched<B>(
        &mut self,
        request: Request<B>,
        admitted: Admitted,
    ) -> OverloadResponseFuture<GatesFuture<S, S::Future, Request<B>, H>, B>
    where
        S: Service<Request<B>>,
        B: Body + 'static,
    {
        let caller = Caller::of(&request);
        let wanting = hand_back::want();
        let handover = Handover::<S::Error>::begin();
        let future = self.gates.inner.call(request);
        let future = GatesFuture::sent(future, admitted.into(), handover.end());
        self.response.around_watched(future, caller, wanting)
    }
}

impl<S: Clone, E, H> Clone for EdgeService<S, E, H> {
    fn clone(&self) -> Self {
        Self {
            gates: self.gates.clone(),
            response: self.response.clone(),
        }
    }
}

impl<S: fmt::Debug, E, H> fmt::Debug for EdgeService<S, E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EdgeService").field(&self.gates).finish()
    }
}

impl<E, H> Clone for Edge<E, H> {
    fn clone(&self) -> Self {
        Self {
            response: self.response.clone(),
            gates: self.gates.clone(),
        }
    }
}

impl<E, H> fmt::Debug for Edge<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Edge").field(&self.gates).finish()
    }
}
