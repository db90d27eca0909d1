//! What a limit's key on the server is called.

use std::{
    borrow::Cow,
    hash::Hash,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sha1_smol::Sha1;

use crate::ConfigError;

/// What a request is counted by, on all nodes alike: an address, an account, an API key.
///
/// A `Hash` is a matter of one process, so the nodes know a key by its bytes. They may be any: what would be too long for a
/// key on the server, or could be taken for a part of its syntax, is hashed there ([names](crate::fleet#names-on-the-server)).
///
/// Implement it for a type of your own. Two keys are the same if their bytes are, and then their hashes have to be, too.
///
/// ```
/// use std::borrow::Cow;
/// use tower_backpressure::fleet::FleetKey;
///
/// #[derive(Hash)]
/// struct Account(u32);
///
/// impl FleetKey for Account {
///     fn bytes(&self) -> Cow<'_, [u8]> {
///         Cow::Owned(self.0.to_string().into_bytes())
///     }
/// }
/// ```
pub trait FleetKey: Hash {
    /// What it is known by. It is asked for when the node calls the server, not for each request.
    fn bytes(&self) -> Cow<'_, [u8]>;
}

impl<T: FleetKey + ?Sized> FleetKey for &T {
    fn bytes(&self) -> Cow<'_, [u8]> {
        (**self).bytes()
    }
}

macro_rules! keys {
    (as bytes: $($type:ty),*; as text: $($shown:ty),* $(,)?) => {
        $(impl FleetKey for $type {
            fn bytes(&self) -> Cow<'_, [u8]> {
                let bytes: &[u8] = self.as_ref();
                Cow::Borrowed(bytes)
            }
        })*
        $(impl FleetKey for $shown {
            fn bytes(&self) -> Cow<'_, [u8]> {
                Cow::Owned(self.to_string().into_bytes())
            }
        })*
    };
}

keys! {
    as bytes: str, String, [u8], Vec<u8>, bytes::Bytes, http::HeaderValue;
    as text: u16, u32, u64, u128, usize, i32, i64, IpAddr, Ipv4Addr, Ipv6Addr,
}

/// As long as a client's part of a key may be that is not hashed.
const LONGEST: usize = 64;

/// The key of a limit: `prefix:{limit}`.
pub(super) fn of_limit(prefix: &str, limit: &str) -> Box<[u8]> {
    format!("{prefix}:{{{limit}}}").into_bytes().into()
}

/// The key of one client at a limit: `prefix:{limit:client}`. What is in the braces decides on which server of a cluster it is,
/// so that each client's is its own.
///
/// A client that is not plain is `#` and its SHA-1. A plain one has no `#`, so no client can be taken for another.
pub(super) fn of_client(prefix: &str, limit: &str, client: &[u8]) -> Box<[u8]> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:@/+=".contains(byte);
    let hashed;
    let client = match client {
        [] => "#",
        _ if client.len() <= LONGEST && client.iter().all(plain) => {
            std::str::from_utf8(client).unwrap_or("#") // they are ASCII
        }
        _ => {
            hashed = format!("#{}", Sha1::from(client).digest());
            &hashed
        }
    };
    format!("{prefix}:{{{limit}:{client}}}").into_bytes().into()
}

/// The key of those that a node has no room to tell apart.
pub(super) fn of_overflow(prefix: &str, limit: &str, number: usize) -> Box<[u8]> {
    format!("{prefix}:{{{limit}:#overflow-{number}}}")
        .into_bytes()
        .into()
}

/// A part of a key that an operator chooses.
pub(super) fn check(field: &str, part: &str) -> Result<(), ConfigError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    match part.len() {
        1..=LONGEST if part.bytes().all(plain) => Ok(()),
        _ => {
            let allowed = "1 to 64 of the characters A-Z a-z 0-9 - _ . : /";
            Err(ConfigError::new(field, allowed).found(format_args!("{part:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(bytes: &[u8]) -> String {
        String::from_utf8(of_client("app", "quota", bytes).into()).expect("it is text")
    }

    #[test]
    fn a_plain_client_can_be_read_on_the_server() {
        assert_eq!(
            client(b"alice@example.org"),
            "app:{quota:alice@example.org}"
        );
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(client(&address.bytes()), "app:{quota:2001:db8::1}");
        assert_eq!(client(&42u64.bytes()), "app:{quota:42}");
    }

    #[test]
    fn any_other_is_hashed_and_cannot_choose_the_tag_or_be_taken_for_another() {
        let long = vec![b'a'; 10_000];
        let hostile: [&[u8]; 9] = [
            b"a}b",
            b"{",
            b"a b",
            b"\xff\xfe",
            b"a\r\nDEL x",
            "\u{e9}".as_bytes(),
            &long,
            &long[..65],
            b"#1",
        ];
        let mut names: Vec<_> = hostile.iter().map(|bytes| client(bytes)).collect();
        for name in &names {
            let hash = name
                .strip_prefix("app:{quota:#")
                .and_then(|rest| rest.strip_suffix('}'));
            let hash = hash.expect("it is hashed");
            assert!(
                hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{name}"
            );
        }
        names.extend([client(b""), client(&long[..64]), client(b"1")]);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 12);
    }

    #[test]
    fn an_operator_is_told_what_a_name_may_have_in_it() {
        assert!(check("name", "shop:eu/orders-1").is_ok());
        for bad in ["", "a b", "{a}", "é", &"a".repeat(65)] {
            let error = check("name", bad).unwrap_err().to_string();
            assert!(
                error.starts_with("name must be 1 to 64 of the characters"),
                "{error}"
            );
        }
    }
}
