//! gRPC and gRPC-Web, with tonic's clients.

use std::time::Duration;

use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tonic::{Code, Status, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;
use tower_backpressure::SubmittedAt;

use super::*;

async fn check(server: SocketAddr) -> Status {
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let request = HealthCheckRequest::default();
    client.check(request).await.unwrap_err()
}

#[track_caller]
fn assert_told(status: &Status, code: Code) {
    assert_eq!((status.code(), status.message()), (code, "overloaded"));
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    assert_eq!(pushback.unwrap(), "2000");
    let details = status.get_error_details();
    let retry_delay = details.retry_info().and_then(|info| info.retry_delay);
    assert_eq!(retry_delay, Some(Duration::from_secs(2)));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_resource_exhausted_with_the_hint() {
    let server = serve(refusing!(layer())).await;
    assert_told(&check(server).await, Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_server_streaming_call_is_told_the_same() {
    let server = serve(refusing!(layer())).await;
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let status = client.watch(HealthCheckRequest::default()).await;
    assert_told(&status.unwrap_err(), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn it_may_be_unavailable_instead() {
    let server = serve(refusing!(layer().unavailable())).await;
    assert_told(&check(server).await, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_message_may_be_in_any_language() {
    let server = serve(refusing!(layer().message("100 % überlastet"))).await;
    let status = check(server).await;
    assert_eq!(status.message(), "100 % überlastet");
    assert!(status.get_error_details().retry_info().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_internal() {
    let server = serve(failing!(layer())).await;
    let status = check(server).await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::Internal, "internal error")
    );
    assert!(status.metadata().get("grpc-retry-pushback-ms").is_none());
}

/// Byte for byte, as it is on the wire.
#[tokio::test(start_paused = true)]
async fn the_answer_is_headers_only() {
    let server = serve(refusing!(layer())).await;
    let stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{server}/some.Service/Call"))
        .header("content-type", "application/grpc+proto")
        .body(());
    let (response, _) = sender.send_request(request.unwrap(), true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let mut headers: Vec<_> = (response.headers().iter())
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .filter(|(name, _)| *name != "date")
        .collect();
    headers.sort_unstable();
    assert_eq!(
        headers,
        [
            ("content-type", "application/grpc"),
            ("grpc-message", "overloaded"),
            ("grpc-retry-pushback-ms", "2000"),
            ("grpc-status", "8"),
            (
                "grpc-status-details-bin",
                "CAgSCm92ZXJsb2FkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAg"
            ),
        ]
    );
    // No data and no trailers: the end came with the headers.
    assert!(response.body().is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn grpc_web_is_told_the_same() {
    let server = serve(refusing!(layer())).await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let client = ServiceBuilder::new()
        .layer(tonic_web::GrpcWebClientLayer::new())
        .service(client);
    let mut client = HealthClient::with_origin(client, format!("http://{server}").parse().unwrap());
    let status = client.check(HealthCheckRequest::default()).await;
    assert_told(&status.unwrap_err(), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_too_late_is_deadline_exceeded_without_a_hint() {
    for layer in [layer(), layer().unavailable().message("busy")] {
        let server = serve(expired!(layer)).await;
        let status = check(server).await;
        let told = (status.code(), status.message());
        assert_eq!(told, (Code::DeadlineExceeded, "deadline exceeded"));
        assert!(status.metadata().get("grpc-retry-pushback-ms").is_none());
        assert!(status.get_error_details().retry_info().is_none());
    }
}

/// tonic sends a client's timeout as `grpc-timeout`. The request was under way for longer than that.
#[tokio::test(start_paused = true)]
async fn a_clients_timeout_is_its_deadline() {
    let late = |mut request: Request<Incoming>| {
        let submitted = SubmittedAt::ago(Duration::from_secs(60)).expect("the machine is up");
        request.extensions_mut().insert(submitted);
        request
    };
    let service = ServiceBuilder::new()
        .map_request(late)
        .layer(layer())
        .layer(DeadlineLayer::new())
        .service(service_fn(unreached));
    let server = serve(service).await;
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request.set_timeout(Duration::from_secs(30));
    let status = client.check(request).await.unwrap_err();
    let told = (status.code(), status.message());
    assert_eq!(told, (Code::DeadlineExceeded, "deadline exceeded"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_be_late_may_be_served_elsewhere() {
    let server = serve(late!(layer())).await;
    assert_told(&check(server).await, Code::ResourceExhausted);
    let server = serve(late!(layer().unavailable())).await;
    assert_told(&check(server).await, Code::Unavailable);
}
