//! The one word of a bucket that every request changes.

use crate::law::token_bucket::Refill;

/// Set exactly while somebody waits: then only the head of the queue takes.
pub(super) const QUEUED: u64 = 1;

/// What one token adds that is counted in the word: it is spent, and it is used.
pub(super) const ONE: u64 = SPENT_ONE + USED_ONE;

/// Set when so many were used since the last fold that it is time for another. What else is used meanwhile still
/// fits: to overflow the field, 512 threads would have to take [`MOST_COUNTED`] each while one folds.
const FOLD: u64 = 1 << 15;

/// More tokens than this at once are not counted in the word, but beside it, under the lock.
pub(super) const MOST_COUNTED: u64 = 32;

/// When so many tokens have been made since the refill's base, it needs a new base before any more are spent: see
/// [`Word::spent_since_base`]. That is 19 hours at the highest rate, and two years at a million each second.
pub(super) const MOST_MADE: i64 = 1 << 46;

const USED_ONE: u64 = 2;
/// No tokens used since the last fold. Not 0, since tokens that are put back may have been counted before it.
const USED_NONE: u64 = 3 << 12;
const USED_LOW: u64 = 1 << 13;
/// What one token adds that is spent, and not counted as used.
pub(super) const SPENT_ONE: u64 = 1 << SPENT_SHIFT;
const SPENT_SHIFT: u32 = 16;

/// From the topmost bit: the number of the last token that is spent (48 bits of it), how many were used since the
/// last fold (15 bits), and [`QUEUED`].
///
/// What overflows is spent but not used. So both are needed, and with both in one word a request makes one change to
/// memory, whether the bucket is full or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// Nothing spent, nothing used, nobody waits.
    pub(super) fn new() -> Self {
        Self(USED_NONE * USED_ONE)
    }

    #[inline]
    pub(super) fn is_queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    #[inline]
    pub(super) fn with_queued(self, queued: bool) -> Self {
        Self(self.0 & !QUEUED | u64::from(queued))
    }

    /// What is spent, counted from the refill's base; below zero if it was spent before that.
    ///
    /// The 48 bits in the word tell it as long as it is less than 2^47 from the base. It is: what is spent is settled
    /// when the base is set, so it is no more than a burst below it, and after [`MOST_MADE`] there is a new base. A
    /// burst is at most 2^40, and so is what may be taken ahead of its time.
    #[inline]
    pub(super) fn spent_since_base(self, refill: &Refill) -> i64 {
        let base = refill.base << SPENT_SHIFT;
        (self.0.wrapping_sub(base) as i64) >> SPENT_SHIFT // without the count, which is below
    }

    /// The number of the last token that is spent.
    pub(super) fn spent(self, refill: &Refill) -> u64 {
        let since = self.spent_since_base(refill);
        refill.base.saturating_add_signed(since)
    }

    /// With so many more tokens spent.
    #[inline]
    pub(super) fn spend(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n.wrapping_mul(SPENT_ONE)))
    }

    /// With `n` more tokens spent and used, which are at most [`MOST_COUNTED`].
    #[inline]
    pub(super) fn take(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n * ONE))
    }

    /// How many tokens were used since the last fold, below zero if more were put back; and what that is in a word.
    pub(super) fn used(self) -> (i64, u64) {
        let used = (u64::from(self.0 as u16) / USED_ONE) as i64 - USED_NONE as i64;
        (used, (used as u64).wrapping_mul(USED_ONE))
    }

    /// Whether so many were used since the last fold that it is time for another.
    #[inline]
    pub(super) fn is_high(self) -> bool {
        self.0 & FOLD != 0
    }

    /// Whether so many were put back since the last fold that it is time for another.
    pub(super) fn is_low(self) -> bool {
        u64::from(self.0 as u16) / USED_ONE < USED_LOW
    }
}
