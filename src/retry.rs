//! For clients: which requests are sent again, and when.
//!
//! ```
//! use std::time::Duration;
//! use http::{Request, Response};
//! use tower::{BoxError, Service, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};
//! use tower_backpressure::{RetryPolicy, retry::Backoff};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(10));
//! let policy = RetryPolicy::new(backoff);
//! let handle = policy.handle();
//!
//! # let mut answers = [503, 200].into_iter();
//! # let server = service_fn(move |_: Request<String>| {
//! #     let response = Response::builder().status(answers.next().unwrap()).body("hello");
//! #     async { Ok::<_, BoxError>(response?) }
//! # });
//! # let server = tower::buffer::Buffer::new(server, 1);
//! let mut client = ServiceBuilder::new()
//!     .layer(RetryLayer::new(policy))
//!     .service(server); // answers 503, and then 200
//!
//! let response = client.ready().await?.call(Request::get("/").body(String::new())?).await?;
//! assert_eq!(response.status(), 200);
//! assert_eq!(handle.snapshot().retries, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! In front of a client, outside whatever limits it, with tower's own `RetryLayer`. Retry in one place:
//! three retries at each of three layers are 64 requests for one. A server that refuses with the layers
//! of this crate says when to come back, and this is the client that listens.
//!
//! **When not to use it:** where the caller retries as well, and not for work that must not be done twice.
//!
//! # Behaviour
//! An answer is [judged](Judge) by its head ([`ByAnswer`] has the table). What is worth a retry is sent
//! again if all of this holds; otherwise the caller gets the answer at once, as it came:
//!
//! - **It may be done twice**, or was not done. After an error, a 500 or a lost connection, nobody
//!   knows whether the server did what it was asked for, so only idempotent methods (GET, HEAD,
//!   OPTIONS, TRACE, PUT, DELETE) and what the caller marks as [`Idempotent`] are sent again. Answers
//!   that say that nothing was done make an exception: 429, 503 with `retry-after`, gRPC's
//!   RESOURCE_EXHAUSTED and UNAVAILABLE with pushback, and a rejection by a layer of this crate in the
//!   client itself. After those any request is. But not if they say that the rejection came from [further
//!   in](crate::Overloaded#rejected-here-or-further-in), where the request had been started: by the header `x-rejected:
//!   further-in`, or by [`rejected_here`](crate::Overloaded::rejected_here).
//! - **Its body can be sent twice**: see [`Replay`]. Extensions, headers and version go along.
//! - **The server did not forbid it**, by a gRPC pushback that is negative or cannot be read.
//! - **It has retries left**: [`max_retries`](RetryPolicy::max_retries), 3 by default.
//! - **It was not an open circuit** of a [breaker](crate::circuit_breaker) in the client, unless that stays open for less
//!   than the next backoff. To wait for it takes the caller's time, and all who waited would come back together when it
//!   is over; the caller is told at once, and can do something else.
//! - **It would be in time**: before the [`Deadline`] in its extensions, and before
//!   [`max_elapsed`](RetryPolicy::max_elapsed) since it was first sent, a minute by default.
//! - **The budget has something left**: a [`RetryBudget`] that all requests share.
//!
//! # How long it waits
//! As long as the server asks for, if it does: `retry-after` with 429 and 503, in seconds or as a date
//! (compared with the response's own `date`, so that clocks need not agree); `grpc-retry-pushback-ms`
//! beside a `grpc-status` in the head, after which the [`Backoff`] starts anew, as gRPC has it; the
//! hint of an [`Overloaded`]. Otherwise, and if a `retry-after` is 0 or a date that
//! has passed, as long as the backoff says. Then up to half of that is added at random, so that those
//! who failed together do not come back together; to a hint that is [exact](crate::Overloaded::is_exact) up to a
//! tenth, and at most 2 s. It is added, not drawn from zero: nobody comes back sooner than the server asked for.
//! And never longer than [`MAX_DELAY`], whatever a server says.
//!
//! Retries wait for `tokio::time::sleep`, which tests can pause. The answer to which a retry is made is
//! dropped before the wait, and its body with it, unread; with HTTP/1 that may cost the connection.
//!
//! # Errors
//! None of its own. The last answer is the caller's, be it a response or an error. It needs a tokio
//! runtime with time enabled, as tower's own timeouts do.
//!
//! # Cancellation
//! A request that is dropped while it waits for its retry is never sent again. What it took from the
//! budget is not given back.
//!
//! # Cloning
//! Clones share the settings, the budget, and what is counted; so do all services that a
//! `RetryLayer` makes. A budget is about one server: take one policy for each.

