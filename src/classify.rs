//! What a completed request says about the service, so that a layer can learn from it.

use http::{HeaderName, HeaderValue, Response, StatusCode, header::RETRY_AFTER};

pub use crate::law::limit::Outcome;
use crate::{BoxError, Overloaded};

/// Made once: a name in a string is parsed each time that it is looked for.
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

static GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// As many headers as most handlers set.
const FEW: usize = 4;

/// Tells what the result of a request says about the service.
///
/// [`ByResult`] is the default of every layer that learns, [`ByStatus`] is for HTTP and gRPC, and any
/// closure will do:
///
/// ```
/// use tower_backpressure::{AdaptiveConcurrencyLayer, BoxError, Outcome};
///
/// struct Reply {
///     from_cache: bool,
/// }
///
/// let layer = AdaptiveConcurrencyLayer::vegas().classify(|result: Result<&Reply, &BoxError>| match result {
///     Ok(reply) if reply.from_cache => Outcome::Ignored, // says nothing about the database
///     Ok(_) => Outcome::Success,
///     Err(error) if error.is::<std::io::Error>() => Outcome::Failure,
///     Err(_) => Outcome::Ignored,
/// });
/// # let _ = layer;
/// ```
///
/// A request that is cancelled has no result and is never asked about: it says nothing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify responses of type `{Res}`",
    note = "take `ByResult`, `ByStatus` for an `http::Response`, or a closure `|result: Result<&{Res}, &BoxError>| Outcome::Success`"
)]
pub trait Classify<Res>: Clone {
    /// What it says.
    fn classify(&self, result: Result<&Res, &BoxError>) -> Outcome;
}

#[diagnostic::do_not_recommend]
impl<Res, F> Classify<Res> for F
where
    F: Fn(Result<&Res, &BoxError>) -> Outcome + Clone,
{
    fn classify(&self, result: Result<&Res, &BoxError>) -> Outcome {
        self(result)
    }
}

/// `Ok` is a success and `Err` a failure, but for [`Overloaded`], which is ignored, wherever it was made. A layer further
/// in answered with it without calling the service, or the service passes on what it was told by another: either way it
/// is no failure of the service.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByResult;

impl<Res> Classify<Res> for ByResult {
    #[inline]
    fn classify(&self, result: Result<&Res, &BoxError>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(error) => of_error(error),
        }
    }
}

/// For HTTP and gRPC.
///
/// | answer | says |
/// | --- | --- |
/// | 1xx–3xx | success, but for 101: an upgraded connection is no request |
/// | 4xx | nothing: it is the client's fault, and found out early |
/// | 503 with `retry-after` | [rejected](Outcome::Rejected) |
/// | any other 5xx | failure |
/// | `grpc-status` 0 in the head | success |
/// | `grpc-status` 14 UNAVAILABLE in the head with `grpc-retry-pushback-ms` | [rejected](Outcome::Rejected) |
/// | `grpc-status` 4 DEADLINE_EXCEEDED, any other 14 UNAVAILABLE in the head | failure |
/// | any other `grpc-status` in the head, CANCELLED and RESOURCE_EXHAUSTED among them | nothing |
/// | a refusal of this crate, as an error or as the response that was made of it | nothing |
/// | any other error | failure |
///
/// A server that rejects politely (429, 503 with `retry-after`, RESOURCE_EXHAUSTED) is alive, so that none of it opens a
/// circuit. To an adaptive limit in front of that server, a 503 is a sign of too much at once, and a 429 is not: it is about a
/// quota. A 503 without `retry-after` is what proxies answer for a server that is down.
///
/// The answer is judged, and timed, when its head is there. A gRPC status that comes in the trailers,
/// after messages, is not seen; where a call fails without any message, which is where it fails under
/// overload, servers send it in the head.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByStatus;

impl<B> Classify<Response<B>> for ByStatus {
    #[inline(always)] // most responses are few comparisons
    fn classify(&self, result: Result<&Response<B>, &BoxError>) -> Outcome {
        match result {
            Ok(response) => of_response(response),
            Err(error) => of_error(error),
        }
    }
}

#[cold]
fn of_error(error: &BoxError) -> Outcome {
    match Overloaded::find(error.as_ref()) {
        Some(_) => Outcome::Ignored,
        None => Outcome::Failure,
    }
}

#[inline(always)]
fn of_response<B>(response: &Response<B>) -> Outcome {
    let status = response.status();
    if response.extensions().get::<Overloaded>().is_some()
        || status == StatusCode::SWITCHING_PROTOCOLS
        || status.is_client_error()
    {
        return Outcome::Ignored;
    }
    if status.is_server_error() {
        return of_server_error(response);
    }
    let headers = response.headers();
    // To hash a name takes longer than to compare a few.
    if headers.len() <= FEW && !headers.keys().any(|name| *name == GRPC_STATUS) {
        return Outcome::Success;
    }
    match headers.get(&GRPC_STATUS).map(HeaderValue::as_bytes) {
        None | Some(b"0") => Outcome::Success,
        Some(b"14") if headers.contains_key(&GRPC_PUSHBACK) => Outcome::Rejected,
        Some(b"4" | b"14") => Outcome::Failure,
        Some(_) => Outcome::Ignored,
    }
}

