//! Admission by age: CoDel's law, with what it has to be told. [`Fair`](super::fair::Fair) asks it under the gate's lock,
//! [`AgeGate`](super::age_gate::AgeGate) under one of its own.

use std::time::Duration;

use super::{
    aside::is_on_trial,
    room::{News, Scene, Wakes},
};
use crate::{
    Reason,
    law::{
        codel::{CoDel, Entry, Report, Settings, Verdict},
        fair_queue::{Lane, Order},
    },
    observe::events::LimitMoved,
};

/// What a client is told that is rejected for its age: at least this, at most that.
const SHORTEST_RETRY_AFTER: u64 = 1_000_000;
const LONGEST_RETRY_AFTER: u64 = 60_000_000_000;

/// The law, and how many admissions it knows of.
///
/// In calm times, when no request has waited, a request of no age can tell the law nothing but that it came. Until
/// [`quiet_until`](Self::quiet_until) such requests pass without the lock. How many they were is found out from how many
/// the gate has admitted.
#[derive(Debug)]
pub(crate) struct Ages {
    law: CoDel,
    /// How many admissions the law was told of.
    knows_of: u64,
    /// Whether a queue stood when the windows were last closed.
    stands: bool,
    /// Whether it was ever asked on trial: then all that the log is told says so.
    on_trial: bool,
    /// Whether the newest of a tenant's waiters is next under plain overload.
    newest_first: bool,
}

/// How old a request is, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    /// Since it was submitted.
    pub(crate) all: u64,
    /// The part of that which it waited in this room.
    pub(crate) own: u64,
    /// How long the oldest waiter that may be next has waited, if there is one.
    pub(crate) oldest: Option<u64>,
}

impl Age {
    /// A queue's length over its drain is the time that requests take through it: so long it takes until it is worth
    /// coming back.
    pub(crate) fn retry_after(&self) -> Duration {
        let sojourn = self.all.max(self.oldest.unwrap_or(0));
        Duration::from_nanos(sojourn.clamp(SHORTEST_RETRY_AFTER, LONGEST_RETRY_AFTER))
    }
}

