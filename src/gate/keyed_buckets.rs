//! A token bucket for each key, in bounded memory.
//!
//! Keys are known by their [`Fingerprint`], so what a key costs does not depend on how long it is.
//!
//! A bucket that is full again remembers nothing, so it can be forgotten and made anew: that is the
//! only way in which a key leaves the map. When the map is full of keys whose buckets are not, new keys
//! share overflow buckets. There are about as many of them as keys may have buckets, and the key's
//! fingerprint selects one. The fingerprint's seed is random, so a client cannot choose whose bucket it
//! draws on: to shut out one newcomer it has to drain all of them.
//!
//! A key never gets more than it would get from a bucket of its own at the common rate:
//! - It always gets the same overflow bucket, until all of its shard's are full again.
//! - If it moves from there into the map, it takes along no more tokens than it found there, and waits
//!   behind the requests that wait there.
//! - If it is forgotten, its bucket was full, and no overflow bucket is more than that.

use std::{hash::Hash, sync::OnceLock, time::Duration};

use super::{
    bounds::{Bounds, Rejected, SHORTEST_RETRY_AFTER, nanos},
    bucket::Bucket,
    claim::Limiter,
    fingerprint::{ByFingerprint, Fingerprint, Fingerprints},
    waits::Waits,
};
use crate::{
    Clock, Overloaded, Rate, Reason, deadline,
    law::token_bucket::{Refill, Token, TokenBucket},
    sync::{
        Arc, AtomicU64, AtomicUsize, Mutex,
        Ordering::{Acquire, Relaxed, Release},
        lock, try_lock,
    },
};

/// Enough that a few dozen threads seldom meet.
const SHARDS: usize = 32;

/// Under a flood of new keys a full shard is searched for buckets that are full again so often, in
/// nanoseconds: 100 000 keys are gone through in about a millisecond, so that takes a tenth of a core.
const SWEEP_EVERY: u64 = 10_000_000;

pub(crate) const DEFAULT_MAX_KEYS: usize = 100_000;

/// A shard has at most so many overflow buckets, 2 MiB in all shards: enough for the default of `max_keys`, and
/// bounded where that is not.
const MAX_OVERFLOW: usize = 4096;

#[derive(Debug)]
pub(crate) struct KeyedBuckets {
    fingerprints: Fingerprints,
    shards: [Apart; SHARDS],
    /// For those without a key: it has no buckets but one that they share.
    anonymous: Apart,
    /// For all keys together.
    global: OnceLock<Arc<Bucket>>,
    /// 0 if it does not count, or not any more.
    global_counts: AtomicUsize,
    rate: Mutex<Rate>,
    clock: Clock,
    max_keys: AtomicUsize,
    keys: AtomicUsize,
    overflowed: AtomicU64,
    waiting: AtomicUsize,
    /// Held while the rate is changed, for all shards alike.
    changing: Mutex<()>,
    pub(crate) bounds: Bounds,
}

// In this order, so that what each request touches is together.
#[derive(Debug)]
#[repr(C)]
struct Shard {
    /// Of keys at the rate of all. Nothing more is kept for each, so that caches hold many.
    buckets: ByFingerprint<TokenBucket>,
    admitted: u64,
    /// The rate of all that have none of their own.
    rate: Refill,
    /// Of keys that have a rate of their own, and that.
    own_rates: ByFingerprint<(TokenBucket, Refill)>,
    /// For those that have no bucket of their own. None while all of them are full.
    shared: Box<[TokenBucket]>,
    swept_at: u64,
}

/// In cache lines of its own, which threads that use different shards do not take from each other.
#[derive(Debug)]
#[repr(align(64))]
struct Apart(Mutex<Shard>);

/// How long a request may wait, in nanoseconds.
#[derive(Clone, Copy)]
struct WaitBounds {
    max_wait: u64,
    /// Until its deadline: more than 0.
    left: u64,
}

/// A token that was taken, and how long it is until it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// If it is of the key's own bucket.
    token: Option<Token>,
    /// Whether one of everybody's was taken too.
    global: bool,
    due: u64,
    wait: u64,
}

impl Taken {
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.wait == 0
    }

    pub(crate) fn wait(&self) -> Duration {
        Duration::from_nanos(self.wait)
    }

    fn shared(self) -> Self {
        Self {
            token: None,
            ..self
        }
    }
}

