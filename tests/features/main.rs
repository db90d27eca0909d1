//! What the features `metrics`, `retry` and `serde` add. Without a feature, its tests are left out.

#[cfg(any(feature = "metrics", feature = "retry", feature = "serde"))]
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "retry")]
mod client_and_server;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "retry")]
mod retry;
#[cfg(feature = "serde")]
mod serde;
