//! How requests wait at a fair gate, whatever a permit of it is good for.
//!
//! ```text
//! enter ─► waits in a seat ─► the gate hands it a permit ─► look ─► admitted, or has the turn
//!             │                                              │
//!             └─► leave, or expire                           └─► rejected
//! ```

use std::{mem, num::NonZeroU32, task::Waker, time::Duration};

use super::{Fair, FoundPlace, Grant, Quiet, Rejection, Seat, State};
use crate::{
    BoxError, Deadline, Overloaded, Priority, Reason,
    clock::Now,
    gate::{
        bounds::nanos,
        fingerprint::Fingerprint,
        foreign::Foreign,
        gate::{Gate, Slow},
        governor::Past,
        room::{Next, Room, Scene, Wakes},
        tenants::{ask_weight, check_name},
    },
    law::{
        fair_queue::{Charge, Lane, Order, Ticket},
        fair_queues::MAIN,
    },
    observe::events,
    sync::{MutexGuard, lock},
};

/// If so many were served and none of them had a tenant, none will.
const ENOUGH: u64 = 100;

/// A request that has come and has to wait. The number of its tenant stays until the request is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(super) tenant: u32,
    pub(super) lane: Lane,
    pub(super) cost: NonZeroU32,
    pub(super) at: u64,
    /// How old it was when it came, in nanoseconds.
    pub(super) older: u64,
    pub(super) deadline: Option<u64>,
}

impl Arrival {
    pub(crate) fn with(self, Urgency { lane, deadline }: Urgency) -> Self {
        Self {
            lane,
            deadline,
            ..self
        }
    }

    pub(super) fn who(&self) -> (u32, Lane) {
        (self.tenant, self.lane)
    }
}

/// How urgent a request is, as far as it says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Urgency {
    pub(super) lane: Lane,
    /// When nobody waits for its answer any more, in nanoseconds of the gate's clock.
    pub(super) deadline: Option<u64>,
}

impl Default for Urgency {
    fn default() -> Self {
        Self {
            lane: MAIN,
            deadline: None,
        }
    }
}

/// A request that waits, or waited.
pub(crate) struct Entered {
    pub(crate) seat: u32,
    /// Whether it is known by now what becomes of it.
    pub(crate) is_decided: bool,
    /// Who is to be woken when the seat has an owner.
    pub(crate) after: After,
}

/// What became of a request that waits.
pub(crate) enum Fate {
    Waits,
    /// It has a permit.
    Goes(Grant),
    Rejected(Box<Overloaded>),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Served,
    /// A layer further in rejected it, before the service was called.
    Refused,
    /// The service was called, and failed with a rejection that came from further in.
    ServiceRefused,
    /// It was not sent at all.
    NotSent,
    /// It was no request, but a permit that a handle had taken.
    Released,
}

impl End {
    /// Of a request that was sent, and ended with this error.
    pub(crate) fn of(error: &BoxError) -> Self {
        match Overloaded::find(error.as_ref()) {
            None => Self::Served,
            Some(rejection) if rejection.rejected_here() => Self::Refused,
            Some(_) => Self::ServiceRefused,
        }
    }
}

/// What is to be done after the lock is released.
#[derive(Default)]
#[must_use]
pub(crate) struct After {
    pub(super) wakes: Wakes,
    /// More waiters may go than could be granted a permit under one lock.
    pub(super) settles: bool,
}

impl After {
    /// Not under a lock.
    pub(crate) fn run<S: Serves>(self, gate: &Gate<Fair<S>>) {
        if self.settles {
            let mut foreign = Foreign::default();
            foreign.run(|| self.wakes.wake());
            foreign.run(|| gate.settle());
            foreign.finish();
        } else {
            self.wakes.wake();
        }
    }
}

