//! The config of an adaptive limit.

use std::time::Duration;

use crate::{
    ConfigError, Vegas,
    adaptive_concurrency::{Aimd, Bounds, Gradient2, Windowed},
    gate::{bounds::DEFAULT_MAX_WAITING, gate::check_limit, governor::Governs},
};

/// What an [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) holds to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptiveConcurrencyConfig {
    /// What moves the limit. Default: [`Law::Vegas`].
    pub law: Law,
    /// The limit never falls below this. At least 1. Default: the law's own, or what is nearest to it if
    /// that contradicts what is.
    pub min: Option<usize>,
    /// The limit when the layer is made; a limit that is in use goes on from where it is. From `min` to
    /// `max`. Default: the law's own.
    pub initial: Option<usize>,
    /// The limit never rises above this. Default: the law's own.
    pub max: Option<usize>,
    /// The limit is this, whatever the law says, within the bounds or not. At least 1. Default: not pinned.
    pub pinned: Option<usize>,
    /// At most so many callers wait. Default: 1024.
    pub max_waiting: usize,
    /// Nobody waits longer than this. Default: no bound.
    pub max_wait: Option<Duration>,
}

/// What moves an adaptive limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Law {
    /// As [`vegas()`](crate::AdaptiveConcurrencyLayer::vegas), from 1 to 1000, starting with 20. In a file it
    /// is `"vegas"`.
    #[default]
    Vegas,
    /// As [`gradient2()`](crate::AdaptiveConcurrencyLayer::gradient2), from 20 to 200, starting with 20. In a
    /// file it is `"gradient2"`.
    Gradient2,
    /// As [`aimd()`](crate::AdaptiveConcurrencyLayer::aimd), from 20 to 200, starting with 20. In a file it is
    /// `"aimd"`.
    Aimd,
}

impl Law {
    pub(crate) fn limit(self) -> Box<dyn Governs> {
        match self {
            Self::Vegas => Box::new(Vegas::default()),
            Self::Gradient2 => Box::new(Windowed::new(Gradient2::default())),
            Self::Aimd => Box::new(Aimd::default()),
        }
    }
}

impl Default for AdaptiveConcurrencyConfig {
    /// By Vegas, from 1 to 1000, starting with 20, not pinned; 1024 callers may wait, without a bound in time.
    fn default() -> Self {
        Self {
            law: Law::default(),
            min: None,
            initial: None,
            max: None,
            pinned: None,
            max_waiting: DEFAULT_MAX_WAITING,
            max_wait: None,
        }
    }
}

impl AdaptiveConcurrencyConfig {
    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that is not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.bounds().map(drop)
    }

    /// What nobody has asked for does not contradict anything.
    pub(crate) fn bounds(&self) -> Result<Bounds, ConfigError> {
        if let Some(pinned) = self.pinned {
            check_limit(pinned).map_err(|error| error.renamed("pinned"))?;
        }
        let usual = self.law.limit().bounds();
        let max = self.max.unwrap_or_else(|| {
            let asked = self.min.max(self.initial);
            usual.max().max(asked.unwrap_or(0))
        });
        let min = self.min.unwrap_or_else(|| {
            let asked = self.initial.unwrap_or(max);
            usual.min().min(max).min(asked)
        });
        let initial = self.initial.unwrap_or(usual.initial().max(min).min(max));
        let Some(field) = Bounds::fault(min, initial, max) else {
            return Ok(Bounds::new(min, initial, max));
        };
        Err(match field {
            "max" => ConfigError::new(field, "at least 1").found(max),
            "min" => {
                let expected = format!("at least 1 and at most max ({max})");
                ConfigError::new(field, expected).found(min)
            }
            _ => {
                let expected = format!("at least min ({min}) and at most max ({max})");
                ConfigError::new(field, expected).found(initial)
            }
        })
    }
}
