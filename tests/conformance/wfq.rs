//! The scenarios of fair sharing through the layer, on tokio's paused clock: closed-loop clients, real
//! tasks, and a concurrency limit for the seats.

use std::{
    iter::repeat,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{ConcurrencyLimitLayer, Overloaded, WfqConfig, WfqLayer};

use crate::{
    fairness::{Client, SCENARIOS, SEC, Scenario, assert_fair, begins},
    now,
    simulation::Random,
};

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

/// Many more than wait here, for as long as it takes.
fn roomy() -> WfqConfig {
    WfqConfig::default().max_waiting(10_000).max_wait(None)
}

/// A client's thread: it sends a request, waits for the response, thinks, and sends the next.
fn spawn<S, R>(
    threads: &mut JoinSet<()>,
    mut service: S,
    begins: Duration,
    think: Duration,
    requests: impl IntoIterator<Item = R, IntoIter: Send> + Send + 'static,
) where
    S: Service<R, Error = BoxError, Response = (), Future: Send> + Send + 'static,
    R: Send + 'static,
{
    let requests = requests.into_iter();
    threads.spawn(async move {
        sleep(begins).await;
        for request in requests {
            match service.ready().await.unwrap().call(request).await {
                Err(error) if Overloaded::find(error.as_ref()).is_some() => {
                    tokio::task::yield_now().await;
                }
                result => result.unwrap(),
            }
            if !think.is_zero() {
                sleep(think).await;
            }
        }
    });
}

/// Average seats of each client, in each part that is watched.
async fn run(scenario: &'static Scenario) -> Vec<Vec<f64>> {
    let clients = scenario.clients.len();
    let config = (scenario.clients.iter().enumerate()).fold(roomy(), |config, (i, client)| {
        config.weight(i.to_string(), client.weight)
    });
    let begun = now();
    // Who was served, from when until when.
    let served: Arc<Mutex<Vec<(usize, Duration, Duration)>>> = Arc::default();
    let handler = {
        let served = Arc::clone(&served);
        move |client: usize| {
            let served = Arc::clone(&served);
            async move {
                let from = begun.elapsed();
                let index = {
                    let mut served = served.lock().unwrap();
                    served.push((client, from, Duration::MAX)); // still running
                    served.len() - 1
                };
                sleep(nanos(scenario.clients[client].exec)).await;
                served.lock().unwrap()[index].2 = begun.elapsed();
                Ok::<_, BoxError>(())
            }
        }
    };
    let service = ServiceBuilder::new()
        .layer(WfqLayer::new(config, |client: &usize| {
            Some(client.to_string())
        }))
        .layer(ConcurrencyLimitLayer::new(scenario.seats as usize))
        .service(service_fn(handler));
    let mut threads = JoinSet::new();
    for (i, client) in scenario.clients.iter().enumerate() {
        for thread in 0..client.threads {
            let begins = nanos(begins(scenario, i, thread));
            spawn(
                &mut threads,
                service.clone(),
                begins,
                nanos(client.think),
                vec![i; client.calls],
            );
        }
    }
    sleep(nanos(scenario.lasts)).await;
    threads.shutdown().await;
    let served = served.lock().unwrap();
    let parts = scenario.expect.len() as u32;
    let part = nanos(scenario.lasts) / parts;
    let seats_in = |i: u32| {
        let (from, to) = (part * i, part * (i + 1));
        let mut seats = vec![0.0; clients];
        for (client, begun, ended) in served.iter() {
            let time = (*ended).min(to).saturating_sub((*begun).max(from));
            seats[*client] += time.as_secs_f64() / part.as_secs_f64();
        }
        seats
    };
    (0..parts).map(seats_in).collect()
}

#[tokio::test(start_paused = true)]
async fn every_scenario_is_fair_through_the_layer() {
    let narrow = |client: &Client| client.width == 1; // a place in a concurrency limit is one seat
    for scenario in SCENARIOS.iter().filter(|s| s.clients.iter().all(narrow)) {
        assert_fair(scenario, run(scenario).await);
    }
}

/// One tenant keeps 500 requests of 100 ms waiting for 8 seats, another sends one now and then.
#[tokio::test(start_paused = true)]
async fn a_quiet_tenant_does_not_notice_a_flood() {
    let random = Arc::new(Mutex::new(Random::new(1)));
    // Evenly from 50 to 150 ms: seats do not get free all at once.
    let spread = move || Duration::from_secs_f64(0.05 + 0.1 * random.lock().unwrap().unit());
    let fair = WfqLayer::new(roomy(), |tenant: &&'static str| Some(*tenant));
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(8))
        .service(service_fn(move |tenant: &'static str| {
            let takes = match tenant {
                "quiet" => Duration::from_millis(5),
                _ => spread(),
            };
            async move {
                sleep(takes).await;
                Ok::<_, BoxError>(())
            }
        }));
    let mut flood = JoinSet::new();
    for _ in 0..500 {
        spawn(
            &mut flood,
            service.clone(),
            nanos(0),
            nanos(0),
            repeat("flood"),
        );
    }
    let mut latencies = Vec::new();
    for _ in 0..1000 {
        sleep(Duration::from_millis(137)).await;
        let sent = now();
        service.clone().oneshot("quiet").await.unwrap();
        latencies.push(sent.elapsed());
    }
    latencies.sort_unstable();
    let (median, p99) = (latencies[500], latencies[990]);
    println!("p50 {median:?}, p99 {p99:?}, worst {:?}", latencies[999]);
    assert!(p99 <= Duration::from_millis(60), "{p99:?}");
    // The flood has the rest of it: 8 seats at 10 requests a second, less what the quiet one took.
    let elapsed = 1000.0 * 0.137 + latencies.iter().map(Duration::as_secs_f64).sum::<f64>();
    let served = handle.tenant("flood").unwrap().served as f64;
    let possible = 80.0 * elapsed - 1000.0 * 0.05;
    assert!(
        (served / possible - 1.0).abs() < 0.02,
        "{served} of {possible}"
    );
}

