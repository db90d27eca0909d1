//! Admission by age: refuses what has waited too long where waiting does not end, and finds out how many
//! requests may be in flight for nobody to wait.
//!
//! # The two loops
//! - **Fast**, for each request: [`Standing`] tells a queue that stands from a burst that drains. While
//!   one stands, what is older than two targets is refused.
//! - **Slow**, in windows of a tenth of `interval`: [`Width`] narrows the limit by a quarter when for a
//!   whole `interval` more than a twentieth of all requests were over the target (their p95 was), and
//!   widens it by a quarter when they were not.
//!
//! # Why it does not collapse
//! A loop that narrows whenever requests are old feeds on itself: what it keeps waiting gets older.
//! Hence:
//!
//! 1. It never keeps anything waiting: what is not admitted is refused.
//! 2. While the inner service is not ready (a limit further in is full), or requests have waited in a
//!    queue of ours for longer than the target, the slow loop holds: the wait is for that limit, or for
//!    the tenant's own others, and never for ours.
//! 3. The fast loop judges by the oldest request that waits, not only by the one that comes: a fair queue
//!    lets young ones overtake.
//! 4. It refuses only what aged in our own queue, or when more is in flight than in good times: when
//!    something further out has become slow, refusing does not help.
//! 5. A narrowing that did not help is taken back, and not tried again for a while, which gets longer
//!    each time.
//! 6. Few requests, or none, are a reason to widen: no limit stays narrow for want of evidence.

mod ages;
mod excess;
mod standing;
#[cfg(all(test, not(backpressure_loom)))]
mod tests;
mod width;

use std::time::Duration;

use self::{ages::Ages, excess::Excess, standing::Standing, width::Width};
use super::fair_queue::{Lane, Order};

/// Times are nanoseconds since any fixed moment, and may stand still or go back.
// In this order, so that what each request touches is in as few cache lines as it can be: the threads of a server
// take them from each other.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CoDel {
    standing: Standing,
    pub(crate) settings: Settings,
    width: Width,
    ages: Ages,
    excess: Excess,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) target: u64,
    pub(crate) interval: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// What is older is refused, whatever the load.
    pub(crate) max_sojourn: Option<u64>,
}

/// A request that has reached us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Since it was submitted.
    pub(crate) age: u64,
    /// The part of that which it waited in a queue of ours.
    pub(crate) own: u64,
    /// How long the oldest that still waits there has waited, if one does.
    pub(crate) oldest: Option<u64>,
    /// How many are in flight, without it.
    pub(crate) in_flight: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admit,
    TooOld,
    /// The limit is reached.
    Full,
}

/// What has been seen lately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) overloaded: bool,
    pub(crate) load_percent: u32,
    pub(crate) p95: Option<Duration>,
    pub(crate) over_target: f64,
    pub(crate) narrowings: u64,
    pub(crate) widenings: u64,
    pub(crate) undone: u64,
}

impl CoDel {
    pub(crate) fn new(settings: Settings, now: u64) -> Self {
        Self {
            settings,
            standing: Standing::new(now),
            width: Width::new(&settings, now),
            ages: Ages::default(),
            excess: Excess::default(),
        }
    }

    /// Holds to other settings from now on.
    pub(crate) fn set(&mut self, settings: Settings) {
        self.width.rebound(&self.settings, &settings);
        self.settings = settings;
    }

    /// How many may be in flight.
    pub(crate) fn limit(&self) -> u64 {
        self.width.limit()
    }

