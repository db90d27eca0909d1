//! The tenant is who the peer's certificate says it is.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use http::{Extensions, Request};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio_rustls::{rustls::pki_types::CertificateDer, server::TlsStream};
use tonic::transport::server::Connected;

use super::ExtractTenant;
use crate::sync::{Mutex, lock};

/// So many connections are remembered, with an ID of at most 2048 bytes each.
const MAX_CONNECTIONS: usize = 4096;

/// Takes the [SPIFFE ID] in the certificate that the client of a tonic server has shown, such as
/// `spiffe://example.org/team/billing`.
///
/// ```
/// use tower_backpressure::{WfqConfig, WfqLayer, wfq::FromSpiffe};
///
/// let config = WfqConfig::default().weight("spiffe://example.org/team/billing", 10);
/// let layer = WfqLayer::new(config, FromSpiffe::new());
/// # let _ = layer;
/// ```
///
/// It is for tonic 0.14 with TLS over TCP or a Unix socket, and `client_ca_root` set: then tonic has
/// verified the certificate, and a client cannot choose its name. Whoever is trusted there to sign
/// certificates is trusted with every name, in every trust domain.
///
/// The name is the one URI among the subject alternative names of the first certificate. Clients are
/// anonymous if they have shown no certificate, if there is no URI in it or more than one, and if the
/// URI is not the SPIFFE ID of a workload. So are those whose ID is longer than the 256 bytes that a
/// tenant's name may have.
///
/// Certificates are looked into once for each connection, of which the last few thousand are remembered.
/// Other servers have the same with [`spiffe_id`], and need no memory for it.
///
/// [SPIFFE ID]: https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md
#[derive(Default)]
pub struct FromSpiffe {
    /// By the address of the certificates.
    connections: Mutex<HashMap<usize, Connection>>,
}

type Certificates = Vec<CertificateDer<'static>>;

struct Connection {
    /// Nothing else can be at this address for as long as this is kept.
    certificates: Weak<Certificates>,
    id: Option<Arc<str>>,
}

impl FromSpiffe {
    /// Knows no connection yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn id(&self, certificates: &Arc<Certificates>) -> Option<Arc<str>> {
        let address = Arc::as_ptr(certificates).addr();
        if let Some(known) = lock(&self.connections).get(&address) {
            return known.id.clone();
        }
        let id = certificates.first().and_then(|leaf| spiffe_id(leaf));
        let connection = Connection {
            certificates: Arc::downgrade(certificates),
            id: id.map(Arc::from),
        };
        let id = connection.id.clone();
        let mut connections = lock(&self.connections);
        if connections.len() >= MAX_CONNECTIONS {
            connections.retain(|_, known| known.certificates.strong_count() > 0);
            // To look through all of them again and again would cost more than to look into certificates.
            if connections.len() > MAX_CONNECTIONS / 2 {
                connections.clear();
            }
        }
        connections.insert(address, connection);
        id
    }
}

impl<B> ExtractTenant<Request<B>> for FromSpiffe {
    fn tenant<'a>(&self, request: &'a Request<B>) -> Option<Cow<'a, str>> {
        let id = self.id(&certificates(request.extensions())?)?;
        // Copied: tonic lends nobody the certificates, so there is nothing in the request to borrow from.
        Some(Cow::Owned(String::from(&*id)))
    }
}

impl fmt::Debug for FromSpiffe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromSpiffe").finish_non_exhaustive()
    }
}

/// What tonic puts into the extensions for connections of that kind: its `TlsConnectInfo`. It exports that
/// name only along with a provider of cryptography, which is for programs to choose and not for libraries.
type ConnectInfo<S> = <TlsStream<S> as Connected>::ConnectInfo;

/// The same `Arc` for all requests of a connection.
fn certificates(extensions: &Extensions) -> Option<Arc<Certificates>> {
    if let Some(tcp) = extensions.get::<ConnectInfo<TcpStream>>() {
        return tcp.peer_certs();
    }
    #[cfg(unix)]
    if let Some(unix) = extensions.get::<ConnectInfo<UnixStream>>() {
        return unix.peer_certs();
    }
    None
}

/// The SPIFFE ID in a certificate (DER), if there is exactly one URI in it and it is the ID of a workload.
///
/// **It verifies nothing**, and what it need not read it does not check: that is for the handshake to do. It
/// is for servers other than tonic, which can look at the peer's first certificate when they accept a
/// connection, and give all of its requests a [`TenantId`](super::TenantId).
pub fn spiffe_id(certificate: &[u8]) -> Option<&str> {
    workload_id(uri(certificate)?)
}

