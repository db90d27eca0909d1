//! The law, rule by rule: what each constant and each guard does.

use super::*;

/// Ten windows before a narrowing, ten after it; whether it is taken back. `after` says for each window how
/// old requests are, how many get done, how many are refused at the limit, and how many for their age.
fn is_taken_back(after: impl Fn(u64) -> (u64, u64, u64, u64)) -> bool {
    let mut run = Run::new(4, 64);
    run.law.settings.max_sojourn = Some(400 * MS);
    for window in 0..20 {
        let (age, done, full, old) = match window {
            ..10 => (150, 100, 0, 0),
            _ => after(window - 10),
        };
        for i in 0..if window == 9 { 50 } else { 100 } {
            let (age, in_flight) = match i {
                _ if window < 10 => (age, 9),
                _ if i < full => (age, run.law.limit()),
                _ if i < full + old => (401, 5),
                _ => (age, 5),
            };
            let entry = Entry {
                in_flight,
                ..aged(age)
            };
            run.enter(500 * window + 5 * i, entry);
        }
        run.completed += done;
    }
    run.limit_at(10_000);
    run.law.report(10_000 * MS).undone == 1
}

#[test]
fn a_narrowing_is_taken_back_if_less_gets_done_and_requests_are_no_younger() {
    assert!(is_taken_back(|_| (150, 94, 5, 0)));
    assert!(!is_taken_back(|_| (150, 95, 5, 0)), "a twentieth less");
    assert!(is_taken_back(|_| (136, 50, 50, 0)));
    assert!(!is_taken_back(|_| (135, 50, 50, 0)), "a tenth younger");
    assert!(is_taken_back(|_| (150, 50, 10, 10)));
    assert!(
        !is_taken_back(|_| (150, 50, 10, 11)),
        "it is the fast loop that refuses"
    );
    // All windows count, not only the last.
    assert!(is_taken_back(|w| (
        if w == 9 { 110 } else { 150 },
        50,
        50,
        0
    )));
    assert!(is_taken_back(|w| (
        150,
        if w == 9 { 100 } else { 50 },
        50,
        0
    )));
}

/// Five seconds of old requests, after so many intervals.
fn old_ones(run: &mut Run, interval: u64, in_flight: u64, age: u64, done: u64) {
    for window in 0..10 {
        for i in 0..20 {
            run.enter(
                5000 * interval + 500 * window + 25 * i,
                Entry {
                    in_flight,
                    ..aged(age)
                },
            );
        }
        run.completed += done;
    }
    run.limit_at(5000 * (interval + 1));
}

fn undone(run: &Run) -> u64 {
    run.law.width.moves().2
}

#[test]
fn what_gets_done_is_counted_by_the_time_it_takes() {
    let mut run = Run::new(4, 64);
    old_ones(&mut run, 0, 9, 150, 100);
    for i in 0..40 {
        run.enter(
            5000 + 200 * i,
            Entry {
                in_flight: 5,
                ..aged(150)
            },
        );
        run.completed += 30; // 1200 in eight seconds, after 1000 in five
    }
    run.limit_at(13_000);
    assert_eq!(undone(&run), 1);
}

#[test]
fn a_narrowing_to_the_floor_is_taken_back_if_requests_are_no_younger() {
    let mut run = Run::new(4, 64);
    old_ones(&mut run, 0, 9, 150, 100);
    old_ones(&mut run, 1, 3, 150, 100);
    assert_eq!((undone(&run), run.law.limit()), (1, 64));
    // Nothing is on trial any more.
    old_ones(&mut run, 2, 3, 150, 100);
    assert_eq!((undone(&run), run.law.limit()), (1, 64));
}

#[test]
fn later_narrowings_are_judged_by_how_things_were_before_the_first() {
    let mut run = Run::new(1, 64);
    old_ones(&mut run, 0, 39, 150, 100);
    old_ones(&mut run, 1, 19, 140, 97);
    old_ones(&mut run, 2, 9, 140, 94);
    assert_eq!((undone(&run), run.law.limit()), (1, 64));
}

