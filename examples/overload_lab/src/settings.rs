//! What a wrong value does: one setting at a time, everything else as the protections have it.

use std::time::Duration;

use tower::ServiceBuilder;
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CoDelLayer, ConcurrencyLimitLayer, LoadShedLayer, WfqConfig, WfqLayer,
};

use crate::{
    lab::Results,
    protection::{LIMIT, Protection, Site, WAIT, by_age},
    scenario::{Case, FIRST, Outcome, SLICE, Sample, WINDOW, WORKERS},
    simulation::{Job, Server},
    table::{Table, latency, percent, seconds, tenths},
};

/// What is asked for, as a multiple of what the server can do; and by each of two tenants that have weights.
pub const LOAD: f64 = 2.0;
pub const FLOOD: f64 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    Limit,
    MaxWaiting,
    /// In milliseconds.
    Target,
    Initial,
    Max,
    Weight,
}

impl Setting {
    pub const ALL: [Self; 6] = [
        Self::Limit,
        Self::MaxWaiting,
        Self::Target,
        Self::Initial,
        Self::Max,
        Self::Weight,
    ];

    /// All of them, with all values that are tried.
    pub fn cases() -> impl Iterator<Item = Case> {
        let cases = |setting: Self| (setting.values().iter()).map(move |it| (setting, *it));
        (Self::ALL.into_iter().flat_map(cases))
            .map(|(setting, value)| Case::Setting(setting, value))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "fixed limit",
            Self::MaxWaiting => "max_waiting",
            Self::Target => "CoDel target",
            Self::Initial => "Vegas, initial limit",
            Self::Max => "Vegas, max limit",
            Self::Weight => "WFQ weight",
        }
    }

    /// What is in front of the server, from the outside in.
    pub fn stack(self) -> String {
        match self {
            Self::Limit => "LoadShed → ConcurrencyLimit(n)".into(),
            Self::MaxWaiting => format!("ConcurrencyLimit({LIMIT}), n may wait"),
            Self::Target => format!("CoDel → ConcurrencyLimit({LIMIT})"),
            Self::Initial => "LoadShed → Vegas, limits(1, n, 1000)".into(),
            Self::Max => format!("LoadShed → Vegas, limits(1, ≤ {LIMIT}, n)"),
            Self::Weight => {
                let wait = WAIT.as_millis();
                format!("Wfq, max_wait {wait} ms → ConcurrencyLimit({LIMIT})")
            }
        }
    }

    pub fn values(self) -> &'static [usize] {
        match self {
            Self::Limit => &[4, 8, 12, 16, 20, 32, 64, 128, 256, 512],
            Self::MaxWaiting => &[0, 16, 64, 160, 320, 640, 1280],
            Self::Target => &[5, 10, 25, 50, 100, 200, 400],
            Self::Initial => &[1, 20, 200],
            Self::Max => &[4, 8, 16, 32, 1000],
            Self::Weight => &[1, 2, 5, 10],
        }
    }

    pub fn shown(self, value: usize) -> String {
        match self {
            Self::Target => format!("{value} ms"),
            _ => value.to_string(),
        }
    }

    /// The one that has this setting.
    pub fn protection(self) -> &'static [Protection; 1] {
        match self {
            Self::Limit | Self::MaxWaiting => &[Protection::Fixed],
            Self::Target => &[Protection::CoDel],
            Self::Initial | Self::Max => &[Protection::Vegas],
            Self::Weight => &[Protection::Wfq],
        }
    }

    /// Puts it in front of a server, with this value.
    pub fn protect(self, value: usize, seed: u64, server: Server) -> Site {
        let limit = ConcurrencyLimitLayer::new;
        let shed = || ServiceBuilder::new().layer(LoadShedLayer::new());
        let vegas = |initial, max| {
            let vegas = AdaptiveConcurrencyLayer::vegas().limits(1, initial, max);
            let handle = vegas.handle();
            let limit = move || Some(handle.snapshot().permits.limit);
            (shed().layer(vegas), limit)
        };
        match self {
            Self::Limit => Site::new(seed, server, || (shed().layer(limit(value)), || None)),
            Self::MaxWaiting => Site::new(seed, server, || {
                let limit = limit(LIMIT).max_waiting(value);
                (ServiceBuilder::new().layer(limit), || None)
            }),
            Self::Target => Site::new(seed, server, || {
                let config = by_age().target(Duration::from_millis(value as u64));
                let codel = CoDelLayer::new(config).submitted_at(|job: &Job| Some(job.submitted));
                // Nothing but the target is to decide how long the queue is.
                let limit = limit(LIMIT).max_waiting(100_000);
                (ServiceBuilder::new().layer(codel).layer(limit), || None)
            }),
            Self::Initial => Site::new(seed, server, || vegas(value, 1000)),
            Self::Max => Site::new(seed, server, || vegas(value.min(LIMIT), value)),
            Self::Weight => Site::new(seed, server, || {
                let config = WfqConfig::default().max_wait(WAIT);
                let config = config.weight("heavy", value as u32);
                let name = |job: &Job| Some(["heavy", "light"][job.tenant]);
                let wfq = ServiceBuilder::new().layer(WfqLayer::new(config, name));
                (wfq.layer(limit(LIMIT)), || None)
            }),
        }
    }
}