/// Checks an ID as X509-SVID asks for it: that of a leaf has a path.
fn workload_id(uri: &[u8]) -> Option<&str> {
    let id = std::str::from_utf8(uri)
        .ok()
        .filter(|id| id.len() <= 2048)?;
    let (trust_domain, path) = id.strip_prefix("spiffe://")?.split_once('/')?;
    let in_domain = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    let in_path = |byte| in_domain(byte) || byte.is_ascii_uppercase();
    let segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(in_path);
    let valid = matches!(trust_domain.len(), 1..=255)
        && trust_domain.bytes().all(in_domain)
        && path.split('/').all(segment);
    valid.then_some(id)
}

// A certificate is DER, of which this much is enough to get to the names in it (RFC 5280, 4.1 and
// 4.2.1.6). Parsers of all of X.509 would be some 25 more crates to build. webpki, which tonic brings,
// passes over URIs that it cannot read, so that two could look like one.

const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// `[3] EXPLICIT Extensions`, in what is signed.
const EXTENSIONS: u8 = 0xa3;
/// `[6] IMPLICIT IA5String`, among the names.
const URI: u8 = 0x86;
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// The one URI among the subject alternative names of a certificate.
fn uri(certificate: &[u8]) -> Option<&[u8]> {
    let (SEQUENCE, signed) = Elements(the_one(SEQUENCE, certificate)?).next()?? else {
        return None;
    };
    let extensions = the_one(SEQUENCE, the_one(EXTENSIONS, signed)?)?;
    let mut names = None;
    for extension in Elements(extensions) {
        let (_, extension) = extension?;
        if the_one(OBJECT_IDENTIFIER, extension)? == SUBJECT_ALT_NAME {
            let value = the_one(OCTET_STRING, extension)?;
            if names.replace(the_one(SEQUENCE, value)?).is_some() {
                return None;
            }
        }
    }
    the_one(URI, names?)
}

/// The contents of the one element with that tag. `None` if there is none or another one, or if any of
/// them is not DER.
fn the_one(wanted: u8, elements: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    for element in Elements(elements) {
        let (tag, contents) = element?;
        if tag == wanted && found.replace(contents).is_some() {
            return None;
        }
    }
    found
}

/// The elements of DER, each with its tag and its contents. The last is `None` if it is not DER.
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let element = first_element(self.0);
        self.0 = element.map_or(&[], |(_, _, rest)| rest);
        Some(element.map(|(tag, contents, _)| (tag, contents)))
    }
}

