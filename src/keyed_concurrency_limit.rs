//! So many requests in flight for each key, and the others of that key wait in the order in which they came.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, KeyedConcurrencyLimitLayer};
//!
//! struct Job { action: &'static str }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let limit = KeyedConcurrencyLimitLayer::new(2, |job: &Job| Some(job.action)) // two of each at once,
//!     .limit_of("db.migrate", 1); // but for this
//! let handle = limit.handle();
//! let mut executor = ServiceBuilder::new()
//!     .layer(limit)
//!     .service(service_fn(|job: Job| async move { Ok::<_, BoxError>(job.action.len()) }));
//!
//! let job = Job { action: "core.http.get" };
//! assert_eq!(executor.ready().await?.call(job).await?, 13);
//! assert_eq!(handle.snapshot().totals.completed, 1);
//! assert!(handle.key("core.http.get").is_none()); // nobody uses it now, so it costs nothing
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Where things of one kind must not run beside each other, or not too many: jobs of one action, requests of
//! one user, calls to one shard. It does not limit what all keys do together, for which there is
//! [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer) inside; and where tenants share one capacity,
//! [`WfqLayer`](crate::WfqLayer) is what divides it.
//!
//! # Behaviour
//! The key is whatever a function makes of the request: anything that can be hashed. Requests without one
//! (`None`) share a key, which a [`Handle`] does not know of. Keys do not wait for each other.
//!
//! Within a key it is strictly first come, first served: a request that is let in when another is over is
//! the one that has waited longest, and no newcomer passes those who wait. A request comes when it is
//! called, so its response future has to be polled, or dropped: it is in line, or in flight. The layer itself is always ready, and its inner service
//! is polled in the response future, after the request has been let in: so a
//! [`LoadShedLayer`](crate::LoadShedLayer) outside sheds nothing, and
//! [`max_waiting(0)`](KeyedConcurrencyLimitLayer::max_waiting) has the same effect.
//!
//! With [`deadline`](KeyedConcurrencyLimitLayer::deadline) it honours deadlines. A request whose deadline passes while it waits is
//! rejected then, by a timer, and one that comes too late is rejected at once. The inner service is not called, and the order of the others
//! stays as it is.
//!
//! **Memory is bounded.** At most [`max_waiting`](KeyedConcurrencyLimitLayer::max_waiting) (10 000)
//! requests wait, of one key or of all together. A key that nobody uses costs nothing, unless it was given
//! a limit of its own.
//!
//! # Errors
//! [`Overloaded`](crate::Overloaded) with [`Reason::QueueFull`](crate::Reason::QueueFull), or with
//! [`Reason::WaitTimeout`](crate::Reason::WaitTimeout) after
//! [`max_wait`](KeyedConcurrencyLimitLayer::max_wait), or with [`Reason::Deadline`](crate::Reason::Deadline). `retry_after` is the time that it takes to work
//! off those of the key who wait, at the rate at which they were served lately; 1 s where that is not known.
//! Errors of the inner service are passed on.
//!
//! # Cancellation
//! A request may be dropped at any time: it leaves the queue, or lets the next one in.
//!
//! # Cloning
//! One layer value is one set of queues, however often [`Layer::layer`] is called and the services are
//! cloned.
//!
//! Use one value once on the path of a request, or the request waits for itself:
//! [`concurrency_limit`](crate::concurrency_limit#cloning) has the details. Debug builds panic where that happens.

mod key;
mod waiter;

use std::{
    fmt,
    hash::Hash,
    marker::PhantomData,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use self::waiter::ForPermit;
pub use self::{key::Key, waiter::KeyedLimitResponseFuture};
pub use crate::gate::keyed_gates::{KeySnapshot, Snapshot, Totals};
use crate::{
    BoxError, ConfigError, Deadline, Hold, UntilBodyEnd, UntilResponse,
    config::KeyedConcurrencyLimitConfig,
    deadline::WithDeadline,
    gate::{
        aside::{hand_back, handover::Handover, nested, shed},
        keyed_gates::{KeyedGates, Serving},
    },
    hold::sealed::Held,
    sync::Arc,
};

/// So many requests in flight for each key. See the [module](self) for all of it.
///
/// `K` finds a request's key. `H` says how long a request counts as in flight.
pub struct KeyedConcurrencyLimitLayer<K, H = UntilResponse<Serving>> {
    handle: Handle,
    key: Arc<K>,
    hold: PhantomData<fn() -> H>,
}

impl<K> KeyedConcurrencyLimitLayer<K> {
    /// At most `limit` requests in flight for each key, where `key` is a `Fn(&Request) -> Option<impl Hash>`.
    ///
    /// Write the type of its argument out (`|request: &Request<Body>| …`), or the compiler does not
    /// find it.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn new(limit: usize, key: K) -> Self {
        let gates = KeyedGates::new(limit);
        Self {
            handle: Handle {
                gates: Arc::new(gates.unwrap_or_else(|error| panic!("{error}"))),
            },
            key: Arc::new(key),
            hold: PhantomData,
        }
    }

    /// As this config says; `key` is as for [`new`](Self::new).
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &KeyedConcurrencyLimitConfig, key: K) -> Result<Self, ConfigError> {
        config.check()?;
        let layer = Self::new(config.limit, key);
        layer.handle().apply(config)?;
        Ok(layer)
    }
}

