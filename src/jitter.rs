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

impl Jitter {
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
    fn no_bound_is_too_much_or_too_little() {
        let jitter = Jitter::default();
        assert_eq!(jitter.up_to(Duration::ZERO), Duration::ZERO);
        let _ = jitter.up_to(Duration::MAX);
    }
}
