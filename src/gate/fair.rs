//! A waiting room that is fair between tenants, and rejects what has waited too long while a queue stands.
//!
//! Three laws meet here, because all of them decide at the same moment, when a permit is free: the
//! [fair queue](crate::law::fair_queue) says whose turn it is, [CoDel](crate::law::codel) whether that request is
//! too old, and the gate's limit whether there is a permit at all.
//!
//! # Who is charged
//! A request that waited is charged to its tenant when it is granted a permit: an estimate, and the difference when it
//! is over. While nobody waits there is nobody to be fair to, and requests start *uncharged*. If others wait before such
//! a request is over, its tenant is charged for that time alone. So a calm server does no accounting for the queue.
//!
//! Where a tenant may have only so many in flight (`max_in_flight_per_tenant`), every request is charged when it starts,
//! because the queue has to count it.
//!
//! # Order
//! The most important requests are next: see [`law::fair_queues`](crate::law::fair_queues). A tenant's requests of one
//! priority are next in the order of arrival. Under plain overload the newest is next, and fewer may wait: see
//! [`Ages::order`].
//!
//! While less important requests wait, those are rejected for their age first: a more important one may be older. So where the
//! important requests alone are not too many, none of them is rejected for its age.
//!
//! # What it does not do
//! - Nobody waits for CoDel's width, the number of requests in flight at which requests do not get old: at the width, what
//!   is next is rejected. A width that made requests wait would make them old, and narrow itself for that.
//! - A tenant that has no more requests waiting gives up its share. One with two clients that each send a request as soon
//!   as they have the answer to the last, and a right to two of ten permits, gets 1.82 of them: when its request is over,
//!   nothing of it waits, so the permit goes to another tenant; its next request gets the permit that is released next,
//!   on average a tenth of a service time later: 2/(1 + 1/10). To get more, a permit would have to be kept free for a request
//!   that may not come, or more be in flight than the limit allows.

mod deadlines;
mod lanes;
#[cfg(all(test, backpressure_loom))]
mod models;
mod place;
mod requests;
mod settings;
#[cfg(all(test, not(backpressure_loom)))]
mod tests;
mod turns;
mod verbs;
mod waiters;

use std::{
    mem,
    num::NonZeroU32,
    // Not the models' own: nothing is decided by these counts.
    sync::atomic::{AtomicBool, AtomicU64 as Count},
    task::Waker,
};

use self::{
    deadlines::{LeastService, Turnover},
    lanes::Lanes,
};
pub use self::{lanes::PrioritySnapshot, turns::Snapshot as TurnSnapshot};
pub(crate) use self::{
    place::{Granted, Place},
    requests::Arrived,
    settings::{Snapshot, check_floor},
    turns::{Begun, From, Look, Turns},
    verbs::tenant_verbs,
    waiters::{After, Arrival, End, Fate, Serves, Urgency},
};
use super::{
    ages::{Age, Ages},
    bounds::Bounds,
    fingerprint::Fingerprints,
    room::{Next, Room, Scene, Wakes},
    tenants::{ANONYMOUS, Recent, Tenants},
};
use crate::{
    Reason,
    law::{
        fair_queue::{Charge, Lane, Order, Ticket},
        fair_queues::{FairQueues, LANES},
        slab::Slab,
    },
    sync::{
        AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed},
    },
};

/// `S` says what a free permit is good for. With [`Ages`] it admits a request, unless that is too old; with
/// [`Turns`] it is the turn to see whether the service is ready.
pub(crate) struct Fair<S = Ages> {
    queue: FairQueues<u32>,
    /// One for each request that has not yet heard what became of it. The queue knows their numbers.
    seats: Slab<Seat>,
    tenants: Tenants,
    fingerprints: Fingerprints,
    serves: S,
    lanes: Box<Lanes>,
    turnover: Turnover,
    least_service: LeastService,
    max_waiting_per_tenant: usize,
    busy: Busy,
    /// How many of those that were counted here are done, and what all tenants used together.
    served: u64,
    recent: Recent,
    refused: u64,
    /// Whether the log was told that no request has a tenant.
    told_anonymous: bool,
}

/// What became of a request that came to wait, and who is to be woken when that is known.
struct Seat {
    waker: Waker,
    /// How old it was when it came, in nanoseconds.
    older: u64,
    /// When nobody waits for its answer any more.
    deadline: Option<u64>,
    state: State,
}

enum State {
    Waits(Ticket),
    /// It has a permit.
    Goes(Charge),
    Rejected(Rejection),
}

#[derive(Clone, Copy, Debug)]
struct Rejection {
    reason: Reason,
    /// What is known of when to come back, if it was too old.
    age: Option<Age>,
}

