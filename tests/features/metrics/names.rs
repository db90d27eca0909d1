//! The names, wherever they are written: what is exported, the documentation, the dashboard, the alert rules.

use std::collections::{BTreeMap, BTreeSet};

use tower::{Layer, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer,
    KeyedRateLimitLayer, Priority, Rate, RateLimitLayer, SaturationLayer, ShadowLayer,
    SubmittedAtLayer, WfqConfig, WfqLayer, channel, edge, observe, shadow,
};

use super::*;

const DOCS: &str = include_str!("../../../src/observe.rs");
const DASHBOARD: &str = include_str!("../../../examples/prometheus/dashboard.json");
const ALERTS: &str = include_str!("../../../examples/prometheus/alerts.yml");

/// Every kind of layer, watched.
fn all_layers() -> Metrics {
    let metrics = Metrics::new();
    let key = |key: &u32| Some(*key);
    let rate = Rate::per_second(1);
    let breaker = CircuitBreakerConfig::default;
    metrics
        .watch(&ConcurrencyLimitLayer::new(1).handle())
        .unwrap();
    metrics
        .watch(&AdaptiveConcurrencyLayer::vegas().handle())
        .unwrap();
    metrics.watch(&RateLimitLayer::new(rate).handle()).unwrap();
    metrics
        .watch(&KeyedRateLimitLayer::new(rate, key).global(rate).handle())
        .unwrap();
    metrics
        .watch(&KeyedConcurrencyLimitLayer::new(1, key).handle())
        .unwrap();
    metrics
        .watch(&CoDelLayer::new(CoDelConfig::default()).handle())
        .unwrap();
    metrics
        .watch(&WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a")).handle())
        .unwrap();
    metrics
        .watch(&CircuitBreakerLayer::new(breaker()).handle())
        .unwrap();
    metrics
        .watch(&KeyedCircuitBreakerLayer::new(breaker(), key).handle())
        .unwrap();
    metrics.watch(&SaturationLayer::new().handle()).unwrap();
    metrics
        .watch(&channel::bounded::<u32>(1).0.handle())
        .unwrap();
    metrics.watch(&edge().handle()).unwrap();
    let told_apart = edge().name("told_apart").priority(|_| Priority::Normal);
    metrics.watch(&told_apart.handle()).unwrap();
    #[cfg(feature = "fleet")]
    watch_a_fleet(&metrics);
    metrics.watch(&SubmittedAtLayer::new().handle()).unwrap();
    metrics.watch(&trial()).unwrap();
    #[cfg(feature = "retry")]
    metrics
        .watch(&tower_backpressure::RetryPolicy::default().handle())
        .unwrap();
    metrics
}

#[cfg(feature = "fleet")]
fn watch_a_fleet(metrics: &Metrics) {
    use tower_backpressure::{Fleet, fleet::Memory};
    let (fleet, rate) = (Fleet::new(Memory::new(), 1), Rate::per_second(1));
    let key = |key: &u32| Some(*key);
    metrics.watch(&fleet).unwrap();
    metrics
        .watch(&fleet.rate_limit("orders", rate).handle())
        .unwrap();
    metrics
        .watch(&fleet.keyed_rate_limit("quota", rate, key).handle())
        .unwrap();
    metrics
        .watch(&fleet.concurrency_limit("upstream", 1).handle())
        .unwrap();
}

/// One that would have refused something: it says for what reasons there were.
fn trial() -> shadow::Handle {
    let trial = ShadowLayer::new(ConcurrencyLimitLayer::new(1).max_waiting(0));
    let trial = trial.likeness(u32::clone);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap();
    let _entered = runtime.enter();
    let mut service = trial.layer(service_fn(|_: u32| async { Ok::<_, BoxError>(()) }));
    let _both = [service.call(0), service.call(0)];
    trial.handle()
}

/// All that looks like one of our names.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names = text.match_indices("backpressure_").map(|(at, _)| {
        let name = &text[at..];
        name.split(|c| !part(c)).next().unwrap()
    });
    names.filter(|name| *name != "backpressure_").collect()
}

/// Without what Prometheus adds to the name of a histogram.
fn family<'a>(name: &'a str, histograms: &BTreeSet<&str>) -> &'a str {
    let suffixes = ["_bucket", "_sum", "_count"];
    let bare = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
    bare.filter(|bare| histograms.contains(bare))
        .unwrap_or(name)
}

