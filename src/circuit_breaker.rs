//! Leaves a service alone that fails: after so many failures, requests are refused at once, until a probe
//! has shown that it works again.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{
//!     BoxError, CircuitBreakerConfig, CircuitBreakerLayer, Overloaded, circuit_breaker::State,
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let config = CircuitBreakerConfig::default().failures(3).cooldown(Duration::from_secs(10));
//! let breaker = CircuitBreakerLayer::new(config);
//! let handle = breaker.handle();
//! let mut service = ServiceBuilder::new()
//!     .layer(breaker)
//!     .service(service_fn(|()| async { Err::<(), _>("the database is gone") }));
//!
//! for _ in 0..3 {
//!     assert!(service.ready().await?.call(()).await.is_err());
//! }
//! assert_eq!(handle.snapshot().state, State::Open);
//!
//! let error = service.ready().await?.call(()).await.unwrap_err(); // the service is not called
//! let refused = Overloaded::find(error.as_ref()).expect("the circuit is open");
//! assert_eq!(refused.retry_after(), Duration::from_secs(10));
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Around what a server depends on: a database, another service. While that is down, waiting for it to fail
//! takes up time, connections and permits; and the requests that are still sent keep it from coming back.
//! Put it outside the limits and timeouts of that dependency, so that a timeout counts as a failure and a
//! refusal costs no permit. It is not a limit: a service that is overloaded but answers is best
//! helped by an [adaptive limit](crate::adaptive_concurrency).
//!
//! For many endpoints behind one client there is a
//! [circuit for each](crate::keyed_circuit_breaker).
//!
//! **When not to use it:** around your own server. A breaker is for what it depends on.
//!
//! # Behaviour
//! ```text
//!  closed ── 5 failures in a row ──► open ── after 30 s, one request probes ──► half-open
//!     ▲                               ▲                                            │
//!     │                               └──────────── the probe fails ───────────────┤
//!     └─────────────────────────────────────── 2 probes in a row succeed ──────────┘
//! ```
//!
//! **Closed**, requests pass. A success starts the count of failures over. With
//! [`failure_rate`](CircuitBreakerConfig::failure_rate) it is instead the share of failures in a window that
//! opens the circuit, if there were enough requests to tell.
//!
//! **Open**, requests are refused until the cooldown is over.
//!
//! **Half-open**, exactly one request at a time is sent as a probe, and all others are refused. Whatever becomes
//! of a probe, the circuit moves on: a failure and a panic open it for a new cooldown; one that is cancelled
//! or says nothing opens it too, but the next request probes at once; and one that has not ended
//! within its [lease](CircuitBreakerConfig::probe_lease) has failed.
//!
//! What is a failure is told by a [`Classify`], as for the adaptive limit: by default an error that is no
//! refusal; [`ByStatus`](crate::ByStatus) for HTTP and gRPC. A service that rejects is alive, and what it
//! [rejects](crate::Outcome::Rejected) says nothing here: 429, or 503 with `retry-after`. Requests that were
//! sent before the circuit last changed do not count: a late timeout does not open a circuit that has just closed.
//!
//! The layer is as ready as its inner service, but while it refuses it is ready at once: nobody waits for
//! a permit further in only to be refused. Otherwise it decides in `call`; a refusal there gives back what
//! the inner service had reserved.
//!
//! # Errors
//! [`Overloaded`](crate::Overloaded) with [`Reason::CircuitOpen`](crate::Reason::CircuitOpen).
//! `retry_after` is the time that the circuit will stay open, which is [exact](crate::Overloaded::is_exact) unless it was
//! opened by hand, and 5 s while a request probes. Errors of the inner service are passed on.
//!
//! # Cancellation
//! A request that is dropped says nothing about the service. If it was the probe, the next one is.
//!
//! # Cloning
//! One layer value is one circuit, however often [`Layer::layer`] is called and the services are cloned.
//!
//! # Cost
//! While the circuit is closed, two loads of a word that changes only when something fails: no lock, no
//! clock, nothing allocated. Where the share of failures counts, a success also costs a look at the clock and
//! an atomic count. A refusal costs a look at the clock and its error.

mod config;
mod judging;

