//! This crate's client stack against this crate's server: HTTP/1 over pipes in memory, on paused time.
//!
//! The client is the one of the guide (`stacking`): retries, a circuit, a limit, a timeout, and a connection for each request.

use crate::support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use support::{boxed, now};
use tokio::{
    io::{DuplexStream, duplex},
    task::JoinSet,
    time::sleep,
};
use tower::{
    BoxError, Service, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn,
    util::BoxCloneSyncService,
};
use tower_backpressure::{
    ByStatus, CircuitBreakerConfig, CircuitBreakerLayer, ConcurrencyLimitLayer, Deadline,
    LoadShedLayer, OverloadResponseLayer, RetryPolicy,
    circuit_breaker::{self, State},
    edge, retry,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// How long a caller waits for an answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long one attempt may take.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How long the server works on a request.
const WORK: Duration = Duration::from_millis(100);
/// How many it works on at once: 100 each second.
const SEATS: usize = 10;

type Payload = Full<Bytes>;
type Client = BoxCloneSyncService<Request<Payload>, Response<Incoming>, BoxError>;

const UP: u8 = 0;
const REFUSES: u8 = 1;
const HANGS: u8 = 2;

/// What is between a client and a server.
#[derive(Clone, Default)]
struct Network {
    state: Arc<AtomicU8>,
    connections: Arc<AtomicUsize>,
}

impl Network {
    fn set(&self, state: u8) {
        self.state.store(state, SeqCst);
    }

    /// Connects to a server, if that is up.
    fn connect<S, B>(&self, server: S) -> Result<DuplexStream, BoxError>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        self.connections.fetch_add(1, SeqCst);
        let (here, there) = duplex(64 * 1024);
        match self.state.load(SeqCst) {
            UP => {
                let server = TowerToHyperService::new(server);
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(there), server);
                tokio::spawn(boxed(async { _ = connection.await }));
                Ok(here)
            }
            REFUSES => Err("connection refused".into()),
            _ => {
                // Whatever is sent is taken, and nothing is answered.
                tokio::spawn(async move {
                    sleep(3600 * SEC).await;
                    drop(there);
                });
                Ok(here)
            }
        }
    }
}

async fn send(
    stream: DuplexStream,
    request: Request<Payload>,
) -> Result<Response<Incoming>, BoxError> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// A client as the guide has it, with these settings of its circuit, and its handles.
fn client<S, B>(
    network: &Network,
    server: S,
    circuit: CircuitBreakerConfig,
) -> (Client, retry::Handle, circuit_breaker::Handle)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let policy = RetryPolicy::default().replay(|body: &Payload| Some(body.clone()));
    let breaker = CircuitBreakerLayer::new(circuit).classify(ByStatus);
    let handles = (policy.handle(), breaker.handle());
    let network = network.clone();
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(policy))
        .layer(breaker)
        .layer(ConcurrencyLimitLayer::new(1000))
        .timeout(TIMEOUT)
        .service(service_fn(move |request| {
            let stream = network.connect(server.clone());
            async move { send(stream?, request).await }
        }));
    (BoxCloneSyncService::new(client), handles.0, handles.1)
}

async fn work(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, BoxError> {
    sleep(WORK).await;
    Ok(Response::new(Full::from("done")))
}

/// How one call went.
struct Call {
    sent: Duration,
    took: Duration,
    status: Option<StatusCode>,
}

impl Call {
    fn is_served(&self) -> bool {
        self.status == Some(StatusCode::OK)
    }
}

async fn call(client: Client) -> Option<StatusCode> {
    // A retry that begins before this ends in time.
    let last_retry = Deadline::within(DEADLINE - TIMEOUT);
    let request = Request::post("/").extension(last_retry);
    let request = request.body(Payload::from("a job")).unwrap();
    client
        .oneshot(request)
        .await
        .ok()
        .map(|response| response.status())
}

/// Calls that begin at this pace for so long.
async fn calls(client: &Client, every: Duration, lasts: Duration) -> Vec<Call> {
    let started = now();
    let mut tasks = JoinSet::new();
    while now() - started < lasts {
        let client = client.clone();
        tasks.spawn(async move {
            let sent = now();
            let status = call(client).await;
            Call {
                sent: sent - started,
                took: now() - sent,
                status,
            }
        });
        sleep(every).await;
    }
    tasks.join_all().await
}

fn assert_in_time(calls: &[Call]) {
    let longest = calls.iter().map(|call| call.took).max().unwrap();
    assert!(longest <= DEADLINE, "a call took {longest:?}");
}

/// From two seconds after the beginning on.
fn assert_all_served_after_two_seconds(calls: &[Call]) {
    let late = calls.iter().filter(|call| call.sent >= 2 * SEC);
    let (mut all, mut served) = (0, 0);
    for call in late {
        all += 1;
        served += usize::from(call.is_served());
    }
    assert!(all > 50, "{all}");
    assert_eq!(served, all);
}

/// A server that sheds what it has no seat for.
macro_rules! server {
    () => {
        ServiceBuilder::new()
            .layer(OverloadResponseLayer::new())
            .layer(LoadShedLayer::new())
            .layer(ConcurrencyLimitLayer::new(SEATS))
            .service(service_fn(work))
    };
}

fn quick() -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().cooldown(SEC)
}

