//! Deadlines: which one a request gets, and what becomes of a request that is too late.

use crate::support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{HeaderName, HeaderValue, Request, Response};
use proptest::prelude::*;
use support::{finish, now, poll, poll_ready, refusal};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, Deadline, DeadlineLayer, OverloadResponseLayer, Overloaded, Reason,
    SubmittedAtLayer, deadline::Unit, edge,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const MILLIS: HeaderName = HeaderName::from_static("x-request-timeout");
const SECONDS: HeaderName = HeaderName::from_static("x-server-timeout");

type Time = Option<Duration>;

/// How much time a request has left in its handler.
async fn left(request: Request<()>) -> Result<Time, BoxError> {
    let deadline = request.extensions().get::<Deadline>();
    Ok(deadline.map(|deadline| deadline.remaining()))
}

fn left_behind(layer: &DeadlineLayer, request: Request<()>) -> Result<Time, BoxError> {
    finish(
        layer
            .layer(service_fn(|request| Box::pin(left(request))))
            .oneshot(request),
    )
}

fn with(headers: &[(HeaderName, &'static str)]) -> Request<()> {
    let mut request = Request::new(());
    for (name, value) in headers {
        let value = HeaderValue::from_static(value);
        request.headers_mut().insert(name, value);
    }
    request
}

const GRPC: HeaderName = HeaderName::from_static("grpc-timeout");
const CONNECT: HeaderName = HeaderName::from_static("connect-timeout-ms");

#[tokio::test(start_paused = true)]
async fn the_earliest_of_all_sources_is_the_deadline() {
    let plain = DeadlineLayer::new();
    let own = plain
        .clone()
        .header(MILLIS, Unit::Millis)
        .header(SECONDS, Unit::Seconds);
    let bounded = own.clone().default_timeout(3 * SEC).max_timeout(5 * SEC);
    let only_max = own.clone().max_timeout(5 * SEC);
    for (headers, [by_plain, by_own, by_bounded, by_only_max]) in [
        (&[][..], [None, None, Some(3 * SEC), Some(5 * SEC)]),
        (&[(GRPC, "4S")], [Some(4 * SEC); 4]),
        (&[(CONNECT, "4000")], [Some(4 * SEC); 4]),
        (&[(GRPC, "4S"), (CONNECT, "1000")], [Some(SEC); 4]),
        (
            &[(GRPC, "9S")],
            [Some(9 * SEC), Some(9 * SEC), Some(5 * SEC), Some(5 * SEC)],
        ),
        (
            &[(MILLIS, "250")],
            [None, Some(250 * MS), Some(250 * MS), Some(250 * MS)],
        ),
        (
            &[(MILLIS, "2500"), (SECONDS, "2")],
            [None, Some(2 * SEC), Some(2 * SEC), Some(2 * SEC)],
        ),
        (
            &[(MILLIS, "250"), (GRPC, "1S")],
            [Some(SEC), Some(250 * MS), Some(250 * MS), Some(250 * MS)],
        ),
        (
            &[(MILLIS, "soon"), (GRPC, "4s")],
            [None, None, Some(3 * SEC), Some(5 * SEC)],
        ),
    ] {
        let request = || with(headers);
        assert_eq!(
            left_behind(&plain, request()).unwrap(),
            by_plain,
            "{headers:?}"
        );
        assert_eq!(left_behind(&own, request()).unwrap(), by_own, "{headers:?}");
        assert_eq!(
            left_behind(&bounded, request()).unwrap(),
            by_bounded,
            "{headers:?}"
        );
        assert_eq!(
            left_behind(&only_max, request()).unwrap(),
            by_only_max,
            "{headers:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_there_is_shortened_and_never_extended() {
    let layer = DeadlineLayer::new()
        .default_timeout(MS)
        .max_timeout(4 * SEC);
    for (known, stated, expected) in [
        (2 * SEC, "", 2 * SEC), // the default is for requests that have none
        (2 * SEC, "1S", SEC),
        (2 * SEC, "3S", 2 * SEC),
        (9 * SEC, "", 4 * SEC),
        (9 * SEC, "8S", 4 * SEC),
    ] {
        let mut request = with(&[(GRPC, stated)]);
        request.extensions_mut().insert(Deadline::within(known));
        let left = left_behind(&layer, request).unwrap();
        assert_eq!(left, Some(expected), "{known:?} {stated}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_fixed_when_the_request_comes() {
    let mut service = DeadlineLayer::new().layer(service_fn(left));
    let response = service.ready().await.unwrap().call(with(&[(GRPC, "1S")]));
    advance(300 * MS).await; // its future is polled late
    assert_eq!(response.await.unwrap(), Some(700 * MS));

    let waits = ServiceBuilder::new()
        .layer(SubmittedAtLayer::new())
        .layer(tower::buffer::BufferLayer::new(1))
        .layer(ConcurrencyLimitLayer::new(1).max_wait(SEC))
        .layer(DeadlineLayer::new())
        .service(service_fn(|request| async {
            tokio::time::sleep(300 * MS).await;
            left(request).await
        }));
    let first = tokio::spawn(waits.clone().oneshot(with(&[(GRPC, "1S")])));
    let second = tokio::spawn(waits.clone().oneshot(with(&[(GRPC, "1S")])));
    let third = tokio::spawn(waits.clone().oneshot(with(&[(GRPC, "400m")])));
    assert_eq!(first.await.unwrap().unwrap(), Some(700 * MS));
    assert_eq!(second.await.unwrap().unwrap(), Some(400 * MS));
    // It has expired while it waited in `poll_ready`.
    let expired = refusal(third.await.unwrap());
    assert_eq!(
        (expired.layer(), expired.reason()),
        ("deadline", Reason::Deadline)
    );
}

#[tokio::test(start_paused = true)]
async fn what_has_expired_is_rejected_and_never_called() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let limit = ConcurrencyLimitLayer::new(1);
    let layer = DeadlineLayer::new().name("api");
    let mut service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(limit.clone())
        .service_fn(move |request: Request<()>| {
            counted.fetch_add(1, SeqCst);
            Box::pin(left(request))
        });
    let mut passed = Request::new(());
    passed.extensions_mut().insert(Deadline::within(SEC));
    advance(SEC).await;
    for request in [passed, with(&[(GRPC, "0m")]), with(&[(CONNECT, "0")])] {
        assert!(poll_ready::<_, Request<()>>(&mut service).is_ready());
        assert_eq!(limit.handle().snapshot().in_flight, 1);
        let rejected = refusal(finish(service.call(request)));
        assert_eq!(
            (rejected.layer(), rejected.reason()),
            ("api", Reason::Deadline)
        );
        assert!(rejected.rejected_here());
        assert_eq!(
            limit.handle().snapshot().in_flight,
            0,
            "what was reserved is given back"
        );
    }
    assert_eq!(calls.load(SeqCst), 0);
    assert_eq!(
        (layer.handle().name(), layer.handle().snapshot().rejected),
        ("api", 3)
    );

    assert!(poll_ready::<_, Request<()>>(&mut service).is_ready());
    let in_time = finish(service.call(with(&[(GRPC, "1n")])));
    assert_eq!(in_time.unwrap(), Some(Duration::from_nanos(1)));
    assert_eq!(calls.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_does_not_end_what_is_being_served() {
    let service = DeadlineLayer::new().layer(service_fn(|request| async {
        tokio::time::sleep(SEC).await;
        left(request).await
    }));
    let response = service.oneshot(with(&[(GRPC, "1m")]));
    assert_eq!(response.await.unwrap(), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn what_is_left_is_passed_on_from_server_to_server() {
    let reserve = 50 * MS;
    let last = DeadlineLayer::new().layer(service_fn(left));
    let middle = DeadlineLayer::new().layer(service_fn(move |request: Request<()>| {
        let last = last.clone();
        async move {
            tokio::time::sleep(200 * MS).await;
            let deadline: Deadline = *request.extensions().get().unwrap();
            let mut onward = Request::new(());
            onward
                .headers_mut()
                .insert(GRPC, deadline.grpc_timeout(reserve)?);
            last.oneshot(onward).await
        }
    }));
    let send = |timeout| middle.clone().oneshot(with(&[(GRPC, timeout)]));
    assert_eq!(send("1S").await.unwrap(), Some(750 * MS));
    // Nothing is left to pass on. The rejection was not made by a layer of the middle server, which was at work.
    let too_late = refusal(send("250m").await);
    assert_eq!(too_late.reason(), Reason::Deadline);
    assert!(!too_late.rejected_here());
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_deadline_are_left_as_they_are() {
    let mut service = DeadlineLayer::new().layer(service_fn(|request: Request<()>| {
        Box::pin(async move { Ok::<_, BoxError>(request.extensions().is_empty()) })
    }));
    assert!(poll_ready::<_, Request<()>>(&mut service).is_ready());
    let mut response = service.call(Request::new(()));
    assert!(matches!(
        poll(&mut response),
        std::task::Poll::Ready(Ok(true))
    ));
}

/// From a header through the queue of an edge to the answer.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_in_an_edge_is_answered_when_its_deadline_passes() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let service = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new().jitter(false))
        .layer(DeadlineLayer::new().header(MILLIS, Unit::Millis))
        .layer(edge().limits(1, 1, 1))
        .service(service_fn(move |_: Request<String>| {
            counted.fetch_add(1, SeqCst);
            async {
                tokio::time::sleep(SEC).await;
                Ok::<_, BoxError>(Response::new(String::new()))
            }
        }));
    let send = |timeout: &str| {
        let request = Request::get("/")
            .header(MILLIS, timeout)
            .body(String::new());
        tokio::spawn(service.clone().oneshot(request.unwrap()))
    };
    let began = now();
    let first = send("5000");
    tokio::task::yield_now().await;
    let late = send("50").await.unwrap().unwrap();
    assert_eq!((late.status().as_u16(), now() - began), (503, 50 * MS));
    let rejection: &Overloaded = late.extensions().get().unwrap();
    assert_eq!(
        (rejection.layer(), rejection.reason()),
        ("edge", Reason::Deadline)
    );
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(calls.load(SeqCst), 1);
}

proptest! {
    /// Whatever the headers are: no panic, and no deadline later than it may be.
    #[test]
    fn no_header_makes_a_deadline_later(
        values in prop::array::uniform3(prop::collection::vec(any::<u8>(), 0..24)),
        digits in prop::option::of("[0-9]{1,24}[HMSmun]?"),
        known in prop::option::of(0..20_000_u64),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _entered = runtime.enter();
        let layer = DeadlineLayer::new().header(MILLIS, Unit::Millis).max_timeout(10 * SEC);
        let mut request = Request::new(());
        for (name, value) in [GRPC, CONNECT, MILLIS].into_iter().zip(&values) {
            let value = digits.as_ref().map_or(&value[..], |digits| digits.as_bytes());
            if let Ok(value) = HeaderValue::from_bytes(value) {
                request.headers_mut().insert(name, value);
            }
        }
        let known = known.map(|millis| now() + Duration::from_millis(millis));
        if let Some(known) = known {
            request.extensions_mut().insert(Deadline::from(known));
        }
        match left_behind(&layer, request) {
            Ok(left) => {
                let left = left.expect("there is a maximum");
                prop_assert!(!left.is_zero() && left <= 10 * SEC);
                prop_assert!(known.is_none_or(|known| left <= known - now()));
            }
            Err(error) => prop_assert_eq!(refusal(Err::<(), _>(error)).reason(), Reason::Deadline),
        }
    }
}
