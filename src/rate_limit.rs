//! So many requests in so much time, by a token bucket.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, LoadShedLayer, Overloaded, Rate, RateLimitLayer, Reason};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let limit = RateLimitLayer::new(Rate::per_second(100).burst(2));
//! let handle = limit.handle();
//! let mut service = ServiceBuilder::new()
//!     .layer(LoadShedLayer::new()) // without it, the third request would wait for 10 ms
//!     .layer(limit)
//!     .service(service_fn(|()| async { Ok::<_, BoxError>("served") }));
//!
//! assert_eq!(service.ready().await?.call(()).await?, "served");
//! assert_eq!(service.ready().await?.call(()).await?, "served");
//! let error = service.ready().await?.call(()).await.unwrap_err();
//!
//! let refused = Overloaded::find(error.as_ref()).unwrap();
//! assert_eq!((refused.layer(), refused.reason()), ("rate_limit", Reason::AtLimit));
//! assert_eq!(refused.retry_after().as_millis(), 10); // exactly when the next token is there
//! assert_eq!(handle.snapshot().tokens, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! To keep to a rate that somebody else sets: an upstream's quota, a contract, a database that is
//! billed by the query. Against overload of your own server a
//! [concurrency limit](crate::concurrency_limit) is better: it follows what the server can do.
//!
//! # Behaviour
//! A bucket holds up to [`burst`](Rate::burst) tokens, is full at first, and refills steadily. In any
//! stretch of time `t` at most `burst + rate · t` services get ready (and one for rounding): there is no
//! window at whose edge twice as many do. (Services that are kept ready, and called later, hold tokens
//! that were taken then.)
//!
//! `poll_ready` takes a token and is `Pending` until there is one; `call` uses it. Callers that wait
//! are served in the order in which they were first polled, and one is woken for each token. Waits are
//! bounded: by [`max_waiting`] (1024 unless you say otherwise) and, if you set it, by [`max_wait`]; a
//! request that would certainly wait longer than that is refused at once. Waiting needs a tokio runtime
//! with time enabled, and its timers tick in milliseconds: above a thousand requests a second a waiting
//! queue keeps up with the rate only if the burst is at least `rate / 1000`.
//!
//! Under a [`LoadShedLayer`](crate::LoadShedLayer) nothing waits: without a token the request is refused
//! at once.
//!
//! Callers wait before there is a request, so the layer cannot see [deadlines](crate::deadline#behavior). A
//! [`DeadlineLayer`](crate::DeadlineLayer) inside it rejects what has expired in the meantime.
//!
//! # Errors
//! [`Overloaded`] with [`Reason::QueueFull`] or [`Reason::WaitTimeout`], under a `LoadShedLayer`
//! [`Reason::AtLimit`]. Its `retry_after` is the exact time until there would be a token, behind all
//! those who wait. Where nobody waits (`max_waiting(0)`, or under a `LoadShedLayer`) it counts from when the service was
//! polled ready. Errors of the inner service are passed on.
//!
//! # Cancellation
//! A service that was polled ready and is dropped uncalled puts its token back, and one that waits
//! leaves the queue. After `call` a token is spent, whatever becomes of the request: a client that
//! cancels what it sent does not get to send more.
//!
//! # Cloning
//! One layer value is one bucket, however often [`Layer::layer`] is called and the services are
//! cloned. A clone starts with no token and no place in the queue.
//!
//! [`max_waiting`]: RateLimitLayer::max_waiting
//! [`max_wait`]: RateLimitLayer::max_wait
//! [`Reason::QueueFull`]: crate::Reason::QueueFull
//! [`Reason::WaitTimeout`]: crate::Reason::WaitTimeout
//! [`Reason::AtLimit`]: crate::Reason::AtLimit

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

pub use crate::gate::bucket::Snapshot;
use crate::{
    BoxError, Clock, ConfigError, Overloaded, Rate, Reason, ResponseFuture,
    config::RateLimitConfig,
    gate::{
        aside::{hand_back, handover::Handover},
        bucket::Bucket,
        claim::{Claim, Limiter},
    },
    sync::Arc,
};

/// Limits how many requests pass in a time. See the [module](self) for all of it.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    bucket: Arc<Bucket>,
}

/// The settings are the bucket's, not the layer value's: they apply to everything on this bucket.
impl RateLimitLayer {
    /// At this rate, for everything that is made from this value.
    pub fn new(rate: Rate) -> Self {
        Self::with_clock(rate, Clock::default())
    }

