//! What a request costs in memory: counted by the allocator, not guessed.
//! Counts are per thread, so tests do not disturb each other.

#[path = "support/counting.rs"]
mod counting;
mod support;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use counting::counted;
use http::{Request, Response};
use support::{finish, poll, poll_ready};
use tower::{Layer, Service, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer,
    KeyedRateLimitLayer, LoadShedLayer, Rate, RateLimitLayer, SaturationLayer, SubmittedAt,
    SubmittedAtLayer, WfqConfig, WfqLayer, channel, saturation::Work,
};

#[derive(Clone)]
struct Answers;

impl Service<u32> for Answers {
    type Response = u32;
    type Error = Infallible;
    type Future = Ready<Result<u32, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u32) -> Self::Future {
        ready(Ok(request))
    }
}

/// Ready, call, response, through a fresh clone as a server does it; whether it was served.
fn drive<S>(service: &S) -> bool
where
    S: Service<u32, Future: Unpin> + Clone,
{
    let mut service = service.clone();
    assert!(poll_ready(&mut service).is_ready());
    finish(service.call(7)).is_ok()
}

fn rate() -> Rate {
    Rate::per_hour(1).burst(10_000)
}

#[test]
fn an_accepted_request_allocates_nothing() {
    fn check<S>(service: S)
    where
        S: Service<u32, Future: Unpin> + Clone,
    {
        assert!(drive(&service));
        let count = counted(|| assert!((0..1000).all(|_| drive(&service))));
        assert_eq!((count.allocations, count.bytes), (0, 0));
    }
    check(ConcurrencyLimitLayer::new(1).layer(Answers));
    check(LoadShedLayer::new().layer(ConcurrencyLimitLayer::new(1).layer(Answers)));
    check(RateLimitLayer::new(rate()).layer(Answers));
    check(AdaptiveConcurrencyLayer::vegas().layer(Answers));
    check(AdaptiveConcurrencyLayer::gradient2().layer(Answers));
    let by_key = |request: &u32| Some(*request);
    check(KeyedRateLimitLayer::new(rate(), by_key).layer(Answers));
    check(
        KeyedRateLimitLayer::new(rate(), by_key)
            .global(rate())
            .layer(Answers),
    );
    check(KeyedConcurrencyLimitLayer::new(1, by_key).layer(Answers));
    check(CircuitBreakerLayer::default().layer(Answers));
    let by_share = CircuitBreakerConfig::default().failure_rate(0.5, Duration::from_secs(10), 10);
    check(CircuitBreakerLayer::new(by_share).layer(Answers));
    check(KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), by_key).layer(Answers));
    let fair = WfqLayer::new(WfqConfig::default(), tenant);
    check(fair.layer(ConcurrencyLimitLayer::new(1).layer(Answers)));
    check(codel(CoDelConfig::default()).layer(Answers));
    check(fair.layer(codel(CoDelConfig::default()).layer(Answers)));
    let (queue, _receiver) = channel::bounded::<u32>(10);
    let saturation = SaturationLayer::new().channel(&queue);
    let saturation = saturation.classify(|_: &u32| Work::New);
    check(saturation.layer(Answers));
    check(saturation.sample_every(Duration::ZERO).layer(Answers));
}

/// What it holds of a lease is taken without a task, a call or an allocation.
#[cfg(feature = "fleet")]
#[test]
fn a_request_that_a_fleet_holds_a_token_for_allocates_nothing() {
    use tower_backpressure::{Fleet, fleet::Memory};

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let fleet = Fleet::new(Memory::new(), 1);
    let rate = Rate::per_second(1_000_000);
    let limit = fleet.rate_limit("limit", rate);
    let keyed = fleet.keyed_rate_limit("keyed", rate, |request: &u32| Some(*request));
    // As many as are asked for are leased, and more than half of them is left after a thousand.
    for _ in 0..5000 {
        let _ = (
            limit.handle().try_acquire(1),
            keyed.handle().try_acquire(&7u32),
        );
    }
    runtime.block_on(tokio::time::sleep(Duration::from_millis(5)));
    let limited = limit.layer(Answers);
    let count = counted(|| assert!((0..1000).all(|_| drive(&limited))));
    assert_eq!((count.allocations, count.bytes), (0, 0));
    let keyed = keyed.layer(Answers);
    let count = counted(|| assert!((0..1000).all(|_| drive(&keyed))));
    assert_eq!((count.allocations, count.bytes), (0, 0));
    let calls = fleet.snapshot().granted;
    assert_eq!(calls, 2);
}

/// What `http` takes for an extension, and nothing for reading it.
#[test]
fn a_stamp_is_one_allocation() {
    let answers = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
    let stamp = SubmittedAtLayer::new();
    let mut service = stamp.layer(CoDelLayer::new(CoDelConfig::default()).layer(answers));
    let mut drive = |stamped| {
        // As a server has it, there is something in the extensions already.
        let mut request = Request::new(());
        request.extensions_mut().insert(1_u8);
        if stamped {
            SubmittedAt::stamp(request.extensions_mut());
        }
        let count = counted(|| {
            assert!(poll_ready(&mut service).is_ready());
            assert!(finish(service.call(request)).is_ok());
        });
        count.allocations
    };
    assert_eq!((drive(false), drive(true)), (1, 0));
}

/// Requests were submitted a second ago.
fn codel(config: CoDelConfig) -> CoDelLayer<impl Fn(&u32) -> Option<SubmittedAt> + Clone> {
    let submitted = SubmittedAt::ago(Duration::from_secs(1));
    CoDelLayer::new(config).submitted_at(move |_: &u32| submitted)
}

fn tenant(_: &u32) -> Option<&'static str> {
    Some("tenant")
}

