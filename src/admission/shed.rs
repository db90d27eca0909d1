//! How a [`LoadShed`](crate::LoadShed) tells a gate further in that it does not want to wait.
//!
//! `LoadShed` polls its inner service with a waker of its own that wakes nobody. A full gate that
//! is polled with that very waker knows that nobody will come back for what it might set aside: it
//! answers `Pending` without queueing, and leaves an [`Offer`] to reject the request. `LoadShed` takes it up
//! if it is called. Not before that is the rejection made and counted: a service in between may find another gate
//! with room, and a service that is polled need not be called.
//!
//! The question goes by waker and not by a thread-local flag, because a service in between may
//! poll *other* futures inside its `poll_ready` (`Balance`, any `FuturesUnordered`). Those have
//! wakers of their own, so a gate under them queues as usual; under a flag it would answer an
//! unqueued `Pending` that nobody ever wakes. Only the offer travels by thread-local, written by
//! a gate that saw the waker.
//!
//! A limiter whose queue is full is ready too, to refuse in `call`. A [`CoDel`](crate::CoDel) outside has to know: such a
//! request has not waited, and says nothing about those that have.
//!
//! A [`Wfq`](crate::Wfq) asks in the same way whether its inner service is ready at once, with another waker,
//! because to be told to wait is no refusal there: none is made, or counted.

use std::{
    cell::Cell,
    fmt,
    mem::{self, ManuallyDrop},
    ptr,
    sync::LazyLock,
    task::{Context, Poll, Wake, Waker},
};

use super::{bucket::Bucket, claim::Limiter, gate::Gate};
use crate::{Overloaded, Reason, sync::Arc};

/// Not empty: a pointer to something of size zero may be the address of another object too.
struct Nobody(#[allow(dead_code)] u8);

impl Wake for Nobody {
    fn wake(self: std::sync::Arc<Self>) {}
    fn wake_by_ref(self: &std::sync::Arc<Self>) {}
}

/// Told from every other waker by the address in it, of an `Arc` that lives as long as the process.
static SHEDDING: LazyLock<Waker> = LazyLock::new(nobody);
static TRYING: LazyLock<Waker> = LazyLock::new(nobody);

fn nobody() -> Waker {
    Waker::from(std::sync::Arc::new(Nobody(0)))
}

/// A gate that was full, and would reject the request.
pub(crate) enum Offer {
    Permit(Arc<Gate>),
    Tokens(Arc<Bucket>, u64),
}

impl Offer {
    /// The request is rejected: that is counted now.
    pub(crate) fn take_up(self) -> Box<Overloaded> {
        match self {
            Self::Permit(gate) => gate.refuse((), Reason::AtLimit),
            Self::Tokens(bucket, n) => bucket.refuse(n, Reason::AtLimit),
        }
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Permit(gate) => gate.bounds.name(),
            Self::Tokens(bucket, _) => bucket.bounds.name(),
        };
        f.debug_tuple("Offer").field(&name).finish()
    }
}

thread_local! {
    /// Whether a service that was just said to be ready is so only to refuse.
    static REFUSING: Cell<bool> = const { Cell::new(false) };
    /// Whether there is an offer. Most sheds are left none, and only look at this.
    static LEFT: Cell<bool> = const { Cell::new(false) };
    /// A destructor would have to be set up, and asked for at each use. None is needed: `poll` takes out what it finds.
    static OFFER: Cell<ManuallyDrop<Option<Offer>>> = const { Cell::new(ManuallyDrop::new(None)) };
}

/// Whether the caller does not wait: it sheds, or only tries. It will not be woken.
#[inline]
pub(crate) fn is_shedding(cx: &Context<'_>) -> bool {
    let data = cx.waker().data();
    ptr::eq(data, SHEDDING.data()) || ptr::eq(data, TRYING.data())
}

/// Leaves an offer for the caller, if it is one that sheds.
pub(crate) fn leave(cx: &Context<'_>, offer: impl FnOnce() -> Offer) {
    if ptr::eq(cx.waker().data(), SHEDDING.data()) {
        // Where a service in between polls several of ours, the last one stands.
        put(Some(offer()));
    }
}

