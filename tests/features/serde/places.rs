//! Where in a file a mistake is said to be.

use serde::{Deserialize, de::DeserializeOwned};
use tower_backpressure::{CircuitBreakerConfig, Rate, config::*};

/// The line and the column, if there are any, and what the message begins with: the field.
type Place = (Option<(usize, usize)>, String);

fn field(message: &str) -> String {
    message.split(' ').next().unwrap_or_default().to_owned()
}

fn toml<T: DeserializeOwned>(text: &str) -> Place {
    let Err(error) = toml::from_str::<T>(text) else {
        panic!("{text}: there is no mistake in it")
    };
    let said = error.to_string();
    let place = said.strip_prefix("TOML parse error at line ").map(|place| {
        let place = place.lines().next().unwrap();
        let (line, column) = place.split_once(", column ").unwrap();
        (line.parse().unwrap(), column.parse().unwrap())
    });
    (place, field(error.message()))
}

fn json<T: DeserializeOwned>(text: &str) -> Place {
    let Err(error) = serde_json::from_str::<T>(text) else {
        panic!("{text}: there is no mistake in it")
    };
    let place = Some((error.line(), error.column()));
    (place, field(&error.to_string()))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(dead_code, reason = "each is read with a mistake in it")]
struct Limits {
    edge: Option<EdgeConfig>,
    uploads: Option<ConcurrencyLimitConfig>,
    quota: Option<KeyedRateLimitConfig>,
    per_user: Option<KeyedConcurrencyLimitConfig>,
    database: Option<CircuitBreakerConfig>,
    hosts: Option<KeyedCircuitBreakerConfig>,
    queue: Option<SaturationConfig>,
    mails: Option<Rate>,
    law: Option<Law>,
    lanes: Vec<ConcurrencyLimitConfig>,
}

#[test]
#[rustfmt::skip]
fn a_mistake_in_toml_is_at_the_value_that_is_wrong() {
    for (text, place, field) in [
        ("mails = '5/min'\n\n[uploads]\nmax_waiting = -1\nlimit = 5", (4, 15), "max_waiting"),
        ("[edge.wfq]\nmax_wait = '200ms'\n\n[edge.codel]\ninterval = '5s'\ntarget = 100", (6, 10), "codel.target"),
        ("[edge.adaptive]\nmax = 8\nlaw = 'newton'", (3, 7), "adaptive.law"),
        // Not the type, but the number.
        ("[edge.codel]\ninterval = '2s'\ntarget = '0ms'", (3, 10), "codel.target"),
        ("[database]\nfailure_rate = 1.5\nwindow = '1s'\nmin_calls = 5", (2, 16), "failure_rate"),
        ("[database]\nfailure_rate = 0.5\nmin_calls = 5\n\nwindow = '1ms'", (5, 10), "window"),
        ("[database]\nfailure_rate = 0.5\ncooldown = '0s'", (3, 12), "cooldown"),
        ("[hosts]\nmax_keys = 5\nprobe_lease = '0s'", (3, 15), "probe_lease"),
        ("[hosts]\nmax_keys = 5\nsuccesses = 0", (3, 13), "successes"),
        ("[queue]\noverflow = 0.99\nwarning = -1", (3, 11), "warning"),
        ("[queue]\n\nhysteresis = -0.5", (3, 14), "hysteresis"),
        ("[queue]\ncritical = nan", (2, 12), "critical"),
        ("[queue]\nwarning = 0.1\noverflow = inf", (3, 12), "overflow"),
        // Inline tables, dotted names, and lists of tables.
        ("[edge]\ncodel = { interval = '5s', target = '0ms' }", (2, 37), "codel.target"),
        ("edge = { codel = { target = '0ms' } }", (1, 29), "codel.target"),
        ("edge.adaptive.law = 'vegas'\nedge.adaptive.max = 0", (2, 21), "adaptive.max"),
        ("[[lanes]]\nlimit = 5\n[[lanes]]\nlimit = 0", (4, 9), "limit"),
        ("lanes = [{ limit = 5 }, { limit = '5' }]", (1, 35), "limit"),
        // Names of one's own.
        ("[edge.wfq]\nweights = { gold = 10, silver = 0 }", (2, 33), "wfq.weights.silver"),
        ("[edge.wfq.weights]\ngold = 10\n'' = 3", (3, 1), "wfq.weights"),
        ("[per_user]\nlimit = 5\n[per_user.limits]\na = 3\nb = 'x'", (5, 5), "limits.b"),
        // Something else than a value, or than a table.
        ("[uploads]\nmax_waiting = 7\nlimit = [\n  5\n]", (3, 9), "limit"),
        ("[uploads]\nlimit = { n = 5 }", (2, 9), "limit"),
        ("[quota]\nrate = 1979-05-27", (2, 8), "rate"),
        ("[edge]\nadaptive = 'vegas'", (2, 12), "adaptive"),
        ("[edge]\nwfq.weights = 5", (2, 15), "wfq.weights"),
        ("law = 'aimd'\nedge = [1]", (2, 8), "edge"),
        // Values that are no part of a config.
        ("law = 'aimd'\nmails = '5'", (2, 9), "rate"),
        ("mails = '1/s'\nlaw = 5", (2, 7), "law"),
        ("[quota]\n\nrate = '1/s burst 0'", (3, 8), "rate"),
    ] {
        assert_eq!(toml::<Limits>(text), (Some(place), field.to_owned()), "{text}");
    }
}

