//! What layers that are stacked by hand tell each other aside: not by requests, responses, errors or readiness.
//!
//! tower's `poll_ready` has a waker and `call` has a request of any type, and services of other crates may be in between.
//! So layers of this crate tell each other a few things by [one cell of the thread](Told), and one by a
//! [waker](shed) that is known by its address. A thing that is told aside has a line here:
//!
//! | what | told by | read by | valid |
//! | --- | --- | --- | --- |
//! | [`time`](Told::time): what time it is | a layer that has read the clock: `Wfq`, `CoDel`, `Saturation` | a layer that needs the time in its `call`; the first one takes it | while the teller calls its inner service, until it is taken |
//! | [`polled_by`](Told::polled_by): whose waiting request is to be sent | `Wfq` | `CoDel`, in its `poll_ready`: it believes what this queue tells it | while the `Wfq` polls its inner service |
//! | [`waited`](Told::waited): how long this request and the oldest one have waited | `Wfq` | `CoDel`, which takes it; [`Waited::current`]. An edge drops it | while the `Wfq` calls its inner service, until it is taken |
//! | the [waker](shed) of one that does not wait | `LoadShed`, and layers that wait in `call` | a limiter: it sets nothing aside for the caller | while the inner service is polled with it |
//! | [`full`](Told::full): which limiter was full | that limiter, to this waker | `LoadShed` | until the poll returns; the last limiter counts |
//! | [`rejects`](Told::rejects): which limiter is to reject | `LoadShed`, in its `call` | that limiter, once | while `LoadShed` polls its inner service once more |
//! | [`rejection`](Told::rejection): the rejection | the limiter that was asked | `LoadShed` | until that poll returns |
//! | [`in_vain`](Told::in_vain): something is ready, but only to reject | a limiter with a full queue, an open circuit | `CoDel`: the request may not have waited for what others wait for | until the `poll_ready` of the `CoDel` returns |
//! | [`kept_back`](Told::kept_back): whether the request was rejected, or waits | every layer that does not call its inner service in its `call` | every layer, when its inner service's `call` returns: see [`handover`] | until the next call |
//! | [`hand_back`](Told::hand_back), [`request`](Told::request): the rejected request | the layer that rejects it | the layer that answers the client, if it [wants](hand_back) it | until the call or the poll of its inner service returns |
//! | [`on_trial`](Told::on_trial): all of this is a trial | `Shadow` | whatever writes to the log | while the trial is polled |
//! | [`held`](Told::held): which limiters this request holds a permit of; debug builds only | every limiter, while it polls its inner service or its future | a limiter at which a request is about to wait: see [`nested`] | while they are polled |
//!
//! Where several limiters could tell something, the line says which one counts. Everything but `kept_back` is told by a
//! guard ([`Telling`]), so it ends with the poll or the call in which it is valid, also if that panics.
//!
//! # What must not be told aside
//! A decision that needs the request is made in `call`, by what is known for that request. Something that a layer was told
//! in `poll_ready` is true of what it has polled, and that may not be what it will call (`Steer`, `Balance`). And a handler
//! that calls a client within its own `call` runs within the calls of all the layers outside it, so what they tell reaches
//! that client's layers, too.

pub(crate) mod hand_back;
pub(crate) mod handover;
pub(crate) mod nested;
pub(crate) mod shed;
#[cfg(all(test, not(backpressure_loom)))]
mod tests;
pub(crate) mod waited;

use std::{
    any::Any,
    cell::Cell,
    mem::{self, ManuallyDrop},
    num::NonZeroUsize,
};

use tokio::time::Instant;

pub use self::waited::Waited;
use self::{hand_back::HandBack, handover::KeptBack, nested::Held};
use crate::{Overloaded, clock::Now, sync::Arc};

