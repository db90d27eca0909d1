//! A token bucket without a clock that ticks, and without drift.
//!
//! Tokens are numbered. By time `t` so many have come into being:
//!
//! ```text
//! made(t) = base + ⌊(t − origin) · rate⌋
//! ```
//!
//! and the bucket's whole state is one number, `spent`: the number of the last token that was used
//! *or lost*. What is in the bucket is `made − spent`, and never more than `burst`: tokens that
//! overflow it are lost, that is, spent. So to take `n` at time `t`:
//!
//! ```text
//! spent' = max(spent, made(t) − burst) + n        if that is at most made(t)
//! ```
//!
//! and otherwise it can be done when that token is made, which is known exactly. `made` is
//! computed from the origin each time, so nothing adds up: after years it is as exact as at the start.
//! A clock that stands still or goes back makes nothing, and takes nothing back.
//!
//! The rate, a fraction, is kept as a multiplier with 64 significant bits and a shift, so that `made`
//! is one multiplication. It is rounded up, so that a token comes at its very nanosecond, or, decades
//! later, one nanosecond before. When the rate changes, the origin becomes now and the base what has been made by now, which
//! makes `made` continuous: nothing is won by changing it, and no more lost than a nanosecond.
//!
//! Times are nanoseconds from any fixed start. Only their differences count, which may be up to 292
//! years; an origin may well lie before the start.

/// How tokens are made: everything of a bucket but what is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refill {
    pub(crate) origin: u64,
    pub(crate) base: u64,
    /// `rate = multiplier / 2^(64 + shift)` tokens per nanosecond; the topmost bit is set.
    pub(crate) multiplier: u64,
    pub(crate) shift: u32,
    pub(crate) burst: u64,
}

impl Refill {
    /// A full bucket at time 0 with nothing spent: `count` tokens each `period`, at most one each
    /// nanosecond. `count` and `period` are not 0.
    pub(crate) fn new(count: u64, period: u64, burst: u64) -> Self {
        let (multiplier, shift) = if count >= period {
            (u64::MAX, 0)
        } else {
            let numerator = u128::from(count) << 64;
            // Below 2^64, since count < period. Its leading zeros are the shift: count · 2^shift is
            // then below period, so the second division does not overflow either.
            let quotient = numerator / u128::from(period);
            let shift = (quotient as u64).leading_zeros().min(63);
            let multiplier = (numerator << shift).div_ceil(u128::from(period));
            (u64::try_from(multiplier).unwrap_or(u64::MAX), shift)
        };
        Self {
            origin: 0,
            base: burst,
            multiplier,
            shift,
            burst,
        }
    }

    /// How many tokens have been made by `now`.
    #[inline]
    pub(crate) fn made(&self, now: u64) -> u64 {
        let product = u128::from(self.elapsed(now)) * u128::from(self.multiplier);
        // 64 bits of tokens last for centuries at the fastest rate.
        self.base
            .wrapping_add(((product >> 64) as u64) >> self.shift)
    }

    /// The time since the origin; none if it lies ahead, as for a clock that went back.
    #[inline]
    fn elapsed(&self, now: u64) -> u64 {
        (now.wrapping_sub(self.origin) as i64).max(0) as u64
    }

    /// How long after the origin that token is made. Beyond what can be counted, the end of time.
    fn made_after(&self, token: u64) -> u64 {
        // The first t with t · multiplier ≥ number · 2^(64 + shift).
        let number = u128::from(token.saturating_sub(self.base));
        let Some(product) = number.checked_mul(1 << (64 + self.shift)) else {
            return u64::MAX;
        };
        let elapsed = product.div_ceil(u128::from(self.multiplier));
        u64::try_from(elapsed).unwrap_or(u64::MAX)
    }

    /// What is spent by `now`, with what overflowed the bucket.
    #[inline]
    pub(crate) fn settled(&self, spent: u64, now: u64) -> u64 {
        spent.max(self.made(now).saturating_sub(self.burst))
    }

