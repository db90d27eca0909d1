//! Who is next where some requests matter more than others: a [fair queue](super::fair_queue) for each priority.
//!
//! # The order
//! The most important waiters are next. Among those of one priority, the fair queue of that priority decides: tenants get
//! service in proportion to their weights, and what a tenant has had in one priority does not count in another. So equal
//! priorities give the order of one fair queue, and no weight makes up for a priority.
//!
//! # The floor
//! Strict order starves: if more important requests come than can be served, no other is ever next. So each lane is owed a
//! share of the requests that start while it has waiters, the *floor*: 1 % by default, and 0 turns it off. Each such start adds
//! that share to what the lane is owed. A lane that is owed a whole start is next, once. It is never owed more than one.
//!
//! # Full queues
//! A newcomer [displaces](FairQueues::makes_room) the least important waiter, if that matters less than the newcomer: of the
//! tenant that has the most waiting for its weight in that lane, the one that would be served last. Where there is a floor,
//! the last waiter of a lane is kept if another waiter can make room: otherwise nobody would be there to get the floor. Among equals, the rule is
//! that of the [fair queue](FairQueue::makes_room).
//!
//! # The data
//! Lanes are numbered from the least important. Most services have requests of one priority only, which are in the *main*
//! lane. A lane is made when a request for it comes, with the tenants that there are, and stays.

#[cfg(all(test, not(backpressure_loom)))]
mod tests;

use std::num::NonZeroU32;

use super::fair_queue::{Charge, FairQueue, Lane, Order, State, Ticket};

/// How many priorities there are.
pub(crate) const LANES: usize = 5;

/// The lane of requests that say nothing of their priority.
pub(crate) const MAIN: Lane = 2;

/// A whole start, in the units in which starts are owed.
pub(crate) const WHOLE: u32 = 100_000;

/// One percent of the starts, for each lane that has waiters. The most important requests lose nothing by it at three times the
/// capacity, and the least important are not forgotten.
pub(crate) const DEFAULT_FLOOR: u32 = WHOLE / 100;

/// More than that for each lane, and the most important one might get nothing.
pub(crate) const MAX_FLOOR: u32 = WHOLE / LANES as u32;

#[derive(Debug)]
pub(crate) struct FairQueues<T> {
    main: FairQueue<T>,
    /// The other lanes, as far as they were used. There is none at [`MAIN`].
    others: [Option<Box<FairQueue<T>>>; LANES],
    is_single: bool,
    floor: u32,
    /// How much of a start each lane is owed.
    owed: [u32; LANES],
}

impl<T> FairQueues<T> {
    pub(crate) fn new() -> Self {
        Self {
            main: FairQueue::with_tenants_of(&FairQueue::new(), MAIN),
            others: [const { None }; LANES],
            is_single: true,
            floor: DEFAULT_FLOOR,
            owed: [0; LANES],
        }
    }

    /// The share of the starts that each lane gets that has waiters, at least, in [parts](WHOLE).
    pub(crate) fn set_floor(&mut self, floor: u32) {
        self.floor = floor.min(MAX_FLOOR);
    }

