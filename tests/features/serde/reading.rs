//! What is read, and what is refused.

use std::{fmt::Debug, time::Duration};

use proptest::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};
use tower_backpressure::{
    CircuitBreakerConfig, CoDelConfig, Rate, WfqConfig, config::*, saturation::Thresholds,
};

use super::{config, read};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// Reads as what has been made by hand.
fn same<T: DeserializeOwned + Debug>(text: &str, expected: &T) {
    let read: T = config(text);
    assert_eq!(format!("{read:?}"), format!("{expected:?}"), "{text}");
}

#[test]
fn what_is_left_out_has_its_default() {
    same("limit = 5", &ConcurrencyLimitConfig::new(5));
    same("rate = '5/s'", &RateLimitConfig::new(Rate::per_second(5)));
    same(
        "rate = '5/s'",
        &KeyedRateLimitConfig::new(Rate::per_second(5)),
    );
    same("limit = 5", &KeyedConcurrencyLimitConfig::new(5));
    same("", &AdaptiveConcurrencyConfig::default());
    same("", &CoDelConfig::default());
    same("", &WfqConfig::default());
    same("", &CircuitBreakerConfig::default());
    same("", &KeyedCircuitBreakerConfig::default());
    same("", &SaturationConfig::default());
    same("", &Thresholds::default());
    same("", &EdgeConfig::default());
    same(
        "wfq = {}\ncodel = {}\nadaptive = {}",
        &EdgeConfig::default(),
    );
}

