//! Limits that a fleet shares: against a real server, with nodes in processes of their own.

mod faults;
mod load;
mod nodes;
mod server;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests with many processes run one at a time: they are about rates, and the machine may have two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
