//! What is particular to retries: which requests are sent again, when, and how often, on paused time.

use crate::support;

use std::{
    future::{Ready, ready},
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use tokio::{task::yield_now, time::Instant};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    retry::{Policy, Retry, RetryLayer},
};
use tower_backpressure::{
    ByStatus, CircuitBreakerConfig, CircuitBreakerLayer, ConcurrencyLimitLayer, Deadline,
    LoadShedLayer, OverloadResponseLayer, Overloaded, Rate, RateLimitLayer, RetryPolicy,
    retry::{
        Backoff, ByAnswer, Idempotent, Judge, MAX_DELAY, Replay, ReplayBody, RetryBudget, Verdict,
    },
};

const SEC: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const DAY: u64 = 86_400;

type Answer = Result<Response<()>, BoxError>;

/// Answers as the script says, by the number of the call; remembers when it was called, and with what.
#[derive(Clone)]
struct Server {
    script: Arc<dyn Fn(usize) -> Answer + Send + Sync>,
    calls: Arc<Mutex<Vec<(Instant, http::request::Parts)>>>,
}

impl Server {
    fn new(script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            calls: Arc::default(),
        }
    }

    /// The same each time.
    fn always(status: u16, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self::new(move |_| answer(status, headers))
    }

    /// Once, and from then on 200.
    fn once(status: u16, headers: &[(&'static str, &str)]) -> Self {
        let headers = headers
            .iter()
            .map(|(name, value)| (*name, value.to_string()));
        let headers: Vec<_> = headers.collect();
        Self::new(move |call| match call {
            0 => {
                let headers = headers.iter().map(|(name, value)| (*name, value.as_str()));
                answer(status, &headers.collect::<Vec<_>>())
            }
            _ => answer(200, &[]),
        })
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// The time from each call to the next, in seconds.
    fn delays(&self) -> Vec<f64> {
        let calls = self.calls.lock().unwrap();
        let pairs = calls.windows(2);
        pairs
            .map(|pair| (pair[1].0 - pair[0].0).as_secs_f64())
            .collect()
    }
}

impl<B> Service<Request<B>> for Server {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = Ready<Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut calls = self.calls.lock().unwrap();
        let answer = (self.script)(calls.len());
        calls.push((support::now(), request.into_parts().0));
        ready(answer)
    }
}

fn answer(status: u16, headers: &[(&'static str, &str)]) -> Answer {
    let response = Response::builder().status(status);
    let response = headers.iter().fold(response, |response, (name, value)| {
        response.header(*name, *value)
    });
    Ok(response.body(())?)
}

/// Ten seconds each time, without chance, and as often as it takes.
fn policy() -> RetryPolicy {
    exact(Backoff::fixed(10 * SEC)).max_retries(20)
}

fn exact(backoff: Backoff) -> RetryPolicy {
    let policy = RetryPolicy::new(backoff).jitter(false);
    policy.max_elapsed(Duration::MAX)
}

fn get() -> Request<()> {
    Request::new(())
}

fn post() -> Request<()> {
    Request::post("/").body(()).unwrap()
}

async fn send<J, P>(policy: &RetryPolicy<J, P>, server: &Server, request: Request<()>) -> Answer
where
    RetryPolicy<J, P>: Policy<Request<()>, Response<()>, BoxError> + Clone,
{
    let client = Retry::new(policy.clone(), server.clone());
    client.oneshot(request).await
}

/// On a service that has been called before, perhaps.
async fn call<S: Service<Request<()>>>(
    client: &mut S,
    request: Request<()>,
) -> Result<S::Response, S::Error> {
    client.ready().await?.call(request).await
}

/// The delay after an answer.
async fn delay_after(status: u16, headers: &[(&'static str, &str)]) -> Option<f64> {
    let server = Server::once(status, headers);
    send(&policy(), &server, get()).await.unwrap();
    server.delays().first().copied()
}

#[tokio::test(start_paused = true)]
async fn delays_are_as_the_backoff_has_them() {
    for (backoff, delays) in [
        (
            Backoff::exponential(10 * SEC, 300 * SEC),
            [10., 20., 40., 80., 160., 300., 300.].as_slice(),
        ),
        (
            Backoff::linear(10 * SEC, 30 * SEC, 300 * SEC),
            &[
                10., 40., 70., 100., 130., 160., 190., 220., 250., 280., 300., 300.,
            ],
        ),
        (Backoff::fixed(10 * SEC), &[10., 10., 10.]),
    ] {
        let server = Server::always(500, &[]);
        let policy = exact(backoff).max_retries(delays.len() as u32);
        let response = send(&policy, &server, get()).await.unwrap();
        assert_eq!(response.status(), 500);
        assert_eq!(server.delays(), delays);
        assert_eq!(policy.handle().snapshot().exhausted, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn up_to_half_of_a_delay_is_added_at_random() {
    let server = Server::always(503, &[("retry-after", "10")]);
    let policy = policy().jitter(true).max_retries(50);
    send(&policy, &server, get()).await.unwrap();
    let delays = server.delays();
    assert_eq!(delays.len(), 50);
    assert!(delays.iter().all(|delay| (10.0..=15.001).contains(delay)));
    let mean = delays.iter().sum::<f64>() / 50.0;
    assert!((11.5..13.5).contains(&mean), "{delays:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_server_asks_for_goes_before_the_backoff() {
    for status in [429, 503] {
        assert_eq!(delay_after(status, &[]).await, Some(10.));
        for (value, delay) in [
            ("1", 1.),
            ("120", 120.),
            ("0", 10.), // nobody can mean that
            ("soon", 10.),
            ("-5", 10.),
        ] {
            let headers = [("retry-after", value)];
            assert_eq!(delay_after(status, &headers).await, Some(delay), "{value}");
        }
    }
    let headers = [("retry-after", "1")];
    assert_eq!(delay_after(500, &headers).await, Some(10.));
    assert_eq!(delay_after(504, &headers).await, Some(10.));
}

#[tokio::test(start_paused = true)]
async fn dates_are_counted_from_the_servers_own() {
    let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    for until in [
        "Sun, 06 Nov 1994 08:50:42 GMT",
        "Sunday, 06-Nov-94 08:50:42 GMT",
        "Sun Nov  6 08:50:42 1994",
    ] {
        let delay = delay_after(503, &[("retry-after", until), date]).await;
        assert_eq!(delay, Some(65.), "{until}");
    }
    let passed = ("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT");
    assert_eq!(delay_after(503, &[passed, date]).await, Some(10.));
}

/// Without a date of the server's, by the clock on the wall, which cannot be paused.
#[tokio::test(start_paused = true)]
async fn dates_without_one_are_counted_from_now() {
    #[allow(clippy::disallowed_methods, reason = "a server looks at its own clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // The time of the day tomorrow at which today ends, and so 0 to 24 hours from now.
    let midnight = (now.as_secs() / DAY + 1) * DAY;
    let date = imf_fixdate(midnight);
    let delay = delay_after(503, &[("retry-after", &date)]).await.unwrap();
    let expected = midnight as f64 - now.as_secs_f64();
    // Around midnight itself the date may have passed, and the backoff counts.
    assert!((delay - expected).abs() < 60., "{date}: {delay} {expected}");
}

/// Of a midnight, by counting days.
fn imf_fixdate(midnight: u64) -> String {
    let mut days = midnight / DAY;
    let leap = |year: u64| u64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
    let mut year = 1970;
    while days >= 365 + leap(year) {
        days -= 365 + leap(year);
        year += 1;
    }
    let months = [
        ("Jan", 31),
        ("Feb", 28 + leap(year)),
        ("Mar", 31),
        ("Apr", 30),
        ("May", 31),
        ("Jun", 30),
        ("Jul", 31),
        ("Aug", 31),
        ("Sep", 30),
        ("Oct", 31),
        ("Nov", 30),
        ("Dec", 31),
    ];
    let mut months = months.into_iter();
    let month = loop {
        let (name, length) = months.next().unwrap();
        if days < length {
            break name;
        }
        days -= length;
    };
    format!("Mon, {:02} {month} {year} 00:00:00 GMT", days + 1)
}

#[tokio::test(start_paused = true)]
async fn no_server_makes_a_client_wait_for_more_than_a_day() {
    for headers in [
        [("retry-after", "86401"), ("x", "")],
        [("retry-after", "99999999999999999999999"), ("x", "")],
        [("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT"), ("x", "")],
        [
            ("grpc-status", "14"),
            ("grpc-retry-pushback-ms", "2147483647"),
        ],
    ] {
        let delay = delay_after(503, &headers).await;
        assert_eq!(delay, Some(DAY as f64), "{headers:?}");
    }
    let long = exact(Backoff::fixed(100 * DAY as u32 * SEC)).jitter(true);
    let server = Server::once(500, &[]);
    send(&long, &server, get()).await.unwrap();
    assert_eq!(server.delays(), [DAY as f64]);
}

proptest! {
    #[test]
    fn whatever_a_server_writes_nothing_panics_and_no_delay_is_over_a_day(
        status in prop_oneof![Just(429_u16), Just(503), Just(200), 100..600_u16],
        headers in prop::collection::vec(
            (
                prop_oneof![
                    Just("retry-after"), Just("date"), Just("grpc-status"), Just("grpc-retry-pushback-ms")
                ],
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    "-?[0-9]{1,30}".prop_map(String::into_bytes),
                    "Sun, [0-3][0-9] (Feb|Dec) [0-9]{4} [0-2][0-9]:[0-5][0-9]:[0-6][0-9] GMT".prop_map(String::into_bytes),
                    Just(b"8".to_vec()),
                ],
            ),
            0..6,
        ),
        jitter in any::<bool>(),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let _entered = runtime.enter();
        let mut response = Response::builder().status(status).body(()).unwrap();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                response.headers_mut().append(name, value);
            }
        }
        let retry = policy().jitter(jitter).retry(&mut get(), &mut Ok::<_, BoxError>(response));
        if let Some(sleep) = retry {
            prop_assert!(sleep.deadline() <= support::now() + MAX_DELAY);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_retry_is_waited_for_that_would_come_too_late() {
    for (asked, calls) in [("29", 2), ("30", 1), ("31", 1), ("99999999999999999999", 1)] {
        let server = Server::once(503, &[("retry-after", asked)]);
        let policy = policy();
        let started = support::now();
        let mut request = get();
        let deadline = Deadline::within(30 * SEC);
        request.extensions_mut().insert(deadline);
        let response = send(&policy, &server, request).await.unwrap();
        assert_eq!(server.calls(), calls, "{asked}");
        if calls == 1 {
            assert_eq!(response.status(), 503);
            assert_eq!(response.headers()["retry-after"], asked);
            assert_eq!(support::now(), started, "it was given at once");
        }
        let snapshot = policy.handle().snapshot();
        assert_eq!(snapshot.too_late as usize, 2 - calls, "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_that_retries_may_take_is_counted_from_the_first_call() {
    let server = Server::always(500, &[]);
    let policy = policy().max_elapsed(35 * SEC);
    send(&policy, &server, get()).await.unwrap();
    assert_eq!(server.delays(), [10., 10., 10.]);
    assert_eq!(policy.handle().snapshot().too_late, 1);

    // And for the next request of the same service, anew.
    let server = Server::always(500, &[]);
    let mut client = Retry::new(policy, server.clone());
    for _ in 0..2 {
        call(&mut client, get()).await.unwrap();
        tokio::time::advance(100 * SEC).await;
    }
    assert_eq!(server.calls(), 8);
}

#[tokio::test(start_paused = true)]
async fn unless_told_otherwise_nobody_waits_for_an_hour() {
    let server = Server::always(503, &[("retry-after", "3600")]);
    let policy = RetryPolicy::default();
    send(&policy, &server, get()).await.unwrap();
    assert_eq!(
        (server.calls(), policy.handle().snapshot().too_late),
        (1, 1)
    );

    let server = Server::always(500, &[]);
    send(&policy, &server, get()).await.unwrap();
    assert_eq!(server.calls(), 1 + 3);
}

/// A storm: requests come at a steady pace, and none of them succeeds.
async fn calls_of_a_dead_server(budget: RetryBudget, requests: u32) -> (usize, RetryPolicy) {
    let server = Server::always(500, &[]);
    let policy = exact(Backoff::exponential(SEC, 10 * SEC)).budget(budget);
    let mut sent = tokio::task::JoinSet::new();
    let layer = RetryLayer::new(policy.clone());
    for _ in 0..requests {
        sent.spawn(layer.layer(server.clone()).oneshot(get()));
        tokio::time::sleep(SEC / 10).await;
    }
    sent.join_all().await;
    (server.calls(), policy)
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_gets_a_fifth_more_and_not_four_times_as_much() {
    let budget = RetryBudget::percent(20).per_second(0).burst(10);
    let (calls, policy) = calls_of_a_dead_server(budget, 1000).await;
    let snapshot = policy.handle().snapshot();
    assert_eq!(calls as u64, 1000 + snapshot.retries);
    // What was saved up, and a fifth; a few of the first brought nothing, because the budget was full.
    assert!((205..=210).contains(&snapshot.retries), "{snapshot:?}");
    assert_eq!(snapshot.over_budget + snapshot.exhausted, 1000);

    let plenty = RetryBudget::percent(1000);
    let (calls, _) = calls_of_a_dead_server(plenty, 1000).await;
    assert_eq!(calls, 4000);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_little_may_retry_as_time_goes_by() {
    let budget = RetryBudget::percent(0).per_second(2).burst(1);
    let (_, policy) = calls_of_a_dead_server(budget, 100).await;
    // For 10 s of requests and a few more of retries.
    let retries = policy.handle().snapshot().retries;
    assert!((18..=1 + 2 * 20).contains(&retries), "{retries}");
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_budget() {
    let policy = policy().budget(RetryBudget::percent(0).per_second(0).burst(3));
    let server = Server::once(500, &[]);
    for _ in 0..5 {
        let server = Server::new(move |call| answer(if call == 0 { 500 } else { 200 }, &[]));
        let layer = RetryLayer::new(policy.clone());
        let _ = layer.layer(server).oneshot(get()).await.unwrap();
    }
    let snapshot = policy.handle().snapshot();
    assert_eq!((snapshot.retries, snapshot.recovered), (3, 3));
    assert_eq!((snapshot.over_budget, snapshot.budget), (2, 0));
    assert_eq!(snapshot.requests, 5);
    assert_eq!(send(&policy, &server, get()).await.unwrap().status(), 500);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_retried_takes_nothing_from_the_budget() {
    let policy = policy()
        .budget(RetryBudget::percent(0).per_second(0).burst(5))
        .max_elapsed(SEC);
    for status in [200, 404, 410, 500] {
        send(&policy, &Server::always(status, &[]), get())
            .await
            .unwrap();
    }
    assert_eq!(policy.handle().snapshot().budget, 5);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_sent_again_is_sent_once() {
    let server = Server::always(503, &[("retry-after", "1")]);
    let policy = policy();
    let client = Retry::new(policy.clone(), server.clone());
    let request = Request::new(ReplayBody::once(Full::<Bytes>::from("might be a stream")));
    let response = client.clone().oneshot(request).await.unwrap();
    assert_eq!((response.status().as_u16(), server.calls()), (503, 1));
    let snapshot = policy.handle().snapshot();
    assert_eq!((snapshot.not_replayable, snapshot.retries), (1, 0));

    let server = Server::once(503, &[("retry-after", "1")]);
    let client = Retry::new(policy.clone(), server.clone());
    let request = Request::new(ReplayBody::<Full<Bytes>>::whole("whole"));
    assert_eq!(client.oneshot(request).await.unwrap().status(), 200);
    let server = Server::once(503, &[("retry-after", "1")]);
    let client = Retry::new(policy.clone(), server.clone());
    let request = Request::new(ReplayBody::once(Full::<Bytes>::default()));
    assert_eq!(client.oneshot(request).await.unwrap().status(), 200); // nothing is in it
    assert_eq!(policy.handle().snapshot().not_replayable, 1);

    let cloning = policy.replay(|body: &Full<Bytes>| Some(body.clone()));
    let server = Server::once(503, &[("retry-after", "1")]);
    let client = Retry::new(cloning, server);
    let request = Request::new(Full::from("whole"));
    assert_eq!(client.oneshot(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_replay_body_is_what_was_put_into_it() {
    let whole = ReplayBody::<Full<Bytes>>::whole("whole");
    let again = whole.replay().unwrap();
    assert_eq!(http_body::Body::size_hint(&whole).exact(), Some(5));
    assert!(!http_body::Body::is_end_stream(&whole));
    for body in [whole, again, ReplayBody::once(Full::from("whole"))] {
        assert_eq!(body.collect().await.unwrap().to_bytes(), "whole");
    }
    let empty = ReplayBody::<Full<Bytes>>::default();
    assert!(http_body::Body::is_end_stream(&empty));
    assert!(empty.collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_the_same_request() {
    #[derive(Clone, Debug, PartialEq)]
    struct Extension(u32);

    let server = Server::always(500, &[]);
    let request = Request::put("/path?query")
        .version(Version::HTTP_2)
        .header("x-header", "1")
        .header("x-header", "2")
        .extension(Extension(7));
    let request = request.body(()).unwrap();
    send(&policy().max_retries(2), &server, request)
        .await
        .unwrap();
    let calls = server.calls.lock().unwrap();
    assert_eq!(calls.len(), 3);
    for (_, parts) in calls.iter() {
        assert_eq!(parts.method, Method::PUT);
        assert_eq!(parts.uri, "/path?query");
        assert_eq!(parts.version, Version::HTTP_2);
        let values: Vec<_> = parts.headers.get_all("x-header").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert_eq!(parts.extensions.get(), Some(&Extension(7)));
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_may_be_done_twice_is_retried_when_it_may_have_been_done() {
    let maybe_done: [fn() -> Answer; 5] = [
        || answer(500, &[]),
        || answer(503, &[]),
        || answer(503, &[("retry-after", "soon")]),
        || answer(200, &[("grpc-status", "14")]),
        || Err("connection lost".into()),
    ];
    let not_done: [fn() -> Answer; 5] = [
        || answer(429, &[]),
        || answer(429, &[("retry-after", "1")]),
        || answer(503, &[("retry-after", "1")]),
        || {
            answer(
                200,
                &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "5")],
            )
        },
        || {
            answer(
                200,
                &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "5")],
            )
        },
    ];
    for method in [
        "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "CONNECT", "MERGE",
    ] {
        let idempotent = !matches!(method, "POST" | "PATCH" | "CONNECT" | "MERGE");
        for marked in [false, true] {
            let request = || {
                let mut request = Request::builder().method(method).body(()).unwrap();
                if marked {
                    request.extensions_mut().insert(Idempotent);
                }
                request
            };
            let calls = async |failure: fn() -> Answer| {
                let server = Server::new(move |call| match call {
                    0 => failure(),
                    _ => answer(200, &[]),
                });
                let policy = policy();
                let _ = send(&policy, &server, request()).await;
                let snapshot = policy.handle().snapshot();
                assert_eq!(snapshot.not_idempotent as usize, 2 - server.calls());
                server.calls()
            };
            for failure in maybe_done {
                let expected = if idempotent || marked { 2 } else { 1 };
                assert_eq!(
                    calls(failure).await,
                    expected,
                    "{method} {marked} {:?}",
                    failure()
                );
            }
            for failure in not_done {
                assert_eq!(calls(failure).await, 2, "{method} {:?}", failure());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_will_not_get_better_is_given_to_the_caller() {
    for (status, permanent, gone) in [(400, 1, 0), (404, 1, 0), (408, 1, 0), (410, 0, 1)] {
        let server = Server::always(status, &[("retry-after", "1"), ("x-why", "because")]);
        let policy = policy();
        let response = send(&policy, &server, get()).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-why"], "because");
        assert_eq!(server.calls(), 1);
        let snapshot = policy.handle().snapshot();
        assert_eq!((snapshot.permanent, snapshot.gone), (permanent, gone));
    }
    let server = Server::new(|_| Err("the last one".into()));
    let error = send(&policy(), &server, get()).await.unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), server.calls()),
        ("the last one", 21)
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_pushback_the_backoff_starts_anew() {
    let server = Server::new(|call| match call {
        2 => answer(
            200,
            &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "1500")],
        ),
        5 => answer(
            200,
            &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "0")],
        ),
        _ => answer(200, &[("grpc-status", "14")]),
    });
    let policy = exact(Backoff::exponential(SEC, 60 * SEC)).max_retries(7);
    let mut request = post();
    request.extensions_mut().insert(Idempotent);
    send(&policy, &server, request).await.unwrap();
    assert_eq!(server.delays(), [1., 2., 1.5, 1., 2., 0., 1.]);
}

#[tokio::test(start_paused = true)]
async fn a_server_may_forbid_retries() {
    for value in ["-1", "-2147483648", "", "soon", "1.5", "2147483648"] {
        let server = Server::once(
            200,
            &[("grpc-status", "14"), ("grpc-retry-pushback-ms", value)],
        );
        let policy = policy();
        send(&policy, &server, get()).await.unwrap();
        assert_eq!(server.calls(), 1, "{value}");
        assert_eq!(policy.handle().snapshot().forbidden, 1);
    }
    // It means nothing where there is no gRPC.
    let headers = [("grpc-retry-pushback-ms", "-1")];
    assert_eq!(delay_after(503, &headers).await, Some(10.));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_in_the_client_itself_is_retried_after_its_hint_whatever_the_method() {
    let server = Server::always(200, &[]);
    let policy = policy();
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(policy.clone()))
        .layer(LoadShedLayer::new())
        .layer(RateLimitLayer::new(Rate::every(4 * SEC)))
        .service(server.clone());
    for _ in 0..3 {
        let response = call(&mut client, post()).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    assert_eq!(server.delays(), [4., 4.]);
    assert_eq!(policy.handle().snapshot().recovered, 2);
}

/// Over the wire, where there are no extensions, but in one process.
#[tokio::test(start_paused = true)]
async fn a_client_does_as_a_server_of_this_crate_asks() {
    for content_type in ["text/plain", "application/grpc"] {
        let inner = Server::always(200, &[]);
        let server = ServiceBuilder::new()
            .map_response(|mut response: Response<_>| {
                response.extensions_mut().clear();
                response.map(drop)
            })
            .map_request(|request: Request<()>| request.map(|()| Full::<Bytes>::default()))
            .layer(OverloadResponseLayer::new().jitter(false))
            .layer(LoadShedLayer::new())
            .layer(RateLimitLayer::new(Rate::every(4 * SEC)))
            .map_response(|response: Response<()>| response.map(|()| Full::<Bytes>::default()))
            .service(inner.clone());
        let mut client = Retry::new(policy(), server);
        for _ in 0..2 {
            let request = Request::post("/").header("content-type", content_type);
            let request = request.body(()).unwrap();
            let response = call(&mut client, request).await.unwrap();
            assert_eq!(response.status(), 200);
            assert!(!response.headers().contains_key("grpc-status"));
        }
        assert_eq!(inner.delays(), [4.], "{content_type}");
    }
}

/// A handler that ran may have done something, though it passes on that something else was too busy for it.
#[tokio::test(start_paused = true)]
async fn what_a_handler_has_started_is_not_sent_again_unless_it_may_be_done_twice() {
    let handler = || Server::new(|_| Err(support::rejection().into()));
    for (request, calls) in [(post as fn() -> _, 1), (get, 4)] {
        // In the same process.
        let inner = handler();
        let policy = policy().max_retries(3);
        let mut client = ServiceBuilder::new()
            .layer(RetryLayer::new(policy.clone()))
            .layer(ConcurrencyLimitLayer::new(10))
            .service(inner.clone());
        call(&mut client, request()).await.unwrap_err();
        assert_eq!(inner.calls(), calls);
        assert_eq!(inner.delays(), vec![1.; calls - 1], "by the hint");

        // And over the wire, where there are no extensions.
        let inner = handler();
        let server = ServiceBuilder::new()
            .map_response(|mut response: Response<_>| {
                response.extensions_mut().clear();
                response.map(drop)
            })
            .map_request(|request: Request<()>| request.map(|()| Full::<Bytes>::default()))
            .layer(OverloadResponseLayer::new().jitter(false))
            .layer(ConcurrencyLimitLayer::new(10))
            .map_response(|response: Response<()>| response.map(|()| Full::<Bytes>::default()))
            .service(inner.clone());
        let mut client = Retry::new(policy, server);
        let response = call(&mut client, request()).await.unwrap();
        assert_eq!((response.status().as_u16(), inner.calls()), (503, calls));
        assert_eq!(inner.delays(), vec![1.; calls - 1]);
    }
}

/// If an earlier attempt was worked on, a rejection of the last one does not say that the request was never sent.
#[tokio::test(start_paused = true)]
async fn a_rejection_after_an_attempt_that_was_worked_on_is_not_made_here() {
    let inner = Server::always(500, &[]);
    let limit = RateLimitLayer::new(Rate::every(3600 * SEC)).max_waiting(0);
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(policy().max_retries(1)))
        .layer(limit)
        .service(inner.clone());
    let rejected_here = |error: &BoxError| {
        let rejected = Overloaded::find(error.as_ref()).unwrap();
        assert_eq!(rejected.layer(), "rate_limit");
        rejected.rejected_here()
    };
    let worked_on = call(&mut client, get()).await.unwrap_err();
    assert!(!rejected_here(&worked_on));
    assert_eq!(inner.calls(), 1);
}

/// To wait for half a minute is for the caller to decide. A moment is waited for.
#[tokio::test(start_paused = true)]
async fn an_open_circuit_is_waited_out_only_if_that_is_shorter_than_the_backoff() {
    for (cooldown, waits) in [
        (SEC, true),
        (9 * SEC, true),
        (10 * SEC, false),
        (30 * SEC, false),
    ] {
        let server = Server::once(500, &[]);
        let breaker = CircuitBreakerLayer::new(
            CircuitBreakerConfig::default()
                .failures(1)
                .cooldown(cooldown),
        );
        let breaker = breaker.classify(ByStatus);
        let circuit = breaker.handle();
        let policy = policy();
        let mut client = ServiceBuilder::new()
            .layer(RetryLayer::new(policy.clone()))
            .layer(breaker)
            .service(server.clone());
        // Opens the circuit.
        assert_eq!(call(&mut client, post()).await.unwrap().status(), 500);
        assert_eq!(circuit.snapshot().opened, 1);
        let sent = support::now();
        let answer = call(&mut client, post()).await;
        let waited = support::now() - sent;
        let snapshot = policy.handle().snapshot();
        if waits {
            assert_eq!(answer.unwrap().status(), 200);
            assert!(
                (cooldown..cooldown + 2 * MS).contains(&waited),
                "{waited:?}"
            );
            assert_eq!(snapshot.circuit_open, 0);
        } else {
            assert!(
                answer
                    .unwrap_err()
                    .to_string()
                    .contains("the circuit is open")
            );
            assert_eq!((waited, snapshot.circuit_open), (Duration::ZERO, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_while_it_waits_is_not_sent_again() {
    let server = Server::always(500, &[]);
    let policy = policy().budget(RetryBudget::percent(0).per_second(0).burst(5));
    let request = send(&policy, &server, get());
    let given_up = tokio::time::timeout(15 * SEC, request).await;
    assert!(given_up.is_err());
    tokio::time::sleep(100 * SEC).await;
    yield_now().await;
    assert_eq!(server.calls(), 2);
    assert_eq!(policy.handle().snapshot().budget, 3); // both are paid for
}

#[tokio::test(start_paused = true)]
async fn others_may_judge() {
    let policy = policy().judge(|result: Result<&Response<()>, &BoxError>| match result {
        Ok(response) if response.status() == 404 => Verdict::Refused, // not yet there
        Ok(response) if response.status() == 500 => Verdict::Gone,
        other => ByAnswer.judge(other),
    });
    let server = Server::new(|call| answer([404, 503, 500][call], &[]));
    let mut request = post();
    request.extensions_mut().insert(Idempotent);
    assert_eq!(send(&policy, &server, request).await.unwrap().status(), 500);
    assert_eq!((server.calls(), policy.handle().snapshot().gone), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn retries_are_turned_off_at_run_time() {
    let server = Server::always(500, &[]);
    let policy = policy();
    let handle = policy.handle();
    let request = tokio::spawn({
        let (policy, server) = (policy.clone(), server.clone());
        async move { send(&policy, &server, get()).await }
    });
    tokio::time::sleep(15 * SEC).await;
    handle.set_max_retries(0);
    request.await.unwrap().unwrap();
    // The one that was being waited for is made.
    assert_eq!(server.calls(), 3);
    assert_eq!(handle.snapshot().exhausted, 1);
    send(&policy, &server, get()).await.unwrap();
    assert_eq!(server.calls(), 4);
}

#[test]
fn clients_can_be_shared_between_threads() {
    fn check<T: Clone + Send + Sync>(_: T) {}
    check(Retry::new(RetryPolicy::default(), Server::always(200, &[])));
    check(RetryPolicy::default().handle());
}
