//! A limit of a fleet beside one call of the same server for each request, and beside the local limit.
//! `cargo bench --all-features --bench fleet` (needs `redis-server` on the PATH; says so where it is not).
//!
//! Decisions a second of one task on one thread, and calls for each of them.

use std::{
    env,
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tower_backpressure::{
    Fleet, Rate, RateLimitLayer,
    fleet::{Redis, Script, Store},
};

/// More than one thread asks for: what is measured is the cost of a decision, not the limit.
const RATE: u64 = 100_000_000;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> Option<(Server, String)> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let port = listener.local_addr().ok()?.port();
    drop(listener);
    let mut command = Command::new("redis-server");
    command.args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
    ]);
    let server = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    Some((Server(server), format!("redis://127.0.0.1:{port}/")))
}

fn main() {
    let Some((_server, url)) = start() else {
        println!("SKIPPED: there is no redis-server on the PATH");
        return;
    };
    let is_test = env::args().any(|arg| arg == "--test");
    let span = Duration::from_millis(if is_test { 50 } else { 2000 });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("it builds").block_on(run(&url, span));
}

async fn run(url: &str, span: Duration) {
    let redis = Redis::open(url).expect("a URL");
    let args = [1, 1, 1_000_000, 300_000, 3_000_000, 0];
    while redis.run(Script::Lease, b"bench", &args).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await; // it comes up
    }
    println!("{:40} {:>14} {:>18}", "", "decisions/s", "calls a decision");

    let start = now();
    let mut decisions = 0u64;
    while start.elapsed() < span {
        redis
            .run(Script::Lease, b"bench", &args)
            .await
            .expect("an answer");
        decisions += 1;
    }
    says("a call for each request", decisions, start, 1.0);

    let fleet = Fleet::redis(url, 1).expect("a URL");
    let handle = fleet.rate_limit("bench", Rate::per_second(RATE)).handle();
    let start = now();
    let mut decisions = 0u64;
    while start.elapsed() < span {
        // As a server does between requests: the runtime has its turn.
        for _ in 0..100 {
            handle.acquire(1).await.expect("it waits");
            decisions += 1;
        }
        tokio::task::yield_now().await;
    }
    let snapshot = fleet.snapshot();
    let calls = (snapshot.granted + snapshot.refused + snapshot.failed) as f64;
    says(
        "Fleet::rate_limit",
        decisions,
        start,
        calls / decisions as f64,
    );

    let handle = RateLimitLayer::new(Rate::per_second(RATE)).handle();
    let start = now();
    let mut decisions = 0u64;
    while start.elapsed() < span {
        for _ in 0..100 {
            handle.acquire(1).await.expect("it waits");
            decisions += 1;
        }
        tokio::task::yield_now().await;
    }
    says("RateLimitLayer, on one node", decisions, start, 0.0);
}

fn says(what: &str, decisions: u64, start: Instant, calls: f64) {
    let per_second = decisions as f64 / start.elapsed().as_secs_f64();
    println!("{what:40} {per_second:14.0} {calls:18.6}");
}

#[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
fn now() -> Instant {
    Instant::now()
}
