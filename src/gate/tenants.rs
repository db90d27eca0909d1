//! Which tenants are known, by what number, and what they have had: in bounded memory.
//!
//! A tenant that has no request is remembered until there is no room for another. Then the one is forgotten
//! that has been away longest, of those that the scheduler would treat the same if they were new. Where there
//! is none, tenants that are new share one record.

use std::{fmt, mem, sync::Arc, time::Duration};

use super::fingerprint::{ByFingerprint, Fingerprint};
use crate::{
    ConfigError,
    law::{fair_queue::MAX_WEIGHT, fair_queues::FairQueues},
    wfq::WeightOf,
};

/// Most tenants that can be given a weight by name: they are remembered whether or not they come.
const MAX_WEIGHTS: usize = 100_000;

/// So many that were away longest are looked at when there is no room.
const LOOKS: usize = 8;

/// The number of the tenant that all share who have no name.
pub(super) const ANONYMOUS: u32 = 0;
const OVERFLOW: u32 = 1;
const NIL: u32 = u32::MAX;

/// Whose requests are scheduled together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tenant {
    /// One that has a name.
    Named(Arc<str>),
    /// All requests without an identity.
    Anonymous,
    /// All requests of tenants that there was no room to remember.
    Overflow,
}

impl From<&str> for Tenant {
    fn from(name: &str) -> Self {
        Self::Named(name.into())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Named(name) => name,
            Self::Anonymous => "(anonymous)",
            Self::Overflow => "(overflow)",
        })
    }
}

/// One tenant of a fair queue at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TenantSnapshot {
    /// Which one.
    pub tenant: Tenant,
    /// Its weight now.
    pub weight: u32,
    /// How many of its requests wait.
    pub waiting: usize,
    /// How many of its requests were sent to the inner service, or are about to be, and are not done.
    pub running: usize,
    /// How many are done, whether or not with success, since it is remembered.
    pub served: u64,
    /// How many were refused here since it is remembered.
    pub rejected: u64,
    /// How many were refused further in since it is remembered: by a layer, or by something that the service asked.
    pub refused: u64,
    /// Its part of the service that all tenants together had in the last ten seconds or so, from 0 to 1,
    /// by the time that requests took, times their cost. A request counts when it is done.
    pub share: f64,
    /// How long the one of its requests that has waited longest has waited.
    pub oldest_wait: Option<Duration>,
}

pub(crate) const A_WEIGHT: &str = "from 1 to 10 000";

pub(crate) fn check_weight(weight: u32) -> Result<u32, ConfigError> {
    match weight {
        1..=MAX_WEIGHT => Ok(weight),
        _ => Err(ConfigError::new("weight", A_WEIGHT)),
    }
}

/// Whether so many tenants can be given a weight by name.
pub(crate) fn check_weights(count: usize) -> Result<(), ConfigError> {
    match count {
        0..=MAX_WEIGHTS => Ok(()),
        _ => Err(ConfigError::new(
            "weights",
            "given to at most 100 000 tenants by name; use weight_of for more",
        )),
    }
}

/// Longest name of a tenant, in bytes.
const MAX_NAME: usize = 256;

/// Not under the lock: it is foreign.
pub(super) fn ask_weight(weight_of: &WeightOf, name: &str) -> u32 {
    weight_of(name).clamp(1, MAX_WEIGHT)
}

pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    match name.len() {
        1..=MAX_NAME => Ok(()),
        _ => Err(ConfigError::new("tenant", "a name of 1 to 256 bytes")),
    }
}

pub(super) struct Tenants {
    ids: ByFingerprint<u32>,
    /// By the numbers that the queue gives.
    records: Vec<Record>,
    /// Those that have no request, from the one that has been away longest.
    idle_first: u32,
    idle_last: u32,
    /// Of those that were given one by name.
    weights: ByFingerprint<u32>,
    /// Gives those of all others with a name, if there is one.
    weight_of: Option<WeightOf>,
    default_weight: u32,
    max_tenants: usize,
    overflowed: u64,
}

// In this order, so that what each request touches is together.
#[repr(C)]
struct Record {
    /// How many requests of its there are, but for those that went past the queue.
    attached: usize,
    served: u64,
    recent: Recent,
    idle_previous: u32,
    idle_next: u32,
    rejected: u64,
    refused: u64,
    tenant: Tenant,
    /// Of its name.
    key: Option<Fingerprint>,
}

