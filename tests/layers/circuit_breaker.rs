//! What is particular to circuit breakers: when they open, who probes, and that they never get stuck.

use crate::support;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use http::{Request, Response};
use support::{Behaviour, PLACES, Probe, finish, poll, refusal, request};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    ByStatus, CircuitBreaker, CircuitBreakerConfig, CircuitBreakerLayer, ConcurrencyLimitLayer,
    KeyedCircuitBreakerLayer, LoadShedLayer, Outcome, OverloadResponseLayer, Reason,
    circuit_breaker::{Handle, State},
};

const SECOND: Duration = Duration::from_secs(1);

/// A breaker around a probe.
struct Breaker {
    service: CircuitBreaker<Probe>,
    probe: Probe,
    handle: Handle,
}

impl Breaker {
    fn new(config: CircuitBreakerConfig) -> Self {
        let (layer, probe) = (CircuitBreakerLayer::new(config), Probe::new());
        Self {
            service: layer.layer(probe.clone()),
            handle: layer.handle(),
            probe,
        }
    }

    /// One that has just opened, for 30 s, and whose service works again.
    fn opened() -> Self {
        let breaker = Self::new(CircuitBreakerConfig::default());
        breaker.probe.set(|script| script.future = Behaviour::Fails);
        for _ in 0..5 {
            breaker.run().unwrap_err();
        }
        assert_eq!(breaker.state(), State::Open);
        breaker.probe.set(|script| script.future = Behaviour::Works);
        breaker
    }

    /// One whose cooldown is over.
    async fn cooled_down() -> Self {
        let breaker = Self::opened();
        advance(30 * SECOND).await;
        breaker
    }

    fn run(&self) -> Result<u32, BoxError> {
        finish(request(&self.service))
    }

    fn state(&self) -> State {
        self.handle.snapshot().state
    }

