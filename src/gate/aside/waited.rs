//! What a fair queue tells the layers inside it about a request.

use std::time::Duration;

use super::{LimiterId, Telling, get, replace, tell};

/// How long the request that is being called has waited in a [`Wfq`](crate::Wfq) further out, and how
/// long others have.
///
/// A layer inside the `Wfq`, in the same `ServiceBuilder`, can ask for it in its `call`. Inside a
/// [`CoDel`](crate::CoDel), which decides by it, nothing is known of it any more.
///
/// ```
/// use std::time::Duration;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_backpressure::{BoxError, Waited, WfqConfig, WfqLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let mut service = ServiceBuilder::new()
///     .layer(WfqLayer::new(WfqConfig::default(), |_: &()| Some("tenant")))
///     .map_request(|()| Waited::current()) // called by the one outside it, as layers are
///     .service(service_fn(|waited: Option<Waited>| async move { Ok::<_, BoxError>(waited) }));
///
/// let waited = service.ready().await?.call(()).await?.expect("it came through a Wfq");
/// assert_eq!((waited.own, waited.oldest), (Duration::ZERO, None));
/// assert_eq!(Waited::current(), None); // nothing is being called here
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waited {
    /// How long this request waited, from its `call` until it was sent on.
    pub own: Duration,
    /// How long the one that has waited longest has waited so far, if one waits: of all tenants, but for
    /// those that have as many in flight as they may (`max_in_flight_per_tenant`).
    pub oldest: Option<Duration>,
}

impl Waited {
    /// Of the request that is being called on this thread. `None` outside of a `Service::call`, and where
    /// no `Wfq` is further out.
    pub fn current() -> Option<Self> {
        get(|told| &told.waited).map(|(waited, _)| waited)
    }

    /// The queue `by` tells an inner service that it calls.
    #[inline]
    pub(crate) fn tell(self, by: LimiterId) -> Telling<Option<(Self, LimiterId)>> {
        tell(|told| &told.waited, Some((self, by)))
    }

    /// Forgets it: layers further in are not told.
    #[inline]
    pub(crate) fn forget() {
        replace(|told| &told.waited, None);
    }

    /// What `queue` tells, for a layer that it has [polled](polled_by). Layers further in are not told again.
    ///
    /// A handler may call a client stack of its own within its `call`. The queue that the handler's request waited in does
    /// not poll that stack, and what it tells is not for it.
    #[inline]
    pub(crate) fn take_from(queue: LimiterId) -> Option<Self> {
        let (waited, by) = replace(|told| &told.waited, None)?;
        (queue == by).then_some(waited)
    }
}

/// The queue polls its inner service for a request that is to be sent.
#[inline]
pub(crate) fn poll_for(queue: LimiterId) -> Telling<Option<LimiterId>> {
    tell(|told| &told.polled_by, Some(queue))
}

/// The queue that polls its inner service now.
#[inline]
pub(crate) fn polled_by() -> Option<LimiterId> {
    get(|told| &told.polled_by)
}
