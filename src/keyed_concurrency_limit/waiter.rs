//! A request that waits for a permit of its key.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tower_service::Service;

use crate::{
    BoxError, Overloaded,
    gate::{
        aside::nested,
        claim::Claim,
        gate::Gate,
        keyed_gates::{Place, Serving},
        waiting::{PollSent, Waiter, WaitingFuture, send},
    },
    hold::sealed::Held,
};

/// The response of the inner service, once the request has a permit of its key; or the rejection.
pub type KeyedLimitResponseFuture<S, F, R, H> = WaitingFuture<ForPermit, S, F, R, H>;

/// A request that waits for a permit of its key.
#[allow(
    unnameable_types,
    reason = "it is waited for, and nothing else can be done with it"
)]
pub struct ForPermit {
    // The permit is given back before the place.
    claim: Claim<Gate>,
    /// Until it is sent, or rejected.
    place: Option<Place>,
}

impl ForPermit {
    /// Waits from now on, unless there is no room.
    pub(super) fn new(mut place: Place) -> Result<Self, Box<Overloaded>> {
        Ok(Self {
            claim: place.wait()?,
            place: Some(place),
        })
    }
}

impl Waiter for ForPermit {
    type Held = Serving;

    fn poll_send<S, R>(
        self: Pin<&mut Self>,
        inner: &mut S,
        request: &mut Option<R>,
        cx: &mut Context<'_>,
    ) -> PollSent<S::Future, Serving>
    where
        S: Service<R, Error: Into<BoxError>> + Clone,
        R: 'static,
    {
        let this = self.get_mut();
        ready!(this.claim.poll_ready(inner, cx))?;
        let mut place = this.place.take().expect("polled after it completed");
        if let Err(rejection) = this.claim.take() {
            place.refused(&rejection);
            return Poll::Ready(Err(rejection));
        }
        let mut serving = place.admitted();
        serving.send();
        let _held = nested::hold(|| serving.limiter());
        Poll::Ready(Ok(send(inner, request, serving)))
    }
}
