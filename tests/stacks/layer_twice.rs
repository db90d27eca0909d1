//! One layer value twice on the path of a request: the request holds a permit and waits for another of the same limiter.
//! Debug builds say so with a panic; otherwise the wait ends by `max_wait`.

use crate::support;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use futures_util::FutureExt;
use http::{Request, StatusCode};
use support::now;
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService,
};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ConcurrencyLimitLayer, KeyedConcurrencyLimitLayer, LoadShedLayer,
    Overloaded, Rate, RateLimitLayer, Reason, WfqConfig, WfqLayer, edge,
};

const SECOND: Duration = Duration::from_secs(1);

type Boxed = BoxCloneSyncService<u32, u32, BoxError>;

fn handler() -> Boxed {
    BoxCloneSyncService::new(service_fn(|request: u32| async move { Ok(request) }))
}

/// The layer around a service that is always ready, as axum's routes are, around the layer, around a handler.
fn twice<L, S>(layer: impl Fn() -> L) -> Boxed
where
    L: Layer<Boxed, Service = S>,
    S: Service<u32, Response = u32, Error = BoxError> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let inside = BoxCloneSyncService::new(layer().layer(handler()));
    let route = service_fn(move |request| inside.clone().oneshot(request));
    BoxCloneSyncService::new(layer().layer(BoxCloneSyncService::new(route)))
}

/// What becomes of one request: the answer or the rejection, or the message of a panic.
async fn send(service: Boxed) -> Result<Result<u32, Reason>, String> {
    let sent = AssertUnwindSafe(service.oneshot(7)).catch_unwind().await;
    let reason = |error: BoxError| {
        Overloaded::find(error.as_ref())
            .expect("a rejection")
            .reason()
    };
    match sent {
        Ok(answer) => Ok(answer.map_err(reason)),
        Err(panicked) => Err(message(panicked)),
    }
}

fn message(panicked: Box<dyn Any + Send>) -> String {
    match panicked.downcast::<String>() {
        Ok(message) => *message,
        Err(other) => resume_unwind(other),
    }
}

#[track_caller]
fn assert_found(sent: Result<Result<u32, Reason>, String>, name: &str) {
    match cfg!(debug_assertions) {
        true => {
            let message = sent.expect_err("debug builds find it");
            let expected =
                format!("the same `{name}` layer value is on the path of a request twice");
            assert!(message.starts_with(&expected), "{message}");
        }
        false => assert_eq!(sent, Ok(Err(Reason::WaitTimeout))),
    }
}

#[tokio::test(start_paused = true)]
async fn a_limiter_inside_itself_is_found() {
    let limit = ConcurrencyLimitLayer::new(1).max_wait(SECOND);
    let handle = limit.handle();
    assert_found(send(twice(|| limit.clone())).await, "concurrency_limit");
    let in_one_builder = ServiceBuilder::new()
        .layer(limit.clone())
        .layer(limit.clone())
        .service(handler());
    let in_one_builder = BoxCloneSyncService::new(in_one_builder);
    assert_found(send(in_one_builder).await, "concurrency_limit");
    assert_eq!(handle.snapshot().in_flight, 0, "nothing is lost");

    let adaptive = AdaptiveConcurrencyLayer::vegas()
        .max_wait(SECOND)
        .name("learned");
    adaptive.handle().pin(1).expect("one is a limit");
    assert_found(send(twice(|| adaptive.clone())).await, "learned");

    let keyed = KeyedConcurrencyLimitLayer::new(1, |_: &u32| Some(1)).max_wait(SECOND);
    assert_found(
        send(twice(|| keyed.clone())).await,
        "keyed_concurrency_limit",
    );
    let in_one_builder = ServiceBuilder::new()
        .layer(keyed.clone())
        .layer(keyed.clone())
        .service(handler());
    let in_one_builder = BoxCloneSyncService::new(in_one_builder);
    assert_found(send(in_one_builder).await, "keyed_concurrency_limit");

    let fair = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("tenant"));
    let stack = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(1));
    assert_found(send(twice(|| stack.clone())).await, "wfq");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_for_a_permit_of_its_own_limit_is_found() {
    let limit = ConcurrencyLimitLayer::new(1).max_wait(SECOND);
    let handle = limit.handle();
    let service = limit.layer(service_fn(move |request: u32| {
        let handle = handle.clone();
        async move {
            let _permit = handle.acquire().await?;
            Ok::<_, BoxError>(request)
        }
    }));
    assert_found(
        send(BoxCloneSyncService::new(service)).await,
        "concurrency_limit",
    );
}

/// In a router, as people write it.
#[tokio::test(start_paused = true)]
async fn an_edge_inside_itself_is_found_or_answers_within_a_second() {
    let edge = edge();
    edge.handle().pin(1).expect("one is a limit");
    let app: Router = Router::new()
        .route("/", get(|| async { "served" }))
        .route_layer(edge.clone())
        .layer(edge.clone());
    let begun = now();
    let request = app.oneshot(Request::new(Body::empty()));
    match AssertUnwindSafe(request).catch_unwind().await {
        Ok(Ok(response)) => {
            if cfg!(debug_assertions) {
                panic!("debug builds find it");
            }
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(begun.elapsed() <= SECOND, "{:?}", begun.elapsed());
        }
        Err(panicked) => assert_found(Err(message(panicked)), "edge"),
    }
    assert_eq!(edge.handle().snapshot().permits.in_flight, 0);
}

/// Only a request that would wait for itself is found.
#[tokio::test(start_paused = true)]
async fn nothing_else_is_mistaken_for_it() {
    let room = ConcurrencyLimitLayer::new(2);
    assert_eq!(send(twice(|| room.clone())).await, Ok(Ok(7)));

    let one = || ConcurrencyLimitLayer::new(1);
    assert_eq!(send(twice(one)).await, Ok(Ok(7)), "two values");

    // Tokens come with time. No request holds them, so none waits for itself.
    let rate = RateLimitLayer::new(Rate::per_second(1));
    assert_eq!(send(twice(|| rate.clone())).await, Ok(Ok(7)), "two tokens");

    let full = ConcurrencyLimitLayer::new(1).max_waiting(0);
    assert_eq!(
        send(twice(|| full.clone())).await,
        Ok(Err(Reason::QueueFull))
    );

    let limit = ConcurrencyLimitLayer::new(1);
    let sheds = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(limit);
    assert_eq!(
        send(twice(|| sheds.clone())).await,
        Ok(Err(Reason::AtLimit))
    );

    // Requests of one task that wait beside each other, not inside each other.
    let limit = ConcurrencyLimitLayer::new(1);
    let service = BoxCloneSyncService::new(limit.layer(handler()));
    let beside = (0..3).map(|_| send(service.clone()));
    for sent in futures_util::future::join_all(beside).await {
        assert_eq!(sent, Ok(Ok(7)));
    }
}
