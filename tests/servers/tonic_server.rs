//! What is particular to tonic's server: where interceptors are, and how its connections are limited.
#![cfg(feature = "tonic")]

use std::{net::SocketAddr, time::Duration};

use futures_util::stream;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tonic::{
    Code, Request, Status,
    metadata::MetadataValue,
    service::InterceptorLayer,
    transport::{Endpoint, Server},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower_backpressure::{
    ConcurrencyLimitLayer, ConnectionLimit, WfqConfig, edge, edge::Edge, wfq::TenantId,
};

fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
    let customer = request.metadata().get("x-customer");
    let customer = customer.and_then(|customer| customer.to_str().ok());
    let customer = customer.ok_or_else(|| Status::unauthenticated("who is it?"))?;
    let tenant = TenantId::new(customer);
    request.extensions_mut().insert(tenant);
    Ok(request)
}

fn weighted() -> Edge {
    let config = WfqConfig::default().weight("gold", 10);
    edge().wfq(config)
}

async fn listen(most: usize) -> (SocketAddr, ConnectionLimit<TcpListener>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let limit = ConcurrencyLimitLayer::new(most).handle();
    (server, ConnectionLimit::new(listener, limit))
}

/// Serves the health service with this server, over the listener.
macro_rules! serve {
    ($server:expr, $service:expr, $listener:expr) => {{
        let incoming = stream::unfold($listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let server = $server.add_service($service);
        tokio::spawn(server.serve_with_incoming(incoming))
    }};
}

async fn check(server: SocketAddr, customer: Option<&'static str>) -> Result<(), Code> {
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let mut request = Request::new(HealthCheckRequest::default());
    if let Some(customer) = customer {
        let customer = MetadataValue::from_static(customer);
        request.metadata_mut().insert("x-customer", customer);
    }
    let answer = client.check(request).await;
    answer.map(drop).map_err(|status| status.code())
}

#[tokio::test]
async fn a_tenant_of_an_interceptor_that_is_a_layer_before_the_edge_is_known_to_it() {
    let (server, listener) = listen(100).await;
    let edge = weighted();
    let handle = edge.handle();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let layers = Server::builder()
        .layer(InterceptorLayer::new(authenticate))
        .layer(edge);
    serve!({ layers }, health, listener);
    for _ in 0..3 {
        assert_eq!(check(server, Some("gold")).await, Ok(()));
    }
    assert_eq!(check(server, Some("silver")).await, Ok(()));
    assert_eq!(check(server, None).await, Err(Code::Unauthenticated));
    assert_eq!(
        handle.tenant("gold").map(|gold| (gold.served, gold.weight)),
        Some((3, 10))
    );
    assert_eq!(handle.tenant("silver").map(|silver| silver.served), Some(1));
    assert_eq!(handle.snapshot().anonymous, 0);
}

/// Which is why there is a line in the log, and a count.
#[tokio::test]
async fn a_tenant_of_an_interceptor_of_a_service_comes_too_late() {
    let (server, listener) = listen(100).await;
    let edge = weighted();
    let handle = edge.handle();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let health = tonic::service::interceptor::InterceptedService::new(health, authenticate);
    serve!({ Server::builder().layer(edge) }, health, listener);
    assert_eq!(check(server, Some("gold")).await, Ok(()));
    assert!(handle.tenant("gold").is_none());
    assert_eq!(handle.snapshot().anonymous, 1);
}

#[tokio::test(start_paused = true)]
async fn connections_that_never_make_a_call_do_not_lock_the_others_out() {
    let (server, listener) = listen(10).await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = listener.head_timeout(Duration::from_secs(10));
    serve!({ Server::builder() }, health, listener);
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(TcpStream::connect(server).await.unwrap());
    }
    let answer = timeout(Duration::from_secs(60), check(server, None)).await;
    assert_eq!(answer, Ok(Ok(())));
    let closed = timeout(Duration::from_secs(60), silent[0].read_u8()).await;
    assert!(closed.is_ok());
}
