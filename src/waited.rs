//! What a queue further out tells the layers inside it about a request.

use std::{cell::Cell, time::Duration};

use crate::gate::nested::LimiterId;

thread_local! {
    /// With the queue that tells it.
    static WAITED: Cell<Option<(Waited, LimiterId)>> = const { Cell::new(None) };
    /// The queue that polls its inner service.
    static ASKING: Cell<Option<LimiterId>> = const { Cell::new(None) };
}

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
        WAITED.get().map(|(waited, _)| waited)
    }

    /// Forgets it: those further in are not told.
    #[inline]
    pub(crate) fn take() {
        WAITED.set(None);
    }

    /// For a layer that decides by it, if it was told by the queue that last [polled](asking) that layer. Those further in are
    /// not told again.
    ///
    /// A handler may call a client stack of its own within its `call`. The queue that the handler's request waited in does
    /// not poll that stack, and what it tells is not for it.
    #[inline]
    pub(crate) fn take_from(queue: LimiterId) -> Option<Self> {
        let (waited, by) = WAITED.take()?;
        (queue == by).then_some(waited)
    }

    /// Tells an inner service that is called meanwhile.
    #[inline]
    pub(crate) fn tell(self, by: LimiterId) -> Telling {
        Telling {
            before: WAITED.replace(Some((self, by))),
        }
    }
}

/// The queue that polls its inner service now, on this thread.
#[inline]
pub(crate) fn asking() -> Option<LimiterId> {
    ASKING.get()
}

/// This queue polls its inner service, until the guard is dropped.
#[inline]
pub(crate) fn ask(by: LimiterId) -> Asking {
    Asking {
        before: ASKING.replace(Some(by)),
    }
}

#[must_use = "it asks until this is dropped"]
pub(crate) struct Asking {
    before: Option<LimiterId>,
}

impl Drop for Asking {
    #[inline]
    fn drop(&mut self) {
        ASKING.set(self.before);
    }
}

/// A guard and not a function around the call, as in [`clock::pass`](crate::clock::pass).
#[must_use = "it is told until this is dropped"]
pub(crate) struct Telling {
    before: Option<(Waited, LimiterId)>,
}

impl Drop for Telling {
    #[inline]
    fn drop(&mut self) {
        WAITED.set(self.before);
    }
}