    /// Takes `n` tokens at `now` from a bucket that has spent so many: what it has spent then, if they
    /// are there.
    #[inline]
    pub(crate) fn take(&self, spent: u64, now: u64, n: u64) -> Option<u64> {
        if n > self.burst {
            return None;
        }
        let made = self.made(now);
        let there = made.wrapping_sub(spent) as i64; // below zero if it was taken ahead of its time
        if there <= self.burst as i64 {
            (n as i64 <= there).then(|| spent + n)
        } else {
            Some(made - self.burst + n)
        }
    }

    /// How long from `now` until `n` tokens are there that are not now.
    pub(crate) fn wait(&self, spent: u64, now: u64, n: u64) -> u64 {
        self.made_after(self.settled(spent, now).saturating_add(n))
            .saturating_sub(self.elapsed(now))
    }

    /// How many tokens are in the bucket.
    pub(crate) fn tokens(&self, spent: u64, now: u64) -> u64 {
        self.made(now).saturating_sub(self.settled(spent, now))
    }

    /// This rate from `now` on, in the place of `before`. What is spent must be
    /// [settled](Self::settled) first, under `before`: what has overflowed stays lost.
    ///
    /// A token that is half made stays half made: otherwise a rate that is changed often enough would
    /// never make one.
    pub(crate) fn following(self, before: &Self, now: u64) -> Self {
        let product = u128::from(before.elapsed(now)) * u128::from(before.multiplier);
        // The part of the product below one token, as a 64-bit fraction.
        let half_made = (product & ((1 << (64 + before.shift)) - 1)) >> before.shift;
        // How long the new rate takes for that: half_made / 2^64 / (multiplier / 2^(64 + shift)).
        // Rounded down, so that nothing is won by changing the rate often.
        let head_start = (half_made << self.shift) / u128::from(self.multiplier);
        Self {
            // At most one token's time, which is at most 100 years: less than 2^63 nanoseconds.
            origin: now.wrapping_sub(head_start as u64),
            base: before.made(now),
            ..self
        }
    }
}

/// The number of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token(u64);

/// A bucket of one's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    refill: Refill,
    spent: u64,
}

impl TokenBucket {
    /// A full one at `now`.
    pub(crate) fn new(refill: Refill, now: u64) -> Self {
        Self {
            refill: Refill {
                origin: now,
                ..refill
            },
            spent: 0,
        }
    }

    /// Its next token: how long it is until it is there.
    pub(crate) fn next(&self, now: u64) -> (Token, u64) {
        match self.refill.take(self.spent, now, 1) {
            Some(then) => (Token(then), 0),
            None => {
                let then = self.refill.settled(self.spent, now).saturating_add(1);
                (Token(then), self.refill.wait(self.spent, now, 1))
            }
        }
    }

    /// Takes the next token, now or ahead of its time.
    pub(crate) fn take(&mut self, token: Token) {
        self.spent = token.0;
    }

    /// Puts a token back, if nobody has taken one behind it: to those it would make no difference, and
    /// whoever came next would pass at the same time as one of them.
    pub(crate) fn put_back(&mut self, token: Token) {
        if self.spent == token.0 {
            self.spent -= 1;
        }
    }

    /// A full one has nothing to remember.
    pub(crate) fn is_full(&self, now: u64) -> bool {
        self.tokens(now) == self.refill.burst
    }

    pub(crate) fn tokens(&self, now: u64) -> u64 {
        self.refill.tokens(self.spent, now)
    }

    /// Leaves at most so many tokens in it.
    pub(crate) fn leave(&mut self, tokens: u64, now: u64) {
        let most = self.refill.made(now).saturating_sub(tokens);
        self.spent = self.spent.max(most);
    }

