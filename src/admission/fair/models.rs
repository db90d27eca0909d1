//! Loom models of the fair room in its gate: every interleaving of a few requests. A permit that is lost is a deadlock,
//! which loom reports.

use loom::thread;

use super::*;
use crate::{
    Clock, WfqConfig,
    admission::{
        gate::Gate,
        governor::Governor,
        model::{self, Parked},
    },
    algorithm::{
        codel::Settings,
        limit::{Bounds as LimitBounds, Limit, Sample},
    },
    clock::Now,
    sync::{Arc, lock},
};

/// The limit is the number of samples it has seen, from this one on.
struct Counts(usize);

impl Limit for Counts {
    fn limit(&self) -> usize {
        self.0
    }

    fn sample(&mut self, _: &Sample) {
        self.0 += 1;
    }

    fn bounds(&self) -> LimitBounds {
        LimitBounds::new(1, self.0, 9)
    }

    fn restart(&mut self, bounds: LimitBounds) {
        self.0 = bounds.initial();
    }
}

const NEVER_OLD: Settings = Settings {
    target: u64::MAX / 4,
    interval: u64::MAX / 4,
    min: 1,
    max: 1 << 24,
    max_sojourn: None,
};

fn gate(limit: usize, config: WfqConfig) -> Arc<Gate<Fair>> {
    let clock = Clock::stopped();
    let governor = Governor::new(Counts(limit), clock.clone());
    Arc::new(Gate::fair("model", config, NEVER_OLD, governor, clock))
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    model::check(2, model);
}

#[derive(Clone, Copy, PartialEq)]
enum GivesUp {
    Never,
    /// It leaves without having looked.
    Leaves,
    /// Its time is over as soon as it waits. If it was granted a permit by then, it takes it.
    Expires,
}
use GivesUp::*;

fn arrive(gate: &Gate<Fair>, tenant: &str) -> Arrived {
    let name = (!tenant.is_empty()).then_some(tenant);
    gate.arrive(name, NonZeroU32::MIN, 0, &mut Now::default())
}

/// Comes as an edge lets it, until it has a permit.
fn acquire(gate: &Gate<Fair>, tenant: &str, gives_up: GivesUp) -> Option<Grant> {
    let arrival = match arrive(gate, tenant) {
        Arrived::Goes(grant) => return Some(grant),
        Arrived::Rejected(_) => return None,
        Arrived::Waits(arrival) => arrival,
    };
    let (parked, waker) = Parked::new();
    let Ok(entered) = gate.enter(&arrival, waker.clone()) else {
        gate.depart(&arrival);
        return None;
    };
    entered.after.run(gate);
    let seat = entered.seat;
    let mut fate = match gives_up {
        Never => gate.look(&arrival, seat, &waker),
        Expires => gate.expire(&arrival, seat),
        Leaves => {
            gate.leave(&arrival, seat);
            return None;
        }
    };
    loop {
        match fate {
            Fate::Goes(grant) => return Some(grant),
            Fate::Rejected(_) => return None,
            Fate::Waits => parked.wait(),
        }
        fate = gate.look(&arrival, seat, &waker);
    }
}

fn end(gate: &Gate<Fair>, grant: Grant) {
    gate.end(grant, End::Served, &mut Now::default());
}

/// A whole request. Says whether it was served.
fn request(gate: &Gate<Fair>, tenant: &str, gives_up: GivesUp) -> bool {
    let grant = acquire(gate, tenant, gives_up);
    let served = grant.is_some();
    if let Some(grant) = grant {
        end(gate, grant);
    }
    served
}

/// Nobody is left, and nothing is held for anybody.
fn assert_empty(gate: &Gate<Fair>, served: u64) {
    let shown = gate.shows();
    let permits = shown.permits;
    assert_eq!((permits.in_flight, permits.waiting), (0, 0));
    assert_eq!((permits.admitted, shown.shown.served), (served, served));
    let slow = lock(&gate.slow);
    let room = &slow.room;
    assert!(!gate.load().queued(), "queued although nobody waits");
    assert_eq!(room.queue.running(), 0);
    assert!(room.busy.since.is_none() && !room.has_next());
    assert!(room.tenants.is_idle());
}

#[test]
fn a_lower_bound_for_those_who_wait_is_no_surprise_to_one_that_enters() {
    check(|| {
        let gate = gate(1, WfqConfig::default());
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let other = gate.clone();
        let thread = thread::spawn(move || request(&other, "b", Leaves));
        gate.bounds.set_max_waiting(0);
        end(&gate, runs);
        let served = u64::from(thread.join().expect("no panic"));
        assert_empty(&gate, 1 + served);
    });
}

#[test]
fn no_tenant_has_more_in_flight_than_its_cap_when_that_is_raised() {
    check(|| {
        let gate = gate(9, WfqConfig::default().max_in_flight_per_tenant(1));
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let Arrived::Waits(arrival) = arrive(&gate, "a") else {
            panic!("one is all that it may have");
        };
        let (parked, waker) = Parked::new();
        let Ok(entered) = gate.enter(&arrival, waker.clone()) else {
            panic!("there is a place");
        };
        entered.after.run(&gate);
        let other = gate.clone();
        let raises = thread::spawn(move || {
            other.set_max_in_flight_per_tenant(NonZeroU32::new(2));
        });
        let passed = match arrive(&gate, "a") {
            Arrived::Goes(grant) => Some(grant),
            Arrived::Waits(arrival) => {
                gate.depart(&arrival);
                None
            }
            Arrived::Rejected(rejection) => panic!("{rejection}"),
        };
        raises.join().expect("no panic");
        assert!(passed.is_none(), "it passed the one that was next");
        parked.wait();
        let Fate::Goes(grant) = gate.look(&arrival, entered.seat, &waker) else {
            panic!("it was woken");
        };
        assert_eq!(lock(&gate.slow).room.queue.running(), 2);
        end(&gate, grant);
        end(&gate, runs);
        assert_empty(&gate, 2);
    });
}
