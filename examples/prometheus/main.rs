//! An axum server that shows Prometheus what its layers do, with a dashboard and alert rules for it.
//!
//! `cargo run --release --features axum,metrics --example prometheus -- --addr 127.0.0.1:3000`
//!
//! ```sh
//! wrk -c 400 -t 2 -d 10s 'http://127.0.0.1:3000/work?ms=50'
//! curl http://127.0.0.1:3000/metrics
//! ```
//!
//! Have Prometheus scrape it and take the rules in `alerts.yml`:
//!
//! ```yaml
//! rule_files: [alerts.yml]
//! scrape_configs:
//!   - job_name: work
//!     static_configs: [{ targets: ["127.0.0.1:3000"] }]
//! ```
//!
//! In Grafana, import `dashboard.json`, and say which Prometheus it is. `/db` is a route whose backend fails
//! half of the time, behind a circuit breaker, so that there is something to see.

use std::{
    error::Error,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use axum::{
    Router,
    extract::Query,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tower::ServiceBuilder;
use tower_backpressure::{
    ByStatus, CircuitBreakerConfig, CircuitBreakerLayer, ConcurrencyLimitLayer, ConnectionLimit,
    OverloadResponseLayer, edge, observe::Metrics,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let edge = edge().limits(1, 20, 100).hold_until_body_end();
    let breaker = CircuitBreakerLayer::new(CircuitBreakerConfig::default())
        .classify(ByStatus)
        .name("database");
    let connections = ConcurrencyLimitLayer::new(4000).name("connections");

    let metrics = Metrics::new();
    metrics.watch(&edge.handle())?;
    metrics.watch(&breaker.handle())?;
    metrics.watch(&connections.handle())?;

    let database = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new())
        .layer(breaker);
    let scrape = move || async move {
        (
            [(CONTENT_TYPE, Metrics::CONTENT_TYPE)],
            metrics.prometheus(),
        )
    };
    let app = Router::new()
        .route("/db", get(db).layer(database))
        .route("/work", get(work))
        .layer(edge)
        // Added after the layer, so outside it: it has to be answered above all when the others are not.
        .route("/metrics", get(scrape));

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

/// Works for ten requests, then fails for ten.
async fn db() -> Result<&'static str, StatusCode> {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    match ASKED.fetch_add(1, Relaxed) / 10 % 2 {
        0 => Ok("a row\n"),
        _ => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
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
