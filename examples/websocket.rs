//! WebSockets on an axum server: two may be open, and the next is closed with 1013 and told when to retry.
//!
//! `cargo run --release --features net --example websocket -- --addr 127.0.0.1:3000`, and open http://127.0.0.1:3000 in a browser.
//!
//! What to see: the page opens three sockets, and shows the code and the reason of the one that is rejected. Of a handshake
//! that fails, a browser would only say that it failed (1006).

mod serve;

use std::{error::Error, time::Duration};

use axum::{
    Router,
    extract::{
        Query, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    response::{Html, Response},
    routing::get,
};
use serde::Deserialize;
use tower::ServiceBuilder;
use tower_backpressure::{
    ConcurrencyLimitLayer, LoadShedLayer, OverloadResponseLayer, hold::KeepPermits,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let sockets = ConcurrencyLimitLayer::new(2).name("sockets");
    let handle = sockets.handle();
    let app = Router::new()
        .route("/socket", get(socket))
        .route("/work", get(work))
        .layer(
            ServiceBuilder::new()
                .layer(OverloadResponseLayer::new())
                .layer(LoadShedLayer::new())
                .layer(sockets.hold_until_body_end()),
        )
        .route("/", get(|| async { Html(PAGE) }));

    let listener = serve::listen().await?;
    serve::health(listener.local_addr()?, move || {
        let sockets = handle.snapshot();
        format!("{} of {} sockets open\n", sockets.in_flight, sockets.limit)
    })
    .await?;
    serve::serve(listener, app).await
}

/// The response to a handshake ends at once, and the socket goes on: it takes the permit along.
async fn socket(upgrade: WebSocketUpgrade) -> Response {
    let keep = KeepPermits::new();
    let kept = keep.clone();
    let mut response = upgrade.on_upgrade(|socket| async move {
        echo(socket).await;
        drop(kept);
    });
    response.extensions_mut().insert(keep);
    response
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if let Message::Text(_) = message {
            if socket.send(message).await.is_err() {
                return;
            }
        }
    }
}

const PAGE: &str = r##"<!doctype html><title>WebSockets</title><ul id="log"></ul><script>
  const say = text => document.querySelector("#log").append(
    Object.assign(document.createElement("li"), { textContent: text }));
  for (const name of ["first", "second", "third"]) {
    const socket = new WebSocket(`ws://${location.host}/socket`);
    socket.onopen = () => say(`${name}: open`);
    socket.onclose = event => say(`${name}: closed with ${event.code}, ${event.reason}`);
  }
</script>"##;

#[derive(Deserialize)]
struct Work {
    ms: u64,
}

async fn work(Query(work): Query<Work>) -> String {
    tokio::time::sleep(Duration::from_millis(work.ms.min(10_000))).await;
    format!("worked for {} ms\n", work.ms)
}