/// A million tenants that nobody has heard of before, and who do not come back.
#[test]
fn tenants_are_remembered_in_bounded_memory() {
    const REMEMBERED: usize = 10_000;
    let fair = WfqLayer::new(
        WfqConfig::default().max_tenants(REMEMBERED),
        |request: &u32| Some(format!("tenant number {request}")),
    );
    let handle = fair.handle();
    let mut service = fair.layer(Answers);
    let count = counted(|| {
        for request in 0..1_000_000 {
            assert!(poll_ready(&mut service).is_ready());
            finish(service.call(request)).unwrap();
        }
    });
    assert_eq!(handle.snapshot().tenants, REMEMBERED);
    let each = count.peak as usize / REMEMBERED;
    assert!(each <= 640, "{each} bytes for each that is remembered");

    // The same while each of them has a request: those for whom there is no room share one record.
    let mut service = fair.layer(Answers);
    let requests: Vec<_> = (1_000_000..1_100_000).map(|n| service.call(n)).collect();
    let snapshot = handle.snapshot();
    assert_eq!(
        (snapshot.tenants, snapshot.overflowed),
        (REMEMBERED, 90_000)
    );
    drop(requests);
}

#[test]
fn a_refused_request_allocates_its_error_and_nothing_else() {
    fn check<S>(service: S)
    where
        S: Service<u32, Future: Unpin> + Clone,
    {
        assert!(!drive(&service));
        let count = counted(|| assert!((0..1000).all(|_| !drive(&service))));
        assert_eq!((count.allocations, count.bytes), (1000, 0));
    }
    let limit = ConcurrencyLimitLayer::new(1);
    let _busy = limit.handle().try_acquire().unwrap();
    check(LoadShedLayer::new().layer(limit.layer(Answers)));
    check(limit.max_waiting(0).layer(Answers));
    let limit = RateLimitLayer::new(Rate::per_hour(1));
    limit.handle().try_acquire(1).unwrap();
    check(LoadShedLayer::new().layer(limit.layer(Answers)));
    let limit = KeyedRateLimitLayer::new(Rate::per_hour(1), |request: &u32| Some(*request));
    limit.handle().try_acquire(&7u32).unwrap();
    check(limit.layer(Answers));
    let limit = KeyedConcurrencyLimitLayer::new(1, |request: &u32| Some(*request)).max_waiting(0);
    let mut busy = limit.layer(service_fn(|_: u32| {
        std::future::pending::<Result<(), Infallible>>()
    }));
    let _busy = busy.call(7);
    check(limit.layer(Answers));
    let breaker = CircuitBreakerLayer::default();
    breaker.handle().force_open();
    check(breaker.layer(Answers));
    let limit = ConcurrencyLimitLayer::new(1);
    let _busy = limit.handle().try_acquire().unwrap();
    let fair = WfqLayer::new(WfqConfig::default().max_waiting(0), tenant);
    check(fair.layer(limit.layer(Answers)));
    check(codel(CoDelConfig::default().max_sojourn(Duration::from_millis(900))).layer(Answers));
    let full = codel(CoDelConfig::default().min_concurrency(1).max_concurrency(1));
    let _busy = full.handle().try_acquire(SubmittedAt::now()).unwrap();
    check(full.layer(Answers));
    let saturation = SaturationLayer::new().probe("full", || (1, 1));
    let saturation = saturation.sample_every(Duration::ZERO);
    check(saturation.classify(|_: &u32| Work::New).layer(Answers));
}

/// Stamps are kept in a buffer that grows to the capacity, and tokio's channel uses most of its blocks again.
#[test]
fn a_channel_that_has_been_full_allocates_no_more_than_a_block_now_and_then() {
    let (sender, mut receiver) = channel::bounded::<u32>(100);
    let mut fill_and_drain = || {
        for message in 0..100 {
            let mut send = pin!(sender.send(message));
            assert!(poll(&mut send).is_ready());
        }
        (0..100).for_each(|message| assert_eq!(receiver.try_recv(), Ok(message)));
    };
    (0..3).for_each(|_| fill_and_drain());
    let count = counted(|| (0..10).for_each(|_| fill_and_drain()));
    assert_eq!(count.bytes, 0);
    let of_1000 = count.allocations;
    assert!(of_1000 <= 3, "{of_1000} allocations for 1000 messages");
}

/// Right after the slab has doubled, when it costs the most. The service or future that waits is its
/// caller's own, and so is a timer for `max_wait`; this is what the gate keeps for it.
#[test]
fn a_waiting_caller_costs_at_most_100_bytes_of_the_gates_own() {
    for waiting in [5, 17, 65, 1025, 65_537] {
        let limit = ConcurrencyLimitLayer::new(1).max_waiting(usize::MAX);
        let handle = limit.handle();
        let _busy = handle.try_acquire().unwrap();
        let mut callers: Vec<_> = (0..waiting).map(|_| handle.acquire()).collect();
        let count = counted(|| assert!(callers.iter_mut().all(|caller| poll(caller).is_pending())));
        let each = count.bytes as f64 / f64::from(waiting);
        assert!(each <= 100.0, "{each} bytes for each of {waiting}");
    }
}

#[test]
fn handing_a_permit_on_allocates_nothing() {
    let handle = ConcurrencyLimitLayer::new(1).handle();
    let hand_over = || {
        let busy = handle.try_acquire().unwrap();
        let mut waiting = handle.acquire();
        assert!(poll(&mut waiting).is_pending());
        drop(busy);
        assert!(poll(&mut waiting).is_ready());
    };
    hand_over();
    let count = counted(|| (0..1000).for_each(|_| hand_over()));
    assert_eq!(count.allocations, 0);
}
