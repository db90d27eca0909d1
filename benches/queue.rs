//! How fast permits are handed from one caller to the next when many wait:
//! `cargo bench --bench queue`.
//!
//! 1000 tasks on limit 10 each send requests one after another, and each request yields once while
//! it holds its permit, so that practically every permit goes to somebody who waited. The time is
//! per request, that is per hand-over; the order is first come first served in both
//! implementations.

mod common;

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::{runtime, task::JoinSet};
use tower::{Layer, Service, ServiceExt};

const TASKS: u64 = 1000;
const LIMIT: usize = 10;

/// Always ready; answers at the second poll.
#[derive(Clone)]
struct YieldOnce;

struct Yielding(bool);

impl Service<()> for YieldOnce {
    type Response = ();
    type Error = Infallible;
    type Future = Yielding;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Yielding {
        Yielding(false)
    }
}

impl Future for Yielding {
    type Output = Result<(), Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// How long it takes until the tasks have made `requests` requests together.
fn hand_over<S>(runtime: &runtime::Runtime, service: &S, requests: u64) -> Duration
where
    S: Service<(), Response = (), Future: Send> + Clone + Send + 'static,
{
    let each = requests.div_ceil(TASKS);
    runtime.block_on(async {
        #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let mut service = service.clone();
            tasks.spawn(async move {
                for _ in 0..each {
                    let Ok(ready) = service.ready().await else {
                        panic!("never fails")
                    };
                    assert!(ready.call(()).await.is_ok());
                }
            });
        }
        tasks.join_all().await;
        // Criterion takes the time to be for `requests`.
        begun
            .elapsed()
            .mul_f64(requests as f64 / (each * TASKS) as f64)
    })
}

fn scenario(c: &mut Criterion, name: &str, runtime: &runtime::Runtime) {
    let mut group = c.benchmark_group(name);
    let ours = tower_backpressure::ConcurrencyLimitLayer::new(LIMIT).layer(YieldOnce);
    group.bench_function("tower-backpressure", |b| {
        b.iter_custom(|requests| hand_over(runtime, &ours, requests));
    });
    let towers = tower::limit::ConcurrencyLimitLayer::new(LIMIT).layer(YieldOnce);
    group.bench_function("tower", |b| {
        b.iter_custom(|requests| hand_over(runtime, &towers, requests));
    });
    group.finish();
}

fn queue(c: &mut Criterion) {
    let one = runtime::Builder::new_current_thread().build();
    scenario(c, "queue_one_thread", &one.expect("a runtime"));
    let two = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build();
    scenario(c, "queue_two_threads", &two.expect("a runtime"));
}

criterion_group!(benches, queue);
criterion_main!(benches);
