//! Redis and Valkey, by redis-rs.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use redis::{
    Client, Cmd, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    io::tcp::TcpSettings,
};
use tokio::sync::Mutex;

use super::store::{Run, Script, Store};
use crate::ConfigError;

/// Redis or Valkey, as the [`Store`] of a fleet.
///
/// `C` is the connection: made from a URL by [`open`](Self::open), or any of redis-rs that can be cloned
/// ([`new`](Self::new)): `ConnectionManager`, `ClusterConnection`, one that Sentinel has found.
///
/// Every call is one `EVALSHA` of a script on one key, or two where the server does not know the script yet. It needs no
/// module, no function and no `CONFIG`; the user needs the commands `EVALSHA`, `SCRIPT LOAD`, `TIME`, `GET`, `SET`,
/// `HGETALL`, `HSET`, `HDEL` and `PEXPIRE` on keys with the fleet's prefix.
pub struct Redis<C = Reconnecting> {
    connection: C,
    lease: redis::Script,
    block: redis::Script,
}

impl Redis {
    /// The server at this URL, such as `redis://user:password@redis.internal:6379/0`. Nothing is sent before the first call,
    /// and a connection that breaks is made anew by the next call.
    ///
    /// `rediss://` (TLS) needs a TLS feature of the `redis` crate, such as `tokio-rustls-comp`.
    ///
    /// # Errors
    /// If that is no URL of a server. The error does not repeat it, because it may have a password.
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        let expected = |_| ConfigError::new("url", "as redis://user:password@host:port/db");
        let server = url.into_connection_info().map_err(expected)?;
        let tcp = TcpSettings::default().set_nodelay(true); // a call does not wait for the one before
        let client = Client::open(server.set_tcp_settings(tcp)).map_err(expected)?;
        Ok(Self::new(Reconnecting::new(client)))
    }
}

impl<C> Redis<C> {
    /// By this connection.
    pub fn new(connection: C) -> Self {
        Self {
            connection,
            lease: redis::Script::new(Script::Lease.source()),
            block: redis::Script::new(Script::Block.source()),
        }
    }

    fn script(&self, script: Script) -> &redis::Script {
        match script {
            Script::Lease => &self.lease,
            Script::Block => &self.block,
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Store for Redis<C> {
    fn run<'a>(&'a self, script: Script, key: &'a [u8], args: &'a [i64]) -> Run<'a> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let mut call = self.script(script).key(key);
            for arg in args {
                call.arg(*arg);
            }
            // It loads the script where the server does not know it, and tries once more.
            Ok(call.invoke_async(&mut connection).await?)
        })
    }
}

impl<C> fmt::Debug for Redis<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive() // the URL may have a password
    }
}

/// A connection that several calls use at a time. One that is broken is replaced when it is needed next, and not before:
/// who calls, and how often, is the caller's to decide.
#[derive(Clone)]
#[allow(
    unnameable_types,
    reason = "it is made by `Redis::open`, and used by it alone"
)]
pub struct Reconnecting(Arc<Connections>);

struct Connections {
    client: Client,
    /// The last one that was made, which is connection number so-and-so.
    last: Mutex<(u64, Option<MultiplexedConnection>)>,
    /// The number of the last one that is known to be broken.
    broken: AtomicU64,
}

impl Reconnecting {
    fn new(client: Client) -> Self {
        Self(Arc::new(Connections {
            client,
            last: Mutex::new((0, None)),
            broken: AtomicU64::new(0),
        }))
    }

    async fn connection(&self) -> RedisResult<(MultiplexedConnection, Unanswered)> {
        let connections = &self.0;
        let mut last = connections.last.lock().await; // one connects, the others wait for it
        let connection = match &*last {
            (number, Some(connection)) if *number > connections.broken.load(Relaxed) => {
                connection.clone()
            }
            (number, _) => {
                let number = number + 1;
                let connection = connections.client.get_multiplexed_async_connection();
                let connection = connection.await?;
                *last = (number, Some(connection.clone()));
                connection
            }
        };
        let unanswered = Unanswered {
            connections: Arc::clone(connections),
            number: last.0,
        };
        Ok((connection, unanswered))
    }
}

/// A call whose answer has not come. If it never does, a new connection may be better: nothing else shows that a server
/// has gone without a word.
struct Unanswered {
    connections: Arc<Connections>,
    number: u64,
}

impl Unanswered {
    fn answered<T>(mut self, answer: &RedisResult<T>) {
        let is_usable = |error: &RedisError| {
            let broken = error.is_io_error() || error.is_unrecoverable_error();
            // A replica does not become a primary by itself, but its name may be another server's by now.
            !broken && error.code() != Some("READONLY")
        };
        if answer.as_ref().err().is_none_or(is_usable) {
            self.number = 0; // which no connection has
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.connections.broken.fetch_max(self.number, Relaxed);
    }
}

impl ConnectionLike for Reconnecting {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let (mut connection, unanswered) = self.connection().await?;
            let answer = connection.req_packed_command(command).await;
            unanswered.answered(&answer);
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let (mut connection, unanswered) = self.connection().await?;
            let answers = connection
                .req_packed_commands(commands, offset, count)
                .await;
            unanswered.answered(&answers);
            answers
        })
    }

    fn get_db(&self) -> i64 {
        self.0.client.get_connection_info().redis_settings().db()
    }
}

#[cfg(test)]
mod tests;
