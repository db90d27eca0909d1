//! Admission by age on an overloaded axum server, whose clients do not wait for ever.
//!
//! `cargo run --example codel_admission`
//!
//! The server can work on eight requests at once, 20 ms each: 400 a second. Three hundred clients send one request
//! after the other, and cannot use an answer that takes more than half a second. First all of them wait in one queue; then
//! requests that are too old are rejected, and the client retries when it is told to.
//!
//! What to see: about as many requests are served in both runs. But in the queue few of the answers are in time, and with
//! admission by age all of them, with a seventh of the latency.

use std::{net::SocketAddr, time::Duration};

use axum::{
    BoxError, Router, body::Body, extract::Request, http::header::RETRY_AFTER, routing::get,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::ServiceBuilder;
use tower_backpressure::{
    CoDelConfig, CoDelLayer, ConcurrencyLimitLayer, OverloadResponseLayer, SubmittedAtLayer,
};

const PATIENCE: Duration = Duration::from_millis(500);
const LASTING: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!("                     answers   in time   refused     p95");
    watch("all wait in line", None).await?;

    // Requests take 20 ms: a target of twice that, and at most a tenth of the clients' patience.
    let config = CoDelConfig::default().target(Duration::from_millis(50));
    let codel = CoDelLayer::new(config);
    let handle = codel.handle();
    watch("CoDel admission", Some(codel)).await?;
    println!("\n{:#?}", handle.snapshot());
    Ok(())
}

/// A server with these layers, and its clients, for a while.
async fn watch(name: &str, codel: Option<CoDelLayer>) -> Result<(), BoxError> {
    let work = || async {
        sleep(Duration::from_millis(20)).await;
        "done\n"
    };
    let app = Router::new()
        .route("/", get(work))
        .layer(
            // In one `ServiceBuilder`: requests wait for the limit, and are judged when it has room for them.
            ServiceBuilder::new()
                .layer(OverloadResponseLayer::new())
                .option_layer(codel)
                .layer(ConcurrencyLimitLayer::new(8)),
        )
        // In one of its own, which axum calls as soon as there is a request.
        .layer(SubmittedAtLayer::new());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let mut clients = JoinSet::new();
    for _ in 0..300 {
        clients.spawn(client(server));
    }
    let (mut latencies, mut refused) = (Vec::new(), 0);
    for seen in clients.join_all().await {
        let (served, sent_away) = seen?;
        latencies.extend(served);
        refused += sent_away;
    }
    serving.abort();
    latencies.sort_unstable();
    let in_time = latencies
        .iter()
        .filter(|latency| **latency <= PATIENCE)
        .count();
    let p95 = latencies.get(latencies.len() * 95 / 100).copied();
    let p95 = p95.unwrap_or_default().as_millis();
    println!(
        "{name:<18}{:>10}{in_time:>10}{refused:>10}{p95:>5} ms",
        latencies.len()
    );
    Ok(())
}

/// Sends one request after the other; gives the latencies of those that were served, and how many were not.
async fn client(server: SocketAddr) -> Result<(Vec<Duration>, usize), BoxError> {
    let stream = TokioIo::new(TcpStream::connect(server).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let (mut latencies, mut refused) = (Vec::new(), 0);
    let begun = now();
    while begun.elapsed() < LASTING {
        let request = Request::get("/")
            .header("host", "localhost")
            .body(Body::empty())?;
        let sent = now();
        let response = sender.send_request(request).await?;
        match response.headers().get(RETRY_AFTER) {
            None => latencies.push(sent.elapsed()),
            Some(seconds) => {
                refused += 1;
                sleep(Duration::from_secs(seconds.to_str()?.parse()?)).await;
            }
        }
        sender.ready().await?;
    }
    Ok((latencies, refused))
}

#[allow(clippy::disallowed_methods, reason = "a client measures real time")]
fn now() -> Instant {
    Instant::now()
}
