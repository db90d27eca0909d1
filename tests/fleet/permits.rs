//! At most so many requests in flight on all nodes together.

use std::time::Duration;

use tokio::time::sleep;
use tower_backpressure::{
    Fleet, Permit,
    fleet::{Fallback, Memory, concurrency_limit::Handle},
};

use super::{
    memory::{Does, Flaky, MS},
    server::Server,
    with_others,
};

/// Takes what it can get within this time.
async fn take(handle: &Handle, most: usize, within: Duration) -> Vec<Permit> {
    let mut taken = Vec::new();
    let all = async {
        while taken.len() < most {
            taken.push(handle.acquire().await.unwrap());
        }
    };
    let _ = tokio::time::timeout(within, all).await;
    taken
}

#[tokio::test]
async fn nodes_share_permits_on_a_real_server_and_a_dead_one_leaves_its_own() {
    let _others = with_others();
    let Some(server) = Server::start() else {
        return;
    };
    let node = || {
        let fleet = Fleet::redis(&server.url(), 3)
            .unwrap()
            .timeout(Duration::from_secs(1));
        fleet.concurrency_limit("upstream", 20).handle()
    };
    let (a, b) = (node(), node());
    let of_a = take(&a, 30, 500 * MS).await;
    assert_eq!(of_a.len(), 20);
    assert_eq!(take(&b, 1, 300 * MS).await.len(), 0);
    drop(of_a);
    // It wants them all, and gets all that the other does not need, when that has renewed its block.
    let of_b = take(&b, 20, 4000 * MS).await;
    assert_eq!(of_b.len(), 20);
    drop(of_b);

    // Another runtime, which dies with all that it had.
    let url = server.url();
    let dead = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let fleet = Fleet::redis(&url, 3)
                .unwrap()
                .timeout(Duration::from_secs(1));
            let handle = fleet.concurrency_limit("upstream", 20).handle();
            let taken = take(&handle, 20, 4000 * MS).await;
            let count = taken.len();
            std::mem::forget(taken);
            count
        })
    });
    let died_with = dead.join().unwrap();
    assert!(died_with >= 10, "{died_with}");
    let all = take(&a, 20, 4500 * MS).await;
    assert_eq!(all.len(), 20, "its block has ended");
}

#[tokio::test(start_paused = true)]
async fn a_share_is_fair_when_all_want_more() {
    let memory = Memory::new();
    let nodes: Vec<_> = (0..4)
        .map(|_| {
            Fleet::new(memory.clone(), 4)
                .concurrency_limit("upstream", 20)
                .handle()
        })
        .collect();
    let tasks: Vec<_> = nodes
        .iter()
        .map(|handle| {
            let handle = handle.clone();
            tokio::spawn(async move {
                for _ in 0..1000 {
                    let permit = handle.acquire().await.unwrap();
                    tokio::spawn(async move {
                        sleep(50 * MS).await;
                        drop(permit);
                    });
                }
            })
        })
        .collect();
    let mut most = 0;
    for _ in 0..200 {
        sleep(25 * MS).await;
        most = most.max(nodes.iter().map(|node| node.snapshot().in_flight).sum());
    }
    assert_eq!(most, 20);
    for node in &nodes {
        assert_eq!(node.snapshot().limit, 5);
    }
    tasks.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn a_block_that_has_ended_admits_nobody_also_where_the_task_has_not_run() {
    let store = Flaky::default();
    let fleet = Fleet::new(store.clone(), 2).fallback(Fallback::Closed);
    let handle = fleet.concurrency_limit("upstream", 20).handle();
    let held = take(&handle, 8, 100 * MS).await;
    assert_eq!(held.len(), 8);
    assert!(handle.snapshot().limit >= 9);
    drop(handle.try_acquire().unwrap());
    store.now(Does::Hang);
    // As if the process was stopped: time passes, and no task runs, because they all run on this thread.
    std::thread::sleep(3001 * MS);
    assert!(handle.try_acquire().is_err());
    let limit = handle.layer().handle().snapshot().limit;
    assert_eq!(limit, 0);
    store.now(Does::Answer);
    assert_eq!(take(&handle, 1, 5000 * MS).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_the_server_each_node_has_its_share() {
    let store = Flaky::default();
    let fleet = Fleet::new(store.clone(), 4);
    let handle = fleet.concurrency_limit("upstream", 20).handle();
    store.now(Does::Fail);
    assert_eq!(take(&handle, 20, 5000 * MS).await.len(), 5);
    store.now(Does::Answer);
    assert_eq!(take(&handle, 20, 5000 * MS).await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_idle_gives_its_block_back_and_calls_no_more() {
    let store = Flaky::default();
    let fleet = Fleet::new(store.clone(), 2);
    let handle = fleet.concurrency_limit("upstream", 20).handle();
    drop(take(&handle, 8, 100 * MS).await);
    sleep(4000 * MS).await;
    assert_eq!(handle.snapshot().limit, 0);
    let calls = fleet.snapshot().granted;
    sleep(10_000 * MS).await;
    assert_eq!(fleet.snapshot().granted, calls);
}
