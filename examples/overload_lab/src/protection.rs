//! What stands in front of the server: real layers, as one would stack them.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use tower::{BoxError, Layer, Service, ServiceBuilder};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CoDelConfig, CoDelLayer, ConcurrencyLimitLayer, Edge, LoadShedLayer,
    OverloadResponseLayer, Priority, WfqConfig, WfqLayer, edge, wfq::TenantId,
};

use crate::{
    scenario::WORKERS,
    simulation::{Inner, Job, Retry, Seen, Server, Stack, Unavailable, World},
};

/// For the layers that have to be told how many requests the server can work on at once: as many as it has
/// workers, and a few more that are there when one gets free.
pub const LIMIT: usize = limit_for(WORKERS);

/// What one takes who has not measured.
pub const GUESS: usize = 100;

pub const fn limit_for(workers: usize) -> usize {
    workers + workers / 4
}

/// How long a request may wait in the queues that have a bound in time.
pub const WAIT: Duration = Duration::from_millis(200);

/// As it is on a machine with two processors: runs are to repeat on any.
pub fn by_age() -> CoDelConfig {
    CoDelConfig::default().min_concurrency(2)
}

/// By tenant.
const TENANTS: [&str; 8] = ["noisy", "a", "b", "c", "d", "e", "f", "g"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    None,
    Tower,
    /// The same, with [`GUESS`].
    Guess,
    Fixed,
    Vegas,
    Gradient2,
    Aimd,
    CoDel,
    Wfq,
    Edge,
}

impl Protection {
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Tower,
        Self::Fixed,
        Self::Vegas,
        Self::CoDel,
        Self::Wfq,
        Self::Edge,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no protection",
            Self::Tower => "tower limit + shed",
            Self::Guess => "tower, a round limit",
            Self::Fixed => "fixed limit",
            Self::Vegas => "Vegas",
            Self::Gradient2 => "Gradient2",
            Self::Aimd => "AIMD",
            Self::CoDel => "CoDel",
            Self::Wfq => "WFQ",
            Self::Edge => "edge()",
        }
    }

    /// The stack from the outside in, and what it does.
    pub fn stack(self) -> (String, &'static str) {
        let (wait, limit) = (WAIT.as_millis(), LIMIT);
        match self {
            Self::None => (
                "the server itself".into(),
                "All that comes waits in the server, first come first served.",
            ),
            Self::Tower => (
                format!("tower::LoadShed → tower::ConcurrencyLimit({limit})"),
                "What tower has of its own. Nothing waits; what is over the limit is refused.",
            ),
            Self::Guess => (
                format!("tower::LoadShed → tower::ConcurrencyLimit({GUESS})"),
                "The same with a round number, that nobody has measured.",
            ),
            Self::Fixed => (
                format!("ConcurrencyLimit({limit}), max_wait {wait} ms"),
                "The same number, and a queue in which nobody waits for long: a burst is worked off, an overload is refused.",
            ),
            Self::Vegas => (
                "LoadShed → AdaptiveConcurrency::vegas()".into(),
                "Learns the number from how long requests take. Nothing waits.",
            ),
            Self::Gradient2 => (
                "LoadShed → AdaptiveConcurrency::gradient2()".into(),
                "Learns it from how the time of requests changes.",
            ),
            Self::Aimd => (
                "LoadShed → AdaptiveConcurrency::aimd()".into(),
                "Learns it from failures and timeouts.",
            ),
            Self::CoDel => (
                format!("CoDel → ConcurrencyLimit({limit})"),
                "A queue for bursts; while it does not drain, what is old is refused.",
            ),
            Self::Wfq => (
                format!("Wfq, max_wait {wait} ms → ConcurrencyLimit({limit})"),
                "A queue for each tenant; whoever has had the least is next.",
            ),
            Self::Edge => (
                "OverloadResponse → Wfq → CoDel → AdaptiveConcurrency::vegas() → LoadShed".into(),
                "The whole stack in one line, for HTTP. Refusals are answered with 503 and Retry-After. Nobody told it a number.",
            ),
        }
    }

    /// Puts it in front of a server.
    pub fn protect(self, seed: u64, server: Server) -> Site {
        let known = limit_for(server.k);
        let limit = || ConcurrencyLimitLayer::new(known);
        let fixed = move || Some(known);
        let learned = |law: AdaptiveConcurrencyLayer| {
            let handle = law.handle();
            let stack = ServiceBuilder::new().layer(LoadShedLayer::new());
            let limit = move || Some(handle.snapshot().permits.limit);
            (stack.layer(law), limit)
        };
        match self {
            Self::None => Site::new(seed, server, || (ServiceBuilder::new(), || None)),
            Self::Tower => Site::new(seed, server, || {
                let stack = ServiceBuilder::new().load_shed().concurrency_limit(known);
                (stack, fixed)
            }),
            Self::Guess => Site::new(seed, server, || {
                let stack = ServiceBuilder::new().load_shed().concurrency_limit(GUESS);
                (stack, || Some(GUESS))
            }),
            Self::Fixed => Site::new(seed, server, || {
                (ServiceBuilder::new().layer(limit().max_wait(WAIT)), fixed)
            }),
            Self::Vegas => Site::new(seed, server, || learned(AdaptiveConcurrencyLayer::vegas())),
            Self::Gradient2 => Site::new(seed, server, || {
                learned(AdaptiveConcurrencyLayer::gradient2())
            }),
            Self::Aimd => Site::new(seed, server, || learned(AdaptiveConcurrencyLayer::aimd())),
            Self::CoDel => Site::new(seed, server, || {
                let codel = CoDelLayer::new(by_age()).submitted_at(|job: &Job| Some(job.submitted));
                (ServiceBuilder::new().layer(codel).layer(limit()), fixed)
            }),
            Self::Wfq => Site::new(seed, server, || {
                let config = WfqConfig::default().max_wait(WAIT);
                let wfq = WfqLayer::new(config, |job: &Job| Some(TENANTS[job.tenant]));
                (ServiceBuilder::new().layer(wfq).layer(limit()), fixed)
            }),
            Self::Edge => edged(seed, server, edge),
        }
    }
}

