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

use std::{any::Any, mem::ManuallyDrop};

use super::{Telling, get, replace, tell};

/// Whether the request of the call or the poll that runs now is wanted back.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum HandBack {
    #[default]
    NotWanted,
    Wanted,
    Given,
}

/// To be called with every request that a layer rejects.
#[cold]
#[inline(never)]
pub(crate) fn give<R: 'static>(request: R) {
    if get(|told| &told.hand_back) != HandBack::NotWanted {
        let request: Box<dyn Any> = Box::new(request);
        let before = replace(|told| &told.request, Some(request));
        replace(|told| &told.hand_back, HandBack::Given);
        drop(before); // it is foreign
    }
}

/// From now on, a request that is rejected is handed back. If there are several, the last one is.
#[inline]
pub(crate) fn want() -> Wanting {
    Wanting(ManuallyDrop::new(tell(
        |told| &told.hand_back,
        HandBack::Wanted,
    )))
}

/// From now on, no request is handed back, until this is dropped. What was handed back before is kept.
pub(crate) fn ignore() -> Telling<HandBack> {
    tell(|told| &told.hand_back, HandBack::NotWanted)
}

/// A request is handed back until this is dropped.
// What is told ends in the destructor, which has to know whether a request was given: so it is not dropped again.
pub(crate) struct Wanting(ManuallyDrop<Telling<HandBack>>);

impl Wanting {
    /// Says whether a request was handed back, which is to be [taken](take) then.
    #[inline(always)]
    pub(crate) fn end(self) -> bool {
        ManuallyDrop::new(self).0.restore() == HandBack::Given
    }
}

impl Drop for Wanting {
    #[inline]
    fn drop(&mut self) {
        if self.0.restore() == HandBack::Given {
            discard();
        }
    }
}

/// The request that was handed back.
#[cold]
pub(crate) fn take() -> Option<Box<dyn Any>> {
    replace(|told| &told.request, None)
}

/// The inner service has panicked, or has answered after all.
#[cold]
fn discard() {
    drop(take());
}
