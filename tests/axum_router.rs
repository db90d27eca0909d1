//! In an axum router, which calls `layer()` for each route and wraps what it is given.

mod support;

use std::{sync::Arc, time::Duration};

use axum::{
    BoxError, Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{Request, StatusCode},
    response::IntoResponse,
    routing::get,
};
use tokio::sync::Notify;
use tower::{ServiceBuilder, ServiceExt};
use tower_backpressure::{ConcurrencyLimitLayer, LoadShedLayer, Overloaded, Rate, RateLimitLayer};

async fn answer(error: BoxError) -> impl IntoResponse {
    match Overloaded::find(error.as_ref()) {
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// `/slow` answers when it is told to, the others at once.
fn routes(go: &Arc<Notify>) -> Router {
    let go = Arc::clone(go);
    let slow = move || async move { go.notified().await };
    Router::new()
        .route("/slow", get(slow))
        .route("/a", get(|| async {}))
        .route("/b", get(|| async {}))
}

async fn status(app: &Router, path: &str) -> StatusCode {
    let request = Request::get(path).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

/// tower's limit would be one for each route here (axum#2582).
#[tokio::test]
async fn all_routes_share_one_limit() {
    let go = Arc::new(Notify::new());
    let limit = ConcurrencyLimitLayer::new(1);
    let app = routes(&go).layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(answer))
            .layer(LoadShedLayer::new())
            .layer(limit.clone()),
    );
    assert_eq!(status(&app, "/a").await, StatusCode::OK);
    let slow = tokio::spawn({
        let app = app.clone();
        async move { status(&app, "/slow").await }
    });
    while limit.handle().snapshot().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(status(&app, "/a").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status(&app, "/b").await, StatusCode::SERVICE_UNAVAILABLE);
    go.notify_one();
    assert_eq!(slow.await.unwrap(), StatusCode::OK);
    assert_eq!(status(&app, "/b").await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn all_routes_share_one_rate() {
    let app = routes(&Arc::default()).layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(answer))
            .layer(LoadShedLayer::new())
            .layer(RateLimitLayer::new(Rate::per_second(10).burst(2))),
    );
    assert_eq!(status(&app, "/a").await, StatusCode::OK);
    assert_eq!(status(&app, "/b").await, StatusCode::OK);
    assert_eq!(status(&app, "/a").await, StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!(status(&app, "/b").await, StatusCode::OK);
}

/// Why the docs say: one `ServiceBuilder`. Between two calls of `Router::layer` axum puts a service that
/// is always ready, so the shed outside does not see that the limit is full, and the request waits.
#[tokio::test]
async fn through_two_calls_of_router_layer_nothing_is_shed() {
    let limit = ConcurrencyLimitLayer::new(1);
    let app = routes(&Arc::default())
        .layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(answer))
                .layer(limit.clone()),
        )
        .layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(answer))
                .layer(LoadShedLayer::new()),
        );
    let busy = limit.handle().try_acquire().unwrap();
    let waiting = tokio::spawn(async move { status(&app, "/a").await });
    while limit.handle().snapshot().waiting == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    drop(busy);
    assert_eq!(waiting.await.unwrap(), StatusCode::OK);
}
