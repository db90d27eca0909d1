//! A gate for each key that is in use.
//!
//! A key has a gate from its first request until its last one is gone; then the gate is kept for another
//! key. So a key that nobody uses costs nothing, unless it has a limit of its own: that is remembered, and
//! what was counted for it. A request's [`Place`] keeps its key's gate where it is.
//!
//! The lock of the keys is taken when a request comes and when it is gone. It is never held while a gate
//! wakes somebody: of the gates' own functions, only such are called under it that wake nobody.

use std::{
    fmt,
    hash::Hash,
    task::{Context, Waker},
    time::Duration,
};

use super::{
    aside::LimiterId,
    bounds::Name,
    claim::{Claim, Limiter},
    fingerprint::{ByFingerprint, Fingerprint, Fingerprints},
    foreign::Foreign,
    gate::{self, Gate},
    permit::Permit,
    waits::{WaitCounts, Waits},
};
use crate::{
    ConfigError, Overloaded, Reason,
    hold::sealed::Held,
    observe::refusals::Refusals,
    sync::{Arc, Mutex, lock},
};

/// As many requests may wait as in the system that the layer was made for.
pub(crate) const DEFAULT_MAX_WAITING: usize = 10_000;
/// So many limits of their own are remembered.
pub(crate) const MAX_OWN_LIMITS: usize = 100_000;
/// So many gates are kept for keys to come.
const MAX_SPARE: usize = 64;

const KIND: &str = "keyed_concurrency_limit";

pub(crate) struct KeyedGates {
    state: Mutex<State>,
    fingerprints: Fingerprints,
    pub(crate) name: Name,
    refusals: Refusals,
    /// Of all keys.
    waits: WaitCounts,
}

struct State {
    keys: ByFingerprint<Key>,
    spare: Vec<Arc<Gate>>,
    limit: usize,
    max_waiting: usize,
    /// As many as may wait at all, unless it is set.
    max_waiting_per_key: Option<usize>,
    max_wait: Option<Duration>,
    /// How many wait, for all keys together.
    waiting: usize,
    own_limits: usize,
    /// Of all keys, those too that are not in use.
    totals: Totals,
}

#[derive(Default)]
struct Key {
    /// While it is in use.
    gate: Option<Arc<Gate>>,
    /// How many requests it has: that wait, or are in flight.
    requests: usize,
    own_limit: Option<usize>,
    totals: Totals,
}

impl Key {
    fn is_forgettable(&self) -> bool {
        self.requests == 0 && self.own_limit.is_none()
    }
}

/// What became of requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// How many came.
    pub enqueued: u64,
    /// How many were sent to the inner service and are over, however they ended.
    pub completed: u64,
    /// How many were refused: there was no room in the queue.
    pub rejected: u64,
    /// How many were refused after they had waited as long as they may.
    pub timed_out: u64,
    /// How many were rejected because their deadline had passed, before they waited or while they did.
    pub expired: u64,
    /// How many were never sent: dropped while they waited, or the inner service's `poll_ready` failed.
    pub cancelled: u64,
}

impl Totals {
    fn refused(&self) -> u64 {
        self.rejected + self.timed_out + self.expired
    }
}

/// The state of a keyed limit at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many keys are in use.
    pub keys: usize,
    /// How many requests wait.
    pub waiting: usize,
    /// How many are in flight.
    pub in_flight: usize,
    /// What became of requests so far.
    pub totals: Totals,
    /// How long those waited who had to.
    pub waits: Waits,
}

/// The state of one key at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySnapshot {
    /// How many requests may be in flight.
    pub limit: usize,
    /// How many are.
    pub in_flight: usize,
    /// How many wait.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest_wait: Option<Duration>,
    /// What became of its requests: so far, if it has a limit of its own, else since it was last out of use.
    pub totals: Totals,
}

