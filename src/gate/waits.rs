//! How long those had to wait who had to.

use std::{
    // Not the models' own: nothing is decided by these counts, and the models would only grow.
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// How many bounds there are.
const BOUNDS: usize = 15;

/// The bounds in nanoseconds: a comparison of two `Duration`s is two.
const NANOS: [u64; BOUNDS] = {
    let mut all = [0; BOUNDS];
    let mut i = 0;
    while i < BOUNDS {
        all[i] = Waits::BOUNDS[i].as_nanos() as u64; // a minute at most
        i += 1;
    }
    all
};

/// How many bounds are below each power of two: [`bucket`] then needs one comparison, as no two bounds lie between one
/// power and the next. A binary search took a tenth of the time of a hand-over (`hand-over, one thread` in `ratios`).
const BELOW: [u8; 65] = {
    let mut all = [0; 65];
    let mut power = 0;
    while power < 64 {
        let mut below = 0;
        while below < BOUNDS && NANOS[below] < 1 << power {
            below += 1;
        }
        all[power + 1] = below as u8;
        assert!(power == 0 || all[power + 1] <= all[power] + 1);
        power += 1;
    }
    all
};

/// Which bucket counts a wait of so many nanoseconds.
#[inline]
fn bucket(wait: u64) -> usize {
    let below = usize::from(BELOW[(u64::BITS - wait.leading_zeros()) as usize]);
    below + usize::from(NANOS.get(below).is_some_and(|most| *most < wait))
}

/// How long requests waited that had to wait, so far, by how long it was.
///
/// It is of every wait that is over, however it ended: the request was let in, was refused after it had
/// waited for too long, or was dropped. Requests that were let in at once are not in it, and cost nothing.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::{ConcurrencyLimitLayer, Waits};
///
/// let waits = ConcurrencyLimitLayer::new(10).handle().snapshot().waits;
/// assert_eq!((waits.count(), waits.sum, waits.mean()), (0, Duration::ZERO, None));
/// for (most, count) in Waits::BOUNDS.iter().zip(waits.buckets) {
///     println!("{count} waited for no longer than {most:?}, and longer than those before");
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waits {
    /// How many waits were at most as long as each of the [bounds](Self::BOUNDS), and longer than the one
    /// before. The last number is of those that were longer than all.
    pub buckets: [u64; BOUNDS + 1],
    /// How long all waits were together.
    pub sum: Duration,
}

impl Waits {
    /// From a millisecond, which no client notices, to a minute, which none waits for.
    pub const BOUNDS: [Duration; BOUNDS] = [
        Duration::from_micros(1_000),
        Duration::from_micros(2_500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_millis(1_000),
        Duration::from_millis(2_500),
        Duration::from_secs(5),
        Duration::from_secs(10),
        Duration::from_secs(30),
        Duration::from_secs(60),
    ];

    /// A wait of so many nanoseconds is over.
    #[inline]
    pub(crate) fn note(&mut self, wait: u64) {
        self.buckets[bucket(wait)] += 1;
        self.sum = self.sum.saturating_add(Duration::from_nanos(wait));
    }

    /// How many waits there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long they were on average; `None` if there were none.
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.sum.as_nanos().checked_div(self.count().into())?;
        Some(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or(u64::MAX),
        ))
    }
}

/// Where waits are counted. Gates that belong together share one.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    buckets: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
}

impl WaitCounts {
    /// A wait of so many nanoseconds is over.
    #[inline]
    pub(crate) fn record(&self, wait: u64) {
        self.0.buckets[bucket(wait)].fetch_add(1, Relaxed);
        self.0.nanos.fetch_add(wait, Relaxed); // 584 years of waiting
    }

    pub(crate) fn snapshot(&self) -> Waits {
        Waits {
            buckets: std::array::from_fn(|i| self.0.buckets[i].load(Relaxed)),
            sum: Duration::from_nanos(self.0.nanos.load(Relaxed)),
        }
    }
}

/// When a wait began that is over and not counted yet.
///
/// A gate hands a permit on without reading the clock. The wait is counted when the clock is read next: when another waiter
/// comes, or else when the woken waiter picks up its permit. Under load the clock is read once for each waiter instead of
/// twice.
#[derive(Debug)]
pub(crate) struct Uncounted(AtomicU64);

const NONE: u64 = u64::MAX;

impl Default for Uncounted {
    fn default() -> Self {
        Self(AtomicU64::new(NONE))
    }
}

impl Uncounted {
    /// Notes a wait. One that nobody has counted yet is returned, to be counted by the caller.
    #[inline]
    pub(crate) fn put(&self, since: u64) -> Option<u64> {
        let before = self.0.swap(since, Relaxed);
        (before != NONE).then_some(before)
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<u64> {
        if self.0.load(Relaxed) == NONE {
            return None;
        }
        self.put(NONE)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_below_the_first_bound_that_it_does_not_exceed() {
        let counts = WaitCounts::default();
        counts.record(0);
        for (i, bound) in Waits::BOUNDS.into_iter().enumerate() {
            let before = counts.snapshot().buckets;
            let nanos = bound.as_nanos() as u64;
            counts.record(nanos);
            counts.record(nanos + 1);
            let after = counts.snapshot().buckets;
            let more: Vec<_> = (0..=BOUNDS).map(|i| after[i] - before[i]).collect();
            let mut expected = vec![0; BOUNDS + 1];
            expected[i] += 1;
            expected[i + 1] += 1;
            assert_eq!(more, expected, "{bound:?}");
        }
        let waits = counts.snapshot();
        let twice: Duration = Waits::BOUNDS.iter().sum::<Duration>() * 2;
        assert_eq!(
            (waits.count(), waits.sum),
            (31, twice + Duration::from_nanos(15))
        );
    }

    #[test]
    fn the_bucket_is_the_first_whose_bound_is_not_below_the_wait() {
        let around = |wait: u64| [wait.saturating_sub(1), wait, wait.saturating_add(1)];
        let powers = (0..64).map(|power| 1 << power);
        for wait in powers.chain(NANOS).chain([0, u64::MAX]).flat_map(around) {
            let searched = NANOS.partition_point(|most| *most < wait);
            assert_eq!(bucket(wait), searched, "{wait}");
        }
    }

    #[test]
    fn the_longest_wait_of_all_is_one() {
        let counts = WaitCounts::default();
        counts.record(u64::MAX);
        let waits = counts.snapshot();
        assert_eq!((waits.count(), waits.buckets[BOUNDS]), (1, 1));
        assert_eq!(waits.mean(), Some(Duration::from_nanos(u64::MAX)));
    }
}
