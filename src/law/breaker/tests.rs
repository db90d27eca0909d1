use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn settings(trip: Trip) -> Settings {
    Settings {
        trip,
        cooldown: 30 * SECOND,
        successes: 2,
        lease: 60 * SECOND,
    }
}

/// A breaker that is driven by hand.
struct Driven {
    common: Common,
    breaker: Breaker,
    now: u64,
}

impl Driven {
    fn new(trip: Trip) -> Self {
        Self {
            common: Common::new(settings(trip)),
            breaker: Breaker::new(0),
            now: SECOND,
        }
    }

    fn enter(&mut self) -> Entered {
        self.breaker.enter(&mut self.common, self.now)
    }

    fn passes(&mut self) -> u64 {
        match self.enter() {
            Entered::Passes(generation) => generation,
            Entered::Refused(after) => panic!("refused for {}", after.nanos()),
        }
    }

    fn refused_for(&mut self) -> u64 {
        match self.enter() {
            Entered::Refused(after) => after.nanos() / SECOND,
            Entered::Passes(_) => panic!("it passed"),
        }
    }

    fn end(&mut self, generation: u64, ended: Ended) -> State {
        self.breaker
            .end(&mut self.common, self.now, generation, ended);
        self.breaker.state()
    }

    fn run(&mut self, ended: Ended) -> State {
        let generation = self.passes();
        self.end(generation, ended)
    }

    /// One with threshold 5 that has just opened.
    fn opened() -> Self {
        let mut driven = Self::new(Trip::InARow(5));
        for _ in 0..5 {
            driven.run(Ended::Failure);
        }
        assert_eq!(driven.breaker.state(), State::Open);
        driven
    }
}

#[test]
fn it_opens_at_the_threshold_and_a_success_starts_the_count_over() {
    let mut driven = Driven::new(Trip::InARow(5));
    for _ in 0..4 {
        assert_eq!(driven.run(Ended::Failure), State::Closed);
    }
    assert_eq!(driven.run(Ended::Success), State::Closed);
    for _ in 0..4 {
        assert_eq!(driven.run(Ended::Failure), State::Closed);
        assert_eq!(driven.run(Ended::Unknown), State::Closed); // neither adds nor starts over
    }
    assert_eq!(driven.run(Ended::Failure), State::Open);
    assert_eq!(driven.common.opened, 1);
}

#[test]
fn while_open_it_refuses_for_the_time_that_is_left() {
    let mut driven = Driven::opened();
    for (passed, left) in [(0, 30), (10, 20), (19, 1)] {
        driven.now += passed * SECOND;
        assert_eq!(driven.refused_for(), left);
    }
    driven.now += SECOND;
    driven.passes();
    assert_eq!(driven.breaker.state(), State::HalfOpen);
}

#[test]
fn half_open_one_probes_and_others_are_told_to_come_back_in_five_seconds() {
    let mut driven = Driven::opened();
    driven.now += 30 * SECOND;
    let probe = driven.passes();
    assert_eq!(driven.refused_for(), 5);
    assert_eq!(driven.end(probe, Ended::Success), State::HalfOpen);
    let probe = driven.passes();
    assert_eq!(driven.refused_for(), 5);
    assert_eq!(driven.end(probe, Ended::Success), State::Closed);
    assert_eq!((driven.common.probes, driven.common.closed), (2, 1));
}

#[test]
fn every_end_of_a_probe_leaves_the_half_open_state() {
    for (ended, state, refused_for) in [
        (Ended::Failure, State::Open, Some(30)),
        (Ended::Unknown, State::Open, None), // the next one probes
    ] {
        let mut driven = Driven::opened();
        driven.now += 30 * SECOND;
        assert_eq!(driven.run(ended), state);
        match refused_for {
            Some(seconds) => assert_eq!(driven.refused_for(), seconds),
            None => drop(driven.passes()),
        }
    }
    // And if it never ends.
    let mut driven = Driven::opened();
    driven.now += 30 * SECOND;
    let stuck = driven.passes();
    driven.now += 60 * SECOND;
    assert_eq!(driven.refused_for(), 30);
    driven.now += 30 * SECOND;
    let probe = driven.passes();
    assert_eq!(driven.end(stuck, Ended::Success), State::HalfOpen); // too late
    assert_eq!(driven.refused_for(), 5);
    assert_eq!(driven.end(probe, Ended::Failure), State::Open);
    assert_eq!(driven.end(stuck, Ended::Failure), State::Open);
}

