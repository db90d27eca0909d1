//! How the configs of a client's retries are read.

use std::{num::NonZeroU32, time::Duration};

use super::{
    Config, Deserialize, Deserializer, Error, Field, Fields, Given, Schema, Value, pair, schema,
};
use crate::{
    ConfigError,
    config::RetryConfig,
    law::{backoff::Growth, retry_budget::MAX_PERCENT},
    retry::{Backoff, RetryBudget},
};

config!(
    RetryConfig,
    "retry",
    [&[
        Field::table("backoff", &<Backoff as Config>::SCHEMA),
        Field::table("budget", &<RetryBudget as Config>::SCHEMA),
        Field::value::<u32>("max_retries"),
        Field::value::<Duration>("max_elapsed"),
        Field::value::<bool>("jitter"),
    ]],
    [],
    Self::default(),
    RetryConfig::check,
    |config, fields| {
        config.backoff.read_part(fields, "backoff")?;
        config.budget.read_part(fields, "budget")?;
        fields.set("max_retries", &mut config.max_retries)?;
        fields.set("max_elapsed", &mut config.max_elapsed)?;
        fields.set("jitter", &mut config.jitter)?;
    }
);

config!(
    Backoff,
    "backoff",
    [&[
        Field::value::<Kind>("kind"),
        Field::value::<Duration>("base"),
        Field::value::<Duration>("increment"),
        Field::value::<Duration>("max"),
    ]],
    [
        pair::<Self>("increment", "kind"),
        pair::<Self>("max", "kind"),
        pair::<Self>("base", "max"),
    ],
    RetryConfig::default().backoff,
    |_| Ok(()), // it could not have been made
    |backoff, fields| {
        let kind = fields.read("kind")?.unwrap_or(Kind::Exponential);
        let unfit: &[&str] = match kind {
            Kind::Exponential => &["increment"],
            Kind::Linear => &[],
            Kind::Fixed => &["increment", "max"],
        };
        if let Some(field) = unfit.iter().find(|field| fields.get(field).is_some()) {
            return Err(ConfigError::that(
                field,
                "does not go with this kind of backoff",
            ));
        }
        let (mut base, mut max) = (backoff.delay(0), backoff.delay(u32::MAX));
        fields.set("base", &mut base)?;
        fields.set("max", &mut max)?;
        let growth = match kind {
            Kind::Exponential => Growth::Doubling,
            Kind::Linear => Growth::By(fields.need("increment")?),
            Kind::Fixed => {
                max = base;
                Growth::By(Duration::ZERO)
            }
        };
        let nonsense = |(field, _)| {
            let expected = match kind {
                Kind::Fixed => "above 0".to_owned(),
                _ => format!("above 0 and at most max ({max:?})"),
            };
            let error = ConfigError::new(field, expected);
            fields.explain(error.found(format_args!("{base:?}")))
        };
        *backoff = Backoff::checked(growth, base, max).map_err(nonsense)?;
    }
);

/// How a backoff grows.
enum Kind {
    Exponential,
    Linear,
    Fixed,
}

value!(Kind: r#""exponential", "linear" or "fixed""#, Given::Text(text) => match text.as_str() {
    "exponential" => Some(Self::Exponential),
    "linear" => Some(Self::Linear),
    "fixed" => Some(Self::Fixed),
    _ => None,
});

config!(
    RetryBudget,
    "budget",
    [&[
        Field::value::<Percent>("percent"),
        Field::value::<u32>("per_second"),
        Field::value::<NonZeroU32>("burst"),
    ]],
    [],
    Self::default(),
    |_| Ok(()), // it could not have been made
    |budget, fields| {
        if let Some(Percent(percent)) = fields.read("percent")? {
            *budget = RetryBudget::percent(percent);
        }
        if let Some(retries) = fields.read("per_second")? {
            *budget = budget.per_second(retries);
        }
        if let Some(retries) = fields.read::<NonZeroU32>("burst")? {
            *budget = budget.burst(retries.get());
        }
    }
);

struct Percent(u32);

value!(Percent: "from 0 to 1000",
    Given::Whole(number) => u32::try_from(*number).ok().filter(|percent| *percent <= MAX_PERCENT).map(Self));
