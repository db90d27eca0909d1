//! When nobody waits for an answer any more: read from requests, honoured by queues, and passed on to the next server.
//!
//! ```
//! use std::time::Duration;
//! use http::{HeaderName, Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, Deadline, DeadlineLayer, Overloaded, Reason, deadline::Unit};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let deadlines = DeadlineLayer::new()
//!     .header(HeaderName::from_static("x-request-timeout"), Unit::Millis)
//!     .default_timeout(Duration::from_secs(10))
//!     .max_timeout(Duration::from_secs(30));
//! let mut service = ServiceBuilder::new()
//!     .layer(deadlines)
//!     .service(service_fn(|request: Request<()>| async move {
//!         let deadline: &Deadline = request.extensions().get().expect("the layer sets one");
//!         Ok::<_, BoxError>(Response::new(deadline.remaining()))
//!     }));
//!
//! let request = Request::get("/").header("x-request-timeout", "250").body(())?;
//! let response = service.ready().await?.call(request).await?;
//! assert_eq!(*response.body(), Duration::from_millis(250));
//!
//! let request = Request::post("/").header("grpc-timeout", "0m").body(())?;
//! let error = service.ready().await?.call(request).await.unwrap_err();
//! assert_eq!(Overloaded::find(error.as_ref()).unwrap().reason(), Reason::Deadline);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! In every server whose clients give up. Under overload a request that has waited in a queue is often one that nobody
//! waits for any more, and serving it takes the time in which another one could have been served. With its deadline
//! known, it is rejected instead.
//!
//! A deadline does not end a request that is being served. That is what a timeout is for: put one inside the limits.
//!
//! # Where deadlines come from
//! | source | form |
//! | --- | --- |
//! | a [`Deadline`] in the request's extensions | an instant |
//! | `grpc-timeout`, of gRPC and gRPC-Web | 1 to 8 digits and one of `H`, `M`, `S`, `m`, `u`, `n` |
//! | `connect-timeout-ms`, of Connect | 1 to 10 digits |
//! | [a header of your choice](DeadlineLayer::header) | digits, in the [`Unit`] that you say |
//! | [`default_timeout`](DeadlineLayer::default_timeout), [`max_timeout`](DeadlineLayer::max_timeout) | set by the layer |
//!
//! If there are several, the earliest counts. A header that is not of that form is ignored. Headers need no trust: all that a
//! client can do with one is to be rejected sooner.
//!
//! A header states how much time is left, not a date. The time starts when the request was submitted, if it has a
//! [`SubmittedAt`] stamp: put a [`SubmittedAtLayer`](crate::SubmittedAtLayer) or `StampDecoded` outside everything. Otherwise it
//! starts when the deadline is read.
//!
//! # Behavior
//! [`DeadlineLayer`] puts the deadline into the extensions of each request that has one, where queues further in and the
//! handler find it. A deadline that is there already is never extended. A request whose deadline has passed, or that states a timeout
//! of zero, is rejected and the inner service is not called.
//!
//! | queue | what it does with a deadline |
//! | --- | --- |
//! | [`edge()`](fn@crate::edge), [`Wfq`](crate::Wfq) | honour it: see the [guide](crate::guide::priorities_and_deadlines). A `Wfq` whose tenants are found by a closure is told where it is by [`deadline`](crate::WfqLayer::deadline) |
//! | [`KeyedConcurrencyLimit`](crate::KeyedConcurrencyLimit), [`KeyedRateLimit`](crate::KeyedRateLimit) | honour it, if they are told where to find it by `.deadline(`[`FromRequest`]`)` |
//! | [`ConcurrencyLimit`](crate::ConcurrencyLimit), [`AdaptiveConcurrency`](crate::AdaptiveConcurrency), [`RateLimit`](crate::RateLimit) | cannot see it: their callers wait in `poll_ready`, before there is a request. Set `max_wait`, and put a `DeadlineLayer` inside them: it rejects what has expired while it waited |
//! | [`channel`](crate::channel) | has items and no requests: offer an item with [`send_within`](crate::channel::Sender::send_within) and [`remaining`](Deadline::remaining), and look at [`has_passed`](Deadline::has_passed) when it is received |
//! | `RetryPolicy` (feature `retry`) | makes no retry that would come after it |
//!
//! # Errors
//! [`Overloaded`] with [`Reason::Deadline`]. [`OverloadResponse`](crate::OverloadResponse) answers it with `DEADLINE_EXCEEDED`
//! to gRPC, `deadline_exceeded` to Connect and 503 to HTTP. Errors of the inner service are passed on.
//!
//! # Cancellation
//! Nothing is held for a request.
//!
//! # Cloning
//! Clones share their counts.
//!
//! # Cost
//! Two headers are looked up for each request, and those of your choice. A request with a deadline has its extension
//! allocated. The clock is read once, and only for a request with a deadline.
//!
//! # Passing it on
//! What is left belongs on the calls that a handler makes, less a reserve for what it does with their answers. If nothing is
//! left, the call is not worth making, and these functions say so by an [`Overloaded`] with [`Reason::Deadline`]:
//! [`left`](Deadline::left), [`grpc_timeout`](Deadline::grpc_timeout), [`connect_timeout_ms`](Deadline::connect_timeout_ms),
//! [`timeout_in`](Deadline::timeout_in).

