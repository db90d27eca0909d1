//! The load: three tenants, each of which sends requests at its own rate, whatever becomes of them.
//!
//! They call the server's router, in the same process: the same requests, through the same layers, as they
//! would be over a socket.

use std::{
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, http::StatusCode};
use tokio::time::{Instant, sleep_until, timeout_at};
use tower::ServiceExt;
use tower_backpressure::Priority;

use super::{
    now,
    settings::{Protection, Settings},
};

/// Who asks.
pub const TENANTS: [&str; 3] = ["web", "mobile", "batch"];

/// How much requests matter, the most important first.
pub const LEVELS: [Priority; 3] = [Priority::Critical, Priority::Normal, Priority::Background];

/// An answer that takes longer is of no use: the client has gone.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Whose request it is, among its extensions: one of [`TENANTS`].
#[derive(Clone, Copy, Debug)]
pub struct Tenant(pub usize);

/// How much a request matters, among its extensions: one of [`LEVELS`].
#[derive(Clone, Copy, Debug)]
pub struct Level(pub usize);

/// What became of a tenant's requests of one level.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    pub offered: u64,
    /// Answered in time, and how long that took.
    pub served: Vec<Duration>,
    /// Told to come back later.
    pub refused: u64,
    /// Not answered in time, or not at all.
    pub lost: u64,
}

/// What became of everybody's requests, since it was last asked for.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Counts>);

/// By tenant, and by level.
pub type Counts = [[Outcomes; LEVELS.len()]; TENANTS.len()];

impl Tally {
    fn count(&self, (Tenant(tenant), Level(level)): Kind, count: impl FnOnce(&mut Outcomes)) {
        count(&mut self.0.lock().unwrap()[tenant][level]);
    }

    pub fn take(&self) -> Counts {
        mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Whose request it is, and how much it matters.
type Kind = (Tenant, Level);

/// Sends a tenant's requests, for ever. No more of them are under way than come within [`PATIENCE`].
pub async fn send(tenant: Tenant, app: Router, settings: Arc<Settings>, tally: Arc<Tally>) {
    /// How soon a change of the rate is noticed.
    const STEP: f64 = 0.05;

    let mut random = Random::new(1 + tenant.0 as u64);
    let mut due = now();
    loop {
        // They come at random. Such times have no memory: whoever looks early may draw again.
        let gap = random.exponential() / f64::from(settings.load(tenant));
        due += Duration::from_secs_f64(gap.min(STEP));
        sleep_until(due).await;
        // A machine that cannot keep up is not asked to catch up.
        due = due.max(now() - Duration::from_millis(100));
        if gap <= STEP {
            let (app, tally) = (app.clone(), Arc::clone(&tally));
            let protection = settings.protection();
            let kind = (tenant, settings.level(random.unit()));
            tokio::spawn(request(kind, app, protection, tally, due));
        }
    }
}

async fn request(kind: Kind, app: Router, protection: Protection, tally: Arc<Tally>, due: Instant) {
    tally.count(kind, |outcomes| outcomes.offered += 1);
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = protection.path().parse().expect("a path");
    let (tenant, level) = kind;
    request.extensions_mut().insert(tenant);
    request.extensions_mut().insert(level);
    let answer = timeout_at(due + PATIENCE, app.oneshot(request)).await;
    let status = answer.map(|answer| answer.map(|response| response.status()));
    tally.count(kind, |outcomes| match status {
        Ok(Ok(StatusCode::OK)) => outcomes.served.push(now() - due),
        Ok(Ok(StatusCode::SERVICE_UNAVAILABLE)) => outcomes.refused += 1,
        _ => outcomes.lost += 1,
    });
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// With a mean of 1.
    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// More than 0, and at most 1.
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bits = (z ^ (z >> 31)) >> 11;
        (bits + 1) as f64 / (1_u64 << 53) as f64
    }
}
