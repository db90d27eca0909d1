//! Plain HTTP, with hyper's clients.

use ::http::{HeaderMap, Method, StatusCode, Version, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower_backpressure::respond::RateLimitPolicy;

use super::*;

/// What a client gets, over this version of HTTP.
pub async fn ask(
    server: SocketAddr,
    version: Version,
    request: Request<Full<Bytes>>,
) -> (StatusCode, HeaderMap, Bytes) {
    let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let response = if version == Version::HTTP_2 {
        let handshake = http2::handshake(TokioExecutor::new(), stream).await;
        let (mut sender, connection) = handshake.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, body)
}

pub fn get(uri: &str) -> Request<Full<Bytes>> {
    let request = Request::get(uri).header(header::HOST, "localhost");
    request.body(Full::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_503_with_the_seconds_until_a_retry() {
    let server = serve(refusing!(layer())).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let request = get(&format!("http://{server}/"));
        let (status, headers, body) = ask(server, version, request).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(headers[header::RETRY_AFTER], "2");
        assert_eq!(headers[header::CACHE_CONTROL], "no-store");
        assert_eq!(headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        assert!(!headers.contains_key("ratelimit"));
        assert_eq!(body, "overloaded");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_goes_on_after_a_refusal() {
    let server = serve(refusing!(layer())).await;
    let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        sender.ready().await.unwrap();
        let response = sender.send_request(get("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!response.headers().contains_key(header::CONNECTION));
        response.into_body().collect().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_over_its_quota_gets_429() {
    let policy = RateLimitPolicy::new("default", 100, Duration::from_secs(60));
    let layer = layer().rate_limit_headers(policy);
    let server = serve(over_quota!(layer)).await;
    let (status, headers, _) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers[header::RETRY_AFTER], "2");
    assert_eq!(headers["ratelimit-policy"], r#""default";q=100;w=60"#);
    assert_eq!(headers["ratelimit"], r#""default";r=0;t=2"#);
}

#[tokio::test(start_paused = true)]
async fn which_reasons_are_429_is_for_the_server_to_say() {
    let server = serve(over_quota!(layer().too_many_requests(|_| false))).await;
    let (status, ..) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let server = serve(refusing!(layer().too_many_requests(|_| true))).await;
    let (status, ..) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn a_problem_may_be_told_in_json() {
    let layer = layer().problem_json().message("too \"much\"");
    let server = serve(refusing!(layer)).await;
    let (_, headers, body) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
    let expected = r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too \"much\""}"#;
    assert_eq!(body, expected);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_500_and_says_nothing_of_itself() {
    let server = serve(failing!(layer())).await;
    let (status, headers, body) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!headers.contains_key(header::RETRY_AFTER));
    assert_eq!(body, "internal error");

    let own = layer().on_error(|error| {
        let mut response = Response::new(Bytes::from(error.to_string()));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let server = serve(failing!(own)).await;
    let (status, _, body) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(
        (status, &*body),
        (StatusCode::IM_A_TEAPOT, &b"a secret"[..])
    );
}

#[tokio::test(start_paused = true)]
async fn a_head_request_gets_no_body() {
    let server = serve(refusing!(layer())).await;
    let mut request = get("/");
    *request.method_mut() = Method::HEAD;
    let (status, headers, body) = ask(server, Version::HTTP_11, request).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers[header::RETRY_AFTER], "2");
    assert!(body.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_answer_may_be_of_ones_own_making() {
    let layer = layer().respond_with(|refusal| {
        assert_eq!(refusal.retry_after, Duration::from_secs(2));
        let text = format!("{:?} {}", refusal.protocol, refusal.overloaded.layer());
        Some(Response::new(text.into()))
    });
    let server = serve(refusing!(layer)).await;
    let (status, _, body) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!((status, &*body), (StatusCode::OK, &b"Http rate_limit"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_too_late_gets_503() {
    let server = serve(expired!(layer())).await;
    let (status, headers, body) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers[header::RETRY_AFTER], "1");
    assert_eq!(body, "deadline exceeded");
    let server = serve(late!(layer())).await;
    let (status, headers, body) = ask(server, Version::HTTP_11, get("/")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers[header::RETRY_AFTER], "2");
    assert_eq!(body, "overloaded");
}
