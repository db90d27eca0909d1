//! Looking at an edge, and changing it while it is in use.

use std::time::Duration;

use super::admitted::Admitted;
use crate::{
    CoDelConfig, ConfigError, Overloaded, WfqConfig,
    adaptive_concurrency::{Bounds, Report},
    config::{AdaptiveConcurrencyConfig, EdgeConfig},
    gate::{
        age_gate::check,
        bounds::nanos,
        fair::{self, Fair, Granted, PrioritySnapshot, tenant_verbs},
        gate::{self, Gate},
    },
    sync::Arc,
};

/// Looks at an [`Edge`](super::Edge) and changes it while it is in use.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::edge;
///
/// # fn main() -> Result<(), tower_backpressure::ConfigError> {
/// let handle = edge().handle();
/// handle.set_weight("acme", 10)?; // gets ten times what others get, from now on
/// handle.set_target(Duration::from_millis(50))?; // while a queue stands, what waited 100 ms is rejected
/// handle.pin(200)?; // an operator knows better, for now
///
/// let snapshot = handle.snapshot();
/// println!("{} of {} in flight", snapshot.permits.in_flight, snapshot.permits.limit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    gate: Arc<Gate<Fair>>,
}

/// The state of an edge at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The limit, what is in flight and what waits, and what was rejected.
    pub permits: gate::Snapshot,
    /// What the limit's law has learned: the baseline, the last window, and why the limit last moved.
    pub learned: Report,
    /// Whether the limit is pinned.
    pub pinned: bool,
    /// How far the law may move the limit. One that is pinned may be beyond.
    pub bounds: Bounds,
    /// How many requests were sent to the service and are done, whether or not with success.
    pub served: u64,
    /// How many were rejected further in: by a layer, or by something that the service asked.
    pub refused: u64,
    /// How many of those that were served had no tenant. If all of them had none, although some tenants have a weight,
    /// the tenant is not found where it is looked for: see [Tenants](mod@crate::edge#tenants).
    pub anonymous: u64,
    /// How many tenants are remembered, the two shared ones not counted.
    pub tenants: usize,
    /// How many tenants were given a weight by name. They are remembered whether or not they come.
    pub weights: usize,
    /// How many requests came from tenants that there was no room to remember, and that had to share
    /// [`Tenant::Overflow`](crate::wfq::Tenant::Overflow).
    pub overflowed: u64,
    /// What the admission by age has seen.
    pub age: AgeSnapshot,
    /// What became of requests by their [priority](mod@crate::edge#priorities), the most important first. Empty as long as
    /// all of them have had the same one, if [`Edge::priority`](super::Edge::priority) does not tell them apart.
    pub priorities: Vec<PrioritySnapshot>,
}

/// What the admission by age of an edge has seen lately.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AgeSnapshot {
    /// Whether a queue stands, and what is too old is rejected.
    pub overloaded: bool,
    /// The least age lately, in percent of the age at which requests are rejected while a queue stands. At
    /// most 100.
    pub load_percent: u32,
    /// The age that nineteen in twenty requests did not exceed in the last window, when they could start, whether or not
    /// they were admitted. A window is a tenth of `interval`, or longer where few requests come; `None` if none came. It
    /// is at most an eighth too high, and on the right side of the target.
    pub p95: Option<Duration>,
    /// The share of them that were older than the target, from 0 to 1.
    pub over_target: f64,
    /// At most so many requests may be in flight for requests not to get old, whatever the limit is.
    pub limit: usize,
    /// That is not narrowed below this.
    pub min: usize,
    /// It is not widened above this.
    pub max: usize,
    /// How often it was narrowed.
    pub narrowings: u64,
    /// How often it was widened.
    pub widenings: u64,
    /// How often narrowings did not help, and were taken back.
    pub undone: u64,
}