fn histograms() -> BTreeSet<&'static str> {
    BTreeSet::from(["backpressure_queue_wait_seconds"])
}

/// The expressions of the dashboard and of the alerts.
fn expressions() -> Vec<String> {
    let mut expressions = Vec::new();
    json::parse(DASHBOARD).strings("expr", &mut expressions);
    for alert in alerts() {
        expressions.push(alert["expr"].clone());
    }
    expressions
}

/// The fields of each rule, by a reader of as much YAML as the file has.
fn alerts() -> Vec<BTreeMap<String, String>> {
    let mut alerts: Vec<BTreeMap<String, String>> = Vec::new();
    let mut field = String::new();
    for line in ALERTS
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
    {
        let line = match line.strip_prefix("- alert: ") {
            Some(name) => {
                alerts.push(BTreeMap::from([("alert".to_owned(), name.to_owned())]));
                continue;
            }
            None => line,
        };
        let Some(alert) = alerts.last_mut() else {
            continue;
        };
        let key = line
            .split_once(':')
            .filter(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase()));
        match key {
            Some((key, value))
                if [
                    "expr",
                    "for",
                    "severity",
                    "summary",
                    "description",
                    "action",
                ]
                .contains(&key) =>
            {
                field = key.to_owned();
                let value = value.trim().trim_start_matches(">-").trim_matches('"');
                assert!(
                    alert.insert(field.clone(), value.to_owned()).is_none(),
                    "{line}"
                );
            }
            Some(("labels" | "annotations", "")) => {}
            _ if line.is_empty() => {}
            _ => {
                let text = alert.get_mut(&field).expect("a line of a field");
                text.push(' ');
                text.push_str(line);
            }
        }
    }
    alerts
}

#[test]
fn layers_export_the_names_that_there_are() {
    let exported: BTreeSet<_> = scrape(&all_layers()).types.into_keys().collect();
    let mut expected: BTreeSet<String> = observe::names().map(str::to_owned).collect();
    assert_eq!(observe::names().count(), expected.len());
    // These are not known until there was some traffic.
    for name in [
        "min_rtt_seconds",
        "age_p95_seconds",
        "breaker_failure_ratio",
    ] {
        assert!(expected.remove(&format!("backpressure_{name}")), "{name}");
    }
    if !cfg!(feature = "retry") {
        expected.retain(|name| !name.starts_with("backpressure_retr"));
    }
    if !cfg!(feature = "fleet") {
        expected.retain(|name| !name.starts_with("backpressure_fleet"));
    }
    assert_eq!(exported, expected);
    for name in observe::names() {
        assert_eq!(
            family(name, &histograms()),
            name,
            "taken for a part of a histogram"
        );
    }
}

#[test]
fn a_layer_has_few_series() {
    let read = scrape(&all_layers());
    let mut of_layer: BTreeMap<&str, usize> = BTreeMap::new();
    for series in read.series.keys() {
        let layer = series.split('"').nth(1).unwrap();
        *of_layer.entry(layer).or_default() += 1;
    }
    assert!(of_layer.len() >= 12, "{of_layer:?}");
    for (layer, series) in of_layer {
        let most = match layer {
            "edge" => 47, // two of which are not known until there was some traffic
            "told_apart" => 47 + 25,
            _ => 35,
        };
        assert!(series <= most, "{layer}: {series}");
    }
}

#[test]
fn the_documentation_has_every_name_with_its_type_and_labels() {
    let read = scrape(&all_layers());
    let rows: BTreeMap<&str, (&str, &str)> = (DOCS.lines())
        .filter_map(|line| line.strip_prefix("//! | `backpressure_"))
        .map(|row| {
            let (name, rest) = row.split_once('`').unwrap();
            let (name, label) = name.split_once('{').unwrap_or((name, ""));
            (
                name,
                (
                    label.trim_end_matches('}'),
                    rest.split(" | ").nth(1).unwrap(),
                ),
            )
        })
        .collect();
    let documented: BTreeSet<String> = rows
        .keys()
        .map(|name| format!("backpressure_{name}"))
        .collect();
    assert_eq!(documented, observe::names().map(str::to_owned).collect());
    for (name, kind) in &read.types {
        let (label, documented) = rows[name.strip_prefix("backpressure_").unwrap()];
        assert_eq!(documented, kind, "{name}");
        let labels = ["layer", label];
        assert_eq!(
            read.labels[name],
            labels[..if label.is_empty() { 1 } else { 2 }],
            "{name}"
        );
    }
    let named = mentioned(DOCS);
    let exported: BTreeSet<_> = observe::names().collect();
    assert!(
        named.is_subset(&exported),
        "{:?}",
        named.difference(&exported)
    );
}

