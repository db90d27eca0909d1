//! Clients: so many requests a second to each server, whether or not they are answered in time.

use std::{net::SocketAddr, time::Duration};

use axum::{body::Body, extract::Request};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{task::JoinSet, time::Instant};

/// What came back.
pub struct Sent {
    pub served: [usize; 3],
    pub slowest: Duration,
}

pub async fn send(servers: [SocketAddr; 3], rates: [f64; 3], span: Duration) -> Sent {
    let mut clients = JoinSet::new();
    for (node, (server, rate)) in servers.into_iter().zip(rates).enumerate() {
        if rate > 0.0 {
            clients.spawn(async move { (node, send_to(server, rate, span).await) });
        }
    }
    let mut sent = Sent {
        served: [0; 3],
        slowest: Duration::ZERO,
    };
    while let Some(Ok((node, (served, slowest)))) = clients.join_next().await {
        sent.served[node] = served;
        sent.slowest = sent.slowest.max(slowest);
    }
    sent
}

async fn send_to(server: SocketAddr, rate: f64, span: Duration) -> (usize, Duration) {
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
    let start = tokio::time::sleep(Duration::ZERO).deadline();
    let mut requests = JoinSet::new();
    let mut sent = 0.0;
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    while elapsed(start, ticks.tick().await) < span {
        let due = elapsed(start, ticks.tick().await).as_secs_f64() * rate;
        while sent < due {
            sent += 1.0;
            let request = Request::get(format!("http://{server}/")).body(Body::empty());
            let response = client.request(request.expect("a request"));
            requests.spawn(async move {
                let started = tokio::time::sleep(Duration::ZERO).deadline();
                let served = response
                    .await
                    .is_ok_and(|response| response.status().is_success());
                (served, started.elapsed())
            });
        }
    }
    let answers = requests.join_all().await;
    let slowest = answers
        .iter()
        .map(|(_, took)| *took)
        .max()
        .unwrap_or_default();
    let served = answers.iter().filter(|(served, _)| *served).count();
    (served, slowest)
}

fn elapsed(start: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(start)
}
