//! How fast permits are handed from one caller to the next when many wait:
//! `cargo bench --bench queue`.
//!
//! 1000 tasks on limit 10 each send requests one after another, and each request yields once while
//! it holds its permit, so that practically every permit goes to somebody who waited. The time is
//! per request, that is per hand-over; the order is first come first served in both
//! implementations.
//!
//! At the end it says how much processor time a request that waits takes, at a limit and in an `edge()`, with one worker and
//! with two.

mod common;
#[path = "common/hand_over.rs"]
mod hand_over;

use criterion::{Criterion, criterion_group, criterion_main};
use hand_over::{
    LIMIT, YieldOnce, cpu_time, edge_hand_over, hand_over, hand_over_by, one_thread, two_threads,
};
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

/// No bench, but a measure of the same thing. Beside tower's limit, because on two workers most of it is the way of cache
/// lines from one core to the other, which depends on the machine.
fn processor_time(_: &mut Criterion) {
    let test = std::env::args().any(|arg| arg == "--test");
    for (workers, runtime) in [(1, one_thread()), (2, two_threads())] {
        for tasks in [20, 1000, 100_000] {
            let implementations: [(&str, &dyn Fn(u64)); 4] = [
                ("tower's limit", &|n| {
                    let towers = tower::limit::ConcurrencyLimitLayer::new(LIMIT).layer(YieldOnce);
                    hand_over_by(tasks, &runtime, &towers, n);
                }),
                ("concurrency limit", &|n| {
                    let ours = tower_backpressure::ConcurrencyLimitLayer::new(LIMIT);
                    let ours = ours.max_waiting(1_000_000).layer(YieldOnce);
                    hand_over_by(tasks, &runtime, &ours, n);
                }),
                ("edge, no tenants", &|n| {
                    edge_hand_over(&runtime, tasks, false, n);
                }),
                ("edge, a tenant each", &|n| {
                    edge_hand_over(&runtime, tasks, true, n);
                }),
            ];
            for (name, run) in implementations {
                let requests = if test { tasks } else { 1_000_000 };
                let before = cpu_time();
                run(requests);
                let Some((before, after)) = before.zip(cpu_time()) else {
                    return; // not told by this system
                };
                let each = (after - before).as_nanos() / u128::from(requests);
                println!(
                    "{name}, {tasks} tasks, {workers} workers: {each} ns of processor time a request"
                );
            }
        }
    }
}

criterion_group!(benches, queue, processor_time);
criterion_main!(benches);