#[test]
fn the_dashboard_shows_every_name_and_no_other() {
    let histograms = histograms();
    let shown: BTreeSet<_> = mentioned(DASHBOARD)
        .into_iter()
        .map(|name| family(name, &histograms))
        .collect();
    assert_eq!(shown, observe::names().collect());
}

#[test]
fn the_dashboard_can_be_imported() {
    let dashboard = json::parse(DASHBOARD);
    let json::Value::Object(fields) = &dashboard else {
        panic!("an object")
    };
    for field in [
        "__inputs",
        "title",
        "uid",
        "schemaVersion",
        "templating",
        "panels",
        "time",
    ] {
        assert!(fields.contains_key(field), "{field}");
    }
    let mut sources = Vec::new();
    dashboard.strings("uid", &mut sources);
    sources.retain(|uid| uid != "tower-backpressure");
    assert!(sources.len() > 20 && sources.iter().all(|uid| uid == "${DS_PROMETHEUS}"));
    let json::Value::Array(panels) = &fields["panels"] else {
        panic!("a list")
    };
    let mut places = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let json::Value::Object(panel) = panel else {
            panic!("an object")
        };
        let json::Value::Object(place) = &panel["gridPos"] else {
            panic!("a place")
        };
        let json::Value::Number(id) = &panel["id"] else {
            panic!("a number")
        };
        assert!(ids.insert(id.to_bits()), "{id} twice");
        let at = ["x", "y"].map(|at| match &place[at] {
            json::Value::Number(at) => at.to_bits(),
            other => panic!("{other:?}"),
        });
        assert!(places.insert(at), "two panels in one place");
    }
    // Every expression but those of the variable is of the layers that were chosen.
    let mut shown = Vec::new();
    dashboard.strings("expr", &mut shown);
    for expression in shown {
        let selected = expression.matches("{layer=~\"$layer\"}").count();
        assert_eq!(
            expression.matches("backpressure_").count(),
            selected,
            "{expression}"
        );
    }
}

#[test]
fn the_alerts_name_what_is_exported() {
    let (histograms, exported) = (histograms(), observe::names().collect::<BTreeSet<_>>());
    let named: BTreeSet<_> = mentioned(ALERTS)
        .into_iter()
        .map(|name| family(name, &histograms))
        .collect();
    assert!(
        named.is_subset(&exported),
        "{:?}",
        named.difference(&exported)
    );
}

#[test]
fn every_alert_says_what_it_is_and_what_to_do() {
    let alerts = alerts();
    assert!(alerts.len() >= 6);
    for alert in &alerts {
        for field in [
            "alert",
            "expr",
            "for",
            "severity",
            "summary",
            "description",
            "action",
        ] {
            assert!(
                alert.get(field).is_some_and(|text| !text.is_empty()),
                "{field} of {alert:?}"
            );
        }
        assert!(!mentioned(&alert["expr"]).is_empty(), "{alert:?}");
        assert!(["warning", "critical"].contains(&alert["severity"].as_str()));
    }
    let find = |expr: &str, wait: &str, severity: &str| {
        let found = alerts.iter().any(|alert| {
            alert["expr"].contains(expr) && alert["for"] == wait && alert["severity"] == severity
        });
        assert!(found, "no alert on {expr}");
    };
    find(
        "(rate(backpressure_requests_total[5m])) > 0.01",
        "5m",
        "warning",
    );
    find(
        "(rate(backpressure_requests_total[5m])) > 0.1",
        "5m",
        "critical",
    );
    find("(backpressure_limit[5m]) > 0.9", "10m", "warning");
    find(
        "backpressure_limit <= backpressure_limit_min",
        "5m",
        "warning",
    );
    find("backpressure_breaker_state > 0", "5m", "critical");
}

