//! How headers say how much time is left.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::digits::digits;

// Made once: a name in a string is parsed each time that it is looked for.
static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
static CONNECT_TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");

/// The units of gRPC, and how many nanoseconds each is.
const GRPC_UNITS: [(u8, u64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60 * 1_000_000_000),
    (b'H', 3600 * 1_000_000_000),
];

/// So many digits a number of gRPC has at most, and one of Connect.
const GRPC_DIGITS: usize = 8;
const CONNECT_DIGITS: usize = 10;

/// The unit of a header that is a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
}

impl Unit {
    /// What is not digits alone is not read; more than can be counted is the most that can.
    pub(super) fn read(self, value: &[u8]) -> Option<Duration> {
        let number = digits(value)?;
        Some(match self {
            Self::Seconds => Duration::from_secs(number),
            Self::Millis => Duration::from_millis(number),
            Self::Micros => Duration::from_micros(number),
        })
    }

    /// Rounded down; `None` if that is nothing.
    pub(super) fn write(self, left: Duration) -> Option<HeaderValue> {
        let number = match self {
            Self::Seconds => left.as_secs().into(),
            Self::Millis => left.as_millis(),
            Self::Micros => left.as_micros(),
        };
        (number > 0).then(|| ascii(number.to_string()))
    }
}

/// How long the client waits, as the headers of its protocol say. If there are several, the least.
pub(super) fn stated(headers: &HeaderMap) -> Option<Duration> {
    let grpc = headers.get(&GRPC_TIMEOUT);
    let grpc = grpc.and_then(|value| read_grpc(value.as_bytes()));
    let connect = headers.get(&CONNECT_TIMEOUT);
    let connect = connect.and_then(|value| read_connect(value.as_bytes()));
    grpc.into_iter().chain(connect).min()
}