#[test]
#[rustfmt::skip]
fn a_name_that_is_not_known_is_at_that_name() {
    for (text, place, field) in [
        ("[edge]\ncudel = {}", (2, 1), "cudel"),
        ("[edge.codel]\ninterval = '5s'\ntarjet = '1ms'", (3, 1), "codel.tarjet"),
        ("[edge]\ncodel.target = '1ms'\n  codel.tarjet = '1ms'", (3, 9), "codel.tarjet"),
        ("mails = '1/s'\n[hosts]\nmax_key = 5", (3, 1), "max_key"),
    ] {
        assert_eq!(toml::<Limits>(text), (Some(place), field.to_owned()), "{text}");
    }
}

/// It is found at the second of them, which in TOML is so by their names, and is about one of them.
#[test]
#[rustfmt::skip]
fn of_two_that_contradict_each_other_one_is_pointed_at() {
    for (text, place, field) in [
        ("[edge.adaptive]\nmax = 8\nlaw = 'aimd'\nmin = 9", (4, 7), "adaptive.min"),
        ("[edge.adaptive]\nmin = 9\n\ninitial = 3", (2, 7), "adaptive.initial"),
        ("[edge.adaptive]\ninitial = 9\nmax = 8", (3, 7), "adaptive.initial"),
        ("[edge.codel]\ntarget = '6s'\ninterval = '5s'", (2, 10), "codel.interval"),
        ("[edge.codel]\nmax_concurrency = 5\nmin_concurrency = 6", (3, 19), "codel.min_concurrency"),
        ("[database]\nfailures = 5\nfailure_rate = 0.5", (2, 12), "failures"),
        ("[queue]\nwarning = 0.9\ncritical = 0.8", (2, 11), "critical"),
        // Whatever a third one says, and whether or not that is given.
        ("[queue]\ncritical = 0.3\noverflow = 0.2", (3, 12), "overflow"),
        ("[queue]\ncritical = 0.3\noverflow = 0.2\nwarning = 0.1", (3, 12), "overflow"),
        ("[queue]\nwarning = 0.2\nhysteresis = 0.4", (2, 11), "hysteresis"),
    ] {
        assert_eq!(toml::<Limits>(text), (Some(place), field.to_owned()), "{text}");
    }
    // Each of them alone contradicts the default of another, which the third one changes.
    for text in [
        "[queue]\ncritical = 0.3\noverflow = 0.4\nwarning = 0.2",
        "[edge.codel]\ntarget = '6s'\ninterval = '7s'",
        "[edge.adaptive]\nlaw = 'aimd'\nmax = 5\nmin = 3\ninitial = 4",
    ] {
        toml::from_str::<Limits>(text).unwrap();
    }
}

/// A field that is missing, or that contradicts what another is unless it is given.
#[test]
#[rustfmt::skip]
fn what_is_wrong_with_a_table_is_at_that_table() {
    for (text, place, field) in [
        ("mails = '1/s'\n[uploads]\nmax_waiting = 5", (2, 1), "limit"),
        ("mails = '1/s'\nuploads = { max_waiting = 5 }", (2, 11), "limit"),
        ("mails = '1/s'\n[edge.codel]\ntarget = '6s'", (2, 1), "codel.interval"),
        ("mails = '1/s'\n[database]\nwindow = '1s'", (2, 1), "window"),
        ("mails = '1/s'\n[database]\nfailure_rate = 0.5", (2, 1), "window"),
        ("mails = '1/s'\n[queue]\ncritical = 0.1", (2, 1), "critical"),
    ] {
        assert_eq!(toml::<Limits>(text), (Some(place), field.to_owned()), "{text}");
    }
}

/// The file itself is the config.
#[test]
fn so_it_is_at_the_root() {
    let at = |line, column, field: &str| (Some((line, column)), field.to_owned());
    let text = "# about uploads\nmax_waiting = 5\nlimit = 0";
    assert_eq!(toml::<ConcurrencyLimitConfig>(text), at(3, 9, "limit"));
    let text = "limit = 5\nmaxwait = '1s'";
    assert_eq!(toml::<ConcurrencyLimitConfig>(text), at(2, 1, "maxwait"));
    let text = "[codel]\ninterval = '5s'\n\n[adaptive]\nlaw = 'aimd'\nmax = 'x'";
    assert_eq!(toml::<EdgeConfig>(text), at(6, 7, "adaptive.max"));
    let text = "min = 9\nmax = 8";
    assert_eq!(toml::<AdaptiveConcurrencyConfig>(text), at(1, 7, "min"));
    // The whole of a file begins where the file does.
    let text = "\nmax_waiting = 5";
    assert_eq!(toml::<ConcurrencyLimitConfig>(text), at(1, 1, "limit"));
}

