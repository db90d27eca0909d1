//! What is particular to each layer, one at a time, over paused time.

#[path = "../support/counting.rs"]
mod counting;
#[path = "../support/simulation.rs"]
mod simulation;
#[path = "../support/mod.rs"]
mod support;

mod adaptive_concurrency;
mod backpressure_basic;
mod bucket_model;
mod bypass;
mod channel;
mod channel_model;
mod circuit_breaker;
mod codel;
mod concurrency_limit;
mod deadlines;
mod gate_model;
mod hold;
mod keyed_concurrency_limit;
mod keyed_rate_limit;
mod priorities;
mod rate_limit;
mod saturation;
mod shadow;
mod submitted_at;
mod wfq;
mod worker;
