//! Refuses requests that have waited too long, where waiting does not end.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{
//!     AdaptiveConcurrencyLayer, BoxError, CoDelConfig, CoDelLayer, SubmittedAtLayer,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let codel = CoDelLayer::new(CoDelConfig::default());
//! let handle = codel.handle();
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(SubmittedAtLayer::new())               // when did it come? (axum: in a layer() of its own)
//!     .layer(codel)                                 // is it too old by now?
//!     .layer(AdaptiveConcurrencyLayer::vegas())     // what it may have waited for
//!     .service(service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new("served")) }));
//!
//! assert_eq!(*service.ready().await?.call(Request::new(())).await?.body(), "served");
//! assert!(!handle.snapshot().overloaded);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Where requests wait, and clients give up if they wait for long. A queue in which all wait for longer
//! than they are willing to makes a server busy with answers that nobody reads any more. A queue that is
//! always short refuses bursts that it could have worked off. This layer lets a burst wait, and refuses
//! what is old when it finds that the queue does not get any shorter.
//!
//! It goes between the queue and the limit that requests wait for: inside a [`Wfq`](crate::Wfq), outside
//! a concurrency limit. Without a `Wfq` it goes by how long requests wait for the limit. It needs a stamp
//! on each request to see what happened before that: [`SubmittedAtLayer`](crate::SubmittedAtLayer). With
//! one tenant and nothing in front, a queue with a `max_wait` of 200 ms does as well.
//!
//! **When not to use it:** where no request waits: behind a [`LoadShedLayer`](crate::LoadShedLayer) there is nothing to reject by age. In an
//! [`edge()`](fn@crate::edge) it is contained.
//!
//! # What is measured
//! ```text
//!  stamp        other layers,         Wfq                   its turn,                                   response
//!  (decoded)    run queue of CPU      │                     limit has room          handler             │
//!  ├──────────── before ──────────────┤──────── own ────────┤ CoDel::call ──────────────────────────────┤
//!  ├────────────────────────── age ─────────────────────────┤──────────────── in flight ────────────────┤
//! ```
//! The age of each request when it gets here, admitted or not. Response times are not looked at, so **a
//! queue inside the handler is not seen**; nor is what happened before the stamp: the kernel's backlog,
//! and the executor's run queue.
//!
//! # Behaviour
//! Ready when the inner service is: nothing queues here. In `call` a request is admitted or refused; if
//! it is refused, whatever the inner service had reserved for it goes back to the next. Two loops decide:
//!
//! - **By age, at once.** A queue *stands* if for 100 ms (or for `target`, if that is longer) each
//!   request that got here was older than [`target`](CoDelConfig::target), or left one behind in the
//!   `Wfq` that was. While one stands, requests older than twice the target are refused: those that
//!   waited in a queue of ours, and, if more is in flight than in good times, the others too. The one
//!   that finds out is let in, and so is one that nothing else waits or runs beside.
//! - **By number, slowly.** If for [`interval`](CoDelConfig::interval) more than a twentieth of all
//!   requests were older than the target (their p95 was), no more than three quarters of what was in
//!   flight may be; if for `interval` they were not, or hardly any came, a quarter more, up to
//!   [`max_concurrency`](CoDelConfig::max_concurrency). While the inner service is not ready the limit
//!   stays: the wait is for something further in then. If narrowing helped nobody it is taken back, and
//!   not tried again for twelve intervals, and twice as long after each time in vain.
//!
//! [`max_sojourn`](CoDelConfig::max_sojourn), if set, is what no request may be older than, whatever the
//! load.
//!
//! # Why it does not collapse
//! The obvious loop narrows a limit by a quarter whenever the p95 of the wait for it is over the target.
//! It feeds on itself: the narrower the limit, the longer the wait. A minute of one and a half times the
//! load takes it from 64 to 1, where nothing is answered in time; and a minute after the load has gone it
//! is there still (`tests/conformance/codel.rs` has it). What is different here is that nothing waits for
//! this limit, that waits for another one do not count against it, that a queue that stands is cut at
//! once instead of in steps of five seconds, and that a narrowing is a trial. `src/law/codel.rs`
//! has the whole law.
//!
//! With the layers of this crate in front of a simulated server, at 1.2 to 10 times the load that it can
//! take, for up to ten minutes: at least 95 % of what the server can do is answered in time, at p95 what
//! is served is not older than 2.6 targets, and from ten seconds after the load's end on nobody is
//! refused.
//!
//! # Tuning
//! - `target`: at least twice the mean time that a request takes, at most a tenth of what clients are
//!   willing to wait. The default of 100 ms is for handlers of up to 50 ms, and clients that wait for a
//!   second or more. A target shorter than requests naturally wait refuses some of them at any load.
//! - `max_concurrency`: with a limit inside, any; that limit counts. Without one, at most as many
//!   requests as get done while a client waits.
//! - `min_concurrency`: what keeps the service busy. It is also how many requests are let in at least
//!   when something further out has been slow since the start; the number of processors is right for work
//!   that they do.
//! - `interval`: leave it.
//!
//! # What it cannot do
//! It sees age on entry. Where requests are not old when they come, but wait inside, it does nothing
//! (shares are of what the server can do, at twice the load, in `tests/conformance/composition.rs`):
//!
//! | | in time | what to do |
//! | --- | --- | --- |
//! | alone in front of a handler that queues, up to 2048 in flight | 0 % | `max_concurrency` 256: 98 %; or an [adaptive limit](crate::adaptive_concurrency) inside: 98 % |
//! | processors that take turns of 5 ms, so that 2 ms of work in front hardly wait, however slow handlers are | 58 % | `max_concurrency` 64: 98 %; `target` 20 ms: 98 %; an adaptive limit inside: 97 % |
//! | a service that slows down with each request more, alone / with a fixed limit of 64 | 0 / 72 % | an adaptive limit inside: 95 % |
//!
//! And if nine tenths of the processors' time go into what is done before a request gets here, refusing
//! it here is too late: put the layer further out.
//!
//! # Errors
//! [`Overloaded`] with [`Reason::TooOld`](crate::Reason::TooOld) or
//! [`Reason::AtLimit`](crate::Reason::AtLimit). For the first, `retry_after` is the age of the request or
//! of the oldest that waits, which is as long as it takes through a queue; a minute at most. For the
//! other it is as for a [concurrency limit](crate::concurrency_limit). Errors of the inner service are
//! passed on.
//!
//! # Cancellation
//! A request is in flight until its response, or until its future is dropped. A service that was polled
//! and was not ready has waited until it is, whoever calls it then, and whenever: a caller that gives up
//! and keeps the service, or polls it for requests that are yet to come (tower's `Balance`), has the next
//! request look older than it is. Servers take a fresh clone for each request.
//!
//! # Cloning
//! One layer value is one law and one limit, however often [`Layer::layer`] is called and services are
//! cloned. A clone has not waited for anything. Use one value once on the path of a request: twice, the request counts
//! as two in flight.

