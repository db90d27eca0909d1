//! A rejection is counted by the layer that it names, and when it is delivered.

use crate::support;

use std::task::{Context, Poll};

use support::*;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};
use tower_backpressure::{
    ConcurrencyLimit, ConcurrencyLimitLayer, LoadShedLayer, Rate, RateLimit, RateLimitLayer, edge,
};

/// Takes the first of two services that is ready.
#[derive(Clone)]
struct FirstReady<A, B> {
    first: A,
    second: B,
    ready: Option<Which>,
}

#[derive(Clone, Copy)]
enum Which {
    First,
    Second,
}

impl<A, B, R> Service<R> for FirstReady<A, B>
where
    A: Service<R, Error = BoxError>,
    B: Service<R, Response = A::Response, Error = BoxError>,
{
    type Response = A::Response;
    type Error = BoxError;
    type Future = futures_util::future::Either<A::Future, B::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if let Poll::Ready(ready) = self.first.poll_ready(cx) {
            self.ready = Some(Which::First);
            return Poll::Ready(ready);
        }
        let polled = self.second.poll_ready(cx);
        self.ready = Some(Which::Second);
        polled
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.ready.take().expect("polled ready") {
            Which::First => futures_util::future::Either::Left(self.first.call(request)),
            Which::Second => futures_util::future::Either::Right(self.second.call(request)),
        }
    }
}

fn first_ready<A, B>(first: A, second: B) -> FirstReady<A, B> {
    FirstReady {
        first,
        second,
        ready: None,
    }
}

type Limited = ConcurrencyLimit<Probe>;

/// A service that takes the first that is ready behind two limits of one, and the limits.
fn two_limits() -> (FirstReady<Limited, Limited>, [ConcurrencyLimitLayer; 2]) {
    let limits = [
        ConcurrencyLimitLayer::new(1).name("first"),
        ConcurrencyLimitLayer::new(1).name("second"),
    ];
    let [first, second] = limits.each_ref().map(|limit| limit.layer(Probe::new()));
    (first_ready(first, second), limits)
}

fn rejected(limits: &[ConcurrencyLimitLayer; 2]) -> [u64; 2] {
    limits
        .each_ref()
        .map(|limit| limit.handle().snapshot().rejected.total())
}

#[tokio::test]
async fn a_full_limit_that_a_request_was_led_past_has_rejected_nothing() {
    let (service, limits) = two_limits();
    let mut shed = LoadShedLayer::new().layer(service);
    let _busy = limits[0].handle().try_acquire().unwrap();
    for _ in 0..1000 {
        shed.ready().await.unwrap().call(7).await.unwrap();
        shed.clone().oneshot(7).await.unwrap();
    }
    assert_eq!(rejected(&limits), [0, 0]);
    assert_eq!(limits[1].handle().snapshot().admitted, 2000);
}

#[tokio::test]
async fn where_both_are_full_the_one_that_is_named_has_rejected() {
    let (service, limits) = two_limits();
    let shed = LoadShedLayer::new().layer(service);
    let _busy = limits
        .each_ref()
        .map(|limit| limit.handle().try_acquire().unwrap());
    for n in 1..=1000 {
        let refusal = refusal(shed.clone().oneshot(7).await);
        assert_eq!(refusal.layer(), "second");
        assert_eq!(rejected(&limits), [0, n]);
    }
}

