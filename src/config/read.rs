//! How each config is read. What is left out stays as it is; what is given must be a known field with an allowed value.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use serde::de::{Deserialize, Deserializer, Error};

#[cfg(feature = "fleet")]
use super::FleetConfig;
use super::{
    AdaptiveConcurrencyConfig, ConcurrencyLimitConfig, EdgeConfig, KeyedCircuitBreakerConfig,
    KeyedConcurrencyLimitConfig, KeyedRateLimitConfig, Law, RateLimitConfig, SaturationConfig,
    given::{Fields, Given, Value},
    schema::{self, Field, Pair, Schema},
};
#[cfg(feature = "fleet")]
use crate::fleet::Fallback;
use crate::{
    CircuitBreakerConfig, CoDelConfig, ConfigError, Rate, WfqConfig,
    gate::{
        bounds::nanos,
        tenants::{A_WEIGHT, check_weight},
    },
    law::breaker::Trip,
    saturation::{self, Thresholds},
};

trait Config: Sized {
    const SCHEMA: Schema;

    /// What it is where nothing is given.
    fn blank() -> Self;

    fn read(&mut self, fields: &Fields<'_>) -> Result<(), ConfigError>;

    fn check(&self) -> Result<(), ConfigError>;

    fn read_all(&mut self, given: &Given) -> Result<(), ConfigError> {
        let fields = Fields::of(given, Self::SCHEMA.name)?;
        self.read(&fields)?;
        self.check().map_err(|error| fields.explain(error))
    }

    /// Whether a table makes such a config.
    fn check_table(given: &Given) -> Result<(), ConfigError> {
        Self::blank().read_all(given)
    }

    /// As a field of another config.
    fn read_part(&mut self, fields: &Fields<'_>, field: &str) -> Result<(), ConfigError> {
        match fields.get(field) {
            None => Ok(()),
            Some(given @ Given::Table(_)) => {
                let read = self.read_all(given);
                read.map_err(|error| error.within(field))
            }
            Some(given) => Err(ConfigError::new(field, "a table of fields").found(given)),
        }
    }
}

macro_rules! config {
    ($config:ty, $name:literal, $fields:expr, $pairs:expr, $blank:expr, $check:expr, |$self:ident, $given:ident| $read:block) => {
        impl Config for $config {
            const SCHEMA: Schema = Schema {
                name: $name,
                fields: &$fields,
                pairs: &$pairs,
                check: Self::check_table,
            };

            fn blank() -> Self {
                $blank
            }

            fn read(&mut self, $given: &Fields<'_>) -> Result<(), ConfigError> {
                let $self = self;
                $read
                Ok(())
            }

            fn check(&self) -> Result<(), ConfigError> {
                $check(self)
            }
        }

        impl<'de> Deserialize<'de> for $config {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let given = schema::read_table(&<$config as Config>::SCHEMA, deserializer)?;
                let mut config = <$config as Config>::blank();
                config.read_all(&given).map_err(D::Error::custom)?;
                Ok(config)
            }
        }
    };
}

/// Two fields of a config, of which the second can make the first wrong.
const fn pair<C: Config>(wrong: &'static str, because: &'static str) -> Pair {
    Pair {
        fields: (wrong, because),
        check: C::check_table,
    }
}

/// A field that may be wrong whatever the others are: what the config says of it that has this value and no other.
macro_rules! alone {
    ($name:literal, $type:ty, |$value:ident| $check:expr) => {
        Field::checked($name, |field, given| {
            let $value = <$type as Value>::read(field, given)?;
            match $check {
                Err(error) if error.field() == field => Err(error.found(given)),
                _ => Ok(()),
            }
        })
    };
}

/// Stands for a rate until one is read.
fn some_rate() -> Rate {
    Rate::per_second(1)
}

config!(
    ConcurrencyLimitConfig,
    "concurrency_limit",
    [&[
        Field::value::<NonZeroUsize>("limit"),
        Field::value::<usize>("max_waiting"),
        Field::value::<Duration>("max_wait"),
    ]],
    [],
    Self::new(1),
    ConcurrencyLimitConfig::check,
    |config, fields| {
        config.limit = fields.need::<NonZeroUsize>("limit")?.get();
        fields.set("max_waiting", &mut config.max_waiting)?;
        fields.set("max_wait", &mut config.max_wait)?;
    }
);