#[test]
fn a_probe_that_ends_after_its_lease_is_too_late_whether_or_not_anybody_came_meanwhile() {
    let mut driven = Driven::opened();
    driven.now += 30 * SECOND;
    let probe = driven.passes();
    driven.now += 61 * SECOND;
    assert_eq!(driven.end(probe, Ended::Success), State::Open);
    assert_eq!(driven.refused_for(), 29); // since the end of the lease
}

#[test]
fn what_was_sent_before_the_circuit_opened_says_nothing_about_it_later() {
    let mut driven = Driven::new(Trip::InARow(5));
    let old: Vec<_> = (0..20).map(|_| driven.passes()).collect();
    for generation in &old[..5] {
        driven.end(*generation, Ended::Failure);
    }
    driven.now += 30 * SECOND;
    let probe = driven.passes();
    assert_eq!(driven.end(old[5], Ended::Success), State::HalfOpen);
    assert_eq!(driven.end(old[6], Ended::Failure), State::HalfOpen);
    assert_eq!(driven.end(old[7], Ended::Unknown), State::HalfOpen);
    assert_eq!(driven.refused_for(), 5); // there still is a probe
    driven.end(probe, Ended::Success);
    assert_eq!(driven.run(Ended::Success), State::Closed);
    for generation in &old[8..] {
        assert_eq!(driven.end(*generation, Ended::Failure), State::Closed);
    }
}

#[test]
fn forced_open_it_stays_so_until_it_is_reset() {
    let mut driven = Driven::new(Trip::InARow(5));
    let before = driven.passes();
    driven.breaker.force_open(&mut driven.common, driven.now);
    driven.now = u64::MAX;
    assert_eq!(driven.refused_for(), 30);
    assert_eq!(driven.end(before, Ended::Success), State::Open);
    driven.breaker.reset(&mut driven.common, driven.now);
    assert_eq!(driven.run(Ended::Success), State::Closed);
}

#[test]
fn reset_forgets_the_failures_before_it() {
    let mut driven = Driven::new(Trip::InARow(5));
    for _ in 0..4 {
        driven.run(Ended::Failure);
    }
    driven.breaker.reset(&mut driven.common, driven.now);
    assert_eq!(driven.common.closed, 0); // it was closed
    for _ in 0..4 {
        assert_eq!(driven.run(Ended::Failure), State::Closed);
    }
    assert_eq!(driven.run(Ended::Failure), State::Open);
}

const HALF: Trip = Trip::Share {
    of: 0.5,
    window: 10 * SECOND,
    calls: 10,
};

#[test]
fn by_share_it_opens_when_enough_of_enough_requests_have_failed() {
    let mut driven = Driven::new(HALF);
    for _ in 0..9 {
        assert_eq!(driven.run(Ended::Failure), State::Closed); // too few to tell
    }
    assert_eq!(driven.run(Ended::Failure), State::Open);

    let mut driven = Driven::new(HALF);
    for _ in 0..10 {
        driven.run(Ended::Success);
    }
    for _ in 0..9 {
        assert_eq!(driven.run(Ended::Failure), State::Closed);
    }
    assert_eq!(driven.run(Ended::Failure), State::Open); // 10 of 20
}

#[test]
fn by_share_what_is_older_than_the_window_does_not_count() {
    let mut driven = Driven::new(HALF);
    for _ in 0..9 {
        driven.run(Ended::Failure);
    }
    driven.now += 11 * SECOND;
    assert_eq!(driven.run(Ended::Failure), State::Closed);
    assert_eq!(driven.breaker.counts(driven.now), Some((1.0, 1.0)));
}

#[test]
fn by_share_successes_that_were_only_counted_count() {
    let mut driven = Driven::new(HALF);
    driven
        .breaker
        .count_successes(&driven.common, driven.now, 11);
    for _ in 0..10 {
        assert_eq!(driven.run(Ended::Failure), State::Closed);
    }
    assert_eq!(driven.run(Ended::Failure), State::Open); // 11 of 22
}

