//! What a server asks of those who come back: `retry-after`, and gRPC's pushback.
//!
//! All of it is written by somebody else. What cannot be read is taken for nothing, nothing is too long
//! to be counted, and [`MAX_DELAY`](super::MAX_DELAY) is for the policy to see to.

use std::time::Duration;

use http::{
    HeaderMap, Response, StatusCode,
    header::{DATE, RETRY_AFTER},
};

use super::{http_date::http_date, judge};
use crate::{clock, digits::digits};

/// What the server asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// It asks for nothing, or for nothing that can be read.
    Nothing,
    /// To come back no sooner than after this.
    After(Duration),
    /// To come back after this, and to start the backoff anew then.
    Pushback(Duration),
    /// Not to come back.
    Never,
}

/// What is asked for by the server's head, or by a layer of this crate in the same process.
pub(super) fn of<B, E: 'static>(result: Result<&Response<B>, &E>) -> Ask {
    let ask = result.map_or(Ask::Nothing, of_headers);
    match judge::refusal(result) {
        Some(refusal) if ask == Ask::Nothing => Ask::After(refusal.retry_after()),
        _ => ask,
    }
}

/// gRPC's pushback beside a `grpc-status`; else `retry-after`, of 429 and 503 alone: with a redirection
/// it means something else, with the others nothing.
pub(super) fn of_headers<B>(response: &Response<B>) -> Ask {
    let headers = response.headers();
    if headers.contains_key("grpc-status") {
        return pushback(headers);
    }
    match response.status() {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            retry_after(headers, clock::since_1970).map_or(Ask::Nothing, Ask::After)
        }
        _ => Ask::Nothing,
    }
}

/// Milliseconds, as a number of 32 bits with a sign. Whatever else is there, and more than one, means
/// that the server does not want to see the request again.
fn pushback(headers: &HeaderMap) -> Ask {
    let mut values = headers.get_all("grpc-retry-pushback-ms").iter();
    let Some(value) = values.next() else {
        return Ask::Nothing;
    };
    match digits(value.as_bytes()) {
        Some(millis) if millis <= i32::MAX as u64 && values.next().is_none() => {
            Ask::Pushback(Duration::from_millis(millis))
        }
        _ => Ask::Never,
    }
}

/// The longest that is asked for and can be read.
///
/// A date is compared with the server's own, if it has sent one: the two clocks need not agree then.
fn retry_after(headers: &HeaderMap, wall: impl Fn() -> Duration) -> Option<Duration> {
    let values = headers.get_all(RETRY_AFTER).iter();
    let delays = values.filter_map(|value| {
        let value = value.as_bytes();
        digits(value).map(Duration::from_secs).or_else(|| {
            let here = wall();
            let date = headers.get(DATE);
            let now = date.and_then(|date| http_date(date.as_bytes(), here));
            Some(http_date(value, here)?.saturating_sub(now.unwrap_or(here)))
        })
    });
    delays.max()
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    /// Sunday, 6 November 1994, 08:49:37.
    const NOW: Duration = Duration::from_secs(784_111_777);

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        });
        let mut headers = HeaderMap::new();
        pairs.for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    }

    fn asked(pairs: &[(&'static str, &str)]) -> Option<u64> {
        retry_after(&headers(pairs), || NOW).map(|delay| delay.as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        for (value, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("99999999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun Nov  6 08:50:37 1994", Some(60)),
            ("Sat, 06 Nov 1993 08:49:37 GMT", Some(0)), // a year ago
        ] {
            assert_eq!(asked(&[("retry-after", value)]), seconds, "{value}");
        }
    }

    #[test]
    fn what_cannot_be_read_asks_for_nothing() {
        for value in [
            "", " ", "-1", "+1", "1.5", "1,5", "5s", "0x10", "1e3", "soon", "5, 6",
        ] {
            assert_eq!(asked(&[("retry-after", value)]), None, "{value}");
        }
        assert_eq!(asked(&[]), None);
    }

    #[test]
    fn of_several_the_longest_counts() {
        let values = ["3", "soon", "7", "5"].map(|value| ("retry-after", value));
        assert_eq!(asked(&values), Some(7));
    }

    #[test]
    fn a_date_is_compared_with_the_servers_own() {
        let until = ("retry-after", "Wed, 21 Oct 2015 07:28:30 GMT");
        let date = ("date", "Wed, 21 Oct 2015 07:28:00 GMT");
        assert_eq!(asked(&[until, date]), Some(30));
        let in_21_years = asked(&[until]).unwrap();
        assert_eq!(asked(&[until, ("date", "today")]), Some(in_21_years));
        assert_eq!(in_21_years, 1_445_412_510 - NOW.as_secs());
        assert_eq!(asked(&[("retry-after", "5"), date]), Some(5));
    }

    #[test]
    fn pushback_is_milliseconds_or_a_no() {
        let after = |millis| Ask::Pushback(Duration::from_millis(millis));
        for (value, ask) in [
            ("0", after(0)),
            ("1500", after(1500)),
            ("2147483647", after(2_147_483_647)),
            ("2147483648", Ask::Never),
            ("99999999999999999999999", Ask::Never),
            ("-1", Ask::Never),
            ("-0", Ask::Never),
            ("", Ask::Never),
            ("1.5", Ask::Never),
            ("soon", Ask::Never),
        ] {
            let headers = headers(&[("grpc-retry-pushback-ms", value)]);
            assert_eq!(pushback(&headers), ask, "{value}");
        }
        let twice = headers(&[
            ("grpc-retry-pushback-ms", "1"),
            ("grpc-retry-pushback-ms", "1"),
        ]);
        assert_eq!(pushback(&twice), Ask::Never);
        assert_eq!(pushback(&headers(&[])), Ask::Nothing);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much_for_it(
            value in prop::collection::vec(any::<u8>(), 0..40),
            date in prop::collection::vec(any::<u8>(), 0..40),
            now in any::<u64>(),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in [("retry-after", value), ("date", date)] {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.insert("grpc-retry-pushback-ms", value.clone());
                    headers.insert(name, value);
                }
            }
            let _ = retry_after(&headers, || Duration::from_secs(now));
            let _ = pushback(&headers);
        }
    }
}
