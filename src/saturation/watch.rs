//! The level of a [`Saturation`](super::Saturation), and who may look for it.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::{
    Level, Thresholds, Work,
    probe::{Probes, Said},
    work::refused_from,
};
use crate::{
    ConfigError, Overloaded, Priority, Reason, clock,
    gate::bounds::Name,
    gate::bounds::nanos,
    law::levels::{Fall, Levels},
    observe::events,
    sync::{
        AtomicU64, AtomicUsize, Mutex,
        Ordering::{Acquire, Relaxed, Release},
        lock,
    },
};

pub(crate) const DEFAULT_EVERY: Duration = Duration::from_millis(10);

/// What is told where it is not known how fast a queue drains: a buffer takes five to ten seconds.
const RETRY_AFTER_CRITICAL: Duration = Duration::from_secs(5);
const RETRY_AFTER_OVERFLOW: Duration = Duration::from_secs(10);

pub(super) struct Watch {
    pub(super) probes: Probes,
    pub(super) name: Name,
    /// What time is counted from, in nanoseconds.
    made: Instant,
    every: AtomicU64,
    /// When the probes are to be asked again.
    due: AtomicU64,
    /// 1 while one asks them. Nobody ever waits for that.
    looking: AtomicUsize,
    /// As in `state`, for those who decide by it.
    level: AtomicUsize,
    admitted: AtomicU64,
    rejected_at_critical: AtomicU64,
    rejected_at_overflow: AtomicU64,
    /// No foreign code runs under this lock.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    levels: Levels,
    worst: Option<Said>,
    /// Of the worst one.
    fall: Fall,
    changes: u64,
    probe_panics: u64,
    /// Whether one has when they were last asked.
    panicking: bool,
}

/// The state of a saturation layer at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The level now.
    pub level: Level,
    /// The worst ratio of depth to soft limit, when the probes were last asked.
    pub ratio: f64,
    /// Whose it was; `None` if none has said anything.
    pub probe: Option<&'static str>,
    /// How often the level has changed.
    pub changes: u64,
    /// How many requests were admitted so far.
    pub admitted: u64,
    /// How many were refused at the level [`Critical`](Level::Critical).
    pub rejected_at_critical: u64,
    /// How many were refused at the level [`Overflow`](Level::Overflow).
    pub rejected_at_overflow: u64,
    /// How often a probe has panicked.
    pub probe_panics: u64,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            probes: Probes::default(),
            name: Name::new("saturation"),
            made: clock::instant(),
            every: AtomicU64::new(nanos(DEFAULT_EVERY)),
            due: AtomicU64::new(0),
            looking: AtomicUsize::new(0),
            level: AtomicUsize::new(Level::Normal as usize),
            admitted: AtomicU64::new(0),
            rejected_at_critical: AtomicU64::new(0),
            rejected_at_overflow: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    pub(super) fn set_every(&self, every: Duration) {
        self.every.store(nanos(every), Relaxed);
        self.due.store(0, Relaxed);
    }

    pub(super) fn set_thresholds(&self, thresholds: Thresholds) -> Result<(), ConfigError> {
        check(&thresholds)?;
        lock(&self.state).levels.thresholds = thresholds;
        self.due.store(0, Relaxed);
        Ok(())
    }

    #[inline]
    pub(super) fn admit(
        &self,
        now: Instant,
        request: impl FnOnce() -> (Work, Priority),
    ) -> Result<(), Box<Overloaded>> {
        let level = self.level_at(now);
        if level >= Level::Critical {
            let (work, priority) = request();
            if let Some(from) = refused_from(work, priority).filter(|from| level >= *from) {
                return Err(self.refuse(level, from));
            }
        }
        self.admitted.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The level, as new as it has to be.
    #[inline]
    fn level_at(&self, now: Instant) -> Level {
        let now = nanos(now.saturating_duration_since(self.made));
        if now >= self.due.load(Relaxed) {
            self.look(now);
        }
        Level::from_index(self.level.load(Relaxed))
    }

    #[cold]
    fn look(&self, now: u64) {
        let Some(_looking) = Looking::begin(&self.looking) else {
            return; // the last level will do until that one knows better
        };
        let next = now.saturating_add(self.every.load(Relaxed));
        self.due.store(next, Relaxed);

        let (mut panics, mut panicked) = (0, None);
        let worst = self.probes.worst(|probe| {
            panics += 1;
            panicked = Some(probe);
        });
        let ratio = worst.map_or(0.0, |worst| worst.ratio);

        let mut state = lock(&self.state);
        state.probe_panics += panics;
        let before = std::mem::replace(&mut state.panicking, panicked.is_some());
        let panicked = panicked.filter(|_| !before); // said once, until none does any more
        if state.worst.map(|worst| worst.index) != worst.map(|worst| worst.index) {
            state.fall = Fall::default();
        }
        if let Some(worst) = worst {
            state.fall.look(Duration::from_nanos(now), worst.depth);
        }
        state.worst = worst;
        let before = state.levels.level();
        let level = state.levels.update(ratio);
        state.changes += u64::from(level != before);
        self.level.store(level as usize, Relaxed);
        drop(state);

        if let Some(probe) = panicked {
            events::probe_panicked(self.name.get(), probe);
        }
        if level != before {
            let probe = worst.map_or("", |worst| worst.probe);
            events::saturation(self.name.get(), probe, ratio, before, level);
        }
    }

    /// `from` is the level that has to be left until it passes.
    #[cold]
    fn refuse(&self, level: Level, from: Level) -> Box<Overloaded> {
        let (count, unknown) = match level {
            Level::Overflow => (&self.rejected_at_overflow, RETRY_AFTER_OVERFLOW),
            _ => (&self.rejected_at_critical, RETRY_AFTER_CRITICAL),
        };
        count.fetch_add(1, Relaxed);
        let state = lock(&self.state);
        let wait = state.worst.and_then(|worst| {
            let excess = state.levels.excess(from, worst.depth, worst.soft_limit);
            state.fall.wait(excess)
        });
        drop(state);
        let wait = wait.unwrap_or(unknown);
        Box::new(Overloaded::new(self.name.get(), Reason::Saturated, wait))
    }

    pub(super) fn snapshot(&self, now: Instant) -> Snapshot {
        self.level_at(now);
        let state = lock(&self.state);
        Snapshot {
            level: state.levels.level(),
            ratio: state.worst.map_or(0.0, |worst| worst.ratio),
            probe: state.worst.map(|worst| worst.probe),
            changes: state.changes,
            admitted: self.admitted.load(Relaxed),
            rejected_at_critical: self.rejected_at_critical.load(Relaxed),
            rejected_at_overflow: self.rejected_at_overflow.load(Relaxed),
            probe_panics: state.probe_panics,
        }
    }
}

pub(crate) fn check(thresholds: &Thresholds) -> Result<(), ConfigError> {
    let checked = thresholds.check();
    checked.map_err(|(field, expected)| ConfigError::new(field, expected))
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("name", &self.name.get())
            .field("level", &Level::from_index(self.level.load(Relaxed)))
            .field("probes", &self.probes.names().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The right to ask the probes, for one at a time, until it is dropped.
struct Looking<'a>(&'a AtomicUsize);

impl<'a> Looking<'a> {
    fn begin(looking: &'a AtomicUsize) -> Option<Self> {
        let began = looking.compare_exchange(0, 1, Acquire, Relaxed);
        began.is_ok().then(|| Self(looking)) // one that is not had must not be given back
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}
