//! Refuses work by how full the queues behind the service are: new work first, then all writes, reads
//! never.
//!
//! ```
//! use http::{Method, Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, Overloaded, Reason, SaturationLayer, channel, saturation::Level};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let (commands, _processor) = channel::bounded(10);
//! let saturation = SaturationLayer::new()
//!     .channel(&commands)                        // depth and capacity of a channel of this crate
//!     .probe("orders", || (120, 1000));          // depth and soft limit of anything else
//! let handle = saturation.handle();
//!
//! for command in 0..9 {
//!     commands.send(command).await?;
//! }
//! assert_eq!(handle.snapshot().level, Level::Critical); // 90 % of 10
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(saturation)
//!     .service(service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new("served")) }));
//!
//! let read = Request::new(());
//! assert_eq!(*service.ready().await?.call(read).await?.body(), "served");
//!
//! let create = Request::builder().method(Method::POST).body(())?;
//! let error = service.ready().await?.call(create).await.unwrap_err();
//! assert_eq!(Overloaded::find(error.as_ref()).unwrap().reason(), Reason::Saturated);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Where a request puts something into a queue that others work off: a channel, a table, a message
//! broker. The request itself is done in no time, so neither a concurrency limit nor an adaptive one
//! sees that the work piles up behind it. Refusing it before anything was enqueued is the safe place:
//! nothing has been begun that could be lost or done twice.
//!
//! **When not to use it:** for requests that wait inside the process until they are served: that wait is seen by a
//! [`CoDelLayer`](crate::CoDelLayer), and bounded by the limits.
//!
//! # Behaviour
//! Each probe gives a queue's depth and its soft limit. The worst ratio of all decides:
//!
//! | level | depth / soft limit | new work | writes | reads |
//! | --- | --- | --- | --- | --- |
//! | [`Normal`](Level::Normal) | < 70 % | pass | pass | pass |
//! | [`Warning`](Level::Warning) | 70–85 % | pass | pass | pass |
//! | [`Critical`](Level::Critical) | 85–95 % | refused | pass | pass |
//! | [`Overflow`](Level::Overflow) | > 95 % | refused | refused | pass |
//!
//! A level is reached at once, and left when the ratio is 5 points below its threshold: [`Thresholds`]
//! are settings. Each change is logged, rising as a warning, falling as an information, with the probe
//! and the ratio. With no probe the level is normal. A soft limit of 0 is exceeded by anything but an
//! empty queue.
//!
//! What a request is, is told by a [`ClassifyWork`]: for HTTP by its method ([`ByMethod`]), or by any
//! closure. It is asked only when the level is critical or worse. With [`by_priority`](SaturationLayer::by_priority), the
//! [priority](crate::priority) of a request decides with it.
//!
//! Probes are asked by the request that finds that 10 ms have gone by since they were last
//! ([`sample_every`](SaturationLayer::sample_every)), before it is decided on. Others decide by the
//! last level meanwhile, without a lock, so a probe must not block: one that asks a database tells what
//! a task of yours has last seen. One that panics says nothing at that time; it is logged and counted.
//! So a level is advice, not a limit: what comes at the same moment may all pass.
//!
//! The layer is ready when its inner service is. It decides in `call`; a refusal gives back what the
//! inner service had reserved.
//!
//! # Errors
//! [`Overloaded`] with [`Reason::Saturated`](crate::Reason::Saturated). If the worst queue has got
//! shorter lately, `retry_after` is how long it takes at that pace until such a request passes: a
//! minute at most. Otherwise it is 5 seconds when critical and 10 at overflow, which is what a buffer
//! takes to drain. Errors of the inner service are passed on.
//!
//! # Cancellation
//! Nothing is held for a request, so nothing can be lost.
//!
//! # Cloning
//! One layer value is one level and one set of probes, however often [`Layer::layer`] is called and
//! services are cloned. A probe that is added to a clone of the layer is added to all.

mod probe;
mod watch;
mod work;

use std::{
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use self::watch::Watch;
pub(crate) use self::watch::{DEFAULT_EVERY, check};
pub use self::{
    probe::Probe,
    watch::Snapshot,
    work::{ByMethod, ByPriority, ClassifyWork, Work},
};
pub use crate::law::levels::{Level, Thresholds};
use crate::{
    BoxError, ConfigError, Overloaded, Priority, ResponseFuture, channel, clock,
    config::SaturationConfig,
    gate::aside::{self, hand_back, handover::Handover},
    sync::Arc,
};

/// Refuses by how full queues are. See the [module](self) for all of it.
///
/// `C` tells new work, writes and reads from each other. The settings are the level's, not the layer
/// value's: they apply to everything that is made from it.
#[derive(Clone, Debug)]
pub struct SaturationLayer<C = ByMethod> {
    watch: Arc<Watch>,
    classify: C,
}

impl SaturationLayer {
    /// One level for everything that is made from this value. It has no probes yet. Requests are HTTP
    /// requests, told from each other by their method.
    pub fn new() -> Self {
        Self {
            watch: Arc::new(Watch::new()),
            classify: ByMethod,
        }
    }

    /// As this config says. It has no probes yet.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn from_config(config: &SaturationConfig) -> Result<Self, ConfigError> {
        let layer = Self::new();
        layer.handle().apply(config)?;
        Ok(layer)
    }
}

impl Default for SaturationLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> SaturationLayer<C> {
    /// One more queue to look at: a `Fn() -> (depth, soft_limit)`, or any other [`Probe`].
    pub fn probe(self, name: &'static str, probe: impl Probe) -> Self {
        self.watch.probes.add(name, Box::new(probe));
        self
    }

