//! What one node decides, over paused time, with a server that can be told to fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::time::{Instant, advance, sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_backpressure::{
    BoxError, ConfigError, Fleet, LoadShedLayer, Overloaded, Rate, Reason,
    config::{FleetConfig, KeyedRateLimitConfig, RateLimitConfig},
    fleet::{Fallback, Memory, Mode, Run, Script, Store},
};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A server that answers, or fails in some way.
#[derive(Clone, Default)]
pub(crate) struct Flaky {
    memory: Memory,
    does: Arc<AtomicU8>,
    calls: Arc<AtomicU64>,
    /// How long an answer takes, in milliseconds.
    takes: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
pub(crate) enum Does {
    Answer,
    Hang,
    Fail,
    TalkNonsense,
}

impl Flaky {
    pub(crate) fn now(&self, does: Does) {
        self.does.store(does as u8, Relaxed);
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Somebody else takes tokens.
    async fn drain(&self, rate: Rate, tokens: u64) {
        let other = Fleet::new(self.memory.clone(), 2)
            .rate_limit("limit", rate)
            .handle();
        other.acquire(tokens).await.unwrap();
    }
}

impl Store for Flaky {
    fn run<'a>(&'a self, script: Script, key: &'a [u8], args: &'a [i64]) -> Run<'a> {
        self.calls.fetch_add(1, Relaxed);
        Box::pin(async move {
            sleep(MS * self.takes.load(Relaxed) as u32).await;
            match self.does.load(Relaxed) {
                does if does == Does::Hang as u8 => std::future::pending().await,
                does if does == Does::Fail as u8 => Err("READONLY".into()),
                does if does == Does::TalkNonsense as u8 => Ok(vec![7, i64::MIN]),
                _ => self.memory.run(script, key, args).await,
            }
        })
    }
}

fn flaky() -> (Flaky, Fleet) {
    let store = Flaky::default();
    let fleet = Fleet::new(store.clone(), 2);
    (store, fleet)
}

fn refused(error: &BoxError) -> &Overloaded {
    Overloaded::find(error.as_ref()).expect("it is a rejection")
}

