//! What is held for a request whose result the circuit is told.

use std::fmt;

use crate::{
    BoxError, Classify, Hold, ResponseFuture, admission::circuit::Reports, hold::sealed::Sealed,
};

/// The response of the inner service, or the refusal.
pub type CircuitResponseFuture<F, C, P> = ResponseFuture<F, Judging<C, P>>;

/// A request that was let through. However it ends, the circuit is told.
pub struct Judging<C, P> {
    pass: P,
    classify: C,
}

impl<C, P> Judging<C, P> {
    #[inline]
    pub(crate) fn new(pass: P, classify: C) -> Self {
        Self { pass, classify }
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

impl<C, P> Sealed for Judging<C, P> {}

impl<C, P> fmt::Debug for Judging<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judging").finish_non_exhaustive()
    }
}
