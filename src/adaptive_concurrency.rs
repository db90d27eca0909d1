//! A limit on requests in flight that is learned from how long they take.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{AdaptiveConcurrencyLayer, BoxError, LoadShedLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let limit = AdaptiveConcurrencyLayer::vegas();
//! let handle = limit.handle(); // to look at what it has learned
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(LoadShedLayer::new())
//!     .layer(limit)
//!     .service(service_fn(|name: &'static str| async move { Ok::<_, BoxError>(format!("hello {name}")) }));
//!
//! assert_eq!(service.ready().await?.call("world").await?, "hello world");
//! assert_eq!(handle.snapshot().permits.limit, 20); // where it starts
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! In front of something whose useful concurrency you do not know, or that changes: with the size of the
//! machine, the mix of requests, a neighbour, a cache that is cold. Put it inside a
//! [`LoadShedLayer`](crate::LoadShedLayer) to refuse what is over; alone it lets a bounded number wait.
//!
//! For an HTTP or gRPC service say [`.classify(ByStatus)`](AdaptiveConcurrencyLayer::classify): otherwise
//! a 500 that took no time counts as a quick success.
//!
//! **When not to use it:** where the number is known and stays: a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer) is exact and
//! cheaper. Nor around requests that wait for news: let them pass by it, with a [`BypassLayer`](crate::BypassLayer).
//!
//! # Which law
//! | law | goes by | for |
//! | --- | --- | --- |
//! | [`vegas()`](AdaptiveConcurrencyLayer::vegas) | the queue inside the service, estimated from round-trip times and a verified baseline | a server, or one client of a service |
//! | [`gradient2()`](AdaptiveConcurrencyLayer::gradient2) | the ratio of long-term to present round-trip time | comparison; set a `max` that the service survives |
//! | [`aimd()`](AdaptiveConcurrencyLayer::aimd) | failures and timeouts only | many clients of one service that refuses when it is overloaded |
//! | [`new(law)`](AdaptiveConcurrencyLayer::new) | whatever your [`Limit`] goes by | |
//!
//! # How Vegas finds the limit
//! From the round-trip times of a window of requests, their rate, and the *baseline* (the mean time of
//! requests that do not have to wait), Little's law tells how many requests wait inside the service. If
//! hardly any do, the limit grows; if more do than keep the service busy, it shrinks. Now and then the limit
//! dips for a few round trips, to three quarters of what keeps the service busy: those requests do not
//! wait, and their mean is the baseline. If the limit would be cut although less is at work than kept the service busy
//! before, a dip decides first whether there is a queue or the service has become slower. While nothing completes, nothing
//! is learned. Failures are never timed, and more than a tenth of them shrink the
//! limit. `src/law/vegas.rs` has the whole law, with the reason of each constant.
//!
//! It needs some traffic: windows have at least 16 requests, and an estimate is as good as service times are
//! even. What to expect at twice the load with exponential service times: a limit of about 8 in front of 4
//! workers, 38 in front of 32, 217 in front of 200, within one to ten seconds.
//!
//! # Several limiters in front of one service
//! They do not know of each other. None can drain the queue that the others hold up; each takes it for the
//! baseline, and the limits drift up. With 64 workers of 50 ms, exponential, at twice their capacity, after five minutes:
//!
//! | limiters | all limits together | p50 | the same with a `max` of 1.5 × 64 shared among them |
//! | --- | --- | --- | --- |
//! | 1 | 74 | 42 ms | |
//! | 2 | 118 | 76 ms | 81, 47 ms |
//! | 4 | 295 | 214 ms | 93, 54 ms |
//! | 8 | 1198 | 784 ms | 93, 52 ms |
//!
//! Set a `max` by [`limits`](AdaptiveConcurrencyLayer::limits), each its share of what the service
//! can do; or put the limit into the service itself, where there is one; or use
//! [`aimd()`](AdaptiveConcurrencyLayer::aimd).
//!
//! # Long polls and streams
//! A request that waits for news holds a place and looks like slow work. Let such requests pass by the limit:
//! [`bypass`](crate::bypass).
//!
//! # Behaviour
//! As [`concurrency_limit`](crate::concurrency_limit): `poll_ready` reserves a permit and is `Pending` at
//! the limit, callers that wait are served in their order, waits are bounded by [`max_waiting`] (default
//! 1024) and [`max_wait`]. When the limit shrinks, nothing in flight is disturbed, and nothing is
//! admitted until less is in flight than the new limit, however many wait.
//!
//! A request is timed from `call` to its response, so a wait for a permit is not part of it. Of HTTP that is
//! the response's head, also with [`hold_until_body_end`]. Where the work is in the body, the time to the
//! head says nothing about it and the limit grows to its `max`: set one, or use a fixed limit there.
//!
//! Callers wait before there is a request, so the layer cannot see [deadlines](crate::deadline#behavior). A
//! [`DeadlineLayer`](crate::DeadlineLayer) inside it rejects what has expired in the meantime.
//!
//! # Errors
//! [`Overloaded`] past the bounds, and from a `LoadShed` outside it at the limit. Its
//! retry hint is the length of the queue over the rate at which permits came back lately. Errors of the
//! inner service are passed on.
//!
//! # Cancellation
//! As [`concurrency_limit`](crate::concurrency_limit). A request whose future is dropped before it
//! completes, or that panics, gives its permit back and is not learned from: how long it would have taken
//! is not known. So put a `Timeout` *inside* this layer: there it is a failure, outside it only cancels, and
//! a service that hangs teaches nothing.
//!
//! # Cloning
//! One layer value is one limit and one law, however often [`Layer::layer`] is called and however often
//! the services are cloned.
//!
//! Use one value once on the path of a request, or the request waits for itself:
//! [`concurrency_limit`](crate::concurrency_limit#cloning) has the details. Debug builds panic where that happens.
//!
//! [`max_waiting`]: AdaptiveConcurrencyLayer::max_waiting
//! [`max_wait`]: AdaptiveConcurrencyLayer::max_wait
//! [`hold_until_body_end`]: AdaptiveConcurrencyLayer::hold_until_body_end

