//! The fast loop: whether a queue stands.
//!
//! A queue that absorbs a burst is empty again soon, and some request finds it so. In a queue that
//! stands, all that come have waited. So the least age within a short time tells the two apart (CoDel,
//! and folly's version of it for servers, whose rule this is but for the additions marked below).
//!
//! # Newest first
//! In a standing queue, the order decides which requests are served, not how many. If the oldest is first, each request that
//! is served has waited for almost two targets. If the newest is first, those that are served have hardly waited, and the
//! others can be rejected early. So the newest is first while a queue stands and the overload is plain: at least a quarter
//! as many requests are rejected as served ([`PLAIN`]).
//!
//! Below that, the order of arrival stays. Near its capacity, a service works off its waiters whenever fewer requests come
//! for a while. If the newest is first, the oldest waiters wait until then, and some of them for too long. At exactly the
//! capacity that costs up to two percent of the goodput.
//!
//! While the newest is first, only so many requests [may wait](Standing::places), and the oldest makes way for a newcomer.
//! The queue is taken to stand as long as requests make way, because the ages of those that are served no longer show it.

/// How long the least age is looked for, at least: within it a queue that drains is seen to.
const SHORTEST_DETECTION: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Standing {
    overloaded: bool,
    started: bool,
    /// When the inner service was last not ready, if it was in this interval.
    pended: Option<u64>,
    /// When this interval is over.
    end: u64,
    /// When a request came last that it was told of. It counts once that is after `end`, and until then it need not be
    /// told of all: see [`calm_until`](Self::calm_until).
    last: u64,
    /// The least age in this interval.
    least: u64,
    /// In this interval: how many waiters were served, how many requests were rejected because of the queue, and whether one
    /// of these made way for a newer one.
    served: u32,
    rejected: u32,
    made_way: bool,
    /// How many are rejected for each that is served, while a queue stands: half of it is of the last interval, a
    /// quarter of the one before, and so on.
    excess: f64,
}

/// From this excess on, the newest is first. Without such a bound, it costs 0.3 to 2 points of goodput at exactly the
/// capacity, and with it next to nothing. With 0.4, p50 at 1.5 times the capacity is 5.8 times the unloaded one, and with
/// 0.25 it is 2.4 times (16 workers, exponential service times).
const PLAIN: f64 = 0.25;

/// At this excess, which is that of three times the capacity, as many requests may wait as are in flight: the oldest makes
/// way after about half a service time. At half the excess twice as many may wait.
const EXCESS: f64 = 2.0;
/// At most so many times as many: with 4 the goodput is no higher (overload lab, at the capacity).
const MOST_PLACES: f64 = 2.5;

/// It is no shorter than the target: a queue that drains within it must be seen to.
#[inline]
fn detection(target: u64) -> u64 {
    SHORTEST_DETECTION.max(target)
}

impl Standing {
    pub(super) fn new(now: u64) -> Self {
        Self {
            overloaded: false,
            started: false,
            pended: None,
            end: now,
            last: now,
            least: 0,
            served: 0,
            rejected: 0,
            made_way: false,
            excess: 0.0,
        }
    }

    /// A waiter is served.
    pub(super) fn note_served(&mut self) {
        self.served = self.served.saturating_add(1);
    }

    /// A request was rejected because of the queue.
    pub(super) fn note_rejected(&mut self) {
        self.rejected = self.rejected.saturating_add(1);
    }

    /// A waiter was rejected to make way for a newer one.
    pub(super) fn note_made_way(&mut self) {
        self.made_way = true;
        self.note_rejected();
    }

    /// Whether the overload is plain, if a queue stands.
    pub(super) fn is_plain(&self) -> bool {
        self.excess >= PLAIN
    }

    /// How many may wait while the newest is first.
    pub(super) fn places(&self, in_flight: u64) -> u64 {
        let times = (EXCESS / self.excess).clamp(1.0, MOST_PLACES); // infinite without an excess
        ((in_flight as f64 * times) as u64).max(1)
    }

    pub(super) fn pended(&mut self, now: u64) {
        self.pended = Some(now);
    }

    pub(super) fn has_pended(&self) -> bool {
        self.pended.is_some()
    }

    /// A request comes. Says whether a queue stands, and it may be refused for that: the one that finds
    /// out is let in.
    #[inline]
    pub(super) fn look(&mut self, now: u64, age: u64, oldest: Option<u64>, target: u64) -> bool {
        // Added: a fair queue lets young requests overtake old ones, so the oldest counts.
        let age = age.max(oldest.unwrap_or(0));
        // Added: where nobody came for so long and nobody waits, no queue stands.
        let silent = oldest.is_none() && self.is_silent(now, target);
        self.last = now;
        if !self.started {
            self.started = true;
            self.least = age;
            return false;
        }
        if now > self.end {
            self.overloaded = (self.least > target || self.made_way) && !silent;
            let excess = f64::from(self.rejected) / f64::from(self.served.max(1));
            self.excess = match self.overloaded {
                true => (self.excess + excess) / 2.0,
                false => 0.0,
            };
            (self.served, self.rejected, self.made_way) = (0, 0, false);
            self.end = now.saturating_add(detection(target));
            self.least = age;
            self.pended = None;
            return false;
        }
        self.least = self.least.min(age);
        self.overloaded
    }

