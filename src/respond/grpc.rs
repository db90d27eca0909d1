//! gRPC and gRPC-Web: a response of headers only, which is what "Trailers-Only" means.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header::CONTENT_TYPE};

use super::{
    Answer,
    encode::{base64, percent, status},
};

/// The body is empty and says so: clients do not retry otherwise.
pub(super) fn respond(answer: &Answer, content_type: HeaderValue) -> Response<Bytes> {
    let Answer {
        message,
        code,
        retry_after,
        ..
    } = answer;
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(HeaderName::from_static("grpc-status"), code.number().into());
    let mut text = |name, text: String| {
        let value = HeaderValue::try_from(text).expect("printable ASCII");
        headers.insert(HeaderName::from_static(name), value);
    };
    text("grpc-message", percent(message));
    if let Some(retry_after) = *retry_after {
        let millis = i32::try_from(retry_after.as_millis()).unwrap_or(i32::MAX);
        text("grpc-retry-pushback-ms", millis.to_string());
        let details = status(*code, message, Some(retry_after));
        text("grpc-status-details-bin", base64(&details));
    }
    response
}
