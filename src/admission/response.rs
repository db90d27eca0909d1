//! The future of every layer that admits or refuses.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use crate::{BoxError, Hold, Overloaded};

pin_project! {
    /// The response of the inner service, or the refusal.
    ///
    /// What is held for the request is let go when the inner future completes, or when this is
    /// dropped, then after the inner future.
    #[derive(Debug)]
    pub struct ResponseFuture<F, H> {
        #[pin]
        state: State<F, H>,
    }
}

pin_project! {
    #[project = StateProjection]
    #[derive(Debug)]
    enum State<F, H> {
        Admitted { #[pin] future: F, hold: Option<H> },
        Refused { overloaded: Option<Box<Overloaded>> },
    }
}

impl<F, H> ResponseFuture<F, H> {
    #[inline]
    pub(crate) fn admitted(future: F, hold: H) -> Self {
        Self {
            state: State::Admitted {
                future,
                hold: Some(hold),
            },
        }
    }

    /// Boxed already, which keeps the future of every admitted request small.
    pub(crate) fn refused(overloaded: Box<Overloaded>) -> Self {
        Self {
            state: State::Refused {
                overloaded: Some(overloaded),
            },
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

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const COMPLETED: &str = "polled after it completed";
        Poll::Ready(match self.project().state.project() {
            StateProjection::Admitted { future, hold } => {
                let result = ready!(future.poll(cx));
                let hold = hold.take().expect(COMPLETED);
                match result {
                    Ok(response) => Ok(hold.until_done(response)),
                    Err(error) => Err(error.into()),
                }
            }
            StateProjection::Refused { overloaded } => {
                Err(overloaded.take().expect(COMPLETED) as BoxError)
            }
        })
    }
}
