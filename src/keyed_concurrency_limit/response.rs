//! The future of a request that may have to wait for others of its key.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    BoxError, Hold, ResponseFuture,
    gate::{
        aside::{
            hand_back,
            handover::{self, Handover, KeptBack},
            nested,
        },
        claim::Claim,
        gate::Gate,
        keyed_gates::{Place, Serving},
    },
    hold::sealed::Held,
};

pin_project! {
    /// The response of the inner service, once it is the request's turn; or the refusal.
    //
    // The inner future is a parameter, and no field names it by way of `S`: to find it there the compiler would have to
    // prove `S::Error: Into<BoxError>` again where this is awaited, which it cannot do in an async block if the error is
    // a `BoxError`. See `tests/spawned.rs`.
    pub struct KeyedLimitResponseFuture<S, F, R, H> {
        #[pin]
        state: State<S, F, R, H>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, R, H> {
        // Boxed, which keeps the future of every request that need not wait small.
        Waiting { waiting: Box<Waiting<S, R>> },
        Called { #[pin] response: ResponseFuture<F, H> },
        Failed { error: Option<BoxError> },
    }
}

/// What the inner service has reserved is given back before the permit, and the permit before the place:
/// they are dropped in this order.
struct Waiting<S, R> {
    inner: S,
    claim: Claim<Gate>,
    /// Until it is sent.
    request: Option<(R, Place)>,
}

/// A request that was handed to the inner service.
type Sent<F> = (F, Serving, KeptBack);

impl<S, F, R, H> KeyedLimitResponseFuture<S, F, R, H> {
    #[inline]
    pub(super) fn called(future: F, serving: Serving, kept_back: KeptBack) -> Self
    where
        H: From<Serving>,
    {
        let response = ResponseFuture::admitted(future, serving.into(), kept_back);
        Self {
            state: State::Called { response },
        }
    }

    pub(super) fn failed(error: BoxError) -> Self {
        handover::reject();
        Self {
            state: State::Failed { error: Some(error) },
        }
    }

    pub(super) fn waiting(inner: S, request: R, mut place: Place) -> Self
    where
        R: 'static,
    {
        let claim = match place.wait() {
            Ok(claim) => claim,
            Err(refusal) => {
                hand_back::give(request);
                return Self::failed(refusal);
            }
        };
        handover::keep_back();
        let waiting = Box::new(Waiting {
            inner,
            claim,
            request: Some((request, place)),
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
    R: 'static,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Sent<S::Future>, BoxError>> {
        ready!(self.claim.poll_ready(&mut self.inner, cx))?;
        let (request, mut place) = self.request.take().expect("polled after it completed");
        if let Err(refusal) = self.claim.take() {
            place.refused(&refusal);
            hand_back::give(request);
            return Poll::Ready(Err(refusal));
        }
        let mut serving = place.admitted();
        serving.send();
        let held = nested::hold(|| serving.limiter());
        let handover = Handover::<S::Error>::begin();
        let future = self.inner.call(request);
        drop(held);
        Poll::Ready(Ok((future, serving, handover.end())))
    }
}

impl<S, F, R, H> Future for KeyedLimitResponseFuture<S, F, R, H>
where
    S: Service<R, Future = F>,
    F: Future<Output = Result<S::Response, S::Error>>,
    S::Error: Into<BoxError>,
    H: Hold<S::Response> + From<Serving>,
    R: 'static,
{
    type Output = Result<H::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let (future, serving, kept_back) = match state.as_mut().project() {
                StateProjection::Called { response } => return response.poll(cx),
                StateProjection::Waiting { waiting } => match ready!(waiting.poll(cx)) {
                    Ok(sent) => sent,
                    Err(error) => {
                        let rejected = waiting.request.take();
                        // It leaves now, whatever becomes of this future.
                        state.set(State::Failed { error: None });
                        if let Some((request, place)) = rejected {
                            drop(place);
                            hand_back::give(request);
                        }
                        return Poll::Ready(Err(error));
                    }
                },
                StateProjection::Failed { error } => {
                    return Poll::Ready(Err(error.take().expect("polled after it completed")));
                }
            };
            let response = ResponseFuture::admitted(future, serving.into(), kept_back);
            state.set(State::Called { response });
        }
    }
}

impl<S, F, R, H> fmt::Debug for KeyedLimitResponseFuture<S, F, R, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimitResponseFuture")
            .finish_non_exhaustive()
    }
}