/// Its tag, its contents, and what follows it.
fn first_element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, length], rest) = der.split_first_chunk()?;
    if tag & 0x1f == 0x1f {
        return None; // it goes on in the next byte, as none does in a certificate
    }
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // The length is in the next one to three bytes: a handshake has no room for longer ones.
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x0f))?;
            let length = bytes
                .iter()
                .fold(0, |length, &byte| length << 8 | usize::from(byte));
            (length, rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType};

    use super::*;

    const ID: &str = "spiffe://example.org/team/billing";

    fn uri_name(uri: &str) -> SanType {
        SanType::URI(uri.try_into().unwrap())
    }

    fn dns_name(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn certificate_with(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        change(&mut params);
        let certificate = params.self_signed(&KeyPair::generate().unwrap());
        certificate.unwrap().into()
    }

    fn certificate(names: Vec<SanType>) -> CertificateDer<'static> {
        certificate_with(|params| params.subject_alt_names = names)
    }

    #[test]
    fn ids_of_workloads_are_taken_as_they_are() {
        let longest = format!("spiffe://example.org/{}", "a".repeat(2048 - 21));
        let longest_domain = format!("spiffe://{}/a", "a".repeat(255));
        for id in [
            ID,
            "spiffe://example.org/a",
            "spiffe://a/b/c/d/e/f",
            "spiffe://1.2.3.4/workload",
            "spiffe://under_score.da-sh.9/AZaz09._-",
            "spiffe://example.org/...",
            "spiffe://example.org/.hidden/a..b",
            "spiffe://example.org/9eebccd2-12bf-40a6-b262-65fe0487d453",
            &longest,
            &longest_domain,
        ] {
            assert_eq!(workload_id(id.as_bytes()), Some(id));
        }
    }

    #[test]
    fn anything_else_is_no_id() {
        let too_long = format!("spiffe://example.org/{}", "a".repeat(2049 - 21));
        let too_long_domain = format!("spiffe://{}/a", "a".repeat(256));
        for uri in [
            "",
            "spiffe",
            "spiffe:",
            "spiffe:/",
            "spiffe://",
            "spiffe:///",
            "spiffe:///path",
            "spiffe:/example.org/path",
            "spiffe:example.org/path",
            "//example.org/path",
            "example.org/path",
            "https://example.org/path",
            "SPIFFE://example.org/path",
            "Spiffe://example.org/path",
            " spiffe://example.org/path",
            "spiffe://example.org/path ",
            "spiffe://example.org",  // a trust domain, not a workload in it
            "spiffe://example.org/", // likewise
            "spiffe://Example.org/path",
            "spiffe://example.org:443/path",
            "spiffe://example.org:/path",
            "spiffe://user@example.org/path",
            "spiffe://user:pass@example.org/path",
            "spiffe://[::1]/path",
            "spiffe://exämple.org/path",
            "spiffe://example%2eorg/path",
            "spiffe://example.org?query",
            "spiffe://example.org#fragment",
            "spiffe://example.org/path?",
            "spiffe://example.org/path?query",
            "spiffe://example.org/path#",
            "spiffe://example.org/path#fragment",
            "spiffe://example.org/path/",
            "spiffe://example.org//path",
            "spiffe://example.org/path//path",
            "spiffe://example.org/.",
            "spiffe://example.org/..",
            "spiffe://example.org/./path",
            "spiffe://example.org/path/../path",
            "spiffe://example.org/pa%74h",
            "spiffe://example.org/päth",
            "spiffe://example.org/pa th",
            "spiffe://example.org/path\0",
            "spiffe://example.org/path\n",
            "spiffe://example.org/path:1",
            "spiffe://example.org/path,path",
            "spiffe://example.org\\path",
            &too_long,
            &too_long_domain,
        ] {
            assert_eq!(workload_id(uri.as_bytes()), None, "{uri}");
        }
        assert_eq!(workload_id(b"spiffe://example.org/\xff"), None);
    }

    #[test]
    fn the_one_uri_of_a_certificate_is_found_among_other_names() {
        let names = [
            vec![uri_name(ID)],
            vec![dns_name("a.example.org"), uri_name(ID)],
            vec![
                uri_name(ID),
                dns_name("a.example.org"),
                SanType::IpAddress([127, 0, 0, 1].into()),
                SanType::Rfc822Name("a@example.org".try_into().unwrap()),
            ],
        ];
        for names in names {
            assert_eq!(
                spiffe_id(&certificate(names.clone())),
                Some(ID),
                "{names:?}"
            );
        }
    }

    #[test]
    fn a_certificate_without_exactly_one_uri_or_with_another_kind_of_uri_has_no_id() {
        let names = [
            vec![],
            vec![dns_name("a.example.org")],
            vec![dns_name(ID)],
            vec![uri_name("https://example.org/team/billing")],
            vec![uri_name(ID), uri_name(ID)],
            vec![uri_name(ID), uri_name("spiffe://example.org/team/other")],
            vec![uri_name(ID), uri_name("https://example.org/")],
            vec![uri_name("https://example.org/"), uri_name(ID)],
        ];
        for names in names {
            assert_eq!(spiffe_id(&certificate(names.clone())), None, "{names:?}");
        }
    }

    /// What rcgen would not write by itself: the names, or two extensions with them.
    fn names_as(values: &[&[u8]]) -> CertificateDer<'static> {
        certificate_with(|params| {
            let extension =
                |value: &&[u8]| CustomExtension::from_oid_content(&[2, 5, 29, 17], value.to_vec());
            params.custom_extensions = values.iter().map(extension).collect();
        })
    }

    fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
        [&[tag, contents.len().try_into().unwrap()], contents].concat()
    }

    #[test]
    fn names_that_are_not_as_they_should_be_are_no_id() {
        let name = der(URI, ID.as_bytes());
        let names = der(SEQUENCE, &name);
        assert_eq!(spiffe_id(&names_as(&[&names])), Some(ID));

        let unreadable = der(URI, b"\xff");
        let longer_than_it_is = [URI, 0x7f];
        let without_length = [URI, 0x80];
        let of_nine_bytes_of_length = [URI, 0x89, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        let with_a_long_tag = [0x9f, 0x01, 0x00];
        let bad: [&[u8]; 6] = [
            &unreadable,
            &longer_than_it_is,
            &without_length,
            &of_nine_bytes_of_length,
            &with_a_long_tag,
            &[URI],
        ];
        for bad in bad {
            let names = der(SEQUENCE, &[&name, bad].concat());
            assert_eq!(spiffe_id(&names_as(&[&names])), None, "{bad:x?}");
        }
        assert_eq!(spiffe_id(&names_as(&[&names, &names])), None, "twice");
        assert_eq!(spiffe_id(&names_as(&[&name])), None, "no sequence");
        assert_eq!(spiffe_id(&names_as(&[b""])), None, "nothing");
    }

    #[test]
    fn a_certificate_may_be_as_large_as_it_likes() {
        for size in [0, 127, 128, 255, 256, 65_535, 65_536, 1_000_000] {
            let large = certificate_with(|params| {
                params.subject_alt_names = vec![uri_name(ID)];
                let other = CustomExtension::from_oid_content(&[1, 2, 3], vec![0; size]);
                params.custom_extensions = vec![other];
            });
            assert_eq!(spiffe_id(&large), Some(ID), "{size}");
        }
    }

    #[test]
    fn a_certificate_that_is_cut_off_has_no_id() {
        let whole = certificate(vec![dns_name("a.example.org"), uri_name(ID)]);
        for length in 0..whole.len() {
            assert_eq!(spiffe_id(&whole[..length]), None, "{length}");
        }
        assert_eq!(spiffe_id(&whole), Some(ID));
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_it_does_not_panic(bytes: Vec<u8>) {
            prop_assert_eq!(spiffe_id(&bytes), None);
        }

        #[test]
        fn whatever_is_changed_in_a_certificate_it_does_not_panic_and_gives_no_invalid_id(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            thread_local! {
                static CERTIFICATE: CertificateDer<'static> = certificate(vec![uri_name(ID)]);
            }
            let mut bytes = CERTIFICATE.with(|certificate| certificate.to_vec());
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if let Some(id) = spiffe_id(&bytes) {
                prop_assert_eq!(workload_id(id.as_bytes()), Some(id));
            }
        }
    }

    fn connection(id: &str) -> Arc<Certificates> {
        Arc::new(vec![certificate(vec![uri_name(id)])])
    }

    fn connections(of: &FromSpiffe) -> usize {
        lock(&of.connections).len()
    }

    #[test]
    fn it_is_the_first_certificate_that_counts() {
        let other = certificate(vec![uri_name("spiffe://example.org/team/other")]);
        let first = certificate(vec![uri_name(ID)]);
        let nameless = certificate(vec![]);
        let from_spiffe = FromSpiffe::new();
        let id = |chain: Vec<_>| from_spiffe.id(&Arc::new(chain));
        assert_eq!(id(vec![first.clone(), other]).as_deref(), Some(ID));
        assert_eq!(id(vec![nameless, first]), None);
        assert_eq!(id(vec![]), None);
    }

    #[test]
    fn the_certificates_of_a_connection_are_looked_into_once() {
        let from_spiffe = FromSpiffe::new();
        for certificates in [connection(ID), connection("https://example.org/")] {
            let first = from_spiffe.id(&certificates);
            let address = Arc::as_ptr(&certificates).addr();
            // What it remembers is what it gives, so it does not look again.
            let remembered = lock(&from_spiffe.connections)
                .get_mut(&address)
                .map(|known| known.id.replace("remembered".into()));
            assert_eq!(remembered, Some(first));
            let again = from_spiffe.id(&Arc::clone(&certificates));
            assert_eq!(again.as_deref(), Some("remembered"));
        }
    }

    #[test]
    fn a_connection_is_not_taken_for_one_that_is_gone() {
        let from_spiffe = FromSpiffe::new();
        let [one, other] =
            [ID, "spiffe://example.org/team/other"].map(|id| connection(id)[0].clone());
        for _ in 0..100 {
            let expected = [&one, &other].map(|certificate| {
                // Dropped before the next is made, which would have its address.
                from_spiffe.id(&Arc::new(vec![certificate.clone()]))
            });
            assert_eq!(expected[0].as_deref(), Some(ID));
            assert_eq!(
                expected[1].as_deref(),
                Some("spiffe://example.org/team/other")
            );
        }
    }

    #[test]
    fn connections_that_are_gone_are_forgotten_when_there_is_no_room() {
        let from_spiffe = FromSpiffe::new();
        let open: Vec<_> = (0..10).map(|_| Arc::new(vec![])).collect();
        for certificates in &open {
            from_spiffe.id(certificates);
        }
        for _ in open.len()..MAX_CONNECTIONS {
            from_spiffe.id(&Arc::new(vec![]));
        }
        assert_eq!(connections(&from_spiffe), MAX_CONNECTIONS);
        from_spiffe.id(&Arc::new(vec![]));
        assert_eq!(connections(&from_spiffe), open.len() + 1);
        for certificates in &open {
            from_spiffe.id(certificates);
        }
        assert_eq!(connections(&from_spiffe), open.len() + 1);
    }

    #[test]
    fn it_remembers_no_more_than_it_may_however_many_connections_are_open() {
        let from_spiffe = FromSpiffe::new();
        let leaf = connection(ID)[0].clone();
        let open: Vec<_> = (0..3 * MAX_CONNECTIONS)
            .map(|_| Arc::new(vec![leaf.clone()]))
            .collect();
        for certificates in &open {
            assert_eq!(from_spiffe.id(certificates).as_deref(), Some(ID));
            assert!(connections(&from_spiffe) <= MAX_CONNECTIONS);
        }
    }
}