use std::{
    fmt,
    marker::PhantomData,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

pub use crate::classify::{ByResult, ByStatus, Classify, Outcome};
pub use crate::law::{
    aimd::Aimd,
    gradient2::Gradient2,
    limit::{Bounds, Limit, Moved, Report, Sample, Window},
    netflix_vegas::NetflixVegas,
    vegas::Vegas,
    windowed::Windowed,
};
use crate::{
    BoxError, Clock, ConfigError, Hold, Overloaded, Permit, ResponseFuture, UntilBodyEnd,
    UntilResponse,
    clock::Now,
    concurrency_limit::Acquire,
    config::{AdaptiveConcurrencyConfig, Law},
    gate::{
        aside::{self, LimiterId, hand_back, handover::Handover},
        claim::Claim,
        gate::{self, Gate},
        governor::{Dispatched, Governor},
    },
    hold::sealed::Sealed,
    sync::Arc,
};

/// Limits how many requests are in flight at once, and learns how many. See the [module](self) for all
/// of it.
///
/// `C` tells successes from failures; `H` says how long a request counts as in flight.
pub struct AdaptiveConcurrencyLayer<C = ByResult, H = UntilResponse> {
    gate: Arc<Gate>,
    classify: C,
    hold: PhantomData<fn() -> H>,
}

impl AdaptiveConcurrencyLayer {
    /// By [`Vegas`], from 1 to 1000, starting with 20.
    pub fn vegas() -> Self {
        Self::named(Law::Vegas)
    }

    /// By [`Gradient2`] in windows of a second, from 20 to 200, starting with 20.
    pub fn gradient2() -> Self {
        Self::named(Law::Gradient2)
    }

    /// By [`Aimd`], from 20 to 200, starting with 20.
    pub fn aimd() -> Self {
        Self::named(Law::Aimd)
    }

    /// By a law of your choice.
    pub fn new(limit: impl Limit) -> Self {
        Self::with_clock(limit, Clock::default())
    }

    /// With a clock of its own; see [`Clock`]. Each request looks at it twice.
    pub fn with_clock(limit: impl Limit, clock: Clock) -> Self {
        Self::governed(Governor::new(limit, clock))
    }

    /// As this config says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &AdaptiveConcurrencyConfig) -> Result<Self, ConfigError> {
        let layer = Self::named(config.law);
        layer.start_over(config)?;
        Ok(layer)
    }

    fn named(law: Law) -> Self {
        Self::named_with_clock(law, Clock::default())
    }

    pub(crate) fn named_with_clock(law: Law, clock: Clock) -> Self {
        Self::governed(Governor::named(law, clock))
    }

    fn governed(governor: Governor) -> Self {
        Self {
            gate: Arc::new(Gate::governed("adaptive_concurrency", governor)),
            classify: ByResult,
            hold: PhantomData,
        }
    }
}

/// These settings are the limit's, not the layer value's: they apply to everything on this limit.
impl<C, H> AdaptiveConcurrencyLayer<C, H> {
    /// As this config says, with its initial limit.
    pub(crate) fn start_over(&self, config: &AdaptiveConcurrencyConfig) -> Result<(), ConfigError> {
        let bounds = config.bounds()?;
        self.gate.governor().restart(&self.gate, bounds);
        self.handle().apply(config)
    }

