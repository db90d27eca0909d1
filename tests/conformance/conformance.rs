//! Published and derived test vectors, and scenarios with the layers in front of simulated servers.

mod adaptive;
mod adaptive_basic;
mod aimd;
mod codel;
mod codel_wfq_admission;
mod composition;
#[path = "../support/edged.rs"]
mod edged;
#[path = "../support/fairness.rs"]
mod fairness;
mod gradient2;
mod netflix_vegas;
#[path = "../support/overload.rs"]
mod overload;
#[path = "../support/simulation.rs"]
mod simulation;
#[path = "../support/mod.rs"]
mod support;
mod vegas;
mod wfq;
mod who_is_served;
mod windowed;

use std::time::Duration;

use tower_backpressure::adaptive_concurrency::{
    Aimd, Bounds, Gradient2, Limit, Outcome, Sample, Vegas, Windowed,
};

#[allow(clippy::disallowed_methods, reason = "a test looks from outside")]
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Feeds one successful sample; gives the limit after it.
fn feed(law: &mut impl Limit, rtt_ms: f64, in_flight: usize) -> usize {
    feed_outcome(law, rtt_ms, in_flight, Outcome::Success)
}

fn feed_outcome(law: &mut impl Limit, rtt_ms: f64, in_flight: usize, outcome: Outcome) -> usize {
    law.sample(&Sample {
        now: Duration::ZERO,
        rtt: Duration::from_secs_f64(rtt_ms / 1000.0),
        in_flight,
        outcome,
        full: in_flight >= law.limit(),
    });
    law.limit()
}

#[test]
fn nonsense_does_no_harm_to_any_law() {
    check_nonsense(Vegas::default);
    check_nonsense(Vegas::netflix);
    check_nonsense(|| Windowed::new(Vegas::netflix()));
    check_nonsense(Gradient2::default);
    check_nonsense(|| Windowed::new(Gradient2::default()));
    check_nonsense(Aimd::default);
    check_nonsense(|| Aimd::new(Bounds::new(usize::MAX, usize::MAX, usize::MAX)));
}

/// Time that stands still, jumps by years and goes back; requests that take no time, or for ever.
fn check_nonsense<L: Limit>(law: impl Fn() -> L) {
    let years = Duration::from_secs(300_000_000);
    let times = [Duration::ZERO, Duration::from_secs(1), years, Duration::MAX];
    for rtt in times {
        for outcome in [Outcome::Success, Outcome::Failure, Outcome::Ignored] {
            for in_flight in [0, 1, 20, usize::MAX] {
                let mut law = law();
                let bounds = law.bounds();
                for i in 0..3000_u32 {
                    let now = times[(i / 300) as usize % 3] + i * Duration::from_millis(1);
                    law.sample(&Sample {
                        now,
                        rtt,
                        in_flight,
                        outcome,
                        full: true,
                    });
                    law.admitted(now, in_flight);
                    let limit = law.limit();
                    assert!((bounds.min()..=bounds.max()).contains(&limit), "{limit}");
                }
            }
        }
    }
}
