//! Settings from a file that apply when it changes. A file with a mistake is reported, and changes nothing.
//!
//! `cargo run --features serde --example reload` edits a file of its own, and ends after five seconds.
//! `cargo run --features serde --example reload -- limits.toml` watches that one until Ctrl-C; edit it
//! meanwhile.
//!
//! What to see: after the first edit four times as many requests pass. The second has a time without its unit: the error names
//! the field, and nothing changes until the third edit.

use std::{
    convert::Infallible,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use tokio::time::{interval, sleep};
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, RateLimitLayer, concurrency_limit,
    config::{ConcurrencyLimitConfig, RateLimitConfig},
    rate_limit,
};

/// What a look at the file costs is nothing; its content, unlike its time, also tells edits within a second
/// from each other.
const LOOK_EVERY: Duration = Duration::from_millis(500);

const START: &str = r#"
[requests]
rate = "100/s burst 10"
max_waiting = 0             # what is over the rate is refused

[workers]
limit = 2
max_wait = "50ms"
"#;

/// The whole file. It is read, and so checked, before any of it applies.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    requests: RateLimitConfig,
    workers: ConcurrencyLimitConfig,
}

/// What is in use.
#[derive(Clone)]
struct Handles {
    requests: rate_limit::Handle,
    workers: concurrency_limit::Handle,
}

impl Handles {
    fn apply(&self, limits: &Limits) -> Result<(), BoxError> {
        self.requests.apply(&limits.requests)?;
        self.workers.apply(&limits.workers)?;
        Ok(())
    }

    fn report(&self) {
        let (requests, workers) = (self.requests.snapshot(), self.workers.snapshot());
        println!(
            "    requests: {:?}, {} passed",
            requests.rate, requests.admitted
        );
        println!(
            "    workers: limit {}, at most {} busy, {} done",
            workers.limit, workers.peak_in_flight, workers.admitted
        );
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let own = std::env::temp_dir().join(format!("reload-{}.toml", std::process::id()));
    let path = given.clone().unwrap_or_else(|| own.clone());
    if given.is_none() {
        write(&own, START)?;
    }

    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let limits: Limits = toml::from_str(&text)?; // a server that cannot read its limits does not start
    let requests = RateLimitLayer::from_config(&limits.requests)?;
    let workers = ConcurrencyLimitLayer::from_config(&limits.workers)?;
    let handles = Handles {
        requests: requests.handle(),
        workers: workers.handle(),
    };
    println!("{}:{text}", path.display());
    tokio::spawn(clients(requests, workers));

    let watch = watch(&path, text, &handles);
    match given {
        Some(_) => tokio::select! {
            ended = watch => ended,
            stopped = tokio::signal::ctrl_c() => Ok(stopped?),
        },
        None => {
            let ended = tokio::select! {
                ended = watch => ended,
                edited = edit(&own, &handles) => edited.map_err(Into::into),
            };
            fs::remove_file(&own)?;
            ended
        }
    }
}

/// Looks at the file, and applies it when it is another.
async fn watch(path: &Path, mut last: String, handles: &Handles) -> Result<(), BoxError> {
    let mut looks = interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(_) => continue, // it is being replaced
        };
        if text == last {
            continue;
        }
        match toml::from_str(&text) {
            Ok(limits) => {
                handles.apply(&limits)?;
                println!("=> applied");
            }
            Err(error) => println!("=> refused, nothing has changed:\n{error}"),
        }
        handles.report();
        last = text;
    }
}

/// Somebody who edits the file: once right, once wrong in its last line, and right again.
async fn edit(path: &Path, handles: &Handles) -> io::Result<()> {
    sleep(Duration::from_secs(1)).await;
    handles.report();
    for (from, to) in [
        ("100/s burst 10", "400/s"),
        ("limit = 2\nmax_wait = \"50ms\"", "limit = 8\nmax_wait = 50"),
        ("max_wait = 50", "max_wait = \"50ms\""),
    ] {
        println!("\n{from:?} is changed to {to:?}");
        write(path, &fs::read_to_string(path)?.replace(from, to))?;
        sleep(Duration::from_millis(1200)).await;
    }
    handles.report();
    Ok(())
}

/// All of it at once: nobody reads half a file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

/// 1000 requests a second, of which each takes 10 ms.
async fn clients(requests: RateLimitLayer, workers: ConcurrencyLimitLayer) {
    let work = service_fn(|()| async {
        sleep(Duration::from_millis(10)).await;
        Ok::<_, Infallible>(())
    });
    let stack = ServiceBuilder::new().layer(requests).layer(workers);
    let service = stack.service(work);
    let mut ticks = interval(Duration::from_millis(1));
    loop {
        ticks.tick().await;
        tokio::spawn(service.clone().oneshot(()));
    }
}
