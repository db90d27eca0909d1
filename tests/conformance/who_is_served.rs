//! Who is served when not everybody can be: `edge()` with deadlines and priorities.

use std::time::Duration;

use tower_backpressure::{Edge, Priority, edge, edge::Handle};

use crate::{
    edged::edged,
    simulation::{MS, SEC, Seen, Server, Spread, Stack, World, seeds},
};

/// A server, an edge in front of it, and a handle on that.
fn world(seed: u64, server: Server, edge: Edge) -> (World<impl Stack + use<>>, Handle) {
    let mut handle = None;
    let mut world = World::new(seed, server, || {
        handle = Some(edge.handle());
        edged(edge)
    });
    world.timers = true;
    (world, handle.expect("it was just made"))
}

/// What was of use, as a share of what the server can do.
fn goodput(server: Server, seen: &Seen) -> f64 {
    seen.good as f64 / seen.lasted / server.capacity()
}

const MIXED: [(f64, Duration); 3] = [
    (0.7, Duration::from_millis(100)),
    (0.2, Duration::from_millis(300)),
    (0.1, Duration::from_secs(2)),
];

#[test]
fn explore_deadlines() {
    for tells in [true] {
        for load in [0.8, 0.9, 1.0, 1.2, 2.0, 5.0] {
            for seed in seeds() {
                let server = Server::new(20, 10 * MS, Spread::LogNormal(0.8));
                let (mut world, handle) = world(seed, server, edge());
                if std::env::var("PIN").is_ok() {
                    world.within(|| handle.pin(20).unwrap());
                }
                world.patiences = MIXED.to_vec();
                world.tells_patience = tells;
                world.run(0.5, 10 * SEC);
                world.run(load, 10 * SEC);
                let seen = world.run(load, 60 * SEC);
                let rejected = world.within(|| handle.snapshot().permits.rejected);
                let limit = world.within(|| handle.snapshot().permits.limit);
                println!(
                    "tells {tells}, {load}x seed {seed}: good {:.3} of max {:.3}, wasted {:.3}, p50 {:.0} p99 {:.0} ms, limit {limit}, {rejected:?}",
                    goodput(server, &seen),
                    load.min(1.0),
                    seen.wasted / seen.lasted / 20.0,
                    1e3 * seen.quantile(0.5),
                    1e3 * seen.quantile(0.99),
                );
            }
        }
    }
}

const LEVELS: [(f64, Priority); 4] = [
    (0.2, Priority::Critical),
    (0.3, Priority::High),
    (0.3, Priority::Normal),
    (0.2, Priority::Background),
];

fn by_level(seen: &Seen) -> Vec<f64> {
    let of = |(_, priority): &(f64, Priority)| {
        let at = *priority as usize;
        let refused = seen.refused_by_priority.get(at).copied().unwrap_or(0);
        1.0 - refused as f64 / seen.offered_by_priority[at].max(1) as f64
    };
    LEVELS.iter().map(of).collect()
}

#[test]
fn explore_priorities() {
    for (k, mean) in [(4, 50), (16, 50), (64, 50)] {
        for spread in [Spread::Exponential, Spread::Bimodal] {
            for seed in seeds() {
                for (name, levels) in [("fifo", &LEVELS[..0]), ("levels", &LEVELS[..])] {
                    let server = Server::new(k, mean * MS, spread);
                    let (mut world, _handle) = world(seed, server, edge());
                    world.patience = SEC;
                    world.priorities = levels.to_vec();
                    world.run(0.7, 20 * SEC);
                    let onset = Seen::of((0..10).map(|_| {
                        let mut onset = world.run(4.0, SEC);
                        let after = world.run(0.7, 20 * SEC);
                        onset.refused_by_priority.resize(5, 0);
                        for (p, r) in after.refused_by_priority.iter().enumerate() {
                            onset.refused_by_priority[p] += r;
                        }
                        onset
                    }));
                    let spikes = Seen::of((0..50).map(|_| {
                        let spike = world.run(4.0, 200 * MS);
                        let after = world.run(0.7, 1800 * MS);
                        Seen::of([spike, after])
                    }));
                    world.run(3.0, 10 * SEC);
                    let before = world.within(|| _handle.snapshot());
                    let steady = world.run(3.0, 60 * SEC);
                    let after = world.within(|| _handle.snapshot());
                    let (b, a) = (before.permits.rejected, after.permits.rejected);
                    println!(
                        "k  too old {} full {} displaced {} limit {} {:?}",
                        a.too_old - b.too_old,
                        a.queue_full - b.queue_full,
                        a.displaced - b.displaced,
                        after.permits.limit,
                        after.priorities.first().map(|p| (
                            p.rejected,
                            p.displaced,
                            p.waits,
                            p.waited.as_millis() as u64 / p.waits.max(1)
                        ))
                    );
                    println!(
                        "k {k} {mean} ms {spread:?} seed {seed} {name}: steady {:.3} {:.4?}, onset {:.3} {:.4?}, spikes {:.3} {:.4?}",
                        goodput(server, &steady),
                        if levels.is_empty() {
                            vec![]
                        } else {
                            by_level(&steady)
                        },
                        goodput(server, &onset),
                        if levels.is_empty() {
                            vec![]
                        } else {
                            by_level(&onset)
                        },
                        goodput(server, &spikes),
                        if levels.is_empty() {
                            vec![]
                        } else {
                            by_level(&spikes)
                        },
                    );
                }
            }
        }
    }
}

#[test]
fn explore_alone() {
    for k in [4, 16, 64] {
        for spread in [Spread::Exponential, Spread::Bimodal] {
            for seed in seeds() {
                let server = Server::new(k, 50 * MS, spread);
                let (mut world, handle) = world(seed, server, edge());
                world.patience = SEC;
                world.run(0.6, 30 * SEC);
                let steady = world.run(0.6, 60 * SEC);
                let snap = world.within(|| handle.snapshot());
                println!(
                    "k {k} {spread:?} seed {seed}: refused {} of {}, limit {} {:?}",
                    steady.refused, steady.offered, snap.permits.limit, snap.permits.rejected
                );
            }
        }
    }
}
