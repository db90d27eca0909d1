//! What the sliders change, while the server runs: the load, the workers, and, by their handles, the layers.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use tower_backpressure::edge;

use super::{
    load::{Level, TENANTS, Tenant},
    work::Workers,
};

/// Requests a second of each tenant at the start: 70 % of what the workers can do.
pub const LOADS: [u32; TENANTS.len()] = [120, 100, 60];
/// For which service they pay.
pub const WEIGHTS: [u32; TENANTS.len()] = [4, 2, 1];
pub const WORKERS: usize = 8;
pub const SERVICE_TIME: Duration = Duration::from_millis(20);
pub const TARGET_MS: u32 = 100;
/// At most so many percent of the requests are critical, and as many are background work.
pub const MAX_CRITICAL: u32 = 40;
/// Of tower's limit: as many as there are workers at the start, and a quarter more.
pub const TOWER_LIMIT: usize = WORKERS + WORKERS / 4;

/// What the load goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    Off,
    Tower,
    Edge,
}

impl Protection {
    const ALL: [Self; 3] = [Self::Off, Self::Tower, Self::Edge];

    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tower => "tower",
            Self::Edge => "edge",
        }
    }

    /// The route that has it.
    pub fn path(self) -> &'static str {
        match self {
            Self::Off => "/bare",
            Self::Tower => "/tower",
            Self::Edge => "/work",
        }
    }
}

pub struct Settings {
    pub edge: edge::Handle,
    /// The permits of tower's limit.
    pub tower: Arc<Semaphore>,
    pub workers: Arc<Workers>,
    /// Which of [`Protection::ALL`].
    protection: AtomicU8,
    loads: [AtomicU32; TENANTS.len()],
    /// Of all requests, in percent. At the start all are alike.
    critical: AtomicU32,
    /// What the layer was told last: it does not say.
    target_ms: AtomicU32,
}

impl Settings {
    pub fn new(edge: edge::Handle, workers: Arc<Workers>) -> Self {
        Self {
            edge,
            tower: Arc::new(Semaphore::new(TOWER_LIMIT)),
            workers,
            protection: AtomicU8::new(Protection::Edge as u8),
            loads: LOADS.map(AtomicU32::new),
            critical: AtomicU32::new(0),
            target_ms: AtomicU32::new(TARGET_MS),
        }
    }

    pub fn protection(&self) -> Protection {
        Protection::ALL[usize::from(self.protection.load(Relaxed))]
    }

    /// How many requests a second a tenant sends.
    pub fn load(&self, Tenant(tenant): Tenant) -> u32 {
        self.loads[tenant].load(Relaxed)
    }

    /// How many percent of the requests are critical. As many are background work.
    pub fn critical(&self) -> u32 {
        self.critical.load(Relaxed)
    }

    /// How much a request matters, by a random number from 0 to 1.
    pub fn level(&self, random: f64) -> Level {
        let critical = f64::from(self.critical()) / 100.0;
        match random {
            it if it <= critical => Level(0),
            it if it <= 1.0 - critical => Level(1),
            _ => Level(2),
        }
    }

    pub fn weight(&self, Tenant(tenant): Tenant) -> u32 {
        let known = self.edge.tenant(TENANTS[tenant]);
        known.map_or(WEIGHTS[tenant], |tenant| tenant.weight)
    }

    pub fn target_ms(&self) -> u32 {
        self.target_ms.load(Relaxed)
    }

    /// Changes one thing.
    ///
    /// # Errors
    /// What is wrong with the value; nothing changes.
    pub fn set(&self, name: &str, value: &str) -> Result<(), String> {
        let number = || {
            let number = value.parse::<u32>();
            number.map_err(|_| format!("{name} must be a whole number, not {value:?}"))
        };
        let within = |range: RangeInclusive<u32>| {
            let number = number()?;
            let (least, most) = (range.start(), range.end());
            (range.contains(&number).then_some(number))
                .ok_or_else(|| format!("{name} must be from {least} to {most}"))
        };
        // The layers know themselves what they allow.
        let of_layer = |error: tower_backpressure::ConfigError| format!("{name}={value}: {error}");

        match name.split_once('.').unwrap_or((name, "")) {
            ("protection", "") => {
                let found = Protection::ALL.into_iter().find(|it| it.name() == value);
                let protection = found.ok_or("protection must be off, tower or edge")? as u8;
                if self.protection.swap(protection, Relaxed) != protection {
                    // As if another version of the server were started: nobody inherits the other's queue.
                    self.workers.restart();
                }
            }
            ("workers", "") => self.workers.set_workers(within(1..=64)? as usize),
            ("service_ms", "") => {
                let ms = within(1..=1000)?;
                (self.workers).set_service_time(Duration::from_millis(ms.into()));
            }
            ("limit", "") if value == "auto" => self.edge.unpin(),
            ("limit", "") => self.edge.pin(number()? as usize).map_err(of_layer)?,
            ("target_ms", "") => {
                let ms = number()?;
                let target = Duration::from_millis(ms.into());
                self.edge.set_target(target).map_err(of_layer)?;
                self.target_ms.store(ms, Relaxed);
            }
            ("critical", "") => self.critical.store(within(0..=MAX_CRITICAL)?, Relaxed),
            ("load", tenant) => self.loads[find(tenant)?].store(within(0..=2000)?, Relaxed),
            ("weight", tenant) => {
                let tenant = TENANTS[find(tenant)?];
                (self.edge.set_weight(tenant, number()?)).map_err(of_layer)?;
            }
            _ => {
                return Err(format!(
                    "there is no {name:?} to set: it is protection, workers, service_ms, limit, \
                     target_ms, critical, load.TENANT or weight.TENANT"
                ));
            }
        }
        Ok(())
    }
}

fn find(tenant: &str) -> Result<usize, String> {
    let found = TENANTS.iter().position(|name| *name == tenant);
    found.ok_or_else(|| format!("there is no tenant {tenant:?}: they are {TENANTS:?}"))
}
