//! What every layer of this crate promises, whatever it decides: one file a contract, one row a
//! layer.
//!
//! A new layer adds a row to the table below and is held to all of it. Layers that limit are built
//! for one request at a time, because that is where a permit that goes missing shows at once.

#[path = "../support/mod.rs"]
mod support;

mod cancellation;
mod cloning;
mod errors;
mod panics;
mod readiness;
mod rejection;
mod wakeups;

use std::time::Duration;

use http::{Request, Response};
use support::Probe;
use tower::{
    BoxError, Layer, Service, ServiceBuilder,
    layer::layer_fn,
    util::{MapRequest, MapResponse},
};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, Deadline, DeadlineLayer, KeyedCircuitBreakerLayer,
    KeyedConcurrencyLimitLayer, KeyedRateLimitLayer, LoadShedLayer, Rate, RateLimitLayer,
    SaturationLayer, SubmittedAt, WfqConfig, WfqLayer,
    saturation::{Probe as Queue, Work},
};

/// What a layer makes of a second request while one is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    Waits,
    /// In its response future: the layer itself is always ready.
    WaitsInCall,
    IsRefused,
    IsServed,
    /// It is served, but refused while the inner service is not ready.
    IsServedOrShed,
}
use Second::*;

impl Second {
    fn is_served(self) -> bool {
        matches!(self, IsServed | IsServedOrShed)
    }

    fn waits(self) -> bool {
        matches!(self, Waits | WaitsInCall)
    }
}

/// A service as servers need it: axum wants `Clone + Send + Sync`, and a future that is `Send`.
trait Subject:
    Service<u32, Response = u32, Error = BoxError, Future: Send + Unpin> + Clone + Send + Sync + 'static
{
}
impl<S> Subject for S where
    S: Service<u32, Response = u32, Error = BoxError, Future: Send + Unpin>
        + Clone
        + Send
        + Sync
        + 'static
{
}

macro_rules! contract {
    ($($row:ident: $second:ident, $layer:expr;)*) => { $(
        mod $row {
            use super::*;

            contract!(@tests $second, $layer,
                readiness::only_what_was_polled_ready_is_called,
                readiness::a_readied_service_that_is_dropped_gives_back,
                readiness::a_clone_of_a_readied_service_holds_nothing,
                readiness::a_service_that_was_turned_away_and_is_kept_takes_nothing,
                readiness::an_inner_service_that_is_not_ready_is_not_called,
                readiness::one_that_waits_for_its_inner_service_gives_back_when_dropped,
                cancellation::a_request_may_be_dropped_after_any_poll,
                cancellation::a_request_that_waits_may_be_dropped_after_any_poll,
                cancellation::a_response_future_may_be_dropped_unpolled,
                wakeups::one_that_waits_is_woken_once_and_never_wakes_itself,
                wakeups::the_task_that_polled_last_is_woken,
                wakeups::none_is_lost_between_threads,
                cloning::clones_and_repeated_layers_share_one_state,
                rejection::a_refused_request_never_reaches_the_inner_service,
                rejection::a_refusal_is_judged_anew,
                rejection::what_the_service_passes_on_is_not_taken_for_the_layers_own,
                errors::errors_of_the_inner_service_are_passed_on_and_give_back,
                errors::an_inner_service_that_is_dead_says_so_and_gives_back,
                panics::a_panic_anywhere_in_the_inner_service_gives_back,
            );
        }
    )* };
    (@tests $second:ident, $layer:expr, $($contract:ident::$test:ident,)*) => { $(
        #[test]
        fn $test() {
            $contract::$test($layer, $second);
        }
    )* };
}