/// The right to have one piece of work in flight in an edge. Made by [`Handle::try_acquire`]; dropping it hands it on.
#[derive(Debug)]
#[must_use = "a permit that is not kept is released at once"]
pub struct Permit(#[allow(dead_code, reason = "it is held")] Admitted);

impl Handle {
    pub(super) fn new(gate: Arc<Gate<Fair>>) -> Self {
        Self { gate }
    }

    /// The name that the edge was given, or `"edge"`, as in its rejections.
    pub fn name(&self) -> &'static str {
        self.gate.bounds.name()
    }

    /// The state now. Taking it starts a new interval for
    /// [`peak_in_flight`](crate::concurrency_limit::Snapshot::peak_in_flight).
    pub fn snapshot(&self) -> Snapshot {
        let (learned, pinned, bounds) = self.gate.governor().report();
        let fair::Snapshot { permits, shown } = self.gate.shows();
        Snapshot {
            permits,
            learned,
            pinned,
            bounds,
            served: shown.counts.served,
            refused: shown.counts.refused,
            anonymous: shown.counts.anonymous,
            tenants: shown.counts.tenants,
            weights: shown.counts.weights,
            overflowed: shown.counts.overflowed,
            age: AgeSnapshot {
                overloaded: shown.ages.overloaded,
                load_percent: shown.ages.load_percent,
                p95: shown.ages.p95,
                over_target: shown.ages.over_target,
                limit: shown.width as usize,
                min: shown.settings.min as usize,
                max: shown.settings.max as usize,
                narrowings: shown.ages.narrowings,
                widenings: shown.ages.widenings,
                undone: shown.ages.undone,
            },
            priorities: shown.priorities,
        }
    }

    tenant_verbs!();

    /// Changes all parts to what this config says: all of them, or, if a field's value is not allowed, none.
    ///
    /// A tenant that it does not name has the weight that [`weight_of`](WfqConfig::weight_of) gives, or else the default
    /// weight; a config without a `weight_of` leaves that as it is. What the law has learned stays unless the law or its
    /// bounds change. A limit that is pinned is unpinned, unless the config pins it.
    ///
    /// # Errors
    /// If a field's value is not allowed; nothing changes. The field is named with its part: `codel.target`.
    pub fn apply(&self, config: &EdgeConfig) -> Result<(), ConfigError> {
        config.check()?;
        let EdgeConfig {
            wfq,
            codel,
            adaptive,
            newest_first,
        } = config;
        self.apply_wfq(wfq)?;
        self.apply_codel(codel)?;
        self.set_newest_first(*newest_first);
        self.apply_adaptive(adaptive)
    }

    fn apply_wfq(&self, config: &WfqConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.gate.set_tenants(config);
        Ok(())
    }

    fn apply_codel(&self, config: &CoDelConfig) -> Result<(), ConfigError> {
        self.gate.set_ages(config.settings()?);
        Ok(())
    }

    fn apply_adaptive(&self, config: &AdaptiveConcurrencyConfig) -> Result<(), ConfigError> {
        let bounds = config.bounds()?;
        (self.gate.governor()).set_law(&self.gate, config.law, bounds, config.pinned);
        Ok(())
    }

    /// Changes how old requests may be in good times: while a queue stands, those older than twice this are rejected, unless
    /// the [newest is first](mod@crate::edge#order).
    ///
    /// # Errors
    /// If it is 0, or longer than `interval`; nothing changes.
    pub fn set_target(&self, target: Duration) -> Result<(), ConfigError> {
        let mut settings = self.gate.ages();
        check(target, Duration::from_nanos(settings.interval))?;
        settings.target = nanos(target);
        self.gate.set_ages(settings);
        Ok(())
    }

    /// Changes over how long the ages of requests are judged before fewer, or more, may be in flight.
    ///
    /// # Errors
    /// If it is shorter than the target, or than 100 ms; nothing changes.
    pub fn set_interval(&self, interval: Duration) -> Result<(), ConfigError> {
        let mut settings = self.gate.ages();
        check(Duration::from_nanos(settings.target), interval)?;
        settings.interval = nanos(interval);
        self.gate.set_ages(settings);
        Ok(())
    }

    /// Changes whether the newest of a tenant's waiters is served first under plain overload: see
    /// [`Edge::newest_first`](super::Edge::newest_first). Those that wait already may stay.
    pub fn set_newest_first(&self, newest_first: bool) {
        self.gate.set_newest_first(newest_first);
    }

    /// Holds the limit at this, within the bounds or not, until it is unpinned. What completes meanwhile
    /// is not learned from. A limit above 16 777 215 is held at that.
    ///
    /// # Errors
    /// If `limit` is 0; nothing is changed.
    pub fn pin(&self, limit: usize) -> Result<(), ConfigError> {
        gate::check_limit(limit)?;
        self.gate.governor().pin(&self.gate, limit);
        Ok(())
    }

    /// Has the law move the limit again. It starts over from the limit that was pinned, or the nearest
    /// within its bounds: what it had learned before, it may have learned wrongly. Does nothing if the
    /// limit is not pinned.
    pub fn unpin(&self) {
        self.gate.governor().unpin(&self.gate);
    }

    /// Takes a permit for work that is no request of the service, if one is free and nobody waits for it. It is in flight
    /// until the permit is dropped, as a request without a tenant, but it is not timed and not learned from.
    ///
    /// # Errors
    /// [`Reason::AtLimit`](crate::Reason::AtLimit) if not.
    pub fn try_acquire(&self) -> Result<Permit, Overloaded> {
        match self.gate.try_start() {
            Ok(grant) => {
                let granted = Granted::new(Arc::clone(&self.gate), grant);
                Ok(Permit(Admitted::from(granted).for_own_work()))
            }
            Err(rejection) => Err(*rejection),
        }
    }

    /// Whether less than this share of the limit is in flight, and nobody waits. Above 1 is as 1; 0, and what is no number,
    /// is never.
    pub fn has_capacity(&self, share: f64) -> bool {
        self.gate.has_capacity(share)
    }
}
