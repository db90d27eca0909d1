//! How a [`LoadShed`](crate::LoadShed) tells a gate further in that it does not want to wait.
//!
//! `LoadShed` polls its inner service with a waker that wakes nobody, and that is known by its address. A full gate that is
//! polled with this waker knows that nobody will come back for what it might set aside. It answers `Pending` without queueing,
//! and tells which gate it is. If `LoadShed` is then called, it polls once more and names that gate, which rejects the
//! request, by what it saw before. Not before that is the rejection made and counted: a service in between may find another
//! gate with room, and a service that is polled need not be called. If another gate has room by then, the request is served.
//!
//! The question goes by waker and not by the thread's cell, because a service in between may poll *other* futures inside its
//! `poll_ready` (`Balance`, any `FuturesUnordered`). Those have wakers of their own, so a gate under them queues as usual. If
//! the cell told it, such a gate would answer an unqueued `Pending` that nobody ever wakes. Only what gates answer goes by
//! the cell, written by a gate that saw the waker.
//!
//! Layers that wait in `call` ([`Wfq`](crate::Wfq), the keyed limit) see in the same way whether their inner service is ready
//! at once. To be told to wait is no rejection there: none is made, or counted.

use std::{
    ptr,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Wake, Waker},
};

use super::{LimiterId, get, replace, tell};
use crate::Overloaded;

/// Not empty: a pointer to something of size zero may be the address of another object too.
struct Nobody(#[allow(dead_code)] u8);

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
    fn wake_by_ref(self: &Arc<Self>) {}
}

/// Known by the address in it, of an `Arc` that lives as long as the process.
static NOT_WAITING: LazyLock<Waker> = LazyLock::new(nobody);

pub(super) fn nobody() -> Waker {
    Waker::from(Arc::new(Nobody(0)))
}

/// Whether the caller does not wait. It will not be woken.
#[inline]
pub(crate) fn is_not_waiting(cx: &Context<'_>) -> bool {
    ptr::eq(cx.waker().data(), NOT_WAITING.data())
}

/// Gives the caller the rejection of this limiter, if it is a shed that asks for it. Says whether it was.
#[inline(always)] // `max_waiting(0): rate limit` by a shed: 850 instructions, and 898 if this is called
pub(crate) fn give_rejection(
    cx: &Context<'_>,
    limiter: LimiterId,
    reject: impl FnOnce() -> Box<Overloaded>,
) -> bool {
    let asked = get(|told| &told.rejects) == Some(limiter) && is_not_waiting(cx);
    if asked {
        // One rejection is enough, though a service in between may ask the limiter twice.
        replace(|told| &told.rejects, None);
        replace(|told| &told.rejection, Some(reject()));
    }
    asked
}

/// Tells the caller that this limiter is full, if it is one that does not wait.
#[inline]
pub(crate) fn tell_full(cx: &Context<'_>, limiter: LimiterId) {
    if is_not_waiting(cx) {
        replace(|told| &told.full, Some(limiter));
    }
}

/// Polls without wanting to wait. Where it is `Pending`, also says which limiter of ours was full, if one was.
#[inline]
pub(crate) fn poll<T>(
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> (Poll<T>, Option<LimiterId>) {
    // A shed further out may be asking for a rejection, but not one of a limiter in here: this caller is always ready.
    let full = tell(|told| &told.full, None);
    let polled = poll(&mut Context::from_waker(&NOT_WAITING));
    (polled, full.end())
}

/// What a shed is told that asks for a rejection.
pub(crate) enum Answer<T> {
    /// It was made, and counted. Whether the service is ready all the same: another limiter was asked, and had room.
    Rejected(Box<Overloaded>, bool),
    /// The limiter was not asked, or has room by now. Another one may be full.
    NotRejected(Poll<T>, Option<LimiterId>),
}

/// The same once more, because the request is to be rejected by this limiter.
#[inline]
pub(crate) fn reject<T>(
    limiter: LimiterId,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Answer<T> {
    let asking = tell(|told| &told.rejects, Some(limiter));
    // A shed further out may have been given a rejection already.
    let rejection = tell(|told| &told.rejection, None);
    let (polled, full) = self::poll(poll);
    drop(asking);
    match rejection.end() {
        Some(rejection) => Answer::Rejected(rejection, polled.is_ready()),
        None => Answer::NotRejected(polled, full),
    }
}
