//! What is particular to weighted fair queueing: bounds, turns, tenants, costs, and what a handle shows.

mod support;

use std::{
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use support::{Behaviour, Probe, assert_refused, finish, now, poll, refusal};
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, Reason, Waited, WfqConfig, WfqLayer,
    wfq::{self, FromExtension, FromHeader, Handle, Tenant, TenantId},
};

const MS: Duration = Duration::from_millis(1);

/// A tenant and a number, which is given back.
type Request = (&'static str, u32);
type Response = Pin<Box<dyn Future<Output = Result<u32, BoxError>> + Send>>;

fn tenant(request: &Request) -> Option<&'static str> {
    Some(request.0)
}

/// A fair queue over some seats, in front of requests that take until they are let go.
struct Server {
    handle: Handle,
    seats: tower_backpressure::concurrency_limit::Handle,
    send: Box<dyn Fn(&'static str, u32) -> Response>,
    /// Lets one go for each permit.
    go: Arc<Semaphore>,
    /// In the order in which they were begun.
    begun: Arc<Mutex<Vec<Request>>>,
    waited: Arc<Mutex<Vec<Waited>>>,
}

impl Server {
    fn new(seats: usize, config: WfqConfig) -> Self {
        let fair = WfqLayer::new(config, tenant);
        let limit = ConcurrencyLimitLayer::new(seats);
        let (handle, seats) = (fair.handle(), limit.handle());
        let go = Arc::new(Semaphore::new(0));
        let begun: Arc<Mutex<Vec<Request>>> = Arc::default();
        let waited: Arc<Mutex<Vec<Waited>>> = Arc::default();
        let handler = {
            let (go, begun, waited) = (go.clone(), begun.clone(), waited.clone());
            move |request: Request| {
                begun.lock().unwrap().push(request);
                waited.lock().unwrap().extend(Waited::current());
                let go = go.clone();
                async move {
                    go.acquire().await.unwrap().forget();
                    Ok::<_, BoxError>(request.1)
                }
            }
        };
        let service = ServiceBuilder::new()
            .layer(fair)
            .layer(limit)
            .service_fn(handler);
        Self {
            handle,
            seats,
            send: Box::new(move |tenant, number| {
                Box::pin(service.clone().oneshot((tenant, number)))
            }),
            go,
            begun,
            waited,
        }
    }

    fn send(&self, tenant: &'static str, number: u32) -> Response {
        (self.send)(tenant, number)
    }

    /// Sent and polled once, which must not be enough.
    #[track_caller]
    fn pending(&self, tenant: &'static str, number: u32) -> Response {
        let mut response = self.send(tenant, number);
        assert!(poll(&mut response).is_pending());
        response
    }

