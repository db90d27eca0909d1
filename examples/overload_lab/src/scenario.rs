//! What happens to the server: its traffic and its workers over time, and what is measured.

use std::time::Duration;

use crate::{
    disturbance::{Disturbance, Judged},
    disturbances::{self, PROTECTIONS},
    protection::{Clients, Protection},
    questions::{self, Question},
    served::{Measured, Served},
    settings::{FLOOD, LOAD, Setting},
    simulation::{Retry, Seen, Server, Spread},
};

/// The server works on so many requests at once, and on each for so long on average.
pub const WORKERS: usize = 16;
pub const WORK: Duration = Duration::from_millis(50);

/// What it can do, in requests a second.
pub const CAPACITY: f64 = WORKERS as f64 / 0.05;

/// An answer later than this is no use to a client. Those that try again do so then.
pub const PATIENCE: Duration = Duration::from_secs(1);
pub const RETRY: Retry = Retry {
    attempts: 4,
    pause: Duration::from_millis(100),
};

/// What each of the quiet tenants asks for, and the noisy one, as a share of what the server can do.
pub const QUIET: f64 = 0.08;
pub const NOISY: f64 = 5.0;

/// How long the server stands still before the retry storm.
pub const OUTAGE: f64 = 5.0;

/// How long a setting is tried before it is measured, in seconds.
pub const FIRST: f64 = 10.0;

/// What is looked at at a time, and how much of that makes a judgement.
pub const SLICE: Duration = Duration::from_millis(500);
pub const WINDOW: usize = 10;

/// What counts as doing well, as a share of what is possible.
pub const WELL: f64 = 0.95;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Case {
    /// A steady load, as a multiple of what the server can do.
    Load(Spread, f64),
    /// The server loses three quarters of its workers, gets them back, and as many more.
    Capacity,
    /// One of eight tenants asks for everything, five times.
    Tenants,
    /// The server stands still for a while, and clients try again.
    Retries,
    /// Twice what the server can do, and a value of a setting.
    Setting(Setting, usize),
    /// What a question is answered with.
    Question(Question),
    /// Something happens to the server, with the chances of the seed that comes so much later.
    Disturbance(Disturbance, u64),
    /// Not everybody can be served, and something is known of who should be.
    Served(Served),
}

/// A part of a case: what is asked for, and what there is.
struct Phase {
    name: &'static str,
    seconds: f64,
    workers: usize,
    /// Requests a second of each tenant.
    rates: Vec<f64>,
}

impl Case {
    /// About how many requests it takes, for each second of a load that is measured.
    pub fn requests(self) -> f64 {
        match self {
            Self::Load(_, load) => load,
            Self::Question(_) => 5.0,
            Self::Served(_) => 2.0,
            _ => 1.0,
        }
    }

