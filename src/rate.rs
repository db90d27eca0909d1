//! How much per how long.

use std::{fmt, time::Duration};

use crate::{ConfigError, law::token_bucket::Refill};

/// So many tokens in so much time, and how many may be saved up.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::Rate;
///
/// let rate = Rate::per_second(100);          // 100 requests each second; as many at once
/// let rate = Rate::per_second(100).burst(20); // … but no more than 20 at once
/// let rate = Rate::per_minute(30);
/// let rate = Rate::per_hour(1000).burst(10);
/// let rate = Rate::every(Duration::from_secs(5)); // one each 5 s, nothing saved up
/// ```
///
/// Unless it is set, the burst is what one period brings: 100 for `per_second(100)`, 1 for
/// [`every`](Self::every). Over any stretch of time `t` at most `burst + rate · t` requests pass, so
/// that an hourly rate with its default burst may bring an hour's worth at once: set a burst where that
/// would hurt.
///
/// Rates from one in 100 years to a thousand million a second are kept without drift: the time of
/// each token is computed from the start, not from the token before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    period: Duration,
    burst: u64,
}

/// What can be counted in the 63 bits that a bucket has for it, with room to spare.
const MAX_BURST: u64 = 1 << 40;

impl Rate {
    /// `count` each second.
    ///
    /// # Panics
    /// If `count` is 0 or above a thousand million.
    pub fn per_second(count: u64) -> Self {
        Self::literal(count, Duration::from_secs(1))
    }

    /// `count` each minute.
    ///
    /// # Panics
    /// If `count` is 0 or above a thousand million a second.
    pub fn per_minute(count: u64) -> Self {
        Self::literal(count, Duration::from_secs(60))
    }

    /// `count` each hour.
    ///
    /// # Panics
    /// If `count` is 0 or above a thousand million a second.
    pub fn per_hour(count: u64) -> Self {
        Self::literal(count, Duration::from_secs(3600))
    }

    /// One each `period`.
    ///
    /// # Panics
    /// If `period` is zero or above 100 years.
    pub fn every(period: Duration) -> Self {
        Self::literal(1, period)
    }

    /// At most so many are saved up, and may so pass at once.
    ///
    /// # Panics
    /// If `burst` is 0, which would let nothing pass, or above 2^40.
    pub fn burst(self, burst: u64) -> Self {
        match Self::new(self.count, self.period, burst) {
            Ok(rate) => rate,
            Err(error) => panic!("{error}"),
        }
    }

    /// `count` each `period`, at most `burst` saved up: for values that arrive at run time.
    ///
    /// # Errors
    /// If `count`, `period` or `burst` is zero, `burst` is above 2^40, `period` above 100 years, or it
    /// comes to more than a thousand million a second.
    pub fn new(count: u64, period: Duration, burst: u64) -> Result<Self, ConfigError> {
        const MAX_PERIOD: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
        if count == 0 {
            return Err(ConfigError::new("rate", "at least 1 in its period"));
        }
        if period.is_zero() || period.as_nanos() > MAX_PERIOD.as_nanos() {
            return Err(ConfigError::new(
                "period of a rate",
                "above 0 and at most 100 years",
            ));
        }
        if count as u128 > period.as_nanos() {
            return Err(ConfigError::new("rate", "at most 1 000 000 000 a second"));
        }
        if burst == 0 || burst > MAX_BURST {
            return Err(ConfigError::new(
                "burst of a rate",
                "at least 1, the cost of one request, and at most 2^40",
            ));
        }
        Ok(Self {
            count,
            period,
            burst,
        })
    }

    /// How many tokens there are each [`period`](Self::period).
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The time in which [`count`](Self::count) tokens come.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// How many may be saved up.
    pub fn burst_size(&self) -> u64 {
        self.burst
    }

    pub(crate) fn refill(&self) -> Refill {
        // `new` has seen to it that the period fits.
        Refill::new(self.count, self.period.as_nanos() as u64, self.burst)
    }

    fn literal(count: u64, period: Duration) -> Self {
        match Self::with_usual_burst(count, period) {
            Ok(rate) => rate,
            Err(error) => panic!("{error}"),
        }
    }

    /// What one period brings may be saved up.
    pub(crate) fn with_usual_burst(count: u64, period: Duration) -> Result<Self, ConfigError> {
        Self::new(count, period, count.clamp(1, MAX_BURST))
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} per {:?}, burst {}",
            self.count, self.period, self.burst
        )
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_burst_is_what_one_period_brings_unless_it_is_set() {
        let minute = Duration::from_secs(60);
        assert_eq!(Rate::per_minute(30), Rate::new(30, minute, 30).unwrap());
        assert_eq!(
            Rate::per_minute(30).burst(2),
            Rate::new(30, minute, 2).unwrap()
        );
        assert_eq!(Rate::every(minute), Rate::new(1, minute, 1).unwrap());
    }

    #[test]
    fn nonsense_is_refused_with_what_would_do() {
        let second = Duration::from_secs(1);
        let cases = [
            (
                Rate::new(0, second, 1),
                "rate must be at least 1 in its period",
            ),
            (
                Rate::new(1_000_000_001, second, 1),
                "rate must be at most 1 000 000 000 a second",
            ),
            (
                Rate::new(1, Duration::ZERO, 1),
                "period of a rate must be above 0 and at most 100 years",
            ),
            (
                Rate::new(1, Duration::MAX, 1),
                "period of a rate must be above 0 and at most 100 years",
            ),
            (
                Rate::new(1, second, 0),
                "burst of a rate must be at least 1, the cost of one request, and at most 2^40",
            ),
        ];
        for (result, message) in cases {
            assert_eq!(result.unwrap_err().to_string(), message);
        }
        assert!(Rate::new(1_000_000_000, second, 1 << 40).is_ok());
    }

    #[test]
    #[should_panic(expected = "rate must be at least 1 in its period")]
    fn a_literal_zero_panics() {
        let _ = Rate::per_second(0);
    }

    #[test]
    #[should_panic(expected = "burst of a rate must be at least 1")]
    fn a_literal_burst_of_zero_panics() {
        let _ = Rate::per_second(1).burst(0);
    }
}
