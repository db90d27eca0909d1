//! A `LoadShed` that refused, and is kept, holds nothing: whatever stands between it and the limit.
//!
//! The defect that this is about is reproduced against tower first.

use crate::support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use support::*;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};
use tower_backpressure::{ConcurrencyLimitLayer, LoadShedLayer, Reason};

const REQUESTS: usize = 1000;

/// Fills `shed` with one request, has a clone of it refused and kept, lets the request finish, and
/// counts how many of 1000 fresh requests are then refused although nothing runs.
async fn refused_after_one_idle_clone<S>(mut shed: S) -> usize
where
    S: Service<u32, Response = u32, Error = BoxError> + Clone,
{
    let in_flight = shed.ready().await.unwrap().call(7);
    let mut kept = shed.clone();
    kept.ready().await.unwrap().call(7).await.unwrap_err();
    assert!(in_flight.await.is_ok());
    let mut refused = 0;
    for _ in 0..REQUESTS {
        refused += usize::from(shed.clone().oneshot(7).await.is_err());
    }
    drop(kept);
    refused
}

#[tokio::test]
async fn in_tower_one_idle_clone_has_every_later_request_refused() {
    let shed = ServiceBuilder::new()
        .layer(tower::load_shed::LoadShedLayer::new())
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1))
        .service(Probe::new());
    assert_eq!(refused_after_one_idle_clone(shed).await, REQUESTS);
}

#[tokio::test]
async fn here_it_does_not() {
    let shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Probe::new());
    assert_eq!(refused_after_one_idle_clone(shed).await, 0);
}

#[tokio::test]
async fn nor_over_a_limit_of_towers() {
    let shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1))
        .service(Probe::new());
    assert_eq!(refused_after_one_idle_clone(shed).await, 0);
}

#[tokio::test]
async fn nor_through_layers_that_pass_readiness_on() {
    let shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .timeout(Duration::from_secs(60))
        .map_err(|error: BoxError| error)
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Probe::new());
    assert_eq!(refused_after_one_idle_clone(shed).await, 0);
}

#[tokio::test]
async fn nor_with_two_limits_whichever_is_full() {
    for (outer, inner) in [(1, 1), (1, 5), (5, 1), (2, 1)] {
        let outer = ConcurrencyLimitLayer::new(outer);
        let inner = ConcurrencyLimitLayer::new(inner);
        let shed = ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(outer.clone())
            .layer(inner.clone())
            .service(Probe::new());
        assert_eq!(refused_after_one_idle_clone(shed).await, 0);
        for limit in [outer, inner] {
            let snapshot = limit.handle().snapshot();
            assert_eq!((snapshot.in_flight, snapshot.waiting), (0, 0));
            assert_eq!(
                snapshot.admitted, 1001,
                "what was given back unused does not count"
            );
        }
    }
}

/// The outer limit has room, so a permit of it is there to be taken, but not to be kept.
#[tokio::test]
async fn an_outer_limit_keeps_no_permit_for_a_request_that_an_inner_one_refused() {
    let outer = ConcurrencyLimitLayer::new(5);
    let inner = ConcurrencyLimitLayer::new(1);
    let shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(outer.clone())
        .layer(inner.clone())
        .service(Probe::new());
    let _busy = inner.handle().try_acquire().unwrap();
    let mut kept: Vec<_> = (0..3).map(|_| shed.clone()).collect();
    for kept in &mut kept {
        assert_refused(kept.ready().await.unwrap().call(7).await, Reason::AtLimit);
        assert_eq!(outer.handle().snapshot().in_flight, 0);
    }
}

#[tokio::test]
async fn nor_with_one_shed_inside_another() {
    let shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(5))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Probe::new());
    assert_eq!(refused_after_one_idle_clone(shed).await, 0);
}

