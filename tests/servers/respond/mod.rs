//! What clients are told that are refused: real servers on loopback, and clients that others have written.

mod browser;
mod connect;
mod grpc;
mod hostile;
mod http;
mod in_process;
mod unread;
mod websocket;

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use ::http::{Request, Response};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::{BoxError, Service, ServiceBuilder, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, Deadline, DeadlineLayer, KeyedRateLimitLayer, LoadShedLayer,
    OverloadResponseLayer, Rate, RateLimitLayer, respond::OverloadBody,
};

/// A service under this layer that refuses everything for two seconds, or for as long as it is told to: while the clock
/// stands still, that is its hint.
macro_rules! refusing {
    ($layer:expr) => {
        refusing!($layer, Duration::from_secs(2))
    };
    ($layer:expr, $for:expr) => {{
        let limit = RateLimitLayer::new(Rate::every($for));
        limit.handle().try_acquire(1).unwrap();
        ServiceBuilder::new()
            .layer($layer)
            .layer(LoadShedLayer::new())
            .layer(limit)
            .service(service_fn(unreached))
    }};
}
use refusing;

/// The same, but that it is the client that has asked for too much.
macro_rules! over_quota {
    ($layer:expr) => {{
        let rate = Rate::every(Duration::from_secs(2));
        let limit = KeyedRateLimitLayer::new(rate, |_: &Request<_>| Some("client"));
        limit.handle().try_acquire(&"client").unwrap();
        ServiceBuilder::new()
            .layer($layer)
            .layer(limit)
            .service(service_fn(unreached))
    }};
}
use over_quota;

/// The same, but that each request is too late when it comes.
macro_rules! expired {
    ($layer:expr) => {
        ServiceBuilder::new()
            .layer($layer)
            .layer(DeadlineLayer::new().max_timeout(Duration::ZERO))
            .service(service_fn(unreached))
    };
}
use expired;

/// The same, but that each request could be served after two seconds, and has one.
macro_rules! late {
    ($layer:expr) => {{
        let rate = Rate::every(Duration::from_secs(2));
        let limit = KeyedRateLimitLayer::new(rate, |_: &Request<_>| Some("client"))
            .deadline(|_: &Request<_>| Some(Deadline::within(Duration::from_secs(1))))
            .max_wait(Duration::from_secs(10));
        limit.handle().try_acquire(&"client").unwrap();
        ServiceBuilder::new()
            .layer($layer)
            .layer(limit)
            .service(service_fn(unreached))
    }};
}
use late;

/// A service under this layer that fails.
macro_rules! failing {
    ($layer:expr) => {
        ServiceBuilder::new()
            .layer($layer)
            .service(service_fn(fails))
    };
}
use failing;

async fn unreached<B>(_: Request<B>) -> Result<Response<Empty<Bytes>>, BoxError> {
    unreachable!("it was refused")
}

async fn fails<B>(_: Request<B>) -> Result<Response<Empty<Bytes>>, BoxError> {
    Err("a secret".into())
}

/// Without jitter, so that hints are exact.
fn layer() -> OverloadResponseLayer {
    OverloadResponseLayer::new().jitter(false)
}

/// Serves HTTP/1 and HTTP/2 on loopback, with upgrades.
async fn serve<S>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<OverloadBody<Empty<Bytes>>>>
        + Clone
        + Send
        + 'static,
    S: Service<Request<Incoming>, Error = Infallible, Future: Send>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let mut builder = Builder::new(TokioExecutor::new());
                builder.http2().enable_connect_protocol();
                let io = TokioIo::new(stream);
                let _ = builder.serve_connection_with_upgrades(io, service).await;
            });
        }
    });
    server
}
