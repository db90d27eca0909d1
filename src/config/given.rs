//! What a file has, before it is known what it means.
//!
//! A value is taken as it comes, whatever its type, and only then looked at. So whatever is wrong with it, the error
//! says which field it is, what is allowed there, and what was found.

use std::{
    collections::BTreeMap,
    fmt,
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use super::{Law, units};
use crate::{ConfigError, Rate};

/// So much of a text is repeated in a message.
const LONGEST_TEXT: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    /// JSON's `null`: as if it was not there.
    Nothing,
    Flag(bool),
    Whole(i128),
    Number(f64),
    Text(String),
    List,
    Table(BTreeMap<String, Given>),
}

/// About as it was written.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number:?}"),
            Self::Text(text) => write!(f, "{:?}", shortened(text)),
            Self::List => f.write_str("a list"),
            Self::Table(_) => f.write_str("a table"),
        }
    }
}

pub(super) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST_TEXT).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

impl Given {
    pub(super) fn is_there(&self) -> bool {
        *self != Self::Nothing
    }
}

/// The fields of a config.
pub(super) struct Fields<'a> {
    given: &'a BTreeMap<String, Given>,
}

impl<'a> Fields<'a> {
    /// Of a table. `name` is what it is called if it is none.
    pub(super) fn of(given: &'a Given, name: &str) -> Result<Self, ConfigError> {
        match given {
            Given::Table(given) => Ok(Self { given }),
            _ => Err(ConfigError::new(name, "a table of fields").found(given)),
        }
    }

    pub(super) fn get(&self, field: &str) -> Option<&'a Given> {
        let given = self.given.get(field);
        given.filter(|given| given.is_there())
    }

    /// The value of a field, if it is there.
    pub(super) fn read<T: Value>(&self, field: &str) -> Result<Option<T>, ConfigError> {
        let given = self.get(field);
        given.map(|given| T::read(field, given)).transpose()
    }

    /// Otherwise the value stays as it is.
    pub(super) fn set<T: Value>(&self, field: &str, value: &mut T) -> Result<(), ConfigError> {
        if let Some(read) = self.read(field)? {
            *value = read;
        }
        Ok(())
    }

    /// It has to be there.
    pub(super) fn need<T: Value>(&self, field: &str) -> Result<T, ConfigError> {
        let missing = || ConfigError::that(field, format!("is missing: {}", T::EXPECTED));
        self.read(field)?.ok_or_else(missing)
    }

    /// A number that is 1 or more, if it is there.
    pub(super) fn at_least_1(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        Ok(self.read(field)?.map(NonZeroUsize::get))
    }

    /// Adds what was found, as it was written.
    pub(super) fn explain(&self, error: ConfigError) -> ConfigError {
        match self.get(error.field()) {
            None | Some(Given::Table(_)) => error, // it is about a part of it
            Some(given) => error.found(given),
        }
    }
}

/// What a field may be.
pub(super) trait Value: Sized {
    const EXPECTED: &'static str;

    fn read(field: &str, given: &Given) -> Result<Self, ConfigError>;
}

/// With what is expected, if there is none.
pub(super) fn or_expected<T: Value>(
    value: Option<T>,
    field: &str,
    given: &Given,
) -> Result<T, ConfigError> {
    value.ok_or_else(|| ConfigError::new(field, T::EXPECTED).found(given))
}

macro_rules! value {
    ($type:ty: $expected:expr, $($given:pat => $value:expr),* $(,)?) => {
        impl Value for $type {
            const EXPECTED: &'static str = $expected;

            fn read(field: &str, given: &Given) -> Result<Self, ConfigError> {
                let value = match given {
                    $($given => $value,)*
                    _ => None,
                };
                $crate::config::given::or_expected(value, field, given)
            }
        }
    };
}

value!(usize: "a whole number of at least 0", Given::Whole(number) => Self::try_from(*number).ok());
value!(u32: "a whole number from 0 to 4294967295", Given::Whole(number) => Self::try_from(*number).ok());
value!(NonZeroUsize: "a whole number of at least 1",
    Given::Whole(number) => usize::try_from(*number).ok().and_then(Self::new));
value!(NonZeroU32: "a whole number from 1 to 4294967295",
    Given::Whole(number) => u32::try_from(*number).ok().and_then(Self::new));
value!(bool: "true or false", Given::Flag(flag) => Some(*flag));
value!(f64: "a number",
    Given::Number(number) => Some(*number),
    Given::Whole(number) => Some(*number as Self));
value!(Law: r#""vegas", "gradient2" or "aimd""#, Given::Text(text) => match text.as_str() {
    "vegas" => Some(Self::Vegas),
    "gradient2" => Some(Self::Gradient2),
    "aimd" => Some(Self::Aimd),
    _ => None,
});

impl Value for Duration {
    const EXPECTED: &'static str = units::A_TIME;

    fn read(field: &str, given: &Given) -> Result<Self, ConfigError> {
        let time = match given {
            Given::Text(text) => units::duration(text),
            _ => Err(Self::EXPECTED),
        };
        time.map_err(|expected| ConfigError::new(field, expected).found(given))
    }
}

impl Value for Rate {
    const EXPECTED: &'static str = units::A_RATE;

    fn read(field: &str, given: &Given) -> Result<Self, ConfigError> {
        let rate = match given {
            Given::Text(text) => units::rate(text),
            _ => Err(None),
        };
        rate.or_else(|wrong| match wrong {
            Some(wrong) => {
                let problem = format!("is {given}, but the {wrong}");
                Err(ConfigError::that(field, problem))
            }
            None => or_expected(None, field, given),
        })
    }
}

impl<T: Value> Value for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn read(field: &str, given: &Given) -> Result<Self, ConfigError> {
        T::read(field, given).map(Some)
    }
}

/// A value for each name.
impl<T: Value> Value for BTreeMap<String, T> {
    const EXPECTED: &'static str = "a table of names";

    fn read(field: &str, given: &Given) -> Result<Self, ConfigError> {
        let Given::Table(table) = given else {
            return or_expected(None, field, given);
        };
        let read = |(name, given): (&String, &Given)| {
            let value = T::read(&shortened(name), given).map_err(|error| error.within(field))?;
            Ok((name.clone(), value))
        };
        table.iter().map(read).collect()
    }
}
