//! Published and derived test vectors, and scenarios with the layers in front of simulated servers.

mod adaptive;
mod aimd;
mod gradient2;
mod netflix_vegas;
#[path = "../support/simulation.rs"]
mod simulation;
mod vegas;
mod windowed;

use std::time::Duration;

use tower_backpressure::adaptive_concurrency::{Limit, Outcome, Sample};

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
