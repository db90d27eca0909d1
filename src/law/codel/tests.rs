//! folly's vectors, those of this law, and what holds for any sequence of requests.

mod rules;

use proptest::prelude::*;

use super::{Verdict::*, *};

const MS: u64 = 1_000_000;
const SEC: u64 = 1000 * MS;

/// A law, its clock in milliseconds, and how many requests have completed.
struct Run {
    law: CoDel,
    completed: u64,
}

/// In milliseconds, with ten in flight and nobody waiting.
fn aged(age: u64) -> Entry {
    Entry {
        age: age * MS,
        own: 0,
        oldest: None,
        in_flight: 10,
    }
}

fn waited(age: u64, own: u64, oldest: Option<u64>) -> Entry {
    Entry {
        own: own * MS,
        oldest: oldest.map(|oldest| oldest * MS),
        ..aged(age)
    }
}

fn settings(min: u64, max: u64) -> Settings {
    Settings {
        target: 100 * MS,
        interval: 5 * SEC,
        min,
        max,
        max_sojourn: None,
    }
}

impl Run {
    fn new(min: u64, max: u64) -> Self {
        Self {
            law: CoDel::new(settings(min, max), 0),
            completed: 0,
        }
    }

    fn roll(&mut self, at: u64) {
        if self.law.is_due(at * MS) {
            self.law.roll(at * MS, self.completed);
        }
    }

    fn enter(&mut self, at: u64, entry: Entry) -> Verdict {
        self.roll(at);
        self.law.enter(at * MS, &entry)
    }

    fn pending(&mut self, at: u64) {
        self.roll(at);
        self.law.inner_pending(at * MS);
    }

    /// A request comes; what becomes of it, and whether a queue is said to stand after that.
    fn standing(&mut self, at: u64, entry: Entry) -> (Verdict, bool) {
        let verdict = self.enter(at, entry);
        (verdict, self.law.report(at * MS).overloaded)
    }

    /// So many requests, one after another, in the half second that begins then.
    fn window(&mut self, from: u64, many: u64, entry: impl Fn(u64) -> Entry) {
        for i in 0..many {
            self.enter(from + i * 500 / many, entry(i));
            self.completed += 1;
        }
    }

    fn limit_at(&mut self, at: u64) -> u64 {
        self.roll(at);
        self.law.limit()
    }
}

#[test]
fn folly_refuses_what_is_late_while_a_queue_stands() {
    let mut run = Run::new(1, 64);
    run.law.settings.target = 5 * MS;
    assert_eq!(run.enter(110, aged(100)), Admit);
    assert_eq!(run.enter(200, aged(50)), Admit);
    assert_eq!(run.enter(200, aged(50)), TooOld);
    assert_eq!(run.enter(310, aged(2)), Admit);
    assert_eq!(run.enter(400, aged(20)), TooOld);
}

#[test]
fn folly_follows_a_target_that_changes() {
    let mut run = Run::new(1, 64);
    run.law.settings.target = 5 * MS;
    assert_eq!(run.enter(110, aged(100)), Admit);
    assert_eq!(run.enter(200, aged(50)), Admit);
    assert_eq!(run.enter(200, aged(50)), TooOld);
    run.law.settings.target = 40 * MS;
    assert_eq!(run.enter(200, aged(40)), Admit);
    run.law.settings.target = 5 * MS;
    assert_eq!(run.enter(310, aged(40)), Admit);
    assert_eq!(run.enter(310, aged(40)), TooOld);
}

#[test]
fn folly_says_how_loaded_it_is() {
    let mut run = Run::new(1, 64);
    run.law.settings.target = 5 * MS;
    for (i, (age, load)) in [(40, 100..=100), (10, 90..=100), (7, 60..=80), (2, 10..=30)]
        .into_iter()
        .enumerate()
    {
        let at = 110 * (i as u64 + 1);
        run.enter(at, aged(age));
        let percent = run.law.report(at * MS).load_percent;
        assert!(load.contains(&percent), "{age} ms: {percent} %");
    }
}

