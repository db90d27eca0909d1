//! What happens to a server besides load: it stands still, gets slower, loses workers, or is asked for five times
//! as much from one moment to the next. The steady state before and after is kind to a limit that learns; this is not.

use std::time::Duration;

use crate::{
    protection::{Clients, Site},
    scenario::{PATIENCE, RETRY, WORK},
    simulation::{Seen, Server, Spread},
};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// No worker does anything for five seconds, at 0.9×.
    Outage,
    /// The same, and clients try again.
    OutageRetries,
    /// The same, and clients hang up after a second.
    OutageHangUp,
    /// Of a service of 10 ms, half used: 200 ms, and a tenth of a second's requests at once.
    Stall,
    /// From 0.7× to 5×.
    Onset,
    /// No worker does anything for 200 ms, every two seconds, at 2×,
    Freezes,
    /// or at 0.7×.
    FreezesWhenQuiet,
    /// Three quarters of the workers are gone,
    FewerWorkers,
    /// and back.
    WorkersBack,
    /// Every request needs a worker for four times as long.
    Slower,
    /// Every request takes 150 ms more, without a worker.
    Outside,
    /// The first thirty seconds every request takes five times as long.
    ColdStart,
    /// 5× from the first moment on.
    StartUnderLoad,
    /// Instead of one request in twenty, every other takes ten times as long as the rest, at 2×.
    Mix,
    /// One request in ten waits for news for thirty seconds, without a worker, at 0.8×.
    LongPolls,
}

/// A part of a run that is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    pub name: &'static str,
    /// Of a load that the server can take, the share that was answered in time, or as soon as could be. Of one that is
    /// too high, the share of the workers' time that was spent on such answers.
    pub goodput: f64,
    pub refused: f64,
}

/// The server and its clients for a while.
pub struct Step {
    pub seconds: f64,
    /// Requests a second.
    rate: f64,
    server: Server,
    /// How often the workers stand still, and for how long.
    freezes: Option<(Duration, Duration)>,
    burst: usize,
    /// What it is called where it is judged.
    pub judged: Option<&'static str>,
}

impl Step {
    /// The share of the time in which the workers do not stand still.
    fn working(&self) -> f64 {
        self.freezes.map_or(1.0, |(every, lasting)| {
            1.0 - lasting.as_secs_f64() / every.as_secs_f64()
        })
    }

    /// The most requests a second that can be served: all that come, or all that the workers can do.
    pub fn possible(&self) -> f64 {
        self.rate.min(self.working() * self.server.capacity())
    }

    /// How many requests have to be in flight to serve them: one for each worker, and those that are outside.
    pub fn needed(&self) -> f64 {
        self.server.k as f64 + self.possible() * self.server.outside.as_secs_f64()
    }
}

const FIRST: &str = "first 5 s";
const REST: &str = "rest";
pub const SLICE: Duration = Duration::from_millis(500);

