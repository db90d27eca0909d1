//! A server that is simulated, with real layers in front of it, on tokio's paused clock.
//!
//! Requests come as a Poisson process, whatever becomes of them (open loop). Each has a service time drawn
//! from a distribution, and is worked on by one of `k` servers, first come first served, or by all of them
//! together. Time goes from event to event, so hours take seconds, and a run with the same seed is the
//! same run.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::runtime::Runtime;
use tower::{BoxError, Layer, Service};
use tower_backpressure::Overloaded;

pub const MS: Duration = Duration::from_millis(1);
pub const SEC: Duration = Duration::from_secs(1);

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
        }
    }

    /// The median, with a mean of 1.
    pub fn median(self) -> f64 {
        match self {
            Self::Constant | Self::Even => 1.0,
            Self::LogNormal(sigma) => (-sigma * sigma / 2.0).exp(),
            Self::Exponential => std::f64::consts::LN_2,
            Self::Bimodal => 0.2,
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

    fn exponential(&mut self) -> f64 {
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
    /// are servers slows all of them down by a hundredth.
    pub contended: bool,
}

impl Server {
    pub fn new(k: usize, mean: Duration, spread: Spread) -> Self {
        Self {
            k,
            mean,
            spread,
            fast: 0.0,
            broken: false,
            contended: false,
        }
    }

    /// Requests a second.
    pub fn capacity(&self) -> f64 {
        self.k as f64 / self.mean.as_secs_f64()
    }

    /// How fast each of `n` requests is worked on, where they share the servers.
    fn pace(&self, n: usize) -> f64 {
        let share = (self.k as f64 / n.max(1) as f64).min(1.0);
        let slowed = 1.0 - 0.01 * n.saturating_sub(self.k) as f64;
        share * slowed.max(0.01)
    }
}

/// What was seen in a part of a run.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub lasted: f64,
    pub offered: usize,
    pub served: usize,
    pub failed: usize,
    pub refused: usize,
    /// From arrival to response, of those that were served, sorted.
    latencies: Vec<f64>,
}

impl Seen {
    /// Several parts of a run, one after the other, as one.
    pub fn of(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.lasted += part.lasted;
            all.offered += part.offered;
            all.served += part.served;
            all.failed += part.failed;
            all.refused += part.refused;
            all.latencies.extend(part.latencies);
        }
        all.latencies.sort_unstable_by(f64::total_cmp);
        all
    }

    /// Served a second.
    pub fn rate(&self) -> f64 {
        self.served as f64 / self.lasted
    }

    /// The latency that this share of those served did not exceed, in seconds.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let latency = self.latencies.get((last as f64 * share).round() as usize);
        latency.copied().unwrap_or(f64::NAN)
    }
}

/// What clients call: layers around the server.
pub trait Stack: Service<(), Response = (), Error = BoxError, Future: 'static> + Clone {}
impl<S> Stack for S where S: Service<(), Response = (), Error = BoxError, Future: 'static> + Clone {}

/// A simulated server behind real layers, and a crowd of clients.
pub struct World<S> {
    pub server: Server,
    service: S,
    inside: Rc<RefCell<Inside>>,
    clients: Vec<Client<S>>,
    free: Vec<usize>,
    woken: Arc<Woken>,
    arrivals: Random,
    next_arrival: Option<u64>,
    seen: Seen,
    // Last, so that what needs a runtime is dropped before it.
    runtime: Runtime,
}