#[test]
fn what_is_older_than_two_targets_is_refused_while_a_queue_stands() {
    let mut run = Run::new(1, 64);
    assert_eq!(run.standing(1, aged(101)), (Admit, false));
    assert_eq!(run.standing(50, aged(101)), (Admit, true));
    assert_eq!(run.standing(60, aged(101)), (Admit, true));
    assert_eq!(run.standing(152, aged(101)), (Admit, true));
    assert_eq!(run.enter(153, aged(200)), Admit);
    assert_eq!(run.enter(154, aged(201)), TooOld);
    assert_eq!(run.standing(260, aged(100)), (Admit, true));
    assert_eq!(run.enter(261, aged(300)), TooOld);
    assert_eq!(run.standing(361, aged(500)), (Admit, false));
    assert_eq!(run.standing(362, aged(500)), (Admit, false));
}

#[test]
fn a_queue_stands_if_the_oldest_in_it_is_old() {
    let mut run = Run::new(1, 64);
    assert_eq!(run.standing(1, waited(0, 0, Some(300))), (Admit, false));
    assert_eq!(run.standing(50, waited(0, 0, Some(320))), (Admit, true));
    assert_eq!(run.standing(102, waited(0, 0, Some(350))), (Admit, true));
    assert_eq!(run.enter(103, waited(0, 0, Some(350))), Admit);
    assert_eq!(run.enter(104, waited(250, 250, Some(350))), TooOld);
    assert_eq!(run.enter(105, waited(200, 200, Some(350))), Admit);
    assert_eq!(run.standing(206, waited(0, 0, None)), (Admit, true));
    assert_eq!(run.enter(207, waited(250, 250, Some(250))), TooOld);
    assert_eq!(run.standing(308, waited(0, 0, Some(40))), (Admit, false));
    assert_eq!(run.enter(309, waited(250, 250, None)), Admit);
}

#[test]
fn silence_ends_it_unless_somebody_waits() {
    let stands = |oldest| {
        let mut run = Run::new(1, 64);
        for at in [1, 50, 102, 150] {
            run.enter(at, waited(300, 300, oldest));
        }
        assert!(run.law.report(150 * MS).overloaded);
        run
    };
    let mut run = stands(None);
    assert_eq!(run.standing(302, waited(300, 300, None)), (Admit, false));
    assert_eq!(run.standing(303, waited(300, 300, None)), (Admit, false));

    let mut run = stands(Some(400));
    assert_eq!(run.enter(302, waited(300, 300, Some(400))), Admit);
    assert_eq!(run.enter(303, waited(300, 300, Some(400))), TooOld);

    let mut run = stands(None);
    run.pending(180);
    assert_eq!(run.enter(302, waited(300, 300, None)), Admit);
    assert_eq!(run.enter(303, waited(300, 300, None)), TooOld);
}

#[test]
fn only_what_aged_in_our_queue_is_refused_while_no_more_runs_than_in_good_times() {
    let running = |in_flight, own| Entry {
        in_flight,
        ..waited(300, own, None)
    };
    let stands = |run: &mut Run| {
        for at in [20_101, 20_150, 20_202] {
            run.enter(at, running(30, 0));
        }
    };
    let mut run = Run::new(4, 2048);
    for i in 0..40 {
        run.window(500 * i, 50, |_| Entry {
            in_flight: 19,
            ..aged(0)
        });
    }
    stands(&mut run);
    for in_flight in [30, 20, 19] {
        assert_eq!(
            run.enter(20_203, running(in_flight, 0)),
            TooOld,
            "{in_flight}"
        );
    }
    for in_flight in [18, 4, 3] {
        assert_eq!(
            run.enter(20_203, running(in_flight, 0)),
            Admit,
            "{in_flight}"
        );
    }
    assert_eq!(run.enter(20_203, running(3, 100)), Admit);
    assert_eq!(run.enter(20_203, running(3, 101)), TooOld);
    assert_eq!(run.enter(20_203, running(0, 101)), Admit);

    let mut run = Run::new(4, 2048);
    stands(&mut run);
    assert_eq!(run.enter(20_203, running(4, 0)), TooOld);
    assert_eq!(run.enter(20_203, running(3, 0)), Admit);
}

