//! What a layer costs when two threads share it: `cargo bench --bench contention`.
//!
//! Two threads drive requests through clones of one service as fast as they can; the limit is never
//! reached. The time is wall time per request of one thread, so 1.0× of a peer means as many
//! requests a second from both.

mod common;

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use common::{Ready, drive};
use criterion::{Criterion, criterion_group, criterion_main};
use tower::{Layer, Service};

const THREADS: usize = 2;

/// How long it takes until each thread has driven `requests` requests.
fn together<S>(service: &S, requests: u64) -> Duration
where
    S: Service<u64, Response = u64> + Clone + Send,
{
    let start = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (mut service, start) = (service.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    (0..requests).for_each(|_| assert!(drive(&mut service)));
                })
            })
            .collect();
        start.wait();
        #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
        let begun = Instant::now();
        for thread in threads {
            thread.join().expect("a thread that drives requests");
        }
        begun.elapsed()
    })
}

fn concurrency_limit_two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("concurrency_limit_two_threads");
    let ours = tower_backpressure::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter_custom(|requests| together(&ours, requests));
    });
    let towers = tower::limit::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower", |b| {
        b.iter_custom(|requests| together(&towers, requests));
    });
    group.finish();
}

criterion_group!(benches, concurrency_limit_two_threads);
criterion_main!(benches);
