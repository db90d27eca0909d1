//! A concurrency limit of 10 in front of a small service that gets 25 requests at once.
//!
//! `cargo run --example quickstart`
//!
//! What to see: of each wave 10 are served and 15 are rejected, with the layer, the reason and when to retry. At the end,
//! the snapshot of the limit.

use std::time::Duration;

use tokio::{task::JoinSet, time::sleep};
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{ConcurrencyLimitLayer, LoadShedLayer, Overloaded};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let limit = ConcurrencyLimitLayer::new(10);
    let handle = limit.handle();
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new()) // refuse what is over the limit, rather than let it wait
        .layer(limit)
        .service(service_fn(|request: u32| async move {
            sleep(Duration::from_millis(50)).await; // the work
            Ok::<_, BoxError>(request)
        }));

    // Five waves of 25 requests at once, on a service that can do 10 at once.
    for wave in 1..=5 {
        let mut requests = JoinSet::new();
        for request in 0..25 {
            requests.spawn(service.clone().oneshot(request));
        }
        let (mut served, mut refusal) = (0, None);
        for result in requests.join_all().await {
            match result {
                Ok(_) => served += 1,
                Err(error) => refusal = Overloaded::find(error.as_ref()).cloned(),
            }
        }
        println!("wave {wave}: {served} served, {} refused", 25 - served);
        if let Some(overloaded) = refusal {
            println!("        {overloaded}");
        }
    }
    println!("{:#?}", handle.snapshot());
    Ok(())
}