    /// Whether it is time for [`roll`](Self::roll).
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.width.due(&self.settings, now).is_some()
    }

    /// Until when a request that has not waited at all is admitted if there is room, and changes nothing but how
    /// many came, as long as it finds fewer in flight than the [`peak`](Self::peak).
    pub(crate) fn calm_until(&self) -> u64 {
        let window = self.width.lasts_until(&self.settings);
        self.standing.calm_until().min(window)
    }

    /// The most in flight in the window that is open.
    pub(crate) fn peak(&self) -> u64 {
        self.width.peak()
    }

    /// Whether it may be time for [`roll`](Self::roll), if enough have come.
    #[inline]
    pub(crate) fn may_be_due(&self, now: u64) -> bool {
        now >= self.width.lasts_until(&self.settings)
    }

    /// As many have come while it was [calm](Self::calm_until), and were admitted.
    pub(crate) fn note_calm(&mut self, many: u64) {
        self.ages.note_calm(many);
        self.width.note_calm(many);
    }

    /// What was to be admitted found no room after all.
    pub(crate) fn note_full(&mut self) {
        self.width.note_full();
    }

    /// Closes the windows that are over, which may move the limit. `completed` is how many requests have
    /// completed so far, however they ended.
    pub(crate) fn roll(&mut self, now: u64, completed: u64) {
        let Self {
            width,
            ages,
            settings,
            ..
        } = self;
        width.roll(settings, now, completed, |window| {
            ages.close(window, settings.target);
        });
    }

    /// The inner service was not ready.
    pub(crate) fn inner_pending(&mut self, now: u64) {
        self.width.waited_elsewhere();
        self.standing.pended(now);
    }

    /// Which of those that wait in this lane should be next: the newest, if a queue stands and the overload is plain.
    #[inline]
    pub(crate) fn order(&self, now: u64, lane: Lane) -> Order {
        let Settings {
            target, interval, ..
        } = self.settings;
        let stands = self.standing.is_overloaded(now, target, interval);
        match stands && self.excess.is_plain(lane) {
            true => Order::NewestFirst,
            false => Order::OldestFirst,
        }
    }

    /// How many may wait where the newest is first.
    pub(crate) fn places(&self, lane: Lane, in_flight: u64) -> u64 {
        self.excess.places(lane, in_flight)
    }

    /// More came to wait than there are places, and one was rejected, of a lane of this order.
    pub(crate) fn note_no_place(&mut self, lane: Lane, order: Order) {
        self.excess.note_rejected(lane);
        if order == Order::NewestFirst {
            self.standing.note_made_way();
        }
    }

    /// A waiter was rejected because of its deadline.
    pub(crate) fn note_late(&mut self, lane: Lane) {
        self.excess.note_late(lane);
    }

    /// A request comes. If it [is due](Self::is_due), after [`roll`](Self::roll).
    #[inline(always)] // into `Ages::judge`: `instructions`, codel: 566 to 541
    pub(crate) fn enter(&mut self, now: u64, entry: &Entry) -> Verdict {
        let standing = self.look(now, entry);
        let too_old = self.is_too_old(standing, entry);
        self.decide(entry, too_old)
    }

    /// A request is next that has waited, and may be too old, unless it is `spared`. `max_sojourn` spares nobody.
    pub(crate) fn enter_next(
        &mut self,
        now: u64,
        entry: &Entry,
        lane: Lane,
        spared: bool,
    ) -> Verdict {
        let standing = self.look(now, entry);
        let too_old = self.is_too_old(standing && !spared, entry);
        match too_old {
            true => self.excess.note_rejected(lane),
            false => self.excess.note_served(lane),
        }
        self.decide(entry, too_old)
    }

    /// Learns from a request, and says whether a queue stands.
    #[inline(always)] // see `enter`
    fn look(&mut self, now: u64, entry: &Entry) -> bool {
        let over = entry.age > self.settings.target;
        self.ages.note(entry.age);
        self.width.note(entry.age, over, entry.in_flight);
        if entry.own > self.settings.target {
            self.width.waited_elsewhere();
        }
        let Self {
            standing, excess, ..
        } = self;
        standing.look(now, entry.age, entry.oldest, self.settings.target, excess)
    }

    #[inline(always)] // see `enter`
    fn decide(&mut self, entry: &Entry, too_old: bool) -> Verdict {
        if too_old {
            self.width.note_aged();
            Verdict::TooOld
        } else if entry.in_flight >= self.limit() {
            self.width.note_full();
            Verdict::Full
        } else {
            Verdict::Admit
        }
    }

    /// What [`enter`](Self::enter) would say. Nothing is learned from it.
    pub(crate) fn foresee(&self, now: u64, entry: &Entry) -> Verdict {
        if self.is_too_old(self.standing.foresee(now), entry) {
            Verdict::TooOld
        } else if entry.in_flight >= self.limit() {
            Verdict::Full
        } else {
            Verdict::Admit
        }
    }

    #[inline]
    fn is_too_old(&self, standing: bool, entry: &Entry) -> bool {
        let &Entry {
            age,
            own,
            oldest,
            in_flight,
        } = entry;
        let Settings {
            target,
            min,
            max_sojourn,
            ..
        } = self.settings;
        if max_sojourn.is_some_and(|max| age > max) {
            return true;
        }
        if !standing || age <= target.saturating_mul(2) {
            return false;
        }
        // Nobody else is there whom it could be in the way of.
        if in_flight == 0 && oldest.is_none() && !self.standing.has_pended() {
            return false;
        }
        own > target || in_flight >= self.width.healthy().max(min)
    }

    /// After [`roll`](Self::roll).
    pub(crate) fn report(&self, now: u64) -> Report {
        let Settings {
            target, interval, ..
        } = self.settings;
        let (narrowings, widenings, undone) = self.width.moves();
        Report {
            overloaded: self.standing.is_overloaded(now, target, interval),
            load_percent: self.standing.load_percent(now, target, interval),
            p95: self.ages.p95().map(Duration::from_nanos),
            over_target: self.width.last().share_over(),
            narrowings,
            widenings,
            undone,
        }
    }
}

#[cfg(all(test, backpressure_loom))]
impl CoDel {
    /// In the last window that was closed, and in the one that is open.
    pub(crate) fn seen_of_late(&self) -> u64 {
        self.width.seen_of_late()
    }
}

#[cfg(test)]
impl CoDel {
    /// A queue stands from now on, and so many are rejected for each that is served.
    #[cfg(not(backpressure_loom))]
    pub(crate) fn set_excess(&mut self, now: u64, excess: f64) {
        self.standing.set_overloaded(now);
        self.excess.set(excess);
    }

    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.width.set_limit(limit);
    }
}
