//! At most so many requests in flight on all nodes of a fleet together.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, Fleet, fleet::Memory};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let fleet = Fleet::new(Memory::new(), 10); // in production: Fleet::redis(…)
//! let limit = fleet.concurrency_limit("upstream", 20); // at most 20 calls by all of us
//! let mut service = ServiceBuilder::new()
//!     .layer(limit)
//!     .service(service_fn(|()| async { Ok::<_, BoxError>("served") }));
//! assert_eq!(service.ready().await?.call(()).await?, "served");
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! For an upstream that allows so many calls at once to all of you: licences, connections of a shared database. To protect
//! your own server take a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer) or an
//! [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) on each node: those need no server.
//!
//! # Behavior
//! This node holds a block of the permits, and is a [`ConcurrencyLimitLayer`](crate::concurrency_limit) with that limit. A task
//! renews the block every second, and asks for as many as are in use and a quarter more, or twice as many while somebody waits. When more are
//! wanted than there are, each node gets a fair share of them: nodes with fewer requests what they want, the others equal
//! parts of the rest. A node that has none gets its share within the second in which the others renew theirs.
//!
//! A block lives for three seconds if it is not renewed. A node that dies gives it back by that. A node that was paused for
//! longer (or has lost the server) admits nothing more by it: the time is checked for each request. What was in flight
//! before the pause still is, and others may have been given its place by then. That is the one way to exceed the
//! limit, by at most what the paused node had in flight.
//!
//! When the block has ended without an answer the [`Fallback`] decides: `Local` is the limit divided by the
//! number of nodes, and at least one; with `Closed` requests wait until the server is back.
//!
//! # Errors
//! As a [`ConcurrencyLimitLayer`](crate::concurrency_limit), with the layer's own name.
//!
//! # Cancellation
//! As there: a permit comes back when its request is over, or dropped.
//!
//! # Cloning
//! One layer value is one node, however often [`Layer::layer`] is called and services are cloned.
//!
//! # Cost
//! A decision is that of a [`ConcurrencyLimitLayer`](crate::concurrency_limit), and a look at the clock. While it is used, a node
//! calls the server about once a second; one that is not used does not call.

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::Weak,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    link::{self, Link, NoAnswer},
    store::Script,
};
pub use crate::concurrency_limit::Snapshot;
use crate::{
    BoxError, ConfigError, Overloaded, Permit, ResponseFuture, UntilResponse,
    config::ConcurrencyLimitConfig,
    gate::{
        aside::{hand_back, handover::Handover},
        claim::Claim,
        gate::{Gate, check_limit},
    },
    law::{
        block::{Block, LIFE, RENEW, Renewal},
        lease::node::Fallback,
    },
    sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering::Relaxed, lock},
};

/// A node that needs more permits than it has asks again after this time, rather than once a renewal, …
const ASK_AGAIN: u64 = 100_000_000;

/// … or after this, if it was given more the last time.
const ASK_SOON: u64 = 10_000_000;

/// A permit that is free for newcomers for each so many in use. Where somebody waits it asks for twice as many.
const SPARE: usize = 4;

/// What a limit is made from.
pub(super) struct Shared {
    pub(super) link: Arc<Link>,
    pub(super) key: Box<[u8]>,
    pub(super) timeout: Duration,
    pub(super) fallback: Fallback,
    pub(super) nodes: u32,
    /// What this node is known by.
    pub(super) node: u64,
}

/// Limits how many requests are in flight at once, on all nodes together. See the [module](self) for all of it.
#[derive(Clone, Debug)]
pub struct FleetConcurrencyLimitLayer {
    handle: Handle,
}

impl FleetConcurrencyLimitLayer {
    pub(super) fn new(
        name: &'static str,
        limit: usize,
        shared: Shared,
    ) -> Result<Self, ConfigError> {
        check_limit(limit)?;
        let gate = Gate::new("fleet_concurrency_limit", 1)?;
        gate.bounds.set_name(name);
        gate.resize(0); // until the server has granted some
        let blocked = Arc::new_cyclic(|me| Blocked {
            gate: Arc::new(gate),
            limit: AtomicUsize::new(limit),
            ends: AtomicU64::new(u64::MAX),
            state: Mutex::new(State { tasked: false }),
            nudge: Notify::new(),
            shared,
            me: Weak::clone(me),
        });
        Ok(Self {
            handle: Handle { blocked },
        })
    }