/// What an admitted request holds beside the permit. Whatever takes it back settles it.
#[derive(Debug)]
#[must_use = "a grant that is not settled counts as a request that is in flight for ever"]
pub(crate) enum Grant {
    /// Its tenant was charged.
    Charged(Charge),
    Uncharged(Uncharged),
}

/// A request that started while nobody waited.
#[derive(Debug)]
pub(crate) struct Uncharged {
    tenant: u32,
    lane: Lane,
    cost: NonZeroU32,
    began: u64,
    /// What [`Busy`] showed then.
    busy: u64,
    /// Whether the room was told, and counts it.
    is_counted: bool,
}

impl Rejection {
    const QUEUE_FULL: Self = Self {
        reason: Reason::QueueFull,
        age: None,
    };
    const AT_LIMIT: Self = Self {
        reason: Reason::AtLimit,
        age: None,
    };
    const TIMED_OUT: Self = Self {
        reason: Reason::WaitTimeout,
        age: None,
    };
    const DISPLACED: Self = Self {
        reason: Reason::Displaced,
        age: None,
    };
    const EXPIRED: Self = Self {
        reason: Reason::Deadline,
        age: None,
    };
    const LATE: Self = Self {
        reason: Reason::WouldBeLate,
        age: None,
    };

    fn by_age(reason: Reason, age: Age) -> Self {
        let age = (reason == Reason::TooOld).then_some(age);
        Self { reason, age }
    }
}

impl Uncharged {
    fn took(&self, now: u64) -> u64 {
        now.saturating_sub(self.began)
    }

    /// Nothing is free, see [`Charge::used`].
    fn used(&self, now: u64) -> u64 {
        self.took(now).max(1).saturating_mul(self.cost.get().into())
    }
}

/// How long somebody has waited so far: a clock that stands still while nobody does.
#[derive(Debug, Default)]
struct Busy {
    /// Of the times that are over, in nanoseconds.
    total: u64,
    /// Since when somebody waits, if somebody does.
    since: Option<u64>,
}

impl Busy {
    fn total(&self, now: u64) -> u64 {
        let current = self.since.map_or(0, |since| now.saturating_sub(since));
        self.total + current
    }

    /// Whether somebody has waited since it showed this.
    fn has_begun_since(&self, total: u64) -> bool {
        self.since.is_some() || self.total > total
    }

    #[inline]
    fn note(&mut self, somebody_waits: bool, now: u64) {
        match (self.since, somebody_waits) {
            (None, true) => self.since = Some(now),
            (Some(_), false) => {
                self.total = self.total(now);
                self.since = None;
            }
            _ => {}
        }
    }
}

/// Where a request may wait.
enum FoundPlace {
    Free,
    /// A waiter of this tenant in this lane makes room: the one that would be served last.
    Of {
        tenant: u32,
        lane: Lane,
        order: Order,
    },
}

/// What is known of a fair room without its lock.
pub(crate) struct Quiet {
    /// What tenants are known by is made before the lock is taken.
    fingerprints: Fingerprints,
    /// Until when a request of no age and without a tenant may start without the lock, if fewer than that are in flight. 0
    /// while there are tenants to be told apart.
    until: AtomicU64,
    below: AtomicUsize,
    /// [`Busy::total`] while nobody waits.
    busy: AtomicU64,
    /// Whether requests are asked for their urgency before they start. Otherwise those are that may have to wait.
    asks_urgency: AtomicBool,
    /// How many of each priority were started at once, as far as they were asked.
    started: [Count; LANES],
}

impl Quiet {
    /// Every request takes the lock.
    fn never(fingerprints: Fingerprints) -> Self {
        Self {
            fingerprints,
            until: AtomicU64::new(0),
            below: AtomicUsize::new(0),
            busy: AtomicU64::new(0),
            asks_urgency: AtomicBool::new(false),
            started: [const { Count::new(0) }; LANES],
        }
    }

    fn fingerprints(&self) -> &Fingerprints {
        &self.fingerprints
    }

    #[inline]
    fn is(&self, now: u64) -> bool {
        now < self.until.load(Acquire)
    }

    #[inline]
    fn below(&self) -> usize {
        self.below.load(Relaxed)
    }

    #[inline]
    fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    #[inline]
    fn asks_urgency(&self) -> bool {
        self.asks_urgency.load(Relaxed)
    }

    /// A request of this priority starts without having waited. Says whether that is counted.
    #[inline]
    fn note_started(&self, lane: Lane) -> bool {
        let counts = self.asks_urgency();
        if counts {
            self.started[usize::from(lane)].fetch_add(1, Relaxed);
        }
        counts
    }

    /// It waits after all.
    fn forget_started(&self, lane: Lane) {
        self.started[usize::from(lane)].fetch_sub(1, Relaxed);
    }

    fn started(&self) -> [u64; LANES] {
        std::array::from_fn(|lane| self.started[lane].load(Relaxed))
    }
}