    /// Those that it is run with.
    pub fn protections(&self) -> &'static [Protection] {
        match self {
            Self::Setting(setting, _) => setting.protection(),
            Self::Disturbance(..) => &PROTECTIONS,
            Self::Question(_) => &questions::PROTECTIONS,
            Self::Served(served) => served.protection(),
            _ => &Protection::ALL,
        }
    }

    /// What is to happen, if a load is measured for so long. Cases that are watched over time take a quarter
    /// as long a phase, but not so short that nothing could be learned in it.
    fn phases(self, seconds: u64) -> Vec<Phase> {
        let unit = match self {
            Self::Load(..) => seconds as f64,
            _ => (seconds as f64 / 4.0).max(20.0),
        };
        let phase = |name, units: f64, workers, loads: &[f64]| Phase {
            name,
            seconds: (units * unit).round(),
            workers,
            rates: loads.iter().map(|load| load * CAPACITY).collect(),
        };
        match self {
            Self::Load(_, load) => vec![
                phase("before", 1.0 / 6.0, WORKERS, &[load]),
                phase("load", 1.0, WORKERS, &[load]),
                phase("after", 1.0 / 6.0, WORKERS, &[0.5]),
            ],
            Self::Capacity => vec![
                phase("16 workers", 0.5, WORKERS, &[1.5]),
                phase("4 workers", 2.0 / 3.0, WORKERS / 4, &[1.5]),
                phase("16 again", 2.0 / 3.0, WORKERS, &[1.5]),
                phase("32 workers", 2.0 / 3.0, 2 * WORKERS, &[1.5]),
            ],
            Self::Tenants => {
                let mut loads = [QUIET; 8];
                let quiet = loads;
                loads[0] = NOISY;
                vec![
                    phase("all quiet", 1.0 / 3.0, WORKERS, &quiet),
                    phase("one noisy", 1.0, WORKERS, &loads),
                    phase("quiet again", 1.0 / 3.0, WORKERS, &quiet),
                ]
            }
            Self::Setting(setting, _) => {
                let loads: &[f64] = match setting {
                    Setting::Weight => &[FLOOD; 2],
                    _ => &[LOAD],
                };
                let mut first = phase("first", 0.0, WORKERS, loads);
                first.seconds = FIRST;
                vec![first, phase("later", 1.0, WORKERS, loads)]
            }
            // They have steps of their own.
            Self::Disturbance(..) | Self::Question(_) | Self::Served(_) => Vec::new(),
            Self::Retries => {
                let mut outage = phase("outage", 0.0, 0, &[0.9]);
                outage.seconds = OUTAGE;
                vec![
                    phase("before", 1.0 / 3.0, WORKERS, &[0.9]),
                    outage,
                    phase("after", 1.5, WORKERS, &[0.9]),
                ]
            }
        }
    }

    /// Runs it, each load and each case with other chances, but the same for all protections.
    pub fn run(self, protection: Protection, seed: u64, seconds: u64) -> Outcome {
        let (spread, number) = match self {
            Self::Load(spread, load) => (spread, (100.0 * load) as u64),
            Self::Capacity => (Spread::Exponential, 1),
            Self::Tenants => (Spread::Exponential, 2),
            Self::Retries => (Spread::Exponential, 3),
            Self::Setting(..) => (Spread::Exponential, 4),
            Self::Question(question) => return question.run(protection, seed, seconds),
            Self::Served(served) => return served.outcome(protection, seed, seconds),
            Self::Disturbance(disturbance, later) => {
                return disturbances::run(disturbance, later, protection, seed);
            }
        };
        let seed = seed.wrapping_mul(10_000).wrapping_add(number);
        let server = Server::new(WORKERS, WORK, spread);
        let mut site = match self {
            Self::Setting(setting, value) => setting.protect(value, seed, server),
            _ => protection.protect(seed, server),
        };
        site.clients(Clients {
            patience: PATIENCE,
            retry: (self == Self::Retries).then_some(RETRY),
            hang_up: false,
            polls: 0.0,
        });
        let mut outcome = Outcome {
            protection,
            case: self,
            parts: Vec::new(),
            judged: Vec::new(),
            samples: Vec::new(),
            measured: None,
        };
        for phase in self.phases(seconds) {
            let slices = (phase.seconds / SLICE.as_secs_f64()).round() as usize;
            let begun = outcome.samples.len();
            let seen: Vec<Seen> = (0..slices)
                .map(|_| {
                    let seen = site.run(phase.workers, &phase.rates, SLICE);
                    let at = (outcome.samples.len() as f64 + 0.5) * SLICE.as_secs_f64();
                    let sample = Sample::of(&seen, at, site.limit());
                    outcome.samples.push(sample);
                    seen
                })
                .collect();
            let part = Part::of(&phase, Seen::of(seen), &outcome.samples[begun..]);
            outcome.parts.push(part);
        }
        outcome
    }
}

/// What became of a case under a protection.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub protection: Protection,
    pub case: Case,
    /// Of each phase.
    pub parts: Vec<Part>,
    /// Of each part of a disturbance that is judged.
    pub judged: Vec<Judged>,
    /// Over time.
    pub samples: Vec<Sample>,
    /// Of who was served.
    pub measured: Option<Measured>,
}

/// What was seen in half a second, around `at`: requests a second, and the limit in the end.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: f64,
    pub offered: f64,
    pub good: f64,
    pub good_by_tenant: Vec<f64>,
    pub limit: Option<usize>,
}