    /// At most so many callers wait on this node; the next one is refused. Default: 1024.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.handle.set_max_waiting(max_waiting);
        self
    }

    /// Nobody waits longer than this, be it for the server or for a permit. Default: no bound.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.handle.set_max_wait(Some(max_wait));
        self
    }

    /// A handle on this limit.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl<S> Layer<S> for FleetConcurrencyLimitLayer {
    type Service = FleetConcurrencyLimit<S>;

    fn layer(&self, inner: S) -> FleetConcurrencyLimit<S> {
        let blocked = Arc::clone(&self.handle.blocked);
        FleetConcurrencyLimit {
            inner,
            claim: Claim::new(Arc::clone(&blocked.gate), ()),
            blocked,
        }
    }
}

/// A service with a number of requests in flight that is limited for a fleet. Made by [`FleetConcurrencyLimitLayer`].
#[derive(Debug)]
pub struct FleetConcurrencyLimit<S> {
    inner: S,
    claim: Claim<Gate>,
    blocked: Arc<Blocked>,
}

impl<S, R> Service<R> for FleetConcurrencyLimit<S>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, UntilResponse>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            let polled = self.claim.poll_ready(&mut self.inner, cx);
            match (self.claim.is_held(), &polled) {
                // A permit that was granted by a block that has ended since is none.
                (true, Poll::Ready(Ok(()))) if self.blocked.ends_now() => self.claim.reset(),
                (true, _) => return polled,
                (false, _) => {
                    self.blocked.ask();
                    return polled;
                }
            }
        }
    }

    /// # Panics
    /// If the service was not polled ready.
    fn call(&mut self, request: R) -> Self::Future {
        match self.claim.take() {
            Ok(()) => {
                let permit = Permit::new(Arc::clone(self.claim.limiter()));
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                ResponseFuture::admitted(future, permit.into(), handover.end())
            }
            Err(overloaded) => {
                hand_back::give(request);
                ResponseFuture::refused(overloaded)
            }
        }
    }
}

impl<S: Clone> Clone for FleetConcurrencyLimit<S> {
    /// The clone shares the limit, but not the permit or the place in the queue.
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            claim: self.claim.fresh(),
            blocked: Arc::clone(&self.blocked),
        }
    }
}

/// Looks at a fleet's concurrency limit on this node and changes it while it is in use; takes permits for code that is no
/// tower service.
#[derive(Clone, Debug)]
pub struct Handle {
    blocked: Arc<Blocked>,
}

