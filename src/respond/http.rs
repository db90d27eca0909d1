//! Plain HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};

use super::{Answer, Settings, encode::json};

/// What is said about a rate limit in the headers `ratelimit-policy` and `ratelimit` (IETF draft
/// `httpapi-ratelimit-headers`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitPolicy {
    name: &'static str,
    quota: u64,
    window: Duration,
}

impl RateLimitPolicy {
    /// A policy of this name: so many requests in so much time.
    ///
    /// # Panics
    /// If the name is not of printable ASCII characters, other than quotes and backslashes.
    pub fn new(name: &'static str, quota: u64, window: Duration) -> Self {
        let valid = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        assert!(
            name.bytes().all(valid),
            "RateLimitPolicy::new({name:?}): the name must be of printable ASCII characters, without quotes and backslashes"
        );
        Self {
            name,
            quota,
            window,
        }
    }
}

pub(super) fn respond(answer: &Answer, settings: &Settings) -> Response<Bytes> {
    let Answer {
        message, status, ..
    } = answer;
    let (content_type, body) = match settings.problem_json {
        false => (
            "text/plain; charset=utf-8",
            Bytes::from_static(message.as_bytes()),
        ),
        true => {
            let title = status.canonical_reason().unwrap_or_default();
            let body = format!(
                r#"{{"type":"about:blank","title":{},"status":{},"detail":{}}}"#,
                json(title),
                status.as_u16(),
                json(message)
            );
            ("application/problem+json", body.into())
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = *status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = answer.retry_after_seconds() {
        headers.insert(RETRY_AFTER, seconds.into());
        if let Some(policy) = (settings.rate_limit).filter(|_| *status == 429) {
            let RateLimitPolicy {
                name,
                quota,
                window,
            } = policy;
            let window = window.as_secs();
            let texts = [
                (
                    "ratelimit-policy",
                    format!(r#""{name}";q={quota};w={window}"#),
                ),
                ("ratelimit", format!(r#""{name}";r=0;t={seconds}"#)),
            ];
            for (header, text) in texts {
                let value = HeaderValue::try_from(text).expect("the name was checked");
                headers.insert(HeaderName::from_static(header), value);
            }
        }
    }
    response
}
