//! The default law, with the real layer in front of a simulated server: what it has to hold, line by line.
//!
//! Each line is run with one seed; `BACKPRESSURE_SEEDS=10 cargo test --release -p conformance` runs them
//! with more.

use std::time::Duration;

use tower::{Layer, ServiceBuilder};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, LoadShedLayer,
    adaptive_concurrency::{Handle, Moved},
};

use crate::simulation::{Inner, MS, SEC, Seen, Server, Spread, Stack, World, seeds};

const UNIMODAL: [Spread; 5] = [
    Spread::Constant,
    Spread::Even,
    Spread::LogNormal(0.5),
    Spread::LogNormal(1.0),
    Spread::Exponential,
];
const LOADS: [f64; 3] = [2.0, 3.0, 5.0];

/// A world and a handle on its limit.
struct Run<S> {
    world: World<S>,
    handle: Handle,
}

/// What does not fit is refused.
fn shedding(seed: u64, server: Server) -> Run<impl Stack> {
    shedding_from(seed, server, 20)
}

fn shedding_from(seed: u64, server: Server, initial: usize) -> Run<impl Stack> {
    behind(seed, server, initial, |limit| {
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(limit)
            .into_inner()
    })
}

fn behind<L, S>(
    seed: u64,
    server: Server,
    initial: usize,
    layers: impl FnOnce(AdaptiveConcurrencyLayer) -> L,
) -> Run<S>
where
    L: Layer<Inner, Service = S>,
    S: Stack,
{
    let mut handle = None;
    let world = World::new(seed, server, || {
        let limit = AdaptiveConcurrencyLayer::vegas().limits(1, initial, 1000);
        handle = Some(limit.handle());
        layers(limit)
    });
    Run {
        world,
        handle: handle.expect("it was just made"),
    }
}

impl<S: Stack> Run<S> {
    fn limit(&self) -> f64 {
        self.handle.snapshot().permits.limit as f64
    }

    /// Runs, and gives the mean limit beside what was seen.
    fn watch(&mut self, load: f64, lasting: Duration) -> (f64, Seen) {
        const LOOKS: u32 = 50;
        let mut parts = Vec::new();
        let mut limit = 0.0;
        for _ in 0..LOOKS {
            parts.push(self.world.run(load, lasting / LOOKS));
            limit += self.limit() / f64::from(LOOKS);
        }
        (limit, Seen::of(parts))
    }

    /// The share of its capacity that the server got to use.
    fn goodput(&self, seen: &Seen) -> f64 {
        seen.rate() / self.world.server.capacity()
    }
}

/// Enough requests to tell 95 % from 96 %.
fn long_enough(server: &Server) -> Duration {
    Duration::from_secs_f64((40_000.0 / server.capacity()).clamp(3.0, 200.0))
}

#[track_caller]
fn assert_at_least(what: f64, least: f64, case: &dyn std::fmt::Debug) {
    assert!(what >= least, "{what:.3} is below {least}: {case:?}");
}

#[track_caller]
fn assert_at_most(what: f64, most: f64, case: &dyn std::fmt::Debug) {
    assert!(what <= most, "{what:.3} is above {most}: {case:?}");
}

#[track_caller]
fn assert_near(what: f64, expected: f64, within: f64, case: &dyn std::fmt::Debug) {
    let off = what / expected - 1.0;
    assert!(
        off.abs() <= within,
        "{what:.2} is {:+.0} % off {expected:.2}: {case:?}",
        100.0 * off
    );
}

/// A: under 2, 3 and 5 times the load that it can take, the service is kept busy, and what it accepts
/// hardly waits.
fn line_a(k: usize, means: &[Duration], spreads: &[Spread], least: f64, slowest: f64) {
    for seed in seeds() {
        for &mean in means {
            for &spread in spreads {
                for load in LOADS {
                    let server = Server::new(k, mean, spread);
                    let mut run = shedding(seed, server);
                    run.world.run(load, 10 * SEC + 1000 * mean);
                    let seen = run.world.run(load, long_enough(&server));
                    let case = (seed, k, mean, spread, load);
                    assert_at_least(run.goodput(&seen), least, &case);
                    if load == 3.0 {
                        let unloaded = spread.median() * mean.as_secs_f64();
                        assert_at_most(seen.quantile(0.5) / unloaded, slowest, &case);
                    }
                }
            }
        }
    }
}

#[test]
fn a_overload_of_4_servers() {
    line_a(4, &[2 * MS, 10 * MS, 50 * MS], &UNIMODAL, 0.95, 3.0);
}

#[test]
fn a_overload_of_32_servers() {
    line_a(32, &[2 * MS, 10 * MS, 50 * MS], &UNIMODAL, 0.95, 1.5);
}

#[test]
fn a_overload_of_200_servers() {
    line_a(200, &[2 * MS, 10 * MS, 50 * MS], &UNIMODAL, 0.95, 1.5);
}

