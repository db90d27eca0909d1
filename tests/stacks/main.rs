//! What layers do in each other's company, over paused time: stacks by hand, `edge()`, axum's routers.

#[path = "../support/mod.rs"]
mod support;

mod axum_router;
mod edge;
mod edge_waiting;
mod further_in;
mod layer_twice;
mod panicking_wakers;
mod shed_counts;
mod shed_leaves_no_trace;
mod spawned;
mod who_waits;
