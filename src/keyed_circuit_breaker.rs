//! A circuit for each endpoint: one that fails is left alone, and the others are not.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{
//!     BoxError, CircuitBreakerConfig, KeyedCircuitBreakerLayer, circuit_breaker::State,
//! };
//!
//! struct Webhook { host: &'static str }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let config = CircuitBreakerConfig::default().failures(3);
//! let breakers = KeyedCircuitBreakerLayer::new(config, |hook: &Webhook| Some(hook.host));
//! let handle = breakers.handle();
//! let mut client = ServiceBuilder::new().layer(breakers).service(service_fn(|hook: Webhook| async move {
//!     match hook.host {
//!         "broken.example" => Err("connection refused"),
//!         _ => Ok("delivered"),
//!     }
//! }));
//!
//! for _ in 0..5 {
//!     assert!(client.ready().await?.call(Webhook { host: "broken.example" }).await.is_err());
//!     assert!(client.ready().await?.call(Webhook { host: "fine.example" }).await.is_ok());
//! }
//! assert_eq!(handle.state("broken.example"), State::Open);
//! assert_eq!(handle.state("fine.example"), State::Closed);
//! assert_eq!(handle.snapshot().rejected, 2); // the last two were not sent
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! In a client of many endpoints, such as one that delivers webhooks or calls the instances of a service. For
//! one endpoint there is [`CircuitBreakerLayer`](crate::CircuitBreakerLayer), which is cheaper.
//!
//! # Behaviour
//! Each key has a circuit that behaves as [that of one service](crate::circuit_breaker). The key is whatever a
//! function makes of the request; requests without one (`None`) share a circuit, which a [`Handle`] does not
//! know of. The layer is as ready as its inner service: which circuit it is, is not known before `call`. So a
//! limit for all endpoints together goes outside, where one that is down does not make all wait to be refused.
//!
//! **Memory is bounded.** A key whose circuit is closed, with no failure since the last success, is not
//! remembered, so a healthy endpoint costs nothing. At most
//! [`max_keys`](KeyedCircuitBreakerLayer::max_keys) (10 000) are; when there are that many, those that are
//! have not been heard of for as long as a probe may take, or a cooldown if that is longer, are forgotten:
//! failures that were too few, and circuits whose cooldown is over and that nobody probes.
//! Where that makes no room, results of new keys do not count, and their requests pass: see
//! [`untracked`](Snapshot::untracked). With [`failure_rate`](crate::CircuitBreakerConfig::failure_rate) every
//! key is remembered that had a request within the window.
//!
//! # Errors
//! [`Overloaded`](crate::Overloaded) with [`Reason::CircuitOpen`](crate::Reason::CircuitOpen). Errors of the
//! inner service are passed on.
//!
//! # Cancellation
//! A request that is dropped says nothing about its endpoint. If it was the probe, the next one is.
//!
//! # Cloning
//! One layer value is one set of circuits, however often [`Layer::layer`] is called and the services are
//! cloned.
//!
//! # Cost
//! While no key is remembered, two loads and the hash of the key. Otherwise a short lock when a request
//! comes and another when it has ended.

use std::{
    fmt,
    hash::Hash,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

pub use crate::gate::circuits::Snapshot;
use crate::{
    BoxError, ByResult, CircuitBreakerConfig, Classify, ConfigError, ResponseFuture,
    circuit_breaker::{CircuitResponseFuture, Judging, State},
    config::KeyedCircuitBreakerConfig,
    gate::{
        aside::hand_back,
        circuits::{Circuits, KeyedPass},
    },
    sync::Arc,
};

/// A circuit for each key. See the [module](self) for all of it.
///
/// `K` finds a request's key, `C` tells successes from failures.
pub struct KeyedCircuitBreakerLayer<K, C = ByResult> {
    circuits: Arc<Circuits>,
    key: Arc<K>,
    classify: C,
}

impl<K> KeyedCircuitBreakerLayer<K> {
    /// Such a circuit for each key, where `key` is a `Fn(&Request) -> Option<impl Hash>`.
    ///
    /// Write the type of its argument out (`|request: &Request<Body>| …`), or the compiler does not
    /// find it.
    ///
    /// # Panics
    /// If a setting is not allowed: see [`CircuitBreakerConfig`].
    pub fn new(config: CircuitBreakerConfig, key: K) -> Self {
        let settings = config.settings();
        let settings = settings.unwrap_or_else(|error| panic!("CircuitBreakerConfig: {error}"));
        Self {
            circuits: Arc::new(Circuits::new(settings, config.clock.unwrap_or_default())),
            key: Arc::new(key),
            classify: ByResult,
        }
    }

    /// As this config says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &KeyedCircuitBreakerConfig, key: K) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::new(config.circuit.clone(), key).max_keys(config.max_keys))
    }
}