    /// One more channel to look at, by the name that it has now. It is not kept open.
    pub fn channel<T>(self, sender: &channel::Sender<T>) -> Self {
        let handle = sender.handle();
        self.probe(handle.name(), handle)
    }

    /// Tells requests from each other another way: by a [`ClassifyWork`], such as a `|job: &Job|
    /// Work::New`. Requests may be of any type then.
    pub fn classify<C2>(self, classify: C2) -> SaturationLayer<C2> {
        SaturationLayer {
            watch: self.watch,
            classify,
        }
    }

    /// Less important HTTP requests are refused earlier, and more important ones later, by the [`Priority`] in their
    /// extensions. To be called after [`classify`](Self::classify).
    ///
    /// | priority | new work is refused at | writes are refused at |
    /// | --- | --- | --- |
    /// | background, low | critical | critical |
    /// | normal | critical | overflow |
    /// | high | overflow | overflow |
    /// | critical | no level | no level |
    ///
    /// Reads pass at every level, as before.
    ///
    /// ```
    /// use tower::ServiceBuilder;
    /// use tower_backpressure::{Priority, PriorityLayer, SaturationLayer};
    ///
    /// let layers = ServiceBuilder::new()
    ///     .layer(PriorityLayer::new(|head| match head.uri.path() {
    ///         "/payments" => Priority::Critical,
    ///         _ => Priority::Normal,
    ///     }))
    ///     .layer(SaturationLayer::new().by_priority());
    /// # let _ = layers;
    /// ```
    pub fn by_priority(self) -> SaturationLayer<ByPriority<C>> {
        SaturationLayer {
            watch: self.watch,
            classify: ByPriority(self.classify),
        }
    }

    /// Where the levels begin.
    ///
    /// # Panics
    /// Unless 0 < `warning` < `critical` < `overflow`, and 0 ≤ `hysteresis` < `warning`.
    pub fn thresholds(self, thresholds: Thresholds) -> Self {
        if let Err(error) = self.watch.set_thresholds(thresholds) {
            panic!("SaturationLayer::thresholds: {error}")
        }
        self
    }

    /// How long a look at the probes is good for: by default 10 ms, which a queue that is worth a soft
    /// limit does not fill up in. With 0 each request looks, unless another one is looking.
    pub fn sample_every(self, every: Duration) -> Self {
        self.watch.set_every(every);
        self
    }

    /// A name of its own, for [`Overloaded::layer`] and for logs. The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.watch.name.set(name);
        self
    }

    /// A handle on this level.
    pub fn handle(&self) -> Handle {
        Handle {
            watch: Arc::clone(&self.watch),
        }
    }
}

impl<S, C: Clone> Layer<S> for SaturationLayer<C> {
    type Service = Saturation<S, C>;

    fn layer(&self, inner: S) -> Saturation<S, C> {
        Saturation {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service that refuses by how full queues are. Made by [`SaturationLayer`].
#[derive(Clone, Debug)]
pub struct Saturation<S, C = ByMethod> {
    inner: S,
    layer: SaturationLayer<C>,
}

impl<S, R, C> Service<R> for Saturation<S, C>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    C: ClassifyWork<R>,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, ()>;

    /// Ready when the inner service is.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let SaturationLayer { watch, classify } = &self.layer;
        let mut now = aside::take_time();
        let kind = || (classify.classify(&request), classify.priority(&request));
        match watch.admit(now.instant(), kind) {
            Ok(()) => {
                let _told = aside::tell_time(&now);
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                ResponseFuture::admitted(future, (), handover.end())
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

/// Looks at a level and changes its thresholds while it is in use; asks for code that is no tower
/// service.
///
/// ```
/// use tower_backpressure::{SaturationLayer, saturation::{Thresholds, Work}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let handle = SaturationLayer::new().probe("jobs", || (6, 10)).handle();
/// handle.check(Work::New)?; // before something is enqueued
///
/// handle.set_thresholds(Thresholds::default().warning(0.4).critical(0.5))?;
/// assert!(handle.check(Work::New).is_err());
/// assert!(handle.set_thresholds(Thresholds::default().critical(2.0)).is_err()); // nothing has changed
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    watch: Arc<Watch>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.watch.name.get()
    }

    /// The state now. It looks at the probes, if they have not been looked at lately.
    pub fn snapshot(&self) -> Snapshot {
        self.watch.snapshot(clock::instant())
    }

    /// Decides as for a request that is this kind of work, and counts it.
    ///
    /// # Errors
    /// [`Reason::Saturated`](crate::Reason::Saturated).
    pub fn check(&self, work: Work) -> Result<(), Overloaded> {
        self.watch
            .admit(clock::instant(), || (work, Priority::Normal))
            .map_err(|refusal| *refusal)
    }

    /// Changes everything to what this config says. The probes are looked at again by the next request.
    ///
    /// # Errors
    /// If a setting is not allowed; nothing changes.
    pub fn apply(&self, config: &SaturationConfig) -> Result<(), ConfigError> {
        self.watch.set_thresholds(config.thresholds)?;
        self.watch.set_every(config.sample_every);
        Ok(())
    }

    /// Changes where the levels begin. The probes are looked at again by the next request, unless one is just asking the probes.
    ///
    /// # Errors
    /// Unless 0 < `warning` < `critical` < `overflow`, and 0 ≤ `hysteresis` < `warning`; nothing changes.
    pub fn set_thresholds(&self, thresholds: Thresholds) -> Result<(), ConfigError> {
        self.watch.set_thresholds(thresholds)
    }
}
