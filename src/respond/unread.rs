//! Reads and discards the body of a rejected HTTP/1 request before it is answered.
//!
//! A server that answers an HTTP/1 request before it has read the whole body cannot use the connection again: it closes
//! it. A client that is still writing then gets a broken pipe or a reset, and most clients report that instead of the
//! answer. On HTTP/2 and later, a stream can be answered and reset without harm.

use std::{
    future::Future,
    mem,
    panic::catch_unwind,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Buf;
use http::{HeaderMap, Request, Version, header::EXPECT};
use http_body::Body;
use tokio::{
    runtime::Handle,
    time::{Sleep, sleep},
};

use crate::gate::aside::hand_back::{self, Wanting};

/// How much of a body is read, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl Default for Bounds {
    /// 64 KiB is more than nearly all calls of an API have, and no more than a socket's buffers hold anyway. 100 ms is
    /// a round trip across an ocean: a client that has not sent the rest by then is slow, and may lose the answer.
    fn default() -> Self {
        Self {
            bytes: 64 << 10,
            time: Duration::from_millis(100),
        }
    }
}

/// Whether the body of this request may have to be read if the request is rejected. Every request pays for this.
#[inline]
pub(crate) fn is_unread<B: Body>(request: &Request<B>) -> bool {
    request.version() < Version::HTTP_2 && !request.body().is_end_stream()
}

/// The request, if a layer further in has rejected it and handed it back.
///
/// Does not unwind. If it could, what the inner service has returned would be copied once more: `respond, POST` takes 1030
/// instructions and would take 1055, in a router 7420 and 7491.
#[inline(always)]
pub(super) fn handed_back<B: 'static>(wanting: Wanting) -> Option<Box<Request<B>>> {
    match wanting.end() {
        true => take(),
        false => None,
    }
}

/// `extern "C"` tells the compiler that nothing unwinds. A panic would end the process, so none gets that far: the
/// destructor of a request of another type may panic.
#[cold]
#[inline(never)]
extern "C" fn take<B: 'static>() -> Option<Box<Request<B>>> {
    let taken = catch_unwind(|| hand_back::take()?.downcast().ok());
    taken.unwrap_or_else(|panic| {
        mem::forget(panic); // dropping it may panic too
        None
    })
}

/// The same, kept there.
#[cold]
pub(super) fn keep<B: 'static>(wanting: Option<Wanting>, to: &mut Option<Box<Request<B>>>) {
    if let Some(request) = wanting.and_then(handed_back) {
        *to = Some(request);
    }
}

/// A body that is read to be discarded.
pub(super) struct Unread<B> {
    body: Pin<Box<B>>,
    bounds: Bounds,
    /// From the first time that there is nothing to read.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B: Body> Unread<B> {
    /// `None` if there is nothing to read, or if reading does not help: more is announced than would be read, or the
    /// client waits for permission to send the body, which it would get if the body were read.
    pub(super) fn of(request: Request<B>, bounds: Bounds) -> Option<Self> {
        let useful = is_unread(&request)
            && request.body().size_hint().lower() <= bounds.bytes
            && !expects_continue(request.headers());
        useful.then(|| Self {
            body: Box::pin(request.into_body()),
            bounds,
            timer: None,
        })
    }

    /// Ready when the body is at its end, or one of the bounds is reached.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(frame) = self.body.as_mut().poll_frame(cx) {
            let Some(Ok(frame)) = frame else {
                return Poll::Ready(());
            };
            // A frame without bytes counts too: there may be no end of them.
            let read = frame.data_ref().map_or(1, |data| data.remaining().max(1));
            let left = self.bounds.bytes.checked_sub(read as u64);
            match left {
                Some(left) if !self.body.is_end_stream() => self.bounds.bytes = left,
                _ => return Poll::Ready(()),
            }
        }
        if self.timer.is_none() && Handle::try_current().is_err() {
            return Poll::Ready(()); // without a runtime there is no timer to wait with
        }
        let time = self.bounds.time;
        let timer = (self.timer).get_or_insert_with(|| Box::pin(sleep(time)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(())
    }
}

fn expects_continue(headers: &HeaderMap) -> bool {
    let expected = headers.get(EXPECT);
    expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::panic::panic_any;

    use super::*;

    #[test]
    fn a_request_of_another_type_is_dropped_even_if_that_panics() {
        struct PanicsWhenDropped;
        impl Drop for PanicsWhenDropped {
            fn drop(&mut self) {
                panic_any(());
            }
        }
        let wanting = hand_back::want();
        hand_back::give(PanicsWhenDropped);
        assert!(handed_back::<String>(wanting).is_none());
        let wanting = hand_back::want();
        hand_back::give(Request::new(String::from("body")));
        let request = handed_back::<String>(wanting).expect("it is of this type");
        assert_eq!(request.body(), "body");
    }
}
