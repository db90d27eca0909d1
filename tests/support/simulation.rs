//! A server that is simulated, with real layers in front of it, on tokio's paused clock.
//!
//! Requests come as a Poisson process, whatever becomes of them (open loop). Each has a service time drawn
//! from a distribution, and is worked on by one of `k` servers, first come first served or in slices, or by all of
//! them together. Before it gets to the layers it may be held up elsewhere, or need some of the same servers' time.
//! Clients may be of the kind that try again ([`Retry`]), and then there are more requests than were meant.
//! Time goes from event to event, so hours take seconds, and a run with the same seed is the same run.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "simulation/server.rs"]
mod server;

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::runtime::Runtime;
use tower::{BoxError, Layer, Service};
use tower_backpressure::{Deadline, Overloaded, Priority, SubmittedAt};

use self::server::{Happens, Inside};
pub use self::server::{Inner, Random, Server, Spread};

pub const MS: Duration = Duration::from_millis(1);
pub const SEC: Duration = Duration::from_secs(1);

/// One, or as many as `BACKPRESSURE_SEEDS` says.
pub fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("BACKPRESSURE_SEEDS").ok();
    0..seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(1)
}

/// What was seen of the requests of one priority.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Level {
    pub offered: usize,
    pub served: usize,
    pub refused: usize,
    /// As those of all.
    latencies: Vec<f64>,
    sojourns: Vec<f64>,
}

impl Level {
    fn add(&mut self, part: Self) {
        self.offered += part.offered;
        self.served += part.served;
        self.refused += part.refused;
        self.latencies.extend(part.latencies);
        self.sojourns.extend(part.sojourns);
    }

    fn sort(&mut self) {
        self.latencies.sort_unstable_by(f64::total_cmp);
        self.sojourns.sort_unstable_by(f64::total_cmp);
    }

    /// The latency that this share of those served did not exceed, in seconds.
    pub fn quantile(&self, share: f64) -> f64 {
        quantile(&self.latencies, share)
    }

    /// The same for how old requests were when the server was called.
    pub fn sojourn(&self, share: f64) -> f64 {
        quantile(&self.sojourns, share)
    }
}

/// What was seen in a part of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub lasted: f64,
    pub offered: usize,
    /// What was sent for that: more, if clients try again.
    pub sent: usize,
    pub served: usize,
    pub failed: usize,
    pub refused: usize,
    /// Served before their clients lost patience.
    pub good: usize,
    /// Served too late, because they alone took longer than that.
    pub hopeless: usize,
    /// How long workers worked, in seconds,
    pub worked: f64,
    /// and on what was answered too late although it need not have been.
    pub wasted: f64,
    /// Those of each tenant.
    pub good_by_tenant: Vec<usize>,
    pub offered_by_tenant: Vec<usize>,
    /// Those of each [`Priority`], by its number.
    pub by_priority: [Level; 5],
    /// From arrival to response, of those that were served, sorted.
    latencies: Vec<f64>,
    /// From arrival until the server was called, of those that were served, sorted.
    sojourns: Vec<f64>,
    /// From arrival to rejection, sorted.
    rejections: Vec<f64>,
}

fn add(all: &mut Vec<usize>, part: &[usize]) {
    all.resize(all.len().max(part.len()), 0);
    all.iter_mut()
        .zip(part)
        .for_each(|(all, part)| *all += part);
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let value = sorted.get((last as f64 * share).round() as usize);
    value.copied().unwrap_or(f64::NAN)
}

