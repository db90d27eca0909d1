//! What is written to the log, and how little of it.

use std::{
    cell::RefCell,
    fmt,
    num::NonZeroU64,
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, KeyedConcurrencyLimitLayer, KeyedRateLimitLayer, LoadShedLayer,
    Overloaded, Rate, RateLimitLayer, SaturationLayer, ShadowLayer, SubmittedAt, WfqConfig,
    WfqLayer, edge, saturation::Work,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What a subscriber does that comes back to the layer it hears from.
    static LISTENER: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// A subscriber for the whole process (of one thread alone it would miss what another was the first to log),
/// which keeps the lines of each thread apart: each test runs on its own.
struct Lines;

fn listen(listener: impl Fn() + 'static) {
    static SET: Once = Once::new();
    SET.call_once(|| tracing::subscriber::set_global_default(Lines).unwrap());
    LISTENER.set(Some(Box::new(listener)));
}

/// What was logged since it was last asked.
fn lines() -> Vec<String> {
    LINES.take()
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_backpressure")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_non_zero_u64(NonZeroU64::MIN)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LINES.with_borrow_mut(|lines| lines.push(line.0));
        LISTENER.with_borrow(|listener| listener.iter().for_each(|listener| listener()));
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0 += &format!(" {field}={value}");
    }

    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.0 += &format!(" {value:?}:"),
            _ => self.0 += &format!(" {field}={value:?}"),
        }
    }
}

/// Answers at once.
async fn answer(_: u32) -> Result<u32, BoxError> {
    Ok(0)
}

/// Does not answer.
async fn hang(_: u32) -> Result<u32, BoxError> {
    std::future::pending().await
}