#[test]
fn by_share_what_was_before_it_opened_does_not_count_after_it_has_closed() {
    let mut driven = Driven::new(Trip::Share {
        of: 0.5,
        window: 1000 * SECOND,
        calls: 10,
    });
    for _ in 0..10 {
        driven.run(Ended::Failure);
    }
    driven.now += 30 * SECOND;
    driven.run(Ended::Success);
    assert_eq!(driven.run(Ended::Success), State::Closed);
    for _ in 0..9 {
        assert_eq!(driven.run(Ended::Failure), State::Closed);
    }
    assert_eq!(driven.run(Ended::Failure), State::Open);
}

#[test]
fn one_that_has_just_closed_is_not_stale_however_long_ago_it_failed() {
    let mut driven = Driven::opened();
    driven.now += 100 * SECOND;
    driven.run(Ended::Success);
    assert_eq!(driven.run(Ended::Success), State::Closed);
    assert!(!driven.breaker.is_stale(&driven.common, driven.now));
    driven.now += 61 * SECOND;
    assert!(driven.breaker.is_stale(&driven.common, driven.now));
}

#[test]
fn by_share_just_that_much_is_enough() {
    for calls in 1..200_u32 {
        for failures in 1..=calls {
            let mut driven = Driven::new(Trip::Share {
                of: f64::from(failures) / f64::from(calls),
                window: 10 * SECOND,
                calls,
            });
            for call in 0..calls - 1 {
                let fails = call < failures - 1;
                driven.run(if fails {
                    Ended::Failure
                } else {
                    Ended::Success
                });
            }
            assert_eq!(
                driven.run(Ended::Failure),
                State::Open,
                "{failures} of {calls}"
            );
        }
    }
}

#[test]
fn what_nobody_probes_can_be_forgotten_in_time_but_not_what_was_opened_by_hand() {
    let mut driven = Driven::opened();
    driven.now += 90 * SECOND;
    assert!(!driven.breaker.is_stale(&driven.common, driven.now));
    driven.now += SECOND;
    assert!(driven.breaker.is_stale(&driven.common, driven.now));
    driven.passes(); // and is not heard of again
    driven.now += 120 * SECOND;
    assert!(!driven.breaker.is_stale(&driven.common, driven.now));
    driven.now += SECOND;
    assert!(driven.breaker.is_stale(&driven.common, driven.now));
    driven.breaker.force_open(&mut driven.common, driven.now);
    driven.now = u64::MAX;
    assert!(!driven.breaker.is_stale(&driven.common, driven.now));
}

#[test]
fn of_probes_that_say_nothing_there_is_no_news() {
    let mut driven = Driven::opened();
    assert_eq!(driven.breaker.news(driven.now), Some(State::Open));
    driven.now += 30 * SECOND;
    for told in [Some(State::HalfOpen), None, None] {
        let probe = driven.passes();
        assert_eq!(driven.breaker.news(driven.now), told);
        driven.end(probe, Ended::Unknown);
        assert_eq!(driven.breaker.news(driven.now), None);
    }
    driven.run(Ended::Failure);
    assert_eq!(driven.breaker.news(driven.now), Some(State::Open));
}

#[test]
fn one_that_is_as_new_can_be_forgotten() {
    let mut driven = Driven::new(Trip::InARow(2));
    assert!(driven.breaker.is_forgettable(&driven.common, driven.now));
    driven.run(Ended::Failure);
    assert!(!driven.breaker.is_forgettable(&driven.common, driven.now));
    driven.run(Ended::Success);
    assert!(driven.breaker.is_forgettable(&driven.common, driven.now));
    driven.run(Ended::Failure);
    driven.run(Ended::Failure);
    driven.now += 30 * SECOND;
    driven.run(Ended::Success);
    driven.run(Ended::Success);
    assert_eq!(driven.breaker.state(), State::Closed);
    // What was sent before may yet be on its way.
    assert!(!driven.breaker.is_forgettable(&driven.common, driven.now));
    driven.now += 61 * SECOND;
    assert!(driven.breaker.is_forgettable(&driven.common, driven.now));
}

