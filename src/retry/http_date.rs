//! Dates as HTTP writes them, in the one way that servers should, and the two that they once did.

use std::time::Duration;

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const DAYS: [&[u8]; 7] = [
    b"Monday",
    b"Tuesday",
    b"Wednesday",
    b"Thursday",
    b"Friday",
    b"Saturday",
    b"Sunday",
];

/// The time since 1970 of an HTTP-date (RFC 9110, 5.6.7); of what was before, nothing:
///
/// ```text
/// Sun, 06 Nov 1994 08:49:37 GMT     IMF-fixdate
/// Sunday, 06-Nov-94 08:49:37 GMT    RFC 850
/// Sun Nov  6 08:49:37 1994          asctime
/// ```
///
/// `now` is there for years of two digits: one that would be more than 50 years ahead is of the century
/// before. The name of the day has to be one, but need not be right.
pub(super) fn http_date(value: &[u8], now: Duration) -> Option<Duration> {
    if let Some((day_name, date)) = split(value, b", ") {
        return match day_name.len() {
            3 => imf_fixdate(day_name, date),
            _ => rfc_850(day_name, date, now),
        };
    }
    asctime(value)
}

fn imf_fixdate(day_name: &[u8], date: &[u8]) -> Option<Duration> {
    DAYS.iter().find(|day| &day[..3] == day_name)?;
    let [
        d1,
        d2,
        b' ',
        m1,
        m2,
        m3,
        b' ',
        y1,
        y2,
        y3,
        y4,
        b' ',
        time @ ..,
        b' ',
        b'G',
        b'M',
        b'T',
    ] = date
    else {
        return None;
    };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    since_1970(year, &[*m1, *m2, *m3], &[*d1, *d2], time)
}

fn rfc_850(day_name: &[u8], date: &[u8], now: Duration) -> Option<Duration> {
    DAYS.iter().find(|day| **day == day_name)?;
    let [
        d1,
        d2,
        b'-',
        m1,
        m2,
        m3,
        b'-',
        y1,
        y2,
        b' ',
        time @ ..,
        b' ',
        b'G',
        b'M',
        b'T',
    ] = date
    else {
        return None;
    };
    let short = number(&[*y1, *y2])?;
    // A year has 365.2425 days of 86 400 seconds. It is a day off at most, which does not matter.
    let this_year = 1970 + now.as_secs() / 31_556_952;
    let latest = this_year.min(9999) + 50;
    let year = latest - (latest - short) % 100; // the last one up to then that ends on these digits
    since_1970(year, &[*m1, *m2, *m3], &[*d1, *d2], time)
}

fn asctime(date: &[u8]) -> Option<Duration> {
    let [
        n1,
        n2,
        n3,
        b' ',
        m1,
        m2,
        m3,
        b' ',
        d1,
        d2,
        b' ',
        time @ ..,
        b' ',
        y1,
        y2,
        y3,
        y4,
    ] = date
    else {
        return None;
    };
    DAYS.iter().find(|day| day[..3] == [*n1, *n2, *n3])?;
    let d1 = if *d1 == b' ' { b'0' } else { *d1 };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    since_1970(year, &[*m1, *m2, *m3], &[d1, *d2], time)
}

fn since_1970(year: u64, month: &[u8], day: &[u8], time: &[u8]) -> Option<Duration> {
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = time else {
        return None;
    };
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?);
    let month = MONTHS.iter().position(|name| *name == month)?;
    let day = number(day)?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        1 => 28 + u64::from(leap),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    };
    // 60 is a leap second, which is the first of the next minute here.
    if !(1..=days_in_month).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if year < 1970 {
        return Some(Duration::ZERO);
    }
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    // How many leap years there were before a year.
    let leaps = |year: u64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    let days = (year - 1970) * 365 + leaps(year) - leaps(1970)
        + BEFORE_MONTH[month]
        + u64::from(leap && month > 1)
        + (day - 1);
    Some(Duration::from_secs(
        days * 86_400 + hour * 3600 + minute * 60 + second,
    ))
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        Some(number * 10 + digit)
    })
}

