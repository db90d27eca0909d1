//! The tenants of a [`Wfq`](crate::Wfq), who of them waits, and whose turn it is.
//!
//! # How it works
//! The fair gate has no permits of its own: it schedules whatever readiness the inner service has, and no
//! task does it. Requests wait in their own futures. One of them has the *turn*: it polls its inner service,
//! and when that is ready, calls it and passes the turn on to whoever is next by then.
//!
//! ```text
//! arrive ──────────── nobody waits, and the inner service is ready ──────────────► running
//!    │                                                                                ▲
//!    └► enqueue ─► waits ─► its turn (polls the inner service) ─► begin ──────────────┘
//!                    ▲              │                               │
//!                    └── put back ──┴── it is another's by now ─────┘
//! ```
//!
//! As long as there are no tenants and nobody waits, requests go past all of it: see [`calm`].
//!
//! # Why it does not stop
//! - **A turn is passed on** under the lock that takes it away: when the request begins, fails, gives up or
//!   is dropped. After every change under the lock there is a turn, or nobody may have one.
//! - **A turn that nobody uses is lent on.** A future that is kept but not polled any more would stop
//!   everybody. It is known for one by this: it has been woken, because it got the turn or because its inner
//!   service is ready, and has not been polled for [`LEASE`] since. Then the next one gets a turn as well.
//!   Those who wait look for that: about one of them in each `LEASE`, and each at least once a second.
//!
//! Wakers are cloned, woken and dropped outside the lock.

mod calm;
#[cfg(all(test, backpressure_loom))]
mod models;

use std::{
    fmt, mem,
    num::NonZeroU32,
    ops::{Deref, DerefMut},
    task::Waker,
    time::Duration,
};

use self::calm::{Calm, Counted};
use super::{
    bounds::{Bounds, Rejected},
    fingerprint::{Fingerprint, Fingerprints},
    foreign::Foreign,
    tenants::{
        ANONYMOUS, Recent, Tenant, TenantSnapshot, Tenants, ask_weight, check_name, check_weight,
    },
    waits::Waits,
};
use crate::{
    BoxError, ConfigError, Overloaded, Reason, Waited,
    algorithm::{
        drain_rate::DrainRate,
        fair_queue::{Charge, FairQueue, Ticket},
    },
    clock::{Clock, Now},
    observe::events,
    sync::{AtomicUsize, Mutex, MutexGuard, Ordering::Relaxed, lock},
    wfq::WfqConfig,
};

/// So long a request that has been woken may take until it is polled: more than a busy executor needs, and
/// less than anybody notices who waits.
const LEASE: Duration = Duration::from_millis(20);

/// If so many were served and none of them had a tenant, none will.
const ENOUGH: u64 = 100;

/// Each of those who wait looks at least this often whether the turn is used: when many leave, fewer are left
/// to do it.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

// What is written for each request begins with a cache line, with nothing else in it: see `Calm`, and `State` for those
// that ask.
#[repr(C, align(64))]
pub(crate) struct FairGate {
    calm: Calm,
    state: Mutex<State>,
    fingerprints: Fingerprints,
    clock: Clock,
    pub(crate) bounds: Bounds,
    max_waiting_per_tenant: AtomicUsize,
}

// In this order, so that what is written for each request is together, in two cache lines.
#[repr(C)]
struct State {
    served: u64,
    /// By all tenants.
    recent: Recent,
    queue: FairQueue<Waker>,
    tenants: Tenants,
    /// One, but for those that nobody uses.
    turns: Vec<Turn>,
    refused: u64,
    drain: DrainRate,
    counted: Counted,
    /// Whether it was said that no request has a tenant.
    told_anonymous: bool,
}

/// The lock. What is to be known without it is told when it is given back.
struct Locked<'a> {
    calm: &'a Calm,
    state: MutexGuard<'a, State>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.calm.tell(self.state.is_calm());
    }
}

struct Turn {
    ticket: Ticket,
    charge: Charge,
    /// Since when it has reason to be polled, if it has.
    woken: Option<u64>,
}

impl Turn {
    fn is_used(&self, now: u64) -> bool {
        let lease = LEASE.as_nanos() as u64;
        self.woken.is_none_or(|at| now.saturating_sub(at) < lease)
    }
}

