//! A rate limit for each client address on an axum server, and two clients.
//!
//! `cargo run --example rate_limit_per_client`
//!
//! What to see: one client sends more than its quota allows, and gets 429 with `retry-after`. The other is always served.

use std::net::{IpAddr, SocketAddr};

use axum::{
    BoxError, Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::{StatusCode, header::RETRY_AFTER},
    routing::get,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tower::ServiceBuilder;
use tower_backpressure::{KeyedRateLimitLayer, OverloadResponseLayer, Rate};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Each client: 2 requests a second, 5 at once. All of them together: 100 a second.
    let limit = KeyedRateLimitLayer::new(Rate::per_second(2).burst(5), client_address)
        .global(Rate::per_second(100));
    let handle = limit.handle();
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(
        ServiceBuilder::new()
            .layer(OverloadResponseLayer::new()) // 429, and when to come back
            .layer(limit),
    );

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    println!("listening on http://{server}");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    // Two clients, at two addresses of this machine.
    for (client, requests) in [("127.0.0.1", 8), ("127.0.0.2", 3)] {
        let client: IpAddr = client.parse()?;
        println!("\n{requests} requests from {client}:");
        for (status, retry_after) in send(server, client, requests).await? {
            match retry_after {
                Some(seconds) => println!("  {status}, retry after {seconds} s"),
                None => println!("  {status}"),
            }
        }
    }
    println!("\n{:#?}", handle.snapshot());
    Ok(())
}

/// Where the request comes from, as the listener saw it: nothing that a client can choose.
fn client_address(request: &Request) -> Option<IpAddr> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
    Some(peer.0.ip())
}

/// Sends requests over one connection from that address; gives each status and `retry-after`.
async fn send(
    server: SocketAddr,
    client: IpAddr,
    requests: usize,
) -> Result<Vec<(StatusCode, Option<String>)>, BoxError> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(client, 0))?;
    let stream = TokioIo::new(socket.connect(server).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let mut answers = Vec::new();
    for _ in 0..requests {
        sender.ready().await?;
        let request = Request::get("/").header("host", server.to_string());
        let response = sender.send_request(request.body(Body::empty())?).await?;
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.map(|value| value.to_str().map(String::from));
        answers.push((response.status(), retry_after.transpose()?));
    }
    Ok(answers)
}
