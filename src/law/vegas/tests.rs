//! What the vectors in `tests/conformance` do not reach: the exact limit, and the edges.

use super::*;

/// `n` samples, `dt` seconds apart, each of `rtt` seconds with so many in flight (0: as many as may be).
fn feed(
    vegas: &mut Vegas,
    now: &mut f64,
    n: usize,
    dt: f64,
    rtt: f64,
    in_flight: usize,
    outcome: Outcome,
) {
    for _ in 0..n {
        *now += dt;
        let in_flight = if in_flight == 0 {
            vegas.limit()
        } else {
            in_flight
        };
        vegas.sample(&Sample {
            now: seconds(*now),
            rtt: seconds(rtt),
            in_flight,
            outcome,
            full: in_flight >= vegas.limit(),
        });
    }
}

#[test]
fn the_limit_is_exact_to_the_last_digit_of_the_vectors() {
    // (initial, [(samples, apart, rtt, in flight, outcome)], limit, baseline, dips were there)
    use Outcome::{Failure, Success};
    type Segment = (usize, f64, f64, usize, Outcome);
    let cases: &[(usize, &[Segment], f64, f64)] = &[
        (20, &[(1200, 0.00051, 0.01, 0, Success)], 141.75, 0.01),
        (
            32,
            &[
                (400, 0.0011, 0.01, 12, Success),
                (1000, 0.0011, 0.0002, 12, Failure),
                (700, 0.0021, 0.01, 0, Success),
            ],
            115.330078,
            0.01,
        ),
    ];
    for (initial, segments, limit, base) in cases {
        let mut vegas = Vegas::new(Bounds::new(1, *initial, 1000));
        let mut now = 0.0;
        for &(n, dt, rtt, in_flight, outcome) in *segments {
            feed(&mut vegas, &mut now, n, dt, rtt, in_flight, outcome);
        }
        assert!(
            (vegas.limit - limit).abs() < 1e-6,
            "{} is not {limit}",
            vegas.limit
        );
        assert!(
            (vegas.base.mean - base).abs() < 1e-9,
            "{} is not {base}",
            vegas.base.mean
        );
    }
}

/// Runs until it dips.
fn dipping() -> (Vegas, f64) {
    let (mut vegas, mut now) = (Vegas::default(), 0.0);
    while !vegas.is_probing() {
        feed(&mut vegas, &mut now, 1, 0.0005, 0.01, 0, Outcome::Success);
    }
    (vegas, now)
}

#[test]
fn a_dip_ends_when_a_request_finds_the_service_idle_for_a_while() {
    let (mut vegas, now) = dipping();
    let (low, high) = (vegas.limit(), vegas.limit as usize);
    assert!(low < high);
    vegas.admitted(seconds(now + 0.09), 1);
    assert_eq!(vegas.limit(), low, "between one request and the next");
    vegas.admitted(seconds(now + 0.11), 2);
    assert_eq!(vegas.limit(), low, "something else is in flight");
    vegas.admitted(seconds(now + 0.11), 1);
    assert_eq!(vegas.limit(), high);
    assert!(!vegas.is_probing());
    assert_eq!(vegas.report().moved, Some(Moved::ProbeOver));
    vegas.admitted(seconds(now + 100.0), 1);
    assert_eq!(vegas.limit(), high);
}

#[test]
fn one_window_that_is_far_too_fast_does_not_move_the_baseline() {
    let windows = |rtts: &[f64]| {
        // Nothing but the windows speaks of the baseline: more is always in flight than the gate lets pass.
        let (mut vegas, mut now) = (Vegas::new(Bounds::new(40, 40, 40)), 0.0);
        let mut feed = |vegas: &mut Vegas, rtt: f64| {
            feed(vegas, &mut now, 1, rtt / 40.0, rtt, 41, Outcome::Success);
        };
        while vegas.phase != Phase::Running {
            feed(&mut vegas, 0.01);
        }
        for &rtt in [0.01].iter().chain(rtts) {
            let before = vegas.report.window;
            while vegas.report.window == before {
                feed(&mut vegas, rtt);
            }
        }
        (vegas.base.mean * 1e6).round() / 1e6
    };
    assert_eq!(windows(&[0.004]), 0.01);
    assert_eq!(windows(&[0.004, 0.01, 0.004]), 0.01);
    assert_eq!(windows(&[0.004, 0.005]), 0.005);
}

#[test]
fn a_dip_ends_although_nothing_completes_any_more() {
    let (mut vegas, now) = dipping();
    vegas.admitted(seconds(now + 19.0), 30);
    assert!(vegas.is_probing());
    vegas.admitted(seconds(now + 21.0), 30);
    assert!(!vegas.is_probing());
}