impl KeyedGates {
    pub(crate) fn new(limit: usize) -> Result<Self, ConfigError> {
        gate::check_limit(limit)?;
        Ok(Self {
            state: Mutex::new(State {
                keys: ByFingerprint::default(),
                spare: Vec::new(),
                limit,
                max_waiting: DEFAULT_MAX_WAITING,
                max_waiting_per_key: None,
                max_wait: None,
                waiting: 0,
                own_limits: 0,
                totals: Totals::default(),
            }),
            fingerprints: Fingerprints::new(),
            name: Name::new(KIND),
            refusals: Refusals::default(),
            waits: WaitCounts::default(),
        })
    }

    /// Of a key, or of having none.
    pub(crate) fn fingerprint<K: Hash>(&self, key: Option<K>) -> Fingerprint {
        self.fingerprints.of(&key)
    }

    pub(crate) fn set_limit(&self, limit: usize) -> Result<(), ConfigError> {
        gate::check_limit(limit)?;
        let mut state = lock(&self.state);
        state.limit = limit;
        let keys = state.keys.values().filter(|key| key.own_limit.is_none());
        let gates: Vec<_> = keys.filter_map(|key| key.gate.clone()).collect();
        for gate in &gates {
            gate.resize(limit);
        }
        drop(state);
        settle_all(&gates);
        Ok(())
    }

    /// All at once. What is not among `own` has no limit of its own any more. They have been checked.
    pub(crate) fn set(
        &self,
        limit: usize,
        own: impl Iterator<Item = (Fingerprint, usize)>,
        max_waiting: (usize, Option<usize>),
        max_wait: Option<Duration>,
    ) {
        let mut state = lock(&self.state);
        state.limit = limit;
        (state.max_waiting, state.max_waiting_per_key) = max_waiting;
        state.max_wait = max_wait;
        for key in state.keys.values_mut() {
            key.own_limit = None;
        }
        state.own_limits = 0;
        for (key, limit) in own {
            let key = state.keys.entry(key).or_default();
            let had = key.own_limit.replace(limit).is_some();
            state.own_limits += usize::from(!had);
        }
        state.keys.retain(|_, key| !key.is_forgettable());
        state.apply_max_waiting();
        state.each_gate(|gate| gate.bounds.set_max_wait(max_wait));
        let in_use = state.keys.values().filter_map(|key| {
            let gate = key.gate.clone()?;
            gate.resize(key.own_limit.unwrap_or(limit));
            Some(gate)
        });
        let gates: Vec<_> = in_use.collect();
        drop(state);
        settle_all(&gates);
    }

    /// `None` is the limit of all.
    pub(crate) fn set_limit_of(
        &self,
        key: Fingerprint,
        limit: Option<usize>,
    ) -> Result<(), ConfigError> {
        limit.map_or(Ok(()), gate::check_limit)?;
        let gate = lock(&self.state).set_limit_of(key, limit)?;
        if let Some(gate) = gate {
            gate.settle();
        }
        Ok(())
    }

    pub(crate) fn set_max_waiting(&self, max_waiting: usize) {
        let mut state = lock(&self.state);
        state.max_waiting = max_waiting;
        state.apply_max_waiting();
    }

    pub(crate) fn set_max_waiting_per_key(&self, max_waiting: usize) {
        let mut state = lock(&self.state);
        state.max_waiting_per_key = Some(max_waiting);
        state.apply_max_waiting();
    }

    pub(crate) fn set_max_wait(&self, max_wait: Option<Duration>) {
        let mut state = lock(&self.state);
        state.max_wait = max_wait;
        state.each_gate(|gate| gate.bounds.set_max_wait(max_wait));
    }

