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
        (20, &[(1200, 0.00051, 0.01, 0, Success)], 94.5, 0.01),
        (
            40,
            &[
                (900, 0.00026, 0.01, 19, Success),
                (3000, 0.00026, 0.014, 0, Success),
            ],
            62.551504,
            0.014,
        ),
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
        (
            8,
            &[
                (400, 0.0021, 0.01, 0, Success),
                (2200, 0.0126, 0.1, 0, Success),
            ],
            67.249457,
            0.1,
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
