//! How requests are admitted, wait, or are rejected: the private plumbing under the layers.
//!
//! ```text
//! Claim ─────────── what one caller has in `poll_ready`: nothing, a place in the queue, an admission, a rejection
//! WaitingFuture ─── a request that waits after `call`, and then its response
//!   │
//! Gate ──── permits: one word of atomics (word.rs), and a waiting Room behind a mutex
//!   ├── Fifo: the room that serves in order of arrival (queue.rs)
//!   ├── Fair: the room that is fair between tenants (tenants.rs), with ages.rs (fair/requests.rs) or the turn (fair/turns.rs)
//!   └── Governor: the law that moves the limit, where it adapts
//! AgeGate ─ a gate at which nobody waits: the law that decides by age (ages.rs), and moves its limit
//! Bucket ── tokens: time brings them
//!   │
//! Permit ── one admitted request; dropping it hands the permit on. At a fair gate it is Granted: the permit and the charge
//!
//! Circuit ─ whether the service is left alone; Pass: a request that says how it went
//! ```
//!
//! | question | answer |
//! | --- | --- |
//! | where is a permit handed on? | `Gate::pass_on`, `Gate::grant_free` |
//! | who is next? | `Room::next`; which of a tenant's waiters: `Ages::order` |
//! | what is too old? | `Ages::judge`, `Ages::judge_next` |
//! | where is a tenant charged? | `Serves::next` when it is granted a permit, `Fair::settle` when its request is over |
//! | where does a limit move? | `Gate::resize_under` |
//!
//! `bounds.rs` is what gates and buckets have in common, `waits.rs` how long callers waited there. `keyed_buckets.rs`,
//! `keyed_gates.rs` and `circuits.rs` have a bucket, a gate and a circuit for each key; `fingerprint.rs` is what keys and
//! tenants are known by.
//!
//! `response.rs` is the future that carries a permit beside the inner service's future, and `waiting.rs` the one of a request
//! that may have to wait first, for whatever its [`Waiter`](waiting::Waiter) waits for. [`aside`] is all that stacked layers
//! tell each other. `foreign.rs` runs several wakers although one may panic.

pub(crate) mod age_gate;
pub(crate) mod ages;
pub(crate) mod aside;
pub(crate) mod bounds;
pub(crate) mod bucket;
pub(crate) mod circuit;
pub(crate) mod circuits;
pub(crate) mod claim;
pub(crate) mod fair;
mod fifo;
pub(crate) mod fingerprint;
pub(crate) mod foreign;
#[allow(
    clippy::module_inception,
    reason = "the gate itself; this module is everything around it"
)]
pub(crate) mod gate;
pub(crate) mod governor;
pub(crate) mod keyed_buckets;
pub(crate) mod keyed_gates;
#[cfg(all(test, backpressure_loom))]
mod model;
pub(crate) mod permit;
pub(crate) mod queue;
pub(crate) mod response;
mod room;
pub(crate) mod tenants;
pub(crate) mod waiting;
pub(crate) mod waits;
mod word;
