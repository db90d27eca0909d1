//! Finds a request that holds a permit of a limiter and is about to wait for another permit of the same limiter.
//!
//! That happens when one layer value is on a request's path twice, or when a handler calls back into the stack that it
//! runs in. As soon as all permits are held by such requests, each of them waits for the others and none can go on,
//! until `max_wait` ends it, if there is one. Debug builds say so with a panic. Release builds check nothing.
//!
//! While the inner service of a limiter is polled for an admitted request, that limiter is [held](super::Told::held) on the thread.
//! A limiter that finds itself there when a caller has to wait was reached from inside itself.

use std::cell::Cell;

use super::{LimiterId, TOLD, Telling, tell};

/// Loom runs all its threads on one, so what they hold would be mixed up.
const CHECKS: bool = cfg!(all(debug_assertions, not(backpressure_loom)));

/// Limiters further in than that are not found. Nobody stacks so many, and a fixed number needs no allocation.
const DEPTH: usize = 16;

/// The limiters of which the request that runs now holds a permit, the outermost first.
pub(super) struct Held {
    limiters: [Cell<Option<LimiterId>>; DEPTH],
    count: Cell<usize>,
}

impl Held {
    pub(super) const fn nothing() -> Self {
        Self {
            limiters: [const { Cell::new(None) }; DEPTH],
            count: Cell::new(0),
        }
    }

    #[cfg(all(test, not(backpressure_loom)))]
    pub(super) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    fn push(&self, limiter: LimiterId) -> usize {
        let count = self.count.get();
        if let Some(next) = self.limiters.get(count) {
            next.set(Some(limiter));
        }
        count + 1
    }

    fn contains(&self, limiter: LimiterId) -> bool {
        let mut held = self.limiters.iter().take(self.count.get());
        held.any(|held| held.get() == Some(limiter))
    }
}

/// The inner service of a limiter is polled, until the guard is dropped, for a request that has one of its permits. Release
/// builds do not even ask for the limiter.
#[inline(always)]
pub(crate) fn hold(limiter: impl FnOnce() -> Option<LimiterId>) -> Option<Telling<usize>> {
    if !CHECKS {
        return None;
    }
    let count = TOLD.with(|told| limiter().map(|limiter| told.held.push(limiter)))?;
    Some(tell(|told| &told.held.count, count))
}

/// A caller is about to wait for a permit of this limiter.
///
/// # Panics
/// In debug builds, if the caller runs inside a request that holds one.
#[inline]
pub(crate) fn check(limiter: LimiterId, name: &str) {
    let nested = || TOLD.with(|told| told.held.contains(limiter));
    if CHECKS && !std::thread::panicking() && nested() {
        panic!(
            "the same `{name}` layer value is on the path of a request twice: the request holds one of its permits and \
             would wait for another, so that it may wait for itself. Use it in one place, or make a second layer value \
             (see \"Cloning\" in its documentation)"
        );
    }
}
