//! A dip that decides between a queue and a service that has become slower, before anything is cut.
//!
//! Both look alike from outside: requests take longer, and the rate falls. They differ in what happens when fewer are
//! let in. With a queue the rate stays, without one it falls in proportion. So the limit dips to half of the knee, and
//! what is measured is how long a request takes then. That times the rate *before* is how many can be at work at once:
//! - No more than the dip's level: even so few wait, there are fewer workers. The next dip is half as deep again. Meanwhile
//!   all workers are busy.
//! - About as many as were in flight: nothing waited. Requests take longer outside the workers, and the limit goes back to
//!   what it was before.
//! - Between them: that is the knee.
//!
//! While the queue drains, and if even so few wait, all workers are busy. Otherwise the dip holds the service back, so it
//! ends as soon as it is plain that more than its level can be at work.

use super::{NEXT_DIP, SHORTEST_DIP, SHORTEST_WINDOW, USED, Vegas};
use crate::law::{
    limit::Moved,
    vegas::{
        DIP_EVERY, Dip, FIRST_RUN,
        baseline::{FEWEST, Mean, Verdict},
    },
};

/// If so much of what was in flight was at work, nothing waited.
const NOTHING_WAITED: f64 = 0.85;
/// It collects this many samples for each that may be in flight in it: a decision is not as delicate as a baseline.
const ROUNDS: f64 = 4.0;
/// It is plain that more than the level can be at work if it is more by so many standard errors,
const PLAIN_ERRORS: f64 = 2.0;
/// after so many round trips, times 1 + ν: until then few of the long requests have completed, and the rest seem short.
/// With 1, 64 workers with bimodal requests that start under load may do half of what they can for many seconds, with 3 a
/// mix that becomes expensive gains hardly anything.
const PLAIN_ROUNDS: f64 = 2.0;

/// What is measured, by Little's law: what is in flight, added up over time, by what completes. That counts requests that
/// take long and have not completed yet, which a mean of completed ones leaves out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// Completions a second before the dip,
    rate: f64,
    /// and what was in flight.
    in_flight: f64,
    since: f64,
    level: f64,
    /// How many completed until few enough were in flight,
    drained: f64,
    /// and when that was.
    began: Option<f64>,
    last: f64,
    current: f64,
    /// Requests in flight, times seconds.
    area: f64,
    done: f64,
}

impl Doubt {
    pub(super) fn new(now: f64, level: f64, rate: f64, in_flight: f64) -> Self {
        Self {
            rate,
            in_flight,
            since: now,
            level,
            drained: 0.0,
            began: None,
            last: now,
            current: 0.0,
            area: 0.0,
            done: 0.0,
        }
    }

    /// A request was let in, the last of so many in flight.
    pub(super) fn admitted(&mut self, now: f64, in_flight: usize) {
        let in_flight = in_flight as f64;
        if self.began.is_none() && in_flight <= self.level {
            self.began = Some(now);
            self.last = now;
        }
        if self.began.is_some() {
            self.pass(now);
            self.current = in_flight;
        }
    }

    /// A request completed.
    fn completed(&mut self, now: f64) {
        if self.began.is_some() {
            self.pass(now);
            self.current = (self.current - 1.0).max(0.0);
            self.done += 1.0;
        } else {
            self.drained += 1.0;
        }
    }

    fn pass(&mut self, now: f64) {
        self.area += self.current * (now - self.last).max(0.0);
        self.last = now;
    }

    /// The service stood still until now: what was measured says nothing.
    pub(super) fn begin_again(&mut self, now: f64) {
        let current = (self.current - 1.0).max(0.0);
        *self = Self {
            began: self.began.map(|_| now),
            current,
            ..Self::new(now, self.level, self.rate, self.in_flight)
        };
    }

    /// How long a request takes while so few are in flight, if enough were measured to tell.
    fn mean(&self) -> Option<f64> {
        (self.done >= FEWEST && self.area > 0.0).then(|| self.area / self.done)
    }

    /// Whether it is plain that more can be at work than the level, in requests that vary so much.
    fn holds_back(&self, now: f64, variation: f64, rate: f64) -> bool {
        let (Some(began), Some(mean)) = (self.began, self.mean()) else {
            return false;
        };
        let error = (variation / self.done).sqrt();
        now - began >= PLAIN_ROUNDS * (1.0 + variation) * mean
            && rate * mean > self.level * (1.0 + PLAIN_ERRORS * error)
    }

    /// Completions a second while more were in flight: before the dip, or until it had its effect if that was long
    /// enough to tell, which is more recent.
    fn rate(&self, needs: f64) -> f64 {
        let drain = self.began.map_or(0.0, |began| began - self.since);
        match self.drained >= needs && drain >= SHORTEST_WINDOW {
            true => self.drained / drain,
            false => self.rate,
        }
    }
}

impl Vegas {
    /// Whether it is doubtful that there is a queue: in a window that has one, less than the knee is at work. Before the
    /// baseline was measured in a dip, neither is known. A burst that was in flight for a moment says nothing.
    pub(super) fn doubts(&mut self, completed: f64, lasted: f64, in_flight: f64) -> bool {
        let base = &self.base;
        base.is_verified()
            && in_flight >= USED * self.limit
            && (self.knee).is_above(completed, lasted, base.mean, base.variation(), base.error)
    }

    /// Dips to that share of so many, with such a rate and so many in flight until now.
    pub(super) fn start_doubt(&mut self, now: f64, of: f64, rate: f64, in_flight: f64) {
        let level = self.floor(NEXT_DIP * of);
        self.knee.forget();
        self.doubt = Some(Doubt::new(now, level, rate, in_flight));
        self.start_dip(now, level);
    }

