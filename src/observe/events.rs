//! Every line that the crate writes to the log, in one place. `observe.rs` has them in a table.

use std::time::Duration;

use crate::{Reason, algorithm::episode::News, circuit_breaker::State, saturation::Level};

/// What a layer refuses.
pub(crate) fn refusals(layer: &'static str, reason: Option<Reason>, news: News) {
    match news {
        News::Begins => {
            let reason = reason.map_or("", Reason::as_str);
            tracing::warn!(layer, reason, "requests are refused");
        }
        News::GoesOn { refused, lasted } => {
            tracing::warn!(layer, refused, ?lasted, "requests are still refused");
        }
        News::Ended { refused, lasted } => {
            tracing::info!(layer, refused, ?lasted, "requests are no longer refused");
        }
    }
}

/// A limit that a law has moved, or somebody by hand.
pub(crate) struct LimitMoved {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// In so many steps.
    pub(crate) moves: u64,
    /// Why it has made the last of them, if the law says that.
    pub(crate) why: Option<&'static str>,
}

/// Whether anybody wants to know: a law moves its limit all the time.
pub(crate) fn limit_is_told() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

pub(crate) fn limit_moved(layer: &'static str, moved: LimitMoved) {
    let LimitMoved {
        from,
        to,
        moves,
        why,
    } = moved;
    let why = why.unwrap_or("");
    tracing::debug!(layer, from, to, moves, why, "the limit has moved");
}

/// Whether a queue stands in front of a layer that goes by age.
pub(crate) fn queue(layer: &'static str, stands: bool, p95: Option<Duration>) {
    let p95 = p95.unwrap_or_default();
    if stands {
        tracing::warn!(layer, ?p95, "a queue stands");
    } else {
        tracing::info!(layer, ?p95, "the queue is gone");
    }
}

/// One line for each change of a circuit, if there was one.
pub(crate) fn circuit(layer: &'static str, state: Option<State>) {
    match state {
        Some(State::Open) => tracing::warn!(layer, "circuit opened"),
        Some(State::HalfOpen) => tracing::info!(layer, "circuit half-open: requests probe"),
        Some(State::Closed) => tracing::info!(layer, "circuit closed"),
        None => {}
    }
}

pub(crate) fn saturation(layer: &'static str, probe: &str, ratio: f64, from: Level, to: Level) {
    let (rises, from, to) = (to > from, from.as_str(), to.as_str());
    if rises {
        tracing::warn!(layer, probe, ratio, from, to, "saturation has risen");
    } else {
        tracing::info!(layer, probe, ratio, from, to, "saturation has fallen");
    }
}

pub(crate) fn probe_panicked(layer: &'static str, probe: &str) {
    tracing::error!(layer, probe, "a saturation probe panicked");
}

/// What the inner service fails with, where it is answered and nobody else gets to see it.
pub(crate) fn request_failed(error: &dyn std::error::Error) {
    tracing::error!(%error, "request failed");
}
