//! Requests count until they are over: streams, aborted clients, upgraded connections; over real sockets.

use std::{convert::Infallible, net::SocketAddr};

use axum::{
    Router,
    body::Body,
    extract::WebSocketUpgrade,
    response::{
        Response,
        sse::{Event, Sse},
    },
    routing::get,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tonic::transport::{Endpoint, Server, server::TcpIncoming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower_backpressure::{Edge, UntilBodyEnd, edge, edge::Handle, hold::KeepPermits};

type Held = Edge<tower_backpressure::wfq::FromExtension, UntilBodyEnd>;

/// A stack whose requests count until their bodies have ended, and what is in flight in it.
fn stack() -> (Held, Handle) {
    let edge = edge().hold_until_body_end();
    let handle = edge.handle();
    (edge, handle)
}

/// Whoever leaves does so when the server gets to know of it.
async fn until_in_flight(handle: &Handle, in_flight: usize) {
    while handle.snapshot().permits.in_flight != in_flight {
        tokio::task::yield_now().await;
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    server
}

/// A response, and the connection that it comes over.
async fn ask(server: SocketAddr) -> (http1::SendRequest<Empty<Bytes>>, Response<Incoming>) {
    let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/").header("host", "localhost");
    let request = request.body(Empty::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    (sender, response)
}

#[tokio::test]
async fn a_body_that_streams_holds_its_permit_to_the_end() {
    let (edge, handle) = stack();
    let (go_on, goes_on) = watch::channel(1);
    let chunks = move || {
        let goes_on = goes_on.clone();
        let chunks = stream::unfold((goes_on, 0), |(mut goes_on, sent)| async move {
            let may = *goes_on
                .wait_for(|may| *may > sent || *may == 0)
                .await
                .ok()?;
            (may > 0).then(|| {
                (
                    Ok::<_, Infallible>(Bytes::from("chunk")),
                    (goes_on, sent + 1),
                )
            })
        });
        async { Body::from_stream(chunks) }
    };
    let server = serve(Router::new().route("/", get(chunks)).layer(edge)).await;
    let (_connection, response) = ask(server).await;
    let mut body = response.into_body();
    for chunk in 2..10 {
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "chunk"
        );
        assert_eq!(handle.snapshot().permits.in_flight, 1);
        go_on.send(chunk).unwrap();
    }
    go_on.send(0).unwrap();
    while body.frame().await.is_some() {}
    until_in_flight(&handle, 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_an_event_stream_frees_its_permit() {
    let (edge, handle) = stack();
    let events = || async {
        let once = stream::iter([Ok::<_, Infallible>(Event::default().data("hello"))]);
        Sse::new(once.chain(stream::pending()))
    };
    let server = serve(Router::new().route("/", get(events)).layer(edge)).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (connection, response) = ask(server).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.into_body();
        let event = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(event, "data: hello\n\n");
        clients.push((connection, body));
    }
    for left in (0..3).rev() {
        assert_eq!(handle.snapshot().permits.in_flight, left + 1);
        clients.pop();
        until_in_flight(&handle, left).await;
    }
}

#[tokio::test]
async fn a_grpc_stream_holds_its_permit_until_it_is_dropped() {
    let (edge, handle) = stack();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(
        Server::builder()
            .layer(edge)
            .add_service(health)
            .serve_with_incoming(TcpIncoming::from(listener)),
    );
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    client.check(HealthCheckRequest::default()).await.unwrap();
    until_in_flight(&handle, 0).await;
    let watched = client.watch(HealthCheckRequest::default()).await.unwrap();
    let mut watched = watched.into_inner();
    assert!(watched.message().await.unwrap().is_some());
    assert_eq!(handle.snapshot().permits.in_flight, 1);
    drop(watched);
    until_in_flight(&handle, 0).await;
}

#[tokio::test]
async fn a_socket_takes_the_permit_of_its_handshake_along() {
    async fn socket(upgrade: WebSocketUpgrade) -> Response {
        let keep = KeepPermits::new();
        let kept = keep.clone();
        let mut response = upgrade.on_upgrade(|mut socket| async move {
            while let Some(Ok(_)) = socket.recv().await {}
            drop(kept);
        });
        response.extensions_mut().insert(keep);
        response
    }
    let (edge, handle) = stack();
    let server = serve(Router::new().route("/", get(socket)).layer(edge)).await;
    let stream = TcpStream::connect(server).await.unwrap();
    let url = format!("ws://{server}/");
    let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert_eq!(handle.snapshot().permits.in_flight, 1);
    }
    socket.close(None).await.unwrap();
    while socket.next().await.is_some() {}
    until_in_flight(&handle, 0).await;
}
