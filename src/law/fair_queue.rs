//! Who is next, so that tenants get service in proportion to their weights: start-time fair queueing,
//! with service times that are charged by estimate and corrected when they are known.
//!
//! # The maths
//! Think of a clock for each tenant, its *tag* `T`, that shows how much service it has had, divided by its
//! weight. A request that takes `l` seconds of one seat moves it by `l/w`. If the next request is always
//! one of the tenant whose clock is furthest behind, no two clocks of tenants that have work are ever
//! further apart than one request of each moves them, so both had service in proportion to their weights:
//!
//! ```text
//! |W_f/w_f − W_g/w_g|  ≤  l_f/w_f + l_g/w_g          in any interval in which both have work
//! ```
//!
//! with one seat; with `C` seats up to `C` requests of each are on their way, which is the same bound times
//! `C + 1`. Two rules make that a scheduler.
//!
//! **Who was away begins where the others are.** A tenant whose clock stood still because it had nothing
//! waiting has no claim to what it did not ask for. *Virtual time* `V` is the highest tag at which a request
//! was begun. A request that finds none of its tenant's waiting starts no earlier: `T = max(T, V)`. When
//! nobody has any work left, all clocks count as equal: `V = max(T)`. A tenant without work whose `T ≤ V` can
//! be forgotten, as it would begin at `V` if it were new.
//!
//! **Newcomers keep pace with the service.** While every request is the first of its tenant, all of them start
//! at `V`, and `V` stands still. A tenant that was served before would wait behind every new one, for ever, and
//! could never be forgotten. So a second clock `P` starts at `V` when requests begin to wait, and moves about as
//! fast as the competing tenants are served together: by `used / Σw`, over the tenants that have waiters and the
//! requests that run. A newcomer begins at `P` if that is ahead of `V`, but at most one request of its own later
//! than `V`: `T = max(T, V, min(P, V + e/w))`. The bound above holds for any such start: the difference between
//! two tenants moves within the same limits and only starts elsewhere in them.
//!
//! **Equal tags go by arrival.** No request starts before one that arrived earlier and whose tag is not above
//! its own. A request that ends moves its tenant's tag by one more [`STEP`], so of two tenants that have had the
//! same service, the one with fewer requests is first.
//!
//! **What is not known is guessed, and settled later.** How long a request takes is known when it is done.
//! When it is next its tenant is charged an estimate, `T += e·cost/w`, and in the end the
//! difference: `T += (actual − e)·cost/w`, with the weight of then. What is ordered is start tags, which do
//! not depend on the estimate of the request itself, so a wrong guess shifts when the tenant is charged, not
//! how much. While a request takes longer than was charged for, what it is over by is counted as soon as its
//! tenant is about to be next: a tenant whose requests hang does not get seat after seat meanwhile. And a
//! request that is next, but whose service has not begun, is put back if what was settled since makes it
//! another's turn.
//!
//! **What began while nobody waited is charged late.** Then there was nobody to be fair to. From when requests begin to
//! wait, it counts as what its tenant is over by: its estimate, or the time since then if that is longer. When it is
//! done, its tenant is charged for the time in which others waited, and only for that
//! ([`FairQueue::charge_late`]).
//!
//! Tags are nanoseconds times [`ONE`], in 128 bits. One nanosecond at weight `w` is `ONE / w`, which is
//! exact to 10⁻⁸. With a thousand seats, and requests that cost a thousand each, it takes 9 000 years until a
//! tag is full, and then it stays there.
//!
//! # The data
//! Tenants are numbered, and so are waiters, in slabs. A tenant's waiters are a list through the slab, and
//! all waiters are another, in the order of arrival. Tenants that may be next are in a heap by start tag,
//! and those with waiters in one by backlog. So everything is O(log tenants), and leaving the middle of a
//! queue is O(1).

#[cfg(all(test, not(backpressure_loom)))]
#[path = "fair_queue/tests/mod.rs"] // said, because the benches take this file in by its path
mod tests;

use std::{cmp::Reverse, fmt, mem, num::NonZeroU32};

use super::{
    heap::{Entry, Heap},
    slab::Slab,
};

/// A nanosecond of service at weight 1, as a tag.
const ONE: u64 = 1 << 40;

/// In the order of who is next, tags count in steps of so many bits, from some tag on, so that they fit into 64 bits. A
/// step is 15 femtoseconds, and 2^64 of them are 78 hours of one seat. What is further ahead than that comes last, by
/// arrival.
const STEP: u32 = 24;

/// The smallest step that counts in the order of who is next, as a tag: a tenant that had its turn goes so far behind
/// others with the same tag.
const STEP_BEHIND: u128 = 1 << STEP;

/// After so many waiters, arrivals are counted anew: they have 32 bits in the order of who is next.
const REBASE: u64 = 1 << 31;

/// What a tenant may be ahead by, and yet be forgotten: 16 nanoseconds, or a million refusals.
const FORGIVEN: u128 = (ONE as u128) << 4;

