//! Real servers on loopback, with the clients and browsers that others have written.

mod connection_limit;
mod respond;
mod slow_loris_pool_exhaustion;
#[cfg(feature = "spiffe")]
mod spiffe;
mod streaming;
mod tonic_server;
