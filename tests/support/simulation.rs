//! A server that is simulated, with real layers in front of it, on tokio's paused clock.
//!
//! Requests come as a Poisson process, whatever becomes of them (open loop). Each has a service time drawn
//! from a distribution, and is worked on by one of `k` servers, first come first served or in slices, or by all of
//! them together. Before it gets to the layers it may be held up elsewhere, or need some of the same servers' time.
//! Clients may be of the kind that try again ([`Retry`]), and then there are more requests than were meant.
//! Time goes from event to event, so hours take seconds, and a run with the same seed is the same run.
#![allow(dead_code, reason = "each test uses a part of it")]

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
use tower_backpressure::{Overloaded, SubmittedAt};

pub const MS: Duration = Duration::from_millis(1);
pub const SEC: Duration = Duration::from_secs(1);

/// One, or as many as `BACKPRESSURE_SEEDS` says.
pub fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("BACKPRESSURE_SEEDS").ok();
    0..seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(1)
}

/// How service times are spread around their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    Constant,
    /// Evenly within 5 % of the mean.
    Even,
    LogNormal(f64),
    Exponential,
    /// Nine in ten take a fifth of the mean, one takes 8.2 times the mean.
    Bimodal,
    /// One in five takes ten times as long as the others, which are exponential, as it is.
    SlowClass,
}

impl Spread {
    /// A service time with a mean of 1.
    fn draw(self, random: &mut Random) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Even => 0.95 + 0.1 * random.unit(),
            Self::LogNormal(sigma) => (sigma * random.normal() - sigma * sigma / 2.0).exp(),
            Self::Exponential => random.exponential(),
            Self::Bimodal if random.unit() < 0.9 => 0.2,
            Self::Bimodal => 8.2,
            Self::SlowClass => {
                let slow = if random.unit() < 0.2 { 10.0 } else { 1.0 };
                slow / 2.8 * random.exponential()
            }
        }
    }

    /// The median, with a mean of 1.
    pub fn median(self) -> f64 {
        match self {
            Self::Constant | Self::Even => 1.0,
            Self::LogNormal(sigma) => (-sigma * sigma / 2.0).exp(),
            Self::Exponential => std::f64::consts::LN_2,
            Self::Bimodal => 0.2,
            Self::SlowClass => f64::NAN,
        }
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// The server. What is changed while the world runs applies to requests that come from then on.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub k: usize,
    pub mean: Duration,
    pub spread: Spread,
    /// This share of requests is answered after 0.2 ms by something in front of the servers.
    pub fast: f64,
    /// Every request fails after 0.2 ms.
    pub broken: bool,
    /// All requests are worked on at once, each by its share of the servers, and each one more than there
    /// are servers slows all of them down by this much.
    pub contended: Option<f64>,
    /// Servers work on a request for so long at a time, and then on the next.
    pub slice: Duration,
    /// So much work of the same servers each request takes before it gets to the layers.
    pub front: Duration,
    /// So long each request is held up before that, by something else.
    pub upstream: Duration,
}

impl Server {
    pub fn new(k: usize, mean: Duration, spread: Spread) -> Self {
        Self {
            k,
            mean,
            spread,
            fast: 0.0,
            broken: false,
            contended: None,
            slice: Duration::MAX,
            front: Duration::ZERO,
            upstream: Duration::ZERO,
        }
    }

    /// Requests a second.
    pub fn capacity(&self) -> f64 {
        self.k as f64 / self.mean.as_secs_f64()
    }

    /// How fast each of `n` requests is worked on, where they share the servers.
    fn pace(&self, n: usize) -> f64 {
        let share = (self.k as f64 / n.max(1) as f64).min(1.0);
        let loss = self.contended.unwrap_or(0.0);
        let slowed = 1.0 - loss * n.saturating_sub(self.k) as f64;
        share * slowed.max(0.01)
    }
}

