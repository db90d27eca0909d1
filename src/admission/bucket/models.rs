//! Loom models of the shared bucket. Time stands still in them, so tokens come only by being put back
//! or by a new rate.
//!
//! `RUSTFLAGS="--cfg backpressure_loom" cargo test --lib`

use std::{
    sync::Arc as StdArc,
    task::{Wake, Waker},
};

use loom::{model::Builder, sync::Notify, thread};

use super::*;
use crate::sync::Arc;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// One that refills so slowly that it never does.
fn bucket(burst: u64) -> Arc<Bucket> {
    let rate = Rate::per_hour(1).burst(burst);
    Arc::new(Bucket::new("model", rate, Clock::default()))
}

struct Parked(Notify);

impl Wake for Parked {
    fn wake(self: StdArc<Self>) {
        self.0.notify();
    }
}

/// Waits for a token as a task would; the timer never fires.
fn acquire(bucket: &Bucket) {
    if bucket.try_admit(1) {
        return;
    }
    let parked = StdArc::new(Parked(Notify::new()));
    let waker = Waker::from(StdArc::clone(&parked));
    let ticket = match bucket.enter(1, waker.clone()) {
        Entered::Admitted => return,
        Entered::Refused(_) => panic!("the queue is long enough"),
        Entered::Waiting(ticket, _) => ticket,
    };
    loop {
        parked.0.wait();
        if bucket.redeem(&ticket, &waker).is_ok() {
            return;
        }
    }
}

#[test]
fn no_token_is_taken_twice() {
    check(|| {
        let bucket = bucket(2);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let bucket = bucket.clone();
                thread::spawn(move || usize::from(bucket.try_admit(1)))
            })
            .collect();
        let mut taken = usize::from(bucket.try_admit(1));
        for thread in threads {
            taken += thread.join().unwrap();
        }
        assert_eq!(taken, 2);
        assert_eq!(
            (bucket.snapshot().tokens, bucket.snapshot().admitted),
            (0, 2)
        );
    });
}

#[test]
fn a_token_that_is_put_back_reaches_whoever_waits() {
    check(|| {
        let bucket = bucket(1);
        assert!(bucket.try_admit(1));
        let waiter = {
            let bucket = bucket.clone();
            thread::spawn(move || acquire(&bucket))
        };
        bucket.give_back(1);
        waiter.join().unwrap();
        let snapshot = bucket.snapshot();
        assert_eq!(
            (snapshot.tokens, snapshot.waiting, snapshot.admitted),
            (0, 0, 1)
        );
    });
}

#[test]
fn a_waiter_that_leaves_while_it_is_granted_passes_the_token_on() {
    check(|| {
        let bucket = bucket(1);
        assert!(bucket.try_admit(1));
        let leaver = {
            let bucket = bucket.clone();
            thread::spawn(move || match bucket.enter(1, Waker::noop().clone()) {
                Entered::Admitted => bucket.give_back(1),
                Entered::Refused(_) => panic!("the queue is long enough"),
                Entered::Waiting(ticket, _) => {
                    if bucket.leave(ticket) {
                        bucket.give_back(1);
                    }
                }
            })
        };
        let waiter = {
            let bucket = bucket.clone();
            thread::spawn(move || acquire(&bucket))
        };
        bucket.give_back(1);
        leaver.join().unwrap();
        waiter.join().unwrap();
        let snapshot = bucket.snapshot();
        assert_eq!(
            (snapshot.tokens, snapshot.waiting, snapshot.admitted),
            (0, 0, 1)
        );
    });
}

#[test]
fn a_rate_is_never_read_half_changed() {
    check(|| {
        let before = Refill::new(1, 2, 3);
        let after = Refill {
            origin: 5,
            ..Refill::new(7, 8, 9)
        };
        let shared = Arc::new(SharedRefill::new(before));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || shared.load())
        };
        shared.store(after);
        let read = reader.join().unwrap();
        assert!(read == before || read == after, "{read:?}");
        assert_eq!(shared.load(), after);
    });
}

#[test]
fn a_new_rate_grants_nothing_to_those_who_take_meanwhile() {
    check(|| {
        let bucket = bucket(1);
        let taker = {
            let bucket = bucket.clone();
            thread::spawn(move || u64::from(bucket.try_admit(1)))
        };
        bucket.set_rate(Rate::per_hour(1).burst(10));
        let taken = taker.join().unwrap();
        assert_eq!(taken + bucket.snapshot().tokens, 1);
    });
}
