//! Ours and a peer's in turns, so that the ratio does not depend on when each was measured:
//! `cargo bench --bench ratios`, or with a word for the rows that have it in their names.
//!
//! A machine's speed drifts, by more than two implementations differ. Here they run one after the other for a few
//! milliseconds each, many times over; a round gives one ratio, and what is shown is the median of all rounds,
//! with the quartiles.

mod common;
#[path = "common/router.rs"]
mod driven;
#[path = "common/edge.rs"]
mod edge;
#[path = "common/hand_over.rs"]
mod hand_over;

use std::{
    env,
    time::{Duration, Instant},
};

use common::{
    Ready, TokioClock, clones, drive, drive_with, empty_bucket, full_bucket, governor_full_bucket,
    governor_keyed, governor_quota, noop, rate, together,
};
use driven::Driven;
use edge::{Answers, Driver};
use hand_over::{LIMIT, YieldOnce, one_thread, two_threads};
use tower::{Layer, Service};

/// Makes so many requests, and says how long that took.
type Run = Box<dyn FnMut(u64) -> Duration>;

const ROUNDS: usize = 201;
const A_TURN: Duration = Duration::from_millis(4);

/// One thread, one request after another.
fn alone(mut request: impl FnMut() -> bool + 'static) -> Run {
    Box::new(move |requests| {
        #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
        let begun = Instant::now();
        (0..requests).for_each(|_| assert!(request()));
        begun.elapsed()
    })
}

const KEYS: u64 = 10_000;

