//! Scenarios of fair sharing, as a table, and what is fair in each, worked out independently.
//!
//! The unweighted ones are those of Kubernetes' API Priority and Fairness: each client is a number of
//! threads that send a request, wait for it, think, and send the next. Used by the tests of the scheduler
//! and by those of the layer.
#![allow(dead_code, reason = "each test uses a part of it")]

/// In nanoseconds, as everything here.
pub(crate) const SEC: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) threads: usize,
    pub(crate) calls: usize,
    pub(crate) exec: u64,
    pub(crate) think: u64,
    /// How many seats a request takes.
    pub(crate) width: u32,
    pub(crate) weight: u32,
    /// From this thread on, threads begin in the second half.
    pub(crate) late_from: usize,
    /// Whether threads begin one by one, so that requests come at a steady rate.
    pub(crate) steady: bool,
}

const fn client(threads: usize, calls: usize, exec: u64, think: u64) -> Client {
    Client {
        threads,
        calls,
        exec,
        think,
        width: 1,
        weight: 1,
        late_from: usize::MAX,
        steady: false,
    }
}

/// Asks for so many seats, steadily, in requests of 100 ms: a hundred threads for each, each of which
/// thinks for 9.9 seconds.
const fn steady(seats: usize) -> Client {
    let threads = client(100 * seats, 1000, SEC / 10, 10 * SEC - SEC / 10);
    Client {
        steady: true,
        ..threads
    }
}

impl Client {
    const fn wide(self, width: u32) -> Self {
        Self { width, ..self }
    }

    const fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    const fn late_from(self, late_from: usize) -> Self {
        Self { late_from, ..self }
    }

    /// How many seats it would have on average if there were enough.
    fn demand(&self, threads: usize) -> f64 {
        let busy = self.exec as f64 / (self.exec + self.think) as f64;
        threads as f64 * f64::from(self.width) * busy
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) seats: u32,
    pub(crate) clients: &'static [Client],
    /// How long it is watched.
    pub(crate) lasts: u64,
    /// Average seats of each client: in the whole, or in the first half and in the second.
    pub(crate) expect: &'static [&'static [f64]],
    /// By how much it may be off.
    pub(crate) within: f64,
}

