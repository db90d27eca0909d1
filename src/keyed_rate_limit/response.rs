//! The future of a request that may have to wait for its token.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::PutBack;
use crate::{
    BoxError, ResponseFuture,
    gate::aside::{
        hand_back,
        handover::{self, Handover, KeptBack},
    },
};

pin_project! {
    /// The response of the inner service, once its turn has come; or the refusal.
    //
    // The inner future is a parameter, and no field names it by way of `S`: to find it there the compiler would have to
    // prove `S::Error: Into<BoxError>` again where this is awaited, which it cannot do in an async block if the error is
    // a `BoxError`. See `tests/spawned.rs`.
    pub struct KeyedResponseFuture<S, F, R> {
        #[pin]
        state: State<S, F, R>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, R> {
        // Boxed, which keeps the future of every request that need not wait small.
        Waiting { waiting: Box<Waiting<S, R>> },
        Called { #[pin] response: ResponseFuture<F, ()> },
    }
}

struct Waiting<S, R> {
    timer: Pin<Box<Sleep>>,
    /// Until the token is there.
    put_back: Option<PutBack>,
    inner: S,
    request: Option<R>,
}

impl<S, F, R> From<ResponseFuture<F, ()>> for KeyedResponseFuture<S, F, R> {
    #[inline]
    fn from(response: ResponseFuture<F, ()>) -> Self {
        Self {
            state: State::Called { response },
        }
    }
}

impl<S, F, R> KeyedResponseFuture<S, F, R> {
    pub(super) fn waiting(wait: Duration, put_back: PutBack, inner: S, request: R) -> Self {
        handover::keep_back();
        let waiting = Box::new(Waiting {
            timer: Box::pin(sleep(wait)),
            put_back: Some(put_back),
            inner,
            request: Some(request),
        });
        Self {
            state: State::Waiting { waiting },
        }
    }
}

impl<S, R> Waiting<S, R>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(S::Future, KeptBack), BoxError>> {
        if let Some(put_back) = &mut self.put_back {
            ready!(self.timer.as_mut().poll(cx));
            put_back.disarm();
            self.put_back = None;
        }
        ready!(self.inner.poll_ready(cx)).map_err(Into::into)?;
        let request = self.request.take().expect("sent once");
        let handover = Handover::<S::Error>::begin();
        let future = self.inner.call(request);
        Poll::Ready(Ok((future, handover.end())))
    }
}

impl<S, F, R> Future for KeyedResponseFuture<S, F, R>
where
    S: Service<R, Future = F>,
    F: Future<Output = Result<S::Response, S::Error>>,
    S::Error: Into<BoxError>,
    R: 'static,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let (future, kept_back) = match state.as_mut().project() {
                StateProjection::Called { response } => return response.poll(cx),
                StateProjection::Waiting { waiting } => match ready!(waiting.poll(cx)) {
                    Ok(future) => future,
                    Err(error) => {
                        if let Some(request) = waiting.request.take() {
                            hand_back::give(request);
                        }
                        return Poll::Ready(Err(error));
                    }
                },
            };
            let response = ResponseFuture::admitted(future, (), kept_back);
            state.set(State::Called { response });
        }
    }
}

impl<S, F, R> fmt::Debug for KeyedResponseFuture<S, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedResponseFuture")
            .finish_non_exhaustive()
    }
}
