//! The future of every layer that admits or refuses.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::aside::{
    handover::{self, KeptBack},
    nested,
};
use crate::{BoxError, Hold, Overloaded, hold::sealed::Sealed};

pin_project! {
    /// The response of the inner service, or the refusal.
    ///
    /// What is held for the request is let go when the inner future has completed or this is
    /// dropped; either way after the inner future and whatever it owns are gone.
    #[derive(Debug)]
    pub struct ResponseFuture<F, H> {
        #[pin]
        state: State<F, H>,
        // Not in the state, so that it is not moved with it when the request is done.
        kept_back: KeptBack,
    }
}

pin_project! {
    #[project = StateProjection]
    #[project_replace = StateOwned]
    #[derive(Debug)]
    enum State<F, H> {
        Admitted { #[pin] future: F, hold: H },
        // Until it is delivered.
        Refused { overloaded: Option<Box<Overloaded>> },
        Done,
    }
}

impl<F, H> ResponseFuture<F, H> {
    #[inline]
    pub(crate) fn admitted(future: F, hold: H, kept_back: KeptBack) -> Self {
        Self {
            state: State::Admitted { future, hold },
            kept_back,
        }
    }

    /// Boxed already, which keeps the future of every admitted request small.
    pub(crate) fn refused(overloaded: Box<Overloaded>) -> Self {
        handover::reject();
        Self {
            state: State::Refused {
                overloaded: Some(overloaded),
            },
            kept_back: KeptBack::YES,
        }
    }
}

impl<F, H, Res, E> Future for ResponseFuture<F, H>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    H: Hold<Res>,
{
    type Output = Result<H::Response, BoxError>;

    #[inline(always)] // a few instructions around the inner future's own
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut state = this.state;
        let StateProjection::Admitted { future, hold } = state.as_mut().project() else {
            return Poll::Ready(Err(refusal(state.project())));
        };
        let held = nested::hold(|| hold.limiter());
        let polled = guarded(hold, || future.poll(cx));
        drop(held);
        let result = ready!(polled);
        let hold = H::nothing().unwrap_or_else(|| {
            // Drops the inner future here, before what is held for it.
            let StateOwned::Admitted { hold, .. } = state.project_replace(State::Done) else {
                unreachable!("it was just polled")
            };
            hold
        });
        Poll::Ready(match result {
            Ok(response) => Ok(hold.until_done(response)),
            Err(error) => {
                let error = pass_on(error.into(), *this.kept_back);
                hold.failed(&error);
                Err(error)
            }
        })
    }
}

/// An error that the inner service has failed with.
#[cold]
pub(crate) fn pass_on(error: BoxError, kept_back: KeptBack) -> BoxError {
    if let (false, Some(rejection)) = (kept_back.get(), Overloaded::find(error.as_ref())) {
        rejection.mark_further_in();
    }
    error
}

/// Runs the inner service, and tells what is held if it panics.
#[inline(always)]
pub(crate) fn guarded<H: Sealed, T>(hold: &mut H, run: impl FnOnce() -> T) -> T {
    struct Panicked<'a, H: Sealed>(&'a mut H);
    impl<H: Sealed> Drop for Panicked<'_, H> {
        fn drop(&mut self) {
            self.0.panicked();
        }
    }
    let panicked = Panicked(hold);
    let ran = run();
    mem::forget(panicked);
    ran
}

#[inline]
fn refusal<F, H>(state: StateProjection<'_, F, H>) -> BoxError {
    let overloaded = match state {
        StateProjection::Refused { overloaded } => overloaded.take(),
        _ => None,
    };
    overloaded.expect("polled after it completed")
}
