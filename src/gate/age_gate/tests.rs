//! A door at which it may be calm decides and learns as one whose law is told of every request.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn settings(target: u64, min: u64, max: u64) -> Settings {
    Settings {
        target: target * MS,
        interval: 5000 * MS,
        min,
        max,
        max_sojourn: Some(2000 * MS),
    }
}

fn door(min: u64, max: u64) -> AgeGate {
    AgeGate::new(settings(100, min, max), Clock::default())
}

/// Nothing has come before this.
fn begin(door: &AgeGate, now: u64) {
    let law = &mut lock(&door.law);
    **law = Ages::new(law.settings(), now);
}

#[derive(Clone, Debug)]
enum Step {
    Comes { age: u64, oldest: Option<u64> },
    IsOver,
    InnerPending,
    Passes,
    Interval(u64),
    Set { target: u64, max: u64 },
    Look,
}

fn any_step() -> impl Strategy<Value = (u64, Step)> {
    let time = prop_oneof![20 => 0..5_u64, 2 => 0..500_u64, 1 => 0..20_000_u64];
    let age = prop_oneof![20 => Just(0), 2 => 0..400_u64, 1 => 0..3000_u64];
    let oldest = prop::option::weighted(0.05, 0..400_u64);
    let step = prop_oneof![
        20 => (age, oldest).prop_map(|(age, oldest)| Step::Comes { age, oldest }),
        16 => Just(Step::IsOver),
        1 => Just(Step::InnerPending),
        1 => Just(Step::Passes),
        1 => (500..10_000_u64).prop_map(Step::Interval),
        1 => (1..500_u64, 1..25_u64).prop_map(|(target, max)| Step::Set { target, max }),
        1 => Just(Step::Look),
    ];
    (time, step)
}

/// All that the law knows, but for when a request came last: that counts only when no request came for a while.
fn knows(door: &AgeGate, now: u64) -> (String, String) {
    let mut law = door.rolled(now);
    law.hear_of(door.gate.admitted());
    let debug = format!("{:?}", law.law());
    let (start, rest) = debug.split_once(" last: ").expect("a field");
    let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let reports = [0, 50, 150, 700, 6000].map(|later| law.report(now + later * MS));
    (format!("{start}{rest}"), format!("{reports:?}"))
}

proptest! {
    #[test]
    fn the_law_is_told_as_if_it_were_never_calm(
        (min, max) in (1..5_u64, 0..20_u64).prop_map(|(min, more)| (min, min + more)),
        steps in prop::collection::vec(any_step(), 1..600),
    ) {
        let (calm, told) = (door(min, max), door(min, max));
        let both = [&calm, &told];
        // They were made one after the other.
        let mut now = told.now().max(calm.now()) + MS;
        both.iter().for_each(|door| begin(door, now));
        let mut in_flight = 0;
        for (time, step) in steps {
            now += time * MS;
            match step {
                Step::Comes { age, oldest } => {
                    let (age, oldest) = (age * MS, oldest.map(|oldest| oldest * MS));
                    let admitted = calm.admit_at(now, age, age, oldest);
                    prop_assert_eq!(&admitted, &told.decide(now, age, age, oldest));
                    in_flight += u64::from(admitted.is_ok());
                }
                Step::IsOver if in_flight > 0 => {
                    in_flight -= 1;
                    both.iter().for_each(|door| door.gate.complete());
                }
                Step::IsOver => {}
                Step::InnerPending => {
                    both.iter().for_each(|door| door.rolled(now).note_waiting(now));
                }
                Step::Passes => {
                    let fresh = Age { all: 0, own: 0, oldest: None };
                    let passed = calm.try_pass_at(now, fresh).map(drop);
                    prop_assert_eq!(&passed, &told.try_pass_at(now, fresh).map(drop));
                    in_flight += u64::from(passed.is_ok());
                }
                Step::Interval(ms) => {
                    let interval = Duration::from_millis(ms);
                    both.iter().for_each(|door| door.set_interval(interval).expect("long enough"));
                }
                Step::Set { target, max } => {
                    let settings = settings(target, min.min(max), max);
                    both.iter().for_each(|door| door.set(settings));
                }
                Step::Look => prop_assert_eq!(knows(&calm, now), knows(&told, now)),
            }
        }
        prop_assert_eq!(lock(&told.law).knows_of(), told.gate.admitted());
        prop_assert_eq!(knows(&calm, now), knows(&told, now));
        prop_assert_eq!(calm.gate.admitted(), told.gate.admitted());
    }
}

#[test]
fn it_is_calm_once_a_request_has_not_waited_until_one_finds_more_in_flight_or_the_window_is_over() {
    let door = door(1, 20);
    let start = door.now() + MS;
    begin(&door, start);
    let comes = |ms, age| {
        door.admit_at(start + ms * MS, age * MS, age * MS, None)
            .expect("room");
    };
    let is_calm = |ms| door.is_calm(start + ms * MS);
    comes(1, 0); // which begins the first interval
    assert!(!is_calm(1), "the next is one more in flight");
    comes(1, 0);
    door.gate.complete();
    assert!(is_calm(1) && is_calm(50));
    assert!(!is_calm(101), "the interval is over");
    comes(60, 30);
    door.gate.complete();
    assert!(
        is_calm(60),
        "that one has waited changes nothing in an interval in which another has not"
    );
    comes(110, 30);
    door.gate.complete();
    assert!(!is_calm(110), "a new interval, in which all have waited");
    assert_eq!(door.snapshot().admitted, 4);
}
