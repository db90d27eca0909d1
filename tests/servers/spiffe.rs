//! Tenants by the SPIFFE ID in their certificates, with tonic's own server and clients and mutual TLS.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};

use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tonic::{
    codegen::{
        http,
        tokio_stream::{self, Stream, StreamExt},
    },
    transport::{
        Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig,
        server::{Connected, TcpConnectInfo, TcpIncoming, TlsConnectInfo},
    },
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::{ServiceBuilder, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, WfqConfig, WfqLayer,
    wfq::{ExtractTenant, FromSpiffe, Handle, Tenant},
};

const ONE: &str = "spiffe://example.org/team/one";
const OTHER: &str = "spiffe://example.org/team/other";

/// Signs certificates, and is trusted by server and clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn certificate(&self) -> Certificate {
        Certificate::from_pem(self.0.pem())
    }

    fn identity(&self, names: Vec<SanType>) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity::from_pem(certificate.pem(), key.serialize_pem())
    }

    /// Serves in the background. Clients need not have a certificate; if they have, it is verified.
    fn serve<E, S, IO>(&self, extract: E, incoming: S) -> Handle
    where
        E: ExtractTenant<http::Request<tonic::body::Body>> + Send + Sync + 'static,
        S: Stream<Item = io::Result<IO>> + Send + 'static,
        IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let fair = WfqLayer::new(WfqConfig::default(), extract);
        let handle = fair.handle();
        let stack = ServiceBuilder::new()
            .layer(fair)
            .layer(ConcurrencyLimitLayer::new(4));
        let tls = ServerTlsConfig::new()
            .identity(self.identity(vec![dns("server.example.org")]))
            .client_ca_root(self.certificate())
            .client_auth_optional(true);
        let server = Server::builder()
            .tls_config(tls)
            .unwrap()
            .layer(stack)
            .add_service(tonic_health::server::health_reporter().1);
        tokio::spawn(server.serve_with_incoming(incoming));
        handle
    }

    fn endpoint(&self, address: &str, identity: Option<Identity>) -> Endpoint {
        let tls = ClientTlsConfig::new()
            .domain_name("server.example.org")
            .ca_certificate(self.certificate());
        let tls = match identity {
            Some(identity) => tls.identity(identity),
            None => tls,
        };
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        endpoint.tls_config(tls).unwrap()
    }
}

fn uri(uri: &str) -> SanType {
    SanType::URI(uri.try_into().unwrap())
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

async fn send(channel: &Channel, requests: usize) {
    let mut client = HealthClient::new(channel.clone());
    for _ in 0..requests {
        let request = HealthCheckRequest::default();
        client.check(request).await.expect("served");
    }
}

/// How many requests were served, of those that had any.
fn served(handle: &Handle) -> HashMap<Tenant, u64> {
    let tenants = handle.tenants().into_iter();
    let served = tenants.map(|tenant| (tenant.tenant, tenant.served));
    served.filter(|&(_, served)| served > 0).collect()
}

fn bind() -> (TcpIncoming, String) {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    (incoming, address)
}

#[tokio::test]
async fn tenants_are_who_their_certificates_say_they_are() {
    let authority = Authority::new();
    let (incoming, address) = bind();
    let handle = authority.serve(FromSpiffe::new(), incoming);
    let connect = async |identity| {
        let endpoint = authority.endpoint(&address, identity);
        endpoint.connect().await.expect("let in")
    };
    let with = async |names| connect(Some(authority.identity(names))).await;

    let one = with(vec![uri(ONE)]).await;
    let other = with(vec![dns("client.example.org"), uri(OTHER)]).await;
    send(&one, 5).await;
    send(&other, 3).await;
    send(&one, 2).await;
    let named = [(ONE.into(), 7), (OTHER.into(), 3)];
    assert_eq!(served(&handle), HashMap::from(named.clone()));

    // The same team from elsewhere, with a certificate of its own.
    send(&with(vec![uri(ONE)]).await, 4).await;
    let named = [(ONE.into(), 11), (OTHER.into(), 3)];
    assert_eq!(served(&handle), HashMap::from(named.clone()));

    // Nobody in particular.
    send(&with(vec![dns("client.example.org")]).await, 1).await;
    send(&with(vec![uri(ONE), uri(OTHER)]).await, 1).await;
    send(&with(vec![uri("https://example.org/team/one")]).await, 1).await;
    send(&connect(None).await, 1).await;
    let mut all = HashMap::from(named);
    all.insert(Tenant::Anonymous, 4);
    assert_eq!(served(&handle), all);
}

#[cfg(unix)]
#[tokio::test]
async fn over_a_unix_socket_too() {
    let authority = Authority::new();
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let incoming = tokio_stream::once(Ok(theirs)).chain(tokio_stream::pending());
    let handle = authority.serve(FromSpiffe::new(), incoming);
    let identity = authority.identity(vec![uri(ONE)]);
    let mut ours = Some(ours);
    let connector = service_fn(move |_| {
        let socket = ours.take().map(TokioIo::new);
        async { socket.ok_or(io::Error::other("there is only one")) }
    });
    let endpoint = authority.endpoint("unix", Some(identity));
    let channel = endpoint.connect_with_connector(connector).await.unwrap();

    send(&channel, 2).await;
    assert_eq!(served(&handle), HashMap::from([(ONE.into(), 2)]));
}

/// What `FromSpiffe` relies on to look into certificates only once.
#[tokio::test]
async fn tonic_gives_the_same_certificates_with_all_requests_of_a_connection() {
    type Seen = Arc<Mutex<Vec<Arc<dyn std::any::Any + Send + Sync>>>>;
    let seen = Seen::default();
    let look = {
        let seen = Arc::clone(&seen);
        move |request: &http::Request<tonic::body::Body>| {
            let info = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
            seen.lock().unwrap().push(info?.peer_certs()?);
            None::<&str>
        }
    };
    let authority = Authority::new();
    let (incoming, address) = bind();
    authority.serve(look, incoming);
    let identity = authority.identity(vec![uri(ONE)]);
    for _ in 0..2 {
        let endpoint = authority.endpoint(&address, Some(identity.clone()));
        send(&endpoint.connect().await.unwrap(), 3).await;
    }

    let seen = seen.lock().unwrap();
    let same = |i: usize, j: usize| Arc::ptr_eq(&seen[i], &seen[j]);
    assert_eq!(seen.len(), 6);
    assert!(same(0, 1) && same(1, 2) && same(3, 4) && same(4, 5));
    assert!(!same(0, 3), "another connection");
}
