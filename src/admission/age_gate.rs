//! The door of a [`CoDel`](crate::CoDel): its law, and a [`Gate`] for what is in flight.
//!
//! The gate counts and holds to the limit; nobody ever waits at it.
//!
//! In good times nobody has waited, and there is nothing to be decided. The law says until when a request that is
//! of no age at all could tell it nothing but that it came: it is *calm*. Meanwhile such a request only goes through
//! the gate, by one compare-and-swap, and how many they were is found out from how many the gate has admitted,
//! when the law wants to know. So threads that serve such requests do not take the law from each other.

#[cfg(all(test, backpressure_loom))]
mod models;
#[cfg(all(test, not(backpressure_loom)))]
mod tests;

use std::{fmt, sync::atomic::AtomicBool, time::Duration};

use super::{
    bounds::{Rejected, nanos},
    claim::Limiter,
    gate::Gate,
    permit::Permit,
    word::MAX_LIMIT,
};
use crate::{
    ConfigError, Overloaded, Reason, SubmittedAt, Waited,
    algorithm::codel::{CoDel, Entry, Settings, Verdict},
    clock::{Clock, Now},
    observe::events::{self, LimitMoved},
    sync::{
        Arc, AtomicU64, AtomicUsize, Mutex, MutexGuard,
        Ordering::{Acquire, Relaxed, Release},
        lock,
    },
};

/// What a client is told that is refused for its age: at least this, at most that.
const SHORTEST_RETRY_AFTER: Duration = Duration::from_millis(1);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// `interval` is no shorter: a queue that stands is looked for as long.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct AgeGate {
    pub(crate) gate: Arc<Gate>,
    /// Until when it is calm, in the law's time, with how many in flight. Changed under the lock of the law.
    calm_until: AtomicU64,
    calm_below: AtomicUsize,
    law: Mutex<Law>,
    /// By which the law's time is counted.
    clock: Clock,
    /// Whether a queue stood when the law was last brought up to date. The log's business alone.
    stands: AtomicBool,
    /// Whether it was ever asked on trial: then all that the log is told says so.
    on_trial: AtomicBool,
}

/// With what it was told of.
struct Law {
    codel: CoDel,
    /// How many of those that the gate has admitted it knows of: all but those that came while it was calm.
    knows_of: u64,
}

/// The state of a sojourn-time admission at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many requests may be in flight.
    pub limit: usize,
    /// It is not narrowed below this.
    pub min: usize,
    /// It is not widened above this.
    pub max: usize,
    /// How many are.
    pub in_flight: usize,
    /// The most that were in flight at once since the last snapshot was taken, by whomever.
    pub peak_in_flight: usize,
    /// How many requests were admitted so far.
    pub admitted: u64,
    /// How many were refused so far: `at_limit`, or `too_old`.
    pub rejected: Rejected,
    /// The age that nineteen in twenty requests did not exceed in the last window, when they came,
    /// admitted or not. A window is a tenth of `interval`, or longer where few requests come; `None` if
    /// none came. It is at most an eighth too high, and on the right side of the target.
    pub p95: Option<Duration>,
    /// The share of them that were older than the target, from 0 to 1.
    pub over_target: f64,
    /// Whether a queue stands, and what is too old is refused.
    pub overloaded: bool,
    /// The least age lately, in percent of the age at which requests are refused while a queue stands. At
    /// most 100.
    pub load_percent: u32,
    /// How often the limit was narrowed.
    pub narrowings: u64,
    /// How often it was widened.
    pub widenings: u64,
    /// How often narrowings did not help, and were taken back.
    pub undone: u64,
}

impl AgeGate {
    pub(crate) fn new(settings: Settings, clock: Clock) -> Self {
        let settings = held_to_the_gate(settings);
        let gate = Gate::new("codel", settings.max as usize).expect("it has been checked");
        Self {
            gate: Arc::new(gate),
            calm_until: AtomicU64::new(0),
            calm_below: AtomicUsize::new(0),
            law: Mutex::new(Law {
                codel: CoDel::new(settings, clock.nanos()),
                knows_of: 0,
            }),
            clock,
            stands: AtomicBool::new(false),
            on_trial: AtomicBool::new(false),
        }
    }

    /// Now, in the law's time.
    pub(crate) fn now(&self) -> u64 {
        self.clock.nanos()
    }

