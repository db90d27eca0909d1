//! The Connect protocol.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

use super::{
    Answer, Code,
    encode::{base64, json, retry_info},
};

/// Marks the end of a stream, in the first byte of a message.
const END_STREAM: u8 = 0b10;

pub(super) fn unary(answer: &Answer) -> Response<Bytes> {
    let mut response = Response::new(error(answer).into());
    *response.status_mut() = match answer.code {
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = answer.retry_after_seconds() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

pub(super) fn streaming(answer: &Answer, content_type: HeaderValue) -> Response<Bytes> {
    let metadata = match answer.retry_after_seconds() {
        Some(seconds) => format!(r#","metadata":{{"retry-after":["{seconds}"]}}"#),
        None => String::new(),
    };
    let end = format!(r#"{{"error":{}{metadata}}}"#, error(answer));
    let length = u32::try_from(end.len()).expect("a short message");
    let mut message = vec![END_STREAM];
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(end.as_bytes());
    let mut response = Response::new(message.into());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// As JSON.
fn error(answer: &Answer) -> String {
    let code = match answer.code {
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::ResourceExhausted => "resource_exhausted",
        Code::Unavailable => "unavailable",
        Code::Internal => "internal",
    };
    let message = json(answer.message);
    let details = answer.retry_after.map(|retry_after| {
        let value = base64(&retry_info(retry_after));
        format!(r#","details":[{{"type":"google.rpc.RetryInfo","value":"{value}"}}]"#)
    });
    let details = details.unwrap_or_default();
    format!(r#"{{"code":"{code}","message":{message}{details}}}"#)
}
