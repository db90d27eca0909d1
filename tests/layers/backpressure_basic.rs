//! The basic behaviours, alone and composed with tower's own layers.

use crate::support;

use std::time::Duration;

use support::*;
use tokio::time;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{ConcurrencyLimitLayer, LoadShedLayer, Reason};

// ConcurrencyLimit: bounds what is in flight at a fixed number.

#[test]
fn concurrency_limit_counts_what_is_in_flight() {
    let limit = ConcurrencyLimitLayer::new(3);
    let mut service = limit.layer(Probe::new());
    let mut in_flight = Vec::new();
    for count in 1..=3 {
        assert!(poll_ready(&mut service).is_ready());
        in_flight.push(service.call(7));
        assert_eq!(limit.handle().snapshot().in_flight, count);
    }
    for count in (0..3).rev() {
        finish(in_flight.pop().unwrap()).unwrap();
        assert_eq!(limit.handle().snapshot().in_flight, count);
    }
}

#[test]
fn concurrency_limit_is_pending_at_the_cap_and_ready_below_it() {
    let mut service = ConcurrencyLimitLayer::new(1).layer(Probe::new());
    assert!(poll_ready(&mut service).is_ready());
    let in_flight = service.call(7);
    assert!(poll_ready(&mut service).is_pending());
    drop(in_flight);
    assert!(poll_ready(&mut service).is_ready());
}

#[tokio::test(start_paused = true)]
async fn concurrency_limit_protects_a_pool_of_connections() {
    let probe = Probe::new();
    let inner = probe.clone();
    let slow = service_fn(move |request: u32| {
        let mut inner = inner.clone();
        async move {
            let response = inner.ready().await?.call(request);
            time::sleep(Duration::from_millis(10)).await;
            response.await
        }
    });
    let service = ConcurrencyLimitLayer::new(4).layer(slow);
    let begun = now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        tasks.spawn(service.clone().oneshot(7));
    }
    assert!(tasks.join_all().await.iter().all(|result| result.is_ok()));
    assert_eq!(probe.most_live(), 4);
    assert_eq!(
        begun.elapsed(),
        Duration::from_millis(250),
        "25 rounds of 4"
    );
}

// LoadShed: a pending inner service becomes a refusal at once.

#[test]
fn load_shed_is_always_ready_and_refuses_in_call() {
    let limit = ConcurrencyLimitLayer::new(1);
    let mut service = LoadShedLayer::new().layer(limit.layer(Probe::new()));
    assert!(poll_ready(&mut service).is_ready());
    let in_flight = service.call(7);
    assert!(poll_ready(&mut service).is_ready());
    assert_refused(finish(service.call(8)), Reason::AtLimit);
    assert_eq!(finish(in_flight).unwrap(), 7);
    assert!(poll_ready(&mut service).is_ready());
    assert_eq!(finish(service.call(9)).unwrap(), 9);
}

#[test]
fn load_shed_refuses_a_call_that_was_not_polled_ready() {
    let mut service = LoadShedLayer::new().layer(Probe::new());
    assert_refused(finish(service.call(7)), Reason::NotReady);
}

#[test]
fn a_clone_of_a_ready_load_shed_is_not_ready() {
    let mut service = LoadShedLayer::new().layer(Probe::new());
    assert!(poll_ready(&mut service).is_ready());
    assert_refused(finish(service.clone().call(7)), Reason::NotReady);
    assert_eq!(finish(service.call(7)).unwrap(), 7);
}

#[test]
fn a_readiness_of_load_shed_is_good_for_one_call() {
    let mut service = LoadShedLayer::new().layer(Probe::new());
    assert!(poll_ready(&mut service).is_ready());
    assert_eq!(finish(service.call(7)).unwrap(), 7);
    assert_refused(finish(service.call(7)), Reason::NotReady);
}

#[tokio::test(start_paused = true)]
async fn load_shed_serves_what_fits_and_refuses_the_rest() {
    let limit = ConcurrencyLimitLayer::new(10);
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(limit.clone())
        .service(service_fn(|request: u32| async move {
            time::sleep(Duration::from_millis(100)).await;
            Ok::<_, BoxError>(request)
        }));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        tasks.spawn(service.clone().oneshot(7));
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 10);
    let snapshot = limit.handle().snapshot();
    assert_eq!((snapshot.admitted, snapshot.rejected.at_limit), (10, 40));
    assert_eq!((snapshot.in_flight, snapshot.peak_in_flight), (0, 10));
}

// Composed with tower's own layers.

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_gives_the_permit_back() {
    let limit = ConcurrencyLimitLayer::new(1);
    let service = ServiceBuilder::new()
        .timeout(Duration::from_millis(50))
        .layer(limit.clone())
        .service(service_fn(|request: u32| async move {
            if request == 0 {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(request)
        }));
    for _ in 0..3 {
        let error = service.clone().oneshot(0).await.unwrap_err();
        assert!(error.is::<tower::timeout::error::Elapsed>());
        assert_eq!(limit.handle().snapshot().in_flight, 0);
        assert_eq!(service.clone().oneshot(7).await.unwrap(), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_outside_takes_a_permit_for_each_attempt() {
    #[derive(Clone)]
    struct Thrice(usize);
    impl tower::retry::Policy<u32, u32, BoxError> for Thrice {
        type Future = std::future::Ready<()>;
        fn retry(
            &mut self,
            _: &mut u32,
            result: &mut Result<u32, BoxError>,
        ) -> Option<Self::Future> {
            self.0 = self.0.checked_sub(1)?;
            result.is_err().then(|| std::future::ready(()))
        }
        fn clone_request(&mut self, request: &u32) -> Option<u32> {
            Some(*request)
        }
    }
    let limit = ConcurrencyLimitLayer::new(1);
    let probe = Probe::new();
    probe.set(|script| script.future = Behaviour::Fails);
    let service = ServiceBuilder::new()
        .retry(Thrice(2))
        .layer(limit.clone())
        .service(probe.clone());
    service.oneshot(7).await.unwrap_err();
    assert_eq!(probe.calls(), 3);
    assert_eq!(limit.handle().snapshot().admitted, 3);
}

#[tokio::test]
async fn a_buffer_outside_shares_a_service_that_need_not_be_clone() {
    let service = ServiceBuilder::new()
        .buffer(16)
        .layer(ConcurrencyLimitLayer::new(2))
        .service(Probe::new());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        tasks.spawn(service.clone().oneshot(7));
    }
    assert!(tasks.join_all().await.iter().all(|result| result.is_ok()));
}

#[tokio::test]
async fn towers_limit_inside_or_outside_gives_the_smaller_of_the_two() {
    for (outer, inner) in [(3, 5), (5, 3)] {
        let probe = Probe::new();
        probe.set(|script| script.pending_polls = 1);
        let ours_outside = ServiceBuilder::new()
            .layer(ConcurrencyLimitLayer::new(outer))
            .layer(tower::limit::GlobalConcurrencyLimitLayer::new(inner))
            .service(probe.clone());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            tasks.spawn(ours_outside.clone().oneshot(7));
        }
        assert!(tasks.join_all().await.iter().all(|result| result.is_ok()));
        assert_eq!(probe.most_live(), 3);
    }
}
