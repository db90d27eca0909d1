//! The levels.

use std::{fmt, str::FromStr};

use http::HeaderValue;

use super::urgency;
use crate::ConfigError;

/// How much a request matters, compared with others. An extension of HTTP requests; see the [module](super).
///
/// The order is that of importance:
///
/// ```
/// use tower_backpressure::Priority;
///
/// assert!(Priority::Critical > Priority::Normal);
/// assert_eq!(Priority::ALL.iter().max(), Some(&Priority::Critical));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Nobody waits for it: batches, prefetching, reports.
    Background,
    /// Less than others.
    Low,
    /// What a request has that says nothing.
    #[default]
    Normal,
    /// More than others.
    High,
    /// What has to work when nothing else does: health checks, payments, logging in.
    Critical,
}

impl Priority {
    /// All of them, from the least important to the most important.
    pub const ALL: [Self; 5] = [
        Self::Background,
        Self::Low,
        Self::Normal,
        Self::High,
        Self::Critical,
    ];

    /// The priority as one word, for headers, configuration files and the labels of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// One step less important. There is nothing below [`Background`](Self::Background).
    ///
    /// ```
    /// use tower_backpressure::Priority;
    ///
    /// assert_eq!(Priority::Normal.lowered(), Priority::Low);
    /// assert_eq!(Priority::Background.lowered(), Priority::Background);
    /// ```
    pub const fn lowered(self) -> Self {
        match self {
            Self::Background | Self::Low => Self::Background,
            Self::Normal => Self::Low,
            Self::High => Self::Normal,
            Self::Critical => Self::High,
        }
    }

    /// The value of the header `priority` of RFC 9218, for a call to another server: `u=0` to `u=7`, where 0 is the most
    /// urgent and 3 the default. [`Rules::dangerously_trust_urgency`](super::Rules::dangerously_trust_urgency) reads it, and gives
    /// the same priority again.
    ///
    /// ```
    /// use http::Request;
    /// use tower_backpressure::Priority;
    ///
    /// let request = Request::get("/").header("priority", Priority::High.urgency()).body(());
    /// assert_eq!(request.unwrap().headers()["priority"], "u=1");
    /// ```
    pub fn urgency(self) -> HeaderValue {
        urgency::write(self)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Priority {
    type Err = ConfigError;

    /// By its name, in upper or lower case.
    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let same = |priority: &Self| priority.as_str().eq_ignore_ascii_case(name);
        Self::ALL.into_iter().find(same).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            ConfigError::new("priority", format_args!("one of {names}"))
                .found(format_args!("{name:?}"))
        })
    }
}

/// The priority's name, as the value of a header of your own or of gRPC metadata.
///
/// ```
/// use http::{HeaderValue, Request};
/// use tonic::metadata::MetadataValue;
/// use tower_backpressure::Priority;
///
/// let request = Request::get("/").header("x-priority", HeaderValue::from(Priority::Low)).body(());
/// assert_eq!(request.unwrap().headers()["x-priority"], "low");
///
/// let mut request = tonic::Request::new(());
/// let priority = MetadataValue::from_static(Priority::Low.as_str());
/// request.metadata_mut().insert("x-priority", priority);
/// ```
impl From<Priority> for HeaderValue {
    fn from(priority: Priority) -> Self {
        Self::from_static(priority.as_str())
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Priority {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Priority {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl serde::de::Visitor<'_> for Name {
            type Value = Priority;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a priority")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Priority, E> {
                name.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Name)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn they_are_in_order_and_in_place() {
        assert!(Priority::ALL.is_sorted());
        for (index, priority) in Priority::ALL.into_iter().enumerate() {
            assert_eq!(priority as usize, index);
            assert_eq!(priority.lowered() as usize, index.saturating_sub(1));
        }
        assert_eq!(Priority::default(), Priority::Normal);
    }

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for priority in Priority::ALL {
            assert_eq!(priority.to_string().parse(), Ok(priority));
            assert_eq!(priority.as_str().to_uppercase().parse(), Ok(priority));
        }
    }

    #[test]
    fn another_name_is_an_error_that_lists_them() {
        let error = "urgent".parse::<Priority>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "priority must be one of background, low, normal, high, critical, not \"urgent\""
        );
        assert!("".parse::<Priority>().is_err());
        assert!(" low".parse::<Priority>().is_err());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn in_a_file_it_is_its_name() {
        let all = serde_json::to_string(&Priority::ALL).unwrap();
        assert_eq!(all, r#"["background","low","normal","high","critical"]"#);
        assert_eq!(
            serde_json::from_str::<[Priority; 5]>(&all).unwrap(),
            Priority::ALL
        );
        let error = serde_json::from_str::<Priority>("\"urgent\"").unwrap_err();
        assert!(
            error.to_string().starts_with("priority must be one of"),
            "{error}"
        );
        assert!(serde_json::from_str::<Priority>("3").is_err());
    }
}
