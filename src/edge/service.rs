//! The part of an edge that decides, as a service: it asks the gate, waits, and sends.

use std::{
    fmt,
    marker::PhantomData,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    admitted::{Admitted, Holding},
    waiter::ForPermit,
};
use crate::{
    BoxError, Hold, Priority, SubmittedAt, UntilResponse, Waited,
    clock::Now,
    deadline,
    gate::{
        ages::Ages,
        aside::{self, hand_back, handover::Handover},
        bounds::nanos,
        fair::{Arrived, Fair, Granted, Place, Urgency},
        gate::Gate,
        waiting::WaitingFuture,
    },
    head::{HasHead, Head},
    load_shed, priority,
    sync::Arc,
    wfq::{ExtractTenant, FromExtension},
};

/// The part of an [`Edge`](super::Edge) that decides: all but the one that answers. Made by
/// [`Edge::gates`](super::Edge::gates).
pub struct Gates<E = FromExtension, H = UntilResponse> {
    shared: Arc<Shared<E>>,
    hold: PhantomData<fn() -> H>,
}

/// What all clones share, behind one pointer: servers clone a service for each request.
pub(super) struct Shared<E> {
    pub(super) gate: Arc<Gate<Fair>>,
    pub(super) extract: Arc<E>,
    /// `None` takes the [`Priority`] in a request's extensions.
    pub(super) priority: Option<PriorityOf>,
}

/// Says how much a request matters.
pub(super) type PriorityOf = std::sync::Arc<dyn Fn(Head<'_>) -> Priority + Send + Sync>;

impl<E> Shared<E> {
    #[cold]
    fn urgency(&self, head: Head<'_>, now: &mut Now) -> Urgency {
        let priority = match &self.priority {
            Some(priority) => priority(head),
            None => priority::of(&head),
        };
        let deadline = deadline::of(&head, now.instant());
        self.gate.urgency(priority, deadline, now)
    }
}

impl<E, H> Gates<E, H> {
    pub(super) fn new(shared: Shared<E>) -> Self {
        Self {
            shared: Arc::new(shared),
            hold: PhantomData,
        }
    }

    pub(super) fn shared(&self) -> &Shared<E> {
        &self.shared
    }

    /// The same, held in another way.
    pub(super) fn held<H2>(self) -> Gates<E, H2> {
        Gates {
            shared: self.shared,
            hold: PhantomData,
        }
    }
}

impl<S, E, H> Layer<S> for Gates<E, H> {
    type Service = GatesService<S, E, H>;

    fn layer(&self, inner: S) -> Self::Service {
        GatesService {
            inner,
            gates: self.clone(),
        }
    }
}

/// A service behind the gates of an edge. Made by [`Gates`].
pub struct GatesService<S, E = FromExtension, H = UntilResponse> {
    pub(super) inner: S,
    gates: Gates<E, H>,
}

impl<S, R, E, H> Service<R> for GatesService<S, E, H>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    E: ExtractTenant<R>,
    Holding<H>: Hold<S::Response>,
    R: HasHead + 'static,
{
    type Response = <Holding<H> as Hold<S::Response>>::Response;
    type Error = BoxError;
    type Future = GatesFuture<S, S::Future, R, H>;

    /// Always ready. A request waits in its response future, because only `call` sees the request.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        match self.admit(&request) {
            Admission::Sent(admitted) => {
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                GatesFuture::sent(future, admitted.into(), handover.end())
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
pub(super) enum Admission {
    /// It is to be sent to the inner service, at once.
    Sent(Admitted),
    Waits(Place<Ages>),
    Failed(BoxError),
}

impl<S, E, H> GatesService<S, E, H> {
    /// Asks the gate.
    #[inline(always)] // it is all that `call` does, of either service
    pub(super) fn admit<R: HasHead + 'static>(&mut self, request: &R) -> Admission
    where
        S: Service<R> + Clone,
        S::Error: Into<BoxError>,
        E: ExtractTenant<R>,
    {
        let Shared { gate, extract, .. } = &*self.gates.shared;
        Waited::forget(); // what layers further out tell is for the gate: nothing of it is known inside
        let mut now = aside::take_time();
        let submitted: Option<&SubmittedAt> = request.head().extensions.get();
        let age = submitted.map_or(0, |submitted| nanos(submitted.age_at(now.instant())));
        let (tenant, cost) = (extract.tenant(request), extract.cost(request));
        let urgency = |now: &mut Now| self.gates.shared.urgency(request.head(), now);
        match gate.arrive(tenant.as_deref(), cost, age, &mut now, urgency) {
            Arrived::Goes(grant) => {
                let granted = Granted::new(Arc::clone(gate), grant);
                match make_ready(&mut self.inner, granted.into(), &mut now) {
                    Ok(admitted) => Admission::Sent(admitted),
                    Err(error) => Admission::Failed(error),
                }
            }
            Arrived::Waits(arrival) => Admission::Waits(Place::new(Arc::clone(gate), arrival)),
            Arrived::Rejected(rejection) => Admission::Failed(rejection),
        }
    }

    /// The future of a request that has to wait.
    #[cold]
    pub(super) fn wait<R>(&self, request: R, place: Place<Ages>) -> GatesFuture<S, S::Future, R, H>
    where
        S: Service<R> + Clone,
    {
        GatesFuture::waits(ForPermit::new(place), self.inner.clone(), request)
    }
}

/// Sees whether the inner service is ready for an admitted request, which is to be sent then, at once. If it is not, the
/// request is rejected: it does not wait twice.
#[inline]
pub(super) fn make_ready<S, R>(
    inner: &mut S,
    mut admitted: Admitted,
    now: &mut Now,
) -> Result<Admitted, BoxError>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    R: 'static,
{
    let asked = match load_shed::ask(inner) {
        Ok(asked) => asked,
        Err(error) => {
            *inner = inner.clone();
            return Err(error.into());
        }
    };
    admitted.send(now);
    if let Err(rejection) = load_shed::answer(inner, asked) {
        admitted.refuse();
        return Err(rejection);
    }
    Ok(admitted)
}

/// The response of the inner service, once the request was admitted; or the rejection.
pub type GatesFuture<S, F, R, H = UntilResponse> = WaitingFuture<ForPermit, S, F, R, Holding<H>>;

impl<E, H> Clone for Gates<E, H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            hold: PhantomData,
        }
    }
}

impl<S: Clone, E, H> Clone for GatesService<S, E, H> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            gates: self.gates.clone(),
        }
    }
}

impl<E, H> fmt::Debug for Gates<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gates").field(&self.shared.gate).finish()
    }
}

impl<S: fmt::Debug, E, H> fmt::Debug for GatesService<S, E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatesService")
            .field("inner", &self.inner)
            .field("gates", &self.gates)
            .finish()
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::{
        convert::Infallible,
        future::{Future, ready},
        pin::pin,
        task::Waker,
    };

    use http::{Request, Response};
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
