//! A circuit for each key, in bounded memory.
//!
//! A key whose circuit is closed and clean is not remembered at all, so while nothing fails there is
//! nothing to look up. (Where the share of failures counts, every key is remembered that had requests in the
//! window.)
//!
//! All circuits number their changes together. A key that is seen for the first time may have been
//! forgotten: requests that were sent before the last one was forgotten do not count for it.

use std::{fmt, hash::Hash};

use super::{
    bounds::Name,
    circuit::{self, Reports},
    fingerprint::{ByFingerprint, Fingerprint, Fingerprints},
};
use crate::{
    Clock, ConfigError, Outcome, Overloaded,
    law::breaker::{After, Breaker, Common, Ended, Entered, Settings, State},
    observe::events,
    sync::{
        Arc, AtomicU64, AtomicUsize, Mutex,
        Ordering::{Acquire, Relaxed, Release},
        lock,
    },
};

/// Enough for the endpoints of any one client.
pub(crate) const DEFAULT_MAX_KEYS: usize = 10_000;

pub(crate) struct Circuits {
    /// How many keys are remembered.
    tracked: AtomicUsize,
    /// The number of the last change, for requests that look up nothing.
    generation: AtomicU64,
    /// 1 if the share of failures counts. It changes only under the lock.
    counts_successes: AtomicUsize,
    law: Mutex<Law>,
    fingerprints: Fingerprints,
    rejected: AtomicU64,
    clock: Clock,
    pub(crate) name: Name,
}

struct Law {
    common: Common,
    keys: Keys,
}

struct Keys {
    breakers: ByFingerprint<Breaker>,
    max_keys: usize,
    /// Requests of an earlier generation do not count for keys that are new.
    forgotten: u64,
    /// How many results did not count, because there was no room.
    untracked: u64,
    /// When there was last looked for keys to forget.
    swept_at: Option<u64>,
}

/// The state of the circuits at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many keys are remembered: those that failed lately.
    pub tracked: usize,
    /// How many of their circuits are open.
    pub open: usize,
    /// How many are half-open.
    pub half_open: usize,
    /// How often one has opened.
    pub opened: u64,
    /// How often one has closed after that.
    pub closed: u64,
    /// How many requests were sent as probes.
    pub probes: u64,
    /// How many requests were refused.
    pub rejected: u64,
    /// How many results did not count because there were too many keys (`max_keys`).
    pub untracked: u64,
}

impl Circuits {
    pub(crate) fn new(settings: Settings, clock: Clock) -> Self {
        Self {
            tracked: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            counts_successes: AtomicUsize::new(settings.trip.window().is_some().into()),
            law: Mutex::new(Law {
                common: Common::new(settings),
                keys: Keys {
                    breakers: ByFingerprint::default(),
                    max_keys: DEFAULT_MAX_KEYS,
                    forgotten: 0,
                    untracked: 0,
                    swept_at: None,
                },
            }),
            fingerprints: Fingerprints::new(),
            rejected: AtomicU64::new(0),
            clock,
            name: Name::new("keyed_circuit_breaker"),
        }
    }

    /// Of a key, or of having none.
    #[inline]
    pub(crate) fn fingerprint<K: Hash>(&self, key: Option<K>) -> Fingerprint {
        self.fingerprints.of(&key)
    }

    /// Holds to other settings from now on. They have been checked.
    pub(crate) fn set(&self, settings: Settings, max_keys: usize) {
        let now = self.clock.nanos();
        let mut law = lock(&self.law);
        let Law { common, keys } = &mut *law;
        for breaker in keys.breakers.values_mut() {
            breaker.reset_to(&common.settings, &settings, now);
        }
        common.settings = settings;
        keys.max_keys = max_keys;
        let counts_successes = settings.trip.window().is_some();
        (self.counts_successes).store(counts_successes.into(), Relaxed);
    }

    pub(crate) fn set_max_keys(&self, max_keys: usize) {
        lock(&self.law).keys.max_keys = max_keys;
    }

    /// Lets a request through, as one of this generation, or refuses it.
    #[inline]
    fn enter(&self, key: Fingerprint) -> Result<u64, Box<Overloaded>> {
        // In this order: the number is that of a state before any that it may meet.
        let generation = self.generation.load(Acquire);
        let entered = match self.tracked.load(Acquire) {
            0 => Entered::Passes(generation),
            _ => self.enter_slow(key),
        };
        match entered {
            Entered::Passes(generation) => Ok(generation),
            Entered::Refused(after) => Err(self.refuse(after)),
        }
    }

    #[cold]
    fn enter_slow(&self, key: Fingerprint) -> Entered {
        let now = self.clock.nanos();
        self.change(key, now, |Law { common, keys }| {
            keys.sweep(common, now); // one that nobody asks for any more must not slow down all others
            match keys.breakers.get_mut(&key) {
                Some(breaker) => breaker.enter(common, now),
                None => Entered::Passes(common.generation),
            }
        })
    }

    #[cold]
    fn refuse(&self, after: After) -> Box<Overloaded> {
        self.rejected.fetch_add(1, Relaxed);
        circuit::refusal(self.name.get(), after)
    }

    /// A request of that generation has ended.
    #[inline]
    fn end(&self, key: Fingerprint, generation: u64, ended: Ended) {
        // Of a key that is not known, only this is of interest.
        let counts_successes = || self.counts_successes.load(Relaxed) != 0;
        let counts = ended == Ended::Failure || (ended == Ended::Success && counts_successes());
        if counts || self.tracked.load(Acquire) != 0 {
            self.end_slow(key, generation, ended, counts);
        }
    }

