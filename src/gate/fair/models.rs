//! Loom models of the fair room in its gate: every interleaving of a few requests. A permit that is lost is a deadlock,
//! which loom reports.

use loom::thread;

use super::*;
use crate::{
    Clock, WfqConfig,
    clock::Now,
    gate::{
        gate::Gate,
        governor::Governor,
        model::{self, Parked},
    },
    law::{
        codel::Settings,
        fair_queues::MAIN,
        limit::{Bounds as LimitBounds, Limit, Sample},
    },
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
}
use GivesUp::*;

fn arrive(gate: &Gate<Fair>, tenant: &str) -> Arrived {
    arrive_urgently(gate, tenant, Urgency::default())
}

fn arrive_urgently(gate: &Gate<Fair>, tenant: &str, urgency: Urgency) -> Arrived {
    let name = (!tenant.is_empty()).then_some(tenant);
    gate.arrive(name, NonZeroU32::MIN, 0, &mut Now::default(), |_| urgency)
}

/// More important than others.
const IMPORTANT: Urgency = Urgency {
    lane: MAIN + 1,
    deadline: None,
};

/// Comes as an edge lets it, until it has a permit.
fn acquire(gate: &Gate<Fair>, tenant: &str, gives_up: GivesUp) -> Option<Grant> {
    acquire_urgently(gate, tenant, Urgency::default(), gives_up)
}

