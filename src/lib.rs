#![forbid(unsafe_code)]
#![warn(unreachable_pub, reason = "what is not exported says so: pub(crate)")]
//! Overload control for [tower](https://docs.rs/tower) services: layers that limit, queue and refuse work
//! before it hurts, in any axum, tonic or hyper server.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, ConcurrencyLimitLayer, LoadShedLayer, Overloaded};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let limit = ConcurrencyLimitLayer::new(100); // at most 100 requests in flight
//! let handle = limit.handle();
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(LoadShedLayer::new()) // refuse what is over, rather than let it wait
//!     .layer(limit)
//!     .service(service_fn(|name: &'static str| async move {
//!         Ok::<_, BoxError>(format!("hello {name}"))
//!     }));
//!
//! match service.ready().await?.call("world").await {
//!     Ok(response) => assert_eq!(response, "hello world"),
//!     Err(error) => match Overloaded::find(error.as_ref()) {
//!         Some(overloaded) => println!("come back in {:?}", overloaded.retry_after()),
//!         None => println!("failed: {error}"),
//!     },
//! }
//! assert_eq!(handle.snapshot().admitted, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Which layer when
//! | you want | use |
//! | --- | --- |
//! | at most so many requests at once | [`ConcurrencyLimitLayer`] |
//! | the same, but you do not know how many | [`AdaptiveConcurrencyLayer`] |
//! | at most so many at once for each key, first come, first served | [`KeyedConcurrencyLimitLayer`] |
//! | at most so many requests in a time | [`RateLimitLayer`] |
//! | a rate for each client | [`KeyedRateLimitLayer`] |
//! | each tenant to get its share, whatever others ask for | [`WfqLayer`] outside the limit |
//! | a burst to wait, but no queue to stand | [`CoDelLayer`] between the queue and the limit |
//! | no new work while a queue behind the service is nearly full | [`SaturationLayer`] |
//! | one rate, or one number of requests at once, for all replicas together | `Fleet` (feature `redis`) |
//! | a queue inside the process that cannot grow without end, and that says how full it is | [`channel`] |
//! | to know when a request came | [`SubmittedAtLayer`] outside everything |
//! | to refuse at once what would have to wait | [`LoadShedLayer`] outside the limit |
//! | to leave a service alone that fails | [`CircuitBreakerLayer`], or [`KeyedCircuitBreakerLayer`] for each endpoint |
//! | refusals to be answered as the protocol has it: 503, RESOURCE_EXHAUSTED, WebSocket 1013 | [`OverloadResponseLayer`] outermost |
//! | all of that in one line | [`edge()`](fn@edge) |
//! | to know what a layer would refuse before it does | [`ShadowLayer`] around it, or [`Edge::shadow`] |
//! | no more connections than may be open | `ConnectionLimit` (feature `net`) |
//! | whose request it is, by address, also behind a proxy | [`client_addr`], for the keyed layers |
//! | long polls and event streams not to take the places of work | [`BypassLayer`] around the limits |
//! | a request to count until its body has been handed to the server | `.hold_until_body_end()`: [`hold`] |
//! | a client that tries again what was refused, when it makes sense and no more often | `RetryPolicy` (feature `retry`) |
//! | to see all of it in Prometheus, or wherever your metrics go | `Metrics` (feature `metrics`): [`observe`] |
//! | a worker loop that takes a job only when it can | [`concurrency_limit::Handle::acquire`] |
//!
//! # What all layers have in common
//! - **One refusal.** [`Overloaded`] says which layer refused, why, and when to come back. It always
//!   comes out of `call`. If it was [rejected here](Overloaded::rejected_here), the service was never called. Otherwise it
//!   came [from further in](Overloaded#rejected-here-or-further-in): the service ran, and passes on what a client of
//!   its own was told.
//! - **One layer value, one state.** However often `layer()` is called and services are cloned, they
//!   share what was made by the constructor. Handles look at it and change it at run time.
//! - **No unbounded queue.** Every wait is bounded in number. In [`edge()`](fn@edge) and [`WfqLayer`] it is also bounded
//!   in time, one second by default; in the other layers if you ask for it.
//! - **Nothing is lost.** Permits come back on completion, error, panic, and when a future or a readied
//!   service is dropped.
//! - **Nothing is spawned** (but to say goodbye to a WebSocket, what waits [on trial](shadow), and a fleet's calls to its server), nothing is allocated for a request that
//!   is accepted (but for the stamp of a [`SubmittedAtLayer`]), and no unsafe code is used.
//!
//! # Features
//! | feature | adds |
//! | --- | --- |
//! | `axum` | `ConnectionLimit` is a listener for `axum::serve`, and [`PeerAddr`] its connect info |
//! | `fleet` | `Fleet`: limits that replicas share, by a server of yours (a trait of one function), or in memory for tests |
//! | `hyper` | `submitted_at::StampDecoded`: stamps a request at the moment hyper has decoded it |
//! | `metrics` | `observe::Metrics`: the numbers of all layers, for Prometheus and for the `metrics` crate |
//! | `net` | `ConnectionLimit`: no more connections are accepted than may be open |
//! | `quanta` | `Clock::tsc()`, a clock that is cheaper to read |
//! | `redis` | that server is Redis or Valkey. MSRV 1.88 with redis 1.4 or later; cargo takes redis 1.1 for Rust 1.85 |
//! | `retry` | `RetryPolicy`, for clients: which requests are sent again and when, as a policy for `tower::retry::RetryLayer` |
//! | `serde` | [`config`]s are read from TOML, JSON and the like, with units: `"100ms"`, `"500/s"` |
//! | `spiffe` | `wfq::FromSpiffe`: tenants by their certificates, on a tonic 0.14 server with mutual TLS |
//! | `tonic` | connections of a `ConnectionLimit` can be served by tonic 0.14 |
//! | `ws` (on unless turned off) | refused WebSockets are closed with 1013, instead of failing their handshake |
//!
//! Features only ever add: with all of them on, everything works as without them.
//!
//! # Stacking
//! From the outside in, leaving out what you do not need ([`edge()`](fn@edge) is all of it but the
//! quota):
//!
//! ```text
//! SubmittedAt           the clock starts
//! OverloadResponse      what the layers inside refuse is answered
//! KeyedRateLimit        whoever has used up its quota is told so, and does not queue for it
//! Wfq                   who is next? Requests wait here, and nowhere else
//! CoDel                 has it waited too long?
//! AdaptiveConcurrency   is there room? This is what requests wait for
//! your service          (with a Timeout inside the limit, where a failure counts as one)
//! ```
//!
//! Put the layers of this crate into *one* `ServiceBuilder`: axum's `Router::layer`, called twice, puts a
//! service between them that is always ready, and the outer layer no longer sees that the inner one is full.
//! [`guide::stacking`] has the reasons, where the other layers go, and what each wrong order does.
//!
//! # Guide
//! [`guide`]: choosing a layer, stacking, tuning, deploying, a runbook, what is promised, a comparison with
//! others, and why it is as it is.