/// When thread `thread` of client `client` sends its first request.
pub(crate) fn begins(scenario: &Scenario, client: usize, thread: usize) -> u64 {
    let late = thread >= scenario.clients[client].late_from;
    let half = if late { scenario.lasts / 2 } else { 0 };
    let Client {
        exec,
        think,
        threads,
        steady,
        ..
    } = scenario.clients[client];
    let between = if steady {
        (exec + think) / threads as u64
    } else {
        90
    };
    half + between * thread as u64 + 20 * client as u64
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "no restraint, no competition",
        seats: 10,
        clients: &[client(5, 15, SEC, SEC), client(2, 15, SEC, SEC / 2)],
        lasts: 18 * SEC,
        expect: &[&[2.5, 1.333]],
        within: 0.01,
    },
    Scenario {
        name: "baseline",
        seats: 1,
        clients: &[client(1, 21, SEC, 0)],
        lasts: 20 * SEC,
        expect: &[&[1.0]],
        within: 0.01,
    },
    Scenario {
        name: "uniform flows",
        seats: 4,
        clients: &[client(8, 20, SEC, SEC - 1), client(8, 20, SEC, SEC - 1)],
        lasts: 50 * SEC,
        expect: &[&[2.0, 2.0]],
        within: 0.01,
    },
    Scenario {
        name: "different flows, each asking for more than its share",
        seats: 4,
        clients: &[client(8, 20, SEC, SEC), client(7, 30, SEC, SEC / 2)],
        lasts: 40 * SEC,
        expect: &[&[2.0, 2.0]],
        within: 0.01,
    },
    Scenario {
        name: "different flows, one asking for less than its share",
        seats: 3,
        clients: &[client(4, 20, SEC, SEC - 1), client(2, 20, SEC, SEC - 1)],
        lasts: 20 * SEC,
        expect: &[&[2.0, 1.0]],
        within: 0.01,
    },
    Scenario {
        name: "different widths",
        seats: 6,
        clients: &[
            client(13, 10, SEC, SEC - 1),
            client(7, 10, SEC, SEC - 1).wide(2),
        ],
        lasts: 20 * SEC,
        expect: &[&[3.0, 3.0]],
        within: 0.01,
    },
    Scenario {
        name: "too wide",
        seats: 6,
        clients: &[
            client(15, 21, SEC, SEC - 1).wide(2),
            client(15, 21, SEC, SEC - 1).wide(2),
            client(15, 21, SEC, SEC - 1).wide(2),
            client(15, 21, SEC, SEC - 1).wide(2),
            client(15, 21, SEC, SEC - 1).wide(7),
        ],
        lasts: 400 * SEC,
        expect: &[&[1.2, 1.2, 1.2, 1.2, 1.2]],
        within: 0.05,
    },
    Scenario {
        name: "windup: one asks for less than its share, later for more",
        seats: 3,
        clients: &[client(2, 40, SEC, 0), client(2, 40, SEC, 0).late_from(1)],
        lasts: 40 * SEC,
        expect: &[&[2.0, 1.0], &[1.5, 1.5]],
        within: 0.01,
    },
    Scenario {
        name: "weights 10 and 20",
        seats: 1,
        clients: &[
            client(4, 1000, SEC / 100, 0).weight(10),
            client(4, 1000, SEC / 100, 0).weight(20),
        ],
        lasts: 20 * SEC,
        expect: &[&[0.333, 0.667]],
        within: 0.01,
    },
    Scenario {
        name: "equal weights, twice the cost",
        seats: 2,
        clients: &[
            client(6, 1000, SEC / 100, 0).wide(2),
            client(6, 1000, SEC / 100, 0),
        ],
        lasts: 20 * SEC,
        expect: &[&[1.0, 1.0]],
        within: 0.01,
    },
    Scenario {
        name: "max-min of 14 among those who ask for 3, 7, 9 and 1",
        seats: 14,
        clients: &[steady(3), steady(7), steady(9), steady(1)],
        lasts: 100 * SEC,
        expect: &[&[3.0, 5.0, 5.0, 1.0]],
        within: 0.01,
    },
    Scenario {
        name: "max-min of 42 among those who ask for 1 and 47",
        seats: 42,
        clients: &[steady(1), steady(47)],
        lasts: 100 * SEC,
        expect: &[&[1.0, 41.0]],
        within: 0.01,
    },
    Scenario {
        name: "weights 1, 3 and 6; the heaviest asks for less than its share",
        seats: 10,
        clients: &[
            client(20, 2000, SEC / 10, 0),
            client(20, 2000, SEC / 10, 0).weight(3),
            steady(2).weight(6),
        ],
        lasts: 100 * SEC,
        expect: &[&[2.0, 6.0, 2.0]],
        within: 0.01,
    },
];

/// What is fair in each part: nobody gets more than it asks for, and who gets less than it asks for gets
/// as much for its weight as anybody.
pub(crate) fn fair_shares(scenario: &Scenario, part: usize) -> Vec<f64> {
    let demands: Vec<_> = (scenario.clients.iter())
        .map(|client| {
            let late = client.threads.saturating_sub(client.late_from);
            let threads = client.threads - if part == 0 { late } else { 0 };
            client.demand(threads)
        })
        .collect();
    let weights: Vec<_> = (scenario.clients.iter())
        .map(|client| f64::from(client.weight))
        .collect();
    max_min(f64::from(scenario.seats), &demands, &weights)
}

/// Every client had its fair share in each part, given the average seats that it had.
pub(crate) fn assert_fair(scenario: &Scenario, seats: Vec<Vec<f64>>) {
    assert_eq!(seats.len(), scenario.expect.len());
    for (part, seats) in seats.into_iter().enumerate() {
        for (client, (seats, fair)) in seats.iter().zip(fair_shares(scenario, part)).enumerate() {
            let off = (seats / fair - 1.0).abs();
            let name = scenario.name;
            assert!(
                off <= scenario.within,
                "{name}, part {part}, client {client}: {seats:.4} of {fair:.4} seats"
            );
        }
    }
}

/// Water-filling: the level of all rises together until there is no more water, or they are full.
pub(crate) fn max_min(mut capacity: f64, demands: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut shares = vec![0.0; demands.len()];
    let mut open: Vec<usize> = (0..demands.len()).collect();
    while !open.is_empty() && capacity > 1e-9 {
        let total: f64 = open.iter().map(|&i| weights[i]).sum();
        let level = capacity / total;
        let rise = (open.iter())
            .map(|&i| (demands[i] - shares[i]) / weights[i])
            .fold(level, f64::min);
        for &i in &open {
            shares[i] += rise * weights[i];
            capacity -= rise * weights[i];
        }
        open.retain(|&i| demands[i] - shares[i] > 1e-9);
    }
    shares
}

/// Jain's index: 1 if all have the same, 1/n if one has everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
