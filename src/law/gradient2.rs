//! Gradient2: the limit follows the ratio of long-term to present round-trip time.
//!
//! No baseline is looked for: what the service took on average lately is what it should take. If the
//! present is slower by more than the tolerance, the limit shrinks in proportion, at most by half;
//! otherwise it grows by the queue that it allows. That needs no probing, but a service that is
//! overloaded for long is taken for slow, and the limit grows again: in an hour at twice the load it
//! reaches the maximum. Set a `max` that the service survives.
//!
//! Unlike in Netflix' concurrency-limits, failures shrink the limit: there, a service that only times
//! out grows to the maximum.

use super::limit::{Bounds, Limit, Moved, Outcome, Report, Sample, seconds};

/// How many requests may wait inside the service.
const QUEUE: f64 = 4.0;
/// The present may be slower than the past by this factor.
const TOLERANCE: f64 = 1.5;
/// How much of each step is taken.
const SMOOTHING: f64 = 0.2;
/// The past: an exponential average over so many samples,
const LONG: f64 = 600.0;
/// of which the first are simply averaged.
const WARM_UP: f64 = 10.0;
/// A past that is slower than the present by this factor
const RECOVERED: f64 = 2.0;
/// is forgotten by so much with each sample.
const FORGET: f64 = 0.95;
/// The limit is lowered at most to this share of it in one step, and to this for a failure.
const LEAST: f64 = 0.5;

/// The limit follows the ratio of long-term to present round-trip time. It wants to be
/// [`Windowed`](super::windowed::Windowed), as [`AdaptiveConcurrencyLayer::gradient2`] has it.
///
/// [`AdaptiveConcurrencyLayer::gradient2`]: crate::AdaptiveConcurrencyLayer::gradient2
#[derive(Clone, Debug)]
pub struct Gradient2 {
    bounds: Bounds,
    limit: f64,
    long: f64,
    samples: f64,
    moved: Option<Moved>,
}

impl Gradient2 {
    /// Starts with `bounds.initial`.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            limit: bounds.initial() as f64,
            long: 0.0,
            samples: 0.0,
            moved: None,
        }
    }

    fn remember(&mut self, rtt: f64) {
        self.samples += 1.0;
        let weight = match self.samples <= WARM_UP {
            true => 1.0 / self.samples,
            false => 2.0 / (LONG + 1.0),
        };
        self.long += weight * (rtt - self.long);
    }
}

impl Default for Gradient2 {
    /// From 20 to 200, starting with 20.
    fn default() -> Self {
        Self::new(Bounds::new(20, 20, 200))
    }
}

impl Limit for Gradient2 {
    fn limit(&self) -> usize {
        self.limit as usize
    }

    fn sample(&mut self, sample: &Sample) {
        let (gradient, why) = match sample.outcome {
            Outcome::Ignored | Outcome::Rejected => return,
            Outcome::Failure => (LEAST, Moved::Failures),
            Outcome::Success => {
                // A request cannot take no time, but a clock can stand still.
                let rtt = sample.rtt.as_secs_f64().max(1e-9);
                self.remember(rtt);
                let ratio = self.long / rtt;
                if ratio > RECOVERED {
                    self.long *= FORGET;
                }
                if 2.0 * (sample.in_flight as f64) < self.limit {
                    return;
                }
                let gradient = (TOLERANCE * ratio).clamp(LEAST, 1.0);
                let why = if gradient < 1.0 {
                    Moved::Queue
                } else {
                    Moved::Room
                };
                (gradient, why)
            }
        };
        let allowed = if why == Moved::Failures { 0.0 } else { QUEUE };
        let step = SMOOTHING * (self.limit * gradient + allowed - self.limit);
        let limit = self.bounds.clamp(self.limit + step);
        if limit != self.limit {
            self.limit = limit;
            self.moved = Some(why);
        }
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn restart(&mut self, bounds: Bounds) {
        *self = Self::new(bounds);
    }

    fn report(&self) -> Report {
        let baseline = (self.long > 0.0).then(|| seconds(self.long));
        Report::new(baseline, None, self.moved)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// From 100, after a long time at 10 ms: (rtt in ms, limit).
    #[test]
    fn one_sample_is_exact_to_three_digits() {
        for (rtt, limit) in [
            (10, 100.8),
            (15, 100.8),
            (16, 99.587),
            (20, 95.85),
            (30, 90.867),
            (40, 90.8),
        ] {
            let mut law = Gradient2::new(Bounds::new(1, 100, 200));
            let mut feed = |rtt, in_flight| {
                law.sample(&Sample {
                    now: Duration::ZERO,
                    rtt: Duration::from_millis(rtt),
                    in_flight,
                    outcome: Outcome::Success,
                    full: false,
                });
                law.limit
            };
            (0..500).for_each(|_| assert_eq!(feed(10, 1), 100.0));
            let after = feed(rtt, 100);
            assert!((after - limit).abs() < 0.0005, "{rtt} ms: {after}");
        }
    }
}