#[test]
fn every_field_is_read() {
    let mut expected = ConcurrencyLimitConfig::new(7);
    (expected.max_waiting, expected.max_wait) = (0, Some(2 * SEC));
    same("limit = 7\nmax_waiting = 0\nmax_wait = '2s'", &expected);

    let mut expected = RateLimitConfig::new(Rate::per_minute(30).burst(4));
    (expected.max_waiting, expected.max_wait) = (9, Some(15 * MS));
    same(
        "rate = '30/min burst 4'\nmax_waiting = 9\nmax_wait = '15ms'",
        &expected,
    );

    let mut expected = KeyedRateLimitConfig::new(Rate::every(5 * SEC));
    expected.global = Some(Rate::per_hour(9));
    (expected.max_keys, expected.max_waiting) = (3, 4);
    expected.max_wait = Some(SEC);
    same(
        "rate = '1/5s'\nglobal = '9/h'\nmax_keys = 3\nmax_waiting = 4\nmax_wait = '1s'",
        &expected,
    );

    let mut expected = KeyedConcurrencyLimitConfig::new(2);
    expected.limits = [("a".to_owned(), 1), ("b".to_owned(), 9)].into();
    (expected.max_waiting, expected.max_waiting_per_key) = (5, Some(3));
    expected.max_wait = Some(SEC);
    same(
        "limit = 2\nlimits = { a = 1, b = 9 }\nmax_waiting = 5\nmax_waiting_per_key = 3\nmax_wait = '1s'",
        &expected,
    );

    let mut expected = AdaptiveConcurrencyConfig::default();
    expected.law = Law::Aimd;
    (expected.min, expected.initial, expected.max) = (Some(2), Some(4), Some(8));
    (expected.pinned, expected.max_waiting) = (Some(3), 11);
    expected.max_wait = Some(SEC);
    same(
        "law = 'aimd'\nmin = 2\ninitial = 4\nmax = 8\npinned = 3\nmax_waiting = 11\nmax_wait = '1s'",
        &expected,
    );
    for (text, law) in [("vegas", Law::Vegas), ("gradient2", Law::Gradient2)] {
        let read: AdaptiveConcurrencyConfig = config(&format!("law = '{text}'"));
        assert_eq!(read.law, law);
    }

    let expected = CoDelConfig::default().target(20 * MS).interval(2 * SEC);
    let expected = expected.min_concurrency(3).max_concurrency(30);
    same(
        "target = '20ms'\ninterval = '2s'\nmin_concurrency = 3\nmax_concurrency = 30\nmax_sojourn = '0.5s'",
        &expected.max_sojourn(500 * MS),
    );

    let expected = WfqConfig::default().weight("a b", 3).weight("gold", 10);
    let expected = expected.default_weight(2).max_waiting(3).max_tenants(6);
    let expected = expected.max_waiting_per_tenant(4).max_wait(200 * MS);
    same(
        "weights = { gold = 10, 'a b' = 3 }\ndefault_weight = 2\nmax_waiting = 3\nmax_waiting_per_tenant = 4
         max_wait = '200ms'\nmax_tenants = 6\nmax_in_flight_per_tenant = 5",
        &expected.max_in_flight_per_tenant(5),
    );
    same("max_wait = 'none'", &WfqConfig::default().max_wait(None));

    let expected = CircuitBreakerConfig::default().failures(3).successes(4);
    let expected = expected.cooldown(5 * SEC).probe_lease(6 * SEC);
    let text = "failures = 3\nsuccesses = 4\ncooldown = '5s'\nprobe_lease = '6s'";
    same(text, &expected);
    let mut keyed = KeyedCircuitBreakerConfig::default();
    (keyed.circuit, keyed.max_keys) = (expected, 7);
    same(&format!("{text}\nmax_keys = 7"), &keyed);
    let expected = CircuitBreakerConfig::default().failure_rate(0.25, 10 * SEC, 20);
    same(
        "failure_rate = 0.25\nwindow = '10s'\nmin_calls = 20",
        &expected,
    );

    let expected = Thresholds::default()
        .warning(0.2)
        .critical(0.5)
        .overflow(1.0);
    let expected = expected.hysteresis(0.0);
    let text = "warning = 0.2\ncritical = 0.5\noverflow = 1\nhysteresis = 0";
    same(text, &expected);
    let mut saturation = SaturationConfig::default();
    (saturation.thresholds, saturation.sample_every) = (expected, 20 * MS);
    same(&format!("{text}\nsample_every = '20ms'"), &saturation);

    let mut expected = EdgeConfig::default();
    expected.wfq = expected.wfq.weight("gold", 10); // 1024 may wait of one tenant, as in edge()
    expected.codel = expected.codel.target(50 * MS);
    expected.adaptive.max = Some(200);
    same(
        "wfq.weights.gold = 10\ncodel.target = '50ms'\nadaptive.max = 200",
        &expected,
    );
}

