//! The turn: what a fair room hands on where it has no permits of its own.
//!
//! A [`Wfq`](crate::Wfq) schedules whatever readiness its inner service has, and no task does it. Its gate has one permit,
//! the *turn*. A waiter that has it polls its inner service. When that is ready, the waiter is sent, and the turn goes on to
//! the waiter that is next by then. While nobody waits, nobody needs the turn.
//!
//! ```text
//! arrive ──────────── nobody waits, and the inner service is ready ──────────────► in flight ─► finish
//!    │                                                                                ▲
//!    └► enter ─► waits ─► has the turn (polls the inner service) ─► begin ────────────┘
//!                  ▲            │                                     │
//!                  └────────────┴── it is another's turn by now ──────┘
//! ```
//!
//! **A turn that nobody uses is lent on.** A future that is kept but not polled any more would stop all others. It is known
//! by this: it was woken, because it got the turn or because its inner service is ready, and has not been polled for
//! [`LEASE`] since. For each such turn the gate has one permit more. Waiters look for that: about one of them in each
//! `LEASE`, and each at least once a second.

#[cfg(all(test, backpressure_loom))]
mod models;

use std::{mem, num::NonZeroU32, task::Waker, time::Duration};

use super::{
    Fair, Grant, PrioritySnapshot, Rejection, State, Wakes,
    waiters::{After, Arrival, End, Serves, Urgency},
};
use crate::{
    Overloaded, Waited, WfqConfig,
    clock::Now,
    gate::{
        bounds::{Bounds, Rejected},
        gate::{Gate, Slow},
        governor::Past,
        room::{Next, Room, Scene},
        waits::Waits,
    },
    law::fair_queue::{Charge, Lane, Order, Ticket},
    sync::{MutexGuard, lock},
};

/// So long a request that has been woken may take until it is polled: more than a busy executor needs, and
/// less than a waiter notices.
const LEASE: Duration = Duration::from_millis(20);

/// Each waiter looks at least this often whether the turn is used: when many leave, fewer are left to do it.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Those that have the turn: one, but for those that nobody uses.
#[derive(Debug, Default)]
pub(crate) struct Turns(Vec<Turn>);

#[derive(Debug)]
struct Turn {
    seat: u32,
    ticket: Ticket,
    /// Since when it has reason to be polled, if it has.
    woken: Option<u64>,
}

impl Turn {
    fn is_used(&self, now: u64) -> bool {
        let lease = LEASE.as_nanos() as u64;
        self.woken.is_none_or(|at| now.saturating_sub(at) < lease)
    }
}

impl Turns {
    fn of(&mut self, seat: u32) -> Option<&mut Turn> {
        self.0.iter_mut().find(|turn| turn.seat == seat)
    }

    fn take(&mut self, seat: u32) -> Option<Turn> {
        let at = self.0.iter().position(|turn| turn.seat == seat)?;
        Some(self.0.swap_remove(at))
    }

    fn unused(&self, now: u64) -> usize {
        self.0.iter().filter(|turn| !turn.is_used(now)).count()
    }
}

impl Serves for Turns {
    fn next(room: &mut Fair<Self>, scene: &Scene<'_>, wakes: &mut Wakes) -> Next {
        let next = room.queue.next_lane();
        let next = next.and_then(|lane| room.queue.next_in(lane, Order::OldestFirst, scene.now));
        let Some((ticket, charge)) = next else {
            return Next::Nobody;
        };
        let seat = *room.queue.with(&ticket).expect("it is in");
        room.serves.0.push(Turn {
            seat,
            ticket,
            woken: Some(scene.now),
        });
        let waits = &mut room.seats[seat];
        waits.state = State::Goes(charge);
        wakes.push(mem::replace(&mut waits.waker, Waker::noop().clone()));
        Next::Goes
    }

    #[inline]
    fn over(gate: &Gate<Fair<Self>>, grant: Grant, end: End, now: &mut Now) {
        gate.over(grant, end, now);
    }

    fn withdraw(
        room: &mut Fair<Self>,
        arrival: &Arrival,
        seat: u32,
        charge: Charge,
        now: u64,
    ) -> bool {
        let turn = room.serves.take(seat).expect("it has the turn");
        room.queue.withdraw(&turn.ticket, charge);
        room.tenants.detach(arrival.tenant);
        Self::note_busy(room, now);
        true
    }

