//! What all limits of a fleet have in common: the way to the server, and whether it answers.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{runtime, time::timeout};

use super::store::{Script, Store};
use crate::{
    Clock,
    gate::bounds::nanos,
    jitter::Jitter,
    law::breaker::{Breaker, Common, Ended, Entered, Settings, State, Trip},
    observe::events,
    sync::{Mutex, lock},
};

/// So many calls in a row have to fail for the server to be taken for away. One can be late, and a few of the same key can
/// fail for that key's own reasons.
const FAILURES: u32 = 3;

/// While it is away it is asked again after this time, and up to half of it at random, by one call of each node.
const COOLDOWN: Duration = Duration::from_secs(1);

pub(super) struct Link {
    store: Box<dyn Store>,
    pub(super) clock: Clock,
    breaker: Mutex<(Common, Breaker)>,
    away: AtomicBool,
    /// When that began, by the clock.
    away_since: AtomicU64,
    /// How long it was away before that.
    away_for: AtomicU64,
    /// Whether somebody sees to it that the server is asked again.
    reviving: AtomicBool,
    pub(super) jitter: Jitter,
    runtime: OnceLock<runtime::Handle>,
    changes: AtomicU64,
    granted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// Whether the limits of a fleet are shared just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The server answers.
    Shared,
    /// It does not, and each limit holds to its [`Fallback`](super::Fallback).
    Fallback,
}

/// The state of a fleet's way to its server at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Whether limits are shared.
    pub mode: Mode,
    /// How often that has changed so far.
    pub mode_changes: u64,
    /// How long it was [`Mode::Fallback`] so far.
    pub fallback_time: Duration,
    /// Calls that were granted what they asked for.
    pub granted: u64,
    /// Calls that were told to come later.
    pub refused: u64,
    /// Calls that had no answer in time, or an error.
    pub failed: u64,
}

/// There is no answer. Asking again before this time is of no use.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoAnswer {
    pub(super) until: u64,
}

impl Link {
    pub(super) fn new(store: Box<dyn Store>, clock: Clock) -> Self {
        let settings = Settings {
            trip: Trip::InARow(FAILURES),
            cooldown: nanos(COOLDOWN),
            successes: 1,
            lease: nanos(COOLDOWN), // a probe that is dropped
        };
        let link = Self {
            store,
            clock,
            breaker: Mutex::new((Common::new(settings), Breaker::new(0))),
            away: AtomicBool::new(false),
            away_since: AtomicU64::new(0),
            away_for: AtomicU64::new(0),
            reviving: AtomicBool::new(false),
            jitter: Jitter::default(),
            runtime: OnceLock::new(),
            changes: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        let _ = link.runtime(); // the one in which it is made, if there is one
        link
    }

    /// Where its tasks run: the runtime in which it was made, or else in which it was first used.
    pub(super) fn runtime(&self) -> Option<&runtime::Handle> {
        if let (None, Ok(current)) = (self.runtime.get(), runtime::Handle::try_current()) {
            let _ = self.runtime.set(current);
        }
        self.runtime.get()
    }

    /// Asks the server, unless it is known to be away. `read` makes sense of the numbers, and says whether they grant.
    pub(super) async fn call<T>(
        &self,
        within: Duration,
        (script, key, args): (Script, &[u8], &[i64]),
        read: impl Fn(&[i64]) -> Option<(T, bool)>,
    ) -> Result<T, NoAnswer> {
        let now = self.clock.nanos();
        let entered = {
            let (common, breaker) = &mut *lock(&self.breaker);
            breaker.enter(common, now)
        };
        let generation = match entered {
            Entered::Passes(generation) => generation,
            Entered::Refused(after) => {
                let later = self.jitter.up_to(COOLDOWN / 2);
                let until = now.saturating_add(after.nanos().min(nanos(COOLDOWN)));
                let until = until.saturating_add(nanos(later));
                return Err(NoAnswer { until });
            }
        };
        let numbers = timeout(within, self.store.run(script, key, args)).await;
        let answer = match &numbers {
            Ok(Ok(numbers)) => read(numbers),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the fleet's server has failed");
                None
            }
            Err(_) => None,
        };
        let ended = match answer {
            Some(_) => Ended::Success,
            None => Ended::Failure,
        };
        let until = self.end(generation, ended, within);
        match answer {
            Some((answer, granted)) => {
                let count = if granted {
                    &self.granted
                } else {
                    &self.refused
                };
                count.fetch_add(1, Relaxed);
                Ok(answer)
            }
            None => {
                self.failed.fetch_add(1, Relaxed);
                Err(NoAnswer { until })
            }
        }
    }

    /// When to ask again, if it failed.
    fn end(&self, generation: u64, ended: Ended, within: Duration) -> u64 {
        let now = self.clock.nanos();
        let mut locked = lock(&self.breaker);
        let (common, breaker) = &mut *locked;
        breaker.end(common, now, generation, ended);
        let away = breaker.state() != State::Closed;
        let until = breaker.refuses_until();
        let changed = self.away.swap(away, Relaxed) != away;
        if changed && away {
            self.away_since.store(now, Relaxed);
        }
        let lasted = now.saturating_sub(self.away_since.load(Relaxed));
        if changed && !away {
            self.away_for.fetch_add(lasted, Relaxed);
        }
        drop(locked);
        if changed {
            self.changes.fetch_add(1, Relaxed);
            events::fleet(away, Duration::from_nanos(lasted));
        }
        let (until, later) = match until {
            Some(until) => (until, COOLDOWN / 2),
            None => (now.saturating_add(nanos(within)), within),
        };
        until.saturating_add(nanos(self.jitter.up_to(later)))
    }

    /// Whether the caller is the one who asks again until there is an answer. Others may wait for their requests.
    pub(super) fn revives(&self) -> bool {
        self.away.load(Relaxed) && !self.reviving.swap(true, Relaxed)
    }

    pub(super) fn stop_reviving(&self) {
        self.reviving.store(false, Relaxed);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let locked = lock(&self.breaker); // the two times belong together
        let away = self.away.load(Relaxed);
        let since = self
            .clock
            .nanos()
            .saturating_sub(self.away_since.load(Relaxed));
        let present = if away { since } else { 0 };
        let before = self.away_for.load(Relaxed);
        drop(locked);
        Snapshot {
            mode: if away { Mode::Fallback } else { Mode::Shared },
            mode_changes: self.changes.load(Relaxed),
            fallback_time: Duration::from_nanos(before.saturating_add(present)),
            granted: self.granted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }
}