config!(
    RateLimitConfig,
    "rate_limit",
    [&[
        Field::value::<Rate>("rate"),
        Field::value::<usize>("max_waiting"),
        Field::value::<Duration>("max_wait"),
    ]],
    [],
    Self::new(some_rate()),
    RateLimitConfig::check,
    |config, fields| {
        config.rate = fields.need("rate")?;
        fields.set("max_waiting", &mut config.max_waiting)?;
        fields.set("max_wait", &mut config.max_wait)?;
    }
);

config!(
    KeyedRateLimitConfig,
    "keyed_rate_limit",
    [&[
        Field::value::<Rate>("rate"),
        Field::value::<Rate>("global"),
        Field::value::<usize>("max_keys"),
        Field::value::<usize>("max_waiting"),
        Field::value::<Duration>("max_wait"),
    ]],
    [],
    Self::new(some_rate()),
    KeyedRateLimitConfig::check,
    |config, fields| {
        config.rate = fields.need("rate")?;
        fields.set("global", &mut config.global)?;
        fields.set("max_keys", &mut config.max_keys)?;
        fields.set("max_waiting", &mut config.max_waiting)?;
        fields.set("max_wait", &mut config.max_wait)?;
    }
);

#[cfg(feature = "fleet")]
config!(
    FleetConfig,
    "fleet",
    [&[
        Field::value::<NonZeroU32>("nodes"),
        alone!("prefix", String, |prefix| {
            let config = FleetConfig {
                prefix,
                ..FleetConfig::new(1)
            };
            config.check()
        }),
        alone!("timeout", Duration, |timeout| {
            let config = FleetConfig {
                timeout,
                ..FleetConfig::new(1)
            };
            config.check()
        }),
        Field::value::<Fallback>("fallback"),
    ]],
    [],
    Self::new(1),
    FleetConfig::check,
    |config, fields| {
        config.nodes = fields.need::<NonZeroU32>("nodes")?.get();
        fields.set("prefix", &mut config.prefix)?;
        fields.set("timeout", &mut config.timeout)?;
        fields.set("fallback", &mut config.fallback)?;
    }
);

#[cfg(feature = "fleet")]
value!(String: "text", Given::Text(text) => Some(text.clone()));

#[cfg(feature = "fleet")]
value!(Fallback: r#""local", "open" or "closed""#, Given::Text(text) => match text.as_str() {
    "local" => Some(Self::Local),
    "open" => Some(Self::Open),
    "closed" => Some(Self::Closed),
    _ => None,
});

config!(
    KeyedConcurrencyLimitConfig,
    "keyed_concurrency_limit",
    [&[
        Field::value::<NonZeroUsize>("limit"),
        Field::names::<NonZeroUsize>("limits", |_| Ok(())),
        Field::value::<usize>("max_waiting"),
        Field::value::<usize>("max_waiting_per_key"),
        Field::value::<Duration>("max_wait"),
    ]],
    [],
    Self::new(1),
    KeyedConcurrencyLimitConfig::check,
    |config, fields| {
        config.limit = fields.need::<NonZeroUsize>("limit")?.get();
        if let Some(limits) = fields.read::<BTreeMap<String, NonZeroUsize>>("limits")? {
            let limits = limits.into_iter();
            config.limits = limits.map(|(key, limit)| (key, limit.get())).collect();
        }
        fields.set("max_waiting", &mut config.max_waiting)?;
        fields.set("max_waiting_per_key", &mut config.max_waiting_per_key)?;
        fields.set("max_wait", &mut config.max_wait)?;
    }
);

config!(
    AdaptiveConcurrencyConfig,
    "adaptive_concurrency",
    [&[
        Field::value::<Law>("law"),
        Field::value::<NonZeroUsize>("min"),
        Field::value::<NonZeroUsize>("initial"),
        Field::value::<NonZeroUsize>("max"),
        Field::value::<NonZeroUsize>("pinned"),
        Field::value::<usize>("max_waiting"),
        Field::value::<Duration>("max_wait"),
    ]],
    [
        pair::<Self>("min", "max"),
        pair::<Self>("initial", "min"),
        pair::<Self>("initial", "max"),
    ],
    Self::default(),
    AdaptiveConcurrencyConfig::check,
    |config, fields| {
        fields.set("law", &mut config.law)?;
        config.min = fields.at_least_1("min")?;
        config.initial = fields.at_least_1("initial")?;
        config.max = fields.at_least_1("max")?;
        config.pinned = fields.at_least_1("pinned")?;
        fields.set("max_waiting", &mut config.max_waiting)?;
        fields.set("max_wait", &mut config.max_wait)?;
    }
);