mod config;

use std::{
    fmt,
    marker::PhantomData,
    mem,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

pub use self::config::CoDelConfig;
pub use crate::gate::age_gate::Snapshot;
use crate::{
    BoxError, ConfigError, Hold, Overloaded, Permit, ResponseFuture, SubmittedAt, UntilBodyEnd,
    UntilResponse, Waited,
    clock::{Clock, Now},
    gate::{
        age_gate::AgeGate,
        aside::{
            self, LimiterId, hand_back,
            handover::{Handover, KeptBack},
            shed,
            waited::polled_by,
        },
    },
    submitted_at::{ExtractSubmittedAt, FromExtension},
    sync::Arc,
};

/// Admits requests by their age. See the [module](self) for all of it.
///
/// `E` finds out when a request was submitted. `H` says how long a request counts as in flight.
pub struct CoDelLayer<E = FromExtension, H = UntilResponse> {
    gate: Arc<AgeGate>,
    extract: E,
    hold: PhantomData<fn() -> H>,
}

impl CoDelLayer {
    /// One law for everything that is made from this value. Requests are HTTP requests, and those that
    /// have no [`SubmittedAt`] are as old as they have waited in the layers of this crate.
    ///
    /// # Panics
    /// Unless 0 < `target` ≤ `interval`, `interval` ≥ 100 ms, 1 ≤ `min_concurrency` ≤
    /// `max_concurrency`, and 0 < `max_sojourn`.
    pub fn new(config: CoDelConfig) -> Self {
        Self::with_clock(config, Clock::default())
    }

    /// On a clock that others count by too, which then need not be asked twice.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub(crate) fn with_clock(config: CoDelConfig, clock: Clock) -> Self {
        let settings = config.settings();
        let settings = settings.unwrap_or_else(|error| panic!("CoDelConfig: {error}"));
        Self {
            gate: Arc::new(AgeGate::new(settings, clock)),
            extract: FromExtension,
            hold: PhantomData,
        }
    }
}

impl<E, H> CoDelLayer<E, H> {
    /// Finds out another way when a request was submitted: by an [`ExtractSubmittedAt`], such as a `|job:
    /// &Job| Some(job.submitted_at)`. Requests may be of any type then.
    pub fn submitted_at<E2>(self, extract: E2) -> CoDelLayer<E2, H> {
        CoDelLayer {
            gate: self.gate,
            extract,
            hold: PhantomData,
        }
    }

