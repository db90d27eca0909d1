//! A token bucket for each key, in bounded memory.
//!
//! Keys are known by their [`Fingerprint`], so what a key costs does not depend on how long it is.
//!
//! A bucket that is full again remembers nothing, so it can be forgotten and made anew: that is the
//! only way in which a key leaves the map. When the map is full of keys whose buckets are not, keys
//! that are new share one with each other, one for each shard. A key that moves from there into the map
//! takes along no more tokens than it found there.

use std::{hash::Hash, sync::OnceLock, time::Duration};

use super::{
    bounds::{Bounds, Rejected, SHORTEST_RETRY_AFTER},
    bucket::Bucket,
    claim::Limiter,
    fingerprint::{ByFingerprint, Fingerprint, Fingerprints},
    waits::Waits,
};
use crate::{
    Clock, Overloaded, Rate, Reason,
    algorithm::token_bucket::{Token, TokenBucket},
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

#[derive(Debug)]
pub(crate) struct KeyedBuckets {
    fingerprints: Fingerprints,
    shards: [Mutex<Shard>; SHARDS],
    /// For those without a key: it has no buckets but the shared one.
    anonymous: Mutex<Shard>,
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

#[derive(Debug)]
struct Shard {
    buckets: ByFingerprint<Own>,
    /// For those that have none of their own.
    shared: TokenBucket,
    /// Whether any of those may have to do with less than a full bucket.
    drawn_on: bool,
    swept_at: u64,
    admitted: u64,
}

#[derive(Debug)]
struct Own {
    bucket: TokenBucket,
    /// Whether it has the rate of all, and changes with it.
    common_rate: bool,
}

/// A token that was taken, and how long it is until it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// If it is of the key's own bucket.
    token: Option<Token>,
    /// Whether one of everybody's was taken too.
    global: bool,
    due: u64,
    pub(crate) wait: Duration,
}

impl Taken {
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
    /// [`Reason::AtLimit`] by the global rate or an overflow bucket.
    pub rejected: Rejected,
    /// How long those waited who had to.
    pub waits: Waits,
}

impl KeyedBuckets {
    pub(crate) fn new(rate: Rate, clock: Clock) -> Self {
        let now = clock.nanos();
        let shard = || {
            Mutex::new(Shard {
                buckets: ByFingerprint::default(),
                shared: TokenBucket::new(rate.refill(), now),
                drawn_on: false,
                swept_at: now.wrapping_sub(SWEEP_EVERY),
                admitted: 0,
            })
        };
        Self {
            fingerprints: Fingerprints::new(),
            shards: std::array::from_fn(|_| shard()),
            anonymous: shard(),
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
    /// that is no more than `max_wait` away.
    pub(crate) fn take(
        &self,
        key: Option<Fingerprint>,
        max_wait: Option<Duration>,
        rate: impl FnOnce() -> Option<Rate>,
    ) -> Result<Taken, Box<Overloaded>> {
        let now = self.clock.nanos();
        let mut shard = lock(self.shard(key));
        let taken = match key {
            None => self
                .take_from(&mut shard.shared, now, max_wait, Reason::Quota)
                .map(Taken::shared),
            Some(key) => match shard.buckets.get_mut(&key) {
                Some(own) => self.take_from(&mut own.bucket, now, max_wait, Reason::Quota),
                None => {
                    // Foreign code, which may take its time, panic, or come back here: not under the
                    // lock.
                    drop(shard);
                    let own_rate = rate();
                    shard = lock(self.shard(Some(key)));
                    self.take_new(&mut shard, key, now, max_wait, own_rate)
                }
            },
        };
        shard.admitted += u64::from(taken.is_ok());
        drop(shard);
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
        max_wait: Option<Duration>,
        own_rate: Option<Rate>,
    ) -> Result<Taken, Box<Overloaded>> {
        if let Some(own) = shard.buckets.get_mut(&key) {
            return self.take_from(&mut own.bucket, now, max_wait, Reason::Quota);
        }
        if !self.reserve_key() {
            self.sweep(shard, now);
            if !self.reserve_key() {
                self.overflowed.fetch_add(1, Relaxed);
                shard.drawn_on = true;
                return self
                    .take_from(&mut shard.shared, now, max_wait, Reason::AtLimit)
                    .map(Taken::shared);
            }
        }
        let rate = own_rate.unwrap_or_else(|| *lock(&self.rate));
        let mut bucket = TokenBucket::new(rate.refill(), now);
        shard.drawn_on &= !shard.shared.is_full(now);
        if shard.drawn_on {
            bucket.leave(shard.shared.tokens(now), now); // it may have done so itself
        }
        let taken = self.take_from(&mut bucket, now, max_wait, Reason::Quota);
        let common_rate = own_rate.is_none();
        shard.buckets.insert(
            key,
            Own {
                bucket,
                common_rate,
            },
        );
        taken
    }

    /// A token of this bucket and one of everybody's, or neither.
    fn take_from(
        &self,
        bucket: &mut TokenBucket,
        now: u64,
        max_wait: Option<Duration>,
        reason: Reason,
    ) -> Result<Taken, Box<Overloaded>> {
        let (token, wait) = bucket.next(now);
        let due = now.saturating_add(wait);
        let wait = Duration::from_nanos(wait);
        let global = self.global();
        let reason = if wait > max_wait.unwrap_or_default() {
            reason
        } else if !wait.is_zero() && !count_up_to(&self.waiting, self.bounds.max_waiting()) {
            Reason::QueueFull
        } else if global.is_none_or(|global| global.try_admit(1)) {
            bucket.take(token);
            return Ok(Taken {
                token: Some(token),
                global: global.is_some(),
                due,
                wait,
            });
        } else {
            if !wait.is_zero() {
                self.waiting.fetch_sub(1, Relaxed);
            }
            Reason::AtLimit
        };
        self.bounds.count(reason);
        // Both tokens are needed, so it is the later one that counts.
        let global = global.map(|global| global.wait(1));
        let retry_after = wait
            .max(global.unwrap_or_default())
            .max(SHORTEST_RETRY_AFTER);
        let overloaded = Overloaded::new(self.bounds.name(), reason, retry_after);
        Err(Box::new(overloaded))
    }

    /// One that waited does no longer.
    pub(crate) fn stop_waiting(&self, taken: Taken) {
        self.waiting.fetch_sub(1, Relaxed);
        let left = taken.due.saturating_sub(self.clock.nanos());
        let wait = taken.wait.saturating_sub(Duration::from_nanos(left));
        self.bounds.waits.record(wait);
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
            if let Some(own) = shard.buckets.get_mut(&key) {
                own.bucket.put_back(token);
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
            let others = self.shards.iter().filter_map(try_lock);
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
            let mut shard = lock(shard);
            let now = self.clock.nanos();
            shard.shared.set_refill(refill, now);
            for own in shard.buckets.values_mut().filter(|own| own.common_rate) {
                own.bucket.set_refill(refill, now);
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
        let shard = lock(self.shard(Some(key)));
        shard.buckets.get(&key).map(|own| own.bucket.tokens(now))
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
                .map(|shard| lock(shard).admitted)
                .sum(),
            rejected: self.bounds.rejected(),
            waits: self.bounds.waits.snapshot(),
        }
    }

    fn shard(&self, key: Option<Fingerprint>) -> &Mutex<Shard> {
        match key {
            // Not the half that the shard's own map looks at.
            Some(key) => &self.shards[key.high() as usize % SHARDS],
            None => &self.anonymous,
        }
    }
}

impl Shard {
    /// Forgets the keys whose buckets are full again; says how many. Not too often.
    fn sweep(&mut self, now: u64) -> usize {
        if now.wrapping_sub(self.swept_at) < SWEEP_EVERY {
            return 0;
        }
        self.swept_at = now;
        let before = self.buckets.len();
        self.buckets.retain(|_, own| !own.bucket.is_full(now));
        before - self.buckets.len()
    }
}

/// Counts one more, if that is not more than `most`.
fn count_up_to(count: &AtomicUsize, most: usize) -> bool {
    let more = |count| (count < most).then_some(count + 1);
    count.fetch_update(Relaxed, Relaxed, more).is_ok()
}
