//! The error for a value that is not allowed.

use std::{error::Error, fmt};

/// A value given at run time is not allowed; nothing was changed.
///
/// Handles give it for values that arrive while the server runs, and so do [configs](crate::config) that
/// are read from a file. Constructors, which take literals, panic with the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: String,
    problem: String,
    /// What was given instead, if that is known.
    found: Option<String>,
}

impl ConfigError {
    /// `expected` is what is allowed.
    #[cold]
    pub(crate) fn new(field: &str, expected: impl fmt::Display) -> Self {
        Self::that(field, format!("must be {expected}"))
    }

    /// With another problem than a value that is not allowed.
    #[cold]
    pub(crate) fn that(field: &str, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
            found: None,
        }
    }

    /// This was found instead.
    pub(crate) fn found(self, found: impl fmt::Display) -> Self {
        Self {
            found: Some(found.to_string()),
            ..self
        }
    }

    /// The field is known by another name here.
    pub(crate) fn renamed(self, field: &str) -> Self {
        Self {
            field: field.into(),
            ..self
        }
    }

    /// The field is part of this one.
    pub(crate) fn within(self, outer: &str) -> Self {
        Self {
            field: format!("{outer}.{}", self.field),
            ..self
        }
    }

    /// The name of the value that was refused, after those of what it is part of: `codel.target`.
    pub fn field(&self) -> &str {
        &self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)?;
        match &self.found {
            Some(found) => write!(f, ", not {found}"),
            None => Ok(()),
        }
    }
}

impl Error for ConfigError {}
