//! A fleet of nodes and one server, in simulated time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use super::super::{
    grant,
    node::{Call, Fallback, Law, Node, Waiting},
};
use crate::Rate;

const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

/// SplitMix64: the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// To the next arrival at this rate per second.
    fn interval(&mut self, rate: f64) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - uniform).ln() / rate * SECOND as f64) as u64 + 1
    }
}

/// What is simulated.
#[derive(Clone, Copy)]
pub(super) struct Fleet {
    pub(super) nodes: usize,
    pub(super) rate: u64,
    pub(super) burst: u64,
    /// Of the rate, all nodes together.
    pub(super) load: f64,
    /// The share of it that comes to the first node; `None` is the same for all.
    pub(super) first: Option<f64>,
    pub(super) rtt: u64,
    /// How long a request waits.
    pub(super) patience: u64,
    pub(super) seconds: u64,
    pub(super) seed: u64,
}

#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) offered: u64,
    pub(super) admitted: Vec<u64>,
    pub(super) calls: u64,
    pub(super) times: Vec<u64>,
    pub(super) waits: Vec<u64>,
    pub(super) lost: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request(usize),
    AtServer(usize),
    Answer(usize, bool, i64, i64),
    Look(usize),
}

impl Fleet {
    fn rate_of(&self, node: usize) -> f64 {
        let all = self.load * self.rate as f64;
        match self.first {
            None => all / self.nodes as f64,
            Some(share) if node == 0 => all * share,
            Some(share) => all * (1.0 - share) / (self.nodes - 1) as f64,
        }
    }

    pub(super) fn run(&self) -> Outcome {
        let law = Law::new(
            &Rate::per_second(self.rate).burst(self.burst),
            self.nodes as u32,
            Fallback::Local,
        );
        let mut random = Random(self.seed);
        // Each node's clock started at another time.
        let skew: Vec<u64> = (0..self.nodes)
            .map(|_| random.below(3600 * SECOND))
            .collect();
        let mut nodes: Vec<_> = skew.iter().map(|skew| Node::new(*skew)).collect();
        let mut waiting: Vec<VecDeque<u64>> = vec![VecDeque::new(); self.nodes];
        let mut calls: Vec<Option<Call>> = vec![None; self.nodes];
        let mut looks = vec![u64::MAX; self.nodes];
        let mut events = BinaryHeap::new();
        for node in 0..self.nodes {
            let at = random.interval(self.rate_of(node));
            events.push(Reverse((at, Event::Request(node))));
        }
        let (mut tat, end) = (None, self.seconds * SECOND);
        let mut outcome = Outcome {
            offered: 0,
            admitted: vec![0; self.nodes],
            calls: 0,
            times: Vec::new(),
            waits: Vec::new(),
            lost: 0,
        };
        while let Some(Reverse((now, event))) = events.pop() {
            if now >= end {
                break;
            }
            let touched = match event {
                Event::Request(node) => {
                    outcome.offered += 1;
                    events.push(Reverse((
                        now + random.interval(self.rate_of(node)),
                        Event::Request(node),
                    )));
                    let here = now + skew[node];
                    if waiting[node].is_empty() && nodes[node].take(&law, here, 1) {
                        outcome.admitted[node] += 1;
                        outcome.times.push(now);
                        outcome.waits.push(0);
                    } else {
                        if !waiting[node].is_empty() {
                            nodes[node].wanted(here, 1);
                        }
                        let wait = nodes[node].wait(&law, here, waiting[node].len() as u64, 1);
                        if wait.is_none_or(|wait| wait <= self.patience) {
                            nodes[node].waits();
                            waiting[node].push_back(now);
                        }
                    }
                    node
                }
                Event::AtServer(node) => {
                    let ask = calls[node].expect("it calls").ask;
                    let (after, answer) = grant(tat, now / 1000 + SECOND, &ask);
                    tat = after.or(tat);
                    events.push(Reverse((
                        now + self.rtt / 2,
                        Event::Answer(node, answer.granted, answer.first, answer.tat),
                    )));
                    continue;
                }
                Event::Answer(node, granted, first, tat) => {
                    let call = calls[node].take().expect("it calls");
                    let answer = super::super::Answer {
                        granted,
                        first,
                        tat,
                    };
                    let jitter = random.below(5 * MILLI);
                    nodes[node].answered(&law, now + skew[node], call, answer, jitter);
                    node
                }
                Event::Look(node) => {
                    looks[node] = u64::MAX;
                    node
                }
            };
            // As the layer does.
            let (node, queue, here) = (
                &mut nodes[touched],
                &mut waiting[touched],
                now + skew[touched],
            );
            while let Some(&since) = queue.front() {
                let left = self.patience.saturating_sub(now - since);
                if node.take_waiting(&law, here, 1) {
                    outcome.admitted[touched] += 1;
                    outcome.times.push(now);
                    outcome.waits.push(now - since);
                } else if node.wait(&law, here, 0, 1).is_none_or(|wait| wait <= left) && left > 0 {
                    break;
                }
                queue.pop_front();
            }
            let wants = Waiting {
                tokens: queue.len() as u64,
                first: queue.len().min(1) as u64,
            };
            if let Some(call) = node.call(&law, here, wants, self.patience) {
                outcome.calls += 1;
                calls[touched] = Some(call);
                events.push(Reverse((now + self.rtt / 2, Event::AtServer(touched))));
            }
            if let Some(&since) = queue.front() {
                let look = node.look_again(&law, here, 1).saturating_sub(skew[touched]);
                let look = look.min(since + self.patience).max(now + 1);
                if look < looks[touched] {
                    looks[touched] = look;
                    events.push(Reverse((look, Event::Look(touched))));
                }
            }
        }
        outcome.lost = nodes.iter().map(|node| node.lost()).sum();
        outcome
    }
}