/// The state of a keyed rate limit at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The rate of each key that has none of its own.
    pub rate: Rate,
    /// How many keys have a bucket.
    pub keys: usize,
    /// How many keys may have one.
    pub max_keys: usize,
    /// How many requests had to share an overflow bucket so far.
    pub overflowed: u64,
    /// How many requests wait for their token.
    pub waiting: usize,
    /// How many requests were admitted so far, those that wait included.
    pub admitted: u64,
    /// How many were refused so far, and why: [`Reason::Quota`] by their key's own bucket,
    /// [`Reason::AtLimit`] by the global rate or an overflow bucket, [`Reason::WouldBeLate`] and [`Reason::Deadline`]
    /// for the sake of their deadlines. One that has its token and waits for the inner service when its deadline passes
    /// is admitted and rejected.
    pub rejected: Rejected,
    /// How long those waited who had to.
    pub waits: Waits,
}

impl KeyedBuckets {
    pub(crate) fn new(rate: Rate, clock: Clock) -> Self {
        let now = clock.nanos();
        let shard = |shared: usize| {
            Apart(Mutex::new(Shard {
                buckets: ByFingerprint::default(),
                own_rates: ByFingerprint::default(),
                rate: rate.refill(),
                shared: vec![TokenBucket::new(now); shared].into(),
                swept_at: now.wrapping_sub(SWEEP_EVERY),
                admitted: 0,
            }))
        };
        Self {
            fingerprints: Fingerprints::new(),
            shards: std::array::from_fn(|_| shard(0)),
            anonymous: shard(1),
            global: OnceLock::new(),
            global_counts: AtomicUsize::new(0),
            rate: Mutex::new(rate),
            clock,
            max_keys: AtomicUsize::new(DEFAULT_MAX_KEYS),
            keys: AtomicUsize::new(0),
            overflowed: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            changing: Mutex::new(()),
            bounds: Bounds::new("keyed_rate_limit"),
        }
    }

    pub(crate) fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> Fingerprint {
        self.fingerprints.of(key)
    }

    /// Takes a token of that key's, and one of everybody's, or neither. `rate` is asked if the key is
    /// new; where it gives none, it is the rate of all. The key's token is taken ahead of its time if
    /// that is no more than `max_wait` away, and before the request's time that is `left`.
    #[inline]
    pub(crate) fn take(
        &self,
        key: Option<Fingerprint>,
        max_wait: Option<Duration>,
        left: Option<Duration>,
        rate: impl FnOnce() -> Option<Rate>,
    ) -> Result<Taken, Box<Overloaded>> {
        let now = self.clock.nanos();
        let bounds = WaitBounds {
            max_wait: max_wait.map_or(0, nanos),
            left: left.map_or(u64::MAX, nanos),
        };
        let mut locked = lock(self.shard(key));
        let shard = &mut *locked;
        let taken = match key {
            None => self
                .take_from(
                    &mut shard.shared[0],
                    &shard.rate,
                    now,
                    bounds,
                    Reason::Quota,
                )
                .map(Taken::shared),
            Some(key) => match shard.find(key) {
                Some((bucket, rate)) => self.take_from(bucket, rate, now, bounds, Reason::Quota),
                None => {
                    // Foreign code, which may take its time, panic, or come back here: not under the
                    // lock.
                    drop(locked);
                    let own_rate = rate();
                    locked = lock(self.shard(Some(key)));
                    self.take_new(&mut locked, key, now, bounds, own_rate)
                }
            },
        };
        locked.admitted += u64::from(taken.is_ok());
        drop(locked);
        if let Err(refusal) = &taken {
            self.bounds.report(refusal.reason());
        }
        taken
    }

