//! What the benches share: an inner service that does nothing, and a way to drive one request.
#![allow(dead_code, reason = "each bench uses a part of it")]

use std::{
    convert::Infallible,
    future::{Future, Ready as ReadyFuture, ready},
    hint::black_box,
    pin::pin,
    sync::Barrier,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use tower::Service;

/// Always ready, answers at once.
#[derive(Clone, Debug)]
pub struct Ready;

impl Service<u64> for Ready {
    type Response = u64;
    type Error = Infallible;
    type Future = ReadyFuture<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

/// The same, of a type that can fail.
#[derive(Clone, Debug)]
pub struct Fallible;

impl Service<u64> for Fallible {
    type Response = u64;
    type Error = tower::BoxError;
    type Future = ReadyFuture<Result<u64, tower::BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), tower::BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

pub fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// One request that never has to wait: ready, call, response. Says whether it was served.
#[inline]
pub fn drive<S>(service: &mut S) -> bool
where
    S: Service<u64, Response = u64>,
{
    drive_with(service, black_box(1))
}

#[inline]
pub fn drive_with<S>(service: &mut S, request: u64) -> bool
where
    S: Service<u64, Response = u64>,
{
    let mut cx = noop();
    let Poll::Ready(Ok(())) = service.poll_ready(&mut cx) else {
        panic!("not ready")
    };
    match pin!(service.call(request)).poll(&mut cx) {
        Poll::Ready(result) => result.is_ok(),
        Poll::Pending => panic!("pending"),
    }
}

/// So many threads share a limit.
const THREADS: usize = 2;

/// How long it takes until each thread has made `requests` requests, each with a function of its own.
pub fn together<F>(requests: u64, request: impl Fn(u64) -> F) -> Duration
where
    F: FnMut() -> bool + Send,
{
    let start = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                let (mut request, start) = (request(thread), &start);
                scope.spawn(move || {
                    start.wait();
                    (0..requests).for_each(|_| assert!(request()));
                })
            })
            .collect();
        start.wait();
        #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
        let begun = Instant::now();
        for thread in threads {
            thread.join().expect("a thread that makes requests");
        }
        begun.elapsed()
    })
}

/// Each thread drives a clone of the service.
pub fn clones<S>(service: &S) -> impl Fn(u64) -> Box<dyn FnMut() -> bool + Send>
where
    S: Service<u64, Response = u64> + Clone + Send + 'static,
{
    |_| {
        let mut service = service.clone();
        Box::new(move || drive(&mut service))
    }
}

/// Admission by age, where nothing is refused. Requests are stamped as they come, so the clock is read twice.
pub fn codel() -> tower_backpressure::CoDelLayer<fn(&u64) -> Option<tower_backpressure::SubmittedAt>>
{
    use tower_backpressure::{CoDelConfig, CoDelLayer, SubmittedAt};
    CoDelLayer::new(CoDelConfig::default()).submitted_at(|_: &u64| Some(SubmittedAt::now()))
}

/// A rate that is never reached, with a bucket that is never full: every request takes a token that
/// was saved up.
const SAVED_UP: u32 = u32::MAX;

/// tokio's clock for governor, so that both are measured on the same one.
#[derive(Clone, Debug)]
pub struct TokioClock;

impl governor::clock::Clock for TokioClock {
    type Instant = std::time::Instant;

    #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
    fn now(&self) -> Self::Instant {
        tokio::time::Instant::now().into_std()
    }
}

pub fn governor_quota() -> governor::Quota {
    governor::Quota::per_second(one()).allow_burst(burst())
}

fn one() -> std::num::NonZeroU32 {
    std::num::NonZeroU32::MIN
}

fn burst() -> std::num::NonZeroU32 {
    std::num::NonZeroU32::MAX
}

pub fn rate() -> tower_backpressure::Rate {
    tower_backpressure::Rate::per_second(1).burst(SAVED_UP.into())
}

/// A rate so high that the bucket is full at every request, as it is below any rate. The burst is a second's worth:
/// a thread that is preempted after it has read the clock must still find tokens at that time.
const ALWAYS_FULL: u32 = 1_000_000_000;

pub fn full_bucket() -> tower_backpressure::Rate {
    tower_backpressure::Rate::per_second(ALWAYS_FULL.into()).burst(ALWAYS_FULL.into())
}

/// One token, and the next one tomorrow.
pub fn empty_bucket() -> tower_backpressure::Rate {
    tower_backpressure::Rate::every(Duration::from_secs(86_400))
}

pub fn governor_full_bucket() -> governor::Quota {
    let rate = std::num::NonZeroU32::new(ALWAYS_FULL).expect("not zero");
    governor::Quota::per_second(rate).allow_burst(rate)
}

/// governor's keyed limiter, on tokio's clock.
pub type Keyed = governor::RateLimiter<
    u64,
    governor::state::keyed::DashMapStateStore<u64>,
    TokioClock,
    governor::middleware::NoOpMiddleware<std::time::Instant>,
>;

/// One that knows keys up to that number.
pub fn governor_keyed(keys: u64) -> Keyed {
    let store = governor::state::keyed::DashMapStateStore::default();
    let governor = governor::RateLimiter::new(governor_quota(), store, TokioClock);
    (0..keys).for_each(|key| assert!(governor.check_key(&key).is_ok()));
    governor
}
