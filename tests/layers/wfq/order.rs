//! Who is served, and when.

use super::{support::*, *};

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
async fn handlers_that_never_return_do_not_stop_others_while_there_is_capacity() {
    let hangs = |request: Request| async move {
        match request.0 {
            "hangs" => std::future::pending().await,
            _ => sleep(MS).await,
        }
        Ok::<_, BoxError>(request.1)
    };
    // Seats that are free are given to whoever wants them, so there has to be a bound.
    let fair = WfqLayer::new(patient().max_in_flight_per_tenant(3), tenant);
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(4))
        .service_fn(hangs);
    let mut tasks = JoinSet::new();
    for number in 0..20 {
        tasks.spawn(boxed(service.clone().oneshot(("works", number))));
        tasks.spawn(boxed(service.clone().oneshot(("hangs", number))));
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
            tasks.spawn(boxed(service.clone().oneshot((tenant, number))));
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
        tasks.spawn(boxed(service.clone().oneshot((tenant, 0))));
    }
    sleep(405 * MS).await;
    let refused = handle.tenant("refused").unwrap().refused;
    let served = handle.tenant("served").unwrap().served;
    assert!(refused.abs_diff(served) <= 1, "{refused} and {served}");
}

/// What a handler used before it passed on a rejection is in its tenant's share; a rejection by a layer is not, however long
/// the request waited there.
#[tokio::test(start_paused = true)]
async fn a_share_has_what_was_used_and_not_what_was_waited_for() {
    let full = ConcurrencyLimitLayer::new(1).max_wait(1000 * MS);
    let _taken = full.handle().try_acquire().unwrap();
    let fair = WfqLayer::new(WfqConfig::default(), tenant);
    let handle = fair.handle();
    let own = full.handle().try_acquire().unwrap_err();
    let handler = service_fn(move |(_, number): Request| {
        let own = own.clone();
        async move {
            sleep(1000 * MS).await;
            match number {
                0 => Ok(number),
                _ => Err(BoxError::from(own)),
            }
        }
    });
    // It waits for a second key's permit, inside the fair queue.
    let keyed = KeyedConcurrencyLimitLayer::new(1, |(tenant, _): &Request| Some(*tenant));
    let keyed = keyed.max_wait(1000 * MS);
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(keyed)
        .service(handler);
    let send = |tenant, number| service.clone().oneshot((tenant, number));
    let (served, refused) = tokio::join!(send("served", 0), send("refused", 1));
    served.unwrap();
    assert!(!refusal(refused).rejected_here());
    let (served, waited, alone) =
        tokio::join!(send("waits", 0), send("waits", 0), send("served", 0));
    alone.unwrap();
    assert!(served.is_ok() != waited.is_ok());
    let share = |tenant| handle.tenant(tenant).unwrap().share;
    let near = |a: f64, b: f64| (a - b).abs() < 0.01;
    assert!(near(share("refused"), 0.25), "{}", share("refused"));
    assert!(near(share("served"), 0.5), "{}", share("served"));
    assert!(near(share("waits"), 0.25), "{}", share("waits"));
}

/// A seat that gets free is for the one whose turn it is, however late it looks.
#[tokio::test(start_paused = true)]
async fn a_newcomer_does_not_overtake_those_who_wait() {
    let probe = Probe::new();
    let fair = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a"));
    let mut service = fair.layer(probe.clone());
    probe.set(|script| script.ready = Behaviour::Pends);
    let mut first = request(&service);
    let mut second = request(&service);
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
    let mut turn = request(&service);
    assert!(poll(&mut turn).is_pending());
    probe.set(|script| script.ready = Behaviour::Works);
    let mut newcomer = service.call(7);
    assert!(poll(&mut newcomer).is_pending());
    assert_eq!(probe.calls(), calls);
    assert_eq!(finish(turn).unwrap(), 7);
    assert_eq!(finish(newcomer).unwrap(), 7);
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

/// The longest that one of fifty clients waited: two seats, 4 ms a request, each client sends 40 one after another, and
/// each request is of the tenant that `tenant` names.
async fn longest_wait(config: WfqConfig, tenant: fn(u32) -> String) -> (Duration, wfq::Snapshot) {
    let fair = WfqLayer::new(config, move |number: &u32| Some(tenant(*number)));
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(2))
        .service_fn(|_: u32| async {
            sleep(4 * MS).await;
            Ok::<_, BoxError>(())
        });
    let mut clients = JoinSet::new();
    for client in 0..50 {
        let service = service.clone();
        clients.spawn(async move {
            let mut longest = Duration::ZERO;
            for number in 0..40 {
                let begun = now();
                boxed(service.clone().oneshot(client * 1000 + number))
                    .await
                    .unwrap();
                longest = longest.max(begun.elapsed());
            }
            longest
        });
    }
    let longest = clients.join_all().await.into_iter().max().unwrap();
    (longest, handle.snapshot())
}

/// Fifty clients that take turns on two seats wait for 25 requests of 4 ms each, however many tenants they are.
#[tokio::test(start_paused = true)]
async fn tenants_that_come_once_wait_no_longer_than_one_tenant_would() {
    let (one, _) = longest_wait(WfqConfig::default(), |_| "one".into()).await;
    let (each, _) = longest_wait(WfqConfig::default(), |number| number.to_string()).await;
    assert!(one <= 104 * MS && each <= 104 * MS, "{one:?} and {each:?}");
}

/// Although the queue is never empty and no tenant comes twice, there is room for new ones.
#[tokio::test(start_paused = true)]
async fn tenants_that_came_once_make_room_for_new_ones() {
    let config = WfqConfig::default().max_tenants(200);
    let (longest, snapshot) = longest_wait(config, |number| number.to_string()).await;
    assert_eq!((snapshot.served, snapshot.overflowed), (2000, 0));
    assert!(longest <= 104 * MS, "{longest:?}");
}
