//! Settings as values: for layers to be made from, and for handles to apply while a server runs. With the
//! feature `serde` they are read from TOML, JSON, and whatever else describes itself.
//!
#![cfg_attr(feature = "serde", doc = "```")]
#![cfg_attr(not(feature = "serde"), doc = "```ignore")]
//! use serde::Deserialize;
//! use tower_backpressure::{CircuitBreakerLayer, ConcurrencyLimitLayer, config::*, edge};
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Limits {
//!     edge: EdgeConfig,
//!     uploads: ConcurrencyLimitConfig,
//!     quota: KeyedRateLimitConfig,
//!     #[serde(default)]
//!     database: CircuitBreakerConfig,
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limits: Limits = toml::from_str(r#"
//!     [edge.wfq]                  # who is next?
//!     weights = { gold = 10, silver = 3 }
//!     max_wait = "200ms"
//!
//!     [edge.codel]                # has it waited too long?
//!     target = "50ms"
//!     max_sojourn = "1s"
//!
//!     [edge.adaptive]             # is there room?
//!     law = "vegas"
//!     max = 200
//!
//!     [uploads]
//!     limit = 8
//!     max_waiting = 16
//!
//!     [quota]                     # for each client
//!     rate = "30/min burst 5"
//!     global = "500/s"
//!
//!     [database]
//!     failure_rate = 0.5
//!     window = "10s"
//!     min_calls = 20
//!     cooldown = "5s"
//! "#)?;
//!
//! let stack = edge().configured(&limits.edge)?;
//! let uploads = ConcurrencyLimitLayer::from_config(&limits.uploads)?;
//! let database = CircuitBreakerLayer::new(limits.database);
//! # let _ = (&stack, &database);
//!
//! // Later, when the file has changed:
//! let handle = uploads.handle();
//! let config: ConcurrencyLimitConfig = toml::from_str("limit = 12")?;
//! handle.apply(&config)?; // from now on, with those that wait
//! assert_eq!(handle.snapshot().limit, 12);
//!
//! let error = toml::from_str::<EdgeConfig>("codel.target = 100").unwrap_err();
//! assert!(error.to_string().contains("codel.target must be a time with its unit"));
//! # Ok(())
//! # }
//! ```
//!
//! `examples/reload.rs` watches a file and applies it when it changes.
//!
//! # Behaviour
//! **A config says everything.** What is left out has its default, both when a layer is made and when a config
//! is applied: what was changed by hand meanwhile (a weight, a pinned limit) is as the config has it
//! again. Names, clocks, keys, probes and how responses are told from each other are no settings, and stay as
//! they were made.
//!
//! **All or nothing.** `apply` checks the whole config before it changes anything. Settings that depend on each
//! other (`target` and `interval`, bounds and law, weights) change under one lock, so that nobody decides by a
//! mix of old and new. What has been read has been checked, and is not refused any more: if a file
//! has several configs, read all of it first, then apply each. Whoever applies from two places at once may
//! get some settings of each.
//!
//! **Nothing in flight is disturbed.** Tokens, what was learned and who waits stay; each handle's `apply` says
//! what it does. A config that changes nothing has no effect, so it may be applied as often as you like.
//!
//! # Units
//! | value | written as | |
//! | --- | --- | --- |
//! | time | `"250us"` `"100ms"` `"1.5s"` `"2m"` `"1h"` | also `ns`, `µs`, `min` and `d`. Exact to the nanosecond, never rounded. A number without a unit is refused |
//! | rate | `"500/s"` `"30/min"` `"1/5s"` `"500/s burst 100"` | a whole number, and a unit or a time. Unless it is given, the burst is what one period brings. See [`Rate`](crate::Rate) |
//! | share | `0.85` | a number, 1 is all |
//! | number | `100` | whole. More than can be counted is as much as can be, 16 777 215 for a limit |
//!
//! JSON's `null` is as if the field was left out.
//!
//! # Fields
//! | config, for | field | default | allowed |
//! | --- | --- | --- | --- |
//! | [`ConcurrencyLimitConfig`], [`ConcurrencyLimitLayer`] | `limit` | has to be | at least 1 |
//! | | `max_waiting` | 1024 | any number |
//! | | `max_wait` | no bound | any time |
//! | [`RateLimitConfig`], [`RateLimitLayer`] | `rate` | has to be | one in 100 years to 1 000 000 000 a second, burst 1 to 2⁴⁰ |
//! | | `max_waiting`, `max_wait` | 1024, no bound | |
//! | [`AdaptiveConcurrencyConfig`], [`AdaptiveConcurrencyLayer`] | `law` | `"vegas"` | `"vegas"`, `"gradient2"`, `"aimd"` |
//! | | `min` | 1; 20 for the other laws | 1 to `max` |
//! | | `initial` | 20 | `min` to `max` |
//! | | `max` | 1000; 200 for the other laws | at least 1 |
//! | | `pinned` | not | at least 1 |
//! | | `max_waiting`, `max_wait` | 1024, no bound | |
//! | [`CoDelConfig`], [`CoDelLayer`] | `target` | `"100ms"` | more than 0, at most `interval` |
//! | | `interval` | `"5s"` | at least `target` and 100 ms |
//! | | `min_concurrency` | the processors | 1 to `max_concurrency` |
//! | | `max_concurrency` | 1000 | at least 1 |
//! | | `max_sojourn` | no bound | more than 0 |
//! | [`WfqConfig`], [`WfqLayer`] | `weights` | none | a table of at most 100 000 tenants, 1 to 10 000 each; names of 1 to 256 bytes |
//! | | `default_weight` | 1 | 1 to 10 000 |
//! | | `max_waiting`, `max_wait` | 1024, `"1s"` | `max_wait` also `"none"` |
//! | | `max_waiting_per_tenant` | as `max_waiting` | any number |
//! | | `max_tenants` | 10 000 | any number |
//! | | `max_in_flight_per_tenant` | no bound | at least 1 |
//! | | `priority_floor` | 0.01 | 0 to 0.2 |
//! | [`EdgeConfig`], [`Edge`] | `wfq`, `codel`, `adaptive`, `newest_first` | as theirs; `true` | tables as above; `max_waiting` and `max_wait` of `adaptive` do not apply |
//! | [`CircuitBreakerConfig`], [`CircuitBreakerLayer`] | `failures` | 5 | at least 1; not with `failure_rate` |
//! | | `failure_rate` | not | more than 0, at most 1 |
//! | | `window`, `min_calls` | have to be, with `failure_rate` | at least 10 ms; at least 1 |
//! | | `cooldown`, `probe_lease` | `"30s"` | more than 0 |
//! | | `successes` | 2 | at least 1 |
//! | [`KeyedCircuitBreakerConfig`], [`KeyedCircuitBreakerLayer`] | as [`CircuitBreakerConfig`], and `max_keys` | 10 000 | any number |
//! | [`KeyedRateLimitConfig`], [`KeyedRateLimitLayer`] | `rate` | has to be | as in [`RateLimitConfig`] |
//! | | `global` | none | a rate |
//! | | `max_keys` | 100 000 | any number |
//! | | `max_waiting`, `max_wait` | 1024, nobody waits | |
//! | [`KeyedConcurrencyLimitConfig`], [`KeyedConcurrencyLimitLayer`] | `limit` | has to be | at least 1 |
//! | | `limits` | none | a table of at most 100 000 keys, at least 1 each |
//! | | `max_waiting`, `max_wait` | 10 000, no bound | |
//! | | `max_waiting_per_key` | as `max_waiting` | any number |
//! | [`SaturationConfig`], [`SaturationLayer`] | `warning` | 0.70 | more than 0 |
//! | | `critical` | 0.85 | more than `warning` |
//! | | `overflow` | 0.95 | more than `critical` |
//! | | `hysteresis` | 0.05 | at least 0, less than `warning` |
//! | | `sample_every` | `"10ms"` | any time |
//! | `FleetConfig`, `Fleet` (feature `fleet`) | `nodes` | has to be | at least 1 |
//! | | `prefix` | `"backpressure"` | 1 to 64 of `A-Z a-z 0-9 - _ . : /` |
//! | | `timeout` | `"50ms"` | more than 0 |
//! | | `fallback` | `"local"` | `"local"`, `"open"`, `"closed"` |
//! | `RetryConfig`, `RetryPolicy` (feature `retry`) | `backoff` | | a table: `kind` `"exponential"` (the default), `"linear"` or `"fixed"`; `base` `"100ms"`, more than 0, at most `max`; `max` `"10s"`, not for `fixed`; `increment`, for `linear` |
//! | | `budget` | | a table: `percent` 20, at most 1000; `per_second` 1; `burst` 100, at least 1 |
//! | | `max_retries` | 3 | any number |
//! | | `max_elapsed` | `"1m"` | any time |
//! | | `jitter` | `true` | `true` or `false` |
//!
//! # Errors
//! [`ConfigError`] names the field, with what it is part of, what is allowed there, and what was found. A field that
//! is not known is refused with those that are, one that is given twice is refused, and so is anything of the wrong
//! type. Whatever is read, nothing panics.
//!
//! TOML and JSON add the line and the column. They are those of the value that is not allowed, or of the name that is not
//! known (JSON points right behind it). If two fields contradict each other, they are those of one of the two. A field that is missing, or
//! one that contradicts the default of a field that is not given, is reported at the beginning of its table (JSON: at
//! the end). Where serde keeps values to itself before it passes them on, in a `#[serde(flatten)]` or an untagged enum of yours,
//! the place is lost.
//!
//! ```text
//! codel.target must be longer than 0 and at most interval (5s), not "0ms"
//! rate is "1/s burst 0", but the burst of a rate must be at least 1, the cost of one request, and at most 2^40
//! codel.tarjet is not known here; there are target, interval, min_concurrency, max_concurrency, max_sojourn
//! ```
//!
//! [`ConcurrencyLimitLayer`]: crate::ConcurrencyLimitLayer
//! [`RateLimitLayer`]: crate::RateLimitLayer
//! [`AdaptiveConcurrencyLayer`]: crate::AdaptiveConcurrencyLayer
//! [`CoDelLayer`]: crate::CoDelLayer
//! [`WfqLayer`]: crate::WfqLayer
//! [`Edge`]: crate::Edge
//! [`CircuitBreakerLayer`]: crate::CircuitBreakerLayer
//! [`KeyedCircuitBreakerLayer`]: crate::KeyedCircuitBreakerLayer
//! [`KeyedRateLimitLayer`]: crate::KeyedRateLimitLayer
//! [`KeyedConcurrencyLimitLayer`]: crate::KeyedConcurrencyLimitLayer
//! [`SaturationLayer`]: crate::SaturationLayer
//! [`ConfigError`]: crate::ConfigError

mod adaptive;
#[cfg(feature = "fleet")]
mod fleet;
#[cfg(feature = "serde")]
#[macro_use]
mod given;
mod keyed;
mod limits;
#[cfg(feature = "serde")]
mod read;
#[cfg(feature = "serde")]
mod schema;
mod stacks;
#[cfg(feature = "serde")]
mod units;

#[cfg(feature = "fleet")]
pub use self::fleet::FleetConfig;
#[cfg(feature = "retry")]
pub use self::stacks::RetryConfig;
pub use self::{
    adaptive::{AdaptiveConcurrencyConfig, Law},
    keyed::{KeyedCircuitBreakerConfig, KeyedConcurrencyLimitConfig, KeyedRateLimitConfig},
    limits::{ConcurrencyLimitConfig, RateLimitConfig},
    stacks::{EdgeConfig, SaturationConfig},
};
pub use crate::{
    circuit_breaker::CircuitBreakerConfig, codel::CoDelConfig, saturation::Thresholds,
    wfq::WfqConfig,
};
