//! Whose requests they are, and what is known of them.

use super::{support::*, *};

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
    let server = Server::new(3, WfqConfig::default().max_tenants(2));
    let a = server.pending("a", 0);
    let b = server.pending("b", 1);
    let mut c = server.pending("c", 2);
    let waits = server.pending("b", 9); // only what is used while others wait is charged
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
    drop(waits);
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
        let mut ahead = boxed(service.call(("", 0))); // of the anonymous tenant
        match name {
            "c" => assert!(poll(&mut ahead).is_pending()), // has the turn
            "g" => assert_eq!(finish(&mut ahead).unwrap(), 0),
            _ => {}
        }
        no_room(name == "d");
        seat.take_if(|_| name == "f");
        let mut response = boxed(service.call((name, 1)));
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
    let server = Server::new(2, WfqConfig::default().max_tenants(3));
    let _running = server.pending("busy", 0);
    let mut ahead = server.pending("ahead", 1);
    let _waits = server.pending("busy", 9); // only what is used while others wait is charged
    sleep(10 * MS).await;
    server.go.add_permits(2); // the other one stays where it is: nobody polls it
    assert!(poll(&mut ahead).is_ready());
    drop(server.pending("idle", 2));
    let _new = server.pending("new", 3);
    assert_eq!(server.handle.snapshot().overflowed, 0);
    assert!(server.handle.tenant("ahead").is_some() && server.handle.tenant("idle").is_none());
}

/// The weight of a tenant that has a request, or else had one.
fn weight(server: &Server, tenant: &'static str) -> u32 {
    let _gone = poll(&mut server.send(tenant, 0)); // it came
    server.handle.tenant(tenant).expect("it came").weight
}

#[tokio::test(start_paused = true)]
async fn weights_by_name_are_bounded_and_counted() {
    let server = Server::new(1, WfqConfig::default());
    for i in 0..100_000 {
        server.handle.set_weight(&format!("tenant-{i}"), 2).unwrap();
    }
    let error = server.handle.set_weight("one-more", 2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "weights must be given to at most 100 000 tenants by name; use weight_of for more"
    );
    server.handle.set_weight("tenant-7", 9).unwrap(); // those that have one can be changed
    let snapshot = server.handle.snapshot();
    assert_eq!((snapshot.weights, snapshot.tenants), (100_000, 0));
    server.handle.apply(&WfqConfig::default()).unwrap();
    assert_eq!(server.handle.snapshot().weights, 0);

    let too_many = (0..100_001).fold(WfqConfig::default(), |config, i| {
        config.weight(i.to_string(), 2)
    });
    assert_eq!(too_many.check().unwrap_err(), error);
    assert_eq!(server.handle.apply(&too_many).unwrap_err(), error);
}

#[tokio::test(start_paused = true)]
async fn weight_of_gives_the_weights_of_all_that_have_none_by_name() {
    let gold = Arc::new(Mutex::new(vec!["acme"]));
    let weight_of = {
        let gold = Arc::clone(&gold);
        move |customer: &str| {
            if gold.lock().unwrap().contains(&customer) {
                10
            } else {
                2
            }
        }
    };
    let config = WfqConfig::default().weight("named", 5).weight_of(weight_of);
    let server = Server::new(1, config);
    let weights = || ["acme", "initech", "named"].map(|tenant| weight(&server, tenant));
    assert_eq!(weights(), [10, 2, 5]);

    // A customer that changes its plan.
    gold.lock().unwrap().push("initech");
    assert_eq!(weights(), [10, 2, 5], "asked once for each");
    server.handle.refresh_weights();
    assert_eq!(weights(), [10, 10, 5]);

    // A config from a file has no function, and the one that there is stays.
    let from_file = WfqConfig::default().default_weight(3).weight("acme", 7);
    server.handle.apply(&from_file).unwrap();
    assert_eq!(weights(), [7, 10, 2]);
    assert_eq!(server.handle.tenant(Tenant::Anonymous).unwrap().weight, 3);
    server.handle.set_default_weight(4).unwrap();
    assert_eq!(weights(), [7, 10, 2]);

    // Another function takes its place.
    let other = WfqConfig::default().weight_of(|_| 6);
    server.handle.apply(&other).unwrap();
    assert_eq!(weights(), [6, 6, 6]);
}

