//! A rate for each client, that all nodes of a fleet share.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, Fleet, Overloaded, Rate, Reason, fleet::Memory};
//!
//! struct Request { account: &'static str }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let fleet = Fleet::new(Memory::new(), 10); // in production: Fleet::redis(…)
//! let quota = fleet.keyed_rate_limit(
//!     "quota",
//!     Rate::per_minute(600).burst(1),
//!     |request: &Request| Some(request.account),
//! );
//! let mut service = ServiceBuilder::new()
//!     .layer(quota)
//!     .service(service_fn(|_: Request| async { Ok::<_, BoxError>("served") }));
//!
//! assert!(service.ready().await?.call(Request { account: "alice" }).await.is_ok());
//! assert!(service.ready().await?.call(Request { account: "bob" }).await.is_ok());
//!
//! let error = service.ready().await?.call(Request { account: "alice" }).await.unwrap_err();
//! assert_eq!(Overloaded::find(error.as_ref()).unwrap().reason(), Reason::Quota);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! To hold each client to one quota, whichever replica it comes to. Where each replica may have a quota of its own, take a
//! [`KeyedRateLimitLayer`](crate::KeyedRateLimitLayer): it needs no server, and has a global rate and rates of their own
//! for some keys. For a rate of all clients together stack a [`FleetRateLimitLayer`](crate::FleetRateLimitLayer).
//!
//! # Behavior
//! As a [`KeyedRateLimitLayer`](crate::keyed_rate_limit): the key is what a function makes of the request, and a request
//! without a token is refused in `call`. A key that this node knows nothing of needs an answer of the server first. Its
//! request waits for that in its response future, no longer than [`timeout`](crate::Fleet::timeout), also where
//! [`max_wait`](FleetKeyedRateLimitLayer::max_wait) is not set and nobody waits for tokens. A refusal is remembered: until the
//! client's next token may be had, its requests are refused without a call.
//!
//! Keys may be any [`FleetKey`]. They are told apart by their bytes, and those that are not plain are
//! [hashed on the server](crate::fleet#names-on-the-server).
//!
//! **Memory is bounded.** At most [`max_keys`](FleetKeyedRateLimitLayer::max_keys) (100 000) are known at once, with some 500
//! bytes each. A key is forgotten when there is nothing left to know of it and room is needed. When there is no room, new keys
//! share 32 limits at the common rate.
//!
//! # Errors
//! As a [`KeyedRateLimitLayer`](crate::keyed_rate_limit): [`Reason::Quota`], with the exact time after
//! which the key has a token, and [`Reason::QueueFull`].
//!
//! # Cancellation
//! A request that is dropped while it waits leaves the line, and its token is the next one's.
//!
//! # Cloning
//! One layer value is one limit on this node, however often [`Layer::layer`] is called and services are cloned.
//!
//! # Cost
//! A decision takes two locks for a moment, reads the clock once, and allocates nothing. A client that is within its quota
//! costs a call for each lease, so for each request if it sends less than some twenty a second.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    key::{self, FleetKey},
    leased::{Common, Counts, Leased},
    link,
};
pub use crate::keyed_rate_limit::Snapshot;
use crate::{
    BoxError, ConfigError, Overloaded, Rate, Reason,
    config::KeyedRateLimitConfig,
    gate::{
        aside::{hand_back, handover::Handover},
        claim::{Claim, Limiter},
        fingerprint::{ByFingerprint, Fingerprint, Fingerprints},
        keyed_buckets::DEFAULT_MAX_KEYS,
        waiting::{PollSent, Waiter, WaitingFuture, send},
    },
    law::lease::node::Law,
    sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering::Relaxed, lock},
};

/// Enough that a few dozen threads seldom meet.
const SHARDS: usize = 32;

/// A full shard is searched for keys to forget so often, in nanoseconds.
const SWEEP_EVERY: u64 = 10_000_000;

/// A rate for each key, on all nodes together. See the [module](self) for all of it.
///
/// `K` is the function that finds a request's key.
pub struct FleetKeyedRateLimitLayer<K> {
    handle: Handle,
    key: Arc<K>,
}

