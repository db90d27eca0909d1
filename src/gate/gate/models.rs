//! Loom models of the gate: every interleaving of a few threads, each property named by its test.
//!
//! `RUSTFLAGS="--cfg backpressure_loom" cargo test --lib`

use loom::thread;

use super::*;
use crate::{
    gate::model::{self, enter_and_leave},
    sync::Arc,
};

fn check(model: impl Fn() + Sync + Send + 'static) {
    model::check(3, model);
}

fn acquire(gate: &Gate) {
    model::acquire(gate, ());
}

fn gate(limit: usize) -> Arc<Gate> {
    Arc::new(Gate::new("model", limit).expect("a limit of at least 1"))
}

/// Counts those inside, on its own.
struct Inside(loom::sync::atomic::AtomicUsize);

impl Inside {
    fn new() -> Arc<Self> {
        Arc::new(Self(loom::sync::atomic::AtomicUsize::new(0)))
    }

    /// Goes in and out again.
    fn visit(&self, at_most: usize) {
        let before = self.0.fetch_add(1, SeqCst);
        assert!(before < at_most, "{} inside, limit {at_most}", before + 1);
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Everything was given back and nobody is left.
fn assert_empty(gate: &Gate, admitted: u64) {
    let snapshot = gate.snapshot();
    assert_eq!((snapshot.in_flight, snapshot.waiting), (0, 0));
    assert_eq!(snapshot.admitted, admitted);
    assert!(!gate.load().queued(), "queued although nobody waits");
}

#[test]
fn no_more_are_admitted_than_the_limit() {
    check(|| {
        let (gate, inside) = (gate(1), Inside::new());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (gate, inside) = (gate.clone(), inside.clone());
                thread::spawn(move || {
                    if gate.try_admit(()) {
                        inside.visit(1);
                        gate.complete();
                    }
                })
            })
            .collect();
        acquire(&gate);
        inside.visit(1);
        gate.complete();
        for thread in threads {
            thread.join().unwrap();
        }
        let admitted = gate.snapshot().admitted;
        assert_empty(&gate, admitted);
    });
}

#[test]
fn no_wakeup_is_lost() {
    check(|| {
        let (gate, inside) = (gate(1), Inside::new());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (gate, inside) = (gate.clone(), inside.clone());
                thread::spawn(move || {
                    acquire(&gate);
                    inside.visit(1);
                    gate.complete();
                })
            })
            .collect();
        acquire(&gate);
        inside.visit(1);
        gate.complete();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_empty(&gate, 3);
    });
}

#[test]
fn nobody_jumps_the_queue() {
    check(|| {
        let gate = gate(1);
        assert!(gate.try_admit(()));
        let waiter = {
            let gate = gate.clone();
            thread::spawn(move || match gate.enter((), Waker::noop().clone()) {
                Entered::Admitted => gate.give_back(()),
                Entered::Refused(_) => panic!("the queue is long enough"),
                Entered::Waiting(ticket, _) => {
                    // Whether the permit is in use still, free for a moment, or granted already.
                    assert!(!gate.try_admit(()), "admitted past the one that waits");
                    if gate.leave(ticket) {
                        gate.give_back(());
                    }
                }
            })
        };
        gate.complete();
        waiter.join().unwrap();
        assert_empty(&gate, 1);
    });
}

#[test]
fn a_waiter_that_leaves_while_it_is_granted_hands_the_permit_on() {
    check(|| {
        let gate = gate(1);
        assert!(gate.try_admit(()));
        let leaver = {
            let gate = gate.clone();
            thread::spawn(move || enter_and_leave(&*gate, ()))
        };
        let waiter = {
            let gate = gate.clone();
            thread::spawn(move || {
                acquire(&gate);
                gate.complete();
            })
        };
        gate.complete();
        leaver.join().unwrap();
        waiter.join().unwrap();
        assert_empty(&gate, 2);
    });
}

#[test]
fn nothing_is_admitted_after_a_shrink_until_less_is_in_flight() {
    check(|| {
        let (gate, inside) = (gate(2), Inside::new());
        assert!(gate.try_admit(()));
        let other = {
            let (gate, inside) = (gate.clone(), inside.clone());
            thread::spawn(move || {
                if gate.try_admit(()) {
                    // Admitted: before the shrink, or after the first one had gone.
                    inside.visit(2);
                    gate.complete();
                }
            })
        };
        gate.set_limit(1).unwrap();
        // From here on the other may only get in if it was in already.
        let in_flight = gate.load().in_flight();
        let later = gate.load().in_flight();
        assert!(
            later <= in_flight.max(1),
            "{in_flight} -> {later} at limit 1"
        );
        gate.complete();
        other.join().unwrap();
        assert_eq!(gate.snapshot().in_flight, 0);
    });
}

