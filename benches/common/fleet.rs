//! A limit of a fleet that holds a lease which is not used up.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tower_backpressure::{Fleet, FleetRateLimitLayer, Rate, fleet::Memory};

/// More than any bench takes from one lease: half of it is left.
const LEASE: u64 = 60_000;

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("it builds")
}

/// Lets the call be made that was asked for.
fn answer(runtime: &Runtime) {
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
}

pub fn leased() -> (Runtime, FleetRateLimitLayer) {
    let runtime = runtime();
    let entered = runtime.enter();
    let fleet = Fleet::new(Memory::new(), 1);
    let limit = fleet.rate_limit("bench", Rate::per_second(1_000_000));
    let _ = limit.handle().try_acquire(LEASE); // it holds none yet, and asks for as many
    drop(entered);
    answer(&runtime);
    (runtime, limit)
}
