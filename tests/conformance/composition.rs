//! Which order to stack the layers in: what each wrong order does, beside the right one.
//!
//! All but the last are simulated: `tests/support/overload.rs` has the stacks and what is usual, 16 units
//! of 50 ms each and clients that wait for a second. A share is of what the server can do, or of what a
//! tenant asks for.

use crate::overload;
use crate::simulation;
use crate::support;

use std::task::{Context, Poll};

use overload::{Run, Setup, with_work_in_front};
use simulation::{Job, MS, SEC, Server, Stack};
use support::{Probe, assert_refused, poll};
use tower::{Service, ServiceBuilder, ServiceExt, layer::layer_fn, util::Oneshot};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ConcurrencyLimitLayer, KeyedRateLimitLayer, LoadShedLayer, Rate,
    Reason, SubmittedAt, WfqConfig, WfqLayer,
};

/// The share of the server that is of use to clients, at twice what it can do.
fn goodput<S: Stack>(name: &str, mut run: Run<S>) -> f64 {
    run.run(2.0, 10 * SEC);
    let seen = run.run(2.0, 60 * SEC);
    let goodput = run.goodput(2.0, &seen);
    println!(
        "{name}: {:.1} %, p95 {:.0} ms",
        100.0 * goodput,
        1e3 * seen.sojourn(0.95)
    );
    goodput
}

/// Somebody asks for twice what the server can do, and somebody else for a twentieth.
fn flooded() -> Setup {
    Setup {
        tenants: vec![2.0, 0.05],
        ..Setup::default()
    }
}

/// The share that the quiet one gets of what it asks for.
fn quiet<S: Stack>(name: &str, mut run: Run<S>) -> f64 {
    run.run(2.05, 10 * SEC);
    let seen = run.run(2.05, 60 * SEC);
    let got = seen.good_by_tenant[1] as f64 / seen.offered_by_tenant[1] as f64;
    println!("{name}: the quiet one gets {:.1} %", 100.0 * got);
    got
}

fn limit() -> ConcurrencyLimitLayer {
    ConcurrencyLimitLayer::new(16)
}

#[test]
fn the_right_order() {
    assert!(goodput("Wfq, CoDel, limit", Setup::default().over_limit(0, 16)) >= 0.95);
    assert!(goodput("Wfq, CoDel, Vegas", Setup::default().over_vegas(0)) >= 0.95);
    assert!(quiet("Wfq, CoDel, limit", flooded().over_limit(0, 16)) >= 0.99);
    assert!(quiet("Wfq, CoDel, Vegas", flooded().over_vegas(0)) >= 0.99);
}

/// It is asked before requests have waited.
#[test]
fn outside_the_fair_queue_codel_does_not_see_it() {
    let run = Setup::default().around(0, |wfq, codel| {
        let stack = ServiceBuilder::new().layer(codel).layer(wfq);
        stack.layer(limit()).into_inner()
    });
    assert!(goodput("CoDel, Wfq, limit", run) < 0.5);
}

/// What waits, waits in the order in which it came, before the fair queue can do anything about it.
#[test]
fn a_limit_outside_the_fair_queue_is_one_line_for_all() {
    let run = flooded().around(0, |wfq, codel| {
        let stack = ServiceBuilder::new().layer(limit()).layer(wfq);
        stack.layer(codel).into_inner()
    });
    assert!(quiet("limit, Wfq, CoDel", run) < 0.6);
    let run = flooded().around(0, |wfq, codel| {
        let vegas = AdaptiveConcurrencyLayer::vegas();
        let stack = ServiceBuilder::new().layer(vegas).layer(wfq);
        stack.layer(codel).into_inner()
    });
    assert!(quiet("Vegas, Wfq, CoDel", run) < 0.6);
}

/// Nobody waits in the fair queue then: who comes when the limit is reached is refused, whoever it is.
#[test]
fn a_load_shed_between_the_fair_queue_and_the_limit_leaves_nothing_to_schedule() {
    let run = flooded().around(0, |wfq, codel| {
        let stack = ServiceBuilder::new().layer(wfq).layer(codel);
        stack
            .layer(LoadShedLayer::new())
            .layer(limit())
            .into_inner()
    });
    assert!(quiet("Wfq, CoDel, LoadShed, limit", run) < 0.6);
}

/// Such as axum's `Router::layer`, called twice, or a `Buffer`: requests wait behind it.
#[test]
fn a_service_that_is_always_ready_leaves_nothing_to_schedule_either() {
    let run = flooded().around(0, |wfq, codel| {
        let stack = ServiceBuilder::new()
            .layer(wfq)
            .layer(layer_fn(AlwaysReady));
        stack.layer(codel).layer(limit()).into_inner()
    });
    assert!(quiet("Wfq, always ready, CoDel, limit", run) < 0.6);
}

