//! What becomes of layers that are in use.

use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer,
    KeyedRateLimitLayer, Rate, RateLimitLayer, Reason, SaturationLayer, SubmittedAt, Vegas,
    WfqLayer, circuit_breaker::State, config::*, edge, saturation::Work,
};

use super::{
    config,
    support::{Behaviour, CountWakes, Probe, assert_refused, finish, now, poll, refusal, request},
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

type Pending = Pin<Box<dyn Future<Output = Result<u32, BoxError>> + Send>>;

/// A request, polled once.
fn send<S>(service: &S, key: u32) -> Pending
where
    S: Service<u32, Response = u32, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let mut sent: Pending = Box::pin(service.clone().oneshot(key));
    if let Poll::Ready(result) = poll(&mut sent) {
        return Box::pin(std::future::ready(result));
    }
    sent
}

/// A probe that answers nothing.
fn busy() -> Probe {
    let probe = Probe::new();
    probe.set(|script| script.future = Behaviour::Pends);
    probe
}

fn key(request: &u32) -> Option<String> {
    Some(format!("k{request}"))
}

/// Nothing that a snapshot shows has changed.
#[track_caller]
fn refused<S: PartialEq + Debug>(
    snapshot: impl Fn() -> S,
    field: &str,
    apply: impl FnOnce() -> Result<(), tower_backpressure::ConfigError>,
) {
    snapshot(); // which starts a new interval for the peak
    let before = snapshot();
    let error = apply().unwrap_err();
    assert_eq!(error.field(), field, "{error}");
    assert_eq!(snapshot(), before);
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_is_as_it_was_read_and_changes_with_those_who_wait() {
    let layer = ConcurrencyLimitLayer::from_config(&config("limit = 1\nmax_waiting = 1")).unwrap();
    let (probe, handle) = (busy(), layer.handle());
    let service = layer.layer(probe.clone());
    let _first = send(&service, 0);
    let mut second = send(&service, 0);
    assert_refused(send(&service, 0).await, Reason::QueueFull);

    // Wrong in one field, so no other changes either.
    let mut wrong = ConcurrencyLimitConfig::new(0);
    (wrong.max_waiting, wrong.max_wait) = (50, Some(MS));
    refused(|| handle.snapshot(), "limit", || handle.apply(&wrong));
    assert!(ConcurrencyLimitLayer::from_config(&wrong).is_err());
    assert_refused(send(&service, 0).await, Reason::QueueFull);

    let wider = config("limit = 2\nmax_waiting = 2\nmax_wait = '1s'");
    handle.apply(&wider).unwrap();
    assert!(poll(&mut second).is_pending());
    assert_eq!(probe.live(), 2, "who waited is let in");
    let third = send(&service, 0);
    let started = now();
    assert_refused(third.await, Reason::WaitTimeout);
    assert_eq!(started.elapsed(), SEC);
    // What is left out has its default again: the wait has no bound.
    handle.apply(&config("limit = 2")).unwrap();
    let mut fourth = send(&service, 0);
    advance(1000 * SEC).await;
    assert!(poll(&mut fourth).is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_rate_changes_without_a_fresh_burst() {
    let layer = RateLimitLayer::from_config(&config("rate = '1/s burst 2'\nmax_waiting = 1"));
    let (layer, probe) = (layer.as_ref().unwrap(), Probe::new());
    let (service, handle) = (layer.layer(probe.clone()), layer.handle());
    finish(request(&service)).unwrap();
    finish(request(&service)).unwrap();
    let waits = send(&service, 0);
    assert_refused(send(&service, 0).await, Reason::QueueFull);
    handle.apply(&config("rate = '10/s burst 2'")).unwrap();
    assert_eq!(handle.snapshot().rate, Rate::per_second(10).burst(2));
    assert_eq!(handle.snapshot().tokens, 0);
    let started = now();
    waits.await.unwrap();
    assert!(started.elapsed() <= 100 * MS, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_global_rate_comes_and_goes() {
    let without = config::<KeyedRateLimitConfig>("rate = '1/s'\nmax_wait = '1s'");
    let with =
        config::<KeyedRateLimitConfig>("rate = '1/s'\nmax_wait = '1s'\nglobal = '1/h burst 2'");
    let layer = KeyedRateLimitLayer::from_config(&without, key).unwrap();
    let (service, handle) = (layer.layer(Probe::new()), layer.handle());
    finish(send(&service, 1)).unwrap();
    let waits = send(&service, 1); // has taken its key's next token, and none of everybody's

    handle.apply(&with).unwrap();
    drop(waits); // gives back what it has taken, not more
    assert_eq!(handle.global().unwrap().snapshot().tokens, 2);
    finish(send(&service, 2)).unwrap();
    let waits = send(&service, 2);
    assert_eq!(handle.global().unwrap().snapshot().tokens, 0);
    assert_refused(send(&service, 3).await, Reason::AtLimit);

    handle.apply(&without).unwrap();
    assert!(handle.global().is_none());
    finish(send(&service, 3)).unwrap();
    drop(waits);
    handle.apply(&with).unwrap();
    assert_eq!(handle.global().unwrap().snapshot().tokens, 1, "given back");
    handle.apply(&with).unwrap();
    assert_eq!(
        handle.global().unwrap().snapshot().tokens,
        1,
        "no fresh burst"
    );
}

#[tokio::test(start_paused = true)]
async fn keys_have_the_limits_that_the_config_gives_them() {
    let layer = config::<KeyedConcurrencyLimitConfig>("limit = 1\nlimits = { k1 = 2 }");
    let layer = KeyedConcurrencyLimitLayer::from_config(&layer, key).unwrap();
    let (service, handle) = (layer.layer(busy()), layer.handle());
    let mut sent: Vec<_> = (0..9).map(|n| send(&service, n % 3)).collect();
    let running = |key: &str| handle.key(key).unwrap().in_flight;
    let all = || ["k0", "k1", "k2"].map(running);
    assert_eq!(all(), [1, 2, 1]);

    let mut wrong = KeyedConcurrencyLimitConfig::new(5);
    wrong.limits = [("k0".to_owned(), 3), ("k2".to_owned(), 0)].into();
    refused(
        || (handle.snapshot(), all()),
        "limits.k2",
        || handle.apply(&wrong),
    );
    sent.iter_mut()
        .for_each(|sent| assert!(poll(sent).is_pending()));
    assert_eq!(all(), [1, 2, 1]);

    handle
        .apply(&config("limit = 2\nlimits = { k2 = 3 }\nmax_wait = '1s'"))
        .unwrap();
    sent.iter_mut()
        .for_each(|sent| assert!(poll(sent).is_pending()));
    assert_eq!(all(), [2, 2, 3]);
    assert_eq!(
        ["k0", "k1", "k2"].map(|key| handle.key(key).unwrap().limit),
        [2, 2, 3]
    );
    drop(sent);
    assert!(
        handle.key("k1").is_none(),
        "it has no limit of its own to remember"
    );
    assert_eq!(handle.key("k2").unwrap().totals.enqueued, 3, "it has");
    // A limit that was given by hand is gone, and nothing is remembered for it.
    handle.set_limit_of("k9", 9).unwrap();
    handle.apply(&config("limit = 2")).unwrap();
    assert!(handle.key("k9").is_none() && handle.key("k2").is_none());
}

/// Completes so many requests, as many at once as may be.
fn learn(layer: &AdaptiveConcurrencyLayer, requests: usize) -> usize {
    let (probe, handle) = (Probe::new(), layer.handle());
    let mut service = layer.layer(probe);
    for _ in 0..requests {
        let limit = handle.snapshot().permits.limit;
        let held: Vec<_> = (1..limit).map(|_| handle.try_acquire().unwrap()).collect();
        assert!(poll(&mut boxed_ready(&mut service)).is_ready());
        finish(service.call(7)).unwrap();
        drop(held);
    }
    handle.snapshot().permits.limit
}

fn boxed_ready<S: Service<u32> + Send>(
    service: &mut S,
) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async { drop(service.ready().await) })
}

#[test]
fn an_adaptive_limit_keeps_what_it_has_learned_unless_its_law_or_bounds_change() {
    let base = "law = 'aimd'\nmin = 1\ninitial = 2\nmax = 10";
    let layer = AdaptiveConcurrencyLayer::from_config(&config(base)).unwrap();
    let handle = layer.handle();
    let limit = || handle.snapshot().permits.limit;
    assert_eq!(limit(), 2);
    assert_eq!(learn(&layer, 4), 6);
    let learned = handle.snapshot().learned;
    assert!(learned.moved.is_some());
    handle
        .apply(&config(&format!("{base}\nmax_waiting = 3")))
        .unwrap();
    handle.apply(&config(base)).unwrap();
    assert_eq!(
        (limit(), handle.snapshot().learned),
        (6, learned),
        "nothing is forgotten"
    );

    let mut wrong: AdaptiveConcurrencyConfig = config("law = 'vegas'\nmax = 3\nmax_waiting = 0");
    wrong.initial = Some(4);
    refused(|| handle.snapshot(), "initial", || handle.apply(&wrong));
    wrong = AdaptiveConcurrencyConfig::default();
    (wrong.pinned, wrong.max_waiting) = (Some(0), 0);
    refused(|| handle.snapshot(), "pinned", || handle.apply(&wrong));
    let held: Vec<_> = (0..limit())
        .map(|_| handle.try_acquire().unwrap())
        .collect();
    let mut waits = handle.acquire();
    assert!(poll(&mut waits).is_pending(), "as many may wait as before");
    drop((held, waits));

    handle
        .apply(&config("law = 'aimd'\nmin = 1\nmax = 4"))
        .unwrap();
    assert_eq!(limit(), 4, "held to the new bounds");
    assert_eq!(learn(&layer, 3), 4);
    handle
        .apply(&config("law = 'aimd'\nmin = 5\nmax = 40"))
        .unwrap();
    assert_eq!(limit(), 5);
    assert_eq!(learn(&layer, 3), 8);
    handle.apply(&config("law = 'vegas'\nmax = 40")).unwrap();
    assert_eq!(limit(), 8, "another law goes on from there");
    assert_eq!(learn(&layer, 3), 8, "and does not go by single requests");

    handle
        .apply(&config("law = 'vegas'\nmax = 40\npinned = 50"))
        .unwrap();
    assert_eq!((limit(), handle.snapshot().pinned), (50, true));
    handle.apply(&config("law = 'vegas'\nmax = 40")).unwrap();
    assert_eq!((limit(), handle.snapshot().pinned), (40, false));
    handle.pin(7).unwrap(); // by hand
    handle
        .apply(&config("law = 'aimd'\nmin = 1\nmax = 40"))
        .unwrap();
    assert_eq!((learn(&layer, 1), handle.snapshot().pinned), (8, false));
    // One that was made with a law of its own has the config's then.
    let own = AdaptiveConcurrencyLayer::new(Vegas::default());
    own.handle().apply(&config(base)).unwrap();
    assert_eq!(own.handle().snapshot().permits.limit, 10);
    assert_eq!(learn(&own, 1), 10);
}

/// No thread ever sees a limit that neither config allows.
#[test]
fn bounds_change_together() {
    let [low, high] = [
        "law = 'aimd'\nmin = 1\nmax = 2",
        "law = 'aimd'\nmin = 10\nmax = 20",
    ];
    let [low, high]: [AdaptiveConcurrencyConfig; 2] = [low, high].map(config);
    let layer = AdaptiveConcurrencyLayer::from_config(&low).unwrap();
    let (handle, done) = (layer.handle(), Arc::new(()));
    let applies = std::thread::spawn({
        let (handle, done) = (handle.clone(), Arc::clone(&done));
        move || {
            for n in 0..4000 {
                handle.apply(if n % 2 == 0 { &high } else { &low }).unwrap();
            }
            drop(done);
        }
    });
    let service = layer.layer(Probe::new());
    while Arc::strong_count(&done) > 1 {
        finish(request(&service)).unwrap();
        let limit = handle.snapshot().permits.limit;
        assert!(
            (1..=2).contains(&limit) || (10..=20).contains(&limit),
            "{limit}"
        );
    }
    applies.join().unwrap();
    assert_eq!(handle.snapshot().permits.in_flight, 0);
}

type Aged = CoDelLayer<fn(&u32) -> Option<SubmittedAt>>;

/// Requests say how old they are, in milliseconds.
fn codel(text: &str) -> Aged {
    CoDelLayer::new(config(text)).submitted_at(|age: &u32| SubmittedAt::ago(*age * MS))
}

#[tokio::test(start_paused = true)]
async fn an_admission_by_age_changes_all_at_once() {
    let layer = codel("min_concurrency = 1\nmax_concurrency = 16\nmax_sojourn = '250ms'");
    let (service, handle) = (layer.layer(busy()), layer.handle());
    let limit = || handle.snapshot().limit;
    assert_eq!(limit(), 16);
    assert_refused(send(&service, 300).await, Reason::TooOld);

    let wrong = CoDelConfig::default().target(MS).max_concurrency(2);
    let wrong = wrong.max_sojourn(Duration::ZERO);
    refused(|| handle.snapshot(), "max_sojourn", || handle.apply(&wrong));
    assert_refused(send(&service, 300).await, Reason::TooOld);

    // Not narrow, and not narrow with the new bounds.
    handle
        .apply(&config("min_concurrency = 1\nmax_concurrency = 20"))
        .unwrap();
    assert_eq!(limit(), 20);
    let held: Vec<_> = (0..8).map(|_| send(&service, 300)).collect(); // no bound on their age now
    assert_eq!(handle.snapshot().in_flight, 8);

    // Requests that are old and were not kept waiting here narrow it.
    for _ in 0..120 {
        advance(50 * MS).await;
        for _ in 0..3 {
            drop(send(&service, 150));
        }
    }
    let narrowed = handle.snapshot();
    assert!(
        narrowed.narrowings > 0 && narrowed.limit < 20,
        "{narrowed:?}"
    );
    let same = config("min_concurrency = 1\nmax_concurrency = 20");
    handle.apply(&same).unwrap();
    assert_eq!(limit(), narrowed.limit, "what was narrowed stays");
    handle
        .apply(&config("min_concurrency = 1\nmax_concurrency = 30"))
        .unwrap();
    assert_eq!(limit(), narrowed.limit);
    handle
        .apply(&config("min_concurrency = 1\nmax_concurrency = 2"))
        .unwrap();
    assert_eq!(limit(), 2);
    assert_refused(send(&service, 0).await, Reason::AtLimit);
    drop(held);
    handle
        .apply(&config("min_concurrency = 40\nmax_concurrency = 50"))
        .unwrap();
    assert_eq!(limit(), 50, "at its ceiling before, so at its ceiling now");
    // It goes on by the new settings.
    for _ in 0..1000 {
        advance(10 * MS).await;
        finish(send(&layer.layer(Probe::new()), 0)).unwrap();
    }
    assert_eq!(limit(), 50);
}

#[tokio::test(start_paused = true)]
async fn tenants_have_the_weights_that_the_config_gives_them() {
    let text = "weights = { k1 = 5 }\nmax_in_flight_per_tenant = 1\nmax_waiting_per_tenant = 1";
    let layer = WfqLayer::new(config(text), |request: &u32| key(request));
    let (probe, handle) = (busy(), layer.handle());
    let service = layer.layer(probe.clone());
    let mut sent: Vec<_> = (0..4).map(|n| send(&service, n % 2)).collect();
    let weight = |tenant: &str| handle.tenant(tenant).unwrap().weight;
    assert_eq!((probe.live(), weight("k0"), weight("k1")), (2, 1, 5));
    assert_refused(send(&service, 0).await, Reason::QueueFull);

    let (wakes, waker) = CountWakes::new();
    let mut cx = Context::from_waker(&waker);
    for sent in &mut sent {
        assert!(sent.as_mut().poll(&mut cx).is_pending());
    }
    handle.set_weight("k0", 3).unwrap(); // by hand, until
    handle
        .apply(&config(
            "default_weight = 2\nweights = { k1 = 4 }\nmax_in_flight_per_tenant = 2",
        ))
        .unwrap();
    assert!(wakes.count() > 0, "who may begin now is told so");
    assert_eq!((weight("k0"), weight("k1")), (2, 4));
    for _ in 0..2 {
        sent.iter_mut()
            .for_each(|sent| assert!(poll(sent).is_pending()));
    }
    assert_eq!(probe.live(), 4, "those who waited begin");
    sent.extend((0..4).map(|n| send(&service, n % 2)));
    assert_eq!(
        handle.snapshot().waiting,
        4,
        "as many may wait as by default"
    );
    handle.apply(&config("default_weight = 2")).unwrap();
    assert_eq!((weight("k0"), weight("k1")), (2, 2));
    drop(sent);
}

#[tokio::test(start_paused = true)]
async fn fewer_tenants_are_remembered_as_others_come() {
    let layer = WfqLayer::new(config("max_tenants = 20"), |request: &u32| key(request));
    let (service, handle) = (layer.layer(Probe::new()), layer.handle());
    let come =
        |tenants: std::ops::Range<u32>| tenants.for_each(|n| drop(finish(send(&service, n))));
    come(0..20);
    handle.apply(&config("max_tenants = 5")).unwrap();
    assert_eq!(handle.snapshot().tenants, 20);
    advance(60 * SEC).await;
    come(100..130);
    assert_eq!(handle.snapshot().tenants, 5);
    handle.apply(&config("max_tenants = 8")).unwrap();
    come(200..230);
    assert_eq!(handle.snapshot().tenants, 8);
}

/// A breaker whose service fails or does not, as it is asked to.
struct Breaker {
    layer: CircuitBreakerLayer,
    probe: Probe,
}

impl Breaker {
    fn new(text: &str) -> Self {
        let layer = CircuitBreakerLayer::new(config(text));
        Self {
            layer,
            probe: Probe::new(),
        }
    }

    fn run(&self, works: bool, times: usize) -> State {
        let future = if works {
            Behaviour::Works
        } else {
            Behaviour::Fails
        };
        self.probe.set(|script| script.future = future);
        for _ in 0..times {
            drop(finish(request(&self.layer.layer(self.probe.clone()))));
        }
        self.layer.handle().snapshot().state
    }

    fn apply(&self, text: &str) {
        self.layer.handle().apply(&config(text)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_is_judged_by_its_new_settings_from_the_next_result_on() {
    let breaker = Breaker::new("failures = 5\ncooldown = '10m'");
    let handle = breaker.layer.handle();
    assert_eq!(breaker.run(false, 3), State::Closed);
    let wrong = CircuitBreakerConfig::default()
        .failures(1)
        .probe_lease(Duration::ZERO);
    refused(|| handle.snapshot(), "probe_lease", || handle.apply(&wrong));
    breaker.apply("failures = 4\ncooldown = '10m'");
    assert_eq!(
        handle.snapshot().failures_in_a_row,
        3,
        "what was counted stays"
    );
    assert_eq!(breaker.run(false, 1), State::Open);

    // It is not open for longer than the new cooldown.
    assert_eq!(handle.snapshot().retry_after, Some(600 * SEC));
    breaker.apply("cooldown = '20m'");
    assert_eq!(handle.snapshot().retry_after, Some(600 * SEC));
    breaker.apply("cooldown = '5s'\nsuccesses = 3");
    assert_eq!(handle.snapshot().retry_after, Some(5 * SEC));
    let refused = refusal(finish(request(&breaker.layer.layer(breaker.probe.clone()))));
    assert_eq!(refused.retry_after(), 5 * SEC);
    advance(5 * SEC).await;
    assert_eq!(breaker.run(true, 2), State::HalfOpen);
    breaker.apply("successes = 1");
    assert_eq!(breaker.run(true, 1), State::Closed);

    // By hand it is open without an end, and clients are told to come back after a cooldown.
    handle.force_open();
    for cooldown in [7, 3] {
        breaker.apply(&format!("cooldown = '{cooldown}s'"));
        let refused = refusal(finish(request(&breaker.layer.layer(breaker.probe.clone()))));
        assert_eq!(refused.retry_after(), cooldown * SEC);
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_changes_from_failures_in_a_row_to_their_share_and_back() {
    const SHARE: &str = "failure_rate = 0.5\nmin_calls = 10\nwindow = ";
    let breaker = Breaker::new("failures = 3");
    let rate = || breaker.layer.handle().snapshot().failure_rate;
    assert_eq!((breaker.run(false, 2), rate()), (State::Closed, None));
    breaker.apply(&format!("{SHARE}'10s'"));
    assert_eq!(rate(), None);
    assert_eq!(breaker.run(true, 6), State::Closed);
    assert_eq!(breaker.run(false, 3), State::Closed);
    assert_eq!(rate(), Some(3.0 / 9.0));
    breaker.apply(&format!("{SHARE}'10s'\ncooldown = '1s'"));
    assert_eq!(rate(), Some(3.0 / 9.0), "the window is the same");
    assert_eq!(breaker.run(true, 10), State::Closed);
    assert_eq!(rate(), Some(3.0 / 19.0));
    breaker.apply(&format!("{SHARE}'1m'"));
    assert_eq!(rate(), None, "another window starts empty");
    assert_eq!(breaker.run(true, 5), State::Closed);
    advance(30 * SEC).await;
    assert_eq!(breaker.run(false, 4), State::Closed);
    assert_eq!(rate(), Some(4.0 / 9.0), "over the new length");

    breaker.apply("failures = 6");
    assert_eq!(rate(), None);
    assert_eq!(breaker.run(false, 1), State::Closed, "five in a row by now");
    assert_eq!(breaker.run(true, 1), State::Closed, "and none");
    assert_eq!(breaker.run(false, 5), State::Closed);
    assert_eq!(breaker.run(false, 1), State::Open);
}

#[tokio::test(start_paused = true)]
async fn circuits_of_keys_change_together() {
    let layer = config::<KeyedCircuitBreakerConfig>("failures = 2\nmax_keys = 2\ncooldown = '1h'");
    let layer = KeyedCircuitBreakerLayer::from_config(&layer, key).unwrap();
    let handle = layer.handle();
    let fails = |n: u32| async move { if n < 10 { Err("broken") } else { Ok(n) } };
    let service = layer.layer(service_fn(fails));
    let run = |n: u32| drop(finish(Box::pin(service.clone().oneshot(n))));
    [0, 0, 1, 2, 2].into_iter().for_each(run);
    assert_eq!(
        ["k0", "k1", "k2"].map(|key| handle.state(key)),
        [State::Open, State::Closed, State::Closed]
    );
    assert_eq!(handle.snapshot().untracked, 2);

    let mut wrong = KeyedCircuitBreakerConfig::default();
    wrong.circuit = wrong.circuit.successes(0);
    refused(|| handle.snapshot(), "successes", || handle.apply(&wrong));
    handle
        .apply(&config("failures = 3\nmax_keys = 3\ncooldown = '1s'"))
        .unwrap();
    [1, 2, 2].into_iter().for_each(run);
    assert_eq!(
        handle.state("k1"),
        State::Closed,
        "two failures are not enough any more"
    );
    assert_eq!(handle.snapshot().untracked, 2, "there is room for a third");
    advance(SEC).await;
    run(0); // probes, after a second and not an hour
    assert_eq!(handle.snapshot().probes, 1);
    handle
        .apply(&config(
            "failure_rate = 0.5\nwindow = '10s'\nmin_calls = 4\nmax_keys = 9",
        ))
        .unwrap();
    [20, 20, 20, 3].into_iter().for_each(run);
    assert_eq!(
        handle.snapshot().tracked,
        5,
        "successes count, so they are remembered"
    );
    [3, 3, 3].into_iter().for_each(run);
    assert_eq!(handle.state("k3"), State::Open);
}

#[tokio::test(start_paused = true)]
async fn levels_begin_elsewhere() {
    let depth = Arc::new(AtomicUsize::new(5));
    let layer =
        SaturationLayer::from_config(&config("warning = 0.1\ncritical = 0.2\noverflow = 0.9"));
    let layer = layer.unwrap().probe("queue", {
        let depth = Arc::clone(&depth);
        move || (depth.load(Relaxed), 10)
    });
    let handle = layer.handle();
    handle.check(Work::New).unwrap_err();
    let mut wrong: SaturationConfig = config("critical = 0.8\nsample_every = '1h'");
    wrong.thresholds = wrong.thresholds.hysteresis(-1.0);
    refused(|| handle.snapshot(), "hysteresis", || handle.apply(&wrong));
    handle.check(Work::New).unwrap_err();
    handle.apply(&config("sample_every = '1h'")).unwrap();
    handle.check(Work::New).unwrap();
    depth.store(10, Relaxed);
    advance(3599 * SEC).await;
    handle.check(Work::New).unwrap(); // the last look is still good
    advance(SEC).await;
    handle.check(Work::New).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn the_whole_stack_changes_or_nothing() {
    let text =
        "wfq.weights.gold = 10\ncodel.max_concurrency = 64\nadaptive = { initial = 3, max = 8 }";
    let stack = edge().configured(&config(text)).unwrap();
    let handle = stack.handle();
    let snapshot = || (handle.snapshot(), handle.tenants());
    assert_eq!(handle.snapshot().permits.limit, 3, "where it begins");
    assert_eq!(handle.snapshot().age.limit, 64);
    let served = stack.layer(service_fn(|_: Request<String>| async {
        Ok::<_, BoxError>(Response::new(String::new()))
    }));
    assert_eq!(
        served
            .oneshot(Request::new(String::new()))
            .await
            .unwrap()
            .status(),
        200
    );

    let mut wrong: EdgeConfig =
        config("wfq.default_weight = 5\ncodel.max_concurrency = 32\nadaptive.max = 4");
    wrong.adaptive.min = Some(5);
    refused(snapshot, "adaptive.min", || handle.apply(&wrong));
    let error = edge().configured(&wrong).unwrap_err();
    assert_eq!(
        error.to_string(),
        "adaptive.min must be at least 1 and at most max (4), not 5"
    );
    wrong.adaptive.min = None;
    wrong.codel = wrong.codel.target(Duration::ZERO);
    refused(snapshot, "codel.target", || handle.apply(&wrong));

    handle
        .apply(&config(
            "wfq.default_weight = 5\ncodel.max_concurrency = 32\nadaptive.max = 2",
        ))
        .unwrap();
    assert_eq!(handle.snapshot().permits.limit, 2);
    assert_eq!(handle.snapshot().age.limit, 32);
    assert!(handle.tenants().iter().all(|tenant| tenant.weight == 5));
}

#[cfg(feature = "retry")]
#[tokio::test(start_paused = true)]
async fn retries_are_as_the_config_has_them() {
    use tower::retry::RetryLayer;
    use tower_backpressure::RetryPolicy;

    let text = "backoff = { kind = 'fixed', base = '1s' }\njitter = false\nmax_retries = 2\nbudget.burst = 50";
    let policy = RetryPolicy::from_config(&config(text)).unwrap();
    let handle = policy.handle();
    let server = service_fn(|_: Request<String>| async {
        Ok::<_, BoxError>(Response::builder().status(503).body(())?)
    });
    let client = RetryLayer::new(policy).layer(server);
    let run = async || {
        let started = now();
        let request = Request::get("/").body(String::new()).unwrap();
        client.clone().oneshot(request).await.unwrap();
        started.elapsed()
    };
    assert_eq!(run().await, 2 * SEC);
    assert_eq!(handle.snapshot().budget, 50 - 2 + 2, "and time brings some");
    let text = "backoff = { kind = 'linear', base = '1s', increment = '2s' }\njitter = false\nbudget = { per_second = 0, burst = 10 }";
    handle.apply(&config(text)).unwrap();
    assert_eq!(run().await, (1 + 3 + 5) * SEC);
    assert_eq!(handle.snapshot().budget, 10 - 3);
    handle.apply(&config("max_elapsed = '1ms'")).unwrap();
    assert_eq!(run().await, Duration::ZERO);
    assert_eq!(handle.snapshot().too_late, 1);
    let budget = handle.snapshot().budget;
    assert!(budget < 20, "no fresh burst of 100, but {budget}");
}
