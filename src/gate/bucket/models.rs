//! Loom models of the shared bucket. Time stands still in them, so tokens come only by being put back
//! or by a new rate.
//!
//! `RUSTFLAGS="--cfg backpressure_loom" cargo test --lib`

use loom::thread;

use super::*;
use crate::{
    gate::model::{self, enter_and_leave},
    sync::Arc,
};

fn check(model: impl Fn() + Sync + Send + 'static) {
    model::check(2, model);
}

fn acquire(bucket: &Bucket) {
    model::acquire(bucket, 1);
}

/// One that refills so slowly that it never does.
fn bucket(burst: u64) -> Arc<Bucket> {
    let rate = Rate::per_hour(1).burst(burst);
    Arc::new(Bucket::new("model", rate, Clock::default()))
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

/// As if two were plenty for three threads. Nobody gets a token that is not there; somebody may see one less for a
/// moment.
#[test]
fn no_token_is_taken_twice_where_they_are_taken_first() {
    check(|| {
        let bucket = bucket(2);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let bucket = bucket.clone();
                thread::spawn(move || usize::from(bucket.try_take_with(1, 0)))
            })
            .collect();
        let mut taken = usize::from(bucket.try_take_with(1, 0));
        for thread in threads {
            taken += thread.join().unwrap();
        }
        assert!((1..=2).contains(&taken));
        let snapshot = bucket.snapshot();
        assert_eq!(snapshot.tokens + snapshot.admitted, 2);
        assert_eq!(snapshot.admitted, taken as u64);
    });
}

/// Whoever waits gets the token that was taken ahead of it and put back.
#[test]
fn tokens_that_are_taken_first_and_put_back_reach_whoever_waits() {
    check(|| {
        let bucket = bucket(1);
        let waiter = {
            let bucket = bucket.clone();
            thread::spawn(move || acquire(&bucket))
        };
        if bucket.try_take_with(1, 0) {
            bucket.give_back(1);
        }
        waiter.join().unwrap();
        let snapshot = bucket.snapshot();
        assert_eq!(
            (snapshot.tokens, snapshot.waiting, snapshot.admitted),
            (0, 0, 1)
        );
    });
}

#[test]
fn no_token_is_taken_twice_when_the_bucket_overflows() {
    check(|| {
        let bucket = bucket(2);
        bucket.set_rate(Rate::per_hour(1).burst(1)); // two are there, one fits
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || usize::from(bucket.try_admit(1)))
        };
        let taken = usize::from(bucket.try_admit(1)) + other.join().unwrap();
        assert_eq!(taken, 1);
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
            thread::spawn(move || enter_and_leave(&*bucket, 1))
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
        shared.begin();
        shared.finish(after);
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

/// A full bucket is drawn on by two threads: what overflowed is written off once, and both tokens are counted.
#[test]
fn a_full_bucket_is_written_off_once() {
    check(|| {
        let bucket = bucket(5);
        bucket.set_rate(Rate::per_hour(1).burst(2)); // five are there, two fit
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || bucket.try_admit(1))
        };
        assert!(bucket.try_admit(1));
        assert!(other.join().unwrap());
        let snapshot = bucket.snapshot();
        assert_eq!((snapshot.tokens, snapshot.admitted), (0, 2));
    });
}

/// One thread moves the count out of the word while another one counts and a third puts back.
#[test]
fn no_token_is_counted_twice_or_lost_when_the_count_is_folded() {
    check(|| {
        let bucket = bucket(5);
        assert!(bucket.try_admit(1));
        let threads = [
            thread::spawn({
                let bucket = bucket.clone();
                move || bucket.fold()
            }),
            thread::spawn({
                let bucket = bucket.clone();
                move || bucket.give_back(1)
            }),
        ];
        assert!(bucket.try_admit(1));
        for thread in threads {
            thread.join().unwrap();
        }
        let snapshot = bucket.snapshot();
        assert_eq!((snapshot.tokens, snapshot.admitted), (4, 1));
    });
}
