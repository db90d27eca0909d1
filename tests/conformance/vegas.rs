//! The default law, by the numbers of the simulation that it comes from.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use tower_backpressure::adaptive_concurrency::{Bounds, Limit, Outcome, Sample, Vegas};

/// A sample: seconds after the last one, round-trip time in seconds, in flight, outcome.
type Given = (f64, f64, usize, Outcome);

/// As many in flight as the limit allows.
const FULL: usize = 0;

/// `n` times the same.
fn times(n: usize, apart: f64, rtt: f64, in_flight: usize, outcome: Outcome) -> Vec<Given> {
    vec![(apart, rtt, in_flight, outcome); n]
}

/// Feeds the samples; after each whose number is listed the limit is as listed, and between them it does
/// not move.
#[track_caller]
fn check(initial: usize, samples: &[Given], limits: &[(usize, usize)], baseline_ms: u64) {
    let mut vegas = Vegas::new(Bounds::new(1, initial, 1000));
    let (mut now, mut limits, mut expected) = (0.0, limits.iter().peekable(), initial);
    for (number, &(apart, rtt, in_flight, outcome)) in (1..).zip(samples) {
        now += apart;
        let limit = vegas.limit();
        let in_flight = if in_flight == FULL { limit } else { in_flight };
        vegas.sample(&Sample {
            now: Duration::from_secs_f64(now),
            rtt: Duration::from_secs_f64(rtt),
            in_flight,
            outcome,
            full: in_flight >= limit,
        });
        if let Some(&(_, limit)) = limits.next_if(|(at, _)| *at == number) {
            expected = limit;
        }
        assert_eq!(vegas.limit(), expected, "after sample {number}");
    }
    assert_eq!(limits.next(), None, "not reached");
    let baseline = vegas.report().baseline.expect("it was measured");
    assert_eq!(baseline.as_secs_f64(), baseline_ms as f64 / 1000.0);
}

