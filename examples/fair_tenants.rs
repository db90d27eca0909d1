//! Weighted fair queueing on an axum server with two customers: one floods it, and the other does not notice.
//!
//! `cargo run --example fair_tenants`
//!
//! The server can work on four requests at once, 20 ms each: 200 requests a second. One customer keeps a
//! hundred requests waiting, the other sends one now and then. First they wait in one queue, then each in its own.
//!
//! What to see: the median of the quiet customer falls from half a second to about 35 ms. The flood is served as before.

use std::{net::SocketAddr, time::Duration};

use axum::{
    BoxError, Router,
    body::Body,
    extract::Request,
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::ServiceBuilder;
use tower_backpressure::{
    ConcurrencyLimitLayer, OverloadResponseLayer, WfqConfig, WfqLayer,
    wfq::{FromExtension, TenantId},
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!("customer   served   median     worst");
    println!("one line for all:");
    watch(None).await?;

    println!("weighted fair queueing:");
    let fair = WfqLayer::new(
        WfqConfig::default().max_waiting_per_tenant(200),
        FromExtension,
    );
    let handle = fair.handle();
    watch(Some(fair)).await?;

    println!("\nas the queue saw it:");
    for tenant in handle.tenants() {
        if tenant.served > 0 {
            let (share, weight) = (100.0 * tenant.share, tenant.weight);
            println!(
                "{:<8} weight {weight}, {share:.0} % of the service",
                tenant.tenant
            );
        }
    }
    Ok(())
}

/// A server with these layers, and two customers for two seconds.
async fn watch(fair: Option<WfqLayer>) -> Result<(), BoxError> {
    let work = || async {
        sleep(Duration::from_millis(20)).await;
        "done\n"
    };
    let app = Router::new()
        .route("/", get(work))
        .layer(
            // In one `ServiceBuilder`: the fair queue hands out the places of the limit inside it.
            ServiceBuilder::new()
                .layer(OverloadResponseLayer::new())
                .option_layer(fair)
                .layer(ConcurrencyLimitLayer::new(4).max_waiting(200)),
        )
        .layer(middleware::from_fn(authenticate));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let mut flood = JoinSet::new();
    for _ in 0..100 {
        flood.spawn(customer(server, "flood", Duration::ZERO));
    }
    let quiet = tokio::spawn(customer(server, "quiet", Duration::from_millis(50)));
    print("quiet", quiet.await??);
    let mut latencies = Vec::new();
    for customer in flood.join_all().await {
        latencies.extend(customer?);
    }
    print("flood", latencies);
    serving.abort();
    Ok(())
}

/// Finds out whose request it is, and says so to the layers inside. Here the token is the name; a server
/// would verify a signature.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION);
    if let Some(name) = token.and_then(|token| token.to_str().ok()) {
        let id = TenantId::new(name);
        request.extensions_mut().insert(id);
    }
    next.run(request).await
}

/// Sends one request after the other for two seconds; gives the latencies of those that were served.
async fn customer(
    server: SocketAddr,
    name: &'static str,
    pause: Duration,
) -> Result<Vec<Duration>, BoxError> {
    let stream = TokioIo::new(TcpStream::connect(server).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let mut latencies = Vec::new();
    let begun = now();
    while begun.elapsed() < Duration::from_secs(2) {
        let request = Request::get("/")
            .header("host", "localhost")
            .header(AUTHORIZATION, name)
            .body(Body::empty())?;
        let sent = now();
        let response = sender.send_request(request).await?;
        if response.status() == StatusCode::OK {
            latencies.push(sent.elapsed());
        }
        sender.ready().await?;
        sleep(pause).await;
    }
    Ok(latencies)
}

fn print(customer: &str, mut latencies: Vec<Duration>) {
    latencies.sort_unstable();
    let (served, last) = (latencies.len(), latencies.len().saturating_sub(1));
    let at = |i: usize| latencies.get(i).copied().unwrap_or_default().as_millis();
    println!(
        "{customer:<8}{served:>9}{:>6} ms{:>7} ms",
        at(served / 2),
        at(last)
    );
}

#[allow(clippy::disallowed_methods, reason = "a client measures real time")]
fn now() -> Instant {
    Instant::now()
}