impl Ages {
    pub(crate) fn new(settings: Settings, now: u64) -> Self {
        Self {
            law: CoDel::new(settings, now),
            knows_of: 0,
            stands: false,
            on_trial: false,
            newest_first: false,
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.law.settings
    }

    pub(crate) fn set(&mut self, settings: Settings) {
        self.law.set(settings);
    }

    pub(crate) fn set_newest_first(&mut self, newest_first: bool) {
        self.newest_first = newest_first;
    }

    /// Which of a tenant's waiters is next.
    #[inline]
    pub(crate) fn order(&self, now: u64, lane: Lane) -> Order {
        match self.newest_first {
            true => self.law.order(now, lane),
            false => Order::OldestFirst,
        }
    }

    /// How many may wait where the newest is first.
    pub(crate) fn places_for_newest(&self, lane: Lane, in_flight: u64) -> usize {
        self.law.places(lane, in_flight) as usize
    }

    /// More came to wait than there are places, and one was rejected.
    pub(crate) fn count_no_place(&mut self, lane: Lane, order: Order) {
        self.law.note_no_place(lane, order);
    }

    /// A waiter was rejected because of its deadline.
    pub(crate) fn count_late(&mut self, lane: Lane) {
        self.law.note_late(lane);
    }

    /// How many may be in flight, by age.
    pub(crate) fn limit(&self) -> u64 {
        self.law.limit()
    }

    /// Until when requests of no age need not be told, as long as fewer are in flight than [`quiet_below`](Self::quiet_below).
    pub(crate) fn quiet_until(&self) -> u64 {
        self.law.calm_until()
    }

    pub(crate) fn quiet_below(&self) -> u64 {
        self.law.peak().min(self.law.limit())
    }

    /// What is asked from now on may be on trial.
    pub(crate) fn note_trial(&mut self) {
        self.on_trial |= is_on_trial();
    }

    /// Judges a request that could start now. [`roll`](Self::roll) comes first.
    #[inline]
    pub(crate) fn judge(&mut self, scene: &Scene<'_>, age: &Age) -> Result<(), Reason> {
        self.judge_at(scene.now, scene.in_flight, age)
    }

    /// The same of a waiter that is next in this lane, and may be spared.
    pub(crate) fn judge_next(
        &mut self,
        lane: Lane,
        spared: bool,
        scene: &Scene<'_>,
        age: &Age,
    ) -> Result<(), Reason> {
        let entry = entry(age, scene.in_flight);
        let verdict = self.law.enter_next(scene.now, &entry, lane, spared);
        self.count(verdict)
    }

    /// The same, with so many others in flight.
    #[inline]
    pub(crate) fn judge_at(&mut self, now: u64, in_flight: u64, age: &Age) -> Result<(), Reason> {
        let verdict = self.law.enter(now, &entry(age, in_flight));
        self.count(verdict)
    }

    #[inline]
    fn count(&mut self, verdict: Verdict) -> Result<(), Reason> {
        match verdict {
            Verdict::Admit => {
                self.knows_of += 1;
                Ok(())
            }
            Verdict::TooOld => Err(Reason::TooOld),
            Verdict::Full => Err(Reason::AtLimit),
        }
    }

    /// Whether a request would be rejected now. The law learns nothing.
    #[cold]
    pub(crate) fn foresee(&self, now: u64, in_flight: u64, age: &Age) -> Result<(), Reason> {
        match self.law.foresee(now, &entry(age, in_flight)) {
            Verdict::Admit => Ok(()),
            Verdict::TooOld => Err(Reason::TooOld),
            Verdict::Full => Err(Reason::AtLimit),
        }
    }

    /// Tells the law of a request that [passed](Self::pass_one).
    #[cold]
    #[inline(never)] // so that `judge` has the law in line: `instructions`, codel: 566 to 541
    pub(crate) fn note(&mut self, now: u64, in_flight: u64, age: &Age) {
        let _ = self.law.enter(now, &entry(age, in_flight));
    }

    /// One was admitted without being judged: it says nothing about others.
    pub(crate) fn pass_one(&mut self) {
        self.knows_of += 1;
    }

    /// One that was judged to start found no room after all.
    pub(crate) fn forget_one(&mut self) {
        self.knows_of = self.knows_of.saturating_sub(1);
        self.law.note_full();
    }

    /// A request has to wait for another limit than that by age.
    pub(crate) fn note_waiting(&mut self, now: u64) {
        self.law.inner_pending(now);
    }

    /// Whether it may be time for [`roll`](Self::roll).
    #[inline]
    pub(crate) fn may_be_due(&self, now: u64) -> bool {
        self.law.may_be_due(now)
    }

    /// Closes the windows that are over.
    #[inline]
    pub(crate) fn roll(&mut self, scene: &Scene<'_>, wakes: &mut Wakes) {
        if self.may_be_due(scene.now) {
            self.roll_if_due(scene, wakes);
        }
    }

    /// Tells the law of those that came while it was quiet, now that so many were admitted.
    pub(crate) fn hear_of(&mut self, admitted: u64) {
        // It may be less, where permits were released unused.
        self.law.note_calm(admitted.saturating_sub(self.knows_of));
        self.knows_of = admitted;
    }

    fn roll_if_due(&mut self, scene: &Scene<'_>, wakes: &mut Wakes) {
        self.hear_of(scene.admitted);
        if !self.law.is_due(scene.now) {
            return;
        }
        let before = self.law.report(scene.now);
        let limit = self.law.limit() as usize;
        self.law.roll(scene.now, scene.completed);
        let after = self.law.report(scene.now);
        let to = self.law.limit() as usize;
        let moved = (to != limit).then_some(LimitMoved {
            from: limit,
            to,
            moves: 1,
            why: Some(if after.undone > before.undone {
                "undone"
            } else if after.narrowings > before.narrowings {
                "narrowed"
            } else {
                "widened"
            }),
        });
        let changed = after.overloaded != self.stands;
        self.stands = after.overloaded;
        if changed || moved.is_some() {
            wakes.tell(News {
                layer: scene.bounds.name(),
                stands: changed.then_some((after.overloaded, after.p95)),
                moved,
                on_trial: self.on_trial,
            });
        }
    }

    /// After [`roll`](Self::roll).
    pub(crate) fn report(&self, now: u64) -> Report {
        self.law.report(now)
    }
}

#[inline]
fn entry(age: &Age, in_flight: u64) -> Entry {
    Entry {
        age: age.all,
        own: age.own,
        oldest: age.oldest,
        in_flight,
    }
}

#[cfg(test)]
impl Ages {
    pub(crate) fn law(&mut self) -> &mut CoDel {
        &mut self.law
    }

    #[cfg(not(backpressure_loom))]
    pub(crate) fn knows_of(&self) -> u64 {
        self.knows_of
    }
}
