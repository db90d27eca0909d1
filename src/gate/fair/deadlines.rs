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

impl<S: Serves> Fair<S> {
    /// Why a request cannot be done before its deadline, if it starts now.
    #[inline]
    pub(super) fn misses(&self, deadline: Option<u64>, now: u64) -> Result<(), Rejection> {
        match deadline {
            None => Ok(()),
            Some(deadline) if deadline <= now => Err(Rejection::EXPIRED),
            Some(deadline) if deadline - now < self.queue.least_service() => Err(Rejection::LATE),
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
        if wait.saturating_add(self.queue.least_service()) <= left {
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
