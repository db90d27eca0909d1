//! A rate for each client.

use std::{borrow::Cow, time::Duration};

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_backpressure::{
    BoxError, Fleet, Overloaded, Rate, Reason,
    fleet::{FleetKey, Memory},
};

use super::{memory::MS, server::Server, with_others};

async fn served(_: Key) -> Result<(), BoxError> {
    Ok(())
}

#[derive(Clone, Hash)]
struct Key(Vec<u8>);

impl FleetKey for Key {
    fn bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.0)
    }
}

fn key(bytes: impl AsRef<[u8]>) -> Key {
    Key(bytes.as_ref().into())
}

/// Sends so many requests of this client at once to each of these nodes, and says how many passed.
async fn send(fleets: &[Fleet], client: &Key, requests: usize) -> usize {
    let rate = Rate::per_hour(10).burst(10);
    let mut all = tokio::task::JoinSet::new();
    for fleet in fleets {
        let limit = fleet.keyed_rate_limit("quota", rate, |key: &Key| Some(key.clone()));
        for _ in 0..requests {
            let mut service = limit.layer(service_fn(served));
            let client = client.clone();
            all.spawn(async move {
                let sent = service.ready().await.unwrap().call(client).await;
                if let Err(error) = &sent {
                    let refused = Overloaded::find(error.as_ref()).expect("it was refused");
                    assert_eq!(
                        (refused.layer(), refused.reason()),
                        ("quota", Reason::Quota)
                    );
                }
                sent.is_ok()
            });
        }
    }
    all.join_all()
        .await
        .into_iter()
        .filter(|passed| *passed)
        .count()
}

#[tokio::test]
async fn clients_with_any_key_have_one_quota_on_all_nodes() {
    let _others = with_others();
    let Some(server) = Server::start() else {
        return;
    };
    let fleets: Vec<_> = (0..3)
        .map(|_| Fleet::redis(&server.url(), 3).unwrap())
        .collect();
    let fleets: Vec<_> = fleets
        .into_iter()
        .map(|fleet| fleet.timeout(Duration::from_secs(1)))
        .collect();
    for client in [
        key("alice"),
        key("{a}"),
        key("a b"),
        key("a}b{c"),
        key(b"\xff\xfe\r\n"),
        key("x".repeat(10_000)),
        key(""),
    ] {
        assert_eq!(send(&fleets, &client, 10).await, 10);
    }
    let keys = server.command(&["KEYS", "*"]);
    assert!(
        keys.starts_with("*7\r\n") && keys.contains("backpressure:{quota:alice}"),
        "{keys}"
    );
    let names = keys.lines().filter(|line| line.starts_with("backpressure"));
    for name in names {
        assert!(
            name.len() < 90 && name.matches(['{', '}']).count() == 2,
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_over_its_quota_costs_no_calls_and_is_told_when_to_come() {
    let fleet = Fleet::new(Memory::new(), 1);
    let limit = fleet.keyed_rate_limit("quota", Rate::per_minute(60).burst(1), |key: &Key| {
        Some(key.clone())
    });
    let mut service = limit.layer(service_fn(served));
    service.ready().await.unwrap().call(key("a")).await.unwrap();
    let mut hints = Vec::new();
    for _ in 0..50 {
        let error = service
            .ready()
            .await
            .unwrap()
            .call(key("a"))
            .await
            .unwrap_err();
        hints.push(Overloaded::find(error.as_ref()).unwrap().retry_after());
        tokio::time::sleep(10 * MS).await;
    }
    assert!(hints.is_sorted_by(|a, b| a > b), "{hints:?}");
    assert!(hints[0] <= 1000 * MS && hints[0] > 990 * MS, "{hints:?}");
    let snapshot = fleet.snapshot();
    assert_eq!((snapshot.granted, snapshot.refused), (1, 1));
    tokio::time::sleep(500 * MS).await;
    service.ready().await.unwrap().call(key("a")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_keys_are_forgotten_when_there_is_nothing_left_to_know() {
    let fleet = Fleet::new(Memory::new(), 1);
    let limit = fleet.keyed_rate_limit("quota", Rate::per_second(10).burst(1), |key: &u32| {
        Some(*key)
    });
    let limit = limit.max_keys(100);
    let mut service = limit.layer(service_fn(|_: u32| async { Ok::<_, BoxError>(()) }));
    for round in 0..4 {
        let mut admitted = 0;
        for client in 0..300 {
            let answer = service
                .ready()
                .await
                .unwrap()
                .call(round * 1000 + client)
                .await;
            admitted += usize::from(answer.is_ok());
        }
        let snapshot = limit.handle().snapshot();
        assert!(snapshot.keys <= 100);
        assert!(admitted >= 100, "{round}: {admitted}"); // those without room share
        tokio::time::sleep(2000 * MS).await;
    }
    let snapshot = limit.handle().snapshot();
    assert!(snapshot.overflowed > 0, "{snapshot:?}");
    assert_eq!(snapshot.admitted + snapshot.rejected.total(), 1200);
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_tokens_where_they_may() {
    let fleet = Fleet::new(Memory::new(), 1);
    let limit = fleet.keyed_rate_limit("quota", Rate::per_second(10).burst(1), |key: &Key| {
        Some(key.clone())
    });
    let mut service = limit.max_wait(250 * MS).layer(service_fn(served));
    let start = tokio::time::Instant::now();
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.push(tokio::spawn(service.ready().await.unwrap().call(key("a"))));
    }
    let mut waits = Vec::new();
    for request in sent {
        let passed = request.await.unwrap().is_ok();
        waits.push((passed, start.elapsed().as_millis() / 50 * 50));
    }
    assert_eq!(waits, [(true, 0), (true, 100), (true, 200), (false, 200)]);
}
