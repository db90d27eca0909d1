//! Instructions per request, counted by callgrind: the same on every run, whatever else the machine
//! does. `cargo bench --bench instructions` (needs `valgrind` on the PATH; says so where it is not).
//!
//! The program runs itself under callgrind for 10 000 and for 20 000 requests; the difference is what
//! 10 000 requests cost, without start and end.

mod common;
#[path = "common/edge.rs"]
mod edge;
#[allow(dead_code, reason = "a part of it is used")]
#[path = "common/fair.rs"]
mod fair;
#[cfg(feature = "fleet")]
#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/hand_over.rs"]
mod hand_over;
#[path = "common/router.rs"]
mod router;

use std::{env, process::Command};

use common::{
    Fallible, Ready, TokioClock, codel, drive, empty_bucket, full_bucket, governor_full_bucket,
    governor_quota, noop, rate,
};
use edge::{Answers, drive_http, drive_http_post, drive_http_tenants};
use fair::Fair;
use hand_over::{LIMIT, YieldOnce, edge_hand_over, one_thread};
use router::Driven;
use tower::{Layer, Service, ServiceBuilder};
use tower_backpressure::{LoadShed, LoadShedLayer, OverloadResponse, OverloadResponseLayer};

const REQUESTS: u64 = 10_000;

type Row = (&'static str, &'static str, fn(u64));