mod ask;
mod counts;
mod http_date;
mod judge;
mod mark;
mod replay;

use std::{fmt, time::Duration};

use http::{Request, Response};
use tokio::time::{Instant, Sleep, sleep};
use tower::retry::Policy;

use self::{ask::Ask, counts::Counts};
pub use self::{
    counts::Snapshot,
    judge::{ByAnswer, Judge, Verdict},
    mark::Idempotent,
    replay::{OfItself, Replay, ReplayBody, ReplayWith},
};
pub use crate::law::{backoff::Backoff, retry_budget::RetryBudget};
use crate::{
    Clock, ConfigError, Deadline, Overloaded, Reason, clock,
    config::RetryConfig,
    jitter::Jitter,
    sync::{Arc, Mutex, lock},
};

// Between AWS's SDKs, which try 3 times in all, and gRPC, which tries 5 times at most. Ten retries are for
// queues of messages, where nobody waits for the answer.
pub(crate) const DEFAULT_MAX_RETRIES: u32 = 3;
pub(crate) const DEFAULT_MAX_ELAPSED: Duration = Duration::from_secs(60);

/// No retry is waited for longer than this, whatever a server asks for: 24 hours.
pub const MAX_DELAY: Duration = Duration::from_secs(24 * 3600);

/// Whether and when a request is sent again: a policy for `tower::retry::RetryLayer`. See the
/// [module](self) for all of it.
///
/// `J` judges answers. `P` makes the bodies of retries.
#[derive(Clone)]
pub struct RetryPolicy<J = ByAnswer, P = OfItself> {
    shared: Arc<Shared>,
    judge: J,
    replay: P,
    session: Session,
}

/// What is known of the request that a clone of the policy was made for, as tower makes one for each.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    /// When it was first sent.
    started: Option<Instant>,
    retries: u64,
    /// How often the backoff was followed since it began, or began anew.
    backed_off: u32,
    /// Whether the service may have worked on it before.
    worked_on: bool,
}

struct Shared {
    clock: Clock,
    jitter: Jitter,
    state: Mutex<State>,
    counts: Counts,
}

struct State {
    settings: Settings,
    budget: RetryBudget,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    backoff: Backoff,
    jitter: bool,
    max_elapsed: Duration,
    max_retries: u64,
}

impl RetryPolicy {
    /// As this config says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &RetryConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let policy = Self::new(config.backoff).budget(config.budget);
        policy.handle().apply(config)?;
        Ok(policy)
    }

    /// Waits as the backoff says where a server says nothing.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            shared: Arc::new(Shared {
                clock: Clock::tokio(),
                jitter: Jitter::default(),
                state: Mutex::new(State {
                    settings: Settings {
                        backoff,
                        jitter: true,
                        max_elapsed: DEFAULT_MAX_ELAPSED,
                        max_retries: DEFAULT_MAX_RETRIES.into(),
                    },
                    budget: RetryBudget::default(),
                }),
                counts: Counts::default(),
            }),
            judge: ByAnswer,
            replay: OfItself,
            session: Session::default(),
        }
    }
}

impl Default for RetryPolicy {
    /// From 100 ms up to 10 s, doubling.
    fn default() -> Self {
        Self::new(RetryConfig::default().backoff)
    }
}

