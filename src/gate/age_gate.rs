//! The door of a [`CoDel`](crate::CoDel): its law, and a [`Gate`] for what is in flight.
//!
//! The gate counts and holds to the limit; nobody ever waits at it.
//!
//! In good times nobody has waited, and there is nothing to be decided. The law says until when a request that is
//! of no age at all could tell it nothing but that it came: it is *calm*. Meanwhile such a request only goes through
//! the gate, by one compare-and-swap, and how many they were is found out from how many the gate has admitted,
//! when the law wants to know. So threads that serve such requests do not take the law from each other.
//!
//! The law has a lock of its own beside the gate's, and is not the gate's [`Room`](super::room::Room), because of its
//! permits: [`Handle::try_acquire`](crate::codel::Handle::try_acquire) gives the [`Permit`] that all limits give, which is
//! one of a `Gate<Fifo>`. A gate with another room would need another public type for them. Nobody ever waits at this gate,
//! so its own lock is only taken to move the limit.

#[cfg(all(test, backpressure_loom))]
mod models;
#[cfg(all(test, not(backpressure_loom)))]
mod tests;

use std::{fmt, time::Duration};

use super::{
    ages::{Age, Ages},
    bounds::{Rejected, nanos},
    claim::Limiter,
    gate::Gate,
    permit::Permit,
    room::{Scene, Wakes},
    word::MAX_LIMIT,
};
use crate::{
    ConfigError, Overloaded, Reason, SubmittedAt, Waited,
    clock::{Clock, Now},
    law::codel::Settings,
    sync::{
        Arc, AtomicU64, AtomicUsize, Mutex, MutexGuard,
        Ordering::{Acquire, Relaxed, Release},
        lock,
    },
};