    /// What [`look`](Self::look) would say.
    pub(super) fn foresee(&self, now: u64) -> bool {
        self.started && now <= self.end && self.overloaded
    }

    /// Until when a request of no age changes nothing: one like it has come in this interval, and `last` does not
    /// count before its end.
    pub(super) fn calm_until(&self) -> u64 {
        match self.started && self.least == 0 {
            true => self.end,
            false => 0,
        }
    }

    /// Added: an inner service that is not ready holds requests back, so that none come.
    #[inline]
    fn is_silent(&self, now: u64, target: u64) -> bool {
        self.pended.is_none() && self.silence(now) >= detection(target)
    }

    #[inline]
    fn silence(&self, now: u64) -> u64 {
        now.saturating_sub(self.last.max(self.end))
    }

    /// To be shown: whoever was held back may have given up since.
    fn is_stale(&self, now: u64, target: u64, interval: u64) -> bool {
        match self.pended {
            None => self.is_silent(now, target),
            Some(at) => self.silence(now).min(now.saturating_sub(at)) >= interval,
        }
    }

    pub(super) fn is_overloaded(&self, now: u64, target: u64, interval: u64) -> bool {
        self.overloaded && !self.is_stale(now, target, interval)
    }

    /// The least age, in percent of the age at which requests are refused.
    pub(super) fn load_percent(&self, now: u64, target: u64, interval: u64) -> u32 {
        if self.is_stale(now, target, interval) {
            return 0;
        }
        let percent = u128::from(self.least) * 100 / u128::from(target).max(1) / 2;
        percent.min(100) as u32
    }
}

#[cfg(all(test, not(backpressure_loom)))]
impl Standing {
    pub(super) fn set_excess(&mut self, now: u64, excess: f64) {
        *self = Self {
            overloaded: true,
            started: true,
            pended: Some(now),
            end: now + SHORTEST_DETECTION,
            last: now,
            excess,
            ..Self::new(now)
        };
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    const TARGET: u64 = 100_000_000;
    const MS: u64 = 1_000_000;

    /// So many are served in each interval, and so many rejected, all of this age.
    fn intervals(standing: &mut Standing, now: &mut u64, served: u32, rejected: u32, age: u64) {
        for one in 0..served {
            *now += 101 * MS / u64::from(served);
            standing.look(*now, age, Some(age), TARGET);
            standing.note_served();
            for _ in 0..rejected * (one + 1) / served - rejected * one / served {
                standing.note_made_way();
            }
        }
    }

    #[test]
    fn the_newest_is_first_from_a_quarter_more_than_can_be_served() {
        for (rejected, expected) in [(0, false), (2, false), (4, false), (6, true), (40, true)] {
            let (mut standing, mut now) = (Standing::new(0), 0);
            for _ in 0..12 {
                intervals(&mut standing, &mut now, 20, rejected, 2 * TARGET);
            }
            assert!(standing.is_overloaded(now, TARGET, TARGET));
            assert_eq!(
                standing.is_plain(),
                expected,
                "{rejected}: {}",
                standing.excess
            );
        }
    }

    #[test]
    fn more_have_a_place_where_fewer_are_rejected() {
        let mut standing = Standing::new(0);
        for (excess, places) in [(0.0, 50), (0.25, 50), (1.0, 40), (2.0, 20), (9.0, 20)] {
            standing.excess = excess;
            assert_eq!(standing.places(20), places, "{excess}");
        }
        assert_eq!(standing.places(0), 1, "there is always a place");
        assert!(standing.places(u64::MAX) >= u64::MAX - 1);
    }

    /// Those that are served have not waited: what shows that the queue stands are those that make way.
    #[test]
    fn a_queue_stands_as_long_as_some_make_way() {
        let (mut standing, mut now) = (Standing::new(0), 0);
        (0..4).for_each(|_| intervals(&mut standing, &mut now, 20, 40, 2 * TARGET));
        (0..100).for_each(|_| intervals(&mut standing, &mut now, 20, 40, MS));
        assert!(standing.is_overloaded(now, TARGET, TARGET) && standing.is_plain());
        (0..2).for_each(|_| intervals(&mut standing, &mut now, 20, 0, MS));
        assert!(!standing.is_overloaded(now, TARGET, TARGET));
        intervals(&mut standing, &mut now, 20, 0, MS);
        assert!(!standing.is_plain(), "the next queue starts anew");
    }
}
