//! A fixed number of requests in flight.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, ConcurrencyLimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let limit = ConcurrencyLimitLayer::new(10);
//! let handle = limit.handle(); // to look at it, and to change it, while the server runs
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(limit)
//!     .service(service_fn(|name: &'static str| async move { Ok::<_, BoxError>(format!("hello {name}")) }));
//!
//! assert_eq!(service.ready().await?.call("world").await?, "hello world");
//! assert_eq!(handle.snapshot().admitted, 1);
//! handle.set_limit(20)?;
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! In front of something whose useful concurrency you know: a pool of connections, a number of
//! cores, a licence. Put a [`LoadShedLayer`](crate::LoadShedLayer) outside it to refuse rather than
//! to wait.
//!
//! **When not to use it:** where the number would be a guess, or changes: take an
//! [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer). For a number of each client, take a
//! [`KeyedConcurrencyLimitLayer`](crate::KeyedConcurrencyLimitLayer).
//!
//! # Behaviour
//! `poll_ready` reserves a permit and is `Pending` at the limit; `call` uses it; it is given back
//! when the response future completes or is dropped (see [`hold_until_body_end`] to keep it longer).
//! Callers that wait are served in the order in which they were first polled. All waits are bounded:
//! at most [`max_waiting`] callers wait (1024 unless you say otherwise) and, if you set it, each at
//! most [`max_wait`]. In a server a wait is an in-process queue that nobody upstream can see, so
//! there is no setting without a bound.
//!
//! Callers wait before there is a request, so the layer cannot see [deadlines](crate::deadline#behavior). A
//! [`DeadlineLayer`](crate::DeadlineLayer) inside it rejects what has expired in the meantime.
//!
//! # Errors
//! Past those bounds the service is ready, and `call` answers with [`Overloaded`]
//! ([`Reason::QueueFull`], [`Reason::WaitTimeout`]) without calling the inner service. Its
//! `retry_after` is the length of the queue over the rate at which permits were given back lately, or
//! one second where that is not known. Errors of the inner service are passed on.
//!
//! # Cancellation
//! Dropping a service or future at any point loses nothing: one that waits leaves the queue, one
//! that was just handed a permit hands it to the next. A service that is kept after it was polled
//! ready keeps its permit until it is called or dropped.
//!
//! # Cloning
//! One layer value is one limit, however often [`Layer::layer`] is called (axum does so per route)
//! and however often the services are cloned. A clone starts with no permit and no place in the
//! queue. Two limits are two calls of [`ConcurrencyLimitLayer::new`].
//!
//! **Use one value once on the path of a request.** With one value both inside a router (`route_layer`) and around
//! it (`layer`), each request holds a permit while it waits for another, and under load all of them wait for each
//! other. The same goes for a handler that calls back into its own stack, or waits for a permit of its own limit.
//! Debug builds panic with a message that says so as soon as such a request would wait. In release builds it waits
//! until [`max_wait`] ends it, if there is one.
//!
//! [`hold_until_body_end`]: ConcurrencyLimitLayer::hold_until_body_end
//! [`max_waiting`]: ConcurrencyLimitLayer::max_waiting
//! [`max_wait`]: ConcurrencyLimitLayer::max_wait
//! [`Reason::QueueFull`]: crate::Reason::QueueFull
//! [`Reason::WaitTimeout`]: crate::Reason::WaitTimeout

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

pub use crate::gate::gate::Snapshot;
use crate::{
    BoxError, ConfigError, Hold, Overloaded, Permit, ResponseFuture, UntilBodyEnd, UntilResponse,
    config::ConcurrencyLimitConfig,
    gate::{
        aside::{hand_back, handover::Handover},
        claim::Claim,
        gate::Gate,
    },
    sync::Arc,
};

/// Limits how many requests are in flight at once. See the [module](self) for all of it.
///
/// `H` says how long a request counts: until its response (the default) or, after
/// [`hold_until_body_end`](Self::hold_until_body_end), until the end of its body.
pub struct ConcurrencyLimitLayer<H = UntilResponse> {
    gate: Arc<Gate>,
    hold: PhantomData<fn() -> H>,
}

impl ConcurrencyLimitLayer {
    /// At most `max` requests in flight, for everything that is made from this value.
    ///
    /// A limit above 16 777 215 is held at that.
    ///
    /// # Panics
    /// If `max` is 0.
    pub fn new(max: usize) -> Self {
        match Gate::new("concurrency_limit", max) {
            Ok(gate) => Self::around(Arc::new(gate)),
            Err(error) => panic!("ConcurrencyLimitLayer::new({max}): {error}"),
        }
    }

    /// As this config says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &ConcurrencyLimitConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let layer = Self::new(config.limit);
        layer.handle().apply(config)?;
        Ok(layer)
    }
}