/// A request that has come. The number of its tenant stays until the request is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    tenant: u32,
    cost: NonZeroU32,
    at: u64,
    virtual_time: u128,
}

/// What a request that has come may do.
pub(crate) enum Arrived {
    /// Nobody is in its way: it may begin, and its tenant was charged, or will be.
    Begins(Arrival, Charge, Waited),
    Waits(Arrival),
    Refused(Box<Overloaded>),
}

/// What there is for one that waits.
pub(crate) enum Look {
    /// It is its turn.
    Turn,
    /// Nothing. After this time, if nothing happens before, it should look again.
    Wait(Duration),
    /// It had to make room for somebody else's request.
    Evicted(Box<Overloaded>),
}

/// Whether a request whose turn it is may be sent.
pub(crate) enum Begun {
    Yes(Charge, Waited),
    /// It is another's turn by now, and this one waits again.
    No,
}

/// Who is to be woken when the lock is gone, and when what was done under it has an owner: a waker is foreign,
/// and may panic.
#[must_use]
pub(crate) struct Wakes {
    evicted: Option<Waker>,
    granted: Option<(Ticket, Waker)>,
}

impl Wakes {
    fn of(granted: Option<(Ticket, Waker)>) -> Self {
        Self {
            evicted: None,
            granted,
        }
    }

    /// Whether a waiter had to make room.
    pub(crate) fn evicts(&self) -> bool {
        self.evicted.is_some()
    }

    /// Whoever is being polled need not be woken.
    fn but_for(self, own: &Ticket) -> Self {
        let granted = self.granted.filter(|(ticket, _)| ticket != own);
        Self { granted, ..self }
    }

    #[inline]
    pub(crate) fn wake(self) {
        if let Some(evicted) = self.evicted {
            Self::wake_both(self.granted, evicted);
        } else if let Some((_, waker)) = self.granted {
            waker.wake();
        }
    }

    /// Neither goes without because the other's waker panics.
    #[cold]
    fn wake_both(granted: Option<(Ticket, Waker)>, evicted: Waker) {
        let mut foreign = Foreign::default();
        foreign.run(|| granted.into_iter().for_each(|(_, waker)| waker.wake()));
        foreign.run(|| evicted.wake());
        foreign.finish();
    }
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

/// The state of a fair queue at one moment.
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
    /// [`Tenant::Overflow`].
    pub overflowed: u64,
    /// How many of those that were served had no tenant. If all of them had none, although some tenants have a weight,
    /// the tenant is not found where it is looked for: see [`edge`](mod@crate::edge#tenants).
    pub anonymous: u64,
    /// How long those waited who had to.
    pub waits: Waits,
}

impl FairGate {
    /// As the config says, which has been checked.
    pub(crate) fn new(config: WfqConfig) -> Self {
        let fingerprints = Fingerprints::new();
        let weights = (config.weights.iter())
            .map(|(name, weight)| (fingerprints.of(name.as_str()), *weight))
            .collect();
        let mut queue = FairQueue::new();
        queue.set_max_running(max_running(config.max_in_flight_per_tenant));
        let tenants = Tenants::new(
            weights,
            config.weight_of,
            config.default_weight,
            config.max_tenants,
            &mut queue,
        );
        let bounds = Bounds::new("wfq");
        bounds.set_max_waiting(config.max_waiting);
        bounds.set_max_wait(config.max_wait);
        let state = State {
            tenants,
            queue,
            turns: Vec::new(),
            drain: DrainRate::default(),
            served: 0,
            recent: Recent::default(),
            refused: 0,
            counted: Counted::default(),
            told_anonymous: false,
        };
        Self {
            calm: Calm::new(state.is_calm()),
            state: Mutex::new(state),
            fingerprints,
            clock: config.clock.unwrap_or_default(),
            bounds,
            max_waiting_per_tenant: AtomicUsize::new(
                config.max_waiting_per_tenant.unwrap_or(usize::MAX),
            ),
        }
    }

    /// A name that is empty or too long is none.
    fn key(&self, name: &str) -> Option<Fingerprint> {
        check_name(name).ok()?;
        Some(self.fingerprints.of(name))
    }

