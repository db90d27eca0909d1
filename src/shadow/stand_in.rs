//! What layers on trial have inside, in place of the service.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::{sync::oneshot, time::sleep};
use tower_service::Service;

use crate::{
    BoxError, Overloaded, clock,
    gate::aside::handover,
    sync::{Arc, Mutex, lock},
};

/// Timers are good to a millisecond, and whoever is let in at once starts a little later than the real
/// request: no use waiting for less.
const NO_TIME: Duration = Duration::from_millis(1);

/// Stands in for the service while layers are on trial: it is ready always, and takes as long as the real
/// service has taken, to answer with the likeness `X` of what that said.
#[derive(Debug)]
pub struct StandIn<X> {
    /// Until it is called.
    real: Arc<Mutex<Option<oneshot::Receiver<Answer<X>>>>>,
}

/// What the real service has said.
#[derive(Debug)]
pub(super) struct Answer<X> {
    /// A likeness, or an error: that it was refused further in, if it was.
    pub(super) real: Result<X, Option<Overloaded>>,
    pub(super) took: Duration,
}

impl<X> StandIn<X> {
    pub(super) fn new(real: oneshot::Receiver<Answer<X>>) -> Self {
        Self {
            real: Arc::new(Mutex::new(Some(real))),
        }
    }

    /// Whether the layers have let the request in.
    pub(super) fn is_called(&self) -> bool {
        lock(&self.real).is_none()
    }
}

impl<X> Clone for StandIn<X> {
    fn clone(&self) -> Self {
        Self {
            real: Arc::clone(&self.real),
        }
    }
}

impl<Q, X: Send + 'static> Service<Q> for StandIn<X> {
    type Response = X;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<X, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Q) -> Self::Future {
        // The layers outside take a rejection as it is: as further in, if the real service was called.
        handover::keep_back();
        let real = lock(&self.real).take();
        let started = clock::instant();
        Box::pin(async move {
            let real = real.ok_or("a request on trial is sent once")?;
            let Answer { real, took } = real.await?;
            let left = took.saturating_sub(clock::instant().saturating_duration_since(started));
            if left >= NO_TIME {
                sleep(left).await;
            }
            real.map_err(|refusal| match refusal {
                Some(refusal) => refusal.into(),
                None => "the real service has failed".into(),
            })
        })
    }
}

/// The body of a likeness: there is none.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct NoBody;

impl Body for NoBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}
