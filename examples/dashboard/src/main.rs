//! A server to try things on: its limit, its queues and its latency, live in a browser, and sliders that change the
//! load, the workers and the layers while it runs.
//!
//! `cargo run --release -p dashboard`, and open the address that it prints. `--addr 127.0.0.1:3000` for
//! another one.
//!
//! What to see: press "One tenant floods", then switch between no protection, tower's limit and `edge()`. Without protection
//! nobody is answered in time. Tower's limit keeps the server busy, but rejects the other tenants too. With `edge()` they hardly
//! notice.
//!
//! | file | |
//! | --- | --- |
//! | `work.rs` | what the server does: some workers, and a queue in front of them |
//! | `load.rs` | three tenants that send it requests |
//! | `settings.rs` | what the sliders change; it is here that handles are used |
//! | `feed.rs` | what the page is told, five times a second; it is here that snapshots are read |
//! | `page.html`, `script.js` | the page |
//!
//! What is behind the sliders can be done from a shell too: `curl -d limit=40 http://127.0.0.1:3000/set`, and
//! `limit=auto`; `curl -N http://127.0.0.1:3000/events` to see what becomes of it.

mod feed;
mod load;
mod settings;
#[cfg(test)]
mod tests;
mod work;

use std::{convert::Infallible, error::Error, io, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    error_handling::HandleErrorLayer,
    extract::{Query, State},
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{Html, IntoResponse, Sse, sse::Event},
    routing::{get, post},
};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{
    BoxError, ServiceBuilder, limit::GlobalConcurrencyLimitLayer,
    load_shed::LoadShedLayer as TowerShedLayer,
};
use tower_backpressure::{
    CoDelConfig, ConcurrencyLimitLayer, LoadShedLayer, OverloadResponseLayer, Priority, WfqConfig,
    edge, wfq::from_head,
};

use self::{
    feed::Feed,
    load::{LEVELS, Level, TENANTS, Tally, Tenant},
    settings::Settings,
    work::{Undone, Workers},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(addr()?).await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, asked_to_stop()).await?;
    println!("stopped");
    Ok(())
}

/// Serves the page, and what it shows, until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    /// A client that does not read what it was sent is not waited for.
    const GRACE: Duration = Duration::from_secs(2);

    let (app, tasks) = app();
    let (stopping, stops) = oneshot::channel();
    let shutdown = async move {
        shutdown.await;
        drop(tasks); // the load, and the feed: event streams end with it
        let _ = stopping.send(());
    };
    let late = async {
        let _ = stops.await;
        sleep(GRACE).await;
    };
    tokio::select! {
        result = async { axum::serve(listener, app).with_graceful_shutdown(shutdown).await } => result,
        () = late => Ok(()),
    }
}

/// The server, and what goes on beside it until the tasks are dropped.
pub fn app() -> (Router, JoinSet<()>) {
    let mut weights = WfqConfig::default();
    for (tenant, weight) in TENANTS.into_iter().zip(settings::WEIGHTS) {
        weights = weights.weight(tenant, weight);
    }
    let tenant = from_head(|head| Some(TENANTS[head.extensions.get::<Tenant>()?.0]));
    // What this is all about.
    let edge = edge()
        .tenant(tenant)
        .priority(|head| {
            let level = head.extensions.get::<Level>();
            level.map_or(Priority::Normal, |level| LEVELS[level.0])
        })
        .wfq(weights)
        .codel(CoDelConfig::default().target(Duration::from_millis(settings::TARGET_MS.into())))
        .limits(1, 20, 200);

    let workers = Arc::new(Workers::new(settings::WORKERS, settings::SERVICE_TIME));
    let settings = Arc::new(Settings::new(edge.handle(), Arc::clone(&workers)));
    // What one would do without this crate.
    let tower = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(|_: BoxError| async {
            StatusCode::SERVICE_UNAVAILABLE
        }))
        .layer(TowerShedLayer::new())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(
            &settings.tower,
        )));
    let server = Router::new()
        .route("/work", get(work))
        .layer(edge)
        .route("/bare", get(work)) // added after the layer, so without it
        .route("/tower", get(work).layer(tower))
        .with_state(workers);

    let tally = Arc::new(Tally::default());
    let mut tasks = JoinSet::new();
    for tenant in (0..TENANTS.len()).map(Tenant) {
        let (settings, tally) = (Arc::clone(&settings), Arc::clone(&tally));
        tasks.spawn(load::send(tenant, server.clone(), settings, tally));
    }
    let (feed, writing) = Feed::new(Arc::clone(&settings), tally);
    tasks.spawn(writing);

    // An event stream is a request that takes long: each has a place of its own until its body ends.
    let streams = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(100).hold_until_body_end());
    let app = Router::new()
        .route("/", get(page))
        .route("/script.js", get(script))
        .route("/events", get(events).layer(streams).with_state(feed))
        .route("/set", post(set).with_state(settings))
        .merge(server);
    (app, tasks)
}

#[derive(Deserialize)]
struct Work {
    ms: Option<u32>,
}

async fn work(
    State(workers): State<Arc<Workers>>,
    tenant: Option<Extension<Tenant>>,
    level: Option<Extension<Level>>,
    Query(Work { ms }): Query<Work>,
) -> (StatusCode, String) {
    let time = ms.map(|ms| Duration::from_millis(ms.min(10_000).into()));
    let kind = tenant.zip(level);
    let kind = kind.map(|(Extension(tenant), Extension(level))| (tenant, level));
    match workers.work(kind, time).await {
        Ok(()) => (StatusCode::OK, "done\n".into()),
        // Without the layers nobody refuses: this is where memory would have run out.
        Err(Undone::Full) => (StatusCode::INTERNAL_SERVER_ERROR, "out of room\n".into()),
        Err(Undone::Restarted) => (StatusCode::INTERNAL_SERVER_ERROR, "restarted\n".into()),
    }
}

async fn page() -> Html<&'static str> {
    Html(include_str!("page.html"))
}

async fn script() -> impl IntoResponse {
    let script = include_str!("script.js");
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], script)
}

async fn events(State(feed): State<Feed>) -> impl IntoResponse {
    let events = feed
        .read()
        .map(|event| Ok::<_, Infallible>(Event::default().data(event)));
    ([(CACHE_CONTROL, "no-store")], Sse::new(events))
}

/// `name=value`, one at a time.
async fn set(State(settings): State<Arc<Settings>>, change: String) -> (StatusCode, String) {
    let Some((name, value)) = change.trim().split_once('=') else {
        let usage = "say what to change, and to what: limit=40\n";
        return (StatusCode::BAD_REQUEST, usage.into());
    };
    match settings.set(name, value) {
        Ok(()) => (StatusCode::OK, format!("{name} is {value}\n")),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

/// What follows `--addr`.
fn addr() -> Result<String, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (None, _) => Ok("127.0.0.1:3000".into()),
        (Some("--addr"), Some(addr)) => Ok(addr),
        _ => Err("usage: [--addr ADDRESS:PORT]".into()),
    }
}

/// Ctrl-C, or SIGTERM.
async fn asked_to_stop() {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

#[allow(clippy::disallowed_methods, reason = "a client measures real time")]
fn now() -> Instant {
    Instant::now()
}