    #[inline]
    fn lock(&self) -> Locked<'_> {
        Locked {
            calm: &self.calm,
            state: lock(&self.state),
        }
    }

    /// A request comes.
    #[inline]
    pub(crate) fn arrive(&self, name: Option<&str>, cost: NonZeroU32, now: &mut Now) -> Arrived {
        let now = self.clock.nanos_at(now);
        if name.is_some() || !self.calm.begin() {
            return self.ask(name, cost, now);
        }
        let arrival = Arrival {
            tenant: ANONYMOUS,
            cost,
            at: now,
            virtual_time: 0,
        };
        let charge = Charge::in_arrears(ANONYMOUS, cost, now);
        let waited = Waited {
            own: Duration::ZERO,
            oldest: None,
        };
        Arrived::Begins(arrival, charge, waited)
    }

    fn ask(&self, name: Option<&str>, cost: NonZeroU32, now: u64) -> Arrived {
        let named = name.and_then(|name| Some((self.key(name)?, name)));
        let mut state = self.lock();
        let mut weight = None;
        if state.tenants.asks_weights() {
            (state, weight) = self.ask_weight(state, named.as_ref());
        }
        let State { tenants, queue, .. } = &mut *state;
        let tenant = tenants.attach(queue, named, weight);
        let arrival = Arrival {
            tenant,
            cost,
            at: now,
            virtual_time: state.queue.virtual_time(),
        };
        let alone = !state.queue.has_next() && !state.has_turn(now);
        if alone && state.queue.may_run(tenant) {
            // Others may wait that their tenant's own hold back.
            let waited = state.waited(now, now);
            let charge = state.queue.begin_at_once(tenant, cost, now);
            return Arrived::Begins(arrival, charge, waited);
        }
        self.queue_up(state, arrival, now)
    }

    /// Asks for the weight of a tenant that is not known yet, without the lock.
    #[cold]
    fn ask_weight<'a>(
        &'a self,
        state: Locked<'a>,
        named: Option<&(Fingerprint, &str)>,
    ) -> (Locked<'a>, Option<u32>) {
        let Some((key, name)) = named else {
            return (state, None);
        };
        let mut state = state;
        while let Some(weight_of) = state.tenants.must_ask_weight(key) {
            drop(state);
            let weight = ask_weight(&weight_of, name);
            state = self.lock();
            if state.tenants.has_weight_of(&weight_of) {
                return (state, Some(weight));
            }
        }
        (state, None)
    }

    /// Takes back that [`arrive`](Self::arrive) let it begin: the request has to wait after all.
    pub(crate) fn take_back(&self, arrival: Arrival, charge: Charge) -> (Arrived, Wakes) {
        let now = self.clock.nanos();
        let mut state = self.lock();
        if charge.is_in_arrears() {
            self.calm.forget();
            let State { tenants, queue, .. } = &mut *state;
            tenants.attach(queue, None, None);
        } else {
            state.queue.take_back(charge, arrival.virtual_time);
        }
        let granted = state.pass_on(now);
        let arrived = self.queue_up(state, arrival, now);
        (arrived, Wakes::of(granted))
    }

    /// Where there is no room, that is told at once. It is looked for again when the request is first polled:
    /// until then it is in nobody's way.
    #[cold]
    fn queue_up(&self, mut state: Locked<'_>, arrival: Arrival, now: u64) -> Arrived {
        if self.has_room(&mut state, arrival.tenant, self.bounds.max_waiting()) {
            return Arrived::Waits(arrival);
        }
        state.tenants.detach(arrival.tenant);
        Arrived::Refused(self.refuse(state, arrival.tenant, Reason::QueueFull, now))
    }

    /// Lets a request wait, if there is room, or room can be made: then the log is to be told of that,
    /// by [`report_eviction`](Self::report_eviction), when the place has an owner.
    pub(crate) fn enqueue(
        &self,
        arrival: Arrival,
        waker: Waker,
    ) -> Result<(Ticket, Wakes), Box<Overloaded>> {
        let Arrival {
            tenant, cost, at, ..
        } = arrival;
        let now = self.clock.nanos();
        let mut state = self.lock();
        let max_waiting = self.bounds.max_waiting();
        if !self.has_room(&mut state, tenant, max_waiting) {
            return Err(self.refuse(state, tenant, Reason::QueueFull, now));
        }
        let mut evicted = None;
        if state.queue.waiting() >= max_waiting {
            let (hog, _, waker) = state.queue.make_room(tenant).expect("there is room");
            self.count(&mut state, hog, Reason::QueueFull);
            evicted = Some(waker);
        }
        let ticket = state.queue.push(tenant, cost, at, waker);
        let granted = state.pass_on(now);
        drop(state);
        let wakes = Wakes::of(granted).but_for(&ticket);
        Ok((ticket, Wakes { evicted, ..wakes }))
    }

    /// To be called without the lock: the log is foreign.
    pub(crate) fn report_eviction(&self) {
        self.bounds.report(Reason::QueueFull);
    }

    /// Whether there is room for another request of this tenant, or somebody can make it.
    fn has_room(&self, state: &mut State, tenant: u32, max_waiting: usize) -> bool {
        let own = state.queue.state(tenant).waiting as usize;
        own < self.max_waiting_per_tenant.load(Relaxed)
            && (state.queue.waiting() < max_waiting || state.queue.hog(tenant).is_some())
    }

    /// What there is for a request that waits. If there is nothing, `waker` is woken when there is.
    pub(crate) fn look(&self, arrival: Arrival, ticket: &Ticket, waker: &Waker) -> Look {
        let now = self.clock.nanos();
        let mut fresh = None;
        loop {
            let mut state = self.lock();
            let granted = state.pass_on(now);
            let waiting = state.queue.waiting();
            let mut old = None;
            let look = if let Some(turn) = state.turn(ticket) {
                turn.woken = None;
                Some(Look::Turn)
            } else if let Some(kept) = state.queue.with(ticket) {
                let wait = Look::Wait(LEASE.saturating_mul(waiting as u32).min(LONGEST_LOOK));
                if kept.will_wake(waker) {
                    Some(wait)
                } else {
                    let fresh = fresh.take();
                    fresh.map(|fresh| {
                        old = Some(mem::replace(kept, fresh));
                        wait
                    })
                }
            } else {
                let refusal = self.refusal(&mut state, arrival.tenant, Reason::QueueFull, now);
                Some(Look::Evicted(refusal))
            };
            drop(state);
            drop(old);
            Wakes::of(granted).but_for(ticket).wake();
            match look {
                Some(look) => return look,
                None => fresh = Some(waker.clone()), // not under the lock
            }
        }
    }

    /// A request whose turn it is has been woken.
    pub(crate) fn note_woken(&self, ticket: &Ticket) {
        let now = self.clock.nanos();
        if let Some(turn) = self.lock().turn(ticket) {
            turn.woken.get_or_insert(now);
        }
    }

    /// A request whose turn it is can be sent; it is, unless it is another's turn by now.
    pub(crate) fn begin(&self, ticket: &Ticket, now: &mut Now) -> (Begun, Wakes) {
        let now = self.clock.nanos_at(now);
        let mut state = self.lock();
        let turn = state.turns.iter().position(|turn| turn.ticket == *ticket);
        let Turn { mut charge, .. } = state.turns.swap_remove(turn.expect("it is its turn"));
        let begun = if state.queue.yields(ticket, &charge, now) {
            state.queue.put_back(ticket, charge);
            Begun::No
        } else {
            // Its waker is ours: it was taken when it got the turn.
            let (at, _) = state.queue.begin(ticket, &mut charge, now);
            let waited = state.waited(at, now);
            self.bounds.waits.record(now.saturating_sub(at));
            Begun::Yes(charge, waited)
        };
        let granted = state.pass_on(now);
        drop(state);
        (begun, Wakes::of(granted).but_for(ticket))
    }

    /// A request that waits, or whose turn it is, gives up, and is gone.
    pub(crate) fn leave(&self, arrival: Arrival, ticket: &Ticket) {
        let now = self.clock.nanos();
        let mut state = self.lock();
        let waker = state.take_out(ticket);
        let granted = state.pass_on(now);
        state.tenants.detach(arrival.tenant);
        drop(state);
        drop(waker);
        self.bounds.waits.record(now.saturating_sub(arrival.at));
        Wakes::of(granted).wake();
    }

    /// Refuses a request that has waited as long as it may. It still has to leave.
    pub(crate) fn time_out(&self, arrival: Arrival) -> Box<Overloaded> {
        let now = self.clock.nanos();
        self.refuse(self.lock(), arrival.tenant, Reason::WaitTimeout, now)
    }

    /// A request that never waited, or waits no more, is gone.
    pub(crate) fn depart(&self, arrival: Arrival) {
        self.lock().tenants.detach(arrival.tenant);
    }

    /// A request that was sent has ended, and is gone.
    #[inline]
    pub(crate) fn end(&self, charge: Charge, end: End, now: &mut Now) {
        let now = self.clock.nanos_at(now);
        let past_the_queue = charge.is_in_arrears() && end == End::Served;
        if !(past_the_queue && self.calm.finish(charge.used(now), Recent::epoch(now))) {
            self.settle(charge, end, now);
        }
    }

    #[inline(never)]
    fn settle(&self, charge: Charge, end: End, now: u64) {
        let mut state = self.lock();
        let tenant = charge.tenant();
        if charge.is_in_arrears() {
            self.calm.forget();
            self.count_calm(&mut state, now);
        } else {
            state.tenants.detach(tenant);
        }
        if end == End::Served {
            state.served += 1;
            let used = state.queue.finish(charge, now);
            let epoch = Recent::epoch(now);
            state.recent.add(used, epoch);
            state.tenants.note_served(tenant, 1, used, epoch);
        } else {
            state.settle_unserved(charge, end, now);
        }
        let all_anonymous = match tenant {
            ANONYMOUS => state.all_anonymous(),
            _ => None,
        };
        // It may have been all that its tenant may have running.
        let granted = state.pass_on(now);
        drop(state);
        if granted.is_some() {
            Wakes::of(granted).wake();
        }
        self.report_anonymous(all_anonymous);
    }

    /// After the lock.
    #[inline]
    fn report_anonymous(&self, all_anonymous: Option<u64>) {
        if let Some(served) = all_anonymous {
            events::all_anonymous(self.bounds.name(), served);
        }
    }

    /// Counts what went past the queue.
    fn count_calm(&self, state: &mut State, now: u64) {
        let (served, used, epoch) = self.calm.count(&mut state.counted, Recent::epoch(now));
        state.served += served;
        state.recent.add(used, epoch);
        state.tenants.note_served(ANONYMOUS, served, used, epoch);
    }

    pub(crate) fn set_weight(&self, tenant: &str, weight: u32) -> Result<(), ConfigError> {
        let weight = check_weight(weight)?;
        check_name(tenant)?;
        let key = self.fingerprints.of(tenant);
        let State { tenants, queue, .. } = &mut *self.lock();
        tenants.set_weight(queue, key, weight)
    }

    /// Asks anew for the weights that a function gives.
    pub(crate) fn refresh_weights(&self) {
        let state = self.lock();
        let Some(weight_of) = state.tenants.weight_of() else {
            return;
        };
        let tenants = state.tenants.without_weight();
        drop(state);
        let asked = tenants.into_iter();
        let asked = asked.map(|(key, name)| (key, ask_weight(&weight_of, &name)));
        let asked = asked.collect();
        let State { tenants, queue, .. } = &mut *self.lock();
        if tenants.has_weight_of(&weight_of) {
            tenants.set_asked(queue, asked);
        }
    }

    pub(crate) fn set_default_weight(&self, weight: u32) -> Result<(), ConfigError> {
        let weight = check_weight(weight)?;
        let State { tenants, queue, .. } = &mut *self.lock();
        tenants.set_default_weight(queue, weight);
        Ok(())
    }

    /// Changes everything but the clock, and keeps a `weight_of` if the config has none. It has been checked.
    pub(crate) fn set(&self, config: &WfqConfig) {
        self.bounds.set_max_waiting(config.max_waiting);
        self.bounds.set_max_wait(config.max_wait);
        self.set_max_waiting_per_tenant(config.max_waiting_per_tenant);
        let now = self.clock.nanos();
        let weights = (config.weights.iter())
            .map(|(name, weight)| (self.fingerprints.of(name.as_str()), *weight))
            .collect();
        let mut state = self.lock();
        let State { tenants, queue, .. } = &mut *state;
        let replaced = tenants.set(
            queue,
            weights,
            config.weight_of.clone(),
            config.default_weight,
            config.max_tenants,
        );
        queue.set_max_running(max_running(config.max_in_flight_per_tenant));
        let granted = state.pass_on(now);
        drop(state);
        Wakes::of(granted).wake();
        drop(replaced);
        self.refresh_weights();
    }

    /// `None` is as many as may wait at all.
    pub(crate) fn set_max_waiting_per_tenant(&self, max_waiting: Option<usize>) {
        self.max_waiting_per_tenant
            .store(max_waiting.unwrap_or(usize::MAX), Relaxed);
    }

    /// `None` is as many as there are.
    pub(crate) fn set_max_in_flight_per_tenant(&self, max: Option<NonZeroU32>) {
        let now = self.clock.nanos();
        let mut state = self.lock();
        state.queue.set_max_running(max_running(max));
        let granted = state.pass_on(now);
        drop(state);
        Wakes::of(granted).wake();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.bounds.settle_report();
        let now = self.clock.nanos();
        let mut state = self.lock();
        self.count_calm(&mut state, now);
        let all_anonymous = state.all_anonymous();
        let since = |at| Duration::from_nanos(now.saturating_sub(at));
        let snapshot = Snapshot {
            waiting: state.queue.waiting(),
            running: state.queue.running() + self.calm.running(&state.counted),
            oldest_wait: state.queue.oldest().map(since),
            served: state.served,
            refused: state.refused,
            rejected: self.bounds.rejected(),
            tenants: state.tenants.tracked(),
            weights: state.tenants.weights(),
            overflowed: state.tenants.overflowed(),
            anonymous: state.tenants.served_anonymous(),
            waits: self.bounds.waits.snapshot(),
        };
        drop(state);
        self.report_anonymous(all_anonymous);
        snapshot
    }

    pub(crate) fn tenants(&self) -> Vec<TenantSnapshot> {
        let now = self.clock.nanos();
        let mut state = self.lock();
        self.count_calm(&mut state, now);
        let mut tenants = state.tenants.snapshots(&state.queue, &state.recent, now);
        tenants[ANONYMOUS as usize].running += self.calm.running(&state.counted);
        tenants
    }

    pub(crate) fn tenant(&self, tenant: &Tenant) -> Option<TenantSnapshot> {
        let now = self.clock.nanos();
        let key = match tenant {
            Tenant::Named(name) => self.key(name),
            Tenant::Anonymous | Tenant::Overflow => None,
        };
        let mut state = self.lock();
        self.count_calm(&mut state, now);
        let State {
            tenants,
            queue,
            recent,
            ..
        } = &*state;
        let mut snapshot = tenants.snapshot_of(queue, recent, tenant, key, now)?;
        if *tenant == Tenant::Anonymous {
            snapshot.running += self.calm.running(&state.counted);
        }
        Some(snapshot)
    }

    fn count(&self, state: &mut State, tenant: u32, reason: Reason) {
        self.bounds.count(reason);
        state.tenants.note_rejected(tenant);
    }

    fn refuse(
        &self,
        mut state: Locked<'_>,
        tenant: u32,
        reason: Reason,
        now: u64,
    ) -> Box<Overloaded> {
        self.count(&mut state, tenant, reason);
        let refusal = self.refusal(&mut state, tenant, reason, now);
        drop(state); // what follows is foreign, and so are wakers that a caller drops
        self.bounds.report(reason);
        refusal
    }

    /// The hint is how long it takes until all that the tenant has waiting is served, at its share of the
    /// rate at which requests were served lately.
    fn refusal(&self, state: &mut State, tenant: u32, reason: Reason, now: u64) -> Box<Overloaded> {
        self.count_calm(state, now);
        let served = state.served;
        let own = u64::from(state.queue.state(tenant).waiting) + 1;
        let ahead = own.saturating_mul(state.queue.parts(tenant));
        let now = Duration::from_nanos(now);
        let retry_after = state.drain.wait(now, served, ahead);
        Box::new(Overloaded::new(self.bounds.name(), reason, retry_after))
    }
}

