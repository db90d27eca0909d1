//! The rejection: one error type for every layer that refuses a request.

use std::{
    error::Error,
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// A boxed error, the error type of every layer that can refuse. The same type as `tower::BoxError`.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A request was refused because accepting it would have asked too much.
///
/// Every layer of this crate refuses with this one type, boxed into a [`BoxError`], and always
/// out of `Service::call`, never as an error of `poll_ready`, which to tower means a dead service.
///
/// # Rejected here, or further in
/// A layer that rejects a request does not hand it to its inner service. So **if
/// [`rejected_here`](Self::rejected_here) is true, the service behind the layers was never called**, and it is safe to send
/// the request again, whatever it does.
///
/// A service can fail with an `Overloaded` too: a handler works for a second, calls another service by a client that has
/// layers of this crate, is rejected there, and passes the error on. Every layer of this crate through which it passes marks
/// it: `rejected_here` is false from then on, because the request may have been carried out in part.
///
/// With a retry policy of another crate in between, only the last attempt is known: an earlier one may have been worked on.
/// `RetryPolicy` marks such a rejection.
///
/// `rejected_here` is seen from where the error is. To the handler, its client's rejection was made here: that call was
/// never made. To the caller of the handler, on the other side of a layer, it came from further in.
///
/// A stack of layers is one place: a limit inside a fair queue rejects here, whichever layer is outermost. It may contain layers
/// of other crates whose `call` calls the next one, such as `Timeout`, `MapErr` or a boxed service. If one of them calls the
/// next one elsewhere (`Buffer` in a task of its own, `oneshot` or axum's `from_fn` in their future), the layers
/// outside cannot know what was kept back inside. A rejection from behind it counts as from further in. A *response*
/// that was made of a rejection (by an [`OverloadResponse`](crate::OverloadResponse) inside) is the service's own word, and
/// is passed on as it is.
///
/// | goes by it | rejected here | further in |
/// | --- | --- | --- |
/// | [`Wfq`](crate::Wfq), [`edge`](crate::edge()): the tenant is charged | nothing | the time that it took |
/// | `RetryPolicy` (feature `retry`) sends again | any request | what may be done twice |
/// | [`OverloadResponse`](crate::OverloadResponse) answers | as its protocol has it | and adds the header [`x-rejected: further-in`](crate::respond) |
/// | breakers, adaptive limits | ignore it | ignore it: what rejects is alive |
///
/// # Example
/// ```
/// use std::time::Duration;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_backpressure::{BoxError, ConcurrencyLimitLayer, Overloaded, Reason};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
/// let mut service = ServiceBuilder::new()
///     .layer(limit.clone())
///     .service(service_fn(|()| async { Ok::<_, BoxError>("served") }));
///
/// let busy = limit.handle().try_acquire()?;
/// let error = service.ready().await?.call(()).await.unwrap_err();
///
/// let overloaded = Overloaded::find(error.as_ref()).expect("the limit is taken");
/// assert_eq!(overloaded.reason(), Reason::QueueFull);
/// assert_eq!(overloaded.layer(), "concurrency_limit");
/// assert!(overloaded.retry_after() > Duration::ZERO);
/// # Ok(())
/// # }
/// ```
pub struct Overloaded {
    layer: &'static str,
    reason: Reason,
    retry_after: Duration,
    exact: bool,
    /// Atomic because an error that wraps this one lends it out only shared. Nothing depends on when it is seen: it is
    /// set by the layer that passes the error on.
    further_in: AtomicBool,
}

/// Why a request was refused.
///
/// More reasons come with more layers, so a `match` needs a `_` arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The limit is reached and the caller did not want to wait: a [`LoadShed`](crate::LoadShed)
    /// stands outside the layer, the caller used `try_acquire`, or it is a layer at which nobody ever
    /// waits ([`CoDel`](crate::CoDel)).
    AtLimit,
    /// The limit is reached and as many callers wait already as may wait (`max_waiting`).
    QueueFull,
    /// The request waited as long as a request may wait (`max_wait`), or was certain to.
    WaitTimeout,
    /// The request is too old to be worth starting: a queue stands in front of the service, or its client
    /// will not wait that long (`max_sojourn`).
    TooOld,
    /// The request's [`Deadline`](crate::Deadline) has passed: nobody waits for the answer any more.
    Deadline,
    /// The request would not be done before its [`Deadline`](crate::Deadline): too many requests are ahead of it, or the
    /// time left is shorter than the service takes. Another server may make it.
    WouldBeLate,
    /// The queue is full, and a request with a higher [`Priority`](crate::Priority) took this one's place.
    Displaced,
    /// It asks for more tokens than the bucket ever holds; trying again does not help.
    ExceedsBurst,
    /// The client has used up its own quota. It is the client that asks for too much, not the server
    /// that can do too little: HTTP 429 rather than 503.
    Quota,
    /// The service has failed too often lately, and is left alone for a while: see
    /// [`CircuitBreaker`](crate::CircuitBreaker).
    CircuitOpen,
    /// A queue behind the service is as good as full: [`Saturation`](crate::Saturation).
    Saturated,
    /// The service under a [`LoadShed`](crate::LoadShed) was not ready, and it was no layer of
    /// this crate that held it up, so nothing more is known.
    NotReady,
}

impl Overloaded {
    pub(crate) const fn new(layer: &'static str, reason: Reason, retry_after: Duration) -> Self {
        Self {
            layer,
            reason,
            retry_after,
            exact: false,
            further_in: AtomicBool::new(false),
        }
    }

    /// The hint is known and not estimated.
    pub(crate) const fn exact(mut self) -> Self {
        self.exact = true;
        self
    }