#[tokio::test]
async fn a_service_that_is_polled_and_not_called_has_rejected_nothing() {
    let limit = ConcurrencyLimitLayer::new(1);
    let rate = RateLimitLayer::new(Rate::per_hour(1));
    let limited = LoadShedLayer::new().layer(limit.layer(Probe::new()));
    let rated = LoadShedLayer::new().layer(rate.layer(Probe::new()));
    let _busy = limit.handle().try_acquire().unwrap();
    rate.handle().try_acquire(1).unwrap();
    for _ in 0..10 {
        assert!(poll_ready(&mut limited.clone()).is_ready());
        assert!(poll_ready(&mut rated.clone()).is_ready());
    }
    let counts = || {
        let limit = limit.handle().snapshot().rejected;
        let rate = rate.handle().snapshot().rejected;
        (limit.total(), rate.total())
    };
    assert_eq!(counts(), (0, 0));
    // Polled often, called once.
    let (mut limited, mut rated) = (limited, rated);
    for _ in 0..10 {
        assert!(poll_ready(&mut limited).is_ready());
        assert!(poll_ready(&mut rated).is_ready());
    }
    assert_eq!(refusal(limited.call(7).await).layer(), "concurrency_limit");
    assert_eq!(refusal(rated.call(7).await).layer(), "rate_limit");
    assert_eq!(counts(), (1, 1));
}

/// The rejection of an earlier poll is not answered with, and not counted, once there is room.
#[tokio::test]
async fn a_service_that_gets_ready_after_it_was_not_has_rejected_nothing() {
    let limit = ConcurrencyLimitLayer::new(1);
    let mut shed = LoadShedLayer::new().layer(limit.layer(Probe::new()));
    let busy = limit.handle().try_acquire().unwrap();
    assert!(poll_ready(&mut shed).is_ready());
    drop(busy);
    shed.ready().await.unwrap().call(7).await.unwrap();
    assert_eq!(limit.handle().snapshot().rejected.total(), 0);
}

/// What a limit was left is for the nearest shed, and whatever else was left meanwhile stays for the outer one.
#[tokio::test]
async fn sheds_inside_each_other_count_once() {
    let outer = ConcurrencyLimitLayer::new(1).name("outer");
    let inner = ConcurrencyLimitLayer::new(1).name("inner");
    let inner_shed = LoadShedLayer::new().layer(inner.layer(Probe::new()));
    let shed = LoadShedLayer::new().layer(first_ready(outer.layer(Probe::new()), inner_shed));
    let _busy = [&outer, &inner].map(|limit| limit.handle().try_acquire().unwrap());
    let counts = || [&outer, &inner].map(|limit| limit.handle().snapshot().rejected.total());
    for n in 1..=10 {
        let refusal = refusal(shed.clone().oneshot(7).await);
        assert_eq!(refusal.layer(), "inner", "it is ready, to reject");
        assert_eq!(counts(), [0, n]);
    }
}

/// A rejection that nobody wanted is not left lying around for the next shed that asks on this thread.
#[tokio::test]
async fn a_rejection_that_was_not_delivered_is_not_another_sheds() {
    let (service, limits) = two_limits();
    let mut led_past = LoadShedLayer::new().layer(service);
    let busy = limits[0].handle().try_acquire().unwrap();
    let probe = Probe::new();
    probe.set(|script| script.ready = Behaviour::Pends);
    let mut foreign = LoadShedLayer::new().layer(probe);
    assert!(poll_ready(&mut led_past).is_ready());
    assert!(poll_ready(&mut foreign).is_ready());
    assert_eq!(refusal(foreign.call(7).await).layer(), "load_shed");
    // Nor after a panic.
    let broken = Probe::new();
    broken.set(|script| script.ready = Behaviour::Panics);
    let first = limits[0].layer(Probe::new());
    let mut panics = LoadShedLayer::new().layer(first_ready(first, broken));
    let polled = std::panic::AssertUnwindSafe(|| poll_ready(&mut panics));
    assert!(std::panic::catch_unwind(polled).is_err());
    assert!(poll_ready(&mut foreign).is_ready());
    assert_eq!(refusal(foreign.call(7).await).layer(), "load_shed");
    drop(busy);
    assert_eq!(rejected(&limits), [0, 0]);
}