/// Gives back what was there before.
#[inline]
fn put(offer: Option<Offer>) -> Option<Offer> {
    LEFT.set(offer.is_some());
    ManuallyDrop::into_inner(OFFER.replace(ManuallyDrop::new(offer)))
}

/// A limiter says that it is ready, but only to refuse in `call`.
pub(crate) fn note_refusing() {
    REFUSING.set(true);
}

/// Polls, and says also whether it is ready only to refuse.
#[inline]
pub(crate) fn watch<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    let outer = REFUSING.replace(false);
    let polled = poll();
    let refusing = REFUSING.get();
    REFUSING.set(outer || refusing);
    (polled, refusing)
}

/// Polls without wanting to wait, or to know why not.
#[inline]
pub(crate) fn try_now<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll(&mut Context::from_waker(&TRYING))
}

/// Polls without wanting to wait. Where it is `Pending`, also gives the offer that was left by
/// the layer of ours that held it up, if it was one of ours.
#[inline]
pub(crate) fn poll<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> (Poll<T>, Option<Offer>) {
    // What an outer shed was left so far is kept for it.
    let _outer = LEFT.get().then(Outer::new);
    let forget = Forget;
    let polled = poll(&mut Context::from_waker(&SHEDDING));
    mem::forget(forget);
    let offer = if LEFT.get() { put(None) } else { None };
    match polled {
        Poll::Pending => (Poll::Pending, offer),
        ready => (ready, None),
    }
}

/// What an outer shed was left, until it is its turn again.
struct Outer(Option<Offer>);

impl Outer {
    #[cold]
    fn new() -> Self {
        Self(put(None))
    }
}

impl Drop for Outer {
    #[cold]
    fn drop(&mut self) {
        put(self.0.take());
    }
}

/// If the service panics, what it was left is nobody's.
struct Forget;

impl Drop for Forget {
    #[cold]
    fn drop(&mut self) {
        put(None);
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    fn offer(layer: &'static str) -> Offer {
        Offer::Permit(Arc::new(Gate::new(layer, 1).unwrap()))
    }

    #[track_caller]
    fn assert_is(offer: Option<Offer>, layer: &'static str) {
        assert_eq!(offer.expect("one was left").take_up().layer(), layer);
    }

    #[test]
    fn only_its_own_waker_is_recognised() {
        let _ = poll(|cx| {
            assert!(is_shedding(cx));
            assert!(is_shedding(&Context::from_waker(&cx.waker().clone())));
            Poll::Ready(())
        });
        assert!(!is_shedding(&Context::from_waker(Waker::noop())));
        assert!(!is_shedding(&Context::from_waker(&nobody())));
    }

    #[test]
    fn a_refusal_reaches_the_nearest_shed_only() {
        let (_, outer) = poll(|cx| {
            leave(cx, || offer("outer"));
            let (_, inner) = poll(|cx| {
                leave(cx, || offer("inner"));
                Poll::<()>::Pending
            });
            assert_is(inner, "inner");
            Poll::<()>::Pending
        });
        assert_is(outer, "outer");
        let (_, none) = poll(|_| Poll::<()>::Pending);
        assert!(none.is_none());
    }

    #[test]
    fn what_is_ready_after_all_leaves_nothing_behind() {
        let (_, outer) = poll(|cx| {
            let (_, none) = poll(|cx| {
                leave(cx, || offer("inner"));
                Poll::Ready(())
            });
            assert!(none.is_none());
            leave(cx, || offer("first"));
            leave(cx, || offer("last"));
            Poll::<()>::Pending
        });
        assert_is(outer, "last");
    }

    #[test]
    fn none_is_made_for_one_that_only_tries() {
        let (_, none) = poll(|_| {
            try_now(|cx| {
                assert!(is_shedding(cx));
                leave(cx, || unreachable!("nobody asked"));
                Poll::<()>::Pending
            })
        });
        assert!(none.is_none());
    }
}