    fn begun(&self) -> Vec<Request> {
        self.begun.lock().unwrap().clone()
    }
}

fn seats_taken(server: &Server) -> usize {
    server.seats.snapshot().in_flight
}

#[tokio::test(start_paused = true)]
async fn a_tenants_requests_are_served_in_the_order_in_which_they_came() {
    let server = Server::new(1, WfqConfig::default());
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let mut response = server.pending(["a", "b"][number as usize % 2], number);
        tasks.spawn(async move { (&mut response).await.unwrap() });
    }
    server.go.add_permits(40);
    tasks.join_all().await;
    let begun = server.begun();
    assert_eq!(begun.len(), 40);
    for tenant in ["a", "b"] {
        let numbers = begun.iter().filter(|(of, _)| *of == tenant);
        assert!(numbers.map(|(_, number)| number).is_sorted());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_while_it_waits_never_runs() {
    let server = Server::new(1, WfqConfig::default());
    let running = server.pending("a", 0);
    let cancelled = server.send("a", 1);
    let begun = now();
    tokio::time::timeout(Duration::from_secs(1), cancelled)
        .await
        .unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 1);
    assert_eq!(server.handle.snapshot().waiting, 0);
    server.go.add_permits(5);
    running.await.unwrap();
    server.send("b", 2).await.unwrap();
    assert_eq!(server.begun(), [("a", 0), ("b", 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_passed_on_and_the_request_no_longer_runs() {
    let fair = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a"));
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn({
            let handle = handle.clone();
            move |number: u32| {
                let handle = handle.clone();
                async move {
                    assert_eq!(handle.snapshot().running, 1);
                    assert_ne!(number, 13, "unlucky");
                    Ok::<_, BoxError>(number)
                }
            }
        });
    let panicked = tokio::spawn(support::boxed(service.clone().oneshot(13))).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!(handle.snapshot().running, 0);
    assert_eq!(service.oneshot(7).await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn past_its_own_bound_a_tenant_is_refused_and_no_other() {
    let server = Server::new(1, WfqConfig::default().max_waiting_per_tenant(2));
    let running = server.pending("a", 0);
    // The first of them has the turn, and no longer waits for it.
    let waiting = [1, 2, 3].map(|number| server.pending("a", number));
    assert_refused(finish(server.send("a", 4)), Reason::QueueFull);
    let other = server.pending("b", 5);
    let snapshot = server.handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.rejected.queue_full), (3, 1));
    assert_eq!(server.handle.tenant("a").unwrap().rejected, 1);
    assert_eq!(server.handle.tenant("b").unwrap().rejected, 0);
    drop((running, waiting, other));
    assert_eq!(server.handle.snapshot().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_makes_room_for_a_quiet_tenant_and_not_for_the_flood() {
    let server = Server::new(1, WfqConfig::default().max_waiting(4));
    let running = server.pending("flood", 0);
    let mut flood: Vec<_> = (1..=5)
        .map(|number| server.pending("flood", number))
        .collect();
    assert_refused(finish(server.send("flood", 6)), Reason::QueueFull);

    let mut quiet = server.pending("quiet", 7);
    // It was the last of the flood that made room, and that is told.
    let last = flood.pop().unwrap();
    assert_refused(finish(last), Reason::QueueFull);
    assert!(flood.iter_mut().all(|response| poll(response).is_pending()));
    assert_eq!(server.handle.snapshot().rejected.queue_full, 2);
    assert_eq!(server.handle.tenant("flood").unwrap().rejected, 2);

    server.go.add_permits(1);
    running.await.unwrap();
    assert!(poll(&mut flood[0]).is_pending());
    assert!(poll(&mut quiet).is_pending());
    let begun: Vec<_> = server
        .begun()
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    assert!(begun == [0, 7] || begun == [0, 1], "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_evicted_is_woken_to_be_told() {
    let server = Server::new(1, WfqConfig::default().max_waiting(2));
    let _running = server.pending("flood", 0);
    let _turn = server.pending("flood", 1);
    let _first = server.pending("flood", 2);
    let evicted = tokio::spawn(server.send("flood", 3));
    tokio::task::yield_now().await;
    let begun = now();
    let _quiet = server.pending("quiet", 4);
    assert_refused(evicted.await.unwrap(), Reason::QueueFull);
    assert_eq!(begun.elapsed(), Duration::ZERO, "at once");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_allowed() {
    let server = Server::new(1, WfqConfig::default().max_wait(250 * MS));
    let _running = server.pending("a", 0);
    let begun = now();
    // The first of them has the turn, and waits for the seat; the other one for the turn.
    let (turn, other) = (
        tokio::spawn(server.send("a", 1)),
        tokio::spawn(server.send("b", 2)),
    );
    for waited in [turn, other] {
        assert_refused(waited.await.unwrap(), Reason::WaitTimeout);
        assert_eq!(begun.elapsed(), 250 * MS);
    }
    let snapshot = server.handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.rejected.wait_timeout), (0, 2));
    server.handle.set_max_wait(None);
    let waits = tokio::spawn(server.send("a", 3));
    sleep(Duration::from_secs(3600)).await;
    assert!(!waits.is_finished());
}

#[tokio::test(start_paused = true)]
async fn the_hint_is_the_tenants_own_queue_at_its_share_of_the_rate() {
    let config = WfqConfig::default()
        .weight("gold", 3)
        .max_waiting_per_tenant(4);
    let server = Server::new(1, config);
    let mut running = server.pending("a", 0);
    assert_eq!(
        refused(&server, "a", 5).retry_after(),
        Duration::from_secs(1),
        "nothing is known"
    );
    // One request each 10 ms.
    for number in 1..=20 {
        let next = server.pending("a", number);
        sleep(10 * MS).await;
        server.go.add_permits(1);
        running.await.unwrap();
        running = next;
        assert!(poll(&mut running).is_pending());
    }
    // Alone: four of its own and itself, 10 ms each.
    assert_eq!(refused(&server, "a", 5).retry_after(), 50 * MS);
    // Beside three times its weight, it takes four times as long.
    let _gold = [server.pending("gold", 50), server.pending("gold", 51)];
    assert_eq!(refused(&server, "a", 4).retry_after(), 200 * MS);
}

/// The refusal of a tenant's request once it has so many waiting, which leave again.
fn refused(server: &Server, tenant: &'static str, full: u32) -> tower_backpressure::Overloaded {
    let _waiting: Vec<_> = (0..full)
        .map(|number| server.pending(tenant, 100 + number))
        .collect();
    refusal(finish(server.send(tenant, 200)))
}

#[tokio::test(start_paused = true)]
async fn no_tenant_has_more_in_flight_than_it_may() {
    let server = Server::new(10, WfqConfig::default().max_in_flight_per_tenant(2));
    let mut flood: Vec<_> = (0..5)
        .map(|number| server.pending("flood", number))
        .collect();
    let other = server.pending("other", 5);
    assert_eq!(seats_taken(&server), 3, "two of the flood, and the other");
    assert_eq!(server.handle.tenant("flood").unwrap().waiting, 3);

    server.go.add_permits(1);
    flood.remove(0).await.unwrap();
    for response in &mut flood {
        assert!(poll(response).is_pending());
    }
    assert_eq!(seats_taken(&server), 3, "one more for the one that is done");
    server.handle.set_max_in_flight_per_tenant(None);
    // Each passes the turn on to the next.
    for _ in 0..3 {
        flood
            .iter_mut()
            .for_each(|response| assert!(poll(response).is_pending()));
    }
    assert_eq!(seats_taken(&server), 5);
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn weights_change_at_run_time_and_bad_ones_do_not() {
    let server = Server::new(1, WfqConfig::default().weight("a", 2));
    let weight = |tenant| {
        server
            .handle
            .tenant(tenant)
            .map(|tenant: wfq::TenantSnapshot| tenant.weight)
    };
    assert_eq!(weight("a"), None, "not seen yet");
    let responses = [server.pending("a", 0), server.pending("b", 1)];
    assert_eq!((weight("a"), weight("b")), (Some(2), Some(1)));
    server.handle.set_weight("a", 7).unwrap();
    server.handle.set_weight("new", 9).unwrap();
    server.handle.set_default_weight(3).unwrap();
    let new = server.pending("new", 2);
    assert_eq!(
        (weight("a"), weight("b"), weight("new")),
        (Some(7), Some(3), Some(9))
    );
    assert_eq!(server.handle.tenant(Tenant::Anonymous).unwrap().weight, 3);

    for bad in [0, 10_001, u32::MAX] {
        let error = server.handle.set_weight("a", bad).unwrap_err();
        assert_eq!(error.to_string(), "weight must be from 1 to 10 000");
        assert!(server.handle.set_default_weight(bad).is_err());
    }
    let error = server.handle.set_weight("", 5).unwrap_err();
    assert_eq!(error.to_string(), "tenant must be a name of 1 to 256 bytes");
    assert!(server.handle.set_weight(&"x".repeat(257), 5).is_err());
    assert_eq!((weight("a"), weight("b")), (Some(7), Some(3)));
    drop((responses, new));
}

#[test]
fn nonsense_in_the_configuration_is_told() {
    type Nonsense = (fn() -> WfqConfig, &'static str);
    let nonsense: [Nonsense; 5] = [
        (
            || WfqConfig::default().weight("a", 0),
            "WfqConfig::weight(\"a\", 0): weight must be from 1 to 10 000",
        ),
        (
            || WfqConfig::default().weight("a", 10_001),
            "WfqConfig::weight(\"a\", 10001): weight must be from 1 to 10 000",
        ),
        (
            || WfqConfig::default().weight("", 1),
            "WfqConfig::weight(\"\", 1): tenant must be a name of 1 to 256 bytes",
        ),
        (
            || WfqConfig::default().default_weight(0),
            "WfqConfig::default_weight(0): weight must be from 1 to 10 000",
        ),
        (
            || WfqConfig::default().max_in_flight_per_tenant(0),
            "WfqConfig::max_in_flight_per_tenant(0): it must be at least 1",
        ),
    ];
    for (nonsense, told) in nonsense {
        let panic = std::panic::catch_unwind(nonsense).unwrap_err();
        assert_eq!(
            panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref().copied()),
            Some(told)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_further_in_is_told_who_waited_how_long() {
    let server = Server::new(1, WfqConfig::default());
    let running = server.pending("a", 0);
    sleep(10 * MS).await;
    let second = server.pending("a", 1);
    sleep(5 * MS).await;
    let third = server.pending("b", 2);
    sleep(5 * MS).await;
    server.go.add_permits(3);
    let mut tasks = JoinSet::new();
    for response in [running, second, third] {
        tasks.spawn(response);
    }
    tasks.join_all().await;
    let waited: Vec<_> = server
        .waited
        .lock()
        .unwrap()
        .iter()
        .map(|w| (w.own, w.oldest))
        .collect();
    assert_eq!(server.begun()[1], ("b", 2), "a had its share");
    let expected = [
        (Duration::ZERO, None),
        (5 * MS, Some(10 * MS)),
        (10 * MS, None),
    ];
    assert_eq!(waited, expected);
    assert_eq!(Waited::current(), None);
}

/// They hold a turn, and whatever the inner service gave them, and are never polled again.
#[tokio::test(start_paused = true)]
async fn futures_that_are_kept_but_not_polled_do_not_stop_the_others() {
    let server = Server::new(4, WfqConfig::default());
    let running: Vec<_> = (0..4).map(|number| server.pending("a", number)).collect();
    let mut kept = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..3 {
        kept.push(server.pending("kept", number));
    }
    for number in 0..10 {
        waiting.spawn(server.send("b", number));
    }
    tokio::task::yield_now().await;
    // Four seats get free. One after the other of those that are kept gets the turn, and the first of them
    // a seat, too; it is passed over when it has not been polled for a while, and so is the next.
    server.go.add_permits(100);
    for response in running {
        response.await.unwrap();
    }
    let begun = now();
    let served = waiting.join_all().await;
    assert_eq!(served.len(), 10);
    assert!(
        begun.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    drop(kept);
    assert_eq!(seats_taken(&server), 0);
    assert_eq!(server.handle.snapshot().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn handlers_that_never_return_do_not_stop_others_while_there_is_capacity() {
    let hangs = |request: Request| async move {
        match request.0 {
            "hangs" => std::future::pending().await,
            _ => sleep(MS).await,
        }
        Ok::<_, BoxError>(request.1)
    };
    // Seats that are free are given to whoever wants them, so there has to be a bound.
    let fair = WfqLayer::new(WfqConfig::default().max_in_flight_per_tenant(3), tenant);
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(4))
        .service_fn(hangs);
    let mut tasks = JoinSet::new();
    for number in 0..20 {
        tasks.spawn(support::boxed(service.clone().oneshot(("works", number))));
        tasks.spawn(support::boxed(service.clone().oneshot(("hangs", number))));
    }
    for number in 0..1000 {
        sleep(MS).await;
        assert_eq!(
            service.clone().oneshot(("works", number)).await.unwrap(),
            number
        );
    }
    let hangs = handle.tenant("hangs").unwrap();
    assert_eq!((hangs.running, hangs.waiting), (3, 17));
}

/// Cancelled, refused, panicking and served, on several threads: nobody is stuck, and nothing is left.
#[test]
fn a_crowd_that_comes_and_goes_gets_through() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let config = WfqConfig::default()
        .max_waiting(40)
        .max_waiting_per_tenant(20);
    let fair = WfqLayer::new(config, tenant);
    let (handle, limit) = (fair.handle(), ConcurrencyLimitLayer::new(3));
    let seats = limit.handle();
    let service = ServiceBuilder::new().layer(fair).layer(limit).service_fn(
        |(_, number): Request| async move {
            for _ in 0..number % 5 {
                tokio::task::yield_now().await;
            }
            assert_ne!(number % 97, 13, "unlucky");
            match number % 7 {
                0 => Err(BoxError::from("failed")),
                _ => Ok(number),
            }
        },
    );
    let mut clients = JoinSet::new();
    for client in 0..60_u32 {
        let service = service.clone();
        clients.spawn_on(
            support::boxed(async move {
                for i in 0..300_u32 {
                    let number = client
                        .wrapping_mul(7919)
                        .wrapping_add(i.wrapping_mul(104_729))
                        % 10_000;
                    let tenant = ["a", "b", "c", "d"][number as usize % 4];
                    let mut response = support::boxed(service.clone().oneshot((tenant, number)));
                    if number % 10 < 3 {
                        // It is dropped after a few polls, wherever it is then.
                        for _ in 0..number % 4 {
                            let polled =
                                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                                    poll(&mut response).is_ready()
                                }));
                            if polled.unwrap_or(true) {
                                break;
                            }
                            tokio::task::yield_now().await;
                        }
                    } else {
                        let _ = tokio::spawn(response).await;
                    }
                }
                Ok::<_, BoxError>(0)
            }),
            runtime.handle(),
        );
    }
    let _ = runtime.block_on(clients.join_all());
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.running), (0, 0));
    assert_eq!(seats.snapshot().in_flight, 0);
    let _entered = runtime.enter();
    assert_eq!(
        finish(support::boxed(service.oneshot(("a", 1)))).unwrap(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn costs_count_as_much_as_time() {
    let fair = WfqLayer::new(WfqConfig::default(), tenant).cost(|(tenant, _): &Request| {
        NonZeroU32::new(if *tenant == "dear" { 4 } else { 1 }).unwrap()
    });
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(|(_, number): Request| async move {
            sleep(MS).await;
            Ok::<_, BoxError>(number)
        });
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        for tenant in ["dear", "cheap"] {
            tasks.spawn(support::boxed(service.clone().oneshot((tenant, number))));
        }
    }
    sleep(40 * MS).await;
    let [dear, cheap] = ["dear", "cheap"].map(|tenant| handle.tenant(tenant).unwrap());
    assert!(
        dear.served.abs_diff(8) <= 1 && cheap.served.abs_diff(32) <= 1,
        "{dear:?} {cheap:?}"
    );
    assert!(
        (dear.share - 0.5).abs() < 0.06 && (cheap.share - 0.5).abs() < 0.06,
        "{dear:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_says_who_waits_who_runs_and_who_was_served() {
    let server = Server::new(2, WfqConfig::default().weight("a", 5));
    server.go.add_permits(3);
    for number in 0..3 {
        server.send("a", number).await.unwrap();
    }
    let _responses: Vec<_> = (0..4).map(|number| server.pending("b", number)).collect();
    sleep(30 * MS).await;
    let snapshot = server.handle.snapshot();
    assert_eq!(
        (snapshot.waiting, snapshot.running, snapshot.served),
        (1, 3, 3)
    );
    assert_eq!((snapshot.tenants, snapshot.overflowed), (2, 0));
    assert_eq!(snapshot.oldest_wait, Some(30 * MS));
    let b = server.handle.tenant("b").unwrap();
    assert_eq!(
        (b.waiting, b.running, b.served, b.oldest_wait),
        (1, 3, 0, Some(30 * MS))
    );
    let a = server.handle.tenant("a").unwrap();
    assert_eq!(
        (a.waiting, a.running, a.served, a.oldest_wait),
        (0, 0, 3, None)
    );
    assert_eq!(
        (a.weight, a.share, a.tenant.to_string().as_str()),
        (5, 1.0, "a")
    );
    assert_eq!(server.handle.tenants().len(), 4, "and the two shared ones");
    assert_eq!(server.handle.tenant("nobody"), None);
}

#[tokio::test]
async fn tenants_are_found_where_they_are_looked_for() {
    fn http(header: Option<&str>, id: Option<&str>) -> http::Request<()> {
        let mut request = http::Request::new(());
        if let Some(header) = header {
            request
                .headers_mut()
                .insert("x-tenant", header.parse().unwrap());
        }
        if let Some(id) = id {
            request.extensions_mut().insert(TenantId::new(id));
        }
        request
    }
    async fn seen<E>(extract: E, request: http::Request<()>) -> Option<String>
    where
        E: wfq::ExtractTenant<http::Request<()>>,
    {
        let fair = WfqLayer::new(WfqConfig::default(), extract);
        let handle = fair.handle();
        let service = fair.layer(service_fn(|_: http::Request<()>| async {
            Ok::<_, BoxError>(())
        }));
        service.oneshot(request).await.unwrap();
        let mut tenants = handle.tenants();
        tenants.retain(|tenant| tenant.served > 0);
        assert_eq!(tenants.len(), 1);
        match tenants.remove(0).tenant {
            Tenant::Named(name) => Some(name.to_string()),
            Tenant::Anonymous => None,
            other => panic!("{other}"),
        }
    }
    let header = || FromHeader::dangerously_trust_whoever_sends("x-tenant".parse().unwrap());
    let head = || wfq::from_head(|head| head.uri.path().strip_prefix("/of/"));
    let long = "x".repeat(257);
    assert_eq!(
        seen(FromExtension, http(Some("h"), Some("e")))
            .await
            .as_deref(),
        Some("e")
    );
    assert_eq!(seen(FromExtension, http(Some("h"), None)).await, None);
    assert_eq!(
        seen(header(), http(Some("h"), Some("e"))).await.as_deref(),
        Some("h")
    );
    assert_eq!(seen(header(), http(None, Some("e"))).await, None);
    assert_eq!(seen(header(), http(Some(""), None)).await, None);
    assert_eq!(seen(header(), http(Some(&long), None)).await, None);
    assert_eq!(
        seen(header(), http(Some(&long[1..]), None))
            .await
            .as_deref(),
        Some(&long[1..])
    );
    let mut request = http(None, None);
    *request.uri_mut() = "/of/acme".parse().unwrap();
    assert_eq!(seen(head(), request).await.as_deref(), Some("acme"));
    assert_eq!(seen(head(), http(None, None)).await, None);
    let closure = |request: &http::Request<()>| Some(request.uri().path().to_owned());
    assert_eq!(seen(closure, http(None, None)).await.as_deref(), Some("/"));
}

#[tokio::test(start_paused = true)]
async fn tenants_for_whom_there_is_no_room_share_one_and_those_who_were_idle_make_room() {
    let server = Server::new(10, WfqConfig::default().max_tenants(2));
    let a = server.pending("a", 0);
    let b = server.pending("b", 1);
    let mut c = server.pending("c", 2);
    let overflow = |server: &Server| server.handle.tenant(Tenant::Overflow).unwrap().running;
    assert_eq!(
        (overflow(&server), server.handle.snapshot().overflowed),
        (1, 1)
    );
    sleep(MS).await;
    server.go.add_permits(1);
    a.await.unwrap();
    // It is away, but is ahead of the others: to forget that would be a present.
    let d = server.pending("d", 3);
    assert_eq!(server.handle.snapshot().overflowed, 2);
    server.go.add_permits(3);
    assert!(poll(&mut c).is_ready());
    b.await.unwrap();
    d.await.unwrap();
    // Nobody has anything left to do, so nobody is ahead.
    let _e = server.pending("e", 4);
    assert_eq!(server.handle.snapshot().overflowed, 2);
    assert_eq!(server.handle.tenant("a"), None);
    assert_eq!(server.handle.tenant("e").unwrap().running, 1);
    assert_eq!(server.handle.snapshot().tenants, 2);
}

/// Many tasks poll what is not theirs to drive: a waker that changes is the one that is woken.
#[tokio::test(start_paused = true)]
async fn one_that_moves_to_another_task_with_the_turn_is_woken_there() {
    let server = Server::new(1, WfqConfig::default());
    let running = server.pending("a", 0);
    let mut moves = server.pending("a", 1); // has the turn, and waits for the seat
    assert!(poll(&mut moves).is_pending());
    let elsewhere = tokio::spawn(moves);
    tokio::task::yield_now().await;
    server.go.add_permits(2);
    running.await.unwrap();
    assert_eq!(elsewhere.await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_given_up_for_one_who_turns_out_to_have_had_less() {
    let server = Server::new(1, WfqConfig::default());
    // Each has had one request of a millisecond, so that is what is expected of the next.
    for tenant in ["a", "b"] {
        let response = server.pending(tenant, 0);
        sleep(MS).await;
        server.go.add_permits(1);
        response.await.unwrap();
    }
    let running = server.pending("a", 1);
    let mut of_a = server.pending("a", 2); // nobody else waits, so it has the turn
    let mut of_b = server.pending("b", 3);
    sleep(100 * MS).await; // but now that one of a's takes much longer, it is b's
    server.go.add_permits(1);
    running.await.unwrap();
    assert!(poll(&mut of_a).is_pending());
    assert!(poll(&mut of_b).is_pending());
    assert_eq!(server.begun().last(), Some(&("b", 3)));
    server.go.add_permits(2);
    of_b.await.unwrap();
    of_a.await.unwrap();
    assert_eq!(server.begun().last(), Some(&("a", 2)));
}

/// A stack further in that refuses with what it is asked to.
#[tokio::test(start_paused = true)]
async fn a_refusal_further_in_costs_nothing_and_is_not_called_served() {
    let full = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let taken = full.handle().try_acquire().unwrap();
    let fair = WfqLayer::new(WfqConfig::default(), tenant);
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(full)
        .service_fn(|(_, number): Request| async move { Ok::<_, BoxError>(number) });
    for number in 0..10 {
        let refused = service.clone().oneshot(("a", number)).await;
        assert_eq!(refusal(refused).layer(), "concurrency_limit");
    }
    let a = handle.tenant("a").unwrap();
    assert_eq!((a.served, a.refused, a.rejected, a.running), (0, 10, 0, 0));
    assert_eq!(
        (handle.snapshot().served, handle.snapshot().refused),
        (0, 10)
    );
    drop(taken);
    service.oneshot(("a", 1)).await.unwrap();
    assert_eq!(handle.snapshot().served, 1);
}

#[test]
fn an_unpolled_future_is_in_nobodys_way() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let layer = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(ConcurrencyLimitLayer::new(1));
    let mut service =
        layer.service_fn(|(_, number): Request| async move { Ok::<_, BoxError>(number) });
    let first = support::boxed(service.call(("a", 0)));
    let unpolled: Vec<_> = (1..10).map(|number| service.call(("b", number))).collect();
    let mut last = support::boxed(service.call(("c", 10)));
    assert!(poll(&mut last).is_pending());
    assert_eq!(finish(first).unwrap(), 0);
    assert!(matches!(poll(&mut last), Poll::Ready(Ok(10))));
    drop(unpolled);
}

/// A limiter of another crate gives whoever polls it a place in its queue, and cannot be told not to.
#[tokio::test(start_paused = true)]
async fn one_that_was_tried_before_it_had_to_wait_keeps_nothing_of_a_foreign_limiter() {
    let mut service = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1))
        .service_fn(|(_, number): Request| async move {
            sleep(MS).await;
            Ok::<_, BoxError>(number)
        });
    // All called before any is polled, as servers do that spawn a task for each response.
    let responses: Vec<_> = (0..5).map(|number| service.call(("a", number))).collect();
    let mut tasks = JoinSet::new();
    for response in responses.into_iter().rev() {
        tasks.spawn(support::boxed(response));
    }
    let served = tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await;
    assert_eq!(served.expect("nobody is stuck").len(), 5);
}

/// It holds a seat through a foreign `Buffer` too, whose worker waits for it.
#[tokio::test(start_paused = true)]
async fn a_buffer_inside_is_no_obstacle() {
    let inner = tower::buffer::Buffer::new(
        tower::limit::ConcurrencyLimit::new(
            service_fn(|number: u32| async move {
                sleep(MS).await;
                Ok::<_, BoxError>(number)
            }),
            1,
        ),
        1,
    );
    let mut service = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a")).layer(inner);
    let responses: Vec<_> = (0..40).map(|number| service.call(number)).collect();
    let mut tasks = JoinSet::new();
    for response in responses {
        tasks.spawn(support::boxed(response));
    }
    let served = tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await;
    assert_eq!(served.expect("nobody is stuck").len(), 40);
}

/// The inner service fails or panics once, while it is polled by the one whose turn it is. That future is done,
/// but is kept.
#[tokio::test(start_paused = true)]
async fn a_future_that_failed_and_is_kept_has_passed_its_turn_on() {
    for behaviour in [Behaviour::Fails, Behaviour::Panics] {
        let probe = Probe::new();
        let service = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a")).layer(probe.clone());
        probe.set(|script| script.ready = Behaviour::Pends);
        let mut first = support::request(&service);
        assert!(poll(&mut first).is_pending()); // has the turn
        let second = tokio::spawn(support::request(&service));
        tokio::task::yield_now().await;
        probe.set(|script| script.ready = behaviour);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut first)));
        assert_eq!(polled.is_err(), behaviour == Behaviour::Panics);
        probe.set(|script| script.ready = Behaviour::Works);
        let begun = now();
        assert_eq!(second.await.unwrap().unwrap(), 7);
        assert!(begun.elapsed() <= Duration::from_secs(1));
        drop(first);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_timed_out_and_is_kept_holds_nothing() {
    let server = Server::new(1, WfqConfig::default().max_wait(10 * MS));
    let running = server.pending("a", 0);
    let mut timed_out = server.pending("a", 1);
    sleep(20 * MS).await;
    let Poll::Ready(result) = poll(&mut timed_out) else {
        panic!("it has waited long enough")
    };
    assert_refused(result, Reason::WaitTimeout);
    server.go.add_permits(2);
    running.await.unwrap();
    assert_eq!(seats_taken(&server), 0, "the seat was not kept for it");
    server.send("b", 2).await.unwrap();
}

/// It has set its timer to look again, but tokio made it wait before it could see that it had fired: by then it
/// has the turn, and only a deadline would be left to wait for.
#[tokio::test(start_paused = true)]
async fn without_max_wait_nobody_is_timed_out() {
    use tokio::task::coop;
    let server = Server::new(1, WfqConfig::default());
    let running = server.pending("a", 0);
    let turn = server.pending("a", 1);
    let mut waits = server.send("b", 2);
    std::future::poll_fn(|cx| {
        // With nothing left of what a task may do in one go, no timer is ready.
        while coop::has_budget_remaining() {
            let _ = std::pin::pin!(coop::consume_budget()).poll(cx);
        }
        assert!(waits.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    tokio::time::advance(30 * MS).await;
    drop(turn);
    assert!(poll(&mut waits).is_pending(), "it may wait for ever");
    server.go.add_permits(2);
    running.await.unwrap();
    waits.await.unwrap();
}

/// The more wait, the less often each of them looks whether the turn is used. When most have left, the others
/// find out all the same.
#[tokio::test(start_paused = true)]
async fn after_a_burst_too_a_turn_that_is_not_used_is_passed_on_within_a_second() {
    let server = Server::new(1, WfqConfig::default().max_waiting_per_tenant(1000));
    let running = server.pending("a", 0);
    let _kept = server.pending("kept", 1); // has the turn, and is not polled again
    let burst: Vec<_> = (0..1000)
        .map(|number| server.pending("burst", number))
        .collect();
    let last = tokio::spawn(server.send("last", 2));
    tokio::task::yield_now().await;
    drop(burst);
    server.seats.set_limit(2).unwrap(); // a seat for the one that is kept, and later one more
    server.go.add_permits(2);
    running.await.unwrap();
    let begun = now();
    last.await.unwrap().unwrap();
    assert!(
        begun.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}

/// A handler works for a while, and is then refused by something further down: that was no refusal of the
/// stack's, and what it used is charged for.
#[tokio::test(start_paused = true)]
async fn work_is_not_free_because_it_ended_in_a_refusal() {
    let full = ConcurrencyLimitLayer::new(1).handle();
    let _taken = full.try_acquire().unwrap();
    let refusal = full.try_acquire().unwrap_err();
    let fair = WfqLayer::new(WfqConfig::default(), tenant);
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(move |(tenant, number): Request| {
            let refusal = (tenant == "refused").then(|| refusal.clone());
            async move {
                sleep(10 * MS).await;
                match refusal {
                    Some(refusal) => Err(BoxError::from(refusal)),
                    None => Ok(number),
                }
            }
        });
    let mut tasks = JoinSet::new();
    for tenant in ["refused", "served"].repeat(40) {
        tasks.spawn(support::boxed(service.clone().oneshot((tenant, 0))));
    }
    sleep(405 * MS).await;
    let refused = handle.tenant("refused").unwrap().refused;
    let served = handle.tenant("served").unwrap().served;
    assert!(refused.abs_diff(served) <= 1, "{refused} and {served}");
}

/// A seat that gets free is for the one whose turn it is, however late it looks.
#[tokio::test(start_paused = true)]
async fn a_newcomer_does_not_overtake_those_who_wait() {
    let probe = Probe::new();
    let fair = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a"));
    let mut service = fair.layer(probe.clone());
    probe.set(|script| script.ready = Behaviour::Pends);
    let mut first = support::request(&service);
    let mut second = support::request(&service);
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    probe.set(|script| script.ready = Behaviour::Works);
    let mut newcomer = service.call(7);
    assert!(poll(&mut newcomer).is_pending());
    assert_eq!(probe.calls(), 0);
    drop(first);
    let mut newcomer_too = service.call(7);
    assert!(poll(&mut newcomer_too).is_pending());
    assert_eq!(finish(second).unwrap(), 7);
    assert_eq!(finish(newcomer).unwrap(), 7);
    assert_eq!(finish(newcomer_too).unwrap(), 7);

    // Also if there is only one, which has the turn.
    let calls = probe.calls();
    probe.set(|script| script.ready = Behaviour::Pends);
    let mut turn = support::request(&service);
    assert!(poll(&mut turn).is_pending());
    probe.set(|script| script.ready = Behaviour::Works);
    let mut newcomer = service.call(7);
    assert!(poll(&mut newcomer).is_pending());
    assert_eq!(probe.calls(), calls);
    assert_eq!(finish(turn).unwrap(), 7);
    assert_eq!(finish(newcomer).unwrap(), 7);
}

/// Whatever becomes of a request, its tenant can be forgotten after it.
#[tokio::test(start_paused = true)]
async fn no_request_leaves_its_tenant_behind() {
    let fair = WfqLayer::new(WfqConfig::default().max_tenants(1), tenant);
    let (handle, limit) = (fair.handle(), ConcurrencyLimitLayer::new(1));
    let mut seat = Some(limit.handle().try_acquire().unwrap());
    let mut service = ServiceBuilder::new()
        .layer(fair)
        .layer(limit)
        .service_fn(|(_, number): Request| async move { Ok::<_, BoxError>(number) });
    for (what, name) in [
        ("is not polled", "a"),
        ("is cancelled with the turn", "b"),
        ("is cancelled while it waits", "c"),
        ("finds no room when it comes", "d"),
        ("finds no room when it is polled", "e"),
        ("is served", "f"),
        ("is the last", "g"),
    ] {
        let no_room = |no_room: bool| {
            handle.set_max_waiting_per_tenant(if no_room { 0 } else { 50 });
        };
        let mut ahead = support::boxed(service.call(("", 0))); // of the anonymous tenant
        match name {
            "c" => assert!(poll(&mut ahead).is_pending()), // has the turn
            "g" => assert_eq!(finish(&mut ahead).unwrap(), 0),
            _ => {}
        }
        no_room(name == "d");
        seat.take_if(|_| name == "f");
        let mut response = support::boxed(service.call((name, 1)));
        no_room(name == "e");
        match name {
            "a" => {}
            "d" | "e" => assert_refused(finish(&mut response), Reason::QueueFull),
            "f" | "g" => assert_eq!(finish(&mut response).unwrap(), 1),
            _ => assert!(poll(&mut response).is_pending()),
        }
        no_room(false);
        assert_eq!(handle.snapshot().overflowed, 0, "of one that {what}");
        assert_eq!(handle.snapshot().tenants, 1);
    }
}

/// One that is ahead of the others cannot be forgotten, but another one can that was away for less long.
#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_forgotten_is_not_in_the_way_of_another() {
    let server = Server::new(10, WfqConfig::default().max_tenants(2));
    let _running = server.pending("", 0);
    let mut ahead = server.pending("ahead", 1);
    sleep(10 * MS).await;
    server.go.add_permits(2); // the other one stays where it is: nobody polls it
    assert!(poll(&mut ahead).is_ready());
    drop(server.pending("idle", 2));
    let _new = server.pending("new", 3);
    assert_eq!(server.handle.snapshot().overflowed, 0);
    assert!(server.handle.tenant("ahead").is_some() && server.handle.tenant("idle").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_cap_that_is_raised_wakes_those_it_held_back() {
    let server = Server::new(10, WfqConfig::default().max_in_flight_per_tenant(1));
    let mut tasks = JoinSet::new();
    (0..3).for_each(|number| drop(tasks.spawn(server.send("a", number))));
    tokio::task::yield_now().await;
    assert_eq!(seats_taken(&server), 1);
    let begun = now();
    server.handle.set_max_in_flight_per_tenant(None);
    server.go.add_permits(3);
    tasks.join_all().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn on_the_fast_path_too_it_is_told_who_waits() {
    let server = Server::new(10, WfqConfig::default().max_in_flight_per_tenant(1));
    let _running = server.pending("a", 0);
    let _held_back = server.pending("a", 1);
    sleep(50 * MS).await;
    let _other = server.pending("b", 2);
    let waited = *server.waited.lock().unwrap().last().unwrap();
    assert_eq!((waited.own, waited.oldest), (Duration::ZERO, Some(50 * MS)));
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_from_the_call_on() {
    let server = Server::new(1, WfqConfig::default());
    let mut service_calls = server.pending("a", 0);
    let mut waits = server.send("a", 1);
    // `oneshot` calls when it is first polled; from then on it waits.
    sleep(5 * MS).await;
    assert!(poll(&mut waits).is_pending());
    sleep(7 * MS).await;
    server.go.add_permits(2);
    assert!(poll(&mut service_calls).is_ready());
    waits.await.unwrap();
    assert_eq!(server.waited.lock().unwrap()[1].own, 7 * MS);
}

/// A waker is foreign code: if it panics, that is the caller's to see, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_loses_nothing() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let panics = std::task::Waker::from(Arc::new(Panics));
    let server = Server::new(1, WfqConfig::default());
    let running = server.pending("a", 0);
    let mut turn = server.pending("a", 1);
    let mut behind = server.send("b", 2);
    assert!(
        behind
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&panics))
            .is_pending()
    );
    server.go.add_permits(1);
    running.await.unwrap();
    // It begins, and passes the turn on.
    let passed_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut turn)));
    assert!(passed_on.is_err());
    drop(turn);
    drop(behind);
    assert_eq!(
        (
            server.handle.snapshot().running,
            server.handle.snapshot().waiting
        ),
        (0, 0)
    );
    assert_eq!(seats_taken(&server), 0);
}

/// What it has reserved inside is given back before the turn is passed on: else whoever gets the turn finds it
/// taken, and has to wait for it again.
#[tokio::test(start_paused = true)]
async fn one_that_leaves_with_the_turn_gives_back_first() {
    /// Never ready. Says, when it is dropped after it was polled, how often the other was woken by then.
    struct Reserves {
        polled: bool,
        wakes: Arc<support::CountWakes>,
        wakes_when_dropped: Arc<Mutex<Option<usize>>>,
    }
    impl Clone for Reserves {
        fn clone(&self) -> Self {
            let (wakes, wakes_when_dropped) = (self.wakes.clone(), self.wakes_when_dropped.clone());
            Self {
                polled: false,
                wakes,
                wakes_when_dropped,
            }
        }
    }
    impl Drop for Reserves {
        fn drop(&mut self) {
            if self.polled {
                *self.wakes_when_dropped.lock().unwrap() = Some(self.wakes.count());
            }
        }
    }
    impl Service<u32> for Reserves {
        type Response = u32;
        type Error = BoxError;
        type Future = std::future::Ready<Result<u32, BoxError>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
            self.polled = true;
            Poll::Pending
        }

        fn call(&mut self, _: u32) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let (wakes, waker) = support::CountWakes::new();
    let wakes_when_dropped = Arc::default();
    let inner = Reserves {
        polled: false,
        wakes: wakes.clone(),
        wakes_when_dropped: Arc::clone(&wakes_when_dropped),
    };
    let service = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a")).layer(inner);
    let mut turn = support::request(&service);
    assert!(poll(&mut turn).is_pending());
    let mut next = support::request(&service);
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(next.as_mut().poll(&mut cx).is_pending());
    drop(turn);
    assert_eq!(*wakes_when_dropped.lock().unwrap(), Some(0));
    assert_eq!(wakes.count(), 1);
}
