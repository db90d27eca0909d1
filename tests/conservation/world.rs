//! What all parts of one run share: its randomness, its time, and what was found wrong.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tower::{BoxError, util::BoxCloneService};
use tower_backpressure::{Deadline, Priority};

use crate::support::now;

/// The body of a response, whatever holds on to it.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;
pub type Asked = Request<String>;
pub type Answer = Response<Body>;
/// Any stack: layers are put around it one by one.
pub type Stack = BoxCloneService<Asked, Answer, BoxError>;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Once in so many times; 0 is never.
    pub fn once_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

pub fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One thread on tokio's paused clock: the same seed does the same each time.
    Paused,
    /// So many workers, on the real clock.
    Threads(usize),
}

impl Mode {
    pub fn is_paused(self) -> bool {
        self == Self::Paused
    }

    /// Up to so many units of time: milliseconds if they cost nothing. Timers tick in milliseconds, so
    /// on the real clock most of them are none at all.
    pub fn span(self, rng: &mut Rng, most: u64) -> Duration {
        let units = rng.below(most + 1);
        match self {
            Self::Paused => Duration::from_millis(units),
            Self::Threads(_) if rng.once_in(6) => Duration::from_micros(20 * units),
            Self::Threads(_) => Duration::ZERO,
        }
    }

    /// A bound in time, which is never zero.
    pub fn bound(self, rng: &mut Rng, most: u64) -> Duration {
        match self {
            Self::Paused => Duration::from_millis(rng.between(1, most)),
            Self::Threads(_) => Duration::from_micros(rng.between(100, 20 * most)),
        }
    }
}

/// How often the inner service does what it should not: once in so many times, 0 is never.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub ready_pends: u64,
    pub ready_fails: u64,
    pub ready_panics: u64,
    pub call_panics: u64,
    pub fails: u64,
    pub passes_on_a_rejection: u64,
    pub panics: u64,
    pub hangs: u64,
    pub drop_panics: u64,
    pub service_drop_panics: u64,
    pub body_fails: u64,
    /// The most units of time that a step takes.
    pub slowness: u64,
}

impl Faults {
    /// Some of them in some stacks: a stack in which everything fails shows little else.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut rate = |often: &[u64]| rng.pick(often);
        Self {
            ready_pends: rate(&[0, 2, 6]),
            ready_fails: rate(&[0, 0, 0, 60]),
            ready_panics: rate(&[0, 0, 60]),
            call_panics: rate(&[0, 0, 40]),
            fails: rate(&[0, 3, 10]),
            passes_on_a_rejection: rate(&[0, 0, 10]),
            panics: rate(&[0, 0, 15]),
            hangs: rate(&[0, 0, 20]),
            drop_panics: rate(&[0, 0, 20]),
            service_drop_panics: rate(&[0, 0, 0, 200]),
            body_fails: rate(&[0, 10]),
            slowness: rate(&[0, 3, 20]),
        }
    }
}