#[test]
fn v1_it_ramps_up_while_the_time_stays_the_same() {
    let samples = times(1200, 0.00051, 0.01, FULL, Outcome::Success);
    let limits = [
        (1, 20),
        (178, 20),
        (375, 28),
        (572, 42),
        (769, 63),
        (966, 94),
        (1163, 141),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v2_it_does_not_grow_where_it_is_not_used() {
    let samples = times(600, 0.0011, 0.01, 9, Outcome::Success);
    let limits = [
        (1, 20),
        (83, 20),
        (174, 20),
        (265, 20),
        (356, 20),
        (447, 20),
        (538, 20),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v3_exactly_half_in_use_counts_as_used() {
    let samples = times(700, 0.0011, 0.01, 10, Outcome::Success);
    let limits = [
        (1, 20),
        (83, 20),
        (174, 28),
        (265, 28),
        (356, 28),
        (447, 28),
        (538, 28),
        (629, 28),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v5_an_outage_of_fast_failures_and_the_recovery() {
    let samples = [
        times(400, 0.0011, 0.01, 12, Outcome::Success),
        times(1000, 0.0011, 0.0002, 12, Outcome::Failure),
        times(700, 0.0021, 0.01, FULL, Outcome::Success),
    ]
    .concat();
    let limits = [
        (1, 32),
        (128, 32),
        (256, 32),
        (347, 32),
        (438, 25),
        (540, 12),
        (631, 6),
        (722, 3),
        (813, 1),
        (904, 1),
        (995, 1),
        (1086, 1),
        (1177, 1),
        (1268, 1),
        (1359, 1),
        (1427, 1),
        (1475, 2),
        (1523, 3),
        (1571, 4),
        (1619, 6),
        (1667, 10),
        (1715, 15),
        (1763, 22),
        (1811, 34),
        (1863, 51),
        (1940, 76),
        (2056, 115),
    ];
    check(32, &samples, &limits, 10);
}

#[test]
fn v6_failures_around_one_in_ten() {
    let ten = [
        times(9, 0.0021, 0.01, 5, Outcome::Success),
        times(1, 0.0021, 0.01, 5, Outcome::Failure),
    ];
    let samples = ten.concat().repeat(40);
    let limits = [
        (1, 20),
        (80, 20),
        (160, 20),
        (208, 20),
        (256, 18),
        (332, 17),
    ];
    check(20, &samples, &limits, 10);
}

#[test]
fn v7_the_baseline_follows_where_the_limit_is_not_used() {
    let samples: Vec<Given> = (0..600)
        .map(|i| {
            let rtt = if i < 300 { 0.01 } else { 0.02 };
            (
                0.0041,
                rtt,
                if i % 2 == 0 { 2 } else { 8 },
                Outcome::Success,
            )
        })
        .collect();
    let limits = [
        (1, 20),
        (80, 20),
        (160, 20),
        (190, 20),
        (220, 20),
        (250, 20),
        (280, 20),
        (310, 20),
        (340, 20),
        (370, 20),
        (400, 20),
        (430, 20),
        (460, 20),
        (490, 20),
        (520, 20),
        (550, 20),
        (580, 20),
    ];
    check(20, &samples, &limits, 20);
}

#[test]
fn v8_a_low_rate() {
    // One is in flight all the time, so a request finds another one there, and takes as long as it is to the next.
    let samples = times(96, 0.333, 0.3, 2, Outcome::Success);
    check(3, &samples, &[(1, 3), (32, 4)], 333);
}

#[test]
fn v10_the_maximum() {
    let samples = times(95_000, 0.0000101, 0.01, FULL, Outcome::Success);
    let limits = [
        (1, 990),
        (18813, 998),
        (28714, 1000),
        (88120, 750),
        (90596, 1000),
    ];
    check(990, &samples, &limits, 10);
}

#[test]
fn v11_a_stall_is_no_queue() {
    let samples = [
        times(1000, 0.001, 0.01, 10, Outcome::Success),
        times(1, 0.5, 0.505, 10, Outcome::Success),
        times(9, 0.0001, 0.505, 10, Outcome::Success),
        times(1000, 0.001, 0.01, 10, Outcome::Success),
    ]
    .concat();
    check(20, &samples, &[(1, 20), (191, 28)], 10);
}

/// A service in which there are always as many requests as the limit allows. Its workers take them first come first
/// served, and no two of them take the same time. Nothing is left to chance.
struct ClosedLoop {
    law: Vegas,
    now: u64,
    workers: usize,
    /// How long a request takes on average.
    mean: u64,
    /// So long it takes after its work, when it no longer has a worker.
    outside: u64,
    admitted: u64,
    in_flight: usize,
    waiting: VecDeque<Admitted>,
    /// By when they are done, and by when they were begun.
    working: BinaryHeap<Reverse<(u64, u64, Admitted)>>,
    /// Those that are done but for what is outside.
    leaving: VecDeque<(u64, Admitted)>,
    begun: u64,
}

/// Its number, when it was admitted, and how many were in flight then.
type Admitted = (u64, u64, usize);

const MS: u64 = 1_000_000;

impl ClosedLoop {
    fn new(workers: usize, mean: u64) -> Self {
        Self {
            law: Vegas::new(Bounds::new(1, 20, 1000)),
            now: 0,
            workers,
            mean,
            outside: 0,
            admitted: 0,
            in_flight: 0,
            waiting: VecDeque::new(),
            working: BinaryHeap::new(),
            leaving: VecDeque::new(),
            begun: 0,
        }
    }

    /// Fills what the limit leaves free, and what workers are free.
    fn fill(&mut self) {
        while self.in_flight < self.law.limit() {
            self.in_flight += 1;
            if self.law.is_probing() {
                let now = Duration::from_nanos(self.now);
                self.law.admitted(now, self.in_flight);
            }
            self.waiting
                .push_back((self.admitted, self.now, self.in_flight));
            self.admitted += 1;
        }
        while self.working.len() < self.workers {
            let Some(next) = self.waiting.pop_front() else {
                return;
            };
            // From half of the mean to one and a half times that.
            let takes = self.mean * (500 + 7919 * next.0 % 1000) / 1000;
            self.begun += 1;
            self.working
                .push(Reverse((self.now + takes, self.begun, next)));
        }
    }

    /// Runs for a while. Gives the least and the largest limit that it saw, but for dips, and the share of the time in
    /// which workers worked.
    fn run(&mut self, lasting: u64) -> (usize, usize, f64) {
        let (begin, end) = (self.now, self.now + lasting);
        let (mut least, mut most, mut worked) = (usize::MAX, 0, 0.0);
        self.fill();
        loop {
            let done = (self.working.peek()).map_or(u64::MAX, |Reverse((at, ..))| *at);
            let left = self.leaving.front().map_or(u64::MAX, |(at, _)| *at);
            let next = done.min(left).min(end);
            worked += self.working.len() as f64 * (next - self.now) as f64;
            self.now = next;
            if next == end {
                let possible = self.workers as f64 * (end - begin) as f64;
                return (least, most, worked / possible);
            }
            if done == next {
                let Reverse((_, _, it)) = self.working.pop().expect("it is done");
                self.leaving.push_back((next + self.outside, it));
            }
            while self.leaving.front().is_some_and(|(at, _)| *at <= next) {
                let (_, (_, since, in_flight)) = self.leaving.pop_front().expect("it leaves");
                self.in_flight -= 1;
                self.law.sample(&Sample {
                    now: Duration::from_nanos(next),
                    rtt: Duration::from_nanos(next - since),
                    in_flight,
                    outcome: Outcome::Success,
                    full: in_flight >= self.law.limit(),
                });
            }
            if !self.law.is_probing() {
                least = least.min(self.law.limit());
                most = most.max(self.law.limit());
            }
            self.fill();
        }
    }

    /// All workers stand still for a while.
    fn stall(&mut self, lasting: u64) {
        self.now += lasting;
        let working = std::mem::take(&mut self.working).into_iter();
        self.working =
            (working.map(|Reverse((at, begun, it))| Reverse((at + lasting, begun, it)))).collect();
    }

    fn baseline_ms(&self) -> f64 {
        let baseline = self.law.report().baseline.expect("it was measured");
        1000.0 * baseline.as_secs_f64()
    }
}

#[track_caller]
fn assert_within(value: f64, least: f64, most: f64) {
    assert!((least..=most).contains(&value), "{value}");
}

#[test]
fn c1_a_few_more_than_there_are_workers() {
    let mut all = ClosedLoop::new(16, 10 * MS);
    all.run(3000 * MS);
    let (least, most, worked) = all.run(7000 * MS);
    assert_within(least as f64, 17.0, 19.0);
    assert_within(most as f64, 18.0, 21.0);
    assert_within(worked, 0.98, 1.0);
    assert_within(all.baseline_ms(), 9.8, 10.2);
}

#[test]
fn c2_a_quarter_of_the_workers_is_left() {
    let mut all = ClosedLoop::new(16, 10 * MS);
    all.run(3000 * MS);
    all.workers = 4;
    all.run(1500 * MS);
    let (least, most, worked) = all.run(3000 * MS);
    assert_within(least as f64, 4.0, 7.0);
    assert_within(most as f64, 5.0, 9.0);
    assert_within(worked, 0.97, 1.0);
    assert_within(all.baseline_ms(), 9.5, 11.0);
}

#[test]
fn c3_a_service_that_gets_ten_times_slower_is_not_taken_for_a_queue() {
    let mut all = ClosedLoop::new(16, 10 * MS);
    all.run(3000 * MS);
    all.mean = 100 * MS;
    let (least, most, worked) = all.run(10_000 * MS);
    assert_within(least as f64, 14.0, 20.0);
    assert_within(most as f64, 17.0, 24.0);
    assert_within(worked, 0.9, 1.0);
    assert_within(all.baseline_ms(), 95.0, 105.0);
}

#[test]
fn c4_a_stall_moves_nothing() {
    let mut all = ClosedLoop::new(16, 10 * MS);
    all.run(3000 * MS);
    all.stall(500 * MS);
    let (least, most, worked) = all.run(2000 * MS);
    assert_within(least as f64, 17.0, 19.0);
    assert_within(most as f64, 18.0, 21.0);
    assert_within(worked, 0.98, 1.0);
}

#[test]
fn c5_fewer_workers_that_are_slower_as_well() {
    let mut all = ClosedLoop::new(16, 10 * MS);
    all.run(3000 * MS);
    (all.workers, all.mean) = (4, 40 * MS);
    all.run(4000 * MS);
    let (least, most, worked) = all.run(6000 * MS);
    assert_within(least as f64, 4.0, 7.0);
    assert_within(most as f64, 5.0, 9.0);
    assert_within(worked, 0.95, 1.0);
    assert_within(all.baseline_ms(), 38.0, 44.0);
}

#[test]
fn c6_time_outside_the_workers_is_no_queue() {
    let mut all = ClosedLoop::new(16, 10 * MS);
    all.run(3000 * MS);
    all.outside = 10 * MS;
    all.run(2000 * MS);
    let (_, _, worked) = all.run(5000 * MS);
    assert_within(worked, 0.97, 1.0);
    assert_within(all.baseline_ms(), 19.0, 21.0);
}
