//! The address of the client, as a key for limits: what it is connected from, or what a trusted proxy says.
//!
//! ```
//! use axum::{Router, body::Body, routing::get};
//! use http::Request;
//! use tower::ServiceBuilder;
//! use tower_backpressure::{
//!     KeyedRateLimitLayer, OverloadResponseLayer, PeerAddr, Rate, client_addr::ClientAddr,
//! };
//!
//! # fn main() -> Result<(), tower_backpressure::ConfigError> {
//! let client = ClientAddr::peer();
//! // Or, on a server that clients only reach through a proxy in this network:
//! let client = ClientAddr::behind(["10.0.0.0/8"])?;
//!
//! let limit = KeyedRateLimitLayer::new(
//!     Rate::per_second(10).burst(20),
//!     move |request: &Request<Body>| client.key(request),
//! );
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(
//!     ServiceBuilder::new().layer(OverloadResponseLayer::new()).layer(limit),
//! );
//! # #[cfg(feature = "axum")]
//! let app = app.into_make_service_with_connect_info::<PeerAddr>(); // for `axum::serve`, with the feature `axum`
//! # let _ = app;
//! # Ok(())
//! # }
//! ```
//!
//! # Where the peer's address comes from
//! From the [`PeerAddr`] in the request's extensions. A server that accepts connections itself puts it there. With the
//! feature `axum`, so does `into_make_service_with_connect_info::<PeerAddr>()`, for a `TcpListener` and for a
//! `ConnectionLimit` around any listener with socket addresses. axum's own `ConnectInfo<SocketAddr>`, which there is for a
//! bare `TcpListener` only, is found too.
//!
//! # Behind proxies
//! A proxy appends the address that it was connected from to `x-forwarded-for`. Whatever a client has sent is in front
//! of that, so the first entry can be anything. [`ClientAddr::behind`] reads the entries from the last to the first, as
//! long as the one that has written them is trusted: the result is the last address that is not one of a trusted proxy.
//! If the peer itself is not trusted, the header is not looked at. An entry that is no address ends the search, and the
//! proxy that has passed it on is taken for the client.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, Request};

use crate::ConfigError;

/// The address from which a connection comes, as the listener saw it: in the extensions of requests.
///
/// It is a type of its own because axum has its `ConnectInfo<SocketAddr>` for a bare `TcpListener` only. See the
/// [module](self) for what it is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

impl PeerAddr {
    /// That of the connection on which this request came.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        let extensions = request.extensions();
        if let Some(peer) = extensions.get::<Self>() {
            return Some(*peer);
        }
        #[cfg(feature = "axum")]
        {
            use axum::extract::ConnectInfo;
            if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<Self>>() {
                return Some(*peer);
            }
            if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() {
                return Some(Self(*peer));
            }
        }
        None
    }

    /// The address without the port. That of an IPv4 client of a socket that listens on both is an IPv4 address.
    pub fn ip(&self) -> IpAddr {
        self.0.ip().to_canonical()
    }
}

// Not for all listeners at once: that might overlap with what axum has for its `TapIo`.
#[cfg(feature = "axum")]
const _: () = {
    use axum::{
        extract::connect_info::Connected,
        serve::{IncomingStream, Listener},
    };
    use tokio::net::TcpListener;

    use crate::ConnectionLimit;

    impl<L> Connected<IncomingStream<'_, ConnectionLimit<L>>> for PeerAddr
    where
        L: Listener<Addr = SocketAddr> + Sync,
    {
        fn connect_info(stream: IncomingStream<'_, ConnectionLimit<L>>) -> Self {
            Self(*stream.remote_addr())
        }
    }

    impl Connected<IncomingStream<'_, TcpListener>> for PeerAddr {
        fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
            Self(*stream.remote_addr())
        }
    }

    impl Connected<SocketAddr> for PeerAddr {
        fn connect_info(peer: SocketAddr) -> Self {
            Self(peer)
        }
    }
};

/// Finds the address of the client. See the [module](self).
#[derive(Clone, Debug)]
pub struct ClientAddr {
    trusted: Vec<Network>,
}

impl ClientAddr {
    /// The client is the peer of the connection. No header is looked at.
    pub fn peer() -> Self {
        Self {
            trusted: Vec::new(),
        }
    }

    /// The peer, or a proxy further out, may be one of these: addresses (`192.0.2.7`) or networks (`10.0.0.0/8`, `fd00::/8`). What
    /// those say in `x-forwarded-for` is believed.
    ///
    /// Only proxies that append to the header, or overwrite it, may be trusted. One that passes it on as it is lets
    /// clients choose their address.
    ///
    /// # Errors
    /// If one of them is not an address or a network.
    pub fn behind<N: AsRef<str>>(
        proxies: impl IntoIterator<Item = N>,
    ) -> Result<Self, ConfigError> {
        let parse = |proxy: N| {
            let proxy = proxy.as_ref();
            let error = || ConfigError::new("proxies", "an address or a network").found(proxy);
            Network::parse(proxy).ok_or_else(error)
        };
        let trusted = proxies.into_iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { trusted })
    }

    /// The client's address, if that of the peer is known.
    pub fn ip<B>(&self, request: &Request<B>) -> Option<IpAddr> {
        let peer = PeerAddr::of(request)?.ip();
        Some(self.client(peer, request.headers()))
    }

    /// The client's address as a key for a limit: of an IPv6 address, the first 64 bits. A single customer has all of
    /// the other 64, and could have a quota for each of them.
    pub fn key<B>(&self, request: &Request<B>) -> Option<IpAddr> {
        Some(match self.ip(request)? {
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            ip => ip,
        })
    }

    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        // Several lines are one list.
        let lines = headers.get_all("x-forwarded-for").iter().rev();
        let mut hops = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        while self.trusts(client) {
            let Some(hop) = hops.next().and_then(address) else {
                break;
            };
            client = hop;
        }
        client
    }

    fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(ip))
    }
}