use std::{
    fmt,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

pub(crate) use self::judging::Judging;
pub use self::{config::CircuitBreakerConfig, judging::CircuitResponseFuture};
use crate::{
    BoxError, ByResult, Classify, ConfigError, ResponseFuture,
    gate::{
        aside::{self, hand_back},
        circuit::{Circuit, Pass},
    },
    law::breaker::After,
    sync::Arc,
};
pub use crate::{gate::circuit::Snapshot, law::breaker::State};

/// Leaves a service alone that fails. See the [module](self) for all of it.
///
/// `C` tells successes from failures.
#[derive(Clone)]
pub struct CircuitBreakerLayer<C = ByResult> {
    circuit: Arc<Circuit>,
    classify: C,
}

impl CircuitBreakerLayer {
    /// One circuit for everything that is made from this value.
    ///
    /// # Panics
    /// If a setting is not allowed: see [`CircuitBreakerConfig`].
    pub fn new(config: CircuitBreakerConfig) -> Self {
        let settings = config.settings();
        let settings = settings.unwrap_or_else(|error| panic!("CircuitBreakerConfig: {error}"));
        Self {
            circuit: Arc::new(Circuit::new(settings, config.clock.unwrap_or_default())),
            classify: ByResult,
        }
    }
}

impl Default for CircuitBreakerLayer {
    fn default() -> Self {
        Self::new(CircuitBreakerConfig::default())
    }
}

impl<C> CircuitBreakerLayer<C> {
    /// Tells successes from failures this way; see [`Classify`].
    pub fn classify<C2>(self, classify: C2) -> CircuitBreakerLayer<C2> {
        CircuitBreakerLayer {
            circuit: self.circuit,
            classify,
        }
    }

    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer) and in logs. The first name
    /// given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.circuit.name.set(name);
        self
    }

    /// A handle on this circuit.
    pub fn handle(&self) -> Handle {
        Handle {
            circuit: Arc::clone(&self.circuit),
        }
    }
}

impl<S, C: Clone> Layer<S> for CircuitBreakerLayer<C> {
    type Service = CircuitBreaker<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker {
            inner,
            layer: self.clone(),
            refusing: None,
            polled: false,
        }
    }
}

impl<C> fmt::Debug for CircuitBreakerLayer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CircuitBreakerLayer")
            .field(&self.circuit)
            .finish()
    }
}

/// A service that is left alone while it fails. Made by [`CircuitBreakerLayer`].
#[derive(Debug)]
pub struct CircuitBreaker<S, C = ByResult> {
    inner: S,
    layer: CircuitBreakerLayer<C>,
    /// The circuit refused before the inner service was asked whether it is ready, and what the caller is to
    /// be told. Good for one call.
    refusing: Option<After>,
    /// The inner service was polled, and may hold or wait for something.
    polled: bool,
}

impl<S, R, C> Service<R> for CircuitBreaker<S, C>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<S::Response>,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = CircuitResponseFuture<S::Future, C, Pass>;

    /// Ready when the inner service is, and at once to refuse.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.refusing = self.layer.circuit.is_refusing();
        if self.refusing.is_some() {
            aside::ready_in_vain(); // `call` says so
            self.give_back();
            return Poll::Ready(Ok(()));
        }
        self.polled = true;
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        if let Some(after) = self.refusing {
            self.refusing = None;
            hand_back::give(request);
            return ResponseFuture::refused(self.layer.circuit.refuse(after));
        }
        match Pass::enter(&self.layer.circuit) {
            Ok(pass) => {
                let classify = self.layer.classify.clone();
                self.polled = false;
                Judging::call(pass, classify, || self.inner.call(request))
            }
            Err(refusal) => {
                self.give_back();
                hand_back::give(request);
                ResponseFuture::refused(refusal)
            }
        }
    }
}

impl<S: Clone, C> CircuitBreaker<S, C> {
    /// What the inner service has reserved, or waits for, is for others.
    #[inline]
    fn give_back(&mut self) {
        if self.polled {
            self.inner = self.inner.clone();
            self.polled = false;
        }
    }
}

impl<S: Clone, C: Clone> Clone for CircuitBreaker<S, C> {
    fn clone(&self) -> Self {
        self.layer.layer(self.inner.clone())
    }
}

/// Looks at a circuit, and opens and closes it by hand.
///
/// ```
/// use tower_backpressure::{CircuitBreakerLayer, circuit_breaker::State};
///
/// let handle = CircuitBreakerLayer::default().handle();
/// handle.force_open(); // for maintenance, until
/// assert_eq!(handle.snapshot().state, State::Open);
/// handle.reset();
/// assert_eq!(handle.snapshot().state as u8, 0); // closed, as a gauge has it
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    circuit: Arc<Circuit>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.circuit.name.get()
    }

    /// The state now.
    pub fn snapshot(&self) -> Snapshot {
        self.circuit.snapshot()
    }

    /// Changes everything but the clock to what this config says, at once, and leaves the circuit as it is.
    /// What counts as enough is judged by the next result. An open circuit is not open for longer than the
    /// new cooldown from now. A window of another length starts empty.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &CircuitBreakerConfig) -> Result<(), ConfigError> {
        self.circuit.set(config.settings()?);
        Ok(())
    }

    /// Closes the circuit, however it came to be open, and forgets the failures before. What is on its way
    /// does not count any more.
    pub fn reset(&self) {
        self.circuit.reset();
    }

    /// Opens the circuit until it is [reset](Self::reset): no request probes. Clients are told to come
    /// back after a cooldown.
    pub fn force_open(&self) {
        self.circuit.force_open();
    }
}