/// A limit of tower's outside a full one of ours: it cannot be told, and keeps the one permit that
/// it took for as long as that service lives. Documented; servers drop it after each request.
#[tokio::test]
async fn a_foreign_limit_outside_ours_keeps_one_permit_until_the_service_is_dropped() {
    let ours = ConcurrencyLimitLayer::new(1);
    let shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1))
        .layer(ours.clone())
        .service(Probe::new());
    let busy = ours.handle().try_acquire().unwrap();
    let mut kept = shed.clone();
    assert_refused(kept.ready().await.unwrap().call(7).await, Reason::AtLimit);
    drop(busy);
    assert_refused(shed.clone().oneshot(7).await, Reason::NotReady);
    drop(kept);
    assert_eq!(shed.clone().oneshot(7).await.unwrap(), 7);
}

#[tokio::test]
async fn the_refusal_is_that_of_the_limit_that_was_full() {
    let outer = ConcurrencyLimitLayer::new(5).name("outer");
    let inner = ConcurrencyLimitLayer::new(5).name("inner");
    let shed = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(outer.clone())
        .timeout(Duration::from_secs(60))
        .layer(inner.clone())
        .service(Probe::new());
    for full in [&outer, &inner] {
        let handle = full.handle();
        let busy: Vec<_> = (0..5).map(|_| handle.try_acquire().unwrap()).collect();
        let refused = refusal(shed.clone().oneshot(7).await);
        assert_eq!(refused.reason(), Reason::AtLimit);
        let name = if std::ptr::eq(full, &outer) {
            "outer"
        } else {
            "inner"
        };
        assert_eq!(refused.layer(), name);
        drop(busy);
        assert_eq!(shed.clone().oneshot(7).await.unwrap(), 7);
    }
}

#[tokio::test]
async fn over_something_foreign_the_refusal_is_the_documented_default() {
    let probe = Probe::new();
    probe.set(|script| script.ready = Behaviour::Pends);
    let shed = LoadShedLayer::new().layer(probe);
    let refused = refusal(shed.oneshot(7).await);
    assert_eq!(refused.reason(), Reason::NotReady);
    assert_eq!(refused.layer(), "load_shed");
    assert_eq!(refused.retry_after(), Duration::from_secs(1));
}

/// The gate is polled by the buffer's worker, not by the shed, so it queues the worker; once the
/// buffer is full the shed refuses. Nothing is lost when the limit frees up.
#[tokio::test]
async fn a_buffer_in_between_fills_up_and_then_sheds() {
    let limit = ConcurrencyLimitLayer::new(1);
    let probe = Probe::new();
    let buffer = tower::buffer::Buffer::new(limit.layer(probe.clone()), 1);
    let shed = LoadShedLayer::new().layer(buffer);
    let busy = limit.handle().try_acquire().unwrap();
    let mut accepted = Vec::new();
    let refused = loop {
        let mut service = shed.clone();
        let future = service.ready().await.unwrap().call(7);
        let task = tokio::spawn(future);
        tokio::task::yield_now().await;
        if task.is_finished() {
            break task.await.unwrap();
        }
        accepted.push(task);
        assert!(accepted.len() < 10, "never full");
    };
    assert_refused(refused, Reason::NotReady);
    drop(busy);
    for task in accepted {
        assert_eq!(task.await.unwrap().unwrap(), 7);
    }
    assert_eq!(shed.oneshot(7).await.unwrap(), 7);
}

