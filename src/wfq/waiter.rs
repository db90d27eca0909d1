//! A request that waits for its turn.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Wake, Waker, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower_service::Service;

use crate::{
    BoxError, Overloaded,
    clock::Now,
    gate::{
        aside::{self, LimiterId, waited},
        fair::{
            After, Arrival, Begun, End, Fair, From as CameFrom, Grant, Granted, Look, Place, Turns,
            Urgency,
        },
        gate::Gate,
        waiting::{PollSent, Waiter, WaitingFuture, send},
    },
    hold::sealed::Held,
    sync::Arc,
};

/// The response of the inner service, once it is the request's turn; or the rejection.
pub type WfqResponseFuture<S, F, R, H> = WaitingFuture<ForTurn, S, F, R, H>;

pin_project! {
    /// A request that waits for its turn.
    #[allow(unnameable_types, reason = "it is waited for, and nothing else can be done with it")]
    pub struct ForTurn {
        #[pin]
        timer: Option<Sleep>,
        deadline: Option<Instant>,
        wakes_turn: Cached,
        place: Place<Turns>,
    }
}

impl ForTurn {
    pub(super) fn new(place: Place<Turns>) -> Self {
        Self {
            timer: None,
            deadline: None,
            wakes_turn: None,
            place,
        }
    }

    /// Ready when it is its turn.
    fn poll_turn(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u32, BoxError>> {
        loop {
            let this = self.as_mut().project();
            let deadline = this.deadline;
            let (seat, _) = this.place.seat(cx, |gate, arrival| {
                let longest = gate.longest_wait(arrival);
                *deadline = longest.map(|wait| sleep(wait).deadline());
            })?;
            let (gate, arrival) = (this.place.gate(), this.place.arrival());
            match gate.look_for_turn(arrival, seat, cx.waker()) {
                Look::Turn => return Poll::Ready(Ok(seat)),
                Look::Rejected(rejected) => {
                    this.place.gone();
                    return Poll::Ready(Err(rejected));
                }
                Look::Wait(look_again) => {
                    if ready!(self.as_mut().poll_timer(cx, Some(look_again))) {
                        return Poll::Ready(Err(self.time_out()));
                    }
                }
            }
        }
    }

    fn time_out(&self) -> BoxError {
        self.place.gate().time_out(self.place.arrival())
    }

    /// Ready when the deadline is over (true), or when it is time to look again (false), if that is asked for.
    /// One timer does for both.
    fn poll_timer(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        look_again: Option<Duration>,
    ) -> Poll<bool> {
        let this = self.project();
        let mut timer = this.timer;
        loop {
            let armed = (timer.as_ref().as_pin_ref()).is_some_and(|timer| !timer.is_elapsed());
            if !armed {
                let look_again = look_again.map(|after| sleep(after).deadline());
                let Some(at) = (*this.deadline).into_iter().chain(look_again).min() else {
                    return Poll::Pending;
                };
                match timer.as_mut().as_pin_mut() {
                    Some(timer) => timer.reset(at),
                    None => timer.set(Some(sleep_until(at))),
                }
            }
            let mut armed = timer.as_mut().as_pin_mut().expect("armed");
            ready!(armed.as_mut().poll(cx));
            if (*this.deadline).is_some_and(|deadline| armed.deadline() >= deadline) {
                return Poll::Ready(true);
            }
            // It may have been set to look again before it was its turn: then only the deadline is left.
            if look_again.is_some() {
                return Poll::Ready(false);
            }
        }
    }
}

impl Waiter for ForTurn {
    type Held = Running;

    fn poll_send<S, R>(
        mut self: Pin<&mut Self>,
        inner: &mut S,
        request: &mut Option<R>,
        cx: &mut Context<'_>,
    ) -> PollSent<S::Future, Running>
    where
        S: Service<R, Error: Into<BoxError>> + Clone,
        R: 'static,
    {
        loop {
            let seat = ready!(self.as_mut().poll_turn(cx))?;
            let this = self.as_mut().project();
            let place = this.place;
            let id = place.id();
            let waker = WakesTurn::waker(this.wakes_turn, cx.waker(), place.gate(), seat);
            let polling = (Polling(place.gate(), seat), waited::poll_for(id));
            let polled = inner.poll_ready(&mut Context::from_waker(waker));
            drop(polling);
            if polled.map_err(Into::into)?.is_pending() {
                ready!(self.as_mut().poll_timer(cx, None));
                return Poll::Ready(Err(self.time_out()));
            }
            let mut now = Now::default();
            let (begun, after) = place.gate().begin(place.arrival(), seat, &mut now);
            match begun {
                Begun::Yes(grant, waited) => {
                    let mut running = Running(place.granted(grant));
                    after.run(place.gate());
                    running.send();
                    let _told = (waited.tell(id), aside::tell_time(&now));
                    return Poll::Ready(Ok(send(inner, request, running)));
                }
                Begun::Rejected(rejection) => {
                    *inner = inner.clone(); // what it has reserved is for others
                    return Poll::Ready(Err(rejection));
                }
                Begun::No => {
                    // What the inner service has reserved is for the request that has the turn now.
                    *inner = inner.clone();
                    after.run(place.gate());
                }
            }
        }
    }
}

/// If the inner service panics while it is polled, the future may yet be kept: its turn is one that nobody uses.
struct Polling<'a>(&'a Gate<Fair<Turns>>, u32);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.note_woken(self.1);
        }
    }
}

/// A request that its tenant is charged for. Dropping it settles that.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
#[derive(Debug)]
pub struct Running(Granted<Turns>);

impl Running {
    #[inline]
    pub(super) fn new(gate: Arc<Gate<Fair<Turns>>>, grant: Grant) -> Self {
        Self(Granted::new(gate, grant))
    }

    /// It is sent now.
    #[inline]
    pub(super) fn send(&mut self) {
        self.0.end = End::Served;
    }

    /// It was not sent after all, and has to wait.
    pub(super) fn take_back(
        mut self,
        from: CameFrom,
        urgency: Urgency,
    ) -> (Result<Arrival, Box<Overloaded>>, After) {
        let grant = self.0.take().expect("it has not ended");
        self.0.gate().take_back(grant, from, urgency)
    }
}

impl Held for Running {
    fn limiter(&self) -> Option<LimiterId> {
        Some(LimiterId::of(self.0.gate()))
    }

    fn failed(mut self, error: &BoxError) {
        self.0.end = End::of(error);
    }
}

/// Wakes the task of a request whose turn it is, and lets the gate know that it was woken: if it is not
/// polled then, the turn is not used.
struct WakesTurn {
    gate: Arc<Gate<Fair<Turns>>>,
    seat: u32,
    task: Waker,
}

/// The waker of one, and the task's own.
type Cached = Option<(Waker, Waker)>;

impl WakesTurn {
    fn waker<'a>(
        cached: &'a mut Cached,
        task: &Waker,
        gate: &Arc<Gate<Fair<Turns>>>,
        seat: u32,
    ) -> &'a Waker {
        if !(cached.as_ref()).is_some_and(|(_, of)| of.will_wake(task)) {
            let wakes = Self {
                gate: Arc::clone(gate),
                seat,
                task: task.clone(),
            };
            *cached = Some((Waker::from(std::sync::Arc::new(wakes)), task.clone()));
        }
        let (waker, _) = cached.as_ref().expect("made above");
        waker
    }
}

impl Wake for WakesTurn {
    fn wake(self: std::sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        self.gate.note_woken(self.seat);
        self.task.wake_by_ref();
    }
}
