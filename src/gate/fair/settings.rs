//! What a fair gate holds to, and what it shows.

use std::num::NonZeroU32;

use super::{
    Ages, Busy, Fair, LeastService, PrioritySnapshot, Slab, Turnover, Wakes,
    waiters::{After, Serves},
};
use crate::{
    Clock, ConfigError, WfqConfig,
    gate::{
        bounds::Bounds,
        fingerprint::{ByFingerprint, Fingerprints},
        gate::{self, Gate},
        governor::{Governor, Past},
        room::Room,
        tenants::{
            ANONYMOUS, Recent, Tenant, TenantSnapshot, Tenants, ask_weight, check_name,
            check_weight,
        },
    },
    law::{
        codel::{Report, Settings},
        fair_queues::{FairQueues, MAX_FLOOR, WHOLE},
    },
    sync::{Ordering::Relaxed, lock},
};

/// What a fair room shows, of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) permits: gate::Snapshot,
    pub(crate) shown: Shown,
}

/// What it shows beside its permits.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) counts: Counts,
    pub(crate) ages: Report,
    pub(crate) width: u64,
    pub(crate) settings: Settings,
    /// Empty if requests are not asked for their priority.
    pub(crate) priorities: Vec<PrioritySnapshot>,
}

/// What a fair room counts, whatever its permits are good for.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) anonymous: u64,
    pub(crate) tenants: usize,
    pub(crate) weights: usize,
    pub(crate) overflowed: u64,
}

impl Gate<Fair> {
    /// As the configs say, which have been checked.
    pub(crate) fn fair(
        kind: &'static str,
        config: WfqConfig,
        ages: Settings,
        governor: Governor,
        clock: Clock,
    ) -> Self {
        let bounds = Bounds::new(kind);
        bounds.set_max_waiting(config.max_waiting);
        bounds.set_max_wait(config.max_wait);
        let room = Fair::new(config, Ages::new(ages, clock.nanos()));
        let limit = governor.limit();
        Self::with(bounds, clock, limit, Some(governor), room)
    }
}

impl<S: Serves> Gate<Fair<S>> {
    /// Changes the room. Who may go by that, goes.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Fair<S>) -> T) -> T {
        let now = self.clock.nanos(); // not under the lock
        let mut wakes = Wakes::default();
        let mut slow = lock(&self.slow);
        let changed = change(&mut slow.room);
        // Under the same lock: nobody passes those that may be next by that.
        let settles = self.grant_free(&mut slow, now, &mut wakes);
        slow.room.publish(&self.published);
        drop(slow);
        After { wakes, settles }.run(self);
        changed
    }

    pub(crate) fn set_weight(&self, tenant: &str, weight: u32) -> Result<(), ConfigError> {
        let weight = check_weight(weight)?;
        check_name(tenant)?;
        let key = self.published.fingerprints().of(tenant);
        self.change(|Fair { tenants, queue, .. }| tenants.set_weight(queue, key, weight))
    }

    /// Asks anew for the weights that a function gives.
    pub(crate) fn refresh_weights(&self) {
        let slow = lock(&self.slow);
        let Some(weight_of) = slow.room.tenants.weight_of() else {
            return;
        };
        let tenants = slow.room.tenants.without_weight();
        drop(slow);
        let asked = tenants.into_iter();
        let asked = asked.map(|(key, name)| (key, ask_weight(&weight_of, &name)));
        let asked = asked.collect();
        self.change(|Fair { tenants, queue, .. }| {
            if tenants.has_weight_of(&weight_of) {
                tenants.set_asked(queue, asked);
            }
        });
    }

    pub(crate) fn set_default_weight(&self, weight: u32) -> Result<(), ConfigError> {
        let weight = check_weight(weight)?;
        self.change(|Fair { tenants, queue, .. }| tenants.set_default_weight(queue, weight));
        Ok(())
    }

    /// Changes everything about tenants but the clock, and keeps a `weight_of` if the config has none. It has been checked.
    pub(crate) fn set_tenants(&self, config: &WfqConfig) {
        self.bounds.set_max_waiting(config.max_waiting);
        self.bounds.set_max_wait(config.max_wait);
        let weights = weights(config, self.published.fingerprints());
        let replaced = self.change(|room| {
            let Fair { tenants, queue, .. } = room;
            let replaced = tenants.set(
                queue,
                weights,
                config.weight_of.clone(),
                config.default_weight,
                config.max_tenants,
            );
            queue.set_max_running(max_running(config.max_in_flight_per_tenant));
            queue.set_floor(floor(config.priority_floor));
            room.max_waiting_per_tenant = config.max_waiting_per_tenant.unwrap_or(usize::MAX);
            replaced
        });
        drop(replaced); // it is foreign
        self.refresh_weights();
    }

    /// Asks all requests for their urgency from now on, not only those that may have to wait: then all are counted by
    /// priority.
    pub(crate) fn ask_urgency(&self) {
        self.published.asks_urgency.store(true, Relaxed);
    }

    /// Each priority that has waiters gets at least this share of the starts.
    pub(crate) fn set_priority_floor(&self, share: f64) -> Result<(), ConfigError> {
        let floor = check_floor(share)?;
        lock(&self.slow).room.queue.set_floor(floor);
        Ok(())
    }

    /// `None` is as many as may wait at all.
    pub(crate) fn set_max_waiting_per_tenant(&self, max_waiting: Option<usize>) {
        self.change(|room| room.max_waiting_per_tenant = max_waiting.unwrap_or(usize::MAX));
    }

    /// `None` is as many as there are.
    pub(crate) fn set_max_in_flight_per_tenant(&self, max: Option<NonZeroU32>) {
        self.change(|room| room.queue.set_max_running(max_running(max)));
    }
}

