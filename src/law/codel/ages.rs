//! Ages of the requests of a window, counted: for the p95 that is shown. What is decided goes by an exact
//! count.

use super::width::Window;

/// Each doubling is divided into so many steps, so a value is shown at most an eighth too high.
const STEPS_LOG2: u32 = 3;
const STEPS: usize = 1 << STEPS_LOG2;

/// In microseconds, up to 2^31 of them: 35 minutes.
const LARGEST: u64 = (1 << 31) - 1;
const BUCKETS: usize = index(LARGEST) + 1;

#[derive(Debug)]
pub(super) struct Ages {
    counts: [u32; BUCKETS],
    /// Of the last window that was closed.
    p95: Option<u64>,
}

impl Default for Ages {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            p95: None,
        }
    }
}

/// Up to 8 each value has a bucket of its own; from there on there are 8 buckets in each doubling.
#[inline]
const fn index(micros: u64) -> usize {
    if micros < STEPS as u64 {
        return micros as usize;
    }
    let doubling = micros.ilog2() - STEPS_LOG2;
    let step = (micros >> doubling) as usize - STEPS;
    (doubling as usize + 1) * STEPS + step
}

/// The largest value in a bucket.
const fn largest(index: usize) -> u64 {
    let (doubling, step) = (index / STEPS, (index % STEPS) as u64);
    if doubling == 0 {
        return step;
    }
    ((step + STEPS as u64 + 1) << (doubling - 1)) - 1
}

impl Ages {
    #[inline]
    pub(super) fn note(&mut self, nanos: u64) {
        let micros = nanos.div_ceil(1000).min(LARGEST);
        let count = &mut self.counts[index(micros)];
        *count = count.saturating_add(1);
    }

    /// As many that were of no age at all.
    pub(super) fn note_calm(&mut self, many: u64) {
        let many = u32::try_from(many).unwrap_or(u32::MAX);
        self.counts[0] = self.counts[0].saturating_add(many);
    }

    /// A window is over.
    pub(super) fn close(&mut self, window: &Window, target: u64) {
        let seen = window.seen;
        self.p95 = None;
        if seen == 0 {
            return;
        }
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            if below * 20 >= seen * 19 {
                let p95 = largest(index).saturating_mul(1000);
                // The count of those over the target is exact.
                self.p95 = Some(match window.is_over() {
                    true => p95.max(target.saturating_add(1)),
                    false => p95.min(target),
                });
                break;
            }
        }
        self.counts = [0; BUCKETS];
    }

    /// In nanoseconds.
    pub(super) fn p95(&self) -> Option<u64> {
        self.p95
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps_and_are_an_eighth_wide() {
        for index in 0..BUCKETS {
            assert_eq!(super::index(largest(index)), index);
            if index > 0 {
                let first = largest(index - 1) + 1;
                assert_eq!(super::index(first), index);
                assert!((largest(index) - first) * 8 <= first);
            }
        }
        assert_eq!(largest(BUCKETS - 1), LARGEST);
    }

    #[test]
    fn the_p95_is_what_nineteen_in_twenty_do_not_exceed() {
        let mut ages = Ages::default();
        for ms in 1..=100_u64 {
            ages.note(ms * 1_000_000);
        }
        ages.close(&Window::of(100, 50), 50_000_000);
        let p95 = ages.p95().unwrap() as f64 / 1e6;
        assert!((95.0..95.0 * 1.125).contains(&p95), "{p95}");
        // A new window begins with nothing.
        ages.close(&Window::of(0, 0), 50_000_000);
        assert_eq!(ages.p95(), None);
        ages.note(0);
        ages.close(&Window::of(1, 0), 50_000_000);
        assert_eq!(ages.p95(), Some(0));
    }

    #[test]
    fn ages_beyond_all_bounds_are_the_largest() {
        let mut ages = Ages::default();
        ages.note(u64::MAX);
        ages.close(&Window::of(1, 1), 50_000_000);
        assert_eq!(ages.p95(), Some(LARGEST * 1000));
    }

    #[test]
    fn what_is_shown_is_never_too_low_and_of_this_window() {
        const HOUR: u64 = 3_600_000_000_000;
        let p95 = |ages: &mut Ages, values: &[u64], over, target| {
            values.iter().for_each(|nanos| ages.note(*nanos));
            ages.close(&Window::of(values.len() as u64, over), target);
            ages.p95()
        };
        let mut ages = Ages::default();
        assert_eq!(p95(&mut ages, &[1500], 0, HOUR), Some(2000));
        let mut twenty = [1000; 20];
        twenty[0] = 9000;
        assert_eq!(p95(&mut ages, &twenty, 0, HOUR), Some(1000));
        assert_eq!(p95(&mut ages, &[9000; 20], 0, HOUR), Some(9000));
        assert_eq!(p95(&mut ages, &[u64::MAX], 1, HOUR), Some(HOUR + 1));
    }
}
