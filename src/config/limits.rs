//! The configs of a concurrency limit and of a rate limit.

use std::time::Duration;

use crate::{
    ConfigError, Rate,
    gate::{bounds::DEFAULT_MAX_WAITING, gate::check_limit},
};

/// What a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer) holds to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConcurrencyLimitConfig {
    /// At most so many requests in flight. At least 1; it has to be given.
    pub limit: usize,
    /// At most so many callers wait. Default: 1024.
    pub max_waiting: usize,
    /// Nobody waits longer than this. Default: no bound.
    pub max_wait: Option<Duration>,
}

impl ConcurrencyLimitConfig {
    /// At most so many requests in flight.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            max_waiting: DEFAULT_MAX_WAITING,
            max_wait: None,
        }
    }

    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that is not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_limit(self.limit)
    }
}

/// What a [`RateLimitLayer`](crate::RateLimitLayer) holds to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimitConfig {
    /// So many requests in so much time. It has to be given.
    pub rate: Rate,
    /// At most so many callers wait. Default: 1024.
    pub max_waiting: usize,
    /// Nobody waits longer than this. Default: no bound.
    pub max_wait: Option<Duration>,
}

impl RateLimitConfig {
    /// At this rate.
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            max_waiting: DEFAULT_MAX_WAITING,
            max_wait: None,
        }
    }

    /// Checks that every field is in its range. Always so today: a [`Rate`] that is not cannot be made.
    ///
    /// # Errors
    /// The first field that is not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}