    /// A service that was given the request has failed with it: it was not made here.
    pub(crate) fn mark_further_in(&self) {
        self.further_in.store(true, Relaxed);
    }

    /// The layer that refused: its own name if it was given one, else the name of its kind.
    pub fn layer(&self) -> &'static str {
        self.layer
    }

    /// Why it refused.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// When to try again, as the layer that rejected estimates it. Never zero.
    ///
    /// It is a hint, not a promise: whoever passes it on to many clients should add some jitter.
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Whether [`retry_after`](Self::retry_after) is known and not estimated: how long a circuit stays open, when a token
    /// will be there. A little jitter is enough then.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether the service was never called, so that the request is safe to send again. Otherwise the service was called,
    /// and failed with a rejection that came from further in: see [above](Self#rejected-here-or-further-in).
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_backpressure::{BoxError, ConcurrencyLimitLayer, Overloaded};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let limit = ConcurrencyLimitLayer::new(1).max_waiting(0); // of the client
    /// let client = limit.layer(service_fn(|()| async { Ok::<_, BoxError>(()) }));
    /// let _busy = limit.handle().try_acquire()?;
    ///
    /// let server = ConcurrencyLimitLayer::new(10).layer(service_fn(move |()| {
    ///     let client = client.clone();
    ///     async move {
    ///         // … some work, and then:
    ///         let rejected = client.oneshot(()).await.unwrap_err();
    ///         assert!(Overloaded::find(rejected.as_ref()).unwrap().rejected_here());
    ///         Err::<(), BoxError>(rejected)
    ///     }
    /// }));
    ///
    /// let error = server.oneshot(()).await.unwrap_err();
    /// assert!(!Overloaded::find(error.as_ref()).unwrap().rejected_here());
    /// # Ok(())
    /// # }
    /// ```
    pub fn rejected_here(&self) -> bool {
        !self.further_in.load(Relaxed)
    }

    /// Finds an `Overloaded` in an error or in what caused it.
    ///
    /// Layers further out may have wrapped the error; this walks the chain of
    /// [`source`](Error::source)s and gives the outermost `Overloaded` in it.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |&error| error.source())
            .find_map(|error| error.downcast_ref())
    }
}

impl Clone for Overloaded {
    fn clone(&self) -> Self {
        Self {
            layer: self.layer,
            reason: self.reason,
            retry_after: self.retry_after,
            exact: self.exact,
            further_in: AtomicBool::new(!self.rejected_here()),
        }
    }
}

impl PartialEq for Overloaded {
    fn eq(&self, other: &Self) -> bool {
        let all = |it: &Self| {
            let hint = (it.retry_after, it.exact);
            (it.layer, it.reason, hint, it.rejected_here())
        };
        all(self) == all(other)
    }
}

impl Eq for Overloaded {}

impl fmt::Debug for Overloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overloaded")
            .field("layer", &self.layer)
            .field("reason", &self.reason)
            .field("retry_after", &self.retry_after)
            .field("rejected_here", &self.rejected_here())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Overloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "overloaded: {} refused the request: {}; retry in {:.1?}",
            self.layer, self.reason, self.retry_after
        )
    }
}

impl Error for Overloaded {}

impl Reason {
    /// The reason as one word, for labels of logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AtLimit => "at_limit",
            Self::QueueFull => "queue_full",
            Self::WaitTimeout => "wait_timeout",
            Self::TooOld => "too_old",
            Self::Deadline => "deadline",
            Self::WouldBeLate => "would_be_late",
            Self::Displaced => "displaced",
            Self::ExceedsBurst => "exceeds_burst",
            Self::Quota => "quota",
            Self::CircuitOpen => "circuit_open",
            Self::Saturated => "saturated",
            Self::NotReady => "not_ready",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLimit => "its limit is reached",
            Self::QueueFull => "its limit is reached and its queue is full",
            Self::WaitTimeout => "the wait is longer than allowed",
            Self::TooOld => "the request is too old",
            Self::Deadline => "its deadline has passed",
            Self::WouldBeLate => "it would not be done before its deadline",
            Self::Displaced => "the queue is full and a more important request took its place",
            Self::ExceedsBurst => "it asks for more than the burst",
            Self::Quota => "the client's quota is used up",
            Self::CircuitOpen => "the circuit is open",
            Self::Saturated => "a queue behind it is nearly full",
            Self::NotReady => "the inner service is not ready",
        })
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    fn overloaded() -> Overloaded {
        Overloaded::new("database", Reason::QueueFull, Duration::from_millis(1500))
    }

    #[derive(Debug)]
    struct Wrapped(BoxError);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("wrapped")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self.0.as_ref())
        }
    }

    #[test]
    fn it_says_which_layer_refused_and_why_and_when_to_retry() {
        assert_eq!(
            overloaded().to_string(),
            "overloaded: database refused the request: its limit is reached and its queue is full; retry in 1.5s"
        );
    }

    #[test]
    fn it_is_found_at_the_top_and_through_a_source_chain() {
        let error: BoxError = Box::new(overloaded());
        assert_eq!(Overloaded::find(error.as_ref()), Some(&overloaded()));

        let error: BoxError = Box::new(Wrapped(Box::new(Wrapped(error))));
        assert_eq!(Overloaded::find(error.as_ref()), Some(&overloaded()));
    }

    #[test]
    fn another_error_is_not_taken_for_it() {
        let error: BoxError = Box::new(Wrapped("overloaded: not really".into()));
        assert_eq!(Overloaded::find(error.as_ref()), None);
    }
}
