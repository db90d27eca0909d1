//! How requests come to a fair gate, wait, start and end.
//!
//! ```text
//! arrive ─── nobody waits, and a permit is free ───────────────────────────► admitted ─► end
//!    │                                                                          ▲
//!    └► enter ─► waits in a seat ─► the gate hands it a permit ─► look ─────────┘
//!                   │                                              │
//!                   └─► leave, or expire                           └─► rejected
//! ```

use std::{mem, num::NonZeroU32, task::Waker, time::Duration};

use super::{Age, Ages, Fair, Grant, Quiet, Rejection, Seat, State, Uncharged};
use crate::{
    BoxError, Overloaded, Reason,
    clock::Now,
    gate::{
        fingerprint::Fingerprint,
        foreign::Foreign,
        gate::{Gate, Slow},
        room::{Room, Scene, Wakes},
        tenants::{ANONYMOUS, ask_weight, check_name},
    },
    law::fair_queue::{Charge, Ticket},
    observe::events,
    sync::{MutexGuard, lock},
};

/// If so many were served and none of them had a tenant, none will.
const ENOUGH: u64 = 100;

/// A request that has come and has to wait. The number of its tenant stays until the request is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(super) tenant: u32,
    pub(super) cost: NonZeroU32,
    pub(super) at: u64,
    /// How old it was when it came, in nanoseconds.
    pub(super) older: u64,
}

