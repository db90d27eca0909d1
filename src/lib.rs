#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(unreachable_pub, reason = "what is not exported says so: pub(crate)")]
//! Overload control for [tower](https://docs.rs/tower): layers that keep an axum, tonic or hyper server answering in time
//! under more load than it can serve.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_backpressure::edge;
//!
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(edge());
//! # let _ = app;
//! ```
//!
//! [`edge()`](fn@edge) finds out how many requests the server can work on at once, shares that fairly between tenants, and
//! answers the rest with 503, `RESOURCE_EXHAUSTED` or WebSocket 1013 and a hint when to retry.
//!
//! # Guide
//! Start with [`guide::choosing`] (which layer do I need?), [`guide::migration`] (from tower's own layers, `tower_governor`,
//! tower-resilience or Envoy) and [`guide::deploying`] (what goes around it in a server). [`guide`] has the other pages:
//! stacking, tuning, priorities and deadlines, a runbook, what is promised, ten questions, a comparison, the design decisions and a glossary.
//!
//! # Which layer when
//! | you want | use |
//! | --- | --- |
//! | responses, fair queue, admission by age and adaptive limit in one layer | [`edge()`](fn@edge) |
//! | a fixed number of requests at once | [`ConcurrencyLimitLayer`] |
//! | the same, without knowing the number | [`AdaptiveConcurrencyLayer`] |
//! | a fixed number at once for each key, first come, first served | [`KeyedConcurrencyLimitLayer`] |
//! | a number of requests in a time | [`RateLimitLayer`] |
//! | a rate for each client | [`KeyedRateLimitLayer`] |
//! | each tenant to get its share, whatever others send | [`WfqLayer`] outside the limit |
//! | a burst to wait, but no standing queue | [`CoDelLayer`] between the queue and the limit |
//! | no work on requests whose client has given up | [`DeadlineLayer`] outside the queues |
//! | important requests first under overload | [`PriorityLayer`] outside the queues |
//! | no new work while a queue behind the service is nearly full | [`SaturationLayer`] |
//! | one rate, or one number of requests at once, for all replicas together | `Fleet` (feature `redis`) |
//! | a bounded queue inside the process, that says how full it is | [`channel`] |
//! | to work on nothing that its client no longer waits for | [`DeadlineLayer`] outside the queues |
//! | what is important first, when not everything can be served | [`PriorityLayer`] outside the queues |
//! | to know when a request arrived | [`SubmittedAtLayer`] outside everything |
//! | to reject at once what would have to wait | [`LoadShedLayer`] outside the limit |
//! | to stop calling a service that fails | [`CircuitBreakerLayer`], or [`KeyedCircuitBreakerLayer`] for each endpoint |
//! | rejections as responses of the client's protocol: 503, RESOURCE_EXHAUSTED, WebSocket 1013 | [`OverloadResponseLayer`] outermost |
//! | to know what a layer would reject before it does | [`ShadowLayer`] around it, or [`Edge::shadow`] |
//! | a bound on open connections | `ConnectionLimit` (feature `net`) |
//! | the client's address as a key, also behind a proxy | [`client_addr`], for the keyed layers |
//! | long polls and event streams that do not take the places of work | [`BypassLayer`] around the limits |
//! | a request to count until its response body has been sent | `.hold_until_body_end()`: [`hold`] |
//! | a client that retries what was rejected, within a budget | `RetryPolicy` (feature `retry`) |
//! | all numbers in Prometheus, or wherever your metrics go | `Metrics` (feature `metrics`): [`observe`] |
//! | a worker loop that takes a job only when it can work on it | [`concurrency_limit::Handle::acquire`] |
//!
//! # Without HTTP
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
//!     .layer(LoadShedLayer::new()) // reject what is over the limit, instead of queueing it
//!     .layer(limit)
//!     .service(service_fn(|name: &'static str| async move {
//!         Ok::<_, BoxError>(format!("hello {name}"))
//!     }));
//!
//! match service.ready().await?.call("world").await {
//!     Ok(response) => assert_eq!(response, "hello world"),
//!     Err(error) => match Overloaded::find(error.as_ref()) {
//!         Some(rejection) => println!("retry in {:?}", rejection.retry_after()),
//!         None => println!("failed: {error}"),
//!     },
//! }
//! assert_eq!(handle.snapshot().admitted, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What all layers have in common
//! - **One rejection type.** [`Overloaded`] says which layer rejected, why, and when to retry. It always
//!   comes out of `call`. If it was [rejected here](Overloaded::rejected_here), the service was never called. Otherwise it
//!   came [from further in](Overloaded#rejected-here-or-further-in): the service ran, and passes on a rejection that a client
//!   of its own got.
//! - **One layer value, one state.** All services that a layer value makes, and their clones, share the state
//!   that its constructor made. Handles read and change it at run time.
//! - **No unbounded queue.** Every wait is bounded in number. In [`edge()`](fn@edge) and [`WfqLayer`] it is also bounded
//!   in time, one second by default; in the other layers if you ask for it.
//! - **No permit is lost.** Permits come back on completion, error and panic, and when a future, or a service that was
//!   polled ready, is dropped.
//! - **No task, no allocation, no unsafe code** for an accepted request. Exceptions: closing a WebSocket, waiting in a
//!   [dry run](shadow) and a fleet's calls to its server take a task, the stamp of a [`SubmittedAtLayer`] an allocation.
//!
//! # Features
//! | feature | adds |
//! | --- | --- |
//! | `axum` | `ConnectionLimit` is a listener for `axum::serve`, and [`PeerAddr`] its connect info |
//! | `fleet` | `Fleet`: limits that replicas share, by a server of yours (a trait of one function), or in memory for tests |
//! | `hyper` | `submitted_at::StampDecoded`: stamps a request at the moment hyper has decoded it |
//! | `metrics` | `observe::Metrics`: the numbers of all layers, for Prometheus and for the `metrics` crate |
//! | `net` | `ConnectionLimit`: bounds open connections |
//! | `quanta` | `Clock::tsc()`, a clock that is cheaper to read |
//! | `redis` | that server is Redis or Valkey. MSRV 1.88 with redis 1.4 or later; cargo takes redis 1.1 for Rust 1.85 |
//! | `retry` | `RetryPolicy`, for clients: which requests are sent again and when, as a policy for `tower::retry::RetryLayer` |
//! | `serde` | [`config`]s are read from TOML, JSON and the like, with units: `"100ms"`, `"500/s"` |
//! | `spiffe` | `wfq::FromSpiffe`: tenants by their certificates, on a tonic 0.14 server with mutual TLS |
//! | `tonic` | connections of a `ConnectionLimit` can be served by tonic 0.14 |
//! | `ws` (default) | rejected WebSockets are closed with 1013, instead of failing their handshake |
//!
//! A feature only adds: what worked without it works with it.
//!
//! # Stacking
//! From the outside in, leaving out what you do not need ([`edge()`](fn@edge) is all of it but the
//! quota):
//!
//! ```text
//! SubmittedAt           stamps the request: its age counts from here
//! OverloadResponse      answers what the layers inside reject
//! Deadline, Priority    stamp how long the client waits, and how much the request matters
//! KeyedRateLimit        rejects clients that have used up their quota, before they queue
//! Wfq                   who is next? Requests wait here, and nowhere else
//! CoDel                 has it waited too long?
//! AdaptiveConcurrency   is there room? This is what requests wait for
//! your service          (with a Timeout inside the limit, where a failure counts as one)
//! ```
//!
//! Put the layers of this crate into *one* `ServiceBuilder`: axum's `Router::layer`, called twice, puts a
//! service between them that is always ready, and the outer layer no longer sees that the inner one is full.
//! [`guide::stacking`] has the reasons, where the other layers go, and what each wrong order does.

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
mod digits;
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
pub use deadline::{Deadline, DeadlineLayer};
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
pub use priority::{Priority, PriorityLayer};
pub use rate::Rate;
pub use rate_limit::{RateLimit, RateLimitLayer};
pub use respond::{OverloadResponse, OverloadResponseLayer};
#[cfg(feature = "retry")]
pub use retry::RetryPolicy;
pub use saturation::{Saturation, SaturationLayer};
pub use shadow::{Shadow, ShadowLayer};
pub use submitted_at::{SubmittedAt, SubmittedAtLayer};
pub use wfq::{Wfq, WfqConfig, WfqLayer};

/// The README's examples, compiled and run with the others. One of them shows metrics.
#[cfg(all(doctest, feature = "metrics"))]
#[doc = include_str!("../README.md")]
struct Readme;
