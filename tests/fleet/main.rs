//! Limits that a fleet shares: against a real server, with nodes in processes of their own.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something took, by the test's own clock"
)]
#![allow(
    clippy::await_holding_lock,
    reason = "each test has a thread and a runtime of its own"
)]

mod faults;
mod keyed;
mod load;
mod memory;
mod nodes;
mod permits;
mod server;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// Tests of how much passes run one at a time: the machine may have two processors.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Tests that mostly wait may run at the same time.
fn with_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}
