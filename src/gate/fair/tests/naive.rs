//! The fair room and its gate in the plainest words: lists that are searched from one end to the other, and the rules as
//! the documentation has them. Nothing is cached, postponed or kept in order.

mod ages;
mod requests;
mod turns;

use std::collections::HashMap;

use super::*;
use crate::{
    gate::bounds::Rejected,
    law::{
        codel::{CoDel, Entry, Verdict},
        drain_rate::DrainRate,
        fair_queue::Order,
        fair_queues::{DEFAULT_FLOOR, MAIN, WHOLE},
    },
};

/// A nanosecond at weight 1, and the smallest step of a tag that counts in the order.
const ONE: u64 = 1 << 40;
const STEP: u32 = 24;

/// What a tenant may be ahead by, and yet be forgotten.
const FORGIVEN: u128 = (ONE as u128) << 4;
/// So many are looked at when there is no room for another.
const LOOKS: usize = 8;

pub(super) const OVERFLOW: usize = 1;

/// From the least important.
fn all_lanes() -> std::ops::Range<Lane> {
    0..LANES as Lane
}

/// A tenant, and a lane.
type Who = (usize, Lane);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Goes,
    Waits,
    Rejected(Reason),
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) weight: u32,
    /// Of each lane.
    tags: [u128; LANES],
    estimates: [u64; LANES],
    /// How many requests of its there are.
    here: usize,
    pub(super) served: u64,
    pub(super) rejected: u64,
    pub(super) refused: u64,
}

/// In the order in which they began to wait.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: usize,
    tenant: usize,
    lane: Lane,
    cost: u32,
    deadline: Option<u64>,
    came: u64,
    older: u64,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    id: usize,
    tenant: usize,
    lane: Lane,
    cost: u32,
    began: u64,
    /// What was paid, and for what a nanosecond.
    charge: Option<(u64, u64)>,
    /// Whether the room knows of it.
    is_counted: bool,
}

/// The clocks of one lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneClocks {
    virtual_time: u128,
    latest: u128,
    pace: u128,
    used: u64,
    began_to_wait: u128,
    estimate: u64,
}

pub(super) struct Naive {
    pub(super) now: u64,
    pub(super) limit: usize,
    /// The most in flight since it was last looked at.
    peak: usize,
    pub(super) completed: u64,
    pub(super) cap: usize,
    pub(super) max_waiting: usize,
    pub(super) max_waiting_per_tenant: usize,
    pub(super) tenants: Vec<Tenant>,
    names: HashMap<&'static str, usize>,
    /// Those that have a name and no request, from the one that has been away longest.
    idle: Vec<usize>,
    /// Numbers of tenants that were forgotten.
    free: Vec<usize>,
    pub(super) max_tenants: usize,
    pub(super) overflowed: u64,
    pub(super) served: u64,
    pub(super) refused: u64,
    weights: HashMap<&'static str, u32>,
    default_weight: u32,
    waiting: Vec<Waiter>,
    running: Vec<Running>,
    /// Those that were rejected while they waited.
    rejected: HashMap<usize, Reason>,
    pub(super) counts: Rejected,
    pub(super) waits: Vec<u64>,
    /// From when to when somebody waited.
    busy: Vec<(u64, Option<u64>)>,
    entered: u64,
    lanes: [LaneClocks; LANES],
    /// Whether every request is asked for its urgency when it comes.
    pub(super) asks: bool,
    /// Of what a lane is owed, in parts of a start.
    floor: u32,
    owed: [u32; LANES],
    least_service: u64,
    /// How fast waiters are served, by the time in which there are some; how many were, and when that was last looked at.
    turnover: DrainRate,
    started_waiters: u64,
    looked: u64,
    pub(super) law: CoDel,
    pub(super) newest_first: bool,
    knows_of: u64,
    /// When one was last granted a permit that was too old.
    probed: Option<u64>,
}

