//! Reads the time at which a request started from what a proxy has written.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::SubmittedAt;
use crate::{
    clock,
    sync::{AtomicU64, Ordering::Relaxed},
};

/// No request is taken to be older than this, whatever a trusted header says: ten minutes.
pub const MAX_AGE: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct TrustedHeader {
    name: HeaderName,
    believed: AtomicU64,
    capped: AtomicU64,
    future: AtomicU64,
    invalid: AtomicU64,
}

/// How often a trusted header was believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Requests that were stamped with what the header says.
    pub believed: u64,
    /// Those of them that would have been older than [`MAX_AGE`].
    pub capped: u64,
    /// Requests whose header was of the future: the clocks of proxy and server do not agree. They were
    /// stamped with the time at which they came, as were those whose header was [invalid](Self::invalid),
    /// or that had none.
    pub future: u64,
    /// Requests whose header is not a time, or that had two.
    pub invalid: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Unbelievable {
    Future,
    Invalid,
}
use Unbelievable::*;

impl TrustedHeader {
    pub(super) fn new(name: HeaderName) -> Self {
        Self {
            name,
            believed: AtomicU64::new(0),
            capped: AtomicU64::new(0),
            future: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
        }
    }

    /// When the request started, if that can be believed.
    pub(super) fn read(&self, headers: &HeaderMap) -> Option<SubmittedAt> {
        let mut values = headers.get_all(&self.name).iter();
        let value = values.next()?;
        let age = match values.next() {
            None => age(value.as_bytes(), clock::since_1970()),
            // A client may have sent one of them.
            Some(_) => Err(Invalid),
        };
        let submitted = age.and_then(|age| {
            let submitted = SubmittedAt::ago(age.min(MAX_AGE)).ok_or(Invalid)?;
            self.capped.fetch_add((age > MAX_AGE).into(), Relaxed);
            Ok(submitted)
        });
        let count = match submitted {
            Ok(_) => &self.believed,
            Err(Future) => &self.future,
            Err(Invalid) => &self.invalid,
        };
        count.fetch_add(1, Relaxed);
        submitted.ok()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            believed: self.believed.load(Relaxed),
            capped: self.capped.load(Relaxed),
            future: self.future.load(Relaxed),
            invalid: self.invalid.load(Relaxed),
        }
    }
}

/// How long ago that is.
fn age(value: &[u8], now: Duration) -> Result<Duration, Unbelievable> {
    let started = since_1970(value).ok_or(Invalid)?;
    now.checked_sub(started).ok_or(Future)
}

/// `t=` or nothing, digits, and perhaps a fraction.
fn since_1970(value: &[u8]) -> Option<Duration> {
    let value = value.strip_prefix(b"t=").unwrap_or(value);
    let point = value.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = value.split_at(point.unwrap_or(value.len()));
    let whole = digits(whole)?;
    let (fraction, places) = match fraction {
        [] => (0, 0),
        [_point, fraction @ ..] => (digits(fraction)?, fraction.len()),
    };
    // The same moment in the next unit has three digits more. In seconds it has at most 11 until the year
    // 5138, in milliseconds at least 12 since 1973.
    let nanos_each: u64 = match whole.checked_ilog10() {
        None | Some(..=10) => 1_000_000_000,
        Some(..=13) => 1_000_000,
        Some(..=16) => 1000,
        Some(_) => 1,
    };
    let nanos = u128::from(whole) * u128::from(nanos_each)
        + u128::from(fraction) * u128::from(nanos_each) / 10_u128.pow(places as u32);
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// Up to 19 of them: what fits.
fn digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_nanos(1_700_000_010_000_000_000);

    fn check(value: &str, expected: Result<Duration, Unbelievable>) {
        assert_eq!(age(value.as_bytes(), NOW), expected, "{value}");
    }

    #[test]
    fn proxies_write_it_in_several_ways() {
        let ten_seconds = Ok(Duration::from_secs(10));
        check("1700000000", ten_seconds);
        check("t=1700000000", Ok(Duration::from_secs(10)));
        check("1700000000000", Ok(Duration::from_secs(10)));
        check("t=1700000000000000", Ok(Duration::from_secs(10)));
        check("1700000000000000000", Ok(Duration::from_secs(10)));
        check("t=1700000000.123", Ok(Duration::from_millis(9877)));
        check("1700000000123.5", Ok(Duration::from_micros(9_876_500)));
        check(
            "1700000009.9999999999999999999",
            Ok(Duration::from_nanos(1)),
        );
        check("t=1700000010.000", Ok(Duration::ZERO));
        check("0", Ok(NOW));
    }

    #[test]
    fn the_future_is_not_believed() {
        for value in [
            "1700000010.000000001",
            "t=1700000011",
            "9000000000000000000",
        ] {
            check(value, Err(Future));
        }
    }

    #[test]
    fn nor_is_what_is_not_a_time() {
        for value in [
            "",
            "t=",
            "now",
            "t=now",
            "-1",
            "+1",
            "1e9",
            "1700000000,5",
            "1.",
            ".5",
            "1.2.3",
            " 1",
            "t=t=1",
            "0x10",
            "1700000000s",
            "99999999999999999999",
            "1.00000000000000000000",
            "१२३",
            "\u{0}",
        ] {
            check(value, Err(Invalid));
        }
    }

    proptest! {
        #[test]
        fn no_value_is_too_much_for_it(value in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = age(&value, NOW);
        }

        #[test]
        fn no_number_is_too_much_for_it(value in "(t=)?[0-9]{1,20}(\\.[0-9]{0,20})?") {
            if let Ok(age) = age(value.as_bytes(), NOW) {
                prop_assert!(age <= NOW);
            }
        }
    }
}
