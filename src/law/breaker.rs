//! The states of a circuit breaker.
//!
//! ```text
//!            too many failures               cooldown over: one request probes
//!  CLOSED ───────────────────────► OPEN ──────────────────────────────► HALF OPEN
//!    ▲                              ▲ ▲                                   │ │ │
//!    │                              │ └── fails, or reports nothing ──────┘ │ │
//!    │                              │     within its lease: a new cooldown  │ │
//!    │                              └──── says nothing (cancelled, ignored):│ │
//!    │                                    the next request probes ──────────┘ │
//!    └─────────────────────────── enough probes in a row succeed ─────────────┘
//! ```
//!
//! **Generations.** Every change of state is numbered, and so is every request, by the last change before it
//! was let through. A result counts only if the request is no older than the state: what was sent before the
//! circuit opened says nothing about the service after it has closed, and a probe whose lease is over is no
//! longer the probe.
//!
//! **No way to get stuck.** There is one probe at a time, and it has a lease: whatever becomes of it, and if
//! nothing ever does, the circuit leaves the half-open state.

use super::failure_window::FailureWindow;

/// What others are told while one request probes.
pub(crate) const WHILE_PROBING: u64 = 5_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) trip: Trip,
    /// How long the circuit stays open, in nanoseconds.
    pub(crate) cooldown: u64,
    /// How many probes have to succeed, one after the other.
    pub(crate) successes: u32,
    /// How long a probe may take.
    pub(crate) lease: u64,
}

/// What opens the circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trip {
    /// So many failures, with no success between them.
    InARow(u32),
    /// This share of the requests of a window, if there were so many.
    Share { of: f64, window: u64, calls: u32 },
}

impl Trip {
    /// Where the share of failures counts, how long that is looked at.
    pub(crate) fn window(&self) -> Option<u64> {
        match *self {
            Self::Share { window, .. } => Some(window),
            Self::InARow(_) => None,
        }
    }
}

/// What the breakers of one layer have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) settings: Settings,
    /// The number of the last change of state.
    pub(crate) generation: u64,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    pub(crate) probes: u64,
}

impl Common {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            generation: 0,
            opened: 0,
            closed: 0,
            probes: 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Breaker {
    stage: Stage,
    /// The generation of its last change.
    since: u64,
    /// When that was, if there was one.
    changed_at: Option<u64>,
    /// When a request last failed.
    failed_at: u64,
    /// Where the share of failures counts.
    window: Option<Box<FailureWindow>>,
    /// What was last said of it.
    told: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Closed {
        streak: u32,
    },
    Open {
        until: u64,
    },
    HalfOpen {
        successes: u32,
        /// The end of its lease, if there is one.
        probe: Option<u64>,
    },
    /// By hand, until it is reset.
    Forced,
}

/// The state of a circuit. As a number, for gauges: 0 closed, 1 half-open, 2 open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Requests pass.
    Closed = 0,
    /// One request at a time passes, to see whether the service works again.
    HalfOpen = 1,
    /// Requests are refused.
    Open = 2,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Success,
    Failure,
    /// It was cancelled, or its result says nothing about the service.
    Unknown,
}

/// A request passes, as one of this generation, or is refused, with the time after which to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    Passes(u64),
    Refused(After),
}

/// After how long a rejected request may try again, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The circuit stays open for so long.
    Exactly(u64),
    /// Nobody knows: another request probes, or the circuit was opened by hand.
    About(u64),
}

impl After {
    pub(crate) fn nanos(self) -> u64 {
        match self {
            Self::Exactly(nanos) | Self::About(nanos) => nanos,
        }
    }
}