impl<S: Serves> Fair<S> {
    /// How long the oldest waiter that may be next has waited.
    #[inline]
    fn oldest_that_may_run(&self, now: u64) -> Option<u64> {
        let oldest = self.queue.oldest_that_may_run();
        oldest.map(|since| now.saturating_sub(since))
    }

    fn note_busy(&mut self, somebody_waits: bool, now: u64) {
        if somebody_waits && self.busy.since.is_none() {
            self.queue.set_busy_since(now);
        }
        self.busy.note(somebody_waits, now);
        self.turnover.note_next(self.queue.has_next(), now);
    }

    /// Whether there is a place for one more request of so many, or another waiter that has to make one.
    fn place(&mut self, arrival: &Arrival, places: usize, now: u64) -> Option<FoundPlace> {
        let &Arrival { tenant, lane, .. } = arrival;
        let queue = &mut self.queue;
        let made_by = if queue.state(tenant).waiting as usize >= self.max_waiting_per_tenant {
            (queue.own_less_important(tenant, lane)).map(|own| (tenant, own))
        } else if queue.waiting() >= places {
            queue.makes_room((tenant, lane), self.serves.order(now, lane))
        } else {
            return Some(FoundPlace::Free);
        };
        made_by.map(|(tenant, lane)| FoundPlace::Of {
            tenant,
            lane,
            order: self.serves.order(now, lane),
        })
    }

    /// Lets a request wait for which there is [a place](Self::place). Another that has to make it is rejected, and is to be
    /// woken.
    fn push(
        &mut self,
        arrival: &Arrival,
        waker: Waker,
        place: FoundPlace,
        scene: &Scene<'_>,
        wakes: &mut Wakes,
    ) -> u32 {
        let &Arrival {
            tenant,
            lane,
            cost,
            at,
            older,
            deadline,
        } = arrival;
        if let FoundPlace::Of {
            tenant,
            lane: least,
            order,
        } = place
        {
            let (since, seat) = self.queue.evict((tenant, least), order);
            self.note_wait(least, scene.now.saturating_sub(since), scene.bounds);
            let rejection = match least < lane {
                true => Rejection::DISPLACED,
                false => Rejection::QUEUE_FULL,
            };
            self.reject((tenant, least), seat, rejection, scene.bounds, wakes);
            self.note_no_place((tenant, least), order);
        }
        let seat = self.seats.insert(Seat {
            waker,
            older,
            deadline,
            state: State::Rejected(Rejection::QUEUE_FULL), // until it has a ticket
        });
        let ticket = self.queue.push((tenant, lane), cost, at, seat);
        self.seats[seat].state = State::Waits(ticket);
        S::note_busy(self, scene.now);
        seat
    }

    /// A waiter starts.
    fn note_started(&mut self, lane: Lane) {
        self.queue.note_started(lane);
        self.lanes.note_started(lane);
        self.turnover.note_served();
    }

    /// A wait is over.
    fn note_wait(&mut self, lane: Lane, waited: u64, bounds: &Bounds) {
        bounds.waits.record(waited);
        self.lanes.note_wait(lane, waited);
    }

    /// A request of this tenant was rejected, because there was no place for it. That shows a queue, unless the tenant waits
    /// for its own others.
    fn note_no_place(&mut self, (tenant, lane): (u32, Lane), order: Order) {
        if self.queue.may_run(tenant) {
            self.serves.note_no_place(lane, order);
        }
    }

    /// A request that the queue has let go of is rejected.
    fn reject(
        &mut self,
        who: (u32, Lane),
        seat: u32,
        rejection: Rejection,
        bounds: &Bounds,
        wakes: &mut Wakes,
    ) {
        self.count_rejection(who, rejection.reason, bounds);
        let seat = &mut self.seats[seat];
        seat.state = State::Rejected(rejection);
        wakes.push(mem::replace(&mut seat.waker, Waker::noop().clone()));
    }

    fn count_rejection(&mut self, (tenant, lane): (u32, Lane), reason: Reason, bounds: &Bounds) {
        bounds.count(reason);
        self.tenants.note_rejected(tenant);
        self.lanes.note_rejected(lane, reason);
    }

    /// Whether some tenants have a weight, none of them has come, and the log was not told that yet.
    #[inline]
    fn is_looking_for_tenants(&self) -> bool {
        !self.told_anonymous && self.tenants.lacks_names()
    }

    /// Whether nobody has waited since a request started.
    #[inline]
    fn was_calm(&self, request: &Uncharged) -> bool {
        request.is_counted
            && (request.tenant != ANONYMOUS || !self.is_looking_for_tenants())
            && self.busy.since.is_none()
            && self.busy.total == request.busy
    }

