//! The door of a [`CoDel`](crate::CoDel): its law, and a [`Gate`] for what is in flight.
//!
//! The gate counts and holds to the limit; nobody ever waits at it. All that enter do so under the lock
//! of the law, so what it is told to be in flight can only have become less when it decides.

#[cfg(all(test, backpressure_loom))]
mod models;

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

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
    sync::{Arc, Mutex, MutexGuard, lock},
};

/// What a client is told that is refused for its age: at least this, at most that.
const SHORTEST_RETRY_AFTER: Duration = Duration::from_millis(1);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// `interval` is no shorter: a queue that stands is looked for as long.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct AgeGate {
    pub(crate) gate: Arc<Gate>,
    law: Mutex<CoDel>,
    /// By which the law's time is counted.
    clock: Clock,
    /// Whether a queue stood when the law was last brought up to date. The log's business alone.
    stands: AtomicBool,
    /// Whether it was ever asked on trial: then all that the log is told says so.
    on_trial: AtomicBool,
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
            law: Mutex::new(CoDel::new(settings, clock.nanos())),
            clock,
            stands: AtomicBool::new(false),
            on_trial: AtomicBool::new(false),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
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
        self.decide(self.clock.nanos_at(now), age, own, oldest)
    }

    #[inline]
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
        let verdict = law.enter(now, &entry);
        let admitted = verdict == Verdict::Admit && self.gate.try_admit(());
        drop(law);
        if admitted {
            return Ok(());
        }
        Err(self.refuse(verdict, age.max(oldest.unwrap_or(0))))
    }

    /// Lets a request pass that the inner service is going to refuse. It has not waited for what others
    /// wait for, so it says nothing about them.
    #[cold]
    pub(crate) fn pass(&self) -> Result<(), Box<Overloaded>> {
        match self.gate.try_admit(()) {
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
        self.rolled(now).inner_pending(now);
        now
    }

    /// The law, up to date.
    #[inline]
    fn rolled(&self, now: u64) -> MutexGuard<'_, CoDel> {
        let law = lock(&self.law);
        match law.is_due(now) {
            true => self.roll(law, now),
            false => law,
        }
    }

    #[cold]
    fn roll<'a>(&'a self, mut law: MutexGuard<'a, CoDel>, now: u64) -> MutexGuard<'a, CoDel> {
        let before = law.report(now);
        let limit = law.limit() as usize;
        law.roll(now, self.gate.completed());
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
            return law;
        }
        // Whoever listens may come back here.
        drop(law);
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
        let mut law = lock(&self.law);
        law.set(held_to_the_gate(settings));
        self.gate.resize(law.limit() as usize);
    }

    pub(crate) fn set_target(&self, target: Duration) -> Result<(), ConfigError> {
        let mut law = lock(&self.law);
        check(target, Duration::from_nanos(law.settings.interval))?;
        law.settings.target = nanos(target);
        Ok(())
    }

    pub(crate) fn set_interval(&self, interval: Duration) -> Result<(), ConfigError> {
        let mut law = lock(&self.law);
        check(Duration::from_nanos(law.settings.target), interval)?;
        law.settings.interval = nanos(interval);
        Ok(())
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = self.now();
        let law = self.rolled(now);
        let (report, min, max) = (law.report(now), law.settings.min, law.settings.max);
        drop(law);
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
