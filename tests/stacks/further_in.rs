//! Whether a rejection was made here, before the service was called, or came from further in: in stacks of this crate's layers
//! and others'.

use crate::support;

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Request, Response};
use support::{refusal, rejection};
use tokio::time::sleep;
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    buffer::Buffer,
    retry::{Policy, RetryLayer},
    service_fn,
    util::{BoxCloneService, Oneshot},
};
use tower_backpressure::{
    CircuitBreakerLayer, CoDelConfig, CoDelLayer, ConcurrencyLimitLayer,
    KeyedConcurrencyLimitLayer, KeyedRateLimitLayer, LoadShedLayer, OverloadResponseLayer,
    Overloaded, Rate, RateLimitLayer, SaturationLayer, ShadowLayer, WfqConfig, WfqLayer, edge,
    wfq::TenantId,
};

const MS: Duration = Duration::from_millis(1);

type Req = Request<()>;
type Res = Response<String>;
type Boxed = BoxCloneService<Req, Res, BoxError>;

/// What answers rejections wants a body, and everything here does without.
fn without_body(request: Request<String>) -> Req {
    request.map(drop)
}

fn boxed<S>(service: S) -> Boxed
where
    S: Service<Req, Response = Res, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
{
    BoxCloneService::new(service.map_err(Into::into))
}

/// Layers around a service.
type Around = Box<dyn Fn(Boxed) -> Boxed>;

macro_rules! around {
    ($name:literal, $layer:expr) => {{
        let layer = $layer;
        let around: Around = Box::new(move |inner| boxed(Layer::layer(&layer, inner)));
        ($name, around)
    }};
}

fn request() -> Req {
    let mut request = Request::new(());
    request.extensions_mut().insert(TenantId::new("somebody"));
    request
}

/// Every layer that lets requests through, with room for all.
fn admitting() -> Vec<(&'static str, Around)> {
    let rate = || Rate::per_second(1_000_000);
    let key = |_: &Req| Some("key");
    vec![
        around!("limit", ConcurrencyLimitLayer::new(100)),
        around!("rate", RateLimitLayer::new(rate())),
        around!("shed", LoadShedLayer::new()),
        around!("wfq", WfqLayer::new(WfqConfig::default(), key)),
        around!("codel", CoDelLayer::new(CoDelConfig::default())),
        around!("breaker", CircuitBreakerLayer::default()),
        around!("saturation", SaturationLayer::new()),
        around!("keyed limit", KeyedConcurrencyLimitLayer::new(100, key)),
        around!("keyed rate", KeyedRateLimitLayer::new(rate(), key)),
        around!("edge", edge().gates()),
        around!("shadow", ShadowLayer::new(full())),
        around!(
            "shadow of a queue",
            ShadowLayer::new(WfqLayer::new(WfqConfig::default(), key))
        ),
    ]
}

/// A limit with no room, for anybody, ever.
fn full() -> ConcurrencyLimitLayer {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    std::mem::forget(limit.handle().try_acquire().unwrap());
    limit
}

/// Layers that reject, at once or after a wait.
fn rejecting() -> Vec<(&'static str, Around)> {
    let key = |_: &Req| Some("key");
    let waits = || {
        let limit = ConcurrencyLimitLayer::new(1);
        std::mem::forget(limit.handle().try_acquire().unwrap());
        limit
    };
    let queue = || WfqLayer::new(WfqConfig::default().max_wait(50 * MS), key);
    let rate = Rate::every(3600 * 1000 * MS);
    let empty = RateLimitLayer::new(rate);
    empty.handle().try_acquire(1).unwrap();
    let quota = KeyedRateLimitLayer::new(rate, key);
    quota.handle().try_acquire("key").unwrap();
    let open = CircuitBreakerLayer::default();
    open.handle().force_open();
    let shed = || ServiceBuilder::new().layer(LoadShedLayer::new());
    vec![
        around!("full", full()),
        around!("shed", shed().layer(waits())),
        around!("waits", waits().max_wait(50 * MS)),
        around!("empty", shed().layer(empty.clone())),
        around!("quota", quota),
        around!("circuit", open),
        around!("queue", ServiceBuilder::new().layer(queue()).layer(waits())),
        around!(
            "queue over shed",
            ServiceBuilder::new()
                .layer(queue())
                .layer(LoadShedLayer::new())
                .layer(waits())
        ),
        around!(
            "keyed",
            ServiceBuilder::new()
                .layer(KeyedConcurrencyLimitLayer::new(1, key).max_wait(50 * MS))
                .layer(waits().max_wait(20 * MS))
        ),
        around!(
            "edge",
            ServiceBuilder::new().layer(edge().gates()).layer(full())
        ),
    ]
}