    /// Admits a request or refuses it. `waited` is how long it waited for the inner service to be ready,
    /// in nanoseconds.
    #[inline]
    pub(crate) fn enter(
        &self,
        submitted: Option<SubmittedAt>,
        waited: u64,
        outside: Option<Waited>,
        now: &mut Now,
    ) -> Result<Permit, Box<Overloaded>> {
        self.admit(submitted, waited, outside, now)?;
        Ok(self.permit())
    }

    /// For a request that was let in.
    #[inline]
    pub(crate) fn permit(&self) -> Permit {
        Permit::new(Arc::clone(&self.gate))
    }

    /// As [`enter`](Self::enter), for a caller that says itself when the request is [over](Gate::complete).
    #[inline]
    pub(crate) fn admit(
        &self,
        submitted: Option<SubmittedAt>,
        waited: u64,
        outside: Option<Waited>,
        now: &mut Now,
    ) -> Result<(), Box<Overloaded>> {
        let own = outside.map_or(0, |outside| nanos(outside.own)).max(waited);
        let oldest = outside.and_then(|outside| outside.oldest).map(nanos);
        let age = submitted.map_or(0, |submitted| nanos(submitted.age_at(now.instant())));
        // Without a stamp, or with a late one, it is at least as old as it has waited here.
        let age = age.max(own);
        self.admit_at(self.clock.nanos_at(now), age, own, oldest)
    }

    #[inline]
    fn admit_at(
        &self,
        now: u64,
        age: u64,
        own: u64,
        oldest: Option<u64>,
    ) -> Result<(), Box<Overloaded>> {
        let calm = age == 0 && now < self.calm_until.load(Acquire);
        if calm && self.gate.try_admit_below(self.calm_below.load(Relaxed)) {
            return Ok(());
        }
        self.decide(now, age, own, oldest)
    }

    #[inline(never)]
    fn decide(
        &self,
        now: u64,
        age: u64,
        own: u64,
        oldest: Option<u64>,
    ) -> Result<(), Box<Overloaded>> {
        let mut law = self.rolled(now);
        let entry = Entry {
            age,
            own,
            oldest,
            in_flight: self.gate.load_now().0 as u64,
        };
        let verdict = law.codel.enter(now, &entry);
        let admitted = verdict == Verdict::Admit && self.gate.try_admit(());
        if admitted {
            law.knows_of += 1;
        } else if verdict == Verdict::Admit {
            law.codel.note_full(); // those that do not ask were faster
        }
        self.publish_calm(&law.codel);
        drop(law);
        if admitted {
            return Ok(());
        }
        Err(self.refuse(verdict, age.max(oldest.unwrap_or(0))))
    }

    /// Says until when it is calm, as the law has it, whose lock is held. Whoever sees until when sees with how many.
    fn publish_calm(&self, law: &CoDel) {
        let (until, below) = (law.calm_until(), law.peak() as usize);
        if self.calm_below.load(Relaxed) != below {
            self.calm_below.store(below, Relaxed);
        }
        if self.calm_until.load(Relaxed) != until {
            self.calm_until.store(until, Release);
        }
    }

    /// Lets a request pass that the inner service is going to refuse. It has not waited for what others
    /// wait for, so it says nothing about them.
    #[cold]
    pub(crate) fn pass(&self) -> Result<(), Box<Overloaded>> {
        let mut law = lock(&self.law);
        let admitted = self.gate.try_admit(());
        law.knows_of += u64::from(admitted); // it did not come while it was calm
        drop(law);
        match admitted {
            true => Ok(()),
            false => Err(self.gate.refuse((), Reason::AtLimit)),
        }
    }

    #[cold]
    fn refuse(&self, verdict: Verdict, sojourn: u64) -> Box<Overloaded> {
        if verdict != Verdict::TooOld {
            return self.gate.refuse((), Reason::AtLimit);
        }
        self.gate.bounds.count(Reason::TooOld);
        self.gate.bounds.report(Reason::TooOld);
        // A queue's length over its drain is the time that requests take through it.
        let retry_after =
            Duration::from_nanos(sojourn).clamp(SHORTEST_RETRY_AFTER, LONGEST_RETRY_AFTER);
        let name = self.gate.bounds.name();
        Box::new(Overloaded::new(name, Reason::TooOld, retry_after))
    }

    /// The inner service was not ready. Gives the time.
    pub(crate) fn inner_pending(&self) -> u64 {
        let now = self.now();
        self.rolled(now).codel.inner_pending(now);
        now
    }

