//! Vegas as Netflix runs it: its own unit tests' numbers, and more that were derived from its formulas.

use tower_backpressure::adaptive_concurrency::{Bounds, Limit, NetflixVegas, Outcome, Vegas};

use crate::{feed, feed_outcome};

fn vegas(initial: usize, max: usize) -> NetflixVegas {
    let mut vegas = Vegas::netflix();
    vegas.restart(Bounds::new(1, initial, max));
    vegas
}

/// With a baseline of 10 ms, which the first sample sets.
fn based(initial: usize, max: usize) -> NetflixVegas {
    let mut vegas = vegas(initial, max);
    assert_eq!(feed(&mut vegas, 10.0, initial), initial);
    vegas
}

#[test]
fn the_published_vectors() {
    let narrow = || {
        let mut vegas = Vegas::netflix().alpha(3).beta(6);
        vegas.restart(Bounds::new(1, 10, 20));
        vegas
    };
    let halving = |smoothing| {
        let mut vegas = Vegas::netflix().decrease_to(0.5).smoothing(smoothing);
        vegas.restart(Bounds::new(1, 100, 200));
        vegas
    };
    type Case = (NetflixVegas, &'static [(f64, usize, usize)]);
    let cases: [Case; 6] = [
        (narrow(), &[(10.0, 10, 10), (10.0, 11, 16)]),
        (narrow(), &[(10.0, 10, 10), (50.0, 11, 9)]),
        (narrow(), &[(10.0, 10, 10), (14.0, 14, 10)]),
        (
            vegas(10_000, 20_000),
            &[(10_000.0, 5000, 10_000), (10_000.0, 6000, 10_024)],
        ),
        (
            halving(0.5),
            &[(10.0, 100, 100), (20.0, 100, 75), (20.0, 100, 56)],
        ),
        (
            halving(1.0),
            &[(10.0, 100, 100), (20.0, 100, 50), (20.0, 100, 25)],
        ),
    ];
    for (row, (mut vegas, samples)) in cases.into_iter().enumerate() {
        for &(rtt, in_flight, limit) in samples {
            assert_eq!(feed(&mut vegas, rtt, in_flight), limit, "row {row}");
        }
    }
}

#[test]
fn one_sample_after_the_baseline() {
    // (limit, rtt in ms, limit after it)
    for (limit, rtt, after) in [
        (20, 10.0, 26),
        (20, 10.5, 26),
        (20, 11.0, 21),
        (20, 12.0, 20),
        (20, 14.2, 20),
        (20, 14.3, 19),
        (20, 50.0, 19),
        (100, 10.0, 112),
        (100, 10.2, 112),
        (100, 10.3, 102),
        (100, 10.5, 102),
        (100, 11.0, 100),
        (100, 11.3, 100),
        (100, 11.4, 98),
        (100, 50.0, 98),
        (998, 10.0, 1000),
    ] {
        assert_eq!(
            feed(&mut based(limit, 1000), rtt, limit),
            after,
            "{limit} at {rtt} ms"
        );
    }
}

#[test]
fn latency_alone_never_lowers_a_limit_of_six_or_less() {
    for (limit, after) in [
        (1, 7),
        (2, 3),
        (3, 3),
        (5, 5),
        (6, 6),
        (7, 6),
        (8, 7),
        (9, 8),
    ] {
        assert_eq!(
            feed(&mut based(limit, 1000), 1000.0, limit),
            after,
            "{limit}"
        );
    }
}

#[test]
fn less_than_half_in_use_says_nothing() {
    assert_eq!(feed(&mut based(20, 1000), 10.0, 9), 20);
    assert_eq!(feed(&mut based(20, 1000), 10.0, 10), 26);
}

#[test]
fn a_failure_lowers_it_unless_it_sets_the_baseline() {
    let failed = |vegas: &mut NetflixVegas, rtt| feed_outcome(vegas, rtt, 1, Outcome::Failure);
    assert_eq!(failed(&mut based(20, 1000), 10.0), 19);
    assert_eq!(failed(&mut vegas(20, 1000), 10.0), 20, "the first sample");
    assert_eq!(failed(&mut based(20, 1000), 9.0), 20, "a new minimum");
    assert_eq!(
        feed_outcome(&mut based(20, 1000), 0.1, 20, Outcome::Ignored),
        20
    );
}

#[test]
fn at_the_baseline_it_grows_by_six_times_the_logarithm() {
    let mut vegas = based(20, 1000);
    let limits: Vec<_> = (0..16)
        .map(|_| {
            let in_flight = vegas.limit();
            feed(&mut vegas, 10.0, in_flight)
        })
        .collect();
    assert_eq!(limits[..3], [26, 32, 38]);
    assert_eq!(limits[12..], [98, 104, 116, 128]);
}

#[test]
fn a_gate_keeps_the_baseline_from_being_taken_under_load() {
    let probing = |gate: Option<f64>| {
        let mut vegas = Vegas::netflix().probe_multiplier(1);
        if let Some(share) = gate {
            vegas = vegas.probe_gate(share);
        }
        vegas.restart(Bounds::new(1, 20, 200));
        feed(&mut vegas, 10.0, 5);
        vegas
    };
    let base_after = |mut vegas: NetflixVegas, rtt, in_flight| {
        for _ in 0..200 {
            feed(&mut vegas, rtt, in_flight);
        }
        vegas.report().baseline.unwrap().as_secs_f64() * 1000.0
    };
    assert_eq!(base_after(probing(Some(0.5)), 50.0, 15), 10.0);
    assert_eq!(base_after(probing(Some(0.5)), 15.0, 5), 15.0);
    assert_eq!(
        base_after(probing(None), 50.0, 15),
        50.0,
        "without the gate"
    );
}

#[test]
fn the_jitter_comes_from_the_seed() {
    let sum_of_limits = |seed| -> usize {
        let mut vegas = Vegas::netflix().seed(seed);
        let mut limits = (0..20_000_u32).map(|i| {
            let in_flight = vegas.limit();
            feed(&mut vegas, 10.0 + f64::from(i % 7), in_flight)
        });
        limits.by_ref().sum()
    };
    assert_eq!(sum_of_limits(1), sum_of_limits(1));
    assert_ne!(sum_of_limits(1), sum_of_limits(2));
}
