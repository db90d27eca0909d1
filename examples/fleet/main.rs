//! One limit for three servers: what each lets through when the load is skewed, a server dies, and Redis stops.
//!
//! `cargo run --example fleet --features redis`
//!
//! It starts a `redis-server` of its own, and itself three times as an axum server. Without a `redis-server` on the PATH the
//! three servers run in one process, and share a stand-in in memory.

mod load;
mod nodes;

use std::time::Duration;

use axum::BoxError;

use load::{Sent, send};
use nodes::{BURST, Nodes, RATE};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    if let Some(told) = std::env::args().nth(1) {
        return nodes::serve_until_killed(&told).await;
    }
    let mut nodes = Nodes::start().await?;
    println!("{}\n", nodes.says());
    println!("All three together may serve {RATE} requests a second, with a burst of {BURST}.\n");
    println!(
        "{:38} node 1 node 2 node 3    all  allowed",
        "requests served by"
    );

    // Requests a second to each node.
    run("400/s to each", &nodes, [400.0; 3]).await;
    run(
        "900/s to node 1, 150/s to the others",
        &nodes,
        [900.0, 150.0, 150.0],
    )
    .await;
    nodes.kill_one().await;
    tokio::time::sleep(Duration::from_millis(1200)).await; // a lease, and its time to live
    run("the same, and node 3 is dead", &nodes, [900.0, 150.0, 0.0]).await;
    nodes.stop_server();
    run("Redis stops: each has a third", &nodes, [900.0, 150.0, 0.0]).await;
    nodes.continue_server();
    tokio::time::sleep(Duration::from_millis(3200)).await; // nodes notice, and wait until others have
    run("Redis goes on", &nodes, [900.0, 150.0, 0.0]).await;
    Ok(())
}

async fn run(what: &str, nodes: &Nodes, rates: [f64; 3]) {
    let Sent { served, took } = send(nodes.addresses(), rates, Duration::from_millis(1500)).await;
    let [a, b, c] = served;
    let allowed = BURST as f64 + RATE as f64 * took.as_secs_f64();
    println!(
        "{what:38} {a:6} {b:6} {c:6} {:6} {allowed:8.0}   in {took:.1?}",
        a + b + c
    );
}
