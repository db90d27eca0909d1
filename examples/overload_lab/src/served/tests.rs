//! What the chapter promises, as long as it is in a full run.

use std::sync::LazyLock;

use super::{LEVELS, Measured, Stack, Traffic, When};
use crate::{
    lab::{Plan, Results, Scenario},
    served_tables::{FLOORS, LOADS, SERVERS, TOLD, WHEN, measured},
    simulation::Spread,
};

static RESULTS: LazyLock<Results> = LazyLock::new(|| {
    let mut plan = Plan::default();
    plan.scenarios = vec![Scenario::Served];
    plan.run(|_, _| {})
});

fn of(traffic: Traffic, stack: Stack) -> &'static Measured {
    measured(&RESULTS, traffic, stack)
}

#[test]
fn critical_requests_are_accepted_and_no_capacity_is_lost() {
    for when in WHEN {
        let [told, edge, queue] =
            [TOLD, Stack::Edge, Stack::Queue].map(|stack| of(Traffic::Levels(when), stack));
        assert!(told.accepted[0] >= 0.999, "{when:?}: {told:?}");
        for other in [edge, queue] {
            assert!(told.used >= 0.99 * other.used, "{when:?}: {told:?}");
            // Where nobody is told apart, all are accepted alike.
            assert!(other.accepted[0] < 0.8, "{when:?}: {other:?}");
            let even = |share: &f64| (share - other.accepted[0]).abs() < 0.02;
            assert!(other.accepted.iter().all(even), "{when:?}: {other:?}");
        }
        // In the order of their priorities, but for the floor.
        let [critical, high, normal, _] = told.accepted;
        assert!(critical >= high && high >= normal, "{when:?}: {told:?}");
        assert!(told.wait <= 0.03, "{when:?}: {told:?}");
    }
}

#[test]
fn each_priority_gets_its_floor_and_the_most_important_the_rest() {
    const LOAD: f64 = 6.0;
    for floor in FLOORS {
        let it = of(
            Traffic::Levels(When::Steady(LOAD)),
            Stack::Priorities(floor),
        );
        // Of what the server can do.
        let mut shares = LEVELS.map(|(share, _)| LOAD * share);
        for (share, accepted) in shares.iter_mut().zip(it.accepted) {
            *share *= accepted;
        }
        println!("floor {floor}: {shares:.3?}");
        let [critical, rest @ ..] = shares;
        for share in rest {
            let fits = (0.9 * floor..=1.1 * floor + 0.001).contains(&share);
            assert!(fits, "floor {floor}: {shares:.3?}");
        }
        assert!(
            critical >= 0.98 - 3.0 * floor,
            "floor {floor}: {shares:.3?}"
        );
        assert!(it.used >= 0.99, "floor {floor}: {it:?}");
        let below = of(Traffic::Levels(When::Steady(3.0)), Stack::Priorities(floor));
        assert!(below.accepted[0] >= 0.999, "floor {floor}: {below:?}");
    }
}

#[test]
fn with_deadlines_what_is_served_is_in_time() {
    for load in LOADS {
        let traffic = Traffic::Patiences(load);
        let [queue, told] = [Stack::Queue, Stack::Deadlines].map(|stack| of(traffic, stack));
        if load < 1.0 {
            // Nobody is rejected.
            assert!((told.good - load).abs() < 0.01, "{told:?}");
            assert_eq!(told.good, of(traffic, Stack::Edge).good);
        } else {
            assert!(told.good >= 0.98 && told.wasted <= 0.02, "{load}: {told:?}");
            assert!(queue.good <= 0.5, "{load}: {queue:?}");
        }
    }
}

#[test]
fn the_newest_first_is_fast_and_rejects_soon() {
    for (spread, workers) in SERVERS {
        let (slowed, useful) = match spread {
            Spread::Constant => (2.0, 0.7),
            _ => (3.0, 0.6),
        };
        let traffic = Traffic::Impatient(spread, workers);
        let [fresh, in_order] = [Stack::Edge, Stack::InOrder].map(|stack| of(traffic, stack));
        let case = format!("{spread:?}, {workers}: {fresh:?}; {in_order:?}");
        assert!(fresh.slowed <= slowed && fresh.useful >= useful, "{case}");
        assert!(fresh.rejection <= 0.05, "{case}");
        assert!(in_order.slowed >= 2.0 * fresh.slowed, "{case}");
        assert!(in_order.useful <= 0.7 * fresh.useful, "{case}");
    }
}