#[test]
fn it_narrows_by_a_quarter_of_what_is_in_flight() {
    let mut run = Run::new(4, 2048);
    let steps = [
        (99, 190, 75),
        (74, 170, 56),
        (55, 150, 42),
        (40, 130, 30),
        (30, 110, 22),
    ];
    for (i, (in_flight, age, limit)) in steps.into_iter().enumerate() {
        let from = 5000 * i as u64;
        for window in 0..10 {
            run.window(from + 500 * window, 50, |_| Entry {
                in_flight,
                ..aged(age)
            });
        }
        assert_eq!(run.limit_at(from + 5000), limit);
    }
    let report = run.law.report(25_000 * MS);
    assert_eq!(
        (report.narrowings, report.widenings, report.undone),
        (5, 0, 0)
    );
}

#[test]
fn two_of_twenty_over_the_target_are_a_p95_over_it_and_one_is_not() {
    for (over, limit) in [(1, 64), (2, 12)] {
        let mut run = Run::new(4, 64);
        for window in 0..10 {
            run.window(500 * window, 20, |i| Entry {
                in_flight: 15,
                ..aged(if i < over { 300 } else { 50 })
            });
        }
        assert_eq!(run.limit_at(5000), limit, "{over} of 20");
        let report = run.law.report(5000 * MS);
        assert_eq!(report.over_target, over as f64 / 20.0);
        assert_eq!(report.p95.unwrap() > Duration::from_millis(100), over == 2);
    }
}

#[test]
fn it_holds_while_the_inner_service_is_not_ready() {
    let over = |run: &mut Run, from: u64, pends: bool| {
        if pends {
            run.pending(from + 1);
        }
        run.window(from, 50, |_| Entry {
            in_flight: 99,
            ..aged(190)
        });
    };
    let mut run = Run::new(4, 2048);
    for window in 0..40 {
        over(&mut run, 500 * window, true);
    }
    assert_eq!(run.limit_at(20_000), 2048);

    let mut run = Run::new(4, 2048);
    for window in 0..30 {
        over(&mut run, 500 * window, window == 9);
        if window == 19 {
            assert_eq!(run.limit_at(9_900), 2048);
        }
    }
    assert_eq!(run.limit_at(15_000), 75);
}

#[test]
fn it_widens_by_a_quarter_when_nothing_or_little_comes() {
    let mut run = Run::new(2, 64);
    run.law.set_limit(2);
    let steps = [
        3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 63, 64, 64,
    ];
    for (i, limit) in steps.into_iter().enumerate() {
        assert_eq!(run.limit_at(5000 * (i as u64 + 1)), limit);
    }
    // Once after ten minutes.
    let mut run = Run::new(2, 64);
    run.law.set_limit(2);
    assert_eq!(run.limit_at(600_000), 64);
    // Two a second, however old.
    let mut run = Run::new(2, 64);
    run.law.set_limit(8);
    for i in 0..10 {
        let old = Entry {
            in_flight: 1,
            ..aged(400)
        };
        run.enter(500 * i, old);
    }
    assert_eq!(run.limit_at(5000), 10);
}

#[test]
fn a_narrowing_that_does_not_help_is_undone_and_tried_again_less_and_less() {
    let mut run = Run::new(4, 64);
    let mut limits = Vec::new();
    let mut fifth = 0;
    for step in 0..36 {
        for window in 0..10 {
            for i in 0..80 {
                let limit = run.law.limit();
                fifth += 1;
                let full = limit < 64 && fifth % 5 == 0;
                let in_flight = if full { limit } else { 9.min(limit - 1) };
                let entry = Entry {
                    in_flight,
                    ..aged(150)
                };
                run.enter(5000 * step + 500 * window + 6 * i, entry);
                run.completed += u64::from(!full);
            }
        }
        limits.push(run.limit_at(5000 * (step + 1)));
    }
    let mut expected = vec![7];
    expected.extend([64; 12]);
    expected.push(7);
    expected.extend([64; 22]);
    assert_eq!(limits, expected);
    assert_eq!(run.law.report(180_000 * MS).undone, 2);
}

#[test]
fn it_stays_between_floor_and_ceiling() {
    let over = |in_flight, lasting: u64| {
        let mut run = Run::new(16, 64);
        for window in 0..lasting / 500 {
            run.window(500 * window, 50, |_| Entry {
                in_flight,
                ..aged(190)
            });
        }
        run.limit_at(lasting)
    };
    assert_eq!(over(15, 10_000), 64); // nothing to narrow
    assert_eq!(over(19, 5000), 16);
    let mut run = Run::new(16, 64);
    let running = |in_flight| Entry {
        in_flight,
        ..aged(0)
    };
    assert_eq!(run.enter(1, running(63)), Admit);
    assert_eq!(run.enter(1, running(64)), Full);
}