/// tower's balancer polls its endpoints with wakers of its own. A gate under it must queue as usual:
/// an unqueued `Pending` would be cached there, and the endpoint lost for ever.
#[tokio::test]
async fn endpoints_of_a_balancer_come_back() {
    let limits: Vec<_> = (0..3).map(|_| ConcurrencyLimitLayer::new(1)).collect();
    let calls = Arc::new(AtomicUsize::new(0));
    let endpoints: Vec<_> = limits
        .iter()
        .map(|limit| {
            let calls = Arc::clone(&calls);
            let inner = tower::service_fn(move |request: u32| {
                calls.fetch_add(1, SeqCst);
                async move { Ok::<_, BoxError>(request) }
            });
            tower::load::Constant::new(limit.layer(inner), 1)
        })
        .collect();
    let balance = tower::balance::p2c::Balance::new(tower::discover::ServiceList::new(endpoints));
    // The balancer is not Clone, as LoadShed needs it: a buffer gives each caller one.
    let shed = LoadShedLayer::new().layer(tower::buffer::Buffer::new(balance, 64));
    let busy: Vec<_> = limits
        .iter()
        .map(|limit| limit.handle().try_acquire())
        .collect();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        tasks.spawn(shed.clone().oneshot(7));
    }
    tokio::task::yield_now().await;
    assert_eq!(calls.load(SeqCst), 0);
    drop(busy);
    assert!(tasks.join_all().await.iter().all(|result| result.is_ok()));
    assert_eq!(calls.load(SeqCst), 20);
}

/// The same without a buffer: the shed polls a balancer directly, on the spot.
#[tokio::test]
async fn a_shed_right_over_a_balancer_loses_no_endpoint() {
    type Endpoint = tower::load::Constant<tower_backpressure::ConcurrencyLimit<Probe>, u32>;
    type Endpoints = tower::discover::ServiceList<Vec<Endpoint>>;
    type Balanced = tower::balance::p2c::Balance<Endpoints, u32>;
    /// LoadShed replaces an inner service that is stuck by a clone of it; this one must stay.
    #[derive(Clone)]
    struct Shared(Arc<std::sync::Mutex<Balanced>>);
    impl Service<u32> for Shared {
        type Response = u32;
        type Error = BoxError;
        type Future = <Balanced as Service<u32>>::Future;
        fn poll_ready(
            &mut self,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), BoxError>> {
            self.0.lock().unwrap().poll_ready(cx)
        }
        fn call(&mut self, request: u32) -> Self::Future {
            self.0.lock().unwrap().call(request)
        }
    }

    let limit = ConcurrencyLimitLayer::new(1);
    let endpoint = tower::load::Constant::new(limit.layer(Probe::new()), 1);
    let balance = Balanced::new(tower::discover::ServiceList::new(vec![endpoint]));
    let shed = LoadShedLayer::new().layer(Shared(Arc::new(std::sync::Mutex::new(balance))));
    for _ in 0..100 {
        let busy = limit.handle().acquire().await.unwrap();
        assert_refused(shed.clone().oneshot(7).await, Reason::NotReady);
        drop(busy);
        assert_eq!(shed.clone().oneshot(7).await.unwrap(), 7);
    }
}

/// A service that waited in the queue, and is then put under a shed, leaves the queue.
#[test]
fn a_waiter_that_is_polled_by_a_shed_leaves_the_queue() {
    let limit = ConcurrencyLimitLayer::new(1);
    let handle = limit.handle();
    let busy = handle.try_acquire().unwrap();
    let mut waiting = limit.layer(Probe::new());
    assert!(poll_ready(&mut waiting).is_pending());
    assert_eq!(handle.snapshot().waiting, 1);

    let mut shed = LoadShedLayer::new().layer(waiting);
    assert!(poll_ready(&mut shed).is_ready());
    assert_refused(finish(shed.call(7)), Reason::AtLimit);
    assert_eq!(handle.snapshot().waiting, 0);
    drop(busy);
    assert!(handle.try_acquire().is_ok());
}

/// One that was granted in the meantime takes what is there.
#[test]
fn a_waiter_that_was_granted_is_served_under_a_shed() {
    let limit = ConcurrencyLimitLayer::new(1);
    let handle = limit.handle();
    let busy = handle.try_acquire().unwrap();
    let mut waiting = limit.layer(Probe::new());
    assert!(poll_ready(&mut waiting).is_pending());
    drop(busy);
    let mut shed = LoadShedLayer::new().layer(waiting);
    assert!(poll_ready(&mut shed).is_ready());
    assert_eq!(finish(shed.call(7)).unwrap(), 7);
    assert_eq!(handle.snapshot().in_flight, 0);
}