    #[cold]
    fn end_slow(&self, key: Fingerprint, generation: u64, ended: Ended, counts: bool) {
        let now = self.clock.nanos();
        self.change(key, now, |Law { common, keys }| {
            if !counts && !keys.breakers.contains_key(&key) {
                return;
            }
            let Some(breaker) = keys.remember(common, key, now) else {
                keys.untracked += 1;
                return;
            };
            breaker.end(common, now, generation, ended);
            if breaker.is_forgettable(common, now) {
                let since = breaker.since();
                keys.forgotten = keys.forgotten.max(since);
                keys.breakers.remove(&key);
            }
        });
    }

    pub(crate) fn reset(&self, key: Fingerprint) {
        let now = self.clock.nanos();
        self.change(key, now, |Law { common, keys }| {
            if let Some(breaker) = keys.breakers.get_mut(&key) {
                breaker.reset(common, now);
            }
        });
    }

    pub(crate) fn force_open(&self, key: Fingerprint) -> Result<(), ConfigError> {
        let now = self.clock.nanos();
        self.change(key, now, |Law { common, keys }| {
            let breaker = keys.remember(common, key, now);
            let no_room = ConfigError::new("max_keys", "more than there are keys");
            breaker.ok_or(no_room)?.force_open(common, now);
            Ok(())
        })
    }

    pub(crate) fn state(&self, key: Fingerprint) -> State {
        let now = self.clock.nanos();
        self.change(key, now, |Law { common, keys }| {
            let Some(breaker) = keys.breakers.get_mut(&key) else {
                return State::Closed;
            };
            breaker.end_lease(common, now);
            breaker.state()
        })
    }

    fn change<T>(&self, key: Fingerprint, now: u64, change: impl FnOnce(&mut Law) -> T) -> T {
        let mut law = lock(&self.law);
        let changed = change(&mut law);
        let breaker = law.keys.breakers.get_mut(&key);
        let state = breaker.and_then(|breaker| breaker.news(now));
        self.generation.store(law.common.generation, Release);
        self.tracked.store(law.keys.breakers.len(), Release);
        drop(law);
        events::circuit(self.name.get(), state);
        changed
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = self.clock.nanos();
        let mut law = lock(&self.law);
        let Law { common, keys } = &mut *law;
        let breakers = keys.breakers.values_mut();
        breakers.for_each(|breaker| breaker.end_lease(common, now));
        let count = |state| {
            let is = |breaker: &&Breaker| breaker.state() == state;
            keys.breakers.values().filter(is).count()
        };
        Snapshot {
            tracked: keys.breakers.len(),
            open: count(State::Open),
            half_open: count(State::HalfOpen),
            opened: common.opened,
            closed: common.closed,
            probes: common.probes,
            rejected: self.rejected.load(Relaxed),
            untracked: keys.untracked,
        }
    }
}

impl Keys {
    /// The breaker of this key, a new one if it has none and there is room.
    fn remember(&mut self, common: &Common, key: Fingerprint, now: u64) -> Option<&mut Breaker> {
        if !self.breakers.contains_key(&key) {
            if self.breakers.len() >= self.max_keys {
                self.sweep(common, now);
            }
            if self.breakers.len() >= self.max_keys {
                return None;
            }
        }
        let since = self.forgotten;
        let breaker = self.breakers.entry(key);
        Some(breaker.or_insert_with(|| Breaker::new(since)))
    }

    /// Forgets what can be forgotten. It goes through all keys, so not for every request.
    fn sweep(&mut self, common: &Common, now: u64) {
        let lately = |at| now.saturating_sub(at) < common.settings.lease / 10;
        if self.swept_at.is_some_and(lately) {
            return;
        }
        self.swept_at = Some(now);
        let forgotten = &mut self.forgotten;
        self.breakers.retain(|_, breaker| {
            let keep = !breaker.is_forgettable(common, now) && !breaker.is_stale(common, now);
            if !keep {
                *forgotten = (*forgotten).max(breaker.since());
            }
            keep
        });
    }
}

impl fmt::Debug for Circuits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Circuits")
            .field("name", &self.name.get())
            .field("tracked", &self.tracked.load(Relaxed))
            .finish_non_exhaustive()
    }
}

/// As a [`Pass`](super::circuit::Pass), for one key.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
pub struct KeyedPass {
    circuits: Arc<Circuits>,
    key: Fingerprint,
    /// Until it has reported.
    generation: Option<u64>,
}

impl KeyedPass {
    /// Lets a request through, or refuses it.
    #[inline]
    pub(crate) fn enter(
        circuits: &Arc<Circuits>,
        key: Fingerprint,
    ) -> Result<Self, Box<Overloaded>> {
        let generation = circuits.enter(key)?;
        Ok(Self {
            circuits: Arc::clone(circuits),
            key,
            generation: Some(generation),
        })
    }

    #[inline]
    fn end(&mut self, ended: Ended) {
        if let Some(generation) = self.generation.take() {
            self.circuits.end(self.key, generation, ended);
        }
    }
}

impl Reports for KeyedPass {
    #[inline]
    fn report(mut self, outcome: Outcome) {
        self.end(circuit::of(outcome));
    }

    #[cold]
    fn panicked(&mut self) {
        self.end(Ended::Failure);
    }
}

impl Drop for KeyedPass {
    #[inline]
    fn drop(&mut self) {
        self.end(Ended::Unknown);
    }
}
