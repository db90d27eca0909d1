//! The layers of an edge that decide, as one service.
//!
//! It asks the gates of its layers in the order in which the layers would, one inside the other, and what it
//! decides is what they would decide. But nearly all requests need not wait, and for those this is a shorter way:
//! there is one pointer to be counted instead of three, for the service and again for the request; the clock is
//! looked at once when a request comes and once when it is answered; and there is one future around the inner
//! service's, where each layer would copy the request and the response once more. A request that has to wait goes
//! through the layers themselves.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    AdaptiveConcurrency, AdaptiveConcurrencyLayer, BoxError, ByStatus, Classify, CoDel, CoDelLayer,
    Hold, LoadShed, LoadShedLayer, Permit, ResponseFuture, UntilBodyEnd, UntilResponse, Waited,
    WfqLayer,
    admission::{
        claim::Limiter,
        fair_gate::{Arrival, Arrived, End, FairGate},
        governor::Dispatched,
        hand_back,
        handover::{self, Handover, KeptBack},
        nested::LimiterId,
        shed,
    },
    algorithm::fair_queue::Charge,
    clock::Now,
    hold::{HeldBody, HoldKind, sealed::Sealed},
    submitted_at::{self, ExtractSubmittedAt},
    sync::Arc,
    wfq::{ExtractTenant, Fair, FromExtension, Place, Running, WfqResponseFuture},
};

/// The layers of an [`Edge`](super::Edge) that decide: all but the one that answers. Made by
/// [`Edge::gates`](super::Edge::gates).
pub struct Gates<E = FromExtension, H: HoldKind = UntilResponse> {
    parts: Arc<Parts<E, H>>,
}

pub(super) struct Parts<E, H: HoldKind> {
    pub(super) wfq: WfqLayer<E, H::Of<Running>>,
    pub(super) codel: CoDelLayer,
    pub(super) adaptive: AdaptiveConcurrencyLayer<ByStatus, H::Of<Permit>>,
}

impl<E, H: HoldKind> Parts<E, H> {
    fn fair(&self) -> &Arc<FairGate> {
        &self.wfq.fair().gate
    }

    /// Queues or rejects a request that cannot start now.
    #[cold]
    fn stop(&self, arrived: Arrived) -> Admission<E, H> {
        match arrived {
            Arrived::Waits(arrival) => {
                Admission::Waits(Place::new(Arc::clone(self.fair()), arrival))
            }
            Arrived::Refused(refusal) => Admission::Failed(refusal),
            Arrived::Begins(..) => unreachable!("it was found to have to wait"),
        }
    }

    /// The fair queue would have let it begin, but the adaptive limit is reached: it has to wait.
    #[cold]
    fn take_back(&self, arrival: Arrival, charge: Charge) -> Admission<E, H> {
        let (arrived, wakes) = self.fair().take_back(arrival, charge);
        let stopped = self.stop(arrived);
        wakes.wake();
        self.codel.gate().inner_pending();
        stopped
    }
}

impl<E, H: HoldKind> Gates<E, H> {
    pub(super) fn new(parts: Parts<E, H>) -> Self {
        Self {
            parts: Arc::new(parts),
        }
    }

    pub(super) fn parts(&self) -> &Parts<E, H> {
        &self.parts
    }
}

impl<S, E, H: HoldKind> Layer<S> for Gates<E, H> {
    type Service = GatesService<S, E, H>;

    fn layer(&self, inner: S) -> Self::Service {
        GatesService {
            inner: LoadShedLayer::new().layer(inner),
            gates: self.clone(),
        }
    }
}

/// A service behind the gates of an edge. Made by [`Gates`].
pub struct GatesService<S, E = FromExtension, H: HoldKind = UntilResponse> {
    pub(super) inner: LoadShed<S>,
    gates: Gates<E, H>,
}

/// What is inside the fair queue for a request that has to wait.
pub(super) type Admitted<S, H> =
    CoDel<AdaptiveConcurrency<LoadShed<S>, ByStatus, <H as HoldKind>::Of<Permit>>>;

