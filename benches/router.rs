//! What the whole stack costs inside an axum `Router`, per accepted request, driven in process:
//! `cargo bench --bench router`.

#[path = "common/router.rs"]
mod driven;

use criterion::{Criterion, criterion_group, criterion_main};
use driven::Driven;

fn router(c: &mut Criterion) {
    let mut group = c.benchmark_group("router");
    for (name, driven) in [
        ("bare", Driven::bare()),
        ("tower", Driven::tower()),
        ("tower-backpressure", Driven::ours()),
    ] {
        group.bench_function(name, |b| b.iter(|| assert!(driven.request())));
    }
    group.finish();
}

criterion_group!(benches, router);
criterion_main!(benches);