/// Scenario, implementation, and `n` requests through it.
const ROWS: &[Row] = &[
    ("concurrency_limit", "tower-backpressure", |n| {
        let service = tower_backpressure::ConcurrencyLimitLayer::new(10).layer(Ready);
        drive_all(service, n, true);
    }),
    ("concurrency_limit", "tower", |n| {
        let mut service = tower::limit::ConcurrencyLimitLayer::new(10).layer(Ready);
        (0..n).for_each(|_| assert!(drive(&mut service)));
    }),
    ("concurrency_limit, fallible", "tower-backpressure", |n| {
        let service = tower_backpressure::ConcurrencyLimitLayer::new(10).layer(Fallible);
        drive_all(service, n, true);
    }),
    ("concurrency_limit_cloned", "tower-backpressure", |n| {
        let service = tower_backpressure::ConcurrencyLimitLayer::new(10).layer(Ready);
        (0..n).for_each(|_| assert!(drive(&mut service.clone())));
    }),
    ("concurrency_limit_cloned", "tower", |n| {
        let service = tower::limit::ConcurrencyLimitLayer::new(10).layer(Ready);
        (0..n).for_each(|_| assert!(drive(&mut service.clone())));
    }),
    ("load_shed_accept", "tower-backpressure", |n| {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(10);
        let mut shed = tower_backpressure::LoadShedLayer::new().layer(limit.layer(Ready));
        (0..n).for_each(|_| assert!(drive(&mut shed)));
    }),
    ("load_shed_accept", "tower", |n| {
        let limit = tower::limit::ConcurrencyLimitLayer::new(10);
        let mut shed = tower::load_shed::LoadShedLayer::new().layer(limit.layer(Ready));
        (0..n).for_each(|_| assert!(drive(&mut shed)));
    }),
    ("load_shed_reject", "tower-backpressure", |n| {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(1);
        let mut shed = tower_backpressure::LoadShedLayer::new().layer(limit.layer(Ready));
        let _full = limit.handle().try_acquire().expect("free");
        (0..n).for_each(|_| assert!(!drive(&mut shed)));
    }),
    ("load_shed_reject", "tower", |n| {
        let mut limit = tower::limit::ConcurrencyLimitLayer::new(1).layer(Ready);
        let mut shed = tower::load_shed::LoadShedLayer::new().layer(limit.clone());
        assert!(limit.poll_ready(&mut noop()).is_ready());
        (0..n).for_each(|_| assert!(!drive(&mut shed)));
    }),
    ("load_shed_reject_cloned", "tower-backpressure", |n| {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(1);
        let shed = tower_backpressure::LoadShedLayer::new().layer(limit.layer(Ready));
        let _full = limit.handle().try_acquire().expect("free");
        (0..n).for_each(|_| assert!(!drive(&mut shed.clone())));
    }),
    ("load_shed_reject_cloned", "tower", |n| {
        let mut limit = tower::limit::ConcurrencyLimitLayer::new(1).layer(Ready);
        let shed = tower::load_shed::LoadShedLayer::new().layer(limit.clone());
        assert!(limit.poll_ready(&mut noop()).is_ready());
        (0..n).for_each(|_| assert!(!drive(&mut shed.clone())));
    }),
    ("load_shed_accept, fallible", "tower-backpressure", |n| {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(10);
        let shed = tower_backpressure::LoadShedLayer::new().layer(limit.layer(Fallible));
        drive_all(shed, n, true);
    }),
    ("breaker", "tower-backpressure", |n| {
        let config = tower_backpressure::CircuitBreakerConfig::default();
        let breaker = tower_backpressure::CircuitBreakerLayer::new(config);
        drive_all(breaker.layer(Ready), n, true);
    }),
    ("breaker, by share", "tower-backpressure", |n| {
        let config = tower_backpressure::CircuitBreakerConfig::default();
        let config = config.failure_rate(0.5, std::time::Duration::from_secs(10), 20);
        let breaker = tower_backpressure::CircuitBreakerLayer::new(config);
        drive_all(breaker.layer(Ready), n, true);
    }),
    ("breaker, keyed", "tower-backpressure", |n| {
        let config = tower_backpressure::CircuitBreakerConfig::default();
        let key = |request: &u64| Some(*request);
        let breaker = tower_backpressure::KeyedCircuitBreakerLayer::new(config, key);
        drive_all(breaker.layer(Ready), n, true);
    }),
    ("breaker, fallible", "tower-backpressure", |n| {
        let config = tower_backpressure::CircuitBreakerConfig::default();
        let breaker = tower_backpressure::CircuitBreakerLayer::new(config);
        drive_all(breaker.layer(Fallible), n, true);
    }),
    ("adaptive", "tower-backpressure", |n| {
        let service = tower_backpressure::AdaptiveConcurrencyLayer::vegas().layer(Ready);
        drive_all(service, n, true);
    }),
    ("adaptive", "tower", |n| {
        let mut service = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
        (0..n).for_each(|_| assert!(drive(&mut service)));
    }),
    ("codel", "tower-backpressure", |n| {
        let mut service = codel().layer(Ready);
        (0..n).for_each(|_| assert!(drive(&mut service)));
    }),
    ("codel", "tower", |n| {
        let mut service = tower::limit::ConcurrencyLimitLayer::new(20).layer(Ready);
        (0..n).for_each(|_| assert!(drive(&mut service)));
    }),
    ("rate_limit", "tower-backpressure", |n| {
        let service = tower_backpressure::RateLimitLayer::new(rate()).layer(Ready);
        drive_all(service, n, true);
    }),
    ("rate_limit", "tower-backpressure-direct", |n| {
        take_all(&tower_backpressure::RateLimitLayer::new(rate()), n, true);
    }),
    ("rate_limit", "governor", |n| {
        check_all(governor_quota(), n);
    }),
    ("rate limit, full bucket", "tower-backpressure", |n| {
        let service = tower_backpressure::RateLimitLayer::new(full_bucket()).layer(Ready);
        drive_all(service, n, true);
    }),
    (
        "rate limit, full bucket",
        "tower-backpressure-direct",
        |n| {
            let limit = tower_backpressure::RateLimitLayer::new(full_bucket());
            take_all(&limit, n, true);
        },
    ),
    ("rate limit, full bucket", "governor", |n| {
        check_all(governor_full_bucket(), n);
    }),
    ("max_waiting(0): limit", "tower-backpressure", |n| {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(1).max_waiting(0);
        let _full = limit.handle().try_acquire().expect("free");
        drive_all(limit.layer(Ready), n, false);
    }),
    ("max_waiting(0): adaptive", "tower-backpressure", |n| {
        let limit = tower_backpressure::AdaptiveConcurrencyLayer::vegas().max_waiting(0);
        let handle = limit.handle();
        let _full: Vec<_> = std::iter::from_fn(|| handle.try_acquire().ok()).collect();
        drive_all(limit.layer(Ready), n, false);
    }),
    ("max_waiting(0): rate limit", "tower-backpressure", |n| {
        let limit = tower_backpressure::RateLimitLayer::new(empty_bucket()).max_waiting(0);
        take_all(&limit, 1, true);
        drive_all(limit.layer(Ready), n, false);
    }),
    (
        "max_waiting(0): rate limit",
        "tower-backpressure-shed",
        |n| {
            let limit = tower_backpressure::RateLimitLayer::new(empty_bucket());
            take_all(&limit, 1, true);
            let shed = tower_backpressure::LoadShedLayer::new().layer(limit.layer(Ready));
            drive_all(shed, n, false);
        },
    ),
    (
        "max_waiting(0): rate limit",
        "tower-backpressure-direct",
        |n| {
            let limit = tower_backpressure::RateLimitLayer::new(empty_bucket());
            take_all(&limit, 1, true);
            take_all(&limit, n, false);
        },
    ),
    ("keyed rate limit", "tower-backpressure-direct", |n| {
        let handle =
            tower_backpressure::KeyedRateLimitLayer::new(rate(), |key: &u64| Some(*key)).handle();
        (0..n).for_each(|_| assert!(handle.try_acquire(&1u64).is_ok()));
    }),
    ("keyed rate limit, rejects", "tower-backpressure", |n| {
        let key = |key: &u64| Some(*key);
        let limit = tower_backpressure::KeyedRateLimitLayer::new(empty_bucket(), key);
        assert!(limit.handle().try_acquire(&1u64).is_ok());
        drive_all(limit.layer(Ready), n, false);
    }),
    #[cfg(feature = "fleet")]
    ("rate_limit", "tower-backpressure-fleet", |n| {
        let (_runtime, limit) = fleet::leased();
        drive_all(limit.layer(Ready), n, true);
    }),
    #[cfg(feature = "fleet")]
    ("rate_limit", "tower-backpressure-fleet-direct", |n| {
        let (_runtime, limit) = fleet::leased();
        let handle = limit.handle();
        (0..n).for_each(|_| assert!(handle.try_acquire(1).is_ok()));
    }),
    ("edge", "tower-backpressure", |n| {
        drive_http(&tower_backpressure::edge().layer(Answers), n);
    }),
    ("edge", "bare", |n| drive_http(&Answers, n)),
    ("edge_tenants", "tower-backpressure", |n| {
        drive_http_tenants(&tower_backpressure::edge().layer(Answers), n);
    }),
    ("edge_tenants", "bare", |n| drive_http_tenants(&Answers, n)),
    ("respond, GET", "tower-backpressure", |n| {
        drive_http(&shed_and_limit(), n);
    }),
    ("respond, GET", "bare", |n| drive_http(&Answers, n)),
    ("respond, POST", "tower-backpressure", |n| {
        drive_http_post(&shed_and_limit(), n);
    }),
    ("respond, POST", "bare", |n| drive_http_post(&Answers, n)),
    ("respond in a router, GET", "tower-backpressure", |n| {
        let app = Driven::shed_and_limit();
        (0..n).for_each(|_| assert!(app.request()));
    }),
    ("respond in a router, POST", "tower-backpressure", |n| {
        let app = Driven::shed_and_limit();
        (0..n).for_each(|_| assert!(app.post()));
    }),
    ("edge in a router, GET", "tower-backpressure", |n| {
        let app = Driven::ours();
        (0..n).for_each(|_| assert!(app.request()));
    }),
    ("edge in a router, POST", "tower-backpressure", |n| {
        let app = Driven::ours();
        (0..n).for_each(|_| assert!(app.post()));
    }),
    // Every request waits for the permit of another: 1000 tasks on ten permits, with what the runtime does for them.
    ("hand-over", "tower-backpressure", |n| {
        let limit = tower_backpressure::ConcurrencyLimitLayer::new(LIMIT);
        hand_over::hand_over(&one_thread(), &limit.layer(YieldOnce), n);
    }),
    ("hand-over", "tower", |n| {
        let limit = tower::limit::ConcurrencyLimitLayer::new(LIMIT);
        hand_over::hand_over(&one_thread(), &limit.layer(YieldOnce), n);
    }),
    ("hand-over, edge", "tower-backpressure", |n| {
        edge_hand_over(&one_thread(), 1000, false, n);
    }),
    ("hand-over, edge_tenants", "tower-backpressure", |n| {
        edge_hand_over(&one_thread(), 1000, true, n);
    }),
    ("wfq", "tower-backpressure", |n| {
        let config = tower_backpressure::WfqConfig::default();
        let tenant = |_: &u64| Some("tenant");
        let mut service = tower_backpressure::WfqLayer::new(config, tenant).layer(Ready);
        (0..n).for_each(|_| assert!(drive(&mut service)));
    }),
    ("fair_queue_10", "tower-backpressure", |n| dispatch(10, n)),
    ("fair_queue_1000", "tower-backpressure", |n| {
        dispatch(1000, n);
    }),
    ("fair_queue_100000", "tower-backpressure", |n| {
        dispatch(100_000, n);
    }),
    ("fair_queue_1000_to_the_end", "tower-backpressure", |n| {
        let mut fair = Fair::new(1000);
        (0..n).for_each(|_| fair.request());
    }),
];

