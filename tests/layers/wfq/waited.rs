//! What the layers inside are told about waiting.

use super::{support::*, *};

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

#[tokio::test(start_paused = true)]
async fn it_is_not_told_of_those_that_wait_for_their_own_others() {
    let server = Server::new(10, WfqConfig::default().max_in_flight_per_tenant(1));
    let _running = server.pending("a", 0);
    let _held_back = server.pending("a", 1);
    sleep(50 * MS).await;
    let _other = server.pending("b", 2);
    let waited = *server.waited.lock().unwrap().last().unwrap();
    assert_eq!((waited.own, waited.oldest), (Duration::ZERO, None));
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
