//! How fast permits are handed from one caller to the next when many wait:
//! `cargo bench --bench queue`.
//!
//! 1000 tasks on limit 10 each send requests one after another, and each request yields once while
//! it holds its permit, so that practically every permit goes to somebody who waited. The time is
//! per request, that is per hand-over; the order is first come first served in both
//! implementations.
//!
//! At the end it says how much processor time a request that waits in an `edge()` takes, with one worker and with two.

mod common;
#[path = "common/hand_over.rs"]
mod hand_over;

use criterion::{Criterion, criterion_group, criterion_main};
use hand_over::{LIMIT, YieldOnce, cpu_time, edge_hand_over, hand_over, one_thread, two_threads};
use tokio::runtime::Runtime;
use tower::Layer;

fn scenario(c: &mut Criterion, name: &str, runtime: &Runtime) {
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
    scenario(c, "queue_one_thread", &one_thread());
    scenario(c, "queue_two_threads", &two_threads());
}

/// No bench, but a measure of the same thing.
fn processor_time(_: &mut Criterion) {
    let test = std::env::args().any(|arg| arg == "--test");
    for (workers, runtime) in [(1, one_thread()), (2, two_threads())] {
        for tasks in [20, 1000, 100_000] {
            for tenants in [false, true] {
                let requests = if test { tasks } else { 1_000_000 };
                let before = cpu_time();
                edge_hand_over(&runtime, tasks, tenants, requests);
                let Some((before, after)) = before.zip(cpu_time()) else {
                    return; // not told by this system
                };
                let each = (after - before).as_nanos() / u128::from(requests);
                let whose = if tenants {
                    "a tenant each"
                } else {
                    "no tenants"
                };
                println!(
                    "edge, {tasks} tasks, {whose}, {workers} workers: {each} ns of processor time a request"
                );
            }
        }
    }
}

criterion_group!(benches, queue, processor_time);
criterion_main!(benches);