/// These settings are the limit's, not the layer value's: they apply to everything on this limit.
impl<K, H> KeyedConcurrencyLimitLayer<K, H> {
    /// This key has a limit of its own. [`Handle::set_limit_of`] changes it at run time.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn limit_of<Q: Hash + ?Sized>(self, key: &Q, limit: usize) -> Self {
        if let Err(error) = self.handle().set_limit_of(key, limit) {
            panic!("{error}");
        }
        self
    }

    /// At most so many requests wait, of one key or of all together; the next one is refused. 10 000 unless
    /// set; with 0 nobody waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.handle.gates.set_max_waiting(max_waiting);
        self
    }

    /// At most so many requests of one key wait. Default: as many as of all.
    pub fn max_waiting_per_key(self, max_waiting: usize) -> Self {
        self.handle.gates.set_max_waiting_per_key(max_waiting);
        self
    }

    /// Nobody waits longer than this; who has is refused. Default: no bound. It needs what
    /// [`ConcurrencyLimitLayer::max_wait`](crate::ConcurrencyLimitLayer::max_wait) needs.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.handle.gates.set_max_wait(Some(max_wait));
        self
    }

    /// Requests have deadlines, and are rejected when they pass: `deadline` is an
    /// [`ExtractDeadline`](crate::deadline::ExtractDeadline), such as [`FromRequest`](crate::deadline::FromRequest) for HTTP, or a
    /// `Fn(&Request) -> Option<Deadline>`. It needs what [`max_wait`](Self::max_wait) needs.
    ///
    /// ```
    /// use tower_backpressure::{Deadline, KeyedConcurrencyLimitLayer};
    ///
    /// struct Job { action: &'static str, deadline: Option<Deadline> }
    ///
    /// let limit = KeyedConcurrencyLimitLayer::new(2, |job: &Job| Some(job.action))
    ///     .deadline(|job: &Job| job.deadline);
    /// # let _ = limit;
    /// ```
    pub fn deadline<D>(self, deadline: D) -> KeyedConcurrencyLimitLayer<WithDeadline<K, D>, H> {
        KeyedConcurrencyLimitLayer {
            handle: self.handle,
            key: Arc::new(WithDeadline {
                key: self.key,
                deadline,
            }),
            hold: PhantomData,
        }
    }

    /// Counts an HTTP request as in flight until its response's body ends, fails or is dropped. See
    /// [`hold`](crate::hold).
    pub fn hold_until_body_end(self) -> KeyedConcurrencyLimitLayer<K, UntilBodyEnd<Serving>> {
        KeyedConcurrencyLimitLayer {
            handle: self.handle,
            key: self.key,
            hold: PhantomData,
        }
    }

    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer). To be given before the first
    /// request; the first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.handle.gates.name.set(name);
        self
    }

    /// A handle on this limit.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl<S, K, H> Layer<S> for KeyedConcurrencyLimitLayer<K, H> {
    type Service = KeyedConcurrencyLimit<S, K, H>;

    fn layer(&self, inner: S) -> Self::Service {
        KeyedConcurrencyLimit {
            inner,
            layer: self.clone(),
        }
    }
}

impl<K, H> Clone for KeyedConcurrencyLimitLayer<K, H> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            key: Arc::clone(&self.key),
            hold: PhantomData,
        }
    }
}

impl<K, H> fmt::Debug for KeyedConcurrencyLimitLayer<K, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyedConcurrencyLimitLayer")
            .field(&self.handle.gates)
            .finish()
    }
}

/// A service with a limited number of requests in flight for each key. Made by
/// [`KeyedConcurrencyLimitLayer`].
#[derive(Debug)]
pub struct KeyedConcurrencyLimit<S, K, H = UntilResponse<Serving>> {
    inner: S,
    layer: KeyedConcurrencyLimitLayer<K, H>,
}

