//! A tonic server with the whole stack: the gRPC health service, and plain HTTP beside it.
//!
//! `cargo run --release --example tonic_server -- --addr 127.0.0.1:3000`
//!
//! ```sh
//! curl --http2-prior-knowledge 'http://127.0.0.1:3000/work?ms=50'
//! nghttp -n -m 500 'http://127.0.0.1:3000/work?ms=50'   # 500 requests at once
//! grpcurl -plaintext 127.0.0.1:3000 grpc.health.v1.Health/Check
//! ```
//!
//! A client that is refused sees RESOURCE_EXHAUSTED and when to come back; one that speaks HTTP sees 503.

use std::{error::Error, time::Duration};

use axum::{extract::Query, routing::get};
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tower_backpressure::{AdaptiveConcurrencyLayer, WfqConfig, WfqLayer, edge, wfq};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (_reporter, health) = tonic_health::server::health_reporter();

    // Each service is a tenant: a flood of calls to one of them leaves room for the others.
    let by_service = wfq::from_head(|head| head.uri.path().split('/').nth(1));
    let config = WfqConfig::default().weight("grpc.health.v1.Health", 10);
    let edge = edge()
        .wfq(WfqLayer::new(config, by_service))
        .adaptive(AdaptiveConcurrencyLayer::vegas().limits(1, 20, 100))
        .hold_until_body_end();

    let http = Routes::new(health)
        .into_axum_router()
        .route("/work", get(work));

    let listener = TcpListener::bind(addr()?).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Server::builder()
        .layer(edge)
        .add_routes(http.into())
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), shutdown())
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
