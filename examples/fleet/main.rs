//! One limit for three servers: what each lets through when the load is skewed, a server dies, and Redis stops.
//!
//! `cargo run --example fleet --features axum,redis`
//!
//! It starts a `redis-server` of its own, and itself three times as an axum server. Without a `redis-server` on the PATH the
//! three servers run in one process, and share a stand-in in memory.

mod load;
mod nodes;

use std::time::Duration;

use axum::BoxError;

use load::{Sent, send};
use nodes::{Nodes, RATE};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    if let Some(told) = std::env::args().nth(1) {
        return nodes::serve_until_killed(&told).await;
    }
    let mut nodes = Nodes::start().await?;
    println!("{}\n", nodes.says());
    println!("All three together may serve {RATE} requests a second, with a burst of 50.\n");
    println!(
        "{:44} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "requests served in 1.5 s by", "node 1", "node 2", "node 3", "all", "allowed"
    );

    // Requests a second to each node.
    let phase = Phase {
        span: Duration::from_millis(1500),
    };
    phase.run("1000/s to each", &nodes, [1000.0; 3]).await;
    phase
        .run(
            "2400/s to node 1, 300/s to the others",
            &nodes,
            [2400.0, 300.0, 300.0],
        )
        .await;
    nodes.kill_one().await;
    tokio::time::sleep(Duration::from_millis(1200)).await; // a lease, and its time to live
    phase
        .run("the same, node 3 is dead", &nodes, [2400.0, 300.0, 0.0])
        .await;
    nodes.stop_server();
    phase
        .run(
            "Redis stops: each has a third",
            &nodes,
            [2400.0, 300.0, 0.0],
        )
        .await;
    nodes.continue_server();
    tokio::time::sleep(Duration::from_millis(3200)).await; // it is noticed, and all others have noticed, too
    phase
        .run("Redis goes on", &nodes, [2400.0, 300.0, 0.0])
        .await;
    Ok(())
}

struct Phase {
    span: Duration,
}

impl Phase {
    async fn run(&self, what: &str, nodes: &Nodes, rates: [f64; 3]) {
        let Sent { served, slowest } = send(nodes.addresses(), rates, self.span).await;
        let [a, b, c] = served;
        let allowed = RATE as f64 * self.span.as_secs_f64();
        println!(
            "{what:44} {a:8} {b:8} {c:8} {:8} {allowed:9.0}   slowest answer {slowest:?}",
            a + b + c
        );
    }
}