#[cold]
fn of_server_error<B>(response: &Response<B>) -> Outcome {
    let polite = response.headers().contains_key(RETRY_AFTER);
    match response.status() {
        StatusCode::SERVICE_UNAVAILABLE if polite => Outcome::Rejected,
        _ => Outcome::Failure,
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use crate::Reason;
    use std::time::Duration;

    fn overloaded() -> Overloaded {
        Overloaded::new("inner", Reason::AtLimit, Duration::from_secs(1))
    }

    #[test]
    fn an_error_is_a_failure_unless_it_is_a_refusal() {
        let by_result = |result: Result<&u32, &BoxError>| ByResult.classify(result);
        assert_eq!(by_result(Ok(&1)), Outcome::Success);
        assert_eq!(by_result(Err(&"broken".into())), Outcome::Failure);
        let refusal: BoxError = Box::new(overloaded());
        assert_eq!(by_result(Err(&refusal)), Outcome::Ignored);

        let by_status = |result: Result<&Response<()>, &BoxError>| ByStatus.classify(result);
        assert_eq!(by_status(Err(&"broken".into())), Outcome::Failure);
        assert_eq!(by_status(Err(&refusal)), Outcome::Ignored);
    }

    #[test]
    fn http_goes_by_the_status() {
        for (status, outcome) in [
            (100, Outcome::Success),
            (101, Outcome::Ignored),
            (200, Outcome::Success),
            (304, Outcome::Success),
            (400, Outcome::Ignored),
            (429, Outcome::Ignored),
            (499, Outcome::Ignored),
            (500, Outcome::Failure),
            (503, Outcome::Failure),
            (599, Outcome::Failure),
        ] {
            let response = Response::builder().status(status).body(()).unwrap();
            assert_eq!(ByStatus.classify(Ok(&response)), outcome, "{status}");
        }
    }

    #[test]
    fn a_server_that_says_when_to_come_back_is_alive() {
        let judge = |status, header: &str, value: &str| {
            let response = Response::builder().status(200).header(header, value);
            let mut response = response.body(()).unwrap();
            match status {
                Ok(status) => *response.status_mut() = StatusCode::from_u16(status).unwrap(),
                Err(grpc) => _ = response.headers_mut().insert("grpc-status", grpc),
            }
            ByStatus.classify(Ok(&response))
        };
        let grpc = |status: u16| Err(HeaderValue::from(status));
        let pushback = "grpc-retry-pushback-ms";
        for (status, header, outcome) in [
            (Ok(503), "retry-after", Outcome::Rejected),
            (Ok(503), pushback, Outcome::Failure),
            (Ok(500), "retry-after", Outcome::Failure),
            (Ok(502), "retry-after", Outcome::Failure),
            (Ok(429), "retry-after", Outcome::Ignored),
            (Ok(200), "retry-after", Outcome::Success),
            (grpc(8), pushback, Outcome::Ignored),
            (grpc(14), pushback, Outcome::Rejected),
            (grpc(14), "retry-after", Outcome::Failure),
            (grpc(4), pushback, Outcome::Failure),
            (grpc(0), pushback, Outcome::Success),
        ] {
            assert_eq!(
                judge(status.clone(), header, "2"),
                outcome,
                "{status:?} {header}"
            );
        }
    }

    #[test]
    fn grpc_goes_by_its_own_status() {
        for (status, others) in (0..=16).flat_map(|status| [(status, 0), (status, FEW)]) {
            let mut response = Response::builder();
            for other in 0..others {
                response = response.header(format!("x-{other}"), 14);
            }
            let response = response.header("grpc-status", status).body(()).unwrap();
            let outcome = match status {
                0 => Outcome::Success,
                4 | 14 => Outcome::Failure,
                _ => Outcome::Ignored,
            };
            assert_eq!(ByStatus.classify(Ok(&response)), outcome, "{status}");
        }
        for others in [1, FEW, FEW + 1] {
            let mut response = Response::new(());
            for other in 0..others {
                let name = HeaderName::try_from(format!("x-{other}")).unwrap();
                response.headers_mut().insert(name, 14.into());
            }
            assert_eq!(ByStatus.classify(Ok(&response)), Outcome::Success);
        }
    }

    #[test]
    fn a_response_made_of_a_refusal_says_nothing() {
        let mut response = Response::builder().status(503).body(()).unwrap();
        response.extensions_mut().insert(overloaded());
        assert_eq!(ByStatus.classify(Ok(&response)), Outcome::Ignored);
    }
}