/// What a permit that is granted is good for.
pub(crate) trait Serves: Sized {
    /// See [`Room::next`].
    fn next(room: &mut Fair<Self>, scene: &Scene<'_>, wakes: &mut Wakes) -> Next;

    /// See [`Room::publish`]. Unless this says otherwise, every request takes the lock.
    #[inline]
    fn publish(room: &Fair<Self>, quiet: &Quiet) {
        let _ = (room, quiet);
    }

    /// A request that was granted a permit is over.
    fn over(gate: &Gate<Fair<Self>>, grant: Grant, end: End, now: &mut Now);

    /// Which of a tenant's waiters in this lane is next: the oldest, unless this says otherwise.
    #[inline]
    fn order(&self, now: u64, lane: Lane) -> Order {
        let _ = (now, lane);
        Order::OldestFirst
    }

    /// How many may wait, if the newest is first.
    fn places_for_newest(&self, lane: Lane, in_flight: usize) -> usize {
        let _ = (lane, in_flight);
        usize::MAX
    }

    /// More came to wait than there are places, and one was rejected.
    fn note_no_place(&mut self, lane: Lane, order: Order) {
        let _ = (lane, order);
    }

    /// A request was rejected because of its deadline, for so long a wait.
    fn note_late(&mut self, lane: Lane, wait: u64) {
        let _ = (lane, wait);
    }

    /// A request comes to wait.
    fn note_entering(&mut self, scene: &Scene<'_>, has_room: bool, wakes: &mut Wakes) {
        let _ = (scene, has_room, wakes);
    }

    /// A request that was granted a permit has not picked it up, and is gone. Says whether its wait was not over.
    fn withdraw(
        room: &mut Fair<Self>,
        arrival: &Arrival,
        seat: u32,
        charge: Charge,
        now: u64,
    ) -> bool;

    /// How many wait has changed.
    fn note_busy(room: &mut Fair<Self>, now: u64);

    /// What was served without the room having been told.
    fn past(_: &Gate<Fair<Self>>) -> Past {
        Past::default()
    }

    /// How many requests run, whether or not the room was told.
    fn running(_: &Gate<Fair<Self>>, room: &Fair<Self>) -> usize {
        room.queue.running()
    }

    /// How many requests are done, if the gate has completed so many.
    fn done(_: &Fair<Self>, completed: u64) -> u64 {
        completed
    }
}

impl<S: Serves> Gate<Fair<S>> {
    /// Asks for the weight of a tenant that is not known yet, without the lock.
    #[cold]
    pub(super) fn ask_weight<'a>(
        &'a self,
        slow: MutexGuard<'a, Slow<Fair<S>>>,
        named: Option<&(Fingerprint, &str)>,
    ) -> (MutexGuard<'a, Slow<Fair<S>>>, Option<u32>) {
        let Some((key, name)) = named else {
            return (slow, None);
        };
        let mut slow = slow;
        while let Some(weight_of) = slow.room.tenants.must_ask_weight(key) {
            drop(slow);
            let weight = ask_weight(&weight_of, name);
            slow = lock(&self.slow);
            if slow.room.tenants.has_weight_of(&weight_of) {
                return (slow, Some(weight));
            }
            drop(slow);
            drop(weight_of); // it was replaced, and is foreign
            slow = lock(&self.slow);
        }
        (slow, None)
    }

    /// A request that has come waits from now on, if there is a place for it.
    pub(crate) fn enter(
        &self,
        arrival: &Arrival,
        waker: Waker,
    ) -> Result<Entered, Box<Overloaded>> {
        let now = self.clock.nanos(); // not under the lock
        let mut wakes = Wakes::default();
        let mut slow = lock(&self.slow);
        let word = self.load();
        let places = self.places(&slow, arrival, now);
        let place = match slow.room.may_wait(arrival, places, now) {
            Ok(place) => place,
            Err(rejection) => {
                let rejected = self.reject(&mut slow, arrival.who(), rejection, now);
                drop(slow);
                drop(waker);
                self.bounds.report(rejected.reason());
                return Err(rejected);
            }
        };
        let scene = self.scene(&slow, word.in_flight(), word.in_flight(), now);
        let room = &mut slow.room;
        room.serves
            .note_entering(&scene, word.has_room(), &mut wakes);
        // It looks for itself what became of it by now, and need not be woken for that.
        let nobody = Waker::noop().clone();
        let seat = room.push(arrival, nobody, place, &scene, &mut wakes);
        let settles = self.grant_free(&mut slow, now, &mut wakes);
        let entered = &mut slow.room.seats[seat];
        let is_decided = !matches!(entered.state, State::Waits(_));
        let mut unused = Some(waker);
        if !is_decided {
            entered.waker = unused.take().expect("not used yet");
        }
        slow.room.publish(&self.published);
        drop(slow);
        drop(unused);
        let after = After { wakes, settles };
        Ok(Entered {
            seat,
            is_decided,
            after,
        })
    }

    /// What became of a request that waits. As long as nothing has, `waker` is the one that is woken when it does.
    pub(crate) fn look(&self, arrival: &Arrival, seat: u32, waker: &Waker) -> Fate {
        let mut fresh = None;
        loop {
            let mut slow = lock(&self.slow);
            let waits = &mut slow.room.seats[seat];
            if !matches!(waits.state, State::Waits(_)) {
                return self.take_fate(slow, arrival, seat);
            }
            if waits.waker.will_wake(waker) {
                return Fate::Waits;
            }
            if let Some(fresh) = fresh.take() {
                let old = mem::replace(&mut waits.waker, fresh);
                drop(slow);
                drop(old);
                return Fate::Waits;
            }
            drop(slow);
            fresh = Some(waker.clone()); // not under the lock
        }
    }