/// By labels that the samples have, with the functions that their types allow.
#[test]
fn expressions_group_by_labels_that_there_are_and_rate_what_counts() {
    let read = scrape(&all_layers());
    let histograms = histograms();
    let expressions = expressions();
    assert!(expressions.len() > 30);
    for expression in &expressions {
        let names: BTreeSet<_> = mentioned(expression);
        let mut labels = BTreeSet::from(["layer", "instance", "pod"]);
        for name in &names {
            let known = read.labels.get(family(name, &histograms));
            labels.extend(known.into_iter().flatten().map(String::as_str));
            if name.ends_with("_bucket") {
                labels.insert("le");
            }
            let cumulative = family(name, &histograms) != *name || name.ends_with("_total");
            for (at, _) in expression.match_indices(name) {
                let longer = expression[at + name.len()..]
                    .starts_with(|c: char| c == '_' || c.is_ascii_lowercase());
                let rated = expression[..at].ends_with("rate(");
                assert!(longer || rated == cumulative, "{name} in {expression}");
            }
        }
        for grouping in ["by (", "without ("] {
            for group in expression.split(grouping).skip(1) {
                for label in group.split(')').next().unwrap().split(", ") {
                    assert!(labels.contains(label), "{label} in {expression}");
                }
            }
        }
    }
}

/// As much JSON as a dashboard has, and no more than JSON allows.
mod json {
    use std::{collections::BTreeMap, iter::Peekable, str::Chars};

    #[derive(Debug)]
    pub enum Value {
        Object(BTreeMap<String, Value>),
        Array(Vec<Value>),
        String(String),
        Number(f64),
        Word,
    }

    impl Value {
        /// All strings in fields of this name.
        pub fn strings(&self, field: &str, found: &mut Vec<String>) {
            match self {
                Self::Object(fields) => {
                    for (name, value) in fields {
                        match value {
                            Self::String(text) if name == field => found.push(text.clone()),
                            value => value.strings(field, found),
                        }
                    }
                }
                Self::Array(values) => values.iter().for_each(|value| value.strings(field, found)),
                _ => {}
            }
        }
    }

    pub fn parse(text: &str) -> Value {
        let mut chars = text.chars().peekable();
        let value = value(&mut chars);
        skip(&mut chars);
        assert_eq!(chars.next(), None, "more than one value");
        value
    }

    fn skip(chars: &mut Peekable<Chars<'_>>) {
        while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
    }

    fn value(chars: &mut Peekable<Chars<'_>>) -> Value {
        skip(chars);
        match *chars.peek().expect("a value") {
            '{' => {
                let mut fields = BTreeMap::new();
                list(chars, '}', |chars| {
                    let Value::String(name) = value(chars) else {
                        panic!("a name")
                    };
                    skip(chars);
                    assert_eq!(chars.next(), Some(':'), "after {name}");
                    assert!(fields.insert(name, value(chars)).is_none(), "a field twice");
                });
                Value::Object(fields)
            }
            '[' => {
                let mut values = Vec::new();
                list(chars, ']', |chars| values.push(value(chars)));
                Value::Array(values)
            }
            '"' => {
                chars.next();
                let mut text = String::new();
                loop {
                    match chars.next().expect("the string ends") {
                        '"' => return Value::String(text),
                        '\\' => match chars.next().expect("escaped") {
                            c @ ('"' | '\\' | '/') => text.push(c),
                            'n' => text.push('\n'),
                            c => panic!("\\{c} is not needed"),
                        },
                        c => text.push(c),
                    }
                }
            }
            _ => {
                let mut word = String::new();
                let part = |c: &char| c.is_ascii_alphanumeric() || "+-.".contains(*c);
                while let Some(c) = chars.next_if(part) {
                    word.push(c);
                }
                match word.as_str() {
                    "true" | "false" | "null" => Value::Word,
                    number => Value::Number(number.parse().expect("a number")),
                }
            }
        }
    }

    fn list(
        chars: &mut Peekable<Chars<'_>>,
        end: char,
        mut item: impl FnMut(&mut Peekable<Chars<'_>>),
    ) {
        chars.next();
        skip(chars);
        if chars.next_if_eq(&end).is_some() {
            return;
        }
        loop {
            item(chars);
            skip(chars);
            match chars.next() {
                Some(',') => {}
                Some(c) if c == end => return,
                other => panic!("{other:?} in a list"),
            }
        }
    }
}