/// Puts an edge in front of a server. It is made on the simulated clock: otherwise runs would not repeat.
pub fn edged(seed: u64, server: Server, edge: impl FnOnce() -> Edge) -> Site {
    Site::new(seed, server, || {
        // A hint that is not made up by chance, so that runs repeat; clients add theirs.
        let edge = edge()
            .codel(by_age())
            .response(OverloadResponseLayer::new().jitter(false));
        let handle = edge.handle();
        let tenants = TENANTS.map(TenantId::new);
        let stack = ServiceBuilder::new()
            .layer_fn(move |http| Client {
                http,
                tenants: tenants.clone(),
            })
            .layer(edge)
            .layer_fn(Handler);
        (stack, move || Some(handle.snapshot().permits.limit))
    })
}

/// A protected server, its clients, and the limit that there is at the moment.
pub struct Site {
    world: Box<dyn Running>,
    limit: Box<dyn Fn() -> Option<usize>>,
}

impl Site {
    pub fn new<L, F>(
        seed: u64,
        server: Server,
        layers: impl FnOnce() -> (ServiceBuilder<L>, F),
    ) -> Self
    where
        L: Layer<Inner, Service: Stack + 'static>,
        F: Fn() -> Option<usize> + 'static,
    {
        let mut limit = None;
        let mut world = World::new(seed, server, || {
            let (stack, handle) = layers();
            limit = Some(handle);
            stack.into_inner()
        });
        world.timers = true;
        Self {
            world: Box::new(world),
            limit: Box::new(limit.expect("it was just made")),
        }
    }

    pub fn clients(&mut self, clients: Clients) {
        self.world.clients(clients);
    }

    pub fn kinds(&mut self, kinds: Kinds) {
        self.world.kinds(kinds);
    }

    /// For requests that come from now on.
    pub fn change(&mut self, server: Server) {
        self.world.change(server);
    }

    /// All workers stand still for so long.
    pub fn freeze(&mut self, lasting: Duration) {
        self.world.freeze(lasting);
    }

