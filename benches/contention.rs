//! What a layer costs when two threads share it: `cargo bench --bench contention`.
//!
//! Two threads drive requests through clones of one service as fast as they can; the limit is never
//! reached. The time is wall time per request of one thread, so 1.0× of a peer means as many
//! requests a second from both.

mod common;

use common::{
    Ready, TokioClock, clones, full_bucket, governor_full_bucket, governor_keyed, governor_quota,
    rate, together,
};
use criterion::{Criterion, criterion_group, criterion_main};
use governor::Quota;
use tower::Layer;

fn concurrency_limit_two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("concurrency_limit_two_threads");
    let ours = tower_backpressure::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter_custom(|requests| together(requests, clones(&ours)));
    });
    let towers = tower::limit::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower", |b| {
        b.iter_custom(|requests| together(requests, clones(&towers)));
    });
    group.finish();
}

fn adaptive_two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("adaptive_two_threads");
    let ours = tower_backpressure::AdaptiveConcurrencyLayer::vegas().layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter_custom(|requests| together(requests, clones(&ours)));
    });
    let towers = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
    group.bench_function("tower", |b| {
        b.iter_custom(|requests| together(requests, clones(&towers)));
    });
    group.finish();
}

fn codel_two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("codel_two_threads");
    let ours = common::codel().layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter_custom(|requests| together(requests, clones(&ours)));
    });
    let towers = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
    group.bench_function("tower", |b| {
        b.iter_custom(|requests| together(requests, clones(&towers)));
    });
    group.finish();
}

fn rate_limit_two_threads(c: &mut Criterion) {
    rate_limits(c, "rate_limit_two_threads", rate(), governor_quota());
}

/// As below any rate: the bucket is full at every request.
fn rate_limit_full_two_threads(c: &mut Criterion) {
    let name = "rate_limit_full_two_threads";
    rate_limits(c, name, full_bucket(), governor_full_bucket());
}

fn rate_limits(c: &mut Criterion, name: &str, rate: tower_backpressure::Rate, quota: Quota) {
    let mut group = c.benchmark_group(name);
    let layer = tower_backpressure::RateLimitLayer::new(rate);
    let ours = layer.layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter_custom(|requests| together(requests, clones(&ours)));
    });
    let handle = layer.handle();
    group.bench_function("tower-backpressure-direct", |b| {
        b.iter_custom(|requests| together(requests, |_| || handle.try_acquire(1).is_ok()));
    });
    let governor = governor::RateLimiter::direct_with_clock(quota, TokioClock);
    group.bench_function("governor", |b| {
        b.iter_custom(|requests| together(requests, |_| || governor.check().is_ok()));
    });
    group.finish();
}

/// 10 000 keys, the same for both threads, which start at different ones.
fn rate_limit_keyed_two_threads(c: &mut Criterion) {
    const KEYS: u64 = 10_000;
    let mut group = c.benchmark_group("rate_limit_keyed_two_threads");
    let layer = tower_backpressure::KeyedRateLimitLayer::new(rate(), |key: &u64| Some(*key));
    let handle = layer.handle();
    (0..KEYS).for_each(|key| assert!(handle.try_acquire(&key).is_ok()));
    let keys = |thread| (0..KEYS).cycle().skip((thread * KEYS / 2) as usize);
    group.bench_function("tower-backpressure-direct", |b| {
        b.iter_custom(|requests| {
            together(requests, |thread| {
                let (mut keys, handle) = (keys(thread), &handle);
                move || handle.try_acquire(&keys.next().expect("endless")).is_ok()
            })
        });
    });
    let governor = governor_keyed(KEYS);
    group.bench_function("governor", |b| {
        b.iter_custom(|requests| {
            together(requests, |thread| {
                let (mut keys, governor) = (keys(thread), &governor);
                move || governor.check_key(&keys.next().expect("endless")).is_ok()
            })
        });
    });
    group.finish();
}

criterion_group!(
    benches,
    concurrency_limit_two_threads,
    adaptive_two_threads,
    codel_two_threads,
    rate_limit_two_threads,
    rate_limit_full_two_threads,
    rate_limit_keyed_two_threads
);
criterion_main!(benches);
