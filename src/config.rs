//! Configs, from a file or from code, for layers to be made from and for handles to apply while they run.

mod adaptive;
#[cfg(feature = "serde")]
#[macro_use]
mod given;
mod keyed;
mod limits;
#[cfg(feature = "serde")]
mod read;
mod stacks;
#[cfg(feature = "serde")]
mod units;

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
