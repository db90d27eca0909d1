//! Limits of a fleet that hold a lease which is not used up.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tower_backpressure::{
    Fleet, FleetKeyedRateLimitLayer, FleetRateLimitLayer, Rate, fleet::Memory,
};

/// More than any bench takes from one lease: half of it is left.
const LEASE: u64 = 60_000;

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("it builds")
}

/// Lets the call be made that was asked for.
fn answer(runtime: &Runtime) {
    runtime.block_on(tokio::time::sleep(Duration::from_millis(5)));
}

pub fn leased() -> (Runtime, FleetRateLimitLayer) {
    let runtime = runtime();
    let entered = runtime.enter();
    let fleet = Fleet::new(Memory::new(), 1);
    let limit = fleet.rate_limit("bench", Rate::per_second(1_000_000));
    for _ in 0..LEASE {
        let _ = limit.handle().try_acquire(1);
    }
    drop(entered);
    answer(&runtime);
    (runtime, limit)
}

type ByNumber = fn(&u64) -> Option<u64>;

pub fn leased_by_key() -> (Runtime, FleetKeyedRateLimitLayer<ByNumber>) {
    let runtime = runtime();
    let entered = runtime.enter();
    let fleet = Fleet::new(Memory::new(), 1);
    let key: ByNumber = |key| Some(*key);
    let limit = fleet.keyed_rate_limit("bench", Rate::per_second(1_000_000), key);
    for _ in 0..LEASE {
        let _ = limit.handle().try_acquire(&1u64);
    }
    drop(entered);
    answer(&runtime);
    (runtime, limit)
}
