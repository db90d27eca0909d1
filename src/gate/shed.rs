//! How a [`LoadShed`](crate::LoadShed) tells a gate further in that it does not want to wait.
//!
//! `LoadShed` polls its inner service with a waker of its own that wakes nobody. A full gate that
//! is polled with that very waker knows that nobody will come back for what it might set aside: it
//! answers `Pending` without queueing, and leaves a note of which gate it is. If `LoadShed` is then called, it asks once
//! more, and that gate rejects the request, by what it saw before. Not before that is the rejection made and counted: a
//! service in between may find another gate with room, and a service that is polled need not be called. If another
//! gate has room by then, the request is served.
//!
//! The question goes by waker and not by a thread-local flag, because a service in between may
//! poll *other* futures inside its `poll_ready` (`Balance`, any `FuturesUnordered`). Those have
//! wakers of their own, so a gate under them queues as usual; under a flag it would answer an
//! unqueued `Pending` that nobody ever wakes. Only what gates answer travels by thread-local, written by
//! a gate that saw the waker.
//!
//! A limiter whose queue is full is ready too, to reject in `call`. A [`CoDel`](crate::CoDel) outside has to know that this
//! may happen: such a request has not waited, and says nothing about those that have. Whether it does happen is known
//! after the call: see [`handover`](super::handover).
//!
//! A [`Wfq`](crate::Wfq) asks in the same way whether its inner service is ready at once, with another waker,
//! because to be told to wait is no refusal there: none is made, or counted.

use std::{
    cell::Cell,
    ptr,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Wake, Waker},
};

use super::nested::LimiterId;
use crate::Overloaded;

/// Not empty: a pointer to something of size zero may be the address of another object too.
struct Nobody(#[allow(dead_code)] u8);

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
    fn wake_by_ref(self: &Arc<Self>) {}
}

/// Told from every other waker by the address in it, of an `Arc` that lives as long as the process.
static SHEDDING: LazyLock<Waker> = LazyLock::new(nobody);
static TRYING: LazyLock<Waker> = LazyLock::new(nobody);

fn nobody() -> Waker {
    Waker::from(Arc::new(Nobody(0)))
}

thread_local! {
    /// Whether a service that was just said to be ready is so only to refuse.
    static REFUSING: Cell<bool> = const { Cell::new(false) };
    /// The limiter that was full, the last one if there were several. Set by the shed that asks, and put back after that,
    /// so it does not matter what a panic leaves here.
    static FULL: Cell<Option<LimiterId>> = const { Cell::new(None) };
    /// The limiter that is to reject, until it has.
    static REJECTS: Cell<Option<LimiterId>> = const { Cell::new(None) };
    /// Whether it has.
    static GIVEN: Cell<bool> = const { Cell::new(false) };
    // Boxed where it is made: it is an error to be boxed in the end, and so it is moved as one pointer. It has a destructor,
    // so it costs more to look at than the others. Nobody does unless something was given.
    static REJECTION: Cell<Option<Box<Overloaded>>> = const { Cell::new(None) };
}

/// Whether the caller does not wait: it sheds, or only tries. It will not be woken.
#[inline]
pub(crate) fn is_shedding(cx: &Context<'_>) -> bool {
    let data = cx.waker().data();
    ptr::eq(data, SHEDDING.data()) || ptr::eq(data, TRYING.data())
}

/// Gives the caller the rejection of this limiter, if it is a shed that asks for it. Says whether it was.
#[inline(always)] // `max_waiting(0): rate limit` by a shed: 850 instructions, and 898 if this is called
pub(crate) fn give_rejection(
    cx: &Context<'_>,
    limiter: LimiterId,
    reject: impl FnOnce() -> Box<Overloaded>,
) -> bool {
    let asked = REJECTS.get() == Some(limiter) && ptr::eq(cx.waker().data(), SHEDDING.data());
    if asked {
        REJECTS.set(None); // one rejection is enough, though a service in between may ask the limiter twice
        REJECTION.set(Some(reject()));
        GIVEN.set(true);
    }
    asked
}