    /// Changes the rate. What is in the bucket stays in it, but for what no longer fits.
    pub(crate) fn set_refill(&mut self, refill: Refill, now: u64) {
        self.spent = self.refill.settled(self.spent, now);
        self.refill = refill.following(&self.refill, now);
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 86_400 * SECOND;
    const YEAR: u64 = 365 * DAY;

    #[test]
    fn tokens_come_at_their_times() {
        // (count, period, at, made beyond the first burst)
        let cases = [
            (100, SECOND, 0, 0),
            (100, SECOND, 9_999_999, 0),
            (100, SECOND, 10_000_000, 1),
            (100, SECOND, SECOND, 100),
            (3, SECOND, 333_333_333, 0),
            (3, SECOND, 333_333_334, 1),
            (3, SECOND, 10 * YEAR, 3 * 10 * 365 * 86_400),
            (1, 10 * DAY, 10 * DAY - 1, 0),
            (1, 10 * DAY, 10 * DAY, 1),
            (1, 10 * DAY, 100 * YEAR, 3650),
            (
                999_999_999,
                SECOND,
                10 * YEAR,
                10 * 365 * 86_400 * 999_999_999,
            ),
        ];
        for (count, period, at, expected) in cases {
            let made = Refill::new(count, period, 5).made(at) - 5;
            assert_eq!(made, expected, "{count} per {period} at {at}");
        }
    }

    #[test]
    fn at_one_each_nanosecond_it_is_one_nanosecond_late() {
        let refill = Refill::new(SECOND, SECOND, 5);
        assert_eq!(refill.made(1_000_000) - 5, 999_999);
        assert_eq!(refill.made(10 * YEAR) - 5, 10 * YEAR - 1);
    }

    #[test]
    fn a_bucket_starts_full_and_holds_no_more_than_its_burst() {
        let refill = Refill::new(10, SECOND, 3);
        assert_eq!(refill.tokens(0, 0), 3);
        assert_eq!(refill.tokens(0, YEAR), 3);
        let mut spent = 0;
        for _ in 0..3 {
            spent = refill.take(spent, YEAR, 1).unwrap();
        }
        assert_eq!(refill.tokens(spent, YEAR), 0);
        assert_eq!(refill.take(spent, YEAR, 1), None);
    }

    #[test]
    fn it_says_exactly_when_tokens_are_there() {
        let refill = Refill::new(10, SECOND, 3);
        let spent = refill.take(0, 0, 3).unwrap();
        assert_eq!(refill.wait(spent, 0, 1), SECOND / 10);
        let three = refill.wait(spent, 0, 3);
        assert_eq!(three, 3 * SECOND / 10);
        assert_eq!(refill.take(spent, three - 1, 3), None);
        assert_eq!(refill.take(spent, three, 3), Some(6));
        // At a time in between, it is what is left of it.
        assert_eq!(refill.wait(spent, SECOND / 20, 1), SECOND / 20);
    }

    #[test]
    fn a_clock_that_goes_back_adds_nothing_and_takes_nothing() {
        let refill = Refill::new(10, SECOND, 3);
        let spent = refill.take(0, YEAR, 2).unwrap();
        assert_eq!(refill.tokens(spent, 0), 0);
        assert_eq!(refill.take(spent, 0, 1), None);
        assert_eq!(refill.tokens(spent, YEAR), 1);
        assert_eq!(refill.tokens(spent, 11 * YEAR), 3);
    }

    #[test]
    fn a_token_that_is_half_made_stays_so_through_changes_of_the_rate() {
        let (start, mut now) = (YEAR, YEAR);
        let mut refill = Refill {
            origin: start,
            ..Refill::new(10, SECOND, 3)
        };
        // Changed every 10 ms, between 10 and 20 a second: 15 a second on the whole.
        for change in 0..1000 {
            now += SECOND / 100;
            let rate = if change % 2 == 0 { 20 } else { 10 };
            refill = Refill::new(rate, SECOND, 3).following(&refill, now);
        }
        assert_eq!(
            refill.made(now) - 3,
            149,
            "each change may cost a nanosecond"
        );
        assert_eq!(refill.made(now + 2000) - 3, 150);
        // A tenth of a token at one in ten days is one day.
        let before = Refill {
            origin: start,
            ..Refill::new(10, SECOND, 3)
        };
        let slow = Refill::new(1, 10 * DAY, 3).following(&before, start + SECOND / 100);
        let wait = slow.wait(3, start + SECOND / 100, 1);
        assert!(wait.abs_diff(9 * DAY) <= 1, "{wait}");
    }

    #[test]
    fn the_end_of_time_is_no_overflow() {
        for (count, period) in [(1, 1), (1, SECOND), (1, u64::MAX), (7, 10 * DAY)] {
            let refill = Refill::new(count, period, 1 << 40);
            let end = i64::MAX as u64;
            assert!(refill.made(end) >= refill.made(end - 1));
            assert!(refill.made_after(u64::MAX) >= refill.made_after(u64::MAX - 1));
            assert_eq!(refill.take(0, end, u64::MAX), None);
            assert!(refill.wait(u64::MAX - 1, 0, u64::MAX) > end / 2);
        }
    }

    fn rates() -> impl Strategy<Value = (u64, u64)> {
        let period = prop_oneof![
            Just(1u64),
            Just(SECOND),
            Just(3600 * SECOND),
            1..1_000_000_000_000_000u64
        ];
        period.prop_flat_map(|period| (1..=period.min(1 << 40), Just(period)))
    }

    proptest! {
        /// Against exact arithmetic.
        #[test]
        fn a_token_is_never_late_and_early_by_at_most_a_nanosecond(
            (count, period) in rates(),
            at in 1..YEAR * 50,
        ) {
            prop_assume!(count < period);
            let exact = |at| (u128::from(at) * u128::from(count) / u128::from(period)) as u64;
            let made = Refill::new(count, period, 1).made(at) - 1;
            prop_assert!(made >= exact(at));
            prop_assert!(made <= exact(at + 1));
        }

        /// `made_after` is the very nanosecond at which `made` gets there.
        #[test]
        fn when_is_the_inverse_of_made((count, period) in rates(), number in 1..1u64 << 50) {
            let refill = Refill::new(count, period, 1);
            let token = 1 + number;
            let when = refill.made_after(token);
            prop_assume!(when < i64::MAX as u64);
            prop_assert!(refill.made(when) >= token);
            prop_assert!(refill.made(when - 1) < token);
        }

        /// In every window, through any changes of the rate: at most burst + r·t + 1. The r·t is
        /// added up exactly, in billionths of tokens, and knows nothing of the code under test.
        #[test]
        fn no_window_lets_more_pass_than_it_should(
            start in 1..1_000_000_000u64,
            steps in prop::collection::vec(
                (0..SECOND, 1..4u64, prop::option::weighted(0.2, (1..1_000_000_000u64, 1..20u64))),
                1..200,
            ),
        ) {
            let mut rate = start;
            let mut refill = Refill::new(rate, SECOND, 5);
            let (mut spent, mut now, mut brought) = (0, 0, 0u128);
            // What time had brought by then, the burst, and what was taken.
            let mut log: Vec<(u128, u64, u64)> = vec![(0, 5, 0)];
            for (pause, n, change) in steps {
                now += pause;
                brought += u128::from(pause) * u128::from(rate);
                if let Some((count, burst)) = change {
                    spent = refill.settled(spent, now);
                    rate = count;
                    refill = Refill::new(rate, SECOND, burst).following(&refill, now);
                }
                let taken = match refill.take(spent, now, n) {
                    Some(then) => {
                        spent = then;
                        n
                    }
                    None => 0,
                };
                log.push((brought, refill.burst, taken));
            }
            for from in 1..log.len() {
                // What may have been saved up by then: under the rate before, too.
                let mut burst = log[from - 1].1;
                let mut passed = 0;
                for &(brought, capacity, taken) in &log[from..] {
                    passed += taken;
                    burst = burst.max(capacity);
                    let in_window = (brought - log[from].0).div_ceil(u128::from(SECOND)) as u64;
                    prop_assert!(passed <= burst + in_window + 1);
                }
            }
        }

        /// However often the rate is changed, no tokens come of it.
        #[test]
        fn changing_the_rate_makes_no_tokens(
            changes in prop::collection::vec((0..1000u64, 1..1_000_000_000u64), 1..1000),
        ) {
            let mut refill = Refill::new(1, SECOND, 5);
            let (mut rate, mut now, mut brought) = (1, YEAR, 0u128);
            refill.origin = now;
            for (pause, count) in changes {
                now += pause;
                brought += u128::from(pause) * u128::from(rate);
                rate = count;
                refill = Refill::new(rate, SECOND, 5).following(&refill, now);
            }
            prop_assert!(u128::from(refill.made(now) - 5) <= brought / u128::from(SECOND) + 1);
        }
    }
}
