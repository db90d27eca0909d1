//! The maths, pure: no clock, lock, task, random source or logging. Time comes in as an argument.

pub(crate) mod aimd;
#[cfg(feature = "retry")]
pub(crate) mod backoff;
#[cfg(feature = "fleet")]
pub(crate) mod block;
pub(crate) mod breaker;
pub(crate) mod codel;
pub(crate) mod drain_rate;
pub(crate) mod episode;
pub(crate) mod failure_window;
pub(crate) mod fair_queue;
pub(crate) mod fair_queues;
pub(crate) mod gradient2;
pub(crate) mod heap;
#[cfg(feature = "fleet")]
pub(crate) mod lease;
pub(crate) mod levels;
pub(crate) mod limit;
pub(crate) mod netflix_vegas;
#[cfg(feature = "retry")]
pub(crate) mod retry_budget;
pub(crate) mod slab;
pub(crate) mod token_bucket;
pub(crate) mod vegas;
pub(crate) mod windowed;
