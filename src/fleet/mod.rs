//! Limits that all replicas of a service share, by a Redis or Valkey that they share.
//!
//! Ten replicas with a limit of 100 a second each are not a limit of 1000: a client whose requests all come to one replica
//! gets 100, and one whose requests move gets more than its due. With a fleet the limit is one, and still decided locally.
//!
#![cfg_attr(feature = "redis", doc = "```no_run")]
#![cfg_attr(not(feature = "redis"), doc = "```ignore")]
//! use axum::{Router, http::{HeaderValue, Request}, routing::get};
//! use tower::ServiceBuilder;
//! use tower_backpressure::{Fleet, OverloadResponseLayer, Rate, fleet::Fallback};
//!
//! # fn main() -> Result<(), tower_backpressure::ConfigError> {
//! let fleet = Fleet::redis("redis://redis.internal/", 10)? // ten nodes, more or less
//!     .prefix("shop")?
//!     .fallback(Fallback::Local); // while Redis is away each node holds to a tenth: the default
//!
//! let quota = fleet.keyed_rate_limit(
//!     "quota",
//!     Rate::per_second(1000).burst(100),
//!     |request: &Request<_>| request.headers().get("x-api-key").cloned(),
//! );
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(ServiceBuilder::new().layer(OverloadResponseLayer::new()).layer(quota));
//! # let _ = app;
//! # Ok(())
//! # }
//! ```
//!
//! | you want | use |
//! | --- | --- |
//! | one rate for all nodes together | [`Fleet::rate_limit`] |
//! | one rate for each client, whichever node it comes to | [`Fleet::keyed_rate_limit`] |
//! | at most so many requests in flight on all nodes together | [`Fleet::concurrency_limit`] |
//!
//! A node spends tokens that it was granted ahead of need, and the server is asked for more in the background: requests wait
//! for it after a pause only, or where a quota is so small that each token is a call. The [guide](crate::guide::fleet)
//! has what is promised and what it costs, sizing, failure modes, and alerts.
//!
//! # When the server is slow or away
//! A call has [`timeout`](Fleet::timeout) (50 ms) to be answered. Meanwhile the node spends what it holds. After that the
//! limit follows its [`Fallback`]. After three failures in a row the fleet's breaker opens: calls stop, but for one of each
//! node about every second. When one is answered the limits are shared again. What a node has spent by its fallback is paid for by
//! its next call, up to its share of the burst, so that nothing is spent twice.
//!
//! Everything that is no proper answer counts as a failure: errors such as `OOM`, `READONLY`, `LOADING`, `CLUSTERDOWN`, and a key
//! of the wrong type. A server that has lost its data (`FLUSHALL`, failover to a replica that lagged, eviction) answers, and
//! knows of nothing spent: that is worth one more burst at most.
//!
//! # Names on the server
//! | key | of |
//! | --- | --- |
//! | `prefix:{limit}` | a rate limit (a string), or a concurrency limit (a hash) |
//! | `prefix:{limit:client}` | one client of a keyed rate limit (a string) |
//! | `prefix:{limit:#}` | requests without a key |
//! | `prefix:{limit:#overflow-7}` | clients that a node has no room to tell apart |
//!
//! A client of 1 to 64 bytes of `A-Z a-z 0-9 - _ . : @ / + =` is written as it is. Any other (braces, spaces, 10 kB, bytes that
//! are no UTF-8) is written as `#` and its SHA-1. So a client can neither choose the hash tag of a cluster nor be taken for
//! another. Each key is one call, so a fleet works on a cluster. All keys expire by themselves when there is nothing to remember.
//!
//! # Errors
//! [`Overloaded`](crate::Overloaded), as the local layers have it, with the limit's name as its layer.
//!
//! # Features
//! `fleet` is the layers and [`Memory`], a stand-in for tests. `redis` adds [`Redis`] and [`Fleet::redis`]. Its MSRV is
//! that of the `redis` crate: 1.88 from redis 1.4 on. With Rust 1.85 cargo's resolver takes redis 1.1.