/// A server that says when to come back is not down: a client that comes back then is served.
#[tokio::test(start_paused = true)]
async fn a_polite_503_is_waited_out_and_opens_no_circuit() {
    let limit = ConcurrencyLimitLayer::new(SEATS);
    let seats: Vec<_> = (0..SEATS)
        .map(|_| limit.handle().try_acquire().unwrap())
        .collect();
    let server = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new())
        .layer(LoadShedLayer::new())
        .layer(limit)
        .service(service_fn(work));
    let network = Network::default();
    // With the default cooldown of half a minute.
    let (client, retries, circuit) = client(&network, server, CircuitBreakerConfig::default());
    tokio::spawn(async move {
        sleep(500 * MS).await;
        drop(seats);
    });
    let calls = calls(&client, MS, 20 * MS).await;
    assert_eq!(calls.len(), 20);
    assert_eq!(circuit.snapshot().opened, 0);
    let longest = calls.iter().map(|call| call.took).max().unwrap();
    let served = calls.iter().filter(|call| call.is_served()).count();
    assert_eq!(served, 20, "{:?}, after {longest:?}", retries.snapshot());
    assert_in_time(&calls);
}

/// Three times what the server can do, for 20 seconds; then what it can do.
#[tokio::test(start_paused = true)]
async fn three_times_too_many_are_answered_in_time_and_the_server_is_kept_busy() {
    let network = Network::default();
    let (client, _, circuit) = client(&network, server!(), quick());
    let overload = calls(&client, SEC / 300, 20 * SEC).await;
    assert_in_time(&overload);
    assert_eq!(circuit.snapshot().opened, 0);
    let served = overload.iter().filter(|call| call.is_served()).count();
    assert!(served > 1800, "{served} of {}", 20 * 100);
    assert_all_served_after_two_seconds(&calls(&client, SEC / 50, 5 * SEC).await);
}

/// The same with the whole stack in one.
#[tokio::test(start_paused = true)]
async fn three_times_too_many_for_an_edge_are_answered_in_time_too() {
    let server = ServiceBuilder::new()
        .layer(edge().limits(SEATS, SEATS, SEATS))
        .service(service_fn(work));
    let network = Network::default();
    let (client, _, circuit) = client(&network, server, quick());
    let overload = calls(&client, SEC / 300, 20 * SEC).await;
    assert_in_time(&overload);
    assert_eq!(circuit.snapshot().opened, 0);
    assert_all_served_after_two_seconds(&calls(&client, SEC / 50, 5 * SEC).await);
}

#[tokio::test(start_paused = true)]
async fn while_the_server_is_down_calls_fail_in_time_and_after_that_all_are_served() {
    for down in [REFUSES, HANGS] {
        let network = Network::default();
        let (client, retries, circuit) = client(&network, server!(), quick());
        assert_all_served_after_two_seconds(&calls(&client, SEC / 50, 4 * SEC).await);
        network.set(down);
        let before = network.connections.load(SeqCst);
        let failed = calls(&client, SEC / 50, 10 * SEC).await;
        assert_in_time(&failed);
        assert!(failed.iter().all(|call| !call.is_served()));
        assert_eq!(circuit.snapshot().state, State::Open);
        // Most are told at once that the circuit is open, and can do something else.
        let at_once = failed.iter().filter(|call| call.took < 10 * MS).count();
        assert!(at_once > 300, "{at_once} of {}", failed.len());
        // It is left alone: 500 calls are few requests.
        let tried = network.connections.load(SeqCst) - before;
        assert!(tried < 100, "{tried}");
        assert!(
            retries.snapshot().circuit_open > 300,
            "{:?}",
            retries.snapshot()
        );
        network.set(UP);
        assert_all_served_after_two_seconds(&calls(&client, SEC / 50, 6 * SEC).await);
        assert_eq!(circuit.snapshot().state, State::Closed);
    }
}
