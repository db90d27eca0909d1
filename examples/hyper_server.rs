//! A hyper server with bounds on connections, on the time for the head of a request, and on requests.
//!
//! `cargo run --release --features hyper,net --example hyper_server -- --addr 127.0.0.1:3000`
//!
//! ```sh
//! wrk -c 400 -t 2 -d 10s 'http://127.0.0.1:3000/work?ms=50'
//! curl http://127.0.0.1:3001/health
//! ```
//!
//! What to see: while `wrk` runs, the limit settles and what is over it is rejected with 503. Requests are stamped when hyper
//! has decoded them, so the time that they wait in the runtime's queue counts towards their age.

mod serve;

use std::{convert::Infallible, error::Error, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{pin, time::timeout};
use tower::{ServiceBuilder, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ByStatus, CoDelConfig, CoDelLayer, OverloadResponseLayer,
    submitted_at::StampDecoded,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limit = AdaptiveConcurrencyLayer::vegas().limits(1, 20, 100);
    let handle = limit.handle();
    let service = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new())
        .layer(CoDelLayer::new(CoDelConfig::default()).hold_until_body_end())
        .layer(limit.classify(ByStatus).hold_until_body_end())
        .service(service_fn(work));
    let service = StampDecoded::new(TowerToHyperService::new(service));

    let mut server = Builder::new(TokioExecutor::new());
    // The listener has seen to the first head; this is for the next ones. It does nothing without a timer.
    (server.http1().timer(TokioTimer::new())).header_read_timeout(Duration::from_secs(5));
    (server.http2().timer(TokioTimer::new()))
        .max_concurrent_streams(100)
        .keep_alive_interval(Duration::from_secs(20));

    let listener = serve::listen().await?;
    serve::health(listener.local_addr()?, move || {
        let limit = handle.snapshot().permits;
        format!("{} of {} in flight\n", limit.in_flight, limit.limit)
    })
    .await?;

    let graceful = GracefulShutdown::new();
    let shutdown = serve::shutdown();
    pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("accept: {error}"); // no file descriptor is left, say
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let connection = server.serve_connection(TokioIo::new(stream), service.clone());
        let connection = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            let _ = connection.await; // a client that went away
        });
    }
    let end = Duration::from_secs(20); // less than the platform gives, which is often 30 s
    let _ = timeout(end, graceful.shutdown()).await;
    println!("stopped");
    Ok(())
}

/// `/work?ms=50` takes 50 ms.
async fn work(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let query = request.uri().query().unwrap_or_default();
    let ms = query.strip_prefix("ms=").and_then(|ms| ms.parse().ok());
    Ok(match (request.uri().path(), ms) {
        ("/work", Some(ms)) => {
            tokio::time::sleep(Duration::from_millis(ms).min(Duration::from_secs(10))).await;
            Response::new(format!("worked for {ms} ms\n").into())
        }
        _ => {
            let mut response = Response::new(Full::from("try /work?ms=50\n"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    })
}
