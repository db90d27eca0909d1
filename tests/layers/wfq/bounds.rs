//! How many wait, how long, and what the others are told.

use super::{support::*, *};

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
    assert_eq!(begun, [0, 7], "the flood has had a request already");
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
