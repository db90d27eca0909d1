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
    cell::{Cell, RefCell},
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
    /// So many, and when they were asked for.
    Tokens(Arc<Bucket>, u64, u64),
}

impl Offer {
    /// The request is rejected: that is counted now.
    pub(crate) fn take_up(self) -> Box<Overloaded> {
        match self {
            Self::Permit(gate) => gate.refuse((), Reason::AtLimit),
            Self::Tokens(bucket, n, then) => bucket.refuse_as_seen(n, Reason::AtLimit, then),
        }
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Permit(gate) => gate.bounds.name(),
            Self::Tokens(bucket, ..) => bucket.bounds.name(),
        };
        f.debug_tuple("Offer").field(&name).finish()
    }
}

thread_local! {
    /// Whether a service that was just said to be ready is so only to refuse.
    static REFUSING: Cell<bool> = const { Cell::new(false) };
    /// Whether there is an offer, or one that was set aside. Most sheds are left none, and only look at this.
    static LEFT: Cell<bool> = const { Cell::new(false) };
    /// A destructor would have to be set up, and asked for at each use. None is needed: `poll` takes out what it finds.
    static OFFER: Cell<ManuallyDrop<Option<Offer>>> = const { Cell::new(ManuallyDrop::new(None)) };
    /// What sheds further out were left, while one inside of them asks.
    static OUTER: RefCell<Vec<Option<Offer>>> = const { RefCell::new(Vec::new()) };
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

/// Polls without wanting to wait. Where it is `Pending`, `pending` is given the offer that was left by
/// the layer of ours that held it up, if it was one of ours.
#[inline]
pub(crate) fn poll<T>(
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    pending: impl FnOnce(Option<Offer>),
) -> Poll<T> {
    let nested = LEFT.get();
    if nested {
        set_aside();
    }
    let panicked = Panicked { nested };
    let polled = poll(&mut Context::from_waker(&SHEDDING));
    mem::forget(panicked);
    if polled.is_pending() {
        pending(LEFT.get().then(|| take_left(nested)).flatten());
    } else if LEFT.get() {
        drop_left(nested);
    }
    polled
}

/// What an outer shed was left so far is kept for it, until it is put back.
#[cold]
fn set_aside() {
    let offer = put(None);
    OUTER.with_borrow_mut(|outer| outer.push(offer));
    LEFT.set(true);
}

/// Puts back what was set aside, if something was.
fn take_left(nested: bool) -> Option<Offer> {
    if !nested {
        return put(None);
    }
    let left = put(OUTER.with_borrow_mut(Vec::pop).flatten());
    LEFT.set(true); // as it was
    left
}

#[cold]
fn drop_left(nested: bool) {
    take_left(nested);
}

/// What a service was left that panics is nobody's.
struct Panicked {
    nested: bool,
}

impl Drop for Panicked {
    #[cold]
    fn drop(&mut self) {
        drop_left(self.nested);
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    fn offer(layer: &'static str) -> Offer {
        Offer::Permit(Arc::new(Gate::new(layer, 1).unwrap()))
    }

    fn ask<T>(service: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> (Poll<T>, Option<Offer>) {
        let mut left = None;
        let polled = poll(service, |offer| left = offer);
        (polled, left)
    }

    #[track_caller]
    fn assert_is(offer: Option<Offer>, layer: &'static str) {
        assert_eq!(offer.expect("one was left").take_up().layer(), layer);
    }

    #[test]
    fn only_its_own_waker_is_recognised() {
        let _ = ask(|cx| {
            assert!(is_shedding(cx));
            assert!(is_shedding(&Context::from_waker(&cx.waker().clone())));
            Poll::Ready(())
        });
        assert!(!is_shedding(&Context::from_waker(Waker::noop())));
        assert!(!is_shedding(&Context::from_waker(&nobody())));
    }

    #[test]
    fn a_refusal_reaches_the_nearest_shed_only() {
        let (_, outer) = ask(|cx| {
            leave(cx, || offer("outer"));
            let (_, inner) = ask(|cx| {
                leave(cx, || offer("inner"));
                Poll::<()>::Pending
            });
            assert_is(inner, "inner");
            Poll::<()>::Pending
        });
        assert_is(outer, "outer");
        let (_, none) = ask(|_| Poll::<()>::Pending);
        assert!(none.is_none());
    }

    #[test]
    fn however_deep_they_are_inside_each_other_each_has_its_own() {
        let (_, outer) = ask(|cx| {
            leave(cx, || offer("outer"));
            let (_, middle) = ask(|cx| {
                let (_, none) = ask(|_| Poll::<()>::Pending);
                assert!(none.is_none());
                let (_, none) = ask(|cx| {
                    leave(cx, || offer("inner"));
                    Poll::Ready(())
                });
                assert!(none.is_none());
                leave(cx, || offer("middle"));
                let (_, inner) = ask(|cx| {
                    leave(cx, || offer("inner"));
                    Poll::<()>::Pending
                });
                assert_is(inner, "inner");
                Poll::<()>::Pending
            });
            assert_is(middle, "middle");
            let (_, none) = ask(|_| ask(|_| Poll::<()>::Pending).0);
            assert!(none.is_none());
            Poll::<()>::Pending
        });
        assert_is(outer, "outer");
        assert!(!LEFT.get() && OUTER.with_borrow(Vec::is_empty));
    }

    #[test]
    fn a_panic_leaves_nothing_behind_but_what_is_the_outer_ones() {
        let (_, outer) = ask(|cx| {
            leave(cx, || offer("outer"));
            let panicked = std::panic::catch_unwind(|| {
                ask(|cx| -> Poll<()> {
                    leave(cx, || offer("inner"));
                    panic!("the service panics")
                })
            });
            assert!(panicked.is_err());
            Poll::<()>::Pending
        });
        assert_is(outer, "outer");
        assert!(!LEFT.get() && OUTER.with_borrow(Vec::is_empty));
    }

    #[test]
    fn what_is_ready_after_all_leaves_nothing_behind() {
        let (_, outer) = ask(|cx| {
            let (_, none) = ask(|cx| {
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
        let (_, none) = ask(|_| {
            try_now(|cx| {
                assert!(is_shedding(cx));
                leave(cx, || unreachable!("nobody asked"));
                Poll::<()>::Pending
            })
        });
        assert!(none.is_none());
    }
}