async fn served(_: ()) -> Result<(), BoxError> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_burst_passes_after_one_answer_and_the_rest_at_the_rate() {
    let (store, fleet) = flaky();
    store.takes.store(1, Relaxed);
    let limit = fleet.rate_limit("limit", Rate::per_second(100).burst(10));
    let start = Instant::now();
    let requests: Vec<_> = (0..30)
        .map(|_| {
            let mut service = limit.layer(service_fn(served));
            tokio::spawn(async move {
                service
                    .ready()
                    .await?
                    .call(())
                    .await
                    .map(|()| start.elapsed())
            })
        })
        .collect();
    let mut times = Vec::new();
    for request in requests {
        times.push(request.await.unwrap().unwrap());
    }
    times.sort();
    assert!(times[9] <= 5 * MS, "{:?}", times[9]);
    for (i, time) in times.iter().enumerate().skip(10) {
        let due = MS * 10 * (i as u32 - 9);
        assert!(*time >= due && *time <= due + 5 * MS, "{i}: {time:?}");
    }
    assert!(store.calls() < 10, "{}", store.calls());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_has_the_exact_hint_and_is_remembered_without_calls() {
    let (store, fleet) = flaky();
    let rate = Rate::per_second(1).burst(1);
    store.drain(rate, 1).await;
    let limit = fleet.rate_limit("limit", rate).max_wait(100 * MS);
    let mut service = limit.layer(service_fn(served));
    let mut ask = async || service.ready().await.unwrap().call(()).await.unwrap_err();
    assert_eq!(refused(&ask().await).reason(), Reason::WaitTimeout);
    let calls = store.calls();
    for passed in [0, 200, 300] {
        advance(MS * passed).await;
        let error = ask().await;
        let refused = refused(&error);
        assert_eq!(
            (refused.layer(), refused.reason()),
            ("limit", Reason::WaitTimeout)
        );
        assert!(refused.is_exact());
    }
    assert!(refused(&ask().await).retry_after() <= 500 * MS);
    assert_eq!(store.calls(), calls, "it was told already");
    advance(500 * MS).await;
    service.ready().await.unwrap().call(()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_a_request_waits_no_longer_than_the_timeout_and_then_for_its_share() {
    let (store, fleet) = flaky();
    store.now(Does::Hang);
    let limit = fleet
        .rate_limit("limit", Rate::per_second(1000))
        .max_wait(80 * MS);
    let start = Instant::now();
    limit.handle().acquire(1).await.unwrap(); // half of the rate is its share: 2 ms
    assert!(
        (50 * MS..=55 * MS).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    let mut admitted = 0;
    for _ in 0..1000 {
        sleep(MS).await;
        admitted += u64::from(limit.handle().try_acquire(1).is_ok());
    }
    assert!((490..=502).contains(&admitted), "{admitted}");
    let snapshot = fleet.snapshot();
    assert_eq!((snapshot.mode, snapshot.mode_changes), (Mode::Fallback, 1));
    assert!(store.calls() <= 5, "no storm: {}", store.calls());
    assert!(snapshot.fallback_time > 700 * MS && snapshot.failed >= 3);
}

#[tokio::test(start_paused = true)]
async fn what_was_spent_without_the_server_is_paid_for_when_it_is_back() {
    let (store, fleet) = flaky();
    let rate = Rate::per_second(100).burst(100);
    let handle = fleet
        .rate_limit("limit", rate)
        .max_wait(Duration::ZERO)
        .handle();
    store.now(Does::Fail);
    let mut spent = 0;
    for _ in 0..5000 {
        sleep(MS).await;
        spent += u64::from(handle.try_acquire(1).is_ok());
    }
    assert!(
        (240..=250).contains(&spent),
        "{spent}: its share of the rate, and no burst"
    );
    store.now(Does::Answer);
    let mut after = 0;
    while fleet.snapshot().mode == Mode::Fallback {
        sleep(MS).await;
        after += u64::from(handle.try_acquire(1).is_ok());
    }
    assert!(after <= 90, "it is back by itself");
    // The bucket was full. Half of it was this node's, and is paid for: others find the other half.
    let other = Fleet::new(store.memory.clone(), 2)
        .rate_limit("limit", rate)
        .handle();
    other.set_max_wait(Some(10 * MS));
    let mut found = 0;
    while other.acquire(1).await.is_ok() {
        found += 1;
    }
    assert!((40..=55).contains(&found), "{found}");
    assert_eq!(fleet.snapshot().mode_changes, 2);
}

#[tokio::test(start_paused = true)]
async fn a_closed_limit_refuses_and_an_open_one_lets_everything_pass() {
    let (store, fleet) = flaky();
    store.now(Does::TalkNonsense);
    let rate = Rate::per_second(10);
    let closed = fleet
        .clone()
        .fallback(Fallback::Closed)
        .rate_limit("closed", rate);
    let closed = closed.max_wait(MS).handle();
    let open = fleet
        .clone()
        .fallback(Fallback::Open)
        .rate_limit("open", rate)
        .handle();
    for _ in 0..1000 {
        let _ = (closed.try_acquire(1), open.try_acquire(1));
        sleep(MS).await;
    }
    for _ in 0..1000 {
        let refused = closed.try_acquire(1).unwrap_err();
        assert!(!refused.is_exact() && refused.retry_after() <= 1500 * MS);
        open.try_acquire(1).unwrap();
    }
    let error = closed.acquire(1).await.unwrap_err();
    assert_eq!(error.reason(), Reason::WaitTimeout);
}

#[tokio::test(start_paused = true)]
async fn one_late_answer_is_no_change_of_mode() {
    let (store, fleet) = flaky();
    let handle = fleet.rate_limit("limit", Rate::per_second(1000)).handle();
    handle.acquire(1).await.unwrap();
    store.now(Does::Hang);
    handle.acquire(1).await.unwrap();
    store.now(Does::Answer);
    for _ in 0..100 {
        handle.acquire(1).await.unwrap();
        sleep(MS).await;
    }
    let snapshot = fleet.snapshot();
    assert_eq!((snapshot.mode_changes, snapshot.failed), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_not_used_is_there_for_the_next() {
    let (store, fleet) = flaky();
    let rate = Rate::per_hour(1);
    let limit = fleet.rate_limit("limit", rate);
    let mut service = limit.layer(service_fn(served));
    service.ready().await.unwrap();
    drop(service);
    assert_eq!(limit.handle().snapshot().admitted, 0);
    limit.handle().try_acquire(1).unwrap();
    assert_eq!(store.calls(), 1);
    assert_eq!(limit.handle().snapshot().admitted, 1);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_nobody_wants_are_lost_a_second_after_they_were_due() {
    let (_, fleet) = flaky();
    let limit = fleet.rate_limit("limit", Rate::per_second(100));
    let handle = limit.handle();
    let mut all: Vec<_> = (0..10).map(|_| Box::pin(handle.acquire(1))).collect();
    for request in &mut all[..] {
        assert!(request.now_or_never().is_none());
    }
    drop(all.split_off(5));
    for request in all {
        request.await.unwrap();
    }
    sleep(2000 * MS).await;
    let before = handle.snapshot();
    assert_eq!((before.tokens, before.admitted), (0, 5));
    handle.acquire(1).await.unwrap();
    // What was left of the lease of ten, and the next one, of as many as were asked for lately.
    assert_eq!(handle.tokens_lost(), 15);
}

#[tokio::test(start_paused = true)]
async fn under_a_load_shed_nothing_waits_not_for_an_answer_either() {
    let (_, fleet) = flaky();
    let limit = fleet.rate_limit("limit", Rate::per_second(100));
    let mut service = LoadShedLayer::new().layer(limit.layer(service_fn(served)));
    let error = service.ready().await.unwrap().call(()).await.unwrap_err();
    assert_eq!(refused(&error).reason(), Reason::AtLimit);
    sleep(MS).await;
    service.ready().await.unwrap().call(()).await.unwrap(); // it has come meanwhile
}

#[tokio::test(start_paused = true)]
async fn more_than_the_burst_is_never_there_and_the_burst_is() {
    let (_, fleet) = flaky();
    let handle = fleet
        .rate_limit("limit", Rate::per_second(10).burst(40))
        .handle();
    let error = handle.acquire(41).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ExceedsBurst);
    let all = timeout(10_000 * MS, handle.acquire(40)).await;
    all.expect("it is there").unwrap();
    let start = Instant::now();
    let half = timeout(10_000 * MS, handle.acquire(20)).await;
    half.expect("it comes").unwrap();
    assert!(
        (1995 * MS..2250 * MS).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn without_a_runtime_nothing_panics() {
    let (_, fleet) = flaky();
    let handle = fleet.rate_limit("limit", Rate::per_second(10)).handle();
    assert!(handle.try_acquire(1).is_err());
    let keyed = fleet.keyed_rate_limit("keyed", Rate::per_second(10), |_: &()| Some(1u32));
    assert!(keyed.handle().try_acquire(&1u32).is_err());
    assert!(
        fleet
            .concurrency_limit("permits", 1)
            .handle()
            .try_acquire()
            .is_err()
    );
}

#[test]
fn nonsense_is_refused_by_name() {
    let (_, fleet) = flaky();
    let says =
        |error: ConfigError, text: &str| assert!(error.to_string().starts_with(text), "{error}");
    says(
        fleet.clone().prefix("a b").unwrap_err(),
        "prefix must be 1 to 64",
    );
    let rate = RateLimitConfig::new(Rate::per_second(1));
    says(
        fleet.rate_limit_from("{}", &rate).unwrap_err(),
        "name must be 1 to 64",
    );
    let mut keyed = KeyedRateLimitConfig::new(Rate::per_second(1));
    keyed.global = Some(Rate::per_second(1));
    let key = |_: &()| Some(1u32);
    says(
        fleet.keyed_rate_limit_from("a", &keyed, key).unwrap_err(),
        "global is not for a fleet",
    );
    says(
        FleetConfig::new(0).check().unwrap_err(),
        "nodes must be at least 1",
    );
    assert!(Fleet::redis("http://example.org", 1).is_err());
}