impl Naive {
    pub(super) fn new(limit: usize, ages: Settings) -> Self {
        let mut naive = Self {
            now: 0,
            limit,
            peak: 0,
            completed: 0,
            cap: usize::MAX,
            max_waiting: usize::MAX,
            max_waiting_per_tenant: usize::MAX,
            tenants: Vec::new(),
            names: HashMap::new(),
            idle: Vec::new(),
            free: Vec::new(),
            max_tenants: usize::MAX,
            overflowed: 0,
            served: 0,
            refused: 0,
            weights: HashMap::new(),
            default_weight: 1,
            waiting: Vec::new(),
            running: Vec::new(),
            rejected: HashMap::new(),
            counts: Rejected::default(),
            waits: Vec::new(),
            busy: Vec::new(),
            entered: 0,
            lanes: [LaneClocks::default(); LANES],
            asks: false,
            floor: DEFAULT_FLOOR,
            owed: [0; LANES],
            least_service: 0,
            turnover: DrainRate::default(),
            started_waiters: 0,
            looked: 0,
            law: CoDel::new(ages, 0),
            newest_first: false,
            knows_of: 0,
            probed: None,
        };
        naive.add_tenant(1); // the anonymous one
        naive.add_tenant(1); // and the one for all for whom there is no room
        naive
    }

    fn add_tenant(&mut self, weight: u32) -> usize {
        let tenant = Tenant {
            weight,
            tags: [0; LANES],
            estimates: [0; LANES],
            here: 0,
            served: 0,
            rejected: 0,
            refused: 0,
        };
        if let Some(free) = self.free.pop() {
            self.tenants[free] = tenant;
            return free;
        }
        self.tenants.push(tenant);
        self.tenants.len() - 1
    }

    /// The number of a tenant of which a request comes.
    pub(super) fn attach(&mut self, name: &'static str) -> usize {
        let tenant = self.tenant(name);
        self.tenants[tenant].here += 1;
        self.idle.retain(|idle| *idle != tenant);
        tenant
    }

    /// A request is gone.
    pub(super) fn detach(&mut self, tenant: usize) {
        let own = &mut self.tenants[tenant];
        own.here -= 1;
        if own.here == 0 && tenant > OVERFLOW {
            self.idle.push(tenant);
        }
    }

    fn tenant(&mut self, name: &'static str) -> usize {
        if name.is_empty() {
            return 0;
        }
        if let Some(&tenant) = self.names.get(name) {
            return tenant;
        }
        if self.names.len() >= self.max_tenants && !self.forget_one() {
            self.overflowed += 1;
            return OVERFLOW;
        }
        let weight = *self.weights.get(name).unwrap_or(&self.default_weight);
        let tenant = self.add_tenant(weight);
        self.names.insert(name, tenant);
        tenant
    }

    /// Forgets a tenant that would be treated the same if it were new.
    fn forget_one(&mut self) -> bool {
        for _ in 0..LOOKS.min(self.idle.len()) {
            let tenant = self.idle.remove(0);
            let forgets = all_lanes().all(|lane| {
                let of_others = self.lane(lane).estimate;
                let entry = self.entry((tenant, lane), of_others);
                self.tag((tenant, lane)) <= entry + FORGIVEN
            });
            if forgets {
                self.names.retain(|_, known| *known != tenant);
                self.free.push(tenant);
                return true;
            }
            self.idle.push(tenant);
        }
        false
    }

    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = usize> {
        self.names.values().copied()
    }