impl Seen {
    /// Several parts of a run, one after the other, as one.
    pub fn of(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.lasted += part.lasted;
            all.offered += part.offered;
            all.sent += part.sent;
            all.served += part.served;
            all.failed += part.failed;
            all.refused += part.refused;
            all.good += part.good;
            all.hopeless += part.hopeless;
            all.worked += part.worked;
            all.wasted += part.wasted;
            add(&mut all.good_by_tenant, &part.good_by_tenant);
            add(&mut all.offered_by_tenant, &part.offered_by_tenant);
            let levels = all.by_priority.iter_mut().zip(part.by_priority);
            levels.for_each(|(all, part)| all.add(part));
            all.latencies.extend(part.latencies);
            all.sojourns.extend(part.sojourns);
            all.rejections.extend(part.rejections);
        }
        all.sort();
        all
    }

    fn sort(&mut self) {
        self.by_priority.iter_mut().for_each(Level::sort);
        self.latencies.sort_unstable_by(f64::total_cmp);
        self.sojourns.sort_unstable_by(f64::total_cmp);
        self.rejections.sort_unstable_by(f64::total_cmp);
    }

    /// Served a second.
    pub fn rate(&self) -> f64 {
        self.served as f64 / self.lasted
    }

    /// The latency that this share of those served did not exceed, in seconds.
    pub fn quantile(&self, share: f64) -> f64 {
        quantile(&self.latencies, share)
    }

    /// The same for how long rejections took.
    pub fn rejection(&self, share: f64) -> f64 {
        quantile(&self.rejections, share)
    }

    /// The same for how old requests were when the server was called.
    pub fn sojourn(&self, share: f64) -> f64 {
        quantile(&self.sojourns, share)
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub tenant: usize,
    /// It waits for news: it takes long, and is no work.
    pub polls: bool,
    pub submitted: SubmittedAt,
    pub priority: Priority,
    /// When its client loses patience, if that is told.
    pub deadline: Option<Deadline>,
}

/// Clients that try again when they are refused, or fail, or have no answer when their patience ends. The
/// server does not notice that they no longer wait, and works on what they gave up.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// How often a request is sent at most.
    pub attempts: u32,
    /// How long clients wait before they try again, if a refusal does not say: the second time twice as long,
    /// and so on. In any case it is up to half as long again, by chance. Without an answer they do not wait.
    pub pause: Duration,
}

/// A refusal by a status code, as a client of an HTTP service sees it.
#[derive(Debug)]
pub struct Unavailable {
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("503")
    }
}

impl std::error::Error for Unavailable {}

/// Whether an error is a refusal, by whichever layer, and when it says to come back.
fn refusal(error: &BoxError) -> Option<Option<Duration>> {
    if let Some(overloaded) = Overloaded::find(error.as_ref()) {
        return Some(Some(overloaded.retry_after()));
    }
    if error.is::<tower::load_shed::error::Overloaded>() {
        return Some(None);
    }
    (error.downcast_ref()).map(|Unavailable { retry_after }| *retry_after)
}

/// What clients call: layers around the server.
pub trait Stack: Service<Job, Response = (), Error = BoxError, Future: 'static> + Clone {}
impl<S> Stack for S where S: Service<Job, Response = (), Error = BoxError, Future: 'static> + Clone {}

/// A simulated server behind real layers, and a crowd of clients.
pub struct World<S> {
    pub server: Server,
    /// A response later than this is no use to a client.
    pub patience: Duration,
    /// How much of the load has which patience instead. Empty if all have the same.
    pub patiences: Vec<(f64, Duration)>,
    /// Whether requests tell their clients' patience.
    pub tells_patience: bool,
    /// How much of the load is whose.
    pub tenants: Vec<f64>,
    /// How much of it matters how much. Empty if nothing is said of it.
    pub priorities: Vec<(f64, Priority)>,
    /// Whether there are layers with timers, which have to be looked after.
    pub timers: bool,
    /// Whether clients try again.
    pub retry: Option<Retry>,
    /// Whether clients hang up when their patience ends. The server notices.
    pub hang_up: bool,
    /// This share of requests are long polls. They are none of those that are offered, good or refused.
    pub polls: f64,
    service: S,
    inside: Rc<RefCell<Inside>>,
    clients: Vec<Client<S>>,
    free: Vec<usize>,
    woken: Arc<Woken>,
    arrivals: Random,
    next_arrival: Option<u64>,
    /// What clients that try again will do, in the order in which they do it.
    later: BinaryHeap<Reverse<(u64, u64, Later)>>,
    pauses: Random,
    sent: u64,
    timers_at: u64,
    seen: Seen,
    // Last, so that what needs a runtime is dropped before it.
    runtime: Runtime,
}

