//! Every line that the crate writes to the log, in one place. `observe.rs` has them in a table.

use std::time::Duration;

use crate::{
    Reason, circuit_breaker::State, gate::aside::is_on_trial, law::episode::News, saturation::Level,
};

/// The field that says that this happened on trial only: see [`shadow`](crate::shadow). Otherwise there is none.
fn shadow() -> Option<bool> {
    is_on_trial().then_some(true)
}

/// What a layer refuses.
pub(crate) fn refusals(layer: &'static str, reason: Option<Reason>, news: News) {
    match news {
        News::Begins => {
            let reason = reason.map_or("", Reason::as_str);
            tracing::warn!(layer, reason, shadow = shadow(), "requests are refused");
        }
        News::GoesOn { refused, lasted } => {
            tracing::warn!(
                layer,
                refused,
                ?lasted,
                shadow = shadow(),
                "requests are still refused"
            );
        }
        News::Ended { refused, lasted } => {
            tracing::info!(
                layer,
                refused,
                ?lasted,
                shadow = shadow(),
                "requests are no longer refused"
            );
        }
    }
}

/// A limit that a law has moved, or somebody by hand.
#[derive(Debug)]
pub(crate) struct LimitMoved {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// In so many steps.
    pub(crate) moves: u64,
    /// Why it has made the last of them, if the law says that.
    pub(crate) why: Option<&'static str>,
}

pub(crate) fn limit_moved(layer: &'static str, moved: LimitMoved) {
    let LimitMoved {
        from,
        to,
        moves,
        why,
    } = moved;
    let why = why.unwrap_or("");
    tracing::debug!(
        layer,
        from,
        to,
        moves,
        why,
        shadow = shadow(),
        "the limit has moved"
    );
}

/// Whether a queue stands in front of a layer that goes by age.
pub(crate) fn queue(layer: &'static str, stands: bool, p95: Option<Duration>) {
    let p95 = p95.unwrap_or_default();
    if stands {
        tracing::warn!(layer, ?p95, shadow = shadow(), "a queue stands");
    } else {
        tracing::info!(layer, ?p95, shadow = shadow(), "the queue is gone");
    }
}

/// One line for each change of a circuit, if there was one.
pub(crate) fn circuit(layer: &'static str, state: Option<State>) {
    match state {
        Some(State::Open) => tracing::warn!(layer, shadow = shadow(), "circuit opened"),
        Some(State::HalfOpen) => tracing::info!(
            layer,
            shadow = shadow(),
            "circuit half-open: requests probe"
        ),
        Some(State::Closed) => tracing::info!(layer, shadow = shadow(), "circuit closed"),
        None => {}
    }
}

pub(crate) fn saturation(layer: &'static str, probe: &str, ratio: f64, from: Level, to: Level) {
    let (rises, from, to) = (to > from, from.as_str(), to.as_str());
    if rises {
        tracing::warn!(
            layer,
            probe,
            ratio,
            from,
            to,
            shadow = shadow(),
            "saturation has risen"
        );
    } else {
        tracing::info!(
            layer,
            probe,
            ratio,
            from,
            to,
            shadow = shadow(),
            "saturation has fallen"
        );
    }
}

pub(crate) fn probe_panicked(layer: &'static str, probe: &str) {
    tracing::error!(
        layer,
        probe,
        shadow = shadow(),
        "a saturation probe panicked"
    );
}

/// No request of a fair queue has a tenant, although some tenants have a weight.
pub(crate) fn all_anonymous(layer: &'static str, served: u64) {
    tracing::warn!(
        layer,
        served,
        shadow = shadow(),
        "no request has a tenant, although there are weights for some"
    );
}

/// Whether the server of a fleet is away; and how long it was, when it is back.
#[cfg(feature = "fleet")]
pub(crate) fn fleet(away: bool, lasted: Duration) {
    if away {
        tracing::warn!("the fleet's server does not answer: limits fall back");
    } else {
        tracing::info!(?lasted, "the fleet's server answers: limits are shared");
    }
}

/// What the inner service fails with, where it is answered and nobody else gets to see it.
pub(crate) fn request_failed(error: &dyn std::error::Error) {
    tracing::error!(%error, "request failed");
}
