//! The behaviours that adaptive concurrency is there for, in a few lines each: a simulated server, and a
//! limit that follows.

#[path = "support/simulation.rs"]
mod simulation;

use simulation::{MS, SEC, Server, Spread, World};
use tower::ServiceBuilder;
use tower_backpressure::{
    AdaptiveConcurrencyLayer, LoadShedLayer,
    adaptive_concurrency::{Moved, Snapshot},
};

/// The snapshots of two minutes at that load, ten a second.
fn watch(limits: (usize, usize, usize), servers: usize, load: f64) -> Vec<Snapshot> {
    let limit = AdaptiveConcurrencyLayer::vegas().limits(limits.0, limits.1, limits.2);
    let handle = limit.handle();
    let mut world = World::new(1, Server::new(servers, 10 * MS, Spread::Even), || {
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(limit)
            .into_inner()
    });
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
    let snapshots = watch((1, 100, 1000), 10, 2.0);
    let steady: Vec<_> = snapshots.iter().filter(|s| !is_probing(s)).collect();
    for pair in steady.windows(2) {
        let (before, after) = (pair[0].permits.limit as f64, pair[1].permits.limit as f64);
        // A dip may find that the baseline itself was too high: that is a correction, not a step.
        let rebased = pair[1].learned.baseline < pair[0].learned.baseline;
        assert!(
            rebased || after >= (0.7 * before).floor(),
            "{before} to {after}"
        );
    }
}

#[test]
fn it_never_falls_below_the_floor() {
    let snapshots = watch((5, 20, 40), 1, 2.0);
    assert_eq!(snapshots.iter().map(|s| s.permits.limit).min(), Some(5));
    // And it does not drift away from it, although it cannot measure a service without a queue.
    let last = snapshots.last().unwrap().permits.limit;
    assert!(last <= 10, "{last}");
}