    #[track_caller]
    fn refuses_for(&self, seconds: u32) {
        let before = self.probe.calls();
        let refused = refusal(self.run());
        assert_eq!(refused.reason(), Reason::CircuitOpen);
        assert_eq!(refused.retry_after(), seconds * SECOND);
        assert_eq!(self.probe.calls(), before, "it was not called");
    }
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_for_thirty_seconds_and_two_successes_close_it() {
    let breaker = Breaker::opened();
    assert_eq!(breaker.handle.snapshot().opened, 1);
    for (passed, left) in [(0, 30), (1, 29), (28, 1)] {
        advance(passed * SECOND).await;
        breaker.refuses_for(left);
    }
    advance(SECOND).await;
    breaker.run().unwrap();
    assert_eq!(breaker.state(), State::HalfOpen);
    breaker.run().unwrap();
    assert_eq!(breaker.state(), State::Closed);
    let snapshot = breaker.handle.snapshot();
    assert_eq!((snapshot.probes, snapshot.closed), (2, 1));
    assert_eq!(snapshot.rejected, 3);
}

#[tokio::test(start_paused = true)]
async fn any_success_starts_the_count_over() {
    let breaker = Breaker::new(CircuitBreakerConfig::default());
    for _ in 0..3 {
        breaker.probe.set(|script| script.future = Behaviour::Fails);
        for failures in 1..=4 {
            breaker.run().unwrap_err();
            assert_eq!(breaker.handle.snapshot().failures_in_a_row, failures);
        }
        breaker.probe.set(|script| script.future = Behaviour::Works);
        breaker.run().unwrap();
        assert_eq!(breaker.handle.snapshot().failures_in_a_row, 0);
    }
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_opens_it_for_a_fresh_cooldown() {
    let breaker = Breaker::cooled_down().await;
    breaker.probe.set(|script| script.future = Behaviour::Fails);
    breaker.run().unwrap_err();
    breaker.refuses_for(30);
    assert_eq!(breaker.handle.snapshot().opened, 2);
}

#[tokio::test(start_paused = true)]
async fn of_many_that_come_at_once_exactly_one_probes() {
    let breaker = Breaker::cooled_down().await;
    breaker.probe.set(|script| script.future = Behaviour::Pends);
    let before = breaker.probe.calls();
    let mut requests: Vec<_> = (0..100).map(|_| request(&breaker.service)).collect();
    let refused = requests
        .iter_mut()
        .filter_map(|request| match poll(request) {
            std::task::Poll::Ready(result) => Some(refusal(result)),
            std::task::Poll::Pending => None,
        });
    let hints: Vec<_> = refused.map(|refused| refused.retry_after()).collect();
    assert_eq!(hints, [5 * SECOND; 99]);
    assert_eq!(breaker.probe.calls() - before, 1);
}

/// A second request is let through as the next probe.
fn probes_again(breaker: &Breaker) {
    let before = breaker.probe.calls();
    breaker.probe.set(|script| *script = Default::default());
    breaker.run().unwrap();
    breaker.run().unwrap();
    assert_eq!(breaker.probe.calls() - before, 2);
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_at_any_time_makes_way_for_the_next() {
    for polls in 0..3 {
        let breaker = Breaker::cooled_down().await;
        breaker.probe.set(|script| script.future = Behaviour::Pends);
        let mut service = breaker.service.clone();
        assert!(support::poll_ready(&mut service).is_ready());
        let mut response = service.call(7);
        for _ in 0..polls {
            assert!(poll(&mut response).is_pending());
        }
        breaker.refuses_for(5);
        drop(response);
        assert_eq!(breaker.state(), State::Open); // not half-open without a probe
        assert_eq!(breaker.handle.snapshot().retry_after, Some(Duration::ZERO));
        probes_again(&breaker);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_has_failed() {
    for place in &PLACES[1..] {
        let breaker = Breaker::cooled_down().await;
        breaker
            .probe
            .set(|script| *place(script) = Behaviour::Panics);
        catch_unwind(AssertUnwindSafe(|| breaker.run())).unwrap_err();
        breaker.refuses_for(30);
        advance(30 * SECOND).await;
        probes_again(&breaker);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_also_where_the_future_outlives_it() {
    let breaker = Breaker::new(CircuitBreakerConfig::default());
    breaker
        .probe
        .set(|script| script.future = Behaviour::Panics);
    for _ in 0..5 {
        let mut response = request(&breaker.service);
        catch_unwind(AssertUnwindSafe(|| poll(&mut response))).unwrap_err();
        drop(response);
    }
    assert_eq!(breaker.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_panics_says_nothing_about_the_service() {
    let breaker = Breaker::new(CircuitBreakerConfig::default());
    breaker.probe.set(|script| script.future = Behaviour::Pends);
    let mut pending: Vec<_> = (0..10).map(|_| request(&breaker.service)).collect();
    for request in &mut pending {
        assert!(poll(request).is_pending());
    }
    catch_unwind(AssertUnwindSafe(|| {
        let _pending = pending;
        panic!("the caller panics");
    }))
    .unwrap_err();
    assert_eq!(breaker.handle.snapshot().failures_in_a_row, 0);
}

#[tokio::test(start_paused = true)]
async fn while_it_refuses_nobody_waits_for_what_is_inside() {
    let breaker = CircuitBreakerLayer::default();
    let limit = ConcurrencyLimitLayer::new(1);
    let busy = limit.handle().try_acquire().unwrap();
    let service = breaker.layer(limit.layer(Probe::new()));
    assert!(poll(&mut request(&service)).is_pending()); // closed, it waits for a permit
    breaker.handle().force_open();
    let mut early = service.clone();
    assert!(support::poll_ready(&mut early).is_ready());
    assert_eq!(
        refusal(finish(request(&service))).reason(),
        Reason::CircuitOpen
    );
    // One that was told so is refused, though the circuit has closed since: it holds no permit.
    breaker.handle().reset();
    drop(busy);
    assert_eq!(refusal(finish(early.call(7))).reason(), Reason::CircuitOpen);
    finish(request(&service)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_knows_that_a_lease_is_over() {
    let breaker = Breaker::cooled_down().await;
    breaker.probe.set(|script| script.future = Behaviour::Pends);
    let mut stuck = request(&breaker.service);
    assert!(poll(&mut stuck).is_pending());
    assert_eq!(breaker.state(), State::HalfOpen);
    advance(40 * SECOND).await;
    let snapshot = breaker.handle.snapshot();
    assert_eq!(
        (snapshot.state, snapshot.retry_after),
        (State::Open, Some(20 * SECOND))
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_never_ends_has_failed_after_its_lease() {
    let breaker = Breaker::cooled_down().await;
    breaker.probe.set(|script| script.future = Behaviour::Pends);
    let mut stuck = request(&breaker.service);
    assert!(poll(&mut stuck).is_pending());
    advance(29 * SECOND).await;
    breaker.refuses_for(5);
    advance(SECOND).await;
    breaker.refuses_for(30);
    advance(30 * SECOND).await;
    probes_again(&breaker);
    drop(stuck); // says nothing any more
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_dies_while_it_is_not_ready_neither_probes_nor_fails() {
    let breaker = Breaker::cooled_down().await;
    for behaviour in [Behaviour::Fails, Behaviour::Panics] {
        breaker.probe.set(|script| script.ready = behaviour);
        catch_unwind(AssertUnwindSafe(|| breaker.run().unwrap_err())).ok();
        assert_eq!(breaker.handle.snapshot().probes, 0);
    }
    probes_again(&breaker);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_it_opened_does_not_count_after_it_has_closed() {
    let breaker = Breaker::new(CircuitBreakerConfig::default());
    breaker.probe.set(|script| {
        script.future = Behaviour::Fails;
        script.pending_polls = 1;
    });
    let mut late: Vec<_> = (0..10).map(|_| request(&breaker.service)).collect();
    for request in &mut late {
        assert!(poll(request).is_pending());
    }
    for request in late.drain(..5) {
        finish(request).unwrap_err();
    }
    assert_eq!(breaker.state(), State::Open);
    advance(30 * SECOND).await;
    probes_again(&breaker);
    for request in late {
        finish(request).unwrap_err();
    }
    assert_eq!(breaker.handle.snapshot().failures_in_a_row, 0);
}

#[tokio::test(start_paused = true)]
async fn refusals_of_layers_further_in_are_no_failures() {
    let breaker = CircuitBreakerLayer::new(CircuitBreakerConfig::default().failures(1));
    let limit = ConcurrencyLimitLayer::new(1);
    let busy = limit.handle().try_acquire().unwrap();
    let service = ServiceBuilder::new()
        .layer(breaker.clone())
        .layer(LoadShedLayer::new())
        .layer(limit)
        .service(Probe::new());
    let refused = refusal(finish(request(&service)));
    assert_eq!(refused.layer(), "concurrency_limit");
    assert_eq!(breaker.handle().snapshot().state, State::Closed);
    drop(busy);
    finish(request(&service)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_gives_back_what_the_inner_service_had_reserved() {
    let breaker = CircuitBreakerLayer::default();
    let limit = ConcurrencyLimitLayer::new(1);
    let mut service = breaker.layer(limit.layer(Probe::new()));
    assert!(support::poll_ready(&mut service).is_ready());
    assert_eq!(limit.handle().snapshot().in_flight, 1);
    breaker.handle().force_open();
    refusal(finish(service.call(7)));
    assert_eq!(limit.handle().snapshot().in_flight, 0);
}

/// A caller may poll several times before it calls, and the circuit may open in between.
#[tokio::test(start_paused = true)]
async fn a_service_that_refuses_gives_back_what_it_had_reserved_or_waits_for() {
    for busy in [false, true] {
        let breaker = CircuitBreakerLayer::default();
        let limit = ConcurrencyLimitLayer::new(1);
        let busy = busy.then(|| limit.handle().try_acquire().unwrap());
        let mut service = breaker.layer(limit.layer(Probe::new()));
        assert_eq!(support::poll_ready(&mut service).is_ready(), busy.is_none());
        breaker.handle().force_open();
        assert!(support::poll_ready(&mut service).is_ready());
        refusal(finish(service.call(7)));
        drop(busy);
        let seen = limit.handle().snapshot();
        assert_eq!((seen.in_flight, seen.waiting), (0, 0));
        assert!(limit.handle().try_acquire().is_ok()); // the service is still there
    }
}

#[tokio::test(start_paused = true)]
async fn http_statuses_count_as_they_do_for_the_adaptive_limit() {
    let breaker = CircuitBreakerLayer::new(CircuitBreakerConfig::default().failures(3));
    let handle = breaker.handle();
    let service = breaker
        .classify(ByStatus)
        .layer(service_fn(|status: u16| async move {
            Response::builder().status(status).body(())
        }));
    for (status, state) in [
        (503, State::Closed),
        (500, State::Closed),
        (404, State::Closed), // says nothing
        (200, State::Closed), // starts over
        (500, State::Closed),
        (502, State::Closed),
        (429, State::Closed),
        (504, State::Open),
    ] {
        service.clone().oneshot(status).await.unwrap();
        assert_eq!(handle.snapshot().state, state, "after {status}");
    }
}

/// A server that says when to come back is alive. One that is silent about it, or a proxy in front of it, may not be.
#[tokio::test(start_paused = true)]
async fn a_server_that_rejects_politely_does_not_open_it() {
    let breaker = CircuitBreakerLayer::new(CircuitBreakerConfig::default().failures(3));
    let handle = breaker.handle();
    let service = breaker.classify(ByStatus).layer(service_fn(
        |(status, header): (u16, Option<(&'static str, &'static str)>)| async move {
            let response = Response::builder().status(status);
            let response = header
                .into_iter()
                .fold(response, |response, (name, value)| {
                    response.header(name, value)
                });
            response.body(())
        },
    ));
    let hint = ("retry-after", "2");
    let polite = [
        (503, Some(hint)),
        (429, Some(hint)),
        (429, None),
        (200, Some(("grpc-status", "8"))),
    ];
    for answer in polite.repeat(10) {
        service.clone().oneshot(answer).await.unwrap();
        assert_eq!(handle.snapshot().failures_in_a_row, 0, "{answer:?}");
    }
    for answer in [
        (503, None),
        (503, Some(("retry-before", "2"))),
        (502, Some(hint)),
    ] {
        assert_eq!(handle.snapshot().state, State::Closed);
        service.clone().oneshot(answer).await.unwrap();
    }
    assert_eq!(handle.snapshot().state, State::Open);
}

/// It is known how long a circuit stays open: a little jitter is enough.
#[tokio::test(start_paused = true)]
async fn clients_are_told_how_long_it_stays_open_and_little_more() {
    let hints = async |after: Duration, force: bool| {
        let breaker = CircuitBreakerLayer::new(CircuitBreakerConfig::default().failures(1));
        let handle = breaker.handle();
        let service = ServiceBuilder::new()
            .layer(OverloadResponseLayer::new())
            .layer(breaker)
            .service(service_fn(|_: Request<String>| async {
                Err::<Response<String>, BoxError>("broken".into())
            }));
        service.clone().oneshot(Request::default()).await.unwrap();
        if force {
            handle.force_open();
        }
        advance(after).await;
        let mut hints = Vec::new();
        for _ in 0..200 {
            let response = service.clone().oneshot(Request::default()).await.unwrap();
            let hint = response.headers()["retry-after"].to_str().unwrap();
            hints.push(hint.parse::<u32>().unwrap());
        }
        hints.sort_unstable();
        (hints[0], hints[199])
    };
    let ms = Duration::from_millis;
    let (least, most) = hints(ms(100), false).await; // of 29.9 s
    assert!((30..=31).contains(&least) && most == 32, "{least}..{most}");
    let (least, most) = hints(ms(20_000), false).await; // of 10 s
    assert!(least >= 10 && most == 11, "{least}..{most}");
    let (least, most) = hints(ms(0), true).await; // nobody knows
    assert!(least >= 30 && (40..=45).contains(&most), "{least}..{most}");
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_result_says_nothing_makes_way_for_the_next() {
    let breaker = CircuitBreakerLayer::new(CircuitBreakerConfig::default().failures(1));
    let handle = breaker.handle();
    let judge = |result: Result<&u32, &BoxError>| match result {
        Ok(0) => Outcome::Ignored,
        Ok(_) => Outcome::Success,
        Err(_) => Outcome::Failure,
    };
    let service = breaker
        .classify(judge)
        .layer(service_fn(|code: u32| async move {
            if code == 500 { Err("broken") } else { Ok(code) }
        }));
    service.clone().oneshot(500).await.unwrap_err();
    advance(30 * SECOND).await;
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot(0).await.unwrap(), 0);
        assert_eq!(handle.snapshot().state, State::Open);
    }
    service.clone().oneshot(1).await.unwrap();
    service.clone().oneshot(1).await.unwrap();
    assert_eq!(handle.snapshot().state, State::Closed);
}

#[tokio::test(start_paused = true)]
async fn forced_open_it_stays_so_for_years_and_reset_closes_it() {
    let breaker = Breaker::new(CircuitBreakerConfig::default());
    breaker.handle.force_open();
    advance(10 * 365 * 24 * 3600 * SECOND).await;
    breaker.refuses_for(30);
    assert_eq!(breaker.handle.snapshot().retry_after, None);
    breaker.handle.reset();
    breaker.run().unwrap();
    assert_eq!(breaker.state() as u8, 0);
}

#[tokio::test(start_paused = true)]
async fn by_share_it_opens_when_half_of_enough_requests_fail() {
    let config = CircuitBreakerConfig::default().failure_rate(0.5, 10 * SECOND, 20);
    let breaker = Breaker::new(config);
    for _ in 0..15 {
        breaker.run().unwrap();
    }
    breaker.probe.set(|script| script.future = Behaviour::Fails);
    for failures in 1..=14 {
        breaker.run().unwrap_err();
        assert_eq!(breaker.state(), State::Closed, "after {failures}");
    }
    let rate = breaker.handle.snapshot().failure_rate.unwrap();
    assert!((rate - 14.0 / 29.0).abs() < 1e-9, "{rate}");
    breaker.run().unwrap_err();
    assert_eq!(breaker.state(), State::Open); // 15 of 30
}

#[tokio::test(start_paused = true)]
async fn by_share_a_trickle_of_failures_among_successes_never_opens_it() {
    let config = CircuitBreakerConfig::default().failure_rate(0.5, 10 * SECOND, 20);
    let breaker = Breaker::new(config);
    for i in 0..10_000 {
        advance(Duration::from_millis(20)).await;
        let fails = i % 5 < 2; // two in a row, of five
        breaker.probe.set(|script| {
            script.future = if fails {
                Behaviour::Fails
            } else {
                Behaviour::Works
            };
        });
        assert_eq!(breaker.run().is_err(), fails);
    }
    assert_eq!(breaker.state(), State::Closed);
    let rate = breaker.handle.snapshot().failure_rate.unwrap();
    assert!((rate - 0.4).abs() < 0.02, "{rate}");
}

#[tokio::test(start_paused = true)]
async fn by_share_after_an_idle_hour_a_few_failures_among_many_requests_are_a_few() {
    let config = CircuitBreakerConfig::default().failure_rate(0.5, 10 * SECOND, 20);
    let breaker = Breaker::new(config);
    breaker.run().unwrap();
    advance(3600 * SECOND).await;
    for _ in 0..1000 {
        advance(Duration::from_millis(1)).await;
        breaker.run().unwrap();
    }
    breaker.probe.set(|script| script.future = Behaviour::Fails);
    for _ in 0..20 {
        breaker.run().unwrap_err();
    }
    let rate = breaker.handle.snapshot().failure_rate.unwrap();
    assert!((rate - 20.0 / 1020.0).abs() < 0.001, "{rate}");
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn by_share_a_success_from_before_the_last_change_does_not_count() {
    let config = CircuitBreakerConfig::default().failure_rate(0.5, 10 * SECOND, 20);
    let breaker = Breaker::new(config);
    breaker.probe.set(|script| script.pending_polls = 1);
    let mut late = request(&breaker.service);
    assert!(poll(&mut late).is_pending());
    breaker.handle.force_open();
    breaker.handle.reset();
    finish(late).unwrap();
    assert_eq!(breaker.handle.snapshot().failure_rate, None); // nothing was counted since
}

#[tokio::test(start_paused = true)]
async fn by_share_successes_of_an_hour_ago_do_not_count() {
    let config = CircuitBreakerConfig::default().failure_rate(0.5, 10 * SECOND, 20);
    let breaker = Breaker::new(config);
    for _ in 0..1000 {
        breaker.run().unwrap();
    }
    advance(3600 * SECOND).await;
    breaker.probe.set(|script| script.future = Behaviour::Fails);
    for _ in 0..19 {
        breaker.run().unwrap_err();
        assert_eq!(breaker.handle.snapshot().failure_rate, Some(1.0));
    }
    breaker.run().unwrap_err();
    assert_eq!(breaker.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn clients_are_told_503_and_when_to_come_back() {
    let breaker = CircuitBreakerLayer::default();
    breaker.handle().force_open();
    let service = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new().jitter(false))
        .layer(breaker)
        .service(service_fn(|_: Request<String>| async {
            Ok::<_, BoxError>(Response::new(String::new()))
        }));
    let response = service.oneshot(Request::new(String::new())).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "30");
}

#[test]
fn nonsense_is_refused_with_a_clear_message() {
    let config = CircuitBreakerConfig::default;
    for (config, message) in [
        (config().failures(0), "failures must be at least 1"),
        (config().successes(0), "successes must be at least 1"),
        (
            config().cooldown(Duration::ZERO),
            "cooldown must be longer than 0",
        ),
        (
            config().probe_lease(Duration::ZERO),
            "probe_lease must be longer than 0",
        ),
        (
            config().failure_rate(f64::NAN, SECOND, 1),
            "failure_rate must be above 0 and at most 1",
        ),
        (
            config().failure_rate(0.5, SECOND, 0),
            "min_calls must be at least 1",
        ),
        (
            config().failure_rate(0.5, Duration::from_millis(9), 1),
            "window must be at least 10 ms",
        ),
    ] {
        let panic = catch_unwind(|| CircuitBreakerLayer::new(config)).unwrap_err();
        let said = panic.downcast_ref::<String>().unwrap();
        assert_eq!(said, &format!("CircuitBreakerConfig: {message}"));
    }
}

mod keyed {
    use super::*;

    /// Fails for odd keys.
    async fn serve(key: u32) -> Result<u32, &'static str> {
        if key % 2 == 1 { Err("broken") } else { Ok(key) }
    }

    fn key(request: &u32) -> Option<u32> {
        Some(*request)
    }

    #[tokio::test(start_paused = true)]
    async fn one_endpoint_that_fails_does_not_close_the_others() {
        let layer = KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key);
        let (service, handle) = (layer.layer(service_fn(serve)), layer.handle());
        for _ in 0..5 {
            for key in 0..6 {
                assert_eq!(service.clone().oneshot(key).await.is_ok(), key % 2 == 0);
            }
        }
        for key in 0..6 {
            let open = key % 2 == 1;
            assert_eq!(handle.state(&key) == State::Open, open);
            let result = service.clone().oneshot(key).await;
            match open {
                true => assert_eq!(refusal(result).retry_after(), 30 * SECOND),
                false => assert_eq!(result.unwrap(), key),
            }
        }
        let snapshot = handle.snapshot();
        assert_eq!(
            (snapshot.tracked, snapshot.open, snapshot.rejected),
            (3, 3, 3)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_works_again_is_forgotten_in_time() {
        let probe = Probe::new();
        let layer = KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key);
        let (service, handle) = (layer.layer(probe.clone()), layer.handle());
        probe.set(|script| script.future = Behaviour::Fails);
        for _ in 0..5 {
            finish(request(&service)).unwrap_err();
        }
        probe.set(|script| script.future = Behaviour::Works);
        advance(30 * SECOND).await;
        finish(request(&service)).unwrap();
        assert_eq!(handle.snapshot().half_open, 1);
        finish(request(&service)).unwrap();
        assert_eq!(handle.state(&7u32), State::Closed);
        assert_eq!(handle.snapshot().tracked, 1); // what was sent before may yet come back
        advance(31 * SECOND).await;
        finish(request(&service)).unwrap();
        assert_eq!(handle.snapshot().tracked, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_failure_does_not_count_for_an_endpoint_that_was_forgotten() {
        let probe = Probe::new();
        let config = CircuitBreakerConfig::default().failures(1).successes(1);
        let layer = KeyedCircuitBreakerLayer::new(config, key);
        let (service, handle) = (layer.layer(probe.clone()), layer.handle());
        probe.set(|script| {
            script.future = Behaviour::Fails;
            script.pending_polls = 1;
        });
        let mut late = request(&service);
        assert!(poll(&mut late).is_pending());
        finish(request(&service)).unwrap_err();
        probe.set(|script| script.future = Behaviour::Works);
        for _ in 0..2 {
            advance(31 * SECOND).await;
            finish(request(&service)).unwrap();
        }
        assert_eq!(handle.snapshot().tracked, 0);
        finish(late).unwrap_err();
        assert_eq!(handle.state(&7u32), State::Closed);
        assert_eq!(handle.snapshot().tracked, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_that_were_on_their_way_before_the_first_one_count() {
        let probe = Probe::new();
        let layer = KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key);
        let (service, handle) = (layer.layer(probe.clone()), layer.handle());
        probe.set(|script| {
            script.future = Behaviour::Fails;
            script.pending_polls = 1;
        });
        let mut requests: Vec<_> = (0..5).map(|_| request(&service)).collect();
        for request in &mut requests {
            assert!(poll(request).is_pending());
        }
        for request in requests {
            finish(request).unwrap_err();
        }
        assert_eq!(handle.state(&7u32), State::Open);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_remembered_in_bounded_number() {
        let layer =
            KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key).max_keys(10);
        let (service, handle) = (layer.layer(service_fn(serve)), layer.handle());
        for key in 0..1000 {
            let _ = service.clone().oneshot(key).await;
        }
        let snapshot = handle.snapshot();
        assert_eq!((snapshot.tracked, snapshot.untracked), (10, 490));
        // Failures of long ago make room, an open circuit does not.
        for _ in 0..4 {
            let _ = service.clone().oneshot(1).await;
        }
        assert_eq!(handle.state(&1u32), State::Open);
        handle.force_open(&1u32).unwrap();
        assert!(handle.force_open(&2u32).is_err());
        advance(31 * SECOND).await;
        for _ in 0..5 {
            let _ = service.clone().oneshot(999).await;
        }
        assert_eq!(handle.state(&999u32), State::Open);
        assert_eq!(handle.state(&1u32), State::Open);
        assert_eq!(handle.snapshot().tracked, 2);
        handle.reset(&1u32);
        assert_eq!(handle.state(&1u32), State::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_that_are_gone_for_good_make_room_in_time() {
        let config = CircuitBreakerConfig::default().failures(1);
        let layer = KeyedCircuitBreakerLayer::new(config, key).max_keys(10);
        let (service, handle) = (layer.layer(service_fn(serve)), layer.handle());
        for key in 0..20 {
            let _ = service.clone().oneshot(key).await;
        }
        assert_eq!(handle.snapshot().open, 10);
        advance(61 * SECOND).await;
        let _ = service.clone().oneshot(101).await;
        assert_eq!(handle.state(&101u32), State::Open);
        assert_eq!(handle.snapshot().tracked, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn by_share_each_key_has_its_own_window() {
        let config = CircuitBreakerConfig::default().failure_rate(0.5, 10 * SECOND, 10);
        let layer = KeyedCircuitBreakerLayer::new(config, |key: &u32| Some(key / 10));
        let (service, handle) = (layer.layer(service_fn(serve)), layer.handle());
        for _ in 0..10 {
            for key in [10, 20, 21, 31] {
                let _ = service.clone().oneshot(key).await;
            }
        }
        for (key, state) in [(1u32, State::Closed), (2, State::Open), (3, State::Open)] {
            assert_eq!(handle.state(&key), state, "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_gives_back_what_the_inner_service_had_reserved() {
        let layer = KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key);
        let limit = ConcurrencyLimitLayer::new(1);
        let mut service = layer.layer(limit.layer(Probe::new()));
        layer.handle().force_open(&7u32).unwrap();
        assert!(support::poll_ready(&mut service).is_ready());
        assert_eq!(limit.handle().snapshot().in_flight, 1);
        refusal(finish(service.call(7)));
        assert_eq!(limit.handle().snapshot().in_flight, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_failed_and_is_not_asked_for_again_is_forgotten_when_others_are() {
        let layer = KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key);
        let (service, handle) = (layer.layer(service_fn(serve)), layer.handle());
        service.clone().oneshot(1).await.unwrap_err();
        service.clone().oneshot(2).await.unwrap();
        assert_eq!(handle.snapshot().tracked, 1);
        advance(31 * SECOND).await;
        service.clone().oneshot(2).await.unwrap();
        assert_eq!(handle.snapshot().tracked, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_key_share_a_circuit() {
        let none = |_: &u32| None::<u32>;
        let layer = KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), none);
        let service = layer.layer(service_fn(serve));
        for key in [1, 3, 5, 7, 9] {
            service.clone().oneshot(key).await.unwrap_err();
        }
        assert_eq!(
            refusal(service.oneshot(2).await).reason(),
            Reason::CircuitOpen
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_dropped_or_panics_or_never_ends_leaves_half_open() {
        let config = CircuitBreakerConfig::default().failures(1).successes(1);
        for script in 0..3 {
            let probe = Probe::new();
            let layer = KeyedCircuitBreakerLayer::new(config.clone(), key);
            let (service, handle) = (layer.layer(probe.clone()), layer.handle());
            probe.set(|script| script.future = Behaviour::Fails);
            finish(request(&service)).unwrap_err();
            advance(30 * SECOND).await;
            probe.set(|script| script.future = Behaviour::Pends);
            let mut stuck = request(&service);
            assert!(poll(&mut stuck).is_pending());
            assert_eq!(refusal(finish(request(&service))).retry_after(), 5 * SECOND);
            match script {
                0 => drop(stuck),
                1 => {
                    // Whoever holds it panics: that says nothing about the service.
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        let _stuck = stuck;
                        panic!("beside it");
                    }));
                }
                _ => {
                    std::mem::forget(stuck);
                    advance(60 * SECOND).await;
                }
            }
            probe.set(|script| script.future = Behaviour::Works);
            finish(request(&service)).unwrap();
            assert_eq!(handle.state(&7u32), State::Closed);
        }
    }
}