#[derive(Debug)]
struct Wrapped(BoxError);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrapped")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.0.as_ref())
    }
}

/// Services of others that may be in between, and whose `call` calls the next.
fn transparent() -> Vec<(&'static str, Around)> {
    let seconds = Duration::from_secs(60);
    vec![
        ("nothing", Box::new(|inner| inner) as Around),
        around!("timeout", tower::timeout::TimeoutLayer::new(seconds)),
        around!("wrapped error", ServiceBuilder::new().map_err(Wrapped)),
        around!("boxed twice", tower::layer::layer_fn(boxed)),
        around!(
            "towers limit",
            tower::limit::ConcurrencyLimitLayer::new(100)
        ),
    ]
}

/// A service that counts its calls.
fn counted(calls: &Arc<AtomicUsize>) -> Boxed {
    let calls = Arc::clone(calls);
    boxed(service_fn(move |_: Req| {
        let calls = Arc::clone(&calls);
        async move {
            calls.fetch_add(1, SeqCst);
            Ok::<_, BoxError>(Response::new(String::new()))
        }
    }))
}

/// A handler that works, asks another service by this client, and passes on what it is told.
fn handler(client: Boxed, works: Duration) -> Boxed {
    boxed(service_fn(move |request: Req| {
        let client = client.clone();
        async move {
            if !works.is_zero() {
                sleep(works).await;
            }
            client.oneshot(request).await
        }
    }))
}

async fn ask(service: &Boxed) -> Overloaded {
    refusal(service.clone().oneshot(request()).await)
}

