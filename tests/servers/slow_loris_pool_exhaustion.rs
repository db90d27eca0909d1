//! Thousands of connections that take their time: over the head of a request, over its body, over the
//! response. None of it takes the server from those who are honest, and all of it is given back.
//!
//! The server is `examples/hyper_server.rs` with a fair queue: connections are bounded in number and in
//! how long they may last, heads and bodies in the time that they may take, and each client's address in
//! how much of the limit it may have. The clock is simulated, the sockets are real.
#![cfg(all(feature = "hyper", feature = "net", target_os = "linux"))]

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{ServiceBuilder, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, ConnectionLimit, WfqConfig, concurrency_limit, edge, edge::Handle,
    submitted_at::StampDecoded, wfq,
};

const SEC: Duration = Duration::from_secs(1);
const ATTACKER: [u8; 4] = [127, 0, 0, 2];
const HONEST: [u8; 4] = [127, 0, 0, 3];

/// A client has this long for a body, and a connection this long for everything.
const LONGEST_BODY: Duration = Duration::from_secs(2);
const LONGEST_CONNECTION: Duration = Duration::from_secs(30);

struct Pool {
    server: SocketAddr,
    connections: concurrency_limit::Handle,
    handle: Handle,
}

/// `/` reads the body and answers; `/large` answers with 16 MiB, piece by piece, which is more than the sockets' buffers
/// take.
async fn work(request: Request<Incoming>) -> Result<Response<Large>, Infallible> {
    let pieces = if request.uri().path() == "/large" {
        256
    } else {
        1
    };
    let body = timeout(LONGEST_BODY, request.into_body().collect()).await;
    let mut response = Response::new(large(pieces));
    if !matches!(body, Ok(Ok(_))) {
        *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
    }
    Ok(response)
}

type Large = StreamBody<Pieces>;
type Pieces = stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

fn large(pieces: usize) -> Large {
    let piece = Bytes::from_static(&[b'x'; 64 << 10]);
    let pieces: Vec<_> = (0..pieces)
        .map(|_| Ok(Frame::data(piece.clone())))
        .collect();
    StreamBody::new(stream::iter(pieces))
}

async fn serve(most_connections: usize) -> Pool {
    let fair = WfqConfig::default()
        .max_waiting(4096)
        .max_waiting_per_tenant(2000)
        .max_in_flight_per_tenant(10);
    let edge = edge().wfq(fair).limits(20, 20, 20).hold_until_body_end();
    let handle = edge.handle();
    let limit = ConcurrencyLimitLayer::new(most_connections);
    let connections = limit.handle();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = ConnectionLimit::new(listener, connections.clone());
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let by_address = move |mut request: Request<Incoming>| {
                let tenant = wfq::TenantId::new(peer.ip().to_string());
                request.extensions_mut().insert(tenant);
                request
            };
            let service = ServiceBuilder::new()
                .map_request(by_address)
                .layer(edge.clone())
                .service(service_fn(work));
            let service = StampDecoded::new(TowerToHyperService::new(service));
            tokio::spawn(timeout(LONGEST_CONNECTION, async move {
                let mut server = Builder::new(TokioExecutor::new());
                (server.http1().timer(TokioTimer::new())).header_read_timeout(5 * SEC);
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            }));
        }
    });
    Pool {
        server,
        connections,
        handle,
    }
}

async fn connect(from: [u8; 4], server: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(server).await.unwrap()
}

/// Sends these bytes at once, and then one more each second, for as long as the server listens.
async fn trickle(mut stream: TcpStream, beginning: &'static str) {
    let mut sent = stream.write_all(beginning.as_bytes()).await;
    while sent.is_ok() {
        sleep(SEC).await;
        sent = stream.write_all(b"a").await;
    }
}

/// Asks for much, and reads a byte each second.
async fn sip(mut stream: TcpStream) {
    let request = b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let _ = stream.write_all(request).await;
    while stream.read_u8().await.is_ok() {
        sleep(SEC).await;
    }
}

async fn honest(server: SocketAddr) -> StatusCode {
    let stream = TokioIo::new(connect(HONEST, server).await);
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("/").header("host", "localhost");
    let request = request.body(Full::new(Bytes::from("hello"))).unwrap();
    sender.send_request(request).await.unwrap().status()
}

/// As many as there are file descriptors for: each connection has two ends here.
fn attackers() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let files = files.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    let attackers = (files.unwrap_or(1024_usize).saturating_sub(200) / 2).min(3000);
    println!("{attackers} connections that take their time");
    attackers
}

#[tokio::test(start_paused = true)]
async fn slow_clients_do_not_exhaust_the_pool() {
    let attackers = attackers();
    let pool = serve(attackers + 100).await;
    let server = pool.server;
    let mut connections = Vec::new();
    for _ in 0..attackers {
        connections.push(connect(ATTACKER, server).await);
    }
    let mut attack = JoinSet::new();
    for (attacker, stream) in connections.into_iter().enumerate() {
        match attacker % 3 {
            0 => attack.spawn(trickle(stream, "GET / HTTP/1.1\r\nx-")),
            1 => attack.spawn(trickle(
                stream,
                "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n",
            )),
            _ => attack.spawn(sip(stream)),
        };
    }
    // The attack is on: all that one address may have of the limit, it has.
    let in_flight = || pool.handle.snapshot().permits.in_flight;
    while in_flight() < 10 {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        assert_eq!(honest(server).await, StatusCode::OK);
        assert!(in_flight() <= 20);
        sleep(SEC).await;
    }
    let most = pool.connections.snapshot().peak_in_flight;
    println!("{most} connections at once");
    assert!(most > attackers / 2 && most <= attackers + 100);

    // Those who are over their time are cut off, whether or not they have noticed, and everything is given back.
    sleep(LONGEST_CONNECTION).await;
    while in_flight() > 0 || pool.connections.snapshot().in_flight > 1 {
        tokio::task::yield_now().await;
    }
    let permits = pool.handle.snapshot().permits;
    assert_eq!((permits.waiting, permits.in_flight), (0, 0));
    for tenant in pool.handle.tenants() {
        assert_eq!((tenant.waiting, tenant.running), (0, 0), "{tenant:?}");
    }
    assert_eq!(honest(server).await, StatusCode::OK);
    attack.shutdown().await;
}
