//! What a layer costs per request, on one thread, with an inner service that does nothing.
//!
//! A group is a scenario, a function in it an implementation, so that a ratio is read off one run:
//! `cargo bench --bench overhead`. Each request is driven as a server drives it: polled ready,
//! called, and its future polled to its end.

mod common;

use common::{Ready, drive, noop};
use criterion::{Criterion, criterion_group, criterion_main};
use tower::{Layer, Service};

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

criterion_group!(
    benches,
    concurrency_limit,
    concurrency_limit_cloned,
    load_shed_reject,
    load_shed_reject_cloned
);
criterion_main!(benches);