/// In vain at the floor, over and over; the intervals between one narrowing and the next.
#[test]
fn it_holds_for_twice_as_long_each_time_up_to_192_intervals() {
    let mut run = Run::new(4, 64);
    let mut narrowed = Vec::new();
    for interval in 0..600 {
        let before = run.law.width.moves().0;
        let in_flight = if run.law.limit() < 64 { 3 } else { 9 };
        old_ones(&mut run, interval, in_flight, 150, 100);
        if run.law.width.moves().0 > before {
            narrowed.push(interval);
        }
    }
    let holds: Vec<_> = narrowed.windows(2).map(|at| at[1] - at[0] - 1).collect();
    assert_eq!(holds, [12, 24, 48, 96, 192, 192]);
}

#[test]
fn one_narrowing_that_helps_and_it_holds_no_longer_than_at_first() {
    let hold_after = |helps: bool| {
        let mut run = Run::new(4, 64);
        let in_vain = |run: &mut Run, at| {
            old_ones(run, at, 9, 150, 100);
            assert!(run.law.limit() < 64);
            old_ones(run, at + 1, 3, 150, 100);
            assert_eq!(run.law.limit(), 64);
        };
        in_vain(&mut run, 0);
        // Good times: after a narrowing, or while none is tried.
        if helps {
            old_ones(&mut run, 13, 9, 150, 100);
            assert!(run.law.limit() < 64);
        }
        for at in 14..40 {
            old_ones(&mut run, at, 9, 50, 100);
        }
        assert_eq!(run.law.limit(), 64);
        in_vain(&mut run, 40);
        (42..).find(|at| {
            old_ones(&mut run, *at, 9, 150, 100);
            run.law.limit() < 64
        })
    };
    assert_eq!(hold_after(true), Some(40 + 1 + 12));
    assert_eq!(hold_after(false), Some(40 + 1 + 24));
}

#[test]
fn what_narrowed_once_is_not_on_trial_after_good_times() {
    let mut run = Run::new(4, 64);
    old_ones(&mut run, 0, 9, 150, 100);
    old_ones(&mut run, 1, 5, 50, 100);
    old_ones(&mut run, 2, 3, 150, 100);
    assert_eq!(undone(&run), 0);
}

#[test]
fn only_requests_since_it_became_bad_say_what_is_in_flight() {
    let mut run = Run::new(4, 2048);
    for window in 0..16 {
        let (in_flight, age) = match window {
            ..5 => (99, 190),
            5 => (99, 0),
            _ => (39, 190),
        };
        run.window(500 * window, 50, |_| Entry {
            in_flight,
            ..aged(age)
        });
    }
    assert_eq!(run.limit_at(8000), 30);
}

#[test]
fn what_is_in_flight_is_the_peak_of_a_window() {
    let mut run = Run::new(4, 2048);
    for window in 0..10 {
        run.window(500 * window, 50, |i| Entry {
            in_flight: if i == 20 { 99 } else { 9 },
            ..aged(190)
        });
    }
    assert_eq!(run.limit_at(5000), 75);
}

#[test]
fn it_does_not_widen_while_the_inner_service_is_not_ready() {
    let mut run = Run::new(2, 64);
    run.law.set_limit(8);
    for window in 0..40 {
        run.pending(500 * window + 1);
        run.window(500 * window + 2, 50, |_| aged(0));
    }
    assert_eq!(run.limit_at(20_000), 8);
}

#[test]
fn a_window_is_as_long_as_twenty_requests_take_and_no_longer_than_the_interval() {
    // Ten a second.
    let mut run = Run::new(4, 64);
    for i in 0..60 {
        run.enter(
            100 * i,
            Entry {
                in_flight: 15,
                ..aged(190)
            },
        );
    }
    assert_eq!(run.limit_at(6000), 12);
    for (many, limit) in [(19, 10), (20, 4)] {
        let mut run = Run::new(4, 64);
        run.law.set_limit(8);
        for i in 0..many {
            run.enter(
                200 * i,
                Entry {
                    in_flight: 5,
                    ..aged(400)
                },
            );
        }
        assert_eq!(run.limit_at(5000), limit, "{many}");
    }
}

#[test]
fn it_goes_through_64_intervals_and_counts_what_moved() {
    let mut run = Run::new(1, 1 << 40);
    run.law.set_limit(1);
    run.limit_at(1_000_000_000);
    assert_eq!(run.law.width.moves(), (0, 64, 0));
    let mut run = Run::new(1, 64);
    run.limit_at(600_000);
    assert_eq!(run.law.width.moves(), (0, 0, 0), "it is at its ceiling");
}

