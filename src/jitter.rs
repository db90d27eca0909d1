//! A little chance, so that clients do not all come back at once.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// SplitMix64, shared by all threads. What it is for needs no better.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Default for Jitter {
    fn default() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(0)))
    }
}

/// What may be added to a hint that is exact, however long it is. A client that was told to wait for half a minute can be
/// told a little more, but no other number.
const MOST_ON_EXACT: Duration = Duration::from_secs(2);

impl Jitter {
    /// A hint with jitter: up to half of it is added, or up to a tenth and at most 2 s if it is exact.
    pub(crate) fn on(&self, hint: Duration, exact: bool) -> Duration {
        let most = match exact {
            true => (hint / 10).min(MOST_ON_EXACT),
            false => hint / 2,
        };
        hint.saturating_add(self.up_to(most))
    }

    /// From nothing to this.
    pub(crate) fn up_to(&self, most: Duration) -> Duration {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let z = self.0.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let share = ((z ^ (z >> 31)) >> 32) as u32;
        // Out of 2^32 parts.
        let nanos = most.as_nanos().saturating_mul(share.into()) >> 32;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_spread_evenly_within_its_bounds() {
        let jitter = Jitter::default();
        let most = Duration::from_secs(4);
        let mut quarters = [0; 4];
        for _ in 0..10_000 {
            let drawn = jitter.up_to(most);
            assert!(drawn < most);
            quarters[drawn.as_secs() as usize] += 1;
        }
        assert!(
            quarters.iter().all(|count| (2200..2800).contains(count)),
            "{quarters:?}"
        );
    }

    #[test]
    fn an_exact_hint_gets_a_tenth_and_at_most_two_seconds() {
        let jitter = Jitter::default();
        let secs = Duration::from_secs_f64;
        for (hint, exact, most) in [
            (29.9, true, 31.9),
            (30.0, false, 45.0),
            (5.0, true, 5.5),
            (3600.0, true, 3602.0),
        ] {
            let drawn: Vec<_> = (0..1000).map(|_| jitter.on(secs(hint), exact)).collect();
            assert!(drawn.iter().all(|it| (secs(hint)..secs(most)).contains(it)));
            let (least, most_drawn) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
            let spread = (*most_drawn - *least).as_secs_f64();
            assert!(spread > 0.9 * (most - hint), "{hint}: {spread}");
        }
        assert_eq!(jitter.on(Duration::MAX, true), Duration::MAX);
        assert_eq!(jitter.on(Duration::MAX, false), Duration::MAX);
    }

    #[test]
    fn no_bound_is_too_much_or_too_little() {
        let jitter = Jitter::default();
        assert_eq!(jitter.up_to(Duration::ZERO), Duration::ZERO);
        let _ = jitter.up_to(Duration::MAX);
    }
}
