mod node;
mod simulation;

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_763_461_234_567_890;

fn terms(count: u64, period: Duration, burst: u64) -> Terms {
    Terms::new(&Rate::new(count, period, burst).unwrap())
}

/// 1000 a second, 100 at once: a token is a millisecond.
fn ask(want: u64) -> Ask {
    terms(1000, Duration::from_secs(1), 100).ask(want, HORIZON, 0)
}

#[test]
fn what_tokens_cost_is_rounded_up_and_what_may_be_saved_up_down() {
    let second = Duration::from_secs(1);
    for (count, period, burst, tokens, cost, depth) in [
        (1000, second, 100, 1, 1000, 100_000),
        (3, second, 3, 1, 333_334, 1_000_000),
        (3, second, 2, 3, 1_000_000, 666_666),
        (300_000, second, 10, 1, 4, 33),
        (300_000, second, 10, 30_000, 100_000, 33),
        (1_000_000_000, second, 1, 1, 1, 0),
        (
            1,
            Duration::from_secs(3600),
            1,
            1,
            3_600_000_000,
            3_600_000_000,
        ),
    ] {
        let terms = terms(count, period, burst);
        let ask = terms.ask(tokens, 0, 0);
        assert_eq!(
            (ask.cost, ask.depth),
            (cost, depth),
            "{count} per {period:?}, {burst}"
        );
        assert!(terms.step() >= 1 && terms.cost(u64::MAX) <= LONGEST);
    }
}

#[test]
fn a_grant_lies_behind_those_before_it_and_no_further_ahead_than_the_horizon() {
    let full = Some(NOW);
    for (tat, want, granted, first, after) in [
        (None, 1, true, -99_000, NOW + 1000), // full since 99 ms
        (Some(NOW - 5), 1, true, -99_000, NOW + 1000),
        (full, 100, true, -99_000, NOW + 100_000),
        (Some(NOW + 99_000), 1, true, 0, NOW + 100_000), // the last one that is there
        (Some(NOW + 99_500), 1, true, 500, NOW + 100_500),
        (Some(NOW + 399_000), 100, true, 300_000, NOW + 499_000),
        (Some(NOW + 399_001), 1, false, 300_001, NOW + 399_001),
        // No grant can have left it so far ahead: the clock was set back.
        (Some(NOW + 3_600_000_000), 1, true, 300_000, NOW + 400_000),
    ] {
        let (written, answer) = grant(tat, NOW, &ask(want));
        assert_eq!((answer.granted, answer.first), (granted, first), "{tat:?}");
        assert_eq!(answer.tat as u64, after, "{tat:?}");
        assert_eq!(written, granted.then_some(after), "{tat:?}");
    }
}

#[test]
fn a_node_knows_better_than_a_server_that_has_lost_its_data() {
    for (tat, seen, first) in [
        (None, NOW + 50_000, -49_000),               // as before
        (Some(NOW + 10_000), NOW + 50_000, -49_000), // a replica that lagged
        (None, NOW + 150_000, 300_000), // all that others may have been granted is over by then
        (None, NOW + 3_600_000_000, -99_000), // of another clock: says nothing
        (Some(NOW), NOW - 1, -99_000),
    ] {
        let ask = Ask { seen, ..ask(1) };
        let (_, answer) = grant(tat, NOW, &ask);
        assert_eq!(
            (answer.granted, answer.first),
            (true, first),
            "{tat:?} {seen}"
        );
    }
}

#[test]
fn what_is_no_answer_of_the_script_is_none() {
    for numbers in [
        &[][..],
        &[1, 0],
        &[2, 0, 1],
        &[1, 0, -1],
        &[1, i64::MIN, 1],
        &[1, i64::MAX, 1],
        &[0, 0, 1 << 53],
        &[1, 0, 0, 0],
    ] {
        assert_eq!(Answer::from_numbers(numbers), None, "{numbers:?}");
    }
    let answer = grant(None, NOW, &ask(7)).1;
    assert_eq!(Answer::from_numbers(&answer.numbers()), Some(answer));
    let ask = ask(7);
    assert_eq!(Ask::from_args(&ask.args()), Some(ask));
    assert_eq!(Ask::from_args(&[1, 2, 3]), None);
    assert_eq!(Ask::from_args(&[-1, 0, 0, 0, 0, 0]), None);
}

proptest! {
    /// Whoever asks for however much, whenever: the tokens that fall due in any window are no more than `B + R · w`.
    #[test]
    fn no_window_gets_more_than_the_burst_and_the_rate(
        count in 1..2000u64,
        burst in 1..200u64,
        asks in prop::collection::vec((0..200_000u64, 0..50u64, 0..300u64), 1..60),
    ) {
        let terms = terms(count, Duration::from_secs(1), burst);
        let (mut now, mut tat, mut due) = (NOW, None, Vec::new());
        for (passed, want, horizon) in asks {
            now += passed;
            // No more than a lease, or than may be wanted at once.
            let want = want % burst.max(count / 10) + 1;
            let (after, answer) = grant(tat, now, &terms.ask(want, horizon * 1_000_000, 0));
            tat = after.or(tat);
            if answer.granted {
                for token in 0..want {
                    // In nanoseconds, as a node spends them: at once if they were due before.
                    let at = answer.first * 1000 + terms.step() * token as i64;
                    due.push(now as i64 * 1000 + at.max(0));
                }
            }
        }
        due.sort_unstable();
        for (i, from) in due.iter().enumerate() {
            for (j, to) in due.iter().enumerate().skip(i) {
                let window = (to - from) as u128;
                let allowed = u128::from(burst) + window * u128::from(count) / 1_000_000_000;
                // One for where the window begins, and one for where it ends.
                prop_assert!((j - i + 1) as u128 <= allowed + 2, "{} in {window} ns", j - i + 1);
            }
        }
    }

    /// Numbers stay where a double holds them exactly, for any rate.
    #[test]
    fn nothing_overflows(
        count in 1..1_000_000_000u64,
        period in 1..=3_162_240_000_000_000_000u64,
        burst in 1..=1u64 << 40,
        want in any::<u64>(),
        tat in prop::option::of(0..1u64 << 53),
        seen in 0..1u64 << 53,
    ) {
        let rate = Rate::new(count, Duration::from_nanos(period), burst);
        prop_assume!(rate.is_ok());
        let terms = Terms::new(&rate.unwrap());
        let ask = terms.ask(want, HORIZON, seen);
        let (after, answer) = grant(tat, NOW, &ask);
        let largest = NOW + ask.reach + ask.depth + ask.horizon + ask.cost;
        prop_assert!(largest < 1 << 53 && after.is_none_or(|after| after < 1 << 53));
        prop_assert_eq!(Answer::from_numbers(&answer.numbers()), Some(answer));
    }
}
