//! In an axum router, which calls `layer()` for each route and wraps what it is given.

use crate::support;

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
use tower_backpressure::{
    ConcurrencyLimitLayer, LoadShedLayer, Overloaded, Rate, RateLimitLayer, WfqConfig, WfqLayer,
    wfq,
};

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

/// Over real connections: one tenant keeps sixty requests waiting, the other sends one now and then. A request
/// takes 20 ms, and there are places for four.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_floods_a_server_takes_nothing_from_one_that_is_quiet() {
    const TAKES: Duration = Duration::from_millis(20);
    let fair = WfqLayer::new(
        WfqConfig::default().max_waiting_per_tenant(100),
        wfq::from_head(|head| head.uri.path().strip_prefix("/of/")), // a test trusts its clients
    );
    let handle = fair.handle();
    let work = || tokio::time::sleep(TAKES);
    let app = Router::new().route("/of/{tenant}", get(work)).layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(answer))
            .layer(fair)
            .layer(ConcurrencyLimitLayer::new(4)),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let begun = support::now();
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let mut client = Client::connect(server).await;
        flood.spawn(async move {
            loop {
                client.get("/of/flood").await;
            }
        });
    }
    let mut quiet = Client::connect(server).await;
    let mut latencies = Vec::new();
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(51)).await;
        let sent = support::now();
        quiet.get("/of/quiet").await;
        latencies.push(sent.elapsed());
    }
    let seconds = begun.elapsed().as_secs_f64();
    let served = |tenant: &str| handle.tenant(tenant).unwrap().served as f64;
    latencies.sort_unstable();
    assert!(
        latencies[197] <= 2 * TAKES + Duration::from_millis(5),
        "p99 {:?}",
        latencies[197]
    );
    assert_eq!(served("quiet"), 200.0);
    // The flood has all the rest, and no more.
    let rest = 4.0 * seconds / TAKES.as_secs_f64() - 200.0;
    let part = served("flood") / rest;
    assert!((0.9..=1.0).contains(&part), "{part} of {rest}");
}

/// An HTTP connection.
struct Client(hyper::client::conn::http1::SendRequest<Body>);

impl Client {
    async fn connect(server: std::net::SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(server).await.unwrap();
        let stream = hyper_util::rt::TokioIo::new(stream);
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    async fn get(&mut self, path: &str) {
        self.0.ready().await.unwrap();
        let request = Request::get(path).header("host", "localhost");
        let request = request.body(Body::empty()).unwrap();
        let response = self.0.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}