/// Scenario, and who is compared with whom.
fn rows() -> Vec<(&'static str, [(&'static str, Run); 2])> {
    use tower_backpressure as ours;
    let limit = || ours::ConcurrencyLimitLayer::new(10).layer(Ready);
    let towers = || tower::limit::ConcurrencyLimitLayer::new(10).layer(Ready);
    let bucket = || ours::RateLimitLayer::new(rate());
    let governor = || governor::RateLimiter::direct_with_clock(governor_quota(), TokioClock);
    let full_bucket = || ours::RateLimitLayer::new(full_bucket());
    let governor_full =
        || governor::RateLimiter::direct_with_clock(governor_full_bucket(), TokioClock);
    let empty = || {
        let layer = ours::RateLimitLayer::new(empty_bucket());
        layer.handle().try_acquire(1).expect("the burst");
        layer
    };
    // What a rejection costs beside: one at the limit, by a `LoadShed`.
    let shed_at_limit = || {
        let layer = ours::ConcurrencyLimitLayer::new(1);
        let kept = layer.handle().try_acquire().expect("free");
        let mut shed = ours::LoadShedLayer::new().layer(layer.layer(Ready));
        let rejected = move || {
            let _kept = &kept;
            !drive(&mut shed)
        };
        ("shed", alone(rejected))
    };
    let keyed = || {
        let layer = ours::KeyedRateLimitLayer::new(rate(), |key: &u64| Some(*key));
        let handle = layer.handle();
        (0..KEYS).for_each(|key| assert!(handle.try_acquire(&key).is_ok()));
        (layer, handle)
    };
    let keys = |thread: u64| (0..KEYS).cycle().skip((thread * KEYS / 2) as usize);
    let full = ours::ConcurrencyLimitLayer::new(1);
    let shed = || ours::LoadShedLayer::new().layer(full.layer(Ready));
    let kept = full.handle().try_acquire().expect("free");
    let mut towers_full = tower::limit::ConcurrencyLimitLayer::new(1).layer(Ready);
    let towers_shed = || tower::load_shed::LoadShedLayer::new().layer(towers_full.clone());
    let (towers_reused, towers_cloned) = (towers_shed(), towers_shed());
    assert!(towers_full.poll_ready(&mut noop()).is_ready());
    let mut kept = Some((kept, towers_full));

    vec![
        ("concurrency_limit", {
            let (mut a, mut b) = (limit(), towers());
            [
                ("tower-backpressure", alone(move || drive(&mut a))),
                ("tower", alone(move || drive(&mut b))),
            ]
        }),
        ("concurrency_limit_cloned", {
            let (a, b) = (limit(), towers());
            [
                ("tower-backpressure", alone(move || drive(&mut a.clone()))),
                ("tower", alone(move || drive(&mut b.clone()))),
            ]
        }),
        ("concurrency_limit_two_threads", {
            let (a, b) = (limit(), towers());
            [
                (
                    "tower-backpressure",
                    Box::new(move |n| together(n, clones(&a))),
                ),
                ("tower", Box::new(move |n| together(n, clones(&b)))),
            ]
        }),
        ("load_shed_reject", {
            let (mut a, mut b) = (shed(), towers_reused);
            [
                ("tower-backpressure", alone(move || !drive(&mut a))),
                ("tower", alone(move || !drive(&mut b))),
            ]
        }),
        ("load_shed_reject_cloned", {
            let (a, b, kept) = (shed(), towers_cloned, kept.take());
            [
                ("tower-backpressure", alone(move || !drive(&mut a.clone()))),
                (
                    "tower",
                    alone(move || kept.is_some() && !drive(&mut b.clone())),
                ),
            ]
        }),
        ("rate_limit (service)", {
            let (mut a, b) = (bucket().layer(Ready), governor());
            [
                ("tower-backpressure", alone(move || drive(&mut a))),
                ("governor", alone(move || b.check().is_ok())),
            ]
        }),
        ("rate_limit (direct)", {
            let (a, b) = (bucket().handle(), governor());
            [
                (
                    "tower-backpressure",
                    alone(move || a.try_acquire(1).is_ok()),
                ),
                ("governor", alone(move || b.check().is_ok())),
            ]
        }),
        ("rate_limit_two_threads (direct)", {
            let (a, b) = (bucket().handle(), governor());
            [
                (
                    "tower-backpressure",
                    Box::new(move |n| together(n, |_| || a.try_acquire(1).is_ok())),
                ),
                (
                    "governor",
                    Box::new(move |n| together(n, |_| || b.check().is_ok())),
                ),
            ]
        }),
        ("rate_limit_full (service)", {
            let (mut a, b) = (full_bucket().layer(Ready), governor_full());
            [
                ("tower-backpressure", alone(move || drive(&mut a))),
                ("governor", alone(move || b.check().is_ok())),
            ]
        }),
        ("rate_limit_full (direct)", {
            let (a, b) = (full_bucket().handle(), governor_full());
            [
                (
                    "tower-backpressure",
                    alone(move || a.try_acquire(1).is_ok()),
                ),
                ("governor", alone(move || b.check().is_ok())),
            ]
        }),
        ("rate_limit_full_two_threads (direct)", {
            let (a, b) = (full_bucket().handle(), governor_full());
            [
                (
                    "tower-backpressure",
                    Box::new(move |n| together(n, |_| || a.try_acquire(1).is_ok())),
                ),
                (
                    "governor",
                    Box::new(move |n| together(n, |_| || b.check().is_ok())),
                ),
            ]
        }),
        ("reject: limit, max_waiting(0)", {
            let layer = ours::ConcurrencyLimitLayer::new(1).max_waiting(0);
            let kept = layer.handle().try_acquire().expect("free");
            let mut a = layer.layer(Ready);
            let rejected = move || {
                let _kept = &kept;
                !drive(&mut a)
            };
            [("tower-backpressure", alone(rejected)), shed_at_limit()]
        }),
        ("reject: adaptive, max_waiting(0)", {
            let layer = ours::AdaptiveConcurrencyLayer::vegas().max_waiting(0);
            let handle = layer.handle();
            let kept: Vec<_> = std::iter::from_fn(|| handle.try_acquire().ok()).collect();
            let mut a = layer.layer(Ready);
            let rejected = move || {
                let _kept = &kept;
                !drive(&mut a)
            };
            [("tower-backpressure", alone(rejected)), shed_at_limit()]
        }),
        ("reject: rate_limit, max_waiting(0)", {
            let mut a = empty().max_waiting(0).layer(Ready);
            [
                ("tower-backpressure", alone(move || !drive(&mut a))),
                shed_at_limit(),
            ]
        }),
        #[cfg(feature = "quanta")]
        ("reject: rate_limit_tsc, max_waiting(0)", {
            let clock = ours::Clock::tsc();
            let layer = ours::RateLimitLayer::with_clock(empty_bucket(), clock).max_waiting(0);
            layer.handle().try_acquire(1).expect("the burst");
            let mut a = layer.layer(Ready);
            [
                ("tower-backpressure", alone(move || !drive(&mut a))),
                shed_at_limit(),
            ]
        }),
        ("reject: rate_limit, shed", {
            let mut a = ours::LoadShedLayer::new().layer(empty().layer(Ready));
            [
                ("tower-backpressure", alone(move || !drive(&mut a))),
                shed_at_limit(),
            ]
        }),
        ("reject: rate_limit_keyed", {
            let key = |key: &u64| Some(*key);
            let mut a = ours::KeyedRateLimitLayer::new(empty_bucket(), key).layer(Ready);
            assert!(drive(&mut a));
            [
                ("tower-backpressure", alone(move || !drive(&mut a))),
                shed_at_limit(),
            ]
        }),
        ("rate_limit_keyed (direct)", {
            let ((_, a), b) = (keyed(), governor_keyed(KEYS));
            let (mut of_a, mut of_b) = (keys(0), keys(0));
            [
                (
                    "tower-backpressure",
                    alone(move || a.try_acquire(&of_a.next().expect("endless")).is_ok()),
                ),
                (
                    "governor",
                    alone(move || b.check_key(&of_b.next().expect("endless")).is_ok()),
                ),
            ]
        }),
        ("rate_limit_keyed (service)", {
            let ((layer, _), b) = (keyed(), governor_keyed(KEYS));
            let (mut of_a, mut of_b) = (keys(0), keys(0));
            let mut a = layer.layer(Ready);
            [
                (
                    "tower-backpressure",
                    alone(move || drive_with(&mut a, of_a.next().expect("endless"))),
                ),
                (
                    "governor",
                    alone(move || b.check_key(&of_b.next().expect("endless")).is_ok()),
                ),
            ]
        }),
        ("rate_limit_keyed_two_threads (direct)", {
            let ((_, a), b) = (keyed(), governor_keyed(KEYS));
            [
                (
                    "tower-backpressure",
                    Box::new(move |n| {
                        together(n, |thread| {
                            let (mut keys, a) = (keys(thread), &a);
                            move || a.try_acquire(&keys.next().expect("endless")).is_ok()
                        })
                    }),
                ),
                (
                    "governor",
                    Box::new(move |n| {
                        together(n, |thread| {
                            let (mut keys, b) = (keys(thread), &b);
                            move || b.check_key(&keys.next().expect("endless")).is_ok()
                        })
                    }),
                ),
            ]
        }),
        ("hand-over, one thread", hand_overs(one_thread())),
        ("hand-over, two threads", hand_overs(two_threads())),
        ("edge: two threads beside one", {
            let (a, b) = (ours::edge().layer(Answers), ours::edge().layer(Answers));
            two_beside_one(a, b, &[])
        }),
        ("edge, tenants: two threads beside one", {
            let (a, b) = (ours::edge().layer(Answers), ours::edge().layer(Answers));
            let names: Vec<_> = (0..1000).map(|tenant| format!("tenant-{tenant}")).collect();
            two_beside_one(a, b, &names)
        }),
        ("router", {
            let (a, b) = (Driven::ours(), Driven::bare());
            [
                ("tower-backpressure", alone(move || a.request())),
                ("bare", alone(move || b.request())),
            ]
        }),
        ("router, tower's shed and limit", {
            let (a, b) = (Driven::tower(), Driven::bare());
            [
                ("tower", alone(move || a.request())),
                ("bare", alone(move || b.request())),
            ]
        }),
    ]
}