    fn done(room: &Fair<Self>, _: u64) -> u64 {
        room.served
    }

    /// A request that has the turn still waits.
    fn note_busy(room: &mut Fair<Self>, now: u64) {
        let somebody_waits = room.queue.waiting() > 0 || !room.serves.0.is_empty();
        room.note_busy(somebody_waits, now);
    }
}

impl Fair<Turns> {
    /// What the layers inside are told of a request that came at `at`.
    fn waited(&self, at: u64, now: u64) -> Waited {
        Waited {
            own: Duration::from_nanos(now.saturating_sub(at)),
            oldest: self.oldest_that_may_run(now).map(Duration::from_nanos),
        }
    }
}

/// A request that nobody is in the way of.
pub(crate) struct Began {
    pub(crate) grant: Grant,
    pub(crate) waited: Waited,
    pub(crate) from: From,
}

/// What it takes to let a request wait after all.
pub(crate) struct From {
    arrival: Arrival,
    virtual_time: u128,
    /// Whether it was counted by its priority.
    is_counted: bool,
}

/// What there is for a waiter.
pub(crate) enum Look {
    /// It is its turn.
    Turn,
    /// Nothing. After this time, if nothing happens before, it should look again.
    Wait(Duration),
    /// It had to make room for another tenant's request.
    Rejected(Box<Overloaded>),
}

/// Whether a request whose turn it is may be sent.
pub(crate) enum Begun {
    Yes(Grant, Waited),
    /// It is another's turn by now, and this one waits again.
    No,
    /// It could not be done before its deadline. It still has to leave.
    Rejected(Box<Overloaded>),
}

/// What a fair queue shows, of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many requests wait for their turn.
    pub waiting: usize,
    /// How many were sent to the inner service, or are about to be, and are not done.
    pub running: usize,
    /// How long the one that has waited longest has waited.
    pub oldest_wait: Option<Duration>,
    /// How many requests were sent to the inner service and are done, whether or not with success.
    pub served: u64,
    /// How many were refused further in: by a layer, or by something that the service asked.
    pub refused: u64,
    /// How many were refused here, and why.
    pub rejected: Rejected,
    /// How many tenants are remembered, the two shared ones not counted.
    pub tenants: usize,
    /// How many tenants were given a weight by name. They are remembered whether or not they come.
    pub weights: usize,
    /// How many requests came from tenants that there was no room to remember, and that had to share
    /// [`Tenant::Overflow`](crate::wfq::Tenant::Overflow).
    pub overflowed: u64,
    /// How many of those that were served had no tenant. If all of them had none, although some tenants have a weight,
    /// the tenant is not found where it is looked for: see [`edge`](mod@crate::edge#tenants).
    pub anonymous: u64,
    /// How long those waited who had to.
    pub waits: Waits,
    /// What became of requests by their priority, the most important first. Empty as long as all of them have had the same one,
    /// if [`WfqLayer::priority`](crate::WfqLayer::priority) does not tell them apart.
    pub priorities: Vec<PrioritySnapshot>,
}

impl Gate<Fair<Turns>> {
    /// As the config says, which has been checked.
    pub(crate) fn turns(config: WfqConfig) -> Self {
        let bounds = Bounds::new("wfq");
        bounds.set_max_waiting(config.max_waiting);
        bounds.set_max_wait(config.max_wait);
        let clock = config.clock.clone().unwrap_or_default();
        let room = Fair::new(config, Turns::default());
        Self::with(bounds, clock, 1, None, room)
    }

    /// Whether requests are asked for their priority when they come. Otherwise those are that have to wait.
    #[inline]
    pub(crate) fn asks_urgency(&self) -> bool {
        self.published.asks_urgency()
    }

