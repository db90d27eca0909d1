//! Admission by age, request by request. How it does under load is in `tests/conformance/codel.rs`.

use crate::support;

use std::{task::Poll, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use support::{Behaviour, Probe, assert_refused, poll, poll_ready, refusal};
use tokio::time::advance;
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn, steer::Steer,
    util::BoxCloneService,
};
use tower_backpressure::{
    CircuitBreakerLayer, CoDelConfig, CoDelLayer, ConcurrencyLimitLayer, LoadShedLayer, Reason,
    SubmittedAt, SubmittedAtLayer, WfqConfig, WfqLayer, codel::Handle,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

type Aged = CoDelLayer<fn(&u32) -> Option<SubmittedAt>>;

/// Requests say how old they are, in milliseconds.
fn codel(config: CoDelConfig) -> Aged {
    CoDelLayer::new(config).submitted_at(|age: &u32| SubmittedAt::ago(*age * MS))
}

/// Requests do not.
fn unstamped(config: CoDelConfig) -> Aged {
    CoDelLayer::new(config).submitted_at(|_: &u32| None)
}

fn config() -> CoDelConfig {
    CoDelConfig::default().min_concurrency(1)
}

/// Calls a service that is ready.
fn call<S: Service<u32, Error = BoxError>>(service: &mut S, age: u32) -> S::Future {
    assert!(matches!(poll_ready(service), Poll::Ready(Ok(()))));
    service.call(age)
}

/// Has a queue stand: for more than a tenth of a second all requests that come are old. One of them is
/// still in flight.
async fn stand<S: Service<u32, Error = BoxError>>(
    service: &mut S,
    probe: &Probe,
    handle: &Handle,
) -> S::Future {
    probe.set(|script| script.future = Behaviour::Pends);
    let first = call(service, 300);
    for _ in 0..2 {
        advance(101 * MS).await;
        drop(call(service, 300));
    }
    assert!(handle.snapshot().overloaded);
    first
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_two_targets_is_refused_while_a_queue_stands() {
    let probe = Probe::new();
    let layer = codel(config()).name("edge");
    let handle = layer.handle();
    let mut service = layer.layer(probe.clone());
    let in_flight = stand(&mut service, &probe, &handle).await;

    probe.set(|script| script.future = Behaviour::Works);
    let refused = refusal(call(&mut service, 201).await);
    assert_eq!(
        (refused.reason(), refused.layer()),
        (Reason::TooOld, "edge")
    );
    // It would take as long again to get through the queue.
    assert_eq!(refused.retry_after(), 201 * MS);
    assert_eq!(call(&mut service, 200).await.unwrap(), 200);

    let snapshot = handle.snapshot();
    assert_eq!(
        (snapshot.rejected.too_old, snapshot.rejected.total()),
        (1, 1)
    );
    assert_eq!((snapshot.in_flight, snapshot.load_percent), (1, 100));
    drop(in_flight);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_it() {
    let probe = Probe::new();
    let layer = codel(config());
    let handle = layer.handle();
    let mut service = layer.layer(probe.clone());
    let in_flight = stand(&mut service, &probe, &handle).await;
    advance(300 * MS).await;
    assert!(!handle.snapshot().overloaded);
    for _ in 0..3 {
        assert!(poll(&mut call(&mut service, 300)).is_pending(), "admitted");
    }
    drop(in_flight);
}

/// There is nobody whom it could be in the way of.
#[tokio::test(start_paused = true)]
async fn with_nothing_in_flight_nothing_is_refused_for_its_age() {
    let probe = Probe::new();
    let layer = codel(config());
    let mut service = layer.layer(probe.clone());
    drop(stand(&mut service, &probe, &layer.handle()).await);
    probe.set(|script| script.future = Behaviour::Works);
    assert_eq!(call(&mut service, 900).await.unwrap(), 900);
}

#[tokio::test(start_paused = true)]
async fn past_its_patience_a_request_is_refused_whatever_the_load() {
    let probe = Probe::new();
    let mut service = codel(config().max_sojourn(SEC)).layer(probe.clone());
    assert_eq!(call(&mut service, 1000).await.unwrap(), 1000);
    let refused = refusal(call(&mut service, 1001).await);
    assert_eq!(refused.reason(), Reason::TooOld);
    assert_eq!(probe.calls(), 1);
    // However old it is, the hint is one that a client can use.
    let refused = refusal(call(&mut service, u32::MAX).await);
    assert_eq!(refused.retry_after(), 60 * SEC);
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_it_refuses_and_does_not_queue() {
    let probe = Probe::new();
    let layer = codel(config().max_concurrency(2));
    let mut service = layer.layer(probe.clone());
    let mut in_flight = [call(&mut service, 0), call(&mut service, 0)];
    let refused = refusal(call(&mut service, 0).await);
    assert_eq!(
        (refused.reason(), refused.layer()),
        (Reason::AtLimit, "codel")
    );
    assert!(refused.retry_after() > Duration::ZERO);
    let snapshot = layer.handle().snapshot();
    assert_eq!(
        (snapshot.limit, snapshot.in_flight, snapshot.admitted),
        (2, 2, 2)
    );
    assert_eq!(snapshot.rejected.at_limit, 1);
    assert!(poll(&mut in_flight[0]).is_ready());
    assert_eq!(call(&mut service, 0).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_gives_back_what_the_inner_service_had_reserved() {
    let limit = ConcurrencyLimitLayer::new(1);
    let mut service = ServiceBuilder::new()
        .layer(codel(config().max_sojourn(SEC)))
        .layer(limit.clone())
        .service(Probe::new());
    let refused = call(&mut service, 2000);
    assert_eq!(
        limit.handle().snapshot().in_flight,
        0,
        "before it is polled"
    );
    assert_refused(refused.await, Reason::TooOld);
    assert_eq!(call(&mut service, 0).await.unwrap(), 0);
}

/// Without a stamp too: it is at least as old as it has waited here.
#[tokio::test(start_paused = true)]
async fn the_wait_for_the_inner_service_counts() {
    let limit = ConcurrencyLimitLayer::new(1);
    let mut service = ServiceBuilder::new()
        .layer(unstamped(config().max_sojourn(SEC)))
        .layer(limit.clone())
        .service(Probe::new());
    for (wait, served) in [(1000 * MS, true), (1001 * MS, false)] {
        let busy = limit.handle().try_acquire().unwrap();
        assert!(poll_ready(&mut service).is_pending());
        advance(wait / 2).await;
        assert!(poll_ready(&mut service).is_pending());
        advance(wait / 2).await;
        // A clone has not waited. It may not pass either.
        assert!(poll_ready(&mut service.clone()).is_pending());
        drop(busy);
        assert!(poll_ready(&mut service).is_ready());
        // That it is called late is not the service's doing.
        advance(10 * SEC).await;
        assert_eq!(service.call(0).await.is_ok(), served, "{wait:?}");
        // The next one has not waited.
        assert_eq!(call(&mut service, 0).await.unwrap(), 0);
    }
}

/// A stamp that was made after the wait does not hide it, and what one that was made before it tells is not counted twice.
#[tokio::test(start_paused = true)]
async fn a_request_is_as_old_as_its_stamp_or_its_wait() {
    let limit = ConcurrencyLimitLayer::new(1);
    let mut service = ServiceBuilder::new()
        .layer(codel(config().max_sojourn(SEC)))
        .layer(limit.clone())
        .service(Probe::new());
    for (age, wait, served) in [(0, 1001 * MS, false), (900, 800 * MS, true)] {
        let busy = limit.handle().try_acquire().unwrap();
        assert!(poll_ready(&mut service).is_pending());
        advance(wait).await;
        drop(busy);
        assert!(poll_ready(&mut service).is_ready());
        assert_eq!(
            service.call(age).await.is_ok(),
            served,
            "{age} ms, {wait:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_sheds_does_not_wait() {
    let limit = ConcurrencyLimitLayer::new(1);
    let mut service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(unstamped(config().max_sojourn(SEC)))
        .layer(limit.clone())
        .service(Probe::new());
    let busy = limit.handle().try_acquire().unwrap();
    assert_refused(call(&mut service, 0).await, Reason::AtLimit);
    drop(busy);
    advance(2 * SEC).await;
    assert_eq!(call(&mut service, 0).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_wait_in_a_fair_queue_counts() {
    let limit = ConcurrencyLimitLayer::new(1);
    let service = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), |_: &u32| Some("all")))
        .layer(unstamped(config().max_sojourn(SEC)))
        .layer(limit.clone())
        .service(Probe::new());
    let busy = limit.handle().try_acquire().unwrap();
    // The first of them has the turn, and waits for the limit; the second waits for the first.
    let mut old: Vec<_> = (0..2).map(|_| service.clone().oneshot(1)).collect();
    for request in &mut old {
        assert!(poll(request).is_pending());
    }
    advance(900 * MS).await;
    let mut young = service.clone().oneshot(2);
    assert!(poll(&mut young).is_pending());
    advance(101 * MS).await;
    drop(busy);
    for request in old {
        assert_refused(request.await, Reason::TooOld);
    }
    assert_eq!(young.await.unwrap(), 2);
}

/// It waits for its own others, and nobody else does.
#[tokio::test(start_paused = true)]
async fn who_waits_for_its_own_others_is_no_queue() {
    let layer = unstamped(config());
    let handle = layer.handle();
    let wfq = WfqConfig::default().max_in_flight_per_tenant(1);
    let probe = Probe::new();
    let service = ServiceBuilder::new()
        .layer(WfqLayer::new(wfq, |tenant: &u32| Some(tenant.to_string())))
        .layer(layer)
        .service(probe.clone());
    probe.set(|script| script.future = Behaviour::Pends);
    let mut flood: Vec<_> = (0..2).map(|_| service.clone().oneshot(1)).collect();
    for request in &mut flood {
        assert!(poll(request).is_pending());
    }
    for tenant in 2..=5 {
        advance(101 * MS).await;
        assert!(poll(&mut service.clone().oneshot(tenant)).is_pending());
    }
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.overloaded, snapshot.load_percent), (false, 0));
}

/// A limit whose queue is full is ready, to refuse. That says nothing about those who wait.
#[tokio::test(start_paused = true)]
async fn what_the_limit_inside_refuses_does_not_count() {
    let layer = unstamped(config());
    let (handle, limit) = (layer.handle(), ConcurrencyLimitLayer::new(1).max_waiting(1));
    let probe = Probe::new();
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(limit.clone())
        .service(probe.clone());
    probe.set(|script| script.future = Behaviour::Pends);
    let mut waits = service.clone();
    for _ in 0..4 {
        let busy = limit.handle().try_acquire().unwrap();
        assert!(poll_ready(&mut waits).is_pending());
        advance(101 * MS).await;
        for _ in 0..10 {
            assert_refused(call(&mut service.clone(), 0).await, Reason::QueueFull);
        }
        drop(busy);
        drop(call(&mut waits, 0));
    }
    let snapshot = handle.snapshot();
    assert!(snapshot.overloaded, "all that got through had waited");
    assert_eq!(snapshot.in_flight, 0);
}

/// What waited in a fair queue further out is for the first law to judge. What is called further in is another matter.
#[tokio::test(start_paused = true)]
async fn a_wait_is_judged_once() {
    let other = unstamped(config().max_sojourn(SEC));
    let inside = other.layer(Probe::new());
    let worker = other.handle();
    let limit = ConcurrencyLimitLayer::new(1);
    let service = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), |_: &u32| Some("all")))
        .layer(unstamped(config()))
        .layer(limit.clone())
        .service(service_fn(move |request: u32| {
            let permit = worker.try_acquire(SubmittedAt::now());
            let mut inside = inside.clone();
            assert!(poll_ready(&mut inside).is_ready());
            let response = inside.call(request);
            async move {
                drop(permit?);
                response.await
            }
        }));
    let busy = limit.handle().try_acquire().unwrap();
    let mut waits = Box::pin(service.oneshot(7));
    assert!(poll(&mut waits).is_pending());
    advance(2 * SEC).await;
    drop(busy);
    assert_eq!(waits.await.unwrap(), 7);
}

/// A caller that was held back, and went away.
#[tokio::test(start_paused = true)]
async fn what_is_shown_does_not_outlive_what_it_tells_of() {
    let probe = Probe::new();
    let layer = codel(config());
    let handle = layer.handle();
    let mut service = layer.layer(probe.clone());
    let in_flight = stand(&mut service, &probe, &handle).await;
    probe.set(|script| script.ready = Behaviour::Pends);
    assert!(poll_ready(&mut service).is_pending());
    advance(SEC).await;
    assert!(handle.snapshot().overloaded, "somebody waits");
    advance(5 * SEC).await;
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.overloaded, snapshot.load_percent), (false, 0));
    drop(in_flight);
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_is_not_changed_by_another_target() {
    let layer = codel(config());
    let handle = layer.handle();
    narrow(&layer).await;
    let before = handle.snapshot().p95;
    handle.set_target(2 * SEC).unwrap();
    assert_eq!(handle.snapshot().p95, before);
    handle.set_target(MS).unwrap();
    assert_eq!(handle.snapshot().p95, before);
}

/// Fifteen in flight and all requests old, for five seconds.
async fn narrow(layer: &Aged) {
    let probe = Probe::new();
    probe.set(|script| script.future = Behaviour::Pends);
    let mut service = layer.layer(probe.clone());
    let _in_flight: Vec<_> = (0..15).map(|_| call(&mut service, 0)).collect();
    for _ in 0..501 {
        advance(10 * MS).await;
        drop(call(&mut service, 150));
    }
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_says_what_it_goes_by() {
    let layer = codel(config());
    let handle = layer.handle();
    let before = handle.snapshot();
    assert_eq!(
        (before.limit, before.p95, before.over_target),
        (1000, None, 0.0)
    );
    assert!(!before.overloaded);

    narrow(&layer).await;
    let narrowed = handle.snapshot();
    assert_eq!(narrowed.limit, 12, "three quarters of what was in flight");
    assert_eq!((narrowed.narrowings, narrowed.widenings), (1, 0));
    let p95 = narrowed.p95.unwrap();
    assert!((150 * MS..169 * MS).contains(&p95), "{p95:?}");
    assert_eq!(narrowed.over_target, 1.0);
    assert_eq!(narrowed.in_flight, 0);

    advance(60 * SEC).await;
    let widened = handle.snapshot();
    assert!(widened.limit > 100, "{widened:?}");
    assert_eq!((widened.p95, widened.over_target), (None, 0.0));
    assert!(widened.widenings > 5 && !widened.overloaded);
}

#[tokio::test(start_paused = true)]
async fn target_and_interval_change_at_run_time() {
    let layer = codel(config().interval(100 * MS));
    let handle = layer.handle();
    // folly's example: neither value changes.
    let error = handle.set_target(110 * MS).unwrap_err();
    assert_eq!(error.field(), "interval");
    assert!(handle.set_target(Duration::ZERO).is_err());
    assert!(handle.set_interval(99 * MS).is_err());
    handle.set_target(100 * MS).unwrap();
    handle.set_interval(5 * SEC).unwrap();

    let probe = Probe::new();
    let mut service = layer.layer(probe.clone());
    let in_flight = stand(&mut service, &probe, &handle).await;
    assert_refused(call(&mut service, 300).await, Reason::TooOld);
    handle.set_target(150 * MS).unwrap();
    assert!(poll(&mut call(&mut service, 300)).is_pending(), "admitted");
    handle.set_target(Duration::MAX).unwrap_err();
    drop(in_flight);
}

#[test]
fn nonsense_is_refused_with_a_clear_text() {
    let check = |config: CoDelConfig, text: &str| {
        let panic = std::panic::catch_unwind(|| CoDelLayer::new(config)).unwrap_err();
        let said = panic.downcast_ref::<String>().unwrap();
        assert!(said.contains(text), "{said}");
    };
    check(
        config().target(Duration::ZERO),
        "target must be longer than 0",
    );
    check(
        config().target(6 * SEC),
        "interval must be at least the target",
    );
    check(config().interval(MS), "interval must be at least");
    check(
        config().target(10 * MS).interval(50 * MS),
        "and at least 100 ms",
    );
    check(
        config().min_concurrency(0),
        "min_concurrency must be at least 1",
    );
    check(
        config().max_concurrency(0),
        "max_concurrency must be at least 1",
    );
    check(
        config().min_concurrency(2000),
        "min_concurrency must be at least 1 and at most max_concurrency (1000), not 2000",
    );
}

/// However many processors the machine has.
#[test]
fn a_ceiling_does_not_contradict_what_nobody_asked_for() {
    let layer = CoDelLayer::new(CoDelConfig::default().max_concurrency(1));
    assert_eq!(layer.handle().snapshot().limit, 1);
}

#[tokio::test(start_paused = true)]
async fn the_largest_values_do_no_harm() {
    let config = config()
        .target(Duration::MAX)
        .interval(Duration::MAX)
        .max_sojourn(Duration::MAX)
        .min_concurrency(usize::MAX)
        .max_concurrency(usize::MAX);
    let layer = codel(config);
    let mut service = layer.layer(Probe::new());
    for _ in 0..100 {
        assert_eq!(call(&mut service, u32::MAX).await.unwrap(), u32::MAX);
        advance(1_000_000 * SEC).await;
    }
    assert_eq!(layer.handle().snapshot().limit, 16_777_215);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_service_asks_the_handle() {
    let handle = codel(config().max_concurrency(1).max_sojourn(SEC)).handle();
    let old = SubmittedAt::ago(2 * SEC).unwrap();
    assert_eq!(
        handle.try_acquire(old).unwrap_err().reason(),
        Reason::TooOld
    );
    let permit = handle.try_acquire(SubmittedAt::now()).unwrap();
    let refused = handle.try_acquire(SubmittedAt::now()).unwrap_err();
    assert_eq!(refused.reason(), Reason::AtLimit);
    drop(permit);
    assert!(handle.try_acquire(SubmittedAt::now()).is_ok());
}

async fn answers(_: Request<()>) -> Result<Response<Full<Bytes>>, BoxError> {
    Ok(Response::new(Full::from("body")))
}

#[tokio::test(start_paused = true)]
async fn it_goes_by_the_stamp_and_not_by_what_a_client_says() {
    let service = ServiceBuilder::new()
        .layer(SubmittedAtLayer::new())
        .layer(CoDelLayer::new(config().max_sojourn(SEC)))
        .service(service_fn(answers));
    let long_ago = Request::builder()
        .header("x-request-start", "t=1000000000")
        .header("x-weft-submitted-at", "1000000000000")
        .header("submitted-at", "0");
    let response = service.clone().oneshot(long_ago.body(()).unwrap()).await;
    assert!(response.is_ok());

    let mut stamped = Request::new(());
    let submitted = SubmittedAt::ago(2 * SEC).unwrap();
    stamped.extensions_mut().insert(submitted);
    assert_refused(service.oneshot(stamped).await, Reason::TooOld);
}

#[tokio::test(start_paused = true)]
async fn a_request_may_count_until_its_body_has_ended() {
    let layer = CoDelLayer::new(config()).hold_until_body_end();
    let handle = layer.handle();
    let service = layer.layer(service_fn(answers));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(handle.snapshot().in_flight, 1);
    response.into_body().collect().await.unwrap();
    assert_eq!(handle.snapshot().in_flight, 0);
}

/// Something inside is ready only to reject, but it is not what is called.
#[tokio::test(start_paused = true)]
async fn beside_an_open_circuit_what_is_too_old_is_rejected_all_the_same() {
    let layer = codel(config());
    let handle = layer.handle();
    let breaker = CircuitBreakerLayer::default();
    breaker.handle().force_open();
    // What is 300 ms old takes for ever.
    let works = service_fn(|age: u32| async move {
        if age == 300 {
            std::future::pending::<()>().await;
        }
        Ok::<_, BoxError>(age)
    });
    let services = [
        BoxCloneService::new(breaker.layer(works)),
        BoxCloneService::new(ServiceBuilder::new().service(works)),
    ];
    // As servers do, one for each request: so the circuit is asked each time.
    let service = || {
        let steer = Steer::new(services.clone(), |_: &u32, _: &[_]| 1);
        layer.clone().layer(steer)
    };
    let in_flight = call(&mut service(), 300);
    for _ in 0..2 {
        advance(101 * MS).await;
        drop(call(&mut service(), 300));
    }
    assert!(handle.snapshot().overloaded);
    assert_refused(call(&mut service(), 201).await, Reason::TooOld);
    call(&mut service(), 0).await.unwrap();
    drop(in_flight);
}

/// A handler that calls a client stack of its own, within its `call`, for a request that has waited.
#[tokio::test(start_paused = true)]
async fn a_client_in_a_handler_does_not_inherit_what_the_handlers_request_has_waited() {
    let client = unstamped(config());
    let of_client = client.handle();
    let client = client.layer(Probe::new());
    let limit = ConcurrencyLimitLayer::new(1);
    let full = limit.handle().try_acquire().unwrap();
    let service = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), |_: &u32| {
            Some("tenant")
        }))
        .layer(limit)
        .service(service_fn(move |request: u32| {
            let mut client = client.clone();
            call(&mut client, request)
        }));
    let mut waits = Box::pin(service.oneshot(0));
    assert!(poll(&mut waits).is_pending());
    advance(300 * MS).await;
    drop(full);
    waits.await.unwrap();
    advance(6 * SEC).await; // the window in which it came is over
    let seen = of_client.snapshot();
    assert_eq!((seen.admitted, seen.p95), (1, Some(Duration::ZERO)));
}