#[tokio::test(start_paused = true)]
async fn a_weight_of_that_is_out_of_range_panics_or_comes_back_does_no_harm() {
    let handle: Arc<Mutex<Option<Handle>>> = Arc::default();
    let weight_of = {
        let handle = Arc::clone(&handle);
        move |customer: &str| match customer {
            "none" => 0,
            "all" => u32::MAX,
            "comes-back" => {
                let handle = handle.lock().unwrap().clone().expect("set below");
                handle.set_weight("other", 3).unwrap();
                4
            }
            _ => panic!("not found"),
        }
    };
    let server = Server::new(1, WfqConfig::default().weight_of(weight_of));
    *handle.lock().unwrap() = Some(server.handle.clone());
    let weights = ["none", "all", "comes-back", "other"].map(|tenant| weight(&server, tenant));
    assert_eq!(weights, [1, 10_000, 4, 3]);

    let panics = std::panic::AssertUnwindSafe(|| weight(&server, "panics"));
    assert!(std::panic::catch_unwind(panics).is_err());
    let snapshot = server.handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.running), (0, 0));
    assert!(server.handle.tenant("panics").is_none());
    server.go.add_permits(1);
    server.send("all", 7).await.unwrap();
}

/// Customers of one plan are tenants of their own: one that floods takes nothing from the other.
#[tokio::test(start_paused = true)]
async fn customers_of_one_plan_do_not_share_a_queue() {
    let fair = WfqLayer::new(WfqConfig::default().weight_of(|_| 10), tenant);
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(|(_, number): Request| async move {
            sleep(MS).await;
            Ok::<_, BoxError>(number)
        });
    let mut tasks = JoinSet::new();
    for number in 0..500 {
        tasks.spawn(boxed(service.clone().oneshot(("floods", number))));
    }
    tokio::task::yield_now().await;
    let begun = now();
    boxed(service.clone().oneshot(("quiet", 0))).await.unwrap();
    assert!(begun.elapsed() <= 3 * MS, "{:?}", begun.elapsed());
    assert!(handle.tenant("floods").unwrap().waiting > 400);
}

/// There is one default for how many of a tenant may wait, by hand and in an edge: as many as may wait at all.
#[tokio::test(start_paused = true)]
async fn a_tenant_may_have_all_places_in_the_queue_by_default() {
    const PLACES: usize = 1024;
    let server = Server::new(1, WfqConfig::default());
    let mut waiting = Vec::new();
    while server.handle.snapshot().waiting < PLACES {
        waiting.push(server.pending("all", 0));
    }
    let rejection = server.send("all", 0).await.unwrap_err();
    let rejection = Overloaded::find(rejection.as_ref()).map(Overloaded::reason);
    assert_eq!(rejection, Some(Reason::QueueFull));

    let edge = edge().limits(1, 1, 1);
    let handle = edge.handle();
    let hangs = |_: http::Request<String>| pending::<Result<http::Response<String>, BoxError>>();
    let service = edge.layer(service_fn(hangs));
    let send = || {
        let mut request = http::Request::new(String::new());
        request.extensions_mut().insert(TenantId::new("all"));
        Box::pin(service.clone().oneshot(request))
    };
    let mut waiting = Vec::new();
    while handle.snapshot().permits.waiting < PLACES {
        waiting.push(send());
        let response = poll(waiting.last_mut().unwrap());
        assert!(response.is_pending(), "{} may wait", waiting.len() - 1);
    }
    assert!(poll(&mut send()).is_ready(), "it is rejected");
}
