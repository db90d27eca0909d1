//! A request that waits for a permit of its edge.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::{admitted::Admitted, service::make_ready};
use crate::{
    BoxError,
    clock::Now,
    gate::{
        ages::Ages,
        fair::{Fate, Granted, Place},
        waiting::{PollSent, Waiter, send},
    },
};

pin_project! {
    /// A request that waits for a permit of its edge.
    #[allow(unnameable_types, reason = "it is waited for, and nothing else can be done with it")]
    pub struct ForPermit {
        // Where the wait is bounded, from the first poll on.
        #[pin]
        timer: Option<Sleep>,
        place: Place<Ages>,
    }
}

impl ForPermit {
    pub(super) fn new(place: Place<Ages>) -> Self {
        Self { timer: None, place }
    }

    #[inline]
    fn poll_granted(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Granted<Ages>, BoxError>> {
        let this = self.project();
        let (place, mut timer) = (this.place, this.timer);
        let (seat, may_be_decided) = place.seat(cx, |gate, arrival| {
            timer.set(gate.longest_wait(arrival).map(sleep));
        })?;
        let (gate, arrival) = (place.gate(), place.arrival());
        let mut fate = Fate::Waits;
        if may_be_decided {
            fate = gate.look(arrival, seat, cx.waker());
        }
        if let (Fate::Waits, Some(timer)) = (&fate, timer.as_pin_mut()) {
            ready!(timer.poll(cx));
            fate = gate.expire(arrival, seat);
        }
        match fate {
            Fate::Waits => Poll::Pending,
            Fate::Goes(grant) => Poll::Ready(Ok(place.granted(grant))),
            Fate::Rejected(rejection) => {
                place.gone();
                Poll::Ready(Err(rejection))
            }
        }
    }
}

impl Waiter for ForPermit {
    type Held = Admitted;

    #[inline]
    fn poll_send<S, R>(
        self: Pin<&mut Self>,
        inner: &mut S,
        request: &mut Option<R>,
        cx: &mut Context<'_>,
    ) -> PollSent<S::Future, Admitted>
    where
        S: Service<R, Error: Into<BoxError>> + Clone,
        R: 'static,
    {
        let granted = ready!(self.poll_granted(cx))?;
        let admitted = make_ready(inner, granted.into(), &mut Now::default())?;
        Poll::Ready(Ok(send(inner, request, admitted)))
    }
}
