//! Who is served when not everybody can be: `edge()` with deadlines and priorities.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use http::Request;
use tower_backpressure::{
    Edge, Priority, WfqConfig, edge,
    edge::{Handle, Snapshot},
    wfq::{ExtractTenant, Head},
};

use crate::{
    edged::edged,
    simulation::{Job, MS, SEC, Seen, Server, Spread, Stack, World, seeds},
};

/// A server behind an edge.
struct Run<S> {
    world: World<S>,
    handle: Handle,
}

/// The edge is made on the simulated clock.
fn behind<E, F>(seed: u64, server: Server, edge: F) -> Run<impl Stack + use<E, F>>
where
    E: ExtractTenant<Request<Job>> + 'static,
    F: FnOnce() -> Edge<E>,
{
    let mut handle = None;
    let mut world = World::new(seed, server, || {
        let edge = edge();
        handle = Some(edge.handle());
        edged(edge)
    });
    world.timers = true;
    world.patience = SEC;
    let handle = handle.expect("it was just made");
    Run { world, handle }
}

impl<S: Stack> Run<S> {
    fn run(&mut self, load: f64, lasting: Duration) -> Seen {
        self.world.run(load, lasting)
    }

    fn snapshot(&self) -> Snapshot {
        self.world.within(|| self.handle.snapshot())
    }

    /// What was of use to clients, as a share of what the server can do.
    fn goodput(&self, seen: &Seen) -> f64 {
        seen.good as f64 / seen.lasted / self.world.server.capacity()
    }
}

/// Most clients wait for 100 ms, and some for longer; service times are 10 ms in the middle.
fn with_deadlines(seed: u64) -> Run<impl Stack> {
    let server = Server::new(20, 10 * MS, Spread::LogNormal(0.8));
    let mut run = behind(seed, server, edge);
    run.world.patiences = vec![(0.7, 100 * MS), (0.2, 300 * MS), (0.1, 2 * SEC)];
    run.world.tells_patience = true;
    run
}

#[test]
fn what_is_served_is_served_before_its_deadline() {
    for seed in seeds() {
        for (load, least) in [
            (0.8, 0.78),
            (1.0, 0.95),
            (1.2, 0.98),
            (2.0, 0.98),
            (5.0, 0.98),
        ] {
            let mut run = with_deadlines(seed);
            run.run(0.5, 10 * SEC);
            run.run(load, 10 * SEC);
            let over = run.run(load, 30 * SEC);
            let wasted = over.wasted / over.lasted / run.world.server.k as f64;
            let case = format!(
                "{load}x, seed {seed}: good {:.3}, wasted {wasted:.3}, p50 {:.0} ms, {:?}",
                run.goodput(&over),
                1e3 * over.quantile(0.5),
                run.snapshot().permits.rejected,
            );
            println!("{case}");
            assert!(run.goodput(&over) >= least && wasted <= 0.06, "{case}");
        }
    }
}

/// While nobody has to wait, a deadline decides nothing.
#[test]
fn no_request_is_rejected_for_its_deadline_in_calm_times() {
    let mut run = with_deadlines(0);
    let calm = run.run(0.5, 30 * SEC);
    assert_eq!(calm.refused, 0);
}

const LEVELS: [(f64, Priority); 4] = [
    (0.2, Priority::Critical),
    (0.3, Priority::High),
    (0.3, Priority::Normal),
    (0.2, Priority::Background),
];

/// The share of the requests of this priority that were not rejected.
fn admitted(seen: &Seen, priority: Priority) -> f64 {
    let level = &seen.by_priority[priority as usize];
    1.0 - level.refused as f64 / level.offered.max(1) as f64
}

/// So often a peak of the load, and in between less. What becomes of the requests is seen in both.
fn peaks<S: Stack>(run: &mut Run<S>, many: usize, peak: Duration, calm: Duration) -> Seen {
    let times = (0..2 * many).map(|time| match time % 2 {
        0 => run.run(4.0, peak),
        _ => run.run(0.7, calm),
    });
    Seen::of(times)
}