#[test]
fn good_times_are_windows_with_enough_requests_that_are_young_and_wait_for_nothing() {
    let windows = |run: &mut Run, from: u64, many: u64, in_flight, age| {
        for window in from..from + many {
            run.window(500 * window, 50, |_| Entry {
                in_flight,
                ..aged(age)
            });
        }
        run.roll(500 * (from + many));
    };
    let healthy = |run: &Run| run.law.width.healthy();
    let mut run = Run::new(4, 2048);
    windows(&mut run, 0, 1, 159, 0);
    assert_eq!(healthy(&run), 40);
    windows(&mut run, 1, 1, 19, 0);
    assert_eq!(healthy(&run), 35);
    windows(&mut run, 2, 8, 200, 190); // old
    assert_eq!(healthy(&run), 35);
    run.pending(5001);
    windows(&mut run, 10, 1, 200, 0); // held back
    assert_eq!(healthy(&run), 35);
    run.roll(600_000); // none
    assert_eq!(healthy(&run), 35);
}

#[test]
fn nothing_is_narrowed_where_no_more_is_in_flight_than_may_be_at_least() {
    let mut run = Run::new(16, 64);
    old_ones(&mut run, 0, 15, 190, 100);
    assert_eq!((run.law.limit(), run.law.width.moves()), (64, (0, 0, 0)));
}

#[test]
fn who_is_alone_is_let_in_only_where_nobody_waits() {
    let alone = |own, oldest| Entry {
        in_flight: 0,
        ..waited(300, own, oldest)
    };
    let mut run = Run::new(1, 64);
    for at in [1, 50] {
        run.enter(at, aged(300));
    }
    assert_eq!(run.enter(60, alone(300, None)), Admit);
    assert_eq!(run.enter(60, alone(300, Some(150))), TooOld);
    run.pending(61);
    assert_eq!(run.enter(62, alone(300, None)), TooOld);
    // In the next interval that is forgotten.
    assert_eq!(run.enter(151, aged(300)), Admit);
    assert_eq!(run.enter(152, alone(300, None)), Admit);
    assert_eq!(run.enter(152, aged(300)), TooOld);
}

#[test]
fn a_queue_is_looked_for_as_long_as_100_ms_or_the_target() {
    let mut run = Run::new(1, 64);
    for at in [1, 50] {
        run.enter(at, aged(300));
    }
    assert_eq!(run.enter(150, aged(300)), TooOld);
    assert!(run.law.report(249 * MS).overloaded);
    assert!(!run.law.report(250 * MS).overloaded);
    let mut run = Run::new(1, 64);
    run.law.settings.target = 400 * MS;
    for at in [1, 50] {
        run.enter(at, aged(500));
    }
    assert_eq!(run.enter(450, aged(900)), TooOld);
    assert_eq!(run.enter(451, aged(900)), Admit);
}

#[test]
fn what_is_refused_for_its_sojourn_is_seen_by_both_loops() {
    let mut run = Run::new(1, 64);
    run.law.settings.max_sojourn = Some(250 * MS);
    run.window(0, 50, |_| aged(400));
    let report = {
        run.roll(500);
        run.law.report(500 * MS)
    };
    assert!(report.overloaded);
    assert!(report.p95.unwrap() >= Duration::from_millis(400));
}

#[test]
fn too_old_is_the_reason_where_the_limit_is_reached_too() {
    let mut run = Run::new(1, 64);
    run.law.settings.max_sojourn = Some(SEC);
    assert_eq!(
        run.enter(
            1,
            Entry {
                in_flight: 64,
                ..aged(1001)
            }
        ),
        TooOld
    );
}

#[test]
fn the_target_itself_is_not_over_it() {
    let mut run = Run::new(4, 64);
    for window in 0..10 {
        run.window(500 * window, 20, |_| Entry {
            in_flight: 15,
            ..aged(100)
        });
    }
    assert_eq!(run.limit_at(5000), 64);
    let report = run.law.report(5000 * MS);
    assert_eq!(
        (report.over_target, report.p95),
        (0.0, Some(Duration::from_millis(100)))
    );
}
