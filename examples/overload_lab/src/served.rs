//! Who is served when not everybody can be: requests that matter more than others, clients that give up sooner than others,
//! and clients that do not wait at all. What is run, and what is measured of it.

#[cfg(test)]
mod tests;

use std::time::Duration;

use tower::ServiceBuilder;
use tower_backpressure::{ConcurrencyLimitLayer, Priority, WfqConfig, edge, wfq::Head};

use crate::{
    protection::{Clients, Kinds, Protection, Site, edged, limit_for},
    scenario::{Case, Outcome},
    simulation::{Job, MS, SEC, Seen, Server, Spread},
};

/// How much of the load matters how much, the most important first.
pub const LEVELS: [(f64, Priority); 4] = [
    (0.2, Priority::Critical),
    (0.3, Priority::High),
    (0.3, Priority::Normal),
    (0.2, Priority::Background),
];

/// How long clients wait, where that differs, and how many of them.
const PATIENCES: [(f64, Duration); 3] = [
    (0.7, Duration::from_millis(100)),
    (0.2, Duration::from_millis(300)),
    (0.1, Duration::from_secs(2)),
];

/// Of the queue in front of the fixed limit: as long as most clients wait.
pub const QUEUE: Duration = Duration::from_millis(100);

/// Of the edge, unless it is told another: one percent.
pub const FLOOR: f64 = 0.01;

pub const WORKERS: usize = 20;
const WORK: Duration = Duration::from_millis(10);

/// Of the clients that do not wait: these wait for twice the work of a request.
pub const SLOW_WORK: Duration = Duration::from_millis(50);
pub const IMPATIENCE: Duration = Duration::from_millis(100);

/// How long a load is there before it is measured.
const FIRST: Duration = Duration::from_secs(5);

/// Some requests, and what stands in front of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    pub traffic: Traffic,
    pub stack: Stack,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// Requests of all [`LEVELS`].
    Levels(When),
    /// Clients of all [`PATIENCES`], at so much load.
    Patiences(f64),
    /// Three times the load that so many workers can take, from clients that do not wait long.
    Impatient(Spread, usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All the time at so much load.
    Steady(f64),
    /// The first second of 4×, after 0.7×.
    Onset,
    /// 4× for 200 ms every two seconds, and 0.7× in between.
    Spikes,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stack {
    Tower,
    /// A fixed limit, with a queue of [`QUEUE`].
    Queue,
    Edge,
    /// An edge that is told how much requests matter, and has this floor.
    Priorities(f64),
    /// An edge whose clients tell how long they wait.
    Deadlines,
    /// An edge that keeps the order of arrival.
    InOrder,
}

impl Stack {
    fn protect(self, seed: u64, server: Server) -> Site {
        match self {
            Self::Tower => Protection::Tower.protect(seed, server),
            Self::Queue => Site::new(seed, server, || {
                let limit = limit_for(server.k);
                let layer = ConcurrencyLimitLayer::new(limit).max_wait(QUEUE);
                (ServiceBuilder::new().layer(layer), move || Some(limit))
            }),
            Self::Edge | Self::Deadlines => edged(seed, server, edge),
            Self::Priorities(floor) => {
                let of = |head: Head<'_>| {
                    let job = head.extensions.get::<Job>();
                    job.map_or(Priority::Normal, |job| job.priority)
                };
                let floor = WfqConfig::default().priority_floor(floor);
                edged(seed, server, || edge().wfq(floor).priority(of))
            }
            Self::InOrder => edged(seed, server, || edge().newest_first(false)),
        }
    }
}

impl Traffic {
    fn server(self) -> Server {
        match self {
            Self::Levels(_) => Server::new(WORKERS, WORK, Spread::Exponential),
            Self::Patiences(_) => Server::new(WORKERS, WORK, Spread::LogNormal(0.8)),
            Self::Impatient(spread, workers) => Server::new(workers, SLOW_WORK, spread),
        }
    }

    fn load(self) -> f64 {
        match self {
            Self::Levels(When::Steady(load)) | Self::Patiences(load) => load,
            Self::Levels(_) => 4.0,
            Self::Impatient(..) => 3.0,
        }
    }

