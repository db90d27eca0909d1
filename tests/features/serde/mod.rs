//! Configs: what is read from a file, what is refused and how that is said, and what becomes of a layer that
//! is in use when one is applied.

use crate::support;

mod applying;
mod places;
mod reading;

use std::fmt::Debug;

use serde::de::DeserializeOwned;

/// From TOML, and from JSON that says the same; both have to agree.
fn read<T: DeserializeOwned + Debug>(text: &str) -> Result<T, String> {
    let from_toml = toml::from_str::<T>(text).map_err(|error| error.message().to_owned());
    if text.contains("nan") || text.contains("inf") {
        return from_toml; // JSON has no such numbers
    }
    let json = toml::from_str::<toml::Table>(text).expect("it is TOML");
    let json = serde_json::to_string(&json).unwrap();
    let from_json = serde_json::from_str::<T>(&json).map_err(|error| {
        let said = error.to_string();
        let place = said.rfind(" at line").unwrap_or(said.len());
        said[..place].to_owned()
    });
    assert_eq!(format!("{from_toml:?}"), format!("{from_json:?}"), "{text}");
    from_toml
}

/// What has to be fine.
fn config<T: DeserializeOwned + Debug>(text: &str) -> T {
    read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
