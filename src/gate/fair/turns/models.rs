//! Loom models of the turn: every interleaving of a few requests. A turn that is lost is a deadlock, which
//! loom reports.

use loom::thread;

use super::{super::*, *};
use crate::{
    Clock,
    gate::{
        claim::Limiter,
        model::{self, Parked},
    },
    law::fair_queues::MAIN,
    sync::Arc,
};

/// A fair queue, and one seat inside it.
#[derive(Clone)]
struct Stack {
    fair: Arc<Gate<Fair<Turns>>>,
    seat: Arc<Gate>,
}

impl Stack {
    fn new() -> Self {
        let fair = Gate::turns(WfqConfig::default().clock(Clock::stopped()));
        Self {
            fair: Arc::new(fair),
            seat: Arc::new(Gate::new("seat", 1).expect("one seat")),
        }
    }

    /// One whole request, as `Wfq` makes it, of a tenant, if it has a name. Says whether it was sent.
    fn request(&self, tenant: &str, gives_up: GivesUp) -> bool {
        let name = Some(tenant).filter(|name| !name.is_empty());
        let came = (self.fair).come(name, NonZeroU32::MIN, MAIN, &mut Now::default());
        let waits = match came {
            Ok(began) if self.seat.try_admit(()) => {
                self.run(began.grant);
                return true;
            }
            Ok(began) => {
                let normal = Urgency::default();
                let (waits, after) = self.fair.take_back(began.grant, began.from, normal);
                after.run(&self.fair);
                waits
            }
            Err(arrival) => self.fair.wait(arrival),
        };
        let Ok(arrival) = waits else {
            return false;
        };
        let (parked, waker) = Parked::new();
        let Ok(entered) = self.fair.enter(&arrival, waker.clone()) else {
            self.fair.depart(&arrival);
            return false;
        };
        let seat = entered.seat;
        entered.after.run(&self.fair);
        if gives_up == GivesUp::WhileItWaits {
            self.fair.leave(&arrival, seat);
            return false;
        }
        loop {
            match self.fair.look_for_turn(&arrival, seat, &waker) {
                Look::Turn => {}
                Look::Wait(_) => {
                    parked.wait();
                    continue;
                }
                Look::Rejected(_) => return false,
            }
            if gives_up == GivesUp::WithTheTurn {
                self.fair.leave(&arrival, seat);
                return false;
            }
            model::acquire(&*self.seat, ());
            let (begun, after) = self.fair.begin(&arrival, seat, &mut Now::default());
            after.run(&self.fair);
            match begun {
                Begun::Yes(grant, _) => {
                    self.run(grant);
                    return true;
                }
                Begun::No => self.seat.give_back(()),
                Begun::Rejected(_) => unreachable!("it has no deadline"),
            }
        }
    }

    fn run(&self, grant: Grant) {
        self.seat.complete();
        self.fair.over(grant, End::Served, &mut Now::default());
    }

    /// Nobody is left, nobody has the turn, and the next request need not wait.
    fn assert_empty(&self, served: u64) {
        let snapshot = self.fair.queue_snapshot();
        assert_eq!((snapshot.waiting, snapshot.running), (0, 0));
        assert_eq!(snapshot.served, served);
        assert!(lock(&self.fair.slow).room.serves.0.is_empty());
        assert_eq!(self.fair.load_now(), (0, false), "nobody has the turn");
        assert_eq!(self.seat.snapshot().in_flight, 0);
        let came = (self.fair).come(None, NonZeroU32::MIN, MAIN, &mut Now::default());
        let Ok(began) = came else {
            panic!("nobody is in the way")
        };
        (self.fair).over(began.grant, End::NotSent, &mut Now::default());
    }
}

#[derive(Clone, Copy, PartialEq)]
enum GivesUp {
    Never,
    WhileItWaits,
    WithTheTurn,
}
use GivesUp::*;

/// Each in a thread of its own, and the last in this one.
fn check(requests: &'static [(&'static str, GivesUp)], prepare: fn(&Stack)) {
    model::check(2, move || {
        let stack = Stack::new();
        prepare(&stack);
        let (last, others) = requests.split_last().expect("some requests");
        let threads: Vec<_> = (others.iter())
            .map(|&(tenant, gives_up)| {
                let stack = stack.clone();
                thread::spawn(move || stack.request(tenant, gives_up))
            })
            .collect();
        let mut served = u64::from(stack.request(last.0, last.1));
        for thread in threads {
            served += u64::from(thread.join().expect("no panic"));
        }
        let all = requests.iter().all(|(_, gives_up)| *gives_up == Never);
        assert!(!all || served == requests.len() as u64);
        stack.assert_empty(served);
    });
}

#[test]
fn the_turn_is_passed_on_to_all_who_wait() {
    check(&[("a", Never), ("b", Never), ("a", Never)], |_| {});
}

#[test]
fn one_that_leaves_while_it_is_given_the_turn_passes_it_on() {
    check(&[("a", Never), ("b", WhileItWaits), ("a", Never)], |_| {});
}

#[test]
fn one_that_leaves_with_the_turn_passes_it_on() {
    check(&[("a", Never), ("b", WithTheTurn), ("c", Never)], |_| {});
}

#[test]
fn those_who_go_past_the_queue_are_in_nobodys_way() {
    check(&[("", Never), ("", Never)], |_| {});
    check(&[("", Never), ("a", Never)], |_| {});
}

#[test]
fn what_went_past_the_queue_is_counted_once() {
    model::check(2, || {
        let stack = Stack::new();
        stack.seat.set_limit(3).expect("seats for all");
        let others = [stack.clone(), stack.clone()];
        let threads = others.map(|stack| thread::spawn(move || stack.request("", Never)));
        let snapshot = stack.fair.queue_snapshot();
        assert!(snapshot.served + snapshot.running as u64 <= 2);
        for thread in threads {
            assert!(thread.join().expect("no panic"));
        }
        stack.assert_empty(2);
    });
}

#[test]
fn one_that_was_held_back_by_its_tenants_own_is_let_in_after_it() {
    check(&[("a", Never), ("a", Never), ("b", Never)], |stack| {
        stack.seat.set_limit(3).expect("seats for all");
        stack
            .fair
            .set_max_in_flight_per_tenant(Some(NonZeroU32::MIN));
    });
}

/// What one has been charged for, and gives back, may be what holds back another of its tenant's.
#[test]
fn one_that_has_to_wait_after_all_lets_in_what_it_held_back() {
    check(&[("a", Never), ("a", Never), ("b", Never)], |stack| {
        stack
            .fair
            .set_max_in_flight_per_tenant(Some(NonZeroU32::MIN));
    });
}

#[test]
fn one_that_finds_no_room_leaves_nothing_behind() {
    model::check(2, || {
        let stack = Stack::new();
        stack.fair.bounds.set_max_waiting(1);
        let other = stack.clone();
        let thread = thread::spawn(move || u64::from(other.request("a", Never)));
        let third = stack.clone();
        let third = thread::spawn(move || u64::from(third.request("b", Never)));
        let mut served = u64::from(stack.request("c", Never));
        served += thread.join().expect("no panic") + third.join().expect("no panic");
        assert!(served >= 1);
        stack.assert_empty(served);
    });
}
