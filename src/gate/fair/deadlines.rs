//! Requests that nobody waits for any more, or will not by the time that they are done.
//!
//! A request that has a deadline is rejected:
//! - when it comes, if those ahead of it would make it miss the deadline. Where the newest is served first, nobody is ahead of
//!   it;
//! - by a timer, when its deadline has passed while it waited;
//! - at its turn, if less time is left than requests commonly take. It is never called.

use std::time::Duration;

use super::{Busy, Fair, Rejection, Serves, waiters::Arrival};
use crate::{
    Overloaded,
    gate::gate::Gate,
    law::{
        drain_rate::DrainRate,
        fair_queue::{Lane, Order},
    },
    sync::lock,
};

/// How fast waiters are served, measured only while one may be next.
#[derive(Debug, Default)]
pub(super) struct Turnover {
    clock: Busy,
    rate: DrainRate,
    served: u64,
    /// What the clock showed, and when it was last seen to have moved.
    shown: u64,
    moved: u64,
}

/// After so long, what was measured before says nothing any more.
const FORGOTTEN: u64 = 10_000_000_000;

impl Turnover {
    #[inline]
    pub(super) fn note_served(&mut self) {
        self.served += 1;
    }

    /// Whether a waiter may be next has changed.
    #[inline]
    pub(super) fn note_next(&mut self, has_next: bool, now: u64) {
        self.clock.note(has_next, now);
    }

    /// How long it takes until so many are served.
    fn wait(&mut self, now: u64, many: u64) -> Option<u64> {
        let shown = self.clock.total(now);
        if shown != self.shown {
            (self.shown, self.moved) = (shown, now);
        } else if now.saturating_sub(self.moved) > FORGOTTEN {
            self.rate = DrainRate::default();
        }
        let each = self.rate.look(Duration::from_nanos(shown), self.served)?;
        Some((each.as_nanos() as u64).saturating_mul(many))
    }
}

/// A low estimate of the time that a request takes: fifteen of sixteen take longer. It is learned only while requests wait, and
/// forgotten soon after that: what is rejected for it teaches it nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeastService {
    /// 0 while nothing is known.
    least: u64,
    noted: u64,
}

/// After so long without a request that teaches it, nothing is known.
const UNKNOWN_AFTER: u64 = 1_000_000_000;

impl LeastService {
    #[inline]
    fn at(&self, now: u64) -> u64 {
        match now.saturating_sub(self.noted) > UNKNOWN_AFTER {
            true => 0,
            false => self.least,
        }
    }

    /// The estimate rises by a 64th with each request that took longer, and sinks by fifteen 64ths with each that took less. So it
    /// settles where one request of sixteen takes less.
    #[inline]
    pub(super) fn note(&mut self, took: u64, now: u64) {
        let least = self.at(now);
        let step = least / 64 + 1;
        self.noted = now;
        self.least = match least {
            0 => took,
            _ if took < least => least.saturating_sub(15 * step).max(took),
            _ => least.saturating_add(step).min(took),
        };
    }
}

impl<S: Serves> Fair<S> {
    /// Why a request cannot be done before its deadline, if it starts now.
    #[inline]
    pub(super) fn misses(&self, deadline: Option<u64>, now: u64) -> Result<(), Rejection> {
        match deadline {
            None => Ok(()),
            Some(deadline) if deadline <= now => Err(Rejection::EXPIRED),
            Some(deadline) if deadline - now < self.least_service.at(now) => Err(Rejection::LATE),
            Some(_) => Ok(()),
        }
    }