    fn enter(&self, key: Fingerprint) -> Arc<Gate> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.totals.enqueued += 1;
        let known = state.keys.entry(key).or_default();
        known.requests += 1;
        known.totals.enqueued += 1;
        let limit = known.own_limit.unwrap_or(state.limit);
        let max_waiting = state.max_waiting_per_key.unwrap_or(state.max_waiting);
        let gate = known.gate.get_or_insert_with(|| {
            let gate = state.spare.pop().unwrap_or_else(|| {
                let gate = Gate::counting(KIND, limit, self.waits.clone());
                let mut gate = gate.expect("it has been checked");
                gate.bounds.set_name(self.name.get());
                gate.bounds.silence(); // there may be any number of keys
                Arc::new(gate)
            });
            gate.resize(limit); // nobody waits
            gate.bounds.set_max_waiting(max_waiting);
            gate.bounds.set_max_wait(state.max_wait);
            gate
        });
        Arc::clone(gate)
    }

    fn leave(&self, key: Fingerprint, waits: bool, end: End) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.waiting -= usize::from(waits);
        end.count(&mut state.totals);
        let known = state.keys.get_mut(&key).expect("it is in use");
        end.count(&mut known.totals);
        known.requests -= 1;
        if known.requests == 0 {
            let gate = known.gate.take().expect("it was in use");
            // One at which many waited is larger than it was, and knows how fast that key was served.
            if gate.is_as_new() && state.spare.len() < MAX_SPARE {
                state.spare.push(gate);
            }
            state.forget(key);
        }
        let totals = state.totals;
        drop(guard);
        let reason = match end {
            End::Rejected => Reason::QueueFull,
            End::TimedOut => Reason::WaitTimeout,
            End::Expired => Reason::Deadline,
            End::Cancelled | End::Completed => return,
        };
        self.refusals
            .note(self.name.get(), reason, || totals.refused());
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let total = || lock(&self.state).totals.refused();
        self.refusals.settle(self.name.get(), total);
        let state = lock(&self.state);
        let in_use = || state.keys.values().filter(|key| key.requests > 0);
        let requests: usize = in_use().map(|key| key.requests).sum();
        Snapshot {
            keys: in_use().count(),
            waiting: state.waiting,
            in_flight: requests - state.waiting,
            totals: state.totals,
            waits: self.waits.snapshot(),
        }
    }

    pub(crate) fn snapshot_of(&self, key: Fingerprint) -> Option<KeySnapshot> {
        let state = lock(&self.state);
        let known = state.keys.get(&key)?;
        let gate = known.gate.as_ref().map(|gate| gate.snapshot());
        Some(KeySnapshot {
            limit: known.own_limit.unwrap_or(state.limit),
            in_flight: gate.as_ref().map_or(0, |gate| gate.in_flight),
            waiting: gate.as_ref().map_or(0, |gate| gate.waiting),
            oldest_wait: gate.and_then(|gate| gate.oldest_wait),
            totals: known.totals,
        })
    }
}

pub(crate) fn too_many_own_limits(field: &str) -> ConfigError {
    ConfigError::new(field, "given to at most 100 000 keys")
}

impl State {
    /// Gives its gate, which may have room now for those who wait.
    fn set_limit_of(
        &mut self,
        key: Fingerprint,
        limit: Option<usize>,
    ) -> Result<Option<Arc<Gate>>, ConfigError> {
        let known = self.keys.get(&key);
        let had = known.is_some_and(|known| known.own_limit.is_some());
        if limit.is_some() && !had && self.own_limits >= MAX_OWN_LIMITS {
            return Err(too_many_own_limits("limit_of"));
        }
        self.own_limits += usize::from(limit.is_some());
        self.own_limits -= usize::from(had);
        let known = self.keys.entry(key).or_default();
        known.own_limit = limit;
        let gate = known.gate.clone();
        if let Some(gate) = &gate {
            gate.resize(limit.unwrap_or(self.limit));
        }
        self.forget(key);
        Ok(gate)
    }

    fn apply_max_waiting(&self) {
        let max_waiting = self.max_waiting_per_key.unwrap_or(self.max_waiting);
        self.each_gate(|gate| gate.bounds.set_max_waiting(max_waiting));
    }

    fn each_gate(&self, change: impl Fn(&Gate)) {
        let gates = self.keys.values().filter_map(|key| key.gate.as_deref());
        gates.for_each(change);
    }

    /// Unless there is something to remember.
    fn forget(&mut self, key: Fingerprint) {
        if self.keys.get(&key).is_some_and(Key::is_forgettable) {
            self.keys.remove(&key);
            if self.keys.capacity() > 1024 && self.keys.len() < self.keys.capacity() / 8 {
                self.keys.shrink_to(2 * self.keys.len());
            }
        }
    }
}

