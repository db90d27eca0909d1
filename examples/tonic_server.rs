//! A tonic server with `edge()`: the gRPC health service, and plain HTTP beside it.
//!
//! `cargo run --release --features tonic --example tonic_server -- --addr 127.0.0.1:3000`
//!
//! ```sh
//! curl --http2-prior-knowledge 'http://127.0.0.1:3000/work?ms=50'
//! nghttp -n -m 500 'http://127.0.0.1:3000/work?ms=50'   # 500 requests at once
//! grpcurl -plaintext 127.0.0.1:3000 grpc.health.v1.Health/Check
//! curl http://127.0.0.1:3001/health
//! ```
//!
//! What to see: a rejected call gets RESOURCE_EXHAUSTED and when to retry; a rejected HTTP request gets 503 with
//! `retry-after`. Each gRPC service is a tenant, so a flood of `/work` leaves room for health checks.

mod serve;

use std::{error::Error, time::Duration};

use axum::{extract::Query, routing::get};
use futures_util::stream;
use serde::Deserialize;
use tonic::{service::Routes, transport::Server};
use tower_backpressure::{WfqConfig, edge, wfq};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (_reporter, health) = tonic_health::server::health_reporter();

    // Each service is a tenant: a flood of calls to one of them leaves room for the others.
    let by_service = wfq::from_head(|head| head.uri.path().split('/').nth(1));
    let config = WfqConfig::default().weight("grpc.health.v1.Health", 10);
    let edge = edge()
        .tenant(by_service)
        .wfq(config)
        .limits(1, 20, 100)
        .hold_until_body_end();
    let handle = edge.handle();

    let http = Routes::new(health)
        .into_axum_router()
        .route("/work", get(work));

    let listener = serve::listen().await?;
    serve::health(listener.local_addr()?, move || {
        let limit = handle.snapshot().permits;
        format!("{} of {} in flight\n", limit.in_flight, limit.limit)
    })
    .await?;
    let incoming = stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        if accepted.is_err() {
            tokio::time::sleep(Duration::from_secs(1)).await; // no file descriptor is left, say
        }
        Some((accepted, listener))
    });
    Server::builder()
        // The listener has seen to the first call. Then a client may be idle, but not gone, and not for ever.
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .max_connection_age(Duration::from_secs(300))
        .max_concurrent_streams(100)
        .layer(edge)
        .add_routes(http.into())
        .serve_with_incoming_shutdown(incoming, serve::shutdown())
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
