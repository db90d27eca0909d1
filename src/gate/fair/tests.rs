//! The fair room in its gate, on one thread and over paused time.

mod invariants;
mod naive;
mod panics;
mod shares;
mod walk;

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    task::Wake,
    time::Duration,
};

use super::*;
use crate::{
    Clock, WfqConfig,
    clock::Now,
    gate::{gate::Gate, governor::Governor},
    law::{
        codel::Settings,
        limit::{Bounds as LimitBounds, Limit, Outcome, Sample},
    },
    sync::{Arc, lock},
};

const MS: u64 = 1_000_000;

/// Ages at which nothing is ever too old.
const NEVER_OLD: Settings = Settings {
    target: u64::MAX / 4,
    interval: u64::MAX / 4,
    min: 1,
    max: 1 << 24,
    max_sojourn: None,
};

/// A limit that nothing moves but [`Governor::pin`].
struct Fixed(usize);

impl Limit for Fixed {
    fn limit(&self) -> usize {
        self.0
    }

    fn sample(&mut self, _: &Sample) {}

    fn bounds(&self) -> LimitBounds {
        LimitBounds::new(1, self.0, self.0)
    }

    fn restart(&mut self, _: LimitBounds) {}
}

fn gate(limit: usize, config: WfqConfig) -> Gate<Fair> {
    aged(limit, config, NEVER_OLD)
}

fn aged(limit: usize, config: WfqConfig, ages: Settings) -> Gate<Fair> {
    let clock = Clock::tokio();
    let governor = Governor::new(Fixed(limit), clock.clone());
    Gate::fair("fair", config, ages, governor, clock)
}

fn cost(cost: u32) -> NonZeroU32 {
    NonZeroU32::new(cost).expect("a cost")
}

async fn after(time: u64) {
    tokio::time::advance(Duration::from_nanos(time)).await;
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Woken {
    fn new() -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self::default());
        (Arc::clone(&woken), Waker::from(woken))
    }

    fn times(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn arrive(gate: &Gate<Fair>, tenant: &str, age: u64) -> Arrived {
    let name = (!tenant.is_empty()).then_some(tenant);
    gate.arrive(name, cost(1), age, &mut Now::default(), |_| {
        Urgency::default()
    })
}

/// Starts a request of this tenant, for which there is a permit. Without a name it has none.
fn start(gate: &Gate<Fair>, tenant: &str) -> Grant {
    match arrive(gate, tenant, 0) {
        Arrived::Goes(grant) => grant,
        Arrived::Waits(_) => panic!("it has to wait"),
        Arrived::Rejected(rejection) => panic!("{rejection}"),
    }
}

fn end(gate: &Gate<Fair>, grant: Grant) {
    gate.end(grant, End::Served, &mut Now::default());
}

/// A request is answered, as an edge does it. Says whether it passed the room.
fn serve(gate: &Gate<Fair>, grant: Grant) -> bool {
    let mut now = Now::default();
    let passes = gate.passes(&grant);
    if passes {
        let used = gate.used(&grant, &mut now);
        let governor = gate.governor();
        let dispatched = governor.dispatch(gate, &mut now);
        governor.complete_past(gate, dispatched, Outcome::Success, used, &mut now);
        gate.complete();
    } else {
        gate.end(grant, End::Served, &mut now);
    }
    passes
}

/// A request that waits.
struct Waiter {
    arrival: Arrival,
    seat: u32,
    woken: Arc<Woken>,
    waker: Waker,
}

impl Waiter {
    /// A request of this tenant comes, for which there is no permit.
    fn comes(gate: &Gate<Fair>, tenant: &str) -> Arrival {
        match arrive(gate, tenant, 0) {
            Arrived::Waits(arrival) => arrival,
            Arrived::Goes(_) => panic!("it need not wait"),
            Arrived::Rejected(rejection) => panic!("{rejection}"),
        }
    }

    fn enters(gate: &Gate<Fair>, tenant: &str) -> Self {
        let (woken, waker) = Woken::new();
        let arrival = Self::comes(gate, tenant);
        let seat = enter(gate, &arrival, waker.clone());
        Self {
            arrival,
            seat,
            woken,
            waker,
        }
    }

    fn look(&self, gate: &Gate<Fair>) -> Fate {
        gate.look(&self.arrival, self.seat, &self.waker)
    }

    fn granted(self, gate: &Gate<Fair>) -> Grant {
        match self.look(gate) {
            Fate::Goes(grant) => grant,
            Fate::Waits => panic!("it waits"),
            Fate::Rejected(rejection) => panic!("{rejection}"),
        }
    }

    fn rejected(self, gate: &Gate<Fair>) -> Reason {
        match self.look(gate) {
            Fate::Rejected(rejection) => rejection.reason(),
            Fate::Waits => panic!("it waits"),
            Fate::Goes(_) => panic!("it was granted a permit"),
        }
    }

    fn leaves(self, gate: &Gate<Fair>) {
        gate.leave(&self.arrival, self.seat);
    }
}

fn enter(gate: &Gate<Fair>, arrival: &Arrival, waker: Waker) -> u32 {
    let Ok(entered) = gate.enter(arrival, waker) else {
        panic!("there is no place");
    };
    entered.after.run(gate);
    entered.seat
}

/// What holds whenever the lock is free.
fn assert_consistent(gate: &Gate<Fair>) {
    let slow = lock(&gate.slow);
    let room = &slow.room;
    let word = gate.load();
    assert_eq!(
        word.queued(),
        room.has_next(),
        "`QUEUED` is set exactly while a waiter may be next"
    );
    assert!(
        !room.has_next() || !word.has_room(),
        "a permit is free, and a waiter may have it"
    );
    assert_eq!(room.busy.since.is_some(), room.waiting() > 0);
    if room.busy.since.is_none() {
        assert_eq!(gate.published.busy(), room.busy.total);
    }
    assert!(room.queue.running() <= word.in_flight());
}

/// Nobody is left, and nothing is held for anybody.
fn assert_empty(gate: &Gate<Fair>) {
    assert_consistent(gate);
    let mut slow = lock(&gate.slow);
    let room = &mut slow.room;
    assert_eq!(gate.load().in_flight(), 0);
    assert_eq!((room.queue.waiting(), room.queue.running()), (0, 0));
    assert_eq!(room.seats.taken(), 0);
    assert!(room.tenants.is_idle());
}
