//! An axum server with the whole stack and a rate for each client, that strangers can reach.
//!
//! `cargo run --release --features net --example axum_server -- --addr 127.0.0.1:3000`
//!
//! Ask for more than it can do, and look at what it makes of it:
//!
//! ```sh
//! wrk -c 400 -t 2 -d 10s 'http://127.0.0.1:3000/work?ms=50'
//! curl http://127.0.0.1:3001/health
//! ```
//!
//! At most 100 requests are in flight, 4000 connections are open, and a client may send 2000 requests a second.

mod serve;

use std::{error::Error, time::Duration};

use axum::{
    Router,
    extract::{Query, Request},
    routing::get,
};
use serde::Deserialize;
use tower::ServiceBuilder;
use tower_backpressure::{
    KeyedRateLimitLayer, OverloadResponseLayer, Rate, client_addr::ClientAddr, edge,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let edge = edge().limits(1, 20, 100).hold_until_body_end();
    let handle = edge.handle();

    // Behind a proxy, all clients would have the proxy's address: `ClientAddr::behind(["10.0.0.0/8"])?`.
    let client = ClientAddr::peer();
    let rate = Rate::per_second(2000).burst(4000);
    let per_client = KeyedRateLimitLayer::new(rate, move |request: &Request| client.key(request));

    let app = Router::new().route("/work", get(work)).layer(edge).layer(
        ServiceBuilder::new()
            .layer(OverloadResponseLayer::new()) // 429, and when to come back
            .layer(per_client),
    );

    let listener = serve::listen().await?;
    serve::health(listener.local_addr()?, move || {
        let edge = handle.snapshot();
        format!(
            "{} of {} in flight, {} rejected, overloaded: {}\n",
            edge.permits.in_flight,
            edge.permits.limit,
            edge.permits.rejected.total(),
            edge.age.overloaded
        )
    })
    .await?;
    serve::serve(listener, app).await
}

#[derive(Deserialize)]
struct Work {
    ms: u64,
}

async fn work(Query(work): Query<Work>) -> String {
    tokio::time::sleep(Duration::from_millis(work.ms.min(10_000))).await;
    format!("worked for {} ms\n", work.ms)
}
