//! `ConnectionLimit` under `axum::serve`: connections that never get to a request do not keep the others out, and layers
//! know who is at the other end. The clock is simulated, the sockets are real.
#![cfg(feature = "axum")]

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::ServiceBuilder;
use tower_backpressure::{
    ConcurrencyLimitLayer, ConnectionLimit, KeyedRateLimitLayer, OverloadResponseLayer, PeerAddr,
    Rate, client_addr::ClientAddr, concurrency_limit,
};

const SEC: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 20;

async fn listen() -> (
    SocketAddr,
    ConnectionLimit<TcpListener>,
    concurrency_limit::Handle,
) {
    let connections = ConcurrencyLimitLayer::new(CONNECTIONS).handle();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let listener = ConnectionLimit::new(listener, connections.clone());
    (server, listener, connections)
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" })).route(
        "/slow",
        get(|| async {
            sleep(60 * SEC).await;
            "at last"
        }),
    )
}

async fn ask(server: SocketAddr, path: &str) -> StatusCode {
    let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "localhost");
    let request = request.body(Body::empty()).unwrap();
    sender.send_request(request).await.unwrap().status()
}

/// Sends these bytes, and then one more each second, if there are more, for as long as the server listens.
async fn attack(server: SocketAddr, beginning: &'static [u8], trickles: Option<u8>) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let mut sent = stream.write_all(beginning).await;
    while let (Some(byte), Ok(())) = (trickles, &sent) {
        sleep(SEC).await;
        sent = stream.write_all(&[byte]).await;
    }
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test(start_paused = true)]
async fn connections_that_never_send_a_request_do_not_lock_the_others_out() {
    let attacks: [(&str, &[u8], Option<u8>); 7] = [
        ("nothing", b"", None),
        ("half a head", b"GET / HTTP/1.1\r\nx-", None),
        ("a head without end", b"GET / HTTP/1.1\r\nx-", Some(b'a')),
        ("empty lines", b"\r\n\r\n", Some(b'\n')),
        ("half a preface", b"PRI * HTTP/2.0\r\n\r\n", None),
        (
            "a preface",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            None,
        ),
        (
            "half a head of HTTP/2",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\0\0\0\0\x01\x82",
            None,
        ),
    ];
    for (what, beginning, trickles) in attacks {
        let (server, listener, connections) = listen().await;
        let serving = tokio::spawn(async move { axum::serve(listener, app()).await });
        let mut attackers = JoinSet::new();
        for _ in 0..CONNECTIONS {
            attackers.spawn(attack(server, beginning, trickles));
        }
        while connections.snapshot().in_flight < CONNECTIONS {
            tokio::task::yield_now().await;
        }
        let answer = timeout(60 * SEC, ask(server, "/")).await;
        assert_eq!(answer, Ok(StatusCode::OK), "{what}");
        // Their permits are back, and they know.
        let closed = timeout(60 * SEC, attackers.join_all()).await;
        assert!(closed.is_ok(), "{what}");
        serving.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_as_long_as_it_likes_once_its_head_is_there() {
    let (server, listener, _) = listen().await;
    tokio::spawn(async move { axum::serve(listener, app()).await });
    assert_eq!(ask(server, "/slow").await, StatusCode::OK);

    // A connection may also be idle between requests, which is for the server to bound.
    let mut stream = TcpStream::connect(server).await.unwrap();
    for _ in 0..3 {
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
        sleep(30 * SEC).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_for_the_first_head_can_be_changed_and_turned_off() {
    for (limit, closes) in [
        (listen().await, true),
        {
            let (server, listener, connections) = listen().await;
            ((server, listener.no_head_timeout(), connections), false)
        },
        {
            let (server, listener, connections) = listen().await;
            let longer = listener.head_timeout(1000 * SEC);
            ((server, longer, connections), false)
        },
    ] {
        let (server, listener, _) = limit;
        tokio::spawn(async move { axum::serve(listener, app()).await });
        let mut stream = TcpStream::connect(server).await.unwrap();
        stream.write_all(b"GET / ").await.unwrap();
        let closed = timeout(100 * SEC, stream.read_u8()).await;
        assert_eq!(closed.is_ok(), closes);
    }
}

/// What a loop accepts may speak TLS: then nothing is known of heads.
#[tokio::test(start_paused = true)]
async fn what_is_accepted_by_hand_has_no_deadline_unless_it_is_set() {
    let (server, listener, _) = listen().await;
    let mut client = TcpStream::connect(server).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    assert!(timeout(60 * SEC, stream.read_u8()).await.is_err());

    let listener = listener.head_timeout(5 * SEC);
    let mut second = TcpStream::connect(server).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    second.write_all(b"GET").await.unwrap();
    let mut read = [0; 3];
    stream.read_exact(&mut read).await.unwrap();
    let late = timeout(60 * SEC, stream.read_u8()).await.unwrap();
    assert_eq!(late.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    client.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rate_for_each_client_goes_with_a_limit_of_connections() {
    let client = ClientAddr::behind(["127.0.0.1"]).unwrap();
    let rate = Rate::every(3600 * SEC).burst(2);
    let limit = KeyedRateLimitLayer::new(rate, move |request: &Request<Body>| client.key(request));
    let handle = limit.handle();
    let app = app().layer(
        ServiceBuilder::new()
            .layer(OverloadResponseLayer::new())
            .layer(limit),
    );
    let (server, listener, _) = listen().await;
    let app = app.into_make_service_with_connect_info::<PeerAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let ask = async |forwarded: &str| {
        let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("/").header("host", "localhost");
        let request = request.header("x-forwarded-for", forwarded);
        let request = request.body(Body::empty()).unwrap();
        sender.send_request(request).await.unwrap().status()
    };
    // What a client makes up in front of its address does not help it.
    for (forwarded, status) in [
        ("203.0.113.1", StatusCode::OK),
        ("1.1.1.1, 203.0.113.1", StatusCode::OK),
        ("2.2.2.2, 203.0.113.1", StatusCode::TOO_MANY_REQUESTS),
        ("203.0.113.2", StatusCode::OK),
        ("2001:db8:0:1::1", StatusCode::OK),
        ("2001:db8:0:1::2", StatusCode::OK),
        ("2001:db8:0:1:abcd::3", StatusCode::TOO_MANY_REQUESTS),
        ("2001:db8:0:2::3", StatusCode::OK),
    ] {
        assert_eq!(ask(forwarded).await, status, "{forwarded}");
    }
    assert_eq!(handle.snapshot().keys, 4);
}
