//! An adaptive limit in front of a service with 16 workers, which nobody has told it. It finds the limit, and follows when
//! half of the workers leave.
//!
//! `cargo run --example adaptive_concurrency` (takes six seconds)
//!
//! What to see: the limit falls from 100 to a little more than the number of workers, and latency with it from 60 ms to
//! 15 ms, while as many requests are served as before. The last column says why the limit moved.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{AdaptiveConcurrencyLayer, LoadShedLayer, Overloaded};

const WORKERS: usize = 16;
const WORK: Duration = Duration::from_millis(10);

/// What was served and refused since the last look.
#[derive(Default)]
struct Count {
    served: AtomicU64,
    refused: AtomicU64,
    micros: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let workers = Arc::new(Semaphore::new(WORKERS));
    let limit = AdaptiveConcurrencyLayer::vegas().limits(1, 100, 1000);
    let handle = limit.handle();
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new()) // refuse what is over the limit, rather than let it wait
        .layer(limit)
        .service(service_fn({
            let workers = Arc::clone(&workers);
            move |()| {
                let workers = Arc::clone(&workers);
                async move {
                    let _worker = workers.acquire().await; // the queue that should not get long
                    sleep(WORK).await;
                    Ok::<_, Infallible>(())
                }
            }
        }));

    // Twice as many requests as 16 workers can do, whatever becomes of them.
    let count = Arc::new(Count::default());
    let clients = tokio::spawn({
        let count = Arc::clone(&count);
        async move {
            let mut ticks = interval(Duration::from_millis(5));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                ticks.tick().await;
                for _ in 0..16 {
                    let (request, count) = (service.clone().oneshot(()), Arc::clone(&count));
                    tokio::spawn(async move {
                        #[allow(clippy::disallowed_methods, reason = "a client measures real time")]
                        let begun = Instant::now();
                        match request.await {
                            Ok(()) => {
                                count.served.fetch_add(1, Relaxed);
                                let micros = begun.elapsed().as_micros() as u64;
                                count.micros.fetch_add(micros, Relaxed);
                            }
                            Err(error) if Overloaded::find(error.as_ref()).is_some() => {
                                count.refused.fetch_add(1, Relaxed);
                            }
                            Err(error) => eprintln!("{error}"),
                        }
                    });
                }
            }
        }
    });

    println!(
        "a request takes 10 ms; the limit starts at 100, and is to find out that there are 16 workers"
    );
    println!(" time  workers  limit  served/s  refused/s  latency  baseline  last moved");
    for half_second in 1..=12 {
        sleep(Duration::from_millis(500)).await;
        let snapshot = handle.snapshot();
        let (served, refused) = (
            count.served.swap(0, Relaxed),
            count.refused.swap(0, Relaxed),
        );
        let latency = count.micros.swap(0, Relaxed) as f64 / 1000.0 / served.max(1) as f64;
        let workers_now = if half_second <= 6 {
            WORKERS
        } else {
            WORKERS / 2
        };
        println!(
            "{:4.1}s {workers_now:8} {:6} {:9} {:10} {latency:6.1}ms {:>9} {:>4}",
            f64::from(half_second) / 2.0,
            snapshot.permits.limit,
            2 * served,
            2 * refused,
            snapshot
                .learned
                .baseline
                .map_or("-".into(), |baseline| format!("{baseline:.1?}")),
            snapshot
                .learned
                .moved
                .map_or("-".into(), |why| why.to_string()),
        );
        if half_second == 6 {
            println!("       half of the workers leave");
            workers.acquire_many(WORKERS as u32 / 2).await?.forget();
        }
    }
    clients.abort();
    Ok(())
}
