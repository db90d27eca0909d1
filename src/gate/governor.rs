//! What moves a gate's limit: a law, fed with the requests that complete.
//!
//! Where nothing has to be decided, a request costs the law two looks at the clock and one short lock. The
//! limit is set under the law's lock, so that limits take effect in the order of the samples they come
//! from; those who wait for a limit that has grown are woken after it is released.

use std::time::Duration;

use super::{gate::Gate, room::Room, tenants::Recent};
use crate::{
    Clock,
    clock::Now,
    config,
    law::limit::{Bounds, Limit, Moved, Outcome, Report, Sample},
    observe::events::{self, LimitMoved},
    sync::{AtomicUsize, Mutex, MutexGuard, Ordering::Relaxed, lock},
};

/// The log is told of the limit at most once in so many nanoseconds.
const TELL_EVERY: u64 = 1_000_000_000;

pub(crate) struct Governor {
    clock: Clock,
    /// 1 while the law wants to know of requests that come.
    probing: AtomicUsize,
    law: Mutex<Law>,
}

struct Law {
    limit: Box<dyn Governs>,
    /// Unless it is foreign, or has settings of its own.
    named: Option<config::Law>,
    /// The limit that is in force.
    applied: usize,
    /// While the limit is pinned, the law is neither fed nor asked.
    pinned: bool,
    said: Said,
    past: Past,
}

/// What was served without its gate's room having been told: counted here because this lock is taken anyway.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    pub(crate) done: u64,
    /// What they used, in nanoseconds of one place.
    pub(super) recent: Recent,
}

/// A law, asked for all at once: each call of a boxed one goes somewhere else in memory.
pub(crate) trait Governs: Limit {
    /// Takes the sample in. Says what the limit is, and whether it is held down to measure.
    fn learn(&mut self, sample: &Sample) -> (usize, bool);
}

impl<L: Limit> Governs for L {
    fn learn(&mut self, sample: &Sample) -> (usize, bool) {
        self.sample(sample);
        (self.limit(), self.is_probing())
    }
}

/// What the log was last told of the limit.
#[derive(Default)]
struct Said {
    at: Option<u64>,
    limit: usize,
    /// How often it has moved since.
    moves: u64,
}

/// A request that was handed to the inner service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatched {
    at: u64,
    in_flight: u32,
    full: bool,
}

impl Governor {
    pub(crate) fn new(limit: impl Limit, clock: Clock) -> Self {
        Self::of(Box::new(limit), None, clock)
    }

    pub(crate) fn named(law: config::Law, clock: Clock) -> Self {
        Self::of(law.limit(), Some(law), clock)
    }

    fn of(limit: Box<dyn Governs>, named: Option<config::Law>, clock: Clock) -> Self {
        Self {
            clock,
            probing: AtomicUsize::new(limit.is_probing().into()),
            law: Mutex::new(Law {
                applied: limit.limit().max(1),
                limit,
                named,
                pinned: false,
                said: Said::default(),
                past: Past::default(),
            }),
        }
    }

    /// The limit that is in force.
    pub(crate) fn limit(&self) -> usize {
        lock(&self.law).applied
    }

    /// A request is handed to the inner service.
    #[inline]
    pub(crate) fn dispatch<R: Room>(&self, gate: &Gate<R>, now: &mut Now) -> Dispatched {
        let at = self.clock.nanos_at(now);
        let (in_flight, full) = gate.load_now();
        if self.probing.load(Relaxed) != 0 {
            self.admitted(gate, at, in_flight);
        }
        Dispatched {
            at,
            in_flight: in_flight as u32, // 24 bits
            full,
        }
    }

    /// The request has completed. Its outcome is [for a limit](Outcome::for_limit).
    #[inline]
    pub(crate) fn complete<R: Room>(
        &self,
        gate: &Gate<R>,
        dispatched: Dispatched,
        outcome: Outcome,
        now: &mut Now,
    ) {
        if outcome != Outcome::Ignored {
            self.learn(gate, dispatched, outcome, None, now);
        }
    }

    /// The same for a request of which the gate's room knows nothing, and is not to be told: it is counted here, with what
    /// it used.
    #[inline]
    pub(crate) fn complete_past<R: Room>(
        &self,
        gate: &Gate<R>,
        dispatched: Dispatched,
        outcome: Outcome,
        used: u64,
        now: &mut Now,
    ) {
        self.learn(gate, dispatched, outcome, Some(used), now);
    }