    /// From `min` to `max`, starting over with `initial`. A limit above 16 777 215 is held at that.
    ///
    /// # Panics
    /// Unless 1 ≤ `min` ≤ `initial` ≤ `max`.
    pub fn limits(self, min: usize, initial: usize, max: usize) -> Self {
        let bounds = Bounds::new(min, initial, max);
        self.gate.governor().restart(&self.gate, bounds);
        self
    }

    /// At most so many callers wait; the next one is refused. Default: 1024; with 0 nobody waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.gate.bounds.set_max_waiting(max_waiting);
        self
    }

    /// Nobody waits longer than this; who has is refused. Default: no bound. It needs what
    /// [`ConcurrencyLimitLayer::max_wait`](crate::ConcurrencyLimitLayer::max_wait) needs.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.gate.bounds.set_max_wait(Some(max_wait));
        self
    }

    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer): a stack may have several
    /// limits. The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.gate.bounds.set_name(name);
        self
    }

    /// Tells successes from failures this way; see [`Classify`].
    pub fn classify<C2>(self, classify: C2) -> AdaptiveConcurrencyLayer<C2, H> {
        AdaptiveConcurrencyLayer {
            gate: self.gate,
            classify,
            hold: PhantomData,
        }
    }

    /// Keeps the permit of an HTTP request until its response's body ends, fails or is dropped.
    /// See [`hold`](crate::hold). The request is still timed to the response's head.
    pub fn hold_until_body_end(self) -> AdaptiveConcurrencyLayer<C, UntilBodyEnd> {
        AdaptiveConcurrencyLayer {
            gate: self.gate,
            classify: self.classify,
            hold: PhantomData,
        }
    }

    /// A handle on this limit.
    pub fn handle(&self) -> Handle {
        Handle {
            gate: Arc::clone(&self.gate),
        }
    }
}

impl<S, C: Clone, H> Layer<S> for AdaptiveConcurrencyLayer<C, H> {
    type Service = AdaptiveConcurrency<S, C, H>;

    fn layer(&self, inner: S) -> Self::Service {
        AdaptiveConcurrency {
            inner,
            claim: Claim::new(Arc::clone(&self.gate), ()),
            classify: self.classify.clone(),
            hold: PhantomData,
        }
    }
}

impl<C: Clone, H> Clone for AdaptiveConcurrencyLayer<C, H> {
    fn clone(&self) -> Self {
        Self {
            gate: Arc::clone(&self.gate),
            classify: self.classify.clone(),
            hold: PhantomData,
        }
    }
}

impl<C, H> fmt::Debug for AdaptiveConcurrencyLayer<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AdaptiveConcurrencyLayer")
            .field(&self.gate)
            .finish()
    }
}

/// A service with a learned number of requests in flight. Made by [`AdaptiveConcurrencyLayer`].
pub struct AdaptiveConcurrency<S, C = ByResult, H = UntilResponse> {
    inner: S,
    claim: Claim<Gate>,
    classify: C,
    hold: PhantomData<fn() -> H>,
}

impl<S, R, C, H> Service<R> for AdaptiveConcurrency<S, C, H>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    C: Classify<S::Response>,
    H: Hold<S::Response> + From<Permit>,
    R: 'static,
{
    type Response = H::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, Sampling<C, H>>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.claim.poll_ready(&mut self.inner, cx)
    }

    /// # Panics
    /// If the service was not polled ready.
    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        match self.claim.take() {
            Ok(()) => {
                let permit = Permit::new(Arc::clone(self.claim.limiter()));
                let sampling = Sampling {
                    dispatched: (permit.gate().governor())
                        .dispatch(permit.gate(), &mut aside::take_time()),
                    permit,
                    classify: self.classify.clone(),
                    hold: PhantomData,
                };
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                ResponseFuture::admitted(future, sampling, handover.end())
            }
            Err(overloaded) => {
                hand_back::give(request);
                ResponseFuture::refused(overloaded)
            }
        }
    }
}

impl<S: Clone, C: Clone, H> Clone for AdaptiveConcurrency<S, C, H> {
    /// The clone shares the limit, but not the permit or the place in the queue.
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            claim: self.claim.fresh(),
            classify: self.classify.clone(),
            hold: PhantomData,
        }
    }
}

impl<S: fmt::Debug, C, H> fmt::Debug for AdaptiveConcurrency<S, C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveConcurrency")
            .field("inner", &self.inner)
            .field("claim", &self.claim)
            .finish()
    }
}

/// What is held for a request whose completion is learned from.
pub struct Sampling<C, H> {
    permit: Permit,
    dispatched: Dispatched,
    classify: C,
    hold: PhantomData<fn() -> H>,
}

impl<C, H> Sampling<C, H> {
    /// Before the permit is given back, so that whoever gets it next meets the limit as it is then.
    #[inline]
    fn complete<Res>(&self, result: Result<&Res, &BoxError>)
    where
        C: Classify<Res>,
    {
        let outcome = self.classify.classify(result).for_limit();
        let gate = self.permit.gate();
        (gate.governor()).complete(gate, self.dispatched, outcome, &mut Now::default());
    }
}

