//! The settings of a fair queue.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use crate::{
    Clock, ConfigError,
    gate::{
        fair::check_floor,
        tenants::{check_name, check_weight, check_weights},
    },
    law::fair_queues::{DEFAULT_FLOOR, WHOLE},
};

/// How long a request waits at most by default. Clients commonly give up after a second or more, and with a queue in
/// front of a service that works, [`CoDel`](crate::CoDel) rejects long before this: it is the bound for a service
/// that hangs.
const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(1);

/// Weights and bounds of a [`WfqLayer`](super::WfqLayer).
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::WfqConfig;
///
/// let config = WfqConfig::default()
///     .weight("acme", 10) // gets ten times what others get, while there is not enough for all
///     .max_wait(Duration::from_millis(200));
/// # let _ = config;
/// ```
#[derive(Clone)]
#[must_use]
pub struct WfqConfig {
    pub(crate) weights: Vec<(String, u32)>,
    pub(crate) weight_of: Option<WeightOf>,
    pub(crate) default_weight: u32,
    pub(crate) max_waiting: usize,
    /// `None` is as many as `max_waiting`.
    pub(crate) max_waiting_per_tenant: Option<usize>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) max_tenants: usize,
    pub(crate) max_in_flight_per_tenant: Option<NonZeroU32>,
    pub(crate) priority_floor: f64,
    pub(crate) clock: Option<Clock>,
}

/// Gives the weight of a tenant by its name.
pub(crate) type WeightOf = Arc<dyn Fn(&str) -> u32 + Send + Sync>;

impl Default for WfqConfig {
    /// All tenants have the same weight; 1024 requests may wait, for a second at most; 10 000 tenants are
    /// remembered.
    fn default() -> Self {
        Self {
            weights: Vec::new(),
            weight_of: None,
            default_weight: 1,
            max_waiting: 1024,
            max_waiting_per_tenant: None,
            max_wait: Some(DEFAULT_MAX_WAIT),
            max_tenants: 10_000,
            max_in_flight_per_tenant: None,
            priority_floor: f64::from(DEFAULT_FLOOR) / f64::from(WHOLE),
            clock: None,
        }
    }
}

impl WfqConfig {
    /// The weight of one tenant, from 1 to 10 000: while there is not enough for all, it gets so many times
    /// what a tenant of weight 1 gets. For all customers of a plan, see [`weight_of`](Self::weight_of).
    ///
    /// # Panics
    /// If the weight is out of range, or the name is empty or longer than 256 bytes.
    pub fn weight(mut self, tenant: impl Into<String>, weight: u32) -> Self {
        let tenant = tenant.into();
        match check_name(&tenant).and_then(|()| check_weight(weight)) {
            Ok(weight) => self.weights.push((tenant, weight)),
            Err(error) => panic!("WfqConfig::weight({tenant:?}, {weight}): {error}"),
        }
        self
    }

    /// A function that gives the weight of a tenant by its name, for weights that follow from something else, such
    /// as the plan that a customer pays for:
    ///
    /// ```
    /// use std::collections::HashSet;
    /// use tower_backpressure::WfqConfig;
    ///
    /// let gold: HashSet<&str> = ["acme", "initech"].into(); // in earnest, a cache of your customers
    /// let config = WfqConfig::default()
    ///     .weight_of(move |customer| if gold.contains(customer) { 10 } else { 1 });
    /// # let _ = config;
    /// ```
    ///
    /// Each customer is a tenant of its own: one that floods does not take from the others of its plan, as it would if
    /// the plan was the tenant.
    ///
    /// It is called when a tenant is first seen, or seen again after it was forgotten, and for all tenants that are
    /// remembered by [`Handle::refresh_weights`](super::Handle::refresh_weights) and
    /// [`Handle::apply`](super::Handle::apply). It should be fast and must not block: requests wait for it, though no
    /// lock is held. A weight of 0 counts as 1, and one above 10 000 as 10 000. A tenant named by
    /// [`weight`](Self::weight) or [`Handle::set_weight`](super::Handle::set_weight) has that weight instead.
    ///
    /// It stays when a config without one is applied, such as one that was read from a file.
    pub fn weight_of<F>(mut self, weight_of: F) -> Self
    where
        F: Fn(&str) -> u32 + Send + Sync + 'static,
    {
        self.weight_of = Some(Arc::new(weight_of));
        self
    }

    /// The weight of all other tenants, and of the two shared ones. The default is 1.
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

    /// At most so many requests wait, of all tenants together. The default is 1024. The next one is rejected if
    /// it is of the tenant that has the most waiting for its weight; otherwise the last one of that tenant
    /// makes room.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting;
        self
    }

    /// At most so many requests of one tenant wait; the next one is rejected. By default there is no bound but
    /// [`max_waiting`](Self::max_waiting): a tenant that fills the queue makes room for others.
    pub fn max_waiting_per_tenant(mut self, max_waiting: usize) -> Self {
        self.max_waiting_per_tenant = Some(max_waiting);
        self
    }

    /// No request waits longer than this; one that has is rejected, by a timer, whatever the inner service does. The
    /// default is one second; `None` turns it off.
    ///
    /// It should be well below the time after which clients give up. Without admission by age
    /// ([`CoDelLayer`](crate::CoDelLayer)) inside, it is what bounds the wait under overload: 200 ms is a good start.
    pub fn max_wait(mut self, max_wait: impl Into<Option<Duration>>) -> Self {
        self.max_wait = max_wait.into();
        self
    }

    /// At most so many tenants are remembered. The default is 10 000; one takes some 600 bytes.
    pub fn max_tenants(mut self, max_tenants: usize) -> Self {
        self.max_tenants = max_tenants;
        self
    }

    /// No tenant has more than this in flight, even if nobody else wants anything. By default there is no bound.
    ///
    /// If it is set later, requests that started before while nobody waited do not count towards it.
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

    /// The share of the requests that are sent which each [`Priority`](crate::Priority) gets that has waiters, however many
    /// more important ones there are: so nobody waits for ever. The default is 0.01; with 0, more important requests always
    /// go first.
    ///
    /// ```
    /// use tower_backpressure::WfqConfig;
    ///
    /// let config = WfqConfig::default().priority_floor(0.02);
    /// # let _ = config;
    /// ```
    ///
    /// # Panics
    /// If it is not from 0 to 0.2.
    pub fn priority_floor(mut self, share: f64) -> Self {
        if let Err(error) = check_floor(share) {
            panic!("WfqConfig::priority_floor({share}): {error}");
        }
        self.priority_floor = share;
        self
    }

    /// Another clock, such as `Clock::tsc()`: each request looks at it twice.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// The first field whose value is not allowed, and what is.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_weights(self.weights.len())?;
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
        check_floor(self.priority_floor)?;
        Ok(())
    }
}

impl fmt::Debug for WfqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight_of = self.weight_of.as_ref().map(|_| "a function");
        f.debug_struct("WfqConfig")
            .field("weights", &self.weights)
            .field("weight_of", &weight_of)
            .field("default_weight", &self.default_weight)
            .field("max_waiting", &self.max_waiting)
            .field("max_waiting_per_tenant", &self.max_waiting_per_tenant)
            .field("max_wait", &self.max_wait)
            .field("max_tenants", &self.max_tenants)
            .field("max_in_flight_per_tenant", &self.max_in_flight_per_tenant)
            .field("priority_floor", &self.priority_floor)
            .field("clock", &self.clock)
            .finish()
    }
}
