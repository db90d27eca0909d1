//! How a rejected request gets back to the layer that answers the client.
//!
//! An [`OverloadResponse`](crate::OverloadResponse) may have to read the body of an HTTP/1 request that nobody else
//! reads. But the layer that rejects the request owns it, and there may be layers of other crates in between, whose
//! errors and futures have no room for a request. So the outer layer says that it wants the request back while it calls
//! the inner service or polls its response, and the layer that rejects leaves the request here. If nobody wants it, it
//! is dropped as before.
//!
//! Only what happens on the same thread during that one call is seen. A request that another task rejects (behind a
//! `Buffer`), or whose type a layer in between has changed, is not handed back.

use std::{any::Any, cell::Cell};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    NotWanted,
    Wanted,
    Given,
}

thread_local! {
    static SLOT: Cell<Slot> = const { Cell::new(Slot::NotWanted) };
    // Has a destructor, so it costs more to look at. Nobody does unless something was given.
    static REQUEST: Cell<Option<Box<dyn Any>>> = const { Cell::new(None) };
}

/// To be called with every request that a layer rejects.
#[cold]
#[inline(never)]
pub(crate) fn give<R: 'static>(request: R) {
    if SLOT.get() != Slot::NotWanted {
        REQUEST.set(Some(Box::new(request)));
        SLOT.set(Slot::Given);
    }
}

/// From now on, a request that is rejected is handed back. If there are several, the last one is.
#[inline]
pub(crate) fn want() -> Wanting {
    Wanting {
        outer: SLOT.replace(Slot::Wanted),
    }
}

/// From now on, no request is handed back, until this is dropped. What was handed back before is kept.
pub(crate) fn ignore() -> Wanting {
    Wanting {
        outer: SLOT.replace(Slot::NotWanted),
    }
}

/// A guard and not a function around the call, as in [`clock::pass`](crate::clock::pass).
#[must_use = "requests are handed back until this is dropped"]
pub(crate) struct Wanting {
    /// What a layer further out wants.
    outer: Slot,
}

impl Wanting {
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        SLOT.get() == Slot::Given
    }

    /// The request that was handed back, if it is of this type.
    #[cold]
    pub(crate) fn take<R: 'static>(self) -> Option<R> {
        if !self.is_given() {
            return None; // what is there is for a layer further out
        }
        let request = REQUEST.take()?.downcast().ok()?;
        Some(*request)
    }
}

impl Drop for Wanting {
    #[inline]
    fn drop(&mut self) {
        if SLOT.replace(self.outer) == Slot::Given {
            discard();
        }
    }
}

/// It was not taken, because the inner service has panicked or has answered after all.
#[cold]
fn discard() {
    drop(REQUEST.take());
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Arc,
    };

    use super::*;

    #[test]
    fn a_request_is_handed_back_to_the_nearest_that_wants_it() {
        let outer = want();
        let inner = want();
        give(1_u8);
        give(2_u8);
        assert_eq!(inner.take(), Some(2_u8));
        assert!(!outer.is_given());
        give(4_u8);
        assert!(outer.is_given());
        assert_eq!(want().take::<u8>(), None, "it is the outer one's");
        let ignoring = ignore();
        give(5_u8);
        drop(ignoring);
        assert!(outer.is_given());
        assert_eq!(outer.take(), Some(4_u8));
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let request = Arc::new(());
        give(Arc::clone(&request));
        let wanting = want();
        give(Arc::clone(&request));
        assert_eq!(wanting.take::<u8>(), None, "it is of another type");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _wanting = want();
            give(Arc::clone(&request));
            panic!("the inner service")
        }));
        assert!(panicked.is_err());
        give(Arc::clone(&request));
        assert_eq!(Arc::strong_count(&request), 1);
    }
}
