//! The behaviours that adaptive concurrency is there for, in a few lines each: a simulated server, and a
//! limit that follows.

use crate::simulation;

use simulation::{MS, SEC, Server, Spread, Stack, World};
use tower::ServiceBuilder;
use tower_backpressure::{
    AdaptiveConcurrencyLayer, LoadShedLayer,
    adaptive_concurrency::{Handle, Moved, Snapshot},
};

/// A simulated server behind a shed and a limit.
fn world(limits: (usize, usize, usize), servers: usize) -> (World<impl Stack>, Handle) {
    let limit = AdaptiveConcurrencyLayer::vegas().limits(limits.0, limits.1, limits.2);
    let handle = limit.handle();
    let world = World::new(1, Server::new(servers, 10 * MS, Spread::Even), || {
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(limit)
            .into_inner()
    });
    (world, handle)
}

/// The snapshots of two minutes at that load, ten a second.
fn watch(limits: (usize, usize, usize), servers: usize, load: f64) -> Vec<Snapshot> {
    let (mut world, handle) = world(limits, servers);
    let looks = (0..1200).map(|_| {
        world.run(load, SEC / 10);
        handle.snapshot()
    });
    looks.collect()
}

/// While it measures, the limit is lower.
fn is_probing(snapshot: &Snapshot) -> bool {
    snapshot.learned.moved == Some(Moved::Probe)
}

#[test]
fn time_at_the_baseline_widens_the_limit_up_to_the_cap() {
    let snapshots = watch((1, 20, 60), 1000, 0.1);
    assert_eq!(snapshots.iter().map(|s| s.permits.limit).max(), Some(60));
    let last = snapshots.last().unwrap();
    let baseline = last.learned.baseline.unwrap().as_secs_f64();
    assert!((baseline - 0.010).abs() < 0.0001, "{baseline}");
    let window = last.learned.window.unwrap();
    assert!(window.queued < 2.0, "{window:?}");
}

#[test]
fn time_above_the_baseline_narrows_it() {
    let snapshots = watch((1, 100, 1000), 10, 2.0);
    let first = snapshots[10].permits.limit;
    assert!(first > 50, "{first}");
    let last = snapshots.last().unwrap().permits.limit;
    assert!((8..=16).contains(&last), "{last}");
}

#[test]
fn it_narrows_by_at_most_three_tenths_at_once() {
    let (mut world, handle) = world((1, 100, 1000), 10);
    world.run(0.4, 60 * SEC); // it learns the baseline, and has no reason to move
    assert_eq!(handle.snapshot().permits.limit, 100);
    // Then a queue of 90 appears at once.
    let mut limits = vec![100];
    for _ in 0..500 {
        world.run(5.0, SEC / 50);
        let snapshot = handle.snapshot();
        if !is_probing(&snapshot) {
            limits.push(snapshot.permits.limit);
        }
    }
    for pair in limits.windows(2) {
        let (before, after) = (pair[0] as f64, pair[1] as f64);
        assert!(
            after >= (0.7 * before).floor(),
            "{before} to {after}: {limits:?}"
        );
    }
    assert!(*limits.last().unwrap() < 30, "{limits:?}");
}

#[test]
fn it_never_falls_below_the_floor() {
    let snapshots = watch((5, 20, 40), 1, 2.0);
    assert_eq!(snapshots.iter().map(|s| s.permits.limit).min(), Some(5));
    // And it does not drift away from it, although it cannot measure a service without a queue.
    let last = snapshots.last().unwrap().permits.limit;
    assert!(last <= 10, "{last}");
}