/// Largest weight: at this one a tag still moves by several steps for each nanosecond.
pub(crate) const MAX_WEIGHT: u32 = 10_000;

/// How much of its last service time goes into a tenant's estimate: one fifth.
const NEWS: u64 = 5;

/// So many tenants at most are looked at again when the next is looked for: what their requests are over by
/// changes with time.
const LOOKS: usize = 32;

const NIL: u32 = u32::MAX;

/// Requests of numbered tenants, of which the fairest is next. `T` is what is kept with each that waits.
// In this order, so that what is written for a request that need not wait is in as few cache lines as it can be:
// the threads of a server take them from each other.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FairQueue<T> {
    virtual_time: u128,
    /// No tag of a tenant that has nothing running is above it, or above virtual time.
    latest: u128,
    running: usize,
    /// The service time of a tenant of which nothing is known.
    estimate: u64,
    waiting: usize,
    /// Most that a tenant may have running.
    max_running: u32,
    /// Ends of the list of all waiters, in the order of arrival.
    oldest: u32,
    newest: u32,
    /// The tag whose key is 0.
    origin: u128,
    tenants: Vec<Tenant>,
    /// Tenants whose head may be next. Their order is a lower bound: what a tag has risen by since is counted when
    /// its tenant is on top.
    ready: Heap<Ready>,
    /// Tenants by how many waiters they have for their weight, or more: they are counted anew when their tenant
    /// is on top.
    backlogs: Heap<Backlog>,
    /// Those that wait, and those whose turn it is.
    slots: Slab<Waiter<T>>,
    waiters: u64,
    /// The weights of the tenants that have waiters.
    weight_waiting: u64,
    /// Where virtual time would be if the service of all competing tenants together had moved it since requests
    /// began to wait: `P`.
    pace: u128,
    /// Virtual time when requests began to wait.
    began_to_wait: u128,
    /// When that was.
    busy_since: u64,
    /// How many run that were not charged.
    uncharged: usize,
    /// The service of which `pace` does not know yet.
    used: u64,
    /// The waiter whose arrival counts as 0 in the order of who is next.
    first_arrival: u64,
    free_tenants: Vec<u32>,
    /// Which one it is of several [fair queues](super::fair_queues).
    lane: Lane,
}

/// The number of one of several fair queues.
pub(crate) type Lane = u8;

/// In cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Tenant {
    tag: u128,
    weight: u32,
    /// What a nanosecond costs it.
    price: u64,
    /// Its service time, once one is known; 0 before.
    estimate: u64,
    head: u32,
    tail: u32,
    waiting: u32,
    /// As how many they are counted among the backlogs: no fewer.
    counted: u32,
    running: u32,
    /// How many it has running in other [lanes](Lane).
    elsewhere: u32,
    begun: Begun,
    /// How many run that were not charged, and what they cost together.
    uncharged: u32,
    uncharged_cost: u64,
}

impl Tenant {
    fn new(weight: u32) -> Self {
        Self {
            tag: 0,
            weight,
            price: price(weight),
            estimate: 0,
            head: NIL,
            tail: NIL,
            waiting: 0,
            counted: 0,
            running: 0,
            elsewhere: 0,
            begun: Begun::default(),
            uncharged: 0,
            uncharged_cost: 0,
        }
    }

    #[inline]
    fn all_running(&self) -> u32 {
        self.running + self.elsewhere
    }

    /// The service time that is expected of a request: that of others, if nothing is known of this one's.
    #[inline]
    fn expected(&self, of_others: u64) -> u64 {
        match self.estimate {
            0 => of_others,
            known => known,
        }
    }
}

/// Sums over those requests of a tenant that have begun.
#[derive(Debug, Default)]
struct Begun {
    cost: u64,
    /// Of `cost · since`.
    since: u128,
    paid: u128,
}

/// The first waiter of a tenant, in the order of who is next: by start tag, and by arrival if those are equal. From
/// the top, 64 bits are the steps of the tag, 32 the arrival, and 32 the number of the tenant: as one number, eight
/// of them are compared without a branch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ready(u128);

impl Ready {
    #[inline]
    fn new(steps: u64, arrival: u32, tenant: u32) -> Self {
        Self(u128::from(steps) << 64 | u128::from(arrival) << 32 | u128::from(tenant))
    }

    /// In steps of the tag, see [`STEP`], and by arrival.
    #[inline]
    fn is_before(self, other: Self) -> bool {
        self.0 >> 32 < other.0 >> 32
    }
}

impl Entry for Ready {
    #[inline]
    fn item(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, arrival) = ((self.0 >> 64) as u64, (self.0 >> 32) as u32);
        write!(
            f,
            "{steps} steps, arrival {arrival}, tenant {}",
            self.item()
        )
    }
}

/// How many waiters a tenant has for its weight. The largest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Backlog(Reverse<u64>, u32);

impl Entry for Backlog {
    #[inline]
    fn item(self) -> u32 {
        self.1
    }
}