/// Tells the caller that this limiter is full, if it is one that sheds.
#[inline]
pub(crate) fn tell_full(cx: &Context<'_>, limiter: LimiterId) {
    if ptr::eq(cx.waker().data(), SHEDDING.data()) {
        FULL.set(Some(limiter));
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

/// Polls without wanting to wait. Where it is `Pending`, also says which limiter of ours was full, if one was.
#[inline]
pub(crate) fn poll<T>(
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> (Poll<T>, Option<LimiterId>) {
    // A shed further out may be asking for a rejection, but not one of a limiter in here: this shed is always ready.
    let outer = FULL.replace(None);
    let polled = poll(&mut Context::from_waker(&SHEDDING));
    (polled, FULL.replace(outer))
}

/// Puts back which limiter was to reject before, also if the service panics.
struct Asking(Option<LimiterId>);

impl Drop for Asking {
    #[inline]
    fn drop(&mut self) {
        REJECTS.set(self.0);
    }
}

/// What a shed is told that asks for a rejection.
pub(crate) enum Answer<T> {
    /// It was made, and counted. Whether the service is ready all the same: another limiter was asked, and had room.
    Rejected(Box<Overloaded>, bool),
    /// The limiter was not asked, or has room by now. Another one may be full.
    NotRejected(Poll<T>, Option<LimiterId>),
}

/// The same once more, because the request is to be rejected by this limiter.
#[inline(always)] // with `GIVEN`: `load_shed_reject` takes 576 instructions, and took 599
pub(crate) fn reject<T>(
    full: LimiterId,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Answer<T> {
    let asking = Asking(REJECTS.replace(Some(full)));
    let outer = FULL.replace(None);
    // A shed further out may have been given a rejection already.
    let outer_rejection = GIVEN.replace(false).then(|| REJECTION.take());
    let polled = poll(&mut Context::from_waker(&SHEDDING));
    drop(asking);
    let now_full = FULL.replace(outer);
    let rejection = GIVEN.get().then(|| REJECTION.take()).flatten();
    GIVEN.set(false);
    if let Some(outer_rejection) = outer_rejection {
        REJECTION.set(outer_rejection);
        GIVEN.set(true);
    }
    match rejection {
        Some(rejection) => Answer::Rejected(rejection, polled.is_ready()),
        None => Answer::NotRejected(polled, now_full),
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Reason;

    fn limiter() -> (LimiterId, Arc<u8>) {
        let limiter = Arc::new(0);
        (LimiterId::of(&limiter), limiter)
    }

    fn rejection(layer: &'static str) -> Box<Overloaded> {
        let second = Duration::from_secs(1);
        Box::new(Overloaded::new(layer, Reason::AtLimit, second))
    }

    fn full(cx: &Context<'_>, limiter: LimiterId) {
        assert!(!give_rejection(cx, limiter, || panic!(
            "nobody asked for it"
        )));
        tell_full(cx, limiter);
    }

    #[test]
    fn only_the_wakers_of_a_shed_and_of_one_that_tries_are_known() {
        let _ = poll(|cx| {
            assert!(is_shedding(cx));
            assert!(is_shedding(&Context::from_waker(&cx.waker().clone())));
            Poll::Ready(())
        });
        assert!(!is_shedding(&Context::from_waker(Waker::noop())));
        assert!(!is_shedding(&Context::from_waker(&nobody())));
    }

    #[test]
    fn the_nearest_shed_is_told_which_was_full_the_last_one_if_there_are_several() {
        let [outer, first, last] = [(); 3].map(|()| limiter());
        let (_, told) = poll(|cx| {
            full(cx, outer.0);
            let (_, told) = poll(|cx| {
                full(cx, first.0);
                full(cx, last.0);
                Poll::<()>::Pending
            });
            assert_eq!(told, Some(last.0));
            Poll::<()>::Pending
        });
        assert_eq!(told, Some(outer.0));
        let (_, none) = poll(|_| Poll::<()>::Pending);
        assert_eq!(none, None);
    }

    #[test]
    fn only_the_one_that_is_asked_rejects() {
        let [asked, other] = [(); 2].map(|()| limiter());
        let answer = reject(asked.0, |cx| {
            full(cx, other.0);
            assert!(give_rejection(cx, asked.0, || rejection("asked")));
            full(cx, asked.0); // it has rejected the request already
            let (_, inner) = poll(|cx| {
                full(cx, asked.0);
                Poll::<()>::Pending
            });
            assert_eq!(inner, Some(asked.0));
            Poll::<()>::Pending
        });
        assert!(matches!(answer, Answer::Rejected(is, false) if is == rejection("asked")));
        let answer = reject(asked.0, |cx| {
            full(cx, other.0);
            Poll::<()>::Pending
        });
        let Answer::NotRejected(Poll::Pending, Some(full)) = answer else {
            panic!("another one is full by now")
        };
        assert_eq!(full, other.0);
    }

    #[test]
    fn what_a_shed_further_in_is_given_is_not_taken_for_what_was_given_before() {
        let [outer, inner] = [(); 2].map(|()| limiter());
        for gives in [true, false] {
            let answer = reject(outer.0, |cx| {
                assert!(give_rejection(cx, outer.0, || rejection("outer")));
                let answer = reject(inner.0, |cx| {
                    assert_eq!(
                        gives,
                        gives && give_rejection(cx, inner.0, || rejection("inner"))
                    );
                    Poll::<()>::Pending
                });
                let given = matches!(answer, Answer::Rejected(is, false) if is.layer() == "inner");
                assert_eq!(given, gives);
                Poll::<()>::Pending
            });
            assert!(matches!(answer, Answer::Rejected(is, false) if is.layer() == "outer"));
        }
    }

    #[test]
    fn what_a_panic_leaves_behind_does_not_matter() {
        let (asked, _alive) = limiter();
        let panics = std::panic::catch_unwind(|| {
            reject(asked, |cx| -> Poll<()> {
                assert!(give_rejection(cx, asked, || rejection("asked")));
                panic!("in the middle of it")
            })
        });
        assert!(panics.is_err());
        let (_, told) = poll(|cx| {
            full(cx, asked);
            Poll::<()>::Pending
        });
        assert_eq!(told, Some(asked));
        let answer = reject(asked, |cx| {
            assert!(give_rejection(cx, asked, || rejection("again")));
            Poll::<()>::Pending
        });
        assert!(matches!(answer, Answer::Rejected(is, false) if is.layer() == "again"));
    }

    #[test]
    fn one_that_only_tries_is_told_nothing() {
        let (limiter, _alive) = limiter();
        let (_, none) = poll(|_| {
            try_now(|cx| {
                assert!(is_shedding(cx));
                full(cx, limiter);
                Poll::<()>::Pending
            })
        });
        assert_eq!(none, None);
    }
}
