//! The circuit of a [`CircuitBreaker`](crate::CircuitBreaker): its law, and what of it can be known without a
//! lock.
//!
//! While the circuit is closed, a request loads one word when it comes and once more when it has
//! succeeded. While it refuses, a request loads that word and the time until which it does. Only a failure,
//! a probe, and the first success after a failure take the lock. All that changes the word holds it, so the
//! word says what the law says.
//!
//! Where it is the share of failures that opens the circuit, successes are counted in a word of their own, with
//! the tenth of the window that they fell into; the law is told of them when that is over, or a request
//! fails: only that can open the circuit.

use std::{fmt, time::Duration};

use super::bounds::{Name, SHORTEST_RETRY_AFTER};
use crate::{
    Clock, Outcome, Overloaded, Reason,
    law::{
        breaker::{After, Breaker, Common, Ended, Entered, Settings, State, Trip, WHILE_PROBING},
        failure_window::slice,
    },
    observe::events,
    sync::{
        Arc, AtomicU64, Mutex,
        Ordering::{Acquire, Relaxed, Release},
        lock,
    },
};

/// The circuit is closed.
const CLOSED: u64 = 1;
/// A success changes nothing: no failure came since the last.
const CLEAN: u64 = 2;
/// The circuit is open: all are refused until a certain time.
const OPEN: u64 = 4;
/// The circuit is half-open and one probes: so are all, until its lease is over.
const PROBING: u64 = 8;
const GENERATION: u32 = 4;

pub(crate) struct Circuit {
    /// What the law says: its generation, and the bits above.
    word: AtomicU64,
    /// Until when all are refused. Written before the word that says so.
    until: AtomicU64,
    /// Where the share of failures counts: what the law was not told of, and in which slice of time.
    successes: AtomicU64,
    /// How long such a slice is, if so; otherwise 0. As `cooldown`, it changes only under the law's lock.
    slice: AtomicU64,
    cooldown: AtomicU64,
    law: Mutex<Law>,
    rejected: AtomicU64,
    clock: Clock,
    pub(crate) name: Name,
}

struct Law {
    common: Common,
    breaker: Breaker,
}

/// The state of a circuit breaker at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Whether requests pass. Where it says open and `retry_after` is zero, the next request probes.
    pub state: State,
    /// How many failures there were since the last success, while the circuit is closed.
    pub failures_in_a_row: u32,
    /// The share of requests in the window that failed, from 0 to 1, where that is what opens the circuit and
    /// there were any.
    pub failure_rate: Option<f64>,
    /// How long the circuit stays open yet; `None` if it is not open, or forced open.
    pub retry_after: Option<Duration>,
    /// How often it has opened, by hand or by itself, also from half-open.
    pub opened: u64,
    /// How often it has closed after that.
    pub closed: u64,
    /// How many requests were sent as probes.
    pub probes: u64,
    /// How many requests were refused.
    pub rejected: u64,
}

impl Circuit {
    pub(crate) fn new(settings: Settings, clock: Clock) -> Self {
        let circuit = Self {
            word: AtomicU64::new(0),
            until: AtomicU64::new(0),
            successes: AtomicU64::new(0),
            slice: AtomicU64::new(slice_of(&settings.trip)),
            cooldown: AtomicU64::new(settings.cooldown),
            law: Mutex::new(Law {
                common: Common::new(settings),
                breaker: Breaker::new(0),
            }),
            rejected: AtomicU64::new(0),
            clock,
            name: Name::new("circuit_breaker"),
        };
        circuit.publish(&lock(&circuit.law).breaker);
        circuit
    }

    /// Lets a request through, as one of this generation, or refuses it.
    #[inline]
    fn enter(&self) -> Result<u64, Box<Overloaded>> {
        let word = self.word.load(Acquire);
        if word & CLOSED != 0 {
            return Ok(word >> GENERATION);
        }
        self.enter_slow(word)
    }

    #[cold]
    fn enter_slow(&self, word: u64) -> Result<u64, Box<Overloaded>> {
        let now = self.clock.nanos();
        if let Some(after) = self.refuses_for(word, now) {
            return Err(self.refuse(after));
        }
        match self.change(now, |law| law.breaker.enter(&mut law.common, now)) {
            Entered::Passes(generation) => Ok(generation),
            Entered::Refused(after) => Err(self.refuse(after)),
        }
    }

    /// If all are refused that come now, whatever the inner service does: what they are told.
    #[inline]
    pub(crate) fn is_refusing(&self) -> Option<After> {
        let word = self.word.load(Acquire);
        match word & CLOSED {
            0 => self.refuses_for(word, self.clock.nanos()),
            _ => None,
        }
    }

    fn refuses_for(&self, word: u64, now: u64) -> Option<After> {
        // If the time is that of a later word, it refuses again.
        let left = self.until.load(Relaxed).saturating_sub(now);
        match word & (OPEN | PROBING) {
            _ if left == 0 => None,
            OPEN => Some(match self.cooldown.load(Relaxed) {
                cooldown if left > cooldown => After::About(cooldown), // by hand
                _ => After::Exactly(left),
            }),
            PROBING => Some(After::About(WHILE_PROBING)),
            _ => None,
        }
    }