#[derive(Debug)]
struct Waiter<T> {
    /// The order of arrival.
    number: u64,
    since: u64,
    with: T,
    tenant: u32,
    cost: NonZeroU32,
    /// Its neighbours among its tenant's, until it is its turn.
    previous: u32,
    next: u32,
    /// Its neighbours among all.
    older: u32,
    newer: u32,
}

/// A request's place, until its service begins or it is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    number: u64,
    slot: u32,
    lane: Lane,
}

impl Ticket {
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }
}

/// What the tenant of a request was charged when it was its turn, if it was asked for. Whatever takes it back settles
/// it.
#[derive(Debug)]
#[must_use = "a charge that is not settled counts as a request that runs for ever"]
pub(crate) struct Charge {
    tenant: u32,
    lane: Lane,
    cost: NonZeroU32,
    paid: u64,
    price: u64,
    /// When its service began, if it has.
    begun: Option<u64>,
}

impl Charge {
    pub(crate) fn tenant(&self) -> u32 {
        self.tenant
    }

    #[inline]
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// How long its service has lasted.
    pub(crate) fn took(&self, now: u64) -> u64 {
        self.begun.map_or(0, |begun| now.saturating_sub(begun))
    }

    /// How much service it has had, if it has ended.
    pub(crate) fn used(&self, now: u64) -> u64 {
        // Nothing is free: else weights would mean nothing where requests take no time that can be measured.
        self.took(now).max(1).saturating_mul(self.cost.get().into())
    }

    /// As a tag.
    fn amount(&self) -> u128 {
        u128::from(self.paid) * u128::from(self.price)
    }
}

/// Which of its tenant's waiters is next, when it is the tenant's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    OldestFirst,
    NewestFirst,
}

/// A tenant at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) weight: u32,
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    /// Since when its head waits.
    pub(crate) oldest: Option<u64>,
}