    /// The number of a tenant that is remembered.
    pub(super) fn known(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.running.len()
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.in_flight());
    }

    pub(super) fn take_peak(&mut self) -> usize {
        let in_flight = self.in_flight();
        std::mem::replace(&mut self.peak, in_flight).max(in_flight)
    }

    /// Those of this lane that were charged.
    fn charged_in(&self, lane: Lane) -> usize {
        let charged = self.running.iter();
        charged
            .filter(|request| request.lane == lane && request.charge.is_some())
            .count()
    }

    /// Those that the room knows of.
    pub(super) fn counted(&self) -> usize {
        let counted = self.running.iter();
        counted.filter(|request| request.is_counted).count()
    }

    /// The same of one lane.
    fn counted_in(&self, lane: Lane) -> usize {
        let counted = self.running.iter();
        counted
            .filter(|request| request.lane == lane && request.is_counted)
            .count()
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneClocks {
        &mut self.lanes[usize::from(lane)]
    }

    fn tag(&self, (tenant, lane): Who) -> u128 {
        self.tenants[tenant].tags[usize::from(lane)]
    }

    fn tag_mut(&mut self, (tenant, lane): Who) -> &mut u128 {
        &mut self.tenants[tenant].tags[usize::from(lane)]
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn waiting_of(&self, tenant: usize) -> usize {
        let waiting = self.waiting.iter();
        waiting.filter(|waiter| waiter.tenant == tenant).count()
    }

    fn waiting_in(&self, lane: Lane) -> usize {
        let waiting = self.waiting.iter();
        waiting.filter(|waiter| waiter.lane == lane).count()
    }

    fn waiting_of_in(&self, who: Who) -> usize {
        let waiting = self.waiting.iter();
        waiting
            .filter(|waiter| (waiter.tenant, waiter.lane) == who)
            .count()
    }

    pub(super) fn running_of(&self, tenant: usize) -> usize {
        let running = self.running.iter();
        running.filter(|request| request.tenant == tenant).count()
    }

    /// Since when the one has waited that was first to, in its lane: of several lanes, the longest.
    pub(super) fn oldest(&self, tenant: Option<usize>) -> Option<u64> {
        self.oldest_of(|waiter| tenant.is_none_or(|tenant| waiter.tenant == tenant))
    }

    fn oldest_of(&self, of: impl Fn(&Waiter) -> bool) -> Option<u64> {
        let firsts = all_lanes().filter_map(|lane| {
            let mut waiting = self.waiting.iter();
            waiting.find(|waiter| waiter.lane == lane && of(waiter))
        });
        firsts.map(|waiter| waiter.came).min()
    }

    /// What is known of a request that waited.
    pub(super) fn fate(&self, id: usize) -> Answer {
        if self.waiting.iter().any(|waiter| waiter.id == id) {
            return Answer::Waits;
        }
        match self.rejected.get(&id) {
            Some(&reason) => Answer::Rejected(reason),
            None => Answer::Goes,
        }
    }

    /// How long somebody has waited.
    pub(super) fn busy(&self, from: u64) -> u64 {
        let times = self.busy.iter();
        let times = times.map(|&(since, until)| (since.max(from), until.unwrap_or(self.now)));
        times
            .map(|(since, until)| until.saturating_sub(since))
            .sum()
    }
}

/// What is set.
impl Naive {
    pub(super) fn set_weight(&mut self, name: &'static str, weight: u32) {
        self.weights.insert(name, weight);
        if let Some(tenant) = self.known(name) {
            self.tenants[tenant].weight = weight;
        }
        self.grant_free();
    }

    pub(super) fn set_default_weight(&mut self, weight: u32) {
        self.default_weight = weight;
        self.tenants[0].weight = weight;
        self.tenants[OVERFLOW].weight = weight;
        for (name, &tenant) in &self.names {
            if !self.weights.contains_key(name) {
                self.tenants[tenant].weight = weight;
            }
        }
        self.grant_free();
    }

    pub(super) fn set_cap(&mut self, cap: Option<NonZeroU32>) {
        let cap = cap.map_or(usize::MAX, |cap| cap.get() as usize);
        let before = std::mem::replace(&mut self.cap, cap);
        for tenant in 0..self.tenants.len() {
            if self.charged_of(tenant).count() >= before {
                all_lanes().for_each(|lane| self.catch_up((tenant, lane)));
            }
        }
        self.grant_free();
    }

    /// In parts of a start.
    pub(super) fn set_floor(&mut self, floor: u32) {
        self.floor = floor;
    }

    pub(super) fn set_ages(&mut self, ages: Settings) {
        self.law.set(ages);
        self.grant_free();
    }

    pub(super) fn show(&mut self) {
        self.roll(self.in_flight());
    }
}
