//! An axum server at three times its capacity, with and without knowing which requests matter and how long clients wait.
//!
//! `cargo run --release --example priorities`
//!
//! The server works on eight requests at once, 20 ms each: 400 a second. It is sent 1,200 a second: checkouts, searches and
//! exports. Clients of the first two give up after 150 ms and say so in a header, those of exports after two seconds.
//!
//! What to see: without priorities, a third of everything is served. With them, nearly every checkout is, the searches get
//! what is left, and the exports their floor of one percent. As many requests are served in both runs.

use std::{sync::Arc, time::Duration};

use axum::{
    BoxError, Router,
    body::Body,
    extract::State,
    http::{HeaderName, Request, StatusCode},
    routing::get,
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_backpressure::{
    DeadlineLayer, Edge, OverloadResponseLayer, Priority, SubmittedAtLayer,
    deadline::Unit,
    edge,
    priority::{self, Rules},
};

/// What is sent, and how long clients wait for it.
const KINDS: [(&str, Priority, Duration); 3] = [
    ("/checkout", Priority::Critical, Duration::from_millis(150)),
    ("/search", Priority::Normal, Duration::from_millis(150)),
    ("/export", Priority::Background, Duration::from_secs(2)),
];
/// Of every ten requests, two checkouts, five searches and three exports.
const MIX: [usize; 10] = [0, 1, 2, 1, 2, 0, 1, 2, 1, 1];
const RATE: u32 = 1200;
const LASTING: u32 = 3; // seconds

const TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!("                sent   in time   too late   rejected   median");
    println!("edge():");
    flood(app(edge(), DeadlineLayer::new())).await?;

    let mut rules = Rules::new();
    for (path, priority, ..) in KINDS {
        rules = rules.route(path, priority);
    }
    let edge = edge().priority(move |head| rules.of(head));
    let handle = edge.handle(); // to look at it
    println!("edge(), with priorities and deadlines:");
    flood(app(
        edge,
        DeadlineLayer::new().header(TIMEOUT, Unit::Millis),
    ))
    .await?;

    println!("\nas the edge saw it:");
    let snapshot = handle.snapshot();
    let sent = |level: &&priority::Snapshot| level.started + level.rejected > 0;
    for level in snapshot.priorities.iter().filter(sent) {
        println!(
            "{:<10} {:>5} started, {:>4} rejected, {:>4} of them displaced by more important ones",
            level.priority, level.started, level.rejected, level.displaced
        );
    }
    let rejected = snapshot.permits.rejected;
    println!(
        "{} could not be done before their deadline any more",
        rejected.deadline + rejected.would_be_late
    );
    Ok(())
}

/// The server.
fn app(edge: Edge, deadlines: DeadlineLayer) -> Router {
    async fn work(State(workers): State<Arc<Semaphore>>) -> &'static str {
        let _worker = workers.acquire().await.expect("it is never closed");
        sleep(Duration::from_millis(20)).await;
        "done\n"
    }
    let mut routes = Router::new();
    for (path, ..) in KINDS {
        routes = routes.route(path, get(work));
    }
    let layers = ServiceBuilder::new()
        .layer(SubmittedAtLayer::new()) // timeouts start here
        .layer(OverloadResponseLayer::new()) // answers what the next layer rejects
        .layer(deadlines)
        .layer(edge);
    routes.layer(layers).with_state(Arc::new(Semaphore::new(8)))
}

/// What became of the requests of one kind.
#[derive(Default)]
struct Seen {
    sent: usize,
    in_time: Vec<Duration>,
    late: usize,
    rejected: usize,
}

/// Sends requests at a steady rate, whatever becomes of them, and prints that.
async fn flood(app: Router) -> Result<(), BoxError> {
    let mut requests = JoinSet::new();
    let begun = now();
    for number in 0..RATE * LASTING {
        sleep_until(begun + Duration::from_secs(1) * number / RATE).await;
        requests.spawn(client(app.clone(), MIX[number as usize % MIX.len()]));
    }
    let mut seen: [Seen; KINDS.len()] = Default::default();
    for result in requests.join_all().await {
        let (kind, status, latency) = result?;
        let seen = &mut seen[kind];
        seen.sent += 1;
        match status {
            StatusCode::OK if latency <= KINDS[kind].2 => seen.in_time.push(latency),
            StatusCode::OK => seen.late += 1,
            _ => seen.rejected += 1,
        }
    }
    for (mut seen, (path, ..)) in seen.into_iter().zip(KINDS) {
        seen.in_time.sort_unstable();
        let in_time = seen.in_time.len();
        let median = seen.in_time.get(in_time / 2).copied().unwrap_or_default();
        println!(
            "  {path:<12}{:>6}{:>8} %{:>9} %{:>9} %{:>6} ms",
            seen.sent,
            100 * in_time / seen.sent,
            100 * seen.late / seen.sent,
            100 * seen.rejected / seen.sent,
            median.as_millis()
        );
    }
    Ok(())
}

async fn client(app: Router, kind: usize) -> Result<(usize, StatusCode, Duration), BoxError> {
    let (path, _, patience) = KINDS[kind];
    let request = Request::get(path)
        .header(TIMEOUT, patience.as_millis().to_string())
        .body(Body::empty())?;
    let sent = now();
    let response = app.oneshot(request).await?;
    Ok((kind, response.status(), sent.elapsed()))
}

#[allow(clippy::disallowed_methods, reason = "a client measures real time")]
fn now() -> Instant {
    Instant::now()
}
