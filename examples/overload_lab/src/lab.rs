//! Which cases are run, by as many threads as there are processors, and what came out of each.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use crate::{
    disturbances,
    protection::Protection,
    questions,
    scenario::{Case, Outcome, WELL},
    served_tables,
    settings::Setting,
    simulation::Spread,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Questions,
    Load,
    Capacity,
    Tenants,
    Retries,
    Settings,
    Disturbances,
    Served,
}

impl Scenario {
    pub const ALL: [Self; 8] = [
        Self::Questions,
        Self::Load,
        Self::Capacity,
        Self::Tenants,
        Self::Retries,
        Self::Settings,
        Self::Disturbances,
        Self::Served,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Questions => "questions",
            Self::Load => "load",
            Self::Capacity => "capacity",
            Self::Tenants => "tenants",
            Self::Retries => "retries",
            Self::Settings => "settings",
            Self::Disturbances => "disturbances",
            Self::Served => "served",
        }
    }
}

/// What is to be run. The same plan gives the same results.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub scenarios: Vec<Scenario>,
    pub spreads: Vec<Spread>,
    pub loads: Vec<f64>,
    /// How long each load is measured.
    pub seconds: u64,
    pub seed: u64,
    short: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            scenarios: Scenario::ALL.into(),
            spreads: vec![Spread::Constant, Spread::Exponential, Spread::Bimodal],
            loads: vec![0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0],
            seconds: 240,
            seed: 1,
            short: false,
        }
    }
}

impl Plan {
    pub fn short() -> Self {
        Self {
            spreads: vec![Spread::Exponential],
            loads: vec![0.5, 1.0, 2.0, 5.0, 10.0],
            seconds: 40,
            short: true,
            ..Self::default()
        }
    }

    /// What has to be written to get the same again.
    pub fn command(&self) -> String {
        let usual = if self.short {
            Self::short()
        } else {
            Self::default()
        };
        let mut command = "cargo run --release -p overload_lab --".to_owned();
        if self.short {
            command += " --short";
        }
        if self.scenarios != usual.scenarios {
            let names: Vec<_> = self.scenarios.iter().map(|it| it.name()).collect();
            command += &format!(" --scenario {}", names.join(","));
        }
        if self.seconds != usual.seconds {
            command += &format!(" --seconds {}", self.seconds);
        }
        command + &format!(" --seed {}", self.seed)
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for scenario in &self.scenarios {
            match scenario {
                Scenario::Load => {
                    for &spread in &self.spreads {
                        cases.extend(self.loads.iter().map(|load| Case::Load(spread, *load)));
                    }
                }
                Scenario::Questions => cases.extend(questions::cases()),
                Scenario::Capacity => cases.push(Case::Capacity),
                Scenario::Tenants => cases.push(Case::Tenants),
                Scenario::Retries => cases.push(Case::Retries),
                Scenario::Settings => cases.extend(Setting::cases()),
                Scenario::Disturbances => cases.extend(disturbances::cases()),
                Scenario::Served => cases.extend(served_tables::cases()),
            }
        }
        cases
    }

    /// Runs all of it, and tells how many are done, of how many, whenever one is.
    pub fn run(&self, progress: impl Fn(usize, usize) + Sync) -> Results {
        let trials: Vec<_> = (self.cases().into_iter())
            .flat_map(|case| (case.protections().iter()).map(move |protection| (case, *protection)))
            .collect();
        // The longest first, so that no thread is left with one of them in the end. Each trial is a world of
        // its own: who runs it, and when, makes no difference.
        let mut order: Vec<usize> = (0..trials.len()).collect();
        order.sort_by(|a, b| trials[*b].0.requests().total_cmp(&trials[*a].0.requests()));
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let outcomes = Mutex::new(vec![None; trials.len()]);
        let work = || {
            while let Some(&trial) = order.get(next.fetch_add(1, Relaxed)) {
                let (case, protection) = trials[trial];
                let outcome = case.run(protection, self.seed, self.seconds);
                outcomes.lock().unwrap()[trial] = Some(outcome);
                progress(done.fetch_add(1, Relaxed) + 1, trials.len());
            }
        };
        thread::scope(|scope| {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..processors {
                scope.spawn(work);
            }
        });
        let outcomes = outcomes.into_inner().unwrap();
        Results {
            plan: self.clone(),
            outcomes: outcomes.into_iter().flatten().collect(),
        }
    }
}

/// What came out of a plan.
pub struct Results {
    pub plan: Plan,
    outcomes: Vec<Outcome>,
}

impl Results {
    pub fn has(&self, scenario: Scenario) -> bool {
        self.plan.scenarios.contains(&scenario)
    }

    /// Of a case that was run.
    pub fn of(&self, case: Case, protection: Protection) -> &Outcome {
        (self.outcomes.iter())
            .find(|outcome| outcome.case == case && outcome.protection == protection)
            .expect("it was run")
    }

    /// The service times that latencies are shown for.
    pub fn main_spread(&self) -> Spread {
        let exponential = self.plan.spreads.contains(&Spread::Exponential);
        if exponential {
            Spread::Exponential
        } else {
            self.plan.spreads[0]
        }
    }

    /// Goodput at each load, as a share of what the server can do.
    pub fn goodput(&self, spread: Spread, protection: Protection) -> Vec<(f64, f64)> {
        let goodput = |load: &f64| self.of(Case::Load(spread, *load), protection).of_capacity();
        self.plan
            .loads
            .iter()
            .map(|load| (*load, goodput(load)))
            .collect()
    }

    /// The worst of those from twice to ten times what the server can do.
    pub fn worst(&self, spread: Spread, protection: Protection) -> f64 {
        let overload =
            (self.goodput(spread, protection).into_iter()).filter(|(load, _)| *load >= 2.0);
        overload
            .map(|(_, goodput)| goodput)
            .fold(f64::INFINITY, f64::min)
    }

    /// Which protections keep the server at 95 % whatever the load and the service times are, and which do
    /// not.
    pub fn verdict(&self) -> (Vec<Protection>, Vec<Protection>) {
        Protection::ALL.into_iter().partition(|protection| {
            let spreads = &mut self.plan.spreads.iter();
            spreads.all(|spread| self.worst(*spread, *protection) >= WELL)
        })
    }
}

/// As it is called in text.
pub fn spread_name(spread: Spread) -> &'static str {
    match spread {
        Spread::Constant => "constant",
        Spread::Exponential => "exponential",
        Spread::Bimodal => "bimodal",
        _ => "other",
    }
}