    fn run(self, server: Server, site: &mut Site, lasting: Duration) -> Seen {
        let mut run = |load: f64, lasting| site.run(server.k, &[load * server.capacity()], lasting);
        let load = self.load();
        match self {
            Self::Levels(When::Onset) => {
                let onsets = (0..lasting.as_secs().div_ceil(4)).map(|_| {
                    run(0.7, FIRST);
                    run(load, SEC)
                });
                Seen::of(onsets)
            }
            Self::Levels(When::Spikes) => {
                run(0.7, 2 * FIRST);
                let spikes = (0..lasting.as_secs() / 2)
                    .flat_map(|_| [run(load, 200 * MS), run(0.7, 1800 * MS)]);
                Seen::of(spikes.collect::<Vec<_>>())
            }
            _ => {
                run(0.7, FIRST);
                run(load, FIRST);
                run(load, lasting)
            }
        }
    }
}

impl Served {
    /// In whose colours it is.
    pub fn protection(&self) -> &'static [Protection; 1] {
        match self.stack {
            Stack::Tower => &[Protection::Tower],
            Stack::Queue => &[Protection::Fixed],
            _ => &[Protection::Edge],
        }
    }

    /// A twelfth as long as a load is measured, but long enough to see something.
    pub fn outcome(self, protection: Protection, seed: u64, seconds: u64) -> Outcome {
        let seed = seed.wrapping_mul(10_000).wrapping_add(5);
        let lasting = Duration::from_secs((seconds / 12).max(5));
        Outcome {
            protection,
            case: Case::Served(self),
            parts: Vec::new(),
            judged: Vec::new(),
            samples: Vec::new(),
            measured: Some(self.measure(seed, lasting)),
        }
    }

    pub fn measure(self, seed: u64, lasting: Duration) -> Measured {
        let server = self.traffic.server();
        let mut site = self.stack.protect(seed, server);
        let impatient = matches!(self.traffic, Traffic::Impatient(..));
        site.clients(Clients {
            patience: if impatient { IMPATIENCE } else { SEC },
            retry: None,
            hang_up: false,
            polls: 0.0,
        });
        let levels = matches!(self.traffic, Traffic::Levels(_));
        let patiences = matches!(self.traffic, Traffic::Patiences(_));
        site.kinds(Kinds {
            priorities: if levels { LEVELS.into() } else { Vec::new() },
            patiences: if patiences {
                PATIENCES.into()
            } else {
                Vec::new()
            },
            tell_patience: self.stack == Stack::Deadlines,
        });
        let seen = self.traffic.run(server, &mut site, lasting);
        Measured::of(&seen, server)
    }
}

/// What was seen. Shares are of what the server can do, and times in seconds, if nothing else is said.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The share of each of the [`LEVELS`] that was not rejected.
    pub accepted: [f64; LEVELS.len()],
    /// How long the most important requests wait for the server, at p99.
    pub wait: f64,
    /// How much of the workers' time they worked.
    pub used: f64,
    /// Answers in time,
    pub good: f64,
    /// and work on those that came too late although they need not have.
    pub wasted: f64,
    /// The workers' time that was not wasted.
    pub useful: f64,
    pub p50: f64,
    pub p99: f64,
    /// The median as a multiple of that of the work itself.
    pub slowed: f64,
    /// How long half of the rejections took, at most.
    pub rejection: f64,
}

impl Measured {
    fn of(seen: &Seen, server: Server) -> Self {
        let level = |(_, priority): (f64, Priority)| &seen.by_priority[priority as usize];
        let workers = server.k as f64 * seen.lasted;
        let median = server.mean.as_secs_f64() * server.spread.median();
        Self {
            accepted: LEVELS.map(level).map(|level| {
                let refused = level.refused as f64 / level.offered.max(1) as f64;
                (1.0 - refused).max(0.0) // some may have come before
            }),
            wait: level(LEVELS[0]).sojourn(0.99),
            used: seen.worked / workers,
            good: seen.good as f64 / seen.lasted / server.capacity(),
            wasted: seen.wasted / workers,
            useful: ((seen.worked - seen.wasted) / workers).max(0.0),
            p50: seen.quantile(0.5),
            p99: seen.quantile(0.99),
            slowed: seen.quantile(0.5) / median,
            rejection: seen.rejection(0.5),
        }
    }
}