    /// How urgent a request is that says so.
    pub(crate) fn urgency(
        &self,
        priority: Priority,
        deadline: Option<Deadline>,
        now: &mut Now,
    ) -> Urgency {
        let deadline = deadline.map(|deadline| {
            let left = deadline.instant().saturating_duration_since(now.instant());
            self.clock.nanos_at(now).saturating_add(nanos(left))
        });
        Urgency {
            lane: priority as Lane,
            deadline,
        }
    }

    /// How long a request may wait from now on, if there is a bound.
    pub(crate) fn longest_wait(&self, arrival: &Arrival) -> Option<Duration> {
        let left = arrival.deadline.map(|deadline| {
            let now = self.clock.nanos();
            Duration::from_nanos(deadline.saturating_sub(now))
        });
        self.bounds.max_wait().into_iter().chain(left).min()
    }

    /// A request has waited as long as it may: it is rejected, unless it is decided already what becomes of it.
    pub(crate) fn expire(&self, arrival: &Arrival, seat: u32) -> Fate {
        let now = self.clock.nanos();
        let mut slow = lock(&self.slow);
        let State::Waits(ticket) = slow.room.seats[seat].state else {
            return self.take_fate(slow, arrival, seat);
        };
        self.cancel(&mut slow, arrival, &ticket, now);
        let rejection = Rejection::timed_out(arrival, now);
        if rejection.reason == Reason::Deadline {
            let waited = now.saturating_sub(arrival.at);
            slow.room.note_late(arrival.who(), waited);
        }
        (slow.room).count_rejection(arrival.who(), rejection.reason, &self.bounds);
        let expired = &mut slow.room.seats[seat];
        expired.state = State::Rejected(rejection);
        let waker = mem::replace(&mut expired.waker, Waker::noop().clone());
        slow.room.publish(&self.published);
        drop(slow);
        drop(waker);
        Fate::Rejected(self.take_rejection(arrival, seat, rejection))
    }

    /// Of a request for which it is decided.
    pub(super) fn take_fate(
        &self,
        mut slow: MutexGuard<'_, Slow<Fair<S>>>,
        arrival: &Arrival,
        seat: u32,
    ) -> Fate {
        if let State::Rejected(rejection) = slow.room.seats[seat].state {
            drop(slow);
            return Fate::Rejected(self.take_rejection(arrival, seat, rejection));
        }
        match slow.room.seats.remove(seat).state {
            State::Goes(charge) => Fate::Goes(Grant::Charged(charge)),
            _ => unreachable!("it is decided"),
        }
    }

    /// Of a request that was rejected and counted. It owns its seat until the log was told, which is foreign: if that
    /// panics, the request [leaves](Self::leave).
    pub(super) fn take_rejection(
        &self,
        arrival: &Arrival,
        seat: u32,
        rejection: Rejection,
    ) -> Box<Overloaded> {
        self.bounds.report(rejection.reason);
        let now = self.clock.nanos();
        let mut slow = lock(&self.slow);
        slow.room.seats.remove(seat);
        let rejected = self.rejection(&mut slow, arrival.who(), rejection, now);
        slow.room.tenants.detach(arrival.tenant);
        slow.room.publish(&self.published);
        rejected
    }

    /// A request that waits is gone, or one that was granted a permit and has not picked it up.
    pub(crate) fn leave(&self, arrival: &Arrival, seat: u32) {
        let now = self.clock.nanos();
        let mut slow = lock(&self.slow);
        let Seat { state, waker, .. } = slow.room.seats.remove(seat);
        match state {
            State::Goes(charge) => {
                if S::withdraw(&mut slow.room, arrival, seat, charge, now) {
                    let waited = now.saturating_sub(arrival.at);
                    slow.room.note_wait(arrival.lane, waited, &self.bounds);
                }
                let mut wakes = Wakes::default();
                let settles = self.release_under(&mut slow, 0, now, &mut wakes);
                drop(slow);
                return After { wakes, settles }.run(self); // its own waker was taken when it was granted a permit
            }
            State::Waits(ticket) => self.cancel(&mut slow, arrival, &ticket, now),
            State::Rejected(_) => {}
        }
        slow.room.tenants.detach(arrival.tenant);
        slow.room.publish(&self.published);
        drop(slow);
        drop(waker);
    }