fn max_running(max_in_flight_per_tenant: Option<NonZeroU32>) -> u32 {
    max_in_flight_per_tenant.map_or(u32::MAX, NonZeroU32::get)
}

impl State {
    /// What the layers inside are told of a request that came at `at`.
    #[inline]
    fn waited(&self, at: u64, now: u64) -> Waited {
        let since = |at: u64| Duration::from_nanos(now.saturating_sub(at));
        Waited {
            own: since(at),
            oldest: self.queue.oldest_that_may_run().map(since),
        }
    }

    /// How many were served, if none of them had a tenant although there are weights for some. Says so once.
    #[inline]
    fn all_anonymous(&mut self) -> Option<u64> {
        if !self.tenants.lacks_names() || self.told_anonymous {
            return None;
        }
        let served = self.tenants.served_anonymous();
        self.told_anonymous = served >= ENOUGH;
        self.told_anonymous.then_some(served)
    }

    #[cold]
    fn settle_unserved(&mut self, charge: Charge, end: End, now: u64) {
        let tenant = charge.tenant();
        match end {
            End::Refused => {
                self.refused += 1;
                self.queue.refund(charge);
                self.tenants.note_refused(tenant);
            }
            End::ServiceRefused => {
                self.refused += 1;
                let used = self.queue.refuse(charge, now);
                let epoch = Recent::epoch(now);
                self.recent.add(used, epoch);
                self.tenants.note_served(tenant, 0, used, epoch);
                self.tenants.note_refused(tenant);
            }
            End::NotSent => self.queue.refund(charge),
            End::Served => unreachable!("settled elsewhere"),
        }
    }