    #[cold]
    pub(crate) fn refuse(&self, after: After) -> Box<Overloaded> {
        self.rejected.fetch_add(1, Relaxed);
        refusal(self.name.get(), after)
    }

    /// A request of that generation has ended.
    #[inline]
    fn end(&self, generation: u64, ended: Ended) {
        let word = self.word.load(Relaxed);
        let changes_nothing = match ended {
            Ended::Success => word == generation << GENERATION | CLOSED | CLEAN,
            Ended::Unknown => word & CLOSED != 0,
            Ended::Failure => false,
        };
        if !changes_nothing {
            self.end_slow(generation, ended);
        } else if ended == Ended::Success {
            let slice = self.slice.load(Relaxed);
            if slice != 0 {
                self.count_success(slice);
            }
        }
    }

    #[cold]
    fn end_slow(&self, generation: u64, ended: Ended) {
        let now = self.clock.nanos();
        self.change(now, |law| {
            self.tell_successes(law, now);
            law.breaker.end(&mut law.common, now, generation, ended);
        });
    }

    /// The first success of a slice has the law told of those before; it counts as one of them.
    fn count_success(&self, slice: u64) {
        let now = self.clock.nanos();
        let counted = self.successes.fetch_add(1, Relaxed);
        if (counted >> 32) as u32 != (now / slice) as u32 {
            self.tell_successes(&mut lock(&self.law), now);
        }
    }

    fn tell_successes(&self, law: &mut Law, now: u64) {
        let slice = self.slice.load(Relaxed);
        if slice == 0 {
            return;
        }
        let current = now / slice;
        let counted = self.successes.swap(current << 32, Relaxed);
        let passed = (current as u32).wrapping_sub((counted >> 32) as u32);
        let at = current.saturating_sub(u64::from(passed)) * slice;
        let count = counted & u64::from(u32::MAX);
        law.breaker.count_successes(&law.common, at, count);
    }

    /// Closes the circuit, and forgets the failures before.
    pub(crate) fn reset(&self) {
        let now = self.clock.nanos();
        self.change(now, |law| {
            self.tell_successes(law, now);
            law.breaker.reset(&mut law.common, now);
        });
    }

    /// Holds to other settings from now on. They have been checked.
    pub(crate) fn set(&self, settings: Settings) {
        let now = self.clock.nanos();
        self.change(now, |law| {
            self.tell_successes(law, now); // in slices of the length that they were counted in
            law.breaker.reset_to(&law.common.settings, &settings, now);
            law.common.settings = settings;
            self.slice.store(slice_of(&settings.trip), Relaxed);
            self.cooldown.store(settings.cooldown, Relaxed);
            self.tell_successes(law, now); // what is counted from here on is of a slice of the new length
        });
    }

    /// Opens the circuit until it is reset.
    pub(crate) fn force_open(&self) {
        let now = self.clock.nanos();
        self.change(now, |law| law.breaker.force_open(&mut law.common, now));
    }

    fn change<T>(&self, now: u64, change: impl FnOnce(&mut Law) -> T) -> T {
        let mut law = lock(&self.law);
        let changed = change(&mut law);
        let state = law.breaker.news(now);
        self.publish(&law.breaker);
        drop(law);
        events::circuit(self.name.get(), state);
        changed
    }

    fn publish(&self, breaker: &Breaker) {
        let clean = self.slice.load(Relaxed) != 0 || breaker.streak() == 0;
        let until = breaker.refuses_until();
        let bits = match breaker.state() {
            State::Closed if clean => CLOSED | CLEAN,
            State::Closed => CLOSED,
            State::HalfOpen if until.is_some() => PROBING,
            State::HalfOpen => 0,
            State::Open => OPEN,
        };
        if let Some(until) = until {
            self.until.store(until, Relaxed);
        }
        let word = breaker.since() << GENERATION | bits;
        self.word.store(word, Release);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = self.clock.nanos();
        self.change(now, |law| {
            self.tell_successes(law, now);
            law.breaker.end_lease(&mut law.common, now);
        });
        let mut law = lock(&self.law);
        let Law { common, breaker } = &mut *law;
        let counts = breaker.counts(now);
        let state = breaker.state();
        let until = breaker.refuses_until();
        let until = until.filter(|until| state == State::Open && *until != u64::MAX);
        Snapshot {
            state,
            failures_in_a_row: breaker.streak(),
            failure_rate: counts
                .filter(|(calls, _)| *calls > 0.0)
                .map(|(calls, failures)| failures / calls),
            retry_after: until.map(|until| Duration::from_nanos(until.saturating_sub(now))),
            opened: common.opened,
            closed: common.closed,
            probes: common.probes,
            rejected: self.rejected.load(Relaxed),
        }
    }
}

/// 0 if the share of failures does not count.
fn slice_of(trip: &Trip) -> u64 {
    trip.window().map_or(0, slice)
}