impl Gate<Fair> {
    /// Changes what the admission by age holds to. The settings have been checked.
    pub(crate) fn set_ages(&self, settings: Settings) {
        self.change(|room| room.serves.set(settings));
    }

    pub(crate) fn set_newest_first(&self, newest_first: bool) {
        lock(&self.slow).room.serves.set_newest_first(newest_first);
    }

    pub(crate) fn ages(&self) -> Settings {
        lock(&self.slow).room.serves.settings()
    }

    pub(crate) fn shows(&self) -> Snapshot {
        let past = self.governor().past();
        let (permits, (shown, wakes)) = self.snapshot_with(|slow, scene| {
            let room = &mut slow.room;
            let mut wakes = Wakes::default();
            room.serves.roll(scene, &mut wakes);
            let priorities = room.priorities(&self.published, scene.now);
            let shown = Shown {
                counts: room.counts(&past),
                ages: room.serves.report(scene.now),
                width: room.serves.limit(),
                settings: room.serves.settings(),
                priorities,
            };
            (shown, wakes)
        });
        wakes.wake();
        Snapshot { permits, shown }
    }
}

impl<S: Serves> Gate<Fair<S>> {
    pub(crate) fn tenants(&self) -> Vec<TenantSnapshot> {
        let now = self.clock.nanos();
        let past = S::past(self);
        let room = &lock(&self.slow).room;
        let all = room.recent.plus(&past.recent, now);
        let mut tenants = room.tenants.snapshots(&room.queue, &all, now);
        self.add_past(&mut tenants[ANONYMOUS as usize], room, &past, &all, now);
        tenants
    }

    pub(crate) fn tenant(&self, tenant: &Tenant) -> Option<TenantSnapshot> {
        let now = self.clock.nanos();
        let past = S::past(self);
        let key = match tenant {
            Tenant::Named(name) => self.key(name),
            Tenant::Anonymous | Tenant::Overflow => None,
        };
        let room = &lock(&self.slow).room;
        let all = room.recent.plus(&past.recent, now);
        let mut snapshot = (room.tenants).snapshot_of(&room.queue, &all, tenant, key, now)?;
        if *tenant == Tenant::Anonymous {
            self.add_past(&mut snapshot, room, &past, &all, now);
        }
        Some(snapshot)
    }

    /// What the anonymous tenant has had and has without the room having been told.
    fn add_past(
        &self,
        anonymous: &mut TenantSnapshot,
        room: &Fair<S>,
        past: &Past,
        all: &Recent,
        now: u64,
    ) {
        anonymous.running += S::running(self, room).saturating_sub(room.queue.running());
        anonymous.served += past.done;
        let all = all.sum(now).max(1) as f64;
        anonymous.share += past.recent.sum(now) as f64 / all;
    }
}

impl<S> Fair<S> {
    pub(super) fn new(config: WfqConfig, serves: S) -> Self {
        let fingerprints = Fingerprints::new();
        let mut queue = FairQueues::new();
        queue.set_max_running(max_running(config.max_in_flight_per_tenant));
        queue.set_floor(floor(config.priority_floor));
        let weights = weights(&config, &fingerprints);
        let tenants = Tenants::new(
            weights,
            config.weight_of,
            config.default_weight,
            config.max_tenants,
            &mut queue,
        );
        Self {
            queue,
            seats: Slab::new(),
            tenants,
            fingerprints,
            serves,
            lanes: Box::default(),
            turnover: Turnover::default(),
            least_service: LeastService::default(),
            max_waiting_per_tenant: config.max_waiting_per_tenant.unwrap_or(usize::MAX),
            busy: Busy::default(),
            served: 0,
            recent: Recent::default(),
            refused: 0,
            told_anonymous: false,
        }
    }

    /// With what was served without the room having been told.
    pub(super) fn counts(&self, past: &Past) -> Counts {
        Counts {
            served: self.served + past.done,
            refused: self.refused,
            anonymous: self.tenants.served_anonymous() + past.done,
            tenants: self.tenants.tracked(),
            weights: self.tenants.weights(),
            overflowed: self.tenants.overflowed(),
        }
    }
}

fn weights(config: &WfqConfig, fingerprints: &Fingerprints) -> ByFingerprint<u32> {
    let weights = config.weights.iter();
    (weights.map(|(name, weight)| (fingerprints.of(name.as_str()), *weight))).collect()
}

/// What a fair queue calls this share of the starts, if it is allowed.
pub(crate) fn check_floor(share: f64) -> Result<u32, ConfigError> {
    let most = f64::from(MAX_FLOOR) / f64::from(WHOLE);
    match (0.0..=most).contains(&share) {
        true => Ok(floor(share)),
        false => {
            let expected = format!("from 0 to {most}");
            Err(ConfigError::new("priority_floor", expected).found(share))
        }
    }
}

fn floor(share: f64) -> u32 {
    (share * f64::from(WHOLE)).round() as u32
}

fn max_running(max_in_flight_per_tenant: Option<NonZeroU32>) -> u32 {
    max_in_flight_per_tenant.map_or(u32::MAX, NonZeroU32::get)
}
