//! The way past the queue, without its lock, for as long as there is nobody to be fair to: all requests are of the
//! one tenant that has no name, it may have as many running as it likes, and none waits.
//!
//! That is how most servers are most of the time: those without tenants, unless they are overloaded. Whether it is
//! so is found out under the lock, and told here when the lock is given back. A request that comes at the same time
//! as the first that waits, or the first tenant, may miss that: then it came first.

use crate::sync::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

// In a cache line of its own: nothing else is written for a request that goes this way.
#[repr(align(64))]
pub(super) struct Calm {
    /// 1, as long as it is calm.
    calm: AtomicUsize,
    /// How many went this way; and how many of those are done, and what they used together.
    begun: AtomicU64,
    done: AtomicU64,
    used: AtomicU64,
    /// The ten seconds of which that has yet to be counted.
    epoch: AtomicU64,
}

/// What was counted so far of those that went past the queue.
#[derive(Debug, Default)]
pub(super) struct Counted {
    done: u64,
    used: u64,
}

impl Calm {
    pub(super) fn new(calm: bool) -> Self {
        Self {
            calm: AtomicUsize::new(calm.into()),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            used: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    /// Whether it was when the lock was last given back.
    #[inline]
    pub(super) fn is(&self) -> bool {
        self.calm.load(Relaxed) != 0
    }

    #[inline]
    pub(super) fn tell(&self, calm: bool) {
        if calm != self.is() {
            self.calm.store(calm.into(), Relaxed);
        }
    }

    /// A request goes past the queue, if it is calm.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        let calm = self.is();
        if calm {
            self.begun.fetch_add(1, Relaxed);
        }
        calm
    }

    /// One that did is done, if it is calm and if what was used in other ten seconds is counted.
    #[inline]
    pub(super) fn finish(&self, used: u64, epoch: u64) -> bool {
        let calm = self.is() && epoch == self.epoch.load(Relaxed);
        if calm {
            self.used.fetch_add(used, Relaxed);
            self.done.fetch_add(1, Release); // whoever counts it counts what it used
        }
        calm
    }

    /// One that did is not counted any more.
    pub(super) fn forget(&self) {
        self.begun.fetch_sub(1, Relaxed);
    }

    /// How many went past the queue that were not done when that was last counted.
    pub(super) fn running(&self, counted: &Counted) -> usize {
        self.begun.load(Relaxed).saturating_sub(counted.done) as usize
    }

    /// How many are done that were not yet counted, what they used, and in which ten seconds. From now on it is these.
    pub(super) fn count(&self, counted: &mut Counted, epoch: u64) -> (u64, u64, u64) {
        let before = self.epoch.load(Relaxed);
        if epoch > before {
            self.epoch.store(epoch, Relaxed);
        }
        let done = self.done.load(Acquire);
        let used = self.used.load(Relaxed);
        let more = (
            done.wrapping_sub(counted.done),
            used.wrapping_sub(counted.used),
            before,
        );
        *counted = Counted { done, used };
        more
    }
}
