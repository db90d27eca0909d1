//! The settings of a circuit breaker.

use std::time::Duration;

use crate::{
    Clock, ConfigError,
    gate::bounds::nanos,
    law::breaker::{Settings, Trip},
};

/// When a circuit opens, and when it closes again.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::CircuitBreakerConfig;
///
/// let in_a_row = CircuitBreakerConfig::default().failures(10);
/// let half_of_them = CircuitBreakerConfig::default()
///     .failure_rate(0.5, Duration::from_secs(10), 20) // of at least 20 in 10 s
///     .cooldown(Duration::from_secs(5));
/// # let _ = (in_a_row, half_of_them);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CircuitBreakerConfig {
    pub(crate) trip: Trip,
    pub(crate) cooldown: Duration,
    pub(crate) successes: u32,
    pub(crate) probe_lease: Duration,
    pub(crate) clock: Option<Clock>,
}

impl Default for CircuitBreakerConfig {
    /// Opens after 5 failures in a row, for 30 s; 2 probes that succeed close it; a probe may take 30 s.
    fn default() -> Self {
        Self {
            trip: Trip::InARow(5),
            cooldown: Duration::from_secs(30),
            successes: 2,
            probe_lease: Duration::from_secs(30),
            clock: None,
        }
    }
}

impl CircuitBreakerConfig {
    /// Opens after so many failures with no success between them. At least 1.
    pub fn failures(mut self, failures: u32) -> Self {
        self.trip = Trip::InARow(failures);
        self
    }

    /// Opens when this share of the requests of a window have failed, if there were at least `min_calls`:
    /// for a service that also fails in good times, or that many requests at once are sent to.
    ///
    /// The share is above 0 and at most 1, the window at least 10 ms, `min_calls` at least 1. The window
    /// slides by tenths.
    pub fn failure_rate(mut self, share: f64, window: Duration, min_calls: u32) -> Self {
        self.trip = Trip::Share {
            of: share,
            window: nanos(window),
            calls: min_calls,
        };
        self
    }

    /// How long the circuit stays open before a request probes. Longer than 0.
    pub fn cooldown(mut self, cooldown: Duration) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// So many probes have to succeed, one after the other. At least 1.
    pub fn successes(mut self, successes: u32) -> Self {
        self.successes = successes;
        self
    }

    /// A probe that has not ended after this time has failed; what comes of it later does not
    /// count. Longer than 0, and longer than the service takes to answer.
    pub fn probe_lease(mut self, lease: Duration) -> Self {
        self.probe_lease = lease;
        self
    }

    /// On another clock, such as `Clock::tsc()`.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that does not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let at_least_1 = |field, count: u32| match count {
            0 => Err(ConfigError::new(field, "at least 1")),
            _ => Ok(()),
        };
        let longer_than_0 = |field, time: Duration| match time.is_zero() {
            true => Err(ConfigError::new(field, "longer than 0")),
            false => Ok(()),
        };
        match self.trip {
            Trip::InARow(failures) => at_least_1("failures", failures)?,
            Trip::Share { of, window, calls } => {
                // What is not a number fails both comparisons.
                if !(of > 0.0 && of <= 1.0) {
                    return Err(ConfigError::new("failure_rate", "above 0 and at most 1"));
                }
                if window < SHORTEST_WINDOW {
                    return Err(ConfigError::new("window", "at least 10 ms"));
                }
                at_least_1("min_calls", calls)?;
            }
        }
        longer_than_0("cooldown", self.cooldown)?;
        at_least_1("successes", self.successes)?;
        longer_than_0("probe_lease", self.probe_lease)
    }

    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        self.check()?;
        Ok(Settings {
            trip: self.trip,
            cooldown: nanos(self.cooldown),
            successes: self.successes,
            lease: nanos(self.probe_lease),
        })
    }
}

/// In nanoseconds: its tenths are told apart.
const SHORTEST_WINDOW: u64 = 10_000_000;