pub(super) fn refusal(layer: &'static str, after: After) -> Box<Overloaded> {
    let hint = Duration::from_nanos(after.nanos()).max(SHORTEST_RETRY_AFTER);
    let rejection = Overloaded::new(layer, Reason::CircuitOpen, hint);
    Box::new(match after {
        After::Exactly(_) => rejection.exact(),
        After::About(_) => rejection,
    })
}

impl fmt::Debug for Circuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Circuit")
            .field("name", &self.name.get())
            .field("state", &lock(&self.law).breaker.state())
            .finish_non_exhaustive()
    }
}

/// A request that was let through and has to report how it ended. If it is dropped before that, it was
/// cancelled, which says nothing.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
pub struct Pass {
    circuit: Arc<Circuit>,
    /// Until it has reported.
    generation: Option<u64>,
}

impl Pass {
    /// Lets a request through, or refuses it.
    #[inline]
    pub(crate) fn enter(circuit: &Arc<Circuit>) -> Result<Self, Box<Overloaded>> {
        let generation = circuit.enter()?;
        Ok(Self {
            circuit: Arc::clone(circuit),
            generation: Some(generation),
        })
    }

    #[inline]
    fn end(&mut self, ended: Ended) {
        if let Some(generation) = self.generation.take() {
            self.circuit.end(generation, ended);
        }
    }
}

impl Reports for Pass {
    #[inline]
    fn report(mut self, outcome: Outcome) {
        self.end(of(outcome));
    }

    #[cold]
    fn panicked(&mut self) {
        self.end(Ended::Failure);
    }
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        self.end(Ended::Unknown);
    }
}

/// What a request that was let through holds until it has ended.
#[allow(unnameable_types, reason = "as what implements it")]
pub trait Reports: Send + Sized + 'static {
    /// It has ended like this.
    fn report(self, outcome: Outcome);

    /// The inner service has panicked.
    fn panicked(&mut self);
}

pub(super) fn of(outcome: Outcome) -> Ended {
    match outcome {
        Outcome::Success => Ended::Success,
        Outcome::Failure => Ended::Failure,
        Outcome::Rejected | Outcome::Ignored => Ended::Unknown,
    }
}

#[cfg(all(test, backpressure_loom))]
mod models {
    use loom::thread;

    use super::*;
    use crate::gate::model::check;

    /// Opens at the second failure, for no time; one success closes it.
    fn circuit() -> Arc<Circuit> {
        let settings = Settings {
            trip: Trip::InARow(2),
            cooldown: 0,
            successes: 1,
            lease: 1,
        };
        Arc::new(Circuit::new(settings, Clock::stopped()))
    }

    fn end(pass: Pass, outcome: Outcome) {
        Reports::report(pass, outcome);
    }

    fn fail(circuit: &Arc<Circuit>) {
        if let Ok(pass) = Pass::enter(circuit) {
            end(pass, Outcome::Failure);
        }
    }

    #[test]
    fn exactly_one_probes() {
        check(3, || {
            let circuit = circuit();
            fail(&circuit);
            fail(&circuit);
            let other = circuit.clone();
            let thread = thread::spawn(move || Pass::enter(&other).ok());
            let mine = Pass::enter(&circuit).ok();
            let its = thread.join().unwrap();
            assert!(mine.is_some() != its.is_some());
            assert_eq!(circuit.snapshot().probes, 1);
        });
    }

    #[test]
    fn a_probe_that_is_dropped_lets_the_next_one_probe() {
        check(3, || {
            let circuit = circuit();
            fail(&circuit);
            fail(&circuit);
            let probe = Pass::enter(&circuit).ok().expect("it probes");
            let other = circuit.clone();
            let thread = thread::spawn(move || drop(probe));
            let second = Pass::enter(&other).ok(); // before or after
            thread.join().unwrap();
            drop(second);
            end(
                Pass::enter(&circuit).ok().expect("the slot is free"),
                Outcome::Success,
            );
            assert_eq!(circuit.snapshot().state, State::Closed);
        });
    }

    #[test]
    fn failures_on_two_threads_open_it_and_what_was_sent_before_does_not_close_it() {
        check(3, || {
            let circuit = circuit();
            let old = Pass::enter(&circuit).ok().expect("closed");
            let other = circuit.clone();
            let thread = thread::spawn(move || fail(&other));
            fail(&circuit);
            thread.join().unwrap();
            assert_eq!(circuit.snapshot().state, State::Open);
            end(old, Outcome::Success);
            assert_eq!(circuit.snapshot().state, State::Open);
        });
    }

    #[test]
    fn a_success_is_before_or_after_a_failure() {
        check(3, || {
            let circuit = circuit();
            let success = Pass::enter(&circuit).ok().expect("closed");
            let other = circuit.clone();
            let thread = thread::spawn(move || fail(&other));
            end(success, Outcome::Success);
            thread.join().unwrap();
            let snapshot = circuit.snapshot();
            assert_eq!(snapshot.state, State::Closed);
            assert!(snapshot.failures_in_a_row <= 1);
            // And a success after it is not lost.
            end(
                Pass::enter(&circuit).ok().expect("closed"),
                Outcome::Success,
            );
            assert_eq!(circuit.snapshot().failures_in_a_row, 0);
        });
    }
}
