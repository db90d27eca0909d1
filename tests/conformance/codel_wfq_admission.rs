//! Admission by age inside a fair queue: who gets what while there is not enough for all.
//!
//! `Wfq → CoDel → limit`, with a fixed limit and with an adaptive one, in front of a simulated server:
//! `tests/support/overload.rs` has the stacks. What holds for all requests together is in
//! `tests/conformance/codel.rs`.

use crate::overload;
use crate::simulation;

use overload::{Run, Setup};
use simulation::{SEC, Seen, Stack, seeds};
use tower_backpressure::WfqConfig;

/// What tenants got in two minutes of overload.
struct Shares {
    case: String,
    /// Of what the server can do.
    goodput: f64,
    /// How old requests were that were served, at p95.
    p95: f64,
    /// Of each tenant, how many were served in time, and which share of what it asked for that is.
    good: Vec<usize>,
    got: Vec<f64>,
}

/// With each of the limits: 16 is what the server can do, 64 lets some wait inside.
fn each(wfq: &WfqConfig, loads: &[f64], check: impl Fn(Shares)) {
    let setup = Setup {
        tenants: loads.to_vec(),
        wfq: wfq.clone(),
        ..Setup::default()
    };
    for seed in seeds() {
        check(share("K16", setup.over_limit(seed, 16)));
        check(share("K64", setup.over_limit(seed, 64)));
        check(share("Vegas", setup.over_vegas(seed)));
    }
}

fn share<S: Stack>(limit: &str, mut run: Run<S>) -> Shares {
    let load = run.setup.tenants.iter().sum();
    run.run(load, 10 * SEC);
    let seen = run.run(load, 120 * SEC);
    let goodput = run.goodput(load, &seen);
    let p95 = seen.sojourn(0.95);
    let Seen {
        good_by_tenant: good,
        offered_by_tenant: offered,
        ..
    } = seen;
    let got: Vec<_> = (good.iter().zip(&offered))
        .map(|(good, offered)| *good as f64 / *offered as f64)
        .collect();
    let first = &got[..2];
    let case = format!("{limit}: goodput {goodput:.3}, p95 {p95:.3} s, tenants got {first:.3?} …");
    println!("{case}");
    Shares {
        case,
        goodput,
        p95,
        good,
        got,
    }
}

impl Shares {
    #[track_caller]
    fn must(&self, hold: bool) {
        assert!(hold, "{}", self.case);
    }

    #[track_caller]
    fn must_use_the_server(&self) {
        self.must(self.goodput >= 0.95);
        self.must(self.p95 <= 0.26);
    }
}

#[test]
fn a_quiet_tenant_does_not_notice_a_flood() {
    each(&Setup::default().wfq, &[2.0, 0.05], |shares| {
        shares.must_use_the_server();
        shares.must(shares.got[1] >= 0.99);
    });
}

/// Its requests are always young, and overtake the others: judged by them alone no queue would stand.
#[test]
fn a_tenant_of_weight_ten_gets_all_it_asks_for() {
    let wfq = Setup::default().wfq.weight("0", 10);
    each(&wfq, &[0.6, 2.0], |shares| {
        shares.must_use_the_server();
        shares.must(shares.got[0] >= 0.99);
    });
}

#[test]
fn twenty_tenants_with_short_queues() {
    let wfq = Setup::default().wfq.max_waiting_per_tenant(50);
    each(&wfq, &[0.1; 20], |shares| shares.must_use_the_server());
}

/// Each of them is new in the queue, and so ahead of those that wait.
#[test]
fn four_hundred_tenants_that_ask_for_little() {
    each(&Setup::default().wfq, &[0.005; 400], |shares| {
        shares.must_use_the_server();
    });
}

/// What is refused costs nothing: otherwise the one that is refused most would get less and less.
#[test]
fn two_floods_get_their_shares() {
    let wfq = Setup::default().wfq.weight("0", 2);
    for loads in [[2.0, 2.0], [2.0, 6.0], [6.0, 2.0]] {
        each(&wfq, &loads, |shares| {
            shares.must_use_the_server();
            let ratio = shares.good[0] as f64 / shares.good[1] as f64;
            shares.must((ratio / 2.0 - 1.0).abs() <= 0.05);
        });
    }
}

/// A tenant that may have no more than four in flight waits for itself. That is no reason to refuse
/// others, or to narrow anything.
#[test]
fn a_tenant_at_its_cap_is_nobody_elses_concern() {
    let wfq = Setup::default().wfq.max_in_flight_per_tenant(4);
    let mut loads = vec![0.06; 10];
    loads[0] = 1.0;
    each(&wfq, &loads, |shares| {
        let quiet = shares.got[1..].iter().copied().fold(1.0, f64::min);
        shares.must(quiet >= 0.99);
    });
}
