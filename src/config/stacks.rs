//! The configs of the whole stack, of a saturation layer, and of a client's retries.

use std::time::Duration;

use super::AdaptiveConcurrencyConfig;
use crate::{
    CoDelConfig, ConfigError, WfqConfig,
    saturation::{self, Thresholds},
};

/// What an [`Edge`](crate::Edge) holds to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EdgeConfig {
    /// The fair queue.
    pub wfq: WfqConfig,
    /// The admission by age.
    pub codel: CoDelConfig,
    /// The adaptive limit. Requests wait in the fair queue, so its `max_waiting` and `max_wait` do not apply.
    pub adaptive: AdaptiveConcurrencyConfig,
    /// Whether the newest of a tenant's waiters is served first under plain overload, see
    /// [`Edge::newest_first`](crate::Edge::newest_first). On by default.
    pub newest_first: bool,
}

impl Default for EdgeConfig {
    /// As [`edge()`](fn@crate::edge).
    fn default() -> Self {
        Self {
            wfq: WfqConfig::default(),
            codel: CoDelConfig::default(),
            adaptive: AdaptiveConcurrencyConfig::default(),
            newest_first: true,
        }
    }
}

impl EdgeConfig {
    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that is not, with its part (`codel.target`), and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Self {
            wfq,
            codel,
            adaptive,
            newest_first: _,
        } = self;
        wfq.check().map_err(|error| error.within("wfq"))?;
        codel.check().map_err(|error| error.within("codel"))?;
        adaptive.check().map_err(|error| error.within("adaptive"))
    }
}

/// What a [`SaturationLayer`](crate::SaturationLayer) holds to. Which queues it looks at is not part of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SaturationConfig {
    /// Where the levels begin. In a file its fields stand beside `sample_every`.
    pub thresholds: Thresholds,
    /// How long a look at the probes is good for. Default: 10 ms.
    pub sample_every: Duration,
}

impl Default for SaturationConfig {
    /// As [`SaturationLayer::new`](crate::SaturationLayer::new).
    fn default() -> Self {
        Self {
            thresholds: Thresholds::default(),
            sample_every: saturation::DEFAULT_EVERY,
        }
    }
}

impl SaturationConfig {
    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that is not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        saturation::check(&self.thresholds)
    }
}

/// What a [`RetryPolicy`](crate::RetryPolicy) holds to.
#[cfg(feature = "retry")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RetryConfig {
    /// How long to wait where a server says nothing. Default: from 100 ms up to 10 s, doubling.
    pub backoff: crate::retry::Backoff,
    /// How many retries there may be of all requests together. Default: 20 % of them, and one each second.
    pub budget: crate::retry::RetryBudget,
    /// How often a request is sent again at most; 0 turns retries off. Default: 3.
    pub max_retries: u32,
    /// How long after a request was first sent its last retry may be made. Default: a minute.
    pub max_elapsed: Duration,
    /// Whether up to half of each delay is added to it at random. Default: on.
    pub jitter: bool,
}

#[cfg(feature = "retry")]
impl Default for RetryConfig {
    /// As [`RetryPolicy::default`](crate::RetryPolicy::default).
    fn default() -> Self {
        use crate::retry::{Backoff, DEFAULT_MAX_ELAPSED, DEFAULT_MAX_RETRIES, RetryBudget};
        Self {
            backoff: Backoff::exponential(Duration::from_millis(100), Duration::from_secs(10)),
            budget: RetryBudget::default(),
            max_retries: DEFAULT_MAX_RETRIES,
            max_elapsed: DEFAULT_MAX_ELAPSED,
            jitter: true,
        }
    }
}

#[cfg(feature = "retry")]
impl RetryConfig {
    /// Checks that every field is in its range. Always so today: a backoff or a budget that is not cannot be made.
    ///
    /// # Errors
    /// The first field that is not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}