impl Breaker {
    /// A closed one, for which requests of that generation and later ones count.
    pub(crate) fn new(since: u64) -> Self {
        Self {
            stage: Stage::Closed { streak: 0 },
            since,
            changed_at: None,
            failed_at: 0,
            window: None,
            told: State::Closed,
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.stage {
            Stage::Closed { .. } => State::Closed,
            Stage::HalfOpen { .. } => State::HalfOpen,
            Stage::Open { .. } | Stage::Forced => State::Open,
        }
    }

    /// The settings are about to be others. An open circuit is not open for longer than they say; a window of
    /// another length starts empty.
    pub(crate) fn reset_to(&mut self, old: &Settings, new: &Settings, now: u64) {
        if old.trip.window() != new.trip.window() {
            self.window = None;
        }
        if let Stage::Open { until } = &mut self.stage {
            *until = (*until).min(now.saturating_add(new.cooldown));
        }
    }

    /// The generation of its last change.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// How many failures there were since the last success.
    pub(crate) fn streak(&self) -> u32 {
        match self.stage {
            Stage::Closed { streak } => streak,
            _ => 0,
        }
    }

    /// Until when it refuses whatever comes; `u64::MAX` is until it is reset. While one probes, that is until
    /// the end of its lease.
    pub(crate) fn refuses_until(&self) -> Option<u64> {
        match self.stage {
            Stage::Open { until } => Some(until),
            Stage::HalfOpen { probe, .. } => probe,
            Stage::Forced => Some(u64::MAX),
            Stage::Closed { .. } => None,
        }
    }

    /// The state, if there is something new to say of it. That a probe said nothing, and another probes, is
    /// not.
    pub(crate) fn news(&mut self, now: u64) -> Option<State> {
        let state = match self.stage {
            Stage::Open { until } if until <= now => self.told,
            _ => self.state(),
        };
        (std::mem::replace(&mut self.told, state) != state).then_some(state)
    }

    /// Requests and failures in the window, where their share counts.
    pub(crate) fn counts(&mut self, now: u64) -> Option<(f64, f64)> {
        let window = self.window.as_mut()?;
        window.roll(now);
        Some(window.counts())
    }

    /// Whether it is as a new one would be, and no request is on its way that a new one would take for
    /// its own: that is all forgotten after a lease.
    pub(crate) fn is_forgettable(&mut self, common: &Common, now: u64) -> bool {
        let idle = self.counts(now).is_none_or(|(calls, _)| calls == 0.0);
        self.stage == Stage::Closed { streak: 0 } && idle && self.is_settled(common, now)
    }

    /// Whether nothing has come of it for long: failures that were too few to open it, or nobody who would
    /// probe.
    pub(crate) fn is_stale(&self, common: &Common, now: u64) -> bool {
        let since = match self.stage {
            Stage::Closed { .. } => self.failed_at,
            Stage::Open { until } => until,
            Stage::HalfOpen { probe, .. } => probe.or(self.changed_at).unwrap_or(0),
            Stage::Forced => return false,
        };
        let long = common.settings.lease.max(common.settings.cooldown);
        now.saturating_sub(since) > long && self.is_settled(common, now)
    }

    fn is_settled(&self, common: &Common, now: u64) -> bool {
        let long_ago = |at| now.saturating_sub(at) > common.settings.lease;
        self.changed_at.is_none_or(long_ago)
    }

    /// A request comes.
    pub(crate) fn enter(&mut self, common: &mut Common, now: u64) -> Entered {
        self.end_lease(common, now);
        match self.stage {
            Stage::Closed { .. } => Entered::Passes(common.generation),
            Stage::Open { until } if now < until => Entered::Refused(After::Exactly(until - now)),
            Stage::Open { .. } => self.probe(common, now, 0),
            Stage::HalfOpen {
                successes,
                probe: None,
            } => self.probe(common, now, successes),
            Stage::HalfOpen { .. } => Entered::Refused(After::About(WHILE_PROBING)),
            Stage::Forced => Entered::Refused(After::About(common.settings.cooldown)),
        }
    }

    /// A request of that generation has ended.
    pub(crate) fn end(&mut self, common: &mut Common, now: u64, generation: u64, ended: Ended) {
        self.end_lease(common, now);
        if generation < self.since {
            return;
        }
        match (self.stage, ended) {
            (Stage::Closed { streak }, Ended::Failure) => {
                self.failed_at = now;
                let streak = streak.saturating_add(1);
                self.stage = Stage::Closed { streak };
                self.count(common, now, 0, 1);
                if self.trips(common) {
                    self.open(common, now);
                }
            }
            (Stage::Closed { .. }, Ended::Success) => {
                self.stage = Stage::Closed { streak: 0 };
                self.count(common, now, 1, 0);
            }
            (Stage::HalfOpen { successes, .. }, Ended::Success) => {
                let successes = successes.saturating_add(1);
                if successes >= common.settings.successes {
                    self.reset(common, now);
                } else {
                    let probe = None;
                    self.stage = Stage::HalfOpen { successes, probe };
                }
            }
            (Stage::HalfOpen { .. }, Ended::Failure) => self.open(common, now),
            (Stage::HalfOpen { .. }, Ended::Unknown) => {
                self.change(common, now, Stage::Open { until: now });
            }
            (Stage::Closed { .. }, Ended::Unknown) | (Stage::Open { .. } | Stage::Forced, _) => {}
        }
    }

    /// Counts requests that succeeded at that time, where the share of failures counts.
    pub(crate) fn count_successes(&mut self, common: &Common, at: u64, count: u64) {
        if count > 0 && self.state() == State::Closed {
            self.stage = Stage::Closed { streak: 0 };
            self.count(common, at, count, 0);
        }
    }

    /// Opens it until it is reset.
    pub(crate) fn force_open(&mut self, common: &mut Common, now: u64) {
        self.open(common, now);
        self.stage = Stage::Forced;
    }

    fn count(&mut self, common: &Common, at: u64, successes: u64, failures: u64) {
        if let Trip::Share { window, .. } = common.settings.trip {
            let counts = (self.window).get_or_insert_with(|| Box::new(FailureWindow::new(window)));
            counts.add(at, successes, failures);
        }
    }

    fn trips(&self, common: &Common) -> bool {
        match common.settings.trip {
            Trip::InARow(failures) => self.streak() >= failures,
            Trip::Share { of, calls, .. } => {
                let (all, failed) = self.window.as_ref().map_or((0.0, 0.0), |w| w.counts());
                // A share is rarely a number of the machine's: just that much is enough.
                all >= f64::from(calls) && failed >= of * all * (1.0 - 1e-9)
            }
        }
    }

    /// A probe that has not ended in its time has failed, at the end of it.
    pub(crate) fn end_lease(&mut self, common: &mut Common, now: u64) {
        if let Stage::HalfOpen { probe, .. } = self.stage {
            if let Some(end) = probe.filter(|end| *end <= now) {
                self.open(common, end);
            }
        }
    }

    fn probe(&mut self, common: &mut Common, now: u64, successes: u32) -> Entered {
        common.probes += 1;
        let probe = Some(now.saturating_add(common.settings.lease));
        self.change(common, now, Stage::HalfOpen { successes, probe });
        Entered::Passes(self.since)
    }

    fn open(&mut self, common: &mut Common, now: u64) {
        common.opened += 1;
        let until = now.saturating_add(common.settings.cooldown);
        self.change(common, now, Stage::Open { until });
    }

    /// Closes it, whatever it was, as if nothing had ever happened.
    pub(crate) fn reset(&mut self, common: &mut Common, now: u64) {
        if self.state() != State::Closed {
            common.closed += 1;
        }
        self.window = None;
        self.change(common, now, Stage::Closed { streak: 0 });
    }

    fn change(&mut self, common: &mut Common, now: u64, stage: Stage) {
        common.generation += 1;
        self.since = common.generation;
        self.changed_at = Some(now);
        self.stage = stage;
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests;