impl<Res, C, H> Hold<Res> for Sampling<C, H>
where
    C: Classify<Res>,
    H: Hold<Res> + From<Permit>,
{
    type Response = H::Response;

    #[inline(always)]
    fn until_done(self, response: Res) -> H::Response {
        self.complete(Ok(&response));
        H::from(self.permit).until_done(response)
    }

    fn failed(self, error: &BoxError) {
        self.complete::<Res>(Err(error));
    }
}

impl<C, H> Sealed for Sampling<C, H> {
    fn limiter(&self) -> Option<LimiterId> {
        Some(LimiterId::of(self.permit.gate()))
    }
}

impl<C, H> fmt::Debug for Sampling<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampling")
            .field("permit", &self.permit)
            .field("dispatched", &self.dispatched)
            .finish()
    }
}

/// Looks at a limit and what it has learned, and overrules it, while it is in use.
///
/// ```
/// use tower_backpressure::AdaptiveConcurrencyLayer;
///
/// # fn main() -> Result<(), tower_backpressure::ConfigError> {
/// let handle = AdaptiveConcurrencyLayer::vegas().handle();
/// handle.pin(50)?; // an operator knows better, for now
/// assert_eq!(handle.snapshot().permits.limit, 50);
/// handle.unpin(); // it learns anew, from 50 on
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    gate: Arc<Gate>,
}

/// The state of an adaptive limit at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The limit, what is in flight and who waits.
    pub permits: gate::Snapshot,
    /// What the law has learned: the baseline, the last window, and why the limit last moved.
    pub learned: Report,
    /// Whether the limit is pinned.
    pub pinned: bool,
    /// How far the law may move the limit. One that is pinned may be beyond.
    pub bounds: Bounds,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.gate.bounds.name()
    }

    /// The state of the limit now. Taking it starts a new interval for
    /// [`peak_in_flight`](gate::Snapshot::peak_in_flight).
    pub fn snapshot(&self) -> Snapshot {
        let (learned, pinned, bounds) = self.gate.governor().report();
        Snapshot {
            permits: self.gate.snapshot(),
            learned,
            pinned,
            bounds,
        }
    }

    /// Changes everything to what this config says: the law, its bounds, and whether the limit is pinned at
    /// once. What has been learned stays unless the law or its bounds change; then the law starts over, with
    /// the limit that there is, or the nearest within its bounds. A limit that is pinned is unpinned, unless
    /// the config pins it.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &AdaptiveConcurrencyConfig) -> Result<(), ConfigError> {
        let bounds = config.bounds()?;
        self.set_max_waiting(config.max_waiting);
        self.set_max_wait(config.max_wait);
        let governor = self.gate.governor();
        governor.set_law(&self.gate, config.law, bounds, config.pinned);
        Ok(())
    }

    /// Holds the limit at this, within the bounds or not, until it is unpinned. What completes meanwhile
    /// is not learned from. A limit above 16 777 215 is held at that.
    ///
    /// # Errors
    /// If `limit` is 0; nothing is changed.
    pub fn pin(&self, limit: usize) -> Result<(), ConfigError> {
        gate::check_limit(limit)?;
        self.gate.governor().pin(&self.gate, limit);
        Ok(())
    }

    /// Has the law move the limit again. It starts over from the limit that was pinned, or the nearest
    /// within its bounds: what it had learned before, it may have learned wrongly. Does nothing if the
    /// limit is not pinned.
    pub fn unpin(&self) {
        self.gate.governor().unpin(&self.gate);
    }

    /// Waits for a permit, in line with the layer's requests and under the same bounds. What is done under
    /// it counts as in flight, but is not timed and not learned from.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(&self.gate)
    }

    /// Takes such a permit if one is free and nobody waits for it.
    ///
    /// # Errors
    /// [`Reason::AtLimit`](crate::Reason::AtLimit) if not.
    pub fn try_acquire(&self) -> Result<Permit, Overloaded> {
        Permit::try_take(&self.gate)
    }

    /// Whether less than this share of the limit is in flight, and nobody waits: for a worker that claims
    /// work from a queue that others claim from too, and leaves it to them while it is busy. With 0.8 it
    /// claims below 80 % of its limit. Above 1 is as 1; 0, and what is no number, is never.
    ///
    /// It takes nothing: by the time a permit is asked for, there may be none.
    pub fn has_capacity(&self, share: f64) -> bool {
        self.gate.has_capacity(share)
    }

    /// Changes how many callers may wait. Those who wait already may stay.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.gate.bounds.set_max_waiting(max_waiting);
    }

    /// Changes how long callers may wait that come from now on; `None` is without a bound.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.gate.bounds.set_max_wait(max_wait);
    }
}
