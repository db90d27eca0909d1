//! What is counted.

use tokio::time::Sleep;

use crate::sync::{AtomicU64, Ordering::Relaxed};

/// What has become of requests. Each that was not retried, or not again, is counted once, by the first
/// reason that there was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Requests, each counted once however often it was sent.
    pub requests: u64,
    /// Retries.
    pub retries: u64,
    /// Requests that went well at a retry.
    pub recovered: u64,
    /// Answers that say that it will fail another time too.
    pub permanent: u64,
    /// Answers that say that there is nothing there any more: 410.
    pub gone: u64,
    /// Failures of requests that cannot be done twice, where it is not known whether they were done.
    pub not_idempotent: u64,
    /// Requests whose body can be sent only once; whatever became of them.
    pub not_replayable: u64,
    /// Answers that forbid a retry.
    pub forbidden: u64,
    /// Requests that have been retried as often as one may be.
    pub exhausted: u64,
    /// Requests that were rejected by an open circuit that stays open for longer than the backoff.
    pub circuit_open: u64,
    /// Requests whose retry would have come after their deadline, or after `max_elapsed`.
    pub too_late: u64,
    /// Requests for which the budget had nothing left.
    pub over_budget: u64,
    /// How many retries the budget has left now.
    pub budget: u64,
    /// How often a request is sent again at most.
    pub max_retries: u32,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) requests: Count,
    pub(super) retries: Count,
    pub(super) recovered: Count,
    pub(super) permanent: Count,
    pub(super) gone: Count,
    pub(super) not_idempotent: Count,
    pub(super) not_replayable: Count,
    pub(super) forbidden: Count,
    pub(super) exhausted: Count,
    pub(super) circuit_open: Count,
    pub(super) too_late: Count,
    pub(super) over_budget: Count,
}

impl Counts {
    pub(super) fn snapshot(&self, budget: u64, max_retries: u64) -> Snapshot {
        Snapshot {
            requests: self.requests.load(),
            retries: self.retries.load(),
            recovered: self.recovered.load(),
            permanent: self.permanent.load(),
            gone: self.gone.load(),
            not_idempotent: self.not_idempotent.load(),
            not_replayable: self.not_replayable.load(),
            forbidden: self.forbidden.load(),
            exhausted: self.exhausted.load(),
            circuit_open: self.circuit_open.load(),
            too_late: self.too_late.load(),
            over_budget: self.over_budget.load(),
            budget,
            max_retries: u32::try_from(max_retries).unwrap_or(u32::MAX),
        }
    }
}

pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Counts why there is no retry.
    pub(super) fn none(&self) -> Option<Sleep> {
        self.add();
        None
    }

    fn load(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Default for Count {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}