config!(
    CoDelConfig,
    "codel",
    [&[
        alone!("target", Duration, |time| Self::default()
            .target(time)
            .check()),
        Field::value::<Duration>("interval"),
        Field::value::<NonZeroUsize>("min_concurrency"),
        Field::value::<NonZeroUsize>("max_concurrency"),
        alone!("max_sojourn", Duration, |time| Self::default()
            .max_sojourn(time)
            .check()),
    ]],
    [
        pair::<Self>("interval", "target"),
        pair::<Self>("min_concurrency", "max_concurrency"),
    ],
    Self::default(),
    CoDelConfig::check,
    |config, fields| {
        fields.set("target", &mut config.target)?;
        fields.set("interval", &mut config.interval)?;
        config.min_concurrency = fields.at_least_1("min_concurrency")?;
        if let Some(max) = fields.at_least_1("max_concurrency")? {
            config.max_concurrency = max;
        }
        fields.set("max_sojourn", &mut config.max_sojourn)?;
    }
);

config!(
    WfqConfig,
    "wfq",
    [&[
        Field::names::<Weight>("weights", check_tenant),
        Field::value::<Weight>("default_weight"),
        Field::value::<usize>("max_waiting"),
        Field::value::<usize>("max_waiting_per_tenant"),
        Field::value::<MaxWait>("max_wait"),
        Field::value::<usize>("max_tenants"),
        Field::value::<NonZeroU32>("max_in_flight_per_tenant"),
        Field::value::<f64>("priority_floor"),
    ]],
    [],
    Self::default(),
    WfqConfig::check,
    |config, fields| {
        if let Some(weights) = fields.read::<BTreeMap<String, Weight>>("weights")? {
            let weights = weights.into_iter();
            config.weights = weights.map(|(tenant, weight)| (tenant, weight.0)).collect();
        }
        if let Some(weight) = fields.read::<Weight>("default_weight")? {
            config.default_weight = weight.0;
        }
        fields.set("max_waiting", &mut config.max_waiting)?;
        fields.set("max_waiting_per_tenant", &mut config.max_waiting_per_tenant)?;
        if let Some(max_wait) = fields.read::<MaxWait>("max_wait")? {
            config.max_wait = max_wait.0;
        }
        fields.set("max_tenants", &mut config.max_tenants)?;
        fields.set(
            "max_in_flight_per_tenant",
            &mut config.max_in_flight_per_tenant,
        )?;
        fields.set("priority_floor", &mut config.priority_floor)?;
    }
);

/// Of a weight of its own.
fn check_tenant(name: &str) -> Result<(), ConfigError> {
    let weights = [(name.to_owned(), 1)].into_iter().collect();
    let config = WfqConfig {
        weights,
        ..WfqConfig::default()
    };
    config.check()
}

/// A bound that is there by default, and can be turned off.
struct MaxWait(Option<Duration>);

impl Value for MaxWait {
    const EXPECTED: &'static str = Duration::EXPECTED;

    fn read(field: &str, given: &Given) -> Result<Self, ConfigError> {
        match given {
            Given::Text(text) if text == "none" => Ok(Self(None)),
            _ => Duration::read(field, given).map(|max_wait| Self(Some(max_wait))),
        }
    }
}

struct Weight(u32);

value!(Weight: A_WEIGHT, Given::Whole(number) => {
    let weight = u32::try_from(*number).ok();
    weight.and_then(|weight| check_weight(weight).ok()).map(Self)
});

const CIRCUIT: &[Field] = &[
    Field::value::<NonZeroU32>("failures"),
    alone!("failure_rate", f64, |share| circuit()
        .failure_rate(share, Duration::MAX, 1)
        .check()),
    alone!("window", Duration, |window| circuit()
        .failure_rate(1.0, window, 1)
        .check()),
    Field::value::<NonZeroU32>("min_calls"),
    alone!("cooldown", Duration, |time| circuit()
        .cooldown(time)
        .check()),
    Field::value::<NonZeroU32>("successes"),
    alone!("probe_lease", Duration, |time| circuit()
        .probe_lease(time)
        .check()),
];

fn circuit() -> CircuitBreakerConfig {
    CircuitBreakerConfig::default()
}

