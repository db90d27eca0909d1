//! The synchronisation types of this crate: std's, or loom's when the models are checked.
//!
//! A private cfg (`backpressure_loom`) is used because `--cfg loom` would reach tokio too.

#[cfg(not(all(test, backpressure_loom)))]
mod types {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
}

#[cfg(all(test, backpressure_loom))]
mod types {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}

pub(crate) use std::sync::atomic::Ordering;
pub(crate) use types::*;

/// Locks, whether or not another thread panicked while it held the lock.
///
/// No code of ours can panic halfway through a change under a lock. Wakers are cloned, woken and dropped
/// outside it. The law of an adaptive limit, which may be foreign, runs under a lock of its own that guards
/// nothing else.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The same, if nobody holds the lock.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}