/// The most important requests are all served, and as much work is done as where nobody is told apart.
#[test]
fn the_most_important_are_served_and_no_capacity_is_lost() {
    const TIMES: [&str; 3] = ["onset", "spikes", "steady"];
    let servers = [(4, 50 * MS), (16, 50 * MS), (64, 50 * MS), (20, 10 * MS)];
    for (k, mean) in servers {
        // Work done, as a share of what can be, by all service times together: alone, each is a matter of luck.
        let mut used = [[0.0; 2]; 3];
        for spread in [Spread::Exponential, Spread::Constant, Spread::Bimodal] {
            for seed in seeds() {
                for (told_apart, levels) in [&LEVELS[..0], &LEVELS].into_iter().enumerate() {
                    let mut run = behind(seed, Server::new(k, mean, spread), edge);
                    run.world.priorities = levels.to_vec();
                    run.run(0.7, 20 * SEC);
                    let onsets = peaks(&mut run, 3, SEC, 5 * SEC);
                    let spikes = peaks(&mut run, 10, 200 * MS, 1800 * MS);
                    run.run(3.0, 5 * SEC);
                    let steady = run.run(3.0, 20 * SEC);
                    for (time, seen) in [onsets, spikes, steady].iter().enumerate() {
                        used[time][told_apart] += seen.worked;
                        if told_apart == 0 {
                            continue;
                        }
                        let shares = LEVELS.map(|(_, priority)| admitted(seen, priority));
                        let time = TIMES[time];
                        let case = format!("{k} × {mean:?}, {spread:?}, {time}: {shares:.4?}");
                        println!("{case}");
                        assert!(shares[0] >= 0.999, "{case}");
                    }
                }
            }
        }
        for (time, [equal, told_apart]) in TIMES.into_iter().zip(used) {
            let case = format!("{k} × {mean:?}, {time}: use {:.3}", told_apart / equal);
            println!("{case}");
            assert!(told_apart >= 0.99 * equal, "{case}");
        }
    }
}

/// All requests have the same priority: whichever that is, the same happens.
#[test]
fn equal_priorities_decide_nothing() {
    let server = Server::new(16, 50 * MS, Spread::Exponential);
    let seen = |edge: fn() -> Edge, priorities: &[(f64, Priority)]| {
        let mut run = behind(7, server, edge);
        run.world.tenants = vec![3.0, 2.0, 1.0];
        run.world.priorities = priorities.to_vec();
        let seen = [0.7, 3.0, 0.9, 1.5, 0.5].map(|load| run.run(load, 5 * SEC));
        let mut seen = Seen::of(seen);
        seen.by_priority = Default::default();
        seen
    };
    fn told_apart() -> Edge {
        let of = |head: Head<'_>| head.extensions.get().copied().unwrap_or_default();
        edge().priority(of)
    }
    let equal = |priority| [(1.0, priority), (0.0, Priority::Normal)];
    let normal = seen(edge, &equal(Priority::Normal));
    assert!(normal.refused > 0);
    for priority in [Priority::Background, Priority::Normal, Priority::Critical] {
        assert!(normal == seen(told_apart, &equal(priority)), "{priority:?}");
    }
}

/// At six times the capacity, more of the most important requests come than can be served.
#[test]
fn each_priority_gets_its_floor() {
    for (floor, least) in [(0.0, 0.0), (0.01, 0.007), (0.05, 0.04)] {
        let server = Server::new(20, 10 * MS, Spread::Exponential);
        let config = WfqConfig::default().priority_floor(floor);
        let mut run = behind(3, server, || edge().wfq(config));
        run.world.priorities = LEVELS.to_vec();
        run.run(6.0, 5 * SEC);
        let over = run.run(6.0, 20 * SEC);
        let served = |priority: Priority| over.by_priority[priority as usize].served as f64;
        let all: f64 = Priority::ALL.into_iter().map(served).sum();
        let shares = LEVELS.map(|(_, priority)| served(priority) / all);
        println!("floor {floor}: {shares:.3?}");
        assert!(
            shares[1..].iter().all(|share| *share >= least),
            "{shares:?}"
        );
        assert!(shares[0] >= 1.0 - 3.0 * floor - 0.01, "{shares:?}");
    }
}

/// A hundred thousand tenants send what matters least, each of them a few requests: nobody has a backlog.
#[test]
fn a_flood_of_tenants_that_matter_least_is_not_noticed_at_the_top() {
    for (k, mean) in [(20, 10 * MS), (64, 50 * MS)] {
        let server = Server::new(k, mean, Spread::Exponential);
        let run = |flood: f64| {
            let next = AtomicUsize::new(0);
            let tenant = move |request: &Request<Job>| match request.body().priority {
                Priority::Background => Some(format!("{}", next.fetch_add(1, Relaxed) % 100_000)),
                _ => Some("important".to_owned()),
            };
            let mut run = behind(5, server, || edge().tenant(tenant));
            run.world.priorities = vec![(0.5, Priority::Critical), (flood, Priority::Background)];
            run.run(0.5 + flood, 5 * SEC);
            let seen = run.run(0.5 + flood, 20 * SEC);
            (seen, run.snapshot())
        };
        let ((calm, _), (flooded, snapshot)) = (run(0.0), run(10.0));
        let tops = [&calm, &flooded].map(|seen| &seen.by_priority[Priority::Critical as usize]);
        let [calm, top] = tops.map(|level| level.quantile(0.99));
        let case = format!(
            "{k} workers, {mean:?}: p99 {:.0} ms, {:.0} ms without the flood, {} tenants",
            1e3 * top,
            1e3 * calm,
            snapshot.tenants
        );
        println!("{case}");
        assert!(top <= calm + mean.as_secs_f64(), "{case}");
        assert_eq!(tops[1].refused, 0);
        assert!(snapshot.tenants <= 10_000 && snapshot.permits.waiting <= 1024);
    }
}
