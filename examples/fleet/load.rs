//! Clients: so many requests a second to each server, whether or not they are answered in time.

use std::{net::SocketAddr, time::Duration};

use axum::body::Body;
use http::Request;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    task::JoinSet,
    time::{Instant, interval},
};

/// What came back, and how long it was until all of it had.
pub struct Sent {
    pub served: [usize; 3],
    pub took: Duration,
}

pub async fn send(servers: [SocketAddr; 3], rates: [f64; 3], span: Duration) -> Sent {
    let start = interval(span).tick().await;
    let mut clients = JoinSet::new();
    for (node, (server, rate)) in servers.into_iter().zip(rates).enumerate() {
        if rate > 0.0 {
            clients.spawn(async move { (node, send_to(server, rate, start, span).await) });
        }
    }
    let mut served = [0; 3];
    while let Some(Ok((node, of_node))) = clients.join_next().await {
        served[node] = of_node;
    }
    let took = start.elapsed();
    Sent { served, took }
}

async fn send_to(server: SocketAddr, rate: f64, start: Instant, span: Duration) -> usize {
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
    let mut requests = JoinSet::new();
    let mut ticks = interval(Duration::from_millis(5));
    let mut sent = 0.0;
    while start.elapsed() < span {
        ticks.tick().await;
        while sent < start.elapsed().min(span).as_secs_f64() * rate {
            sent += 1.0;
            let request = Request::get(format!("http://{server}/")).body(Body::empty());
            let response = client.request(request.expect("a request"));
            requests.spawn(async { response.await.is_ok_and(|it| it.status().is_success()) });
        }
    }
    let answers = requests.join_all().await;
    answers.into_iter().filter(|served| *served).count()
}