    /// Whether there is nobody to be fair to, see [`calm`]. Who waits for nothing but a turn has it, or another has.
    #[inline]
    fn is_calm(&self) -> bool {
        self.tenants.is_one() && self.turns.is_empty() && self.queue.is_uncapped()
    }

    /// Whether somebody has the turn, and uses it.
    #[inline]
    fn has_turn(&self, now: u64) -> bool {
        self.turns.iter().any(|turn| turn.is_used(now))
    }

    fn turn(&mut self, ticket: &Ticket) -> Option<&mut Turn> {
        self.turns.iter_mut().find(|turn| turn.ticket == *ticket)
    }

    /// Gives the turn to the one that is next, if nobody has it. Who got it is to be woken.
    #[inline]
    fn pass_on(&mut self, now: u64) -> Option<(Ticket, Waker)> {
        match self.queue.has_next() {
            true => self.pass_on_to_next(now),
            false => None,
        }
    }

    #[inline(never)]
    fn pass_on_to_next(&mut self, now: u64) -> Option<(Ticket, Waker)> {
        if self.has_turn(now) {
            return None;
        }
        let (ticket, charge) = self.queue.next(now)?;
        self.turns.push(Turn {
            ticket,
            charge,
            woken: Some(now),
        });
        let waker = self.queue.with(&ticket).expect("it is in");
        Some((ticket, mem::replace(waker, Waker::noop().clone())))
    }