    /// For a key that had no bucket: makes one if there may be another.
    #[cold]
    fn take_new(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        now: u64,
        bounds: WaitBounds,
        own_rate: Option<Rate>,
    ) -> Result<Taken, Box<Overloaded>> {
        if let Some((bucket, rate)) = shard.find(key) {
            return self.take_from(bucket, rate, now, bounds, Reason::Quota);
        }
        if !self.reserve_key() {
            self.sweep(shard, now);
            if !self.reserve_key() {
                self.overflowed.fetch_add(1, Relaxed);
                if shard.shared.is_empty() {
                    let shared = self.max_keys.load(Relaxed).div_ceil(SHARDS);
                    let shared = shared.clamp(1, MAX_OVERFLOW);
                    shard.shared = vec![TokenBucket::new(now); shared].into();
                }
                let bucket = &mut shard.shared[key.place(shard.shared.len())];
                return self
                    .take_from(bucket, &shard.rate, now, bounds, Reason::AtLimit)
                    .map(Taken::shared);
            }
        }
        let common = &shard.rate;
        let own_rate = own_rate.map(|rate| rate.refill());
        let rate = own_rate.as_ref().unwrap_or(common);
        let mut bucket = TokenBucket::new(now);
        if !shard.shared.is_empty() {
            let shared = &shard.shared[key.place(shard.shared.len())];
            if !shared.is_full(common, now) {
                bucket.leave(rate, shared.level(common, now), now); // it may have taken the rest itself
            }
        }
        let taken = self.take_from(&mut bucket, rate, now, bounds, Reason::Quota);
        match own_rate {
            Some(rate) => _ = shard.own_rates.insert(key, (bucket, rate)),
            None => _ = shard.buckets.insert(key, bucket),
        }
        taken
    }

    /// A token of this bucket and one of everybody's, or neither.
    #[inline(always)] // a call saves, restores and copies more than it does
    fn take_from(
        &self,
        bucket: &mut TokenBucket,
        rate: &Refill,
        now: u64,
        bounds: WaitBounds,
        reason: Reason,
    ) -> Result<Taken, Box<Overloaded>> {
        let (token, wait) = bucket.next(rate, now);
        let global = self.global();
        let reason = if wait > bounds.max_wait {
            reason
        } else if wait >= bounds.left {
            Reason::WouldBeLate
        } else if wait > 0 && !count_up_to(&self.waiting, self.bounds.max_waiting()) {
            Reason::QueueFull
        } else if global.is_none_or(|global| global.try_admit(1)) {
            bucket.take(token);
            return Ok(Taken {
                token: Some(token),
                global: global.is_some(),
                due: now.saturating_add(wait),
                wait,
            });
        } else {
            if wait > 0 {
                self.waiting.fetch_sub(1, Relaxed);
            }
            Reason::AtLimit
        };
        Err(self.refuse(reason, wait))
    }

    /// Both tokens are needed, the key's and everybody's, so it is the later one that counts.
    #[cold]
    fn refuse(&self, reason: Reason, wait: u64) -> Box<Overloaded> {
        self.bounds.count(reason);
        let global = self.global().map(|global| global.wait(1));
        let retry_after = Duration::from_nanos(wait)
            .max(global.unwrap_or_default())
            .max(SHORTEST_RETRY_AFTER);
        Box::new(Overloaded::new(self.bounds.name(), reason, retry_after).exact())
    }

    /// Makes the rejection of a request whose deadline has passed, and counts it.
    #[cold]
    pub(crate) fn expire(&self) -> Box<Overloaded> {
        self.bounds.count(Reason::Deadline);
        self.bounds.report(Reason::Deadline);
        let (name, retry_after) = (self.bounds.name(), deadline::RETRY_AFTER);
        Box::new(Overloaded::new(name, Reason::Deadline, retry_after))
    }

    /// One that waited does no longer.
    pub(crate) fn stop_waiting(&self, taken: Taken) {
        self.waiting.fetch_sub(1, Relaxed);
        let left = taken.due.saturating_sub(self.clock.nanos());
        let waited = taken.wait.saturating_sub(left);
        self.bounds.waits.record(waited);
    }

    /// Puts a token back that was taken ahead of its time, if it is not there yet.
    pub(crate) fn put_back(&self, key: Option<Fingerprint>, taken: Taken) {
        if self.clock.nanos() >= taken.due {
            return;
        }
        if let Some(global) = self.global.get().filter(|_| taken.global) {
            global.give_back(1);
        }
        let mut shard = lock(self.shard(key));
        shard.admitted -= 1;
        if let (Some(key), Some(token)) = (key, taken.token) {
            if let Some((bucket, _)) = shard.find(key) {
                bucket.put_back(token);
            }
        }
    }

    /// Counts one more key, if there may be another.
    fn reserve_key(&self) -> bool {
        count_up_to(&self.keys, self.max_keys.load(Relaxed))
    }

