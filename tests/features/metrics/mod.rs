//! What layers count, as Prometheus and recorders of the `metrics` crate get to see it.

mod exposition;
mod layers;
mod names;
mod recorder;
mod registry;

use std::{collections::BTreeMap, time::Duration};

use exposition::Scrape;
use tower::{BoxError, Service, ServiceExt};
use tower_backpressure::{Overloaded, Reason, observe::Metrics};

fn scrape(metrics: &Metrics) -> Scrape {
    Scrape::read(&metrics.prometheus())
}

/// That the layer says this, and nothing else.
#[track_caller]
fn assert_says(metrics: &Metrics, layer: &str, expected: &[(&str, f64)], waits: Option<&[u64]>) {
    let mut expected: BTreeMap<String, f64> = (expected.iter())
        .map(|(series, value)| ((*series).to_owned(), *value))
        .collect();
    if let Some(waits) = waits {
        expected.extend(histogram(waits));
    }
    let said = scrape(metrics).of(layer);
    let differ = |(series, value): &(&String, &f64)| said.get(*series) != Some(*value);
    let missing: Vec<_> = expected.iter().filter(differ).collect();
    let more: Vec<_> = said
        .iter()
        .filter(|(series, _)| !expected.contains_key(*series))
        .collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "missing: {missing:?}, too much: {more:?}"
    );
}

/// Waits of so many milliseconds, as a histogram of them has to look.
fn histogram(waits: &[u64]) -> BTreeMap<String, f64> {
    let bounds = [
        "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5",
        "10", "30", "60", "+Inf",
    ];
    let within = |bound: &str| {
        let bound: f64 = bound.parse().unwrap();
        waits
            .iter()
            .filter(|ms| **ms as f64 / 1000.0 <= bound)
            .count() as f64
    };
    let name = "queue_wait_seconds";
    let buckets = bounds.map(|bound| (format!("{name}_bucket{{le=\"{bound}\"}}"), within(bound)));
    let sum = Duration::from_millis(waits.iter().sum()).as_secs_f64();
    let totals = [
        (format!("{name}_sum"), sum),
        (format!("{name}_count"), waits.len() as f64),
    ];
    buckets.into_iter().chain(totals).collect()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Lets the tasks that can run do so.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// One request through a clone of the service, in a task of its own.
fn send<S, R>(service: &S, request: R) -> tokio::task::JoinHandle<Result<S::Response, BoxError>>
where
    S: Service<R, Error = BoxError, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
    R: Send + 'static,
{
    let mut service = service.clone();
    tokio::spawn(async move { service.ready().await?.call(request).await })
}

fn reason<T>(result: Result<T, BoxError>) -> Option<(&'static str, Reason)> {
    let error = result.err()?;
    let refusal = Overloaded::find(error.as_ref()).expect("a refusal");
    Some((refusal.layer(), refusal.reason()))
}
