//! The settings of a fair queue.

use std::{num::NonZeroU32, time::Duration};

use crate::{
    Clock, ConfigError,
    admission::fair_gate::{check_name, check_weight},
};

/// Weights and bounds of a [`WfqLayer`](super::WfqLayer).
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::WfqConfig;
///
/// let config = WfqConfig::default()
///     .weight("gold", 10) // gets ten times what others get, while there is not enough for all
///     .max_wait(Duration::from_millis(200));
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct WfqConfig {
    pub(crate) weights: Vec<(String, u32)>,
    pub(crate) default_weight: u32,
    pub(crate) max_waiting: usize,
    pub(crate) max_waiting_per_tenant: usize,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) max_tenants: usize,
    pub(crate) max_in_flight_per_tenant: Option<NonZeroU32>,
    pub(crate) clock: Option<Clock>,
}

impl Default for WfqConfig {
    /// All tenants have the same weight; 1024 requests may wait, 50 of them of one tenant, without a bound
    /// in time; 10 000 tenants are remembered.
    fn default() -> Self {
        Self {
            weights: Vec::new(),
            default_weight: 1,
            max_waiting: 1024,
            max_waiting_per_tenant: 50,
            max_wait: None,
            max_tenants: 10_000,
            max_in_flight_per_tenant: None,
            clock: None,
        }
    }
}

impl WfqConfig {
    /// The weight of a tenant, from 1 to 10 000: while there is not enough for all, it gets so many times
    /// what a tenant of weight 1 gets.
    ///
    /// # Panics
    /// If the weight is another, or the name is empty or longer than 256 bytes.
    pub fn weight(mut self, tenant: impl Into<String>, weight: u32) -> Self {
        let tenant = tenant.into();
        match check_name(&tenant).and_then(|()| check_weight(weight)) {
            Ok(weight) => self.weights.push((tenant, weight)),
            Err(error) => panic!("WfqConfig::weight({tenant:?}, {weight}): {error}"),
        }
        self
    }

    /// The weight of all others, and of the two shared tenants. 1 unless set.
    ///
    /// # Panics
    /// If it is not from 1 to 10 000.
    pub fn default_weight(mut self, weight: u32) -> Self {
        match check_weight(weight) {
            Ok(weight) => self.default_weight = weight,
            Err(error) => panic!("WfqConfig::default_weight({weight}): {error}"),
        }
        self
    }

    /// At most so many requests wait, of all tenants together. 1024 unless set. The next one is refused if
    /// it is of the tenant that has the most waiting for its weight; otherwise the last one of that tenant
    /// makes room.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting;
        self
    }

    /// At most so many requests of one tenant wait; the next one is refused. 50 unless set.
    pub fn max_waiting_per_tenant(mut self, max_waiting: usize) -> Self {
        self.max_waiting_per_tenant = max_waiting;
        self
    }

    /// No request waits longer than this; one that has is refused. No bound unless set.
    ///
    /// It should be well below the time after which clients give up: with a second for both, what is served
    /// is what nobody waits for any more. 200 ms is a good start.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// At most so many tenants are remembered. 10 000 unless set; one takes some 600 bytes.
    pub fn max_tenants(mut self, max_tenants: usize) -> Self {
        self.max_tenants = max_tenants;
        self
    }

    /// No tenant has more than this in flight, even if nobody else wants anything. No bound unless set.
    ///
    /// # Panics
    /// If it is 0.
    pub fn max_in_flight_per_tenant(mut self, max: u32) -> Self {
        let Some(max) = NonZeroU32::new(max) else {
            panic!("WfqConfig::max_in_flight_per_tenant(0): it must be at least 1")
        };
        self.max_in_flight_per_tenant = Some(max);
        self
    }

    /// Another clock, such as `Clock::tsc()`: each request looks at it twice.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// The first field that does not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (tenant, weight) in &self.weights {
            let unnamed = |error| {
                let problem = format!("has a name that is not allowed: {error}");
                ConfigError::that("weights", problem)
            };
            check_name(tenant).map_err(unnamed)?;
            let of = |error: ConfigError| error.renamed(tenant).within("weights").found(weight);
            check_weight(*weight).map_err(of)?;
        }
        check_weight(self.default_weight).map_err(|error| error.renamed("default_weight"))?;
        Ok(())
    }
}