fn acquire_urgently(
    gate: &Gate<Fair>,
    tenant: &str,
    urgency: Urgency,
    gives_up: GivesUp,
) -> Option<Grant> {
    let arrival = match arrive_urgently(gate, tenant, urgency) {
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

/// A request that waits for a permit that another has.
struct Waiter {
    arrival: Arrival,
    seat: u32,
    parked: std::sync::Arc<Parked>,
    waker: Waker,
}

impl Waiter {
    fn enters(gate: &Gate<Fair>, tenant: &str) -> Self {
        Self::enters_urgently(gate, tenant, Urgency::default())
    }

    fn enters_urgently(gate: &Gate<Fair>, tenant: &str, urgency: Urgency) -> Self {
        let Arrived::Waits(arrival) = arrive_urgently(gate, tenant, urgency) else {
            panic!("it has to wait");
        };
        let (parked, waker) = Parked::new();
        let Ok(entered) = gate.enter(&arrival, waker.clone()) else {
            panic!("there is a place");
        };
        let seat = entered.seat;
        entered.after.run(gate);
        Self {
            arrival,
            seat,
            parked,
            waker,
        }
    }

    /// Waits until it is decided what becomes of it. Loom wakes it at other times, too.
    fn decided(self, gate: &Gate<Fair>) -> Fate {
        loop {
            self.parked.wait();
            match gate.look(&self.arrival, self.seat, &self.waker) {
                Fate::Waits => {}
                fate => return fate,
            }
        }
    }

    fn granted(self, gate: &Gate<Fair>) -> Grant {
        match self.decided(gate) {
            Fate::Goes(grant) => grant,
            _ => panic!("it was rejected"),
        }
    }

    /// Says whether it was served.
    fn request(self, gate: &Gate<Fair>) -> bool {
        match self.decided(gate) {
            Fate::Goes(grant) => {
                end(gate, grant);
                true
            }
            _ => false,
        }
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
    assert_eq!(
        (permits.admitted, shown.shown.counts.served),
        (served, served)
    );
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
        let waiter = Waiter::enters(&gate, "a"); // one is all that it may have
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
        let grant = waiter.granted(&gate);
        assert_eq!(lock(&gate.slow).room.queue.running(), 2);
        end(&gate, grant);
        end(&gate, runs);
        assert_empty(&gate, 2);
    });
}

#[test]
fn a_waiter_that_leaves_while_it_is_granted_a_permit_hands_it_on() {
    check(|| {
        let gate = gate(1, WfqConfig::default());
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let [leaves, stays] = ["b", "c"].map(|tenant| Waiter::enters(&gate, tenant));
        let other = gate.clone();
        let thread = thread::spawn(move || other.leave(&leaves.arrival, leaves.seat));
        end(&gate, runs);
        assert!(stays.request(&gate));
        thread.join().expect("no panic");
        assert_empty(&gate, 2);
    });
}

#[test]
fn a_waiter_that_expires_while_it_is_granted_a_permit_has_it_or_hands_it_on() {
    check(|| {
        let gate = gate(1, WfqConfig::default());
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let [expires, stays] = ["b", "c"].map(|tenant| Waiter::enters(&gate, tenant));
        let other = gate.clone();
        let thread = thread::spawn(move || match other.expire(&expires.arrival, expires.seat) {
            Fate::Goes(grant) => {
                end(&other, grant);
                true
            }
            Fate::Rejected(rejection) => {
                assert_eq!(rejection.reason(), Reason::WaitTimeout);
                false
            }
            Fate::Waits => panic!("its time is over"),
        });
        end(&gate, runs);
        assert!(stays.request(&gate));
        let served = thread.join().expect("no panic");
        let expired = gate.bounds.rejected().wait_timeout;
        assert_eq!(expired, u64::from(!served));
        assert_empty(&gate, 2 + u64::from(served));
    });
}

#[test]
fn a_limit_that_grows_while_a_request_enters_lets_it_go() {
    check(|| {
        let gate = gate(1, WfqConfig::default());
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let other = gate.clone();
        let thread = thread::spawn(move || request(&other, "b", Never));
        gate.governor().pin(&gate, 2);
        assert!(thread.join().expect("no panic"));
        end(&gate, runs);
        assert_empty(&gate, 2);
    });
}

/// With a limit of one, and one waiter: if a newcomer goes, that one is done.
#[test]
fn a_newcomer_does_not_pass_the_waiter_to_whom_a_permit_is_handed_on() {
    check(|| {
        let gate = gate(1, WfqConfig::default());
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let waiter = Waiter::enters(&gate, "b");
        let done = Arc::new(AtomicUsize::new(0));
        let (other, is_done) = (gate.clone(), done.clone());
        let thread = thread::spawn(move || {
            let grant = acquire(&other, "c", Never).expect("there is a place");
            assert_eq!(is_done.load(Relaxed), 1, "it passed the waiter");
            end(&other, grant);
        });
        end(&gate, runs);
        let grant = waiter.granted(&gate);
        assert_eq!(gate.load().in_flight(), 1);
        done.store(1, Relaxed);
        end(&gate, grant);
        thread.join().expect("no panic");
        assert_empty(&gate, 3);
    });
}

/// The same where the permit comes of a limit that has grown.
#[test]
fn a_newcomer_does_not_pass_the_waiter_to_whom_a_new_permit_is_handed() {
    check(|| {
        let gate = gate(1, WfqConfig::default());
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let waiter = Waiter::enters(&gate, "b");
        let other = gate.clone();
        let thread = thread::spawn(move || match arrive(&other, "c") {
            Arrived::Goes(_) => panic!("it passed the waiter"),
            Arrived::Waits(arrival) => other.depart(&arrival),
            Arrived::Rejected(rejection) => panic!("{rejection}"),
        });
        gate.governor().pin(&gate, 2);
        let grant = waiter.granted(&gate);
        thread.join().expect("no panic");
        assert_eq!(gate.load().in_flight(), 2);
        end(&gate, grant);
        end(&gate, runs);
        assert_empty(&gate, 2);
    });
}

/// There is one place, and the newcomer's tenant has the greater weight.
#[test]
fn a_waiter_whose_place_another_needs_while_it_is_granted_a_permit_is_served_or_rejected() {
    check(|| {
        let gate = gate(1, WfqConfig::default().max_waiting(1));
        gate.set_weight("c", 2).expect("a weight");
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let waiter = Waiter::enters(&gate, "b");
        let other = gate.clone();
        let thread = thread::spawn(move || request(&other, "c", Never));
        end(&gate, runs);
        let served = waiter.request(&gate);
        assert!(thread.join().expect("no panic"));
        assert_eq!(gate.bounds.rejected().queue_full, u64::from(!served));
        assert_empty(&gate, 2 + u64::from(served));
    });
}

/// There is one place, and the newcomer matters more. Whoever is rejected was never served.
#[test]
fn a_waiter_that_is_displaced_while_it_is_granted_a_permit_is_served_or_rejected() {
    check(|| {
        let gate = gate(1, WfqConfig::default().max_waiting(1));
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let waiter = Waiter::enters(&gate, "b");
        let other = gate.clone();
        let thread = thread::spawn(move || {
            let important = acquire_urgently(&other, "c", IMPORTANT, Never);
            end(&other, important.expect("nobody matters more"));
        });
        end(&gate, runs);
        let served = waiter.request(&gate);
        thread.join().expect("no panic");
        let rejected = gate.bounds.rejected();
        assert_eq!(rejected.displaced, u64::from(!served));
        assert_eq!(rejected.queue_full, 0);
        assert_empty(&gate, 2 + u64::from(served));
    });
}

#[test]
fn a_waiter_that_leaves_while_it_is_displaced_is_gone_once() {
    check(|| {
        let gate = gate(1, WfqConfig::default().max_waiting(1));
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let leaves = Waiter::enters(&gate, "b");
        let other = gate.clone();
        let thread = thread::spawn(move || other.leave(&leaves.arrival, leaves.seat));
        let important = Waiter::enters_urgently(&gate, "c", IMPORTANT);
        thread.join().expect("no panic");
        assert_eq!(gate.snapshot().waits.count(), 1, "its wait is over, once");
        assert!(gate.bounds.rejected().displaced <= 1);
        end(&gate, runs);
        assert!(important.request(&gate));
        assert_empty(&gate, 2);
    });
}

#[test]
fn a_waiter_whose_deadline_passes_while_it_is_granted_a_permit_has_it_or_hands_it_on() {
    check(|| {
        let gate = gate(1, WfqConfig::default());
        let runs = acquire(&gate, "a", Never).expect("nobody is there");
        let soon = Urgency {
            deadline: Some(1),
            ..Urgency::default()
        };
        let expires = Waiter::enters_urgently(&gate, "b", soon);
        let stays = Waiter::enters(&gate, "c");
        let other = gate.clone();
        let thread = thread::spawn(move || match other.expire(&expires.arrival, expires.seat) {
            Fate::Goes(grant) => {
                end(&other, grant);
                true
            }
            Fate::Rejected(rejection) => {
                assert_eq!(rejection.reason(), Reason::Deadline);
                false
            }
            Fate::Waits => panic!("its time is over"),
        });
        end(&gate, runs);
        assert!(stays.request(&gate));
        let served = thread.join().expect("no panic");
        assert_eq!(gate.bounds.rejected().deadline, u64::from(!served));
        assert_empty(&gate, 2 + u64::from(served));
    });
}