#[cfg(feature = "retry")]
#[test]
fn retries_are_read() {
    use tower_backpressure::retry::{Backoff, RetryBudget};

    same("", &RetryConfig::default());
    let mut expected = RetryConfig::default();
    expected.backoff = Backoff::linear(20 * MS, 10 * MS, 2 * SEC);
    expected.budget = RetryBudget::percent(10).per_second(2).burst(50);
    (expected.max_retries, expected.jitter) = (5, false);
    expected.max_elapsed = 30 * SEC;
    same(
        "backoff = { kind = 'linear', base = '20ms', increment = '10ms', max = '2s' }
         budget = { percent = 10, per_second = 2, burst = 50 }
         max_retries = 5\nmax_elapsed = '30s'\njitter = false",
        &expected,
    );
    same("kind = 'fixed'\nbase = '1m'", &Backoff::fixed(60 * SEC));
    same("base = '1s'", &Backoff::exponential(SEC, 10 * SEC));
    same("kind = 'exponential'", &RetryConfig::default().backoff);
    same("per_second = 0", &RetryBudget::percent(20).per_second(0));

    for (text, message) in [
        (
            "backoff = '1s'",
            "backoff must be a table of fields, not \"1s\"",
        ),
        (
            "backoff.kind = 'quick'",
            "backoff.kind must be \"exponential\", \"linear\" or \"fixed\", not \"quick\"",
        ),
        (
            "backoff.base = '0s'",
            "backoff.base must be above 0 and at most max (10s), not \"0s\"",
        ),
        (
            "backoff.base = '20s'",
            "backoff.base must be above 0 and at most max (10s), not \"20s\"",
        ),
        (
            "backoff.max = '1ms'",
            "backoff.base must be above 0 and at most max (1ms), not 100ms",
        ),
        (
            "backoff = { kind = 'fixed', base = '0s' }",
            "backoff.base must be above 0, not \"0s\"",
        ),
        (
            "backoff = { kind = 'fixed', max = '1s' }",
            "backoff.max does not go with this kind of backoff",
        ),
        (
            "backoff.increment = '1s'",
            "backoff.increment does not go with this kind of backoff",
        ),
        (
            "backoff.kind = 'linear'",
            "backoff.increment is missing: a time with its unit, such as \"250us\", \"100ms\", \"1.5s\", \"2m\" or \"1h\"",
        ),
        (
            "budget.percent = 1001",
            "budget.percent must be from 0 to 1000, not 1001",
        ),
        (
            "budget.burst = 0",
            "budget.burst must be a whole number from 1 to 4294967295, not 0",
        ),
        (
            "jitter = 'yes'",
            "jitter must be true or false, not \"yes\"",
        ),
        (
            "max_retries = -1",
            "max_retries must be a whole number from 0 to 4294967295, not -1",
        ),
        (
            "retries = 1",
            "retries is not known here; there are backoff, budget, max_retries, max_elapsed, jitter",
        ),
    ] {
        assert_eq!(read::<RetryConfig>(text).unwrap_err(), message, "{text}");
    }
}

/// What is said of it, whatever it is read as.
type Said = fn(&str) -> Result<(), String>;

fn said<T: DeserializeOwned + Debug>(text: &str) -> Result<(), String> {
    read::<T>(text).map(drop)
}

const A_TIME: &str = r#"a time with its unit, such as "250us", "100ms", "1.5s", "2m" or "1h""#;
const A_RATE: &str = r#"a rate such as "500/s", "30/min", "1/5s" or "500/s burst 100""#;