/// The way of a request that has to wait.
pub(super) type LongWay<S, R, H> = WfqResponseFuture<
    Admitted<S, H>,
    <Admitted<S, H> as Service<R>>::Future,
    R,
    <H as HoldKind>::Of<Running>,
>;

impl<S, R, E, H> Service<R> for GatesService<S, E, H>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    E: ExtractTenant<R>,
    submitted_at::FromExtension: ExtractSubmittedAt<R>,
    ByStatus: Classify<S::Response>,
    H: HoldKind,
    Held<E, H>: Hold<S::Response>,
    H::Of<Permit>: Hold<S::Response> + From<Permit>,
    H::Of<Running>: Hold<
            <H::Of<Permit> as Hold<S::Response>>::Response,
            Response = <Held<E, H> as Hold<S::Response>>::Response,
        > + From<Running>,
    R: 'static,
{
    type Response = <Held<E, H> as Hold<S::Response>>::Response;
    type Error = BoxError;
    type Future = GatesFuture<S::Future, LongWay<S, R, H>, Held<E, H>>;

    /// Always ready. A request waits in its response future, because only `call` sees the request.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        match self.admit(&request) {
            Admission::Sent(held) => {
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.get_mut().call(request);
                GatesFuture::sent(future, held, handover.end())
            }
            Admission::Waits(place) => self.wait(request, place),
            Admission::Failed(error) => {
                hand_back::give(request);
                GatesFuture::failed(error)
            }
        }
    }
}

/// What becomes of a request.
pub(super) enum Admission<E, H: HoldKind> {
    /// It goes to the inner service, at once.
    Sent(Held<E, H>),
    Waits(Place),
    Failed(BoxError),
}

impl<S, E, H: HoldKind> GatesService<S, E, H> {
    /// Asks all gates. What it says is to be sent has to be, at once.
    #[inline(always)] // it is all that `call` does, of either service
    pub(super) fn admit<R: 'static>(&mut self, request: &R) -> Admission<E, H>
    where
        S: Service<R> + Clone,
        S::Error: Into<BoxError>,
        E: ExtractTenant<R>,
        submitted_at::FromExtension: ExtractSubmittedAt<R>,
    {
        let Parts {
            wfq,
            codel,
            adaptive,
        } = &*self.gates.parts;
        let Fair {
            gate: fair,
            extract,
        } = wfq.fair();
        // What layers further out tell is for the gates: nothing of it is known inside them.
        Waited::take();
        let mut now = Now::passed();
        let cost = extract.cost(request);
        let arrived = fair.arrive(extract.tenant(request).as_deref(), cost, &mut now);
        let Arrived::Begins(arrival, charge, waited) = arrived else {
            return self.gates.parts.stop(arrived);
        };
        if !adaptive.gate().try_admit(()) {
            return self.gates.parts.take_back(arrival, charge);
        }
        let mut held = Held::new(Arc::clone(&self.gates.parts), charge);
        // It sheds, so there is nobody to be woken.
        let mut cx = Context::from_waker(Waker::noop());
        let (polled, refusing) = shed::watch(|| self.inner.poll_ready(&mut cx));
        if let Poll::Ready(Err(error)) = polled {
            self.inner = self.inner.clone();
            return Admission::Failed(error);
        }
        let entered = match refusing {
            true => codel.gate().pass(),
            false => {
                let submitted = submitted_at::FromExtension.submitted_at(request);
                (codel.gate()).admit(submitted, 0, Some(waited), &mut now)
            }
        };
        if let Err(refusal) = entered {
            held.end = End::Refused;
            self.inner = self.inner.clone(); // what it has reserved goes back to whoever is next
            return Admission::Failed(refusal);
        }
        held.send(&mut now);
        if let Err(refusal) = self.inner.take_ready::<R>() {
            held.end = End::Refused;
            return Admission::Failed(refusal);
        }
        Admission::Sent(held)
    }