/// These settings are what clones share: one that was made before gets them too.
impl<J, P> RetryPolicy<J, P> {
    /// How often a request is sent again at most; 0 turns retries off. Default: 3.
    pub fn max_retries(self, retries: u32) -> Self {
        lock(&self.shared.state).settings.max_retries = retries.into();
        self
    }

    /// How long after a request was first sent its last retry may be made. Default: a minute. Without
    /// a bound, a server that says `retry-after: 86400` has its callers wait until tomorrow.
    /// `Duration::MAX` is no bound.
    pub fn max_elapsed(self, time: Duration) -> Self {
        lock(&self.shared.state).settings.max_elapsed = time;
        self
    }

    /// How many retries there may be of all requests together. Default: 20 % of them, and one
    /// each second. It is full.
    pub fn budget(self, budget: RetryBudget) -> Self {
        lock(&self.shared.state).budget = budget;
        self
    }

    /// Whether up to half of each delay is added to it at random; to an exact one up to a tenth, and at most 2 s. On by default.
    pub fn jitter(self, jitter: bool) -> Self {
        lock(&self.shared.state).settings.jitter = jitter;
        self
    }

    /// Judges answers another way: by a [`Judge`], such as a closure.
    pub fn judge<J2>(self, judge: J2) -> RetryPolicy<J2, P> {
        RetryPolicy {
            shared: self.shared,
            judge,
            replay: self.replay,
            session: self.session,
        }
    }

    /// Makes the bodies of retries another way: by a [`ReplayWith`], such as a closure. For bodies of
    /// other crates, that do not know of [`Replay`]:
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use tower_backpressure::RetryPolicy;
    ///
    /// let policy = RetryPolicy::default().replay(|body: &Full<Bytes>| Some(body.clone()));
    /// # let _ = policy;
    /// ```
    pub fn replay<P2>(self, replay: P2) -> RetryPolicy<J, P2> {
        RetryPolicy {
            shared: self.shared,
            judge: self.judge,
            replay,
            session: self.session,
        }
    }

    /// A handle on what the clones of this policy share.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// How long to wait before the next retry.
    fn delay(&self, settings: &Settings, ask: Ask, exact: bool) -> Duration {
        let delay = match ask {
            Ask::Pushback(delay) => delay,
            // A server that says 0 has not thought of what becomes of it.
            Ask::After(delay) if !delay.is_zero() => delay,
            _ => settings.backoff.delay(self.session.backed_off),
        };
        let delay = match settings.jitter {
            true => self.shared.jitter.on(delay, exact),
            false => delay,
        };
        delay.min(MAX_DELAY)
    }

    /// Whether a retry at that moment would come too late.
    fn is_late<B>(&self, settings: &Settings, request: &Request<B>, retry_at: Instant) -> bool {
        let deadline = request.extensions().get::<Deadline>();
        let started = self.session.started;
        let end = started.and_then(|started| started.checked_add(settings.max_elapsed));
        deadline.is_some_and(|deadline| retry_at >= deadline.instant())
            || end.is_some_and(|end| retry_at >= end)
    }
}