#[test]
#[rustfmt::skip]
fn nonsense_is_refused_with_the_field_what_is_allowed_and_what_was_found() {
    let (limit, rate, codel): (Said, Said, Said) = (said::<ConcurrencyLimitConfig>, said::<RateLimitConfig>, said::<CoDelConfig>);
    let (keyed_rate, keyed_limit): (Said, Said) = (said::<KeyedRateLimitConfig>, said::<KeyedConcurrencyLimitConfig>);
    let (adaptive, wfq, circuit): (Said, Said, Said) = (said::<AdaptiveConcurrencyConfig>, said::<WfqConfig>, said::<CircuitBreakerConfig>);
    let (circuits, full, edge): (Said, Said, Said) = (said::<KeyedCircuitBreakerConfig>, said::<SaturationConfig>, said::<EdgeConfig>);
    let table: &[(Said, &str, &str)] = &[
        (limit, "", "limit is missing: a whole number of at least 1"),
        (limit, "limit = 0", "limit must be a whole number of at least 1, not 0"),
        (limit, "limit = -1", "limit must be a whole number of at least 1, not -1"),
        (limit, "limit = 1.5", "limit must be a whole number of at least 1, not 1.5"),
        (limit, "limit = '5'", r#"limit must be a whole number of at least 1, not "5""#),
        (limit, "limit = true", "limit must be a whole number of at least 1, not true"),
        (limit, "limit = [1]", "limit must be a whole number of at least 1, not a list"),
        (limit, "limit = { n = 1 }", "limit must be a whole number of at least 1, not a table"),
        (limit, "limit = 1\nmax_wait = 100", &format!("max_wait must be {A_TIME}, not 100")),
        (limit, "limit = 1\nmax_wait = 1.5", &format!("max_wait must be {A_TIME}, not 1.5")),
        (limit, "limit = 1\nmax_wait = '100'", &format!("max_wait must be {A_TIME}, not \"100\"")),
        (limit, "limit = 1\nmax_wait = '1.5ns'", "max_wait must be a whole number of nanoseconds, not \"1.5ns\""),
        (limit, "limit = 1\nmax_wait = '18446744073709551616s'", "max_wait must be a time of at most 584 942 417 355 years, not \"18446744073709551616s\""),
        (limit, "limt = 1", "limt is not known here; there are limit, max_waiting, max_wait"),
        (rate, "", &format!("rate is missing: {A_RATE}")),
        (rate, "rate = 5", &format!("rate must be {A_RATE}, not 5")),
        (rate, "rate = 'fast'", &format!("rate must be {A_RATE}, not \"fast\"")),
        (rate, "rate = '0/s'", "rate is \"0/s\", but the rate must be at least 1 in its period"),
        (rate, "rate = '1/s burst 0'", "rate is \"1/s burst 0\", but the burst of a rate must be at least 1, the cost of one request, and at most 2^40"),
        (rate, "rate = { count = 5 }", &format!("rate must be {A_RATE}, not a table")),
        (keyed_rate, "rate = '1/s'\nglobal = '1000000001/s'", "global is \"1000000001/s\", but the rate must be at most 1 000 000 000 a second"),
        (keyed_rate, "rate = '1/s'\nmax_keys = 'many'", r#"max_keys must be a whole number of at least 0, not "many""#),
        (keyed_limit, "limit = 1\nlimits.a = 0", "limits.a must be a whole number of at least 1, not 0"),
        (keyed_limit, "limit = 1\nlimits.a = 'x'", r#"limits.a must be a whole number of at least 1, not "x""#),
        (keyed_limit, "limit = 1\nlimits = 3", "limits must be a table of names, not 3"),
        (keyed_limit, "limit = 0\nlimits.a = 1", "limit must be a whole number of at least 1, not 0"),
        (adaptive, "law = 'newton'", r#"law must be "vegas", "gradient2" or "aimd", not "newton""#),
        (adaptive, "min = 0", "min must be a whole number of at least 1, not 0"),
        (adaptive, "min = 9\nmax = 8", "min must be at least 1 and at most max (8), not 9"),
        (adaptive, "max = 0", "max must be a whole number of at least 1, not 0"),
        (adaptive, "initial = 9\nmax = 8", "initial must be at least min (1) and at most max (8), not 9"),
        (adaptive, "initial = 1\nmin = 2", "initial must be at least min (2) and at most max (1000), not 1"),
        (adaptive, "pinned = 0", "pinned must be a whole number of at least 1, not 0"),
        (codel, "target = '0ms'", r#"target must be longer than 0 and at most interval (5s), not "0ms""#),
        (codel, "target = '6s'", "interval must be at least the target (6s), and at least 100 ms, not 5s"),
        (codel, "target = '1ms'\ninterval = '99ms'", r#"interval must be at least the target (1ms), and at least 100 ms, not "99ms""#),
        (codel, "min_concurrency = 0", "min_concurrency must be a whole number of at least 1, not 0"),
        (codel, "min_concurrency = 9\nmax_concurrency = 8", "min_concurrency must be at least 1 and at most max_concurrency (8), not 9"),
        (codel, "max_concurrency = 0", "max_concurrency must be a whole number of at least 1, not 0"),
        (codel, "max_sojourn = '0s'", r#"max_sojourn must be longer than 0, not "0s""#),
        (wfq, "weights.gold = 0", "weights.gold must be from 1 to 10 000, not 0"),
        (wfq, "weights.gold = 10001", "weights.gold must be from 1 to 10 000, not 10001"),
        (wfq, "weights.gold = 4294967296", "weights.gold must be from 1 to 10 000, not 4294967296"),
        (wfq, "weights.'' = 1", "weights has a name that is not allowed: tenant must be a name of 1 to 256 bytes"),
        (wfq, "weights = ['gold']", "weights must be a table of names, not a list"),
        (wfq, "default_weight = 0", "default_weight must be from 1 to 10 000, not 0"),
        (wfq, "max_in_flight_per_tenant = 0", "max_in_flight_per_tenant must be a whole number from 1 to 4294967295, not 0"),
        (circuit, "failures = 0", "failures must be a whole number from 1 to 4294967295, not 0"),
        (circuit, "failures = 5\nfailure_rate = 0.5", "failures cannot be given together with failure_rate: one of them opens the circuit"),
        (circuit, "failure_rate = 0.5", &format!("window is missing: {A_TIME}")),
        (circuit, "failure_rate = 0.5\nwindow = '1s'", "min_calls is missing: a whole number from 1 to 4294967295"),
        (circuit, "window = '1s'", "window is for failure_rate, which is not given"),
        (circuit, "failure_rate = 0\nwindow = '1s'\nmin_calls = 1", "failure_rate must be above 0 and at most 1, not 0"),
        (circuit, "failure_rate = nan\nwindow = '1s'\nmin_calls = 1", "failure_rate must be above 0 and at most 1, not NaN"),
        (circuit, "failure_rate = 1.1\nwindow = '1s'\nmin_calls = 1", "failure_rate must be above 0 and at most 1, not 1.1"),
        (circuit, "failure_rate = 1\nwindow = '9ms'\nmin_calls = 1", r#"window must be at least 10 ms, not "9ms""#),
        (circuit, "failure_rate = 1\nwindow = '1s'\nmin_calls = 0", "min_calls must be a whole number from 1 to 4294967295, not 0"),
        (circuit, "cooldown = '0s'", r#"cooldown must be longer than 0, not "0s""#),
        (circuit, "successes = 0", "successes must be a whole number from 1 to 4294967295, not 0"),
        (circuit, "probe_lease = '0s'", r#"probe_lease must be longer than 0, not "0s""#),
        (circuits, "successes = 0", "successes must be a whole number from 1 to 4294967295, not 0"),
        (circuits, "max_key = 1", "max_key is not known here; there are failures, failure_rate, window, min_calls, cooldown, successes, probe_lease, max_keys"),
        (full, "warning = 0", "warning must be more than 0, not 0"),
        (full, "critical = 0.7", "critical must be more than warning, not 0.7"),
        (full, "overflow = inf", "overflow must be more than critical, and finite, not inf"),
        (full, "hysteresis = 0.7", "hysteresis must be at least 0, and less than warning, not 0.7"),
        (full, "warning = '70%'", r#"warning must be a number, not "70%""#),
        (full, "sample_every = 10", &format!("sample_every must be {A_TIME}, not 10")),
        (edge, "codel.target = '0ms'", r#"codel.target must be longer than 0 and at most interval (5s), not "0ms""#),
        (edge, "codel.tarjet = '1ms'", "codel.tarjet is not known here; there are target, interval, min_concurrency, max_concurrency, max_sojourn"),
        (edge, "wfq.weights.gold = 0", "wfq.weights.gold must be from 1 to 10 000, not 0"),
        (edge, "adaptive.max = 0", "adaptive.max must be a whole number of at least 1, not 0"),
        (edge, "adaptive = 'vegas'", r#"adaptive must be a table of fields, not "vegas""#),
        (edge, "cudel = {}", "cudel is not known here; there are wfq, codel, adaptive, newest_first"),
        (edge, "newest_first = 1", "newest_first must be true or false, not 1"),
    ];
    for (said, text, message) in table {
        assert_eq!(said(text), Err((*message).to_owned()), "{text}");
    }
}

/// What nobody has asked for does not contradict what somebody has.
#[test]
fn bounds_that_are_left_out_give_way() {
    for (text, bounds) in [
        ("", (1, 20, 1000)),
        ("max = 5", (1, 5, 5)),
        ("min = 50", (50, 50, 1000)),
        ("min = 2000", (2000, 2000, 2000)),
        ("initial = 2000", (1, 2000, 2000)),
        ("law = 'aimd'", (20, 20, 200)),
        ("law = 'aimd'\nmax = 5", (5, 5, 5)),
        ("law = 'gradient2'\ninitial = 3", (3, 3, 200)),
    ] {
        let config: AdaptiveConcurrencyConfig = config(text);
        let layer = tower_backpressure::AdaptiveConcurrencyLayer::from_config(&config).unwrap();
        assert_eq!(layer.handle().snapshot().permits.limit, bounds.1, "{text}");
        // One beyond is too much, on either side.
        let (min, _, max) = bounds;
        for (initial, fits) in [(min, true), (max, true), (min - 1, false), (max + 1, false)] {
            let text = match text.contains("initial") {
                true => continue,
                false => format!("{text}\ninitial = {initial}"),
            };
            // A bound that is left out gives way to this too.
            let gives_way = !text.contains("min") && initial < min && initial > 0
                || !text.contains("max") && initial > max;
            let read = read::<AdaptiveConcurrencyConfig>(&text);
            assert_eq!(read.is_ok(), fits || gives_way, "{text}");
        }
    }
}

#[test]
fn null_is_as_if_it_was_left_out() {
    let json = r#"{"limit": 5, "max_waiting": null, "max_wait": null}"#;
    let read: ConcurrencyLimitConfig = serde_json::from_str(json).unwrap();
    assert_eq!(read, ConcurrencyLimitConfig::new(5));
    let error = serde_json::from_str::<ConcurrencyLimitConfig>(r#"{"limit": null}"#).unwrap_err();
    assert!(error.to_string().starts_with("limit is missing"), "{error}");
}

#[test]
fn a_field_that_is_given_twice_is_refused() {
    let json = r#"{"limit": 5, "limit": 500}"#;
    let error = serde_json::from_str::<ConcurrencyLimitConfig>(json).unwrap_err();
    assert!(
        error.to_string().starts_with("limit is given twice"),
        "{error}"
    );
}

#[test]
fn what_is_no_table_is_refused_by_name() {
    for (json, message) in [
        ("5", "codel must be a table of fields, not 5"),
        ("[]", "codel must be a table of fields, not a list"),
        ("null", "codel must be a table of fields, not nothing"),
        (
            "\"\\u0000\"",
            "codel must be a table of fields, not \"\\0\"",
        ),
    ] {
        let error = serde_json::from_str::<CoDelConfig>(json).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    // However long it is.
    let json = format!("{:?}", "x".repeat(100_000));
    let error = serde_json::from_str::<CoDelConfig>(&json).unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
}

/// A file has more than one of them, and TOML says which line it is.
#[test]
fn configs_are_parts_of_others() {
    #[derive(Debug, Deserialize)]
    struct Limits {
        uploads: ConcurrencyLimitConfig,
        mails: Rate,
        queue: Thresholds,
        law: Law,
    }
    let text = "mails = '5/min'\nlaw = 'aimd'\nqueue.critical = 0.8\n[uploads]\nlimit = 3";
    let limits: Limits = toml::from_str(text).unwrap();
    assert_eq!((limits.uploads.limit, limits.law), (3, Law::Aimd));
    assert_eq!(limits.mails, Rate::per_minute(5));
    assert_eq!(limits.queue, Thresholds::default().critical(0.8));

    let text = "mails = '5/min'\nlaw = 'aimd'\nqueue.critical = 0.8\n[uploads]\nlimit = 0";
    let error = toml::from_str::<Limits>(text).unwrap_err().to_string();
    assert!(
        error.contains("limit must be a whole number of at least 1, not 0"),
        "{error}"
    );
    assert!(error.contains("line 5, column 9"), "{error}");
    assert_eq!(
        read::<Limits>("mails = '5'").unwrap_err(),
        format!("rate must be {A_RATE}, not \"5\"")
    );
}

/// Any value, for any field that there is, and some that there are not.
fn documents() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
    const FIELDS: &[&str] = &[
        "limit",
        "limits",
        "max_waiting",
        "max_wait",
        "rate",
        "global",
        "max_keys",
        "law",
        "min",
        "initial",
        "max",
        "pinned",
        "target",
        "interval",
        "min_concurrency",
        "max_concurrency",
        "max_sojourn",
        "weights",
        "default_weight",
        "max_in_flight_per_tenant",
        "failures",
        "failure_rate",
        "window",
        "min_calls",
        "cooldown",
        "successes",
        "probe_lease",
        "warning",
        "critical",
        "overflow",
        "hysteresis",
        "sample_every",
        "wfq",
        "codel",
        "adaptive",
        "backoff",
        "budget",
        "kind",
        "base",
        "increment",
        "percent",
        "burst",
        "gold",
        "nonsense",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![0..3_i64, any::<i64>()].prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,8}".prop_map(Value::from),
        "[0-9]{1,22}(ns|us|ms|s|m|h|d)".prop_map(Value::from),
        "[0-9]{1,12}/(s|min|h)( burst [0-9]{1,12})?".prop_map(Value::from),
        prop::sample::select(vec!["vegas", "aimd", "linear", "fixed"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let fields = prop::collection::btree_map(prop::sample::select(FIELDS), inner.clone(), 0..6);
        prop_oneof![
            1 => prop::collection::vec(inner, 0..3).prop_map(Value::from),
            5 => fields.prop_map(|fields| json!(fields)),
        ]
    })
}

/// Whatever it is read as, it is refused with a text or makes sense.
fn is_read_or_refused(json: &str) {
    fn check<T: DeserializeOwned>(json: &str, make: impl FnOnce(T)) {
        match serde_json::from_str(json) {
            Ok(config) => make(config),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    use tower_backpressure::*;
    check(json, |config| {
        drop(ConcurrencyLimitLayer::from_config(&config).unwrap());
    });
    check(json, |config| {
        drop(RateLimitLayer::from_config(&config).unwrap());
    });
    check(json, |config| {
        drop(KeyedRateLimitLayer::from_config(&config, ()).unwrap());
    });
    check(json, |config| {
        drop(KeyedConcurrencyLimitLayer::from_config(&config, ()).unwrap());
    });
    check(json, |config| {
        drop(AdaptiveConcurrencyLayer::from_config(&config).unwrap());
    });
    check(json, |config| drop(CoDelLayer::new(config)));
    check(json, |config| drop(WfqLayer::new(config, ())));
    check(json, |config| drop(CircuitBreakerLayer::new(config)));
    check(json, |config| {
        drop(KeyedCircuitBreakerLayer::from_config(&config, ()).unwrap());
    });
    check(json, |config| {
        drop(SaturationLayer::from_config(&config).unwrap());
    });
    check(json, |config| drop(edge().configured(&config).unwrap()));
    #[cfg(feature = "retry")]
    check(json, |config| {
        drop(RetryPolicy::from_config(&config).unwrap());
    });
}

proptest! {
    #[test]
    fn whatever_is_read_makes_a_layer_or_is_refused(document in documents()) {
        is_read_or_refused(&document.to_string());
    }

    #[test]
    fn whatever_the_text_is_nothing_panics(text in prop_oneof![".{0,60}", "[\\[\\]{}\"a-z0-9=:,.\n ]{0,60}"]) {
        is_read_or_refused(&text);
        let _ = toml::from_str::<EdgeConfig>(&text);
    }
}
