//! The future of every layer whose requests wait after `call`, because only `call` sees the request.
//!
//! What a request waits for is a [`Waiter`]: a permit of its tenant or its key, a turn, a token.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    aside::{
        hand_back,
        handover::{self, Handover, KeptBack},
    },
    response::ResponseFuture,
};
use crate::{BoxError, Hold};

/// A request's place where it waits. Dropping it leaves, and gives back what it was granted.
pub trait Waiter {
    /// What is held for a request that was sent.
    type Held;

    /// [Sends](send) the request when it may be sent and the inner service is ready. An error ends the wait: it is rejected,
    /// or the inner service has failed.
    fn poll_send<S, R>(
        self: Pin<&mut Self>,
        inner: &mut S,
        request: &mut Option<R>,
        cx: &mut Context<'_>,
    ) -> PollSent<S::Future, Self::Held>
    where
        S: Service<R, Error: Into<BoxError>> + Clone,
        R: 'static;
}

/// Of a request that waits to be sent.
pub(crate) type PollSent<F, G> = Poll<Result<Sent<F, G>, BoxError>>;

/// A request that was handed to the inner service.
pub struct Sent<F, G> {
    future: F,
    held: G,
    kept_back: KeptBack,
}

/// Hands the request to the inner service, which is ready.
#[inline]
pub(crate) fn send<S: Service<R>, R, G>(
    inner: &mut S,
    request: &mut Option<R>,
    held: G,
) -> Sent<S::Future, G> {
    let request = request.take().expect("sent once");
    let handover = Handover::<S::Error>::begin();
    let future = inner.call(request);
    Sent {
        future,
        held,
        kept_back: handover.end(),
    }
}

pin_project! {
    /// The response of the inner service, once the request could be sent; or the rejection.
    //
    // The inner future is a parameter, and no field names it by way of `S`: to find it there the compiler would have to
    // prove `S::Error: Into<BoxError>` again where this is awaited, which it cannot do in an async block if the error is
    // a `BoxError`. See `tests/stacks/spawned.rs`.
    pub struct WaitingFuture<W, S, F, R, H> {
        #[pin]
        state: State<W, S, F, R, H>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<W, S, F, R, H> {
        Sent { #[pin] response: ResponseFuture<F, H> },
        // Boxed, which keeps the future of every request that need not wait small.
        Waits { waiting: Pin<Box<Waiting<W, S, R>>> },
        // Not in the response: every layer's future would be larger.
        Failed { error: Option<BoxError> },
    }
}

pin_project! {
    // What the inner service has reserved is given back before the permit is handed on: it is dropped first.
    struct Waiting<W, S, R> {
        inner: S,
        // Until it is sent.
        request: Option<R>,
        #[pin]
        waiter: W,
    }
}

impl<W, S, F, R, H> WaitingFuture<W, S, F, R, H> {
    /// Of a request that was sent at once.
    #[inline]
    pub(crate) fn sent(future: F, hold: H, kept_back: KeptBack) -> Self {
        let response = ResponseFuture::admitted(future, hold, kept_back);
        Self {
            state: State::Sent { response },
        }
    }

    /// Of a request that does not wait, and is not sent.
    #[inline]
    pub(crate) fn failed(error: BoxError) -> Self {
        handover::reject();
        Self {
            state: State::Failed { error: Some(error) },
        }
    }

    /// Of a request that waits from the first poll on.
    pub(crate) fn waits(waiter: W, inner: S, request: R) -> Self {
        handover::keep_back();
        let waiting = Box::pin(Waiting {
            inner,
            request: Some(request),
            waiter,
        });
        Self {
            state: State::Waits { waiting },
        }
    }
}

impl<W, S, F, R, H> Future for WaitingFuture<W, S, F, R, H>
where
    W: Waiter,
    S: Service<R, Future = F> + Clone,
    F: Future<Output = Result<S::Response, S::Error>>,
    S::Error: Into<BoxError>,
    H: Hold<S::Response> + From<W::Held>,
    R: 'static,
{
    type Output = Result<H::Response, BoxError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let StateProjection::Sent { response } = self.as_mut().project().state.project() {
            return response.poll(cx);
        }
        ready!(self.as_mut().poll_sent(cx))?;
        match self.project().state.project() {
            StateProjection::Sent { response } => response.poll(cx),
            _ => unreachable!("it was just sent"),
        }
    }
}

impl<W, S, F, R, H> WaitingFuture<W, S, F, R, H>
where
    W: Waiter,
    S: Service<R, Future = F> + Clone,
    S::Error: Into<BoxError>,
    H: From<W::Held>,
    R: 'static,
{
    /// Ready when the request was sent.
    // Out of the way of those that need not wait: `edge` takes 1414 instructions, and 1438 if this is in line.
    #[inline(never)]
    fn poll_sent(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let mut state = self.project().state;
        let waiting = match state.as_mut().project() {
            StateProjection::Waits { waiting } => waiting.as_mut().project(),
            StateProjection::Failed { error } => {
                return Poll::Ready(Err(error.take().expect("polled after it completed")));
            }
            StateProjection::Sent { .. } => return Poll::Ready(Ok(())),
        };
        match ready!(waiting.waiter.poll_send(waiting.inner, waiting.request, cx)) {
            Ok(Sent {
                future,
                held,
                kept_back,
            }) => {
                let response = ResponseFuture::admitted(future, held.into(), kept_back);
                state.set(State::Sent { response });
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                let rejected = waiting.request.take();
                // It leaves now, whatever becomes of this future, and what the inner service has reserved goes.
                state.set(State::Failed { error: None });
                if let Some(request) = rejected {
                    hand_back::give(request);
                }
                Poll::Ready(Err(error))
            }
        }
    }
}

impl<W, S, F, R, H> fmt::Debug for WaitingFuture<W, S, F, R, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingFuture").finish_non_exhaustive()
    }
}