impl Tenants {
    pub(super) fn new<T>(
        weights: ByFingerprint<u32>,
        weight_of: Option<WeightOf>,
        default_weight: u32,
        max_tenants: usize,
        queue: &mut FairQueues<T>,
    ) -> Self {
        let mut tenants = Self {
            ids: ByFingerprint::default(),
            records: Vec::new(),
            idle_first: NIL,
            idle_last: NIL,
            weights,
            weight_of,
            default_weight,
            max_tenants,
            overflowed: 0,
        };
        for (shared, id) in [(Tenant::Anonymous, ANONYMOUS), (Tenant::Overflow, OVERFLOW)] {
            let added = tenants.add(queue, shared, None, default_weight);
            assert_eq!(added, id, "the first two");
            tenants.records[id as usize].attached = 1; // so that they are never forgotten
        }
        tenants
    }

    /// Whether there is a function that gives weights by name.
    #[inline]
    pub(super) fn asks_weights(&self) -> bool {
        self.weight_of.is_some()
    }

    /// What gives the weight of a tenant that is to be attached, if it is not known yet. It is foreign, so it is
    /// called without the lock.
    pub(super) fn must_ask_weight(&self, key: &Fingerprint) -> Option<WeightOf> {
        let weight_of = self.weight_of.as_ref()?;
        let known = self.ids.contains_key(key) || self.weights.contains_key(key);
        let overflows = self.ids.len() >= self.max_tenants && self.idle_first == NIL;
        (!known && !overflows).then(|| Arc::clone(weight_of))
    }

    /// Whether this is what gives weights now.
    pub(super) fn has_weight_of(&self, weight_of: &WeightOf) -> bool {
        (self.weight_of.as_ref()).is_some_and(|now| Arc::ptr_eq(now, weight_of))
    }

    /// The number of a tenant, which it keeps until all that were attached are detached. `None` is the
    /// anonymous one. `weight` is what was asked for it, if it was.
    #[inline]
    pub(super) fn attach<T>(
        &mut self,
        queue: &mut FairQueues<T>,
        named: Option<(Fingerprint, &str)>,
        weight: Option<u32>,
    ) -> u32 {
        let id = match named {
            Some((key, name)) => self.find_or_add(queue, key, name, weight),
            None => ANONYMOUS,
        };
        let record = &mut self.records[id as usize];
        record.attached += 1;
        if record.attached == 1 {
            self.unlink_idle(id);
        }
        id
    }

    #[inline]
    pub(super) fn detach(&mut self, id: u32) {
        let record = &mut self.records[id as usize];
        record.attached -= 1;
        if record.attached == 0 {
            self.link_idle(id);
        }
    }

    #[inline(never)]
    fn find_or_add<T>(
        &mut self,
        queue: &mut FairQueues<T>,
        key: Fingerprint,
        name: &str,
        asked: Option<u32>,
    ) -> u32 {
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        if self.ids.len() > self.max_tenants {
            self.forget_one(queue); // there may be fewer than there might
        }
        if self.ids.len() >= self.max_tenants && !self.forget_one(queue) {
            self.overflowed += 1;
            return OVERFLOW;
        }
        let weight = self.weights.get(&key).copied().or(asked);
        let weight = weight.unwrap_or(self.default_weight);
        let id = self.add(queue, name.into(), Some(key), weight);
        self.ids.insert(key, id);
        self.link_idle(id);
        id
    }

    fn add<T>(
        &mut self,
        queue: &mut FairQueues<T>,
        tenant: Tenant,
        key: Option<Fingerprint>,
        weight: u32,
    ) -> u32 {
        let id = queue.add_tenant(weight);
        let record = Record {
            tenant,
            key,
            attached: 0,
            idle_previous: NIL,
            idle_next: NIL,
            served: 0,
            rejected: 0,
            refused: 0,
            recent: Recent::default(),
        };
        match self.records.get_mut(id as usize) {
            Some(free) => *free = record,
            None => self.records.push(record),
        }
        id
    }

    /// Forgets one that has no request, if there is one with which nothing is lost.
    fn forget_one<T>(&mut self, queue: &mut FairQueues<T>) -> bool {
        for _ in 0..LOOKS {
            let id = self.idle_first;
            if id == NIL {
                return false;
            }
            self.unlink_idle(id);
            if queue.remove_tenant(id) {
                let key = self.records[id as usize].key;
                self.ids
                    .remove(&key.expect("the shared ones are never idle"));
                return true;
            }
            self.link_idle(id); // behind the others
        }
        false
    }

