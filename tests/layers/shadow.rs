//! Layers on trial: what they decide is what they would have decided, and nobody notices.

use crate::support;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use proptest::prelude::*;
use support::{Behaviour, Probe, poll, poll_ready};
use tokio::time::{advance, sleep};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ByStatus, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig,
    CoDelLayer, ConcurrencyLimitLayer, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer,
    KeyedRateLimitLayer, LoadShedLayer, Overloaded, Rate, RateLimitLayer, Reason, SaturationLayer,
    ShadowLayer, SubmittedAt, WfqConfig, WfqLayer, edge, shadow,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
struct Job {
    tenant: u32,
    takes: Duration,
    fails: bool,
    submitted: SubmittedAt,
}

type Refused = BTreeMap<(&'static str, &'static str), u64>;

async fn work(job: Job) -> Result<(), BoxError> {
    sleep(job.takes).await;
    match job.fails {
        true => Err("failed".into()),
        false => Ok(()),
    }
}

/// How many seconds after the one before a request comes, how many seconds and milliseconds it takes, whose it
/// is, and whether it fails. Requests come at full seconds, and none ends at one, so that nothing hangs on
/// what is first.
type Traffic = Vec<(u64, (u64, u64), u32, bool)>;

/// Sends requests, and says how many were refused by whom and for what, and how many were not.
async fn send<S>(service: S, traffic: &Traffic) -> (Refused, u64)
where
    S: Service<Job, Response = (), Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let refused = Arc::new(Mutex::new(Refused::new()));
    let served = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for &(after, (secs, millis), tenant, fails) in traffic {
        sleep(Duration::from_secs(after)).await;
        let job = Job {
            tenant,
            takes: Duration::from_millis(secs * 1000 + millis),
            fails,
            submitted: SubmittedAt::now(),
        };
        let (service, refused, served) = (service.clone(), refused.clone(), served.clone());
        clients.push(tokio::spawn(async move {
            let result = service.oneshot(job).await;
            let error = result.err();
            match error
                .as_ref()
                .and_then(|error| Overloaded::find(error.as_ref()))
            {
                Some(overloaded) => {
                    let key = (overloaded.layer(), overloaded.reason().as_str());
                    *refused.lock().unwrap().entry(key).or_default() += 1;
                }
                None => _ = served.fetch_add(1, SeqCst),
            }
        }));
        tokio::task::yield_now().await;
    }
    for client in clients {
        client.await.unwrap();
    }
    sleep(3600 * SEC).await; // what is on trial may take longer
    let refused = refused.lock().unwrap().clone();
    (refused, served.load(SeqCst) as u64)
}

fn as_map(snapshot: &shadow::Snapshot) -> Refused {
    let refusals = snapshot.refusals.iter();
    let map: Refused = refusals
        .map(|refusals| ((refusals.layer, refusals.reason.as_str()), refusals.count))
        .collect();
    assert_eq!(map.values().sum::<u64>(), snapshot.refused);
    map
}

fn paused<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run)
}

/// The same traffic in earnest, and on trial: what was refused is the same, and on trial all is served. Gives
/// what was refused.
macro_rules! compare {
    ($traffic:expr, $layer:expr) => {{
        let traffic: &Traffic = $traffic;
        let (refused, _) = paused(async {
            send(
                ServiceBuilder::new().layer($layer).service_fn(work),
                traffic,
            )
            .await
        });
        paused(async {
            let layer = ShadowLayer::new($layer).likeness(Job::clone);
            let handle = layer.handle();
            let service = ServiceBuilder::new().layer(layer).service_fn(work);
            let (none, served) = send(service, traffic).await;
            assert_eq!((none, served), (Refused::new(), traffic.len() as u64));
            let snapshot = handle.snapshot();
            assert_eq!((snapshot.requests, snapshot.failed), (served, 0));
            assert_eq!(as_map(&snapshot), refused);
        });
        refused
    }};
}

fn tenant(job: &Job) -> Option<String> {
    Some(job.tenant.to_string())
}

fn key(job: &Job) -> Option<u32> {
    Some(job.tenant)
}

/// Requests wait for as long as it takes.
fn patient() -> WfqConfig {
    WfqConfig::default().max_wait(None)
}

fn one_each() -> WfqConfig {
    patient().max_in_flight_per_tenant(1)
}

fn breaker() -> CircuitBreakerConfig {
    CircuitBreakerConfig::default()
}