/// What a request that has come may do.
pub(crate) enum Arrived {
    /// It has a permit.
    Goes(Grant),
    Waits(Arrival),
    Rejected(Box<Overloaded>),
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
#[must_use]
pub(crate) struct After {
    pub(super) wakes: Wakes,
    /// More waiters may go than could be granted a permit under one lock.
    pub(super) settles: bool,
}

impl After {
    /// Not under a lock.
    pub(crate) fn run<S>(self, gate: &Gate<Fair<S>>)
    where
        Fair<S>: Room,
    {
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

impl Gate<Fair> {
    /// A request comes, of this age, which starts at once or is to [enter](Self::enter) the room.
    #[inline]
    pub(crate) fn arrive(
        &self,
        name: Option<&str>,
        cost: NonZeroU32,
        age: u64,
        now: &mut Now,
    ) -> Arrived {
        let now = self.clock.nanos_at(now);
        if name.is_none() && age == 0 && self.published.is(now) {
            // Before the permit is taken: who comes to wait after that is waited for.
            let busy = self.published.busy();
            if self.try_admit_below(self.published.below()) {
                return Arrived::Goes(Grant::Uncharged(Uncharged {
                    tenant: ANONYMOUS,
                    cost,
                    began: now,
                    busy,
                    is_counted: false,
                }));
            }
        }
        self.ask(name, cost, age, now)
    }

    /// Starts something without a tenant that does not want to wait.
    pub(crate) fn try_start(&self) -> Result<Grant, Box<Overloaded>> {
        match self.arrive(None, NonZeroU32::MIN, 0, &mut Now::default()) {
            Arrived::Goes(grant) => Ok(grant),
            Arrived::Rejected(rejection) => Err(rejection),
            Arrived::Waits(arrival) => {
                let mut slow = lock(&self.slow);
                let rejected =
                    self.reject(&mut slow, arrival.tenant, Rejection::AT_LIMIT, arrival.at);
                slow.room.tenants.detach(arrival.tenant);
                slow.room.publish(&self.published);
                drop(slow);
                self.bounds.report(rejected.reason());
                Err(rejected)
            }
        }
    }

    #[inline(never)]
    fn ask(&self, name: Option<&str>, cost: NonZeroU32, age: u64, now: u64) -> Arrived {
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
        if slow.room.is_quiet(now, in_flight, age) && self.try_admit_below(usize::MAX) {
            return Arrived::Goes(slow.room.start_uncharged(tenant, cost, now));
        }
        let arrival = Arrival {
            tenant,
            cost,
            at: now,
            older: age,
        };
        self.judge(slow, arrival)
    }

    /// Decides about a request that cannot simply start.
    #[inline(never)]
    fn judge(&self, mut slow: MutexGuard<'_, Slow<Fair>>, arrival: Arrival) -> Arrived {
        let mut wakes = Wakes::default();
        let arrived = match self.decide(&mut slow, &arrival, &mut wakes) {
            Ok(Some(grant)) => Arrived::Goes(grant),
            Ok(None) => Arrived::Waits(arrival),
            Err(rejection) => {
                let rejected = self.reject(&mut slow, arrival.tenant, rejection, arrival.at);
                slow.room.tenants.detach(arrival.tenant);
                Arrived::Rejected(rejected)
            }
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
        wakes: &mut Wakes,
    ) -> Result<Option<Grant>, Rejection> {
        let &Arrival {
            tenant,
            cost,
            at: now,
            older: age,
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
                return Ok(Some(room.start(tenant, cost, now)));
            }
            room.serves.forget_one();
        }
        match slow.room.has_place(tenant, self.bounds.max_waiting()) {
            true => Ok(None),
            false => Err(Rejection::QUEUE_FULL),
        }
    }
}

impl<S: Serves> Gate<Fair<S>>
where
    Fair<S>: Room<Published = Quiet>,
{
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
        let max_waiting = self.bounds.max_waiting(); // which another thread may change
        let mut wakes = Wakes::default();
        let mut slow = lock(&self.slow);
        if !(slow.room).has_place(arrival.tenant, max_waiting) {
            let rejected = self.reject(&mut slow, arrival.tenant, Rejection::QUEUE_FULL, now);
            drop(slow);
            drop(waker);
            self.bounds.report(rejected.reason());
            return Err(rejected);
        }
        let word = self.load();
        let scene = self.scene(&slow, word.in_flight(), word.in_flight(), now);
        let room = &mut slow.room;
        room.serves
            .note_entering(&scene, word.has_room(), &mut wakes);
        // It looks for itself what became of it by now, and need not be woken for that.
        let nobody = Waker::noop().clone();
        let seat = room.push(arrival, nobody, max_waiting, &scene, &mut wakes);
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

    /// A request has waited as long as it may: it is rejected, unless it is decided already what becomes of it.
    pub(crate) fn expire(&self, arrival: &Arrival, seat: u32) -> Fate {
        let now = self.clock.nanos();
        let mut slow = lock(&self.slow);
        let State::Waits(ticket) = slow.room.seats[seat].state else {
            return self.take_fate(slow, arrival, seat);
        };
        self.cancel(&mut slow, arrival, &ticket, now);
        let rejection = Rejection::TIMED_OUT;
        (slow.room).count_rejection(arrival.tenant, rejection.reason, &self.bounds);
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
        let rejected = self.rejection(&mut slow, arrival.tenant, rejection, now);
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
                    (self.bounds.waits).record(now.saturating_sub(arrival.at));
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
        self.bounds.waits.record(now.saturating_sub(arrival.at));
        self.note_left(slow);
    }

    /// A request that came, but never waited, is gone.
    pub(crate) fn depart(&self, arrival: &Arrival) {
        let mut slow = lock(&self.slow);
        slow.room.tenants.detach(arrival.tenant);
        slow.room.publish(&self.published);
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

impl<S: Serves> Gate<Fair<S>>
where
    Fair<S>: Room<Published = Quiet>,
{
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

    /// Counts a rejection, and makes it.
    pub(super) fn reject(
        &self,
        slow: &mut Slow<Fair<S>>,
        tenant: u32,
        rejection: Rejection,
        now: u64,
    ) -> Box<Overloaded> {
        slow.room
            .count_rejection(tenant, rejection.reason, &self.bounds);
        self.rejection(slow, tenant, rejection, now)
    }

    /// Where the age does not tell when to come back, it is when all that the tenant has waiting is served, at its share
    /// of the rate at which requests were served lately.
    pub(super) fn rejection(
        &self,
        slow: &mut Slow<Fair<S>>,
        tenant: u32,
        Rejection { reason, age }: Rejection,
        now: u64,
    ) -> Box<Overloaded> {
        let retry_after = match age {
            Some(age) => age.retry_after(),
            None => {
                let own = u64::from(slow.room.queue.state(tenant).waiting) + 1;
                let ahead = own.saturating_mul(slow.room.queue.parts(tenant));
                let done = S::done(&slow.room, self.completed_by(slow));
                (slow.drain_rate).wait(Duration::from_nanos(now), done, ahead)
            }
        };
        Box::new(Overloaded::new(self.bounds.name(), reason, retry_after))
    }
}

/// Nobody sees it: a panic goes on.
#[cold]
fn not_told() -> Box<Overloaded> {
    Box::new(Overloaded::new("edge", Reason::NotReady, Duration::ZERO))
}

/// What a permit that is granted is good for.
pub(crate) trait Serves: Sized {
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

    /// How many requests are done, if the gate has completed so many.
    fn done(_: &Fair<Self>, completed: u64) -> u64 {
        completed
    }
}

impl Serves for Ages {
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