/// All that is told on this thread now. The [module](self) says what each of them is.
struct Told {
    time: Cell<Option<Instant>>,
    polled_by: Cell<Option<LimiterId>>,
    /// With the queue that tells it.
    waited: Cell<Option<(Waited, LimiterId)>>,
    full: Cell<Option<LimiterId>>,
    rejects: Cell<Option<LimiterId>>,
    // Boxed where it is made: it is to be boxed in the end, and is moved as one pointer until then.
    rejection: Cell<Option<Box<Overloaded>>>,
    in_vain: Cell<bool>,
    kept_back: Cell<KeptBack>,
    hand_back: Cell<HandBack>,
    request: Cell<Option<Box<dyn Any>>>,
    on_trial: Cell<bool>,
    held: Held,
}

thread_local! {
    // Guards leave nothing in it that needs to be dropped. A thread-local with a destructor would cost more to look at, and
    // could not be looked at while a thread ends.
    static TOLD: ManuallyDrop<Told> = const {
        ManuallyDrop::new(Told {
            time: Cell::new(None),
            polled_by: Cell::new(None),
            waited: Cell::new(None),
            full: Cell::new(None),
            rejects: Cell::new(None),
            rejection: Cell::new(None),
            in_vain: Cell::new(false),
            kept_back: Cell::new(KeptBack::No),
            hand_back: Cell::new(HandBack::NotWanted),
            request: Cell::new(None),
            on_trial: Cell::new(false),
            held: Held::nothing(),
        })
    };
}

/// Which of the things that are told.
type Field<T> = fn(&Told) -> &Cell<T>;

#[inline(always)]
fn get<T: Copy>(field: Field<T>) -> T {
    TOLD.with(|told| field(told).get())
}

#[inline(always)]
fn replace<T>(field: Field<T>, value: T) -> T {
    TOLD.with(|told| field(told).replace(value))
}

/// Tells this until the guard is dropped.
#[inline(always)]
fn tell<T: Default>(field: Field<T>, value: T) -> Telling<T> {
    Telling {
        field,
        before: replace(field, value),
    }
}

/// Something is told. When this is dropped, what was told before is told again.
///
/// A guard and not a function around the call: what a closure captures is copied into it, and a request is large.
#[must_use = "it is told until this is dropped"]
pub(crate) struct Telling<T: Default> {
    field: Field<T>,
    before: T,
}

impl<T: Default> Telling<T> {
    /// What is told by now: layers further in may have changed it.
    #[inline(always)]
    fn end(self) -> T {
        ManuallyDrop::new(self).restore()
    }

    #[inline(always)]
    fn restore(&mut self) -> T {
        replace(self.field, mem::take(&mut self.before))
    }
}

impl<T: Default> Drop for Telling<T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.restore();
    }
}

/// A limiter, known by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterId(NonZeroUsize);

impl LimiterId {
    #[inline]
    pub(crate) fn of<L>(limiter: &Arc<L>) -> Self {
        // No limiter is at address 0, and none at an odd one: they have words in them.
        Self(NonZeroUsize::MIN | Arc::as_ptr(limiter).addr())
    }
}

/// Tells layers further in what time it is: they need not each read the clock, which costs more than most of what else they
/// do.
#[inline]
pub(crate) fn tell_time(now: &Now) -> Telling<Option<Instant>> {
    tell(|told| &told.time, now.known())
}

/// The time that a layer further out has told, if it has. Nobody else is told it, unless the caller
/// [tells](tell_time) it, so that it does not get old.
#[inline]
pub(crate) fn take_time() -> Now {
    Now::at(replace(|told| &told.time, None))
}

/// A limiter or a circuit says that it is ready, but only to reject in `call`.
pub(crate) fn ready_in_vain() {
    replace(|told| &told.in_vain, true);
}

/// Polls, and says also whether something was [ready in vain](ready_in_vain).
#[inline]
pub(crate) fn may_be_in_vain<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    let told = tell(|told| &told.in_vain, false);
    let polled = poll();
    let in_vain = told.end();
    if in_vain {
        ready_in_vain(); // a layer further out has to know, too
    }
    (polled, in_vain)
}

/// What happens from now on is on trial, or, unless something further out is, it is not.
pub(crate) fn on_trial(on_trial: bool) -> Telling<bool> {
    tell(|told| &told.on_trial, on_trial || is_on_trial())
}

pub(crate) fn is_on_trial() -> bool {
    get(|told| &told.on_trial)
}
