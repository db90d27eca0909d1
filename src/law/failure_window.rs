//! How many requests there were lately, and how many of them failed.

const SLICES: usize = 10;

/// Counts over a window of time that slides in ten steps.
#[derive(Clone, Debug)]
pub(crate) struct FailureWindow {
    /// A tenth of the window, in nanoseconds.
    slice: u64,
    /// The number of the newest slice, counted from time 0.
    newest: u64,
    /// By the number of their slice, modulo ten.
    calls: [f64; SLICES],
    failures: [f64; SLICES],
}

/// A tenth of a window: what ended within one is not told apart.
pub(crate) fn slice(window: u64) -> u64 {
    (window / SLICES as u64).max(1)
}

impl FailureWindow {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            slice: slice(window),
            newest: 0,
            calls: [0.0; SLICES],
            failures: [0.0; SLICES],
        }
    }

    /// Forgets what is older than the window. Time that goes back stands still.
    pub(crate) fn roll(&mut self, now: u64) {
        let newest = now / self.slice;
        let past = newest.saturating_sub(self.newest).min(SLICES as u64);
        for passed in 0..past {
            let slot = ((newest - passed) % SLICES as u64) as usize;
            self.calls[slot] = 0.0;
            self.failures[slot] = 0.0;
        }
        self.newest = self.newest.max(newest);
    }

    /// Counts requests that ended at that time, or, if that is before what was counted last, then.
    pub(crate) fn add(&mut self, at: u64, successes: u64, failures: u64) {
        self.roll(at);
        let slot = (self.newest % SLICES as u64) as usize;
        self.calls[slot] += (successes + failures) as f64;
        self.failures[slot] += failures as f64;
    }

    /// Requests, and those of them that failed.
    pub(crate) fn counts(&self) -> (f64, f64) {
        (self.calls.iter().sum(), self.failures.iter().sum())
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_the_window_is_forgotten_a_tenth_at_a_time() {
        let mut window = FailureWindow::new(1000);
        for now in [0, 50, 100, 950] {
            window.add(now, 1, 1);
        }
        for (now, calls, failures) in [
            (950, 8.0, 4.0),
            (999, 8.0, 4.0),
            (1000, 4.0, 2.0), // the first tenth is gone, with two of them
            (1100, 2.0, 1.0),
            (1899, 2.0, 1.0),
            (1900, 0.0, 0.0),
        ] {
            window.roll(now);
            assert_eq!(window.counts(), (calls, failures), "at {now}");
        }
    }

    #[test]
    fn a_clock_that_goes_back_or_far_ahead_is_survived() {
        let mut window = FailureWindow::new(1000);
        window.add(5000, 1, 1);
        window.add(0, 1, 1);
        assert_eq!(window.counts(), (4.0, 2.0));
        window.add(u64::MAX, 1, 1);
        assert_eq!(window.counts(), (2.0, 1.0));
        let mut least = FailureWindow::new(0);
        least.add(u64::MAX, 1, 1);
        assert_eq!(least.counts(), (2.0, 1.0));
    }
}
