//! The whole stack in one: every request gets an outcome, and nothing is left of it afterwards.

use crate::support;

use std::{
    convert::Infallible,
    future::Future,
    num::NonZeroU32,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use proptest::prelude::*;
use tokio::time::{advance, sleep, timeout};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    CircuitBreakerLayer, CoDelConfig, ConcurrencyLimitLayer, Overloaded, Reason, SubmittedAt,
    Waited, WfqConfig,
    adaptive_concurrency::{Bounds, Limit, Sample},
    edge,
    edge::Handle,
    wfq::{Tenant, TenantId},
};

const MS: Duration = Duration::from_millis(1);

/// What the service makes of a request.
#[derive(Clone, Copy, Debug)]
enum End {
    Answers(StatusCode),
    Fails,
    Refuses,
    Panics,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    /// After the one before.
    comes_after: Duration,
    /// Before it comes, if it has a stamp.
    submitted: Option<Duration>,
    tenant: Option<u8>,
    cost: NonZeroU32,
    takes: Duration,
    end: End,
    patience: Duration,
    /// The client keeps the body for so long.
    reads: Duration,
    /// It also keeps the service, which may have been turned away.
    keeps_service: bool,
}

/// In place of a body: there is nothing to read.
impl http_body::Body for Job {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

fn job() -> impl Strategy<Value = Job> {
    let end = prop_oneof![
        6 => Just(End::Answers(StatusCode::OK)),
        1 => Just(End::Answers(StatusCode::BAD_REQUEST)),
        1 => Just(End::Answers(StatusCode::INTERNAL_SERVER_ERROR)),
        1 => Just(End::Fails),
        1 => Just(End::Refuses),
        1 => Just(End::Panics),
    ];
    let submitted = prop_oneof![3 => Just(None), 1 => (0..400_u64).prop_map(Some)];
    let tenant = prop::option::of(0..3_u8);
    let patience = prop_oneof![Just(60_000), 1..200_u64];
    let client = (
        0..30_u64,
        submitted,
        tenant,
        1..4_u32,
        patience,
        any::<bool>(),
    );
    let times = (0..150_u64, end, 0..100_u64);
    (client, times).prop_map(|(client, (takes, end, reads))| {
        let (comes_after, submitted, tenant, cost, patience, keeps_service) = client;
        Job {
            comes_after: MS * comes_after as u32,
            submitted: submitted.map(|ago| MS * ago as u32),
            tenant,
            cost: NonZeroU32::new(cost).unwrap(),
            takes: MS * takes as u32,
            end,
            patience: MS * patience as u32,
            reads: MS * reads as u32,
            keeps_service,
        }
    })
}

async fn work(request: Request<Job>) -> Result<Response<Full<Bytes>>, BoxError> {
    let job = *request.body();
    sleep(job.takes).await;
    match job.end {
        End::Answers(status) => {
            let response = Response::builder().status(status);
            Ok(response.body(Full::from("a body"))?)
        }
        End::Fails => Err("failed".into()),
        End::Refuses => Err(refusal().into()),
        End::Panics => resume_unwind(Box::new("as it was told to")), // without a word to the terminal
    }
}

/// Of a limit of the service's own.
fn refusal() -> Overloaded {
    let limit = ConcurrencyLimitLayer::new(1).name("its own").handle();
    let _full = limit.try_acquire().unwrap();
    limit.try_acquire().unwrap_err()
}

/// What became of a request.
#[derive(Debug)]
enum Outcome {
    Answered,
    /// By the layer of this name.
    Rejected(&'static str),
    Failed,
    Panicked,
    /// The client did.
    Left,
}

impl Outcome {
    fn of(error: &BoxError) -> Self {
        match Overloaded::find(error.as_ref()) {
            Some(rejection) => Self::Rejected(rejection.layer()),
            None => Self::Failed,
        }
    }
}

/// Sends all of them, and says what became of each, in the order in which that was known.
async fn send<S, B>(service: S, jobs: &[Job]) -> Vec<(usize, Outcome)>
where
    S: Service<Request<Job>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    let (outcomes, mut received) = tokio::sync::mpsc::unbounded_channel();
    for (i, &job) in jobs.iter().enumerate() {
        sleep(job.comes_after).await;
        let mut request = Request::new(job);
        if let Some(tenant) = job.tenant {
            let tenant = TenantId::new(tenant.to_string());
            request.extensions_mut().insert(tenant);
        }
        if let Some(submitted) = job.submitted.and_then(SubmittedAt::ago) {
            request.extensions_mut().insert(submitted);
        }
        let (mut service, outcomes) = (service.clone(), outcomes.clone());
        tokio::spawn(async move {
            let answer = service.ready().await.unwrap().call(request);
            let kept = job.keeps_service.then_some(service);
            let mut body = None;
            let answer = AssertUnwindSafe(timeout(job.patience, answer));
            let outcome = match answer.catch_unwind().await {
                Ok(Ok(Ok(response))) => {
                    body = Some(response.into_body());
                    Outcome::Answered
                }
                Ok(Ok(Err(error))) => Outcome::of(&error),
                Ok(Err(_)) => Outcome::Left,
                Err(_) => Outcome::Panicked,
            };
            _ = outcomes.send((i, outcome));
            sleep(job.reads).await;
            drop(body);
            sleep(MS * 100).await;
            drop(kept);
        });
    }
    drop((service, outcomes));
    let mut all = Vec::new();
    while let Some(outcome) = received.recv().await {
        all.push(outcome);
    }
    sleep(Duration::from_secs(1)).await; // bodies have been read, and services dropped
    all
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    limit: usize,
    codel_limit: usize,
    target: Duration,
    max_waiting: usize,
    per_tenant: Option<u32>,
    /// What the service itself can take. More is not ready, and is shed.
    inside: usize,
    /// A circuit in front of it is ready only to refuse.
    circuit_open: bool,
}

fn settings() -> impl Strategy<Value = Settings> {
    let limits = (1..6_usize, 1..8_usize, 1..8_usize);
    let per_tenant = prop::option::of(1..3_u32);
    let circuit_open = prop::bool::weighted(0.1);
    (limits, 5..60_u64, 0..8_usize, per_tenant, circuit_open).prop_map(
        |((limit, codel_limit, inside), target, max_waiting, per_tenant, circuit_open)| Settings {
            limit,
            codel_limit,
            target: MS * target as u32,
            max_waiting,
            per_tenant,
            inside,
            circuit_open,
        },
    )
}

impl Settings {
    fn wfq(&self) -> WfqConfig {
        let config = WfqConfig::default().weight("1", 3);
        let config = config.max_waiting(self.max_waiting);
        match self.per_tenant {
            Some(most) => config.max_in_flight_per_tenant(most),
            None => config,
        }
    }