    /// So many requests come at once.
    pub fn burst(&mut self, requests: usize) {
        self.world.burst(requests);
    }

    /// Runs for a while, with so many workers and so many requests a second of each tenant.
    pub fn run(&mut self, workers: usize, rates: &[f64], lasting: Duration) -> Seen {
        self.world.run(workers, rates, lasting)
    }

    pub fn limit(&self) -> Option<usize> {
        (self.limit)()
    }
}

/// What all clients do.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// How long they wait.
    pub patience: Duration,
    /// Whether they try again,
    pub retry: Option<Retry>,
    /// and whether they hang up when they have waited so long.
    pub hang_up: bool,
    /// This share of them wait for news, for as long as that takes.
    pub polls: f64,
}

/// Which kinds of requests there are, each with its share of the load.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// How much they matter,
    pub priorities: Vec<(f64, Priority)>,
    /// how long their clients wait,
    pub patiences: Vec<(f64, Duration)>,
    /// and whether these say so, in a deadline.
    pub tell_patience: bool,
}

/// A world, whatever its stack.
trait Running {
    fn clients(&mut self, clients: Clients);
    fn kinds(&mut self, kinds: Kinds);
    fn change(&mut self, server: Server);
    fn freeze(&mut self, lasting: Duration);
    fn burst(&mut self, requests: usize);
    fn run(&mut self, workers: usize, rates: &[f64], lasting: Duration) -> Seen;
}

impl<S: Stack> Running for World<S> {
    fn clients(&mut self, clients: Clients) {
        (self.patience, self.retry) = (clients.patience, clients.retry);
        (self.hang_up, self.polls) = (clients.hang_up, clients.polls);
    }

    fn kinds(&mut self, kinds: Kinds) {
        (self.priorities, self.patiences) = (kinds.priorities, kinds.patiences);
        self.tells_patience = kinds.tell_patience;
    }

    fn change(&mut self, server: Server) {
        self.server = server;
    }

    fn freeze(&mut self, lasting: Duration) {
        World::freeze(self, lasting);
    }

    fn burst(&mut self, requests: usize) {
        World::burst(self, requests);
    }

    fn run(&mut self, workers: usize, rates: &[f64], lasting: Duration) -> Seen {
        self.server.k = workers;
        self.tenants = rates.to_vec();
        self.run_at(rates.iter().sum(), lasting)
    }
}

/// A client that speaks HTTP to what is inside. 503 is a refusal.
#[derive(Clone)]
struct Client<S> {
    http: S,
    tenants: [TenantId; TENANTS.len()],
}

impl<S, B> Service<Job> for Client<S>
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible, Future: 'static>,
{
    type Response = ();
    type Error = BoxError;
    type Future = Answer<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(cx).map_err(|never| match never {})
    }

    fn call(&mut self, job: Job) -> Self::Future {
        let mut request = Request::new(String::new());
        let tenant = self.tenants[job.tenant].clone();
        request.extensions_mut().insert(tenant);
        request.extensions_mut().insert(job);
        if let Some(deadline) = job.deadline {
            request.extensions_mut().insert(deadline);
        }
        Answer(Box::pin(self.http.call(request)))
    }
}

struct Answer<F>(Pin<Box<F>>);

impl<F, B> Future for Answer<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(self.0.as_mut().poll(cx));
        Poll::Ready(match response.status() {
            StatusCode::SERVICE_UNAVAILABLE => {
                let seconds = response.headers().get(RETRY_AFTER);
                let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
                let retry_after = seconds.map(Duration::from_secs);
                Err(Unavailable { retry_after }.into())
            }
            status if status.is_success() => Ok(()),
            status => Err(status.to_string().into()),
        })
    }
}

/// The server, as a handler of HTTP requests.
#[derive(Clone)]
struct Handler(Inner);

impl Service<Request<String>> for Handler {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = Handled;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<String>) -> Handled {
        let job = request.extensions().get::<Job>().expect("the client's");
        Handled(self.0.call(*job))
    }
}

struct Handled(<Inner as Service<Job>>::Future);

impl Future for Handled {
    type Output = Result<Response<()>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map_ok(|()| Response::new(()))
    }
}
