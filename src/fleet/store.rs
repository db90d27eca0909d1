//! The server that a fleet shares: one function.

use std::{future::Future, pin::Pin};

use crate::BoxError;

/// An answer to come.
pub type Run<'a> = Pin<Box<dyn Future<Output = Result<Vec<i64>, BoxError>> + Send + 'a>>;

/// The server that the nodes of a fleet share: it runs a script on a key, all at once.
///
/// [`Redis`](super::Redis) (feature `redis`) is one, [`Memory`](super::Memory) another. Implement it for a client of your
/// own: run [`Script::source`] by `EVALSHA`, and by `EVAL` if the server answers `NOSCRIPT`.
///
/// ```
/// use tower_backpressure::{BoxError, fleet::{Run, Script, Store}};
///
/// struct Client; // of yours
///
/// impl Client {
///     async fn eval(&self, source: &str, key: &[u8], args: &[i64]) -> Result<Vec<i64>, BoxError> {
///         # let _ = (source, key, args);
///         // …
///         Ok(vec![1, 0, 1000])
///     }
/// }
///
/// impl Store for Client {
///     fn run<'a>(&'a self, script: Script, key: &'a [u8], args: &'a [i64]) -> Run<'a> {
///         Box::pin(self.eval(script.source(), key, args))
///     }
/// }
/// ```
///
/// The caller drops the future when it takes too long. Calls may be made from several tasks at a time.
pub trait Store: Send + Sync + 'static {
    /// Runs this script on this one key with these arguments, and gives the numbers that it returns. An error is an answer
    /// that did not come.
    fn run<'a>(&'a self, script: Script, key: &'a [u8], args: &'a [i64]) -> Run<'a>;
}

/// What a [`Store`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Script {
    /// Tokens of a rate limit.
    Lease,
    /// Permits of a concurrency limit.
    Block,
}

impl Script {
    /// In Lua, for Redis 5 and Valkey 7.2 or later.
    pub fn source(self) -> &'static str {
        match self {
            Self::Lease => include_str!("lease.lua"),
            Self::Block => include_str!("block.lua"),
        }
    }
}
