//! Which layers are watched, under which names; and the text as a whole.

use tower::{Layer, ServiceExt, service_fn};
use tower_backpressure::{
    BoxError, ConcurrencyLimitLayer, Rate, RateLimitLayer, edge, observe::Metrics,
};

use super::*;

#[tokio::test(start_paused = true)]
async fn the_text_is_what_prometheus_reads() {
    let limit = ConcurrencyLimitLayer::new(3).name("database");
    let rate = RateLimitLayer::new(Rate::per_second(100).burst(5));
    let metrics = Metrics::new();
    metrics.watch(&limit.handle()).unwrap();
    metrics.watch(&rate.handle()).unwrap();
    let handle = limit.handle();
    let _one = handle.try_acquire().unwrap();
    drop(handle.try_acquire().unwrap());
    rate.handle().try_acquire(2).unwrap();

    let text = metrics.prometheus();
    let (waits, others): (Vec<_>, Vec<_>) = text
        .lines()
        .partition(|line| line.starts_with("backpressure_queue_wait_seconds"));
    assert_eq!(waits.len(), 2 * 18, "{waits:?}");
    let expected = r#"
# HELP backpressure_requests_total Requests that the layer has decided on.
# TYPE backpressure_requests_total counter
backpressure_requests_total{layer="database",outcome="admitted"} 2
backpressure_requests_total{layer="database",outcome="rejected"} 0
backpressure_requests_total{layer="rate_limit",outcome="admitted"} 2
backpressure_requests_total{layer="rate_limit",outcome="rejected"} 0
# HELP backpressure_rejected_total Requests that the layer has refused.
# TYPE backpressure_rejected_total counter
backpressure_rejected_total{layer="database",reason="at_limit"} 0
backpressure_rejected_total{layer="database",reason="queue_full"} 0
backpressure_rejected_total{layer="database",reason="wait_timeout"} 0
backpressure_rejected_total{layer="rate_limit",reason="at_limit"} 0
backpressure_rejected_total{layer="rate_limit",reason="queue_full"} 0
backpressure_rejected_total{layer="rate_limit",reason="wait_timeout"} 0
# HELP backpressure_in_flight Requests in flight.
# TYPE backpressure_in_flight gauge
backpressure_in_flight{layer="database"} 1
# HELP backpressure_in_flight_max The most requests in flight at once since the layer was last looked at.
# TYPE backpressure_in_flight_max gauge
backpressure_in_flight_max{layer="database"} 2
# HELP backpressure_limit How many requests may be in flight.
# TYPE backpressure_limit gauge
backpressure_limit{layer="database"} 3
# HELP backpressure_queue_depth What waits: requests, or the messages in a channel.
# TYPE backpressure_queue_depth gauge
backpressure_queue_depth{layer="database"} 0
backpressure_queue_depth{layer="rate_limit"} 0
# HELP backpressure_queue_oldest_seconds How long what has waited longest has waited, of what still waits.
# TYPE backpressure_queue_oldest_seconds gauge
backpressure_queue_oldest_seconds{layer="database"} 0
backpressure_queue_oldest_seconds{layer="rate_limit"} 0
# HELP backpressure_queue_wait_seconds How long requests waited that had to wait, however the wait ended.
# TYPE backpressure_queue_wait_seconds histogram
# HELP backpressure_tokens Tokens that are there to be taken.
# TYPE backpressure_tokens gauge
backpressure_tokens{layer="rate_limit"} 3
# HELP backpressure_tokens_max How many tokens there can be: the burst.
# TYPE backpressure_tokens_max gauge
backpressure_tokens_max{layer="rate_limit"} 5
# HELP backpressure_tokens_per_second How many tokens come in a second.
# TYPE backpressure_tokens_per_second gauge
backpressure_tokens_per_second{layer="rate_limit"} 100
"#;
    assert_eq!(others, expected.trim().lines().collect::<Vec<_>>());
    Scrape::read(&text);
}

#[test]
fn without_layers_there_is_no_text() {
    assert_eq!(Metrics::new().prometheus(), "");
}

