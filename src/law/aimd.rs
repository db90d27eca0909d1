//! AIMD: one more while all is well, a tenth less when something fails.
//!
//! It does not look at latency but for a timeout: the limit grows until the service refuses or times
//! out. That suits a client of a service that says so when it is overloaded, and it is fair between
//! clients that do not know of each other.

use std::time::Duration;

use super::limit::{Bounds, Limit, Moved, Outcome, Report, Sample};

/// Additive increase, multiplicative decrease: one more while all is well, a tenth less when something
/// fails or takes too long.
#[derive(Clone, Debug)]
pub struct Aimd {
    bounds: Bounds,
    limit: usize,
    decrease_to: f64,
    timeout: Option<Duration>,
    moved: Option<Moved>,
}

impl Aimd {
    /// Starts with `bounds.initial`.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            limit: bounds.initial(),
            decrease_to: 0.9,
            timeout: Some(Duration::from_secs(5)),
            moved: None,
        }
    }

    /// The share of the limit that is left after a failure. Default: 0.9.
    ///
    /// # Panics
    /// Unless 0.5 ≤ `share` < 1.
    pub fn decrease_to(mut self, share: f64) -> Self {
        assert!(
            (0.5..1.0).contains(&share),
            "decrease_to must be at least 0.5 and below 1"
        );
        self.decrease_to = share;
        self
    }

    /// A request that takes longer than this counts as failed; `None` is without a bound. 5 s unless
    /// set.
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }
}

impl Default for Aimd {
    /// From 20 to 200, starting with 20.
    fn default() -> Self {
        Self::new(Bounds::new(20, 20, 200))
    }
}

impl Limit for Aimd {
    fn limit(&self) -> usize {
        self.limit
    }

    fn sample(&mut self, sample: &Sample) {
        let late = self.timeout.is_some_and(|timeout| sample.rtt > timeout);
        let (limit, why) = match sample.outcome {
            Outcome::Ignored | Outcome::Rejected => return,
            Outcome::Success if !late => {
                if sample.in_flight.saturating_mul(2) < self.limit {
                    return;
                }
                (self.limit.saturating_add(1), Moved::Room)
            }
            _ => (
                (self.limit as f64 * self.decrease_to) as usize,
                Moved::Failures,
            ),
        };
        let limit = limit.clamp(self.bounds.min(), self.bounds.max());
        if limit != self.limit {
            self.limit = limit;
            self.moved = Some(why);
        }
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn restart(&mut self, bounds: Bounds) {
        let (decrease_to, timeout) = (self.decrease_to, self.timeout);
        *self = Self::new(bounds).decrease_to(decrease_to).timeout(timeout);
    }

    fn report(&self) -> Report {
        Report::new(None, None, self.moved)
    }
}