    /// The law, up to date.
    #[inline]
    fn rolled(&self, now: u64) -> MutexGuard<'_, Law> {
        let mut law = lock(&self.law);
        if !law.codel.may_be_due(now) {
            return law;
        }
        law.hear_of(self.gate.admitted());
        match law.codel.is_due(now) {
            true => self.roll(law, now),
            false => law,
        }
    }

    #[cold]
    fn roll<'a>(&'a self, mut guard: MutexGuard<'a, Law>, now: u64) -> MutexGuard<'a, Law> {
        let law = &mut guard.codel;
        let before = law.report(now);
        let limit = law.limit() as usize;
        law.roll(now, self.gate.completed());
        self.publish_calm(law);
        let after = law.report(now);
        let stands = after.overloaded;
        let changed = stands != self.stands.swap(stands, Relaxed);
        let moved = LimitMoved {
            from: limit,
            to: law.limit() as usize,
            moves: 1,
            why: Some(if after.undone > before.undone {
                "undone"
            } else if after.narrowings > before.narrowings {
                "narrowed"
            } else {
                "widened"
            }),
        };
        if moved.to != limit {
            self.gate.resize(moved.to);
        }
        if !changed && moved.to == limit {
            return guard;
        }
        // Whoever listens may come back here.
        drop(guard);
        let name = self.gate.bounds.name();
        self.on_trial.fetch_or(events::is_shadow(), Relaxed);
        events::in_shadow_if(self.on_trial.load(Relaxed), || {
            if changed {
                events::queue(name, stands, after.p95);
            }
            if moved.to != limit {
                events::limit_moved(name, moved);
            }
        });
        lock(&self.law)
    }

    /// All at once. The settings have been checked.
    pub(crate) fn set(&self, settings: Settings) {
        let law = &mut lock(&self.law).codel;
        law.set(held_to_the_gate(settings));
        self.gate.resize(law.limit() as usize);
        self.publish_calm(law);
    }

    pub(crate) fn set_target(&self, target: Duration) -> Result<(), ConfigError> {
        let law = &mut lock(&self.law).codel;
        check(target, Duration::from_nanos(law.settings.interval))?;
        law.settings.target = nanos(target);
        Ok(())
    }

    pub(crate) fn set_interval(&self, interval: Duration) -> Result<(), ConfigError> {
        let law = &mut lock(&self.law).codel;
        check(Duration::from_nanos(law.settings.target), interval)?;
        law.settings.interval = nanos(interval);
        self.publish_calm(law);
        Ok(())
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = self.now();
        let guard = self.rolled(now);
        let law = &guard.codel;
        let (report, min, max) = (law.report(now), law.settings.min, law.settings.max);
        drop(guard);
        let permits = self.gate.snapshot();
        Snapshot {
            limit: permits.limit,
            min: min as usize,
            max: max as usize,
            in_flight: permits.in_flight,
            peak_in_flight: permits.peak_in_flight,
            admitted: permits.admitted,
            rejected: permits.rejected,
            p95: report.p95,
            over_target: report.over_target,
            overloaded: report.overloaded,
            load_percent: report.load_percent,
            narrowings: report.narrowings,
            widenings: report.widenings,
            undone: report.undone,
        }
    }
}

#[cfg(test)]
impl AgeGate {
    /// Whether the law need not be told of a request of no age.
    fn is_calm(&self, now: u64) -> bool {
        now < self.calm_until.load(Acquire)
            && self.gate.load_now().0 < self.calm_below.load(Relaxed)
    }
}

impl Law {
    /// Of those that came while it was calm, now that so many were admitted.
    fn hear_of(&mut self, admitted: u64) {
        debug_assert!(admitted >= self.knows_of, "nothing is given back unused");
        self.codel.note_calm(admitted.saturating_sub(self.knows_of));
        self.knows_of = admitted;
    }
}

impl fmt::Debug for AgeGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgeGate").field(&self.gate).finish()
    }
}

/// The gate holds a limit to what it can count.
fn held_to_the_gate(settings: Settings) -> Settings {
    let most = MAX_LIMIT as u64;
    Settings {
        min: settings.min.min(most),
        max: settings.max.min(most),
        ..settings
    }
}

pub(crate) fn check(target: Duration, interval: Duration) -> Result<(), ConfigError> {
    if target.is_zero() {
        let expected = format!("longer than 0 and at most interval ({interval:?})");
        return Err(ConfigError::new("target", expected));
    }
    if interval < target || interval < SHORTEST_INTERVAL {
        let expected = format!("at least the target ({target:?}), and at least 100 ms");
        return Err(ConfigError::new("interval", expected).found(format_args!("{interval:?}")));
    }
    Ok(())
}
