//! A rate for each client: so many requests in so much time for each address, API key or tenant.
//!
//! ```
//! use std::net::{IpAddr, Ipv4Addr};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, KeyedRateLimitLayer, Overloaded, Rate, Reason};
//!
//! struct Request { from: IpAddr }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let mut service = ServiceBuilder::new()
//!     .layer(KeyedRateLimitLayer::new(
//!         Rate::per_second(10).burst(1),
//!         |request: &Request| Some(request.from),
//!     ))
//!     .service(service_fn(|_: Request| async { Ok::<_, BoxError>("served") }));
//!
//! let [alice, bob] = [1, 2].map(|host| IpAddr::from(Ipv4Addr::new(10, 0, 0, host)));
//! assert!(service.ready().await?.call(Request { from: alice }).await.is_ok());
//! assert!(service.ready().await?.call(Request { from: bob }).await.is_ok());
//!
//! let error = service.ready().await?.call(Request { from: alice }).await.unwrap_err();
//! let refused = Overloaded::find(error.as_ref()).unwrap();
//! assert_eq!(refused.reason(), Reason::Quota); // hers is used up: 429 rather than 503
//! assert_eq!(refused.retry_after().as_millis(), 100);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! To hold each client to its quota. It does not keep the server from being overloaded by many clients
//! that each keep to theirs: give it a [global rate](KeyedRateLimitLayer::global), or a
//! [concurrency limit](crate::concurrency_limit) inside.
//!
//! # Behaviour
//! The key is whatever a function makes of the request: anything that can be hashed. Take it from
//! something that the client cannot choose, such as a verified identity or the peer's address: whoever
//! can make up keys has as many quotas as keys. [`client_addr`](crate::client_addr) finds the address, also behind proxies,
//! and takes all addresses of one IPv6 network for one client. Requests without a key (`None`) share one bucket.
//!
//! Each key has a [token bucket](crate::rate_limit) of its own, which is full at first. A request
//! without a token is refused in `call`, which gives back what the inner service had reserved. The layer
//! itself is as ready as its inner service, so under a [`LoadShedLayer`](crate::LoadShedLayer) it is the
//! same.
//!
//! With [`max_wait`] a request whose token is there within that time waits for it, in its response
//! future and in line with the others of its key; then it waits for the inner service to be ready, and
//! is sent. So at most `rate · max_wait` requests of a key wait, and [`max_waiting`] (1024) of all. Their
//! global tokens are taken when they come, not when they are sent.
//!
//! With [`deadline`](KeyedRateLimitLayer::deadline) it honours deadlines. When its token will be there is known, so a request
//! that would get it too late is rejected when it comes and takes none. One whose deadline passes while it then waits for
//! the inner service is rejected by a timer; its token is spent.
//!
//! **Memory is bounded.** At most [`max_keys`] (100 000) have a bucket. One takes less than 80 bytes, or 200
//! at a rate of its own, however long the key is. When room is needed, keys are forgotten whose buckets are
//! full again, which loses nothing. Keys that have a bucket keep it until then, whatever others do.
//!
//! When there is no room, new keys share overflow buckets. There are as many as `max_keys`, but at least 32 and
//! at most 131 072 (2 MiB). A hash with a random seed selects the bucket, so a client cannot aim at another's.
//! Each has the common rate, also for keys with a rate of their own. A key never gets more than the common rate
//! allows, however it moves between an overflow bucket and one of its own.
//!
//! A flood of made-up keys can fill the map, and then has to drain the overflow buckets to reach new clients. At
//! 60 an hour and the default `max_keys` that takes 6 million requests, and then 1667 each second to keep them
//! empty. While they are, a new client gets its share of what comes, by the number of requests: one token in ten
//! if the flood sends nine requests for each of theirs. A [global rate](KeyedRateLimitLayer::global) bounds what
//! all keys together get.
//!
//! # Errors
//! [`Overloaded`] with [`Reason::Quota`] if it is the client's own quota that is used up, and
//! [`Reason::AtLimit`] if it is the global rate or an overflow bucket; with [`max_wait`] also
//! [`Reason::QueueFull`](crate::Reason::QueueFull), and with a deadline [`Reason::WouldBeLate`](crate::Reason::WouldBeLate) or
//! [`Reason::Deadline`](crate::Reason::Deadline). `retry_after` is the time until there is a token of
//! both kinds. Errors of the inner service are passed on.
//!
//! # Cancellation
//! A token is taken in `call` and is spent, whatever becomes of the request. Only one that is still
//! waited for, and behind which nobody waits, is put back.
//!
//! # Cloning
//! One layer value is one set of buckets, however often [`Layer::layer`] is called and the services
//! are cloned.
//!
//! [`max_keys`]: KeyedRateLimitLayer::max_keys
//! [`max_wait`]: KeyedRateLimitLayer::max_wait
//! [`max_waiting`]: KeyedRateLimitLayer::max_waiting
//! [`Reason::Quota`]: crate::Reason::Quota
//! [`Reason::AtLimit`]: crate::Reason::AtLimit

