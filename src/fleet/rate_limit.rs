//! A rate that all nodes of a fleet share.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, Fleet, Rate, fleet::Memory};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! // In production: Fleet::redis("redis://redis.internal/", 10)?, for ten nodes.
//! let fleet = Fleet::new(Memory::new(), 10);
//! let limit = fleet.rate_limit("orders", Rate::per_second(1000).burst(100));
//! let handle = limit.handle();
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(limit)
//!     .service(service_fn(|()| async { Ok::<_, BoxError>("served") }));
//! assert_eq!(service.ready().await?.call(()).await?, "served");
//! assert_eq!(handle.snapshot().admitted, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! To keep to one rate with several replicas: an upstream's quota, a contract. For a rate of each client use a
//! [`FleetKeyedRateLimitLayer`](crate::FleetKeyedRateLimitLayer), for a number of calls at once a
//! [`FleetConcurrencyLimitLayer`](crate::FleetConcurrencyLimitLayer). With one replica, or where each may have its own rate, take
//! a [`RateLimitLayer`](crate::RateLimitLayer): it needs no server.
//!
//! # Behavior
//! As a [`RateLimitLayer`](crate::rate_limit): `poll_ready` takes a token and is `Pending` until there is one, callers wait in
//! order and in a bounded number. The tokens come from leases that this node asks the server for, ahead of need. A request
//! that finds none waits for the answer, and no longer than [`timeout`](crate::Fleet::timeout) if it does not come; after that
//! the [`Fallback`](super::Fallback) decides. [`max_wait`](FleetRateLimitLayer::max_wait) bounds both together.
//!
//! What the whole fleet may spend in a window, and what happens without the server, is in the [guide](crate::guide::fleet).
//!
//! Under a [`LoadShedLayer`](crate::LoadShedLayer) nothing waits, not for an answer either. The first request after a pause is
//! shed then, and rates of less than some twenty a second for each node are not used up: give it `max_wait` instead.
//!
//! # Errors
//! As a [`RateLimitLayer`](crate::rate_limit), with the layer's own name. `retry_after` is exact where the server has said
//! when, and [`Fleet::timeout`](crate::Fleet::timeout) while it is being asked.
//!
//! # Cancellation
//! A service that was polled ready and is dropped uncalled puts its token back into the node's lease; one that waits leaves the
//! queue. Tokens that no request of this node wants are lost about a second after they were due.
//!
//! # Cloning
//! One layer value is one limit on this node, however often [`Layer::layer`] is called and services are cloned. Two layers of
//! the same name in one process are two nodes that share one limit.
//!
//! # Cost
//! A decision takes a lock for a moment, reads the clock once, and allocates nothing. Calls to the server are made by a task:
//! some 0.1 for each request near the limit, and 0.03 and less above it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    leased::{Common, Leased},
    link,
};
pub use crate::rate_limit::Snapshot;
use crate::{
    BoxError, ConfigError, Overloaded, Rate, Reason, ResponseFuture,
    config::RateLimitConfig,
    gate::{
        aside::{hand_back, handover::Handover},
        claim::{Claim, Limiter},
    },
    sync::{Arc, Mutex, lock},
};

/// Limits how many requests pass in a time, on all nodes together. See the [module](self) for all of it.
#[derive(Clone, Debug)]
pub struct FleetRateLimitLayer {
    handle: Handle,
}

impl FleetRateLimitLayer {
    pub(super) fn new(common: Common, key: Box<[u8]>, rate: Rate) -> Self {
        let law = common.law(&rate);
        let leased = Leased::new(Arc::new(common), key, law);
        let rate = Arc::new(Mutex::new(rate));
        Self {
            handle: Handle { leased, rate },
        }
    }

    /// At most so many callers wait on this node; the next one is refused. Default: 1024.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.handle.set_max_waiting(max_waiting);
        self
    }

    /// No request waits longer than this, be it for the server or for a token; one that would have to is rejected at once. By
    /// default there is no bound.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.handle.set_max_wait(Some(max_wait));
        self
    }

    /// A handle on this limit.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl<S> Layer<S> for FleetRateLimitLayer {
    type Service = FleetRateLimit<S>;

    fn layer(&self, inner: S) -> FleetRateLimit<S> {
        FleetRateLimit {
            inner,
            claim: Claim::new(Arc::clone(&self.handle.leased), 1),
        }
    }
}

