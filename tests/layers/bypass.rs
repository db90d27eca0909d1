//! Requests that pass by a limit.

use crate::simulation;

use std::{convert::Infallible, future::pending, time::Duration};

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use simulation::{Job, MS, SEC, Server, Spread, World, seeds};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, BoxError, BypassLayer, ConcurrencyLimitLayer, LoadShedLayer,
    OverloadResponseLayer, Overloaded, Reason, edge,
};

/// A request that is marked, or one that is not.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Polls(bool);

/// Answers polls never, and the others at once.
async fn serve(request: Polls) -> Result<(), BoxError> {
    match request {
        Polls(true) => pending().await,
        Polls(false) => Ok(()),
    }
}

fn refused(result: Result<(), BoxError>) -> Option<Reason> {
    let error = result.err()?;
    Overloaded::find(error.as_ref()).map(Overloaded::reason)
}

#[tokio::test]
async fn marked_requests_hold_no_place() {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let handle = limit.handle();
    let service = BypassLayer::new(|request: &Polls| request.0, limit).layer(service_fn(serve));
    let polls: Vec<_> = (0..3)
        .map(|_| tokio::spawn(service.clone().oneshot(Polls(true))))
        .collect();
    tokio::task::yield_now().await;
    assert_eq!(handle.snapshot().in_flight, 0);
    assert!(service.clone().oneshot(Polls(false)).await.is_ok());
    assert_eq!(handle.snapshot().admitted, 1);
    assert!(polls.iter().all(|poll| !poll.is_finished()));
}

#[tokio::test]
async fn marked_requests_have_a_limit_of_their_own() {
    let polls = ConcurrencyLimitLayer::new(1).max_waiting(0).name("polls");
    let handle = polls.handle();
    let service = BypassLayer::new(
        |request: &Polls| request.0,
        ConcurrencyLimitLayer::new(1).max_waiting(0),
    )
    .through(polls)
    .layer(service_fn(serve));
    let poll = tokio::spawn(service.clone().oneshot(Polls(true)));
    tokio::task::yield_now().await;
    assert_eq!(handle.snapshot().in_flight, 1);
    let second = service.clone().oneshot(Polls(true)).await;
    assert!(refused(second).is_some());
    assert_eq!(refused(service.oneshot(Polls(false)).await), None);
    poll.abort();
    assert!(poll.await.is_err());
    assert_eq!(handle.snapshot().in_flight, 0);
}

#[tokio::test]
async fn a_request_waits_in_its_response_future_and_leaves_the_queue_with_it() {
    let limit = ConcurrencyLimitLayer::new(1);
    let handle = limit.handle();
    // All of them go through the limit, and none is ever answered.
    let mut service = BypassLayer::new(|_: &Polls| false, limit).layer(service_fn(serve));
    let first = tokio::spawn(service.clone().oneshot(Polls(true)));
    tokio::task::yield_now().await;
    let second = tokio::spawn(service.ready().await.unwrap().call(Polls(false)));
    let third = tokio::spawn(service.ready().await.unwrap().call(Polls(false)));
    tokio::task::yield_now().await;
    assert_eq!(handle.snapshot().waiting, 2);
    second.abort();
    assert!(second.await.is_err());
    assert_eq!(handle.snapshot().waiting, 1);
    first.abort();
    assert!(third.await.unwrap().is_ok());
}

#[tokio::test]
async fn an_edge_can_be_passed_by() {
    let edge = edge().limits(1, 1, 1).max_wait(Duration::from_millis(1));
    let handle = edge.handle();
    let is_poll = |request: &Request<String>| request.uri().path() == "/events";
    let service = ServiceBuilder::new()
        .layer(BypassLayer::new(is_poll, edge).through(OverloadResponseLayer::new()))
        .service_fn(|request: Request<String>| async move {
            if request.uri().path() == "/stuck" {
                pending::<()>().await;
            }
            Ok::<_, BoxError>(Response::new("served".to_string()))
        });
    let get = |path: &str| {
        let request = Request::get(path).body(String::new()).unwrap();
        service.clone().oneshot(request)
    };
    let stuck = tokio::spawn(get("/stuck"));
    tokio::task::yield_now().await;
    let work = get("/work")
        .await
        .unwrap_or_else(|never: Infallible| match never {});
    assert_eq!(work.status(), StatusCode::SERVICE_UNAVAILABLE);
    let poll = get("/events")
        .await
        .unwrap_or_else(|never: Infallible| match never {});
    assert_eq!(poll.status(), StatusCode::OK);
    assert_eq!(handle.snapshot().permits.admitted, 1);
    stuck.abort();
}

#[tokio::test]
async fn in_axum_a_route_that_is_added_after_the_layer_passes_by_it() {
    let edge = edge();
    let handle = edge.handle();
    let app = Router::new()
        .route("/work", get(|| async { "done" }))
        .layer(edge)
        .route("/events", get(|| async { "news" }));
    for (path, admitted) in [("/events", 0), ("/work", 1)] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(handle.snapshot().permits.admitted, admitted, "{path}");
    }
}

/// One request in ten waits 30 s for news, and the others are 0.8 times what the server can do. How many of those are served
/// in time.
fn served_beside_long_polls(seed: u64, k: usize, marked: bool) -> f64 {
    let server = Server::new(k, 50 * MS, Spread::Exponential);
    let layers = move || {
        let limit = ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(AdaptiveConcurrencyLayer::vegas());
        BypassLayer::new(move |job: &Job| marked && job.polls, limit)
    };
    let mut world = World::new(seed, server, layers);
    (world.patience, world.polls) = (SEC, 0.1);
    world.run(0.8, 60 * SEC);
    let seen = world.run(0.8, 60 * SEC);
    seen.good as f64 / seen.offered as f64
}

#[test]
fn work_is_served_beside_long_polls_that_pass_by() {
    for seed in seeds() {
        for k in [4, 16, 64] {
            let served = served_beside_long_polls(seed, k, true);
            assert!(served >= 0.97, "{served:.3} of {k}, seed {seed}");
        }
        let unmarked = served_beside_long_polls(seed, 64, false);
        assert!(
            unmarked < 0.5,
            "the mark makes no difference: {unmarked:.3}"
        );
    }
}