    fn codel(&self) -> CoDelConfig {
        CoDelConfig::default()
            .target(self.target)
            .interval(MS * 100)
            .min_concurrency(1)
            .max_concurrency(self.codel_limit)
    }
}

fn cost(request: &Request<Job>) -> NonZeroU32 {
    request.body().cost
}

fn paused<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run)
}

/// What became of them, and how many the service was called for.
fn outcomes(
    settings: Settings,
    jobs: &[Job],
    until_body_end: bool,
) -> (Vec<(usize, Outcome)>, u64, Handle) {
    paused(async {
        let edge = edge()
            .cost(cost)
            .wfq(settings.wfq())
            .codel(settings.codel())
            .limits(1, settings.limit, 20);
        let handle = edge.handle();
        let circuit = CircuitBreakerLayer::default();
        if settings.circuit_open {
            circuit.handle().force_open();
        }
        let seen = Arc::new(Seen::default());
        let service = ServiceBuilder::new()
            .layer(circuit)
            .layer(ConcurrencyLimitLayer::new(settings.inside))
            .service(service_fn({
                let seen = Arc::clone(&seen);
                move |request| {
                    seen.calls.fetch_add(1, Relaxed);
                    // What a queue tells is for the layer that decides by it.
                    let is_told = Waited::current().is_some();
                    seen.is_told.fetch_or(is_told, Relaxed);
                    work(request)
                }
            }));
        let outcomes = match until_body_end {
            true => {
                let edge = edge.hold_until_body_end().gates();
                send(edge.layer(service), jobs).await
            }
            false => send(edge.gates().layer(service), jobs).await,
        };
        assert!(!seen.is_told.load(Relaxed), "a wait is known inside");
        (outcomes, seen.calls.load(Relaxed), handle)
    })
}

#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    is_told: AtomicBool,
}

