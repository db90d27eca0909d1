//! The future of a request whose likeness is on trial, and the task of that.

use std::{
    any::Any,
    fmt,
    future::{Future, poll_fn},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use pin_project_lite::pin_project;
use tokio::{runtime::Handle, sync::oneshot, task::AbortHandle, time::Instant};
use tower_service::Service;

use super::{
    Counts,
    stand_in::{Answer, StandIn},
};
use crate::{
    BoxError, Overloaded, clock,
    gate::aside::{hand_back, handover::KeptBack, on_trial},
    sync::{Arc, Ordering::Relaxed},
};

pin_project! {
    /// The response of the inner service. What the layers on trial make of the request is counted elsewhere.
    pub struct ShadowFuture<F, Res, X> {
        #[pin]
        real: F,
        kept_back: KeptBack,
        started: Instant,
        shows: fn(&Res) -> X,
        // Until the real service has answered.
        answers: Option<oneshot::Sender<Answer<X>>>,
        trial: Trial,
    }

    impl<F, Res, X> PinnedDrop for ShadowFuture<F, Res, X> {
        fn drop(this: Pin<&mut Self>) {
            // The real request is cancelled, and so is its likeness.
            if let Trial::Waits(task) = this.project().trial {
                task.abort();
            }
        }
    }
}

/// A likeness on its way through the layers.
enum Trial {
    /// It was let in, and has nothing to do until the real service has answered.
    LetIn(OnTrial),
    Waits(AbortHandle),
    Over,
}

type OnTrial = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Trial {
    /// The real service has answered.
    fn answered(&mut self) {
        // What waits goes on alone.
        if let Self::LetIn(mut on_trial) = mem::replace(self, Self::Over) {
            if let (false, Ok(runtime)) = (poll_now(&mut on_trial), Handle::try_current()) {
                runtime.spawn(on_trial);
            }
        }
    }
}

/// Goes on as far as it can. A task that wants to be woken polls it anew. Says whether that was all.
fn poll_now(on_trial: &mut OnTrial) -> bool {
    let mut nobody = Context::from_waker(Waker::noop());
    let poll = || on_trial.as_mut().poll(&mut nobody).is_ready();
    harmless(poll).unwrap_or(true)
}

/// What panics on trial is not to take the real request with it. `None` if it did.
pub(super) fn harmless<T>(run: impl FnOnce() -> T) -> Option<T> {
    // What layers on trial reject is a likeness. The real request is another.
    let _ignoring = hand_back::ignore();
    catch_unwind(AssertUnwindSafe(run)).ok()
}

impl<F, Res, X> ShadowFuture<F, Res, X>
where
    X: Send + 'static,
{
    pub(super) fn new<G, Q>(
        real: F,
        kept_back: KeptBack,
        layer: impl FnOnce(StandIn<X>) -> G,
        request: Option<Q>,
        shows: fn(&Res) -> X,
        counts: &Arc<Counts>,
    ) -> Self
    where
        G: Service<Q, Error: Into<BoxError>, Future: Send> + Send + 'static,
        Q: Send + 'static,
    {
        let (answers, real_answer) = oneshot::channel();
        let stand_in = StandIn::new(real_answer);
        let begin = |request| {
            let service = harmless(|| layer(stand_in.clone()))?;
            let counts = Arc::clone(counts);
            let mut on_trial: OnTrial = Box::pin(run(service, request, stand_in.clone(), counts));
            // What can be decided is decided now, when the request comes. To wait takes a task.
            Some(match poll_now(&mut on_trial) {
                true => Trial::Over,
                false if stand_in.is_called() => Trial::LetIn(on_trial),
                false => Trial::Waits(Handle::try_current().ok()?.spawn(on_trial).abort_handle()),
            })
        };
        let runtime = Handle::try_current().is_ok();
        let trial = request.filter(|_| runtime).and_then(begin);
        if trial.is_none() {
            counts.failed.fetch_add(1, Relaxed);
        }
        Self {
            real,
            kept_back,
            started: clock::instant(),
            shows,
            answers: Some(answers),
            trial: trial.unwrap_or(Trial::Over),
        }
    }
}

impl<F, Res, X, E> Future for ShadowFuture<F, Res, X>
where
    F: Future<Output = Result<Res, E>>,
    E: 'static,
{
    type Output = Result<Res, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.real.poll(cx));
        let shows = *this.shows;
        let answer = Answer {
            real: match &result {
                Ok(response) => harmless(|| shows(response)).ok_or(None),
                Err(error) => Err(refusal(error, *this.kept_back).cloned()),
            },
            took: clock::instant().saturating_duration_since(*this.started),
        };
        let answers = this.answers.take().expect("polled after it completed");
        let _ = answers.send(answer); // it may have been refused long ago
        this.trial.answered();
        Poll::Ready(result)
    }
}

/// Whether it was a layer further in that has refused it: that is no failure, on trial neither. It is marked as by any other
/// layer through which it passes.
fn refusal<E: 'static>(error: &E, kept_back: KeptBack) -> Option<&Overloaded> {
    let error: &dyn Any = error;
    let boxed = || {
        let error = error.downcast_ref::<BoxError>()?;
        Overloaded::find(error.as_ref())
    };
    let refusal = error.downcast_ref().or_else(boxed)?;
    if !kept_back.get() {
        refusal.mark_further_in();
    }
    Some(refusal)
}

impl<F, Res, X> fmt::Debug for ShadowFuture<F, Res, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShadowFuture").finish_non_exhaustive()
    }
}

/// Sends a likeness through the layers, and counts what they make of it.
async fn run<G, Q, X>(mut service: G, request: Q, stand_in: StandIn<X>, counts: Arc<Counts>)
where
    G: Service<Q, Error: Into<BoxError>>,
{
    let counts = FailedIfPanicking(counts);
    let mut response = pin!(async move {
        poll_fn(|cx| service.poll_ready(cx)).await?;
        let response = service.call(request);
        drop(service); // as servers do
        response.await
    });
    let mut has_come = false;
    let result = poll_fn(|cx| {
        let told = on_trial(true);
        let polled = response.as_mut().poll(cx);
        drop(told);
        if !mem::replace(&mut has_come, true) && polled.is_pending() && !stand_in.is_called() {
            counts.0.waited.fetch_add(1, Relaxed);
        }
        polled
    })
    .await;
    if stand_in.is_called() {
        return; // it was let in, and how the real one went is nobody's decision
    }
    let error = result.err().map(Into::into);
    let refusal = error.as_ref().map(|error: &BoxError| error.as_ref());
    match refusal.and_then(|error| Overloaded::find(error)) {
        Some(refusal) => counts.0.refused(refusal),
        None => _ = counts.0.failed.fetch_add(1, Relaxed),
    }
}

/// If the layers panic, they have failed.
struct FailedIfPanicking(Arc<Counts>);

impl Drop for FailedIfPanicking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.fetch_add(1, Relaxed);
        }
    }
}