impl<K> FleetKeyedRateLimitLayer<K> {
    pub(super) fn new(common: Common, prefix: &str, rate: Rate, key: K) -> Self {
        let keys = Keys {
            fingerprints: Fingerprints::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
            anonymous: Mutex::new(None),
            rate: Mutex::new((rate, common.law(&rate))),
            max_keys: AtomicUsize::new(DEFAULT_MAX_KEYS),
            count: AtomicUsize::new(0),
            overflowed: AtomicU64::new(0),
            used: AtomicU64::new(0),
            prefix: prefix.into(),
            common: Arc::new(common),
        };
        Self {
            handle: Handle {
                keys: Arc::new(keys),
            },
            key: Arc::new(key),
        }
    }

    /// At most so many keys are known on this node at once: by default 100 000.
    pub fn max_keys(self, max_keys: usize) -> Self {
        self.handle.set_max_keys(max_keys);
        self
    }

    /// Requests wait for a token that is there within this time, rather than be refused.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.handle.set_max_wait(Some(max_wait));
        self
    }

    /// At most so many requests wait on this node, of all keys together: by default 1024.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.handle.keys.common.bounds.set_max_waiting(max_waiting);
        self
    }

    /// A handle on this limit.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl<S, K> Layer<S> for FleetKeyedRateLimitLayer<K> {
    type Service = FleetKeyedRateLimit<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        FleetKeyedRateLimit {
            inner,
            limit: self.clone(),
        }
    }
}

impl<K> Clone for FleetKeyedRateLimitLayer<K> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            key: Arc::clone(&self.key),
        }
    }
}

impl<K> fmt::Debug for FleetKeyedRateLimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FleetKeyedRateLimitLayer")
            .field(&self.handle.snapshot())
            .finish()
    }
}

/// A service with a rate for each key that is limited for a fleet. Made by [`FleetKeyedRateLimitLayer`].
#[derive(Debug)]
pub struct FleetKeyedRateLimit<S, K> {
    inner: S,
    limit: FleetKeyedRateLimitLayer<K>,
}

impl<S, R, F, K> Service<R> for FleetKeyedRateLimit<S, F>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    F: Fn(&R) -> Option<K>,
    K: FleetKey,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = FleetKeyedResponseFuture<S, S::Future, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let key = (self.limit.key)(&request);
        let leased = self.limit.handle.keys.of(key.as_ref());
        if leased.try_admit(1) {
            let handover = Handover::<S::Error>::begin();
            let future = self.inner.call(request);
            return FleetKeyedResponseFuture::sent(future, (), handover.end());
        }
        let claim = match leased.is_worth_waiting(1) {
            true => Ok(Claim::new(leased, 1)),
            false => Err(leased.refuse(1, Reason::Quota)),
        };
        // What the inner service has reserved for this request goes with the one it is in.
        let fresh = self.inner.clone();
        drop(mem::replace(&mut self.inner, fresh));
        match claim {
            Ok(claim) => {
                let waiter = ForLease { claim, held: false };
                FleetKeyedResponseFuture::waits(waiter, self.inner.clone(), request)
            }
            Err(overloaded) => {
                hand_back::give(request);
                FleetKeyedResponseFuture::failed(overloaded)
            }
        }
    }
}

impl<S: Clone, K> Clone for FleetKeyedRateLimit<S, K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limit: self.limit.clone(),
        }
    }
}

/// The response of the inner service, once the request has its token; or the rejection.
pub type FleetKeyedResponseFuture<S, F, R> = WaitingFuture<ForLease, S, F, R, ()>;

/// A request that waits for a token of its key.
#[allow(
    unnameable_types,
    reason = "it is waited for, and nothing else can be done with it"
)]
pub struct ForLease {
    claim: Claim<Leased>,
    /// The token is its own, and is spent whatever the inner service does.
    held: bool,
}

impl Waiter for ForLease {
    type Held = ();

