//! What is held for an admitted request: a permit, and what its tenant owes.

use std::marker::PhantomData;

use http::Response;
use http_body::Body;

use crate::{
    BoxError, ByStatus, Classify, Hold, UntilBodyEnd, UntilResponse,
    clock::Now,
    gate::{
        aside::LimiterId,
        fair::{End, Fair, Grant},
        gate::Gate,
        governor::Dispatched,
    },
    hold::{HeldBody, sealed},
    sync::Arc,
};

/// One admitted request. Dropping it hands the permit on, and settles what the tenant is charged.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
#[derive(Debug)]
pub struct Admitted {
    gate: Arc<Gate<Fair>>,
    /// Until it is over.
    grant: Option<Grant>,
    end: End,
    dispatched: Option<Dispatched>,
}

impl Admitted {
    #[inline]
    pub(super) fn new(gate: Arc<Gate<Fair>>, grant: Grant) -> Self {
        Self {
            gate,
            grant: Some(grant),
            end: End::NotSent,
            dispatched: None,
        }
    }

    /// It is no request, but work of a handle's owner.
    pub(super) fn for_own_work(mut self) -> Self {
        self.end = End::Released;
        self
    }

    /// It is sent now.
    #[inline]
    pub(super) fn send(&mut self, now: &mut Now) {
        self.end = End::Served;
        self.dispatched = Some(self.gate.governor().dispatch(&self.gate, now));
    }

    /// A layer further in has rejected it.
    pub(super) fn refuse(&mut self) {
        self.end = End::Refused;
    }

    /// The law learns from it before its permit is handed on, so that the next request meets the limit as it is then.
    #[inline]
    fn learn<Res>(&self, result: Result<&Res, &BoxError>, now: &mut Now)
    where
        ByStatus: Classify<Res>,
    {
        if let Some(dispatched) = self.dispatched {
            let outcome = ByStatus.classify(result).for_limit();
            let governor = self.gate.governor();
            governor.complete(&self.gate, dispatched, outcome, now);
        }
    }

    /// It has its response.
    #[inline]
    fn answered<Res>(mut self, response: &Res)
    where
        ByStatus: Classify<Res>,
    {
        let mut now = Now::default();
        match (self.dispatched, &self.grant) {
            (Some(dispatched), Some(grant)) if self.gate.passes(grant) => {
                let used = self.gate.used(grant, &mut now);
                let outcome = ByStatus.classify(Ok(response)).for_limit();
                let governor = self.gate.governor();
                // From here on it is counted, even if the law, which may be foreign, panics: only its permit is held.
                self.grant = None;
                let _permit = Completes(&self.gate);
                governor.complete_past(&self.gate, dispatched, outcome, used, &mut now);
            }
            _ => {
                self.learn(Ok(response), &mut now);
                self.over(&mut now);
            }
        }
    }

    #[inline]
    fn over(&mut self, now: &mut Now) {
        if let Some(grant) = self.grant.take() {
            self.gate.end(grant, self.end, now);
        }
    }
}

/// Releases the permit of a request that the room need not be told of.
struct Completes<'a>(&'a Gate<Fair>);

impl Drop for Completes<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.complete();
    }
}

impl Drop for Admitted {
    #[inline]
    fn drop(&mut self) {
        if self.grant.is_some() {
            self.over(&mut Now::default());
        }
    }
}

impl sealed::Held for Admitted {
    fn limiter(&self) -> Option<LimiterId> {
        Some(LimiterId::of(&self.gate))
    }
}

/// An admitted request, and how long it is held.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
#[derive(Debug)]
pub struct Holding<H> {
    admitted: Admitted,
    hold: PhantomData<fn() -> H>,
}

impl<H> From<Admitted> for Holding<H> {
    #[inline]
    fn from(admitted: Admitted) -> Self {
        Self {
            admitted,
            hold: PhantomData,
        }
    }
}

impl<H> Holding<H> {
    #[cold]
    fn fail<Res>(self, error: &BoxError)
    where
        ByStatus: Classify<Res>,
    {
        let mut admitted = self.admitted;
        let mut now = Now::default();
        admitted.learn::<Res>(Err(error), &mut now);
        admitted.end = End::of(error);
        admitted.over(&mut now);
    }
}

impl<Res> Hold<Res> for Holding<UntilResponse>
where
    ByStatus: Classify<Res>,
{
    type Response = Res;

    #[inline(always)] // a response is large, and a call would copy it
    fn until_done(self, response: Res) -> Res {
        self.admitted.answered(&response);
        response
    }

    fn failed(self, error: &BoxError) {
        self.fail::<Res>(error);
    }
}

impl<B: Body> Hold<Response<B>> for Holding<UntilBodyEnd> {
    type Response = Response<HeldBody<B, Admitted>>;

    fn until_done(self, response: Response<B>) -> Self::Response {
        self.admitted.learn(Ok(&response), &mut Now::default());
        UntilBodyEnd::from(self.admitted).until_done(response)
    }

    fn failed(self, error: &BoxError) {
        self.fail::<Response<B>>(error);
    }
}

impl<H> sealed::Sealed for Holding<H> {
    fn limiter(&self) -> Option<LimiterId> {
        sealed::Held::limiter(&self.admitted)
    }
}
