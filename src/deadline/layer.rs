//! The layer that fixes deadlines.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, HeaderName, Request};
use tower_layer::Layer;
use tower_service::Service;

use super::{Deadline, RETRY_AFTER, Unit, start, timeout};
use crate::{
    BoxError, Overloaded, Reason, ResponseFuture,
    clock::Now,
    gate::{
        aside::{self, hand_back, handover::Handover},
        bounds::Name,
    },
    observe::refusals::Refusals,
    sync::{AtomicU64, Ordering::Relaxed},
};

/// Fixes the deadline of each request, and rejects what has expired. See the [module](super) for all of it.
#[derive(Clone, Debug)]
pub struct DeadlineLayer {
    settings: Arc<Settings>,
    counts: Arc<Counts>,
}

#[derive(Clone, Debug, Default)]
struct Settings {
    headers: Vec<(HeaderName, Unit)>,
    default_timeout: Option<Duration>,
    max_timeout: Option<Duration>,
}

struct Counts {
    name: Name,
    rejected: AtomicU64,
    refusals: Refusals,
}

impl DeadlineLayer {
    /// Reads `grpc-timeout` and `connect-timeout-ms`. A request without them has no deadline, unless it had one.
    pub fn new() -> Self {
        Self {
            settings: Arc::default(),
            counts: Arc::new(Counts {
                name: Name::new("deadline"),
                rejected: AtomicU64::new(0),
                refusals: Refusals::default(),
            }),
        }
    }

    /// Reads this header too, as a whole number of that unit. There may be several; the least that one of them says counts.
    ///
    /// Envoy sets one on what it sends to its upstreams:
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_backpressure::{DeadlineLayer, deadline::Unit};
    ///
    /// let header = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
    /// let deadlines = DeadlineLayer::new().header(header, Unit::Millis);
    /// # let _ = deadlines;
    /// ```
    pub fn header(self, name: HeaderName, unit: Unit) -> Self {
        self.set(|settings| settings.headers.push((name, unit)))
    }

    /// How long clients wait that do not say. By default as long as the [maximum](Self::max_timeout), or for ever if there is none.
    pub fn default_timeout(self, timeout: Duration) -> Self {
        self.set(|settings| settings.default_timeout = Some(timeout))
    }

    /// No deadline is later than this after the request came, whatever the client says. Default: no bound.
    pub fn max_timeout(self, timeout: Duration) -> Self {
        self.set(|settings| settings.max_timeout = Some(timeout))
    }

    /// A name of its own, for [`Overloaded::layer`]. The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.counts.name.set(name);
        self
    }

    /// A handle that tells how many requests had expired when they came.
    pub fn handle(&self) -> Handle {
        Handle {
            counts: Arc::clone(&self.counts),
        }
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// The request's deadline, which it has from now on.
    fn fix<B>(&self, request: &mut Request<B>, now: &mut Now) -> Option<Deadline> {
        let known: Option<Deadline> = request.extensions().get().copied();
        let timeout = self.settings.timeout(request.headers(), known.is_some());
        let Some(timeout) = timeout else { return known };
        let start = start(request.extensions(), now.instant());
        let own = Deadline::after(start, timeout);
        match known {
            Some(known) if known <= own => Some(known),
            _ => {
                request.extensions_mut().insert(own);
                Some(own)
            }
        }
    }
}

impl Settings {
    fn timeout(&self, headers: &HeaderMap, is_known: bool) -> Option<Duration> {
        let own = self.headers.iter().filter_map(|(name, unit)| {
            let value = headers.get(name)?;
            unit.read(value.as_bytes())
        });
        let stated = timeout::stated(headers).into_iter().chain(own).min();
        let unless_stated = self.default_timeout.filter(|_| !is_known);
        let timeout = stated.or(unless_stated);
        timeout.into_iter().chain(self.max_timeout).min()
    }
}

impl Default for DeadlineLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = StampDeadline<S>;

    fn layer(&self, inner: S) -> StampDeadline<S> {
        StampDeadline {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose requests have deadlines. Made by [`DeadlineLayer`].
#[derive(Clone, Debug)]
pub struct StampDeadline<S> {
    inner: S,
    layer: DeadlineLayer,
}

impl<S, B> Service<Request<B>> for StampDeadline<S>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    B: 'static,
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
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let mut now = aside::take_time();
        let deadline = self.layer.fix(&mut request, &mut now);
        if deadline.is_some_and(|deadline| deadline.has_passed_at(now.instant())) {
            // What it has reserved goes back to whoever is next.
            self.inner = self.inner.clone();
            hand_back::give(request);
            return ResponseFuture::refused(self.layer.counts.reject());
        }
        let _told = aside::tell_time(&now);
        let handover = Handover::<S::Error>::begin();
        let future = self.inner.call(request);
        ResponseFuture::admitted(future, (), handover.end())
    }
}

impl Counts {
    #[cold]
    fn reject(&self) -> Box<Overloaded> {
        let before = self.rejected.fetch_add(1, Relaxed);
        let name = self.name.get();
        self.refusals.note(name, Reason::Deadline, || before + 1);
        Box::new(Overloaded::new(name, Reason::Deadline, RETRY_AFTER))
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts")
            .field("name", &self.name.get())
            .field("rejected", &self.rejected.load(Relaxed))
            .finish()
    }
}

/// Looks at a [`DeadlineLayer`].
#[derive(Clone, Debug)]
pub struct Handle {
    counts: Arc<Counts>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its rejections.
    pub fn name(&self) -> &'static str {
        self.counts.name.get()
    }

    /// The counts now.
    pub fn snapshot(&self) -> Snapshot {
        let rejected = || self.counts.rejected.load(Relaxed);
        self.counts.refusals.settle(self.name(), rejected);
        Snapshot {
            rejected: rejected(),
        }
    }
}

/// What a [`DeadlineLayer`] has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many requests were rejected because they had expired when they came.
    pub rejected: u64,
}