/// A service with a rate that is limited for a fleet. Made by [`FleetRateLimitLayer`].
#[derive(Debug)]
pub struct FleetRateLimit<S> {
    inner: S,
    claim: Claim<Leased>,
}

impl<S, R> Service<R> for FleetRateLimit<S>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, ()>;

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
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                ResponseFuture::admitted(future, (), handover.end())
            }
            Err(overloaded) => {
                hand_back::give(request);
                ResponseFuture::refused(overloaded)
            }
        }
    }
}

impl<S: Clone> Clone for FleetRateLimit<S> {
    /// The clone shares the limit, but not the token or the place in the queue.
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            claim: self.claim.fresh(),
        }
    }
}

/// Looks at a fleet's rate limit on this node and changes it while it is in use; takes tokens for code that is no tower
/// service.
#[derive(Clone)]
pub struct Handle {
    leased: Arc<Leased>,
    rate: Arc<Mutex<Rate>>,
}

impl Handle {
    /// The name of the limit.
    pub fn name(&self) -> &'static str {
        self.leased.bounds().name()
    }

    /// The state of the limit on this node now. Its tokens are those that are held here and due.
    pub fn snapshot(&self) -> Snapshot {
        let rate = *lock(&self.rate);
        self.leased.snapshot(rate)
    }

    /// How the fleet's server does.
    pub fn fleet(&self) -> link::Snapshot {
        self.leased.common().link.snapshot()
    }

    /// How many tokens were granted to this node so far, and lost because no request wanted them in time.
    pub fn tokens_lost(&self) -> u64 {
        self.leased.counts().lost
    }

    /// Changes everything to what this config says, as the functions below do one at a time.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &RateLimitConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.set_max_waiting(config.max_waiting);
        self.set_max_wait(config.max_wait);
        self.set_rate(config.rate);
        Ok(())
    }

    /// Changes the rate that this node asks by. Other nodes have to be told, too; until then each lease is of the rate of
    /// the node that asks for it. Tokens that are held stay.
    pub fn set_rate(&self, rate: Rate) {
        let mut current = lock(&self.rate);
        *current = rate;
        let law = self.leased.common().law(&rate);
        self.leased.set_law(&law);
    }

    /// Changes how many callers may wait. Those who wait already may stay.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.leased.bounds().set_max_waiting(max_waiting);
    }

    /// Changes how long callers may wait that come from now on; `None` is without a bound.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.leased.bounds().set_max_wait(max_wait);
    }

    /// Waits for `n` tokens, in line with the layer's requests and under the same bounds.
    ///
    /// The place in the queue is taken at the first poll. Dropping the future loses nothing. More than the burst is refused:
    /// [`Reason::ExceedsBurst`].
    pub fn acquire(&self, n: u64) -> Acquire {
        Acquire {
            claim: Claim::new(Arc::clone(&self.leased), n),
        }
    }

    /// Takes `n` tokens if they are held here and due, and nobody waits for them.
    ///
    /// # Errors
    /// [`Reason::AtLimit`] if not; [`Reason::ExceedsBurst`] if there are never so many.
    #[inline]
    pub fn try_acquire(&self, n: u64) -> Result<(), Overloaded> {
        match self.leased.try_admit(n) {
            true => Ok(()),
            false => Err(*self.leased.refuse(n, Reason::AtLimit)),
        }
    }

    /// A layer on this limit, for those who start from the handle.
    pub fn layer(&self) -> FleetRateLimitLayer {
        FleetRateLimitLayer {
            handle: self.clone(),
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.leased).finish()
    }
}

/// Tokens to come, from [`Handle::acquire`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Acquire {
    claim: Claim<Leased>,
}

impl Future for Acquire {
    type Output = Result<(), Overloaded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.claim.poll(cx));
        Poll::Ready(self.claim.take().map_err(|overloaded| *overloaded))
    }
}
