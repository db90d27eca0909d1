//! The fair gate of an edge: a permit admits a request, unless the request is too old.
//!
//! ```text
//! arrive ─── nobody waits, and a permit is free ───────────► admitted ─► end
//!    │                                                          ▲
//!    └► waits (waiters.rs) ─► is next, and is not too old ──────┘
//! ```

use std::{mem, num::NonZeroU32, task::Waker, time::Duration};

use super::{
    Age, Ages, Fair, Grant, Quiet, Rejection, State, Uncharged,
    waiters::{After, Arrival, End, Serves, Urgency},
};
use crate::{
    Overloaded, Reason,
    clock::Now,
    gate::{
        foreign::Foreign,
        gate::{Gate, Slow},
        governor::Past,
        room::{Next, Room, Scene, Wakes},
        tenants::ANONYMOUS,
    },
    law::fair_queue::{Charge, Lane, Order},
    sync::{
        MutexGuard,
        Ordering::{Relaxed, Release},
        lock,
    },
};

impl Serves for Ages {
    fn next(room: &mut Fair, scene: &Scene<'_>, wakes: &mut Wakes) -> Next {
        let now = scene.now;
        room.serves.roll(scene, wakes);
        let mut next = Next::Nobody;
        while next == Next::Nobody && !wakes.is_full() {
            let Some(lane) = room.queue.next_lane() else {
                break;
            };
            let order = room.serves.order(now, lane);
            let Some((ticket, mut charge)) = room.queue.next_in(lane, order, now) else {
                break;
            };
            let who = (charge.tenant(), charge.lane());
            let (since, seat) = room.queue.begin(&ticket, &mut charge, now);
            let own = now.saturating_sub(since);
            room.note_wait(lane, own, scene.bounds);
            if let Err(rejection) = room.misses(room.seats[seat].deadline, now) {
                room.note_late(who);
                room.queue.refund(charge);
                room.reject(who, seat, rejection, scene.bounds, wakes);
                continue;
            }
            let age = Age {
                all: room.seats[seat].older.saturating_add(own),
                own,
                oldest: room.oldest_that_may_run(now),
            };
            // If it is the newest, no other would be better served. If less important requests wait, those are to be rejected.
            let spared = order == Order::NewestFirst || room.queue.has_less_important(lane);
            match room.serves.judge_next(lane, spared, scene, &age) {
                Ok(()) => {
                    room.note_started(lane);
                    let seat = &mut room.seats[seat];
                    seat.state = State::Goes(charge);
                    wakes.push(mem::replace(&mut seat.waker, Waker::noop().clone()));
                    next = Next::Goes;
                }
                Err(reason) => {
                    room.queue.refund(charge);
                    let rejection = Rejection::by_age(reason, age);
                    room.reject(who, seat, rejection, scene.bounds, wakes);
                }
            }
        }
        let somebody_waits = room.queue.waiting() > 0;
        if somebody_waits {
            room.serves.note_waiting(now);
        }
        room.note_busy(somebody_waits, now);
        next
    }

    fn publish(room: &Fair, quiet: &Quiet) {
        let until = match room.is_calm() {
            true => room.serves.quiet_until(),
            false => 0,
        };
        let below = room.serves.quiet_below() as usize;
        if quiet.below.load(Relaxed) != below {
            quiet.below.store(below, Relaxed);
        }
        if quiet.until.load(Relaxed) != until {
            quiet.until.store(until, Release);
        }
        if room.busy.since.is_none() && quiet.busy.load(Relaxed) != room.busy.total {
            quiet.busy.store(room.busy.total, Relaxed);
        }
    }

    #[inline]
    fn over(gate: &Gate<Fair>, grant: Grant, end: End, now: &mut Now) {
        gate.end(grant, end, now);
    }

    fn past(gate: &Gate<Fair>) -> Past {
        gate.governor().past()
    }

    fn running(gate: &Gate<Fair>, _: &Fair) -> usize {
        gate.load_now().0
    }

    #[inline]
    fn order(&self, now: u64, lane: Lane) -> Order {
        Self::order(self, now, lane)
    }

    fn places_for_newest(&self, lane: Lane, in_flight: usize) -> usize {
        Self::places_for_newest(self, lane, in_flight as u64)
    }

    fn note_no_place(&mut self, lane: Lane, order: Order) {
        self.count_no_place(lane, order);
    }

    fn note_late(&mut self, lane: Lane) {
        self.count_late(lane);
    }

    fn note_entering(&mut self, scene: &Scene<'_>, has_room: bool, wakes: &mut Wakes) {
        self.note_trial();
        self.roll(scene, wakes);
        if !has_room {
            self.note_waiting(scene.now);
        }
    }

    fn withdraw(room: &mut Fair, _: &Arrival, _: u32, charge: Charge, now: u64) -> bool {
        room.settle(Grant::Charged(charge), End::NotSent, now);
        false
    }

    #[inline]
    fn note_busy(room: &mut Fair, now: u64) {
        room.note_busy(room.queue.waiting() > 0, now);
    }
}

