//! The scripts, on a real server.

use proptest::{prelude::*, test_runner::TestRunner};

use super::*;
use crate::law::{
    block::{Blocks, Renewal},
    lease::{self, Ask},
};

#[allow(dead_code, reason = "a part of it is used")]
#[path = "../../../tests/fleet/server.rs"]
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let client = Client::open(server.url()).unwrap();
        let connection = runtime
            .block_on(client.get_multiplexed_async_connection())
            .unwrap();
        Some(Self {
            runtime,
            connection,
            _server: server,
        })
    }

    fn command<T: redis::FromRedisValue>(&self, command: &Cmd) -> T {
        let mut connection = self.connection.clone();
        self.runtime
            .block_on(command.query_async(&mut connection))
            .unwrap()
    }

    fn run(&self, script: Script, args: &[i64], now: u64) -> Vec<i64> {
        let last = args.len();
        let time = format!("{{ARGV[{}], ARGV[{}]}}", last + 1, last + 2);
        let source = script.source().replace("redis.call('TIME')", &time);
        assert_ne!(source, script.source());
        let now = [(now / 1_000_000) as i64, (now % 1_000_000) as i64];
        self.command(
            redis::cmd("EVAL")
                .arg(source)
                .arg(1)
                .arg("key")
                .arg(args)
                .arg(&now),
        )
    }
}

#[test]
fn the_lease_script_computes_what_the_law_does() {
    let Some(scripts) = Scripts::start() else {
        return;
    };
    let near = |of: u64| {
        prop_oneof![
            0..2_000_000u64,
            Just(of),
            any::<u64>().prop_map(|n| n >> 14)
        ]
    };
    let asks = (
        1..2_000_000u64,
        1..1_000_000u64,
        0..2_000_000u64,
        0..400_000u64,
        0..10_000_000u64,
    );
    let about_now = || {
        let ago = (0..3_000_000u64).prop_map(|ago| NOW - ago);
        let ahead = near(0).prop_map(|ahead| NOW + ahead);
        prop_oneof![Just(0), ago, ahead].prop_map(|tat| tat.min((1 << 53) - 1))
    };
    let cases = (prop::option::of(about_now()), about_now(), asks);
    TestRunner::default()
        .run(
            &cases,
            |(tat, seen, (cost, step, depth, horizon, reach))| {
                let ask = Ask {
                    cost,
                    step,
                    depth,
                    horizon,
                    reach: depth + horizon + reach,
                    seen,
                };
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
            },
        )
        .unwrap();
}

#[test]
fn the_block_script_computes_what_the_law_does() {
    let Some(scripts) = Scripts::start() else {
        return;
    };
    const MINUTE: u64 = 60_000_000;
    let renewal = (0..6u64, 0..20u64, 0..30u64, 1..40u64, 0..MINUTE);
    TestRunner::new(ProptestConfig::with_cases(40))
        .run(&prop::collection::vec(renewal, 1..30), |renewals| {
            scripts.command::<()>(redis::cmd("DEL").arg("key"));
            let (mut blocks, mut now) = (Blocks::default(), NOW);
            for (node, in_use, want, limit, passed) in renewals {
                now += passed;
                let node = node << 50; // as large as they are
                let renewal = Renewal {
                    node,
                    in_use,
                    want,
                    limit,
                    life: MINUTE,
                };
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