/// Ours and tower's limit, with 1000 tasks.
fn hand_overs(runtime: tokio::runtime::Runtime) -> [(&'static str, Run); 2] {
    let ours = tower_backpressure::ConcurrencyLimitLayer::new(LIMIT).layer(YieldOnce);
    let towers = tower::limit::ConcurrencyLimitLayer::new(LIMIT).layer(YieldOnce);
    let runtime = std::rc::Rc::new(runtime);
    let of_towers = std::rc::Rc::clone(&runtime);
    [
        (
            "tower-backpressure",
            Box::new(move |n| hand_over::hand_over(&runtime, &ours, n)),
        ),
        (
            "tower",
            Box::new(move |n| hand_over::hand_over(&of_towers, &towers, n)),
        ),
    ]
}

/// The time per request of one of two threads, beside that of one alone: at 2, two threads serve together as many as one
/// alone.
fn two_beside_one<S>(both: S, one: S, tenants: &[String]) -> [(&'static str, Run); 2]
where
    S: Driver,
{
    let (of_both, of_one) = (tenants.to_vec(), tenants.to_vec());
    [
        (
            "two threads",
            Box::new(move |n| together(n, |_| both.requests(&of_both))),
        ),
        ("one", alone(one.requests(&of_one))),
    ]
}

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let test = args.iter().any(|arg| arg == "--test");
    let wanted: Vec<_> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    println!(
        "{:<40}{:>10} ns  {:<12}{:>10} ns  {:<10}{:>8}",
        "scenario", "", "", "", "", "ratio"
    );
    for (scenario, [(name, mut run), (peer, mut peers)]) in rows() {
        if !wanted.is_empty() && !wanted.iter().any(|word| scenario.contains(*word)) {
            continue;
        }
        if test {
            run(10);
            peers(10);
            continue;
        }
        let (requests, of_peer) = (in_a_turn(&mut run), in_a_turn(&mut peers));
        let each = |took: Duration, requests: u64| took.as_secs_f64() * 1e9 / requests as f64;
        let (mut times, mut peer_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Whoever is first has the other's leavings in the caches: in turns.
            let first = (round % 2 == 0).then(|| run(requests));
            let second = peers(of_peer);
            let first = first.unwrap_or_else(|| run(requests));
            times.push(each(first, requests));
            peer_times.push(each(second, of_peer));
            ratios.push(each(first, requests) / each(second, of_peer));
        }
        let [_, time, _] = quartiles(times);
        let [_, peer_time, _] = quartiles(peer_times);
        let [low, ratio, high] = quartiles(ratios);
        println!(
            "{scenario:<40}{time:>10.1}     {name:<20}{peer_time:>10.1}     {peer:<10}{ratio:>6.3}  ({low:.3} to {high:.3})"
        );
    }
}

/// How many requests fill a turn.
fn in_a_turn(run: &mut Run) -> u64 {
    let mut requests = 1000;
    loop {
        let took = run(requests);
        if took >= A_TURN {
            return requests;
        }
        requests *= 2;
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}