    /// A request is over that was served while nobody waited.
    #[inline]
    fn finish_calm(&mut self, request: &Uncharged, now: u64) {
        let (used, epoch) = (request.used(now), Recent::epoch(now));
        self.served += 1;
        self.recent.add(used, epoch);
        let who = (request.tenant, request.lane);
        self.queue.end_uncharged(who, request.cost);
        self.queue.learn(who, request.took(now));
        self.tenants.finish(request.tenant, used, epoch);
    }

    /// Starts a request of an attached tenant, for which there is a permit.
    fn start(&mut self, who: (u32, Lane), cost: NonZeroU32, now: u64) -> Grant {
        if !self.queue.is_uncapped() {
            return Grant::Charged(self.queue.begin_at_once(who, cost, now));
        }
        self.start_uncharged(who, cost, now)
    }

    #[inline]
    fn start_uncharged(&mut self, who: (u32, Lane), cost: NonZeroU32, now: u64) -> Grant {
        self.queue.begin_uncharged(who, cost);
        let (tenant, lane) = who;
        Grant::Uncharged(Uncharged {
            tenant,
            lane,
            cost,
            began: now,
            busy: self.busy.total(now),
            is_counted: true,
        })
    }

    /// A request is over that had a permit.
    fn settle(&mut self, grant: Grant, end: End, now: u64) {
        match grant {
            Grant::Charged(charge) => self.settle_charge(charge, end, now),
            Grant::Uncharged(uncharged) => self.settle_uncharged(&uncharged, end, now),
        }
    }

    fn settle_charge(&mut self, charge: Charge, end: End, now: u64) {
        let tenant = charge.tenant();
        match end {
            End::Served => {
                self.note_took(charge.took(now), now);
                let used = self.queue.finish(charge, now);
                self.note_served(tenant, 1, used, now);
            }
            End::ServiceRefused => {
                let used = self.queue.refuse(charge, now);
                self.note_served(tenant, 0, used, now);
                self.note_refused(tenant);
            }
            End::Refused => {
                self.queue.refund(charge);
                self.note_refused(tenant);
            }
            End::NotSent | End::Released => self.queue.refund(charge),
        }
        self.tenants.detach(tenant);
    }

    fn settle_uncharged(&mut self, request: &Uncharged, end: End, now: u64) {
        let (tenant, lane) = (request.tenant, request.lane);
        let took = request.took(now);
        // Of what it had while others waited nothing is free, see `Charge::used`.
        let others_waited = match self.busy.has_begun_since(request.busy) {
            true => (self.busy.total(now).saturating_sub(request.busy))
                .min(took)
                .max(1),
            false => 0,
        };
        let charged = others_waited.saturating_mul(request.cost.get().into());
        if request.is_counted {
            self.queue.end_uncharged((tenant, lane), request.cost);
        }
        match end {
            End::Served => {
                self.note_took(took, now);
                self.queue.learn((tenant, lane), took);
                self.note_served(tenant, 1, request.used(now), now);
            }
            End::ServiceRefused => {
                self.note_served(tenant, 0, request.used(now), now);
                self.note_refused(tenant);
            }
            End::Refused => self.note_refused(tenant),
            End::NotSent | End::Released => {}
        }
        if charged > 0 && matches!(end, End::Served | End::ServiceRefused) {
            self.queue.charge_late((tenant, lane), charged);
        }
        if request.is_counted {
            self.tenants.detach(tenant);
        }
    }

    #[inline]
    fn note_took(&mut self, took: u64, now: u64) {
        if self.busy.since.is_some() {
            self.least_service.note(took, now);
        }
    }

    fn note_served(&mut self, tenant: u32, served: u64, used: u64, now: u64) {
        let epoch = Recent::epoch(now);
        self.served += served;
        self.recent.add(used, epoch);
        self.tenants.note_served(tenant, served, used, epoch);
    }

    fn note_refused(&mut self, tenant: u32) {
        self.refused += 1;
        self.tenants.note_refused(tenant);
    }
}

impl<S: Serves> Room for Fair<S> {
    const NEEDS_TIME: bool = true;

    type Published = Quiet;

    #[inline]
    fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    fn oldest(&self) -> Option<u64> {
        self.queue.oldest()
    }

    #[inline]
    fn has_next(&self) -> bool {
        self.queue.has_next()
    }

    #[inline]
    fn next(&mut self, scene: &Scene<'_>, wakes: &mut Wakes) -> Next {
        S::next(self, scene, wakes)
    }

    fn published(&self) -> Quiet {
        let quiet = Quiet::never(self.fingerprints.clone());
        self.publish(&quiet);
        quiet
    }

    #[inline]
    fn publish(&self, quiet: &Quiet) {
        if !self.queue.is_single() && !quiet.asks_urgency() {
            quiet.asks_urgency.store(true, Relaxed); // there are several priorities from now on
        }
        S::publish(self, quiet);
    }
}
