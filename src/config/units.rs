//! Times and rates as people write them: pure, exact, and without a panic.

use std::time::Duration;

use crate::{ConfigError, Rate};

pub(super) const A_TIME: &str =
    r#"a time with its unit, such as "250us", "100ms", "1.5s", "2m" or "1h""#;
pub(super) const A_RATE: &str = r#"a rate such as "500/s", "30/min", "1/5s" or "500/s burst 100""#;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// In nanoseconds.
fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000, // the micro sign, and the Greek letter
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60 * 1_000_000_000,
        "h" => 3600 * 1_000_000_000,
        "d" => 24 * 3600 * 1_000_000_000,
        _ => return None,
    })
}

/// A number and a unit: `1.5s`. What is not a whole number of nanoseconds is refused, not rounded.
///
/// # Errors
/// What is expected.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, name) = text.split_at(end.ok_or(A_TIME)?);
    let unit = u128::from(unit(name.trim_start()).ok_or(A_TIME)?);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // "1." and ".5" are more likely slips than meant.
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(A_TIME);
    }
    const TOO_LONG: &str = "a time of at most 584 942 417 355 years";
    let whole: u64 = whole.parse().map_err(|_| TOO_LONG)?;
    let fraction = fraction.trim_end_matches('0');
    let parts = match fraction {
        "" => 0,
        _ => part_of(unit, fraction).ok_or("a whole number of nanoseconds")?,
    };
    let nanos = u128::from(whole) * unit + parts;
    let secs = u64::try_from(nanos / NANOS_PER_SECOND).map_err(|_| TOO_LONG)?;
    Ok(Duration::new(secs, (nanos % NANOS_PER_SECOND) as u32))
}

/// `0.digits` of a unit, if that comes out even.
fn part_of(unit: u128, digits: &str) -> Option<u128> {
    let scale = 10_u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    let parts = unit.checked_mul(digits.parse().ok()?)?;
    (parts % scale == 0).then_some(parts / scale)
}

/// So many in a unit of time, or in so many of them, and perhaps how many are saved up: `500/s`, `1/5s`,
/// `30/min burst 10`.
///
/// # Errors
/// What part of it is wrong, if it is a rate at all.
pub(super) fn rate(text: &str) -> Result<Rate, Option<ConfigError>> {
    let parsed = || {
        let mut words = text.split_whitespace();
        let (count, period) = words.next()?.split_once('/')?;
        let burst = match words.next() {
            None => None,
            Some("burst") => Some(whole(words.next()?)?),
            Some(_) => return None,
        };
        let period = match unit(period) {
            Some(nanos) => Duration::from_nanos(nanos),
            None => duration(period).ok()?,
        };
        words
            .next()
            .is_none()
            .then_some((whole(count)?, period, burst))
    };
    let (count, period, burst) = parsed().ok_or(None)?;
    let rate = match burst {
        Some(burst) => Rate::new(count, period, burst),
        None => Rate::with_usual_burst(count, period),
    };
    rate.map_err(Some)
}