// Rows that differ only in their settings share these functions, so that each path has one call site however many rows
// use it: with several the compiler no longer inlines it, and a new row would change the counts of the others.

/// `n` requests through the service, all of them served or all of them rejected.
#[inline(never)]
fn drive_all<S: Service<u64, Response = u64>>(mut service: S, n: u64, served: bool) {
    (0..n).for_each(|_| assert_eq!(drive(&mut service), served));
}

/// Answers, a shed and a limit, stacked by hand.
fn shed_and_limit() -> OverloadResponse<LoadShed<tower_backpressure::ConcurrencyLimit<Answers>>> {
    ServiceBuilder::new()
        .layer(OverloadResponseLayer::new())
        .layer(LoadShedLayer::new())
        .layer(tower_backpressure::ConcurrencyLimitLayer::new(10))
        .service(Answers)
}

/// `n` tokens, all of them there or none.
#[inline(never)]
fn take_all(limit: &tower_backpressure::RateLimitLayer, n: u64, there: bool) {
    let handle = limit.handle();
    (0..n).for_each(|_| assert_eq!(handle.try_acquire(1).is_ok(), there));
}

#[inline(never)]
fn check_all(quota: governor::Quota, n: u64) {
    let governor = governor::RateLimiter::direct_with_clock(quota, TokioClock);
    (0..n).for_each(|_| assert!(governor.check().is_ok()));
}