    /// The future of a request that has to wait.
    #[cold]
    pub(super) fn wait<R, F, X>(
        &self,
        request: R,
        place: Place,
    ) -> GatesFuture<F, LongWay<S, R, H>, X>
    where
        S: Clone,
        Admitted<S, H>: Service<R>,
    {
        let Parts {
            codel, adaptive, ..
        } = &*self.gates.parts;
        let inner = codel.layer(adaptive.layer(self.inner.clone()));
        let response = Box::pin(WfqResponseFuture::waiting(inner, request, place));
        GatesFuture {
            state: State::Waits { response },
        }
    }
}

pin_project! {
    /// The response of the inner service, once it is the request's turn; or the refusal.
    pub struct GatesFuture<F, W, X> {
        #[pin]
        state: State<F, W, X>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, W, X> {
        Sent { #[pin] response: ResponseFuture<F, X> },
        // Boxed, which keeps the future of every request that need not wait small.
        Waits { response: Pin<Box<W>> },
        Failed { error: Option<BoxError> },
    }
}

impl<F, W, X> GatesFuture<F, W, X> {
    #[inline]
    pub(super) fn sent(future: F, held: X, kept_back: KeptBack) -> Self {
        let response = ResponseFuture::admitted(future, held, kept_back);
        Self {
            state: State::Sent { response },
        }
    }

    #[cold]
    pub(super) fn failed(error: BoxError) -> Self {
        handover::keep_back();
        Self {
            state: State::Failed { error: Some(error) },
        }
    }
}

impl<F, W, X, Res, E> Future for GatesFuture<F, W, X>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    X: Hold<Res>,
    W: Future<Output = Result<X::Response, BoxError>>,
{
    type Output = Result<X::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Sent { response } => response.poll(cx),
            StateProjection::Waits { response } => response.as_mut().poll(cx),
            StateProjection::Failed { error } => {
                Poll::Ready(Err(error.take().expect("polled after it completed")))
            }
        }
    }
}

/// What is held for a request: a place in each gate. Dropping it gives them back.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
pub struct Held<E, H: HoldKind> {
    parts: Arc<Parts<E, H>>,
    /// Until it is settled with the fair queue, after which nothing is held.
    charge: Option<Charge>,
    end: End,
    /// Whether it was let in by age, and is sent. Before, there is only a place in the adaptive limit, and no use was
    /// made of it.
    sent: bool,
    dispatched: Option<Dispatched>,
}

impl<E, H: HoldKind> Held<E, H> {
    /// Of a request that the fair queue and the adaptive limit have let in.
    #[inline]
    fn new(parts: Arc<Parts<E, H>>, charge: Charge) -> Self {
        Self {
            parts,
            charge: Some(charge),
            end: End::NotSent,
            sent: false,
            dispatched: None,
        }
    }

    /// The admission by age has let it in too, and it is sent now.
    #[inline]
    fn send(&mut self, now: &mut Now) {
        (self.sent, self.end) = (true, End::Served);
        let gate = self.parts.adaptive.gate();
        self.dispatched = Some(gate.governor().dispatch(gate, now));
    }

    /// Before the place is given back, so that whoever gets it next meets the limit as it is then.
    #[inline]
    fn learn<Res>(&self, result: Result<&Res, &BoxError>, now: &mut Now)
    where
        ByStatus: Classify<Res>,
    {
        if let Some(dispatched) = self.dispatched {
            let gate = self.parts.adaptive.gate();
            let outcome = ByStatus.classify(result).for_limit();
            gate.governor().complete(gate, dispatched, outcome, now);
        }
    }

    /// Releases from the inside out, as the layers would. Releasing runs foreign code (the next waiter's waker, the tracing
    /// subscriber). If it panics, the remaining stages are still released.
    #[inline]
    fn let_go(&mut self, now: &mut Now) {
        let Some(charge) = self.charge.take() else {
            return;
        };
        let Parts {
            codel, adaptive, ..
        } = &*self.parts;
        let _fair = finally(|| self.parts.fair().end(charge, self.end, now));
        let _codel = self.sent.then(|| finally(|| codel.gate().gate.complete()));
        match self.sent {
            true => adaptive.gate().complete(),
            false => adaptive.gate().give_back(()),
        }
    }