contract! {
    concurrency_limit: Waits, ConcurrencyLimitLayer::new(1);
    concurrency_limit_with_max_wait: Waits,
        ConcurrencyLimitLayer::new(1).max_wait(Duration::from_secs(3600));
    concurrency_limit_without_queue: IsRefused, ConcurrencyLimitLayer::new(1).max_waiting(0);
    load_shed: IsServedOrShed, LoadShedLayer::new();
    load_shed_over_concurrency_limit: IsRefused,
        ServiceBuilder::new().layer(LoadShedLayer::new()).layer(ConcurrencyLimitLayer::new(1));
    load_shed_over_two_concurrency_limits: IsRefused, ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(2))
        .layer(ConcurrencyLimitLayer::new(1));
    two_concurrency_limits: Waits, ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(ConcurrencyLimitLayer::new(2));
    two_concurrency_limits_the_inner_smaller: Waits, ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(2))
        .layer(ConcurrencyLimitLayer::new(1));
    rate_limit: IsServed, RateLimitLayer::new(Rate::per_second(1_000_000_000));
    load_shed_over_rate_limit: IsServedOrShed, ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(RateLimitLayer::new(Rate::per_second(1_000_000_000)));
    keyed_rate_limit: IsServed,
        KeyedRateLimitLayer::new(Rate::per_second(1_000_000_000), |request: &u32| Some(*request));
    keyed_rate_limit_with_max_wait: IsServed,
        KeyedRateLimitLayer::new(Rate::per_second(1_000_000_000), |request: &u32| Some(*request))
            .max_wait(Duration::from_secs(1));
    keyed_rate_limit_over_concurrency_limit: Waits, ServiceBuilder::new()
        .layer(KeyedRateLimitLayer::new(Rate::per_second(1_000_000_000), |request: &u32| Some(*request)))
        .layer(ConcurrencyLimitLayer::new(1));
    rate_limit_and_concurrency_limit: Waits, ServiceBuilder::new()
        .layer(RateLimitLayer::new(Rate::per_second(1_000_000_000)))
        .layer(ConcurrencyLimitLayer::new(1));
    adaptive_concurrency: Waits, AdaptiveConcurrencyLayer::vegas().limits(1, 1, 1);
    adaptive_concurrency_without_queue: IsRefused,
        AdaptiveConcurrencyLayer::aimd().limits(1, 1, 1).max_waiting(0);
    load_shed_over_adaptive_concurrency: IsRefused, ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(AdaptiveConcurrencyLayer::gradient2().limits(1, 1, 1));
    adaptive_concurrency_over_concurrency_limit: Waits, ServiceBuilder::new()
        .layer(AdaptiveConcurrencyLayer::vegas())
        .layer(ConcurrencyLimitLayer::new(1));
    wfq: IsServed, WfqLayer::new(WfqConfig::default(), tenant);
    wfq_over_concurrency_limit: WaitsInCall, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(ConcurrencyLimitLayer::new(1));
    wfq_with_max_wait_over_concurrency_limit: WaitsInCall, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default().max_wait(Duration::from_secs(3600)), tenant))
        .layer(ConcurrencyLimitLayer::new(1));
    wfq_without_queue_over_concurrency_limit: IsRefused, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default().max_waiting(0), tenant))
        .layer(ConcurrencyLimitLayer::new(1));
    wfq_of_one_in_flight_per_tenant: WaitsInCall,
        WfqLayer::new(WfqConfig::default().max_in_flight_per_tenant(1), tenant);
    wfq_over_adaptive_concurrency_over_rate_limit: WaitsInCall, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(AdaptiveConcurrencyLayer::vegas().limits(1, 1, 1))
        .layer(RateLimitLayer::new(Rate::per_second(1_000_000_000)));
    wfq_over_towers_concurrency_limit: WaitsInCall, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1));
    wfq_over_load_shed: IsRefused, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1));
    concurrency_limit_over_wfq: Waits, ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(WfqLayer::new(WfqConfig::default(), tenant));
    codel: IsRefused, codel();
    codel_with_room: IsServed, CoDelLayer::new(CoDelConfig::default()).submitted_at(|_: &u32| None);
    codel_over_concurrency_limit: Waits, ServiceBuilder::new()
        .layer(CoDelLayer::new(CoDelConfig::default()).submitted_at(|_: &u32| None))
        .layer(ConcurrencyLimitLayer::new(1));
    concurrency_limit_over_codel: IsRefused, ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(100))
        .layer(codel());
    load_shed_over_codel: IsRefused, ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(codel());
    wfq_over_codel: IsRefused, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(codel());
    wfq_over_codel_over_adaptive_concurrency_over_load_shed: WaitsInCall, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(CoDelLayer::new(CoDelConfig::default()).submitted_at(|_: &u32| None))
        .layer(AdaptiveConcurrencyLayer::vegas().limits(1, 1, 1))
        .layer(LoadShedLayer::new());
    edge: WaitsInCall, edge(1, WfqConfig::default());
    edge_with_max_wait: WaitsInCall,
        edge(1, WfqConfig::default().max_wait(Duration::from_secs(3600)));
    edge_without_queue: IsRefused, edge(1, WfqConfig::default().max_waiting(0));
    edge_with_room: IsServedOrShed, edge(20, WfqConfig::default());
    edge_of_one_in_flight_per_tenant: WaitsInCall,
        edge(20, WfqConfig::default().max_in_flight_per_tenant(1));
    edge_of_one_in_flight_by_age: IsRefused, numbers(
        tower_backpressure::edge()
            .codel(CoDelConfig::default().min_concurrency(1).max_concurrency(1))
            .gates());
    circuit_breaker: IsServed, CircuitBreakerLayer::new(CircuitBreakerConfig::default());
    circuit_breaker_by_share: IsServed, CircuitBreakerLayer::new(
        CircuitBreakerConfig::default().failure_rate(0.5, Duration::from_secs(10), 10));
    circuit_breaker_over_concurrency_limit: Waits, ServiceBuilder::new()
        .layer(CircuitBreakerLayer::default())
        .layer(ConcurrencyLimitLayer::new(1));
    load_shed_over_circuit_breaker_over_concurrency_limit: IsRefused, ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(CircuitBreakerLayer::default())
        .layer(ConcurrencyLimitLayer::new(1));
    wfq_over_circuit_breaker_over_concurrency_limit: WaitsInCall, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(CircuitBreakerLayer::default())
        .layer(ConcurrencyLimitLayer::new(1));
    keyed_circuit_breaker: IsServed, KeyedCircuitBreakerLayer::new(
        CircuitBreakerConfig::default(), |request: &u32| Some(*request));
    keyed_concurrency_limit: WaitsInCall, KeyedConcurrencyLimitLayer::new(1, key);
    keyed_concurrency_limit_with_max_wait: WaitsInCall,
        KeyedConcurrencyLimitLayer::new(1, key).max_wait(Duration::from_secs(3600));
    keyed_concurrency_limit_without_queue: IsRefused,
        KeyedConcurrencyLimitLayer::new(1, key).max_waiting(0);
    keyed_concurrency_limit_without_queue_per_key: IsRefused,
        KeyedConcurrencyLimitLayer::new(1, key).max_waiting_per_key(0);
    keyed_concurrency_limit_over_concurrency_limit: WaitsInCall, ServiceBuilder::new()
        .layer(KeyedConcurrencyLimitLayer::new(2, key))
        .layer(ConcurrencyLimitLayer::new(1));
    keyed_concurrency_limit_over_towers_concurrency_limit: WaitsInCall, ServiceBuilder::new()
        .layer(KeyedConcurrencyLimitLayer::new(2, key))
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1));
    keyed_concurrency_limit_with_deadlines: WaitsInCall, KeyedConcurrencyLimitLayer::new(1, key)
        .deadline(|_: &u32| Some(Deadline::within(Duration::from_secs(3600))));
    keyed_rate_limit_with_deadlines: IsServed,
        KeyedRateLimitLayer::new(Rate::per_second(1_000_000_000), key)
            .deadline(|_: &u32| Some(Deadline::within(Duration::from_secs(3600))));
    deadline: IsServed, numbers(DeadlineLayer::new().max_timeout(Duration::from_secs(3600)));
    deadline_over_concurrency_limit: Waits, numbers(ServiceBuilder::new()
        .layer(DeadlineLayer::new().max_timeout(Duration::from_secs(3600)))
        .layer(ConcurrencyLimitLayer::new(1)));
    saturation: IsServed, saturation(|| (0, 1));
    saturation_over_concurrency_limit: Waits, ServiceBuilder::new()
        .layer(saturation(|| (0, 1)))
        .layer(ConcurrencyLimitLayer::new(1));
    load_shed_over_saturation: IsServedOrShed, ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(saturation(|| (0, 1)));
    wfq_over_saturation_over_concurrency_limit: WaitsInCall, ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(saturation(|| (0, 1)))
        .layer(ConcurrencyLimitLayer::new(1));
    concurrency_limit_over_load_shed: IsRefused, ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(100))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1));
}

