//! What becomes of requests by their priority.

use std::time::Duration;

use super::{Fair, Quiet};
use crate::{
    Priority, Reason,
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
    /// How many were started so far, at once or after a wait.
    pub started: u64,
    /// How many were rejected so far, displaced ones included.
    pub rejected: u64,
    /// How many of those had waited, and made room for a more important request.
    pub displaced: u64,
    /// How many waits are over, however they ended.
    pub waits: u64,
    /// How long those waits were together.
    pub waited: Duration,
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
    waits: u64,
    /// Nanoseconds.
    waited: u64,
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
        let counts = &mut self.0[usize::from(lane)];
        counts.waits += 1;
        counts.waited = counts.waited.saturating_add(waited);
    }
}

impl<S> Fair<S> {
    /// Of all priorities, the most important first. There are none as long as requests are not asked for theirs.
    pub(super) fn priorities(&self, quiet: &Quiet) -> Vec<PrioritySnapshot> {
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
                started: counts.started + at_once[usize::from(lane)],
                rejected: counts.rejected,
                displaced: counts.displaced,
                waits: counts.waits,
                waited: Duration::from_nanos(counts.waited),
            }
        });
        shown.collect()
    }
}