mod key;
mod waiter;

use std::{
    fmt,
    hash::Hash,
    mem,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use self::{
    key::Reserved,
    waiter::{ForToken, PutBack},
};
pub use self::{
    key::{Key, WithRate},
    waiter::KeyedResponseFuture,
};
pub use crate::gate::keyed_buckets::Snapshot;
use crate::{
    BoxError, Clock, ConfigError, Deadline, Overloaded, Rate,
    config::KeyedRateLimitConfig,
    deadline::WithDeadline,
    gate::{
        aside::{hand_back, handover::Handover},
        fingerprint::Fingerprint,
        keyed_buckets::KeyedBuckets,
    },
    rate_limit,
    sync::Arc,
};

/// A rate for each key. See the [module](self) for all of it.
///
/// `K` is the function that finds a request's key. The settings are the buckets', not the layer
/// value's: they apply to everything that is made from it.
pub struct KeyedRateLimitLayer<K> {
    handle: Handle,
    key: Arc<K>,
}

impl<K> KeyedRateLimitLayer<K> {
    /// This rate for each key, where `key` is a `Fn(&Request) -> Option<impl Hash>`.
    ///
    /// Write the type of its argument out (`|request: &Request<Body>| …`), or the compiler does not
    /// find it.
    pub fn new(rate: Rate, key: K) -> Self {
        Self::with_clock(rate, key, Clock::default())
    }

    /// The same on another clock, such as `Clock::tsc()`.
    pub fn with_clock(rate: Rate, key: K, clock: Clock) -> Self {
        Self {
            handle: Handle {
                buckets: Arc::new(KeyedBuckets::new(rate, clock)),
            },
            key: Arc::new(key),
        }
    }

    /// As this config says; `key` is as for [`new`](Self::new).
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &KeyedRateLimitConfig, key: K) -> Result<Self, ConfigError> {
        config.check()?;
        let layer = Self::new(config.rate, key);
        layer.handle.apply(config)?;
        Ok(layer)
    }

    /// A rate of its own for some keys: `rate_of` is a `Fn(&Key) -> Option<Rate>`, and where it gives
    /// `None` the rate is that of all. It is asked when a key is first seen, and again when it comes
    /// back after it was forgotten.
    pub fn rate_of<G>(self, rate_of: G) -> KeyedRateLimitLayer<WithRate<K, G>> {
        KeyedRateLimitLayer {
            handle: self.handle,
            key: Arc::new(WithRate {
                key: self.key,
                rate_of,
            }),
        }
    }

    /// Requests have deadlines: `deadline` is an [`ExtractDeadline`](crate::deadline::ExtractDeadline), such as
    /// [`FromRequest`](crate::deadline::FromRequest) for HTTP, or a `Fn(&Request) -> Option<Deadline>`. To be called after
    /// [`rate_of`](Self::rate_of).
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::Request;
    /// use tower_backpressure::{KeyedRateLimitLayer, PeerAddr, Rate, deadline};
    ///
    /// let limit = KeyedRateLimitLayer::new(Rate::per_second(10), |request: &Request<String>| PeerAddr::of(request))
    ///     .deadline(deadline::FromRequest)
    ///     .max_wait(Duration::from_secs(1));
    /// # let _ = limit;
    /// ```
    pub fn deadline<D>(self, deadline: D) -> KeyedRateLimitLayer<WithDeadline<K, D>> {
        KeyedRateLimitLayer {
            handle: self.handle,
            key: Arc::new(WithDeadline {
                key: self.key,
                deadline,
            }),
        }
    }

    /// At most so many keys have a bucket at once: by default 100 000.
    pub fn max_keys(self, max_keys: usize) -> Self {
        self.handle.buckets.set_max_keys(max_keys);
        self
    }

    /// Requests wait for a token that is there within this time, rather than be refused.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.handle.buckets.bounds.set_max_wait(Some(max_wait));
        self
    }

    /// At most so many requests wait, of all keys together: by default 1024.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.handle.buckets.bounds.set_max_waiting(max_waiting);
        self
    }

    /// A rate for all keys together; nobody waits for that one. A request takes a token of its key's
    /// and one of everybody's, or neither. The first global rate given stays; [`Handle::global`] changes
    /// it at run time.
    pub fn global(self, rate: Rate) -> Self {
        self.handle.buckets.set_global(Some(rate), true);
        self
    }

    /// A name of its own, for [`Overloaded::layer`]. The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.handle.buckets.bounds.set_name(name);
        self
    }

    /// A handle on these buckets.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl<S, K> Layer<S> for KeyedRateLimitLayer<K> {
    type Service = KeyedRateLimit<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        KeyedRateLimit {
            inner,
            limit: self.clone(),
        }
    }
}

impl<K> Clone for KeyedRateLimitLayer<K> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            key: Arc::clone(&self.key),
        }
    }
}