/// What was seen in a part of a run.
#[derive(Clone, Debug, Default)]
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
    /// Those of each tenant.
    pub good_by_tenant: Vec<usize>,
    pub offered_by_tenant: Vec<usize>,
    /// From arrival to response, of those that were served, sorted.
    latencies: Vec<f64>,
    /// From arrival until the server was called, of those that were served, sorted.
    sojourns: Vec<f64>,
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
            add(&mut all.good_by_tenant, &part.good_by_tenant);
            add(&mut all.offered_by_tenant, &part.offered_by_tenant);
            all.latencies.extend(part.latencies);
            all.sojourns.extend(part.sojourns);
        }
        all.sort();
        all
    }

    fn sort(&mut self) {
        self.latencies.sort_unstable_by(f64::total_cmp);
        self.sojourns.sort_unstable_by(f64::total_cmp);
    }

    /// Served a second.
    pub fn rate(&self) -> f64 {
        self.served as f64 / self.lasted
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

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub tenant: usize,
    pub submitted: SubmittedAt,
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
    /// How much of the load is whose.
    pub tenants: Vec<f64>,
    /// Whether there are layers with timers, which have to be looked after.
    pub timers: bool,
    /// Whether clients try again.
    pub retry: Option<Retry>,
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
            tenants: vec![1.0],
            timers: false,
            retry: None,
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
        let mut seen = std::mem::take(&mut self.seen);
        seen.lasted = lasting.as_secs_f64();
        seen.sort();
        seen
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
        let tenant = self.tenant();
        self.seen.offered += 1;
        count(&mut self.seen.offered_by_tenant, tenant);
        self.send(tenant, 1);
    }

    fn send(&mut self, tenant: usize, attempt: u32) {
        let job = Job {
            tenant,
            submitted: SubmittedAt::now(),
        };
        self.seen.sent += 1;
        self.sent += 1;
        let number = self.sent;
        let since = self.now();
        let client = self.free.pop().unwrap_or_else(|| {
            let client = self.clients.len();
            self.clients.push(Client {
                job,
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
        (this.number, this.attempt) = (number, attempt);
        if self.retry.is_some() {
            let end = since.saturating_add(self.patience.as_nanos() as u64);
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
            Later::Sends(tenant, attempt) => self.send(tenant, attempt),
            Later::LosesPatience(client, number) => {
                let this = &mut self.clients[client];
                if this.number == number && !matches!(this.stage, Stage::Gone) {
                    this.number = 0; // whatever comes now is no longer waited for
                    let (tenant, attempt) = (this.job.tenant, this.attempt);
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
        let (since, tenant) = (this.since, this.job.tenant);
        let (attempt, waited_for) = (this.attempt, this.number != 0);
        let refusal = result.as_ref().err().map(refusal);
        match result {
            Ok(()) => {
                let latency = (self.now() - since) as f64 / 1e9;
                let (called, work) = self.inside.borrow().called[client];
                let patience = self.patience.as_secs_f64();
                let seen = &mut self.seen;
                seen.served += 1;
                seen.latencies.push(latency);
                seen.sojourns.push((called - since) as f64 / 1e9);
                if latency <= patience {
                    seen.good += 1;
                    count(&mut seen.good_by_tenant, tenant);
                } else if work as f64 / 1e9 > patience {
                    seen.hopeless += 1;
                }
            }
            Err(_) if refusal.is_some_and(|refusal| refusal.is_some()) => self.seen.refused += 1,
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

/// The service that the layers are around.
#[derive(Clone)]
pub struct Inner(Rc<RefCell<Inside>>);

impl Service<Job> for Inner {
    type Response = ();
    type Error = BoxError;
    type Future = Response;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Job) -> Response {
        let mut inside = self.0.borrow_mut();
        let client = inside.calling;
        inside.start(client);
        Response(client, Rc::clone(&self.0))
    }
}

pub struct Response(usize, Rc<RefCell<Inside>>);

impl Future for Response {
    type Output = Result<(), BoxError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self
            .1
            .borrow_mut()
            .done
            .take_if(|(client, _)| *client == self.0)
        {
            Some((_, true)) => Poll::Ready(Ok(())),
            Some((_, false)) => Poll::Ready(Err("broken".into())),
            None => Poll::Pending,
        }
    }
}

/// The servers at work.
pub struct Inside {
    now: u64,
    server: Server,
    random: Random,
    /// Who calls.
    calling: usize,
    /// When each client's request was called, and how much work it is.
    called: Vec<(u64, u64)>,
    /// Who has just been answered, and whether with success.
    done: Option<(usize, bool)>,
    /// What will happen when.
    running: BinaryHeap<Reverse<(u64, Work)>>,
    busy: usize,
    queue: VecDeque<Work>,
    shared: Shared,
}

/// What is done for a client, by a server or by nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Work {
    client: usize,
    kind: Kind,
    /// How much is left after what is done now, in nanoseconds.
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Served,
    Fast,
    Failed,
    Front,
    Upstream,
}

enum Happens {
    Nothing,
    /// A request gets to the layers.
    Comes(usize),
    /// It is answered.
    Done(usize),
}

/// Requests that are worked on together. `work` is how much each of them has got since the beginning.
#[derive(Default)]
struct Shared {
    work: f64,
    at: u64,
    /// By the work at which they are done, in nanoseconds.
    running: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Inside {
    fn new(seed: u64, server: Server) -> Self {
        Self {
            now: 0,
            server,
            random: Random(seed),
            calling: 0,
            called: Vec::new(),
            done: None,
            running: BinaryHeap::new(),
            busy: 0,
            queue: VecDeque::new(),
            shared: Shared::default(),
        }
    }

    /// Servers that have come work on what waits.
    fn change_to(&mut self, server: Server) {
        let more = server.k > self.server.k;
        self.server = server;
        if more {
            self.next_in_line(None);
        }
    }

    /// A request comes. Says whether it takes time until it gets to the layers.
    fn hold_up(&mut self, client: usize) -> bool {
        match self.server.upstream {
            Duration::ZERO => self.front(client),
            upstream => {
                self.without_server(client, Kind::Upstream, upstream);
                true
            }
        }
    }

    fn front(&mut self, client: usize) -> bool {
        let left = self.server.front.as_nanos() as u64;
        let kind = Kind::Front;
        if left > 0 {
            self.next_in_line(Some(Work { client, kind, left }));
        }
        left > 0
    }

    fn start(&mut self, client: usize) {
        const FAST: Duration = Duration::from_micros(200);
        self.called
            .resize(self.called.len().max(client + 1), (0, 0));
        self.called[client] = (self.now, 0);
        if self.server.broken {
            return self.without_server(client, Kind::Failed, FAST);
        }
        if self.server.fast > 0.0 && self.random.unit() < self.server.fast {
            return self.without_server(client, Kind::Fast, FAST);
        }
        let mean = self.server.mean.as_nanos() as f64;
        let left = (mean * self.server.spread.draw(&mut self.random)) as u64;
        self.called[client].1 = left;
        if self.server.contended.is_some() {
            self.work_together();
            let done = self.shared.work as u64 + left;
            self.shared.running.push(Reverse((done, client)));
        } else {
            let kind = Kind::Served;
            self.next_in_line(Some(Work { client, kind, left }));
        }
    }

    fn without_server(&mut self, client: usize, kind: Kind, lasting: Duration) {
        let left = 0;
        let at = self.now + lasting.as_nanos() as u64;
        self.running
            .push(Reverse((at, Work { client, kind, left })));
    }

    /// Servers that are free take what waits. They may have become fewer, or more.
    fn next_in_line(&mut self, work: Option<Work>) {
        self.queue.extend(work);
        while self.busy < self.server.k {
            let Some(mut work) = self.queue.pop_front() else {
                return;
            };
            self.busy += 1;
            let slice = self.server.slice.as_nanos().min(work.left.into()) as u64;
            work.left -= slice;
            self.running.push(Reverse((self.now + slice, work)));
        }
    }

    fn work_together(&mut self) {
        let pace = self.server.pace(self.shared.running.len());
        self.shared.work += (self.now - self.shared.at) as f64 * pace;
        self.shared.at = self.now;
    }

    /// When something happens next.
    fn next(&self) -> Option<u64> {
        let alone = self.running.peek().map(|Reverse((at, _))| *at);
        let together = self.shared.running.peek().map(|Reverse((done, _))| {
            let pace = self.server.pace(self.shared.running.len());
            let left = (*done as f64 - self.shared.work).max(0.0) / pace;
            (self.shared.at + left.ceil() as u64).max(self.now)
        });
        alone.into_iter().chain(together).min()
    }

    /// It happens.
    fn happens(&mut self) -> Happens {
        let alone = (self.running.peek()).is_some_and(|Reverse((at, _))| *at <= self.now);
        if !alone {
            self.work_together();
            let Reverse((_, client)) = self.shared.running.pop().expect("somebody is due");
            self.done = Some((client, true));
            return Happens::Done(client);
        }
        let Reverse((_, work)) = self.running.pop().expect("somebody is due");
        let Work { client, kind, left } = work;
        if matches!(kind, Kind::Served | Kind::Front) {
            self.busy -= 1;
            self.next_in_line((left > 0).then_some(work));
            if left > 0 {
                return Happens::Nothing;
            }
        }
        match kind {
            Kind::Front => Happens::Comes(client),
            Kind::Upstream => match self.front(client) {
                true => Happens::Nothing,
                false => Happens::Comes(client),
            },
            Kind::Served | Kind::Fast | Kind::Failed => {
                self.done = Some((client, kind != Kind::Failed));
                Happens::Done(client)
            }
        }
    }
}
