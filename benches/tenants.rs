//! What fairness costs, by how many tenants compete: `cargo bench --bench tenants`.
//!
//! `fair_queue` is the scheduler alone, `wfq` whole requests through the layer. At the end it says how much
//! memory a request that waits takes.

mod common;
#[path = "../tests/support/counting.rs"]
mod counting;
#[allow(dead_code, reason = "a part of it is used")]
#[path = "common/fair.rs"]
mod fair;

use std::{
    future::Future,
    pin::{Pin, pin},
};

use common::{Ready, drive_with, noop};
use counting::counted;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fair::Fair;
use tower::{Layer, Service, ServiceBuilder};
use tower_backpressure::{ConcurrencyLimitLayer, WfqConfig, WfqLayer};

const TENANTS: [u32; 3] = [10, 1000, 100_000];

/// One comes, another one is next, begins, and is done, while all tenants have requests waiting.
fn fair_queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("fair_queue");
    for tenants in TENANTS {
        let mut fair = Fair::new(tenants);
        group.bench_function(BenchmarkId::new("a whole request", tenants), |b| {
            b.iter(|| fair.request());
        });
    }
    let mut fair = Fair::new(100_000);
    group.bench_function("come and leave, among 200 000 that wait", |b| {
        b.iter(|| fair.cancel());
    });
    group.finish();
}

/// The name of the tenant with that number.
fn names(tenants: u32) -> &'static [String] {
    Vec::leak(
        (0..tenants)
            .map(|tenant| format!("tenant-{tenant}"))
            .collect(),
    )
}

fn config() -> WfqConfig {
    WfqConfig::default().max_tenants(200_000)
}

/// Requests that need not wait, each of another tenant, beside the limit alone.
fn wfq(c: &mut Criterion) {
    let mut group = c.benchmark_group("wfq");
    for tenants in TENANTS {
        let names = names(tenants);
        let tenant = move |request: &u64| Some(names[*request as usize % names.len()].as_str());
        let service = ServiceBuilder::new()
            .layer(WfqLayer::new(config(), tenant))
            .layer(ConcurrencyLimitLayer::new(10))
            .service(Ready);
        let mut request = 0;
        group.bench_function(BenchmarkId::new("tower-backpressure", tenants), |b| {
            b.iter(|| {
                request += 7919;
                assert!(drive_with(&mut service.clone(), request));
            });
        });
    }
    let limit = ConcurrencyLimitLayer::new(10).layer(Ready);
    group.bench_function("the limit alone", |b| {
        b.iter(|| assert!(drive_with(&mut limit.clone(), 1)));
    });
    group.finish();
}

/// No bench, but a measure of the same thing.
fn memory(_: &mut Criterion) {
    const WAITERS: usize = 10_000;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    let config = config()
        .max_waiting(WAITERS)
        .max_waiting_per_tenant(WAITERS);
    let mut service = ServiceBuilder::new()
        .layer(WfqLayer::new(config, |_: &u64| Some("tenant")))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Ready);
    let _running = service.call(0);
    let mut waiting: Vec<Pin<Box<_>>> = Vec::with_capacity(WAITERS);
    let boxes = counted(|| (0..WAITERS).for_each(|_| waiting.push(Box::pin(service.call(0)))));
    let places = counted(|| {
        for future in &mut waiting {
            assert!(pin!(future).poll(&mut noop()).is_pending());
        }
    });
    let each = |count: counting::Count| count.bytes / WAITERS as isize;
    let (own, places) = (each(boxes), each(places));
    println!("memory of a request that waits: {own} bytes of its own, {places} in the queue\n");
}

criterion_group!(benches, fair_queue, wfq, memory);
criterion_main!(benches);
