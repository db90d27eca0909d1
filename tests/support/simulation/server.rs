//! The simulated server: workers, how long requests take, and what can go wrong with them.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use tower::{BoxError, Service};

use super::Job;

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
    /// This share takes ten times as long as the others; both are exponential.
    Mixed(f64),
    /// Most take less than the mean, and the variance has no bound (α = 1.5).
    Pareto,
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
            Self::Mixed(share) => {
                let slow = if random.unit() < share { 10.0 } else { 1.0 };
                slow / (1.0 + 9.0 * share) * random.exponential()
            }
            Self::Pareto => random.unit().powf(-2.0 / 3.0) / 3.0,
        }
    }

    /// The median, with a mean of 1.
    pub fn median(self) -> f64 {
        match self {
            Self::Constant | Self::Even => 1.0,
            Self::LogNormal(sigma) => (-sigma * sigma / 2.0).exp(),
            Self::Exponential => std::f64::consts::LN_2,
            Self::Bimodal => 0.2,
            Self::Mixed(_) => f64::NAN,
            Self::Pareto => 2_f64.powf(2.0 / 3.0) / 3.0,
        }
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub(super) u64);

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

/// How long a request is open that waits for news, and needs no worker.
const LONG_POLL: Duration = Duration::from_secs(30);

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
    /// So long it takes after its work, when it no longer has a worker.
    pub outside: Duration,
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
            outside: Duration::ZERO,
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

/// The service that the layers are around.
#[derive(Clone)]
pub struct Inner(pub(super) Rc<RefCell<Inside>>);

impl Service<Job> for Inner {
    type Response = ();
    type Error = BoxError;
    type Future = Response;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: Job) -> Response {
        let mut inside = self.0.borrow_mut();
        let client = inside.calling;
        inside.start(client, job);
        Response {
            client,
            answered: false,
            inside: Rc::clone(&self.0),
        }
    }
}

pub struct Response {
    client: usize,
    answered: bool,
    inside: Rc<RefCell<Inside>>,
}

impl Future for Response {
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let client = self.client;
        let done = self.inside.borrow_mut().done.take_if(|it| it.0 == client);
        let Some((_, served)) = done else {
            return Poll::Pending;
        };
        self.answered = true;
        Poll::Ready(match served {
            true => Ok(()),
            false => Err("broken".into()),
        })
    }
}

impl Drop for Response {
    /// Nobody works on what nobody waits for, if it is noticed.
    fn drop(&mut self) {
        let mut inside = self.inside.borrow_mut();
        if !self.answered && inside.notices {
            inside.abandon(self.client);
        }
    }
}

/// The servers at work.
pub struct Inside {
    pub(super) now: u64,
    server: Server,
    random: Random,
    /// Who calls.
    pub(super) calling: usize,
    /// When each client's request was called, and how much work it is.
    pub(super) called: Vec<(u64, u64)>,
    /// Who has just been answered, and whether with success.
    done: Option<(usize, bool)>,
    /// What will happen when.
    running: BinaryHeap<Reverse<(u64, Work)>>,
    /// Whether it notices that a client hangs up.
    pub(super) notices: bool,
    /// Until then no worker does anything.
    frozen: u64,
    busy: usize,
    /// How long workers have worked, in nanoseconds, and until when that is known.
    worked: u64,
    worked_at: u64,
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
    /// Its work is done, and it is not answered yet.
    Outside,
    Fast,
    Failed,
    Front,
    Upstream,
}

pub(super) enum Happens {
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
    pub(super) fn new(seed: u64, server: Server) -> Self {
        Self {
            now: 0,
            server,
            random: Random(seed),
            calling: 0,
            called: Vec::new(),
            done: None,
            running: BinaryHeap::new(),
            notices: false,
            frozen: 0,
            busy: 0,
            worked: 0,
            worked_at: 0,
            queue: VecDeque::new(),
            shared: Shared::default(),
        }
    }

    /// Servers that have come work on what waits.
    pub(super) fn change_to(&mut self, server: Server) {
        let more = server.k > self.server.k;
        self.server = server;
        if more {
            self.next_in_line(None);
        }
    }

    /// A request comes. Says whether it takes time until it gets to the layers.
    pub(super) fn hold_up(&mut self, client: usize) -> bool {
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

    /// All workers stand still for a while, in whatever they do.
    pub(super) fn freeze(&mut self, lasting: Duration) {
        let lasting = lasting.as_nanos() as u64;
        self.work();
        self.frozen = self.now + lasting;
        self.worked_at = self.frozen;
        let running = std::mem::take(&mut self.running).into_iter();
        let put_off = |Reverse((at, work)): Reverse<(u64, Work)>| match work.kind {
            Kind::Served | Kind::Front => Reverse((at + lasting, work)),
            _ => Reverse((at, work)),
        };
        self.running = running.map(put_off).collect();
    }

    /// For how long workers have worked, in all.
    pub(super) fn work(&mut self) -> Duration {
        let since = self.now.saturating_sub(self.worked_at);
        self.worked += since * self.busy as u64;
        self.worked_at += since;
        Duration::from_nanos(self.worked)
    }

    fn abandon(&mut self, client: usize) {
        let held = |work: &Work| matches!(work.kind, Kind::Served | Kind::Front);
        let running = self.running.iter().map(|Reverse((_, work))| work);
        let freed = running.filter(|it| it.client == client && held(it)).count();
        self.running.retain(|Reverse((_, it))| it.client != client);
        self.queue.retain(|it| it.client != client);
        self.shared.running.retain(|Reverse((_, it))| *it != client);
        self.work();
        self.busy -= freed;
        self.next_in_line(None);
    }

    fn start(&mut self, client: usize, job: Job) {
        const FAST: Duration = Duration::from_micros(200);
        self.called
            .resize(self.called.len().max(client + 1), (0, 0));
        self.called[client] = (self.now, 0);
        if job.polls {
            return self.without_server(client, Kind::Outside, LONG_POLL);
        }
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
        self.work();
        while self.busy < self.server.k {
            let Some(mut work) = self.queue.pop_front() else {
                return;
            };
            self.busy += 1;
            let slice = self.server.slice.as_nanos().min(work.left.into()) as u64;
            work.left -= slice;
            let begins = self.now.max(self.frozen);
            self.running.push(Reverse((begins + slice, work)));
        }
    }

    fn work_together(&mut self) {
        let pace = self.server.pace(self.shared.running.len());
        self.shared.work += (self.now - self.shared.at) as f64 * pace;
        self.shared.at = self.now;
    }

    /// When something happens next.
    pub(super) fn next(&self) -> Option<u64> {
        let alone = self.running.peek().map(|Reverse((at, _))| *at);
        let together = self.shared.running.peek().map(|Reverse((done, _))| {
            let pace = self.server.pace(self.shared.running.len());
            let left = (*done as f64 - self.shared.work).max(0.0) / pace;
            (self.shared.at + left.ceil() as u64).max(self.now)
        });
        alone.into_iter().chain(together).min()
    }

    /// It happens.
    pub(super) fn happens(&mut self) -> Happens {
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
            self.work();
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
            Kind::Served if !self.server.outside.is_zero() => {
                self.without_server(client, Kind::Outside, self.server.outside);
                Happens::Nothing
            }
            Kind::Served | Kind::Outside | Kind::Fast | Kind::Failed => {
                self.done = Some((client, kind != Kind::Failed));
                Happens::Done(client)
            }
        }
    }
}