    fn poll_send<S, R>(
        self: Pin<&mut Self>,
        inner: &mut S,
        request: &mut Option<R>,
        cx: &mut Context<'_>,
    ) -> PollSent<S::Future, ()>
    where
        S: Service<R, Error: Into<BoxError>> + Clone,
        R: 'static,
    {
        let this = self.get_mut();
        if !this.held {
            ready!(this.claim.poll(cx));
            if let Err(rejection) = this.claim.take() {
                return Poll::Ready(Err(rejection));
            }
            this.held = true;
        }
        ready!(inner.poll_ready(cx)).map_err(Into::into)?;
        Poll::Ready(Ok(send(inner, request, ())))
    }
}

/// Looks at a fleet's keyed rate limit on this node and changes it while it is in use.
#[derive(Clone)]
pub struct Handle {
    keys: Arc<Keys>,
}

struct Keys {
    common: Arc<Common>,
    prefix: Box<str>,
    fingerprints: Fingerprints,
    shards: [Mutex<Shard>; SHARDS],
    /// For requests without a key.
    anonymous: Mutex<Option<Arc<Leased>>>,
    rate: Mutex<(Rate, Arc<Law>)>,
    max_keys: AtomicUsize,
    count: AtomicUsize,
    overflowed: AtomicU64,
    /// By keys that are forgotten.
    used: AtomicU64,
}

#[derive(Default)]
struct Shard {
    keys: ByFingerprint<Arc<Leased>>,
    overflow: Option<Arc<Leased>>,
    swept_at: Option<u64>,
}

impl Keys {
    fn of<K: FleetKey + ?Sized>(&self, key: Option<&K>) -> Arc<Leased> {
        let name = self.common.bounds.name();
        let Some(key) = key else {
            let mut anonymous = lock(&self.anonymous);
            let name = || key::of_client(&self.prefix, name, b"");
            return Arc::clone(anonymous.get_or_insert_with(|| self.leased(name())));
        };
        let fingerprint = self.fingerprints.of(key);
        let number = fingerprint.middle() % SHARDS;
        let mut shard = lock(&self.shards[number]);
        if let Some(leased) = shard.keys.get(&fingerprint) {
            return Arc::clone(leased);
        }
        drop(shard);
        let client = key.bytes(); // foreign code: not under the lock
        let name_of_client = key::of_client(&self.prefix, name, &client);
        shard = lock(&self.shards[number]);
        self.make(&mut shard, fingerprint, number, name_of_client)
    }

    #[cold]
    fn make(
        &self,
        shard: &mut Shard,
        fingerprint: Fingerprint,
        number: usize,
        name: Box<[u8]>,
    ) -> Arc<Leased> {
        if let Some(leased) = shard.keys.get(&fingerprint) {
            return Arc::clone(leased);
        }
        let most = self.max_keys.load(Relaxed);
        let more = |count| (count < most).then_some(count + 1);
        let reserve = || self.count.fetch_update(Relaxed, Relaxed, more).is_ok();
        if !reserve() {
            self.sweep(shard);
            if !reserve() {
                self.overflowed.fetch_add(1, Relaxed);
                let limit = self.common.bounds.name();
                let name = || key::of_overflow(&self.prefix, limit, number);
                let overflow = shard.overflow.get_or_insert_with(|| self.leased(name()));
                return Arc::clone(overflow);
            }
        }
        let leased = self.leased(name);
        shard.keys.insert(fingerprint, Arc::clone(&leased));
        leased
    }

    fn leased(&self, name: Box<[u8]>) -> Arc<Leased> {
        let law = Arc::clone(&lock(&self.rate).1);
        Leased::new(Arc::clone(&self.common), name, law)
    }

    /// Forgets the keys of a shard of which there is nothing left to know. Not too often.
    fn sweep(&self, shard: &mut Shard) {
        let now = self.common.link.clock.nanos();
        let lately = |at: u64| now.saturating_sub(at) < SWEEP_EVERY;
        if shard.swept_at.replace(now).is_some_and(lately) {
            return;
        }
        shard.keys.retain(|_, leased| {
            let keep = Arc::strong_count(leased) > 1 || !leased.is_forgettable();
            if !keep {
                let Counts { used, lost } = leased.counts();
                self.used.fetch_add(used, Relaxed);
                self.common.lost.fetch_add(lost, Relaxed);
                self.count.fetch_sub(1, Relaxed);
            }
            keep
        });
    }

