//! Gradient2, by numbers that were derived from its formulas.

use tower_backpressure::adaptive_concurrency::{Bounds, Gradient2, Limit, Outcome};

use crate::{feed, feed_outcome};

#[test]
fn at_a_constant_time_it_grows_by_the_queue_that_it_allows() {
    let mut law = Gradient2::default();
    let limits: Vec<_> = (0..10).map(|_| feed(&mut law, 10.0, 20)).collect();
    assert_eq!(limits, [20, 21, 22, 23, 24, 24, 25, 26, 27, 28]); // 20.8, 21.6 … 28.0
}

#[test]
fn less_than_half_in_use_says_nothing() {
    let mut law = Gradient2::default();
    (0..100).for_each(|_| assert_eq!(feed(&mut law, 10.0, 9), 20));
    assert_eq!((0..10).map(|_| feed(&mut law, 10.0, 20)).last(), Some(28));
}

#[test]
fn failures_lower_it() {
    let mut law = Gradient2::new(Bounds::new(1, 100, 200));
    feed(&mut law, 10.0, 100);
    assert_eq!(feed_outcome(&mut law, 10.0, 100, Outcome::Failure), 90);
    assert_eq!(
        feed_outcome(&mut law, 10.0, 1, Outcome::Failure),
        81,
        "also when it is not used"
    );
    for _ in 0..200 {
        feed_outcome(&mut law, 10.0, 100, Outcome::Failure);
    }
    assert_eq!(law.limit(), 1, "a service that only times out");
}