/// What came out of each value of a setting.
pub fn outcomes(results: &Results, setting: Setting) -> Vec<(usize, &Outcome)> {
    let [protection] = *setting.protection();
    let of = |value: &usize| {
        (
            *value,
            results.of(Case::Setting(setting, *value), protection),
        )
    };
    setting.values().iter().map(of).collect()
}

impl Outcome {
    /// The share of the first tenant in all answers in time, once it is measured.
    pub fn share(&self) -> f64 {
        let measured = || self.samples.iter().filter(|it| it.at > FIRST);
        let good: f64 = measured().map(|it| it.good).sum();
        let first = measured().filter_map(|it| it.good_by_tenant.first());
        first.sum::<f64>() / good
    }

    /// From when on the limit was, over five seconds, as many as there are workers, or at most twice that.
    pub fn found(&self) -> Option<f64> {
        let right = |window: &[Sample]| {
            let sum: usize = window.iter().filter_map(|it| it.limit).sum();
            (WORKERS..=2 * WORKERS).contains(&(sum / window.len()))
        };
        let found = self.samples.windows(WINDOW).position(right)?;
        Some(found as f64 * SLICE.as_secs_f64())
    }
}

/// What a tenant of this weight should get, beside one of weight 1.
pub fn fair(weight: usize) -> f64 {
    weight as f64 / (weight + 1) as f64
}

pub fn tables(results: &Results) -> Vec<Table> {
    let table = |setting: Setting| {
        let mut heads = vec!["goodput", "p50", "p99", "refused"];
        match setting {
            Setting::Initial => heads.splice(0..0, ["found", "first 10 s"]).for_each(drop),
            Setting::Weight => heads.splice(0..0, ["its share", "w/(w+1)"]).for_each(drop),
            _ => {}
        }
        let more = match setting {
            Setting::Initial => "; seconds until the limit is found",
            Setting::Weight => "; its share, % of the service",
            _ => "",
        };
        let row = |(value, outcome): (usize, &Outcome)| {
            let [first, later] = &outcome.parts[..] else {
                unreachable!("it has two parts")
            };
            let mut cells = match setting {
                Setting::Initial => vec![seconds(outcome.found()), tenths(first.goodput())],
                Setting::Weight => vec![tenths(outcome.share()), tenths(fair(value))],
                _ => Vec::new(),
            };
            cells.extend([
                tenths(later.goodput()),
                latency(later.p50),
                latency(later.p99),
                percent(later.refused),
            ]);
            (setting.shown(value), cells)
        };
        Table {
            name: setting.name().into(),
            about: format!("{};\ngoodput, % of capacity{more}", setting.stack()),
            lines: "",
            groups: Vec::new(),
            heads: heads.into_iter().map(str::to_owned).collect(),
            rows: outcomes(results, setting).into_iter().map(row).collect(),
        }
    };
    Setting::ALL.map(table).into()
}