    /// A request comes, and begins if nobody is in its way: it may be sent, if the inner service is ready. Otherwise it has to
    /// ask whether it may [wait](Self::wait).
    #[inline]
    pub(crate) fn come(
        &self,
        name: Option<&str>,
        cost: NonZeroU32,
        lane: Lane,
        now: &mut Now,
    ) -> Result<Began, Arrival> {
        let now = self.clock.nanos_at(now);
        let named = name.and_then(|name| Some((self.key(name)?, name)));
        let mut slow = lock(&self.slow);
        let mut weight = None;
        if slow.room.tenants.asks_weights() {
            (slow, weight) = self.ask_weight(slow, named.as_ref());
        }
        let room = &mut slow.room;
        let arrival = Arrival {
            tenant: room.tenants.attach(&mut room.queue, named, weight),
            lane,
            cost,
            at: now,
            older: 0,
            deadline: None,
        };
        // A request that has the turn, and uses it, goes first.
        let alone = !room.has_next() && room.serves.unused(now) == room.serves.0.len();
        if !alone || !room.queue.may_run(arrival.tenant) {
            return Err(arrival);
        }
        // Others may wait that their tenant's own hold back.
        let (waited, virtual_time) = (room.waited(now, now), room.queue.virtual_time(lane));
        let is_counted = self.published.note_started(lane);
        Ok(Began {
            grant: room.start(arrival.who(), cost, now),
            waited,
            from: From {
                arrival,
                virtual_time,
                is_counted,
            },
        })
    }

    /// A request cannot begin, whose urgency is known by now: it may wait, or is rejected, which is yet to be reported.
    #[cold]
    pub(crate) fn wait(&self, arrival: Arrival) -> Result<Arrival, Box<Overloaded>> {
        let now = arrival.at;
        self.wait_under(&mut lock(&self.slow), arrival, now)
    }

    /// Where there is no place for a request, that is said at once. It is looked for again when the request is first
    /// polled: until then it is in nobody's way.
    #[inline(never)]
    fn wait_under(
        &self,
        slow: &mut Slow<Fair<Turns>>,
        arrival: Arrival,
        now: u64,
    ) -> Result<Arrival, Box<Overloaded>> {
        let places = self.places(slow, &arrival, now);
        match slow.room.may_wait(&arrival, places, now) {
            Ok(_) => Ok(arrival),
            Err(rejection) => Err(self.reject_new(slow, &arrival, rejection)),
        }
    }

    /// The inner service is not ready for a request that [began](Self::come): it has to wait after all.
    pub(crate) fn take_back(
        &self,
        grant: Grant,
        from: From,
        urgency: Urgency,
    ) -> (Result<Arrival, Box<Overloaded>>, After) {
        let now = self.clock.nanos();
        let mut slow = lock(&self.slow);
        let room = &mut slow.room;
        match grant {
            Grant::Charged(charge) => room.queue.take_back(charge, from.virtual_time),
            Grant::Uncharged(request) => {
                (room.queue).end_uncharged((request.tenant, request.lane), request.cost);
            }
        }
        let mut wakes = Wakes::default();
        let settles = self.grant_free(&mut slow, now, &mut wakes); // what it held back may be next
        if from.is_counted {
            self.published.forget_started(from.arrival.lane);
        }
        let arrival = from.arrival.with(urgency);
        (
            self.wait_under(&mut slow, arrival, now),
            After { wakes, settles },
        )
    }

    /// What there is for a request that waits. If there is nothing, `waker` is woken when there is.
    pub(crate) fn look_for_turn(&self, arrival: &Arrival, seat: u32, waker: &Waker) -> Look {
        let now = self.clock.nanos();
        let mut fresh = None;
        loop {
            let mut slow = lock(&self.slow);
            if let Some(turn) = slow.room.serves.of(seat) {
                turn.woken = None;
            }
            let mut wakes = Wakes::default();
            let settles = self.lend(&mut slow, now, &mut wakes);
            let waiting = slow.room.queue.waiting() as u32;
            let waits = &mut slow.room.seats[seat];
            let mut old = None;
            let look = match waits.state {
                State::Goes(_) => Some(Look::Turn),
                State::Rejected(rejection) => {
                    drop(slow);
                    After { wakes, settles }.run(self);
                    return Look::Rejected(self.take_rejection(arrival, seat, rejection));
                }
                State::Waits(_) => {
                    let wait = Look::Wait(LEASE.saturating_mul(waiting).min(LONGEST_LOOK));
                    if waits.waker.will_wake(waker) {
                        Some(wait)
                    } else {
                        let fresh = fresh.take();
                        fresh.map(|fresh| {
                            old = Some(mem::replace(&mut waits.waker, fresh));
                            wait
                        })
                    }
                }
            };
            drop(slow);
            drop(old);
            After { wakes, settles }.run(self);
            match look {
                Some(look) => return look,
                None => fresh = Some(waker.clone()), // not under the lock
            }
        }
    }

