//! As long as there are no tenants and nobody waits, the queue is not asked: which nobody notices.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{support::*, *};

fn anonymous(server: &Server) -> wfq::TenantSnapshot {
    let tenant = server.handle.tenant(Tenant::Anonymous).unwrap();
    assert_eq!(server.handle.tenants()[0], tenant);
    tenant
}

/// At most one without a name is begun before the last of `a`: one may have had the turn before it was known who is to
/// go first.
#[track_caller]
fn assert_a_goes_first(begun: &[Request]) {
    let last_of_a = begun.iter().rposition(|(name, _)| *name == "a").unwrap();
    let without_a_name = begun[..last_of_a]
        .iter()
        .filter(|(name, _)| name.is_empty());
    assert!(without_a_name.count() <= 1, "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_name_are_counted_like_any_others() {
    let server = Server::new(3, WfqConfig::default());
    let mut responses: Vec<_> = (0..3).map(|number| server.pending("", number)).collect();
    assert_eq!(server.handle.snapshot().running, 3);
    assert_eq!(anonymous(&server).running, 3);

    drop(responses.pop()); // half way, as a client that goes away
    server.go.add_permits(1);
    responses.remove(0).await.unwrap();
    let snapshot = server.handle.snapshot();
    assert_eq!((snapshot.running, snapshot.served), (1, 2));
    let tenant = anonymous(&server);
    assert_eq!((tenant.running, tenant.served), (1, 2));
    assert_eq!(server.handle.tenant("a"), None);

    drop(responses);
    assert_eq!(server.handle.snapshot().running, 0);
    assert_eq!(seats_taken(&server), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_refused_further_in_was_not_served() {
    let fair = WfqLayer::new(WfqConfig::default(), |_: &()| None::<&str>);
    let handle = fair.handle();
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(LoadShedLayer::new())
        .layer(limit)
        .service_fn(|()| std::future::pending::<Result<(), BoxError>>());
    let mut running = Box::pin(service.clone().oneshot(()));
    assert!(poll(&mut running).is_pending());
    service.clone().oneshot(()).await.unwrap_err();
    let snapshot = handle.snapshot();
    assert_eq!(
        (snapshot.running, snapshot.served, snapshot.refused),
        (1, 0, 1)
    );
    assert_eq!(handle.tenant(Tenant::Anonymous).unwrap().refused, 1);
}

/// More than there is room for: those wait in one line, in the order in which they came, and when they are gone
/// it is calm again.
#[tokio::test(start_paused = true)]
async fn when_there_is_no_room_they_wait_in_line() {
    let server = Server::new(2, WfqConfig::default());
    for _ in 0..3 {
        let mut responses: Vec<_> = (0..6).map(|number| server.pending("", number)).collect();
        let snapshot = server.handle.snapshot();
        let with_the_turn = 1;
        assert_eq!((snapshot.running - with_the_turn, snapshot.waiting), (2, 3));
        let mut begun = server.begun();
        assert_eq!(begun.split_off(begun.len() - 2), [("", 0), ("", 1)]);
        server.go.add_permits(6);
        for response in responses.drain(..) {
            response.await.unwrap();
        }
        let numbers: Vec<_> = server.begun().iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers[numbers.len() - 6..], [0, 1, 2, 3, 4, 5]);
    }
    let snapshot = server.handle.snapshot();
    assert_eq!(
        (snapshot.running, snapshot.waiting, snapshot.served),
        (0, 0, 18)
    );
}

/// It has the turn, and its task has yet to be polled.
#[tokio::test(start_paused = true)]
async fn nobody_gets_ahead_of_one_that_waits() {
    #[derive(Clone)]
    struct Opens(Arc<AtomicBool>);
    impl Service<u32> for Opens {
        type Response = u32;
        type Error = BoxError;
        type Future = std::future::Ready<Result<u32, BoxError>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
            match self.0.load(Relaxed) {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        }

        fn call(&mut self, number: u32) -> Self::Future {
            std::future::ready(Ok(number))
        }
    }
    let open = Arc::new(AtomicBool::new(false));
    let fair = WfqLayer::new(WfqConfig::default(), |_: &u32| None::<&str>);
    let service = fair.layer(Opens(open.clone()));
    let mut first = Box::pin(service.clone().oneshot(1));
    assert!(poll(&mut first).is_pending());
    open.store(true, Relaxed);
    let mut second = Box::pin(service.oneshot(2));
    assert!(poll(&mut second).is_pending(), "the first is first");
    assert!(poll(&mut first).is_ready());
    assert!(poll(&mut second).is_ready());
}

/// A request that hangs counts for as long as it does.
#[tokio::test(start_paused = true)]
async fn once_there_are_tenants_all_are_asked() {
    let server = Server::new(2, WfqConfig::default());
    let tenant = server.pending("a", 0);
    server.go.add_permits(1);
    tenant.await.unwrap();
    let _hangs = server.pending("", 1);
    server.go.add_permits(1); // which it does not take
    sleep(Duration::from_secs(10)).await;
    let mut others = JoinSet::new();
    for number in 2..=6 {
        others.spawn(server.send("", number));
        others.spawn(server.send("a", number));
    }
    for _ in 0..10 {
        sleep(MS).await;
        server.go.add_permits(1);
    }
    others.join_all().await;
    assert_a_goes_first(&server.begun()[2..]);
}

/// It had ten seconds of the only seat, of which nine while somebody waited for it.
#[tokio::test(start_paused = true)]
async fn who_began_before_there_were_others_pays_when_it_is_done() {
    let server = Server::new(1, patient());
    let first = server.pending("", 0);
    sleep(Duration::from_secs(1)).await;
    let mut others = JoinSet::new();
    for number in 1..=9 {
        others.spawn(server.send("", number));
        others.spawn(server.send("a", number));
    }
    sleep(Duration::from_secs(9)).await;
    server.go.add_permits(1);
    first.await.unwrap();
    for _ in 0..18 {
        sleep(Duration::from_secs(1)).await;
        server.go.add_permits(1);
    }
    others.join_all().await;
    assert_a_goes_first(&server.begun()[1..]);
}

/// What was had long ago, when nobody counted, is not taken for what was had lately.
#[tokio::test(start_paused = true)]
async fn shares_are_of_the_last_ten_seconds() {
    let server = Server::new(5, WfqConfig::default());
    for number in 0..3600 {
        let response = server.pending("", number);
        sleep(Duration::from_secs(1)).await;
        server.go.add_permits(1);
        response.await.unwrap();
    }
    assert_eq!(anonymous(&server).served, 3600);
    assert_eq!(anonymous(&server).share, 1.0);
    for number in 0..20 {
        let response = server.pending("a", number);
        sleep(Duration::from_secs(1)).await;
        server.go.add_permits(1);
        response.await.unwrap();
    }
    let share = server.handle.tenant("a").unwrap().share;
    assert!(share > 0.9, "{share}");
}

/// Nobody looked meanwhile.
#[tokio::test(start_paused = true)]
async fn what_was_had_long_before_the_first_tenant_is_no_part_of_its_share() {
    let server = Server::new(5, WfqConfig::default());
    for (name, lasts, pause) in [("", 9, 91), ("a", 1, 0)] {
        let response = server.pending(name, 0);
        sleep(Duration::from_secs(lasts)).await;
        server.go.add_permits(1);
        response.await.unwrap();
        sleep(Duration::from_secs(pause)).await;
    }
    assert_eq!(server.handle.tenant("a").unwrap().share, 1.0);
    assert_eq!(anonymous(&server).share, 0.0);
    assert_eq!(anonymous(&server).served, 1);
}

#[tokio::test(start_paused = true)]
async fn a_cap_holds_for_those_without_a_name_too() {
    let server = Server::new(5, WfqConfig::default());
    let first = server.pending("", 0);
    server.go.add_permits(1);
    first.await.unwrap();
    server
        .handle
        .set_max_in_flight_per_tenant(Some(NonZeroU32::MIN));
    let responses: Vec<_> = (1..4).map(|number| server.pending("", number)).collect();
    let snapshot = server.handle.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting), (1, 2));
    server.handle.set_max_in_flight_per_tenant(None);
    server.go.add_permits(3);
    for response in responses {
        response.await.unwrap();
    }
    assert_eq!(server.handle.snapshot().served, 4);
}
