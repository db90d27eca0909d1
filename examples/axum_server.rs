//! An axum server with the whole stack, and a health route outside it.
//!
//! `cargo run --release --features axum --example axum_server -- --addr 127.0.0.1:3000`
//!
//! Ask for more than it can do, and look at what it makes of it:
//!
//! ```sh
//! wrk -c 400 -t 2 -d 10s 'http://127.0.0.1:3000/work?ms=50'
//! curl http://127.0.0.1:3000/health
//! ```
//!
//! At most 100 requests are in flight, and 4000 connections are open.

use std::{error::Error, time::Duration};

use axum::{Router, extract::Query, routing::get};
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tower_backpressure::{AdaptiveConcurrencyLayer, ConcurrencyLimitLayer, ConnectionLimit, edge};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limit = AdaptiveConcurrencyLayer::vegas().limits(1, 20, 100);
    let edge = edge().adaptive(limit).hold_until_body_end();
    let handle = edge.handle();

    let app = Router::new()
        .route("/work", get(work))
        .layer(edge)
        // Added after the layer, so outside it: whoever asks for this wants to know about the server, not to use it.
        .route(
            "/health",
            get(move || {
                let (codel, limit) = (handle.codel.snapshot(), handle.adaptive.snapshot().permits);
                let text = format!(
                    "{} of {} in flight, {} refused, overloaded: {}\n",
                    limit.in_flight,
                    limit.limit,
                    codel.rejected.total(),
                    codel.overloaded
                );
                async { text }
            }),
        );

    let connections = ConcurrencyLimitLayer::new(4000).name("connections");
    let listener = TcpListener::bind(addr()?).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let listener = ConnectionLimit::new(listener, connections.handle());
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown())
        .await?;
    println!("stopped");
    Ok(())
}

#[derive(Deserialize)]
struct Work {
    ms: u64,
}

async fn work(Query(work): Query<Work>) -> String {
    tokio::time::sleep(Duration::from_millis(work.ms.min(10_000))).await;
    format!("worked for {} ms\n", work.ms)
}

/// What follows `--addr`.
fn addr() -> Result<String, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (None, _) => Ok("127.0.0.1:3000".into()),
        (Some("--addr"), Some(addr)) => Ok(addr),
        _ => Err("usage: [--addr ADDRESS:PORT]".into()),
    }
}

/// Ctrl-C, or SIGTERM.
async fn shutdown() {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
