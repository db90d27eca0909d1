//! Each layer under some traffic, and all that it says afterwards.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use http::{HeaderName, Method, Request, Response};
use tokio::time::{advance, sleep};
use tower::{Layer, ServiceBuilder, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, Deadline, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer,
    KeyedRateLimitLayer, Priority, Rate, RateLimitLayer, SaturationLayer, ShadowLayer, SubmittedAt,
    SubmittedAtLayer, WfqConfig, WfqLayer, channel, edge, saturation::Work,
};

use super::*;

/// A request for so many milliseconds of work.
async fn work(time: u64) -> Result<u64, BoxError> {
    sleep(ms(time)).await;
    Ok(time)
}

fn watching(handle: &impl tower_backpressure::observe::Observe) -> Metrics {
    let metrics = Metrics::new();
    metrics.watch(handle).unwrap();
    metrics
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_limit() {
    let limit = ConcurrencyLimitLayer::new(1)
        .max_waiting(2)
        .max_wait(ms(40));
    let metrics = watching(&limit.handle());
    let service = limit.layer(service_fn(work));

    let first = send(&service, 30);
    settle().await;
    let second = send(&service, 500); // waits for 30 ms
    settle().await;
    let third = send(&service, 10); // in vain, for 40
    settle().await;
    let full = send(&service, 10);
    assert_eq!(
        reason(full.await.unwrap()),
        Some(("concurrency_limit", Reason::QueueFull))
    );
    limit.handle().try_acquire().unwrap_err();

    advance(ms(20)).await;
    settle().await;
    assert_says(
        &metrics,
        "concurrency_limit",
        &[
            ("requests_total{outcome=\"admitted\"}", 1.0),
            ("requests_total{outcome=\"rejected\"}", 2.0),
            ("rejected_total{reason=\"at_limit\"}", 1.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 0.0),
            ("limit", 1.0),
            ("in_flight", 1.0),
            ("in_flight_max", 1.0),
            ("queue_depth", 2.0),
            ("queue_oldest_seconds", 0.02),
        ],
        Some(&[]),
    );

    first.await.unwrap().unwrap();
    assert_eq!(
        reason(third.await.unwrap()),
        Some(("concurrency_limit", Reason::WaitTimeout))
    );
    let fourth = send(&service, 10);
    settle().await;
    advance(ms(7)).await;
    fourth.abort(); // it has waited too
    settle().await;
    second.await.unwrap().unwrap();
    assert_says(
        &metrics,
        "concurrency_limit",
        &[
            ("requests_total{outcome=\"admitted\"}", 2.0),
            ("requests_total{outcome=\"rejected\"}", 3.0),
            ("rejected_total{reason=\"at_limit\"}", 1.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 1.0),
            ("limit", 1.0),
            ("in_flight", 0.0),
            ("in_flight_max", 1.0),
            ("queue_depth", 0.0),
            ("queue_oldest_seconds", 0.0),
        ],
        Some(&[30, 40, 7]),
    );
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit() {
    let limit = AdaptiveConcurrencyLayer::vegas().limits(2, 20, 50);
    let handle = limit.handle();
    let metrics = watching(&handle);
    let service = limit.layer(service_fn(work));
    let says = |pinned: bool, min_rtt: Option<f64>, admitted: f64| {
        let limit = handle.snapshot().permits.limit as f64;
        let mut expected = vec![
            ("requests_total{outcome=\"admitted\"}", admitted),
            ("requests_total{outcome=\"rejected\"}", 0.0),
            ("rejected_total{reason=\"at_limit\"}", 0.0),
            ("rejected_total{reason=\"queue_full\"}", 0.0),
            ("rejected_total{reason=\"wait_timeout\"}", 0.0),
            ("limit", limit),
            ("limit_min", 2.0),
            ("limit_max", 50.0),
            ("limit_pinned", f64::from(u8::from(pinned))),
            ("in_flight", 0.0),
            ("in_flight_max", 0.0),
            ("queue_depth", 0.0),
            ("queue_oldest_seconds", 0.0),
        ];
        expected.extend(min_rtt.map(|rtt| ("min_rtt_seconds", rtt)));
        assert_says(&metrics, "adaptive_concurrency", &expected, Some(&[]));
    };
    says(false, None, 0.0);
    for _ in 0..200 {
        send(&service, 10).await.unwrap().unwrap();
    }
    let baseline = handle.snapshot().learned.baseline.expect("it has learned");
    assert!((ms(10)..ms(12)).contains(&baseline), "{baseline:?}");
    handle.pin(7).unwrap();
    says(true, Some(baseline.as_secs_f64()), 200.0);
}

#[tokio::test(start_paused = true)]
async fn a_codel() {
    let config = CoDelConfig::default()
        .target(ms(50))
        .min_concurrency(2)
        .max_concurrency(3)
        .max_sojourn(ms(1000));
    let codel = CoDelLayer::new(config);
    let handle = codel.handle();
    let metrics = watching(&handle);
    advance(ms(2000)).await;
    let permits = [(); 3].map(|()| handle.try_acquire(SubmittedAt::now()).unwrap());
    assert_eq!(
        handle.try_acquire(SubmittedAt::now()).unwrap_err().reason(),
        Reason::AtLimit
    );
    drop(permits);
    let old = SubmittedAt::ago(ms(1500)).unwrap();
    assert_eq!(
        handle.try_acquire(old).unwrap_err().reason(),
        Reason::TooOld
    );

    let snapshot = handle.snapshot();
    let mut expected = vec![
        ("requests_total{outcome=\"admitted\"}", 3.0),
        ("requests_total{outcome=\"rejected\"}", 2.0),
        ("rejected_total{reason=\"at_limit\"}", 1.0),
        ("rejected_total{reason=\"too_old\"}", 1.0),
        ("limit", 3.0),
        ("limit_min", 2.0),
        ("limit_max", 3.0),
        ("limit_moves_total{direction=\"narrowed\"}", 0.0),
        ("limit_moves_total{direction=\"widened\"}", 0.0),
        ("limit_moves_total{direction=\"undone\"}", 0.0),
        ("in_flight", 0.0),
        ("in_flight_max", 0.0),
        ("overloaded", 0.0),
        ("load_ratio", f64::from(snapshot.load_percent) / 100.0),
        ("over_target_ratio", snapshot.over_target),
    ];
    expected.extend(
        snapshot
            .p95
            .map(|p95| ("age_p95_seconds", p95.as_secs_f64())),
    );
    assert_says(&metrics, "codel", &expected, None);
}

#[tokio::test(start_paused = true)]
async fn a_codel_while_a_queue_stands() {
    let codel = CoDelLayer::new(CoDelConfig::default().target(ms(5)).interval(ms(100)));
    let handle = codel.handle();
    let metrics = watching(&handle);
    advance(ms(2000)).await;
    for _ in 0..1000 {
        advance(ms(1)).await;
        let _ = handle.try_acquire(SubmittedAt::ago(ms(800)).unwrap());
    }
    let (snapshot, said) = (handle.snapshot(), scrape(&metrics).of("codel"));
    assert!(snapshot.overloaded, "{snapshot:?}");
    assert_eq!((said["overloaded"], said["load_ratio"]), (1.0, 1.0));
    assert_eq!(said["over_target_ratio"], 1.0);
    assert_eq!(said["age_p95_seconds"], snapshot.p95.unwrap().as_secs_f64());
    let narrowed = said["limit_moves_total{direction=\"narrowed\"}"];
    assert_eq!(narrowed, snapshot.narrowings as f64);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit() {
    let rate = RateLimitLayer::new(Rate::per_second(10).burst(2))
        .max_waiting(2)
        .max_wait(ms(250));
    let handle = rate.handle();
    let metrics = watching(&handle);
    let service = rate.layer(service_fn(work));
    for _ in 0..2 {
        send(&service, 0).await.unwrap().unwrap();
    }
    handle.try_acquire(1).unwrap_err();
    handle.try_acquire(3).unwrap_err(); // more than the burst
    let first = send(&service, 0);
    settle().await;
    let second = send(&service, 0);
    settle().await;
    let full = send(&service, 0);
    assert_eq!(
        reason(full.await.unwrap()),
        Some(("rate_limit", Reason::QueueFull))
    );
    first.await.unwrap().unwrap(); // after 100 ms
    advance(ms(20)).await;
    second.abort(); // after 120
    settle().await;
    handle.set_max_wait(Some(ms(1)));
    let impatient = send(&service, 0);
    assert_eq!(
        reason(impatient.await.unwrap()),
        Some(("rate_limit", Reason::WaitTimeout))
    );
    assert_says(
        &metrics,
        "rate_limit",
        &[
            ("requests_total{outcome=\"admitted\"}", 3.0),
            ("requests_total{outcome=\"rejected\"}", 4.0),
            ("rejected_total{reason=\"at_limit\"}", 2.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 1.0),
            ("tokens", 0.0),
            ("tokens_max", 2.0),
            ("tokens_per_second", 10.0),
            ("queue_depth", 0.0),
            ("queue_oldest_seconds", 0.0),
        ],
        Some(&[100, 120]),
    );
}

#[tokio::test(start_paused = true)]
async fn a_keyed_rate_limit() {
    let rate = KeyedRateLimitLayer::new(Rate::per_second(10).burst(1), |key: &u64| Some(*key))
        .max_keys(2)
        .max_wait(ms(150))
        .max_waiting(1)
        .global(Rate::per_second(1000).burst(5));
    let metrics = watching(&rate.handle());
    let service = rate.layer(service_fn(|_: u64| async { Ok::<_, BoxError>(()) }));
    let refused =
        async |key: u64| reason(send(&service, key).await.unwrap()).map(|(_, reason)| reason);
    assert_eq!(refused(1).await, None);
    let waits = send(&service, 1);
    settle().await;
    assert_eq!(refused(1).await, Some(Reason::Quota));
    assert_eq!(refused(2).await, None);
    assert_eq!(refused(2).await, Some(Reason::QueueFull));
    assert_eq!(refused(3).await, None); // overflows
    assert_says(
        &metrics,
        "keyed_rate_limit",
        &[
            ("requests_total{outcome=\"admitted\"}", 4.0),
            ("requests_total{outcome=\"rejected\"}", 2.0),
            ("rejected_total{reason=\"at_limit\"}", 0.0),
            ("rejected_total{reason=\"quota\"}", 1.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"deadline\"}", 0.0),
            ("rejected_total{reason=\"would_be_late\"}", 0.0),
            ("tokens", 1.0),
            ("tokens_max", 5.0),
            ("tokens_per_second", 1000.0),
            ("queue_depth", 1.0),
            ("tenants_tracked", 2.0),
            ("tenants_max", 2.0),
            ("tenant_overflow_total", 1.0),
        ],
        Some(&[]),
    );
    waits.await.unwrap().unwrap();
    let gives_up = send(&service, 1);
    settle().await;
    advance(ms(30)).await;
    gives_up.abort();
    settle().await;
    let said = scrape(&metrics).of("keyed_rate_limit");
    assert_eq!(said["queue_depth"], 0.0);
    for (series, value) in histogram(&[100, 30]) {
        assert_eq!(said[&series], value, "{series}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_keyed_concurrency_limit() {
    let limit = KeyedConcurrencyLimitLayer::new(1, |time: &u64| Some(time % 2))
        .max_waiting(2)
        .max_wait(ms(60));
    let metrics = watching(&limit.handle());
    let service = limit.layer(service_fn(work));
    let odd = send(&service, 101);
    let even = send(&service, 50);
    settle().await;
    let waits = send(&service, 20); // for 50 ms
    let in_vain = send(&service, 21); // for 60
    settle().await;
    let full = send(&service, 22);
    assert_eq!(
        reason(full.await.unwrap()),
        Some(("keyed_concurrency_limit", Reason::QueueFull))
    );
    assert_says(
        &metrics,
        "keyed_concurrency_limit",
        &[
            ("requests_total{outcome=\"admitted\"}", 2.0),
            ("requests_total{outcome=\"rejected\"}", 1.0),
            ("requests_total{outcome=\"cancelled\"}", 0.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 0.0),
            ("rejected_total{reason=\"deadline\"}", 0.0),
            ("in_flight", 2.0),
            ("queue_depth", 2.0),
            ("tenants_tracked", 2.0),
        ],
        Some(&[]),
    );
    even.await.unwrap().unwrap();
    waits.await.unwrap().unwrap();
    in_vain.await.unwrap().unwrap_err();
    let gives_up = send(&service, 5);
    settle().await;
    gives_up.abort();
    odd.await.unwrap().unwrap();
    settle().await;
    assert_says(
        &metrics,
        "keyed_concurrency_limit",
        &[
            ("requests_total{outcome=\"admitted\"}", 3.0),
            ("requests_total{outcome=\"rejected\"}", 2.0),
            ("requests_total{outcome=\"cancelled\"}", 1.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 1.0),
            ("rejected_total{reason=\"deadline\"}", 0.0),
            ("in_flight", 0.0),
            ("queue_depth", 0.0),
            ("tenants_tracked", 0.0),
        ],
        Some(&[50, 60, 0]),
    );
}

#[tokio::test(start_paused = true)]
async fn a_fair_queue() {
    let config = WfqConfig::default()
        .max_waiting_per_tenant(1)
        .max_wait(ms(70))
        .max_tenants(1);
    let wfq = WfqLayer::new(config, |time: &u64| {
        Some(if *time < 100 { "a" } else { "b" })
    });
    let metrics = watching(&wfq.handle());
    let inner = service_fn(|time: u64| async move {
        if time == 13 {
            let refusal = ConcurrencyLimitLayer::new(1).handle();
            let _busy = refusal.try_acquire();
            return Err(refusal.try_acquire().unwrap_err().into());
        }
        work(time).await
    });
    let service = wfq.layer(ConcurrencyLimitLayer::new(1).layer(inner));

    let first = send(&service, 50);
    settle().await;
    let second = send(&service, 13); // waits for 50 ms, and is refused inside; it is the next
    settle().await;
    let third = send(&service, 30); // behind it, so it waits as long
    settle().await;
    let full = send(&service, 51);
    assert_eq!(
        reason(full.await.unwrap()),
        Some(("wfq", Reason::QueueFull))
    );
    advance(ms(20)).await;
    settle().await;
    assert_says(
        &metrics,
        "wfq",
        &[
            ("requests_total{outcome=\"admitted\"}", 2.0),
            ("requests_total{outcome=\"rejected\"}", 1.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 0.0),
            ("rejected_total{reason=\"displaced\"}", 0.0),
            ("rejected_total{reason=\"deadline\"}", 0.0),
            ("rejected_total{reason=\"would_be_late\"}", 0.0),
            ("refused_inside_total", 0.0),
            ("in_flight", 2.0),
            ("queue_depth", 1.0),
            ("queue_oldest_seconds", 0.02),
            ("tenants_tracked", 1.0),
            ("tenant_overflow_total", 0.0),
        ],
        Some(&[]),
    );
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap_err();
    third.await.unwrap().unwrap();
    let fourth = send(&service, 54);
    settle().await;
    let other = send(&service, 100); // a tenant too many, and it waits for 54 ms
    settle().await;
    let in_vain = send(&service, 52); // for 70 ms
    settle().await;
    in_vain.await.unwrap().unwrap_err();
    let gives_up = send(&service, 53);
    settle().await;
    advance(ms(10)).await;
    gives_up.abort();
    fourth.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    settle().await;
    assert_says(
        &metrics,
        "wfq",
        &[
            ("requests_total{outcome=\"admitted\"}", 5.0),
            ("requests_total{outcome=\"rejected\"}", 2.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 1.0),
            ("rejected_total{reason=\"displaced\"}", 0.0),
            ("rejected_total{reason=\"deadline\"}", 0.0),
            ("rejected_total{reason=\"would_be_late\"}", 0.0),
            ("refused_inside_total", 1.0),
            ("in_flight", 0.0),
            ("queue_depth", 0.0),
            ("queue_oldest_seconds", 0.0),
            ("tenants_tracked", 1.0),
            ("tenant_overflow_total", 1.0),
        ],
        Some(&[50, 50, 54, 70, 10]),
    );
}

/// What an edge says of requests that have priorities and deadlines. Of those that have none, it says nothing.
#[tokio::test(start_paused = true)]
async fn an_edge_that_tells_requests_apart() {
    let edge = edge()
        .wfq(WfqConfig::default().max_waiting(2))
        .priority(|head| head.extensions.get().copied().unwrap_or_default());
    let handle = edge.handle();
    let metrics = watching(&handle);
    handle.pin(1).unwrap();
    let inner =
        service_fn(async |request: Request<u64>| work(*request.body()).await.map(Response::new));
    let service = edge.gates().layer(inner);
    let request = |time, priority, left: Option<u64>| {
        let request = Request::builder().extension::<Priority>(priority);
        let deadline = left.map(|left| Deadline::within(ms(left)));
        match deadline {
            Some(deadline) => request.extension(deadline).body(time).unwrap(),
            None => request.body(time).unwrap(),
        }
    };
    let runs = send(&service, request(50, Priority::Normal, None));
    settle().await;
    let displaced = send(&service, request(1, Priority::Low, None));
    settle().await;
    let expires = send(&service, request(1, Priority::High, Some(20)));
    settle().await;
    let full = send(&service, request(1, Priority::Low, None));
    settle().await;
    let critical = send(&service, request(10, Priority::Critical, None));
    settle().await;
    let mut why = Vec::new();
    for sent in [full, displaced, expires, runs, critical] {
        why.push(reason(sent.await.unwrap()).map(|(_, reason)| reason));
    }
    let rejected = [Reason::QueueFull, Reason::Displaced, Reason::Deadline];
    assert_eq!(why[..3], rejected.map(Some));
    assert_eq!(why[3..], [None, None]);
    let priorities = handle.snapshot().priorities;
    let [critical, high, normal, ..] = &priorities[..] else {
        panic!("there are five")
    };
    assert_eq!(critical.waits.sum, ms(50));
    assert_eq!((high.waits.sum, normal.waits.count()), (ms(20), 0));
    let said = scrape(&metrics).of("edge");
    for (series, value) in [
        ("rejected_total{reason=\"deadline\"}", 1.0),
        ("rejected_total{reason=\"displaced\"}", 1.0),
        ("priority_rejected_total{priority=\"low\"}", 2.0),
        ("priority_displaced_total{priority=\"low\"}", 1.0),
        ("priority_admitted_total{priority=\"critical\"}", 1.0),
        ("priority_admitted_total{priority=\"normal\"}", 1.0),
        ("priority_rejected_total{priority=\"high\"}", 1.0),
        ("priority_displaced_total{priority=\"high\"}", 0.0),
        ("priority_queue_depth{priority=\"low\"}", 0.0),
        ("priority_queue_oldest_seconds{priority=\"critical\"}", 0.0),
    ] {
        assert_eq!(said[series], value, "{series}");
    }
}

/// All that an edge says, in one.
#[tokio::test(start_paused = true)]
async fn an_edge() {
    let config = WfqConfig::default()
        .max_waiting_per_tenant(1)
        .max_wait(ms(70))
        .max_tenants(1);
    let edge = edge()
        .tenant(|request: &Request<u64>| Some(if *request.body() < 100 { "a" } else { "b" }))
        .wfq(config)
        .codel(CoDelConfig::default().target(ms(100)))
        .limits(1, 1, 9);
    let handle = edge.handle();
    let metrics = watching(&handle);
    handle.pin(1).unwrap();
    let inner = service_fn(|request: Request<u64>| async move {
        let time = *request.body();
        if time == 13 {
            let refusal = ConcurrencyLimitLayer::new(1).handle();
            let _busy = refusal.try_acquire();
            return Err(refusal.try_acquire().unwrap_err().into());
        }
        work(time).await.map(Response::new)
    });
    let service = edge.gates().layer(inner);
    let request = Request::new;
    let says = |expected: &[(&str, f64)], waits: &[u64]| {
        let (limit, age) = (handle.snapshot().permits.limit, handle.snapshot().age);
        let mut all = vec![
            ("rejected_total{reason=\"too_old\"}", 0.0),
            ("rejected_total{reason=\"displaced\"}", 0.0),
            ("rejected_total{reason=\"deadline\"}", 0.0),
            ("rejected_total{reason=\"would_be_late\"}", 0.0),
            ("limit", limit as f64),
            ("limit_min", 1.0),
            ("limit_max", 9.0),
            ("limit_pinned", 1.0),
            ("limit_by_age", age.limit as f64),
            ("limit_moves_total{direction=\"narrowed\"}", 0.0),
            ("limit_moves_total{direction=\"widened\"}", 0.0),
            ("limit_moves_total{direction=\"undone\"}", 0.0),
            ("in_flight_max", expected[0].1),
            ("tenants_tracked", 1.0),
            ("overloaded", 0.0),
            ("load_ratio", f64::from(age.load_percent) / 100.0),
            ("over_target_ratio", age.over_target),
        ];
        let learned = handle.snapshot().learned.baseline;
        all.extend(learned.map(|rtt| ("min_rtt_seconds", rtt.as_secs_f64())));
        all.extend(age.p95.map(|p95| ("age_p95_seconds", p95.as_secs_f64())));
        all.extend(expected);
        assert_says(&metrics, "edge", &all, Some(waits));
    };

    let first = send(&service, request(50));
    settle().await;
    let second = send(&service, request(13)); // waits for 50 ms, and is refused inside
    settle().await;
    let full = send(&service, request(51));
    assert_eq!(
        reason(full.await.unwrap()),
        Some(("edge", Reason::QueueFull))
    );
    handle.try_acquire().unwrap_err();
    advance(ms(20)).await;
    settle().await;
    says(
        &[
            ("in_flight", 1.0),
            ("requests_total{outcome=\"admitted\"}", 1.0),
            ("requests_total{outcome=\"rejected\"}", 2.0),
            ("rejected_total{reason=\"at_limit\"}", 1.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 0.0),
            ("refused_inside_total", 0.0),
            ("queue_depth", 1.0),
            ("queue_oldest_seconds", 0.02),
            ("tenant_overflow_total", 0.0),
        ],
        &[],
    );
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap_err();
    let third = send(&service, request(90));
    settle().await;
    let in_vain = send(&service, request(52)); // for 70 ms
    settle().await;
    advance(ms(30)).await;
    let other = send(&service, request(100)); // a tenant too many, and it waits for 60 ms
    settle().await;
    in_vain.await.unwrap().unwrap_err();
    third.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    handle.snapshot(); // a new interval for the most in flight
    says(
        &[
            ("in_flight", 0.0),
            ("requests_total{outcome=\"admitted\"}", 4.0),
            ("requests_total{outcome=\"rejected\"}", 3.0),
            ("rejected_total{reason=\"at_limit\"}", 1.0),
            ("rejected_total{reason=\"queue_full\"}", 1.0),
            ("rejected_total{reason=\"wait_timeout\"}", 1.0),
            ("refused_inside_total", 1.0),
            ("queue_depth", 0.0),
            ("queue_oldest_seconds", 0.0),
            ("tenant_overflow_total", 1.0),
        ],
        &[50, 70, 60],
    );
}

#[tokio::test(start_paused = true)]
async fn a_circuit_breaker() {
    let config = CircuitBreakerConfig::default()
        .failures(2)
        .successes(2)
        .cooldown(ms(1000));
    let breaker = CircuitBreakerLayer::new(config).name("payments");
    let metrics = watching(&breaker.handle());
    let inner = service_fn(|ok: bool| async move { ok.then_some(()).ok_or("failed") });
    let service = breaker.layer(inner);
    let says = |state: f64, rejected: f64, opened: f64, closed: f64, probes: f64| {
        let expected = [
            ("breaker_state", state),
            ("rejected_total{reason=\"circuit_open\"}", rejected),
            ("breaker_opened_total", opened),
            ("breaker_closed_total", closed),
            ("breaker_probes_total", probes),
        ];
        assert_says(&metrics, "payments", &expected, None);
    };
    says(0.0, 0.0, 0.0, 0.0, 0.0);
    for _ in 0..2 {
        send(&service, false).await.unwrap().unwrap_err();
    }
    assert_eq!(
        reason(send(&service, true).await.unwrap()),
        Some(("payments", Reason::CircuitOpen))
    );
    says(2.0, 1.0, 1.0, 0.0, 0.0);
    advance(ms(1000)).await;
    send(&service, true).await.unwrap().unwrap();
    says(1.0, 1.0, 1.0, 0.0, 1.0);
    send(&service, true).await.unwrap().unwrap();
    says(0.0, 1.0, 1.0, 1.0, 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_breaker_by_the_share_of_failures() {
    let config = CircuitBreakerConfig::default().failure_rate(0.5, ms(10_000), 100);
    let breaker = CircuitBreakerLayer::new(config);
    let metrics = watching(&breaker.handle());
    let service = breaker.layer(service_fn(|ok: bool| async move {
        ok.then_some(()).ok_or("failed")
    }));
    for ok in [true, true, true, false] {
        let _ = send(&service, ok).await.unwrap();
    }
    assert_eq!(
        scrape(&metrics).of("circuit_breaker")["breaker_failure_ratio"],
        0.25
    );
}

#[tokio::test(start_paused = true)]
async fn a_keyed_circuit_breaker() {
    let config = CircuitBreakerConfig::default()
        .failures(1)
        .successes(2)
        .cooldown(ms(1000));
    let breaker = KeyedCircuitBreakerLayer::new(config, |key: &u64| Some(*key)).max_keys(2);
    let metrics = watching(&breaker.handle());
    let works = Arc::new(AtomicUsize::new(0));
    let inner = {
        let works = Arc::clone(&works);
        service_fn(move |_: u64| {
            let ok = works.load(SeqCst) > 0;
            async move { ok.then_some(()).ok_or("failed") }
        })
    };
    let service = breaker.layer(inner);
    for key in [1, 2, 3] {
        send(&service, key).await.unwrap().unwrap_err(); // there is no room for the third
    }
    send(&service, 1).await.unwrap().unwrap_err();
    advance(ms(1000)).await;
    works.store(1, SeqCst);
    send(&service, 1).await.unwrap().unwrap();
    assert_says(
        &metrics,
        "keyed_circuit_breaker",
        &[
            ("breakers{state=\"open\"}", 1.0),
            ("breakers{state=\"half_open\"}", 1.0),
            ("rejected_total{reason=\"circuit_open\"}", 1.0),
            ("breaker_opened_total", 2.0),
            ("breaker_closed_total", 0.0),
            ("breaker_probes_total", 1.0),
            ("tenants_tracked", 2.0),
            ("tenant_overflow_total", 1.0),
        ],
        None,
    );
}

#[tokio::test(start_paused = true)]
async fn a_saturation_layer() {
    let depth = Arc::new(AtomicUsize::new(0));
    let probe = {
        let depth = Arc::clone(&depth);
        move || match depth.load(SeqCst) {
            666 => panic!("a probe that panics"),
            depth => (depth, 100),
        }
    };
    let saturation = SaturationLayer::new().probe("table", probe);
    let handle = saturation.handle();
    let metrics = watching(&handle);
    let mut said = Vec::new();
    for now in [10, 75, 90, 98] {
        depth.store(now, SeqCst);
        advance(ms(10_000)).await;
        let _ = handle.check(Work::New);
        let of = scrape(&metrics).of("saturation");
        said.push((of["saturation_level"], of["saturation_ratio"]));
    }
    assert_eq!(said, [(0.0, 0.1), (1.0, 0.75), (2.0, 0.9), (3.0, 0.98)]);
    handle.check(Work::Read).unwrap();
    handle.check(Work::Write).unwrap_err();
    depth.store(666, SeqCst);
    advance(ms(10_000)).await;
    let changes = handle.snapshot().changes as f64;
    let (level, ratio) = (handle.snapshot().level, handle.snapshot().ratio);
    assert_says(
        &metrics,
        "saturation",
        &[
            ("requests_total{outcome=\"admitted\"}", 3.0),
            ("requests_total{outcome=\"rejected\"}", 3.0),
            ("rejected_total{reason=\"saturated\"}", 3.0),
            ("saturation_level", f64::from(level as u8)),
            ("saturation_ratio", ratio),
            ("saturation_changes_total", changes),
            ("probe_panics_total", 1.0),
        ],
        None,
    );
    assert!(changes >= 3.0);
}

#[tokio::test(start_paused = true)]
async fn a_channel() {
    let (sender, mut receiver) = channel::bounded::<u32>(4);
    let sender = sender.name("jobs");
    let metrics = watching(&sender.handle());
    for job in 0..4 {
        sender.send(job).await.unwrap();
    }
    receiver.recv().await.unwrap();
    advance(ms(300)).await;
    sender.send(4).await.unwrap();
    sender.send_within(5, ms(10)).await.unwrap_err();
    let lossy = sender.clone().lossy();
    assert!(!lossy.offer(6) && !lossy.offer(7));
    let waiting = tokio::spawn(async move { sender.send(8).await });
    settle().await;
    let says = |depth: f64, oldest: f64, waiting: f64, discarded: f64| {
        let expected = [
            ("requests_total{outcome=\"admitted\"}", 5.0),
            ("requests_total{outcome=\"rejected\"}", 3.0),
            ("rejected_total{reason=\"queue_full\"}", 2.0),
            ("rejected_total{reason=\"wait_timeout\"}", 1.0),
            ("queue_depth", depth),
            ("queue_capacity", 4.0),
            ("queue_oldest_seconds", oldest),
            ("saturation_ratio", depth / 4.0),
            ("senders_waiting", waiting),
            ("messages_received_total", 1.0),
            ("messages_discarded_total", discarded),
        ];
        assert_says(&metrics, "jobs", &expected, None);
    };
    says(4.0, 0.31, 1.0, 0.0);
    waiting.abort();
    settle().await;
    drop(receiver);
    says(0.0, 0.0, 0.0, 4.0);
}

#[cfg(feature = "retry")]
#[tokio::test(start_paused = true)]
async fn a_retry_policy() {
    use tower::retry::RetryLayer;
    use tower_backpressure::{RetryPolicy, retry::Backoff};

    let policy = RetryPolicy::new(Backoff::fixed(ms(10))).max_retries(2);
    let handle = policy.handle();
    let metrics = Metrics::new();
    metrics.watch_as("upstream", &handle).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let server = service_fn(move |request: Request<String>| {
        let status = match (request.uri().path(), asked.fetch_add(1, SeqCst)) {
            ("/down", _) | ("/", 0) => 503,
            ("/no", _) => 400,
            ("/gone", _) => 410,
            _ => 200,
        };
        async move { Ok::<_, BoxError>(Response::builder().status(status).body(String::new())?) }
    });
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(policy))
        .service(server);
    for path in ["/", "/down", "/no", "/gone"] {
        send(&client, Request::get(path).body(String::new()).unwrap())
            .await
            .unwrap()
            .unwrap();
    }
    assert_says(
        &metrics,
        "upstream",
        &[
            ("retry_requests_total", 4.0),
            ("retries_total", 3.0),
            ("retries_recovered_total", 1.0),
            ("retries_withheld_total{reason=\"permanent\"}", 1.0),
            ("retries_withheld_total{reason=\"gone\"}", 1.0),
            ("retries_withheld_total{reason=\"not_idempotent\"}", 0.0),
            ("retries_withheld_total{reason=\"not_replayable\"}", 0.0),
            ("retries_withheld_total{reason=\"forbidden\"}", 0.0),
            ("retries_withheld_total{reason=\"exhausted\"}", 1.0),
            ("retries_withheld_total{reason=\"circuit_open\"}", 0.0),
            ("retries_withheld_total{reason=\"too_late\"}", 0.0),
            ("retries_withheld_total{reason=\"over_budget\"}", 0.0),
            ("retry_budget", handle.snapshot().budget as f64),
        ],
        None,
    );
}

#[tokio::test]
async fn a_trusted_header() {
    let header = HeaderName::from_static("x-request-start");
    let layer = SubmittedAtLayer::new().dangerously_trust_header(header.clone());
    let metrics = watching(&layer.handle());
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(Response::new(()))
    }));
    let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    for stamp in [
        since_1970 - 50,
        since_1970 - 60,
        1_000_000_000_000,
        since_1970 + 3_600_000,
    ] {
        let request = Request::builder().header(&header, stamp.to_string());
        send(&service, request.body(()).unwrap())
            .await
            .unwrap()
            .unwrap();
    }
    let request = Request::builder()
        .method(Method::GET)
        .header(&header, "yesterday");
    send(&service, request.body(()).unwrap())
        .await
        .unwrap()
        .unwrap();
    assert_says(
        &metrics,
        "submitted_at",
        &[
            ("submitted_at_total{outcome=\"believed\"}", 2.0),
            ("submitted_at_total{outcome=\"capped\"}", 1.0),
            ("submitted_at_total{outcome=\"future\"}", 1.0),
            ("submitted_at_total{outcome=\"invalid\"}", 1.0),
        ],
        None,
    );
}

#[tokio::test(start_paused = true)]
async fn a_trial() {
    let layer = ShadowLayer::new(
        ServiceBuilder::new()
            .layer(ConcurrencyLimitLayer::new(3).max_waiting(0).name("outer"))
            .layer(ConcurrencyLimitLayer::new(2).max_waiting(1).name("inner")),
    )
    .likeness(u64::clone)
    .name("trial");
    let metrics = Metrics::new();
    metrics.watch(&layer.handle()).unwrap();
    let service = layer.layer(service_fn(work));
    let says = [
        ("shadow_requests_total", 0.0),
        ("shadow_waited_total", 0.0),
        ("shadow_failed_total", 0.0),
    ];
    assert_says(&metrics, "trial", &says, None);
    let sent: Vec<_> = (0..5).map(|_| send(&service, 100)).collect();
    settle().await;
    assert_says(
        &metrics,
        "trial",
        &[
            ("shadow_requests_total", 5.0),
            ("shadow_waited_total", 1.0),
            ("shadow_failed_total", 0.0),
            ("shadow_rejected_total{reason=\"queue_full\"}", 2.0),
        ],
        None,
    );
    for response in sent {
        response.await.unwrap().unwrap();
    }
}

/// What the test itself has counted, of a stack under more load than it can take.
#[tokio::test(start_paused = true)]
async fn what_was_asked_served_and_refused_is_what_was_counted_outside() {
    let quota =
        KeyedRateLimitLayer::new(Rate::per_second(50).burst(20), |time: &u64| Some(time % 3));
    let wfq = WfqLayer::new(
        WfqConfig::default()
            .max_waiting_per_tenant(8)
            .max_wait(ms(60)),
        |time: &u64| Some(if time % 3 == 0 { "a" } else { "b" }),
    );
    let limit = ConcurrencyLimitLayer::new(2);
    let metrics = Metrics::new();
    metrics.watch(&quota.handle()).unwrap();
    metrics.watch(&wfq.handle()).unwrap();
    metrics.watch(&limit.handle()).unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let inner = {
        let served = Arc::clone(&served);
        service_fn(move |time| {
            served.fetch_add(1, SeqCst);
            work(time)
        })
    };
    let service = ServiceBuilder::new()
        .layer(quota)
        .layer(wfq)
        .layer(limit)
        .service(inner);

    let mut random = 7_u64;
    let mut requests = Vec::new();
    for _ in 0..400 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        requests.push(send(&service, 10 + (random >> 33) % 20));
        sleep(ms((random >> 50) % 8)).await;
    }
    let asked = requests.len() as f64;
    let mut refused: BTreeMap<_, f64> = BTreeMap::new();
    for request in requests {
        if let Some((layer, reason)) = reason(request.await.unwrap()) {
            *refused.entry((layer, reason.as_str())).or_default() += 1.0;
        }
    }
    let read = scrape(&metrics);
    for ((layer, reason), count) in &refused {
        let series = format!("rejected_total{{reason=\"{reason}\"}}");
        assert_eq!(read.of(layer)[&series], *count, "{layer}");
    }
    let rejected = read
        .series
        .iter()
        .filter(|(series, _)| series.contains("_rejected_total"));
    let rejected: f64 = rejected.map(|(_, count)| count).sum();
    assert_eq!(rejected, refused.values().sum::<f64>());
    assert!(
        refused.len() >= 3 && refused.values().all(|count| *count > 3.0),
        "{refused:?}"
    );

    let outcome = |layer: &str, outcome: &str| {
        read.of(layer)[&format!("requests_total{{outcome=\"{outcome}\"}}")]
    };
    let served = served.load(SeqCst) as f64;
    assert_eq!(outcome("concurrency_limit", "admitted"), served);
    assert_eq!(outcome("wfq", "admitted"), served);
    let decided = |layer: &str| outcome(layer, "admitted") + outcome(layer, "rejected");
    assert_eq!(decided("keyed_rate_limit"), asked);
    assert_eq!(decided("wfq"), outcome("keyed_rate_limit", "admitted"));
    assert_eq!(decided("concurrency_limit"), served);
    let waited = read.of("wfq")["queue_wait_seconds_count"];
    assert!(waited > 10.0 && waited <= decided("wfq"), "{waited}");
}