    fn fail<Res>(mut self, error: &BoxError)
    where
        ByStatus: Classify<Res>,
    {
        let mut now = Now::default();
        self.learn::<Res>(Err(error), &mut now);
        self.end = End::of(error);
        self.let_go(&mut now);
    }
}

/// Does it when what is given is dropped.
#[inline]
fn finally(last: impl FnOnce()) -> impl Drop {
    struct Finally<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for Finally<F> {
        #[inline]
        fn drop(&mut self) {
            if let Some(last) = self.0.take() {
                last();
            }
        }
    }
    Finally(Some(last))
}

impl<E, H: HoldKind> Drop for Held<E, H> {
    #[inline]
    fn drop(&mut self) {
        self.let_go(&mut Now::default());
    }
}

impl<Res, E> Hold<Res> for Held<E, UntilResponse>
where
    ByStatus: Classify<Res>,
{
    type Response = Res;

    #[inline(always)] // a response is large, and a call would copy it
    fn until_done(mut self, response: Res) -> Res {
        let mut now = Now::default();
        self.learn(Ok(&response), &mut now);
        self.let_go(&mut now);
        response
    }

    fn failed(self, error: &BoxError) {
        self.fail::<Res>(error);
    }
}

/// The admission by age is over: it does not count bodies, see [`codel`](mod@crate::codel).
impl<B: Body, E> Hold<Response<B>> for Held<E, UntilBodyEnd> {
    type Response = Response<HeldBody<HeldBody<B>, Running>>;

    fn until_done(mut self, response: Response<B>) -> Self::Response {
        self.learn(Ok(&response), &mut Now::default());
        let charge = self.charge.take().expect("it is sent");
        let Parts {
            codel, adaptive, ..
        } = &*self.parts;
        let mut running = Running::new(Arc::clone(self.parts.fair()), charge);
        running.send();
        let permit = Permit::new(Arc::clone(adaptive.gate()));
        codel.gate().gate.complete();
        let response = UntilBodyEnd::from(permit).until_done(response);
        UntilBodyEnd::from(running).until_done(response)
    }

    fn failed(self, error: &BoxError) {
        self.fail::<Response<B>>(error);
    }
}

impl<E, H: HoldKind> Sealed for Held<E, H> {
    fn limiter(&self) -> Option<LimiterId> {
        Some(LimiterId::of(self.parts.fair())) // where requests wait
    }
}

impl<E, H: HoldKind> Clone for Parts<E, H> {
    fn clone(&self) -> Self {
        Self {
            wfq: self.wfq.clone(),
            codel: self.codel.clone(),
            adaptive: self.adaptive.clone(),
        }
    }
}

impl<E, H: HoldKind> Clone for Gates<E, H> {
    fn clone(&self) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
        }
    }
}

impl<S: Clone, E, H: HoldKind> Clone for GatesService<S, E, H> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            gates: self.gates.clone(),
        }
    }
}

impl<E, H: HoldKind> fmt::Debug for Gates<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts {
            wfq,
            codel,
            adaptive,
        } = &*self.parts;
        f.debug_struct("Gates")
            .field("wfq", wfq)
            .field("codel", codel)
            .field("adaptive", adaptive)
            .finish()
    }
}

impl<S: fmt::Debug, E, H: HoldKind> fmt::Debug for GatesService<S, E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatesService")
            .field("inner", &self.inner)
            .field("gates", &self.gates)
            .finish()
    }
}

impl<E, H: HoldKind> fmt::Debug for Held<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.charge).finish()
    }
}

impl<F, W, X> fmt::Debug for GatesFuture<F, W, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatesFuture").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::{convert::Infallible, future::ready, pin::pin};

    use http::Request;
    use tower::service_fn;

    use super::*;
    use crate::{clock, edge};

    #[test]
    fn an_accepted_request_looks_at_the_clock_twice() {
        let answers = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
        let service = edge().gates().layer(answers);
        let mut cx = Context::from_waker(Waker::noop());
        let before = clock::READS.get();
        for _ in 0..10 {
            let response = pin!(service.clone().call(Request::new(())));
            assert!(response.poll(&mut cx).is_ready());
        }
        assert_eq!(clock::READS.get() - before, 20, "it comes, and is done");
    }
}