impl Sample {
    fn of(seen: &Seen, at: f64, limit: Option<usize>) -> Self {
        let rate = |count: usize| count as f64 / seen.lasted;
        Self {
            at,
            offered: rate(seen.offered),
            good: rate(seen.good),
            good_by_tenant: seen.good_by_tenant.iter().copied().map(rate).collect(),
            limit,
        }
    }
}

/// What was measured in a phase. Rates are in requests a second, times in seconds.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: &'static str,
    pub lasts: f64,
    pub workers: usize,
    /// What was possible: all that was asked for, or all that the server can do.
    pub possible: f64,
    /// Answers while a client still waits for them.
    pub good: f64,
    /// Latency of what was served, in time or not.
    pub p50: f64,
    pub p99: f64,
    /// The share of what was sent.
    pub refused: f64,
    /// How many times more was sent than was meant, because clients try again.
    pub amplified: f64,
    /// The share that the quiet tenants got of what they asked for.
    pub quiet: Option<f64>,
    /// Jain's index over what tenants got of their fair share.
    pub fairness: Option<f64>,
    /// How long it took until almost all that was possible was done.
    pub settled: Option<f64>,
}

impl Part {
    fn of(phase: &Phase, seen: Seen, samples: &[Sample]) -> Self {
        let asked: f64 = phase.rates.iter().sum();
        let capacity = phase.workers as f64 / WORK.as_secs_f64();
        let (quiet, fairness) = match phase.rates.len() {
            1 => (None, None),
            _ => (
                Some(quiet(&seen)),
                fairness(&seen, &max_min(capacity, &phase.rates)),
            ),
        };
        Self {
            name: phase.name,
            lasts: phase.seconds,
            workers: phase.workers,
            possible: asked.min(capacity),
            good: seen.good as f64 / seen.lasted,
            p50: seen.quantile(0.5),
            p99: seen.quantile(0.99),
            refused: seen.refused as f64 / seen.sent as f64,
            amplified: seen.sent as f64 / seen.offered as f64,
            quiet,
            fairness,
            settled: settled(samples, capacity),
        }
    }

    /// Goodput, as a share of what was possible.
    pub fn goodput(&self) -> f64 {
        self.good / self.possible
    }
}

impl Outcome {
    /// Goodput under a steady load, as a share of what the server can do.
    pub fn of_capacity(&self) -> f64 {
        self.parts[1].good / CAPACITY
    }

    /// When the phases begin.
    pub fn begins(&self, phase: usize) -> f64 {
        self.parts[..phase].iter().map(|part| part.lasts).sum()
    }
}

/// From when on five seconds brought 95 % of what was possible in them.
fn settled(samples: &[Sample], capacity: f64) -> Option<f64> {
    let well = |window: &[Sample]| {
        let sum = |of: fn(&Sample) -> f64| window.iter().map(of).sum::<f64>();
        let possible = sum(|sample| sample.offered).min(capacity * window.len() as f64);
        possible > 0.0 && sum(|sample| sample.good) >= WELL * possible
    };
    let found = samples.windows(WINDOW).position(well)?;
    Some(found as f64 * SLICE.as_secs_f64())
}

fn quiet(seen: &Seen) -> f64 {
    let sum = |counts: &[usize]| counts.iter().skip(1).sum::<usize>() as f64;
    sum(&seen.good_by_tenant) / sum(&seen.offered_by_tenant)
}

fn fairness(seen: &Seen, fair: &[f64]) -> Option<f64> {
    let mut good = seen.good_by_tenant.clone();
    good.resize(fair.len(), 0);
    let got: Vec<f64> = (good.iter().zip(fair))
        .map(|(good, fair)| *good as f64 / seen.lasted / fair)
        .collect();
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|got| got * got).sum();
    // Next to nothing has no shares.
    (seen.good as f64 / seen.lasted > 0.01 * CAPACITY)
        .then(|| sum * sum / (got.len() as f64 * squares))
}

/// Fair shares: nobody gets more than it asks for, and whoever gets less gets as much as anybody.
fn max_min(mut left: f64, asked: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by(|a, b| asked[*a].total_cmp(&asked[*b]));
    let mut fair = vec![0.0; asked.len()];
    for (served, tenant) in order.into_iter().enumerate() {
        fair[tenant] = asked[tenant].min(left / (asked.len() - served) as f64);
        left -= fair[tenant];
    }
    fair
}