impl Fair {
    /// Whether requests without a tenant may start without the lock: there is no other tenant, none is capped, and nobody
    /// looks for tenants that do not come.
    fn is_calm(&self) -> bool {
        self.tenants.is_one() && self.queue.is_uncapped() && !self.is_looking_for_tenants()
    }

    /// Whether a request may start at once, if there is a permit, without the age law being told.
    #[inline]
    fn is_quiet(&self, now: u64, in_flight: u64, age: u64) -> bool {
        age == 0
            && now < self.serves.quiet_until()
            && in_flight < self.serves.quiet_below()
            && self.queue.is_uncapped()
    }
}

/// What a request that has come may do.
pub(crate) enum Arrived {
    /// It has a permit.
    Goes(Grant),
    Waits(Arrival),
    Rejected(Box<Overloaded>),
}

impl Gate<Fair> {
    /// A request comes, of this age, which starts at once or is to [enter](Self::enter) the room.
    #[inline]
    pub(crate) fn arrive(
        &self,
        name: Option<&str>,
        cost: NonZeroU32,
        age: u64,
        now: &mut Now,
        urgency: impl Fn(&mut Now) -> Urgency,
    ) -> Arrived {
        let at = self.clock.nanos_at(now);
        let known = self.published.asks_urgency().then(|| urgency(now));
        if name.is_none() && age == 0 && self.published.is(at) {
            if let Some(grant) = self.start_quietly(known.unwrap_or_default(), cost, at) {
                return Arrived::Goes(grant);
            }
        }
        if known.is_none() && self.load().is_open() {
            return match self.ask(name, cost, age, at, None) {
                Arrived::Waits(arrival) => self.wait(arrival.with(urgency(now))),
                arrived => arrived,
            };
        }
        let urgency = known.unwrap_or_else(|| urgency(now));
        self.ask(name, cost, age, at, Some(urgency))
    }

    /// Starts a request of no age and without a tenant, if nobody waits and the room need not be told.
    #[inline]
    fn start_quietly(&self, urgency: Urgency, cost: NonZeroU32, now: u64) -> Option<Grant> {
        let Urgency { lane, .. } = urgency;
        // Before the permit is taken: who comes to wait after that is waited for.
        let busy = self.published.busy();
        if !self.try_admit_below(self.published.below()) {
            return None;
        }
        self.published.note_started(lane);
        Some(Grant::Uncharged(Uncharged {
            tenant: ANONYMOUS,
            lane,
            cost,
            began: now,
            busy,
            is_counted: false,
        }))
    }

    /// Starts something without a tenant that does not want to wait.
    pub(crate) fn try_start(&self) -> Result<Grant, Box<Overloaded>> {
        let now = &mut Now::default();
        match self.arrive(None, NonZeroU32::MIN, 0, now, |_| Urgency::default()) {
            Arrived::Goes(grant) => Ok(grant),
            Arrived::Rejected(rejection) => Err(rejection),
            Arrived::Waits(arrival) => {
                let mut slow = lock(&self.slow);
                let rejected = self.reject_new(&mut slow, &arrival, Rejection::AT_LIMIT);
                drop(slow);
                self.bounds.report(rejected.reason());
                Err(rejected)
            }
        }
    }

    /// Without its urgency a request may start, and else has to ask whether it may [wait](Self::wait).
    #[inline(never)]
    fn ask(
        &self,
        name: Option<&str>,
        cost: NonZeroU32,
        age: u64,
        now: u64,
        urgency: Option<Urgency>,
    ) -> Arrived {
        let named = name.and_then(|name| Some((self.key(name)?, name)));
        let mut slow = lock(&self.slow);
        let mut weight = None;
        if slow.room.tenants.asks_weights() {
            (slow, weight) = self.ask_weight(slow, named.as_ref());
        }
        let Fair { tenants, queue, .. } = &mut slow.room;
        let known = tenants.tracked();
        let tenant = tenants.attach(queue, named, weight);
        if tenants.tracked() != known {
            slow.room.publish(&self.published); // there may be somebody to be fair to from now on
        }
        let in_flight = self.load().in_flight() as u64;
        let Urgency { lane, deadline } = urgency.unwrap_or_default();
        if slow.room.is_quiet(now, in_flight, age) && self.try_admit_below(usize::MAX) {
            self.published.note_started(lane);
            return Arrived::Goes(slow.room.start_uncharged((tenant, lane), cost, now));
        }
        let arrival = Arrival {
            tenant,
            lane,
            cost,
            at: now,
            older: age,
            deadline,
        };
        self.judge(slow, arrival, urgency.is_some())
    }

    /// A request cannot start, whose urgency is known by now: it may wait, or is rejected.
    #[cold]
    fn wait(&self, arrival: Arrival) -> Arrived {
        let mut slow = lock(&self.slow);
        let places = self.places(&slow, &arrival, arrival.at);
        let Err(rejection) = slow.room.may_wait(&arrival, places, arrival.at) else {
            return Arrived::Waits(arrival);
        };
        let rejected = self.reject_new(&mut slow, &arrival, rejection);
        drop(slow);
        self.bounds.report(rejected.reason());
        Arrived::Rejected(rejected)
    }

