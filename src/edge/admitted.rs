//! What is held for an admitted request: a permit, and what its tenant owes.

use std::marker::PhantomData;

use http::Response;
use http_body::Body;

use crate::{
    BoxError, ByStatus, Classify, Hold, UntilBodyEnd, UntilResponse,
    clock::Now,
    gate::{
        ages::Ages,
        aside::LimiterId,
        fair::{End, Fair, Granted},
        gate::Gate,
        governor::Dispatched,
    },
    hold::{HeldBody, sealed},
};

/// One admitted request. Dropping it hands the permit on, and settles what the tenant is charged.
#[allow(
    unnameable_types,
    reason = "it is held, and nothing else can be done with it"
)]
#[derive(Debug)]
pub struct Admitted {
    granted: Granted<Ages>,
    dispatched: Option<Dispatched>,
}

impl From<Granted<Ages>> for Admitted {
    #[inline]
    fn from(granted: Granted<Ages>) -> Self {
        Self {
            granted,
            dispatched: None,
        }
    }
}

impl Admitted {
    /// It is no request, but work of a handle's owner.
    pub(super) fn for_own_work(mut self) -> Self {
        self.granted.end = End::Released;
        self
    }

    /// It is sent now.
    #[inline]
    pub(super) fn send(&mut self, now: &mut Now) {
        self.granted.end = End::Served;
        let gate = self.granted.gate();
        self.dispatched = Some(gate.governor().dispatch(gate, now));
    }

    /// A layer further in has rejected it.
    pub(super) fn refuse(&mut self) {
        self.granted.end = End::Refused;
    }

    /// The law learns from it before its permit is handed on, so that the next request meets the limit as it is then.
    #[inline]
    fn learn<Res>(&self, result: Result<&Res, &BoxError>, now: &mut Now)
    where
        ByStatus: Classify<Res>,
    {
        if let Some(dispatched) = self.dispatched {
            let outcome = ByStatus.classify(result).for_limit();
            let gate = self.granted.gate();
            gate.governor().complete(gate, dispatched, outcome, now);
        }
    }

    /// It has its response.
    #[inline]
    fn answered<Res>(mut self, response: &Res)
    where
        ByStatus: Classify<Res>,
    {
        let mut now = Now::default();
        let gate = self.granted.gate();
        match (self.dispatched, self.granted.grant()) {
            (Some(dispatched), Some(grant)) if gate.passes(grant) => {
                let used = gate.used(grant, &mut now);
                let outcome = ByStatus.classify(Ok(response)).for_limit();
                // From here on it is counted, even if the law, which may be foreign, panics: only its permit is held.
                self.granted.take();
                let gate = self.granted.gate();
                let _permit = Completes(gate);
                (gate.governor()).complete_past(gate, dispatched, outcome, used, &mut now);
            }
            _ => {
                self.learn(Ok(response), &mut now);
                self.granted.over(&mut now);
            }
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

impl sealed::Held for Admitted {
    fn limiter(&self) -> Option<LimiterId> {
        Some(LimiterId::of(self.granted.gate()))
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
        admitted.granted.end = End::of(error);
        admitted.granted.over(&mut now);
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
