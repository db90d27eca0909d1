//! How a [`LoadShed`](crate::LoadShed) tells a gate further in that it does not want to wait.
//!
//! `LoadShed` polls its inner service with a waker of its own that wakes nobody. A full gate that
//! is polled with that very waker knows that nobody will come back for what it might set aside: it
//! answers `Pending` without queueing, and leaves its refusal for `LoadShed` to report.
//!
//! The question goes by waker and not by a thread-local flag, because a service in between may
//! poll *other* futures inside its `poll_ready` (`Balance`, any `FuturesUnordered`). Those have
//! wakers of their own, so a gate under them queues as usual; under a flag it would answer an
//! unqueued `Pending` that nobody ever wakes. Only the refusal travels by thread-local, written by
//! a gate that saw the waker.
//!
//! A limiter whose queue is full is ready too, to refuse in `call`. A [`CoDel`](crate::CoDel) outside has to know: such a
//! request has not waited, and says nothing about those that have.
//!
//! A [`Wfq`](crate::Wfq) asks in the same way whether its inner service is ready at once, with another waker,
//! because to be told to wait is no refusal there: none is made, or counted.

use std::{
    cell::Cell,
    ptr,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Wake, Waker},
};

use crate::Overloaded;

/// Not empty: a pointer to something of size zero may be the address of another object too.
struct Nobody(#[allow(dead_code)] u8);

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
    fn wake_by_ref(self: &Arc<Self>) {}
}

/// Told from every other waker by the address in it, of an `Arc` that lives as long as the process.
static SHEDDING: LazyLock<Waker> = LazyLock::new(|| Waker::from(Arc::new(Nobody(0))));
static TRYING: LazyLock<Waker> = LazyLock::new(|| Waker::from(Arc::new(Nobody(0))));

thread_local! {
    /// Whether a service that was just said to be ready is so only to refuse.
    static REFUSING: Cell<bool> = const { Cell::new(false) };
    // Boxed where it is made: it is an error to be boxed in the end, and so it is moved as one pointer.
    static REFUSAL: Cell<Option<Box<Overloaded>>> = const { Cell::new(None) };
}

/// Whether the caller does not wait: it sheds, or only tries. It will not be woken.
#[inline]
pub(crate) fn is_shedding(cx: &Context<'_>) -> bool {
    let data = cx.waker().data();
    ptr::eq(data, SHEDDING.data()) || ptr::eq(data, TRYING.data())
}

/// Leaves a refusal for the caller, if it is one that sheds.
pub(crate) fn leave(cx: &Context<'_>, refusal: impl FnOnce() -> Box<Overloaded>) {
    if ptr::eq(cx.waker().data(), SHEDDING.data()) {
        // Dropped unread where a service in between polls several of ours: one refusal is enough.
        REFUSAL.set(Some(refusal()));
    }
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

/// Polls without wanting to wait. Where it is `Pending`, also gives the refusal that was left by
/// the layer of ours that held it up, if it was one of ours.
#[inline]
pub(crate) fn poll<T>(
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> (Poll<T>, Option<Box<Overloaded>>) {
    // What an outer shed may have been left so far is kept for it.
    let outer = REFUSAL.take();
    let polled = poll(&mut Context::from_waker(&SHEDDING));
    let refusal = REFUSAL.replace(outer);
    (polled, refusal)
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use crate::Reason;
    use std::time::Duration;

    fn refusal(layer: &'static str) -> Box<Overloaded> {
        Box::new(Overloaded::new(
            layer,
            Reason::AtLimit,
            Duration::from_secs(1),
        ))
    }

    #[test]
    fn only_its_own_waker_is_recognised() {
        let _ = poll(|cx| {
            assert!(is_shedding(cx));
            assert!(is_shedding(&Context::from_waker(&cx.waker().clone())));
            Poll::Ready(())
        });
        assert!(!is_shedding(&Context::from_waker(Waker::noop())));
        let other = Waker::from(Arc::new(Nobody(0)));
        assert!(!is_shedding(&Context::from_waker(&other)));
    }

    #[test]
    fn a_refusal_reaches_the_nearest_shed_only() {
        let (_, outer) = poll(|cx| {
            leave(cx, || refusal("outer"));
            let (_, inner) = poll(|cx| {
                leave(cx, || refusal("inner"));
                Poll::<()>::Pending
            });
            assert_eq!(inner, Some(refusal("inner")));
            Poll::<()>::Pending
        });
        assert_eq!(outer, Some(refusal("outer")));
        let (_, none) = poll(|_| Poll::<()>::Pending);
        assert_eq!(none, None);
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
        assert_eq!(none, None);
    }
}
