//! What the servers among the examples share: their addresses, health, the end, and a loop that strangers can reach.
//!
//! To be copied together with the server.
#![allow(dead_code, reason = "each server uses a part of it")]

use std::{convert::Infallible, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    pin,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{sleep, timeout},
};
use tower::{BoxError, Service, ServiceBuilder};
use tower_backpressure::{ConcurrencyLimitLayer, ConnectionLimit, PeerAddr};

/// So many connections may be open. Each has two file descriptors at most, so `ulimit -n` is to be well above.
const CONNECTIONS: usize = 4000;

/// A client has this long for the head of a request. An idle connection is closed after it, too.
const HEAD: Duration = Duration::from_secs(10);

/// A connection gets this old, and is then shut down when its requests are answered.
const AGE: Duration = Duration::from_secs(300);

/// What is in flight when the server is to end has this long: less than the platform gives, which is often 30 s.
const END: Duration = Duration::from_secs(20);

/// Listens on what follows `--addr`, and limits the connections.
pub async fn listen() -> Result<ConnectionLimit<TcpListener>, Box<dyn Error>> {
    listen_within(&ConcurrencyLimitLayer::new(CONNECTIONS).name("connections")).await
}

/// The same, with a limit of the server's own.
pub async fn listen_within(
    connections: &ConcurrencyLimitLayer,
) -> Result<ConnectionLimit<TcpListener>, Box<dyn Error>> {
    let listener = TcpListener::bind(addr()?).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(ConnectionLimit::new(listener, connections.handle()).head_timeout(HEAD))
}

/// Answers `/health` on a listener of its own: see [`internal`].
pub async fn health<F>(addr: SocketAddr, report: F) -> Result<(), Box<dyn Error>>
where
    F: Fn() -> String + Clone + Send + Sync + 'static,
{
    let app = Router::new().route("/health", get(move || async move { report() }));
    internal(addr, app).await
}

/// Serves this on a listener of its own, at the next port: it answers while no more connections are accepted on the other
/// one. It has no limits: let the platform reach this port, and nobody else.
pub async fn internal(addr: SocketAddr, app: Router) -> Result<(), Box<dyn Error>> {
    let port = addr.port().checked_add(1).ok_or("the port is too high")?;
    let listener = match TcpListener::bind((addr.ip(), port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind((addr.ip(), 0)).await?, // it is in use
    };
    println!("health at http://{}/health", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(())
}

/// Serves until it is told to stop. Requests have the [`PeerAddr`] of their connection in their extensions.
pub async fn serve<S, B>(
    listener: ConnectionLimit<TcpListener>,
    service: S,
) -> Result<(), Box<dyn Error>>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let mut server = Builder::new(TokioExecutor::new());
    // The listener has seen to the first head; this is for the next ones. It does nothing without a timer.
    (server.http1().timer(TokioTimer::new())).header_read_timeout(HEAD);
    (server.http2().timer(TokioTimer::new()))
        .max_concurrent_streams(100)
        .keep_alive_interval(Duration::from_secs(20));

    let (stop, _) = watch::channel(());
    let shutdown = shutdown();
    pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("accept: {error}"); // no file descriptor is left, say
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let with_peer = move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(PeerAddr(peer));
            request
        };
        let service = ServiceBuilder::new()
            .map_request(with_peer)
            .service(service.clone());
        let service = TowerToHyperService::new(service);
        let connection = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let connection = connection.into_owned();
        let mut stopped = stop.subscribe();
        tokio::spawn(async move {
            pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => return,
                () = sleep(AGE) => {}
                _ = stopped.changed() => {}
            }
            connection.as_mut().graceful_shutdown();
            // A client that does not read its responses would keep it open for ever.
            let _ = timeout(END, connection).await; // an error is a client that went away
        });
    }
    stop.send_replace(());
    let _ = timeout(END, stop.closed()).await; // all connections have ended
    println!("stopped");
    Ok(())
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
pub async fn shutdown() {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
