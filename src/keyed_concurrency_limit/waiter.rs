//! A request that waits for a permit of its key.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::time::{Sleep, sleep_until};
use tower_service::Service;

use crate::{
    BoxError, Deadline, Overloaded,
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
    deadline: Option<Deadline>,
    /// Set to the deadline, once it has to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ForPermit {
    /// Waits from now on, unless there is no room.
    pub(super) fn new(
        mut place: Place,
        deadline: Option<Deadline>,
    ) -> Result<Self, Box<Overloaded>> {
        Ok(Self {
            claim: place.wait()?,
            place: Some(place),
            deadline,
            timer: None,
        })
    }

    /// Whether its deadline has passed; wakes the task when it does, if it has to wait.
    fn has_expired(&mut self, waits: bool, cx: &mut Context<'_>) -> bool {
        let Some(deadline) = self.deadline else {
            return false;
        };
        if !waits {
            return deadline.has_passed();
        }
        let sleep = || Box::pin(sleep_until(deadline.instant()));
        let timer = self.timer.get_or_insert_with(sleep);
        timer.as_mut().poll(cx).is_ready()
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
        let polled = this.claim.poll_ready(inner, cx);
        if !matches!(polled, Poll::Ready(Err(_))) && this.has_expired(polled.is_pending(), cx) {
            // What it may have been granted goes on when this is dropped, after what the inner service has reserved.
            let place = this.place.as_mut().expect("polled after it completed");
            return Poll::Ready(Err(place.expire()));
        }
        ready!(polled)?;
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