    /// Decides about a request that cannot simply start.
    #[inline(never)]
    fn judge(
        &self,
        mut slow: MutexGuard<'_, Slow<Fair>>,
        arrival: Arrival,
        knows_urgency: bool,
    ) -> Arrived {
        let mut wakes = Wakes::default();
        let arrived = match self.decide(&mut slow, &arrival, knows_urgency, &mut wakes) {
            Ok(Some(grant)) => {
                self.published.note_started(arrival.lane);
                Arrived::Goes(grant)
            }
            Ok(None) => Arrived::Waits(arrival),
            Err(rejection) => Arrived::Rejected(self.reject_new(&mut slow, &arrival, rejection)),
        };
        slow.room.publish(&self.published);
        drop(slow);
        if let Arrived::Rejected(rejected) = &arrived {
            self.bounds.report(rejected.reason());
        }
        match wakes.is_empty() {
            true => arrived,
            false => self.tell(arrived, wakes),
        }
    }

    /// Tells the log, which is foreign. If it panics, the request is gone.
    #[cold]
    fn tell(&self, arrived: Arrived, wakes: Wakes) -> Arrived {
        let mut foreign = Foreign::default();
        foreign.run(|| wakes.wake());
        if !foreign.has_panicked() {
            return arrived;
        }
        match arrived {
            Arrived::Goes(grant) => self.end(grant, End::NotSent, &mut Now::default()),
            Arrived::Waits(arrival) => self.depart(&arrival),
            Arrived::Rejected(_) => {}
        }
        foreign.finish();
        Arrived::Rejected(not_told())
    }

    /// Starts a request, lets it wait (`None`), or rejects it.
    #[inline]
    fn decide(
        &self,
        slow: &mut Slow<Fair>,
        arrival: &Arrival,
        knows_urgency: bool,
        wakes: &mut Wakes,
    ) -> Result<Option<Grant>, Rejection> {
        let &Arrival {
            tenant,
            cost,
            at: now,
            older: age,
            ..
        } = arrival;
        let word = self.load();
        if word.is_open() && slow.room.queue.may_run(tenant) {
            let in_flight = word.in_flight();
            let scene = self.scene(slow, in_flight, in_flight, now);
            let room = &mut slow.room;
            room.serves.note_trial();
            room.serves.roll(&scene, wakes);
            let age = Age {
                all: age,
                own: 0,
                oldest: room.oldest_that_may_run(now),
            };
            let judged = room.serves.judge(&scene, &age);
            judged.map_err(|reason| Rejection::by_age(reason, age))?;
            if self.try_admit_below(usize::MAX) {
                return Ok(Some(room.start(arrival.who(), cost, now)));
            }
            room.serves.forget_one();
        }
        if knows_urgency {
            let places = self.places(slow, arrival, now);
            slow.room.may_wait(arrival, places, now)?;
        }
        Ok(None)
    }
}

impl Gate<Fair> {
    /// Whether nobody waited while an admitted request was in flight, and the room need not be told that it is over.
    #[inline]
    pub(crate) fn passes(&self, grant: &Grant) -> bool {
        match grant {
            Grant::Uncharged(request) => {
                !request.is_counted
                    && request.busy == self.published.busy()
                    && !self.load().queued()
            }
            Grant::Charged(_) => false,
        }
    }

    /// How much service an admitted request has had by now.
    #[inline]
    pub(crate) fn used(&self, grant: &Grant, now: &mut Now) -> u64 {
        let now = self.clock.nanos_at(now);
        match grant {
            Grant::Uncharged(request) => request.used(now),
            Grant::Charged(charge) => charge.used(now),
        }
    }

    /// An admitted request is over: its permit goes on to the waiter that is next.
    pub(crate) fn end(&self, grant: Grant, end: End, now: &mut Now) {
        let now = self.clock.nanos_at(now);
        let mut slow = lock(&self.slow);
        match grant {
            Grant::Uncharged(request) if end == End::Served && slow.room.was_calm(&request) => {
                slow.room.finish_calm(&request, now);
                drop(slow);
                self.release(1);
            }
            grant => self.release_granted(slow, grant, end, now),
        }
    }

    #[inline(never)]
    fn release_granted(
        &self,
        mut slow: MutexGuard<'_, Slow<Fair>>,
        grant: Grant,
        end: End,
        now: u64,
    ) {
        let completed = u64::from(end != End::NotSent);
        let mut wakes = Wakes::default();
        slow.room.settle(grant, end, now);
        let all_anonymous = slow.room.all_anonymous();
        let settles = self.release_under(&mut slow, completed, now, &mut wakes);
        if all_anonymous.is_some() {
            slow.room.publish(&self.published);
        }
        drop(slow);
        self.finish(all_anonymous, After { wakes, settles });
    }
}

/// Nobody sees it: a panic goes on.
#[cold]
fn not_told() -> Box<Overloaded> {
    Box::new(Overloaded::new("edge", Reason::NotReady, Duration::ZERO))
}
