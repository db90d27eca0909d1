//! A waker that panics costs nobody else a permit: everyone whose turn it is gets it and is woken, and the
//! panic goes to the caller that freed the permits.

use crate::support;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use support::*;
use tower::{Layer, ServiceExt};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ConcurrencyLimitLayer, KeyedConcurrencyLimitLayer, Rate,
    RateLimitLayer, config::KeyedConcurrencyLimitConfig,
};

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the waker panics");
    }
}

/// Futures that wait, each with a waker of its own, of which some panic.
struct Waiters<F> {
    waiting: Vec<(Pin<Box<F>>, Waker)>,
    woken: Arc<CountWakes>,
    panicking: usize,
}

impl<F: Future> Waiters<F> {
    fn new(count: usize, panics: fn(usize) -> bool, make: impl Fn(usize) -> F) -> Self {
        let (woken, counts) = CountWakes::new();
        let panicking = (0..count).filter(|n| panics(*n)).count();
        let mut waiting: Vec<_> = (0..count)
            .map(|n| match panics(n) {
                true => (Box::pin(make(n)), Waker::from(Arc::new(Panics))),
                false => (Box::pin(make(n)), counts.clone()),
            })
            .collect();
        for (future, waker) in &mut waiting {
            assert!(
                future
                    .as_mut()
                    .poll(&mut Context::from_waker(waker))
                    .is_pending()
            );
        }
        Self {
            waiting,
            woken,
            panicking,
        }
    }

    /// Frees permits for all of them, and looks what became of each.
    fn all_are_let_in_by(mut self, free: impl FnOnce()) -> Vec<F::Output> {
        let panic = catch_unwind(AssertUnwindSafe(free)).expect_err("it is the first waker's");
        assert_eq!(panic.downcast_ref(), Some(&"the waker panics"));
        assert_eq!(self.woken.count(), self.waiting.len() - self.panicking);
        let let_in = |(future, _): &mut (Pin<Box<F>>, _)| match future.as_mut().poll(&mut noop()) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it still waits"),
        };
        self.waiting.iter_mut().map(let_in).collect()
    }
}

/// The first; the last; several; all of them.
const WHICH: [fn(usize) -> bool; 4] = [|n| n == 0, |n| n == 8, |n| n % 3 == 1, |_| true];

#[test]
fn a_limit_that_grows_lets_all_in() {
    for panics in WHICH {
        let handle = ConcurrencyLimitLayer::new(1).handle();
        let _permit = handle.try_acquire().unwrap();
        let waiters = Waiters::new(9, panics, |_| handle.acquire());
        let permits = waiters.all_are_let_in_by(|| handle.set_limit(10).unwrap());
        assert_eq!(handle.snapshot().in_flight, 10);
        drop(permits);
        assert_eq!(handle.snapshot().in_flight, 1);
    }
}

#[test]
fn so_does_one_that_adapts() {
    for panics in WHICH {
        let layer = AdaptiveConcurrencyLayer::vegas().limits(1, 1, 100);
        let handle = layer.handle();
        let _permit = handle.try_acquire().unwrap();
        let waiters = Waiters::new(9, panics, |_| handle.acquire());
        let permits = waiters.all_are_let_in_by(|| handle.pin(10).unwrap());
        assert_eq!(handle.snapshot().permits.in_flight, 10);
        drop(permits);
        assert_eq!(handle.snapshot().permits.in_flight, 1);
    }
}

/// Three keys, with three requests each that wait.
#[test]
fn so_do_those_of_all_keys() {
    with_runtime(|| {
        for panics in WHICH {
            for apply in [false, true] {
                let layer = KeyedConcurrencyLimitLayer::new(1, |n: &u32| Some(*n));
                let handle = layer.handle();
                let probe = Probe::new();
                probe.set(|script| script.future = Behaviour::Pends);
                let service = layer.layer(probe.clone());
                let mut running: Vec<_> = (0..3)
                    .map(|n| Box::pin(service.clone().oneshot(n)))
                    .collect();
                for response in &mut running {
                    assert!(poll(response).is_pending());
                }
                probe.set(|script| script.future = Behaviour::Works);
                let waiters = Waiters::new(9, panics, |n| service.clone().oneshot(n as u32 % 3));
                let responses = waiters.all_are_let_in_by(|| match apply {
                    true => handle.apply(&KeyedConcurrencyLimitConfig::new(4)).unwrap(),
                    false => handle.set_limit(4).unwrap(),
                });
                assert!(responses.iter().all(Result::is_ok));
                assert_eq!(handle.snapshot().in_flight, 3);
            }
        }
    });
}

/// Nine tokens are there, but the first in the queue wants more, until it gives up.
#[test]
fn so_do_tokens() {
    with_runtime(|| {
        for panics in WHICH {
            let handle = RateLimitLayer::new(Rate::per_hour(20)).handle();
            handle.try_acquire(11).unwrap();
            let mut first = Box::pin(handle.acquire(15));
            assert!(poll(&mut first).is_pending());
            let waiters = Waiters::new(9, panics, |_| handle.acquire(1));
            let let_in = waiters.all_are_let_in_by(|| drop(first));
            assert!(let_in.iter().all(Result::is_ok));
            assert!(handle.try_acquire(1).is_err());
        }
    });
}

fn with_runtime(test: impl FnOnce()) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let _entered = runtime.enter();
    test();
}
