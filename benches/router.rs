//! What the whole stack costs inside an axum `Router`, per accepted request, driven in process: `cargo bench --bench router`.
//!
//! `bare` is the router with a handler that does nothing, `tower` has tower's shed and limit and the layer that axum asks
//! for to answer their errors, `tower-backpressure` is [`edge`](tower_backpressure::edge): stamp, answers, fair queueing,
//! admission by age, and an adaptive limit.

use axum::{
    BoxError, Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{Request, StatusCode},
    routing::get,
};
use criterion::{Criterion, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use tower::{Service, ServiceBuilder};

/// One request through a clone, as a server makes it.
fn drive(runtime: &Runtime, app: &Router) -> StatusCode {
    runtime.block_on(async {
        let request = Request::get("/").body(Body::empty()).expect("valid");
        let response = app.clone().call(request).await;
        response.expect("infallible").status()
    })
}

fn router(c: &mut Criterion) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().build().expect("a runtime");
    let bare = || Router::new().route("/", get(|| async {}));
    let entered = runtime.enter();
    let tower = bare().layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(|_: BoxError| async {
                StatusCode::SERVICE_UNAVAILABLE
            }))
            .layer(tower::load_shed::LoadShedLayer::new())
            .layer(tower::limit::GlobalConcurrencyLimitLayer::new(20)),
    );
    let ours = bare().layer(tower_backpressure::edge());
    drop(entered);
    let mut group = c.benchmark_group("router");
    for (name, app) in [
        ("bare", bare()),
        ("tower", tower),
        ("tower-backpressure", ours),
    ] {
        let app: Router = app.with_state(());
        assert_eq!(drive(&runtime, &app), StatusCode::OK);
        group.bench_function(name, |b| b.iter(|| drive(&runtime, &app)));
    }
    group.finish();
}

criterion_group!(benches, router);
criterion_main!(benches);
