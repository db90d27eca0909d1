//! The settings of a sojourn-time admission.

use std::{thread::available_parallelism, time::Duration};

use crate::{
    ConfigError,
    gate::{age_gate::check, bounds::nanos},
    law::codel::Settings,
};

/// What a [`CoDelLayer`](super::CoDelLayer) holds to.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::CoDelConfig;
///
/// let config = CoDelConfig::default()
///     .target(Duration::from_millis(50)) // requests take 20 ms here
///     .max_concurrency(200)              // clients wait a second, and 250 a second get done
///     .max_sojourn(Duration::from_secs(1));
/// # let _ = config;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct CoDelConfig {
    pub(crate) target: Duration,
    pub(crate) interval: Duration,
    pub(crate) min_concurrency: Option<usize>,
    pub(crate) max_concurrency: usize,
    pub(crate) max_sojourn: Option<Duration>,
}

impl Default for CoDelConfig {
    /// A target of 100 ms, an interval of 5 s, at least as many in flight as the machine has processors,
    /// at most 1000; no bound on the age of a request while no queue stands.
    fn default() -> Self {
        Self {
            target: Duration::from_millis(100),
            interval: Duration::from_secs(5),
            min_concurrency: None,
            max_concurrency: MAX_CONCURRENCY,
            max_sojourn: None,
        }
    }
}

/// As many as the adaptive limit goes up to.
const MAX_CONCURRENCY: usize = 1000;

impl CoDelConfig {
    /// How old requests may be when they come, in good times. While a queue stands, those older than
    /// twice this are refused.
    ///
    /// At least twice as long as a request takes on average, and at most a tenth of what clients are
    /// willing to wait.
    pub fn target(mut self, target: Duration) -> Self {
        self.target = target;
        self
    }

    /// The limit moves after requests were too old, or not, for this long.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The limit never gets lower than this. Where the work is not done by the processors of this
    /// machine, it should be what keeps busy whatever does it.
    pub fn min_concurrency(mut self, min: usize) -> Self {
        self.min_concurrency = Some(min);
        self
    }

    /// The limit never gets higher than this, and begins there. Where no other limit is further in, at
    /// most as many requests as get done in the time that clients are willing to wait: a queue inside the
    /// service is not seen. More than 16 777 215 are that many.
    pub fn max_concurrency(mut self, max: usize) -> Self {
        self.max_concurrency = max;
        self
    }

    /// A request older than this is refused, whatever the load: its client has given up.
    pub fn max_sojourn(mut self, max_sojourn: Duration) -> Self {
        self.max_sojourn = Some(max_sojourn);
        self
    }

    /// Checks that every field is in its range, as [`CoDelLayer::new`](super::CoDelLayer::new) has it.
    ///
    /// # Errors
    /// The first field that does not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.settings().map(drop)
    }

    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        check(self.target, self.interval)?;
        if self.max_sojourn.is_some_and(|max| max.is_zero()) {
            return Err(ConfigError::new("max_sojourn", "longer than 0"));
        }
        let max = self.max_concurrency;
        if max == 0 {
            return Err(ConfigError::new("max_concurrency", "at least 1"));
        }
        // What nobody has asked for does not contradict anything.
        let processors = || available_parallelism().map_or(1, usize::from).min(max);
        let min = self.min_concurrency.unwrap_or_else(processors);
        if !(1..=max).contains(&min) {
            let expected = format!("at least 1 and at most max_concurrency ({max})");
            return Err(ConfigError::new("min_concurrency", expected).found(min));
        }
        Ok(Settings {
            target: nanos(self.target),
            interval: nanos(self.interval),
            min: min as u64,
            max: max as u64,
            max_sojourn: self.max_sojourn.map(nanos),
        })
    }
}
