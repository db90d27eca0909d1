//! What is held for a request whose result the circuit is told.

use std::{fmt, future::Future};

use crate::{
    BoxError, Classify, Hold, ResponseFuture,
    gate::{aside::handover::Handover, circuit::Reports, response::guarded},
    hold::sealed::Sealed,
};

/// The response of the inner service, or the refusal.
pub type CircuitResponseFuture<F, C, P> = ResponseFuture<F, Judging<C, P>>;

/// A request that was let through. However it ends, the circuit is told.
pub struct Judging<C, P> {
    pass: P,
    classify: C,
}

impl<C, P> Judging<C, P> {
    /// Calls the inner service, and holds what has to report.
    #[inline]
    pub(crate) fn call<F, Res, E>(
        pass: P,
        classify: C,
        call: impl FnOnce() -> F,
    ) -> ResponseFuture<F, Self>
    where
        F: Future<Output = Result<Res, E>>,
        P: Reports,
    {
        let mut judging = Self { pass, classify };
        let handover = Handover::<E>::begin();
        let future = guarded(&mut judging, call);
        ResponseFuture::admitted(future, judging, handover.end())
    }
}

impl<Res, C, P> Hold<Res> for Judging<C, P>
where
    C: Classify<Res>,
    P: Reports,
{
    type Response = Res;

    #[inline]
    fn until_done(self, response: Res) -> Res {
        let outcome = self.classify.classify(Ok(&response));
        self.pass.report(outcome);
        response
    }

    fn failed(self, error: &BoxError) {
        let outcome = Classify::<Res>::classify(&self.classify, Err(error));
        self.pass.report(outcome);
    }
}

impl<C, P: Reports> Sealed for Judging<C, P> {
    fn panicked(&mut self) {
        self.pass.panicked();
    }
}

impl<C, P> fmt::Debug for Judging<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judging").finish_non_exhaustive()
    }
}