pub mod adaptive_concurrency;
pub mod bypass;
pub mod channel;
pub mod circuit_breaker;
mod classify;
pub mod client_addr;
mod clock;
pub mod codel;
pub mod concurrency_limit;
pub mod config;
mod config_error;
#[cfg(feature = "net")]
pub mod connection_limit;
pub mod deadline;
pub mod edge;
#[cfg(all(feature = "fleet", not(all(test, backpressure_loom))))]
pub mod fleet;
mod gate;
#[cfg(any(doc, doctest))]
pub mod guide;
mod head;
pub mod hold;
mod jitter;
pub mod keyed_circuit_breaker;
pub mod keyed_concurrency_limit;
pub mod keyed_rate_limit;
mod law;
pub mod load_shed;
pub mod observe;
mod overloaded;
pub mod priority;
mod rate;
pub mod rate_limit;
pub mod respond;
#[cfg(feature = "retry")]
pub mod retry;
pub mod saturation;
pub mod shadow;
pub mod submitted_at;
mod sync;
pub mod wfq;

pub use adaptive_concurrency::{AdaptiveConcurrency, AdaptiveConcurrencyLayer, Limit, Vegas};
pub use bypass::{Bypass, BypassLayer};
pub use circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerLayer};
pub use classify::{ByResult, ByStatus, Classify, Outcome};
pub use client_addr::PeerAddr;
pub use clock::Clock;
pub use codel::{CoDel, CoDelConfig, CoDelLayer};
pub use concurrency_limit::{ConcurrencyLimit, ConcurrencyLimitLayer};
pub use config_error::ConfigError;
#[cfg(feature = "net")]
pub use connection_limit::ConnectionLimit;
pub use deadline::Deadline;
pub use edge::{Edge, edge};
#[cfg(all(feature = "fleet", not(all(test, backpressure_loom))))]
pub use fleet::{
    Fleet, concurrency_limit::FleetConcurrencyLimitLayer,
    keyed_rate_limit::FleetKeyedRateLimitLayer, rate_limit::FleetRateLimitLayer,
};
pub use gate::{
    aside::Waited, bounds::Rejected, permit::Permit, response::ResponseFuture, waits::Waits,
};
pub use hold::{Hold, UntilBodyEnd, UntilResponse};
pub use keyed_circuit_breaker::{KeyedCircuitBreaker, KeyedCircuitBreakerLayer};
pub use keyed_concurrency_limit::{KeyedConcurrencyLimit, KeyedConcurrencyLimitLayer};
pub use keyed_rate_limit::{KeyedRateLimit, KeyedRateLimitLayer};
pub use load_shed::{LoadShed, LoadShedLayer};
pub use overloaded::{BoxError, Overloaded, Reason};
pub use priority::Priority;
pub use rate::Rate;
pub use rate_limit::{RateLimit, RateLimitLayer};
pub use respond::{OverloadResponse, OverloadResponseLayer};
#[cfg(feature = "retry")]
pub use retry::RetryPolicy;
pub use saturation::{Saturation, SaturationLayer};
pub use shadow::{Shadow, ShadowLayer};
pub use submitted_at::{SubmittedAt, SubmittedAtLayer};
pub use wfq::{Wfq, WfqConfig, WfqLayer};

/// The README's example, compiled and run with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