/// Starts a request, which stays where it is, and says whether it was refused.
fn start<S>(service: &S, request: u32) -> (Option<tokio::task::JoinHandle<()>>, bool)
where
    S: Service<u32, Error = BoxError, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
{
    use std::future::Future;
    let mut response = Box::pin(service.clone().oneshot(request));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match response.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(Err(error)) => (None, Overloaded::find(error.as_ref()).is_some()),
        std::task::Poll::Ready(Ok(_)) => (None, false),
        std::task::Poll::Pending => (
            Some(tokio::spawn(async move { drop(response.await) })),
            false,
        ),
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_refusals_is_a_few_lines_and_none_is_left_out() {
    let limit = ConcurrencyLimitLayer::new(1).name("orders");
    let handle = limit.handle();
    let seen = limit.handle();
    listen(move || _ = seen.snapshot());
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(limit)
        .service_fn(hang);
    let (first, _) = start(&service, 0);
    for _ in 0..25_000 {
        assert!(start(&service, 0).1);
        advance(MS).await;
    }
    let told = lines();
    assert_eq!(
        told,
        [
            "WARN requests are refused: layer=orders reason=at_limit",
            "WARN requests are still refused: layer=orders refused=10002 lasted=10.001s",
            "WARN requests are still refused: layer=orders refused=10000 lasted=20.001s",
        ]
    );
    first.unwrap().abort();
    handle.snapshot(); // there were some since the last look
    advance(5 * SEC).await;
    handle.snapshot();
    assert_eq!(
        lines(),
        ["INFO requests are no longer refused: layer=orders refused=25000 lasted=24.999s"]
    );
    advance(60 * SEC).await;
    handle.snapshot();
    assert_eq!(lines(), [""; 0], "it is said once");
}

/// Nobody looks for a while after the last of them.
#[tokio::test(start_paused = true)]
async fn an_episode_lasts_until_its_last_rejection() {
    for apart in [SEC, 100 * MS, 20 * MS, 7 * MS, MS, MS / 20] {
        let handle = ConcurrencyLimitLayer::new(1).handle();
        listen(|| ());
        let permit = handle.try_acquire().unwrap();
        let count = 1 + (3 * SEC).as_nanos() / apart.as_nanos();
        for n in 0..count {
            assert!(handle.try_acquire().is_err());
            advance(if n + 1 < count { apart } else { Duration::ZERO }).await;
        }
        drop(permit);
        lines();
        advance(24_900 * MS).await;
        handle.snapshot();
        advance(5 * SEC).await;
        handle.snapshot();
        let lasted = apart * (count as u32 - 1);
        let line = format!(
            "INFO requests are no longer refused: layer=concurrency_limit refused={count} lasted={lasted:?}"
        );
        assert_eq!(lines(), [line], "one every {apart:?}");
    }
}

/// A flood, then a trickle, which is seen as it is once somebody has looked.
#[tokio::test(start_paused = true)]
async fn an_episode_that_gets_slower_lasts_until_its_last_rejection() {
    let handle = ConcurrencyLimitLayer::new(1).handle();
    listen(|| ());
    let _permit = handle.try_acquire().unwrap();
    for _ in 0..10_000 {
        assert!(handle.try_acquire().is_err());
        advance(MS / 100).await;
    }
    advance(SEC).await;
    handle.snapshot();
    for _ in 0..9 {
        assert!(handle.try_acquire().is_err());
        advance(SEC).await;
    }
    lines();
    advance(60 * SEC).await;
    handle.snapshot();
    let line =
        "INFO requests are no longer refused: layer=concurrency_limit refused=10009 lasted=9.1s";
    assert_eq!(lines(), [line]);
}

#[tokio::test(start_paused = true)]
async fn few_refusals_are_one_episode_whether_anybody_looks_or_not() {
    for looks in [false, true] {
        let handle = ConcurrencyLimitLayer::new(1).handle();
        listen(|| ());
        let _permit = handle.try_acquire().unwrap();
        for _ in 0..60 {
            assert!(handle.try_acquire().is_err());
            advance(SEC).await;
            if looks {
                handle.snapshot();
            }
        }
        let told = lines();
        assert_eq!(told.len(), 6, "{told:#?}");
        assert!(
            !told.iter().any(|line| line.contains("no longer")),
            "{told:#?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_refusal_after_an_episode_begins_another() {
    let limit = ConcurrencyLimitLayer::new(1);
    let handle = limit.handle();
    listen(|| ());
    let _permit = handle.try_acquire().unwrap();
    for _ in 0..3 {
        assert!(handle.try_acquire().is_err());
        assert!(handle.try_acquire().is_err());
        let begun = "WARN requests are refused: layer=concurrency_limit reason=at_limit";
        assert_eq!(lines(), [begun]);
        advance(5 * SEC).await;
        handle.snapshot();
        assert_eq!(lines().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn that_it_is_over_is_noticed_by_requests_that_complete_too() {
    let limit = ConcurrencyLimitLayer::new(1);
    let handle = limit.handle();
    let seen = limit.handle();
    listen(move || _ = seen.snapshot());
    let permit = handle.try_acquire().unwrap();
    assert!(handle.try_acquire().is_err());
    drop(permit);
    advance(60 * SEC).await;
    assert_eq!(lines().len(), 1);
    for _ in 0..1 << 14 {
        drop(handle.try_acquire().unwrap());
    }
    drop(handle.try_acquire().unwrap());
    assert_eq!(
        lines(),
        ["INFO requests are no longer refused: layer=concurrency_limit refused=1 lasted=0ns"]
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_for_what_is_accepted() {
    listen(|| ());
    let mut service = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), |_: &u32| {
            Some("a".to_owned())
        }))
        .layer(
            CoDelLayer::new(CoDelConfig::default())
                .submitted_at(|_: &u32| Some(SubmittedAt::now())),
        )
        .layer(RateLimitLayer::new(Rate::per_second(1_000_000)))
        .layer(ConcurrencyLimitLayer::new(10))
        .layer(CircuitBreakerLayer::new(CircuitBreakerConfig::default()))
        .service_fn(answer);
    for _ in 0..20_000 {
        service.ready().await.unwrap().call(0).await.unwrap();
        advance(MS).await;
    }
    assert_eq!(lines(), [""; 0]);
}

/// A `LoadShed` looks at the limit, and answers nothing with what it finds.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_for_a_rejection_that_is_not_delivered() {
    listen(|| ());
    let limit = ConcurrencyLimitLayer::new(1);
    let _permit = limit.handle().try_acquire().unwrap();
    let mut service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(limit)
        .service_fn(answer);
    for _ in 0..100 {
        service.ready().await.unwrap();
        advance(MS).await;
    }
    assert_eq!(lines(), [""; 0]);
    assert!(service.ready().await.unwrap().call(0).await.is_err());
    let line = "WARN requests are refused: layer=concurrency_limit reason=at_limit";
    assert_eq!(lines(), [line]);
}

/// Has a service refuse, with a listener that takes a snapshot, and looks what was written.
macro_rules! writes {
    ($layer:expr, $line:literal) => {{
        let layer = $layer;
        let handle = layer.handle();
        let seen = layer.handle();
        listen(move || _ = seen.snapshot());
        let service = ServiceBuilder::new().layer(layer).service_fn(hang);
        let mut refused = 0;
        let mut running = Vec::new();
        while refused < 100 {
            let (task, is_refused) = start(&service, 0);
            refused += usize::from(is_refused);
            running.extend(task);
        }
        assert_eq!(lines(), [concat!("WARN requests are refused: ", $line)]);
        handle.snapshot(); // there were some since the last look
        advance(5 * SEC).await;
        handle.snapshot();
        let over = lines();
        assert_eq!(over.len(), 1, "{over:?}");
        assert!(
            over[0].starts_with("INFO requests are no longer refused: "),
            "{over:?}"
        );
        assert!(over[0].contains(" refused=100 "), "{over:?}");
        running.iter().for_each(|task| task.abort());
    }};
}

#[tokio::test(start_paused = true)]
async fn every_layer_that_refuses_says_so() {
    let tenant = |_: &u32| Some("tenant".to_owned());
    let key = |request: &u32| Some(*request);
    writes!(
        ConcurrencyLimitLayer::new(2).max_waiting(3).name("first"),
        "layer=first reason=queue_full"
    );
    writes!(
        AdaptiveConcurrencyLayer::vegas()
            .limits(1, 1, 1)
            .max_waiting(0),
        "layer=adaptive_concurrency reason=queue_full"
    );
    writes!(
        RateLimitLayer::new(Rate::per_hour(1)).max_waiting(0),
        "layer=rate_limit reason=queue_full"
    );
    writes!(
        KeyedRateLimitLayer::new(Rate::per_hour(1), key),
        "layer=keyed_rate_limit reason=quota"
    );
    writes!(
        KeyedConcurrencyLimitLayer::new(1, key).max_waiting(1),
        "layer=keyed_concurrency_limit reason=queue_full"
    );
    writes!(
        CoDelLayer::new(CoDelConfig::default().min_concurrency(1).max_concurrency(1))
            .submitted_at(|_: &u32| None),
        "layer=codel reason=at_limit"
    );
    let wfq = WfqConfig::default().max_in_flight_per_tenant(1.try_into().unwrap());
    writes!(
        WfqLayer::new(wfq.max_waiting_per_tenant(1), tenant),
        "layer=wfq reason=queue_full"
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_moves_says_why_and_at_most_once_a_second() {
    let layer = AdaptiveConcurrencyLayer::vegas()
        .limits(1, 20, 100)
        .name("shop");
    let handle = layer.handle();
    let seen = layer.handle();
    listen(move || _ = seen.snapshot());
    let service = ServiceBuilder::new()
        .layer(layer)
        .service_fn(|_: u32| async {
            tokio::time::sleep(10 * MS).await;
            Ok::<_, BoxError>(0)
        });
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(async move {
                for _ in 0..1000 {
                    service.ready().await.unwrap().call(0).await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    handle.pin(7).unwrap();
    let told = lines();
    let moves: Vec<(usize, usize)> = told
        .iter()
        .map(|line| {
            assert!(
                line.starts_with("DEBUG the limit has moved: layer=shop "),
                "{line}"
            );
            assert!(!line.ends_with("why="), "{line}");
            let number = |name: &str| {
                let field = line.split(' ').find_map(|field| field.strip_prefix(name));
                field.unwrap().parse().unwrap()
            };
            (number("from="), number("to="))
        })
        .collect();
    assert!((2..=40).contains(&moves.len()), "{told:#?}");
    assert_eq!(moves[0].0, 20);
    for pair in moves.windows(2) {
        assert_eq!(pair[0].1, pair[1].0, "nothing is left out: {told:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_stands_is_told_and_that_it_is_gone() {
    let layer = CoDelLayer::new(CoDelConfig::default().min_concurrency(1))
        .submitted_at(|age: &u32| SubmittedAt::ago(*age * MS));
    let handle = layer.handle();
    let seen = layer.handle();
    listen(move || _ = seen.snapshot());
    let service = ServiceBuilder::new().layer(layer).service_fn(hang);
    let mut running = Vec::new();
    for _ in 0..200 {
        running.extend(start(&service, 300).0);
        advance(11 * MS).await;
    }
    let told = lines();
    let begun = |line: &&String| line.starts_with("WARN a queue stands: layer=codel p95=");
    assert_eq!(told.iter().filter(begun).count(), 1, "{told:#?}");
    for _ in 0..200 {
        running.extend(start(&service, 0).0);
        advance(11 * MS).await;
    }
    handle.snapshot();
    let told = lines();
    let gone = |line: &&String| line.starts_with("INFO the queue is gone: layer=codel p95=");
    assert_eq!(told.iter().filter(gone).count(), 1, "{told:#?}");
}

/// In all that an edge writes it is one layer.
#[tokio::test(start_paused = true)]
async fn an_edge_says_all_of_it_in_its_own_name() {
    let edge = edge()
        .codel(CoDelConfig::default().min_concurrency(1))
        .wfq(WfqConfig::default().weight("gold", 10));
    let handle = edge.handle();
    handle.pin(1000).unwrap();
    let seen = edge.handle();
    listen(move || _ = seen.snapshot());
    let service = ServiceBuilder::new()
        .map_request(|age: u32| {
            let mut request = Request::new(age);
            let submitted = SubmittedAt::ago(age * MS).expect("the clock has run for longer");
            request.extensions_mut().insert(submitted);
            request
        })
        .map_response(Response::into_body)
        .layer(edge.gates())
        .service_fn(|request: Request<u32>| async move {
            match request.body() {
                300 => std::future::pending().await,
                _ => Ok::<_, BoxError>(Response::new(0)),
            }
        });
    advance(SEC).await;
    let mut running = Vec::new();
    for _ in 0..200 {
        running.extend(start(&service, 300).0);
        advance(11 * MS).await;
    }
    for _ in 0..200 {
        running.extend(start(&service, 0).0);
        advance(11 * MS).await;
    }
    handle.snapshot();
    advance(10 * SEC).await;
    handle.snapshot();
    let told = lines();
    for begins in [
        "WARN requests are refused: layer=edge reason=",
        "INFO requests are no longer refused: layer=edge ",
        "WARN a queue stands: layer=edge p95=",
        "INFO the queue is gone: layer=edge p95=",
        "WARN no request has a tenant, although there are weights for some: layer=edge served=",
    ] {
        let count = told.iter().filter(|line| line.starts_with(begins)).count();
        assert_eq!(count, 1, "{begins}: {told:#?}");
    }
    assert!(told.iter().all(|line| line.contains(": layer=edge ")));
}

#[tokio::test(start_paused = true)]
async fn a_circuit_says_when_it_opens_probes_and_closes() {
    let layer = CircuitBreakerLayer::new(CircuitBreakerConfig::default()).name("database");
    let seen = layer.handle();
    listen(move || _ = seen.snapshot());
    let mut service =
        ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(|fails: u32| async move {
                match fails {
                    0 => Ok(0),
                    _ => Err::<u32, BoxError>("down".into()),
                }
            }));
    for _ in 0..100 {
        let _ = service.ready().await.unwrap().call(1).await;
    }
    assert_eq!(lines(), ["WARN circuit opened: layer=database"]);
    advance(60 * SEC).await;
    for _ in 0..100 {
        let _ = service.ready().await.unwrap().call(0).await;
    }
    assert_eq!(
        lines(),
        [
            "INFO circuit half-open: requests probe: layer=database",
            "INFO circuit closed: layer=database",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_happens_on_trial_says_so() {
    listen(|| ());
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let trial = ShadowLayer::new(limit.clone()).likeness(u32::clone);
    let service = ServiceBuilder::new().layer(trial).service_fn(hang);
    let running = [start(&service, 0), start(&service, 0)];
    assert!(running.iter().all(|(_, refused)| !refused));
    let line = "WARN requests are refused: layer=concurrency_limit reason=queue_full shadow=true";
    assert_eq!(lines(), [line]);
    advance(5 * SEC).await;
    limit.handle().snapshot();
    let over = lines();
    assert_eq!(over.len(), 1);
    assert!(over[0].ends_with("shadow=true"), "{over:?}");
}

#[test]
fn a_level_of_saturation_is_told_once_with_the_probe_and_the_ratio() {
    let queue = Arc::new(AtomicUsize::new(0));
    let depth = Arc::clone(&queue);
    let handle = SaturationLayer::new()
        .name("orders")
        .probe("queue", move || (depth.load(SeqCst), 1000))
        .sample_every(Duration::ZERO)
        .handle();
    let seen = handle.clone();
    listen(move || _ = seen.snapshot());
    for depth in [0, 750, 760, 860, 820, 960, 960, 100, 100] {
        queue.store(depth, SeqCst);
        let _ = handle.check(Work::New);
    }
    assert_eq!(
        lines(),
        [
            "WARN saturation has risen: layer=orders probe=queue ratio=0.75 from=normal to=warning",
            "WARN saturation has risen: layer=orders probe=queue ratio=0.86 from=warning to=critical",
            "WARN saturation has risen: layer=orders probe=queue ratio=0.96 from=critical to=overflow",
            "INFO saturation has fallen: layer=orders probe=queue ratio=0.1 from=overflow to=normal",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_queue_with_weights_says_once_that_no_request_has_a_tenant() {
    listen(|| {});
    let service = |config: WfqConfig| {
        let layer = WfqLayer::new(config, |tenant: &Option<&'static str>| *tenant);
        let handle = layer.handle();
        listen({
            let handle = handle.clone();
            move || _ = handle.snapshot()
        });
        let service = layer.layer(service_fn(|_: Option<&'static str>| async {
            Ok::<_, BoxError>(())
        }));
        (service, handle)
    };
    let weighted = || WfqConfig::default().weight("gold", 10);

    let (mut wfq, handle) = service(weighted());
    for _ in 0..50 {
        wfq.ready().await.unwrap().call(None).await.unwrap();
    }
    assert_eq!((handle.snapshot().anonymous, lines()), (50, vec![]));
    for _ in 0..500 {
        wfq.ready().await.unwrap().call(None).await.unwrap();
    }
    // Nobody looks: the hundredth request is enough.
    let said = lines();
    assert_eq!(said.len(), 1, "{said:?}");
    let expected =
        "WARN no request has a tenant, although there are weights for some: layer=wfq served=100";
    assert_eq!(said[0], expected);
    advance(10 * SEC).await;
    for _ in 0..500 {
        wfq.ready().await.unwrap().call(None).await.unwrap();
    }
    assert_eq!(handle.snapshot().anonymous, 1050);
    assert_eq!(lines(), Vec::<String>::new(), "once is enough");

    // Weights that a function gives are weights, too.
    let (mut wfq, handle) = service(WfqConfig::default().weight_of(|_| 10));
    for _ in 0..100 {
        wfq.ready().await.unwrap().call(None).await.unwrap();
    }
    assert_eq!(handle.snapshot().anonymous, 100);
    assert_eq!(lines().len(), 1);

    // Without weights nothing was expected, and one tenant is enough to see that they are found.
    let (mut plain, handle) = service(WfqConfig::default());
    let (mut some, other) = service(weighted());
    some.ready()
        .await
        .unwrap()
        .call(Some("silver"))
        .await
        .unwrap();
    for _ in 0..500 {
        plain.ready().await.unwrap().call(None).await.unwrap();
        some.ready().await.unwrap().call(None).await.unwrap();
    }
    assert_eq!(
        (handle.snapshot().anonymous, other.snapshot().anonymous),
        (500, 500)
    );
    assert_eq!(lines(), Vec::<String>::new());
}
