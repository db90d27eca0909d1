//! What an answer says about trying again.

use std::any::Any;

use http::{Response, StatusCode};

use super::ask::{self, Ask};
use crate::{
    BoxError, Overloaded, Reason,
    respond::{FURTHER_IN, REJECTED},
};

/// What an answer says about trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It went well.
    Success,
    /// It failed, and may go well another time. The server may have done what it was asked for, so only
    /// what may be done twice is retried: idempotent methods, and requests that are marked as
    /// [`Idempotent`](super::Idempotent).
    Retryable,
    /// It was refused before anything was done. Any request is retried.
    Refused,
    /// It will fail another time too.
    Permanent,
    /// There is nothing there any more, and will not be: whoever asks should stop asking. Not retried,
    /// and [counted](super::Snapshot::gone) apart.
    Gone,
}

/// Tells what an answer says about trying again.
///
/// [`ByAnswer`] is the default; any closure will do. One that knows that what could not connect was not
/// sent:
///
/// ```
/// use http::Response;
/// use tower_backpressure::{BoxError, RetryPolicy, retry::{ByAnswer, Judge, Verdict}};
///
/// # #[derive(Debug)] struct ConnectError;
/// # impl std::fmt::Display for ConnectError {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("") }
/// # }
/// # impl std::error::Error for ConnectError {}
/// let policy = RetryPolicy::default().judge(|result: Result<&Response<String>, &BoxError>| match result {
///     Err(error) if error.is::<ConnectError>() => Verdict::Refused,
///     Ok(response) if response.status() == 408 => Verdict::Refused, // the server has waited in vain
///     other => ByAnswer.judge(other),
/// });
/// # let _ = policy;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not judge responses of type `{Res}`",
    note = "take a closure `|result: Result<&{Res}, &{E}>| Verdict::…`"
)]
pub trait Judge<Res, E> {
    /// What it says.
    fn judge(&self, result: Result<&Res, &E>) -> Verdict;
}

#[diagnostic::do_not_recommend]
impl<Res, E, F> Judge<Res, E> for F
where
    F: Fn(Result<&Res, &E>) -> Verdict,
{
    fn judge(&self, result: Result<&Res, &E>) -> Verdict {
        self(result)
    }
}

/// Judges HTTP and gRPC answers by their head.
///
/// | answer | verdict |
/// | --- | --- |
/// | 1xx–3xx | success |
/// | 429 | refused |
/// | 503 with a `retry-after` that can be read | refused |
/// | any other 5xx | retryable |
/// | 410 | gone |
/// | any other 4xx | permanent |
/// | `grpc-status` 0 in the head | success |
/// | 8 RESOURCE_EXHAUSTED, 14 UNAVAILABLE in the head, with `grpc-retry-pushback-ms` | refused |
/// | the same without | retryable |
/// | any other `grpc-status` in the head | permanent |
/// | a rejection of this crate, as an error or as the response that was made of it | refused; permanent if it asked for more than a burst, or its deadline has passed |
/// | the same, but not [rejected here](Overloaded::rejected_here): the request was started | retryable |
/// | what would be refused, with `x-rejected: further-in` as [`OverloadResponse`](crate::OverloadResponse) has it | retryable |
/// | any other error | retryable |
///
/// A gRPC status goes before the HTTP one. One that comes in the trailers, after messages, is not seen:
/// the caller has had a part of the answer by then.
///
/// A refusal of this crate is found in errors of the type [`BoxError`], which those of its layers are,
/// and in what caused them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByAnswer;

impl<B, E: 'static> Judge<Response<B>, E> for ByAnswer {
    fn judge(&self, result: Result<&Response<B>, &E>) -> Verdict {
        match refusal(result) {
            Some(refusal) if fails_again(refusal.reason()) => Verdict::Permanent,
            Some(refusal) if refusal.rejected_here() => Verdict::Refused,
            Some(_) => Verdict::Retryable,
            None => result.map_or(Verdict::Retryable, |response| match of_response(response) {
                Verdict::Refused if was_started(response) => Verdict::Retryable,
                verdict => verdict,
            }),
        }
    }
}

fn fails_again(reason: Reason) -> bool {
    matches!(reason, Reason::ExceedsBurst | Reason::Deadline)
}

fn of_response<B>(response: &Response<B>) -> Verdict {
    if let Some(status) = response.headers().get("grpc-status") {
        return match status.as_bytes() {
            b"0" => Verdict::Success,
            b"8" | b"14" if ask::of_headers(response) == Ask::Nothing => Verdict::Retryable,
            b"8" | b"14" => Verdict::Refused,
            _ => Verdict::Permanent,
        };
    }
    match response.status() {
        StatusCode::TOO_MANY_REQUESTS => Verdict::Refused,
        StatusCode::SERVICE_UNAVAILABLE if ask::of_headers(response) != Ask::Nothing => {
            Verdict::Refused
        }
        StatusCode::GONE => Verdict::Gone,
        status if status.is_client_error() => Verdict::Permanent,
        status if status.as_u16() >= 500 => Verdict::Retryable,
        _ => Verdict::Success,
    }
}

/// Whether a server of this crate says that the rejection was not its own, but came from further in.
fn was_started<B>(response: &Response<B>) -> bool {
    (response.headers().get(REJECTED)).is_some_and(|value| value == FURTHER_IN)
}

