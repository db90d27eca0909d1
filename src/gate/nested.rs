//! Finds a request that holds a permit of a limiter and is about to wait for another permit of the same limiter.
//!
//! That happens when one layer value is on a request's path twice, or when a handler calls back into the stack that it
//! runs in. As soon as all permits are held by such requests, each of them waits for the others and none can go on,
//! until `max_wait` ends it, if there is one. Debug builds say so with a panic. Release builds check nothing.
//!
//! A limiter is known by its address. While the inner service of a limiter is polled for an admitted request, the
//! address is on a stack that belongs to the thread. A limiter that finds itself there when a caller has to wait was
//! reached from inside itself.

use std::{cell::RefCell, num::NonZeroUsize};

use crate::sync::Arc;

/// Loom runs all its threads on one, so their stacks would be mixed up.
const CHECKS: bool = cfg!(all(debug_assertions, not(backpressure_loom)));

/// Limiters further in than that are not found. Nobody stacks so many, and a fixed number needs no allocation.
const DEPTH: usize = 16;

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

thread_local! {
    static HELD: RefCell<Stack> = const { RefCell::new(Stack { held: [None; DEPTH], len: 0 }) };
}

struct Stack {
    held: [Option<LimiterId>; DEPTH],
    len: usize,
}

/// The limiter that is held, where that is looked at. Release builds do not even ask.
#[inline(always)]
pub(crate) fn held(limiter: impl FnOnce() -> Option<LimiterId>) -> Option<LimiterId> {
    match CHECKS {
        true => limiter(),
        false => None,
    }
}

/// While this is kept, the inner service of a limiter is polled for a request that has one of its permits.
///
/// A guard and not a function around the poll, as in [`clock::pass`](crate::clock::pass).
#[inline(always)]
pub(crate) fn holding(limiter: Option<LimiterId>) -> Option<Held> {
    limiter.map(Held::push)
}

/// A caller is about to wait for a permit of this limiter.
///
/// # Panics
/// In debug builds, if the caller runs inside a request that holds one.
#[inline]
pub(crate) fn check(limiter: LimiterId, name: &str) {
    let nested =
        || HELD.with_borrow(|stack| stack.held[..stack.len.min(DEPTH)].contains(&Some(limiter)));
    if CHECKS && !std::thread::panicking() && nested() {
        panic!(
            "the same `{name}` layer value is on the path of a request twice: the request holds one of its permits and \
             would wait for another, so that it may wait for itself. Use it in one place, or make a second layer value \
             (see \"Cloning\" in its documentation)"
        );
    }
}

/// The top of the stack, until it is dropped.
#[must_use = "it is held until this is dropped"]
pub(crate) struct Held;

impl Held {
    fn push(limiter: LimiterId) -> Self {
        HELD.with_borrow_mut(|stack| {
            if let Some(top) = stack.held.get_mut(stack.len) {
                *top = Some(limiter);
            }
            stack.len += 1;
        });
        Self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|stack| stack.len -= 1);
    }
}
