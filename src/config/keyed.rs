//! The configs of the layers that have a limit for each key.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    CircuitBreakerConfig, ConfigError, Rate,
    gate::{bounds, circuits, gate::check_limit, keyed_buckets, keyed_gates},
};

/// What a [`KeyedRateLimitLayer`](crate::KeyedRateLimitLayer) holds to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedRateLimitConfig {
    /// The rate of each key that has none of its own. It has to be given.
    pub rate: Rate,
    /// A rate for all keys together. Default: none.
    pub global: Option<Rate>,
    /// At most so many keys have a bucket at once. Default: 100 000.
    pub max_keys: usize,
    /// At most so many requests wait, of all keys together. Default: 1024.
    pub max_waiting: usize,
    /// Requests wait for a token that is there within this time. Nobody waits unless it is set.
    pub max_wait: Option<Duration>,
}

impl KeyedRateLimitConfig {
    /// At this rate for each key.
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            global: None,
            max_keys: keyed_buckets::DEFAULT_MAX_KEYS,
            max_waiting: bounds::DEFAULT_MAX_WAITING,
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

/// What a [`KeyedConcurrencyLimitLayer`](crate::KeyedConcurrencyLimitLayer) holds to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedConcurrencyLimitConfig {
    /// At most so many requests in flight for each key that has no limit of its own. At least 1; it has to
    /// be given.
    pub limit: usize,
    /// Limits of their own, each at least 1, for keys that are strings. At most 100 000. Default: none.
    pub limits: BTreeMap<String, usize>,
    /// At most so many requests wait, of one key or of all together. Default: 10 000.
    pub max_waiting: usize,
    /// At most so many requests of one key wait. Default: as many as of all.
    pub max_waiting_per_key: Option<usize>,
    /// Nobody waits longer than this. Default: no bound.
    pub max_wait: Option<Duration>,
}

impl KeyedConcurrencyLimitConfig {
    /// At most so many requests in flight for each key.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            limits: BTreeMap::new(),
            max_waiting: keyed_gates::DEFAULT_MAX_WAITING,
            max_waiting_per_key: None,
            max_wait: None,
        }
    }

    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that is not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_limit(self.limit)?;
        for (key, limit) in &self.limits {
            let of = |error: ConfigError| error.renamed(key).within("limits").found(limit);
            check_limit(*limit).map_err(of)?;
        }
        match self.limits.len() > keyed_gates::MAX_OWN_LIMITS {
            true => Err(keyed_gates::too_many_own_limits("limits")),
            false => Ok(()),
        }
    }
}

/// What a [`KeyedCircuitBreakerLayer`](crate::KeyedCircuitBreakerLayer) holds to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyedCircuitBreakerConfig {
    /// What the circuit of each key holds to. In a file its fields stand beside `max_keys`.
    pub circuit: CircuitBreakerConfig,
    /// At most so many keys are remembered. Default: 10 000.
    pub max_keys: usize,
}

impl Default for KeyedCircuitBreakerConfig {
    /// As a [`CircuitBreakerConfig`], for 10 000 keys.
    fn default() -> Self {
        Self {
            circuit: CircuitBreakerConfig::default(),
            max_keys: circuits::DEFAULT_MAX_KEYS,
        }
    }
}

impl KeyedCircuitBreakerConfig {
    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that is not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.circuit.check()
    }
}