    /// The same, if it has to wait for those that are ahead of it.
    pub(super) fn would_miss(&mut self, arrival: &Arrival, now: u64) -> Result<(), Rejection> {
        let Some(deadline) = arrival.deadline else {
            return Ok(());
        };
        self.misses(arrival.deadline, now)?;
        let (tenant, lane) = arrival.who();
        if self.serves.order(now, lane) == Order::NewestFirst {
            return Ok(());
        }
        let all = self.queue.waiting_from(lane) as u64 + 1;
        let ahead = self.queue.ahead(tenant, lane).min(all);
        let wait = match self.queue.has_next() {
            true => self.turnover.wait(now, ahead).unwrap_or(0),
            false => 0, // those that wait, wait for their tenants' own
        };
        let left = deadline.saturating_sub(now);
        if wait.saturating_add(self.least_service.at(now)) <= left {
            return Ok(());
        }
        self.note_late(arrival.who(), wait);
        Err(Rejection::LATE)
    }

    /// A request was rejected because so long a wait made it miss its deadline. That shows a queue, unless its tenant waits for its
    /// own others.
    pub(super) fn note_late(&mut self, (tenant, lane): (u32, Lane), wait: u64) {
        if self.queue.may_run(tenant) {
            self.serves.note_late(lane, wait);
        }
    }
}

impl<S: Serves> Gate<Fair<S>> {
    /// A request picks up its permit, perhaps long after it was granted. If its deadline has passed meanwhile it is rejected, and
    /// gives the permit back without having been sent.
    pub(crate) fn still_wanted(&self, arrival: &Arrival) -> Result<(), Box<Overloaded>> {
        let Some(deadline) = arrival.deadline else {
            return Ok(());
        };
        let now = self.clock.nanos();
        if now < deadline {
            return Ok(());
        }
        let mut slow = lock(&self.slow);
        slow.room.lanes.note_not_started(arrival.lane);
        let rejected = self.reject(&mut slow, arrival.who(), Rejection::EXPIRED, now);
        drop(slow);
        self.bounds.report(rejected.reason());
        Err(rejected)
    }
}

impl Rejection {
    /// Why a request is rejected that has waited as long as it may.
    pub(super) fn timed_out(arrival: &Arrival, now: u64) -> Self {
        /// The timer and the gate's clock may differ by so much.
        const TOLERANCE: u64 = 1_000_000;
        let has_passed = |deadline| deadline <= now.saturating_add(TOLERANCE);
        match arrival.deadline.is_some_and(has_passed) {
            true => Self::EXPIRED,
            false => Self::TIMED_OUT,
        }
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn hardly_any_request_takes_less_than_the_least_service() {
        let mut least = LeastService::default();
        for round in 0..4000 {
            least.note([10, 20, 30, 40][round % 4] * MS, 0);
        }
        assert!((9 * MS..=11 * MS).contains(&least.at(0)), "{least:?}");
        for round in 0..4000_u64 {
            least.note(if round % 10 == 0 { MS } else { 50 * MS }, 0);
        }
        assert!(least.at(0) < 2 * MS, "one of ten is fast: {least:?}");
        (0..4000).for_each(|_| least.note(0, 0));
        assert!(least.at(0) < MS, "it follows: {least:?}");
        (0..9000).for_each(|_| least.note(u64::MAX, 0));
        assert!(least.at(0) > MS, "without overflow: {least:?}");
    }

    #[test]
    fn what_is_not_learned_any_more_is_forgotten() {
        let mut least = LeastService::default();
        least.note(5000 * MS, 0);
        assert_eq!(least.at(1000 * MS), 5000 * MS);
        assert_eq!(least.at(1001 * MS), 0);
        least.note(10 * MS, 1001 * MS);
        assert_eq!(least.at(1001 * MS), 10 * MS);
    }

    #[test]
    fn the_turnover_is_forgotten_when_nobody_has_been_next_for_long() {
        let mut turnover = Turnover::default();
        turnover.note_next(true, 0);
        assert_eq!(turnover.wait(0, 1), None);
        turnover.note_served();
        assert_eq!(turnover.wait(5000 * MS, 2), Some(10_000 * MS));
        turnover.note_next(false, 5000 * MS);
        assert_eq!(turnover.wait(15_000 * MS, 2), Some(10_000 * MS));
        assert_eq!(
            turnover.wait(15_001 * MS, 2),
            None,
            "although it is asked again and again"
        );
    }
}