impl Outcome {
    pub(super) fn total(&self) -> u64 {
        self.admitted.iter().sum()
    }

    pub(super) fn jain(&self) -> f64 {
        let sum = self.total() as f64;
        let squares: f64 = self.admitted.iter().map(|n| (*n as f64).powi(2)).sum();
        sum * sum / squares / self.admitted.len() as f64
    }

    /// The most that were admitted in any window of this length.
    pub(super) fn most_in(&self, window: u64) -> u64 {
        let mut from = 0;
        let mut most = 0;
        for (i, at) in self.times.iter().enumerate() {
            while self.times[from] + window <= *at {
                from += 1;
            }
            most = most.max(i - from + 1);
        }
        most as u64
    }
}

/// A fleet, and what it has to do in simulated time: how much of what it may admit, with how many calls a request, how evenly.
const SCENARIOS: &[(&str, Fleet, f64, f64, f64)] = &[
    (
        "half of the rate",
        Fleet { load: 0.5, ..TEN },
        1.0,
        0.25,
        0.99,
    ),
    ("0.9", TEN, 1.0, 0.15, 0.99),
    (
        "0.9, most on one",
        Fleet {
            first: Some(0.9),
            ..TEN
        },
        0.995,
        0.15,
        0.0,
    ),
    (
        "0.9, 20 ms away",
        Fleet {
            rtt: 20 * MILLI,
            ..TEN
        },
        0.99,
        0.15,
        0.99,
    ),
    ("twice", Fleet { load: 2.0, ..TEN }, 0.99, 0.05, 0.99),
    (
        "twice, most on one",
        Fleet {
            load: 2.0,
            first: Some(0.9),
            ..TEN
        },
        0.99,
        0.1,
        0.0,
    ),
    (
        "twice, 20 ms away",
        Fleet {
            load: 2.0,
            rtt: 20 * MILLI,
            ..TEN
        },
        0.98,
        0.05,
        0.99,
    ),
    ("ten times", Fleet { load: 10.0, ..TEN }, 0.99, 0.02, 0.98),
    (
        "ten times, most on one",
        Fleet {
            load: 10.0,
            first: Some(0.9),
            ..TEN
        },
        0.99,
        0.02,
        0.0,
    ),
    (
        "a hundred nodes",
        Fleet {
            nodes: 100,
            load: 2.0,
            ..TEN
        },
        0.97,
        0.5,
        0.95,
    ),
    (
        "10 a second",
        Fleet {
            rate: 10,
            burst: 10,
            seconds: 30,
            load: 2.0,
            ..TEN
        },
        0.95,
        1.3,
        0.9,
    ),
    (
        "10 a second, below",
        Fleet {
            rate: 10,
            burst: 10,
            seconds: 30,
            ..TEN
        },
        0.95,
        1.2,
        0.9,
    ),
    (
        "100 000 a second",
        Fleet {
            rate: 100_000,
            burst: 1000,
            load: 2.0,
            seconds: 2,
            ..TEN
        },
        0.99,
        0.01,
        0.99,
    ),
];

const TEN: Fleet = Fleet {
    nodes: 10,
    rate: 1000,
    burst: 100,
    load: 0.9,
    first: None,
    rtt: MILLI,
    patience: 50 * MILLI,
    seconds: 5,
    seed: 1,
};

/// The clocks of the nodes differ by up to an hour.
#[test]
fn the_limit_is_used_up_and_not_exceeded_with_few_calls() {
    for (name, fleet, least, most_calls, jain) in SCENARIOS {
        for seed in 1..=3 {
            let fleet = Fleet { seed, ..*fleet };
            let outcome = fleet.run();
            let allowed = (fleet.rate * fleet.seconds + fleet.burst).min(outcome.offered);
            let admitted = outcome.total() as f64 / allowed as f64;
            let calls = outcome.calls as f64 / outcome.offered as f64;
            let figures = format!(
                "{name}: {admitted:.3} admitted, {calls:.3} calls, Jain {:.3}",
                outcome.jain()
            );
            assert!(
                admitted >= *least && calls <= *most_calls && outcome.jain() >= *jain,
                "{figures}"
            );
            for millis in [50, 100, 1000, 5000] {
                let allowed = fleet.burst + fleet.rate * millis / 1000;
                assert!(
                    outcome.most_in(millis * MILLI) <= allowed + 1,
                    "{figures}, {millis} ms"
                );
            }
            assert!(
                outcome
                    .waits
                    .iter()
                    .all(|wait| *wait <= fleet.patience + MILLI),
                "{figures}"
            );
        }
    }
}