impl Disturbance {
    pub const ALL: [Self; 15] = [
        Self::Outage,
        Self::OutageRetries,
        Self::OutageHangUp,
        Self::Stall,
        Self::Onset,
        Self::Freezes,
        Self::FreezesWhenQuiet,
        Self::FewerWorkers,
        Self::WorkersBack,
        Self::Slower,
        Self::Outside,
        Self::ColdStart,
        Self::StartUnderLoad,
        Self::Mix,
        Self::LongPolls,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Outage => "outage",
            Self::OutageRetries => "outage, retries",
            Self::OutageHangUp => "outage, hang up",
            Self::Stall => "stall and burst",
            Self::Onset => "0.7× to 5×",
            Self::Freezes => "freezes, 2×",
            Self::FreezesWhenQuiet => "freezes, 0.7×",
            Self::FewerWorkers => "a quarter left",
            Self::WorkersBack => "workers back",
            Self::Slower => "4 times slower",
            Self::Outside => "150 ms outside",
            Self::ColdStart => "cold start",
            Self::StartUnderLoad => "start at 5×",
            Self::Mix => "mix changes",
            Self::LongPolls => "long polls",
        }
    }

    /// What it is to begin with.
    pub fn server(self, k: usize, spread: Spread) -> Server {
        let spread = if self == Self::Mix {
            Spread::Mixed(0.05)
        } else {
            spread
        };
        let work = match self {
            Self::Stall => WORK / 5,
            Self::Mix => WORK.mul_f64(1.45 / 5.5),
            _ => WORK,
        };
        Server::new(k, work, spread)
    }

    fn clients(self) -> Clients {
        Clients {
            patience: PATIENCE,
            retry: (self == Self::OutageRetries).then_some(RETRY),
            hang_up: self == Self::OutageHangUp,
            polls: if self == Self::LongPolls { 0.1 } else { 0.0 },
        }
    }

    /// What is done to it.
    pub fn steps(self, server: Server) -> Vec<Step> {
        let capacity = server.capacity();
        let at = |seconds: f64, load: f64, server: Server| Step {
            seconds,
            rate: load * capacity,
            server,
            freezes: None,
            burst: 0,
            judged: None,
        };
        let judged = |name: &'static str, step: Step| Step {
            judged: Some(name),
            ..step
        };
        let then = |load: f64, server: Server| {
            [
                judged(FIRST, at(5.0, load, server)),
                judged(REST, at(25.0, load, server)),
            ]
        };
        let frozen = |every: f64, lasting: f64, step: Step| Step {
            freezes: Some((
                Duration::from_secs_f64(every),
                Duration::from_secs_f64(lasting),
            )),
            ..step
        };
        let fewer = Server {
            k: server.k / 4,
            ..server
        };
        let times = |times: u32| Server {
            mean: times * server.mean,
            ..server
        };
        let mut steps = Vec::new();
        match self {
            Self::Outage | Self::OutageRetries | Self::OutageHangUp => {
                steps.push(at(20.0, 0.9, server));
                steps.push(frozen(5.0, 5.0, at(5.0, 0.9, server)));
                steps.push(judged(FIRST, at(5.0, 0.9, server)));
            }
            Self::Stall => {
                steps.push(at(20.0, 0.5, server));
                let stalled = frozen(0.2, 0.2, at(0.2, 0.5, server));
                let burst = (0.1 * capacity) as usize;
                steps.push(Step { burst, ..stalled });
                steps.push(judged("2 s", at(2.0, 0.5, server)));
            }
            Self::Onset => {
                steps.push(at(20.0, 0.7, server));
                steps.extend(then(5.0, server));
            }
            Self::Freezes | Self::FreezesWhenQuiet => {
                let load = if self == Self::Freezes { 2.0 } else { 0.7 };
                steps.push(at(10.0, load, server));
                steps.push(judged("20 s", frozen(2.0, 0.2, at(20.0, load, server))));
            }
            Self::FewerWorkers => {
                steps.push(at(20.0, 0.9, server));
                steps.extend(then(0.9, fewer));
            }
            Self::WorkersBack => {
                steps.push(at(20.0, 0.9, fewer));
                steps.extend(then(0.9, server));
            }
            Self::Slower => {
                steps.push(at(20.0, 0.9, server));
                steps.extend(then(0.9, times(4)));
            }
            Self::Outside => {
                let outside = Duration::from_millis(150);
                steps.push(at(20.0, 0.9, server));
                steps.extend(then(0.9, Server { outside, ..server }));
            }
            Self::ColdStart => {
                steps.push(judged("30 s", at(30.0, 0.9, times(5))));
                steps.push(judged(FIRST, at(5.0, 0.9, server)));
                steps.push(judged(REST, at(15.0, 0.9, server)));
            }
            Self::StartUnderLoad => {
                steps.push(judged("2 s", at(2.0, 5.0, server)));
                steps.push(judged("next 5 s", at(5.0, 5.0, server)));
                steps.push(judged(REST, at(10.0, 5.0, server)));
            }
            Self::Mix => {
                // The cheap ones stay what they are.
                let mean = server.mean.mul_f64(5.5 / 1.45);
                let turned = Server {
                    mean,
                    spread: Spread::Mixed(0.5),
                    ..server
                };
                let load = 2.0 * turned.capacity() / capacity;
                steps.push(at(20.0, 2.0, server));
                steps.extend(then(load, turned));
            }
            Self::LongPolls => {
                steps.push(at(60.0, 0.8, server));
                steps.push(judged("60 s", at(60.0, 0.8, server)));
            }
        }
        steps
    }

    /// Runs it in front of that, and looks at it every half second: goodput a second, and the limit.
    pub fn run(
        self,
        server: Server,
        mut site: Site,
        mut look: impl FnMut(f64, Option<usize>),
    ) -> Vec<Judged> {
        site.clients(self.clients());
        let mut judged = Vec::new();
        for step in self.steps(server) {
            site.change(step.server);
            site.burst(step.burst);
            let (every, lasting) = step.freezes.unwrap_or((Duration::MAX, Duration::ZERO));
            let slice = SLICE.min(every);
            let slices = (step.seconds / slice.as_secs_f64()).round() as u32;
            let seen = (0..slices).map(|i| {
                if (i * slice).as_nanos() % every.as_nanos() == 0 {
                    site.freeze(lasting);
                }
                let seen = site.run(step.server.k, &[step.rate], slice);
                look(good(&seen) / slice.as_secs_f64(), site.limit());
                seen
            });
            let seen = Seen::of(seen.collect::<Vec<_>>());
            if let Some(name) = step.judged {
                let working = step.working();
                judged.push(Judged {
                    name,
                    goodput: match step.rate < working * step.server.capacity() {
                        true => good(&seen) / seen.offered as f64,
                        false => {
                            (seen.worked - seen.wasted)
                                / (working * step.seconds * step.server.k as f64)
                        }
                    },
                    refused: seen.refused as f64 / seen.sent as f64,
                });
            }
        }
        judged
    }
}

/// Those that nobody could have answered in time count as well.
fn good(seen: &Seen) -> f64 {
    (seen.good + seen.hopeless) as f64
}
