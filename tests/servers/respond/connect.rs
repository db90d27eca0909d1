//! The Connect protocol, which is plain HTTP: its bytes, as its specification has them.

use ::http::{StatusCode, Version, header};
use http_body_util::Full;

use super::{
    http::{ask, get},
    *,
};

const REFUSED: &str = r#"{"code":"resource_exhausted","message":"overloaded","details":[{"type":"google.rpc.RetryInfo","value":"CgIIAg"}]}"#;

fn post(content_type: &str) -> Request<Full<Bytes>> {
    let mut request = get("/some.Service/Call");
    *request.method_mut() = ::http::Method::POST;
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
    headers.insert("connect-protocol-version", "1".parse().unwrap());
    request
}

#[tokio::test(start_paused = true)]
async fn a_unary_call_gets_429_and_an_error_in_json() {
    let server = serve(refusing!(layer())).await;
    let asked_for = "/some.Service/Call?message=%7B%7D&encoding=json&connect=v1";
    for request in [
        post("application/json"),
        post("application/proto"),
        get(asked_for),
    ] {
        let (status, headers, body) = ask(server, Version::HTTP_11, request).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(headers[header::CONTENT_TYPE], "application/json");
        assert_eq!(headers[header::RETRY_AFTER], "2");
        assert_eq!(body, REFUSED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_streaming_call_gets_the_end_of_its_stream() {
    let server = serve(refusing!(layer())).await;
    for content_type in ["application/connect+proto", "application/connect+json"] {
        let (status, headers, body) = ask(server, Version::HTTP_11, post(content_type)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers[header::CONTENT_TYPE], content_type);
        let end = format!(r#"{{"error":{REFUSED},"metadata":{{"retry-after":["2"]}}}}"#);
        let length = (end.len() as u32).to_be_bytes();
        let expected = [&[2], &length[..], end.as_bytes()].concat();
        assert_eq!(body, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn it_may_be_unavailable_instead() {
    let server = serve(refusing!(layer().unavailable())).await;
    let (status, _, body) = ask(server, Version::HTTP_11, post("application/json")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body, REFUSED.replace("resource_exhausted", "unavailable"));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_internal() {
    let server = serve(failing!(layer())).await;
    let (status, headers, body) = ask(server, Version::HTTP_11, post("application/json")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!headers.contains_key(header::RETRY_AFTER));
    assert_eq!(body, r#"{"code":"internal","message":"internal error"}"#);
    let (_, _, body) = ask(server, Version::HTTP_11, post("application/connect+json")).await;
    assert_eq!(
        body[5..],
        *br#"{"error":{"code":"internal","message":"internal error"}}"#
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_too_late_is_deadline_exceeded_without_a_hint() {
    const LATE: &str = r#"{"code":"deadline_exceeded","message":"deadline exceeded"}"#;
    let server = serve(expired!(layer())).await;
    let (status, headers, body) = ask(server, Version::HTTP_11, post("application/json")).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(!headers.contains_key(header::RETRY_AFTER));
    assert_eq!(body, LATE);
    let (status, _, body) = ask(server, Version::HTTP_11, post("application/connect+json")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body[5..], *format!(r#"{{"error":{LATE}}}"#).as_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_would_be_late_may_be_served_elsewhere() {
    let server = serve(late!(layer())).await;
    let (status, _, body) = ask(server, Version::HTTP_11, post("application/json")).await;
    assert_eq!(
        (status, &*body),
        (StatusCode::TOO_MANY_REQUESTS, REFUSED.as_bytes())
    );
}