/// `interval` is no shorter: a queue that stands is looked for as long.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct AgeGate {
    pub(crate) gate: Arc<Gate>,
    /// Until when it is calm, in the law's time, with how many in flight. Changed under the lock of the law.
    calm_until: AtomicU64,
    calm_below: AtomicUsize,
    law: Mutex<Ages>,
    /// By which the law's time is counted.
    clock: Clock,
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
            law: Mutex::new(Ages::new(settings, clock.nanos())),
            clock,
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
        let Age { all, own, oldest } = age(submitted, waited, outside, now);
        self.admit_at(self.clock.nanos_at(now), all, own, oldest)
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
        let in_flight = self.gate.load_now().0 as u64;
        let age = Age {
            all: age,
            own,
            oldest,
        };
        let judged = law.judge_at(now, in_flight, &age);
        let full = judged.is_ok() && !self.gate.try_admit(());
        if full {
            law.forget_one(); // those that do not ask were faster
        }
        self.publish_calm(&law);
        drop(law);
        match judged {
            Ok(()) if full => Err(self.gate.refuse((), Reason::AtLimit)),
            Ok(()) => Ok(()),
            Err(reason) => Err(self.refuse(reason, &age)),
        }
    }

    /// Says until when it is calm, as the law has it, whose lock is held. Whoever sees until when sees with how many.
    fn publish_calm(&self, law: &Ages) {
        let (until, below) = (law.quiet_until(), law.quiet_below() as usize);
        if self.calm_below.load(Relaxed) != below {
            self.calm_below.store(below, Relaxed);
        }
        if self.calm_until.load(Relaxed) != until {
            self.calm_until.store(until, Release);
        }
    }

    /// Admits a request that the inner service may reject in its call, or rejects it for its age. The law learns of it
    /// when that is known, by [`passed`](Self::passed).
    #[cold]
    pub(crate) fn try_pass(
        &self,
        submitted: Option<SubmittedAt>,
        waited: u64,
        outside: Option<Waited>,
        now: &mut Now,
    ) -> Result<Passing, Box<Overloaded>> {
        let age = age(submitted, waited, outside, now);
        self.try_pass_at(self.clock.nanos_at(now), age)
    }

    fn try_pass_at(&self, now: u64, age: Age) -> Result<Passing, Box<Overloaded>> {
        let mut law = self.rolled(now);
        let in_flight = self.gate.load_now().0 as u64;
        if let Err(reason) = law.foresee(now, in_flight, &age) {
            let _ = law.judge_at(now, in_flight, &age);
            self.publish_calm(&law);
            drop(law);
            return Err(self.refuse(reason, &age));
        }
        let admitted = self.gate.try_admit(());
        if admitted {
            law.pass_one(); // it did not come while it was calm
        }
        drop(law);
        match admitted {
            true => Ok(Passing {
                age,
                now,
                in_flight,
            }),
            false => Err(self.gate.refuse((), Reason::AtLimit)),
        }
    }

    /// An admitted request was called. If it was rejected there, it has not waited for what others wait for, and says
    /// nothing about them.
    pub(crate) fn passed(&self, request: &Passing, rejected: bool) {
        if !rejected {
            let mut law = lock(&self.law);
            law.note(request.now, request.in_flight, &request.age);
            self.publish_calm(&law);
        }
    }

    #[cold]
    fn refuse(&self, reason: Reason, age: &Age) -> Box<Overloaded> {
        if reason != Reason::TooOld {
            return self.gate.refuse((), Reason::AtLimit);
        }
        self.gate.bounds.count(reason);
        self.gate.bounds.report(reason);
        let name = self.gate.bounds.name();
        Box::new(Overloaded::new(name, reason, age.retry_after()))
    }

    /// The inner service was not ready. Gives the time.
    pub(crate) fn inner_pending(&self) -> u64 {
        let now = self.now();
        self.rolled(now).note_waiting(now);
        now
    }

    /// The law, up to date.
    #[inline]
    fn rolled(&self, now: u64) -> MutexGuard<'_, Ages> {
        let law = lock(&self.law);
        match law.may_be_due(now) {
            true => self.roll(law, now),
            false => law,
        }
    }

    #[cold]
    fn roll<'a>(&'a self, mut law: MutexGuard<'a, Ages>, now: u64) -> MutexGuard<'a, Ages> {
        let scene = Scene {
            now,
            in_flight: self.gate.load_now().0 as u64,
            admitted: self.gate.admitted(),
            completed: self.gate.completed(),
            bounds: &self.gate.bounds,
        };
        let mut wakes = Wakes::default();
        law.note_trial();
        law.roll(&scene, &mut wakes);
        self.publish_calm(&law);
        self.gate.resize(law.limit() as usize);
        if wakes.is_empty() {
            return law;
        }
        // What listens to the log may come back here.
        drop(law);
        wakes.wake();
        lock(&self.law)
    }

    /// All at once. The settings have been checked.
    pub(crate) fn set(&self, settings: Settings) {
        let law = &mut lock(&self.law);
        law.set(held_to_the_gate(settings));
        self.gate.resize(law.limit() as usize);
        self.publish_calm(law);
    }

    pub(crate) fn set_target(&self, target: Duration) -> Result<(), ConfigError> {
        let law = &mut lock(&self.law);
        let mut settings = law.settings();
        check(target, Duration::from_nanos(settings.interval))?;
        settings.target = nanos(target);
        law.set(settings);
        Ok(())
    }

    pub(crate) fn set_interval(&self, interval: Duration) -> Result<(), ConfigError> {
        let law = &mut lock(&self.law);
        let mut settings = law.settings();
        check(Duration::from_nanos(settings.target), interval)?;
        settings.interval = nanos(interval);
        law.set(settings);
        self.publish_calm(law);
        Ok(())
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = self.now();
        let law = self.rolled(now);
        let (report, settings) = (law.report(now), law.settings());
        drop(law);
        let (min, max) = (settings.min, settings.max);
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

/// A request that was admitted, and of which the law was not told.
#[derive(Debug)]
pub(crate) struct Passing {
    age: Age,
    now: u64,
    in_flight: u64,
}

/// How old a request is that has waited so long here, and in a queue further out as it told.
#[inline]
fn age(submitted: Option<SubmittedAt>, waited: u64, outside: Option<Waited>, now: &mut Now) -> Age {
    let own = outside.map_or(0, |outside| nanos(outside.own)).max(waited);
    let oldest = outside.and_then(|outside| outside.oldest).map(nanos);
    let all = submitted.map_or(0, |submitted| nanos(submitted.age_at(now.instant())));
    // Without a stamp, or with a late one, it is at least as old as it has waited here.
    let all = all.max(own);
    Age { all, own, oldest }
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
