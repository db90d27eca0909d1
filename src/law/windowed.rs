//! Puts samples together before a law sees them.

use std::time::Duration;

use super::limit::{Bounds, Limit, Outcome, Report, Sample, Window};

/// A window has at least this many samples, or it is dropped.
const FEWEST: u32 = 10;

/// More failures than this share make a window a failure. (Netflix' takes a single one for that, so that
/// one request in a thousand that fails anyway holds the limit at its minimum.)
const TOLERATED: f64 = 0.1;

/// A law that is fed one sample for each window: the mean round-trip time of what succeeded, the most
/// that was in flight, and a failure if more than a tenth failed.
///
/// By default a window is a second long. One with fewer than ten samples says too little and is passed
/// over.
#[derive(Clone, Debug)]
pub struct Windowed<L> {
    law: L,
    shortest: Duration,
    longest: Duration,
    end: Duration,
    collected: Collected,
    last: Option<Window>,
}

#[derive(Clone, Debug, Default)]
struct Collected {
    start: Duration,
    sum: Duration,
    least: Duration,
    successes: u32,
    failures: u32,
    in_flight: usize,
    full: bool,
}

impl<L: Limit> Windowed<L> {
    /// With windows of one second.
    pub fn new(law: L) -> Self {
        Self::between(law, Duration::from_secs(1), Duration::from_secs(1))
    }

    /// With windows of twice the shortest round-trip time, but within these bounds.
    pub fn between(law: L, shortest: Duration, longest: Duration) -> Self {
        Self {
            law,
            shortest,
            longest: longest.max(shortest),
            end: Duration::ZERO,
            collected: Collected::default(),
            last: None,
        }
    }
}

impl<L: Limit> Limit for Windowed<L> {
    fn limit(&self) -> usize {
        self.law.limit()
    }

    fn sample(&mut self, sample: &Sample) {
        let window = &mut self.collected;
        if window.successes == 0 && window.failures == 0 {
            window.start = sample.now;
        }
        match sample.outcome {
            Outcome::Ignored | Outcome::Rejected => return,
            Outcome::Failure => window.failures = window.failures.saturating_add(1),
            Outcome::Success => {
                window.least = match window.successes {
                    0 => sample.rtt,
                    _ => window.least.min(sample.rtt),
                };
                window.successes = window.successes.saturating_add(1);
                window.sum = window.sum.saturating_add(sample.rtt);
            }
        }
        window.in_flight = window.in_flight.max(sample.in_flight);
        window.full |= sample.full;
        if sample.now < self.end {
            return;
        }
        let window = std::mem::take(&mut self.collected);
        let length = window
            .least
            .saturating_mul(2)
            .clamp(self.shortest, self.longest);
        self.end = sample.now.saturating_add(length);
        if window.successes.saturating_add(window.failures) < FEWEST {
            return;
        }
        // Failures are not timed: where there is nothing else, the last time known stands.
        let mean_rtt = match (window.successes, self.last) {
            (0, None) => Duration::ZERO,
            (0, Some(last)) => last.mean_rtt,
            (n, _) => window.sum / n,
        };
        let n = f64::from(window.successes) + f64::from(window.failures);
        let failed = f64::from(window.failures) > TOLERATED * n;
        self.last = Some(Window {
            duration: sample.now.saturating_sub(window.start),
            successes: window.successes.into(),
            failures: window.failures.into(),
            mean_rtt,
            queued: 0.0,
        });
        self.law.sample(&Sample {
            now: sample.now,
            rtt: mean_rtt,
            in_flight: window.in_flight,
            outcome: if failed {
                Outcome::Failure
            } else {
                Outcome::Success
            },
            full: window.full,
        });
    }

    fn bounds(&self) -> Bounds {
        self.law.bounds()
    }

    fn restart(&mut self, bounds: Bounds) {
        self.law.restart(bounds);
        self.end = Duration::ZERO;
        self.collected = Collected::default();
        self.last = None;
    }

    fn is_probing(&self) -> bool {
        self.law.is_probing()
    }

    fn admitted(&mut self, now: Duration, in_flight: usize) {
        self.law.admitted(now, in_flight);
    }

    fn report(&self) -> Report {
        Report {
            window: self.last,
            ..self.law.report()
        }
    }
}
