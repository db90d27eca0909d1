//! What becomes of requests by their priority.

use std::time::Duration;

use super::{Fair, Quiet};
use crate::{
    Priority, Reason, Waits,
    law::{fair_queue::Lane, fair_queues::LANES},
};

/// The requests of one priority, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrioritySnapshot {
    /// Which priority.
    pub priority: Priority,
    /// How many requests wait.
    pub waiting: usize,
    /// How long the one that has waited longest has waited.
    pub oldest_wait: Option<Duration>,
    /// How many were started so far, at once or after a wait.
    pub started: u64,
    /// How many were rejected so far, displaced ones included.
    pub rejected: u64,
    /// How many of those had waited, and made room for a more important request.
    pub displaced: u64,
    /// How long those waited who had to.
    pub waits: Waits,
}

/// Counts of all priorities.
#[derive(Debug, Default)]
pub(super) struct Lanes([Counts; LANES]);

#[derive(Debug, Default)]
struct Counts {
    /// After a wait.
    started: u64,
    rejected: u64,
    displaced: u64,
    waits: Waits,
}

impl Lanes {
    pub(super) fn note_rejected(&mut self, lane: Lane, reason: Reason) {
        let counts = &mut self.0[usize::from(lane)];
        counts.rejected += 1;
        counts.displaced += u64::from(reason == Reason::Displaced);
    }

    #[inline]
    pub(super) fn note_started(&mut self, lane: Lane) {
        self.0[usize::from(lane)].started += 1;
    }

    #[inline]
    pub(super) fn note_wait(&mut self, lane: Lane, waited: u64) {
        self.0[usize::from(lane)].waits.note(waited);
    }
}

impl<S> Fair<S> {
    /// Of all priorities, the most important first. There are none as long as requests are not asked for theirs.
    pub(super) fn priorities(&self, quiet: &Quiet, now: u64) -> Vec<PrioritySnapshot> {
        if !quiet.asks_urgency() {
            return Vec::new();
        }
        let at_once = quiet.started();
        let priorities = Priority::ALL.into_iter().rev();
        let shown = priorities.map(|priority| {
            let lane = priority as Lane;
            let counts = &self.lanes.0[usize::from(lane)];
            PrioritySnapshot {
                priority,
                waiting: self.queue.waiting_in(lane),
                oldest_wait: (self.queue.oldest_in(lane))
                    .map(|since| Duration::from_nanos(now.saturating_sub(since))),
                started: counts.started + at_once[usize::from(lane)],
                rejected: counts.rejected,
                displaced: counts.displaced,
                waits: counts.waits,
            }
        });
        shown.collect()
    }
}
