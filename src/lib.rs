#![forbid(unsafe_code)]
//! Overload control for [tower](https://docs.rs/tower) services: layers that limit, queue and refuse
//! work before it hurts.

mod admission;
mod algorithm;
mod clock;
pub mod concurrency_limit;
mod config_error;
pub mod hold;
pub mod load_shed;
mod overloaded;
mod sync;

pub use admission::{permit::Permit, response::ResponseFuture};
pub use concurrency_limit::{ConcurrencyLimit, ConcurrencyLimitLayer};
pub use config_error::ConfigError;
pub use hold::{Hold, UntilBodyEnd, UntilResponse};
pub use load_shed::{LoadShed, LoadShedLayer};
pub use overloaded::{BoxError, Overloaded, Reason};
