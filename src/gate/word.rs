//! The gate's whole state but its queue, in one word: every decision is one compare-and-swap on it.
//!
//! ```text
//! bit 63           40 39        25   24    23            0
//!    ┌───────────────┬────────────┬────────┬───────────────┐
//!    │     limit     │ completed  │ queued │   in flight   │
//!    └───────────────┴────────────┴────────┴───────────────┘
//! ```
//!
//! With limit and in-flight in one word, no admission can slip past a shrinking limit. With `queued`
//! on top of in-flight, the two are more than any limit while somebody waits: one comparison tells
//! whether a newcomer may pass. The limit is topmost, so that nothing has to be masked for that. With the
//! count of completions in the same word, counting costs no second atomic: the few bits there are
//! folded into a `u64` behind the gate's lock when the topmost one is set (`Gate::fold`).

/// Somebody waits: newcomers queue up behind them, and whoever gives a permit back hands it on.
pub(crate) const QUEUED: u64 = 1 << 24;
pub(crate) const IN_FLIGHT_ONE: u64 = 1;
pub(crate) const COMPLETED_ONE: u64 = 1 << COMPLETED_SHIFT;
/// Set while at least 2^14 completions wait to be folded. Each thread that sees it folds before it
/// goes on, so another 2^14 threads would be needed to overflow the field into the limit.
pub(crate) const FOLD: u64 = 1 << (LIMIT_SHIFT - 1);

/// The largest limit, and so the most that can be in flight: 16 777 215.
pub(crate) const MAX_LIMIT: usize = (1 << 24) - 1;

const LIMIT_SHIFT: u32 = 40;
const COMPLETED_SHIFT: u32 = 25;
const FIELD: u64 = MAX_LIMIT as u64;
const COMPLETED: u64 = (1 << (LIMIT_SHIFT - COMPLETED_SHIFT)) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    #[inline]
    pub(crate) fn new(limit: usize) -> Self {
        Self(0).with_limit(limit)
    }

    #[inline]
    pub(crate) fn queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    #[inline]
    pub(crate) fn in_flight(self) -> usize {
        (self.0 & FIELD) as usize
    }

    #[inline]
    pub(crate) fn limit(self) -> usize {
        (self.0 >> LIMIT_SHIFT) as usize
    }

    #[inline]
    pub(crate) fn completed(self) -> u64 {
        (self.0 >> COMPLETED_SHIFT) & COMPLETED
    }

    #[inline]
    pub(crate) fn has_room(self) -> bool {
        self.in_flight() < self.limit()
    }

    /// Whether there is room and nobody waits for it.
    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self.0 & (QUEUED | FIELD) < self.0 >> LIMIT_SHIFT
    }

    /// One more in flight. Only where there is room, so it never carries over.
    #[inline]
    pub(crate) fn admitted(self) -> Self {
        debug_assert!(self.has_room());
        Self(self.0 + IN_FLIGHT_ONE)
    }

    #[inline]
    pub(crate) fn with_queued(self, queued: bool) -> Self {
        Self(self.0 & !QUEUED | (u64::from(queued) * QUEUED))
    }

    /// Limits above [`MAX_LIMIT`] are held at it.
    #[inline]
    pub(crate) fn with_limit(self, limit: usize) -> Self {
        let limit = limit.min(MAX_LIMIT) as u64;
        Self(self.0 & !(FIELD << LIMIT_SHIFT) | (limit << LIMIT_SHIFT))
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_fields_do_not_touch_each_other() {
        let full = Word(u64::MAX);
        assert_eq!(
            (full.in_flight(), full.limit(), full.completed()),
            (MAX_LIMIT, MAX_LIMIT, (1 << 15) - 1)
        );
        let word = Word(0)
            .with_limit(5)
            .admitted()
            .admitted()
            .with_queued(true);
        let word = Word(word.0 + 3 * COMPLETED_ONE);
        assert_eq!(
            (
                word.queued(),
                word.in_flight(),
                word.limit(),
                word.completed()
            ),
            (true, 2, 5, 3)
        );
        let word = word.with_queued(false).with_limit(usize::MAX);
        assert_eq!(
            (
                word.queued(),
                word.in_flight(),
                word.limit(),
                word.completed()
            ),
            (false, 2, MAX_LIMIT, 3)
        );
    }

    #[test]
    fn it_is_open_where_there_is_room_and_nobody_waits() {
        for limit in [1, 2, MAX_LIMIT] {
            for in_flight in [0, 1, 2, MAX_LIMIT - 1, MAX_LIMIT] {
                for queued in [false, true] {
                    let word = Word(FOLD | (in_flight as u64 * IN_FLIGHT_ONE))
                        .with_limit(limit)
                        .with_queued(queued);
                    assert_eq!(word.has_room(), in_flight < limit, "{word:?}");
                    assert_eq!(word.is_open(), word.has_room() && !queued, "{word:?}");
                }
            }
        }
    }

    #[test]
    fn the_fold_bit_is_the_upper_half_of_the_completions() {
        assert_eq!(Word(FOLD).completed(), 1 << 14);
        assert_eq!(Word(FOLD - COMPLETED_ONE).completed(), (1 << 14) - 1);
    }
}