/// One run.
pub struct World {
    pub mode: Mode,
    pub faults: Faults,
    pub operations: AtomicU64,
    /// The clients have begun: from now on it may panic when a service is dropped.
    pub begun: AtomicBool,
    /// The worker of one of tower's `Buffer`s has panicked.
    pub buffer_died: AtomicBool,
    started: Instant,
    seed: u64,
    instances: AtomicU64,
    digest: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl World {
    pub fn new(mode: Mode, rng: &mut Rng) -> Arc<Self> {
        Arc::new(Self {
            mode,
            faults: Faults::draw(rng),
            operations: AtomicU64::new(0),
            begun: AtomicBool::new(false),
            buffer_died: AtomicBool::new(false),
            started: now(),
            seed: rng.next(),
            instances: AtomicU64::new(0),
            digest: AtomicU64::new(0),
            violations: Mutex::default(),
        })
    }

    pub fn violated(&self, what: impl Into<String>) {
        let mut violations = self.violations.lock().unwrap();
        if violations.len() < 8 {
            violations.push(what.into());
        }
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap().clone()
    }

    /// For an instance of the inner service.
    pub fn instance_rng(&self) -> Rng {
        let instance = self.instances.fetch_add(1, SeqCst);
        Rng::new(mix(self.seed ^ mix(instance)))
    }

    /// What happened, for comparison with another run of the same seed.
    pub fn note(&self, what: u64) {
        if self.mode.is_paused() {
            let at = (now() - self.started).as_nanos() as u64;
            let before = self.digest.load(SeqCst);
            self.digest.store(mix(before ^ mix(what ^ mix(at))), SeqCst);
        }
    }

    pub fn digest(&self) -> u64 {
        self.digest.load(SeqCst)
    }

    pub fn request(&self, rng: &mut Rng, may_hang: bool) -> Asked {
        let ticket = Ticket {
            attempt: Arc::default(),
            seed: rng.next(),
            tenant: rng.below(TENANTS as u64 + 1) as usize,
            newcomer: None,
            may_hang,
        };
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(ticket);
        if rng.once_in(2) {
            request.extensions_mut().insert(rng.pick(&Priority::ALL));
        }
        if rng.once_in(4) {
            let patience = self.mode.bound(rng, 100);
            request.extensions_mut().insert(Deadline::within(patience));
        }
        request
    }
}

/// Requests are of one of these, or of nobody.
pub const TENANTS: usize = 4;
pub const NAMES: [&str; TENANTS] = ["ann", "bob", "cid", "dot"];

/// What a request carries along, in its extensions.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// How often the inner service was called. Each attempt of a retry has its own.
    pub attempt: Arc<AtomicU32>,
    pub seed: u64,
    pub tenant: usize,
    /// It is of this tenant instead, which has never been seen.
    pub newcomer: Option<&'static str>,
    /// Its caller gives up at some time.
    pub may_hang: bool,
}

impl Ticket {
    pub fn of<B>(request: &Request<B>) -> Self {
        request.extensions().get::<Self>().unwrap().clone()
    }
}

pub fn key<B>(request: &Request<B>) -> Option<usize> {
    let tenant = request.extensions().get::<Ticket>()?.tenant;
    (tenant < TENANTS).then_some(tenant)
}

pub fn tenant<B>(request: &Request<B>) -> Option<&'static str> {
    let ticket = request.extensions().get::<Ticket>()?;
    ticket.newcomer.or_else(|| Some(NAMES[key(request)?]))
}

/// What an inner service panics with, and nothing else does. It is thrown past the panic hook, which is
/// for panics that nobody meant.
pub struct Injected;

pub fn throw() -> ! {
    resume_unwind(Box::new(Injected))
}

/// Runs what may panic. `None` if it did on purpose.
pub fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).map_or_else(tell, Some)
}

fn tell<T>(panic: Box<dyn Any + Send>) -> Option<T> {
    match panic.is::<Injected>() {
        true => None,
        false => resume_unwind(panic),
    }
}

/// Lets others run, and time pass if there is any.
pub async fn pause(span: Duration) {
    match span.is_zero() {
        true => tokio::task::yield_now().await,
        false => tokio::time::sleep(span).await,
    }
}

/// In a task of its own, which is waited for.
pub fn spawn<F>(tasks: &Tasks, future: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    tasks.0.lock().unwrap().push(tokio::spawn(future));
}

/// Tasks to wait for.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Tasks {
    /// Until there are none any more, or time is up. Says how many there are still.
    pub async fn finish(&self, within: Duration) -> usize {
        let deadline = now() + within;
        while let Some((mut task, left)) = self.one_that_runs() {
            if timeout_at(deadline, &mut task).await.is_err() {
                self.0.lock().unwrap().push(task);
                return left;
            }
        }
        0
    }

    /// One of them, and how many there are. One that the inner service's drop has ended is as good as done; any
    /// other panic has been seen by the hook.
    fn one_that_runs(&self) -> Option<(JoinHandle<()>, usize)> {
        let mut tasks = self.0.lock().unwrap();
        tasks.retain(|task| !task.is_finished());
        let left = tasks.len();
        Some((tasks.pop()?, left))
    }

    pub fn abort(&self) {
        let tasks = self.0.lock().unwrap();
        tasks.iter().for_each(JoinHandle::abort);
    }
}