#[tokio::test(start_paused = true)]
async fn what_a_layer_of_the_stack_rejects_is_rejected_here() {
    for (inner, rejecting) in rejecting() {
        let calls = Arc::default();
        let rejecting = rejecting(counted(&calls));
        for (between, transparent) in transparent() {
            for (outer, admitting) in admitting() {
                let stack = admitting(transparent(rejecting.clone()));
                for _ in 0..2 {
                    let rejection = ask(&stack).await;
                    assert!(rejection.rejected_here(), "{outer}, {between}, {inner}");
                }
            }
        }
        assert_eq!(calls.load(SeqCst), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_client_of_a_handler_rejects_comes_from_further_in() {
    for (inner, rejecting) in rejecting() {
        let client = rejecting(counted(&Arc::default()));
        for works in [Duration::ZERO, 1000 * MS] {
            for (between, transparent) in transparent() {
                for (outer, admitting) in admitting() {
                    let stack = admitting(transparent(handler(client.clone(), works)));
                    let rejection = ask(&stack).await;
                    let case = format!("{outer}, {between}, handler of {works:?}, {inner}");
                    assert!(!rejection.rejected_here(), "{case}");
                }
            }
        }
        assert!(ask(&client).await.rejected_here(), "{inner}");
    }
}

/// All layers at once, and a handler's client that has all of them too.
#[tokio::test(start_paused = true)]
async fn the_depth_of_a_stack_does_not_matter() {
    for (name, rejecting) in rejecting() {
        let all = |inner| (admitting().into_iter()).fold(inner, |inner, (_, around)| around(inner));
        let stack = all(rejecting(counted(&Arc::default())));
        assert!(ask(&stack).await.rejected_here(), "{name}");
        let server = all(handler(stack, MS));
        assert!(!ask(&server).await.rejected_here(), "{name}");
    }
}

/// A request that had to wait in a layer further in is that layer's to judge, when it is sent at last.
#[tokio::test(start_paused = true)]
async fn a_request_that_waited_and_was_served_then_is_not_taken_for_one_that_was_kept_back() {
    let key = |_: &Req| Some("key");
    let limit = ConcurrencyLimitLayer::new(1);
    let queues: [(&str, Around); 3] = [
        around!(
            "wfq",
            ServiceBuilder::new()
                .layer(WfqLayer::new(WfqConfig::default(), key))
                .layer(limit.clone())
        ),
        around!("keyed limit", KeyedConcurrencyLimitLayer::new(1, key)),
        around!(
            "keyed rate",
            KeyedRateLimitLayer::new(Rate::every(10 * MS), key).max_wait(1000 * MS)
        ),
    ];
    for (inner, queue) in queues {
        for (outer, admitting) in admitting() {
            let stack = admitting(queue(handler(
                boxed(full().layer(counted(&Arc::default()))),
                10 * MS,
            )));
            let both = tokio::join!(ask(&stack), ask(&stack));
            for rejection in [both.0, both.1] {
                assert!(!rejection.rejected_here(), "{outer}, {inner}");
            }
        }
    }
}

/// What calls the next service elsewhere hides what is inside it. Nothing is said to be safe then.
#[tokio::test(start_paused = true)]
async fn behind_a_service_that_calls_elsewhere_nothing_is_known() {
    let rejecting = || boxed(full().layer(counted(&Arc::default())));
    let hiding: [(&str, Boxed); 2] = [
        ("buffer", boxed(Buffer::new(rejecting(), 10))),
        (
            "oneshot",
            boxed(service_fn(move |request: Req| {
                Oneshot::new(rejecting(), request)
            })),
        ),
    ];
    for (hidden, inner) in hiding {
        for (outer, admitting) in admitting() {
            let rejection = ask(&admitting(inner.clone())).await;
            // `oneshot` asks first, and calls when it is polled.
            assert!(!rejection.rejected_here(), "{outer}, {hidden}");
        }
    }
}

/// Sends again whatever fails, once.
#[derive(Clone)]
struct Once(bool);

impl Policy<Req, Res, BoxError> for Once {
    type Future = tokio::time::Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, BoxError>) -> Option<Self::Future> {
        let again = std::mem::take(&mut self.0) && result.is_err();
        again.then(|| sleep(MS))
    }

    fn clone_request(&mut self, _: &Req) -> Option<Req> {
        Some(request())
    }
}

/// A retry inside: whatever was sent first decides.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_once_and_rejected_at_its_retry_was_sent() {
    let calls = Arc::new(AtomicUsize::new(0));
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let (count, handle) = (Arc::clone(&calls), limit.handle());
    let fails = service_fn(move |_: Req| {
        count.fetch_add(1, SeqCst);
        let handle = handle.clone();
        async move {
            // From the next moment on there is no room.
            tokio::spawn(async move { std::mem::forget(handle.acquire().await) });
            Err::<Res, BoxError>("failed".into())
        }
    });
    let stack = boxed(
        ServiceBuilder::new()
            .layer(WfqLayer::new(WfqConfig::default(), |_: &Req| Some("key")))
            .layer(RetryLayer::new(Once(true)))
            .layer(limit)
            .service(fails),
    );
    let sent = ask(&stack).await;
    assert_eq!((calls.load(SeqCst), sent.rejected_here()), (1, false));
    // Now it is rejected both times.
    assert!(ask(&stack).await.rejected_here());
    assert_eq!(calls.load(SeqCst), 1);
}

/// A limit that a handler asks by its handle is the handler's own too, whenever that was.
#[tokio::test(start_paused = true)]
async fn a_rejection_by_a_handle_is_the_handlers_own() {
    let old = rejection();
    assert!(old.rejected_here());
    for (outer, admitting) in admitting() {
        let old = old.clone();
        let stack = admitting(boxed(service_fn(move |_: Req| {
            std::future::ready(Err::<Res, _>(old.clone()))
        })));
        assert!(!ask(&stack).await.rejected_here(), "{outer}");
    }
    assert!(old.rejected_here(), "a clone was passed on");
}

/// The mark is there for layers on trial too: they decide what they would in earnest.
#[tokio::test(start_paused = true)]
async fn on_trial_a_tenant_is_charged_as_in_earnest() {
    let charged = async |inner: Boxed| {
        let layers = || WfqLayer::new(WfqConfig::default(), |_: &Req| Some("key"));
        let (earnest, trial) = (layers(), layers());
        let stack = ServiceBuilder::new()
            .layer(ShadowLayer::new(trial.clone()))
            .layer(earnest.clone());
        let stack = boxed(stack.service(inner));
        for _ in 0..3 {
            ask(&stack).await;
        }
        sleep(1000 * MS).await;
        [earnest, trial].map(|layer| {
            let tenant = layer.handle().tenant("key").unwrap();
            (tenant.refused, tenant.share)
        })
    };
    for (name, rejecting) in rejecting() {
        // After a wait, for some of them.
        let rejecting = rejecting(counted(&Arc::default()));
        let layers = charged(rejecting.clone()).await;
        assert_eq!(layers, [(3, 0.0); 2], "{name}");
        let layers = charged(handler(rejecting, 100 * MS)).await;
        assert_eq!(layers, [(3, 1.0); 2], "{name}");
    }
}

/// Layers on trial reject what is served in earnest. That is nothing to the layers outside.
#[tokio::test(start_paused = true)]
async fn what_is_rejected_on_trial_is_not_kept_back() {
    let fails = service_fn(|_: Req| std::future::ready(Err::<Res, _>(Wrapped(rejection().into()))));
    let stack = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(10))
        .layer(ShadowLayer::new(full()))
        .service(fails);
    assert!(!ask(&boxed(stack)).await.rejected_here());
}

