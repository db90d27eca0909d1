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
mod tests {
    use proptest::{prelude::*, test_runner::TestRunner};

    use super::*;
    use crate::law::{
        block::{Blocks, Renewal},
        lease::{self, Ask},
    };

    #[allow(dead_code, reason = "a part of it is used")]
    #[path = "../../../../tests/fleet/server.rs"]
    mod server;

    const NOW: u64 = 1_763_461_234_567_890;

    /// The scripts, at a time that the test says: what follows their other arguments.
    struct Scripts {
        runtime: tokio::runtime::Runtime,
        connection: MultiplexedConnection,
        _server: server::Server,
    }

    impl Scripts {
        fn start() -> Option<Self> {
            let server = server::Server::start()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let client = Client::open(server.url()).unwrap();
            let connection = runtime.block_on(client.get_multiplexed_async_connection()).unwrap();
            Some(Self { runtime, connection, _server: server })
        }

        fn command<T: redis::FromRedisValue>(&self, command: &Cmd) -> T {
            let mut connection = self.connection.clone();
            self.runtime.block_on(command.query_async(&mut connection)).unwrap()
        }

        fn run(&self, script: Script, args: &[i64], now: u64) -> Vec<i64> {
            let last = args.len();
            let time = format!("{{ARGV[{}], ARGV[{}]}}", last + 1, last + 2);
            let source = script.source().replace("redis.call('TIME')", &time);
            assert_ne!(source, script.source());
            let now = [(now / 1_000_000) as i64, (now % 1_000_000) as i64];
            self.command(redis::cmd("EVAL").arg(source).arg(1).arg("key").arg(args).arg(&now))
        }
    }

    #[test]
    fn the_lease_script_computes_what_the_law_does() {
        let Some(scripts) = Scripts::start() else { return };
        let near = |of: u64| prop_oneof![0..2_000_000u64, Just(of), any::<u64>().prop_map(|n| n >> 14)];
        let asks = (1..2_000_000u64, 1..1_000_000u64, 0..2_000_000u64, 0..400_000u64, 0..10_000_000u64);
        let about_now = || {
            let ago = (0..3_000_000u64).prop_map(|ago| NOW - ago);
            let ahead = near(0).prop_map(|ahead| NOW + ahead);
            prop_oneof![Just(0), ago, ahead].prop_map(|tat| tat.min((1 << 53) - 1))
        };
        let cases = (prop::option::of(about_now()), about_now(), asks);
        TestRunner::default()
            .run(&cases, |(tat, seen, (cost, step, depth, horizon, reach))| {
                let ask = Ask { cost, step, depth, horizon, reach: depth + horizon + reach, seen };
                match tat {
                    None => scripts.command::<()>(redis::cmd("DEL").arg("key")),
                    Some(tat) => scripts.command::<()>(redis::cmd("SET").arg("key").arg(tat)),
                }
                let numbers = scripts.run(Script::Lease, &ask.args(), NOW);
                let (after, answer) = lease::grant(tat, NOW, &ask);
                prop_assert_eq!(numbers, answer.numbers());
                if let Some(after) = after.filter(|after| after - NOW > 10_000_000) {
                    let stored: u64 = scripts.command(redis::cmd("GET").arg("key"));
                    prop_assert_eq!(stored, after);
                }
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn the_block_script_computes_what_the_law_does() {
        let Some(scripts) = Scripts::start() else { return };
        const MINUTE: u64 = 60_000_000;
        let renewal = (0..6u64, 0..20u64, 0..30u64, 1..40u64, 0..MINUTE);
        TestRunner::new(ProptestConfig::with_cases(40))
            .run(&prop::collection::vec(renewal, 1..30), |renewals| {
                scripts.command::<()>(redis::cmd("DEL").arg("key"));
                let (mut blocks, mut now) = (Blocks::default(), NOW);
                for (node, in_use, want, limit, passed) in renewals {
                    now += passed;
                    let node = node << 50; // as large as they are
                    let renewal = Renewal { node, in_use, want, limit, life: MINUTE };
                    let numbers = scripts.run(Script::Block, &renewal.args(), now);
                    prop_assert_eq!(numbers, blocks.renew(now, &renewal).numbers());
                }
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn what_is_no_url_of_a_server_is_refused_without_repeating_it() {
        for url in ["", "redis", "http://example.org", "redis://:secret@[::1"] {
            let error = Redis::open(url).unwrap_err().to_string();
            assert_eq!(error, "url must be as redis://user:password@host:port/db");
        }
    }
}