/// What there is to be shared may be anything that is not ready at times.
#[tokio::test(start_paused = true)]
async fn a_rate_is_shared_by_weight_too() {
    use tower_backpressure::{Rate, RateLimitLayer};
    let config = roomy().weight("1", 1).weight("3", 3);
    let fair = WfqLayer::new(config, |tenant: &&'static str| Some(*tenant));
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(RateLimitLayer::new(Rate::per_second(100).burst(1)))
        .service(service_fn(|_| async { Ok::<_, BoxError>(()) }));
    let mut clients = JoinSet::new();
    for tenant in ["1", "3"].repeat(10) {
        spawn(
            &mut clients,
            service.clone(),
            nanos(0),
            nanos(0),
            repeat(tenant),
        );
    }
    sleep(nanos(20 * SEC)).await;
    let served = |tenant: &str| handle.tenant(tenant).unwrap().served;
    assert!(served("1") + served("3") >= 1990);
    let ratio = served("3") as f64 / served("1") as f64;
    assert!((ratio - 3.0).abs() < 0.03, "{ratio}");
}

/// Two that flood, most of whose requests are refused further in: what is served is by weight all the same.
#[tokio::test(start_paused = true)]
async fn refusals_further_in_do_not_change_the_shares() {
    // Five in ten requests of the one, and nine in ten of the other.
    let config = roomy().weight("a", 2).weight("b", 1);
    let fair = WfqLayer::new(config, |(tenant, _): &(&'static str, u32)| Some(*tenant));
    let handle = fair.handle();
    let full = ConcurrencyLimitLayer::new(1).handle();
    let _taken = full.try_acquire().unwrap();
    let refusal = full.try_acquire().unwrap_err();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(4))
        .service(service_fn(move |(tenant, number): (&'static str, u32)| {
            let refused = number % 10 < if tenant == "a" { 5 } else { 9 };
            let refusal = refused.then(|| refusal.clone());
            async move {
                match refusal {
                    Some(refusal) => Err(BoxError::from(refusal)),
                    None => {
                        sleep(Duration::from_millis(10)).await;
                        Ok(())
                    }
                }
            }
        }));
    let mut clients = JoinSet::new();
    for (thread, tenant) in ["a", "b"].repeat(30).into_iter().enumerate() {
        let requests = (thread as u32..).map(move |number| (tenant, number));
        spawn(&mut clients, service.clone(), nanos(0), nanos(0), requests);
    }
    sleep(nanos(20 * SEC)).await;
    let [a, b] = ["a", "b"].map(|tenant| handle.tenant(tenant).unwrap());
    assert!(b.refused > 5 * b.served, "{b:?}");
    let ratio = a.served as f64 / b.served as f64;
    assert!((ratio - 2.0).abs() < 0.04, "{ratio}: {a:?} {b:?}");
}
