use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
const YEAR: u64 = 365 * DAY;

#[test]
fn tokens_come_at_their_times() {
    // (count, period, at, made beyond the first burst)
    let cases = [
        (100, SECOND, 0, 0),
        (100, SECOND, 9_999_999, 0),
        (100, SECOND, 10_000_000, 1),
        (100, SECOND, SECOND, 100),
        (3, SECOND, 333_333_333, 0),
        (3, SECOND, 333_333_334, 1),
        (3, SECOND, 10 * YEAR, 3 * 10 * 365 * 86_400),
        (1, 10 * DAY, 10 * DAY - 1, 0),
        (1, 10 * DAY, 10 * DAY, 1),
        (1, 10 * DAY, 100 * YEAR, 3650),
        (
            999_999_999,
            SECOND,
            10 * YEAR,
            10 * 365 * 86_400 * 999_999_999,
        ),
    ];
    for (count, period, at, expected) in cases {
        let made = Refill::new(count, period, 5).made(at) - 5;
        assert_eq!(made, expected, "{count} per {period} at {at}");
    }
}

#[test]
fn at_one_each_nanosecond_it_is_one_nanosecond_late() {
    let refill = Refill::new(SECOND, SECOND, 5);
    assert_eq!(refill.made(1_000_000) - 5, 999_999);
    assert_eq!(refill.made(10 * YEAR) - 5, 10 * YEAR - 1);
}

#[test]
fn a_bucket_starts_full_and_holds_no_more_than_its_burst() {
    let refill = Refill::new(10, SECOND, 3);
    assert_eq!(refill.tokens(0, 0), 3);
    assert_eq!(refill.tokens(0, YEAR), 3);
    let mut spent = 0;
    for _ in 0..3 {
        spent = refill.take(spent, YEAR, 1).unwrap();
    }
    assert_eq!(refill.tokens(spent, YEAR), 0);
    assert_eq!(refill.take(spent, YEAR, 1), None);
}

#[test]
fn it_says_exactly_when_tokens_are_there() {
    let refill = Refill::new(10, SECOND, 3);
    let spent = refill.take(0, 0, 3).unwrap();
    assert_eq!(refill.wait(spent, 0, 1), SECOND / 10);
    let three = refill.wait(spent, 0, 3);
    assert_eq!(three, 3 * SECOND / 10);
    assert_eq!(refill.take(spent, three - 1, 3), None);
    assert_eq!(refill.take(spent, three, 3), Some(6));
    // At a time in between, it is what is left of it.
    assert_eq!(refill.wait(spent, SECOND / 20, 1), SECOND / 20);
}

#[test]
fn a_clock_that_goes_back_adds_nothing_and_takes_nothing() {
    let refill = Refill::new(10, SECOND, 3);
    let spent = refill.take(0, YEAR, 2).unwrap();
    assert_eq!(refill.tokens(spent, 0), 0);
    assert_eq!(refill.take(spent, 0, 1), None);
    assert_eq!(refill.tokens(spent, YEAR), 1);
    assert_eq!(refill.tokens(spent, 11 * YEAR), 3);
}

#[test]
fn a_token_that_is_half_made_stays_so_through_changes_of_the_rate() {
    let (start, mut now) = (YEAR, YEAR);
    let mut refill = Refill {
        origin: start,
        ..Refill::new(10, SECOND, 3)
    };
    // Changed every 10 ms, between 10 and 20 a second: 15 a second on the whole.
    for change in 0..1000 {
        now += SECOND / 100;
        let rate = if change % 2 == 0 { 20 } else { 10 };
        refill = Refill::new(rate, SECOND, 3).following(&refill, now);
    }
    assert_eq!(
        refill.made(now) - 3,
        149,
        "each change may cost a nanosecond"
    );
    assert_eq!(refill.made(now + 2000) - 3, 150);
    // A tenth of a token at one in ten days is one day.
    let before = Refill {
        origin: start,
        ..Refill::new(10, SECOND, 3)
    };
    let slow = Refill::new(1, 10 * DAY, 3).following(&before, start + SECOND / 100);
    let wait = slow.wait(3, start + SECOND / 100, 1);
    assert!(wait.abs_diff(9 * DAY) <= 1, "{wait}");
}

#[test]
fn the_end_of_time_is_no_overflow() {
    for (count, period) in [(1, 1), (1, SECOND), (1, u64::MAX), (7, 10 * DAY)] {
        let refill = Refill::new(count, period, 1 << 40);
        let end = i64::MAX as u64;
        assert!(refill.made(end) >= refill.made(end - 1));
        assert!(refill.made_after(u64::MAX) >= refill.made_after(u64::MAX - 1));
        assert_eq!(refill.take(0, end, u64::MAX), None);
        assert!(refill.wait(u64::MAX - 1, 0, u64::MAX) > end / 2);
    }
}

fn rates() -> impl Strategy<Value = (u64, u64)> {
    let period = prop_oneof![
        Just(1u64),
        Just(SECOND),
        Just(3600 * SECOND),
        1..1_000_000_000_000_000u64
    ];
    period.prop_flat_map(|period| (1..=period.min(1 << 40), Just(period)))
}

