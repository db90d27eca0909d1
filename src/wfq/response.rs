//! The future of a request that may have to wait for its turn.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Wake, Waker, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower_service::Service;

use crate::{
    BoxError, Hold, ResponseFuture,
    clock::Now,
    gate::{
        aside::{
            self, LimiterId, hand_back,
            handover::{self, Handover, KeptBack},
            nested, waited,
        },
        fair::{After, Arrival, Begun, Came, End, Fair, From as CameFrom, Grant, Look, Turns},
        gate::Gate,
    },
    hold::sealed::Held,
    sync::Arc,
};

pin_project! {
    /// The response of the inner service, once it is the request's turn; or the refusal.
    //
    // The inner future is a parameter, and no field names it by way of `S`: to find it there the compiler would have to
    // prove `S::Error: Into<BoxError>` again where this is awaited, which it cannot do in an async block if the error is
    // a `BoxError`. See `tests/spawned.rs`.
    pub struct WfqResponseFuture<S, F, R, H> {
        #[pin]
        state: State<S, F, R, H>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, R, H> {
        // Boxed, which keeps the future of every request that need not wait small.
        Waiting { waiting: Pin<Box<Waiting<S, R>>> },
        Called { #[pin] response: ResponseFuture<F, H> },
        Failed { error: Option<BoxError> },
    }
}

pin_project! {
    // What the inner service has reserved is given back before the turn is passed on: it is dropped first.
    struct Waiting<S, R> {
        inner: S,
        request: Option<R>,
        #[pin]
        timer: Option<Sleep>,
        deadline: Option<Instant>,
        wakes_turn: Cached,
        place: Place,
    }
}

impl<S, F, R, H> WfqResponseFuture<S, F, R, H> {
    #[inline]
    pub(super) fn called(future: F, running: Running, kept_back: KeptBack) -> Self
    where
        H: From<Running>,
    {
        let response = ResponseFuture::admitted(future, running.into(), kept_back);
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

    pub(crate) fn waiting(inner: S, request: R, place: Place) -> Self {
        handover::keep_back();
        let waiting = Box::pin(Waiting {
            inner,
            request: Some(request),
            timer: None,
            deadline: None,
            wakes_turn: None,
            place,
        });
        Self {
            state: State::Waiting { waiting },
        }
    }
}

/// A request that was handed to the inner service.
type Sent<F> = (F, Running, KeptBack);

impl<S, R> Waiting<S, R>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
{
    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Sent<S::Future>, BoxError>> {
        loop {
            let seat = ready!(self.as_mut().poll_turn(cx))?;
            let this = self.as_mut().project();
            let waker = WakesTurn::waker(this.wakes_turn, cx.waker(), this.place, seat);
            let told = waited::poll_for(LimiterId::of(&this.place.gate));
            let polling = (Polling(this.place, seat), told);
            let polled = this.inner.poll_ready(&mut Context::from_waker(waker));
            drop(polling);
            if polled.map_err(Into::into)?.is_pending() {
                ready!(self.as_mut().poll_timer(cx, None));
                return Poll::Ready(Err(self.place.gate.time_out(&self.place.arrival)));
            }
            let mut now = Now::default();
            let (begun, after) = this.place.gate.begin(&this.place.arrival, seat, &mut now);
            match begun {
                Begun::Yes(grant, waited) => {
                    let mut running = this.place.run(grant);
                    after.run(&running.gate);
                    running.send();
                    let request = this.request.take().expect("sent once");
                    let _told = (
                        waited.tell(LimiterId::of(&running.gate)),
                        aside::tell_time(&now),
                    );
                    let handover = Handover::<S::Error>::begin();
                    let future = this.inner.call(request);
                    return Poll::Ready(Ok((future, running, handover.end())));
                }
                Begun::No => {
                    // What the inner service has reserved is for the request that has the turn now.
                    *this.inner = this.inner.clone();
                    after.run(&this.place.gate);
                }
            }
        }
    }
}

impl<S, R> Waiting<S, R> {
    /// Ready when it is its turn.
    fn poll_turn(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u32, BoxError>> {
        loop {
            let this = self.as_mut().project();
            let Place {
                gate,
                arrival,
                stage,
            } = this.place;
            let seat = match *stage {
                Stage::Waits(seat) => seat,
                Stage::Arrived => {
                    nested::check(LimiterId::of(gate), gate.bounds.name());
                    let entered = gate.enter(arrival, cx.waker().clone());
                    let entered = entered.map_err(|rejected| rejected as BoxError)?;
                    *stage = Stage::Waits(entered.seat);
                    entered.after.run(gate);
                    let max_wait = gate.bounds.max_wait();
                    *this.deadline = max_wait.map(|max_wait| sleep(max_wait).deadline());
                    entered.seat
                }
                Stage::Gone => panic!("polled after it completed"),
            };
            match gate.look_for_turn(arrival, seat, cx.waker()) {
                Look::Turn => return Poll::Ready(Ok(seat)),
                Look::Rejected(rejected) => {
                    *stage = Stage::Gone;
                    return Poll::Ready(Err(rejected));
                }
                Look::Wait(look_again) => {
                    if ready!(self.as_mut().poll_timer(cx, Some(look_again))) {
                        let Place { gate, arrival, .. } = &self.place;
                        return Poll::Ready(Err(gate.time_out(arrival)));
                    }
                }
            }
        }
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

impl<S, F, R, H> Future for WfqResponseFuture<S, F, R, H>
where
    S: Service<R, Future = F> + Clone,
    F: Future<Output = Result<S::Response, S::Error>>,
    S::Error: Into<BoxError>,
    H: Hold<S::Response> + From<Running>,
    R: 'static,
{
    type Output = Result<H::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let (future, running, kept_back) = match state.as_mut().project() {
                StateProjection::Called { response } => return response.poll(cx),
                StateProjection::Waiting { waiting } => match ready!(waiting.as_mut().poll(cx)) {
                    Ok(sent) => sent,
                    Err(error) => {
                        let rejected = waiting.as_mut().project().request.take();
                        // It leaves now, whatever becomes of this future: others wait for its turn.
                        state.set(State::Failed { error: None });
                        if let Some(request) = rejected {
                            hand_back::give(request);
                        }
                        return Poll::Ready(Err(error));
                    }
                },
                StateProjection::Failed { error } => {
                    return Poll::Ready(Err(error.take().expect("polled after it completed")));
                }
            };
            let response = ResponseFuture::admitted(future, running.into(), kept_back);
            state.set(State::Called { response });
        }
    }
}

impl<S, F, R, H> fmt::Debug for WfqResponseFuture<S, F, R, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WfqResponseFuture").finish_non_exhaustive()
    }
}

/// A request's place at the gate, until it is sent. Dropping it leaves.
pub(crate) struct Place {
    gate: Arc<Gate<Fair<Turns>>>,
    arrival: Arrival,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Arrived,
    /// For its turn, or with it.
    Waits(u32),
    Gone,
}

impl Place {
    pub(crate) fn new(gate: Arc<Gate<Fair<Turns>>>, arrival: Arrival) -> Self {
        Self {
            gate,
            arrival,
            stage: Stage::Arrived,
        }
    }

    fn run(&mut self, grant: Grant) -> Running {
        self.stage = Stage::Gone;
        Running::new(Arc::clone(&self.gate), grant)
    }
}

/// If the inner service panics while it is polled, the future may yet be kept: its turn is one that nobody uses.
struct Polling<'a>(&'a Place, u32);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.gate.note_woken(self.1);
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

/// A request that its tenant is charged for. Dropping it settles that.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
pub struct Running {
    gate: Arc<Gate<Fair<Turns>>>,
    /// Until it is settled.
    grant: Option<Grant>,
    end: End,
}

impl Running {
    #[inline]
    pub(super) fn new(gate: Arc<Gate<Fair<Turns>>>, grant: Grant) -> Self {
        Self {
            gate,
            grant: Some(grant),
            end: End::NotSent,
        }
    }

    /// It is sent now.
    #[inline]
    pub(super) fn send(&mut self) {
        self.end = End::Served;
    }

    /// It was not sent after all, and has to wait.
    pub(super) fn take_back(mut self, from: CameFrom) -> (Came, After) {
        let grant = self.grant.take().expect("it has not ended");
        self.gate.take_back(grant, from)
    }
}

impl Drop for Running {
    #[inline]
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.gate.over(grant, self.end, &mut Now::default());
        }
    }
}

impl Held for Running {
    fn limiter(&self) -> Option<LimiterId> {
        Some(LimiterId::of(&self.gate))
    }

    fn failed(mut self, error: &BoxError) {
        self.end = End::of(error);
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Running").field(&self.grant).finish()
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
    fn waker<'a>(cached: &'a mut Cached, task: &Waker, place: &Place, seat: u32) -> &'a Waker {
        if !(cached.as_ref()).is_some_and(|(_, of)| of.will_wake(task)) {
            let wakes = Self {
                gate: Arc::clone(&place.gate),
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