fn whole(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()); // `parse` takes a sign
    plain.then(|| digits.parse().ok())?
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_exact() {
        for (text, nanos) in [
            ("0s", 0),
            ("1ns", 1),
            ("250us", 250_000),
            ("250µs", 250_000),
            ("250μs", 250_000),
            ("100ms", 100_000_000),
            ("0.1s", 100_000_000),
            ("0.3s", 300_000_000),
            ("1.5s", 1_500_000_000),
            (
                "1.500000000000000000000000000000000000000000s",
                1_500_000_000,
            ),
            ("0.000000001s", 1),
            ("2m", 120_000_000_000),
            ("2min", 120_000_000_000),
            ("0.1m", 6_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1.25h", 4_500_000_000_000),
            ("2d", 172_800_000_000_000),
            (" 100 ms ", 100_000_000),
            ("007s", 7_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        let longest = format!("{}.999999999s", u64::MAX);
        assert_eq!(duration(&longest), Ok(Duration::MAX));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "", " ", "100", "1.5", "s", "ms", ".", ".s", "1.s", ".5s", "1..5s", "1.2.3s", "-1s",
            "+1s", "1e3s", "1_000s", "1S", "100 m s", "1m30s", "1s ago", "∞", "٣s", "1 week",
            "NaNs", "infs",
        ] {
            assert_eq!(duration(text), Err(A_TIME), "{text:?}");
        }
        let finer = Err("a whole number of nanoseconds");
        assert_eq!(duration("0.5ns"), finer);
        assert_eq!(duration("0.0000000001s"), finer);
        assert_eq!(duration(&format!("0.{}1s", "0".repeat(1000))), finer);
        let long = Err("a time of at most 584 942 417 355 years");
        assert_eq!(duration("18446744073709551616s"), long);
        assert_eq!(duration("18446744073709551615m"), long);
        assert_eq!(duration(&format!("{}d", "9".repeat(1000))), long);
    }

    #[test]
    fn rates_are_so_many_in_so_much() {
        for (text, expected) in [
            ("500/s", Rate::per_second(500)),
            ("30/min", Rate::per_minute(30)),
            ("30/m", Rate::per_minute(30)),
            ("1/h", Rate::per_hour(1)),
            ("1/5s", Rate::every(Duration::from_secs(5))),
            (
                "3/100ms",
                Rate::new(3, Duration::from_millis(100), 3).unwrap(),
            ),
            ("500/s burst 100", Rate::per_second(500).burst(100)),
            ("  500/s   burst 100 ", Rate::per_second(500).burst(100)),
        ] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in [
            "",
            "500",
            "/s",
            "500/",
            "500 / s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "500/parsec",
            "500/s burst",
            "500/s burst x",
            "500/s burst -1",
            "500/s 100",
            "500/s burst 100 more",
            "500s",
            "1/s/s",
            "18446744073709551616/s",
        ] {
            assert_eq!(rate(text), Err(None), "{text:?}");
        }
        for (text, why) in [
            ("0/s", "rate must be at least 1 in its period"),
            (
                "1000000001/s",
                "rate must be at most 1 000 000 000 a second",
            ),
            (
                "1/0s",
                "period of a rate must be above 0 and at most 100 years",
            ),
            (
                "1/40000d",
                "period of a rate must be above 0 and at most 100 years",
            ),
            (
                "1/s burst 0",
                "burst of a rate must be at least 1, the cost of one request, and at most 2^40",
            ),
        ] {
            let error = rate(text).unwrap_err().expect("a rate, but a wrong one");
            assert_eq!(error.to_string(), why, "{text}");
        }
    }

    proptest! {
        /// Whatever the standard library prints is read again, to the nanosecond.
        #[test]
        fn what_is_printed_is_read(secs in prop_oneof![0..100_u64, any::<u64>()], nanos in 0..1_000_000_000_u32) {
            let time = Duration::new(secs, nanos);
            prop_assert_eq!(duration(&format!("{time:?}")), Ok(time));
        }

        #[test]
        fn a_fraction_is_a_part_of_its_unit(whole in 0..1000_u64, digits in "[0-9]{1,9}") {
            let nanos: u64 = format!("{digits:0<9}").parse().unwrap();
            let time = Duration::from_secs(whole) + Duration::from_nanos(nanos);
            prop_assert_eq!(duration(&format!("{whole}.{digits}s")), Ok(time));
        }

        #[test]
        fn nothing_that_is_written_is_too_much(
            text in prop_oneof![".*", "[0-9./ nuµmshdi]{0,60}", "[0-9]{1,30}/[0-9]{0,30}(s|min|d)( burst [0-9]{1,30})?"],
        ) {
            let _ = duration(&text);
            if let Ok(rate) = rate(&text) {
                prop_assert!(Rate::new(rate.count(), rate.period(), rate.burst_size()).is_ok());
            }
        }
    }
}
