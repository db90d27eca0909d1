//! The only place where the crate reads a clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A clock for layers that look at the time for every request.
///
/// The default is [`Clock::tokio`], which tests can pause. With the feature `quanta` there is also
/// `Clock::tsc`, which costs less than half as much to read.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Tokio {
        started: Instant,
    },
    #[cfg(feature = "quanta")]
    Tsc {
        clock: quanta::Clock,
        started: u64,
    },
    #[cfg(all(test, backpressure_loom))]
    Stopped,
}

/// One look at the clock, for all who want to know what time it is at some moment: the first of them looks.
#[derive(Debug, Default)]
pub(crate) struct Now {
    instant: Option<Instant>,
    /// How many nanoseconds that is after another moment: most who ask count from the same.
    since: Option<(Instant, u64)>,
}

impl Now {
    /// One that was looked at already, if it was.
    #[inline]
    pub(crate) fn at(known: Option<Instant>) -> Self {
        Self {
            instant: known,
            since: None,
        }
    }

    #[inline]
    pub(crate) fn known(&self) -> Option<Instant> {
        self.instant
    }

    #[inline]
    pub(crate) fn instant(&mut self) -> Instant {
        *self.instant.get_or_insert_with(instant)
    }

    #[inline]
    fn nanos_since(&mut self, started: Instant) -> u64 {
        match self.since {
            Some((known, nanos)) if known == started => nanos,
            _ => {
                let nanos = nanos_between(started, self.instant());
                self.since = Some((started, nanos));
                nanos
            }
        }
    }
}

/// A moment, for what has to be comparable between layers: each [`Clock`] counts from a moment of its
/// own.
#[inline]
#[allow(clippy::disallowed_methods, reason = "this is the one clock")]
pub(crate) fn instant() -> Instant {
    #[cfg(all(test, not(backpressure_loom)))]
    READS.set(READS.get() + 1);
    Instant::now()
}

#[cfg(all(test, not(backpressure_loom)))]
thread_local! {
    /// How often this thread has looked at the clock by [`instant`].
    pub(crate) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The time since 1970 by the clock on the wall, which may jump. Only to read times that others have
/// written.
#[allow(clippy::disallowed_methods, reason = "this is the one clock")]
pub(crate) fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

impl Clock {
    /// Tokio's clock: the system's monotonic clock, and under `tokio::time::pause` the time that the test
    /// says it is.
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn tokio() -> Self {
        Self(Source::Tokio {
            started: Instant::now(),
        })
    }

    /// The processor's time stamp counter, where it is reliable; otherwise the system's clock. It cannot
    /// be paused. Should it step back, for instance when a virtual machine moves, time stands still until
    /// it has caught up.
    #[cfg(feature = "quanta")]
    pub fn tsc() -> Self {
        let clock = quanta::Clock::new();
        let started = clock.raw();
        Self(Source::Tsc { clock, started })
    }

    /// One that stands still, for models: each run of a model has to be the same.
    #[cfg(all(test, backpressure_loom))]
    pub(crate) fn stopped() -> Self {
        Self(Source::Stopped)
    }

    /// Nanoseconds since this clock was made. Time before that reads as 0.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match &self.0 {
            Source::Tokio { started } => nanos_between(*started, instant()),
            #[cfg(feature = "quanta")]
            Source::Tsc { clock, started } => clock.delta_as_nanos(*started, clock.raw()),
            #[cfg(all(test, backpressure_loom))]
            Source::Stopped => 0,
        }
    }

    /// The same at a moment at which others look at the clock too.
    #[inline]
    pub(crate) fn nanos_at(&self, now: &mut Now) -> u64 {
        match &self.0 {
            Source::Tokio { started } => now.nanos_since(*started),
            #[allow(unreachable_patterns, reason = "there are others with some features")]
            _ => self.nanos(),
        }
    }

    /// The same as a [`Duration`].
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }
}

#[inline]
fn nanos_between(started: Instant, now: Instant) -> u64 {
    let since = now.saturating_duration_since(started);
    since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
}

impl Default for Clock {
    fn default() -> Self {
        Self::tokio()
    }
}