    /// Counts an HTTP request as in flight until its response's body ends, fails or is dropped. See
    /// [`hold`](crate::hold).
    pub fn hold_until_body_end(self) -> CoDelLayer<E, UntilBodyEnd> {
        CoDelLayer {
            gate: self.gate,
            extract: self.extract,
            hold: PhantomData,
        }
    }

    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer). The first name given
    /// stays.
    pub fn name(self, name: &'static str) -> Self {
        self.gate.gate.bounds.set_name(name);
        self
    }

    /// A handle on this law.
    pub fn handle(&self) -> Handle {
        Handle {
            gate: Arc::clone(&self.gate),
        }
    }
}

impl<S, E: Clone, H> Layer<S> for CoDelLayer<E, H> {
    type Service = CoDel<S, E, H>;

    fn layer(&self, inner: S) -> CoDel<S, E, H> {
        CoDel {
            inner,
            layer: self.clone(),
            wait: Wait::default(),
            polled_by: None,
        }
    }
}

impl<E: Clone, H> Clone for CoDelLayer<E, H> {
    fn clone(&self) -> Self {
        Self {
            gate: Arc::clone(&self.gate),
            extract: self.extract.clone(),
            hold: PhantomData,
        }
    }
}

impl<E, H> fmt::Debug for CoDelLayer<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CoDelLayer").field(&self.gate).finish()
    }
}

/// A service that refuses requests by their age. Made by [`CoDelLayer`].
pub struct CoDel<S, E = FromExtension, H = UntilResponse> {
    inner: S,
    layer: CoDelLayer<E, H>,
    wait: Wait,
    /// The fair queue that polls this service, which may tell how long a request waited.
    polled_by: Option<LimiterId>,
}

/// The caller's wait for the inner service, in the law's time.
#[derive(Clone, Copy, Debug, Default)]
enum Wait {
    #[default]
    None,
    Since(u64),
    Lasted(u64),
    /// That long. The inner service is ready, but something in it only to reject: perhaps what will be called.
    PerhapsInVain(u64),
}

impl<S, R, E, H> Service<R> for CoDel<S, E, H>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    E: ExtractSubmittedAt<R>,
    H: Hold<S::Response> + From<Permit>,
    R: 'static,
{
    type Response = H::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, H>;

    /// Ready when the inner service is.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let (polled, rejects) = aside::may_be_in_vain(|| self.inner.poll_ready(cx));
        if polled.is_pending() {
            let now = self.layer.gate.inner_pending();
            // Who sheds does not wait.
            if !matches!(self.wait, Wait::Since(_)) && !shed::is_not_waiting(cx) {
                self.wait = Wait::Since(now);
            }
        } else if rejects {
            self.wait = Wait::PerhapsInVain(self.waited());
        } else if let Wait::Since(since) = self.wait {
            let now = self.layer.gate.now();
            self.wait = Wait::Lasted(now.saturating_sub(since));
        } else if let Wait::PerhapsInVain(waited) = self.wait {
            self.wait = Wait::Lasted(waited);
        }
        self.polled_by = polled_by();
        polled.map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let mut now = aside::take_time();
        let outside = self.polled_by.take().and_then(Waited::take_from);
        if let Wait::PerhapsInVain(waited) = self.wait {
            self.wait = Wait::None;
            return self.call_perhaps_in_vain(request, waited, outside, now);
        }
        let gate = &self.layer.gate;
        let submitted = self.layer.extract.submitted_at(&request);
        let waited = match mem::take(&mut self.wait) {
            Wait::Lasted(waited) => waited,
            _ => 0,
        };
        match gate.admit(submitted, waited, outside, &mut now) {
            Ok(()) => {
                let permit = gate.permit();
                let _told = aside::tell_time(&now);
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                ResponseFuture::admitted(future, permit.into(), handover.end())
            }
            Err(rejection) => self.reject(request, rejection),
        }
    }
}

impl<S, E, H> CoDel<S, E, H> {
    /// How long the caller has waited so far.
    fn waited(&self) -> u64 {
        match self.wait {
            Wait::Since(since) => self.layer.gate.now().saturating_sub(since),
            Wait::Lasted(waited) | Wait::PerhapsInVain(waited) => waited,
            Wait::None => 0,
        }
    }

    fn reject<R, F>(&mut self, request: R, rejection: Box<Overloaded>) -> ResponseFuture<F, H>
    where
        S: Clone,
        R: 'static,
    {
        // What the inner service has reserved goes back to the next caller.
        self.inner = self.inner.clone();
        hand_back::give(request);
        ResponseFuture::refused(rejection)
    }

