//! Admission by age under overload: stacks of real layers in front of a simulated server, and what has to
//! hold.
//!
//! Unless said otherwise the server has 16 units of 50 ms each (exponential), the target is 100 ms,
//! clients wait for a second, and the load is half of what the server can do before and after the
//! overload.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::time::Duration;

use tower::{Layer, ServiceBuilder};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CoDelConfig, CoDelLayer, ConcurrencyLimitLayer, LoadShedLayer,
    SubmittedAt, WfqConfig, WfqLayer, codel::Handle,
};

use crate::simulation::{Inner, Job, MS, SEC, Seen, Server, Spread, Stack, World};

pub type Admission = CoDelLayer<fn(&Job) -> Option<SubmittedAt>>;
pub type Fair = WfqLayer<fn(&Job) -> Option<String>>;

/// What the layers are made of.
#[derive(Clone, Debug)]
pub struct Setup {
    pub server: Server,
    pub target: Duration,
    pub min: usize,
    pub max: usize,
    pub wfq: WfqConfig,
    /// How much of the load is whose.
    pub tenants: Vec<f64>,
    pub patience: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            server: Server::new(16, 50 * MS, Spread::Exponential),
            target: 100 * MS,
            min: 1,
            max: 2048,
            wfq: WfqConfig::default()
                .max_waiting_per_tenant(1024)
                .max_wait(SEC),
            tenants: vec![1.0],
            patience: SEC,
        }
    }
}

impl Setup {
    pub fn of(server: Server) -> Self {
        Self {
            server,
            ..Self::default()
        }
    }

    /// Layers around the server, of these and others.
    pub fn around<L, S>(&self, seed: u64, layers: impl FnOnce(Fair, Admission) -> L) -> Run<S>
    where
        L: Layer<Inner, Service = S>,
        S: Stack,
    {
        let mut handle = None;
        let mut world = World::new(seed, self.server, || {
            let config = CoDelConfig::default()
                .target(self.target)
                .min_concurrency(self.min)
                .max_concurrency(self.max);
            let codel = CoDelLayer::new(config).submitted_at(submitted as fn(&Job) -> _);
            handle = Some(codel.handle());
            let wfq = WfqLayer::new(self.wfq.clone(), tenant as fn(&Job) -> _);
            layers(wfq, codel)
        });
        world.patience = self.patience;
        world.timers = true;
        world.tenants.clone_from(&self.tenants);
        Run {
            setup: self.clone(),
            world,
            handle: handle.expect("it was just made"),
        }
    }

    pub fn alone(&self, seed: u64) -> Run<impl Stack + use<>> {
        self.around(seed, |_, codel| codel)
    }

    pub fn over_limit(&self, seed: u64, limit: usize) -> Run<impl Stack + use<>> {
        self.around(seed, |wfq, codel| {
            let limit = ConcurrencyLimitLayer::new(limit);
            let stack = ServiceBuilder::new().layer(wfq).layer(codel).layer(limit);
            stack.into_inner()
        })
    }

    /// Without a fair queue: requests wait for the limit, as many as may.
    pub fn over_limit_only(
        &self,
        seed: u64,
        limit: usize,
        waiting: usize,
    ) -> Run<impl Stack + use<>> {
        self.around(seed, |_, codel| {
            let limit = ConcurrencyLimitLayer::new(limit).max_waiting(waiting);
            ServiceBuilder::new().layer(codel).layer(limit).into_inner()
        })
    }

    pub fn over_vegas_only(&self, seed: u64, waiting: usize) -> Run<impl Stack + use<>> {
        self.around(seed, |_, codel| {
            let vegas = AdaptiveConcurrencyLayer::vegas().max_waiting(waiting);
            ServiceBuilder::new().layer(codel).layer(vegas).into_inner()
        })
    }

    /// The whole stack.
    pub fn over_vegas(&self, seed: u64) -> Run<impl Stack + use<>> {
        self.around(seed, |wfq, codel| {
            let stack = ServiceBuilder::new().layer(wfq).layer(codel);
            let vegas = AdaptiveConcurrencyLayer::vegas();
            stack.layer(vegas).layer(LoadShedLayer::new()).into_inner()
        })
    }
}

pub fn submitted(job: &Job) -> Option<SubmittedAt> {
    Some(job.submitted)
}

pub fn tenant(job: &Job) -> Option<String> {
    Some(job.tenant.to_string())
}

pub struct Run<S> {
    pub setup: Setup,
    pub world: World<S>,
    pub handle: Handle,
}

impl<S: Stack> Run<S> {
    pub fn run(&mut self, load: f64, lasting: Duration) -> Seen {
        self.world.run(load, lasting)
    }

    pub fn limit(&self) -> usize {
        self.world.within(|| self.handle.snapshot().limit)
    }

    /// What was of use to clients, as a share of what the server can do beside the work in front.
    pub fn goodput(&self, load: f64, seen: &Seen) -> f64 {
        let Server { k, mean, front, .. } = self.world.server;
        let front = load * self.world.server.capacity() * front.as_secs_f64();
        let capacity = (k as f64 - front) / mean.as_secs_f64();
        seen.good as f64 / seen.lasted / capacity
    }

    /// Half load, overload, half load again: what must hold then.
    pub fn must_hold(self, name: &str, load: f64) {
        self.must_hold_for(60 * SEC, name, load);
    }

    pub fn must_hold_for(mut self, lasting: Duration, name: &str, load: f64) {
        self.run(0.5, 20 * SEC);
        self.run(load, 10 * SEC);
        let over = self.run(load, lasting);
        let narrow = self.limit();
        self.run(0.5, 10 * SEC);
        let after = self.run(0.5, 50 * SEC);
        let wide = self.limit();

        let goodput = self.goodput(load, &over);
        let p95 = over.sojourn(0.95) / self.setup.target.as_secs_f64();
        let failures = failures(&after);
        let case = format!(
            "{name}, {load}x: good {:.1} %, p95 {p95:.2} targets, {failures} failures after, limit {narrow} -> {wide}",
            100.0 * goodput
        );
        println!("{case}");
        assert!(goodput >= 0.95, "{case}");
        assert!(p95 <= 2.6, "{case}");
        assert_eq!(failures, 0, "{case}");
        assert!(wide == self.setup.max || wide >= 4 * narrow, "{case}");
    }
}

/// Refused, failed, or too late, but for those that took too long all by themselves.
pub fn failures(seen: &Seen) -> usize {
    seen.refused + seen.failed + seen.served - seen.good - seen.hopeless
}

/// Decoding, TLS and whatever is in front take 2 ms each of the same processors.
pub fn with_work_in_front() -> Server {
    Server {
        front: 2 * MS,
        ..Setup::default().server
    }
}