/// What clients know of.
#[derive(Debug, Default)]
struct Tally {
    served: u64,
    rejected: u64,
    refused_inside: u64,
    left: u64,
}

impl Tally {
    fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut tally = Self::default();
        for outcome in outcomes {
            *match outcome {
                Outcome::Answered | Outcome::Failed | Outcome::Panicked => &mut tally.served,
                Outcome::Rejected("edge") => &mut tally.rejected,
                Outcome::Rejected(_) => &mut tally.refused_inside,
                Outcome::Left => &mut tally.left,
            } += 1;
        }
        tally
    }

    /// One whose client has left is counted as what became of it, or not at all if it still waited.
    fn is_counted(&self, served: u64, rejected: u64, refused: u64) -> bool {
        let known = [
            (self.served, served),
            (self.rejected, rejected),
            (self.refused_inside, refused),
        ];
        let all = self.served + self.rejected + self.refused_inside + self.left;
        known.iter().all(|(known, counted)| known <= counted) && served + rejected + refused <= all
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nothing_is_left_and_the_counts_add_up(
        settings in settings(),
        jobs in prop::collection::vec(job(), 1..120),
        until_body_end: bool,
    ) {
        let (outcomes, calls, handle) = outcomes(settings, &jobs, until_body_end);
        let mut told: Vec<_> = outcomes.iter().map(|(i, _)| *i).collect();
        told.sort_unstable();
        prop_assert!(told.into_iter().eq(0..jobs.len()), "each has one outcome: {outcomes:?}");

        assert_free(&handle);
        let seen = handle.snapshot();
        let (admitted, rejected) = (seen.permits.admitted, seen.permits.rejected.total());
        prop_assert_eq!(seen.served + seen.refused, admitted);
        let tally = Tally::of(outcomes.iter().map(|(_, outcome)| outcome));
        let is_counted = tally.is_counted(seen.served, rejected, seen.refused);
        prop_assert!(is_counted, "{tally:?} {seen:?}");
        prop_assert!((seen.served..=admitted).contains(&calls), "{calls} {seen:?}");

        // Of each tenant, too, whether or not its requests had to wait.
        let mut all = (0, 0, 0);
        for tenant in handle.tenants() {
            let own = outcomes.iter().filter(|(i, _)| {
                let name = jobs[*i].tenant.map(|name| name.to_string());
                tenant.tenant == name.as_deref().map_or(Tenant::Anonymous, Tenant::from)
            });
            let tally = Tally::of(own.map(|(_, outcome)| outcome));
            let is_counted = tally.is_counted(tenant.served, tenant.rejected, tenant.refused);
            prop_assert!(is_counted, "{tally:?} {tenant:?}");
            all.0 += tenant.served;
            all.1 += tenant.rejected;
            all.2 += tenant.refused;
        }
        prop_assert_eq!(all, (seen.served, rejected, seen.refused));

        handle.set_max_in_flight_per_tenant(None);
        let limit = seen.permits.limit.min(seen.age.limit);
        let batch: Vec<_> = (0..=limit).map_while(|_| handle.try_acquire().ok()).collect();
        prop_assert_eq!(batch.len(), limit, "a full batch can be had: {:?}", seen);
    }
}

/// Nothing is left of a request that is gone, however it went.
#[track_caller]
fn assert_free(handle: &Handle) {
    let permits = handle.snapshot().permits;
    assert_eq!((permits.in_flight, permits.waiting), (0, 0));
    assert_eq!(permits.oldest_wait, None);
    for tenant in handle.tenants() {
        assert_eq!((tenant.running, tenant.waiting), (0, 0), "{tenant:?}");
    }
}

#[test]
fn a_permit_of_the_handle_is_admitted_and_not_served() {
    for config in [
        WfqConfig::default(),
        WfqConfig::default().max_in_flight_per_tenant(1),
    ] {
        let handle = edge().wfq(config).limits(1, 1, 1).handle();
        for before in 0..3 {
            let permit = handle.try_acquire().unwrap();
            let refused = handle.try_acquire().unwrap_err();
            assert_eq!(
                (refused.layer(), refused.reason()),
                ("edge", Reason::AtLimit)
            );
            let permits = handle.snapshot().permits;
            assert_eq!((permits.in_flight, permits.admitted), (1, before + 1));
            drop(permit);
            let seen = handle.snapshot();
            assert_eq!((seen.permits.admitted, seen.served), (before + 1, 0));
            assert_free(&handle);
        }
    }
}

