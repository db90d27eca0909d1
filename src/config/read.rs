//! How each config is read. What is left out stays as it is; what there is must be known and make sense.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
};

use serde::de::{Deserialize, Deserializer, Error};

use super::{
    AdaptiveConcurrencyConfig, ConcurrencyLimitConfig, EdgeConfig, KeyedCircuitBreakerConfig,
    KeyedConcurrencyLimitConfig, KeyedRateLimitConfig, Law, RateLimitConfig, SaturationConfig,
    given::{Fields, Given, Value},
};
use crate::{
    CircuitBreakerConfig, CoDelConfig, ConfigError, Rate, WfqConfig,
    admission::{
        bounds::nanos,
        fair_gate::{A_WEIGHT, check_weight},
    },
    algorithm::breaker::Trip,
    saturation::{self, Thresholds},
};

trait Config: Sized {
    /// What it is called where there is no field that it is the value of.
    const NAME: &'static str;
    /// Its own, and those of its parts that stand beside them.
    const FIELDS: &'static [&'static [&'static str]];

    /// What it is where nothing is given.
    fn blank() -> Self;

    fn read(&mut self, fields: &Fields<'_>) -> Result<(), ConfigError>;

    fn check(&self) -> Result<(), ConfigError>;

    fn read_all(&mut self, given: &Given) -> Result<(), ConfigError> {
        let fields = Fields::of(given, Self::NAME, Self::FIELDS)?;
        self.read(&fields)?;
        self.check().map_err(|error| fields.explain(error))
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
    ($config:ty, $name:literal, $fields:expr, $blank:expr, $check:expr, |$self:ident, $given:ident| $read:block) => {
        impl Config for $config {
            const NAME: &'static str = $name;
            const FIELDS: &'static [&'static [&'static str]] = &$fields;

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
                let given = Given::deserialize(deserializer)?;
                let mut config = <$config as Config>::blank();
                config.read_all(&given).map_err(D::Error::custom)?;
                Ok(config)
            }
        }
    };
}

/// Stands for a rate until one is read.
fn some_rate() -> Rate {
    Rate::per_second(1)
}

config!(
    ConcurrencyLimitConfig,
    "concurrency_limit",
    [&["limit", "max_waiting", "max_wait"]],
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
    [&["rate", "max_waiting", "max_wait"]],
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
    [&["rate", "global", "max_keys", "max_waiting", "max_wait"]],
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

config!(
    KeyedConcurrencyLimitConfig,
    "keyed_concurrency_limit",
    [&[
        "limit",
        "limits",
        "max_waiting",
        "max_waiting_per_key",
        "max_wait"
    ]],
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
        "law",
        "min",
        "initial",
        "max",
        "pinned",
        "max_waiting",
        "max_wait"
    ]],
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
        "target",
        "interval",
        "min_concurrency",
        "max_concurrency",
        "max_sojourn"
    ]],
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
        "weights",
        "default_weight",
        "max_waiting",
        "max_waiting_per_tenant",
        "max_wait",
        "max_tenants",
        "max_in_flight_per_tenant",
    ]],
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
        fields.set("max_wait", &mut config.max_wait)?;
        fields.set("max_tenants", &mut config.max_tenants)?;
        fields.set(
            "max_in_flight_per_tenant",
            &mut config.max_in_flight_per_tenant,
        )?;
    }
);

struct Weight(u32);

value!(Weight: A_WEIGHT, Given::Whole(number) => {
    let weight = u32::try_from(*number).ok();
    weight.and_then(|weight| check_weight(weight).ok()).map(Self)
});

const CIRCUIT: &[&str] = &[
    "failures",
    "failure_rate",
    "window",
    "min_calls",
    "cooldown",
    "successes",
    "probe_lease",
];

config!(
    CircuitBreakerConfig,
    "circuit_breaker",
    [CIRCUIT],
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
    [CIRCUIT, &["max_keys"]],
    Self::default(),
    KeyedCircuitBreakerConfig::check,
    |config, fields| {
        config.circuit.read(fields)?;
        fields.set("max_keys", &mut config.max_keys)?;
    }
);

const THRESHOLDS: &[&str] = &["warning", "critical", "overflow", "hysteresis"];

config!(
    SaturationConfig,
    "saturation",
    [THRESHOLDS, &["sample_every"]],
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
    [&["wfq", "codel", "adaptive"]],
    Self::default(),
    EdgeConfig::check,
    |config, fields| {
        config.wfq.read_part(fields, "wfq")?;
        config.codel.read_part(fields, "codel")?;
        config.adaptive.read_part(fields, "adaptive")?;
    }
);

config!(
    Thresholds,
    "thresholds",
    [THRESHOLDS],
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
                let given = Given::deserialize(deserializer)?;
                Value::read($name, &given).map_err(D::Error::custom)
            }
        }
    )*};
}

single_value!(Rate, "rate"; Law, "law");

#[cfg(feature = "retry")]
mod retry;
