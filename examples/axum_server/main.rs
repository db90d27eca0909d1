//! The axum server to copy, complete: it can be reached by strangers, and stays useful when they send too much.
//!
//! | what | how |
//! | --- | --- |
//! | connections: how many, and how long each has for the head of a request | `serve::listen_within`, `serve::serve` |
//! | a rate for each client address | [`KeyedRateLimitLayer`] by [`ClientAddr`] |
//! | authentication, which names the tenant | `authenticate` |
//! | overload: an adaptive limit, shared by weight between tenants | [`edge`] |
//! | health and metrics, on a listener of their own | `serve::internal` |
//! | settings from a file, read again when a SIGHUP comes | `Settings`, `settings.toml` |
//! | a graceful end at SIGTERM or Ctrl-C | `serve::serve` |
//!
//! Run it, send more than it can do, and look at what it makes of it:
//!
//! ```sh
//! cargo run --release --features metrics,net,serde --example axum_server -- --addr 127.0.0.1:3000
//! wrk -c 400 -t 2 -d 10s 'http://127.0.0.1:3000/work?ms=50'
//! curl -H 'authorization: Bearer acme-secret' 'http://127.0.0.1:3000/work?ms=50'
//! curl http://127.0.0.1:3001/metrics
//! ```
//!
//! While `wrk` runs, `curl` with the key of a customer is answered at once; without it most requests get 503 with
//! `retry-after`. To change a setting, copy `settings.toml`, start the server with `SETTINGS=` and its path, edit it, and
//! `kill -HUP` the server.

#[path = "../serve/mod.rs"]
mod serve;

use std::{env, error::Error, fs, time::Duration};

use axum::{
    Router,
    extract::{Query, Request},
    http::{
        StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE},
    },
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceBuilder;
use tower_backpressure::{
    ConcurrencyLimitLayer, KeyedRateLimitLayer, OverloadResponseLayer,
    client_addr::ClientAddr,
    concurrency_limit,
    config::{ConcurrencyLimitConfig, EdgeConfig, KeyedRateLimitConfig},
    edge, keyed_rate_limit,
    observe::Metrics,
    wfq::TenantId,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::read()?; // a server that cannot read its settings does not start
    let connections =
        ConcurrencyLimitLayer::from_config(&settings.connections)?.name("connections");
    // Behind a proxy, all clients would have the proxy's address: `ClientAddr::behind(["10.0.0.0/8"])?`.
    let client = ClientAddr::peer();
    let key = move |request: &Request| client.key(request);
    let per_client =
        KeyedRateLimitLayer::from_config(&settings.per_client, key)?.name("per_client");
    // A request counts until its response's body has been sent.
    let edge = edge().configured(&settings.edge)?.hold_until_body_end();

    let handles = Handles {
        connections: connections.handle(),
        per_client: per_client.handle(),
        edge: edge.handle(),
    };
    let metrics = Metrics::new();
    metrics.watch(&handles.connections)?;
    metrics.watch(&handles.per_client)?;
    metrics.watch(&handles.edge)?;
    tokio::spawn(reload(handles));

    let app = Router::new().route("/work", get(work)).layer(
        ServiceBuilder::new() // from the outside in
            .layer(OverloadResponseLayer::new()) // 429 for those over their rate
            .layer(per_client)
            .layer(middleware::from_fn(authenticate))
            .layer(edge),
    );

    let listener = serve::listen_within(&connections).await?;
    let scrape = move || async move {
        (
            [(CONTENT_TYPE, Metrics::CONTENT_TYPE)],
            metrics.prometheus(),
        )
    };
    let internal = Router::new()
        .route("/health", get(|| async { "alive\n" }))
        .route("/metrics", get(scrape));
    serve::internal(listener.local_addr()?, internal).await?;
    serve::serve(listener, app).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    connections: ConcurrencyLimitConfig,
    per_client: KeyedRateLimitConfig,
    #[serde(default)]
    edge: EdgeConfig,
}

impl Settings {
    /// From the file that `SETTINGS` names, or else the one beside this.
    fn read() -> Result<Self, Box<dyn Error>> {
        let text = match env::var_os("SETTINGS") {
            Some(path) => fs::read_to_string(path)?,
            None => include_str!("settings.toml").to_owned(),
        };
        Ok(toml::from_str(&text)?)
    }
}

struct Handles {
    connections: concurrency_limit::Handle,
    per_client: keyed_rate_limit::Handle,
    edge: edge::Handle,
}

/// At each SIGHUP, reads the settings again. What is wrong is reported, and changes nothing.
async fn reload(handles: Handles) {
    let mut hang_up = signal(SignalKind::hangup()).expect("a handler for SIGHUP");
    while hang_up.recv().await.is_some() {
        let applied = Settings::read().and_then(|settings| {
            handles.connections.apply(&settings.connections)?;
            handles.per_client.apply(&settings.per_client)?;
            handles.edge.apply(&settings.edge)?;
            Ok(())
        });
        match applied {
            Ok(()) => println!("settings applied"),
            Err(error) => eprintln!("settings not applied: {error}"),
        }
    }
}

/// Names the tenant of a request. Requests without a key share one place in the queue; a wrong key is rejected.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let customer = match request.headers().get(AUTHORIZATION) {
        None => None,
        Some(key) if key == "Bearer acme-secret" => Some("acme"), // look it up
        Some(_) => return Err(StatusCode::UNAUTHORIZED),
    };
    if let Some(customer) = customer {
        request.extensions_mut().insert(TenantId::new(customer));
    }
    Ok(next.run(request).await)
}

#[derive(Deserialize)]
struct Work {
    ms: u64,
}

async fn work(Query(work): Query<Work>) -> String {
    tokio::time::sleep(Duration::from_millis(work.ms.min(10_000))).await;
    format!("worked for {} ms\n", work.ms)
}