    /// For each turn that nobody uses, there is one more.
    fn lend(&self, slow: &mut Slow<Fair<Turns>>, now: u64, wakes: &mut Wakes) -> bool {
        self.resize_under(slow, 1 + slow.room.serves.unused(now));
        self.grant_free(slow, now, wakes)
    }

    /// A request whose turn it is has been woken.
    pub(crate) fn note_woken(&self, seat: u32) {
        let now = self.clock.nanos();
        if let Some(turn) = lock(&self.slow).room.serves.of(seat) {
            turn.woken.get_or_insert(now);
        }
    }

    /// A request whose turn it is can be sent; it is, unless it is another's turn by now.
    pub(crate) fn begin(&self, arrival: &Arrival, seat: u32, now: &mut Now) -> (Begun, After) {
        let now = self.clock.nanos_at(now);
        let mut slow = lock(&self.slow);
        if let Err(rejection) = slow.room.misses(arrival.deadline, now) {
            let rejected = self.reject(&mut slow, arrival.who(), rejection, now);
            drop(slow);
            self.bounds.report(rejected.reason());
            return (Begun::Rejected(rejected), After::default());
        }
        let room = &mut slow.room;
        let turn = room.serves.take(seat).expect("it is its turn");
        let state = mem::replace(&mut room.seats[seat].state, State::Waits(turn.ticket));
        let State::Goes(mut charge) = state else {
            unreachable!("it is its turn")
        };
        let begun = if room.queue.yields(&turn.ticket, &charge, now) {
            room.queue.put_back(&turn.ticket, charge);
            Begun::No
        } else {
            room.queue.begin(&turn.ticket, &mut charge, now);
            room.seats.remove(seat);
            let waited = room.waited(arrival.at, now);
            room.note_wait(arrival.lane, now.saturating_sub(arrival.at), &self.bounds);
            room.note_started(arrival.lane);
            Begun::Yes(Grant::Charged(charge), waited)
        };
        Turns::note_busy(room, now);
        let mut wakes = Wakes::default();
        self.resize_under(&slow, 1 + slow.room.serves.unused(now));
        let settles = self.release_under(&mut slow, 0, now, &mut wakes);
        drop(slow);
        (begun, After { wakes, settles })
    }

    /// Rejects a request that has waited as long as it may. It still has to leave.
    pub(crate) fn time_out(&self, arrival: &Arrival) -> Box<Overloaded> {
        let now = self.clock.nanos();
        let mut slow = lock(&self.slow);
        let rejection = Rejection::timed_out(arrival, now);
        let rejected = self.reject(&mut slow, arrival.who(), rejection, now);
        drop(slow);
        self.bounds.report(rejected.reason());
        rejected
    }

    /// A request that was sent, or was to be sent, is over.
    pub(crate) fn over(&self, grant: Grant, end: End, now: &mut Now) {
        let now = self.clock.nanos_at(now);
        let mut slow = lock(&self.slow);
        match grant {
            Grant::Uncharged(request) if end == End::Served && slow.room.was_calm(&request) => {
                slow.room.finish_calm(&request, now);
            }
            grant => self.settle_over(slow, grant, end, now),
        }
    }

    #[inline(never)]
    fn settle_over(
        &self,
        mut slow: MutexGuard<'_, Slow<Fair<Turns>>>,
        grant: Grant,
        end: End,
        now: u64,
    ) {
        slow.room.settle(grant, end, now);
        let all_anonymous = slow.room.all_anonymous();
        let mut wakes = Wakes::default();
        // It may have been all that its tenant may have in flight.
        let settles = slow.room.has_next() && self.grant_free(&mut slow, now, &mut wakes);
        drop(slow);
        self.finish(all_anonymous, After { wakes, settles });
    }

    pub(crate) fn queue_snapshot(&self) -> Snapshot {
        let (permits, (counts, waiting, running, priorities)) =
            self.snapshot_with(|slow, scene| {
                let room = &slow.room;
                (
                    room.counts(&Past::default()),
                    room.queue.waiting(),
                    room.queue.running(),
                    room.priorities(&self.published, scene.now),
                )
            });
        Snapshot {
            waiting,
            running,
            oldest_wait: permits.oldest_wait,
            served: counts.served,
            refused: counts.refused,
            rejected: permits.rejected,
            tenants: counts.tenants,
            weights: counts.weights,
            overflowed: counts.overflowed,
            anonymous: counts.anonymous,
            waits: permits.waits,
            priorities,
        }
    }
}