    #[inline(always)] // twice
    fn learn<R: Room>(
        &self,
        gate: &Gate<R>,
        dispatched: Dispatched,
        outcome: Outcome,
        past: Option<u64>,
        now: &mut Now,
    ) {
        let now = self.clock.nanos_at(now);
        let sample = Sample {
            now: Duration::from_nanos(now),
            rtt: Duration::from_nanos(now.saturating_sub(dispatched.at)),
            in_flight: dispatched.in_flight as usize,
            outcome,
            full: dispatched.full,
        };
        let mut law = lock(&self.law);
        if let Some(used) = past {
            law.past.done += 1;
            law.past.recent.add(used, Recent::epoch(now));
        }
        if !law.pinned && outcome != Outcome::Ignored {
            let (limit, probing) = law.limit.learn(&sample);
            self.follow(gate, law, limit, probing);
        }
    }

    #[cold]
    fn admitted<R: Room>(&self, gate: &Gate<R>, now: u64, in_flight: usize) {
        let mut law = lock(&self.law);
        if !law.pinned {
            law.limit.admitted(Duration::from_nanos(now), in_flight);
            self.apply(gate, law);
        }
    }

    /// Starts the law over.
    pub(crate) fn restart<R: Room>(&self, gate: &Gate<R>, bounds: Bounds) {
        let mut law = lock(&self.law);
        law.limit.restart(bounds);
        if !law.pinned {
            law.applied = law.limit.limit().max(1); // which is no news: it was asked for
            gate.resize(law.applied);
        }
        self.apply(gate, law);
        gate.settle();
    }

    /// The limit is this from now on.
    pub(crate) fn pin<R: Room>(&self, gate: &Gate<R>, limit: usize) {
        let mut law = lock(&self.law);
        law.pinned = true;
        self.probing.store(0, Relaxed); // there is nobody to tell
        self.set(gate, law, limit);
    }

    /// The law starts over, with the limit that was pinned.
    pub(crate) fn unpin<R: Room>(&self, gate: &Gate<R>) {
        let mut law = lock(&self.law);
        if std::mem::take(&mut law.pinned) {
            let bounds = law.limit.bounds().starting_with(law.applied);
            law.limit.restart(bounds);
            self.apply(gate, law);
        }
    }

    /// By this law and within these bounds from now on, pinned or not: all at once. What has been learned stays
    /// unless one of them is another; then it starts over, with the limit that there is, or the nearest within
    /// the bounds.
    pub(crate) fn set_law<R: Room>(
        &self,
        gate: &Gate<R>,
        named: config::Law,
        bounds: Bounds,
        pinned: Option<usize>,
    ) {
        let mut law = lock(&self.law);
        let now = law.limit.bounds();
        let other = (law.named != Some(named)).then(|| named.limit());
        let other_bounds = (now.min(), now.max()) != (bounds.min(), bounds.max());
        let unpinned = law.pinned && pinned.is_none();
        let starts_over = other.is_some() || other_bounds || unpinned;
        let replaced = other.map(|other| std::mem::replace(&mut law.limit, other));
        if starts_over {
            let bounds = bounds.starting_with(law.applied);
            law.limit.restart(bounds);
        }
        law.named = Some(named);
        law.pinned = pinned.is_some();
        match pinned {
            Some(limit) => {
                self.probing.store(0, Relaxed); // there is nobody to tell
                self.set(gate, law, limit);
            }
            None => self.apply(gate, law),
        }
        drop(replaced); // it may be foreign
    }

    /// By this law from now on, within its own bounds.
    pub(crate) fn replace_law<R: Room>(&self, gate: &Gate<R>, limit: impl Limit) {
        let mut law = lock(&self.law);
        let replaced = std::mem::replace(&mut law.limit, Box::new(limit));
        law.named = None;
        self.apply(gate, law);
        drop(replaced); // it may be foreign
    }

    pub(crate) fn past(&self) -> Past {
        lock(&self.law).past.clone()
    }

    /// With whether the limit is pinned, and how far the law may move it.
    pub(crate) fn report(&self) -> (Report, bool, Bounds) {
        let law = lock(&self.law);
        (law.limit.report(), law.pinned, law.limit.bounds())
    }

