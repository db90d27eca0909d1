//! How long to wait before each retry.
//!
//! The first retry is number 0. Whatever the number and the durations, nothing overflows: what is too
//! long to be counted is longer than any `max`.

use std::time::Duration;

/// How long a client waits before it tries again: a fixed time, or one that grows with each retry.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::retry::Backoff;
///
/// let secs = Duration::from_secs;
/// let backoff = Backoff::exponential(secs(10), secs(300));
/// assert_eq!([0, 1, 2, 5].map(|retry| backoff.delay(retry)), [10, 20, 40, 300].map(secs));
///
/// let backoff = Backoff::linear(secs(10), secs(30), secs(300));
/// assert_eq!([0, 1, 2, 9, 10].map(|retry| backoff.delay(retry)), [10, 40, 70, 280, 300].map(secs));
///
/// assert_eq!(Backoff::fixed(secs(10)).delay(1000), secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    growth: Growth,
    base: Duration,
    max: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    Doubling,
    By(Duration),
}

impl Backoff {
    /// `base`, and twice as long before each further retry, up to `max`: `base · 2ⁿ`.
    ///
    /// The one to take where nothing else is known: it finds out in a few steps how long an outage is.
    ///
    /// # Panics
    /// If `base` is zero, which would be no backoff at all, or above `max`.
    pub fn exponential(base: Duration, max: Duration) -> Self {
        Self::new(Growth::Doubling, base, max)
    }

    /// `base`, and `increment` longer before each further retry, up to `max`: `base + n · increment`.
    ///
    /// # Panics
    /// If `base` is zero, which would be no backoff at all, or above `max`.
    pub fn linear(base: Duration, increment: Duration, max: Duration) -> Self {
        Self::new(Growth::By(increment), base, max)
    }

    /// The same before each retry.
    ///
    /// # Panics
    /// If `base` is zero, which would be no backoff at all.
    pub fn fixed(base: Duration) -> Self {
        Self::new(Growth::By(Duration::ZERO), base, base)
    }

    fn new(growth: Growth, base: Duration, max: Duration) -> Self {
        match Self::checked(growth, base, max) {
            Ok(backoff) => backoff,
            Err((field, expected)) => panic!("{field} of a backoff must be {expected}"),
        }
    }

    /// The first field that is not allowed, and what it must be.
    pub(crate) fn checked(
        growth: Growth,
        base: Duration,
        max: Duration,
    ) -> Result<Self, (&'static str, &'static str)> {
        if base.is_zero() {
            return Err(("base", "above 0"));
        }
        if base > max {
            return Err(("base", "at most its max"));
        }
        Ok(Self { growth, base, max })
    }

    /// How long to wait before that retry; the first is number 0. No chance is in it.
    pub fn delay(&self, retry: u32) -> Duration {
        let delay = match self.growth {
            Growth::Doubling => doubled(self.base, retry),
            Growth::By(increment) => self.base.saturating_add(increment.saturating_mul(retry)),
        };
        delay.min(self.max)
    }
}

/// `base · 2ⁿ`, or what is longer than anything.
fn doubled(base: Duration, n: u32) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let nanos = base.as_nanos();
    if n >= nanos.leading_zeros() {
        return Duration::MAX;
    }
    let nanos = nanos << n;
    match u64::try_from(nanos / SECOND) {
        Ok(secs) => Duration::new(secs, (nanos % SECOND) as u32),
        Err(_) => Duration::MAX,
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn exponential_delays_are_as_in_the_table() {
        let backoff = Backoff::exponential(secs(10), secs(300));
        for (retry, delay) in [
            (0, 10),
            (1, 20),
            (2, 40),
            (3, 80),
            (4, 160),
            (5, 300),
            (6, 300),
            (10, 300),
            (11, 300),
            (31, 300),
            (32, 300),
            (64, 300),
            (128, 300),
            (u32::MAX, 300),
        ] {
            assert_eq!(backoff.delay(retry), secs(delay), "{retry}");
        }
    }

    /// Tables of 10 + 30n up to 300 are found that have it at 300 from the ninth retry on. The formula
    /// has 280 there, and reaches 300 with the next.
    #[test]
    fn linear_delays_are_as_the_formula_has_them() {
        let backoff = Backoff::linear(secs(10), secs(30), secs(300));
        for (retry, delay) in [
            (0, 10),
            (1, 40),
            (2, 70),
            (3, 100),
            (4, 130),
            (8, 250),
            (9, 280),
            (10, 300),
            (11, 300),
            (u32::MAX, 300),
        ] {
            assert_eq!(backoff.delay(retry), secs(delay), "{retry}");
        }
    }

    #[test]
    fn fixed_delays_stay() {
        let backoff = Backoff::fixed(secs(7));
        assert!([0, 1, 10, u32::MAX].map(|retry| backoff.delay(retry)) == [secs(7); 4]);
    }

    #[test]
    fn a_nanosecond_doubles_for_as_long_as_it_takes() {
        let backoff = Backoff::exponential(Duration::from_nanos(1), Duration::MAX);
        assert_eq!(backoff.delay(36), Duration::from_nanos(1 << 36));
        assert_eq!(backoff.delay(63), Duration::from_nanos(1 << 63));
        assert_eq!(backoff.delay(90).as_nanos(), 1 << 90);
        assert_eq!(backoff.delay(127), Duration::MAX);
        assert_eq!(backoff.delay(128), Duration::MAX);
    }

    #[test]
    #[should_panic(expected = "base of a backoff must be above 0")]
    fn no_delay_is_no_backoff() {
        let _ = Backoff::fixed(Duration::ZERO);
    }

    #[test]
    #[should_panic(expected = "base of a backoff must be at most its max")]
    fn a_base_above_the_most_makes_no_sense() {
        let _ = Backoff::exponential(secs(2), secs(1));
    }

    fn durations() -> impl Strategy<Value = Duration> {
        let long = (any::<u64>(), 0..1_000_000_000_u32);
        prop_oneof![
            long.prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
            any::<u32>().prop_map(|nanos| Duration::from_nanos(nanos.into())),
        ]
    }

    prop_compose! {
        fn backoffs()(a in durations(), b in durations(), increment in durations(), kind in 0..3) -> Backoff {
            let base = a.min(b).max(Duration::from_nanos(1));
            let max = a.max(b).max(base);
            match kind {
                0 => Backoff::exponential(base, max),
                1 => Backoff::linear(base, increment, max),
                _ => Backoff::fixed(base),
            }
        }
    }

    proptest! {
        #[test]
        fn no_retry_waits_for_less_than_the_one_before_or_for_more_than_the_most(
            backoff in backoffs(),
            retry in prop_oneof![0..200_u32, any::<u32>()],
        ) {
            let delay = backoff.delay(retry);
            prop_assert!(backoff.delay(0) == backoff.base);
            prop_assert!(delay >= backoff.base && delay <= backoff.max);
            prop_assert!(backoff.delay(retry.saturating_add(1)) >= delay);
        }
    }
}
