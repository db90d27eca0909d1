//! Requests that nobody waits for any more, or will not by the time that they are done.
//!
//! A request that has a deadline is rejected:
//! - when it comes, if the queue ahead of it would make it miss the deadline, in the order of arrival. Where the newest is
//!   first, nothing is ahead of it;
//! - by a timer, when its deadline has passed while it waited;
//! - at its turn, if less time is left than requests commonly take. It is never called.

use std::time::Duration;

use super::{Fair, Rejection, Serves, waiters::Arrival};
use crate::{
    Reason,
    law::{
        drain_rate::DrainRate,
        fair_queue::{Lane, Order},
    },
};

/// How fast waiters are served, measured only while there are some.
#[derive(Debug, Default)]
pub(super) struct Turnover {
    rate: DrainRate,
    served: u64,
    looked: u64,
}

/// After so long, what was measured before says nothing any more.
const FORGOTTEN: u64 = 10_000_000_000;

impl Turnover {
    #[inline]
    pub(super) fn note_served(&mut self) {
        self.served += 1;
    }

    /// How long it takes until so many are served. `busy` is how long somebody has waited so far.
    fn wait(&mut self, now: u64, busy: u64, many: u64) -> Option<u64> {
        if now.saturating_sub(self.looked) > FORGOTTEN {
            self.rate = DrainRate::default();
        }
        self.looked = now;
        let each = self.rate.look(Duration::from_nanos(busy), self.served)?;
        Some((each.as_nanos() as u64).saturating_mul(many))
    }
}

/// A low estimate of the time that a request takes: a quarter of them take no longer. 0 while nothing is known. It is learned
/// only while requests wait: otherwise nobody asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeastService(u64);

impl LeastService {
    /// It rises by a 64th with three of four requests, and sinks by three with the fourth, so it stays where a quarter take
    /// less.
    #[inline]
    pub(super) fn note(&mut self, took: u64) {
        let Self(least) = *self;
        let step = least / 64 + 1;
        self.0 = match least {
            0 => took,
            _ if took < least => least.saturating_sub(3 * step),
            _ if took > least => least.saturating_add(step).min(took),
            _ => least,
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
            Some(deadline) if deadline - now < self.least_service.0 => Err(Rejection::LATE),
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
        let ahead = self.queue.ahead(tenant, lane);
        let busy = self.busy.total(now);
        let wait = self.turnover.wait(now, busy, ahead).unwrap_or(0);
        let left = deadline.saturating_sub(now);
        if wait.saturating_add(self.least_service.0) <= left {
            return Ok(());
        }
        self.note_late(arrival.who());
        Err(Rejection::LATE)
    }

    /// A request was rejected because the queue made it miss its deadline, unless its tenant waits for its own others.
    pub(super) fn note_late(&mut self, (tenant, lane): (u32, Lane)) {
        if self.queue.may_run(tenant) {
            self.serves.note_late(lane);
        }
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

    pub(super) fn is_for_deadline(self) -> bool {
        matches!(self.reason, Reason::Deadline | Reason::WouldBeLate)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn three_of_four_requests_take_longer_than_the_least_service() {
        const MS: u64 = 1_000_000;
        let mut least = LeastService::default();
        for round in 0..4000 {
            least.note([10, 20, 30, 40][round % 4] * MS);
        }
        assert!((9 * MS..=21 * MS).contains(&least.0), "{least:?}");
        (0..4000).for_each(|_| least.note(0));
        assert!(least.0 < MS, "it follows: {least:?}");
        (0..9000).for_each(|_| least.note(u64::MAX));
        assert!(least.0 > MS, "without overflow: {least:?}");
    }
}
