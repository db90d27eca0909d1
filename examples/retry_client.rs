//! A client that retries, and two axum servers: one limits its rate, the other is down.
//!
//! `cargo run --features retry --example retry_client`
//!
//! What to see: the first server says when to retry, and every request that can be sent twice is served in the end. The
//! second gets 124 requests for the 100 that were meant, and not 400: that is the retry budget.

use std::time::{Duration, Instant};

use axum::{Router, body::Body, http::StatusCode, routing::post};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, retry::RetryLayer};
use tower_backpressure::{
    ByStatus, CircuitBreakerLayer, ConcurrencyLimitLayer, Deadline, LoadShedLayer,
    OverloadResponseLayer, Rate, RateLimitLayer, RetryPolicy,
    retry::{Backoff, Idempotent, ReplayBody, RetryBudget},
};

type Payload = ReplayBody<Body>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let limited = Router::new()
        .route("/", post(|body: String| async { body }))
        .layer(
            ServiceBuilder::new()
                .layer(OverloadResponseLayer::new()) // 503, and when to come back
                .layer(LoadShedLayer::new())
                .layer(RateLimitLayer::new(Rate::per_second(1).burst(2))),
        );
    let limited = serve(limited).await?;
    let down =
        serve(Router::new().fallback(|| async { StatusCode::INTERNAL_SERVER_ERROR })).await?;

    // One policy for each server: a budget is about one of them.
    let policy = RetryPolicy::default();
    let handle = policy.handle();
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(policy))
        // A server that says when to come back is alive: that does not open the circuit.
        .layer(CircuitBreakerLayer::default().classify(ByStatus))
        .layer(ConcurrencyLimitLayer::new(100))
        .timeout(Duration::from_secs(5))
        .service_fn(move |request| send(limited.clone(), request));
    println!("three requests to a server that takes two at once, and one a second:");
    for _ in 0..3 {
        // Nothing was done where it was refused, so that a POST can be sent again as well.
        let request = Request::post("/").extension(Deadline::within(Duration::from_secs(10)));
        let request = request.body(Payload::whole("hello"))?;
        report(&mut client, request).await?;
    }
    println!("two whose bodies can be sent only once:");
    for _ in 0..2 {
        let request = Request::post("/").body(Payload::once(Body::from("hello")))?;
        report(&mut client, request).await?;
    }
    println!("{:#?}\n", handle.snapshot());

    let policy = RetryPolicy::new(Backoff::fixed(Duration::from_millis(10)))
        .budget(RetryBudget::percent(20).per_second(0).burst(5));
    let handle = policy.handle();
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(policy))
        .service_fn(move |request| send(down.clone(), request));
    println!("100 requests to a server that is down:");
    for _ in 0..100 {
        let request = Request::post("/").extension(Idempotent);
        let request = request.body(Payload::whole("hello"))?;
        client.clone().oneshot(request).await?;
    }
    let snapshot = handle.snapshot();
    println!("  it got {}", snapshot.requests + snapshot.retries);
    Ok(())
}

async fn report<S>(client: &mut S, request: Request<Payload>) -> Result<(), BoxError>
where
    S: Service<Request<Payload>, Response = Response<Incoming>, Error = BoxError>,
{
    #[allow(clippy::disallowed_methods, reason = "a client looks at its own clock")]
    let started = Instant::now();
    let response = client.ready().await?.call(request).await?;
    println!("  {} after {:.1?}", response.status(), started.elapsed());
    Ok(())
}

async fn serve(app: Router) -> Result<String, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// Sends a request over a connection of its own. A client that keeps connections does as well.
async fn send(
    address: String,
    mut request: Request<Payload>,
) -> Result<Response<Incoming>, BoxError> {
    let stream = TcpStream::connect(&address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    request.headers_mut().insert("host", address.parse()?);
    Ok(sender.send_request(request).await?)
}