#[test]
fn a_overload_with_two_kinds_of_requests() {
    line_a(
        4,
        &[2 * MS, 10 * MS, 50 * MS],
        &[Spread::Bimodal],
        0.93,
        10.0,
    );
    line_a(
        32,
        &[2 * MS, 10 * MS, 50 * MS],
        &[Spread::Bimodal],
        0.93,
        4.0,
    );
    line_a(200, &[10 * MS, 50 * MS], &[Spread::Bimodal], 0.9, 2.5);
}

#[test]
fn a_overload_with_a_queue_in_front() {
    for seed in seeds() {
        for k in [4, 32] {
            for spread in [Spread::Even, Spread::Exponential, Spread::Bimodal] {
                let server = Server::new(k, 10 * MS, spread);
                let mut run = behind(seed, server, 20, |limit| limit.max_waiting(64));
                run.world.run(2.0, 20 * SEC);
                let seen = run.world.run(2.0, long_enough(&server));
                let case = (seed, k, spread);
                let least = if spread == Spread::Bimodal {
                    0.93
                } else {
                    0.95
                };
                assert_at_least(run.goodput(&seen), least, &case);
                assert!(seen.refused > 0, "{case:?}");
            }
        }
    }
}

/// B: an hour at twice the load moves neither the limit nor the latency.
#[test]
fn b_an_hour_of_overload() {
    for seed in seeds() {
        for (k, spread) in [
            (8, Spread::Even),
            (8, Spread::Exponential),
            (32, Spread::Exponential),
        ] {
            let server = Server::new(k, 50 * MS, spread);
            let mut run = shedding(seed, server);
            run.world.run(2.0, 240 * SEC);
            let (limit, seen) = run.watch(2.0, 60 * SEC);
            let p50 = seen.quantile(0.5);
            for minute in 5..60 {
                let (now, seen) = run.watch(2.0, 60 * SEC);
                let case = (seed, k, spread, minute);
                assert_near(now, limit, 0.25, &case);
                assert_near(seen.quantile(0.5), p50, 0.25, &case);
            }
        }
    }
}

/// C: a start under overload, from any limit, ends where a calm start does.
#[test]
fn c_a_start_under_overload() {
    for seed in seeds() {
        for spread in [Spread::Even, Spread::Exponential] {
            let server = Server::new(8, 50 * MS, spread);
            let mut calm = shedding(seed, server);
            calm.world.run(0.5, 60 * SEC);
            calm.world.run(3.0, 60 * SEC);
            let (settled, _) = calm.watch(3.0, 60 * SEC);
            for initial in [20, 100] {
                let mut run = shedding_from(seed, server, initial);
                run.world.run(3.0, 60 * SEC);
                let (limit, _) = run.watch(3.0, 30 * SEC);
                assert_near(limit, settled, 0.25, &(seed, spread, initial));
            }
        }
    }
}

/// D: replies that say nothing about the service do not move the limit.
#[test]
fn d_fast_replies() {
    for seed in seeds() {
        for (k, mean) in [(8, 50 * MS), (32, 10 * MS), (200, 10 * MS)] {
            let server = Server::new(k, mean, Spread::Even);
            let settled = |fast: f64| {
                let mut run = shedding(seed, Server { fast, ..server });
                run.world.run(2.0, 60 * SEC);
                run.watch(2.0, 60 * SEC).0
            };
            assert_near(settled(0.01), settled(0.0), 0.1, &(seed, k));
        }
    }
}

/// D: a service that fails at once is not taken for a fast one, and is used again when it works.
#[test]
fn d_an_outage() {
    for seed in seeds() {
        // In ten seconds 8 slow servers do so little that with random service times the luck of the draw
        // would decide.
        for (k, mean, spread) in [
            (8, 50 * MS, Spread::Even),
            (32, 10 * MS, Spread::Exponential),
            (200, 10 * MS, Spread::Exponential),
        ] {
            let server = Server::new(k, mean, spread);
            let mut run = shedding(seed, server);
            run.world.run(2.0, 60 * SEC);
            let before = run.limit();
            run.world.server.broken = true;
            for second in 0..30 {
                run.world.run(2.0, SEC);
                assert_at_most(run.limit(), before, &(seed, k, second));
            }
            assert_eq!(run.handle.snapshot().learned.moved, Some(Moved::Failures));
            run.world.server.broken = false;
            run.world.run(2.0, 5 * SEC);
            let seen = run.world.run(2.0, 10 * SEC);
            assert_at_least(run.goodput(&seen), 0.93, &(seed, k));
        }
    }
}