    fn each(&self, mut visit: impl FnMut(&Leased)) {
        for shard in &self.shards {
            let shard = lock(shard);
            shard
                .keys
                .values()
                .chain(&shard.overflow)
                .for_each(|leased| visit(leased));
        }
        lock(&self.anonymous)
            .iter()
            .for_each(|leased| visit(leased));
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts {
            used: self.used.load(Relaxed),
            lost: self.common.lost.load(Relaxed),
        };
        self.each(|leased| {
            let Counts { used, lost } = leased.counts();
            sum.used += used;
            sum.lost += lost;
        });
        sum
    }
}

impl Handle {
    /// The name of the limit.
    pub fn name(&self) -> &'static str {
        self.keys.common.bounds.name()
    }

    /// The state of the limit on this node now.
    pub fn snapshot(&self) -> Snapshot {
        let bounds = &self.keys.common.bounds;
        bounds.settle_report();
        Snapshot {
            rate: lock(&self.keys.rate).0,
            keys: self.keys.count.load(Relaxed),
            max_keys: self.keys.max_keys.load(Relaxed),
            overflowed: self.keys.overflowed.load(Relaxed),
            waiting: self.keys.common.waiting(),
            admitted: self.keys.counts().used,
            rejected: bounds.rejected(),
            waits: bounds.waits.snapshot(),
        }
    }

    /// How the fleet's server does.
    pub fn fleet(&self) -> link::Snapshot {
        self.keys.common.link.snapshot()
    }

    /// How many tokens were granted to this node so far, and lost because no request wanted them in time.
    pub fn tokens_lost(&self) -> u64 {
        self.keys.counts().lost
    }

    /// Changes everything to what this config says, as the functions below do one at a time.
    ///
    /// # Errors
    /// If a setting is not allowed, or has a global rate; nothing changes.
    pub fn apply(&self, config: &KeyedRateLimitConfig) -> Result<(), ConfigError> {
        check(config)?;
        let bounds = &self.keys.common.bounds;
        bounds.set_max_waiting(config.max_waiting);
        bounds.set_max_wait(config.max_wait);
        self.set_max_keys(config.max_keys);
        self.set_rate(config.rate);
        Ok(())
    }

    /// Changes the rate of each key that this node asks by. Other nodes have to be told, too. It goes through all keys, so it
    /// is not for every request.
    pub fn set_rate(&self, rate: Rate) {
        let law = self.keys.common.law(&rate);
        *lock(&self.keys.rate) = (rate, Arc::clone(&law));
        self.keys.each(|leased| leased.set_law(&law));
    }

    /// Changes how many keys may be known. Those that are stay until there is nothing left to know of them.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.keys.max_keys.store(max_keys, Relaxed);
    }

    /// Changes how long requests wait for a token; `None` is not at all.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.keys.common.bounds.set_max_wait(max_wait);
    }

    /// Takes a token of this key's if one is held here and due.
    ///
    /// # Errors
    /// As a request with this key would be refused, but that it does not wait for an answer of the server.
    pub fn try_acquire<K: FleetKey + ?Sized>(&self, key: &K) -> Result<(), Overloaded> {
        let leased = self.keys.of(Some(key));
        match leased.try_admit(1) {
            true => Ok(()),
            false => Err(*leased.refuse(1, Reason::Quota)),
        }
    }

    /// How many tokens of this key are held here and due.
    pub fn tokens<K: FleetKey + ?Sized>(&self, key: &K) -> u64 {
        let fingerprint = self.keys.fingerprints.of(key);
        let shard = lock(&self.keys.shards[fingerprint.middle() % SHARDS]);
        shard
            .keys
            .get(&fingerprint)
            .map_or(0, |leased| leased.tokens())
    }
}

/// Whether a fleet can hold to it.
pub(super) fn check(config: &KeyedRateLimitConfig) -> Result<(), ConfigError> {
    config.check()?;
    match config.global {
        Some(_) => Err(ConfigError::that(
            "global",
            "is not for a fleet: stack a rate limit of the fleet for all keys together",
        )),
        None => Ok(()),
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.snapshot()).finish()
    }
}