impl<K> fmt::Debug for KeyedRateLimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyedRateLimitLayer")
            .field(&self.handle.snapshot())
            .finish()
    }
}

/// A service with a limited rate for each key. Made by [`KeyedRateLimitLayer`].
#[derive(Debug)]
pub struct KeyedRateLimit<S, K> {
    inner: S,
    limit: KeyedRateLimitLayer<K>,
}

impl<S, R, K> Service<R> for KeyedRateLimit<S, K>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    K: Key<R>,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = KeyedResponseFuture<S, S::Future, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let deadline = self.limit.key.deadline(&request);
        let reserved = match self.limit.key.take(&self.limit.handle, &request, deadline) {
            Ok(Reserved { taken, .. }) if taken.is_there() => {
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                return KeyedResponseFuture::sent(future, (), handover.end());
            }
            // Before any code of the inner service runs: if that panics, nothing waits any more.
            other => other.map(|reserved| PutBack::new(self.limit.handle.clone(), reserved)),
        };
        // What the inner service has reserved for this request goes with the one it is in.
        let fresh = self.inner.clone();
        drop(mem::replace(&mut self.inner, fresh));
        match reserved {
            Err(overloaded) => {
                hand_back::give(request);
                KeyedResponseFuture::failed(overloaded)
            }
            Ok(put_back) => {
                let waiter = ForToken::new(put_back, deadline);
                KeyedResponseFuture::waits(waiter, self.inner.clone(), request)
            }
        }
    }
}

impl<S: Clone, K> Clone for KeyedRateLimit<S, K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limit: self.limit.clone(),
        }
    }
}

/// Looks at a keyed rate limit and changes it while it is in use; takes tokens for code that is no
/// tower service.
#[derive(Clone, Debug)]
pub struct Handle {
    buckets: Arc<KeyedBuckets>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.buckets.bounds.name()
    }

    /// The state of the rate limit now.
    pub fn snapshot(&self) -> Snapshot {
        self.buckets.snapshot()
    }

    /// Changes everything to what this config says, as the functions below do one at a time. A global rate
    /// comes with a full bucket if there never was one; if the config has none, there is none any more.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &KeyedRateLimitConfig) -> Result<(), ConfigError> {
        config.check()?;
        let bounds = &self.buckets.bounds;
        bounds.set_max_waiting(config.max_waiting);
        bounds.set_max_wait(config.max_wait);
        self.buckets.set_max_keys(config.max_keys);
        self.buckets.set_global(config.global, false);
        self.buckets.set_rate(config.rate);
        Ok(())
    }

    /// Changes the rate of all keys but those that have one of their own. The tokens in their buckets
    /// stay, but for those that no longer fit; no fresh burst is granted. Requests that wait already keep
    /// the time that they were given.
    ///
    /// It goes through all keys, so it is not for every request.
    pub fn set_rate(&self, rate: Rate) {
        self.buckets.set_rate(rate);
    }

    /// Changes how many keys may have a bucket. Those that have one keep it until it is full again.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.buckets.set_max_keys(max_keys);
    }

    /// The global rate, if there is one: to look at it and to change it.
    pub fn global(&self) -> Option<rate_limit::Handle> {
        let global = self.buckets.global()?;
        Some(rate_limit::Handle::new(Arc::clone(global)))
    }

    /// Takes a token of this key's, and one of everybody's, or neither. A key that is new gets the common
    /// rate, as the handle does not know of [`rate_of`](KeyedRateLimitLayer::rate_of).
    ///
    /// Keys are the same if their hashes are, so use the type that the layer's function gives, or one
    /// that hashes alike (`&str` and `String` do).
    ///
    /// # Errors
    /// As a request with this key would be refused.
    pub fn try_acquire<K: Hash + ?Sized>(&self, key: &K) -> Result<(), Overloaded> {
        let key = self.buckets.fingerprint(key);
        let taken = self.buckets.take(Some(key), None, None, || None);
        taken.map(drop).map_err(|refused| *refused)
    }

    /// Changes how long requests wait for a token; `None` is not at all.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.buckets.bounds.set_max_wait(max_wait);
    }

    fn reserve(
        &self,
        key: Option<Fingerprint>,
        deadline: Option<Deadline>,
        rate: impl FnOnce() -> Option<Rate>,
    ) -> Result<Reserved, Box<Overloaded>> {
        let buckets = &self.buckets;
        let left = deadline.map(Deadline::remaining);
        if left.is_some_and(|left| left.is_zero()) {
            return Err(buckets.expire());
        }
        let taken = buckets.take(key, buckets.bounds.max_wait(), left, rate)?;
        Ok(Reserved { key, taken })
    }

    /// How many tokens a key has left; `None` if nothing is known of it, so that its bucket is full.
    pub fn tokens<K: Hash + ?Sized>(&self, key: &K) -> Option<u64> {
        self.buckets.tokens(self.buckets.fingerprint(key))
    }
}