    /// Takes out a request that waits, or whose turn it is, or that was evicted. Its waker is to be dropped
    /// after the lock.
    fn take_out(&mut self, ticket: &Ticket) -> Option<Waker> {
        if let Some(i) = self.turns.iter().position(|turn| turn.ticket == *ticket) {
            let turn = self.turns.swap_remove(i);
            return Some(self.queue.withdraw(ticket, turn.charge));
        }
        self.queue.with(ticket)?;
        Some(self.queue.cancel(ticket))
    }
}

impl fmt::Debug for FairGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.snapshot();
        f.debug_struct("FairGate")
            .field("name", &self.bounds.name())
            .field("waiting", &snapshot.waiting)
            .field("running", &snapshot.running)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Panics(AtomicUsize);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
            panic!("the waker panics");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_being_woken() {
        let woken = Arc::new(Panics::default());
        let waker = || Waker::from(Arc::clone(&woken));
        let mut queue = FairQueue::new();
        let tenant = queue.add_tenant(1);
        let ticket = queue.push(tenant, NonZeroU32::MIN, 0, waker());
        let wakes = Wakes {
            granted: Some((ticket, waker())),
            evicted: Some(waker()),
        };
        assert!(catch_unwind(AssertUnwindSafe(|| wakes.wake())).is_err());
        assert_eq!(woken.0.load(SeqCst), 2);
    }
}