#[derive(Clone)]
struct AlwaysReady<S>(S);

impl<S, R> Service<R> for AlwaysReady<S>
where
    S: Service<R> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Oneshot<S, R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Oneshot<S, R> {
        self.0.clone().oneshot(request)
    }
}

/// Decoding is held up by the handlers. With a stamp from before it that is seen, with one from after it
/// it is not.
#[test]
fn a_stamp_that_is_made_late_hides_the_wait_before_it() {
    let setup = Setup::of(with_work_in_front());
    assert!(goodput("stamp, work, CoDel", setup.alone(0)) >= 0.95);
    let run = setup.around(0, |_, codel| {
        codel.submitted_at(|_: &Job| Some(SubmittedAt::now()))
    });
    assert!(goodput("work, stamp, CoDel", run) < 0.5);
}

/// The handler queues, and with a ceiling of 2048 that takes longer than clients wait.
#[test]
fn a_queue_behind_codel_is_not_seen() {
    assert!(goodput("CoDel up to 2048", Setup::default().alone(0)) < 0.5);
    // What there is to be done about it: no more than gets done while clients wait, or a limit that learns.
    let setup = Setup {
        max: 256,
        ..Setup::default()
    };
    assert!(goodput("CoDel up to 256", setup.alone(0)) >= 0.95);
    assert!(goodput("Wfq, CoDel, Vegas", Setup::default().over_vegas(0)) >= 0.95);
}

/// The processors take turns of 5 ms, so that 2 ms of work in front hardly wait, however slow the
/// handlers are.
#[test]
fn a_delay_that_is_all_in_the_handlers_is_not_seen() {
    let server = Server {
        slice: 5 * MS,
        ..with_work_in_front()
    };
    let setup = Setup::of(server);
    assert!(goodput("S4b", setup.alone(0)) < 0.7);
    let small = Setup {
        max: 64,
        ..setup.clone()
    };
    assert!(goodput("S4b up to 64", small.alone(0)) >= 0.95);
    let eager = Setup {
        target: 20 * MS,
        ..setup.clone()
    };
    assert!(goodput("S4b with a target of 20 ms", eager.alone(0)) >= 0.95);
    assert!(goodput("S4b with Vegas", setup.over_vegas(0)) >= 0.95);
}

/// Each request more slows all of them down. Only a limit that looks at response times finds out how many
/// are best.
#[test]
fn a_service_that_slows_down_needs_a_limit_that_learns() {
    let server = Server {
        contended: Some(0.005),
        ..Setup::default().server
    };
    let setup = Setup::of(server);
    assert!(goodput("S5a", setup.alone(0)) < 0.5);
    assert!(goodput("S5b", setup.over_limit(0, 64)) < 0.85);
    assert!(goodput("S5c", setup.over_vegas(0)) >= 0.9);
}

/// With one tenant and a limit inside, a queue in which nobody waits longer than two targets does as
/// much.
#[test]
fn a_short_wait_may_be_all_that_is_needed() {
    let setup = |wait| Setup {
        wfq: WfqConfig::default()
            .max_waiting_per_tenant(1024)
            .max_wait(wait),
        ..Setup::default()
    };
    let wfq = |setup: Setup| {
        setup.around(0, |wfq, _| {
            ServiceBuilder::new().layer(wfq).layer(limit()).into_inner()
        })
    };
    assert!(goodput("Wfq of 200 ms, limit", wfq(setup(200 * MS))) >= 0.95);
    assert!(goodput("Wfq of 1 s, limit", wfq(setup(SEC))) < 0.5);
}

/// Whoever has used up its quota need not queue to be told.
#[tokio::test(start_paused = true)]
async fn a_quota_inside_the_queue_is_heard_of_late() {
    let limit = ConcurrencyLimitLayer::new(1);
    let busy = limit.handle().try_acquire().unwrap();
    let quota = || KeyedRateLimitLayer::new(Rate::per_second(1), |_: &u32| Some("client"));
    let wfq = || WfqLayer::new(WfqConfig::default(), |_: &u32| Some("client"));

    let outside = quota();
    let service = ServiceBuilder::new()
        .layer(outside.clone())
        .layer(wfq())
        .layer(limit.clone())
        .service(Probe::new());
    outside.handle().try_acquire(&"client").unwrap();
    assert_refused(service.oneshot(7).await, Reason::Quota);

    let inside = quota();
    let service = ServiceBuilder::new()
        .layer(wfq())
        .layer(inside.clone())
        .layer(limit)
        .service(Probe::new());
    inside.handle().try_acquire(&"client").unwrap();
    let mut response = service.oneshot(7);
    assert!(poll(&mut response).is_pending());
    drop(busy);
    assert_refused(response.await, Reason::Quota);
}