impl fmt::Debug for KeyedGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyedGates").field(&self.snapshot()).finish()
    }
}

/// How a request ended.
#[derive(Clone, Copy)]
enum End {
    Cancelled,
    Completed,
    Rejected,
    TimedOut,
    Expired,
}

impl End {
    fn count(self, totals: &mut Totals) {
        *match self {
            Self::Cancelled => &mut totals.cancelled,
            Self::Completed => &mut totals.completed,
            Self::Rejected => &mut totals.rejected,
            Self::TimedOut => &mut totals.timed_out,
            Self::Expired => &mut totals.expired,
        } += 1;
    }
}

/// Hands what is free at each of them to its waiters, also where the wakers of another panic.
fn settle_all(gates: &[Arc<Gate>]) {
    let mut foreign = Foreign::default();
    for gate in gates {
        foreign.run(|| gate.settle());
    }
    foreign.finish();
}

/// A request, at the gate of its key. Dropping it leaves.
#[allow(unnameable_types, reason = "of a sealed trait")]
pub struct Place {
    gates: Arc<KeyedGates>,
    gate: Arc<Gate>,
    key: Fingerprint,
    waits: bool,
    end: End,
}

impl Place {
    pub(crate) fn new(gates: &Arc<KeyedGates>, key: Fingerprint) -> Self {
        Self {
            gates: Arc::clone(gates),
            gate: gates.enter(key),
            key,
            waits: false,
            end: End::Cancelled,
        }
    }

    /// In flight, if that can be without waiting.
    pub(crate) fn try_admit(self) -> Result<Serving, Self> {
        match self.gate.try_admit(()) {
            true => Ok(self.admitted()),
            false => Err(self),
        }
    }

    /// Takes its place in the queue, if not too many wait. It is woken where it is polled; until then it is
    /// there.
    pub(crate) fn wait(&mut self) -> Result<Claim<Gate>, Box<Overloaded>> {
        let mut state = lock(&self.gates.state);
        if state.waiting >= state.max_waiting {
            drop(state);
            self.end = End::Rejected;
            return Err(self.gate.refuse((), Reason::QueueFull));
        }
        state.waiting += 1;
        drop(state);
        self.waits = true;
        let mut claim = Claim::new(Arc::clone(&self.gate), ());
        let decided = claim.poll(&mut Context::from_waker(Waker::noop()));
        if decided.is_ready() && !claim.is_held() {
            let refusal = claim.take().expect_err("it is not held");
            self.refused(&refusal);
            return Err(refusal);
        }
        Ok(claim)
    }

    /// It was refused.
    pub(crate) fn refused(&mut self, refusal: &Overloaded) {
        self.end = match refusal.reason() {
            Reason::WaitTimeout => End::TimedOut,
            _ => End::Rejected,
        };
    }

    /// Its deadline has passed. It leaves when this is dropped.
    pub(crate) fn expire(&mut self) -> Box<Overloaded> {
        self.end = End::Expired;
        self.gate.refuse((), Reason::Deadline)
    }

    /// For one that the gate has admitted.
    pub(crate) fn admitted(mut self) -> Serving {
        if std::mem::take(&mut self.waits) {
            lock(&self.gates.state).waiting -= 1;
        }
        Serving {
            permit: Permit::new(Arc::clone(&self.gate)),
            place: self,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gates.leave(self.key, self.waits, self.end);
    }
}

/// A request in flight. The permit goes first: the next one need not wait for what is counted.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
pub struct Serving {
    permit: Permit,
    place: Place,
}

impl Serving {
    /// It is sent now.
    pub(crate) fn send(&mut self) {
        self.place.end = End::Completed;
    }

    /// It was not sent after all, and has to wait.
    pub(crate) fn take_back(self) -> Place {
        drop(self.permit);
        self.place
    }
}

impl Held for Serving {
    fn limiter(&self) -> Option<LimiterId> {
        self.permit.limiter()
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Serving").field(&self.permit).finish()
    }
}