fn read_grpc(value: &[u8]) -> Option<Duration> {
    let (unit, number) = value.split_last()?;
    let (_, nanos) = GRPC_UNITS.iter().find(|(name, _)| name == unit)?;
    let number = (number.len() <= GRPC_DIGITS).then(|| digits(number))??;
    let nanos = u128::from(number) * u128::from(*nanos);
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

fn read_connect(value: &[u8]) -> Option<Duration> {
    (value.len() <= CONNECT_DIGITS).then(|| Unit::Millis.read(value))?
}

/// In the smallest unit in which it fits, rounded down.
pub(super) fn write_grpc(left: Duration) -> HeaderValue {
    const MOST: u128 = 10_u128.pow(GRPC_DIGITS as u32) - 1;
    let nanos = left.as_nanos();
    let mut numbers = GRPC_UNITS
        .map(|(unit, each)| (unit, nanos / u128::from(each)))
        .into_iter();
    let fits = numbers.find(|(_, number)| *number <= MOST);
    let (unit, number) = fits.unwrap_or((b'H', MOST));
    ascii(format!("{number}{}", char::from(unit)))
}

/// `None` if it is less than a millisecond.
pub(super) fn write_connect(left: Duration) -> Option<HeaderValue> {
    const MOST: Duration = Duration::from_millis(10_u64.pow(CONNECT_DIGITS as u32) - 1);
    Unit::Millis.write(left.min(MOST))
}

fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("digits and letters")
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 3600;

    #[test]
    fn grpc_timeouts() {
        for (value, time) in [
            ("1n", Duration::from_nanos(1)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("20u", Duration::from_micros(20)),
            ("250m", Duration::from_millis(250)),
            ("00000250m", Duration::from_millis(250)),
            ("5S", Duration::from_secs(5)),
            ("2M", Duration::from_secs(120)),
            ("3H", Duration::from_secs(3 * HOUR)),
            ("99999999H", Duration::from_secs(99_999_999 * HOUR)),
            ("0S", Duration::ZERO),
        ] {
            assert_eq!(read_grpc(value.as_bytes()), Some(time), "{value}");
        }
    }

    #[test]
    fn what_is_no_grpc_timeout_is_absent() {
        for value in [
            "",
            "S",
            "5",
            "5s",
            "5h",
            "5 S",
            " 5S",
            "5S ",
            "+5S",
            "-5S",
            "5.0S",
            "5SS",
            "123456789m",
            "000000001m",
            "5\u{b5}",
            "١S",
        ] {
            assert_eq!(read_grpc(value.as_bytes()), None, "{value:?}");
        }
    }

    #[test]
    fn connect_timeouts_have_at_most_ten_digits() {
        let ms = |value: &str| read_connect(value.as_bytes()).map(|time| time.as_millis());
        assert_eq!(ms("0"), Some(0));
        assert_eq!(ms("1500"), Some(1500));
        assert_eq!(ms("9999999999"), Some(9_999_999_999));
        for malformed in ["", "10000000000", "1500ms", "-1", "+1", "1.5", " 1"] {
            assert_eq!(ms(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn headers_of_ones_own_are_whole_numbers() {
        let number = |unit: Unit, value: &str| unit.read(value.as_bytes());
        assert_eq!(number(Unit::Seconds, "3"), Some(Duration::from_secs(3)));
        assert_eq!(number(Unit::Millis, "3"), Some(Duration::from_millis(3)));
        assert_eq!(number(Unit::Micros, "3"), Some(Duration::from_micros(3)));
        let most = number(Unit::Seconds, "99999999999999999999999999");
        assert_eq!(most, Some(Duration::from_secs(u64::MAX)));
        for malformed in ["", "3s", "0.5", "-1", "1e3", " 3"] {
            assert_eq!(number(Unit::Seconds, malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn several_headers_are_as_good_as_the_least() {
        let stated = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            stated(&headers.collect())
        };
        let both = [("grpc-timeout", "2S"), ("connect-timeout-ms", "100")];
        assert_eq!(stated(&both), Some(Duration::from_millis(100)));
        let malformed = [("grpc-timeout", "2S"), ("connect-timeout-ms", "soon")];
        assert_eq!(stated(&malformed), Some(Duration::from_secs(2)));
        assert_eq!(stated(&[("grpc-timeout", "soon")]), None);
        assert_eq!(stated(&[]), None);
    }

    fn as_tonic_writes_it(time: Duration) -> HeaderValue {
        let mut request = tonic::Request::new(());
        request.set_timeout(time);
        let value = request.metadata().get("grpc-timeout").unwrap();
        HeaderValue::from_bytes(value.as_bytes()).unwrap()
    }

    fn times() -> impl Strategy<Value = Duration> {
        // As many short ones as long ones.
        let digits = (0..=63_u32).prop_flat_map(|bits| 0..=(u64::MAX >> bits));
        (digits, 0..1_000_000_000_u32).prop_flat_map(|(number, nanos)| {
            prop_oneof![
                Just(Duration::from_nanos(number)),
                Just(Duration::new(number % (99_999_999 * HOUR), nanos)),
            ]
        })
    }

    proptest! {
        #[test]
        fn grpc_timeouts_are_written_as_tonic_writes_them(time in times()) {
            prop_assert_eq!(write_grpc(time), as_tonic_writes_it(time));
        }

        #[test]
        fn what_is_written_is_read_and_is_no_longer(time in times()) {
            let read = read_grpc(write_grpc(time).as_bytes()).unwrap();
            prop_assert!(read <= time);
            prop_assert!(time - read <= time / 100_000, "{time:?} became {read:?}");
            for unit in [Unit::Seconds, Unit::Millis, Unit::Micros] {
                if let Some(value) = unit.write(time) {
                    let read = unit.read(value.as_bytes()).unwrap();
                    prop_assert!(read <= time && !read.is_zero());
                }
            }
            if let Some(value) = write_connect(time) {
                prop_assert!(read_connect(value.as_bytes()).unwrap() <= time);
            }
        }

        #[test]
        fn no_value_is_too_much_for_it(value in prop::collection::vec(any::<u8>(), 0..30)) {
            let _ = (read_grpc(&value), read_connect(&value), Unit::Micros.read(&value));
        }

        #[test]
        fn no_number_is_too_much_for_it(value in "[0-9]{1,30}[HMSmun]?") {
            let _ = (read_grpc(value.as_bytes()), Unit::Seconds.read(value.as_bytes()));
        }
    }

    #[test]
    fn the_longest_times_can_be_written() {
        assert_eq!(write_grpc(Duration::MAX), "99999999H");
        assert_eq!(write_connect(Duration::MAX).unwrap(), "9999999999");
        assert_eq!(
            Unit::Seconds.write(Duration::MAX).unwrap(),
            u64::MAX.to_string()
        );
    }
}
