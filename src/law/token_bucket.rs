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
//! later, one nanosecond before. When the rate changes, the origin becomes now (less what the new rate
//! takes for a token that is half made) and the base what has been made by now, which makes `made`
//! continuous: nothing is won by changing the rate, and no more lost than a nanosecond.
//!
//! Times are nanoseconds from any fixed start. Only their differences count, which may be up to 292
//! years; an origin may well lie before the start.

#[cfg(all(test, not(backpressure_loom)))]
mod tests;

/// Makes a choice a branch, which is predicted, so that what follows need not wait for the comparison: 0.6 ns of
/// `rate_limit_full (direct)` in `ratios`.
#[cold]
fn none_elapsed() -> u64 {
    0
}

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
        // 64 bits of tokens last for centuries at the fastest rate.
        self.base.wrapping_add(self.made_since_base(now))
    }

    /// How many of them in addition to the base.
    #[inline]
    pub(crate) fn made_since_base(&self, now: u64) -> u64 {
        let product = u128::from(self.elapsed(now)) * u128::from(self.multiplier);
        ((product >> 64) as u64) >> self.shift
    }

    /// The time since the origin; none if it lies ahead, as for a clock that went back.
    #[inline]
    fn elapsed(&self, now: u64) -> u64 {
        let elapsed = now.wrapping_sub(self.origin);
        if (elapsed as i64) < 0 {
            return none_elapsed();
        }
        elapsed
    }

    /// How long after the origin that token is made. Beyond what can be counted, the end of time.
    fn made_after(&self, token: u64) -> u64 {
        // The first t with t · multiplier ≥ number · 2^(64 + shift).
        let number = token.saturating_sub(self.base);
        if number.leading_zeros() < self.shift {
            return u64::MAX;
        }
        let product = u128::from(number << self.shift) << 64;
        let multiplier = u128::from(self.multiplier);
        // One division: `div_ceil` makes it two, for which a rejection has no time.
        let whole = product / multiplier;
        let elapsed = whole + u128::from(whole * multiplier != product);
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

/// A token that was taken, if the rate has not changed since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    number: u64,
    origin: u64,
}

/// A bucket of one's own, of many at the same rate: only what differs between them, since there may be many. The
/// rate, as [`Refill::new`] makes it, is brought along.
///
/// Its tokens are numbered anew when the rate changes, so that `base` is the `burst` of all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    origin: u64,
    spent: u64,
}

impl TokenBucket {
    /// A full one at `now`, at any rate.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            origin: now,
            spent: 0,
        }
    }

    #[inline]
    fn refill(&self, rate: &Refill) -> Refill {
        Refill {
            origin: self.origin,
            ..*rate
        }
    }

    /// Its next token: how long it is until it is there.
    #[inline]
    pub(crate) fn next(&self, rate: &Refill, now: u64) -> (Token, u64) {
        let refill = self.refill(rate);
        let (number, wait) = match refill.take(self.spent, now, 1) {
            Some(then) => (then, 0),
            None => {
                let then = refill.settled(self.spent, now).saturating_add(1);
                (then, refill.wait(self.spent, now, 1))
            }
        };
        let origin = self.origin;
        (Token { number, origin }, wait)
    }

    /// Takes the next token, now or ahead of its time.
    #[inline]
    pub(crate) fn take(&mut self, token: Token) {
        self.spent = token.number;
    }

    /// Takes `n` tokens if they are there now.
    #[cfg(feature = "fleet")]
    pub(crate) fn take_all(&mut self, rate: &Refill, now: u64, n: u64) -> bool {
        let spent = self.refill(rate).take(self.spent, now, n);
        self.spent = spent.unwrap_or(self.spent);
        spent.is_some()
    }

    /// Puts tokens back that were [all taken](Self::take_all).
    #[cfg(feature = "fleet")]
    pub(crate) fn put_back_all(&mut self, n: u64) {
        self.spent = self.spent.saturating_sub(n);
    }

    /// How long until `n` tokens are there.
    #[cfg(feature = "fleet")]
    pub(crate) fn wait_for(&self, rate: &Refill, now: u64, n: u64) -> u64 {
        let refill = self.refill(rate);
        match n <= refill.tokens(self.spent, now) {
            true => 0,
            false => refill.wait(self.spent, now, n),
        }
    }

    /// Puts a token back, if nobody has taken one behind it: to those it would make no difference, and
    /// whoever came next would pass at the same time as one of them.
    pub(crate) fn put_back(&mut self, token: Token) {
        if (self.spent, self.origin) == (token.number, token.origin) {
            self.spent -= 1;
        }
    }

    /// A full one has nothing to remember.
    pub(crate) fn is_full(&self, rate: &Refill, now: u64) -> bool {
        self.tokens(rate, now) == rate.burst
    }

    pub(crate) fn tokens(&self, rate: &Refill, now: u64) -> u64 {
        self.refill(rate).tokens(self.spent, now)
    }

    /// The same, but below zero if some were taken ahead of their time.
    pub(crate) fn level(&self, rate: &Refill, now: u64) -> i64 {
        let refill = self.refill(rate);
        let settled = refill.settled(self.spent, now);
        refill.made(now).wrapping_sub(settled) as i64
    }

    /// Leaves at most so many tokens in it.
    pub(crate) fn leave(&mut self, rate: &Refill, level: i64, now: u64) {
        let made = self.refill(rate).made(now);
        let least = made.saturating_add_signed(level.saturating_neg());
        self.spent = self.spent.max(least);
    }

    /// Changes the rate. What is in the bucket stays in it, but for what no longer fits.
    pub(crate) fn set_rate(&mut self, before: &Refill, rate: &Refill, now: u64) {
        let before = self.refill(before);
        let spent = before.settled(self.spent, now);
        let after = rate.following(&before, now);
        // As many below what is made by now as before, which is the new burst. More than that do not fit.
        let spent = (u128::from(spent) + u128::from(rate.burst)).saturating_sub(after.base.into());
        self.spent = u64::try_from(spent).unwrap_or(u64::MAX);
        self.origin = after.origin;
    }
}
