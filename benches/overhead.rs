//! What a layer costs per request, on one thread, with an inner service that does nothing.
//!
//! A group is a scenario, a function in it an implementation, so that a ratio is read off one run:
//! `cargo bench --bench overhead`. Each request is driven as a server drives it: polled ready,
//! called, and its future polled to its end.

mod common;

use common::{Ready, TokioClock, drive, drive_with, governor_keyed, governor_quota, noop, rate};
use criterion::{Criterion, criterion_group, criterion_main};
use tower::{Layer, Service, ServiceExt};

/// The accept path of one service that is used over and over.
fn concurrency_limit(c: &mut Criterion) {
    let mut group = c.benchmark_group("concurrency_limit");
    let mut ours = tower_backpressure::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut ours)));
    let mut towers = tower::limit::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower", |b| b.iter(|| drive(&mut towers)));
    group.finish();
}

/// The accept path as hyper and axum take it: a fresh clone for each request.
fn concurrency_limit_cloned(c: &mut Criterion) {
    let mut group = c.benchmark_group("concurrency_limit_cloned");
    let ours = tower_backpressure::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter(|| drive(&mut ours.clone()));
    });
    let towers = tower::limit::ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("tower", |b| b.iter(|| drive(&mut towers.clone())));
    group.finish();
}

/// A refusal at a full limit, by one service that is used over and over.
fn load_shed_reject(c: &mut Criterion) {
    let mut group = c.benchmark_group("load_shed_reject");
    {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(1);
        let mut shed = tower_backpressure::LoadShedLayer::new().layer(limit.layer(Ready));
        let _full = limit.handle().try_acquire().expect("free");
        group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut shed)));
    }
    {
        let mut limit = tower::limit::ConcurrencyLimitLayer::new(1).layer(Ready);
        let mut shed = tower::load_shed::LoadShedLayer::new().layer(limit.clone());
        assert!(limit.poll_ready(&mut noop()).is_ready());
        group.bench_function("tower", |b| b.iter(|| drive(&mut shed)));
    }
    group.finish();
}

/// A refusal at a full limit as hyper and axum bring it about: by a fresh clone.
fn load_shed_reject_cloned(c: &mut Criterion) {
    let mut group = c.benchmark_group("load_shed_reject_cloned");
    {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(1);
        let shed = tower_backpressure::LoadShedLayer::new().layer(limit.layer(Ready));
        let _full = limit.handle().try_acquire().expect("free");
        group.bench_function("tower-backpressure", |b| {
            b.iter(|| drive(&mut shed.clone()));
        });
    }
    {
        let mut limit = tower::limit::ConcurrencyLimitLayer::new(1).layer(Ready);
        let shed = tower::load_shed::LoadShedLayer::new().layer(limit.clone());
        assert!(limit.poll_ready(&mut noop()).is_ready());
        group.bench_function("tower", |b| b.iter(|| drive(&mut shed.clone())));
    }
    group.finish();
}

/// The accept path of a limit that times each request, beside one that does not.
fn adaptive(c: &mut Criterion) {
    let mut group = c.benchmark_group("adaptive");
    let mut ours = tower_backpressure::AdaptiveConcurrencyLayer::vegas().layer(Ready);
    group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut ours)));
    #[cfg(feature = "quanta")]
    {
        use tower_backpressure::{AdaptiveConcurrencyLayer, Clock, Vegas};
        let limit = AdaptiveConcurrencyLayer::with_clock(Vegas::default(), Clock::tsc());
        let mut ours = limit.layer(Ready);
        group.bench_function("tower-backpressure-tsc", |b| b.iter(|| drive(&mut ours)));
    }
    let mut towers = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
    group.bench_function("tower", |b| b.iter(|| drive(&mut towers)));
    group.finish();
}

/// The accept path of admission by age, beside a limit that does not look at the clock.
fn codel(c: &mut Criterion) {
    let mut group = c.benchmark_group("codel");
    let mut ours = common::codel().layer(Ready);
    group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut ours)));
    let mut towers = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
    group.bench_function("tower", |b| b.iter(|| drive(&mut towers)));
    group.finish();
}

/// A circuit that is closed, with a service that works.
fn breaker_closed(c: &mut Criterion) {
    let mut group = c.benchmark_group("breaker_closed");
    let mut ours = tower_backpressure::CircuitBreakerLayer::default().layer(Ready);
    group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut ours)));
    let config = tower_backpressure::CircuitBreakerConfig::default();
    let config = config.failure_rate(0.5, std::time::Duration::from_secs(10), 20);
    let mut ours = tower_backpressure::CircuitBreakerLayer::new(config).layer(Ready);
    group.bench_function("tower-backpressure-by-share", |b| {
        b.iter(|| drive(&mut ours));
    });
    let config = tower_backpressure::CircuitBreakerConfig::default();
    let key = |request: &u64| Some(*request);
    let mut ours = tower_backpressure::KeyedCircuitBreakerLayer::new(config, key).layer(Ready);
    group.bench_function("tower-backpressure-keyed", |b| b.iter(|| drive(&mut ours)));
    let mut towers = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
    group.bench_function("tower", |b| b.iter(|| drive(&mut towers)));
    group.finish();
}