    /// A request has completed in a dip in doubt. Ends the dip when enough was measured, or when it cannot be.
    #[cold]
    pub(super) fn watch_doubt(&mut self, dip: Dip, now: f64, failed: bool) {
        self.dip = Some(Dip { last: now, ..dip });
        self.window.failures += f64::from(u8::from(failed));
        let needs = self.dip_needs(ROUNDS, dip.level);
        let (variation, longest) = (self.base.full_variation(), self.longest_dip());
        let gives_up = self.gives_up(dip, now);
        let Some(doubt) = &mut self.doubt else { return };
        doubt.completed(now);
        let lasted = doubt.began.map_or(0.0, |began| now - began);
        if doubt.done >= needs && lasted >= SHORTEST_DIP
            || self.window.failures > needs
            || doubt.done >= FEWEST && lasted > longest
            || doubt.holds_back(now, variation, doubt.rate(needs))
            || gives_up
        {
            self.skip = dip.level as u64;
            self.end_doubt(dip, now);
        }
    }

    /// Decides what it was: a queue, fewer workers, or a service that has become slower.
    #[cold]
    pub(super) fn end_doubt(&mut self, dip: Dip, now: f64) {
        self.end_dip(dip, now);
        // Its own measurement is the baseline, and what completes now is not added to it.
        (self.dip, self.dipped) = (None, false);
        self.unqueued = Mean::default();
        self.interval = DIP_EVERY.0;
        self.run = 0;
        let needs = self.dip_needs(ROUNDS, dip.level);
        let Some(doubt) = self.doubt.take() else {
            return;
        };
        let Some(mean) = doubt.mean() else { return };
        let rate = doubt.rate(needs);
        let verdict = self.base.replace(mean, doubt.done);
        let knee = rate * mean;
        let fewest = dip.level <= self.bounds.min() as f64;
        if verdict != Verdict::Confirmed && knee <= dip.level && !fewest {
            self.knee.at = dip.level;
            self.move_to((dip.level + self.middle()).min(self.limit), Moved::Queue);
            self.start_doubt(now, dip.level, rate, dip.level);
        } else if verdict == Verdict::Rose
            && knee >= NOTHING_WAITED * doubt.in_flight.min(self.limit)
        {
            self.knee.at = knee.min(self.limit);
            self.move_to(self.limit.max(self.calm), Moved::Room);
            self.run = FIRST_RUN;
            self.calm = self.limit;
        } else {
            self.knee.at = knee.min(self.limit);
            self.move_to((self.knee.at + self.middle()).min(self.limit), Moved::Queue);
            self.calm = self.limit;
        }
        self.window_needs = self.window_needs();
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_completed_is_counted() {
        let mut doubt = Doubt::new(0.0, 2.0, 100.0, 9.0);
        doubt.admitted(1.0, 3);
        assert_eq!(doubt.began, None, "too many are in flight");
        doubt.completed(1.0);
        doubt.admitted(2.0, 2);
        // Two places: in one of them sixteen requests of a second, in the other one that never ends.
        for second in 0..16 {
            let now = 3.0 + f64::from(second);
            assert_eq!(doubt.mean(), None, "too few");
            doubt.completed(now);
            doubt.admitted(now, 2);
        }
        assert_eq!(doubt.mean(), Some(2.0));
    }

    #[test]
    fn the_rate_is_that_of_before_unless_the_queue_took_long_to_drain() {
        let mut doubt = Doubt::new(0.0, 2.0, 100.0, 9.0);
        for _ in 0..5 {
            doubt.completed(0.1);
        }
        doubt.admitted(0.5, 1);
        assert_eq!(doubt.rate(6.0), 100.0);
        assert_eq!(doubt.rate(5.0), 10.0);
    }

    #[test]
    fn it_holds_the_service_back_if_more_than_its_level_can_be_at_work() {
        /// How many requests of so many seconds complete in a dip to two until that is plain, where 100 a second did.
        fn completions(seconds: f64, variation: f64) -> Option<usize> {
            let mut doubt = Doubt::new(0.0, 2.0, 100.0, 9.0);
            doubt.admitted(0.0, 2);
            (1..1000).find(|&n| {
                let now = f64::from(n as u32) * seconds / 2.0;
                doubt.completed(now);
                doubt.admitted(now, 2);
                doubt.holds_back(now, variation, doubt.rate(1000.0))
            })
        }
        assert_eq!(completions(0.1, 0.5), Some(16), "ten can be at work");
        assert_eq!(completions(0.1, 4.0), Some(20), "ten round trips");
        assert_eq!(
            completions(0.03, 0.5),
            Some(16),
            "three, and they are alike"
        );
        assert_eq!(completions(0.03, 4.0), Some(65), "three");
        assert_eq!(completions(0.02, 0.5), None, "even two would wait");
        assert_eq!(completions(0.01, 0.5), None);
    }

    #[test]
    fn a_stall_makes_it_begin_again() {
        let mut doubt = Doubt::new(0.0, 2.0, 100.0, 9.0);
        doubt.admitted(1.0, 2);
        doubt.completed(2.0);
        doubt.admitted(2.0, 2);
        doubt.begin_again(9.0);
        assert_eq!((doubt.began, doubt.current), (Some(9.0), 1.0));
        assert_eq!((doubt.area, doubt.done), (0.0, 0.0));
    }
}