mod extract;
mod layer;
mod timeout;

use std::time::Duration;

use http::{Extensions, HeaderValue};
use tokio::time::Instant;

pub use self::{
    extract::{ExtractDeadline, FromRequest, WithDeadline},
    layer::{DeadlineLayer, Handle, Snapshot, StampDeadline},
    timeout::Unit,
};
use crate::{Overloaded, Reason, SubmittedAt, clock, head::Head};

/// The moment after which nobody waits for the answer any more. An extension of HTTP requests; see the [module](self).
///
/// In a server, queues reject a request when its deadline passes, or when it would not be done before it. In a client,
/// `RetryPolicy` makes no retry after it, and the caller gets the answer that there is.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tower_backpressure::Deadline;
///
/// let request = Request::get("/").extension(Deadline::within(Duration::from_secs(5))).body(());
/// # let _ = request;
/// ```
///
/// A handler of axum reads what a [`DeadlineLayer`] has found:
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tower::ServiceBuilder;
/// use tower_backpressure::{Deadline, DeadlineLayer, OverloadResponseLayer};
///
/// async fn search(deadline: Option<Extension<Deadline>>) -> String {
///     match deadline {
///         Some(Extension(deadline)) => format!("the best results of {:?}", deadline.remaining() / 2),
///         None => "all results".into(),
///     }
/// }
///
/// let app: Router = Router::new().route("/search", get(search)).layer(
///     ServiceBuilder::new().layer(OverloadResponseLayer::new()).layer(DeadlineLayer::new()),
/// );
/// # let _ = app;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

/// No deadline is further away: every clock can count to there.
const FURTHEST: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Nobody is expected to come back, so nothing is known of when that would be worth it.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Deadline {
    /// So long from now, and at most 30 years.
    pub fn within(time: Duration) -> Self {
        Self::after(clock::instant(), time)
    }

    pub(crate) fn after(start: Instant, time: Duration) -> Self {
        Self(start.checked_add(time.min(FURTHEST)).unwrap_or(start))
    }

    /// How much time is left; zero if it has passed.
    pub fn remaining(self) -> Duration {
        self.remaining_at(clock::instant())
    }

    pub(crate) fn remaining_at(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }

    /// Whether nobody waits any more.
    pub fn has_passed(self) -> bool {
        self.has_passed_at(clock::instant())
    }

    #[inline]
    pub(crate) fn has_passed_at(self, now: Instant) -> bool {
        self.0 <= now
    }

    /// How much time a call may take that is made now, if `reserve` is to be left after it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_backpressure::{Deadline, Overloaded};
    ///
    /// fn ask(deadline: Deadline) -> Result<tonic::Request<&'static str>, Overloaded> {
    ///     let mut request = tonic::Request::new("question");
    ///     request.set_timeout(deadline.left(Duration::from_millis(20))?);
    ///     Ok(request)
    /// }
    ///
    /// assert!(ask(Deadline::within(Duration::from_secs(1))).is_ok());
    /// assert!(ask(Deadline::within(Duration::from_millis(10))).is_err());
    /// ```
    ///
    /// # Errors
    /// [`Reason::Deadline`] if nothing is left.
    pub fn left(self, reserve: Duration) -> Result<Duration, Overloaded> {
        let left = self.remaining().saturating_sub(reserve);
        (!left.is_zero()).then_some(left).ok_or_else(too_late)
    }

    /// The value of the header `grpc-timeout` for a call that is made now: what is [left](Self::left), rounded down.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::Request;
    /// use tower_backpressure::{Deadline, Overloaded};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Overloaded> {
    /// let deadline = Deadline::within(Duration::from_secs(2));
    /// let reserve = Duration::from_millis(50);
    /// let request = Request::post("/shop.Orders/List")
    ///     .header("grpc-timeout", deadline.grpc_timeout(reserve)?)
    ///     .body(());
    /// assert_eq!(request.unwrap().headers()["grpc-timeout"], "1950000u");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Reason::Deadline`] if nothing is left.
    pub fn grpc_timeout(self, reserve: Duration) -> Result<HeaderValue, Overloaded> {
        Ok(timeout::write_grpc(self.left(reserve)?))
    }

    /// The value of the header `connect-timeout-ms` for a call that is made now: what is [left](Self::left), rounded down.
    ///
    /// # Errors
    /// [`Reason::Deadline`] if less than a millisecond is left.
    pub fn connect_timeout_ms(self, reserve: Duration) -> Result<HeaderValue, Overloaded> {
        timeout::write_connect(self.left(reserve)?).ok_or_else(too_late)
    }

    /// The value of a header of your own, which the next server reads by [`DeadlineLayer::header`]: what is [left](Self::left),
    /// rounded down.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_backpressure::{Deadline, Overloaded, deadline::Unit};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Overloaded> {
    /// let deadline = Deadline::within(Duration::from_secs(2));
    /// let value = deadline.timeout_in(Unit::Millis, Duration::from_millis(50))?;
    /// assert_eq!(value, "1950");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Reason::Deadline`] if less than one of the unit is left.
    pub fn timeout_in(self, unit: Unit, reserve: Duration) -> Result<HeaderValue, Overloaded> {
        unit.write(self.left(reserve)?).ok_or_else(too_late)
    }

    #[inline]
    pub(crate) fn instant(self) -> Instant {
        self.0
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Self(instant)
    }
}

