//! The default law, by the numbers of the simulation that it comes from.

use std::time::Duration;

use tower_backpressure::adaptive_concurrency::{Bounds, Limit, Outcome, Sample, Vegas};

/// A sample: seconds after the last one, round-trip time in seconds, in flight, outcome.
type Given = (f64, f64, usize, Outcome);

/// As many in flight as the limit allows.
const FULL: usize = 0;

/// `n` times the same.
fn times(n: usize, apart: f64, rtt: f64, in_flight: usize, outcome: Outcome) -> Vec<Given> {
    vec![(apart, rtt, in_flight, outcome); n]
}

/// Feeds the samples; after each whose number is listed the limit is as listed, and between them it does
/// not move.
#[track_caller]
fn check(initial: usize, samples: &[Given], limits: &[(usize, usize)], baseline_ms: u64) {
    let mut vegas = Vegas::new(Bounds::new(1, initial, 1000));
    let (mut now, mut limits, mut expected) = (0.0, limits.iter().peekable(), initial);
    for (number, &(apart, rtt, in_flight, outcome)) in (1..).zip(samples) {
        now += apart;
        let limit = vegas.limit();
        let in_flight = if in_flight == FULL { limit } else { in_flight };
        vegas.sample(&Sample {
            now: Duration::from_secs_f64(now),
            rtt: Duration::from_secs_f64(rtt),
            in_flight,
            outcome,
            full: in_flight >= limit,
        });
        if let Some(&(_, limit)) = limits.next_if(|(at, _)| *at == number) {
            expected = limit;
        }
        assert_eq!(vegas.limit(), expected, "after sample {number}");
    }
    assert_eq!(limits.next(), None, "not reached");
    let baseline = vegas.report().baseline.expect("it was measured");
    assert_eq!(baseline.as_secs_f64(), baseline_ms as f64 / 1000.0);
}

#[test]
fn v1_it_ramps_up_while_the_time_stays_the_same() {
    let samples = times(1200, 0.00051, 0.01, FULL, Outcome::Success);
    let limits = [
        (1, 20),
        (178, 20),
        (375, 28),
        (572, 42),
        (769, 63),
        (966, 47),
        (1155, 94),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v2_it_does_not_grow_where_it_is_not_used() {
    let samples = times(600, 0.0011, 0.01, 9, Outcome::Success);
    let limits = [
        (1, 20),
        (83, 20),
        (174, 20),
        (265, 20),
        (356, 20),
        (447, 20),
        (538, 20),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v3_exactly_half_in_use_counts_as_used() {
    let samples = times(700, 0.0011, 0.01, 10, Outcome::Success);
    let limits = [
        (1, 20),
        (83, 20),
        (174, 28),
        (265, 28),
        (356, 28),
        (447, 28),
        (538, 28),
        (629, 28),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v4_a_queue_appears() {
    let samples = [
        times(900, 0.00026, 0.01, 19, Outcome::Success),
        times(3000, 0.00026, 0.014, FULL, Outcome::Success),
    ]
    .concat();
    let limits = [
        (1, 40),
        (348, 40),
        (733, 40),
        (1118, 37),
        (1503, 27), // three quarters of what the rate says is at work
        (1600, 31),
        (2012, 32),
        (2397, 34),
        (2782, 38),
        (3167, 28),
        (3264, 46),
        (3677, 62),
    ];
    check(40, &samples, &limits, 14);
}

#[test]
fn v5_an_outage_of_fast_failures_and_the_recovery() {
    let samples = [
        times(400, 0.0011, 0.01, 12, Outcome::Success),
        times(1000, 0.0011, 0.0002, 12, Outcome::Failure),
        times(700, 0.0021, 0.01, FULL, Outcome::Success),
    ]
    .concat();
    let limits = [
        (1, 32),
        (128, 32),
        (256, 32),
        (347, 32),
        (438, 25),
        (540, 12),
        (631, 6),
        (722, 3),
        (813, 1),
        (904, 1),
        (995, 1),
        (1086, 1),
        (1177, 1),
        (1268, 1),
        (1359, 1),
        (1427, 1),
        (1475, 2),
        (1523, 3),
        (1571, 4),
        (1619, 6),
        (1667, 10),
        (1715, 15),
        (1763, 22),
        (1811, 34),
        (1863, 51),
        (1940, 76),
        (2056, 115),
    ];
    check(32, &samples, &limits, 10);
}

#[test]
fn v6_failures_around_one_in_ten() {
    let ten = [
        times(9, 0.0021, 0.01, 5, Outcome::Success),
        times(1, 0.0021, 0.01, 5, Outcome::Failure),
    ];
    let samples = ten.concat().repeat(40);
    let limits = [
        (1, 20),
        (80, 20),
        (160, 20),
        (208, 20),
        (256, 18),
        (332, 17),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v7_the_baseline_follows_where_the_limit_is_not_used() {
    let samples: Vec<Given> = (0..600)
        .map(|i| {
            let rtt = if i < 300 { 0.01 } else { 0.02 };
            (
                0.0041,
                rtt,
                if i % 2 == 0 { 2 } else { 8 },
                Outcome::Success,
            )
        })
        .collect();
    let limits = [
        (1, 20),
        (80, 20),
        (160, 20),
        (190, 20),
        (220, 20),
        (250, 20),
        (280, 20),
        (310, 20),
        (340, 20),
        (370, 20),
        (400, 20),
        (430, 20),
        (460, 20),
        (490, 20),
        (520, 20),
        (550, 20),
        (580, 20),
    ];
    check(20, &samples, &limits, 20);
}

#[test]
fn v8_a_low_rate() {
    let samples = times(96, 0.333, 0.3, 4, Outcome::Success);
    let limits = [(1, 6), (16, 6), (32, 9), (48, 9), (64, 9), (80, 9), (96, 9)];
    check(6, &samples, &limits, 300);
}

#[test]
fn v9_a_service_that_gets_ten_times_slower_is_not_taken_for_a_queue() {
    let samples = [
        times(400, 0.0021, 0.01, FULL, Outcome::Success),
        times(2200, 0.0126, 0.1, FULL, Outcome::Success),
    ]
    .concat();
    let limits = [
        (1, 8),
        (44, 8),
        (92, 12),
        (140, 18),
        (188, 27),
        (236, 20),
        (317, 40),
        (398, 60),
        (490, 59),
        (729, 58),
        (964, 57),
        (1194, 56),
        (1419, 54),
        (1639, 53),
        (1854, 34),
        (1959, 52),
        (2202, 53),
        (2282, 55),
        (2365, 59),
        (2454, 44),
        (2589, 67),
    ];
    check(8, &samples, &limits, 100);
}

#[test]
fn v10_the_maximum() {
    let samples = times(20000, 0.00011, 0.01, FULL, Outcome::Success);
    let limits = [
        (1, 990),
        (3960, 990),
        (7920, 998),
        (9417, 1000),
        (10917, 1000),
        (12417, 750),
        (14417, 1000),
        (16667, 1000),
        (18167, 1000),
        (19667, 1000),
    ];
    check(990, &samples, &limits, 10);
}

#[test]
fn v11_a_stall_is_no_queue() {
    let samples = [
        times(1000, 0.001, 0.01, 10, Outcome::Success),
        times(1, 0.5, 0.505, 10, Outcome::Success),
        times(9, 0.0001, 0.505, 10, Outcome::Success),
        times(1000, 0.001, 0.01, 10, Outcome::Success),
    ]
    .concat();
    check(20, &samples, &[(1, 20), (191, 28)], 10);
}