fn split<'a>(value: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = value.windows(at.len()).position(|window| window == at)?;
    Some((&value[..found], &value[found + at.len()..]))
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000); // 2023

    fn seconds(value: &str) -> Option<u64> {
        http_date(value.as_bytes(), NOW).map(|date| date.as_secs())
    }

    #[test]
    fn it_is_written_in_three_ways() {
        for value in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(seconds(value), Some(784_111_777), "{value}");
        }
        assert_eq!(
            seconds("Sun Nov 16 08:49:37 1994"),
            Some(784_111_777 + 864_000)
        );
    }

    #[test]
    fn calendars_have_corners() {
        for (value, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Wed, 31 Dec 1969 23:59:59 GMT", 0), // long enough ago
            ("Mon, 01 Jan 0000 00:00:00 GMT", 0),
            ("Tue, 29 Feb 2000 12:00:00 GMT", 951_825_600),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199),
            ("Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_800),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ] {
            assert_eq!(seconds(value), Some(expected), "{value}");
        }
    }

    #[test]
    fn a_year_of_two_digits_is_at_most_50_years_ahead() {
        let year = |short: u64| {
            let date = format!("Friday, 01-Jan-{short:02} 00:00:00 GMT");
            1970 + (seconds(&date).unwrap() + 86_400) / 31_556_952
        };
        assert_eq!(year(23), 2023);
        assert_eq!(year(0), 2000);
        assert_eq!(year(73), 2073);
        assert_eq!(year(74), 1974);
        assert_eq!(year(99), 1999);
    }

    #[test]
    fn what_is_not_a_date_is_none() {
        for value in [
            "",
            ", ",
            "Sun, ",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0100",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Son, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06-Nov-94 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 08:49:37 GMT",
            "Sun, 29 Feb 2100 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:61 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 Nov 1994 08-49-37 GMT",
            "Sun, -6 Nov 1994 08:49:37 GMT",
            "Sun Nov  6 08:49:37 94",
            "Sun Nov   6 08:49:37 1994",
            "Sun Nov  6 08:49:37 1994 GMT",
            "1994-11-06T08:49:37Z",
            "784111777",
        ] {
            assert_eq!(seconds(value), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much_for_it(value in prop::collection::vec(any::<u8>(), 0..40), now in any::<u64>()) {
            let _ = http_date(&value, Duration::from_secs(now));
        }

        #[test]
        fn nor_is_what_is_nearly_a_date(
            value in "(Sun|Sunday),? [0-9]{2}[ -](Jan|Feb|Dec)[ -][0-9]{2,4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
            now in any::<u64>(),
        ) {
            let _ = http_date(value.as_bytes(), Duration::from_secs(now));
        }

        /// Counted another way: day after day.
        #[test]
        fn every_moment_is_read_as_it_was_written(moment in 0..253_402_300_800_u64) {
            let (mut days, time) = (moment / 86_400, moment % 86_400);
            let leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let mut year = 1970;
            while days >= 365 + u64::from(leap(year)) {
                days -= 365 + u64::from(leap(year));
                year += 1;
            }
            let february = 28 + u64::from(leap(year));
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            let mut month = 0;
            while days >= lengths[month] {
                days -= lengths[month];
                month += 1;
            }
            let month = std::str::from_utf8(MONTHS[month]).unwrap();
            let (day, hour, minute, second) = (days + 1, time / 3600, time / 60 % 60, time % 60);
            let clock = format!("{hour:02}:{minute:02}:{second:02}");
            prop_assert_eq!(seconds(&format!("Mon, {day:02} {month} {year:04} {clock} GMT")), Some(moment));
            prop_assert_eq!(seconds(&format!("Mon {month} {day:2} {clock} {year:04}")), Some(moment));
        }
    }
}