#[test]
fn a_name_may_be_anything() {
    let hostile = "a\\b\"c\nd{e}=,é # TYPE x";
    let metrics = Metrics::new();
    metrics
        .watch(&ConcurrencyLimitLayer::new(1).name(hostile).handle())
        .unwrap();
    let text = metrics.prometheus();
    Scrape::read(&text);
    let line = text
        .lines()
        .find(|line| line.starts_with("backpressure_limit{"))
        .unwrap();
    let (labels, value) = exposition::labels(line.strip_prefix("backpressure_limit{").unwrap());
    assert_eq!(labels, [("layer".to_owned(), hostile.to_owned())]);
    assert_eq!(value, "1");
}

#[test]
fn two_layers_of_one_name_are_an_error_and_never_two_series() {
    let metrics = Metrics::new();
    metrics
        .watch(&ConcurrencyLimitLayer::new(1).handle())
        .unwrap();
    let error = metrics
        .watch(&ConcurrencyLimitLayer::new(2).handle())
        .unwrap_err();
    assert!(error.to_string().contains("name"), "{error}");
    let limit_of = |layer: &str| scrape(&metrics).of(layer)["limit"];
    assert_eq!(limit_of("concurrency_limit"), 1.0);

    metrics
        .watch_as("other", &ConcurrencyLimitLayer::new(2).handle())
        .unwrap();
    assert_eq!(
        (limit_of("concurrency_limit"), limit_of("other")),
        (1.0, 2.0)
    );
    assert!(metrics.unwatch("concurrency_limit"));
    assert!(!metrics.unwatch("concurrency_limit"));
    assert!(scrape(&metrics).of("concurrency_limit").is_empty());
    metrics
        .watch(&ConcurrencyLimitLayer::new(3).handle())
        .unwrap();
    assert_eq!(
        (limit_of("concurrency_limit"), limit_of("other")),
        (3.0, 2.0)
    );
}

#[test]
fn an_edge_is_one_layer() {
    let metrics = Metrics::new();
    metrics.watch(&edge().handle()).unwrap();
    metrics.watch(&edge().name("shop").handle()).unwrap();
    metrics.watch_as("api", &edge().handle()).unwrap();
    metrics.watch(&edge().handle()).unwrap_err(); // there is one of that name
    assert_eq!(format!("{metrics:?}"), r#"{"edge", "shop", "api"}"#);
    for name in ["edge", "shop", "api"] {
        let said = scrape(&metrics).of(name);
        for series in ["limit", "queue_depth", "tenants_tracked", "overloaded"] {
            assert!(said.contains_key(series), "{name} {series}");
        }
    }
}

#[test]
fn clones_are_one_registry() {
    let metrics = Metrics::new();
    metrics
        .clone()
        .watch(&ConcurrencyLimitLayer::new(1).handle())
        .unwrap();
    assert_eq!(format!("{metrics:?}"), "{\"concurrency_limit\"}");
}

#[tokio::test]
async fn a_counter_does_not_fall_when_a_readied_service_is_dropped() {
    let limit = ConcurrencyLimitLayer::new(10);
    let metrics = Metrics::new();
    metrics.watch(&limit.handle()).unwrap();
    let admitted =
        || scrape(&metrics).of("concurrency_limit")["requests_total{outcome=\"admitted\"}"];
    let echo = service_fn(|()| async { Ok::<_, BoxError>(()) });
    let request = async || limit.layer(echo).oneshot(()).await.unwrap();

    request().await;
    let mut readied = limit.layer(echo);
    readied.ready().await.unwrap();
    assert_eq!(admitted(), 2.0);
    drop(readied);
    assert_eq!(limit.handle().snapshot().admitted, 1);
    assert_eq!(
        admitted(),
        2.0,
        "a counter that falls is a process that began anew"
    );
    request().await;
    assert_eq!(admitted(), 2.0);
    request().await;
    assert_eq!(admitted(), 3.0);
}

#[tokio::test]
async fn the_most_in_flight_is_of_the_time_since_the_last_look() {
    let limit = ConcurrencyLimitLayer::new(10);
    let metrics = Metrics::new();
    metrics.watch(&limit.handle()).unwrap();
    let most = || scrape(&metrics).of("concurrency_limit")["in_flight_max"];
    let burst: Vec<_> = (0..4)
        .map(|_| limit.handle().try_acquire().unwrap())
        .collect();
    drop(burst);
    assert_eq!(most(), 4.0);
    assert_eq!(most(), 0.0);
}
