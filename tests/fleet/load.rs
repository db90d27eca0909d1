//! How much passes, and how exactly, at what cost in calls.

use super::{
    alone,
    nodes::{Load, Outcome},
    server::Server,
};

const TEN: Load = Load {
    nodes: 10,
    rate: 1000,
    burst: 100,
    load: 0.9,
    first: None,
    millis: 4000,
};

/// What is documented: tokens that were granted ahead, or held, for at most this long.
const SLACK_MILLIS: u64 = 300 + 1000;

fn run(name: &str, load: Load) -> Option<Outcome> {
    let _alone = alone();
    let server = Server::start()?;
    let outcome = load.run(&server);
    println!("{}", outcome.figures(name));
    let slack = (load.rate * SLACK_MILLIS / 1000) as i64;
    for window in [100, 1000, 5000] {
        assert!(
            outcome.over_in(window) <= slack,
            "{}",
            outcome.figures(name)
        );
    }
    Some(outcome)
}

fn nearly_all_of_the_allowance(outcome: &Outcome) {
    let share = outcome.of_allowed();
    assert!((0.99..=1.01).contains(&share), "{share}");
}

#[test]
fn below_the_limit_everything_passes_with_few_calls() {
    let Some(outcome) = run("0.9 ×", TEN) else {
        return;
    };
    assert_eq!(outcome.admitted(), outcome.offered());
    assert!(outcome.calls_per_request() <= 0.15);
    assert!(outcome.jain_from(0) > 0.99);
}

#[test]
fn at_twice_the_limit_the_limit_passes() {
    let Some(outcome) = run("2 ×", Load { load: 2.0, ..TEN }) else {
        return;
    };
    nearly_all_of_the_allowance(&outcome);
    assert!(outcome.jain_from(0) >= 0.95);
}

#[test]
fn at_twice_the_limit_with_most_of_it_on_one_node_the_limit_passes() {
    let skewed = Load {
        load: 2.0,
        first: Some(0.9),
        ..TEN
    };
    let Some(outcome) = run("2 ×, 90 % on one node", skewed) else {
        return;
    };
    nearly_all_of_the_allowance(&outcome);
    assert!(outcome.jain_from(1) >= 0.95);
}

#[test]
fn at_ten_times_the_limit_the_limit_passes_and_nodes_get_the_same() {
    let Some(outcome) = run("10 ×", Load { load: 10.0, ..TEN }) else {
        return;
    };
    nearly_all_of_the_allowance(&outcome);
    assert!(outcome.jain_from(0) >= 0.95);
}

#[test]
fn at_ten_times_the_limit_with_most_of_it_on_one_node_the_limit_passes() {
    let skewed = Load {
        load: 10.0,
        first: Some(0.9),
        ..TEN
    };
    let Some(outcome) = run("10 ×, 90 % on one node", skewed) else {
        return;
    };
    nearly_all_of_the_allowance(&outcome);
    assert!(outcome.jain_from(1) >= 0.95);
}

#[test]
fn a_small_limit_is_used_up() {
    let small = Load {
        rate: 10,
        burst: 10,
        load: 2.0,
        millis: 6000,
        ..TEN
    };
    let Some(outcome) = run("10 a second, 2 ×", small) else {
        return;
    };
    assert!(outcome.of_allowed() >= 0.95, "{}", outcome.of_allowed());
}

#[test]
fn a_large_limit_is_used_up() {
    let large = Load {
        rate: 100_000,
        burst: 10_000,
        load: 1.3,
        millis: 3000,
        ..TEN
    };
    let Some(outcome) = run("100 000 a second, 1.3 ×", large) else {
        return;
    };
    assert!(outcome.of_allowed() >= 0.95, "{}", outcome.of_allowed());
}