impl<B, R, E, J, P> Policy<Request<B>, Response<R>, E> for RetryPolicy<J, P>
where
    J: Judge<Response<R>, E>,
    P: ReplayWith<B>,
    E: 'static,
{
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut Request<B>,
        result: &mut Result<Response<R>, E>,
    ) -> Option<Sleep> {
        let shared = &self.shared;
        let counts = &shared.counts;
        let result = result.as_ref();
        if self.session.worked_on {
            // A rejection of this attempt does not say that the service was never called.
            if let Some(rejection) = judge::refusal(result) {
                rejection.mark_further_in();
            }
        }
        let may_be_done_twice = || {
            request.method().is_idempotent() || request.extensions().get::<Idempotent>().is_some()
        };
        match self.judge.judge(result) {
            Verdict::Success => {
                return match self.session.retries {
                    0 => None,
                    _ => counts.recovered.none(),
                };
            }
            Verdict::Permanent => return counts.permanent.none(),
            Verdict::Gone => return counts.gone.none(),
            Verdict::Retryable if !may_be_done_twice() => return counts.not_idempotent.none(),
            Verdict::Retryable => self.session.worked_on = true,
            Verdict::Refused => {}
        }
        let ask = ask::of(result);
        if ask == Ask::Never {
            return counts.forbidden.none();
        }
        let settings = lock(&shared.state).settings;
        if self.session.retries >= settings.max_retries {
            return counts.exhausted.none();
        }
        let rejection = judge::refusal(result);
        let open = rejection.filter(|rejection| rejection.reason() == Reason::CircuitOpen);
        let backoff = settings.backoff.delay(self.session.backed_off);
        if open.is_some_and(|open| open.retry_after() >= backoff) {
            return counts.circuit_open.none();
        }
        let exact = rejection.is_some_and(Overloaded::is_exact);
        let delay = self.delay(&settings, ask, exact);
        if self.is_late(&settings, request, clock::instant() + delay) {
            return counts.too_late.none();
        }
        // Last, so that nothing is taken for a retry that is not made.
        if !(lock(&shared.state).budget).withdraw(shared.clock.nanos()) {
            return counts.over_budget.none();
        }
        counts.retries.add();
        self.session.retries += 1;
        self.session.backed_off = match ask {
            Ask::Pushback(_) => 0,
            _ => self.session.backed_off.saturating_add(1),
        };
        Some(sleep(delay))
    }

    /// Called once before a request is first sent, and again before each retry.
    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        let counts = &self.shared.counts;
        let first = self.session.retries == 0;
        if first {
            self.session.started = Some(clock::instant());
            counts.requests.add();
            lock(&self.shared.state).budget.deposit();
        }
        let Some(body) = self.replay.replay(request.body()) else {
            if first {
                counts.not_replayable.add();
            }
            return None;
        };
        let mut clone = Request::new(body);
        *clone.method_mut() = request.method().clone();
        *clone.uri_mut() = request.uri().clone();
        *clone.version_mut() = request.version();
        *clone.headers_mut() = request.headers().clone();
        *clone.extensions_mut() = request.extensions().clone();
        Some(clone)
    }
}

impl<J, P> fmt::Debug for RetryPolicy<J, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy")
            .field("settings", &lock(&self.shared.state).settings)
            .field("shared", &self.shared)
            .finish()
    }
}

impl Shared {
    fn snapshot(&self) -> Snapshot {
        let mut state = lock(&self.state);
        let budget = state.budget.left(self.clock.nanos());
        self.counts.snapshot(budget, state.settings.max_retries)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Looks at retries, and turns them off while they hurt.
///
/// ```
/// use tower_backpressure::RetryPolicy;
///
/// let handle = RetryPolicy::default().handle();
/// handle.set_max_retries(0); // from the next answer on
/// assert_eq!(handle.snapshot().max_retries, 0);
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// What has happened until now.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// How often a request is sent again at most, from now on; 0 turns retries off. A retry that is
    /// being waited for is made all the same.
    pub fn set_max_retries(&self, retries: u32) {
        lock(&self.shared.state).settings.max_retries = retries.into();
    }

    /// Changes everything to what this config says, at once, from the next answer on. What the budget has
    /// saved up stays, as far as the new one lets it.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &RetryConfig) -> Result<(), ConfigError> {
        config.check()?;
        let now = self.shared.clock.nanos();
        let mut state = lock(&self.shared.state);
        state.settings = Settings {
            backoff: config.backoff,
            jitter: config.jitter,
            max_elapsed: config.max_elapsed,
            max_retries: config.max_retries.into(),
        };
        state.budget.set(config.budget, now);
        Ok(())
    }
}
