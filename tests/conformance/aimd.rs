//! AIMD.

use std::time::Duration;

use tower_backpressure::adaptive_concurrency::{Aimd, Bounds, Limit, Outcome};

use crate::{feed, feed_outcome};

fn aimd(min: usize, initial: usize, max: usize) -> Aimd {
    Aimd::new(Bounds::new(min, initial, max))
}

#[test]
fn the_published_vectors() {
    assert_eq!(feed(&mut aimd(20, 20, 200), 1.0, 10), 21);
    assert_eq!(
        feed_outcome(&mut aimd(20, 30, 200), 1.0, 10, Outcome::Failure),
        27
    );
    assert_eq!(feed(&mut aimd(20, 21, 21), 1.0, 21), 21, "at the maximum");
}

#[test]
fn less_than_half_in_use_says_nothing() {
    assert_eq!(feed(&mut aimd(20, 20, 200), 1.0, 9), 20);
}

#[test]
fn what_takes_too_long_has_failed() {
    assert_eq!(feed(&mut aimd(1, 30, 200), 5000.0, 30), 31);
    assert_eq!(feed(&mut aimd(1, 30, 200), 5001.0, 30), 27);
    assert_eq!(feed(&mut aimd(1, 30, 200).timeout(None), 1e9, 30), 31);
    let mut strict = aimd(1, 30, 200)
        .timeout(Some(Duration::from_millis(1)))
        .decrease_to(0.5);
    assert_eq!(feed(&mut strict, 2.0, 30), 15);
}

#[test]
fn it_keeps_to_its_bounds() {
    let mut law = aimd(3, 5, 7);
    for _ in 0..50 {
        feed_outcome(&mut law, 1.0, 5, Outcome::Failure);
        assert!(law.limit() >= 3);
    }
    assert_eq!(law.limit(), 3);
    (0..50).for_each(|_| assert!(feed(&mut law, 1.0, 7) <= 7));
    assert_eq!(law.limit(), 7);
}
