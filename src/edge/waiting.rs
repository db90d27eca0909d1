//! A request that waits for a permit of its edge.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::{admitted::Admitted, service::make_ready};
use crate::{
    BoxError, LoadShed,
    clock::Now,
    gate::{
        aside::{
            LimiterId,
            handover::{Handover, KeptBack},
            nested,
        },
        fair::{Arrival, Fair, Fate, Grant},
        gate::Gate,
    },
    sync::Arc,
};

pin_project! {
    // What the inner service has reserved is given back before the permit is handed on: it is dropped first.
    pub(super) struct Waiting<S, R> {
        inner: LoadShed<S>,
        request: Option<R>,
        // Where the wait is bounded, from the first poll on.
        #[pin]
        timer: Option<Sleep>,
        place: Place,
    }
}

/// A request that was handed to the inner service.
pub(super) type Sent<F> = (F, Admitted, KeptBack);

impl<S, R> Waiting<S, R> {
    pub(super) fn new(inner: LoadShed<S>, request: R, place: Place) -> Self {
        Self {
            inner,
            request: Some(request),
            timer: None,
            place,
        }
    }

    /// Takes the request back that was not sent.
    pub(super) fn take_request(self: Pin<&mut Self>) -> Option<R> {
        self.project().request.take()
    }

    /// Sends the request once it has a permit.
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Sent<S::Future>, BoxError>>
    where
        S: Service<R> + Clone,
        S::Error: Into<BoxError>,
        R: 'static,
    {
        let grant = ready!(self.as_mut().poll_place(cx))?;
        let this = self.project();
        let admitted = Admitted::new(Arc::clone(&this.place.gate), grant);
        let admitted = make_ready::<S, R>(this.inner, admitted, &mut Now::default())?;
        let request = this.request.take().expect("sent once");
        let handover = Handover::<S::Error>::begin();
        let future = this.inner.get_mut().call(request);
        Poll::Ready(Ok((future, admitted, handover.end())))
    }

    fn poll_place(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Grant, BoxError>> {
        let this = self.project();
        let (place, mut timer) = (this.place, this.timer);
        let mut is_decided = true;
        let seat = match place.stage {
            Stage::Waits(seat) => seat,
            Stage::Arrived => {
                let bounds = &place.gate.bounds;
                nested::check(LimiterId::of(&place.gate), bounds.name());
                let entered = place.gate.enter(&place.arrival, cx.waker().clone())?;
                place.stage = Stage::Waits(entered.seat);
                timer.set(bounds.max_wait().map(sleep));
                is_decided = entered.is_decided;
                entered.after.run(&place.gate);
                entered.seat
            }
            Stage::Gone => panic!("polled after it completed"),
        };
        let mut fate = Fate::Waits;
        if is_decided {
            fate = place.gate.look(&place.arrival, seat, cx.waker());
        }
        if let (Fate::Waits, Some(timer)) = (&fate, timer.as_pin_mut()) {
            ready!(timer.poll(cx));
            fate = place.gate.expire(&place.arrival, seat);
        }
        let decided = match fate {
            Fate::Waits => return Poll::Pending,
            Fate::Goes(grant) => Ok(grant),
            Fate::Rejected(rejection) => Err(rejection as BoxError),
        };
        place.stage = Stage::Gone;
        Poll::Ready(decided)
    }
}

/// A request's place at the gate, until it is admitted or rejected. Dropping it leaves.
pub(super) struct Place {
    gate: Arc<Gate<Fair>>,
    arrival: Arrival,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// It waits from its first poll on: until then it is in nobody's way.
    Arrived,
    Waits(u32),
    Gone,
}

impl Place {
    pub(super) fn new(gate: Arc<Gate<Fair>>, arrival: Arrival) -> Self {
        Self {
            gate,
            arrival,
            stage: Stage::Arrived,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.stage {
            Stage::Arrived => self.gate.depart(&self.arrival),
            Stage::Waits(seat) => self.gate.leave(&self.arrival, seat),
            Stage::Gone => {}
        }
    }
}
