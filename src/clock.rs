//! The only place where the crate reads a clock.

use std::time::Duration;

use tokio::time::Instant;

/// Counts time from its own start, so that everything further in works on plain [`Duration`]s.
///
/// It follows tokio's clock: under `tokio::time::pause` it stands still too. Time that goes back
/// (a layer built outside a paused runtime and used inside one) reads as no time at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    /// The time since this clock was started.
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    pub(crate) fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.started)
    }
}