    /// What the law says takes effect, unless the limit is pinned.
    fn apply<R: Room>(&self, gate: &Gate<R>, law: MutexGuard<'_, Law>) {
        let (limit, probing) = (law.limit.limit(), law.limit.is_probing());
        self.follow(gate, law, limit, probing);
    }

    #[inline]
    fn follow<R: Room>(
        &self,
        gate: &Gate<R>,
        law: MutexGuard<'_, Law>,
        limit: usize,
        probing: bool,
    ) {
        let probing = probing.into();
        if probing != self.probing.load(Relaxed) {
            self.probing.store(probing, Relaxed);
        }
        let limit = limit.max(1);
        if limit != law.applied && !law.pinned {
            self.set(gate, law, limit);
        }
    }

    #[cold]
    fn set<R: Room>(&self, gate: &Gate<R>, mut law: MutexGuard<'_, Law>, limit: usize) {
        let before = std::mem::replace(&mut law.applied, limit);
        gate.resize(limit);
        let moved = self.tell(&mut law, before);
        drop(law);
        gate.settle();
        if let Some(moved) = moved {
            events::limit_moved(gate.bounds.name(), moved);
        }
    }

    /// What the log is to be told of the limit, if it is time to.
    fn tell(&self, law: &mut Law, before: usize) -> Option<LimitMoved> {
        if law.applied == before {
            return None;
        }
        let now = self.clock.nanos();
        if law.said.moves == 0 {
            law.said.limit = before;
        }
        law.said.moves += 1;
        let early = |at| now.saturating_sub(at) < TELL_EVERY;
        if law.said.at.is_some_and(early) {
            return None;
        }
        let moved = LimitMoved {
            from: law.said.limit,
            to: law.applied,
            moves: law.said.moves,
            why: match law.pinned {
                true => Some("pinned"),
                false => law.limit.report().moved.map(Moved::as_str),
            },
        };
        law.said = Said {
            at: Some(now),
            ..Said::default()
        };
        Some(moved)
    }
}

#[cfg(all(test, backpressure_loom))]
mod models {
    use loom::thread;

    use super::*;
    use crate::{
        gate::{
            claim::Limiter,
            model::{acquire, check},
        },
        sync::Arc,
    };

    /// The limit is the number of samples it has seen.
    struct Counts(usize);

    impl Limit for Counts {
        fn limit(&self) -> usize {
            self.0
        }

        fn sample(&mut self, _: &Sample) {
            self.0 += 1;
        }

        fn bounds(&self) -> Bounds {
            Bounds::new(1, 1, 9)
        }

        fn restart(&mut self, bounds: Bounds) {
            self.0 = bounds.initial();
        }
    }

    fn gate() -> Arc<Gate> {
        let governor = Governor::new(Counts(1), Clock::default());
        Arc::new(Gate::governed("model", governor))
    }

    fn run(gate: &Gate) {
        acquire(gate, ());
        let dispatched = gate.governor().dispatch(gate, &mut Now::default());
        (gate.governor()).complete(gate, dispatched, Outcome::Success, &mut Now::default());
        gate.complete();
    }

    #[test]
    fn limits_take_effect_in_the_order_of_the_samples() {
        check(2, || {
            let gate = gate();
            let other = gate.clone();
            let thread = thread::spawn(move || run(&other));
            run(&gate);
            thread.join().unwrap();
            assert_eq!((gate.snapshot().limit, gate.governor().limit()), (3, 3));
        });
    }

    #[test]
    fn a_pinned_limit_is_the_last_word() {
        check(2, || {
            let gate = gate();
            let other = gate.clone();
            let thread = thread::spawn(move || run(&other));
            gate.governor().pin(&gate, 5);
            thread.join().unwrap();
            assert_eq!((gate.snapshot().limit, gate.governor().limit()), (5, 5));
            assert!(gate.try_admit(()));
        });
    }

    #[test]
    fn whoever_waits_is_let_in_when_the_limit_grows() {
        check(2, || {
            let gate = gate();
            acquire(&*gate, ());
            let other = gate.clone();
            let thread = thread::spawn(move || run(&other));
            // Grows to 2, and nothing is given back.
            let dispatched = gate.governor().dispatch(&gate, &mut Now::default());
            (gate.governor()).complete(&gate, dispatched, Outcome::Success, &mut Now::default());
            thread.join().unwrap();
            assert_eq!(gate.snapshot().in_flight, 1);
        });
    }
}
