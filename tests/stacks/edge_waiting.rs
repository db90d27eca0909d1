//! However the service behaves, a request that waits in `edge()` is answered within a bound.

use crate::support;

use std::{convert::Infallible, time::Duration};

use axum::{Router, body::Body, extract::Path, routing::get};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use support::{assert_refused, boxed, finish, now, poll};
use tokio::{task::JoinSet, time::sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_backpressure::{Edge, Reason, config::EdgeConfig, edge};

const SECOND: Duration = Duration::from_secs(1);

/// `/takes/{ms}` takes so many milliseconds. `/stream/{ms}` answers at once with a body that takes them.
fn routes() -> Router {
    let millis = |Path(ms): Path<u64>| sleep(Duration::from_millis(ms));
    let stream = |Path(ms): Path<u64>| async move {
        Body::from_stream(stream::once(async move {
            sleep(Duration::from_millis(ms)).await;
            Ok::<_, Infallible>(Bytes::from("done"))
        }))
    };
    Router::new()
        .route("/takes/{ms}", get(millis))
        .route("/stream/{ms}", get(stream))
}

/// Sends a request, reads the answer to its end, and says what it was and how long it took until its head was there.
async fn send(app: Router, path: &'static str) -> (StatusCode, Duration) {
    let begun = now();
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let Ok(response) = app.oneshot(request).await;
    let answered = (response.status(), begun.elapsed());
    response.into_body().collect().await.expect("a body");
    answered
}

/// Two requests to `slow` and then three to a handler that takes a millisecond, with two places. Gives the answers to the
/// three.
async fn three_behind(app: Router, slow: &'static str) -> Vec<(StatusCode, Duration)> {
    let mut slow_ones = JoinSet::new();
    for _ in 0..2 {
        slow_ones.spawn(send(app.clone(), slow));
    }
    sleep(Duration::from_millis(10)).await; // they have their places
    let mut three = JoinSet::new();
    for _ in 0..3 {
        three.spawn(send(app.clone(), "/takes/1"));
    }
    three.join_all().await
}

fn two_places(edge: Edge) -> Edge {
    edge.handle().pin(2).expect("two is a limit");
    edge
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_answered_within_a_second_while_the_service_hangs() {
    let app = routes().layer(two_places(edge()));
    for (status, took) in three_behind(app, "/takes/12000").await {
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(took > SECOND / 2 && took <= SECOND, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_answered_within_a_second_while_bodies_are_slow() {
    let edge = two_places(edge()).hold_until_body_end();
    for (status, took) in three_behind(routes().layer(edge), "/stream/12000").await {
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(took <= SECOND, "{took:?}");
    }
}

/// Tenants do not change that, nor does the config that says everything anew.
#[tokio::test(start_paused = true)]
async fn the_bound_stays_with_tenants_and_with_a_config() {
    let tenant = |_: &Request<Body>| Some("tenant");
    let config = tower_backpressure::config::EdgeConfig::default();
    let edge = edge()
        .tenant(tenant)
        .configured(&config)
        .expect("the default");
    edge.handle().pin(2).expect("two is a limit");
    for (status, took) in three_behind(routes().layer(edge), "/takes/12000").await {
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(took <= SECOND, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_bound_can_be_changed_and_turned_off() {
    let app = routes().layer(two_places(edge().max_wait(3 * SECOND)));
    for (status, took) in three_behind(app, "/takes/12000").await {
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(took > 2 * SECOND && took <= 3 * SECOND, "{took:?}");
    }
    let app = routes().layer(two_places(edge().max_wait(None)));
    for (_, took) in three_behind(app, "/takes/12000").await {
        assert!(took > 11 * SECOND, "{took:?}");
    }
}

/// There was a place when it came, but another request took it: the one that is polled first waits.
#[tokio::test]
async fn a_request_that_finds_no_place_when_it_is_polled_is_rejected() {
    let edge = edge();
    let handle = edge.handle();
    handle.pin(1).expect("one is a limit");
    handle.set_max_waiting(1);
    let _permit = handle.try_acquire().expect("nothing else runs");
    let mut service = edge.gates().layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(()))
    }));
    let mut first = boxed(service.call(Request::new(())));
    let second = boxed(service.call(Request::new(())));
    assert!(poll(&mut first).is_pending());
    assert_refused(finish(second), Reason::QueueFull);
}

/// How long a request takes that is served, in the middle: one worker, five times as many requests as it can do.
async fn median_under_overload(edge: Edge) -> Duration {
    edge.handle().pin(1).expect("one is a limit");
    let service = edge.gates().layer(service_fn(|_: Request<()>| async {
        sleep(Duration::from_millis(50)).await;
        Ok::<_, Infallible>(Response::new(()))
    }));
    let mut requests = JoinSet::new();
    for number in 0..500 {
        let mut service = service.clone();
        requests.spawn(async move {
            let came = now();
            let served = service.call(Request::new(())).await.is_ok();
            (number > 100 && served).then(|| came.elapsed())
        });
        sleep(Duration::from_millis(10)).await;
    }
    let mut served: Vec<_> = requests.join_all().await.into_iter().flatten().collect();
    served.sort();
    served[served.len() / 2]
}

#[tokio::test(start_paused = true)]
async fn under_plain_overload_the_newest_is_first_unless_the_order_is_to_be_kept() {
    let soon = Duration::from_millis(75);
    let late = Duration::from_millis(150);
    assert!(median_under_overload(edge()).await < soon);
    assert!(median_under_overload(edge().newest_first(false)).await > late);
    let mut config = EdgeConfig::default();
    config.newest_first = false;
    let configured = edge().configured(&config).expect("it is allowed");
    assert!(median_under_overload(configured).await > late);
    let changed = edge();
    changed.handle().set_newest_first(false);
    assert!(median_under_overload(changed).await > late);
}

/// Nothing gets too old then: what shows the overload is that there is no place.
#[tokio::test(start_paused = true)]
async fn under_plain_overload_the_newest_is_first_where_only_a_few_may_wait() {
    for newest_first in [true, false] {
        let edge = edge().newest_first(newest_first);
        edge.handle().set_max_waiting(3);
        let median = median_under_overload(edge).await;
        assert_eq!(
            median < Duration::from_millis(100),
            newest_first,
            "{median:?}"
        );
    }
}