    /// Whether there is no lane but the main one.
    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        self.is_single
    }

    fn lanes(&self) -> impl DoubleEndedIterator<Item = &FairQueue<T>> {
        let all = self.others.iter().enumerate();
        all.filter_map(|(lane, other)| match lane == usize::from(MAIN) {
            true => Some(&self.main),
            false => other.as_deref(),
        })
    }

    fn lanes_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut FairQueue<T>> {
        let (main, others) = (&mut self.main, &mut self.others);
        let (before, after) = others.split_at_mut(usize::from(MAIN));
        let before = before.iter_mut().filter_map(|other| other.as_deref_mut());
        let after = after.iter_mut().filter_map(|other| other.as_deref_mut());
        before.chain([main]).chain(after)
    }

    /// The lane, or the main one if it was never used.
    #[inline]
    fn lane(&self, lane: Lane) -> &FairQueue<T> {
        match lane == MAIN {
            true => &self.main,
            false => self.other(lane).unwrap_or(&self.main),
        }
    }

    #[inline]
    fn lane_mut(&mut self, lane: Lane) -> &mut FairQueue<T> {
        match lane == MAIN {
            true => &mut self.main,
            false => self.other_mut(lane),
        }
    }

    #[inline(never)]
    fn other(&self, lane: Lane) -> Option<&FairQueue<T>> {
        self.others[usize::from(lane)].as_deref()
    }

    #[inline(never)]
    fn other_mut(&mut self, lane: Lane) -> &mut FairQueue<T> {
        match &mut self.others[usize::from(lane)] {
            Some(other) => other,
            None => &mut self.main,
        }
    }

    /// Makes a lane that is about to be used.
    #[inline]
    fn open(&mut self, lane: Lane) {
        if lane != MAIN && self.others[usize::from(lane)].is_none() {
            self.make(lane);
        }
    }

    #[cold]
    fn make(&mut self, lane: Lane) {
        let mut made = FairQueue::with_tenants_of(&self.main, lane);
        for tenant in 0..self.main.tenants() {
            made.note_elsewhere(tenant, self.charged(tenant));
        }
        self.others[usize::from(lane)] = Some(Box::new(made));
        self.is_single = false;
    }

    /// How many a tenant has running that were charged, in all lanes.
    fn charged(&self, tenant: u32) -> u32 {
        self.lanes().map(|lane| lane.charged(tenant)).sum()
    }

    /// A tenant's number of running requests has changed: together, they are held to [one bound](Self::set_max_running).
    #[inline]
    fn note_running(&mut self, tenant: u32) {
        if !self.is_single {
            self.note_running_elsewhere(tenant);
        }
    }

    #[inline(never)]
    fn note_running_elsewhere(&mut self, tenant: u32) {
        let all = self.charged(tenant);
        for lane in self.lanes_mut() {
            lane.note_elsewhere(tenant, all - lane.charged(tenant));
        }
    }

    /// See [`FairQueue::add_tenant`].
    pub(crate) fn add_tenant(&mut self, weight: u32) -> u32 {
        let id = self.main.add_tenant(weight);
        for lane in self.others.iter_mut().flatten() {
            let same = lane.add_tenant(weight);
            debug_assert_eq!(same, id, "all lanes have the same tenants");
        }
        id
    }

    /// Forgets a tenant, if nothing is lost by it. See [`FairQueue::may_forget`].
    pub(crate) fn remove_tenant(&mut self, tenant: u32) -> bool {
        let lossless = self.lanes_mut().all(|lane| lane.may_forget(tenant));
        if lossless {
            self.lanes_mut().for_each(|lane| lane.forget(tenant));
        }
        lossless
    }

    pub(crate) fn set_weight(&mut self, id: u32, weight: u32) {
        self.lanes_mut()
            .for_each(|lane| lane.set_weight(id, weight));
    }

    /// No tenant has more than that running from now on, in all lanes together.
    pub(crate) fn set_max_running(&mut self, max_running: u32) {
        self.lanes_mut()
            .for_each(|lane| lane.set_max_running(max_running));
    }

    /// See [`FairQueue::may_run`].
    #[inline]
    pub(crate) fn may_run(&self, tenant: u32) -> bool {
        self.main.may_run(tenant)
    }

    pub(crate) fn is_uncapped(&self) -> bool {
        self.main.is_uncapped()
    }

    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        match self.is_single {
            true => self.main.waiting(),
            false => self.lanes().map(FairQueue::waiting).sum(),
        }
    }

    pub(crate) fn waiting_in(&self, lane: Lane) -> usize {
        match lane == MAIN {
            true => self.main.waiting(),
            false => (self.others[usize::from(lane)].as_ref()).map_or(0, |lane| lane.waiting()),
        }
    }

    /// Since when the one of this lane waits that has waited longest.
    pub(crate) fn oldest_in(&self, lane: Lane) -> Option<u64> {
        match lane == MAIN {
            true => self.main.oldest(),
            false => self.others[usize::from(lane)].as_ref()?.oldest(),
        }
    }

    /// Whether there are waiters that matter less.
    #[inline]
    pub(crate) fn has_less_important(&self, lane: Lane) -> bool {
        !self.is_single && (0..lane).any(|lane| self.waiting_in(lane) > 0)
    }

    pub(crate) fn virtual_time(&self, lane: Lane) -> u128 {
        self.lane(lane).virtual_time()
    }

    /// See [`FairQueue::running`].
    pub(crate) fn running(&self) -> usize {
        self.lanes().map(FairQueue::running).sum()
    }

    /// Whether there is one that may be next.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.main.has_next() || !self.is_single && self.lanes().any(FairQueue::has_next)
    }

    /// Whether there is one that may be next and matters more.
    pub(crate) fn has_next_before(&self, lane: Lane) -> bool {
        !self.is_single
            && self
                .lanes()
                .any(|other| other.lane() > lane && other.has_next())
    }

    /// Since when the one that has waited longest waits.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.lanes().filter_map(FairQueue::oldest).min()
    }

    /// See [`FairQueue::oldest_that_may_run`].
    #[inline]
    pub(crate) fn oldest_that_may_run(&self) -> Option<u64> {
        match self.is_single {
            true => self.main.oldest_that_may_run(),
            false => (self.lanes())
                .filter_map(FairQueue::oldest_that_may_run)
                .min(),
        }
    }

    /// Of all lanes together.
    pub(crate) fn state(&self, tenant: u32) -> State {
        let mut state = self.main.state(tenant);
        for lane in self.others.iter().flatten() {
            let there = lane.state(tenant);
            state.waiting += there.waiting;
            state.running += there.running;
            state.oldest = state.oldest.into_iter().chain(there.oldest).min();
        }
        state
    }

    /// How many wait that matter as much or more.
    pub(crate) fn waiting_from(&self, lane: Lane) -> usize {
        let lanes = lane..LANES as Lane;
        lanes.map(|lane| self.waiting_in(lane)).sum()
    }

    /// How many are to be served before a newcomer is, if others keep coming: those that matter more, and its tenant's own, for
    /// each of which others get their share.
    pub(crate) fn ahead(&self, tenant: u32, lane: Lane) -> u64 {
        let before = self.waiting_from(lane + 1);
        let (own, parts) = match self.others[usize::from(lane)].as_deref() {
            Some(other) => (other.state(tenant).waiting, other.parts(tenant)),
            None if lane == MAIN => (self.main.state(tenant).waiting, self.main.parts(tenant)),
            None => (0, 1),
        };
        (u64::from(own) + 1)
            .saturating_mul(parts)
            .saturating_add(before as u64)
    }

    /// Lets a request wait. See [`FairQueue::push`].
    #[inline]
    pub(crate) fn push(
        &mut self,
        (id, lane): (u32, Lane),
        cost: NonZeroU32,
        now: u64,
        with: T,
    ) -> Ticket {
        self.open(lane);
        self.lane_mut(lane).push(id, cost, now, with)
    }

    /// The lane that is next.
    #[inline]
    pub(crate) fn next_lane(&self) -> Option<Lane> {
        match self.is_single {
            true => self.main.has_next().then_some(MAIN),
            false => self.next_of_several(),
        }
    }

    #[inline(never)]
    fn next_of_several(&self) -> Option<Lane> {
        let mut lanes = self.lanes().rev().filter(|lane| lane.has_next());
        let first = lanes.next()?.lane();
        let owed = lanes.map(FairQueue::lane).find(|lane| self.is_owed(*lane));
        Some(owed.unwrap_or(first))
    }

    fn is_owed(&self, lane: Lane) -> bool {
        self.owed[usize::from(lane)] >= WHOLE
    }

    /// It is the turn of the request that is next in this lane. See [`FairQueue::next_in`].
    #[inline]
    pub(crate) fn next_in(
        &mut self,
        lane: Lane,
        order: Order,
        now: u64,
    ) -> Option<(Ticket, Charge)> {
        let (ticket, charge) = self.lane_mut(lane).next_in(order, now)?;
        self.note_running(charge.tenant());
        Some((ticket, charge))
    }

    /// A request of this lane starts that was next.
    #[inline]
    pub(crate) fn note_started(&mut self, lane: Lane) {
        if !self.is_single {
            self.note_start_of_several(lane);
        }
    }

    #[inline(never)]
    fn note_start_of_several(&mut self, started: Lane) {
        for lane in 0..LANES as Lane {
            let waits = self.waiting_in(lane) > 0;
            let owed = &mut self.owed[usize::from(lane)];
            let due = *owed + self.floor;
            *owed = match (waits, lane == started) {
                (false, false) => *owed,
                (false, true) => owed.saturating_sub(WHOLE),
                (true, false) => due.min(WHOLE),
                (true, true) => due.saturating_sub(WHOLE),
            };
        }
    }

    /// Whether it is no longer the turn of a request whose turn it was. See [`FairQueue::yields`].
    pub(crate) fn yields(&mut self, ticket: &Ticket, charge: &Charge, now: u64) -> bool {
        let lane = ticket.lane();
        !self.is_owed(lane) && self.has_next_before(lane)
            || self.lane_mut(lane).yields(ticket, charge, now)
    }

    /// See [`FairQueue::put_back`].
    pub(crate) fn put_back(&mut self, ticket: &Ticket, charge: Charge) {
        let tenant = charge.tenant();
        self.lane_mut(ticket.lane()).put_back(ticket, charge);
        self.note_running(tenant);
    }

    /// See [`FairQueue::withdraw`].
    pub(crate) fn withdraw(&mut self, ticket: &Ticket, charge: Charge) -> T {
        let tenant = charge.tenant();
        let with = self.lane_mut(ticket.lane()).withdraw(ticket, charge);
        self.note_running(tenant);
        with
    }

    /// See [`FairQueue::begin`].
    #[inline]
    pub(crate) fn begin(&mut self, ticket: &Ticket, charge: &mut Charge, now: u64) -> (u64, T) {
        self.lane_mut(ticket.lane()).begin(ticket, charge, now)
    }

    /// See [`FairQueue::begin_at_once`].
    #[inline]
    pub(crate) fn begin_at_once(
        &mut self,
        (id, lane): (u32, Lane),
        cost: NonZeroU32,
        now: u64,
    ) -> Charge {
        self.open(lane);
        let charge = self.lane_mut(lane).begin_at_once(id, cost, now);
        self.note_running(id);
        charge
    }

    /// See [`FairQueue::finish`].
    #[inline]
    pub(crate) fn finish(&mut self, charge: Charge, now: u64) -> u64 {
        let tenant = charge.tenant();
        let used = self.lane_mut(charge.lane()).finish(charge, now);
        self.note_running(tenant);
        used
    }

    /// See [`FairQueue::refuse`].
    pub(crate) fn refuse(&mut self, charge: Charge, now: u64) -> u64 {
        let tenant = charge.tenant();
        let used = self.lane_mut(charge.lane()).refuse(charge, now);
        self.note_running(tenant);
        used
    }

    /// See [`FairQueue::refund`].
    pub(crate) fn refund(&mut self, charge: Charge) {
        let tenant = charge.tenant();
        self.lane_mut(charge.lane()).refund(charge);
        self.note_running(tenant);
    }

    /// See [`FairQueue::take_back`].
    pub(crate) fn take_back(&mut self, charge: Charge, virtual_time: u128) {
        let tenant = charge.tenant();
        self.lane_mut(charge.lane()).take_back(charge, virtual_time);
        self.note_running(tenant);
    }

    /// See [`FairQueue::learn`].
    #[inline]
    pub(crate) fn learn(&mut self, (tenant, lane): (u32, Lane), took: u64) {
        self.lane_mut(lane).learn(tenant, took);
    }

    /// See [`FairQueue::begin_uncharged`].
    #[inline]
    pub(crate) fn begin_uncharged(&mut self, (id, lane): (u32, Lane), cost: NonZeroU32) {
        self.open(lane);
        self.lane_mut(lane).begin_uncharged(id, cost);
    }

    /// See [`FairQueue::end_uncharged`].
    #[inline]
    pub(crate) fn end_uncharged(&mut self, (id, lane): (u32, Lane), cost: NonZeroU32) {
        self.lane_mut(lane).end_uncharged(id, cost);
    }

    /// See [`FairQueue::charge_late`].
    pub(crate) fn charge_late(&mut self, (id, lane): (u32, Lane), charged: u64) {
        self.lane_mut(lane).charge_late(id, charged);
    }

    /// Requests wait since then.
    pub(crate) fn set_busy_since(&mut self, now: u64) {
        self.lanes_mut().for_each(|lane| lane.set_busy_since(now));
    }

    /// What is kept with a request that is still in, be it its turn or not.
    pub(crate) fn with(&mut self, ticket: &Ticket) -> Option<&mut T> {
        self.lane_mut(ticket.lane()).with(ticket)
    }

    /// Takes a request out that still waits.
    pub(crate) fn cancel(&mut self, ticket: &Ticket) -> T {
        self.lane_mut(ticket.lane()).cancel(ticket)
    }

    /// The tenant and the lane of which a waiter is to be [taken out](Self::evict) to make room for a newcomer.
    pub(crate) fn makes_room(
        &mut self,
        (newcomer, lane): (u32, Lane),
        order: Order,
    ) -> Option<(u32, Lane)> {
        let kept = usize::from(self.floor > 0);
        let has_more_than = |many| (0..lane).find(|lane| self.waiting_in(*lane) > many);
        let (least, last) = (has_more_than(kept), has_more_than(0));
        let mut own = || {
            let waits = self.waiting_in(lane) > 0;
            waits.then(|| self.lane_mut(lane).makes_room(newcomer, order))?
        };
        if let (None, Some(tenant)) = (least, own()) {
            return Some((tenant, lane));
        }
        let least = least.or(last)?;
        let (tenant, _) = self.lane_mut(least).largest_backlog()?;
        Some((tenant, least))
    }

    /// Whether there is nobody to whom the [floor](self#the-floor) of this lane could go.
    pub(crate) fn lacks_waiter(&self, lane: Lane) -> bool {
        self.floor > 0 && self.waiting_in(lane) == 0
    }

    /// The least important lane in which this tenant has a waiter, if that matters less than this one.
    pub(crate) fn own_less_important(&self, tenant: u32, lane: Lane) -> Option<Lane> {
        let own = (self.lanes()).find(|lane| lane.state(tenant).waiting > 0)?;
        (own.lane() < lane).then_some(own.lane())
    }

    /// Takes out the waiter of this tenant in this lane that would be served last. Says since when it has waited.
    pub(crate) fn evict(&mut self, (tenant, lane): (u32, Lane), order: Order) -> (u64, T) {
        self.lane_mut(lane).evict(tenant, order)
    }
}
