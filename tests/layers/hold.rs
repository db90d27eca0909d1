//! A permit that is held until the end of the response's body.

use crate::support;

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use support::{finish, poll, poll_ready};
use tower::{BoxError, Layer, Service, service_fn};
use tower_backpressure::{ConcurrencyLimitLayer, concurrency_limit::Handle, hold::HeldBody};

/// Gives these frames; then it is at its end, and says so beforehand if told to.
struct Frames {
    left: VecDeque<Result<Frame<Bytes>, &'static str>>,
    announces_end: bool,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(self.left.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.announces_end && self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(42)
    }
}

fn data() -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(b"data")))
}

fn trailers() -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::trailers(HeaderMap::new()))
}

/// The response of a service that answers with such a body, and a handle on its limit.
fn respond<B>(body: B) -> (HeldBody<B>, Handle)
where
    B: Body + Send + 'static,
{
    let limit = ConcurrencyLimitLayer::new(1).hold_until_body_end();
    let handle = limit.handle();
    let mut body = Some(body);
    let mut service = limit.layer(service_fn(move |_: Request<()>| {
        let body = body.take().expect("one request");
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    assert!(poll_ready(&mut service).is_ready());
    let response = finish(service.call(Request::new(()))).unwrap();
    (response.into_body(), handle)
}

fn frames(
    frames: impl IntoIterator<Item = Result<Frame<Bytes>, &'static str>>,
    announces_end: bool,
) -> Frames {
    Frames {
        left: frames.into_iter().collect(),
        announces_end,
    }
}

fn in_flight(handle: &Handle) -> usize {
    handle.snapshot().in_flight
}

/// How many frames can be taken before the permit is given back.
#[track_caller]
fn held_for(body: Frames) -> usize {
    let (mut body, handle) = respond(body);
    for taken in 0.. {
        if in_flight(&handle) == 0 {
            return taken;
        }
        assert!(taken < 10, "never given back");
        let _ = poll(&mut body.frame());
    }
    unreachable!()
}

#[test]
fn it_is_given_back_with_the_last_frame() {
    let cases = [
        (
            "announced: with the last data",
            vec![data(), data()],
            true,
            2,
        ),
        ("not announced: at the end", vec![data(), data()], false, 3),
        ("at the trailers", vec![data(), trailers()], false, 2),
        ("at an error", vec![data(), Err("broken"), data()], false, 2),
        ("an empty body that says so holds nothing", vec![], true, 0),
        ("an empty body that does not", vec![], false, 1),
    ];
    for (case, body, announces_end, expected) in cases {
        assert_eq!(held_for(frames(body, announces_end)), expected, "{case}");
    }
}

#[test]
fn it_is_given_back_when_the_body_is_dropped_after_any_frame() {
    for taken in 0..3 {
        let (mut body, handle) = respond(frames([data(), data(), data()], false));
        for _ in 0..taken {
            assert!(poll(&mut body.frame()).is_ready());
        }
        assert_eq!(in_flight(&handle), 1);
        drop(body);
        assert_eq!(in_flight(&handle), 0);
    }
}

#[test]
fn the_body_is_otherwise_unchanged() {
    let (body, _) = respond(frames([data()], true));
    assert_eq!(body.size_hint().exact(), Some(42));
    assert!(!body.is_end_stream());
    let (body, _) = respond(frames([], true));
    assert!(body.is_end_stream());
    let (body, _) = respond(Full::new(Bytes::from_static(b"hello")));
    assert_eq!(body.size_hint().exact(), Some(5));
    assert_eq!(
        finish(Box::pin(body.collect())).unwrap().to_bytes(),
        "hello"
    );
    let (body, handle) = respond(Empty::<Bytes>::new());
    assert!(body.is_end_stream());
    assert_eq!(in_flight(&handle), 0);
}

#[test]
fn a_body_that_panics_gives_back() {
    struct Panics;
    impl Body for Panics {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            panic!("in the body")
        }
    }
    let (mut body, handle) = respond(Panics);
    let polled = std::panic::AssertUnwindSafe(|| drop(poll(&mut body.frame())));
    assert!(std::panic::catch_unwind(polled).is_err());
    drop(body);
    assert_eq!(in_flight(&handle), 0);
}

#[test]
fn an_error_of_the_service_gives_back_at_once() {
    let limit = ConcurrencyLimitLayer::new(1).hold_until_body_end();
    let mut service = limit.layer(service_fn(|_: Request<()>| {
        std::future::ready(Err::<Response<Empty<Bytes>>, BoxError>("failed".into()))
    }));
    assert!(poll_ready(&mut service).is_ready());
    assert!(finish(service.call(Request::new(()))).is_err());
    assert_eq!(in_flight(&limit.handle()), 0);
}

/// axum's router wants a body that has a default.
#[test]
fn a_held_body_has_a_default() {
    assert!(HeldBody::<Empty<Bytes>>::default().is_end_stream());
}

/// Two tenants stream for as long as each other, but one of them sends its headers at once: it gets no more
/// than the other, because its service counts until the end of its bodies.
#[tokio::test(start_paused = true)]
async fn a_fair_queue_charges_until_the_end_of_the_body() {
    use tokio::time::{Duration, sleep};
    use tower::{ServiceBuilder, ServiceExt};
    use tower_backpressure::{WfqConfig, WfqLayer, wfq};

    let fair = WfqLayer::new(
        WfqConfig::default(),
        wfq::from_head(|head| Some(head.uri.path())),
    )
    .hold_until_body_end();
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(1).hold_until_body_end())
        .service(service_fn(|request: Request<()>| async move {
            if request.uri().path() == "/late" {
                sleep(Duration::from_millis(10)).await; // before its headers
            }
            Ok::<_, BoxError>(Response::new(Full::new(Bytes::from("body"))))
        }));
    let mut clients = tokio::task::JoinSet::new();
    for path in ["/early", "/late"].repeat(10) {
        let service = service.clone();
        clients.spawn(support::boxed(async move {
            for _ in 0..1000 {
                let request = Request::get(path).body(()).unwrap();
                let response = support::boxed(service.clone().oneshot(request))
                    .await
                    .unwrap();
                if path == "/early" {
                    sleep(Duration::from_millis(10)).await; // while its body streams
                }
                response.into_body().collect().await.unwrap();
            }
        }));
    }
    sleep(Duration::from_secs(2)).await;
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.running, 2, "one has the seat, and one the turn");
    let [early, late] = ["/early", "/late"].map(|path| handle.tenant(path).unwrap());
    assert!(
        early.served.abs_diff(late.served) <= 2,
        "{early:?} {late:?}"
    );
    assert!((early.share - 0.5).abs() < 0.02, "{early:?}");
    clients.shutdown().await;
    assert_eq!(handle.snapshot().running, 0);
}
