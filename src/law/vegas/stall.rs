//! A service that stood still for a moment: a pause of its runtime, a fail-over, a machine that was frozen. What was in
//! flight took long, and that is no queue: it is passed over.

/// A silence is a stall if this many completions should have come in it, times 1 + ν because requests that vary more
/// leave longer gaps by chance.
const MISSING: f64 = 10.0;
/// A shorter silence is none: there is one for a moment when requests become expensive, too.
const SHORTEST: f64 = 0.1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// How long a silence has to be. Unknown before the first window.
    silence: f64,
    /// When a request last completed.
    last: f64,
    /// When the last stall ended.
    end: f64,
    /// There was one in this window. A second is not passed over: when the rate has fallen, every gap looks like a
    /// stall, and no window would ever close.
    seen: bool,
}

impl Default for Stall {
    fn default() -> Self {
        Self {
            silence: f64::INFINITY,
            last: 0.0,
            end: f64::NEG_INFINITY,
            seen: false,
        }
    }
}

impl Stall {
    /// A request completed. Says whether a stall has ended with it.
    #[inline]
    pub(super) fn ends(&mut self, now: f64, rtt: f64) -> bool {
        let silent = now - self.last;
        self.last = now;
        silent >= self.silence && self.found(now, rtt)
    }

    #[cold]
    fn found(&mut self, now: f64, rtt: f64) -> bool {
        let found = !self.seen && rtt >= self.silence;
        if found {
            self.seen = true;
            self.end = now;
        }
        found
    }

    /// Whether a request was in flight in the last one.
    #[inline]
    pub(super) fn held_up(&self, now: f64, rtt: f64) -> bool {
        now - rtt < self.end
    }

    /// A window has closed, with so many completions a second, of requests that vary so much.
    pub(super) fn window(&mut self, rate: f64, variation: f64) {
        self.silence = (MISSING * (1.0 + variation) / rate).max(SHORTEST);
        self.seen = false;
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    /// After a window of a thousand completions a second, of requests that are all alike.
    fn busy() -> Stall {
        let mut stall = Stall::default();
        stall.window(1000.0, 0.0);
        assert!(!stall.ends(1.0, 0.01));
        stall
    }

    #[test]
    fn what_was_in_flight_is_passed_over_and_nothing_else() {
        let mut stall = busy();
        assert!(!stall.held_up(1.0, 0.01));
        assert!(stall.ends(1.2, 0.205));
        assert!(stall.held_up(1.2001, 0.2), "it was in flight");
        assert!(!stall.held_up(1.21, 0.009), "it came afterwards");
    }

    #[test]
    fn a_short_silence_is_none_and_neither_is_one_without_requests() {
        assert!(!busy().ends(1.09, 0.095));
        assert!(!busy().ends(2.0, 0.01), "nobody waited in that time");
    }

    #[test]
    fn where_requests_vary_more_have_to_be_missing() {
        let mut stall = Stall::default();
        stall.window(100.0, 1.0);
        stall.ends(1.0, 0.01);
        assert!(!stall.ends(1.19, 0.2));
        assert!(stall.ends(1.4, 0.21));
    }

    #[test]
    fn there_is_one_in_a_window() {
        let mut stall = busy();
        assert!(stall.ends(1.2, 0.2));
        assert!(!stall.ends(1.4, 0.2));
        stall.window(1000.0, 0.0);
        assert!(stall.ends(1.6, 0.2));
    }

    #[test]
    fn nothing_is_known_before_the_first_window() {
        assert!(!Stall::default().ends(1000.0, 1000.0));
    }
}