/// For one request at a time.
fn codel() -> CoDelLayer<fn(&u32) -> Option<SubmittedAt>> {
    let config = CoDelConfig::default().min_concurrency(1).max_concurrency(1);
    CoDelLayer::new(config).submitted_at(|_: &u32| None)
}

/// For so many requests at a time.
fn edge(limit: usize, config: WfqConfig) -> impl Layer<Probe, Service: Subject> {
    let edge = tower_backpressure::edge().wfq(config);
    numbers(edge.limits(1, limit, limit).gates())
}

type Number = fn(u32) -> Request<u32>;
type Numbers<S> = MapRequest<MapResponse<S, fn(Response<u32>) -> u32>, Number>;
type OfNumbers = MapResponse<MapRequest<Probe, fn(Request<u32>) -> u32>, fn(u32) -> Response<u32>>;

/// A layer for HTTP, around a probe that has only numbers.
fn numbers<L>(layer: L) -> impl Layer<Probe, Service = Numbers<L::Service>>
where
    L: Layer<OfNumbers>,
{
    layer_fn(move |probe: Probe| {
        let inner = MapRequest::new(probe, Request::into_body as fn(_) -> _);
        let inner = MapResponse::new(inner, Response::new as fn(_) -> _);
        let answers = MapResponse::new(layer.layer(inner), Response::into_body as fn(_) -> _);
        MapRequest::new(answers, Request::new as Number)
    })
}

fn key(request: &u32) -> Option<u32> {
    Some(*request)
}

fn saturation(probe: impl Queue) -> SaturationLayer<fn(&u32) -> Work> {
    let saturation = SaturationLayer::new().probe("queue", probe);
    saturation
        .sample_every(Duration::ZERO)
        .classify(|_: &u32| Work::New)
}

fn tenant(request: &u32) -> Option<String> {
    Some(request.to_string())
}

/// A request that was served takes nothing with it: the next one is served too.
#[track_caller]
fn assert_free(service: &impl Subject, probe: &Probe) {
    for _ in 0..3 {
        assert_eq!(support::finish(support::request(service)).unwrap(), 7);
    }
    assert_eq!(probe.live(), 0);
}

/// Runs inside a runtime, which timers need, but polls by hand.
fn with_runtime<T>(test: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _entered = runtime.enter();
    test()
}

/// A stack around a fresh probe.
fn stack<L: Layer<Probe>>(layer: &L) -> (L::Service, Probe) {
    let probe = Probe::new();
    (layer.layer(probe.clone()), probe)
}
