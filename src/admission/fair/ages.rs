//! Admission by age in a fair room: CoDel's law, with what it has to be told.

use std::time::Duration;

use crate::{
    Reason,
    admission::room::{News, Scene, Wakes},
    algorithm::codel::{CoDel, Entry, Report, Settings, Verdict},
    observe::events::{self, LimitMoved},
};

/// What a client is told that is rejected for its age: at least this, at most that.
const SHORTEST_RETRY_AFTER: u64 = 1_000_000;
const LONGEST_RETRY_AFTER: u64 = 60_000_000_000;

/// The law, and how many admissions it knows of.
///
/// In calm times, when no request has waited, a request of no age can tell the law nothing but that it came. Until
/// [`quiet_until`](Self::quiet_until) such requests pass without the room's lock. How many they were is found out from
/// how many the gate has admitted.
#[derive(Debug)]
pub(super) struct Ages {
    law: CoDel,
    /// How many admissions the law was told of.
    knows_of: u64,
    /// Whether a queue stood when the windows were last closed.
    stands: bool,
    /// Whether it was ever asked on trial: then all that the log is told says so.
    on_trial: bool,
}

/// How old a request is, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    /// Since it was submitted.
    pub(super) all: u64,
    /// The part of that which it waited in this room.
    pub(super) own: u64,
    /// How long the oldest waiter that may be next has waited, if there is one.
    pub(super) oldest: Option<u64>,
}

impl Age {
    /// A queue's length over its drain is the time that requests take through it: so long it takes until it is worth
    /// coming back.
    pub(super) fn retry_after(&self) -> Duration {
        let sojourn = self.all.max(self.oldest.unwrap_or(0));
        Duration::from_nanos(sojourn.clamp(SHORTEST_RETRY_AFTER, LONGEST_RETRY_AFTER))
    }
}

impl Ages {
    pub(super) fn new(settings: Settings, now: u64) -> Self {
        Self {
            law: CoDel::new(settings, now),
            knows_of: 0,
            stands: false,
            on_trial: false,
        }
    }

    pub(super) fn settings(&self) -> Settings {
        self.law.settings
    }

    pub(super) fn set(&mut self, settings: Settings) {
        self.law.set(settings);
    }

    /// How many may be in flight, by age.
    pub(super) fn limit(&self) -> u64 {
        self.law.limit()
    }

    /// Until when requests of no age need not be told, as long as fewer are in flight than [`quiet_below`](Self::quiet_below).
    pub(super) fn quiet_until(&self) -> u64 {
        self.law.calm_until()
    }

    pub(super) fn quiet_below(&self) -> u64 {
        self.law.peak().min(self.law.limit())
    }

    /// What is asked from now on may be on trial.
    pub(super) fn note_trial(&mut self) {
        self.on_trial |= events::is_shadow();
    }

    /// Judges a request that could start now. [`roll`](Self::roll) comes first.
    pub(super) fn judge(&mut self, scene: &Scene<'_>, age: &Age) -> Result<(), Reason> {
        let entry = Entry {
            age: age.all,
            own: age.own,
            oldest: age.oldest,
            in_flight: scene.in_flight,
        };
        match self.law.enter(scene.now, &entry) {
            Verdict::Admit => {
                self.knows_of += 1;
                Ok(())
            }
            Verdict::TooOld => Err(Reason::TooOld),
            Verdict::Full => Err(Reason::AtLimit),
        }
    }

    /// One that was judged to start found no room after all.
    pub(super) fn forget_one(&mut self) {
        self.knows_of -= 1;
        self.law.note_full();
    }

    /// A request has to wait for another limit than that by age.
    pub(super) fn note_waiting(&mut self, now: u64) {
        self.law.inner_pending(now);
    }

    /// Closes the windows that are over.
    #[inline]
    pub(super) fn roll(&mut self, scene: &Scene<'_>, wakes: &mut Wakes) {
        if self.law.may_be_due(scene.now) {
            self.roll_if_due(scene, wakes);
        }
    }

    fn roll_if_due(&mut self, scene: &Scene<'_>, wakes: &mut Wakes) {
        // It may be less, where permits were released unused.
        self.law
            .note_calm(scene.admitted.saturating_sub(self.knows_of));
        self.knows_of = scene.admitted;
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
    pub(super) fn report(&self, now: u64) -> Report {
        self.law.report(now)
    }
}