/// These settings are the limit's, not the layer value's: they apply to everything on this limit.
impl<H> ConcurrencyLimitLayer<H> {
    /// At most so many callers wait; the next one is refused. Default: 1024; with 0 nobody waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.gate.bounds.set_max_waiting(max_waiting);
        self
    }

    /// Nobody waits longer than this; who has is refused. Default: no bound.
    ///
    /// It needs a tokio runtime with time enabled wherever the service is polled (without one, polling a
    /// full service panics), and a timer of some 100 bytes for each caller that waits.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.gate.bounds.set_max_wait(Some(max_wait));
        self
    }

    /// A name of its own, for [`Overloaded::layer`]: a stack may have several limits. The first
    /// name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.gate.bounds.set_name(name);
        self
    }

    /// Keeps the permit of an HTTP request until its response's body ends, fails or is dropped.
    /// See [`hold`](crate::hold).
    pub fn hold_until_body_end(self) -> ConcurrencyLimitLayer<UntilBodyEnd> {
        ConcurrencyLimitLayer::around(self.gate)
    }

    /// A handle on this limit.
    pub fn handle(&self) -> Handle {
        Handle {
            gate: Arc::clone(&self.gate),
        }
    }

    fn around(gate: Arc<Gate>) -> Self {
        Self {
            gate,
            hold: PhantomData,
        }
    }
}

impl<S, H> Layer<S> for ConcurrencyLimitLayer<H> {
    type Service = ConcurrencyLimit<S, H>;

    fn layer(&self, inner: S) -> Self::Service {
        ConcurrencyLimit {
            inner,
            claim: Claim::new(Arc::clone(&self.gate), ()),
            hold: PhantomData,
        }
    }
}

impl<H> Clone for ConcurrencyLimitLayer<H> {
    fn clone(&self) -> Self {
        Self::around(Arc::clone(&self.gate))
    }
}

impl<H> fmt::Debug for ConcurrencyLimitLayer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConcurrencyLimitLayer")
            .field(&self.gate)
            .finish()
    }
}

/// A service with a limited number of requests in flight. Made by [`ConcurrencyLimitLayer`].
pub struct ConcurrencyLimit<S, H = UntilResponse> {
    inner: S,
    claim: Claim<Gate>,
    hold: PhantomData<fn() -> H>,
}

impl<S, R, H> Service<R> for ConcurrencyLimit<S, H>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    H: Hold<S::Response> + From<Permit>,
    R: 'static,
{
    type Response = H::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, H>;

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
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                ResponseFuture::admitted(future, permit.into(), handover.end())
            }
            Err(overloaded) => {
                hand_back::give(request);
                ResponseFuture::refused(overloaded)
            }
        }
    }
}

impl<S: Clone, H> Clone for ConcurrencyLimit<S, H> {
    /// The clone shares the limit, but not the permit or the place in the queue.
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            claim: self.claim.fresh(),
            hold: PhantomData,
        }
    }
}

impl<S: fmt::Debug, H> fmt::Debug for ConcurrencyLimit<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimit")
            .field("inner", &self.inner)
            .field("claim", &self.claim)
            .finish()
    }
}

/// Looks at a limit and changes it while it is in use; takes permits for code that is no tower
/// service.
///
/// ```
/// use tower_backpressure::ConcurrencyLimitLayer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_backpressure::BoxError> {
/// let jobs = ConcurrencyLimitLayer::new(2).handle();
/// for job in 0..10 {
///     let permit = jobs.acquire().await?; // claims a job only when it can be worked on
///     tokio::spawn(async move {
///         println!("job {job}");
///         drop(permit);
///     });
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    gate: Arc<Gate>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.gate.bounds.name()
    }

    /// The state of the limit now. Taking it starts a new interval for
    /// [`peak_in_flight`](Snapshot::peak_in_flight).
    pub fn snapshot(&self) -> Snapshot {
        self.gate.snapshot()
    }

    /// Changes everything to what this config says, as the functions below do one at a time.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &ConcurrencyLimitConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.set_max_waiting(config.max_waiting);
        self.set_max_wait(config.max_wait);
        self.set_limit(config.limit)
    }

    /// Changes the limit. If it grows, those who wait are let in; if it shrinks, nothing in flight is
    /// disturbed and nothing is admitted until less is in flight than the new limit. A limit above
    /// 16 777 215 is held at that.
    ///
    /// # Errors
    /// If `limit` is 0; the limit stays as it was.
    pub fn set_limit(&self, limit: usize) -> Result<(), ConfigError> {
        self.gate.set_limit(limit)
    }

    /// Changes how many callers may wait. Those who wait already may stay.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.gate.bounds.set_max_waiting(max_waiting);
    }

    /// Changes how long callers may wait that come from now on; `None` is without a bound.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.gate.bounds.set_max_wait(max_wait);
    }

    /// Waits for a permit, in line with the layer's requests and under the same bounds.
    ///
    /// The place in the queue is taken at the first poll. Dropping the future loses nothing.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(&self.gate)
    }

    /// Takes a permit if one is free and nobody waits for it.
    ///
    /// # Errors
    /// [`Reason::AtLimit`](crate::Reason::AtLimit) if not.
    #[inline]
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

    /// A layer on this limit, for those who start from the handle. It holds until the response, unless
    /// it is told otherwise.
    pub fn layer(&self) -> ConcurrencyLimitLayer {
        ConcurrencyLimitLayer::around(Arc::clone(&self.gate))
    }
}

/// A permit to come, from the `acquire` of a handle.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Acquire {
    claim: Claim<Gate>,
}

impl Acquire {
    pub(crate) fn new(gate: &Arc<Gate>) -> Self {
        Self {
            claim: Claim::new(Arc::clone(gate), ()),
        }
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Overloaded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.claim.poll(cx));
        Poll::Ready(match self.claim.take() {
            Ok(()) => Ok(Permit::new(Arc::clone(self.claim.limiter()))),
            Err(overloaded) => Err(*overloaded),
        })
    }
}