    /// What is inside may reject the request in its `call`. Then it says nothing about those that are served, and the law
    /// is not told of it. What is too old is rejected here, whatever is inside.
    #[cold]
    fn call_perhaps_in_vain<R>(
        &mut self,
        request: R,
        waited: u64,
        outside: Option<Waited>,
        mut now: Now,
    ) -> ResponseFuture<S::Future, H>
    where
        S: Service<R> + Clone,
        S::Error: Into<BoxError>,
        E: ExtractSubmittedAt<R>,
        H: Hold<S::Response> + From<Permit>,
        R: 'static,
    {
        let gate = Arc::clone(&self.layer.gate);
        let submitted = self.layer.extract.submitted_at(&request);
        let entry = match gate.try_pass(submitted, waited, outside, &mut now) {
            Ok(entry) => entry,
            Err(rejection) => return self.reject(request, rejection),
        };
        let permit = gate.permit();
        let _told = aside::tell_time(&now);
        let handover = Handover::<S::Error>::begin();
        let future = self.inner.call(request);
        let kept_back = handover.end();
        gate.passed(&entry, kept_back == KeptBack::Rejected);
        ResponseFuture::admitted(future, permit.into(), kept_back)
    }
}

impl<S: Clone, E: Clone, H> Clone for CoDel<S, E, H> {
    /// The clone shares the law. It has not waited.
    fn clone(&self) -> Self {
        self.layer.layer(self.inner.clone())
    }
}

impl<S: fmt::Debug, E, H> fmt::Debug for CoDel<S, E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoDel")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}

/// Looks at a law and changes it while it is in use.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::{CoDelConfig, CoDelLayer, SubmittedAt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let handle = CoDelLayer::new(CoDelConfig::default()).handle();
/// handle.set_target(Duration::from_millis(50))?; // from now on
/// assert!(handle.set_target(Duration::ZERO).is_err()); // and stays at 50 ms
///
/// let permit = handle.try_acquire(SubmittedAt::now())?; // for a worker that has no service
/// let snapshot = handle.snapshot();
/// println!("{} of {} in flight, overloaded: {}", snapshot.in_flight, snapshot.limit, snapshot.overloaded);
/// # drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    gate: Arc<AgeGate>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.gate.gate.bounds.name()
    }

    /// The state now. Taking it starts a new interval for [`peak_in_flight`](Snapshot::peak_in_flight).
    pub fn snapshot(&self) -> Snapshot {
        self.gate.snapshot()
    }

    /// Admits a job that is no request of a tower service, by the same law as those that are. It is in
    /// flight until the permit is dropped.
    ///
    /// # Errors
    /// [`Reason::TooOld`](crate::Reason::TooOld) or [`Reason::AtLimit`](crate::Reason::AtLimit).
    pub fn try_acquire(&self, submitted: SubmittedAt) -> Result<Permit, Overloaded> {
        self.gate
            .enter(Some(submitted), 0, None, &mut Now::default())
            .map_err(|refusal| *refusal)
    }

    /// Changes everything to what this config says, at once. A limit that was not narrowed is the new
    /// `max_concurrency`; one that was stays narrow, within the new bounds.
    ///
    /// # Errors
    /// If a setting is not allowed, as in [`CoDelLayer::new`]; nothing changes.
    pub fn apply(&self, config: &CoDelConfig) -> Result<(), ConfigError> {
        self.gate.set(config.settings()?);
        Ok(())
    }

    /// Changes the target.
    ///
    /// # Errors
    /// If it is 0, or longer than `interval`; nothing changes.
    pub fn set_target(&self, target: Duration) -> Result<(), ConfigError> {
        self.gate.set_target(target)
    }

    /// Changes the interval.
    ///
    /// # Errors
    /// If it is shorter than the target, or than 100 ms; nothing changes.
    pub fn set_interval(&self, interval: Duration) -> Result<(), ConfigError> {
        self.gate.set_interval(interval)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::{convert::Infallible, future::ready, pin::pin};

    use http::{Request, Response};
    use tower::service_fn;

    use super::*;
    use crate::{SubmittedAtLayer, clock};

    #[test]
    fn an_accepted_request_looks_at_the_clock_twice() {
        let codel = CoDelLayer::new(CoDelConfig::default());
        let answers = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
        let mut service = SubmittedAtLayer::new().layer(codel.layer(answers));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let before = clock::READS.get();
        for _ in 0..10 {
            assert!(service.poll_ready(&mut cx).is_ready());
            let response = pin!(service.call(Request::new(())));
            assert!(std::future::Future::poll(response, &mut cx).is_ready());
        }
        assert_eq!(
            clock::READS.get() - before,
            20,
            "the stamp, and the admission"
        );
    }
}