/// JSON says where it was when the mistake was found: right behind it.
#[test]
fn json_says_where_it_is_too() {
    let at = |line, column, field: &str| (Some((line, column)), field.to_owned());
    for (text, place) in [
        (
            r#"{
                "edge": {
                    "codel": {
                        "interval": "2s",
                        "target": 100
                    }
                }
            }"#,
            at(5, 37, "codel.target"),
        ),
        (
            r#"{
                "edge": {
                    "codel": {
                        "tarjet": 100
                    }
                }
            }"#,
            at(4, 32, "codel.tarjet"),
        ),
        (
            r#"{
                "edge": {
                    "wfq": {
                        "weights": {
                            "gold": 10,
                            "silver": "3"
                        }
                    }
                }
            }"#,
            at(6, 41, "wfq.weights.silver"),
        ),
        (
            r#"{
                "edge": {
                    "adaptive": {
                        "min": 9,
                        "max": 8,
                        "law": "aimd"
                    }
                }
            }"#,
            at(5, 32, "adaptive.min"),
        ),
        (
            r#"{
                "uploads": {
                    "limit": 5,
                    "limit": 6
                }
            }"#,
            at(4, 27, "limit"),
        ),
        (
            r#"{
                "uploads": {
                    "limit": { "n": 5 },
                    "max_waiting": 5
                }
            }"#,
            at(3, 31, "limit"),
        ),
        (
            r#"{
                "mails": "5",
                "law": "aimd"
            }"#,
            at(2, 28, "rate"),
        ),
        // Of a table as a whole, where that ends.
        (
            r#"{
                "uploads": {
                    "max_waiting": 5
                },
                "law": "aimd"
            }"#,
            at(4, 17, "limit"),
        ),
    ] {
        assert_eq!(json::<Limits>(text), place, "{text}");
    }
    let text = "{\n  \"max_waiting\": 5,\n  \"limit\": 0\n}";
    assert_eq!(json::<ConcurrencyLimitConfig>(text), at(3, 12, "limit"));
}

#[cfg(feature = "retry")]
#[test]
fn so_do_retries() {
    let at = |line, column, field: &str| (Some((line, column)), field.to_owned());
    for (text, place) in [
        (
            "max_retries = 5\n[backoff]\nbase = '1'",
            at(3, 8, "backoff.base"),
        ),
        (
            "[backoff]\nkind = 'fixed'\nmax = '1s'",
            at(3, 7, "backoff.max"),
        ),
        (
            "[backoff]\nincrement = '1s'\nkind = 'exponential'",
            at(3, 8, "backoff.increment"),
        ),
        (
            "[backoff]\nbase = '2s'\nmax = '1s'",
            at(3, 7, "backoff.base"),
        ),
        (
            "jitter = true\nbudget = { percent = 1001 }",
            at(2, 22, "budget.percent"),
        ),
        ("max_retries = 5\njitter = 1", at(2, 10, "jitter")),
        ("max_retries = 5\nretires = 1", at(2, 1, "retires")),
    ] {
        assert_eq!(toml::<RetryConfig>(text), place, "{text}");
    }
}

/// Where serde keeps values before it passes them on, the place is lost, and nothing else.
#[test]
fn what_serde_has_kept_is_read_all_the_same() {
    #[derive(Debug, Deserialize)]
    struct Flat {
        name: String,
        #[serde(flatten)]
        limit: ConcurrencyLimitConfig,
    }
    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "which one it is will do")]
    enum Either {
        Limit(ConcurrencyLimitConfig),
        Rate(RateLimitConfig),
    }
    let flat: Result<Flat, _> = toml::from_str("name = 'a'\nlimit = 5\nmax_wait = '1s'");
    assert_eq!(
        flat.map(|flat| (flat.name, flat.limit.limit)),
        Ok(("a".to_owned(), 5))
    );
    let flat = toml::from_str::<Flat>("name = 'a'\nlimit = 0").unwrap_err();
    assert_eq!(field(flat.message()), "limit");
    for (text, is_rate) in [("limit = 5", false), ("rate = '5/s'", true)] {
        let either: Either = toml::from_str(text).unwrap();
        assert_eq!(matches!(either, Either::Rate(_)), is_rate);
    }
    let table: toml::Table = toml::from_str("target = '1ms'\ninterval = '1s'").unwrap();
    let json = serde_json::to_value(&table).unwrap();
    assert!(serde_json::from_value::<CoDelConfig>(json).is_ok());
    assert!(table.try_into::<CoDelConfig>().is_ok());
}