/// A request each second, of two tenants, that takes ten; from the hundredth on all fail for a while.
fn flood() -> Traffic {
    (0..300)
        .map(|n| (1, (10, 1), n % 2, (100..150).contains(&n)))
        .collect()
}

#[test]
fn every_layer_that_refuses_decides_on_trial_as_it_does_in_earnest() {
    let count = |refused: Refused, layer, reason: Reason| {
        let count = refused.get(&(layer, reason.as_str())).copied();
        count.unwrap_or_else(|| panic!("{reason:?} is not in {refused:?}"))
    };
    let traffic = &flood();
    let refused = compare!(
        traffic,
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(ConcurrencyLimitLayer::new(5))
    );
    assert_eq!(count(refused, "concurrency_limit", Reason::AtLimit), 162);
    let refused = compare!(traffic, ConcurrencyLimitLayer::new(5).max_waiting(20));
    count(refused, "concurrency_limit", Reason::QueueFull);
    let refused = compare!(traffic, ConcurrencyLimitLayer::new(5).max_wait(20 * SEC));
    count(refused, "concurrency_limit", Reason::WaitTimeout);
    let refused = compare!(
        traffic,
        AdaptiveConcurrencyLayer::vegas()
            .limits(1, 5, 5)
            .max_waiting(10)
    );
    count(refused, "adaptive_concurrency", Reason::QueueFull);
    let rate = Rate::per_minute(6);
    let refused = compare!(traffic, RateLimitLayer::new(rate).max_waiting(0));
    count(refused, "rate_limit", Reason::QueueFull);
    let refused = compare!(traffic, KeyedRateLimitLayer::new(Rate::per_minute(1), key));
    count(refused, "keyed_rate_limit", Reason::Quota);
    let refused = compare!(
        traffic,
        KeyedConcurrencyLimitLayer::new(1, key).max_waiting_per_key(5)
    );
    count(refused, "keyed_concurrency_limit", Reason::QueueFull);
    let refused = compare!(
        traffic,
        WfqLayer::new(one_each().max_waiting_per_tenant(5), tenant)
    );
    count(refused, "wfq", Reason::QueueFull);
    let refused = compare!(
        traffic,
        ServiceBuilder::new()
            .layer(WfqLayer::new(patient(), tenant))
            .layer(
                CoDelLayer::new(CoDelConfig::default().target(5 * SEC).interval(10 * SEC))
                    .submitted_at(|job: &Job| Some(job.submitted))
            )
            .layer(ConcurrencyLimitLayer::new(4))
    );
    count(refused, "codel", Reason::TooOld);
    let refused = compare!(traffic, CircuitBreakerLayer::new(breaker()));
    count(refused, "circuit_breaker", Reason::CircuitOpen);
    let refused = compare!(traffic, KeyedCircuitBreakerLayer::new(breaker(), key));
    count(refused, "keyed_circuit_breaker", Reason::CircuitOpen);
    let refused = compare!(
        traffic,
        SaturationLayer::new()
            .probe("full", || (100_usize, 100_usize))
            .classify(|_: &Job| tower_backpressure::saturation::Work::New)
    );
    count(refused, "saturation", Reason::Saturated);
    let refused = compare!(
        traffic,
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(tower::limit::GlobalConcurrencyLimitLayer::new(2))
    );
    count(refused, "load_shed", Reason::NotReady);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes: a limit with a queue in front of it, on trial, refuses those that it would refuse.
    #[test]
    fn a_trial_shows_what_would_have_been(
        traffic in prop::collection::vec((0_u64..20, (0_u64..60, 1_u64..10), 0_u32..3, any::<bool>()), 1..100),
        limit in 1_usize..5,
        max_waiting in 0_usize..5,
    ) {
        compare!(&traffic, ConcurrencyLimitLayer::new(limit).max_waiting(max_waiting));
        compare!(
            &traffic,
            KeyedConcurrencyLimitLayer::new(limit, key).max_waiting_per_key(max_waiting)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_on_trial_is_served_at_once() {
    let limit = ConcurrencyLimitLayer::new(1);
    let permits = limit.handle();
    let layer = ShadowLayer::new(limit).likeness(Job::clone);
    let handle = layer.handle();
    let service = ServiceBuilder::new().layer(layer).service_fn(work);
    let job = Job {
        tenant: 0,
        takes: 10 * MS,
        fails: false,
        submitted: SubmittedAt::now(),
    };
    let started = support::now();
    let both = tokio::join!(service.clone().oneshot(job), service.oneshot(job));
    assert!(both.0.is_ok() && both.1.is_ok());
    assert_eq!(support::now() - started, 10 * MS);
    tokio::task::yield_now().await;
    // The second one is served as long as the first one was, after it.
    assert_eq!(permits.snapshot().in_flight, 1);
    advance(11 * MS).await;
    tokio::task::yield_now().await;
    let permits = permits.snapshot();
    assert_eq!((permits.in_flight, permits.admitted), (0, 2));
    let seen = handle.snapshot();
    assert_eq!((seen.requests, seen.waited, seen.refused), (2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_is_so_on_trial_too() {
    let limit = ConcurrencyLimitLayer::new(1);
    let permits = limit.handle();
    let layer = ShadowLayer::new(limit).likeness(u32::clone);
    let probe = Probe::new();
    probe.set(|script| script.future = Behaviour::Pends);
    let mut service = layer.layer(probe.clone());
    let _ = poll_ready(&mut service);
    let first = service.call(0);
    let _ = poll_ready(&mut service);
    let second = service.call(0);
    tokio::task::yield_now().await;
    let seen = permits.snapshot();
    assert_eq!((seen.in_flight, seen.waiting), (1, 1));
    drop((first, second));
    tokio::task::yield_now().await;
    let seen = permits.snapshot();
    assert_eq!((seen.in_flight, seen.waiting), (0, 0));
    assert_eq!(seen.admitted, 1, "the one that waited was never let in");
}

#[tokio::test]
async fn the_service_is_what_it_was() {
    let layer = ShadowLayer::new(ConcurrencyLimitLayer::new(1)).likeness(u32::clone);
    let probe = Probe::new();
    let mut service = layer.layer(probe.clone());
    probe.set(|script| script.ready = Behaviour::Pends);
    assert!(poll_ready(&mut service).is_pending());
    probe.set(|script| script.ready = Behaviour::Fails);
    assert!(matches!(
        poll_ready(&mut service),
        std::task::Poll::Ready(Err(_))
    ));
    probe.set(|script| (script.ready, script.future) = (Behaviour::Works, Behaviour::Fails));
    let error = service.ready().await.unwrap().call(7).await.unwrap_err();
    assert!(Overloaded::find(error.as_ref()).is_none());
    probe.set(|script| script.future = Behaviour::Works);
    assert_eq!(service.ready().await.unwrap().call(7).await.unwrap(), 7);
}

/// What a classifier goes by is in the likeness: whether a server says when to come back.
#[tokio::test]
async fn on_trial_a_polite_503_opens_no_circuit_either() {
    for (header, opened) in [("retry-after", 0), ("x-sorry", 1)] {
        let breaker = || {
            let config = CircuitBreakerConfig::default().failures(1);
            CircuitBreakerLayer::new(config).classify(ByStatus)
        };
        let (earnest, trial) = (breaker(), breaker());
        let service = ServiceBuilder::new()
            .layer(ShadowLayer::new(trial.clone()))
            .layer(earnest.clone())
            .service_fn(move |_: Request<()>| async move {
                let response = Response::builder().status(503).header(header, 2);
                Ok::<_, BoxError>(response.body(())?)
            });
        service.oneshot(Request::new(())).await.unwrap();
        let opened_here = [earnest, trial].map(|layer| layer.handle().snapshot().opened);
        assert_eq!(opened_here, [opened; 2], "{header}");
    }
}

#[tokio::test]
async fn what_panics_on_trial_harms_nobody() {
    fn no_key(_: &Request<()>) -> Option<u32> {
        panic!("no key")
    }
    fn no_likeness(_: &Request<()>) -> u32 {
        panic!("no likeness")
    }
    async fn answer(_: Request<()>) -> Result<Response<()>, BoxError> {
        Ok(Response::new(()))
    }
    let by_key = ShadowLayer::new(KeyedRateLimitLayer::new(Rate::per_second(10), no_key));
    let handle = by_key.handle();
    let service = by_key.layer(service_fn(answer));
    service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(handle.snapshot().failed, 1);

    let likeness = ShadowLayer::new(ConcurrencyLimitLayer::new(1)).likeness(no_likeness);
    let handle = likeness.handle();
    let service = likeness.layer(service_fn(answer));
    service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(handle.snapshot().failed, 1);

    let classify = |_: Result<&Response<shadow::NoBody>, &BoxError>| panic!("no class");
    let breaker = CircuitBreakerLayer::new(breaker()).classify(classify);
    let service = ShadowLayer::new(breaker).layer(service_fn(answer));
    service.oneshot(Request::new(())).await.unwrap();
}

#[test]
fn a_runtime_without_time_is_no_harm_either() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let layer = ConcurrencyLimitLayer::new(1).max_wait(SEC);
        let layer = ShadowLayer::new(layer).likeness(u32::clone);
        let mut service = layer.layer(Probe::new());
        let _ = poll_ready(&mut service);
        let first = service.call(1);
        let _ = poll_ready(&mut service);
        let second = service.call(2);
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (1, 2));
        assert_eq!(layer.handle().snapshot().failed, 1);
    });
}

/// A limit that is tried in front of the one that there is.
#[tokio::test(start_paused = true)]
async fn what_is_refused_further_in_is_no_failure_on_trial_either() {
    let adaptive = AdaptiveConcurrencyLayer::aimd().limits(1, 10, 100);
    let learned = adaptive.handle();
    let breaker = CircuitBreakerLayer::new(breaker()).classify(ByStatus);
    let circuit = breaker.handle();
    let mut service = ServiceBuilder::new()
        .layer(ShadowLayer::new(breaker))
        .layer(tower_backpressure::OverloadResponseLayer::new())
        .layer(ShadowLayer::new(adaptive))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(service_fn(|_: Request<String>| async {
            sleep(SEC).await;
            Ok::<_, BoxError>(Response::new(Body::empty()))
        }));
    let _first = service
        .ready()
        .await
        .unwrap()
        .call(Request::new(String::new()));
    for _ in 0..20 {
        let response = service
            .ready()
            .await
            .unwrap()
            .call(Request::new(String::new()))
            .await;
        assert_eq!(response.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    tokio::task::yield_now().await;
    assert_eq!(learned.snapshot().permits.limit, 10);
    assert_eq!(circuit.snapshot().opened, 0);
}

#[test]
fn without_a_runtime_there_is_no_trial_and_requests_are_served() {
    let layer = ShadowLayer::new(ConcurrencyLimitLayer::new(1)).likeness(u32::clone);
    let handle = layer.handle();
    let mut service = layer.layer(Probe::new());
    let _ = poll_ready(&mut service);
    let mut response = service.call(7);
    assert!(matches!(poll(&mut response), std::task::Poll::Ready(Ok(7))));
    let seen = handle.snapshot();
    assert_eq!((seen.requests, seen.failed, seen.refused), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_law_on_trial_learns_how_long_requests_take_and_whether_they_succeed() {
    let adaptive = AdaptiveConcurrencyLayer::aimd()
        .limits(1, 10, 100)
        .classify(ByStatus);
    let learned = adaptive.handle();
    let mut service = ServiceBuilder::new()
        .layer(ShadowLayer::new(adaptive))
        .service(service_fn(|request: Request<()>| async move {
            sleep(20 * MS).await;
            let mut response = Response::new(());
            *response.status_mut() = match request.uri().path() {
                "/down" => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::OK,
            };
            Ok::<_, BoxError>(response)
        }));
    let before = learned.snapshot().permits.limit;
    for _ in 0..20 {
        let request = Request::builder().uri("/down").body(()).unwrap();
        service.ready().await.unwrap().call(request).await.unwrap();
    }
    tokio::task::yield_now().await;
    assert!(
        learned.snapshot().permits.limit < before,
        "{:?}",
        learned.snapshot()
    );
}

#[tokio::test(start_paused = true)]
async fn the_whole_stack_on_trial_refuses_nobody() {
    let edge = edge()
        .tenant(|_: &Request<()>| Some("all".to_owned()))
        .wfq(WfqConfig::default().max_waiting_per_tenant(10))
        .limits(1, 5, 5)
        .hold_until_body_end();
    let gates = edge.handle();
    let trial = edge.shadow();
    let handle = trial.handle();
    let app: Router = Router::new()
        .route("/", get(|| async { sleep(10 * MS).await }))
        .layer(trial);
    let requests = (0..100).map(|_| {
        let request = Request::new(Body::empty());
        tokio::spawn(app.clone().oneshot(request))
    });
    for response in requests.collect::<Vec<_>>() {
        assert_eq!(response.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    sleep(SEC).await;
    let seen = handle.snapshot();
    assert_eq!((seen.requests, seen.failed), (100, 0));
    // Five are let in, and ten wait.
    assert_eq!((seen.waited, seen.refused), (10, 85), "{seen:?}");
    assert_eq!(seen.refusals[0].layer, "edge");
    let seen = gates.snapshot();
    assert_eq!(seen.served, 15);
    assert_eq!((seen.permits.in_flight, seen.permits.waiting), (0, 0));
}