fn job_of(takes: Duration) -> Request<Job> {
    Request::new(Job {
        comes_after: MS,
        submitted: None,
        tenant: None,
        cost: NonZeroU32::MIN,
        takes,
        end: End::Answers(StatusCode::OK),
        patience: MS,
        reads: MS,
        keeps_service: false,
    })
}

/// Panics when it is told of a request that comes.
struct Startled(Bounds);

impl Limit for Startled {
    fn limit(&self) -> usize {
        self.0.initial()
    }

    fn sample(&mut self, _: &Sample) {}

    fn bounds(&self) -> Bounds {
        self.0
    }

    fn restart(&mut self, bounds: Bounds) {
        self.0 = bounds;
    }

    fn is_probing(&self) -> bool {
        true
    }

    fn admitted(&mut self, _: Duration, _: usize) {
        resume_unwind(Box::new("a law of one's own"));
    }
}

#[test]
fn a_law_that_panics_while_a_request_is_sent_takes_nothing_with_it() {
    paused(async {
        let edge = edge().law(Startled(Bounds::new(1, 5, 9)));
        let handle = edge.handle();
        let mut service = edge.gates().layer(service_fn(work));
        for _ in 0..3 {
            let call = AssertUnwindSafe(|| service.call(job_of(MS)));
            assert!(catch_unwind(call).is_err());
            assert_free(&handle);
        }
    });
}

/// A task that panics when it is woken.
struct Grumpy;

impl Wake for Grumpy {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("woken"));
    }
}

#[test]
fn a_waker_that_panics_takes_nothing_with_it() {
    paused(async {
        let edge = edge().limits(1, 1, 1);
        let handle = edge.handle();
        let mut service = edge.gates().layer(service_fn(work));
        let mut first = Box::pin(service.call(job_of(MS)));
        let mut second = Box::pin(service.call(job_of(MS)));
        assert!(support::poll(&mut first).is_pending());
        let grumpy = Waker::from(Arc::new(Grumpy));
        let mut cx = Context::from_waker(&grumpy);
        assert!(second.as_mut().poll(&mut cx).is_pending());
        advance(MS * 2).await;
        let done = AssertUnwindSafe(|| support::poll(&mut first).is_ready());
        assert!(catch_unwind(done).is_err(), "it hands its place on");
        drop((first, second));
        assert_free(&handle);
    });
}

/// Whether a request is refused at once or after it has waited, or fails inside: what the client speaks is known.
#[tokio::test(start_paused = true)]
async fn whoever_is_turned_away_is_told_in_its_own_words() {
    async fn infallible(request: Request<Job>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(work(request).await.expect("it was not told to fail"))
    }
    let grpc = |end| {
        let mut request = job_of(Duration::from_secs(10));
        request.body_mut().end = end;
        *request.method_mut() = Method::POST;
        let content_type = HeaderValue::from_static("application/grpc");
        request.headers_mut().insert("content-type", content_type);
        request
    };
    let told = |response: Response<_>| response.headers().get("grpc-status").cloned();
    let refused = Some(HeaderValue::from_static("8"));
    let failed = Some(HeaderValue::from_static("13"));

    let edge = || {
        let wfq = WfqConfig::default().max_wait(Duration::from_secs(1));
        edge().wfq(wfq.max_waiting(1)).limits(1, 1, 1)
    };
    let routes = edge().layer(service_fn(infallible));
    let client = edge().layer(service_fn(work));
    let mut told_by_routes = Vec::new();
    let mut told_by_client = Vec::new();
    for _ in 0..3 {
        let answers = End::Answers(StatusCode::OK);
        told_by_routes.push(tokio::spawn(routes.clone().oneshot(grpc(answers))));
        told_by_client.push(tokio::spawn(client.clone().oneshot(grpc(End::Fails))));
        tokio::task::yield_now().await;
    }
    let mut words = Vec::new();
    for response in told_by_routes.into_iter().chain(told_by_client) {
        let Ok(response) = response.await.unwrap();
        words.push(told(response));
    }
    let served = None;
    let at_once_and_later = [refused.clone(), refused.clone()];
    assert_eq!(words[0], served);
    assert_eq!(words[1..3], at_once_and_later);
    assert_eq!(words[3], failed);
    assert_eq!(words[4..], at_once_and_later);
}
