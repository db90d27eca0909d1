//! What a recorder of the `metrics` crate is told.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use ::metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tower_backpressure::{
    CircuitBreakerConfig, CircuitBreakerLayer, ConcurrencyLimitLayer, Waits, edge,
};

use super::*;

#[derive(Default)]
struct Told {
    /// Counters and gauges, as the text has them.
    series: BTreeMap<String, f64>,
    recorded: Vec<(String, f64, usize)>,
    described: BTreeSet<(&'static str, String)>,
}

#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Told>>);

struct Handle(Recording, String);

impl Recording {
    fn handle(&self, key: &Key) -> Arc<Handle> {
        let labels: Vec<_> = (key.labels())
            .map(|label| format!("{}=\"{}\"", label.key(), label.value()))
            .collect();
        let series = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::new(Handle(self.clone(), series))
    }

    fn described(&self, kind: &'static str, name: &KeyName, help: &SharedString) {
        assert!(!help.is_empty());
        let name = name.as_str().to_owned();
        self.0.lock().unwrap().described.insert((kind, name));
    }
}

impl Handle {
    fn put(&self, value: f64) {
        let mut told = self.0.0.lock().unwrap();
        told.series.insert(self.1.clone(), value);
    }
}

impl Recorder for Recording {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("counter", &name, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("gauge", &name, &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("histogram", &name, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.handle(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.handle(key))
    }
}

impl CounterFn for Handle {
    fn increment(&self, _: u64) {
        panic!("it is told where the counter is");
    }

    fn absolute(&self, value: u64) {
        self.put(value as f64);
    }
}

impl GaugeFn for Handle {
    fn increment(&self, _: f64) {
        panic!("it is told where the gauge is");
    }

    fn decrement(&self, _: f64) {
        panic!("it is told where the gauge is");
    }

    fn set(&self, value: f64) {
        self.put(value);
    }
}

impl HistogramFn for Handle {
    fn record(&self, value: f64) {
        self.record_many(value, 1);
    }

    fn record_many(&self, value: f64, count: usize) {
        let mut told = self.0.0.lock().unwrap();
        told.recorded.push((self.1.clone(), value, count));
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorder_is_told_what_the_text_says() {
    let metrics = Metrics::new();
    let breaker = CircuitBreakerLayer::new(CircuitBreakerConfig::default());
    breaker.handle().force_open();
    metrics.watch(&edge().handle()).unwrap();
    metrics.watch(&breaker.handle()).unwrap();
    let limit = ConcurrencyLimitLayer::new(2).name("a \"limit\"").handle();
    metrics.watch(&limit).unwrap();
    let _one = limit.try_acquire().unwrap();

    let recording = Recording::default();
    ::metrics::with_local_recorder(&recording, || metrics.publish());
    let told = recording.0.lock().unwrap();
    let read = scrape(&metrics);
    let mut expected = read.series.clone();
    expected.retain(|series, _| !series.starts_with("backpressure_queue_wait_seconds"));
    let unescaped: BTreeMap<_, _> = (expected.into_iter())
        .map(|(series, value)| (series.replace("\\\"", "\""), value))
        .collect();
    assert_eq!(told.series, unescaped);
    let types: BTreeSet<_> = (told.described.iter())
        .map(|(kind, name)| (name.clone(), (*kind).to_owned()))
        .collect();
    assert_eq!(types, read.types.into_iter().collect());
}

#[tokio::test(start_paused = true)]
async fn a_recorder_is_told_of_each_wait_once() {
    let metrics = Metrics::new();
    let limit = ConcurrencyLimitLayer::new(1)
        .max_wait(Duration::from_secs(100))
        .handle();
    metrics.watch(&limit).unwrap();
    let wait = async |times: &[u64]| {
        for time in times {
            let busy = limit.acquire().await.unwrap();
            let waiting = tokio::spawn(limit.acquire());
            settle().await;
            tokio::time::advance(ms(*time)).await;
            drop(busy);
            drop(waiting.await.unwrap());
        }
    };
    let recorded = || {
        let recording = Recording::default();
        ::metrics::with_local_recorder(&recording, || metrics.publish());
        let told = std::mem::take(&mut *recording.0.lock().unwrap());
        let series = "backpressure_queue_wait_seconds{layer=\"concurrency_limit\"}";
        assert!(told.recorded.iter().all(|(name, ..)| name == series));
        told.recorded
            .into_iter()
            .map(|(_, value, count)| (value, count))
            .collect::<Vec<_>>()
    };
    assert_eq!(recorded(), []);
    wait(&[3, 4, 90_000]).await;
    assert_eq!(recorded(), [(0.005, 2), (120.0, 1)]);
    assert_eq!(recorded(), []);
    wait(&[4, 1_000]).await;
    assert_eq!(recorded(), [(0.005, 1), (1.0, 1)]);
    assert_eq!(limit.snapshot().waits.count(), 5);
    assert_eq!(Waits::BOUNDS[14], Duration::from_secs(60));
}

#[test]
fn without_a_recorder_nothing_happens() {
    let metrics = Metrics::new();
    metrics
        .watch(&ConcurrencyLimitLayer::new(1).handle())
        .unwrap();
    metrics.publish();
}
