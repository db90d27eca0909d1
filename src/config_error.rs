//! What is said to a value that makes no sense.

use std::{error::Error, fmt};

/// A value given at run time makes no sense; nothing was changed.
///
/// Handles give it for values that arrive while the server runs. Constructors, which take
/// literals, panic with the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: &'static str,
    expected: &'static str,
}

impl ConfigError {
    pub(crate) const fn new(field: &'static str, expected: &'static str) -> Self {
        Self { field, expected }
    }

    /// The name of the value that was refused.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.field, self.expected)
    }
}

impl Error for ConfigError {}
