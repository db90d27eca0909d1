//! The fast loop: whether a queue stands.
//!
//! A queue that absorbs a burst is empty again soon, and some request finds it so. In a queue that
//! stands, all that come have waited. So the least age within a short time tells the two apart (CoDel,
//! and folly's version of it for servers, whose rule this is but for the additions marked below).

use super::excess::Excess;

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
    /// Whether a waiter made way for a newer one in this interval. Where the newest is first, the ages of those that are served
    /// do not show that the queue stands.
    made_way: bool,
}

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
            made_way: false,
        }
    }

    /// A waiter was rejected to make way for a newer one.
    pub(super) fn note_made_way(&mut self) {
        self.made_way = true;
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
    pub(super) fn look(
        &mut self,
        now: u64,
        age: u64,
        oldest: Option<u64>,
        target: u64,
        excess: &mut Excess,
    ) -> bool {
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
            let stands = self.least > target || self.made_way || excess.many_are_late();
            self.overloaded = stands && !silent;
            self.made_way = false;
            excess.close(self.overloaded);
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
    pub(super) fn set_overloaded(&mut self, now: u64) {
        *self = Self {
            overloaded: true,
            started: true,
            pended: Some(now),
            end: now + SHORTEST_DETECTION,
            last: now,
            ..Self::new(now)
        };
    }
}