/// E: the limit follows the number of servers.
#[test]
fn e_half_of_the_servers_leave_and_come_back() {
    for seed in seeds() {
        for spread in [Spread::Even, Spread::Exponential] {
            let (all, half) = (
                Server::new(32, 10 * MS, spread),
                Server::new(16, 10 * MS, spread),
            );
            let settled = |server| {
                let mut run = shedding(seed, server);
                run.world.run(4.0, 60 * SEC);
                run.watch(4.0, 30 * SEC).0
            };
            let mut run = shedding(seed, all);
            run.world.run(2.0, 60 * SEC);
            for server in [half, all] {
                run.world.server = server;
                run.world.run(2.0, 2 * SEC); // 20 windows
                let (limit, _) = run.watch(2.0, 2 * SEC);
                assert_near(limit, settled(server), 0.25, &(seed, spread, server.k));
            }
        }
    }
}

/// E: a service that has become slower is not taken for one with a queue.
#[test]
fn e_every_request_takes_twice_as_long() {
    for seed in seeds() {
        for (k, mean, spread) in [
            (8, 50 * MS, Spread::Even),
            (32, 10 * MS, Spread::Even),
            (32, 10 * MS, Spread::Exponential),
            (32, 10 * MS, Spread::LogNormal(1.0)),
            (200, 10 * MS, Spread::Exponential),
        ] {
            let mut run = shedding(seed, Server::new(k, mean, spread));
            run.world.run(2.0, 60 * SEC);
            run.world.server.mean = 2 * mean;
            let seen = run.world.run(2.0, 60 * SEC);
            assert_at_least(run.goodput(&seen), 0.93, &(seed, k, spread));
        }
    }
}

/// E: a service that has become faster is not flooded.
#[test]
fn e_every_request_takes_a_fraction_of_the_time() {
    for seed in seeds() {
        for (k, mean, times) in [(8, 50 * MS, 10), (32, 100 * MS, 10), (200, 40 * MS, 4)] {
            let server = Server::new(k, mean, Spread::Even);
            let mut run = shedding(seed, server);
            run.world.run(2.0, 120 * SEC);
            run.world.server.mean = mean / times;
            for tenth in 0..100 {
                run.world.run(2.0, SEC / 10);
                assert_at_most(run.limit(), 2.5 * k as f64, &(seed, k, tenth));
            }
            let seen = run.world.run(2.0, 5 * SEC);
            assert_at_least(run.goodput(&seen), 0.95, &(seed, k));
        }
    }
}

/// F: after a night with hardly any traffic, the morning's is served.
#[test]
fn f_an_idle_hour_and_then_overload() {
    for seed in seeds() {
        for (k, mean, spread) in [
            (8, 50 * MS, Spread::Even),
            (32, 10 * MS, Spread::Even),
            (32, 10 * MS, Spread::Exponential),
            (32, 50 * MS, Spread::Exponential),
        ] {
            for night in [0.0, 0.02] {
                let mut run = shedding(seed, Server::new(k, mean, spread));
                run.world.run(2.0, 60 * SEC);
                run.world.run(night, 3600 * SEC);
                let seen = run.world.run(2.0, 10 * SEC);
                let case = (seed, k, mean, spread, night);
                assert_at_least(run.goodput(&seen), 0.95, &case);
            }
        }
    }
}

/// G: five requests a second are enough to learn from.
#[test]
fn g_a_low_rate() {
    for seed in seeds() {
        for initial in [1, 20, 100] {
            for spread in [Spread::Even, Spread::Exponential] {
                let server = Server::new(1, 300 * MS, spread);
                let mut run = shedding_from(seed, server, initial);
                let load = 5.0 / server.capacity();
                run.world.run(load, 600 * SEC);
                let (limit, seen) = run.watch(load, 1200 * SEC);
                let case = (seed, initial, spread);
                assert_at_least(run.goodput(&seen), 0.9, &case);
                assert_at_least(limit, 2.0, &case);
                assert_at_most(limit, 12.0, &case);
            }
        }
    }
}

/// H: from 20 to 200 in ten seconds.
#[test]
fn h_a_ramp_to_200_servers() {
    for seed in seeds() {
        for mean in [10 * MS, 50 * MS] {
            for spread in UNIMODAL {
                let mut run = shedding(seed, Server::new(200, mean, spread));
                let seconds = (0..10).map(|_| {
                    let seen = run.world.run(2.0, SEC);
                    run.goodput(&seen)
                });
                let best = seconds.fold(0.0, f64::max);
                assert_at_least(best, 0.95, &(seed, mean, spread));
            }
        }
    }
}

/// I: a service that slows down as more is asked of it at once is kept near its best.
#[test]
fn i_a_service_that_slows_down() {
    for seed in seeds() {
        for k in [4, 8, 32] {
            for spread in [Spread::Even, Spread::Exponential] {
                let mut server = Server::new(k, 10 * MS, spread);
                server.contended = Some(0.01);
                let mut run = shedding(seed, server);
                run.world.run(3.0, 30 * SEC);
                let seen = run.world.run(3.0, long_enough(&server));
                assert_at_least(run.goodput(&seen), 0.9, &(seed, k, spread));
            }
        }
    }
}
