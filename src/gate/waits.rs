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
        let bucket = NANOS.partition_point(|most| *most < wait);
        self.0.buckets[bucket].fetch_add(1, Relaxed);
        self.0.nanos.fetch_add(wait, Relaxed); // 584 years of waiting
    }

    pub(crate) fn snapshot(&self) -> Waits {
        Waits {
            buckets: std::array::from_fn(|i| self.0.buckets[i].load(Relaxed)),
            sum: Duration::from_nanos(self.0.nanos.load(Relaxed)),
        }
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
    fn the_longest_wait_of_all_is_one() {
        let counts = WaitCounts::default();
        counts.record(u64::MAX);
        let waits = counts.snapshot();
        assert_eq!((waits.count(), waits.buckets[BOUNDS]), (1, 1));
        assert_eq!(waits.mean(), Some(Duration::from_nanos(u64::MAX)));
    }
}
