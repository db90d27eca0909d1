//! The rate of a bucket, for all threads.

use crate::{
    law::token_bucket::Refill,
    sync::{AtomicU64, Ordering::*, fence, spin_loop},
};

/// A [`Refill`] that is read without a lock and seldom written: a sequence lock. Writers are kept
/// apart by the bucket's lock. It has cache lines of its own, so that threads that fight for the bucket's
/// word do not take it from each other as well.
#[repr(align(64))]
pub(super) struct SharedRefill {
    /// Odd while it is written; above the lowest byte, which is the shift.
    version: AtomicU64,
    origin: AtomicU64,
    base: AtomicU64,
    multiplier: AtomicU64,
    burst: AtomicU64,
}

const WRITING: u64 = 0x100;

impl SharedRefill {
    pub(super) fn new(refill: Refill) -> Self {
        Self {
            version: AtomicU64::new(refill.shift.into()),
            origin: AtomicU64::new(refill.origin),
            base: AtomicU64::new(refill.base),
            multiplier: AtomicU64::new(refill.multiplier),
            burst: AtomicU64::new(refill.burst),
        }
    }

    #[inline]
    pub(super) fn load(&self) -> Refill {
        loop {
            let version = self.version.load(Acquire);
            let refill = Refill {
                origin: self.origin.load(Relaxed),
                base: self.base.load(Relaxed),
                multiplier: self.multiplier.load(Relaxed),
                shift: (version & 0xff) as u32,
                burst: self.burst.load(Relaxed),
            };
            fence(Acquire);
            if version & WRITING == 0 && self.version.load(Relaxed) == version {
                return refill;
            }
            spin_loop();
        }
    }

    /// Keeps readers waiting until [`finish`](Self::finish).
    pub(super) fn begin(&self) {
        self.version.fetch_add(WRITING, Acquire);
        fence(Release);
    }

    pub(super) fn finish(&self, refill: Refill) {
        let version = self.version.load(Relaxed) & !0xff;
        self.origin.store(refill.origin, Relaxed);
        self.base.store(refill.base, Relaxed);
        self.multiplier.store(refill.multiplier, Relaxed);
        self.burst.store(refill.burst, Relaxed);
        let shift = u64::from(refill.shift);
        self.version.store(version + WRITING + shift, Release);
    }
}
