//! Fair queueing on a gRPC server with mutual TLS. The tenant of a request is the SPIFFE ID in its client's
//! certificate, which no client can choose.
//!
//! `cargo run --features spiffe --example fair_tenants_mtls` (takes two seconds)
//!
//! What to see: one team sends more than twice what the server can do, and half of its calls are rejected. The other team is
//! served in about 15 ms, and none of its calls is rejected.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep},
};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::{
        Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig,
        server::TcpIncoming,
    },
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_client::HealthClient,
    health_server::{Health, HealthServer},
};
use tower::{BoxError, ServiceBuilder};
use tower_backpressure::{
    ConcurrencyLimitLayer, OverloadResponseLayer, WfqConfig, WfqLayer, wfq::FromSpiffe,
};

/// Four of them at once are 400 a second.
const WORK: Duration = Duration::from_millis(10);
const TIME: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let trusted = Certificate::from_pem(authority.pem());

    let fair = WfqLayer::new(WfqConfig::default(), FromSpiffe::new());
    let handle = fair.handle();
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let address = incoming.local_addr()?;
    let tls = ServerTlsConfig::new()
        .identity(identity(&authority, SanType::IpAddress(address.ip()))?)
        .client_ca_root(trusted.clone()); // without a certificate that is signed by it, nobody gets in
    let server = Server::builder()
        .tls_config(tls)?
        .layer(
            ServiceBuilder::new()
                .layer(OverloadResponseLayer::new())
                .layer(fair)
                .layer(ConcurrencyLimitLayer::new(4)), // what there is to be shared
        )
        .add_service(HealthServer::new(Works));
    tokio::spawn(server.serve_with_incoming(incoming));
    println!("listening on https://{address}; each request takes 10 ms, and 4 are served at once");

    let mut clients = JoinSet::new();
    for (id, every) in [
        ("spiffe://example.org/team/flood", Duration::from_millis(1)),
        ("spiffe://example.org/team/quiet", Duration::from_millis(50)),
    ] {
        let tls = ClientTlsConfig::new()
            .identity(identity(&authority, SanType::URI(id.try_into()?))?)
            .ca_certificate(trusted.clone());
        let endpoint = Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?;
        let client = HealthClient::new(endpoint.connect().await?);
        clients.spawn(async move { (id, send(client, every).await) });
    }

    let done = clients.join_all().await;
    println!("tenant                            served  refused  median   worst  share");
    for (id, latencies) in done {
        let latencies = latencies?;
        let tenant = handle.tenant(id).ok_or("the server knows who it was")?;
        println!(
            "{:32} {:7} {:8} {:>7} {:>7} {:4.0} %",
            tenant.tenant.to_string(),
            tenant.served,
            tenant.rejected,
            latencies
                .get(latencies.len() / 2)
                .map_or("-".into(), millis),
            latencies.last().map_or("-".into(), millis),
            100.0 * tenant.share,
        );
    }
    Ok(())
}

/// A certificate for that name, and its key.
fn identity(
    authority: &CertifiedIssuer<'_, KeyPair>,
    name: SanType,
) -> Result<Identity, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![name];
    let certificate = params.signed_by(&key, authority)?;
    Ok(Identity::from_pem(certificate.pem(), key.serialize_pem()))
}

/// Sends requests at that pace, whatever becomes of them. Gives how long those took that were served,
/// sorted.
async fn send(client: HealthClient<Channel>, every: Duration) -> Result<Vec<Duration>, BoxError> {
    let mut requests = JoinSet::new();
    let mut ticks = interval(every);
    for _ in 0..TIME.as_millis() / every.as_millis() {
        ticks.tick().await;
        let mut client = client.clone();
        requests.spawn(async move {
            #[allow(clippy::disallowed_methods, reason = "a client measures real time")]
            let begun = Instant::now();
            let answer = client.check(HealthCheckRequest::default()).await;
            (answer, begun.elapsed())
        });
    }
    let mut latencies = Vec::new();
    for (answer, latency) in requests.join_all().await {
        match answer {
            Ok(_) => latencies.push(latency),
            Err(status) if status.code() == Code::ResourceExhausted => {}
            Err(status) => return Err(status.into()),
        }
    }
    latencies.sort();
    Ok(latencies)
}

fn millis(latency: &Duration) -> String {
    format!("{} ms", latency.as_millis())
}

/// tonic's health service, which stands for one that has something to do.
struct Works;

#[tonic::async_trait]
impl Health for Works {
    type WatchStream = Streaming<HealthCheckResponse>;

    async fn check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        sleep(WORK).await;
        Ok(Response::new(HealthCheckResponse::default()))
    }

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("only check"))
    }
}
