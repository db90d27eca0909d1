//! What is easier seen without a socket in between.

use std::task::Poll;

use http_body::Body;
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt};
use tower_backpressure::{Overloaded, Reason, respond::Protocol};

use super::*;

async fn answer(
    layer: OverloadResponseLayer,
    request: Request<String>,
) -> Response<OverloadBody<Empty<Bytes>>> {
    refusing!(layer).oneshot(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn layers_further_out_can_see_who_refused() {
    let response = answer(layer(), Request::new(String::new())).await;
    let overloaded: &Overloaded = response.extensions().get().unwrap();
    assert_eq!(
        (overloaded.reason(), overloaded.layer()),
        (Reason::AtLimit, "rate_limit")
    );
    assert_eq!(overloaded.retry_after(), Duration::from_secs(2));
}

/// An estimated hint gets up to half of it added. An exact one, as that of a rate, gets a tenth.
#[tokio::test(start_paused = true)]
async fn hints_are_spread_unless_that_is_not_wanted() {
    let layer = OverloadResponseLayer::new();
    let limit = ConcurrencyLimitLayer::new(1);
    let _taken = limit.handle().try_acquire().unwrap();
    let estimating = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(LoadShedLayer::new())
        .layer(limit)
        .service(service_fn(unreached));
    let answer = async |exact: bool, request| match exact {
        true => answer(layer.clone(), request).await,
        false => estimating.clone().oneshot(request).await.unwrap(),
    };
    for (exact, hint, most) in [(false, 1000, 1500), (true, 2000, 2200)] {
        for _ in 0..100 {
            let response = answer(exact, Request::new(String::new())).await;
            let retry_after = response.headers()["retry-after"].to_str().unwrap();
            let seconds = retry_after.parse::<u32>().unwrap();
            assert_eq!(seconds, hint / 1000 + 1, "and some more, rounded up");
        }
        let mut millis = Vec::new();
        for _ in 0..100 {
            let mut request = Request::new(String::new());
            request.extensions_mut().insert(Protocol::Grpc);
            let response = answer(exact, request).await;
            let pushback = response.headers()["grpc-retry-pushback-ms"].to_str();
            millis.push(pushback.unwrap().parse::<u32>().unwrap());
        }
        assert!(millis.iter().all(|millis| (hint..=most).contains(millis)));
        let middle = (hint + most) / 2;
        let early = millis.iter().filter(|millis| **millis < middle).count();
        assert!(
            (20..80).contains(&early),
            "{early} of 100 before the middle"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_says_what_the_client_speaks() {
    for (protocol, content_type) in [
        (Protocol::Http, "text/plain; charset=utf-8"),
        (Protocol::Grpc, "application/grpc"),
        (Protocol::GrpcWeb, "application/grpc-web"),
        (Protocol::ConnectStreaming, "application/connect+proto"),
        (Protocol::ConnectUnary, "application/json"),
        (Protocol::WebSocket, "text/plain; charset=utf-8"), // there is no socket
    ] {
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(protocol);
        let response = answer(layer(), request).await;
        assert_eq!(
            response.headers()["content-type"],
            content_type,
            "{protocol:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_trailers_only_answer_has_no_body_and_says_so() {
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(Protocol::Grpc);
    let body = answer(layer(), request).await.into_body();
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn an_answers_body_knows_its_size() {
    let body = answer(layer(), Request::new(String::new()))
        .await
        .into_body();
    assert_eq!(
        (body.is_end_stream(), body.size_hint().exact()),
        (false, Some(10))
    );
    assert_eq!(body.collect().await.unwrap().to_bytes(), "overloaded");
}

/// To tower an error of `poll_ready` is a dead service; the client is told so, and the connection goes on.
#[tokio::test]
async fn an_inner_service_that_is_dead_is_answered_in_call() {
    #[derive(Clone)]
    struct Dead;
    impl Service<Request<String>> for Dead {
        type Response = Response<Empty<Bytes>>;
        type Error = BoxError;
        type Future = std::future::Ready<Result<Self::Response, BoxError>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Err("dead".into()))
        }

        fn call(&mut self, _: Request<String>) -> Self::Future {
            panic!("called, though it is dead")
        }
    }
    let response = layer()
        .layer(Dead)
        .oneshot(Request::new(String::new()))
        .await
        .unwrap();
    assert_eq!(response.status(), 500);
}

/// An `Overloaded` that other layers have wrapped is one all the same.
#[tokio::test]
async fn a_refusal_is_found_in_the_causes_of_an_error() {
    let buffered = tower::buffer::Buffer::new(refusing!(layer()), 1);
    assert_eq!(
        buffered
            .oneshot(Request::new(String::new()))
            .await
            .unwrap()
            .status(),
        503
    );

    #[derive(Debug)]
    struct Wrapped(BoxError);
    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("wrapped")
        }
    }
    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(self.0.as_ref())
        }
    }
    let limit = RateLimitLayer::new(Rate::every(Duration::from_secs(2)));
    limit.handle().try_acquire(1).unwrap();
    let service = ServiceBuilder::new()
        .layer(layer())
        .map_err(|error: BoxError| Wrapped(Box::new(Wrapped(error))))
        .layer(LoadShedLayer::new())
        .layer(limit)
        .service(service_fn(unreached));
    assert_eq!(
        service
            .oneshot(Request::new(String::new()))
            .await
            .unwrap()
            .status(),
        503
    );
}

#[tokio::test]
async fn what_is_served_is_passed_on_as_it_is() {
    async fn answers(
        _: Request<String>,
    ) -> Result<Response<http_body_util::Full<Bytes>>, BoxError> {
        Ok(Response::new("served".into()))
    }
    let response = layer()
        .layer(service_fn(answers))
        .oneshot(Request::new(String::new()))
        .await
        .unwrap();
    assert!(response.headers().is_empty());
    assert_eq!(response.body().size_hint().exact(), Some(6));
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "served"
    );
}
