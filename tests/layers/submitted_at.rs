//! The stamp that a request's age is counted from.

use crate::support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderName, Request};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_backpressure::{SubmittedAt, SubmittedAtLayer, submitted_at::MAX_AGE};

const SEC: Duration = Duration::from_secs(1);
const HEADER: HeaderName = HeaderName::from_static("x-request-start");

async fn age(request: Request<()>) -> Result<Duration, BoxError> {
    let submitted = request.extensions().get::<SubmittedAt>();
    Ok(submitted.ok_or("no stamp")?.elapsed())
}

/// How old a request is behind the layer.
async fn age_behind(layer: &SubmittedAtLayer, request: Request<()>) -> Duration {
    layer.layer(service_fn(age)).oneshot(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_is_stamped_when_it_is_called() {
    let mut service = SubmittedAtLayer::new().layer(service_fn(age));
    let response = service.ready().await.unwrap().call(Request::new(()));
    advance(3 * SEC).await; // its future is polled late
    assert_eq!(response.await.unwrap(), 3 * SEC);
}

#[tokio::test(start_paused = true)]
async fn a_stamp_that_is_there_is_kept() {
    let mut request = Request::new(());
    SubmittedAt::stamp(request.extensions_mut());
    advance(SEC).await;
    SubmittedAt::stamp(request.extensions_mut());
    let trusting = SubmittedAtLayer::new().dangerously_trust_header(HEADER);
    let twice = SubmittedAtLayer::new().layer(trusting.layer(service_fn(age)));
    assert_eq!(twice.oneshot(request).await.unwrap(), SEC);
}

/// As a proxy writes it. The clock on the wall cannot be paused, so ages are not exact.
#[allow(clippy::disallowed_methods, reason = "a proxy looks at its own clock")]
fn ago(age: Duration) -> String {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - age;
    format!("t={}", started.as_millis())
}

fn with_header(value: &str) -> Request<()> {
    Request::builder().header(HEADER, value).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_header_is_believed_unless_that_is_asked_for() {
    let layer = SubmittedAtLayer::new();
    let request = with_header(&ago(100 * SEC));
    assert_eq!(age_behind(&layer, request).await, Duration::ZERO);
    assert_eq!(layer.handle().snapshot(), Default::default());
}

#[tokio::test(start_paused = true)]
async fn a_header_that_is_trusted_is_believed() {
    let layer = SubmittedAtLayer::new().dangerously_trust_header(HEADER);
    let age = age_behind(&layer, with_header(&ago(100 * SEC))).await;
    assert!((100 * SEC..160 * SEC).contains(&age), "{age:?}");
    assert_eq!(age_behind(&layer, Request::new(())).await, Duration::ZERO);
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.believed, snapshot.invalid), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_believed_is_counted_and_stamped_with_the_time_it_came() {
    let layer = SubmittedAtLayer::new().dangerously_trust_header(HEADER);
    let handle = layer.handle();
    let year_2200 = with_header("t=7258118400");
    assert_eq!(age_behind(&layer, year_2200).await, Duration::ZERO);
    assert_eq!(
        (handle.snapshot().future, handle.snapshot().believed),
        (1, 0)
    );

    let mut twice = with_header(&ago(SEC));
    twice.headers_mut().append(HEADER, "t=1".parse().unwrap());
    for request in [with_header("yesterday"), with_header(""), twice] {
        assert_eq!(age_behind(&layer, request).await, Duration::ZERO);
    }
    assert_eq!(
        (handle.snapshot().invalid, handle.snapshot().believed),
        (3, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn no_request_is_older_than_ten_minutes() {
    let layer = SubmittedAtLayer::new().dangerously_trust_header(HEADER);
    // On a machine that has just been started, the clock does not go back as far.
    let Some(_) = SubmittedAt::ago(MAX_AGE) else {
        return;
    };
    assert_eq!(
        age_behind(&layer, with_header("t=1000000000")).await,
        600 * SEC
    );
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.believed, snapshot.capped), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_makes_no_request_older() {
    let submitted = SubmittedAt::from(support::now() + SEC);
    assert_eq!(submitted.elapsed(), Duration::ZERO);
}

/// hyper calls a service when it has decoded a request, and tower's readiness is waited for after that.
#[cfg(feature = "hyper")]
#[tokio::test(start_paused = true)]
async fn hyper_stamps_what_it_has_decoded() {
    use bytes::Bytes;
    use http::Response;
    use http_body_util::{BodyExt, Empty, Full};
    use hyper::{body::Incoming, client, server};
    use hyper_util::{rt::TokioIo, service::TowerToHyperService};
    use tower_backpressure::{ConcurrencyLimitLayer, submitted_at::StampDecoded};

    let limit = ConcurrencyLimitLayer::new(1);
    let service = limit.layer(service_fn(|request: Request<Incoming>| async move {
        let submitted = request.extensions().get::<SubmittedAt>();
        let age = submitted.ok_or("no stamp")?.elapsed();
        Ok::<_, BoxError>(Response::new(Full::<Bytes>::from(
            age.as_secs().to_string(),
        )))
    }));
    let (to_server, to_client) = tokio::io::duplex(4096);
    let served = server::conn::http1::Builder::new().serve_connection(
        TokioIo::new(to_client),
        StampDecoded::new(TowerToHyperService::new(service)),
    );
    tokio::spawn(served);
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(to_server))
        .await
        .unwrap();
    tokio::spawn(connection);

    let busy = limit.handle().try_acquire().unwrap();
    let response = tokio::spawn(sender.send_request(Request::new(Empty::<Bytes>::new())));
    while limit.handle().snapshot().waiting == 0 {
        tokio::task::yield_now().await;
    }
    advance(5 * SEC).await;
    drop(busy);
    let body = response.await.unwrap().unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "5");
}
