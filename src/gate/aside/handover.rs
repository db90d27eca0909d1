//! Tells a layer whether the request that it handed on was kept back by another layer of this crate further in.
//!
//! A layer that admits a request calls its inner service and wraps the future that it gets. When that future fails with an
//! [`Overloaded`](crate::Overloaded), there are two cases, and they must not be taken for each other:
//!
//! - A layer of this crate further in rejected the request. The service was never called: its tenant owes nothing, and
//!   the request can be sent again.
//! - The service was called, worked, and passes on the rejection that *its own* client gave it.
//!
//! The error looks the same, and so does the poll that it comes out of. What differs is when the request was stopped. Every
//! layer of this crate decides in its own `call`: it rejects there, lets the request wait, or calls its inner service. The
//! stack's layers call each other from within `call`, so all of that happens while the outermost `call` runs. A client
//! inside a handler is called later, when the handler's future is polled.
//!
//! So a layer that rejects a request or lets it wait tells so aside, and a layer that calls its inner service clears that before
//! and reads it after ([`Handover`]):
//!
//! - **Set**: the request was kept back further in. The layer that kept it is responsible for what comes of it: it rejects
//!   the request itself, or hands it on later and then does as described here. This layer takes the rejection as it is.
//! - **Not set**: the request went through to something that is not a layer of this crate. Whatever rejection comes out of its
//!   future was made by that, or for that: it is marked as from further in.
//!
//! Services of other crates in between do not matter if their `call` calls the inner service, as that of `Timeout`,
//! `MapErr`, `Steer`, `Balance`, the boxed services and nearly every middleware does. One that calls it elsewhere (`Buffer` in
//! its worker, `oneshot` and axum's `from_fn` in their future) hides what is inside it. Then a rejection made in there
//! counts as from further in, which errs on the safe side: it is charged the time that it took and is not taken for safe to
//! send again. The reverse error, to take for safe what is not, needs a service that calls a client within its own
//! `call`, is rejected there, and works all the same: before it awaits the client, or through another one.
//!
//! This needs no guard: it is cleared before it is read, on the same thread, in the same call. An inner service whose errors
//! cannot be (`Infallible`) costs nothing.

use std::marker::PhantomData;

use super::{Telling, get, replace, tell};

/// Whether a layer of this crate further in kept the request back when it was handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeptBack {
    #[default]
    No,
    /// It lets the request wait.
    Waits,
    /// It rejected the request.
    Rejected,
}

impl KeptBack {
    /// Where a rejection is passed on as it is: it is this layer's own, or marked already.
    pub(crate) const YES: Self = Self::Rejected;

    #[inline]
    pub(crate) fn get(self) -> bool {
        self != Self::No
    }
}

/// The call of an inner service whose error is `E`. From [`begin`](Self::begin) to [`end`](Self::end), nothing but that call is
/// to be made.
#[must_use]
pub(crate) struct Handover<E>(PhantomData<fn() -> E>);

impl<E> Handover<E> {
    #[inline(always)] // one instruction, or none
    pub(crate) fn begin() -> Self {
        if can_be::<E>() {
            set(KeptBack::No);
        }
        Self(PhantomData)
    }

    #[inline(always)]
    pub(crate) fn end(self) -> KeptBack {
        match can_be::<E>() {
            true => get(|told| &told.kept_back),
            false => KeptBack::No,
        }
    }
}

/// A layer lets the request wait that it is called with.
#[inline]
pub(crate) fn keep_back() {
    set(KeptBack::Waits);
}

/// A layer rejects the request that it is called with.
#[inline]
pub(crate) fn reject() {
    set(KeptBack::Rejected);
}

/// What happens until the guard is dropped, such as a trial, is not for layers further out.
pub(crate) fn restore_after() -> Telling<KeptBack> {
    tell(|told| &told.kept_back, KeptBack::No)
}

#[inline(always)]
fn set(kept_back: KeptBack) {
    replace(|told| &told.kept_back, kept_back);
}

/// Whether there may be values of that type. Of a type without values a `Result` has no `Err`, and no need to say so.
pub(crate) const fn can_be<E>() -> bool {
    size_of::<Result<(), E>>() > 0
}