    /// The same on another clock, such as `Clock::tsc()`.
    pub fn with_clock(rate: Rate, clock: Clock) -> Self {
        Self {
            bucket: Arc::new(Bucket::new("rate_limit", rate, clock)),
        }
    }

    /// As this config says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &RateLimitConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let layer = Self::new(config.rate);
        layer.handle().apply(config)?;
        Ok(layer)
    }

    /// At most so many callers wait; the next one is refused. Default: 1024; with 0 nobody waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.bucket.bounds.set_max_waiting(max_waiting);
        self
    }

    /// Nobody waits longer than this; who would have to is refused at once. Default: no bound.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.bucket.bounds.set_max_wait(Some(max_wait));
        self
    }

    /// A name of its own, for [`Overloaded::layer`]. The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.bucket.bounds.set_name(name);
        self
    }

    /// A handle on this rate limit.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.bucket))
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit {
            inner,
            claim: Claim::new(Arc::clone(&self.bucket), 1),
        }
    }
}

/// A service with a limited rate. Made by [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimit<S> {
    inner: S,
    claim: Claim<Bucket>,
}

impl<S, R> Service<R> for RateLimit<S>
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

impl<S: Clone> Clone for RateLimit<S> {
    /// The clone shares the bucket, but not the token or the place in the queue.
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            claim: self.claim.fresh(),
        }
    }
}

/// Looks at a rate limit and changes it while it is in use; takes tokens for code that is no tower
/// service.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::{Rate, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tower_backpressure::BoxError> {
/// let mails = RateLimitLayer::new(Rate::per_minute(60).burst(10)).handle();
/// for batch in [5, 5, 5] {
///     mails.acquire(batch).await?; // the third waits until five tokens are there
///     println!("sending {batch} mails");
/// }
/// mails.set_rate(Rate::per_minute(120).burst(10));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    bucket: Arc<Bucket>,
}

impl Handle {
    pub(crate) fn new(bucket: Arc<Bucket>) -> Self {
        Self { bucket }
    }

    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.bucket.bounds.name()
    }

    /// The state of the rate limit now.
    pub fn snapshot(&self) -> Snapshot {
        self.bucket.snapshot()
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

    /// Changes the rate. The tokens in the bucket stay, but for those that no longer fit; no fresh
    /// burst is granted. Whoever waits for more tokens than the new burst holds gets through when the
    /// bucket is full, and the next ones wait until it is paid for.
    pub fn set_rate(&self, rate: Rate) {
        self.bucket.set_rate(rate);
    }

    /// Changes how many callers may wait. Those who wait already may stay.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.bucket.bounds.set_max_waiting(max_waiting);
    }

    /// Changes how long callers may wait that come from now on; `None` is without a bound.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.bucket.bounds.set_max_wait(max_wait);
    }

    /// Waits for `n` tokens, in line with the layer's requests and under the same bounds.
    ///
    /// The place in the queue is taken at the first poll. Dropping the future loses nothing. More than
    /// the burst is refused: [`Reason::ExceedsBurst`].
    pub fn acquire(&self, n: u64) -> Acquire {
        Acquire {
            claim: Claim::new(Arc::clone(&self.bucket), n),
        }
    }

    /// Takes `n` tokens if they are there and nobody waits for them.
    ///
    /// # Errors
    /// [`Reason::AtLimit`] if not; [`Reason::ExceedsBurst`] if the bucket never holds so many.
    #[inline(always)] // a call saves and restores registers for 0.8 ns (`rate_limit_full (direct)` in `ratios`)
    pub fn try_acquire(&self, n: u64) -> Result<(), Overloaded> {
        let attempt = self.bucket.attempt(n);
        attempt.map_err(|seen| self.refuse(n, seen))
    }

    #[cold]
    fn refuse(&self, n: u64, seen: u64) -> Overloaded {
        *self.bucket.refuse_as_seen(n, Reason::AtLimit, seen)
    }

    /// A layer on this rate limit, for those who start from the handle.
    pub fn layer(&self) -> RateLimitLayer {
        RateLimitLayer {
            bucket: Arc::clone(&self.bucket),
        }
    }
}

/// Tokens to come, from [`Handle::acquire`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Acquire {
    claim: Claim<Bucket>,
}

impl Future for Acquire {
    type Output = Result<(), Overloaded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.claim.poll(cx));
        Poll::Ready(self.claim.take().map_err(|overloaded| *overloaded))
    }
}