/// The refusal of a layer of this crate in the same process, if the answer is one.
pub(super) fn refusal<'a, B, E: 'static>(
    result: Result<&'a Response<B>, &'a E>,
) -> Option<&'a Overloaded> {
    match result {
        Ok(response) => response.extensions().get(),
        // `BoxError` is no `Error`, so no bound covers both it and the others.
        Err(error) => match (error as &dyn Any).downcast_ref::<BoxError>() {
            Some(error) => Overloaded::find(error.as_ref()),
            None => (error as &dyn Any).downcast_ref(),
        },
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn judge(response: Response<()>) -> Verdict {
        ByAnswer.judge(Ok::<_, &BoxError>(&response))
    }

    fn answer(status: u16, headers: &[(&'static str, &str)]) -> Response<()> {
        let response = Response::builder().status(status);
        let response = headers.iter().fold(response, |response, (name, value)| {
            response.header(*name, *value)
        });
        response.body(()).unwrap()
    }

    #[test]
    fn http_goes_by_the_status() {
        for status in 100..=599 {
            let verdict = match status {
                429 => Verdict::Refused,
                410 => Verdict::Gone,
                400..=499 => Verdict::Permanent,
                500..=599 => Verdict::Retryable,
                _ => Verdict::Success,
            };
            assert_eq!(judge(answer(status, &[])), verdict, "{status}");
        }
    }

    #[test]
    fn only_a_503_that_says_when_to_come_back_is_a_refusal() {
        for (status, retry_after, verdict) in [
            (503, "1", Verdict::Refused),
            (503, "0", Verdict::Refused),
            (503, "Sun, 06 Nov 1994 08:49:37 GMT", Verdict::Refused),
            (503, "soon", Verdict::Retryable),
            (500, "1", Verdict::Retryable),
            (404, "1", Verdict::Permanent),
            (410, "1", Verdict::Gone),
        ] {
            let response = answer(status, &[("retry-after", retry_after)]);
            assert_eq!(judge(response), verdict, "{status} {retry_after}");
        }
    }

    #[test]
    fn what_a_server_had_started_may_have_been_done() {
        for (status, headers) in [
            (503, [("retry-after", "1")].as_slice()),
            (429, &[]),
            (
                200,
                &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "5")],
            ),
        ] {
            assert_eq!(judge(answer(status, headers)), Verdict::Refused);
            for (value, verdict) in [
                ("further-in", Verdict::Retryable),
                ("of old age", Verdict::Refused),
            ] {
                let headers = [headers, &[("x-rejected", value)]].concat();
                assert_eq!(judge(answer(status, &headers)), verdict, "{status} {value}");
            }
        }
    }

    #[test]
    fn grpc_goes_by_its_own_status() {
        for status in 0..=17 {
            let plain = judge(answer(200, &[("grpc-status", &status.to_string())]));
            let pushed_back = judge(answer(
                503,
                &[
                    ("grpc-status", &status.to_string()),
                    ("grpc-retry-pushback-ms", "5"),
                ],
            ));
            let verdicts = match status {
                0 => (Verdict::Success, Verdict::Success),
                8 | 14 => (Verdict::Retryable, Verdict::Refused),
                _ => (Verdict::Permanent, Verdict::Permanent),
            };
            assert_eq!((plain, pushed_back), verdicts, "{status}");
        }
    }

    #[test]
    fn an_error_may_have_done_something_unless_it_is_a_refusal_of_ours() {
        let judge = |error: BoxError| ByAnswer.judge(Err::<&Response<()>, _>(&error));
        let overloaded = |reason| Overloaded::new("inner", reason, Duration::from_secs(1));
        assert_eq!(judge("broken".into()), Verdict::Retryable);
        assert_eq!(judge(overloaded(Reason::AtLimit).into()), Verdict::Refused);
        for reason in [Reason::ExceedsBurst, Reason::Deadline] {
            let verdict = judge(overloaded(reason).into());
            assert_eq!(verdict, Verdict::Permanent, "{reason:?}");
        }
        for elsewhere in [Reason::WouldBeLate, Reason::Displaced] {
            let verdict = judge(overloaded(elsewhere).into());
            assert_eq!(verdict, Verdict::Refused, "{elsewhere:?}");
        }

        let started = overloaded(Reason::AtLimit);
        started.mark_further_in();
        assert_eq!(judge(started.clone().into()), Verdict::Retryable);
        let mut response = answer(503, &[("retry-after", "1")]);
        response.extensions_mut().insert(started);
        assert_eq!(
            ByAnswer.judge(Ok::<_, &BoxError>(&response)),
            Verdict::Retryable
        );

        let mut response = answer(500, &[]);
        response
            .extensions_mut()
            .insert(overloaded(Reason::AtLimit));
        assert_eq!(
            ByAnswer.judge(Ok::<_, &BoxError>(&response)),
            Verdict::Refused
        );
    }

    #[test]
    fn any_type_of_error_will_do() {
        let refused = Overloaded::new("inner", Reason::AtLimit, Duration::from_secs(1));
        let judged = ByAnswer.judge(Err::<&Response<()>, _>(&refused));
        assert_eq!(judged, Verdict::Refused);
        let judged = ByAnswer.judge(Err::<&Response<()>, _>(&"broken"));
        assert_eq!(judged, Verdict::Retryable);
    }
}