    #[inline(never)]
    fn link_idle(&mut self, id: u32) {
        let last = mem::replace(&mut self.idle_last, id);
        match last {
            NIL => self.idle_first = id,
            last => self.records[last as usize].idle_next = id,
        }
        let record = &mut self.records[id as usize];
        (record.idle_previous, record.idle_next) = (last, NIL);
    }

    #[inline(never)]
    fn unlink_idle(&mut self, id: u32) {
        let &Record {
            idle_previous: previous,
            idle_next: next,
            ..
        } = &self.records[id as usize];
        match previous {
            NIL => self.idle_first = next,
            previous => self.records[previous as usize].idle_next = next,
        }
        match next {
            NIL => self.idle_last = previous,
            next => self.records[next as usize].idle_previous = previous,
        }
    }

    pub(super) fn set_weight<T>(
        &mut self,
        queue: &mut FairQueues<T>,
        key: Fingerprint,
        weight: u32,
    ) -> Result<(), ConfigError> {
        if !self.weights.contains_key(&key) {
            check_weights(self.weights.len() + 1)?;
        }
        self.weights.insert(key, weight);
        if let Some(&id) = self.ids.get(&key) {
            queue.set_weight(id, weight);
        }
        Ok(())
    }

    /// The weight of the shared tenants, and of all for which there is no other.
    pub(super) fn set_default_weight<T>(&mut self, queue: &mut FairQueues<T>, weight: u32) {
        self.default_weight = weight;
        for id in [ANONYMOUS, OVERFLOW] {
            queue.set_weight(id, weight);
        }
        if self.weight_of.is_some() {
            return;
        }
        for (key, &id) in &self.ids {
            if !self.weights.contains_key(key) {
                queue.set_weight(id, weight);
            }
        }
    }

    /// Tenants that are not named here have the default, or what [`set_asked`](Self::set_asked) gives them. A
    /// `weight_of` that was dropped is returned: it is foreign.
    pub(super) fn set<T>(
        &mut self,
        queue: &mut FairQueues<T>,
        weights: ByFingerprint<u32>,
        weight_of: Option<WeightOf>,
        default_weight: u32,
        max_tenants: usize,
    ) -> Option<WeightOf> {
        self.weights = weights;
        self.max_tenants = max_tenants;
        for (key, weight) in &self.weights {
            if let Some(&id) = self.ids.get(key) {
                queue.set_weight(id, *weight);
            }
        }
        let replaced = match weight_of {
            Some(weight_of) => self.weight_of.replace(weight_of),
            None => None,
        };
        self.set_default_weight(queue, default_weight);
        replaced
    }

    /// What gives weights by name, if there is something.
    pub(super) fn weight_of(&self) -> Option<WeightOf> {
        self.weight_of.clone()
    }

    /// The tenants that are remembered and were given no weight by name.
    pub(super) fn without_weight(&self) -> Vec<(Fingerprint, Arc<str>)> {
        let without = self.ids.iter().filter_map(|(key, &id)| {
            match (&self.records[id as usize].tenant, self.weights.get(key)) {
                (Tenant::Named(name), None) => Some((*key, Arc::clone(name))),
                _ => None,
            }
        });
        without.collect()
    }

    /// Gives tenants the weights that were asked for them, if they are still remembered and were given no other
    /// meanwhile.
    pub(super) fn set_asked<T>(&self, queue: &mut FairQueues<T>, asked: Vec<(Fingerprint, u32)>) {
        for (key, weight) in asked {
            match self.ids.get(&key) {
                Some(&id) if !self.weights.contains_key(&key) => queue.set_weight(id, weight),
                _ => {}
            }
        }
    }

    /// How many tenants were given a weight by name.
    pub(super) fn weights(&self) -> usize {
        self.weights.len()
    }

    #[inline]
    pub(super) fn note_served(&mut self, id: u32, served: u64, used: u64, epoch: u64) {
        let record = &mut self.records[id as usize];
        record.served += served;
        record.recent.add(used, epoch);
    }

    /// The same as [`note_served`](Self::note_served) and [`detach`](Self::detach), of one request.
    #[inline]
    pub(super) fn finish(&mut self, id: u32, used: u64, epoch: u64) {
        let record = &mut self.records[id as usize];
        record.served += 1;
        record.recent.add(used, epoch);
        record.attached -= 1;
        if record.attached == 0 {
            self.link_idle(id);
        }
    }

    pub(super) fn note_refused(&mut self, id: u32) {
        self.records[id as usize].refused += 1;
    }

