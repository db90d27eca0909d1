//! What the layers tell: lines in the log when something changes.
//!
//! Nothing here decides anything, and nothing is written for a request that is accepted.
//!
//! # Events
//! They go to [`tracing`](https://docs.rs/tracing). Each has the field `layer`: the layer's own name, if it was given one,
//! else the name of its kind.
//!
//! | level | message | from | fields |
//! | --- | --- | --- | --- |
//! | WARN | `requests are refused` | every layer with a limit, a rate or a queue | `reason` of the first |
//! | WARN | `requests are still refused` | the same, once in ten seconds at most | how many were `refused` since the last line, and how long it has `lasted` |
//! | INFO | `requests are no longer refused` | the same, when there was no refusal for five seconds | how many were `refused` in all, and how long it `lasted` |
//! | DEBUG | `the limit has moved` | `AdaptiveConcurrency`, once a second at most; `CoDel` | `from`, `to`, in how many `moves`, and `why` the last |
//! | WARN | `a queue stands` | `CoDel` | `p95` of how old requests are |
//! | INFO | `the queue is gone` | `CoDel` | the same |
//! | WARN | `circuit opened` | `CircuitBreaker`, `KeyedCircuitBreaker` | |
//! | INFO | `circuit half-open: requests probe` | the same | |
//! | INFO | `circuit closed` | the same | |
//! | WARN | `saturation has risen` | `Saturation` | which `probe`, its `ratio`, the levels `from` and `to` |
//! | INFO | `saturation has fallen` | the same | the same |
//! | ERROR | `a saturation probe panicked` | the same, once until none does | `probe` |
//! | ERROR | `request failed` | `OverloadResponse`, where it answers for a service that fails | `error` |
//!
//! A flood of refusals is a few lines: one when it begins, at most one in ten seconds while it goes on, and one
//! when it is over, and the counts in them leave nothing out. One refusal in sixteen is looked at, so a line may
//! come fifteen refusals late. That it is over has to be noticed by somebody: whoever takes a snapshot, the
//! next one that is refused, and for limits also every 16 384th request that completes. A layer by key tells
//! of all its keys together.
//!
//! Layers that are [on trial](crate::shadow) write the same lines, with the field `shadow=true`.
//!
//! Lines are written outside all locks: what listens may take a snapshot.

pub(crate) mod events;
pub(crate) mod refusals;