    /// A waiter gives up.
    pub(super) fn cancel(
        &self,
        slow: &mut Slow<Fair<S>>,
        arrival: &Arrival,
        ticket: &Ticket,
        now: u64,
    ) {
        slow.room.queue.cancel(ticket);
        S::note_busy(&mut slow.room, now);
        let waited = now.saturating_sub(arrival.at);
        slow.room.note_wait(arrival.lane, waited, &self.bounds);
        self.note_left(slow);
    }

    /// A request that came, but never waited, is gone.
    pub(crate) fn depart(&self, arrival: &Arrival) {
        let mut slow = lock(&self.slow);
        slow.room.tenants.detach(arrival.tenant);
        slow.room.publish(&self.published);
    }

    /// After the lock. Tells the log if no request of a hundred had a tenant although some tenants have a weight.
    #[inline]
    pub(super) fn finish(&self, all_anonymous: Option<u64>, after: After) {
        match all_anonymous {
            None => after.run(self),
            Some(served) => self.tell_anonymous(served, after),
        }
    }

    #[cold]
    fn tell_anonymous(&self, served: u64, after: After) {
        let mut foreign = Foreign::default();
        foreign.run(|| after.run(self));
        foreign.run(|| events::all_anonymous(self.bounds.name(), served));
        foreign.finish();
    }

    /// A name that is empty or too long is none.
    pub(super) fn key(&self, name: &str) -> Option<Fingerprint> {
        check_name(name).ok()?;
        Some(self.published.fingerprints().of(name))
    }

    /// How many may wait when a request comes. Where the newest is first, the oldest makes way as soon as more wait than can be
    /// served soon.
    pub(super) fn places(&self, slow: &Slow<Fair<S>>, arrival: &Arrival, now: u64) -> usize {
        let Fair { serves, queue, .. } = &slow.room;
        let (lane, max_waiting) = (arrival.lane, self.bounds.max_waiting());
        match serves.order(now, lane) {
            Order::OldestFirst => max_waiting,
            Order::NewestFirst if queue.lacks_waiter(lane) => max_waiting,
            Order::NewestFirst => {
                max_waiting.min(serves.places_for_newest(lane, self.load().in_flight()))
            }
        }
    }

    /// Rejects a request that has not waited. That is yet to be reported.
    pub(super) fn reject_new(
        &self,
        slow: &mut Slow<Fair<S>>,
        arrival: &Arrival,
        rejection: Rejection,
    ) -> Box<Overloaded> {
        let rejected = self.reject(slow, arrival.who(), rejection, arrival.at);
        slow.room.tenants.detach(arrival.tenant);
        slow.room.publish(&self.published);
        rejected
    }

    /// Counts a rejection, and makes it.
    pub(super) fn reject(
        &self,
        slow: &mut Slow<Fair<S>>,
        who: (u32, Lane),
        rejection: Rejection,
        now: u64,
    ) -> Box<Overloaded> {
        slow.room
            .count_rejection(who, rejection.reason, &self.bounds);
        self.rejection(slow, who, rejection, now)
    }

    /// Where the age does not tell when to come back, it is when all that is more important and all that the tenant has
    /// waiting is served, at its share of the rate at which requests were served lately.
    pub(super) fn rejection(
        &self,
        slow: &mut Slow<Fair<S>>,
        (tenant, lane): (u32, Lane),
        Rejection { reason, age }: Rejection,
        now: u64,
    ) -> Box<Overloaded> {
        let retry_after = match age {
            Some(age) => age.retry_after(),
            None => {
                let ahead = slow.room.queue.ahead(tenant, lane);
                let done = S::done(&slow.room, self.completed_by(slow));
                (slow.drain_rate).wait(Duration::from_nanos(now), done, ahead)
            }
        };
        Box::new(Overloaded::new(self.bounds.name(), reason, retry_after))
    }
}

impl<S: Serves> Fair<S> {
    /// Whether a request may wait.
    pub(super) fn may_wait(
        &mut self,
        arrival: &Arrival,
        places: usize,
        now: u64,
    ) -> Result<FoundPlace, Rejection> {
        self.would_miss(arrival, now)?;
        self.place(arrival, places, now).ok_or_else(|| {
            let order = self.serves.order(now, arrival.lane);
            self.note_no_place(arrival.who(), order);
            Rejection::QUEUE_FULL
        })
    }
}

impl<S> Fair<S> {
    /// How many were served, if none of them had a tenant although there are weights for some. Says so once.
    #[inline]
    pub(super) fn all_anonymous(&mut self) -> Option<u64> {
        if self.told_anonymous || !self.tenants.lacks_names() {
            return None;
        }
        let served = self.tenants.served_anonymous();
        self.told_anonymous = served >= ENOUGH;
        self.told_anonymous.then_some(served)
    }
}