    pub(super) fn note_rejected(&mut self, id: u32) {
        self.records[id as usize].rejected += 1;
    }

    /// Whether there is none, and was none, but the anonymous one.
    pub(super) fn is_one(&self) -> bool {
        self.ids.is_empty() && self.overflowed == 0
    }

    /// Whether some tenants have a weight of their own, and none has ever come.
    #[inline]
    pub(super) fn lacks_names(&self) -> bool {
        self.is_one() && (self.weight_of.is_some() || !self.weights.is_empty())
    }

    #[inline]
    pub(super) fn served_anonymous(&self) -> u64 {
        self.records[ANONYMOUS as usize].served
    }

    pub(super) fn tracked(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Whether no request is attached: all that have a name can be forgotten, if the queue lets go of them.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let (shared, named) = self.records.split_at(2);
        shared.iter().all(|record| record.attached == 1)
            && named.iter().all(|record| record.attached == 0)
    }

    /// `all` is what all tenants together have had.
    pub(super) fn snapshots<T>(
        &self,
        queue: &FairQueues<T>,
        all: &Recent,
        now: u64,
    ) -> Vec<TenantSnapshot> {
        let ids = [ANONYMOUS, OVERFLOW]
            .into_iter()
            .chain(self.ids.values().copied());
        ids.map(|id| self.snapshot(queue, all, id, now)).collect()
    }

    /// Of the tenant with that name, or of a shared one.
    pub(super) fn snapshot_of<T>(
        &self,
        queue: &FairQueues<T>,
        all: &Recent,
        tenant: &Tenant,
        key: Option<Fingerprint>,
        now: u64,
    ) -> Option<TenantSnapshot> {
        let id = match (tenant, key) {
            (Tenant::Anonymous, _) => ANONYMOUS,
            (Tenant::Overflow, _) => OVERFLOW,
            (Tenant::Named(_), key) => *self.ids.get(&key?)?,
        };
        Some(self.snapshot(queue, all, id, now))
    }

    fn snapshot<T>(
        &self,
        queue: &FairQueues<T>,
        all: &Recent,
        id: u32,
        now: u64,
    ) -> TenantSnapshot {
        let record = &self.records[id as usize];
        let state = queue.state(id);
        TenantSnapshot {
            tenant: record.tenant.clone(),
            weight: state.weight,
            waiting: state.waiting as usize,
            running: state.running as usize,
            served: record.served,
            rejected: record.rejected,
            refused: record.refused,
            share: match all.sum(now) {
                0 => 0.0,
                all => record.recent.sum(now) as f64 / all as f64,
            },
            oldest_wait: (state.oldest).map(|at| Duration::from_nanos(now.saturating_sub(at))),
        }
    }
}

/// How much there was in the last ten seconds: of the ten before these, as much is counted as would be in a
/// window that slides, if it came evenly.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    /// The number of these ten seconds.
    epoch: u64,
    current: u64,
    previous: u64,
}

const EPOCH: u64 = 10_000_000_000;

impl Recent {
    #[inline]
    pub(super) fn epoch(now: u64) -> u64 {
        now / EPOCH
    }

    #[inline]
    pub(super) fn add(&mut self, amount: u64, epoch: u64) {
        if epoch > self.epoch {
            *self = self.at(epoch);
        }
        match self.epoch - epoch {
            0 => self.current = self.current.saturating_add(amount),
            1 => self.previous = self.previous.saturating_add(amount),
            _ => {} // it is told of what nobody counts any more
        }
    }

    /// Both together.
    pub(super) fn plus(&self, other: &Self, now: u64) -> Self {
        let epoch = Self::epoch(now).max(self.epoch).max(other.epoch);
        let (one, other) = (self.at(epoch), other.at(epoch));
        Self {
            epoch,
            current: one.current.saturating_add(other.current),
            previous: one.previous.saturating_add(other.previous),
        }
    }

    pub(super) fn sum(&self, now: u64) -> u64 {
        let at = self.at(Self::epoch(now));
        let left = u128::from(EPOCH - now % EPOCH);
        let previous = u128::from(at.previous) * left / u128::from(EPOCH);
        at.current.saturating_add(previous as u64)
    }

    fn at(&self, epoch: u64) -> Self {
        let (current, previous) = match epoch.saturating_sub(self.epoch) {
            0 => (self.current, self.previous),
            1 => (0, self.current),
            _ => (0, 0),
        };
        Self {
            epoch: epoch.max(self.epoch),
            current,
            previous,
        }
    }
}