impl<K, C> KeyedCircuitBreakerLayer<K, C> {
    /// Tells successes from failures this way; see [`Classify`].
    pub fn classify<C2>(self, classify: C2) -> KeyedCircuitBreakerLayer<K, C2> {
        KeyedCircuitBreakerLayer {
            circuits: self.circuits,
            key: self.key,
            classify,
        }
    }

    /// At most so many keys are remembered: by default 10 000.
    pub fn max_keys(self, max_keys: usize) -> Self {
        self.circuits.set_max_keys(max_keys);
        self
    }

    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer) and in logs. The first name
    /// given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.circuits.name.set(name);
        self
    }

    /// A handle on these circuits.
    pub fn handle(&self) -> Handle {
        Handle {
            circuits: Arc::clone(&self.circuits),
        }
    }
}

impl<S, K, C: Clone> Layer<S> for KeyedCircuitBreakerLayer<K, C> {
    type Service = KeyedCircuitBreaker<S, K, C>;

    fn layer(&self, inner: S) -> Self::Service {
        KeyedCircuitBreaker {
            inner,
            layer: self.clone(),
        }
    }
}

impl<K, C: Clone> Clone for KeyedCircuitBreakerLayer<K, C> {
    fn clone(&self) -> Self {
        Self {
            circuits: Arc::clone(&self.circuits),
            key: Arc::clone(&self.key),
            classify: self.classify.clone(),
        }
    }
}

impl<K, C> fmt::Debug for KeyedCircuitBreakerLayer<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyedCircuitBreakerLayer")
            .field(&self.circuits)
            .finish()
    }
}

/// A service whose endpoints are left alone while they fail. Made by [`KeyedCircuitBreakerLayer`].
#[derive(Debug)]
pub struct KeyedCircuitBreaker<S, K, C = ByResult> {
    inner: S,
    layer: KeyedCircuitBreakerLayer<K, C>,
}

impl<S, R, K, F, C> Service<R> for KeyedCircuitBreaker<S, F, C>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    F: Fn(&R) -> Option<K>,
    K: Hash,
    C: Classify<S::Response>,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = CircuitResponseFuture<S::Future, C, KeyedPass>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let circuits = &self.layer.circuits;
        let key = circuits.fingerprint((self.layer.key)(&request));
        match KeyedPass::enter(circuits, key) {
            Ok(pass) => {
                let classify = self.layer.classify.clone();
                Judging::call(pass, classify, || self.inner.call(request))
            }
            Err(refusal) => {
                // What it has reserved goes back to whoever is next.
                self.inner = self.inner.clone();
                hand_back::give(request);
                ResponseFuture::refused(refusal)
            }
        }
    }
}

impl<S: Clone, K, C: Clone> Clone for KeyedCircuitBreaker<S, K, C> {
    fn clone(&self) -> Self {
        self.layer.layer(self.inner.clone())
    }
}

/// Looks at the circuits, and opens and closes them by hand.
///
/// Keys are the same if their hashes are, so use the type that the layer's function gives, or one that
/// hashes alike (`&str` and `String` do).
#[derive(Clone, Debug)]
pub struct Handle {
    circuits: Arc<Circuits>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.circuits.name.get()
    }

    /// The state of all of them now. It goes through all keys that are remembered.
    pub fn snapshot(&self) -> Snapshot {
        self.circuits.snapshot()
    }

    /// Changes everything but the clock to what this config says, at once, and leaves the circuits as they
    /// are. They are judged as by [`circuit_breaker::Handle::apply`](crate::circuit_breaker::Handle::apply).
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &KeyedCircuitBreakerConfig) -> Result<(), ConfigError> {
        let settings = config.circuit.settings()?;
        self.circuits.set(settings, config.max_keys);
        Ok(())
    }

    /// The state of one. Closed, if nothing is known of it.
    pub fn state<K: Hash + ?Sized>(&self, key: &K) -> State {
        self.circuits.state(self.circuits.fingerprint(Some(key)))
    }

    /// Closes one circuit, however it came to be open, and forgets the failures before.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        self.circuits.reset(self.circuits.fingerprint(Some(key)));
    }

    /// Opens one circuit until it is [reset](Self::reset): no request probes.
    ///
    /// # Errors
    /// If there is no room for another key; nothing changes.
    pub fn force_open<K: Hash + ?Sized>(&self, key: &K) -> Result<(), ConfigError> {
        let key = self.circuits.fingerprint(Some(key));
        self.circuits.force_open(key)
    }
}