#[test]
fn one_window_takes_at_most_three_tenths() {
    let (mut vegas, mut now) = (Vegas::new(Bounds::new(1, 100, 100)), 0.0);
    feed(
        &mut vegas,
        &mut now,
        1000,
        0.0001,
        0.01,
        0,
        Outcome::Success,
    );
    assert_eq!(vegas.limit, 100.0);
    while vegas.limit == 100.0 && !vegas.is_probing() {
        feed(&mut vegas, &mut now, 1, 0.0001, 0.3, 0, Outcome::Success);
    }
    assert_eq!(vegas.limit, 70.0);
}

#[test]
fn what_fails_after_a_dip_is_passed_over_like_what_succeeds() {
    // One in twelve fails, all the time: that is tolerated.
    let (mut vegas, mut now) = (Vegas::new(Bounds::new(1, 500, 500)), 0.0);
    let mut dips = 0;
    while dips < 5 {
        let was_probing = vegas.is_probing();
        feed(&mut vegas, &mut now, 11, 0.0002, 0.1, 0, Outcome::Success);
        feed(&mut vegas, &mut now, 1, 0.0002, 0.1, 0, Outcome::Failure);
        dips += u32::from(!was_probing && vegas.is_probing());
        assert_ne!(vegas.report().moved, Some(Moved::Failures), "{vegas:?}");
    }

    // Nothing but failures completes at first: as many as were in flight say nothing.
    let (mut vegas, mut now) = dipping();
    while vegas.is_probing() {
        feed(&mut vegas, &mut now, 1, 0.0005, 0.01, 0, Outcome::Success);
    }
    feed(&mut vegas, &mut now, 20, 0.3, 0.01, 0, Outcome::Failure);
    assert_eq!(vegas.report().moved, Some(Moved::ProbeOver));
    feed(&mut vegas, &mut now, 500, 0.3, 0.01, 0, Outcome::Failure);
    assert_eq!(vegas.report().moved, Some(Moved::Failures));
}

#[test]
fn a_baseline_that_is_in_doubt_is_measured_again_soon() {
    /// Windows to the next dip, after 16, when against a baseline of 1 `n` samples have this mean.
    fn interval(error: f64, mean: f64, n: f64) -> f64 {
        let base = Baseline {
            mean: 1.0,
            variance: 1.0,
            batches: 100.0,
            error,
        };
        let unqueued = Mean {
            n,
            sum: n * mean,
            squares: n * (mean * mean + 1.0),
        };
        let mut vegas = Vegas {
            interval: 16.0,
            base,
            unqueued,
            ..Vegas::default()
        };
        assert_ne!(vegas.rebase(), Verdict::Fell);
        vegas.interval
    }
    assert_eq!(interval(0.0001, 1.05, 1000.0), 32.0, "it is confirmed");
    assert_eq!(interval(0.0001, 1.5, 1000.0), 8.0, "it has changed");
    assert_eq!(
        interval(0.0001, 1.26, 100.0),
        8.0,
        "it is off by much, but that may be chance"
    );
    assert_eq!(
        interval(0.02, 1.05, 40.0),
        8.0,
        "it is not off, but few samples say so"
    );
}

#[test]
fn the_first_baseline_counts_what_has_not_completed() {
    // Twenty are in flight, and those that complete first are short: 400 a second, so on average they take 47.5 ms.
    let (mut vegas, mut now) = (Vegas::default(), 0.0);
    while !vegas.base.is_known() {
        feed(&mut vegas, &mut now, 1, 0.0025, 0.01, 0, Outcome::Success);
    }
    assert!((vegas.base.mean - 0.0475).abs() < 0.001, "{:?}", vegas.base);
}

#[test]
fn a_baseline_that_was_taken_under_load_is_verified_before_the_limit_is_cut() {
    let (mut vegas, mut now) = (Vegas::default(), 0.0);
    while !vegas.base.is_known() {
        feed(&mut vegas, &mut now, 1, 0.0005, 0.01, 0, Outcome::Success);
    }
    let limit = vegas.limit;
    while !vegas.is_probing() {
        feed(&mut vegas, &mut now, 1, 0.0007, 0.014, 0, Outcome::Success);
    }
    assert!(vegas.limit >= MOST_UP * limit && vegas.doubt.is_none());
    assert_eq!(vegas.since, 2.0, "in the first window that has a queue");
}

#[test]
fn a_baseline_that_was_never_measured_falls_sooner() {
    let measured = Mean {
        n: 100.0,
        sum: 85.0,
        squares: 100.0,
    };
    let mut base = Baseline {
        mean: 1.0,
        variance: 0.5,
        batches: 1.0,
        error: 0.001,
    };
    assert_eq!(base.take_in(&measured), Verdict::Confirmed);
    base = Baseline {
        mean: 1.0,
        batches: 0.0,
        ..base
    };
    assert_eq!(base.take_in(&measured), Verdict::Fell);
}