#[test]
fn a_permit_is_not_handed_on_while_more_are_in_flight_than_the_limit() {
    check(|| {
        let gate = gate(2);
        assert!(gate.try_admit(()) && gate.try_admit(()));
        let tickets: Vec<_> = (0..2)
            .map(|_| match gate.enter((), Waker::noop().clone()) {
                Entered::Waiting(ticket, _) => ticket,
                _ => panic!("there is no room"),
            })
            .collect();
        gate.set_limit(1).unwrap();
        let other = {
            let gate = gate.clone();
            thread::spawn(move || gate.complete())
        };
        gate.complete();
        other.join().unwrap();
        assert_eq!(gate.snapshot().in_flight, 1);
        for ticket in tickets {
            if gate.leave(ticket) {
                gate.give_back(());
            }
        }
        assert_empty(&gate, 2);
    });
}

/// Told by a cell that is not atomic: loom reports two threads in it at once, or one that does not see
/// what the other has done.
#[test]
fn what_is_done_under_a_permit_happens_before_what_is_done_under_the_next() {
    check(|| {
        let gate = gate(1);
        let cell = Arc::new(loom::cell::UnsafeCell::new(()));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (gate, cell) = (gate.clone(), cell.clone());
                thread::spawn(move || {
                    acquire(&gate);
                    cell.with_mut(|_| ());
                    gate.complete();
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_limit_that_grows_while_a_caller_queues_up_lets_it_in() {
    check(|| {
        let gate = gate(1);
        assert!(gate.try_admit(()));
        let waiter = {
            let gate = gate.clone();
            thread::spawn(move || {
                acquire(&gate);
                gate.complete();
            })
        };
        gate.set_limit(2).unwrap();
        waiter.join().unwrap();
        gate.complete();
        assert_empty(&gate, 2);
    });
}

#[test]
fn a_shrink_and_a_release_at_once_leave_no_waiter_behind() {
    check(|| {
        let gate = gate(2);
        assert!(gate.try_admit(()));
        assert!(gate.try_admit(()));
        let waiter = {
            let gate = gate.clone();
            thread::spawn(move || {
                acquire(&gate);
                gate.complete();
            })
        };
        let shrinker = {
            let gate = gate.clone();
            thread::spawn(move || gate.set_limit(1).unwrap())
        };
        gate.complete();
        gate.complete();
        waiter.join().unwrap();
        shrinker.join().unwrap();
        assert_empty(&gate, 3);
    });
}

#[test]
fn a_snapshot_is_never_torn() {
    check(|| {
        let gate = gate(2);
        assert!(gate.try_admit(()));
        let other = {
            let gate = gate.clone();
            thread::spawn(move || {
                acquire(&gate);
                gate.complete();
                gate.set_limit(1).unwrap();
            })
        };
        let snapshot = gate.snapshot();
        assert!((1..=2).contains(&snapshot.limit));
        assert!((1..=2).contains(&snapshot.in_flight));
        assert!((1..=2).contains(&snapshot.admitted));
        assert!(snapshot.peak_in_flight >= snapshot.in_flight);
        assert!(snapshot.admitted >= snapshot.in_flight as u64);
        if snapshot.limit == 1 {
            assert_eq!((snapshot.in_flight, snapshot.admitted), (1, 2));
        }
        gate.complete();
        other.join().unwrap();
        assert_empty(&gate, 2);
    });
}

#[test]
fn completions_are_folded_once() {
    check(|| {
        let gate = gate(2);
        // As if 2^14 requests had completed.
        gate.word.fetch_add(FOLD, SeqCst);
        let other = {
            let gate = gate.clone();
            thread::spawn(move || {
                acquire(&gate);
                gate.complete();
            })
        };
        assert!(gate.snapshot().admitted >= 1 << 14);
        acquire(&gate);
        gate.complete();
        other.join().unwrap();
        assert_empty(&gate, (1 << 14) + 2);
    });
}