/// An entry of `x-forwarded-for`. Some proxies add the port.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?.trim();
    let without_port = || Some(hop.parse::<SocketAddr>().ok()?.ip());
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let ip: Option<IpAddr> = hop.parse().ok().or_else(without_port).or_else(bracketed);
    ip.map(|ip| ip.to_canonical())
}

/// So many bits of an address.
#[derive(Clone, Copy, Debug)]
struct Network {
    ip: IpAddr,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().ok()?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let bits: u32 = bits.unwrap_or(most);
        let network = (bits <= most).then_some(Self { ip, bits })?;
        // Clients are compared by canonical addresses, in which IPv4 is not written as IPv6.
        Some(match ip.to_canonical() {
            IpAddr::V4(mapped) if ip.is_ipv6() && bits >= 96 => Self {
                ip: mapped.into(),
                bits: bits - 96,
            },
            _ => network,
        })
    }

    fn contains(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let differs = own.to_bits() ^ ip.to_bits();
                self.bits == 0 || differs >> (32 - self.bits) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let differs = own.to_bits() ^ ip.to_bits();
                self.bits == 0 || differs >> (128 - self.bits) == 0
            }
            _ => false,
        }
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(peer: &str, lines: &[&str]) -> Request<()> {
        let mut request = Request::new(());
        let peer = SocketAddr::new(peer.parse().unwrap(), 1234);
        request.extensions_mut().insert(PeerAddr(peer));
        for line in lines {
            let line = line.parse().unwrap();
            request.headers_mut().append("x-forwarded-for", line);
        }
        request
    }

    #[test]
    fn the_client_is_the_last_hop_that_is_not_trusted() {
        let trusted = ["10.0.0.0/8", "192.0.2.7", "fd00::/8"];
        let behind = ClientAddr::behind(trusted).unwrap();
        for (peer, lines, client) in [
            ("203.0.113.1", &["1.2.3.4"][..], "203.0.113.1"), // made up
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.1"], "203.0.113.1"),
            ("10.0.0.1", &["1.2.3.4, 203.0.113.1"], "203.0.113.1"), // the first is made up
            ("10.0.0.1", &["1.2.3.4", "203.0.113.1"], "203.0.113.1"),
            (
                "10.0.0.1",
                &["1.2.3.4,203.0.113.1,192.0.2.7 , 10.9.9.9"],
                "203.0.113.1",
            ),
            ("10.0.0.1", &["203.0.113.1", "192.0.2.7"], "203.0.113.1"),
            ("10.0.0.1", &["203.0.113.1:4711"], "203.0.113.1"),
            ("fd00::1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("fd00::1", &["[2001:db8::1]"], "2001:db8::1"),
            ("::ffff:10.0.0.1", &["::ffff:203.0.113.1"], "203.0.113.1"),
            ("10.0.0.1", &["10.0.0.2, 10.0.0.3"], "10.0.0.2"), // a client inside
            ("10.0.0.1", &["1.2.3.4, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["1.2.3.4, unknown, 10.0.0.5"], "10.0.0.5"),
            ("10.0.0.1", &["1.2.3.4,"], "10.0.0.1"),
            ("192.0.2.8", &["1.2.3.4"], "192.0.2.8"),
        ] {
            let found = behind.ip(&request(peer, lines));
            assert_eq!(found, Some(client.parse().unwrap()), "{peer} {lines:?}");
        }
        let forwarded = request("10.0.0.1", &["203.0.113.1"]);
        let peer = ClientAddr::peer().ip(&forwarded);
        assert_eq!(peer, Some("10.0.0.1".parse().unwrap()));
        assert_eq!(behind.ip(&Request::new(())), None);
    }

    #[test]
    fn ipv6_addresses_of_one_network_have_one_key() {
        let key = |ip| ClientAddr::peer().key(&request(ip, &[])).unwrap();
        assert_eq!(key("2001:db8:1:2:3:4:5:6"), key("2001:db8:1:2:ffff::1"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    }

    #[test]
    fn what_is_no_network_is_an_error() {
        for wrong in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "proxy",
            "10.0.0.1:80",
        ] {
            let error = ClientAddr::behind(["10.0.0.1", wrong]).unwrap_err();
            assert!(
                error.to_string().contains("an address or a network"),
                "{error}"
            );
        }
        for mapped in ["::ffff:10.0.0.0/104", "::ffff:10.0.0.1"] {
            let behind = ClientAddr::behind([mapped]).unwrap();
            let found = behind.ip(&request("10.0.0.1", &["192.0.2.7"]));
            assert_eq!(found, Some("192.0.2.7".parse().unwrap()), "{mapped}");
        }
        let everybody = ClientAddr::behind(["0.0.0.0/0", "::/0"]).unwrap();
        let first = everybody.ip(&request("10.0.0.1", &["1.2.3.4, 203.0.113.1"]));
        assert_eq!(first, Some("1.2.3.4".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn no_header_is_too_much_for_it(bytes in prop::collection::vec(32..=255_u8, 0..100)) {
            let mut request = request("10.0.0.1", &[]);
            if let Ok(value) = http::HeaderValue::from_bytes(&bytes) {
                request.headers_mut().insert("x-forwarded-for", value);
            }
            prop_assert!(ClientAddr::behind(["0.0.0.0/0"]).unwrap().key(&request).is_some());
        }
    }
}