pub mod concurrency_limit;
mod key;
pub mod keyed_rate_limit;
mod leased;
mod link;
mod memory;
pub mod rate_limit;
#[cfg(feature = "redis")]
mod redis;
mod store;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

#[cfg(feature = "redis")]
pub use self::redis::{Reconnecting, Redis};
use self::{
    concurrency_limit::{FleetConcurrencyLimitLayer, Shared},
    keyed_rate_limit::FleetKeyedRateLimitLayer,
    leased::{Common, Patience},
    link::Link,
    rate_limit::FleetRateLimitLayer,
};
pub use self::{
    key::FleetKey,
    link::{Mode, Snapshot},
    memory::Memory,
    store::{Run, Script, Store},
};
pub use crate::law::lease::node::Fallback;
use crate::{
    Clock, ConfigError, Rate,
    config::{ConcurrencyLimitConfig, FleetConfig, KeyedRateLimitConfig, RateLimitConfig},
    sync::Arc,
};

/// How long a call to the server may take. In one data centre it takes less than one millisecond, and nobody should notice
/// when it does not.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);

pub(crate) const DEFAULT_PREFIX: &str = "backpressure";

/// The nodes that share limits, as one of them sees it: the server, and what the limits have in common. See the
/// [module](self) for all of it.
///
/// Clones are the same fleet, with settings of their own for the limits that are made from them: one limit may fall back to
/// `Open`, another to `Closed`. A process needs one fleet for each server.
#[derive(Clone)]
pub struct Fleet {
    link: Arc<Link>,
    nodes: u32,
    prefix: Arc<str>,
    timeout: Duration,
    fallback: Fallback,
}

impl Fleet {
    /// By this server, with about so many nodes. The number is for the [`Fallback`] only; 0 is as 1.
    ///
    /// Its calls are made on the tokio runtime in which it is made, or else in which it is first used.
    pub fn new(store: impl Store, nodes: u32) -> Self {
        Self::with_clock(store, nodes, Clock::default())
    }

    /// The same on another clock, such as `Clock::tsc()`.
    pub fn with_clock(store: impl Store, nodes: u32, clock: Clock) -> Self {
        Self {
            link: Arc::new(Link::new(Box::new(store), clock)),
            nodes: nodes.max(1),
            prefix: DEFAULT_PREFIX.into(),
            timeout: DEFAULT_TIMEOUT,
            fallback: Fallback::default(),
        }
    }

    /// By the Redis or Valkey at this URL, with about so many nodes: see [`Redis::open`].
    ///
    /// # Errors
    /// If that is no URL of a server.
    #[cfg(feature = "redis")]
    pub fn redis(url: &str, nodes: u32) -> Result<Self, ConfigError> {
        Ok(Self::new(Redis::open(url)?, nodes))
    }