impl<T> FairQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            tenants: Vec::new(),
            free_tenants: Vec::new(),
            slots: Slab::new(),
            oldest: NIL,
            newest: NIL,
            ready: Heap::new(),
            backlogs: Heap::new(),
            virtual_time: 0,
            origin: 0,
            latest: 0,
            waiters: 0,
            waiting: 0,
            running: 0,
            weight_waiting: 0,
            pace: 0,
            began_to_wait: 0,
            busy_since: 0,
            uncharged: 0,
            used: 0,
            first_arrival: 0,
            estimate: 0,
            max_running: u32::MAX,
            lane: 0,
        }
    }

    /// One without any requests, of the same tenants.
    pub(crate) fn with_tenants_of(other: &Self, lane: Lane) -> Self {
        let tenants = other.tenants.iter().map(|tenant| Tenant {
            elsewhere: tenant.running,
            ..Tenant::new(tenant.weight)
        });
        Self {
            tenants: tenants.collect(),
            free_tenants: other.free_tenants.clone(),
            max_running: other.max_running,
            busy_since: other.busy_since,
            lane,
            ..Self::new()
        }
    }

    /// A tenant that is new begins where the others are. Its number may be that of one that was removed.
    ///
    /// `weight` is from 1 to [`MAX_WEIGHT`].
    pub(crate) fn add_tenant(&mut self, weight: u32) -> u32 {
        let tenant = Tenant::new(weight);
        if let Some(id) = self.free_tenants.pop() {
            self.tenants[id as usize] = tenant;
            return id;
        }
        let id = u32::try_from(self.tenants.len()).expect("fewer than 2^32 tenants");
        self.tenants.push(tenant);
        id
    }

    /// Whether nothing is lost if a tenant is [forgotten](Self::forget): it has no requests, and would be treated the same if it
    /// were new, give or take the nanoseconds that refusals may have cost it.
    pub(crate) fn may_forget(&mut self, tenant: u32) -> bool {
        let entry = match self.waiting {
            0 => self.virtual_time,
            _ => self.paced_entry(tenant, self.estimate), // if it were new, nothing would be known of it
        };
        let idle = &self.tenants[tenant as usize];
        idle.waiting == 0
            && idle.running == 0
            && idle.uncharged == 0
            && idle.tag <= entry.saturating_add(FORGIVEN)
    }

    pub(crate) fn forget(&mut self, tenant: u32) {
        self.recount_backlog(tenant);
        self.free_tenants.push(tenant);
    }

    /// Changes what a tenant is charged from now on. What was charged stays.
    pub(crate) fn set_weight(&mut self, id: u32, weight: u32) {
        let tenant = &mut self.tenants[id as usize];
        if tenant.waiting > 0 {
            self.weight_waiting -= u64::from(tenant.weight);
            self.weight_waiting += u64::from(weight);
        }
        (tenant.weight, tenant.price) = (weight, price(weight));
        self.recount_backlog(id);
        self.reorder(id); // what it is over by was counted at the old price
    }

    /// No tenant has more than that running from now on.
    pub(crate) fn set_max_running(&mut self, max_running: u32) {
        let before = mem::replace(&mut self.max_running, max_running);
        for id in 0..self.tenants.len() as u32 {
            if self.tenants[id as usize].all_running() >= before {
                self.catch_up(id); // it was held back
            }
            self.reorder(id);
        }
    }

    /// Whether the tenant may have another request running.
    #[inline]
    pub(crate) fn may_run(&self, tenant: u32) -> bool {
        self.tenants[tenant as usize].all_running() < self.max_running
    }

    /// A request of this tenant was charged in another lane, or is over there.
    pub(crate) fn note_elsewhere(&mut self, id: u32, running: u32) {
        let was_held_back = !self.may_run(id);
        self.tenants[id as usize].elsewhere = running;
        if self.is_uncapped() {
            return;
        }
        if was_held_back && self.may_run(id) {
            self.catch_up(id);
        }
        self.reorder(id);
    }

    /// How many a tenant has running that were charged.
    pub(crate) fn charged(&self, tenant: u32) -> u32 {
        self.tenants[tenant as usize].running
    }

    pub(crate) fn tenants(&self) -> u32 {
        self.tenants.len() as u32
    }

    /// Whether tenants may have as many requests running as they like.
    pub(crate) fn is_uncapped(&self) -> bool {
        self.max_running == u32::MAX
    }

    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn virtual_time(&self) -> u128 {
        self.virtual_time
    }

    /// How many were dispatched and are not done, charged or not.
    pub(crate) fn running(&self) -> usize {
        self.running + self.uncharged
    }

    /// Whether there is one that may be next.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Since when the one that has waited longest waits.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (self.oldest != NIL).then(|| self.slots[self.oldest].since)
    }

    /// The same without those that wait for their own tenant's others to end. It looks at a few: where all of
    /// them do, nobody is said to wait.
    #[inline]
    pub(crate) fn oldest_that_may_run(&self) -> Option<u64> {
        match self.oldest {
            NIL => None,
            _ => self.oldest_of_a_few_that_may_run(),
        }
    }

    #[inline(never)]
    fn oldest_of_a_few_that_may_run(&self) -> Option<u64> {
        const FEW: usize = 64;
        let mut slot = self.oldest;
        for _ in 0..FEW {
            let waiter = (slot != NIL).then(|| &self.slots[slot])?;
            if self.may_run(waiter.tenant) {
                return Some(waiter.since);
            }
            slot = waiter.newer;
        }
        None
    }

    pub(crate) fn state(&self, tenant: u32) -> State {
        let tenant = &self.tenants[tenant as usize];
        State {
            weight: tenant.weight,
            waiting: tenant.waiting,
            running: tenant.running + tenant.uncharged,
            oldest: (tenant.head != NIL).then(|| self.slots[tenant.head].since),
        }
    }

    /// The weights of all tenants that have waiters, over that of this one: of the service that there is,
    /// it gets one part in so many.
    pub(crate) fn parts(&self, tenant: u32) -> u64 {
        let tenant = &self.tenants[tenant as usize];
        let own = u64::from(tenant.weight);
        let others = match tenant.waiting {
            0 => self.weight_waiting,
            _ => self.weight_waiting - own,
        };
        (own + others).div_ceil(own)
    }

    /// Lets a request wait, behind its tenant's others.
    #[inline]
    pub(crate) fn push(&mut self, id: u32, cost: NonZeroU32, now: u64, with: T) -> Ticket {
        self.waiters += 1;
        let number = self.waiters;
        if number & (REBASE - 1) == 0 {
            self.move_first_arrival(number);
        }
        let previous = self.tenants[id as usize].tail;
        let slot = self.slots.insert(Waiter {
            number,
            since: now,
            with,
            tenant: id,
            cost,
            previous,
            next: NIL,
            older: self.newest,
            newer: NIL,
        });
        match previous {
            NIL => self.tenants[id as usize].head = slot,
            previous => self.slots[previous].next = slot,
        }
        match self.newest {
            NIL => self.oldest = slot,
            newest => self.slots[newest].newer = slot,
        }
        self.newest = slot;
        self.tenants[id as usize].tail = slot;
        self.note_waiter(id);
        if previous == NIL {
            self.catch_up(id);
            if self.may_run(id) {
                self.ready.insert(self.head(id));
            }
        }
        self.ticket(number, slot)
    }

    #[inline]
    fn ticket(&self, number: u64, slot: u32) -> Ticket {
        let lane = self.lane;
        Ticket { number, slot, lane }
    }

    /// It is the turn of the request that is next: it no longer waits, and its tenant is charged.
    #[inline]
    pub(crate) fn next_in(&mut self, order: Order, now: u64) -> Option<(Ticket, Charge)> {
        let id = self.fairest(now)?.0.item();
        let tenant = &self.tenants[id as usize];
        let slot = match order {
            Order::OldestFirst => tenant.head,
            Order::NewestFirst => tenant.tail,
        };
        let &Waiter {
            number,
            cost,
            previous,
            next,
            ..
        } = &self.slots[slot];
        self.unlink(id, previous, next);
        let charge = self.charge(id, cost);
        match self.is_ready(id) {
            true => self.ready.set_top(self.head(id)),
            false => self.ready.remove_top(),
        }
        Some((self.ticket(number, slot), charge))
    }

    /// Whether it is no longer the turn of a request whose turn it was, by what was settled since.
    pub(crate) fn yields(&mut self, ticket: &Ticket, charge: &Charge, now: u64) -> bool {
        let tag = self.tenants[charge.tenant as usize].tag;
        let start = tag.saturating_sub(charge.amount());
        let start = start.saturating_add(self.overrun(charge.tenant, now));
        let own = self.ready(charge.tenant, start, ticket.number);
        // Where it is not certain whose turn it is, it may as well be this one's.
        self.fairest(now)
            .is_some_and(|(top, certain)| certain && top.is_before(own))
    }

    /// Lets a request whose turn it was, in the order of arrival, wait again, ahead of its tenant's others.
    pub(crate) fn put_back(&mut self, ticket: &Ticket, charge: Charge) {
        let id = charge.tenant;
        let head = self.tenants[id as usize].head;
        self.slots[ticket.slot].next = head;
        match head {
            NIL => self.tenants[id as usize].tail = ticket.slot,
            head => self.slots[head].previous = ticket.slot,
        }
        self.tenants[id as usize].head = ticket.slot;
        self.note_waiter(id);
        self.settle(charge, 0, 0);
    }

    /// Takes out a request whose turn it was, and charges nothing for it.
    pub(crate) fn withdraw(&mut self, ticket: &Ticket, charge: Charge) -> T {
        let with = self.vacate(ticket.slot).with;
        self.refund(charge);
        with
    }

    /// The service begins of a request whose turn it is. Says since when it has waited.
    #[inline]
    pub(crate) fn begin(&mut self, ticket: &Ticket, charge: &mut Charge, now: u64) -> (u64, T) {
        let waiter = self.vacate(ticket.slot);
        let was_over = self.overrun(charge.tenant, now) > 0;
        let start = self.note_begin(charge, now);
        if start > self.virtual_time {
            self.set_virtual_time(start);
        }
        // What it was charged counts against what its tenant's other requests are over by.
        if was_over && self.tenants[charge.tenant as usize].head != NIL {
            self.reorder(charge.tenant);
        }
        (waiter.since, waiter.with)
    }

    /// The service begins of a request that need not wait: as if it had been pushed, and been next.
    #[inline]
    pub(crate) fn begin_at_once(&mut self, id: u32, cost: NonZeroU32, now: u64) -> Charge {
        self.catch_up(id);
        self.set_virtual_time(self.tenants[id as usize].tag);
        let mut charge = self.charge(id, cost);
        self.note_begin(&mut charge, now);
        charge
    }

    /// The service has ended: what it really took is charged, and is the better known for the next.
    #[inline]
    pub(crate) fn finish(&mut self, charge: Charge, now: u64) -> u64 {
        let (took, used) = (charge.took(now).max(1), charge.used(now));
        let tenant = &mut self.tenants[charge.tenant as usize];
        learn(&mut tenant.estimate, took);
        learn(&mut self.estimate, took);
        self.used = self.used.saturating_add(used);
        self.settle(charge, used, STEP_BEHIND);
        used
    }

    /// A request has ended that the queue knows nothing of. It took so long: the next ones are better known for it.
    #[inline]
    pub(crate) fn learn(&mut self, tenant: u32, took: u64) {
        let took = took.max(1);
        learn(&mut self.tenants[tenant as usize].estimate, took);
        learn(&mut self.estimate, took);
    }

    /// A request begins while nobody waits: its tenant is charged for what it uses when others wait, and only for that.
    #[inline]
    pub(crate) fn begin_uncharged(&mut self, id: u32, cost: NonZeroU32) {
        let tenant = &mut self.tenants[id as usize];
        tenant.uncharged += 1;
        tenant.uncharged_cost += u64::from(cost.get());
        self.uncharged += 1;
    }

    /// One that did has ended.
    #[inline]
    pub(crate) fn end_uncharged(&mut self, id: u32, cost: NonZeroU32) {
        let tenant = &mut self.tenants[id as usize];
        tenant.uncharged -= 1;
        tenant.uncharged_cost -= u64::from(cost.get());
        self.uncharged -= 1;
        if tenant.head != NIL {
            self.reorder(id); // what it was over by counts no more
        }
    }

    /// Requests wait since then.
    pub(crate) fn set_busy_since(&mut self, now: u64) {
        self.busy_since = now;
    }

    /// Charges a tenant for service that it had uncharged while others waited: from where the others were when they began
    /// to wait.
    #[cold]
    pub(crate) fn charge_late(&mut self, id: u32, charged: u64) {
        self.used = self.used.saturating_add(charged);
        let began = self.began_to_wait;
        let tenant = &mut self.tenants[id as usize];
        let amount = u128::from(charged) * u128::from(tenant.price) + STEP_BEHIND;
        tenant.tag = tenant.tag.max(began).saturating_add(amount);
        self.latest = self.latest.max(tenant.tag);
        self.note_idle();
    }

    /// The service failed with a rejection from further in: its tenant is charged what that took. Nothing is learned,
    /// because the service may have done nothing of what the next request will make it do.
    #[inline(never)]
    pub(crate) fn refuse(&mut self, charge: Charge, now: u64) -> u64 {
        let used = charge.took(now).saturating_mul(charge.cost.get().into());
        self.settle(charge, used, STEP_BEHIND);
        used
    }

    /// The request was not sent after all, or a layer further in rejected it before the service was called: its tenant is
    /// charged nothing, and nothing is learned.
    #[inline(never)]
    pub(crate) fn refund(&mut self, charge: Charge) {
        self.settle(charge, 0, STEP_BEHIND);
    }

    /// What [`begin_at_once`](Self::begin_at_once) was for is not begun after all: everything is as it was
    /// at that virtual time, but for what others have begun since. A tenant that caught up stays where it is.
    pub(crate) fn take_back(&mut self, charge: Charge, virtual_time: u128) {
        let tag = self.tenants[charge.tenant as usize].tag;
        let begun_at = tag.saturating_sub(charge.amount());
        if self.virtual_time == begun_at {
            self.virtual_time = virtual_time.max(self.origin);
        }
        self.settle(charge, 0, 0);
    }

    /// What is kept with a request that is still in, be it its turn or not.
    pub(crate) fn with(&mut self, ticket: &Ticket) -> Option<&mut T> {
        let waiter = self.slots.get_mut(ticket.slot)?;
        (waiter.number == ticket.number).then_some(&mut waiter.with)
    }

    /// Takes a request out that still waits.
    pub(crate) fn cancel(&mut self, ticket: &Ticket) -> T {
        self.remove(ticket.slot).with
    }

    /// Takes out the request of a tenant that has some waiting which would be served last, in this order.
    pub(crate) fn evict(&mut self, id: u32, order: Order) -> (u64, T) {
        let tenant = &self.tenants[id as usize];
        let evicted = self.remove(match order {
            Order::OldestFirst => tenant.tail,
            Order::NewestFirst => tenant.head,
        });
        (evicted.since, evicted.with)
    }

    /// The tenant whose request is to be [taken out](Self::evict) to make room for a newcomer of this tenant: the one that has the
    /// most waiting for its weight.
    ///
    /// If that is the newcomer's own tenant, the newcomer itself would be served last where the oldest is first, so there is
    /// nothing to take out. Where the newest is first, it takes the place of its tenant's oldest.
    pub(crate) fn makes_room(&mut self, newcomer: u32, order: Order) -> Option<u32> {
        let hog = self.hog(newcomer);
        let has_own = order == Order::NewestFirst && self.tenants[newcomer as usize].waiting > 0;
        hog.or(has_own.then_some(newcomer))
    }

    /// The tenant with the most waiting for its weight, if it is another, and stays that with the newcomer.
    fn hog(&mut self, newcomer: u32) -> Option<u32> {
        let (hog, most) = self.largest_backlog()?;
        let own = &self.tenants[newcomer as usize];
        (hog != newcomer && backlog(own.waiting + 1, own.price) < most).then_some(hog)
    }

    /// The tenant with the most waiters for its weight.
    pub(crate) fn largest_backlog(&mut self) -> Option<(u32, u64)> {
        loop {
            let Backlog(Reverse(backlog), id) = self.backlogs.top()?;
            let tenant = &self.tenants[id as usize];
            if tenant.waiting == tenant.counted {
                return Some((id, backlog));
            }
            self.recount_backlog(id);
        }
    }

    fn recount_backlog(&mut self, id: u32) {
        let tenant = &mut self.tenants[id as usize];
        tenant.counted = tenant.waiting;
        match tenant.waiting {
            0 => self.backlogs.remove(id),
            waiting => (self.backlogs).set(Backlog(Reverse(backlog(waiting, tenant.price)), id)),
        }
    }

    /// The waiter that is next, and whether that is certain.
    fn fairest(&mut self, now: u64) -> Option<(Ready, bool)> {
        for _ in 0..LOOKS {
            let known = self.ready.top()?;
            let id = known.item();
            let overrun = self.overrun(id, now);
            let Tenant { tag, head, .. } = self.tenants[id as usize];
            let found = self.ready(id, tag.saturating_add(overrun), self.slots[head].number);
            if found <= known {
                return Some((known, true));
            }
            self.ready.set(found);
        }
        self.ready.top().map(|top| (top, false))
    }

    /// Says at which tag it begins.
    fn note_begin(&mut self, charge: &mut Charge, now: u64) -> u128 {
        charge.begun = Some(now);
        let tenant = &mut self.tenants[charge.tenant as usize];
        let begun = &mut tenant.begun;
        let cost = u64::from(charge.cost.get());
        begun.cost += cost;
        begun.since += u128::from(cost) * u128::from(now);
        begun.paid += u128::from(charge.paid);
        tenant.tag.saturating_sub(charge.amount())
    }

    /// The tag at which a tenant that did not compete begins: where the others are.
    #[inline]
    fn entry(&mut self, id: u32) -> u128 {
        match self.waiting {
            0 => self.virtual_time,
            _ => self.paced_entry(id, self.tenants[id as usize].expected(self.estimate)),
        }
    }

    /// `expected` is the service time of its next request.
    #[inline(never)]
    fn paced_entry(&mut self, id: u32, expected: u64) -> u128 {
        let tenant = &self.tenants[id as usize];
        let one_request = u128::from(expected) * u128::from(tenant.price);
        // Each request that runs counts as a tenant of this one's weight, as it is not known whose they are.
        let running = u64::from(tenant.weight).saturating_mul(self.running() as u64);
        let competing = self.weight_waiting.saturating_add(running).max(1);
        let moved = u128::from(mem::take(&mut self.used)) * u128::from(ONE / competing);
        let most = self.virtual_time.saturating_add(one_request);
        // It is never left behind or ahead by more than that: what it lags or leads by would stay while requests wait.
        self.pace = (self.pace.saturating_add(moved)).clamp(self.virtual_time, most);
        self.latest = self.latest.max(self.pace);
        self.pace
    }

    /// A tenant that did not compete begins where the others are.
    #[inline]
    fn catch_up(&mut self, id: u32) {
        let entry = self.entry(id);
        let tag = &mut self.tenants[id as usize].tag;
        if entry > *tag {
            *tag = entry;
        }
    }

    /// Charges for a request whose turn it is.
    fn charge(&mut self, id: u32, cost: NonZeroU32) -> Charge {
        self.running += 1;
        let tenant = &mut self.tenants[id as usize];
        let expected = tenant.expected(self.estimate);
        let paid = expected.max(1).saturating_mul(cost.get().into());
        let charge = Charge {
            tenant: id,
            lane: self.lane,
            cost,
            paid,
            price: tenant.price,
            begun: None,
        };
        tenant.tag = tenant.tag.saturating_add(charge.amount());
        tenant.running += 1;
        charge
    }

    /// Charges what was used instead of what was paid. A tenant that had its turn goes `behind` those with the same tag.
    #[inline(always)] // every request comes by here that has asked
    fn settle(&mut self, charge: Charge, used: u64, behind: u128) {
        let tenant = &mut self.tenants[charge.tenant as usize];
        let difference = u128::from(used.abs_diff(charge.paid)) * u128::from(charge.price);
        let less = used < charge.paid;
        tenant.tag = match less {
            // A nanosecond is more than a step at any weight.
            true => tenant.tag.saturating_sub(difference - behind),
            false => tenant.tag.saturating_add(difference + behind),
        };
        self.latest = self.latest.max(tenant.tag);
        if let Some(since) = charge.begun {
            let cost = u64::from(charge.cost.get());
            tenant.begun.cost -= cost;
            tenant.begun.since -= u128::from(cost) * u128::from(since);
            tenant.begun.paid -= u128::from(charge.paid);
        }
        let was_held_back = tenant.all_running() == self.max_running;
        tenant.running -= 1;
        self.running -= 1;
        self.note_idle();
        if was_held_back {
            self.catch_up(charge.tenant);
        }
        let tenant = &self.tenants[charge.tenant as usize];
        // What it was over by was counted at the price of now.
        let repriced = tenant.price != charge.price;
        // Who has nothing waiting is not among those that may be next.
        if tenant.head != NIL && (less || was_held_back || repriced) {
            self.reorder(charge.tenant);
        }
    }

    /// By how much the tenant's running requests, taken together, are over what was charged for them.
    fn overrun(&self, id: u32, now: u64) -> u128 {
        let tenant = &self.tenants[id as usize];
        let begun = &tenant.begun;
        if begun.cost == 0 && tenant.uncharged == 0 {
            return 0;
        }
        let used = (u128::from(begun.cost) * u128::from(now)).saturating_sub(begun.since);
        let over = used.saturating_sub(begun.paid);
        // As if it had been charged for them when requests began to wait.
        let each = now.saturating_sub(self.busy_since);
        let each = each.max(tenant.expected(self.estimate)).max(1);
        let over = over.saturating_add(u128::from(tenant.uncharged_cost) * u128::from(each));
        let over = u64::try_from(over).unwrap_or(u64::MAX);
        u128::from(over) * u128::from(tenant.price)
    }

    /// Puts the tenant where it belongs among those that may be next, after its head, its tag or the
    /// number of its running requests has changed.
    #[inline(never)]
    fn reorder(&mut self, id: u32) {
        if !self.is_ready(id) {
            return self.ready.remove(id);
        }
        let head = self.head(id);
        if self.ready.get(id).is_none_or(|known| known > head) {
            self.ready.set(head);
        }
    }

    /// Whether the tenant has a request that may be next.
    fn is_ready(&self, id: u32) -> bool {
        let tenant = &self.tenants[id as usize];
        tenant.head != NIL && tenant.all_running() < self.max_running
    }

    /// Takes a waiter out that is not served.
    fn remove(&mut self, slot: u32) -> Waiter<T> {
        let waiter = self.vacate(slot);
        self.unlink(waiter.tenant, waiter.previous, waiter.next);
        if waiter.previous == NIL {
            self.reorder(waiter.tenant);
        }
        self.note_idle();
        waiter
    }

    /// One more request of this tenant waits.
    fn note_waiter(&mut self, id: u32) {
        if self.waiting == 0 {
            (self.pace, self.used) = (self.virtual_time, 0);
            self.began_to_wait = self.virtual_time;
        }
        self.waiting += 1;
        let tenant = &mut self.tenants[id as usize];
        tenant.waiting += 1;
        if tenant.waiting == 1 {
            self.weight_waiting += u64::from(tenant.weight);
        }
        if tenant.waiting > tenant.counted {
            // Ahead of time, so that it need not be done for each.
            tenant.counted = tenant.waiting.saturating_mul(2);
            let backlog = backlog(tenant.counted, tenant.price);
            self.backlogs.set(Backlog(Reverse(backlog), id));
        }
    }

    #[inline]
    fn note_idle(&mut self) {
        if self.running == 0 && self.waiting == 0 {
            self.set_virtual_time(self.latest.max(self.virtual_time));
        }
    }

    #[inline]
    fn set_virtual_time(&mut self, tag: u128) {
        self.virtual_time = tag;
        if (tag - self.origin) >> (STEP + 63) > 0 {
            self.move_origin();
        }
    }

    /// Counts steps from virtual time on. Tags that are behind it are as good as equal to it by now.
    #[cold]
    fn move_origin(&mut self) {
        self.origin = self.virtual_time;
        self.rebuild_ready();
    }

    /// Counts arrivals from half of what can be counted before this one. What is older comes first.
    #[cold]
    fn move_first_arrival(&mut self, number: u64) {
        self.first_arrival = number.saturating_sub(REBASE);
        self.rebuild_ready();
    }

    fn rebuild_ready(&mut self) {
        let mut ready = mem::replace(&mut self.ready, Heap::new());
        ready.rebuild(|id| self.head(id));
        self.ready = ready;
    }

    /// A tenant's first waiter in the order of who is next, without what its running requests are over by.
    #[inline]
    fn head(&self, id: u32) -> Ready {
        let Tenant { tag, head, .. } = self.tenants[id as usize];
        self.ready(id, tag, self.slots[head].number)
    }

    #[inline]
    fn ready(&self, id: u32, start: u128, number: u64) -> Ready {
        let arrival = number.saturating_sub(self.first_arrival); // below 2^32, see `REBASE`
        Ready::new(self.steps(start), arrival as u32, id)
    }

    /// The steps of a tag.
    fn steps(&self, tag: u128) -> u64 {
        let steps = tag.saturating_sub(self.origin) >> STEP;
        u64::try_from(steps).unwrap_or(u64::MAX)
    }

    /// Takes a waiter out of its tenant's list, from between these two: it no longer waits. The tenant may
    /// have to be reordered.
    fn unlink(&mut self, id: u32, previous: u32, next: u32) {
        let tenant = &mut self.tenants[id as usize];
        if previous == NIL {
            tenant.head = next;
        }
        if next == NIL {
            tenant.tail = previous;
        }
        self.waiting -= 1;
        tenant.waiting -= 1;
        if tenant.waiting == 0 {
            self.weight_waiting -= u64::from(tenant.weight);
        }
        if previous != NIL {
            self.slots[previous].next = next;
        }
        if next != NIL {
            self.slots[next].previous = previous;
        }
    }

    /// Takes one that does not wait any more out of the list of all, and empties its slot.
    fn vacate(&mut self, slot: u32) -> Waiter<T> {
        let waiter = self.slots.remove(slot);
        match waiter.older {
            NIL => self.oldest = waiter.newer,
            older => self.slots[older].newer = waiter.newer,
        }
        match waiter.newer {
            NIL => self.newest = waiter.older,
            newer => self.slots[newer].older = waiter.older,
        }
        waiter
    }
}

/// What a nanosecond costs a tenant of that weight.
fn price(weight: u32) -> u64 {
    ONE / u64::from(weight)
}

/// So many waiters, for their tenant's weight.
fn backlog(waiting: u32, price: u64) -> u64 {
    u64::from(waiting) * (price >> 12) // fits: 2^32 of them, at 2^28 each
}

/// An average in which older service times count less and less. It is 0 while none is known; none is 0.
fn learn(estimate: &mut u64, took: u64) {
    *estimate = match *estimate {
        0 => took,
        known => known - known / NEWS + took / NEWS,
    };
}