impl Handle {
    /// The name of the limit.
    pub fn name(&self) -> &'static str {
        self.blocked.gate.bounds.name()
    }

    /// The state of the limit on this node now. Its limit is the block that this node holds.
    pub fn snapshot(&self) -> Snapshot {
        self.blocked.ends_now();
        self.blocked.gate.snapshot()
    }

    /// How many may be in flight on all nodes together.
    pub fn limit(&self) -> usize {
        self.blocked.limit.load(Relaxed)
    }

    /// How the fleet's server does.
    pub fn fleet(&self) -> link::Snapshot {
        self.blocked.shared.link.snapshot()
    }

    /// Changes everything to what this config says, as the functions below do one at a time.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &ConcurrencyLimitConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.set_max_waiting(config.max_waiting);
        self.set_max_wait(config.max_wait);
        self.set_limit(config.limit)
    }

    /// Changes the limit of the fleet, as this node knows it: from its next renewal on. Other nodes have to be told, too.
    ///
    /// # Errors
    /// If `limit` is 0; the limit stays as it was.
    pub fn set_limit(&self, limit: usize) -> Result<(), ConfigError> {
        check_limit(limit)?;
        self.blocked.limit.store(limit, Relaxed);
        self.blocked.nudge.notify_one();
        Ok(())
    }

    /// Changes how many callers may wait. Those who wait already may stay.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.blocked.gate.bounds.set_max_waiting(max_waiting);
    }

    /// Changes how long callers may wait that come from now on; `None` is without a bound.
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        self.blocked.gate.bounds.set_max_wait(max_wait);
    }

    /// Waits for a permit, in line with the layer's requests and under the same bounds.
    ///
    /// # Errors
    /// As a request would be refused.
    pub async fn acquire(&self) -> Result<Permit, Overloaded> {
        let blocked = &self.blocked;
        let mut claim = Claim::new(Arc::clone(&blocked.gate), ());
        loop {
            poll_fn(|cx| {
                let polled = claim.poll(cx);
                if polled.is_pending() {
                    blocked.ask();
                }
                polled
            })
            .await;
            if claim.is_held() && blocked.ends_now() {
                claim.reset();
                continue;
            }
            return match claim.take() {
                Ok(()) => Ok(Permit::new(Arc::clone(&blocked.gate))),
                Err(overloaded) => Err(*overloaded),
            };
        }
    }

    /// Takes a permit of this node's block if one is free and nobody waits for it.
    ///
    /// # Errors
    /// [`Reason::AtLimit`](crate::Reason::AtLimit) if not.
    pub fn try_acquire(&self) -> Result<Permit, Overloaded> {
        self.blocked.ends_now();
        let taken = Permit::try_take(&self.blocked.gate);
        if taken.is_err() {
            self.blocked.ask();
        }
        taken
    }

    /// A layer on this limit, for those who start from the handle.
    pub fn layer(&self) -> FleetConcurrencyLimitLayer {
        FleetConcurrencyLimitLayer {
            handle: self.clone(),
        }
    }
}

/// This node's part of a limit.
struct Blocked {
    /// Its limit is the block.
    gate: Arc<Gate>,
    /// Of the fleet.
    limit: AtomicUsize,
    /// When the block ends. Changed under the lock, together with the gate's limit.
    ends: AtomicU64,
    state: Mutex<State>,
    nudge: Notify,
    shared: Shared,
    me: Weak<Self>,
}

struct State {
    /// Whether its task runs.
    tasked: bool,
}

impl Blocked {
    fn now(&self) -> u64 {
        self.shared.link.clock.nanos()
    }

    /// Whether the block has ended: then nothing is admitted until there is another.
    fn ends_now(&self) -> bool {
        if self.now() < self.ends.load(Relaxed) {
            return false;
        }
        let _together = lock(&self.state);
        let has_ended = self.now() >= self.ends.load(Relaxed); // there may be another by now
        if has_ended {
            self.gate.resize(0);
        }
        has_ended
    }

    /// There is a block of so many permits until then.
    fn hold(&self, permits: usize, ends: u64) {
        let together = lock(&self.state);
        self.ends.store(ends, Relaxed);
        self.gate.resize(permits);
        drop(together);
        self.gate.settle();
    }

    /// Somebody needs a permit that this node does not have.
    fn ask(&self) {
        let mut state = lock(&self.state);
        if state.tasked {
            self.nudge.notify_one();
            return;
        }
        let (Some(me), Some(runtime)) = (self.me.upgrade(), self.shared.link.runtime()) else {
            return;
        };
        state.tasked = true;
        drop(state);
        runtime.spawn(
            Task {
                blocked: me,
                ended: false,
            }
            .run(),
        );
    }

    fn fall_back(&self) {
        let limit = self.limit.load(Relaxed);
        let permits = match self.shared.fallback {
            Fallback::Local => (limit / self.shared.nodes.max(1) as usize).max(1),
            Fallback::Open => usize::MAX,
            Fallback::Closed => 0,
        };
        self.hold(permits, u64::MAX);
    }

    /// How many permits are in use, and how many it would like.
    fn needs(&self) -> (u64, u64) {
        let (in_use, _) = self.gate.load_now();
        let waiting = self.gate.waiting();
        let needs = in_use + waiting;
        let spare = match waiting {
            0 => needs.div_ceil(SPARE),
            _ => needs,
        };
        let most = self.limit.load(Relaxed);
        (in_use as u64, needs.saturating_add(spare).min(most) as u64)
    }
}