#[test]
fn a_request_older_than_the_longest_sojourn_is_refused_whatever_the_load() {
    let mut run = Run::new(16, 64);
    run.law.settings.max_sojourn = Some(SEC);
    let alone = |age| Entry {
        in_flight: 0,
        ..aged(age)
    };
    assert_eq!(run.enter(1, alone(1000)), Admit);
    assert_eq!(run.enter(1, alone(1001)), TooOld);
    // It was sampled all the same.
    assert_eq!(run.law.width.seen(), 2);
}

/// Time that stands still, goes back or jumps by years; any age, any number in flight.
fn any_step() -> impl Strategy<Value = (i64, Entry, bool, u64)> {
    let time = prop_oneof![
        20 => 0..50 * MS as i64,
        2 => 0..10 * SEC as i64,
        1 => -(SEC as i64)..0,
        1 => Just(i64::MAX / 8),
    ];
    let age = prop_oneof![10 => 0..SEC, 1 => Just(0), 1 => Just(u64::MAX)];
    let oldest = prop_oneof![2 => Just(None), 1 => age.clone().prop_map(Some)];
    let in_flight = prop_oneof![10 => 0..100_u64, 1 => Just(u64::MAX)];
    let entry =
        (age.clone(), age, oldest, in_flight).prop_map(|(age, own, oldest, in_flight)| Entry {
            age,
            own: own.min(age),
            oldest,
            in_flight,
        });
    (time, entry, any::<bool>(), 0..3_u64)
}

proptest! {
    #[test]
    fn whatever_comes_the_limit_moves_by_its_steps_within_its_bounds(
        (min, max) in (1..50_u64, 0..200_u64).prop_map(|(min, more)| (min, min + more)),
        target in prop_oneof![Just(1), Just(100 * MS), Just(u64::MAX)],
        interval in prop_oneof![Just(100 * MS), Just(5 * SEC), Just(u64::MAX)],
        steps in prop::collection::vec(any_step(), 1..400),
    ) {
        let settings = Settings { target, interval, ..settings(min, max) };
        let mut law = CoDel::new(settings, 0);
        let (mut now, mut completed) = (0_u64, 0_u64);
        for (time, entry, pends, done) in &steps {
            now = now.saturating_add_signed(*time);
            completed += done;
            let before = law.width.moves_and_limit();
            if law.is_due(now) {
                law.roll(now, completed);
            }
            let after = law.width.moves_and_limit();
            let ((narrowed, widened, undone), limit) = after;
            prop_assert!((min..=max).contains(&limit), "{limit}");
            let moved = narrowed + widened + undone - before.0.0 - before.0.1 - before.0.2;
            if moved == 0 {
                prop_assert_eq!(limit, before.1);
            } else if moved == 1 && widened > before.0.1 {
                prop_assert_eq!(limit, (before.1 * 5 / 4).max(before.1 + 1).min(max));
            } else if moved == 1 && narrowed > before.0.0 {
                prop_assert!(limit < before.1 && limit <= (before.1 * 3 / 4).max(min));
            } else if moved == 1 {
                prop_assert!(limit >= before.1);
            }
            if *pends {
                law.inner_pending(now);
            }
            let verdict = law.enter(now, entry);
            if verdict == TooOld {
                prop_assert!(entry.age > target.saturating_mul(2));
            }
            if verdict == Admit {
                prop_assert!(entry.in_flight < limit);
            }
            let report = law.report(now);
            prop_assert!((0.0..=1.0).contains(&report.over_target));
            prop_assert!(report.load_percent <= 100);
        }
    }

    /// However it got there, it is back at its ceiling after a while without requests.
    #[test]
    fn silence_widens_it_to_its_ceiling(
        in_flight in 5..200_u64,
        age in 101..2000_u64,
        windows in 1..200_u64,
    ) {
        let mut run = Run::new(4, 256);
        for window in 0..windows {
            run.window(500 * window, 30, |_| Entry { in_flight, ..aged(age) });
        }
        let end = 500 * windows;
        prop_assert_eq!(run.limit_at(end + 600_000), 256);
        prop_assert!(!run.law.report((end + 600_000) * MS).overloaded);
    }
}