impl<S, R, K, H> Service<R> for KeyedConcurrencyLimit<S, K, H>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    K: Key<R>,
    H: Hold<S::Response> + From<Serving>,
    R: 'static,
{
    type Response = H::Response;
    type Error = BoxError;
    type Future = KeyedLimitResponseFuture<S, S::Future, R, H>;

    /// Always ready: it is in its response future that a request waits.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let KeyedConcurrencyLimitLayer { handle, key, .. } = &self.layer;
        let deadline = key.deadline(&request);
        let mut place = key.place(handle, &request);
        if deadline.is_some_and(Deadline::has_passed) {
            hand_back::give(request);
            return KeyedLimitResponseFuture::failed(place.expire());
        }
        let place = match place.try_admit() {
            Err(place) => place,
            Ok(mut serving) => match shed::poll(|cx| self.inner.poll_ready(cx)).0 {
                Poll::Ready(Ok(())) => {
                    serving.send();
                    let held = nested::hold(|| serving.limiter());
                    let handover = Handover::<S::Error>::begin();
                    let future = self.inner.call(request);
                    drop(held);
                    return KeyedLimitResponseFuture::sent(future, serving.into(), handover.end());
                }
                polled => {
                    // Whatever it has reserved goes with it.
                    self.inner = self.inner.clone();
                    if let Poll::Ready(Err(error)) = polled {
                        hand_back::give(request);
                        return KeyedLimitResponseFuture::failed(error.into());
                    }
                    serving.take_back()
                }
            },
        };
        match ForPermit::new(place, deadline) {
            Ok(waiter) => KeyedLimitResponseFuture::waits(waiter, self.inner.clone(), request),
            Err(rejection) => {
                hand_back::give(request);
                KeyedLimitResponseFuture::failed(rejection)
            }
        }
    }
}

impl<S: Clone, K, H> Clone for KeyedConcurrencyLimit<S, K, H> {
    fn clone(&self) -> Self {
        self.layer.layer(self.inner.clone())
    }
}

/// Looks at a keyed limit and changes it while it is in use.
///
/// Keys are the same if their hashes are, so use the type that the layer's function gives, or one that
/// hashes alike (`&str` and `String` do).
#[derive(Clone, Debug)]
pub struct Handle {
    gates: Arc<KeyedGates>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.gates.name.get()
    }

    /// The state of all keys now. It goes through all that are in use.
    pub fn snapshot(&self) -> Snapshot {
        self.gates.snapshot()
    }

    /// The state of one key. `None` if nobody uses it and it has no limit of its own.
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Option<KeySnapshot> {
        self.gates.snapshot_of(self.gates.fingerprint(Some(key)))
    }

    /// Changes everything to what this config says, at once. A key that it does not name has no limit of its
    /// own any more, even if it was given one by hand.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &KeyedConcurrencyLimitConfig) -> Result<(), ConfigError> {
        config.check()?;
        let fingerprint = |key: &str| self.gates.fingerprint(Some(key));
        let own = config.limits.iter();
        let own = own.map(|(key, limit)| (fingerprint(key), *limit));
        let max_waiting = (config.max_waiting, config.max_waiting_per_key);
        (self.gates).set(config.limit, own, max_waiting, config.max_wait);
        Ok(())
    }

    /// Changes the limit of all keys that have none of their own. If it grows, those who wait are let in; if
    /// it shrinks, nothing in flight is disturbed.
    ///
    /// # Errors
    /// If `limit` is 0; nothing changes.
    pub fn set_limit(&self, limit: usize) -> Result<(), ConfigError> {
        self.gates.set_limit(limit)
    }

    /// Gives one key a limit of its own, or changes it. It is remembered, with what is counted for the key,
    /// until it is [removed](Self::remove_limit_of).
    ///
    /// # Errors
    /// If `limit` is 0, or 100 000 keys have a limit of their own; nothing changes.
    pub fn set_limit_of<K: Hash + ?Sized>(&self, key: &K, limit: usize) -> Result<(), ConfigError> {
        let key = self.gates.fingerprint(Some(key));
        self.gates.set_limit_of(key, Some(limit))
    }

    /// One key has the limit of all again.
    pub fn remove_limit_of<K: Hash + ?Sized>(&self, key: &K) {
        let key = self.gates.fingerprint(Some(key));
        let _ = self.gates.set_limit_of(key, None); // only a limit can be refused
    }

    /// Changes how many requests may wait. Those that wait already may stay.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.gates.set_max_waiting(max_waiting);
    }

    /// Changes how many requests of one key may wait. Those that wait already may stay.
    pub fn set_max_waiting_per_key(&self, max_waiting: usize) {
        self.gates.set_max_waiting_per_key(max_waiting);
    }

    /// Changes how long requests may wait that come from now on; `None` is without a bound.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.gates.set_max_wait(max_wait);
    }
}
