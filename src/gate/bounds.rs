//! What every limiter has: a name, bounds for those who wait, and a count of its refusals and of waits.

use std::{sync::OnceLock, time::Duration};

use super::{queue::MAX_WAITING, waits::WaitCounts};
use crate::{
    Reason,
    observe::refusals::Refusals,
    sync::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// How many callers may wait unless the layer is told otherwise: enough for a burst at any limit in
/// common use, few enough that a standing queue is refused in time.
pub(crate) const DEFAULT_MAX_WAITING: usize = 1024;

/// Where the wait is known exactly: so that nobody is told to come back at once.
pub(crate) const SHORTEST_RETRY_AFTER: Duration = Duration::from_nanos(1);

const NO_BOUND: u64 = u64::MAX;

/// What a layer is called in its refusals: its kind, unless it is given a name of its own.
#[derive(Debug)]
pub(crate) struct Name {
    kind: &'static str,
    own: OnceLock<&'static str>,
}

impl Name {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            own: OnceLock::new(),
        }
    }

    /// The first name that is given stays.
    pub(crate) fn set(&self, name: &'static str) {
        let _ = self.own.set(name);
    }

    pub(crate) fn get(&self) -> &'static str {
        self.own.get().unwrap_or(&self.kind)
    }
}

#[derive(Debug)]
pub(crate) struct Bounds {
    name: Name,
    max_waiting: AtomicUsize,
    /// In nanoseconds; [`NO_BOUND`] is none.
    max_wait: AtomicU64,
    at_limit: AtomicU64,
    queue_full: AtomicU64,
    wait_timeout: AtomicU64,
    too_old: AtomicU64,
    deadline: AtomicU64,
    would_be_late: AtomicU64,
    displaced: AtomicU64,
    quota: AtomicU64,
    /// What the log is told; `None` where that is somebody else's business.
    refusals: Option<Box<Refusals>>,
    pub(crate) waits: WaitCounts,
}

/// How many requests a limiter refused, by [`Reason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejected {
    /// Refused at the limit, to a caller that did not want to wait: [`Reason::AtLimit`], or
    /// [`Reason::ExceedsBurst`]. What a [`LoadShed`](crate::LoadShed) rejects for this limit counts when it is
    /// called: a limit that is full but passed over for another, or polled and not called, has rejected nothing.
    pub at_limit: u64,
    /// Refused because the queue was full: [`Reason::QueueFull`].
    pub queue_full: u64,
    /// Refused because the wait was, or would have been, longer than `max_wait`:
    /// [`Reason::WaitTimeout`].
    pub wait_timeout: u64,
    /// Refused because the request was too old to be worth starting: [`Reason::TooOld`].
    pub too_old: u64,
    /// Rejected because the deadline had passed: [`Reason::Deadline`].
    pub deadline: u64,
    /// Rejected because it would not have been done before its deadline: [`Reason::WouldBeLate`].
    pub would_be_late: u64,
    /// Rejected to make room for a more important request: [`Reason::Displaced`].
    pub displaced: u64,
    /// Refused because the client's own quota was used up: [`Reason::Quota`].
    pub quota: u64,
}

impl Rejected {
    /// All of them together.
    pub fn total(&self) -> u64 {
        self.at_limit
            + self.queue_full
            + self.wait_timeout
            + self.too_old
            + self.deadline
            + self.would_be_late
            + self.displaced
            + self.quota
    }
}

impl Bounds {
    /// `kind` is the name of the layer in its refusals, unless it is given one of its own.
    pub(crate) fn new(kind: &'static str) -> Self {
        Self::counting(kind, WaitCounts::default())
    }

    /// With waits that are counted there.
    pub(crate) fn counting(kind: &'static str, waits: WaitCounts) -> Self {
        Self {
            name: Name::new(kind),
            max_waiting: AtomicUsize::new(DEFAULT_MAX_WAITING),
            max_wait: AtomicU64::new(NO_BOUND),
            at_limit: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
            wait_timeout: AtomicU64::new(0),
            too_old: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            would_be_late: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            quota: AtomicU64::new(0),
            refusals: Some(Box::default()),
            waits,
        }
    }

    /// For one of many: the log is told of all of them together, by whoever has them.
    pub(crate) fn silence(&mut self) {
        self.refusals = None;
    }

    /// The first name that is given stays.
    pub(crate) fn set_name(&self, name: &'static str) {
        self.name.set(name);
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name.get()
    }

    /// Applies to callers that come from now on; nobody who waits is sent away.
    pub(crate) fn set_max_waiting(&self, max_waiting: usize) {
        self.max_waiting
            .store(max_waiting.min(MAX_WAITING), Relaxed);
    }

    pub(crate) fn max_waiting(&self) -> usize {
        self.max_waiting.load(Relaxed)
    }

    /// Applies to callers that come from now on.
    pub(crate) fn set_max_wait(&self, max_wait: Option<Duration>) {
        let max_wait = max_wait.map_or(NO_BOUND, |wait| nanos(wait).min(NO_BOUND - 1));
        self.max_wait.store(max_wait, Relaxed);
    }

    pub(crate) fn max_wait(&self) -> Option<Duration> {
        let max_wait = self.max_wait.load(Relaxed);
        (max_wait != NO_BOUND).then(|| Duration::from_nanos(max_wait))
    }

    /// Counts a refusal; says how many there were before for that reason.
    pub(crate) fn count(&self, reason: Reason) -> u64 {
        let count = match reason {
            Reason::QueueFull => &self.queue_full,
            Reason::WaitTimeout => &self.wait_timeout,
            Reason::TooOld => &self.too_old,
            Reason::Deadline => &self.deadline,
            Reason::WouldBeLate => &self.would_be_late,
            Reason::Displaced => &self.displaced,
            Reason::Quota => &self.quota,
            _ => &self.at_limit,
        };
        count.fetch_add(1, Relaxed)
    }

    /// Has the log told of a refusal that was counted, if that is news. What listens there may come back to
    /// the limiter, so none of its locks may be held.
    #[inline]
    pub(crate) fn report(&self, reason: Reason) {
        if let Some(refusals) = &self.refusals {
            refusals.note(self.name(), reason, || self.rejected().total());
        }
    }

    /// Has the log told that nothing is refused any more, if that is news. The same about locks.
    pub(crate) fn settle_report(&self) {
        if let Some(refusals) = &self.refusals {
            refusals.settle(self.name(), || self.rejected().total());
        }
    }

    pub(crate) fn rejected(&self) -> Rejected {
        Rejected {
            at_limit: self.at_limit.load(Relaxed),
            queue_full: self.queue_full.load(Relaxed),
            wait_timeout: self.wait_timeout.load(Relaxed),
            too_old: self.too_old.load(Relaxed),
            deadline: self.deadline.load(Relaxed),
            would_be_late: self.would_be_late.load(Relaxed),
            displaced: self.displaced.load(Relaxed),
            quota: self.quota.load(Relaxed),
        }
    }
}

/// As nanoseconds; more than 584 years are that many.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