/// The task that renews a block, until nothing is in use for the time of a renewal.
struct Task {
    blocked: Arc<Blocked>,
    ended: bool,
}

impl Task {
    async fn run(mut self) {
        let (mut recent, mut before) = (0, 0);
        let mut revives = Reviving(None);
        loop {
            let blocked = &self.blocked;
            let (in_use, needs) = blocked.needs();
            // What was needed since the last renewal is kept until the next one.
            let want = needs.max(recent);
            recent = needs;
            let sent = blocked.now();
            let mut again = ASK_AGAIN;
            let next = match self.renew(in_use, want).await {
                Ok(Block { held, target, .. }) => {
                    revives.0 = None;
                    let permits = usize::try_from(held.min(target)).unwrap_or(usize::MAX);
                    self.blocked.hold(permits, sent.saturating_add(LIFE));
                    if want == 0 && held == 0 && self.end() {
                        return;
                    }
                    if held > before {
                        again = ASK_SOON;
                    }
                    before = held;
                    // What is above its share is waited for by others.
                    sent.saturating_add(if held > target { ASK_AGAIN } else { RENEW })
                }
                Err(NoAnswer { until }) => {
                    let link = &self.blocked.shared.link;
                    if revives.0.is_none() && link.revives() {
                        revives.0 = Some(Arc::clone(link));
                    }
                    let now = self.blocked.now();
                    let ends = self.blocked.ends.load(Relaxed);
                    if now >= ends || self.blocked.is_new() {
                        self.blocked.fall_back();
                    }
                    if want == 0 && revives.0.is_none() && self.end() {
                        return;
                    }
                    until.min(ends.max(now))
                }
            };
            if Arc::strong_count(&self.blocked) == 1 {
                return; // nobody has the limit any more
            }
            self.wait(next, sent.saturating_add(again)).await;
        }
    }

    async fn renew(&self, in_use: u64, want: u64) -> Result<Block, NoAnswer> {
        let Shared {
            link,
            key,
            timeout,
            node,
            ..
        } = &self.blocked.shared;
        let renewal = Renewal {
            node: *node,
            in_use,
            want,
            limit: self.blocked.limit.load(Relaxed) as u64,
            life: LIFE / 1000,
        };
        let args = renewal.args();
        let read = |numbers: &[i64]| Some((Block::from_numbers(numbers)?, true));
        link.call(*timeout, (Script::Block, key, &args), read).await
    }

    /// Until then; or, where somebody needs more, until a little after the last call.
    async fn wait(&self, until: u64, at_least: u64) {
        let blocked = &self.blocked;
        let left = |until: u64| Duration::from_nanos(until.saturating_sub(blocked.now()));
        let mut timer = pin!(sleep(left(until)));
        let mut nudged = pin!(blocked.nudge.notified());
        let needs_more = poll_fn(|cx| {
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            nudged.as_mut().poll(cx).map(|()| true)
        });
        if needs_more.await {
            sleep(left(at_least.min(until))).await;
        }
    }

    /// Nothing is in use. Whether it ends: nobody has come meanwhile.
    fn end(&mut self) -> bool {
        let mut state = lock(&self.blocked.state);
        self.ended = self.blocked.gate.waiting() == 0;
        state.tasked = !self.ended;
        self.ended
    }
}

impl Blocked {
    /// Whether it has never held a block, or holds none: then there is nothing to wait for.
    fn is_new(&self) -> bool {
        self.ends.load(Relaxed) == u64::MAX
    }
}

impl Drop for Task {
    /// It has ended, or its runtime has.
    fn drop(&mut self) {
        if !self.ended {
            lock(&self.blocked.state).tasked = false;
        }
    }
}

/// Of the task that finds out when the server is back.
struct Reviving(Option<Arc<Link>>);

impl Drop for Reviving {
    fn drop(&mut self) {
        if let Some(link) = &self.0 {
            link.stop_reviving();
        }
    }
}

impl fmt::Debug for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocked")
            .field("gate", &self.gate)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
