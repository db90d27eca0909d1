//! How requests are let in, made to wait or sent away: the private plumbing under the layers.
//!
//! ```text
//! Claim ─── what one caller has: nothing, a place in the queue, an admission, a refusal
//!   │
//! Gate ──── permits: one word of atomics (word.rs) and, behind a mutex, who waits (queue.rs)
//!   ├── Governor: the law that moves its limit, where it adapts
//!   ├── AgeGate: the law that decides by age, and moves its limit too
//! Bucket ── tokens: the same, but that time brings them
//!   │
//! Permit ── one admitted request; dropping it lets the next one in
//!
//! Circuit ─ whether the service is left alone; Pass: a request that says how it went
//! ```
//!
//! `bounds.rs` is what gate and bucket have in common, `waits.rs` how long callers waited there. `keyed_buckets.rs`, `keyed_gates.rs` and `circuits.rs`
//! have a bucket, a gate and a circuit for each key; `fair_gate.rs` knows whose turn it is among tenants;
//! `fingerprint.rs` is what keys and tenants are known by.
//! `response.rs` is the future that carries a permit beside the inner service's future, `handover.rs` is how it knows whether
//! a layer further in kept the request back, and `hand_back.rs` is how a rejected request gets back to the layer that
//! answers the client. `shed.rs` is how a [`LoadShed`](crate::LoadShed) tells a gate that it does not want to wait.
//! `foreign.rs` wakes several waiters although a waker may panic. `nested.rs` finds, in debug builds, a request that waits
//! for a limiter of which it holds a permit.

pub(crate) mod age_gate;
pub(crate) mod ages;
pub(crate) mod bounds;
pub(crate) mod bucket;
pub(crate) mod circuit;
pub(crate) mod circuits;
pub(crate) mod claim;
pub(crate) mod fair;
mod fifo;
pub(crate) mod fingerprint;
mod foreign;
pub(crate) mod gate;
pub(crate) mod governor;
pub(crate) mod hand_back;
pub(crate) mod handover;
pub(crate) mod keyed_buckets;
pub(crate) mod keyed_gates;
#[cfg(all(test, backpressure_loom))]
mod model;
pub(crate) mod nested;
pub(crate) mod permit;
mod queue;
pub(crate) mod response;
mod room;
pub(crate) mod shed;
pub(crate) mod tenants;
pub(crate) mod waits;
mod word;