#[tokio::test]
async fn so_it_is_inside_an_edge() {
    use http::{Request, Response};
    type Http = fn(Request<String>) -> std::future::Ready<Result<Response<String>, BoxError>>;
    let answer: Http = |_| std::future::ready(Ok(Response::new(String::new())));
    let limits = [(); 2].map(|()| ConcurrencyLimitLayer::new(1));
    let [first, second] = limits
        .each_ref()
        .map(|limit| limit.layer(tower::service_fn(answer)));
    let service = ServiceBuilder::new()
        .layer(edge())
        .service(first_ready(first, second));
    let _busy = limits[0].handle().try_acquire().unwrap();
    for _ in 0..100 {
        let response = service.clone().oneshot(Request::default()).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    assert_eq!(rejected(&limits), [0, 0]);
    let _busy = limits[1].handle().try_acquire().unwrap();
    for _ in 0..100 {
        let response = service.clone().oneshot(Request::default()).await.unwrap();
        assert_eq!(response.status(), 503);
    }
    assert_eq!(rejected(&limits), [0, 100]);
}

/// A limit of tokens that are asked for by hand, several at a time.
#[tokio::test]
async fn what_was_asked_for_by_hand_is_counted_when_it_is_delivered_too() {
    #[derive(Clone)]
    struct TakesThree(tower_backpressure::rate_limit::Handle, RateLimit<Probe>);
    impl Service<u32> for TakesThree {
        type Response = u32;
        type Error = BoxError;
        type Future = <RateLimit<Probe> as Service<u32>>::Future;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            let mut tokens = std::pin::pin!(self.0.acquire(3));
            match tokens.as_mut().poll(cx) {
                Poll::Ready(tokens) => tokens.map_err(BoxError::from)?,
                Poll::Pending => return Poll::Pending,
            }
            self.1.poll_ready(cx)
        }

        fn call(&mut self, request: u32) -> Self::Future {
            self.1.call(request)
        }
    }
    let rate = RateLimitLayer::new(Rate::per_hour(7));
    let service = TakesThree(rate.handle(), rate.layer(Probe::new()));
    let shed = LoadShedLayer::new().layer(service);
    shed.clone().oneshot(7).await.unwrap();
    assert!(poll_ready(&mut shed.clone()).is_ready());
    let rejected = || rate.handle().snapshot().rejected.total();
    assert_eq!(rejected(), 0);
    let refusal = refusal(shed.clone().oneshot(7).await);
    assert_eq!((refusal.layer(), rejected()), ("rate_limit", 1));
}

/// Between `poll_ready` and `call`, the limit that was full gets room and the one outside it is taken.
#[tokio::test]
async fn the_limit_that_is_full_by_then_rejects() {
    let [outer, inner] = [(); 2].map(|()| ConcurrencyLimitLayer::new(1));
    let mut shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(outer.clone())
        .layer(inner.clone())
        .service(Probe::new());
    let busy = inner.handle().try_acquire().unwrap();
    shed.ready().await.unwrap();
    drop(busy);
    let _busy = outer.handle().try_acquire().unwrap();
    assert_eq!(refusal(shed.call(7).await).layer(), "concurrency_limit");
    assert_eq!(rejected(&[outer, inner]), [1, 0]);
}

#[tokio::test]
async fn one_limit_over_two_services_counts_a_request_once() {
    let limit = ConcurrencyLimitLayer::new(1);
    let services = first_ready(limit.layer(Probe::new()), limit.layer(Probe::new()));
    let mut shed = LoadShedLayer::new().layer(services);
    let _busy = limit.handle().try_acquire().unwrap();
    refusal(shed.ready().await.unwrap().call(7).await);
    assert_eq!(limit.handle().snapshot().rejected.total(), 1);
}

/// If another limit gets room in between, the request is served, and nobody has rejected it.
#[tokio::test]
async fn a_request_that_is_served_after_all_was_not_rejected() {
    let (service, limits) = two_limits();
    let mut shed = LoadShedLayer::new().layer(service);
    let first = limits[0].handle().try_acquire().unwrap();
    let _second = limits[1].handle().try_acquire().unwrap();
    shed.ready().await.unwrap();
    drop(first);
    assert_eq!(shed.call(7).await.unwrap(), 7);
    assert_eq!(rejected(&limits), [0, 0]);
    assert_eq!(limits[0].handle().snapshot().in_flight, 0);
}