/// So many are enqueued and dispatched.
fn dispatch(tenants: u32, n: u64) {
    let mut fair = Fair::new(tenants);
    for _ in 0..n {
        let _ = fair.enqueue_and_dispatch();
    }
}

fn main() {
    let args: Vec<String> = env::args().collect();
    match &args[1..] {
        // Run by itself, under callgrind.
        [run, row, requests] if run == "run" => {
            let (_, _, scenario) = ROWS[row.parse::<usize>().expect("a row")];
            scenario(requests.parse().expect("a number of requests"));
        }
        // `cargo bench -- --test`: see that every row works.
        args if args.iter().any(|arg| arg == "--test") => {
            ROWS.iter().for_each(|(_, _, scenario)| scenario(10));
        }
        _ if Command::new("valgrind").arg("--version").output().is_err() => {
            println!("valgrind is not installed: no instructions counted");
        }
        _ => print_table(),
    }
}

fn print_table() {
    println!(
        "{:<28}{:<28}{:>14}",
        "scenario", "implementation", "instructions"
    );
    for (row, (scenario, implementation, _)) in ROWS.iter().enumerate() {
        let count = instructions(row, 2 * REQUESTS) - instructions(row, REQUESTS);
        let each = count as f64 / REQUESTS as f64;
        println!("{scenario:<28}{implementation:<28}{each:>14.1}");
    }
}

fn instructions(row: usize, requests: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().expect("own path"))
        .args(["run", &row.to_string(), &requests.to_string()])
        .output()
        .expect("valgrind runs");
    // callgrind ends with "==pid== Collected : 123456".
    let report = String::from_utf8_lossy(&output.stderr);
    report
        .lines()
        .filter_map(|line| line.split_once("Collected :"))
        .find_map(|(_, count)| count.trim().parse().ok())
        .unwrap_or_else(|| panic!("no count in callgrind's output:\n{report}"))
}