/// What a circuit breaker is, written down another way: who has been let through, in which era.
#[derive(Default)]
struct Model {
    era: u32,
    failures: u32,
    open_until: Option<u64>,
    half_open: bool,
    probe: Option<(usize, u64)>,
    successes: u32,
    sent: Vec<(u32, bool)>,
}

impl Model {
    fn next_era(&mut self) {
        self.era += 1;
        self.failures = 0;
        self.open_until = None;
        self.half_open = false;
        self.probe = None;
    }

    fn open(&mut self, until: u64) {
        self.next_era();
        self.open_until = Some(until);
        self.successes = 0;
    }

    fn tick(&mut self, now: u64) {
        if let Some((_, lease)) = self.probe.filter(|(_, lease)| *lease <= now) {
            self.open(lease + 30);
        }
    }

    fn enter(&mut self, now: u64) -> Result<(), u64> {
        self.tick(now);
        if let Some(until) = self.open_until {
            if now < until {
                return Err((until - now) * SECOND);
            }
        }
        let closed = self.open_until.is_none() && !self.half_open;
        if !closed {
            if self.probe.is_some() {
                return Err(5 * SECOND);
            }
            let successes = if self.half_open { self.successes } else { 0 };
            self.next_era();
            self.half_open = true;
            self.successes = successes;
            self.probe = Some((self.sent.len(), now + 60));
        }
        self.sent.push((self.era, true));
        Ok(())
    }

    fn end(&mut self, now: u64, which: usize, ended: Ended) {
        self.tick(now);
        let (era, running) = std::mem::take(&mut self.sent[which]);
        if !running || era != self.era {
            return;
        }
        if self.half_open {
            if self.probe.take().is_none_or(|(probe, _)| probe != which) {
                return;
            }
            match ended {
                Ended::Failure => self.open(now + 30),
                Ended::Unknown => self.open(now),
                Ended::Success if self.successes == 1 => self.next_era(),
                Ended::Success => self.successes = 1,
            }
        } else {
            match ended {
                Ended::Failure => self.failures += 1,
                Ended::Success => self.failures = 0,
                Ended::Unknown => {}
            }
            if self.failures == 3 {
                self.open(now + 30);
            }
        }
    }

    fn state(&self) -> State {
        match (self.open_until, self.half_open) {
            (Some(_), _) => State::Open,
            (None, true) => State::HalfOpen,
            (None, false) => State::Closed,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter,
    End(prop::sample::Index, Ended),
    Pass(u64),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let ended = prop_oneof![
        4 => Just(Ended::Failure),
        2 => Just(Ended::Success),
        1 => Just(Ended::Unknown)
    ];
    prop_oneof![
        6 => Just(Step::Enter),
        8 => (any::<prop::sample::Index>(), ended).prop_map(|(i, ended)| Step::End(i, ended)),
        4 => (0_u64..40).prop_map(Step::Pass),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn it_does_what_the_model_does(steps in prop::collection::vec(step(), 1..150)) {
        let mut driven = Driven::new(Trip::InARow(3));
        let mut model = Model::default();
        let mut sent = Vec::new();
        for step in steps {
            let now = driven.now / SECOND;
            match step {
                Step::Enter => match (driven.enter(), model.enter(now)) {
                    (Entered::Passes(generation), Ok(())) => sent.push(Some(generation)),
                    (Entered::Refused(after), Err(expected)) => prop_assert_eq!(after.nanos(), expected),
                    (entered, expected) => prop_assert!(false, "{:?}, not {:?}", entered, expected),
                },
                Step::End(index, ended) if !sent.is_empty() => {
                    let which = index.index(sent.len());
                    if let Some(generation) = sent[which].take() {
                        driven.end(generation, ended);
                        model.end(now, which, ended);
                    }
                }
                Step::End(..) => {}
                Step::Pass(seconds) => driven.now += seconds * SECOND,
                Step::Reset => {
                    driven.breaker.reset(&mut driven.common, driven.now);
                    model.next_era();
                }
            }
            prop_assert_eq!(driven.breaker.state(), model.state());
        }
    }
}
