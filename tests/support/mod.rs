//! What the tests share: a probe to put inside a stack, and ways to poll by hand.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use tower::{BoxError, Service, ServiceExt};
use tower_backpressure::{ConcurrencyLimitLayer, Overloaded, Reason};

/// An inner service that watches how it is used, and does as it is told.
///
/// It panics if it is called without having been polled ready, which a clone never has been.
#[derive(Debug)]
pub struct Probe {
    shared: Arc<Shared>,
    readied: bool,
}

#[derive(Debug, Default)]
struct Shared {
    script: Mutex<Script>,
    waker: Mutex<Option<Waker>>,
    calls: AtomicUsize,
    live: AtomicUsize,
    most_live: AtomicUsize,
}

/// What a [`Probe`] is told to do. By default it is ready and answers at the first poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct Script {
    pub ready: Behaviour,
    pub call: Behaviour,
    pub future: Behaviour,
    /// How often the response future is pending before it does what it is told.
    pub pending_polls: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    #[default]
    Works,
    Pends,
    Fails,
    Panics,
    /// Fails with what a client of its own was told: the response future only.
    PassesOnARejection,
}

/// Where a probe can panic or fail.
pub const PLACES: [fn(&mut Script) -> &mut Behaviour; 3] =
    [|s| &mut s.ready, |s| &mut s.call, |s| &mut s.future];

impl Probe {
    pub fn new() -> Self {
        Self {
            shared: Arc::default(),
            readied: false,
        }
    }

    /// From now on, for all clones.
    pub fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script.lock().unwrap());
        let waker = self.shared.waker.lock().unwrap().take();
        waker.inspect(Waker::wake_by_ref);
    }

    pub fn calls(&self) -> usize {
        self.shared.calls.load(SeqCst)
    }

    /// How many response futures there are.
    pub fn live(&self) -> usize {
        self.shared.live.load(SeqCst)
    }

    /// The most there have been at once.
    pub fn most_live(&self) -> usize {
        self.shared.most_live.load(SeqCst)
    }

    fn script(&self) -> Script {
        *self.shared.script.lock().unwrap()
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            readied: false,
        }
    }
}

impl Service<u32> for Probe {
    type Response = u32;
    type Error = BoxError;
    type Future = ProbeFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.script().ready {
            Behaviour::Works | Behaviour::PassesOnARejection => self.readied = true,
            Behaviour::Fails => return Poll::Ready(Err("not ready".into())),
            Behaviour::Panics => panic!("the probe panics in poll_ready"),
            Behaviour::Pends => {
                *self.shared.waker.lock().unwrap() = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u32) -> ProbeFuture {
        assert!(
            std::mem::take(&mut self.readied),
            "called, not polled ready"
        );
        let script = self.script();
        assert_ne!(script.call, Behaviour::Panics, "the probe panics in call");
        self.shared.calls.fetch_add(1, SeqCst);
        let live = self.shared.live.fetch_add(1, SeqCst) + 1;
        self.shared.most_live.fetch_max(live, SeqCst);
        let fails = script.call == Behaviour::Fails;
        ProbeFuture {
            script,
            result: if fails { Err("failed") } else { Ok(request) },
            shared: Arc::clone(&self.shared),
        }
    }
}

pub struct ProbeFuture {
    script: Script,
    result: Result<u32, &'static str>,
    shared: Arc<Shared>,
}

impl Future for ProbeFuture {
    type Output = Result<u32, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(left) = self.script.pending_polls.checked_sub(1) {
            self.script.pending_polls = left;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.script.future {
            Behaviour::Works => Poll::Ready(self.result.map_err(Into::into)),
            Behaviour::Fails => Poll::Ready(Err("failed".into())),
            Behaviour::Panics => panic!("the probe panics in its future"),
            Behaviour::Pends => Poll::Pending,
            Behaviour::PassesOnARejection => Poll::Ready(Err(rejection().into())),
        }
    }
}

/// What a client is told.
pub fn rejection() -> Overloaded {
    let limit = ConcurrencyLimitLayer::new(1).name("of a client").handle();
    let _full = limit.try_acquire().unwrap();
    limit.try_acquire().unwrap_err()
}

impl Drop for ProbeFuture {
    fn drop(&mut self) {
        self.shared.live.fetch_sub(1, SeqCst);
    }
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
pub struct CountWakes(AtomicUsize);

impl CountWakes {
    pub fn new() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (Arc::clone(&count), Waker::from(count))
    }

    pub fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// The time on tokio's clock, which tests pause.
#[allow(clippy::disallowed_methods, reason = "a test looks from outside")]
pub fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

pub fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Polls once, and does not care to be woken.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut noop())
}

/// Asks a service once whether it is ready.
pub fn poll_ready<S, R>(service: &mut S) -> Poll<Result<(), S::Error>>
where
    S: Service<R>,
{
    service.poll_ready(&mut noop())
}

/// One whole request, from `poll_ready` to the response, through a clone: as a server does it.
pub fn request<S>(service: &S) -> Pin<Box<dyn Future<Output = Result<u32, BoxError>> + Send>>
where
    S: Service<u32, Response = u32, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    Box::pin(service.clone().oneshot(7))
}

/// A future that can be sent anywhere, whatever is in it.
pub fn boxed<F>(future: F) -> Pin<Box<dyn Future<Output = F::Output> + Send>>
where
    F: Future + Send + 'static,
{
    Box::pin(future)
}

/// Polls by hand until it is done: for what depends on nobody else.
pub fn finish<F: Future + Unpin>(mut future: F) -> F::Output {
    for _ in 0..1000 {
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
    }
    panic!("still pending after 1000 polls")
}

/// The refusal in a result that must be one.
#[track_caller]
pub fn refusal<T: std::fmt::Debug>(result: Result<T, BoxError>) -> Overloaded {
    let error = result.expect_err("served, not refused");
    let overloaded = Overloaded::find(error.as_ref());
    overloaded
        .unwrap_or_else(|| panic!("not a refusal: {error}"))
        .clone()
}

#[track_caller]
pub fn assert_refused<T: std::fmt::Debug>(result: Result<T, BoxError>, reason: Reason) {
    assert_eq!(refusal(result).reason(), reason);
}