config!(
    CircuitBreakerConfig,
    "circuit_breaker",
    [CIRCUIT],
    [pair::<CircuitBreakerConfig>("failures", "failure_rate")],
    Self::default(),
    CircuitBreakerConfig::check,
    |config, fields| {
        if let Some(of) = fields.read("failure_rate")? {
            if fields.get("failures").is_some() {
                let problem =
                    "cannot be given together with failure_rate: one of them opens the circuit";
                return Err(ConfigError::that("failures", problem));
            }
            config.trip = Trip::Share {
                of,
                window: nanos(fields.need("window")?),
                calls: fields.need::<NonZeroU32>("min_calls")?.get(),
            };
        } else {
            let goes_with = ["window", "min_calls"].into_iter();
            if let Some(field) = goes_with
                .into_iter()
                .find(|field| fields.get(field).is_some())
            {
                let problem = "is for failure_rate, which is not given";
                return Err(ConfigError::that(field, problem));
            }
            if let Some(failures) = fields.read::<NonZeroU32>("failures")? {
                config.trip = Trip::InARow(failures.get());
            }
        }
        fields.set("cooldown", &mut config.cooldown)?;
        if let Some(successes) = fields.read::<NonZeroU32>("successes")? {
            config.successes = successes.get();
        }
        fields.set("probe_lease", &mut config.probe_lease)?;
    }
);

config!(
    KeyedCircuitBreakerConfig,
    "keyed_circuit_breaker",
    [CIRCUIT, &[Field::value::<usize>("max_keys")]],
    [pair::<CircuitBreakerConfig>("failures", "failure_rate")],
    Self::default(),
    KeyedCircuitBreakerConfig::check,
    |config, fields| {
        config.circuit.read(fields)?;
        fields.set("max_keys", &mut config.max_keys)?;
    }
);

const THRESHOLDS: &[Field] = &[
    alone!("warning", f64, |share| saturation::check(
        &low().warning(share)
    )),
    alone!("critical", f64, |share| saturation::check(
        &low().critical(share)
    )),
    alone!("overflow", f64, |share| saturation::check(
        &low().overflow(share)
    )),
    alone!("hysteresis", f64, |share| saturation::check(
        &high().hysteresis(share)
    )),
];

const THRESHOLD_PAIRS: [Pair; 3] = {
    const fn pair(wrong: &'static str, because: &'static str) -> Pair {
        Pair {
            fields: (wrong, because),
            check: |given| wide().read_all(given),
        }
    }
    [
        pair("critical", "warning"),
        pair("overflow", "critical"),
        pair("hysteresis", "warning"),
    ]
};

/// So low that each of the first three may be anything above 0.
fn low() -> Thresholds {
    let least = f64::MIN_POSITIVE;
    let low = Thresholds::default().warning(least).critical(2.0 * least);
    low.hysteresis(0.0)
}

/// So high that the hysteresis may be anything from 0.
fn high() -> Thresholds {
    wide().warning(1e299)
}

/// So wide that any two of them only have to fit each other.
fn wide() -> Thresholds {
    low().critical(1e300).overflow(1e301)
}

config!(
    SaturationConfig,
    "saturation",
    [THRESHOLDS, &[Field::value::<Duration>("sample_every")]],
    THRESHOLD_PAIRS,
    Self::default(),
    SaturationConfig::check,
    |config, fields| {
        config.thresholds.read(fields)?;
        fields.set("sample_every", &mut config.sample_every)?;
    }
);

config!(
    EdgeConfig,
    "edge",
    [&[
        Field::table("wfq", &<WfqConfig as Config>::SCHEMA),
        Field::table("codel", &<CoDelConfig as Config>::SCHEMA),
        Field::table("adaptive", &<AdaptiveConcurrencyConfig as Config>::SCHEMA),
        Field::value::<bool>("newest_first"),
    ]],
    [],
    Self::default(),
    EdgeConfig::check,
    |config, fields| {
        config.wfq.read_part(fields, "wfq")?;
        config.codel.read_part(fields, "codel")?;
        config.adaptive.read_part(fields, "adaptive")?;
        fields.set("newest_first", &mut config.newest_first)?;
    }
);

config!(
    Thresholds,
    "thresholds",
    [THRESHOLDS],
    THRESHOLD_PAIRS,
    Self::default(),
    saturation::check,
    |thresholds, fields| {
        fields.set("warning", &mut thresholds.warning)?;
        fields.set("critical", &mut thresholds.critical)?;
        fields.set("overflow", &mut thresholds.overflow)?;
        fields.set("hysteresis", &mut thresholds.hysteresis)?;
    }
);

macro_rules! single_value {
    ($($type:ty, $name:literal);*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                schema::read_value($name, deserializer)
            }
        }
    )*};
}

single_value!(Rate, "rate"; Law, "law");

#[cfg(feature = "retry")]
mod retry;