/// Requests of both kinds side by side on several threads, each on one after the other: none is taken for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn none_is_taken_for_another() {
    let client = boxed(full().layer(counted(&Arc::default())));
    let works = handler(client.clone(), Duration::ZERO);
    let either = service_fn(move |request: Req| {
        // Kept back by a layer within `call`, or handed to a handler that gives way before it asks its client.
        let (mut client, works) = (client.clone(), works.clone());
        let by_layer = (request.method() == "GET").then(|| {
            assert!(support::poll_ready(&mut client).is_ready());
            client.call(request)
        });
        async move {
            match by_layer {
                Some(rejected) => rejected.await,
                None => {
                    tokio::task::yield_now().await;
                    works.oneshot(Request::new(())).await
                }
            }
        }
    });
    // None that decides by the clock: a machine may be slow.
    let layers = (admitting().into_iter())
        .filter(|(name, _)| ["limit", "shed", "wfq", "breaker", "keyed limit"].contains(name));
    let stack = layers.fold(boxed(either), |inner, (_, around)| around(inner));
    let send = |stack: &Boxed, method| {
        let request = Request::builder().method(method).body(()).unwrap();
        stack.clone().oneshot(request)
    };
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let stack = stack.clone();
        tasks.spawn(async move {
            for number in 0..200 {
                let method = ["GET", "POST"][(task + number) % 2];
                let both = (send(&stack, method), send(&stack, "POST"));
                let (one, other) = tokio::join!(both.0, both.1);
                assert_eq!(refusal(one).rejected_here(), method == "GET");
                assert!(!refusal(other).rejected_here());
            }
        });
    }
    tasks.join_all().await;
}

/// Clients of another process are told by a header.
#[tokio::test(start_paused = true)]
async fn the_answer_says_whether_the_request_was_started() {
    let client = || boxed(full().layer(counted(&Arc::default())));
    for protocol in [
        "text/plain",
        "application/grpc",
        "application/connect+proto",
    ] {
        for (started, inner) in [(false, client()), (true, handler(client(), MS))] {
            for (outer, admitting) in admitting() {
                let server = admitting(inner.clone()).map_request(without_body);
                let server = OverloadResponseLayer::new().layer(server);
                let mut request = Request::post("/")
                    .header("content-type", protocol)
                    .body(String::new())
                    .unwrap();
                request.extensions_mut().insert(TenantId::new("somebody"));
                let response = server
                    .map_response(|response| response.map(drop))
                    .oneshot(request)
                    .await
                    .unwrap();
                let header = response
                    .headers()
                    .get("x-rejected")
                    .map(|value| value.as_bytes());
                assert_eq!(
                    header,
                    started.then_some(b"further-in".as_slice()),
                    "{protocol} {outer}"
                );
            }
        }
    }
    // Also where there is no layer in between.
    let answers = OverloadResponseLayer::new().jitter(false);
    let server = answers.layer(handler(client(), MS).map_request(without_body));
    let response = server.oneshot(Request::new(String::new())).await;
    let response = response.unwrap();
    assert_eq!(response.headers()["x-rejected"], "further-in");
    assert_eq!(response.headers()["retry-after"], "1");
}