/// A refusal by a circuit that is open.
fn breaker_open(c: &mut Criterion) {
    let mut group = c.benchmark_group("breaker_open");
    let layer = tower_backpressure::CircuitBreakerLayer::default();
    layer.handle().force_open();
    let mut ours = layer.layer(Ready);
    group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut ours)));
    let mut towers = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
    group.bench_function("tower", |b| b.iter(|| drive(&mut towers)));
    group.finish();
}

/// The accept path. governor is checked directly, without a service around it; `direct` is the same
/// here. All three read tokio's clock, which in this build can be paused and so costs more than in a
/// server.
fn rate_limit(c: &mut Criterion) {
    let mut group = c.benchmark_group("rate_limit");
    let layer = tower_backpressure::RateLimitLayer::new(rate());
    let mut ours = layer.layer(Ready);
    group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut ours)));
    let handle = layer.handle();
    group.bench_function("tower-backpressure-direct", |b| {
        b.iter(|| handle.try_acquire(1).is_ok());
    });
    let governor = governor::RateLimiter::direct_with_clock(governor_quota(), TokioClock);
    group.bench_function("governor", |b| b.iter(|| governor.check().is_ok()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let mut towers =
        tower::limit::RateLimitLayer::new(u64::MAX, std::time::Duration::from_secs(1)).layer(Ready);
    group.bench_function("tower", |b| b.iter(|| drive(&mut towers)));
    group.finish();
}

/// tower's rate limit is not `Clone`; a server has to put a buffer in front, which is a task and a
/// channel.
fn rate_limit_shared(c: &mut Criterion) {
    let mut group = c.benchmark_group("rate_limit_shared");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.expect("a runtime");
    let ours = tower_backpressure::RateLimitLayer::new(rate()).layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter(|| runtime.block_on(ours.clone().oneshot(1)).is_ok());
    });
    let _entered = runtime.enter();
    let limited =
        tower::limit::RateLimitLayer::new(u64::MAX, std::time::Duration::from_secs(1)).layer(Ready);
    let towers = tower::buffer::Buffer::new(limited, 8);
    group.bench_function("tower", |b| {
        b.iter(|| runtime.block_on(towers.clone().oneshot(1)).is_ok());
    });
    group.finish();
}

/// 10 000 keys, one after another. governor is checked directly; `direct` is the same here.
fn rate_limit_keyed(c: &mut Criterion) {
    const KEYS: u64 = 10_000;
    let mut group = c.benchmark_group("rate_limit_keyed");
    let mut next = (0..KEYS).cycle();
    let layer = tower_backpressure::KeyedRateLimitLayer::new(rate(), |key: &u64| Some(*key));
    let handle = layer.handle();
    (0..KEYS).for_each(|key| assert!(handle.try_acquire(&key).is_ok()));
    let mut ours = layer.layer(Ready);
    group.bench_function("tower-backpressure", |b| {
        b.iter(|| drive_with(&mut ours, next.next().expect("endless")));
    });
    group.bench_function("tower-backpressure-direct", |b| {
        b.iter(|| handle.try_acquire(&next.next().expect("endless")).is_ok());
    });
    let governor = governor_keyed(KEYS);
    group.bench_function("governor", |b| {
        b.iter(|| governor.check_key(&next.next().expect("endless")).is_ok());
    });
    group.finish();
}

/// The same on the processor's time stamp counter.
#[cfg(feature = "quanta")]
fn rate_limit_tsc(c: &mut Criterion) {
    use tower_backpressure::{Clock, RateLimitLayer};
    let mut group = c.benchmark_group("rate_limit_tsc");
    let layer = RateLimitLayer::with_clock(rate(), Clock::tsc());
    let mut ours = layer.layer(Ready);
    group.bench_function("tower-backpressure", |b| b.iter(|| drive(&mut ours)));
    let handle = layer.handle();
    group.bench_function("tower-backpressure-direct", |b| {
        b.iter(|| handle.try_acquire(1).is_ok());
    });
    let governor = governor::RateLimiter::direct(governor_quota());
    group.bench_function("governor", |b| b.iter(|| governor.check().is_ok()));
    group.finish();
}

#[cfg(not(feature = "quanta"))]
fn rate_limit_tsc(_: &mut Criterion) {
    println!("rate_limit_tsc needs the feature `quanta`");
}

criterion_group!(
    benches,
    concurrency_limit,
    concurrency_limit_cloned,
    load_shed_reject,
    load_shed_reject_cloned,
    adaptive,
    codel,
    breaker_closed,
    breaker_open,
    rate_limit,
    rate_limit_shared,
    rate_limit_keyed,
    rate_limit_tsc
);
criterion_main!(benches);