impl From<std::time::Instant> for Deadline {
    fn from(instant: std::time::Instant) -> Self {
        Self(instant.into())
    }
}

fn too_late() -> Overloaded {
    Overloaded::new("deadline", Reason::Deadline, RETRY_AFTER)
}

/// The deadline of a request: the one in its extensions, or else the one that its protocol states.
pub(crate) fn of(head: &Head<'_>, now: Instant) -> Option<Deadline> {
    let known = head.extensions.get().copied();
    known.or_else(|| {
        let timeout = timeout::stated(head.headers)?;
        Some(Deadline::after(start(head.extensions, now), timeout))
    })
}

/// What a timeout is counted from.
fn start(extensions: &Extensions, now: Instant) -> Instant {
    let submitted = extensions.get::<SubmittedAt>();
    submitted.map_or(now, |submitted| submitted.instant())
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use http::Request;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of_request(request: &Request<()>, now: Instant) -> Option<Duration> {
        let deadline = of(&Head::of(request), now)?;
        Some(deadline.remaining_at(now))
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_starts_when_the_request_was_submitted() {
        let mut request = Request::get("/").header("grpc-timeout", "250m").body(());
        let request = request.as_mut().unwrap();
        let now = clock::instant();
        assert_eq!(of_request(request, now), Some(250 * MS));
        request.extensions_mut().insert(SubmittedAt::now());
        let now = now + 100 * MS;
        assert_eq!(of_request(request, now), Some(150 * MS));
        assert_eq!(of_request(request, now + 150 * MS), Some(Duration::ZERO));
        assert_eq!(of_request(request, now + 151 * MS), Some(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_goes_before_what_the_protocol_states() {
        let now = clock::instant();
        let mut request = Request::get("/")
            .header("connect-timeout-ms", "10")
            .body(());
        let request = request.as_mut().unwrap();
        assert_eq!(of_request(request, now), Some(10 * MS));
        request.extensions_mut().insert(Deadline::within(20 * MS));
        assert_eq!(of_request(request, now), Some(20 * MS));
        assert_eq!(of_request(&Request::new(()), now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_time_is_too_long() {
        let deadline = Deadline::within(Duration::MAX);
        assert_eq!(deadline.remaining(), FURTHEST);
        let request = Request::get("/")
            .header("grpc-timeout", "99999999H")
            .body(());
        let now = clock::instant();
        assert_eq!(of_request(&request.unwrap(), now), Some(FURTHEST));
        // A timer can be set to it.
        let waiting = tokio::time::timeout_at(deadline.instant(), std::future::ready(()));
        assert!(waiting.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_less_the_reserve_and_more_than_nothing() {
        let deadline = Deadline::within(100 * MS);
        assert_eq!(deadline.left(30 * MS), Ok(70 * MS));
        assert_eq!(
            deadline.left(100 * MS).unwrap_err().reason(),
            Reason::Deadline
        );
        assert!(deadline.left(Duration::MAX).is_err());
        assert!(!deadline.has_passed());
        tokio::time::advance(100 * MS).await;
        assert!(deadline.has_passed());
        assert!(deadline.left(Duration::ZERO).is_err());
        assert_eq!(deadline.remaining(), Duration::ZERO);

        let almost = Deadline::within(Duration::from_micros(999));
        assert_eq!(almost.grpc_timeout(Duration::ZERO).unwrap(), "999000n");
        assert!(almost.connect_timeout_ms(Duration::ZERO).is_err());
        assert!(almost.timeout_in(Unit::Millis, Duration::ZERO).is_err());
        assert_eq!(
            almost.timeout_in(Unit::Micros, Duration::ZERO).unwrap(),
            "999"
        );
    }
}