/// What a client will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    /// It has had no answer: the client, and which request it is.
    LosesPatience(usize, u64),
    /// It tries again: a request of this tenant, and how often it will have been sent then.
    Sends(usize, u32),
}

/// One request, and where it is.
struct Client<S> {
    job: Job,
    patience: Duration,
    /// Which of all requests it is, and how often it has been sent now.
    number: u64,
    attempt: u32,
    since: u64,
    waker: Waker,
    stage: Stage<S>,
}

enum Stage<S> {
    Gone,
    /// On its way to the layers.
    Comes,
    Waits(S),
    InFlight(Pin<Box<dyn Future<Output = Result<(), BoxError>>>>),
}

impl<S: Stack> World<S> {
    /// `layers` are put around the server; each client calls a clone of the whole.
    pub fn new<L>(seed: u64, server: Server, layers: impl FnOnce() -> L) -> Self
    where
        L: Layer<Inner, Service = S>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let entered = runtime.enter();
        let inside = Rc::new(RefCell::new(Inside::new(seed, server)));
        let service = layers().layer(Inner(Rc::clone(&inside)));
        drop(entered);
        Self {
            server,
            patience: Duration::MAX,
            patiences: Vec::new(),
            tells_patience: false,
            tenants: vec![1.0],
            priorities: Vec::new(),
            timers: false,
            retry: None,
            hang_up: false,
            polls: 0.0,
            service,
            inside,
            clients: Vec::new(),
            free: Vec::new(),
            woken: Arc::default(),
            arrivals: Random(!seed),
            next_arrival: None,
            later: BinaryHeap::new(),
            pauses: Random(seed.rotate_left(32)),
            sent: 0,
            timers_at: 0,
            seen: Seen::default(),
            runtime,
        }
    }

    /// Runs for a while at that share of the server's capacity.
    pub fn run(&mut self, load: f64, lasting: Duration) -> Seen {
        self.run_at(load * self.server.capacity(), lasting)
    }

    /// Runs for a while with so many requests a second.
    pub fn run_at(&mut self, rate: f64, lasting: Duration) -> Seen {
        let handle = self.runtime.handle().clone();
        let _entered = handle.enter();
        self.inside.borrow_mut().change_to(self.server);
        self.inside.borrow_mut().notices = self.hang_up;
        let worked = self.inside.borrow_mut().work();
        let begun = self.now();
        let end = begun + lasting.as_nanos() as u64;
        let between = |random: &mut Random| (random.exponential() / rate * 1e9) as u64;
        self.next_arrival = (rate > 0.0).then(|| begun + between(&mut self.arrivals));
        loop {
            let event = self.inside.borrow().next();
            let later = self.later.peek().map(|Reverse((at, ..))| *at);
            let next = (event.into_iter().chain(self.next_arrival).chain(later)).min();
            let Some(at) = next.filter(|at| *at < end) else {
                break;
            };
            self.advance_to(at);
            if self.next_arrival == Some(at) {
                self.next_arrival = Some(at + between(&mut self.arrivals));
                self.arrive();
            } else if event != Some(at) {
                self.act();
            } else {
                let happens = self.inside.borrow_mut().happens();
                match happens {
                    Happens::Nothing => {}
                    Happens::Comes(client) => self.poll_ready(client, self.service.clone()),
                    Happens::Done(client) => self.respond(client),
                }
            }
            self.poll_woken();
        }
        self.advance_to(end);
        self.seen.worked = (self.inside.borrow_mut().work() - worked).as_secs_f64();
        let mut seen = std::mem::take(&mut self.seen);
        seen.lasted = lasting.as_secs_f64();
        seen.sort();
        seen
    }

    /// All workers stand still for a while.
    pub fn freeze(&mut self, lasting: Duration) {
        self.inside.borrow_mut().freeze(lasting);
    }

    /// So many requests come at once.
    pub fn burst(&mut self, requests: usize) {
        let handle = self.runtime.handle().clone();
        let _entered = handle.enter();
        (0..requests).for_each(|_| self.arrive());
    }

    /// Does something on the simulated clock.
    pub fn within<T>(&self, what: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        what()
    }

    fn now(&self) -> u64 {
        self.inside.borrow().now
    }

    fn advance_to(&mut self, at: u64) {
        let now = std::mem::replace(&mut self.inside.borrow_mut().now, at);
        let advance = pin!(tokio::time::advance(Duration::from_nanos(at - now)));
        // The clock moves at the first poll; after that it would let other tasks run, and there are none.
        let _ = advance.poll(&mut Context::from_waker(Waker::noop()));
        // tokio's timers are good to a millisecond.
        if self.timers && at - self.timers_at >= 1_000_000 {
            self.timers_at = at;
            self.runtime.block_on(tokio::task::yield_now());
            self.poll_woken();
        }
    }

    fn arrive(&mut self) {
        if self.polls > 0.0 && self.arrivals.unit() < self.polls {
            return self.send(0, 1, true);
        }
        let tenant = self.tenant();
        self.seen.offered += 1;
        count(&mut self.seen.offered_by_tenant, tenant);
        self.send(tenant, 1, false);
    }

    fn send(&mut self, tenant: usize, attempt: u32, polls: bool) {
        let patience = match self.patiences.is_empty() {
            true => self.patience,
            false => drawn(&self.patiences, &mut self.arrivals),
        };
        let priority = match self.priorities.is_empty() {
            true => Priority::default(),
            false => drawn(&self.priorities, &mut self.arrivals),
        };
        let job = Job {
            tenant,
            polls,
            submitted: SubmittedAt::now(),
            priority,
            deadline: self.tells_patience.then(|| Deadline::within(patience)),
        };
        if attempt == 1 && !polls {
            self.seen.by_priority[priority as usize].offered += 1;
        }
        self.seen.sent += usize::from(!polls);
        self.sent += 1;
        let number = self.sent;
        let since = self.now();
        let client = self.free.pop().unwrap_or_else(|| {
            let client = self.clients.len();
            self.clients.push(Client {
                job,
                patience,
                number,
                attempt,
                since,
                waker: Waker::from(Arc::new(Wakes(client, Arc::clone(&self.woken)))),
                stage: Stage::Gone,
            });
            client
        });
        let this = &mut self.clients[client];
        (this.job, this.since, this.stage) = (job, since, Stage::Comes);
        (this.number, this.attempt, this.patience) = (number, attempt, patience);
        if !polls && (self.retry.is_some() || self.hang_up) {
            let end = since.saturating_add(patience.as_nanos() as u64);
            let loses_patience = Later::LosesPatience(client, number);
            self.later.push(Reverse((end, number, loses_patience)));
        }
        if !self.inside.borrow_mut().hold_up(client) {
            self.poll_ready(client, self.service.clone());
        }
    }

    /// The client whose time it is does what it does.
    fn act(&mut self) {
        let Reverse((_, _, act)) = self.later.pop().expect("somebody is due");
        match act {
            Later::Sends(tenant, attempt) => self.send(tenant, attempt, false),
            Later::LosesPatience(client, number) => {
                let this = &mut self.clients[client];
                if this.number == number && !matches!(this.stage, Stage::Gone) {
                    this.number = 0; // whatever comes now is no longer waited for
                    let (tenant, attempt) = (this.job.tenant, this.attempt);
                    if self.hang_up && !matches!(this.stage, Stage::Comes) {
                        this.stage = Stage::Gone;
                        self.free.push(client);
                    }
                    self.try_again(tenant, attempt, Duration::ZERO);
                }
            }
        }
    }

    fn try_again(&mut self, tenant: usize, attempt: u32, pause: Duration) {
        if self.retry.is_some_and(|retry| attempt < retry.attempts) {
            let pause = pause.as_nanos() as f64 * (1.0 + 0.5 * self.pauses.unit());
            let at = self.now() + pause as u64;
            let sends = Later::Sends(tenant, attempt + 1);
            self.later.push(Reverse((at, self.sent, sends)));
        }
    }

    fn tenant(&mut self) -> usize {
        if self.tenants.len() == 1 {
            return 0;
        }
        let mut left = self.arrivals.unit() * self.tenants.iter().sum::<f64>();
        let found = self.tenants.iter().position(|share| {
            left -= share;
            left <= 0.0
        });
        found.unwrap_or(0)
    }

    fn poll_ready(&mut self, client: usize, mut service: S) {
        let this = &mut self.clients[client];
        match service.poll_ready(&mut Context::from_waker(&this.waker)) {
            Poll::Pending => this.stage = Stage::Waits(service),
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Ready(Ok(())) => {
                self.inside.borrow_mut().calling = client;
                this.stage = Stage::InFlight(Box::pin(service.call(this.job)));
                self.respond(client);
            }
        }
    }

    /// Looks whether a client has its response.
    fn respond(&mut self, client: usize) {
        // A layer may have kept it waiting, and call the server now.
        self.inside.borrow_mut().calling = client;
        let this = &mut self.clients[client];
        let Stage::InFlight(future) = &mut this.stage else {
            panic!("a response to nobody")
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(&this.waker));
        let Poll::Ready(result) = polled else {
            return;
        };
        this.stage = Stage::Gone;
        self.free.push(client);
        let (since, tenant, priority) = (this.since, this.job.tenant, this.job.priority);
        let patience = this.patience.as_secs_f64();
        let (attempt, waited_for) = (this.attempt, this.number != 0);
        if this.job.polls {
            return;
        }
        let refusal = result.as_ref().err().map(refusal);
        match result {
            Ok(()) => {
                let latency = (self.now() - since) as f64 / 1e9;
                let (called, work) = self.inside.borrow().called[client];
                let seen = &mut self.seen;
                seen.served += 1;
                let sojourn = (called - since) as f64 / 1e9;
                let level = &mut seen.by_priority[priority as usize];
                level.served += 1;
                level.latencies.push(latency);
                level.sojourns.push(sojourn);
                seen.latencies.push(latency);
                seen.sojourns.push(sojourn);
                if latency <= patience {
                    seen.good += 1;
                    count(&mut seen.good_by_tenant, tenant);
                } else if work as f64 / 1e9 > patience {
                    seen.hopeless += 1;
                } else {
                    seen.wasted += work as f64 / 1e9;
                }
            }
            Err(_) if refusal.is_some_and(|refusal| refusal.is_some()) => {
                self.seen.refused += 1;
                self.seen.by_priority[priority as usize].refused += 1;
                let took = (self.now() - since) as f64 / 1e9;
                self.seen.rejections.push(took);
            }
            Err(_) => self.seen.failed += 1,
        }
        if let (Some(refusal), Some(retry), true) = (refusal, self.retry, waited_for) {
            let pause = retry.pause * 2_u32.pow(attempt.min(16) - 1);
            self.try_again(tenant, attempt, refusal.flatten().unwrap_or(pause));
        }
    }

    fn poll_woken(&mut self) {
        loop {
            let Some(client) = self.woken.0.lock().unwrap().pop_front() else {
                return;
            };
            match &self.clients[client].stage {
                Stage::Gone | Stage::Comes => {}
                Stage::InFlight(_) => self.respond(client),
                Stage::Waits(_) => {
                    let stage = &mut self.clients[client].stage;
                    if let Stage::Waits(service) = std::mem::replace(stage, Stage::Gone) {
                        self.poll_ready(client, service);
                    }
                }
            }
        }
    }
}

/// One of these, by their shares.
fn drawn<T: Copy>(shares: &[(f64, T)], random: &mut Random) -> T {
    let all: f64 = shares.iter().map(|(share, _)| share).sum();
    let mut left = random.unit() * all;
    let found = shares.iter().find(|(share, _)| {
        left -= share;
        left <= 0.0
    });
    found.unwrap_or(&shares[0]).1
}

fn count(counts: &mut Vec<usize>, tenant: usize) {
    counts.resize(counts.len().max(tenant + 1), 0);
    counts[tenant] += 1;
}

#[derive(Default)]
struct Woken(Mutex<VecDeque<usize>>);

struct Wakes(usize, Arc<Woken>);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.1.0.lock().unwrap().push_back(self.0);
    }
}
