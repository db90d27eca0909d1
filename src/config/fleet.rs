//! The config of a fleet.

use std::time::Duration;

use crate::{
    ConfigError,
    fleet::{self, Fallback},
};

/// What a [`Fleet`](crate::Fleet) holds to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetConfig {
    /// About how many nodes there are. At least 1; it has to be given.
    pub nodes: u32,
    /// What all keys on the server begin with. Default: `backpressure`.
    pub prefix: String,
    /// How long a call may take. Default: 50 ms.
    pub timeout: Duration,
    /// What limits do while the server does not answer. Default: each node's own share.
    pub fallback: Fallback,
}

impl FleetConfig {
    /// With about so many nodes.
    pub fn new(nodes: u32) -> Self {
        Self {
            nodes,
            prefix: fleet::DEFAULT_PREFIX.to_owned(),
            timeout: fleet::DEFAULT_TIMEOUT,
            fallback: Fallback::default(),
        }
    }

    /// Checks that every field is in its range.
    ///
    /// # Errors
    /// The first field that does not, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.nodes == 0 {
            return Err(ConfigError::new("nodes", "at least 1"));
        }
        if self.timeout.is_zero() {
            return Err(ConfigError::new("timeout", "more than 0"));
        }
        fleet::check_prefix(&self.prefix)
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_and_what_makes_no_sense_is_refused_by_name() {
        let read = |text: &str| {
            toml::from_str::<FleetConfig>(text).map_err(|error| error.message().to_owned())
        };
        assert_eq!(read("nodes = 3"), Ok(FleetConfig::new(3)));
        let all = "nodes = 10\nprefix = 'shop:eu'\ntimeout = '20ms'\nfallback = 'closed'";
        let expected = FleetConfig {
            prefix: "shop:eu".to_owned(),
            timeout: Duration::from_millis(20),
            fallback: Fallback::Closed,
            ..FleetConfig::new(10)
        };
        assert_eq!(read(all), Ok(expected));
        for (text, field) in [
            ("", "nodes is missing"),
            ("nodes = 0", "nodes must be"),
            ("nodes = 1\nprefix = 'a b'", "prefix must be 1 to 64"),
            ("nodes = 1\ntimeout = '0ms'", "timeout must be more than 0"),
            (
                "nodes = 1\nfallback = 'none'",
                "fallback must be \"local\", \"open\" or \"closed\"",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