proptest! {
    /// Against exact arithmetic.
    #[test]
    fn a_token_is_never_late_and_early_by_at_most_a_nanosecond(
        (count, period) in rates(),
        at in 1..YEAR * 50,
    ) {
        prop_assume!(count < period);
        let exact = |at| (u128::from(at) * u128::from(count) / u128::from(period)) as u64;
        let made = Refill::new(count, period, 1).made(at) - 1;
        prop_assert!(made >= exact(at));
        prop_assert!(made <= exact(at + 1));
    }

    /// `made_after` is the very nanosecond at which `made` gets there.
    #[test]
    fn when_is_the_inverse_of_made((count, period) in rates(), number in 1..1u64 << 50) {
        let refill = Refill::new(count, period, 1);
        let token = 1 + number;
        let when = refill.made_after(token);
        prop_assume!(when < i64::MAX as u64);
        prop_assert!(refill.made(when) >= token);
        prop_assert!(refill.made(when - 1) < token);
    }

    /// In every window, through any changes of the rate: at most burst + r·t + 1. The r·t is
    /// added up exactly, in billionths of tokens, and knows nothing of the code under test.
    #[test]
    fn no_window_lets_more_pass_than_it_should(
        start in 1..1_000_000_000u64,
        steps in prop::collection::vec(
            (0..SECOND, 1..4u64, prop::option::weighted(0.2, (1..1_000_000_000u64, 1..20u64))),
            1..200,
        ),
    ) {
        let mut rate = start;
        let mut refill = Refill::new(rate, SECOND, 5);
        let (mut spent, mut now, mut brought) = (0, 0, 0u128);
        // What time had brought by then, the burst, and what was taken.
        let mut log: Vec<(u128, u64, u64)> = vec![(0, 5, 0)];
        for (pause, n, change) in steps {
            now += pause;
            brought += u128::from(pause) * u128::from(rate);
            if let Some((count, burst)) = change {
                spent = refill.settled(spent, now);
                rate = count;
                refill = Refill::new(rate, SECOND, burst).following(&refill, now);
            }
            let taken = match refill.take(spent, now, n) {
                Some(then) => {
                    spent = then;
                    n
                }
                None => 0,
            };
            log.push((brought, refill.burst, taken));
        }
        for from in 1..log.len() {
            // What may have been saved up by then: under the rate before, too.
            let mut burst = log[from - 1].1;
            let mut passed = 0;
            for &(brought, capacity, taken) in &log[from..] {
                passed += taken;
                burst = burst.max(capacity);
                let in_window = (brought - log[from].0).div_ceil(u128::from(SECOND)) as u64;
                prop_assert!(passed <= burst + in_window + 1);
            }
        }
    }

    /// However often the rate is changed, no tokens come of it.
    #[test]
    fn changing_the_rate_makes_no_tokens(
        changes in prop::collection::vec((0..1000u64, 1..1_000_000_000u64), 1..1000),
    ) {
        let mut refill = Refill::new(1, SECOND, 5);
        let (mut rate, mut now, mut brought) = (1, YEAR, 0u128);
        refill.origin = now;
        for (pause, count) in changes {
            now += pause;
            brought += u128::from(pause) * u128::from(rate);
            rate = count;
            refill = Refill::new(rate, SECOND, 5).following(&refill, now);
        }
        prop_assert!(u128::from(refill.made(now) - 5) <= brought / u128::from(SECOND) + 1);
    }

    /// One of many, which is numbered anew with each rate, has the tokens of one that is not.
    #[test]
    fn a_bucket_of_ones_own_is_like_any_other(
        steps in prop::collection::vec(
            (0..2_000_000_000u64, prop::option::of((rates(), 1..20u64)), 0..4usize),
            1..200,
        ),
    ) {
        let mut rate = Refill::new(3, SECOND, 5);
        let mut now = YEAR;
        let mut own = TokenBucket::new(now);
        let (mut refill, mut spent) = (Refill { origin: now, ..rate }, 0);
        for (pause, changed, takes) in steps {
            now += pause;
            if let Some(((count, period), burst)) = changed {
                let before = std::mem::replace(&mut rate, Refill::new(count, period, burst));
                own.set_rate(&before, &rate, now);
                spent = refill.settled(spent, now);
                refill = rate.following(&refill, now);
            }
            for _ in 0..takes {
                let (token, wait) = own.next(&rate, now);
                let taken = refill.take(spent, now, 1);
                prop_assert_eq!(wait == 0, taken.is_some());
                if taken.is_none() {
                    prop_assert_eq!(wait, refill.wait(spent, now, 1));
                }
                // Now or ahead of its time, alike.
                spent = taken.unwrap_or_else(|| refill.settled(spent, now) + 1);
                own.take(token);
            }
            prop_assert_eq!(own.tokens(&rate, now), refill.tokens(spent, now));
            prop_assert_eq!(own.is_full(&rate, now), refill.tokens(spent, now) == rate.burst);
        }
    }
}

#[test]
fn a_token_is_put_back_if_none_was_taken_behind_it_at_the_same_rate() {
    let rate = Refill::new(1, SECOND, 2);
    let mut bucket = TokenBucket::new(YEAR);
    let take = |bucket: &mut TokenBucket| {
        let (token, _) = bucket.next(&rate, YEAR);
        bucket.take(token);
        token
    };
    let (first, second) = (take(&mut bucket), take(&mut bucket));
    // One was taken behind it.
    bucket.put_back(first);
    assert_eq!(bucket.tokens(&rate, YEAR), 0);
    // The number is that of the first, but it is another token.
    let mut renumbered = bucket;
    renumbered.set_rate(&rate, &rate, YEAR + SECOND);
    assert_eq!(renumbered.spent, first.number);
    renumbered.put_back(first);
    assert_eq!(renumbered.tokens(&rate, YEAR + SECOND), 1);
    bucket.put_back(second);
    assert_eq!(bucket.tokens(&rate, YEAR), 1);
}