/// Where one request is.
enum Client<S> {
    Gone,
    Waits {
        service: S,
        since: u64,
    },
    InFlight {
        future: Pin<Box<dyn Future<Output = Result<(), BoxError>>>>,
        since: u64,
    },
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
            service,
            inside,
            clients: Vec::new(),
            free: Vec::new(),
            woken: Arc::default(),
            arrivals: Random(!seed),
            next_arrival: None,
            seen: Seen::default(),
            runtime,
        }
    }

    /// Runs for a while at that share of the server's capacity.
    pub fn run(&mut self, load: f64, lasting: Duration) -> Seen {
        let rate = load * self.server.capacity();
        let handle = self.runtime.handle().clone();
        let _entered = handle.enter();
        self.inside.borrow_mut().server = self.server;
        let begun = self.now();
        let end = begun + lasting.as_nanos() as u64;
        let between = |random: &mut Random| (random.exponential() / rate * 1e9) as u64;
        self.next_arrival = (rate > 0.0).then(|| begun + between(&mut self.arrivals));
        loop {
            let completion = self.inside.borrow().next();
            let next = completion.into_iter().chain(self.next_arrival).min();
            let Some(at) = next.filter(|at| *at < end) else {
                break;
            };
            self.advance_to(at);
            if self.next_arrival == Some(at) {
                self.next_arrival = Some(at + between(&mut self.arrivals));
                self.arrive();
            } else {
                let client = self.inside.borrow_mut().complete();
                self.respond(client);
            }
            self.poll_woken();
        }
        self.advance_to(end);
        let mut seen = std::mem::take(&mut self.seen);
        seen.lasted = lasting.as_secs_f64();
        seen.latencies.sort_unstable_by(f64::total_cmp);
        seen
    }

    fn now(&self) -> u64 {
        self.inside.borrow().now
    }

    fn advance_to(&mut self, at: u64) {
        let now = std::mem::replace(&mut self.inside.borrow_mut().now, at);
        let advance = pin!(tokio::time::advance(Duration::from_nanos(at - now)));
        // The clock moves at the first poll; after that it would let other tasks run, and there are none.
        let _ = advance.poll(&mut Context::from_waker(Waker::noop()));
    }

    fn arrive(&mut self) {
        self.seen.offered += 1;
        let client = self.free.pop().unwrap_or_else(|| {
            self.clients.push(Client::Gone);
            self.clients.len() - 1
        });
        let (service, since) = (self.service.clone(), self.now());
        self.poll_ready(client, service, since);
    }

    fn poll_ready(&mut self, client: usize, mut service: S, since: u64) {
        let waker = Waker::from(Arc::new(Wakes(client, Arc::clone(&self.woken))));
        match service.poll_ready(&mut Context::from_waker(&waker)) {
            Poll::Pending => self.clients[client] = Client::Waits { service, since },
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Ready(Ok(())) => {
                self.inside.borrow_mut().calling = client;
                let future = Box::pin(service.call(()));
                self.clients[client] = Client::InFlight { future, since };
                self.respond(client);
            }
        }
    }

    /// Looks whether a client has its response.
    fn respond(&mut self, client: usize) {
        let Client::InFlight { future, since } = &mut self.clients[client] else {
            panic!("a response to nobody")
        };
        let Poll::Ready(result) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            return;
        };
        let since = *since;
        self.clients[client] = Client::Gone;
        self.free.push(client);
        match result {
            Ok(()) => {
                self.seen.served += 1;
                let latency = (self.now() - since) as f64 / 1e9;
                self.seen.latencies.push(latency);
            }
            Err(error) if Overloaded::find(error.as_ref()).is_some() => self.seen.refused += 1,
            Err(_) => self.seen.failed += 1,
        }
    }

    fn poll_woken(&mut self) {
        loop {
            let Some(client) = self.woken.0.lock().unwrap().pop_front() else {
                return;
            };
            if let Client::Waits { .. } = self.clients[client] {
                let waits = std::mem::replace(&mut self.clients[client], Client::Gone);
                if let Client::Waits { service, since } = waits {
                    self.poll_ready(client, service, since);
                }
            }
        }
    }
}

#[derive(Default)]
struct Woken(Mutex<VecDeque<usize>>);

struct Wakes(usize, Arc<Woken>);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.1.0.lock().unwrap().push_back(self.0);
    }
}

/// The service that the layers are around.
#[derive(Clone)]
pub struct Inner(Rc<RefCell<Inside>>);

impl Service<()> for Inner {
    type Response = ();
    type Error = BoxError;
    type Future = Response;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Response {
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
    /// Who has just been answered, and whether with success.
    done: Option<(usize, bool)>,
    /// What will be answered when: by a server of its own, or at once.
    running: BinaryHeap<Reverse<(u64, usize, Kind)>>,
    busy: usize,
    queue: VecDeque<(usize, u64)>,
    shared: Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Served,
    Fast,
    Failed,
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
            done: None,
            running: BinaryHeap::new(),
            busy: 0,
            queue: VecDeque::new(),
            shared: Shared::default(),
        }
    }

    fn start(&mut self, client: usize) {
        const FAST: u64 = 200_000;
        if self.server.broken {
            self.running
                .push(Reverse((self.now + FAST, client, Kind::Failed)));
            return;
        }
        if self.server.fast > 0.0 && self.random.unit() < self.server.fast {
            self.running
                .push(Reverse((self.now + FAST, client, Kind::Fast)));
            return;
        }
        let mean = self.server.mean.as_nanos() as f64;
        let work = (mean * self.server.spread.draw(&mut self.random)) as u64;
        if self.server.contended {
            self.work_together();
            let done = self.shared.work as u64 + work;
            self.shared.running.push(Reverse((done, client)));
        } else if self.busy < self.server.k {
            self.busy += 1;
            self.running
                .push(Reverse((self.now + work, client, Kind::Served)));
        } else {
            self.queue.push_back((client, work));
        }
    }

    fn work_together(&mut self) {
        let pace = self.server.pace(self.shared.running.len());
        self.shared.work += (self.now - self.shared.at) as f64 * pace;
        self.shared.at = self.now;
    }

    /// When the next request is answered.
    fn next(&self) -> Option<u64> {
        let alone = self.running.peek().map(|Reverse((at, ..))| *at);
        let together = self.shared.running.peek().map(|Reverse((done, _))| {
            let pace = self.server.pace(self.shared.running.len());
            let left = (*done as f64 - self.shared.work).max(0.0) / pace;
            (self.shared.at + left.ceil() as u64).max(self.now)
        });
        alone.into_iter().chain(together).min()
    }

    /// Answers it.
    fn complete(&mut self) -> usize {
        let alone = self
            .running
            .peek()
            .is_some_and(|Reverse((at, ..))| *at <= self.now);
        if !alone {
            self.work_together();
            let Reverse((_, client)) = self.shared.running.pop().expect("somebody is due");
            self.done = Some((client, true));
            return client;
        }
        let Reverse((_, client, kind)) = self.running.pop().expect("somebody is due");
        if kind == Kind::Served {
            // Servers may have become fewer, or more.
            self.busy -= 1;
            while self.busy < self.server.k {
                let Some((client, work)) = self.queue.pop_front() else {
                    break;
                };
                self.busy += 1;
                self.running
                    .push(Reverse((self.now + work, client, Kind::Served)));
            }
        }
        self.done = Some((client, kind != Kind::Failed));
        client
    }
}