    /// Forgets keys whose buckets are full again: of this shard, and of the others that nobody uses
    /// just now.
    fn sweep(&self, shard: &mut Shard, now: u64) {
        let mut forgotten = shard.sweep(now);
        if forgotten == 0 {
            let others = self.shards.iter().filter_map(|shard| try_lock(&shard.0));
            forgotten = others.map(|mut other| other.sweep(now)).sum();
        }
        self.keys.fetch_sub(forgotten, Relaxed);
    }

    /// For all keys but those that have a rate of their own.
    pub(crate) fn set_rate(&self, rate: Rate) {
        let _changing = lock(&self.changing);
        *lock(&self.rate) = rate;
        let refill = rate.refill();
        for shard in self.shards.iter().chain([&self.anonymous]) {
            let shard = &mut *lock(&shard.0);
            let now = self.clock.nanos();
            let before = std::mem::replace(&mut shard.rate, refill);
            for bucket in shard.buckets.values_mut().chain(&mut shard.shared) {
                bucket.set_rate(&before, &refill, now);
            }
        }
    }

    /// The bucket for all keys together, if there is one that counts.
    pub(crate) fn global(&self) -> Option<&Arc<Bucket>> {
        match self.global_counts.load(Acquire) {
            0 => None,
            _ => self.global.get(),
        }
    }

    /// A rate for all keys together, or none. `once` has the first one stay.
    pub(crate) fn set_global(&self, rate: Option<Rate>, once: bool) {
        let changing = lock(&self.changing);
        let changed = rate.map(|rate| {
            let new = || Arc::new(Bucket::new("keyed_rate_limit", rate, self.clock.clone()));
            (self.global.get_or_init(new), rate)
        });
        let counts = rate.is_some().into();
        self.global_counts.store(counts, Release);
        drop(changing); // those who wait for the bucket are woken, and may come back here
        if let (Some((global, rate)), false) = (changed, once) {
            global.set_rate(rate);
        }
    }

    pub(crate) fn set_max_keys(&self, max_keys: usize) {
        self.max_keys.store(max_keys, Relaxed);
    }

    /// What is left of a key's quota.
    pub(crate) fn tokens(&self, key: Fingerprint) -> Option<u64> {
        let now = self.clock.nanos();
        let mut shard = lock(self.shard(Some(key)));
        let (bucket, rate) = shard.find(key)?;
        Some(bucket.tokens(rate, now))
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.bounds.settle_report();
        Snapshot {
            rate: *lock(&self.rate),
            keys: self.keys.load(Relaxed),
            max_keys: self.max_keys.load(Relaxed),
            overflowed: self.overflowed.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            admitted: (self.shards.iter().chain([&self.anonymous]))
                .map(|shard| lock(&shard.0).admitted)
                .sum(),
            rejected: self.bounds.rejected(),
            waits: self.bounds.waits.snapshot(),
        }
    }

    fn shard(&self, key: Option<Fingerprint>) -> &Mutex<Shard> {
        match key {
            // Not by what the shard's own map looks at.
            Some(key) => &self.shards[key.middle() % SHARDS].0,
            None => &self.anonymous.0,
        }
    }
}

impl Shard {
    /// A key's bucket, and its rate.
    #[inline]
    fn find(&mut self, key: Fingerprint) -> Option<(&mut TokenBucket, &Refill)> {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            return Some((bucket, &self.rate));
        }
        let (bucket, rate) = self.own_rates.get_mut(&key)?;
        Some((bucket, rate))
    }

    /// Forgets the keys whose buckets are full again; says how many. The overflow buckets too, once all of them are
    /// full. Not too often.
    fn sweep(&mut self, now: u64) -> usize {
        if now.wrapping_sub(self.swept_at) < SWEEP_EVERY {
            return 0;
        }
        self.swept_at = now;
        let common = &self.rate;
        if self.shared.iter().all(|bucket| bucket.is_full(common, now)) {
            self.shared = Box::default();
        }
        let before = self.buckets.len() + self.own_rates.len();
        (self.buckets).retain(|_, bucket| !bucket.is_full(common, now));
        (self.own_rates).retain(|_, (bucket, rate)| !bucket.is_full(rate, now));
        before - self.buckets.len() - self.own_rates.len()
    }
}

/// Counts one more, if that is not more than `most`.
fn count_up_to(count: &AtomicUsize, most: usize) -> bool {
    let more = |count| (count < most).then_some(count + 1);
    count.fetch_update(Relaxed, Relaxed, more).is_ok()
}