    /// As this config says, by this server.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &FleetConfig, store: impl Store) -> Result<Self, ConfigError> {
        config.check()?;
        let fleet = Self::new(store, config.nodes);
        let fleet = fleet.prefix(&config.prefix)?;
        Ok(fleet.timeout(config.timeout).fallback(config.fallback))
    }

    /// What all its keys on the server begin with. Default: `backpressure`. Services that share a server need different
    /// ones, or they share limits of the same name.
    ///
    /// # Errors
    /// If it is anything but 1 to 64 of the characters `A-Z a-z 0-9 - _ . : /`.
    pub fn prefix(self, prefix: &str) -> Result<Self, ConfigError> {
        key::check("prefix", prefix)?;
        let prefix = prefix.into();
        Ok(Self { prefix, ..self })
    }

    /// How long a call may take before it has failed, and so how long a request waits for an answer at most. 50 ms unless
    /// set.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// What limits do while the server does not answer. Default: [`Fallback::Local`].
    pub fn fallback(self, fallback: Fallback) -> Self {
        Self { fallback, ..self }
    }

    /// A rate that all nodes share, by this name.
    ///
    /// # Panics
    /// If the name is anything but 1 to 64 of the characters `A-Z a-z 0-9 - _ . : /`.
    pub fn rate_limit(&self, name: &'static str, rate: Rate) -> FleetRateLimitLayer {
        literal(self.rate_limit_from(name, &RateLimitConfig::new(rate)))
    }

    /// The same as a config says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn rate_limit_from(
        &self,
        name: &'static str,
        config: &RateLimitConfig,
    ) -> Result<FleetRateLimitLayer, ConfigError> {
        let common = self.common("fleet_rate_limit", name, Patience::ForTokens)?;
        let key = key::of_limit(&self.prefix, name);
        let layer = FleetRateLimitLayer::new(common, key, config.rate);
        layer.handle().apply(config)?;
        Ok(layer)
    }

    /// A rate for each key that all nodes share, by this name, where `key` is a `Fn(&Request) -> Option<impl FleetKey>`.
    ///
    /// # Panics
    /// As [`rate_limit`](Self::rate_limit).
    pub fn keyed_rate_limit<K>(
        &self,
        name: &'static str,
        rate: Rate,
        key: K,
    ) -> FleetKeyedRateLimitLayer<K> {
        literal(self.keyed_rate_limit_from(name, &KeyedRateLimitConfig::new(rate), key))
    }

    /// The same as a config says. There is no global rate: stack a [`rate_limit`](Self::rate_limit) for that.
    ///
    /// # Errors
    /// If a setting is not allowed, or has a global rate.
    pub fn keyed_rate_limit_from<K>(
        &self,
        name: &'static str,
        config: &KeyedRateLimitConfig,
        key: K,
    ) -> Result<FleetKeyedRateLimitLayer<K>, ConfigError> {
        keyed_rate_limit::check(config)?;
        let common = self.common("fleet_keyed_rate_limit", name, Patience::ForAnswers)?;
        let layer = FleetKeyedRateLimitLayer::new(common, &self.prefix, config.rate, key);
        layer.handle().apply(config)?;
        Ok(layer)
    }

    /// At most so many requests in flight on all nodes together, by this name.
    ///
    /// # Panics
    /// As [`rate_limit`](Self::rate_limit), and if `limit` is 0.
    pub fn concurrency_limit(
        &self,
        name: &'static str,
        limit: usize,
    ) -> FleetConcurrencyLimitLayer {
        literal(self.concurrency_limit_from(name, &ConcurrencyLimitConfig::new(limit)))
    }

    /// The same as a config says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn concurrency_limit_from(
        &self,
        name: &'static str,
        config: &ConcurrencyLimitConfig,
    ) -> Result<FleetConcurrencyLimitLayer, ConfigError> {
        key::check("name", name)?;
        config.check()?;
        let shared = Shared {
            link: Arc::clone(&self.link),
            key: key::of_limit(&self.prefix, name),
            timeout: self.timeout,
            fallback: self.fallback,
            nodes: self.nodes,
            node: RandomState::new().hash_one(name),
        };
        let layer = FleetConcurrencyLimitLayer::new(name, config.limit, shared)?;
        layer.handle().apply(config)?;
        Ok(layer)
    }

    /// How the server does, as this node sees it.
    pub fn snapshot(&self) -> Snapshot {
        self.link.snapshot()
    }

    fn common(
        &self,
        kind: &'static str,
        name: &'static str,
        patience: Patience,
    ) -> Result<Common, ConfigError> {
        key::check("name", name)?;
        let link = Arc::clone(&self.link);
        let of_fleet = (link, self.timeout, self.fallback, self.nodes);
        let common = Common::new(kind, patience, of_fleet);
        common.bounds.set_name(name);
        Ok(common)
    }
}

/// Whether limits can have such keys on the server.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), ConfigError> {
    key::check("prefix", prefix)
}

fn literal<T>(made: Result<T, ConfigError>) -> T {
    match made {
        Ok(layer) => layer,
        Err(error) => panic!("{error}"),
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet")
            .field("prefix", &self.prefix)
            .field("nodes", &self.nodes)
            .field("fallback", &self.fallback)
            .field("server", &self.link.snapshot())
            .finish_non_exhaustive()
    }
}
