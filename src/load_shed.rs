//! Refuses at once what would have to wait.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, ConcurrencyLimitLayer, LoadShedLayer, Overloaded, Reason};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let mut service = ServiceBuilder::new()
//!     .layer(LoadShedLayer::new())
//!     .layer(ConcurrencyLimitLayer::new(1))
//!     .service(service_fn(|()| async { Ok::<_, BoxError>("served") }));
//!
//! let first = service.ready().await?.call(());
//! let second = service.ready().await?.call(()).await; // the first is still in flight
//!
//! let error = second.unwrap_err();
//! assert_eq!(Overloaded::find(error.as_ref()).unwrap().reason(), Reason::AtLimit);
//! assert_eq!(first.await?, "served");
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! At the edge, where a client that is told to come back is better off than one that waits. It goes
//! outside the layers whose waits it is to refuse, in the same `ServiceBuilder`: axum's
//! `Router::layer` puts a service that is always ready around each layer, and nothing would be shed
//! through that.
//!
//! **When not to use it:** where a burst is better served a little late than rejected: let it wait, with the `max_waiting` and `max_wait` of
//! the limit, or with a [`CoDelLayer`](crate::CoDelLayer).
//!
//! # Behaviour
//! Always ready. If the inner service was not, `call` answers with [`Overloaded`] and the inner
//! service is not called. If it was a layer of this crate that was not ready, the refusal carries
//! that layer's name, reason and retry hint, and that layer counts it, when `call` answers with it. Otherwise it
//! is [`Reason::NotReady`] with a hint of one second.
//!
//! A service in between may ask several layers, such as one that takes the first service that is ready. If one of
//! them has room, none has rejected anything. If none has, the last one that was asked has.
//!
//! # A shed leaves no trace
//! A limiter that is polled and found full remembers the caller, to hand it the next free permit.
//! But whoever sheds does not come back for it. In tower, a `LoadShed` that was refused once and is
//! then kept, idle, is handed the next permit that gets free, and with a limit of 1 every request
//! after that is refused although nothing runs (`tests/stacks/shed_leaves_no_trace.rs` shows 1000 of 1000).
//!
//! Here the layers of this crate are told that the caller sheds, and remember nothing. An inner
//! limiter of another crate cannot be told, so it is replaced by a fresh clone of itself, whose
//! place in the queue is gone. So is whatever else it had achieved: if it gets ready by being polled
//! several times (it connects, say), put a `Buffer` between it and the shed. Two traces are left, and both end when the service is dropped, as
//! servers do after each request: a `Buffer` in between keeps its own worker waiting, and another
//! crate's limiter *outside* a full one of ours keeps the permit that it took.
//!
//! # Errors
//! [`Overloaded`], or an error of the inner service.
//!
//! # Cancellation
//! Nothing is held but what the inner service holds.
//!
//! # Cloning
//! A clone has been asked nothing yet. There is no state to share.

use std::{
    mem,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use crate::{
    BoxError, Overloaded, Reason, ResponseFuture,
    gate::aside::{
        LimiterId, hand_back,
        handover::Handover,
        shed::{self, Answer},
    },
};

fn not_ready() -> Box<Overloaded> {
    let hint = Duration::from_secs(1);
    Box::new(Overloaded::new("load_shed", Reason::NotReady, hint))
}

/// Refuses at once what would have to wait. See the [module](self) for all of it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadShedLayer;

impl LoadShedLayer {
    /// Sheds whatever the inner service is not ready for.
    pub fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for LoadShedLayer {
    type Service = LoadShed<S>;

    fn layer(&self, inner: S) -> LoadShed<S> {
        LoadShed {
            inner,
            asked: Asked::NotReady,
        }
    }
}

/// A service that refuses rather than waits. Made by [`LoadShedLayer`].
#[derive(Debug)]
pub struct LoadShed<S> {
    inner: S,
    /// What the inner service said. Good for one call.
    asked: Asked,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    NotReady,
    Ready,
    /// This limiter of ours was full.
    Full(LimiterId),
}

impl<S, R> Service<R> for LoadShed<S>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    R: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, ()>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.asked = Asked::NotReady;
        self.asked = ask(&mut self.inner).map_err(Into::into)?;
        Poll::Ready(Ok(()))
    }

    /// Without a `poll_ready` before it, refuses.
    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let asked = mem::replace(&mut self.asked, Asked::NotReady);
        match answer(&mut self.inner, asked) {
            Ok(()) => {
                let handover = Handover::<S::Error>::begin();
                let future = self.inner.call(request);
                ResponseFuture::admitted(future, (), handover.end())
            }
            Err(refusal) => {
                hand_back::give(request);
                ResponseFuture::refused(refusal)
            }
        }
    }
}

/// Sees whether a service is ready now.
#[inline]
pub(crate) fn ask<S, R>(inner: &mut S) -> Result<Asked, S::Error>
where
    S: Service<R> + Clone,
{
    let (polled, full) = shed::poll(|cx| inner.poll_ready(cx));
    match (polled, full) {
        (Poll::Ready(polled), _) => polled.map(|()| Asked::Ready),
        (Poll::Pending, Some(full)) => Ok(Asked::Full(full)),
        (Poll::Pending, None) => {
            *inner = inner.clone();
            Ok(Asked::NotReady)
        }
    }
}

/// Says that a service that was [asked](ask) is to be called now, or why not.
#[inline]
pub(crate) fn answer<S, R>(inner: &mut S, asked: Asked) -> Result<(), Box<Overloaded>>
where
    S: Service<R> + Clone,
{
    match asked {
        Asked::Ready => Ok(()),
        Asked::Full(full) => reject(inner, full),
        Asked::NotReady => Err(not_ready()),
    }
}

/// Asks the limiter that was full for its rejection. By now it may have room, and another one may be full.
#[cold]
fn reject<S, R>(inner: &mut S, mut full: LimiterId) -> Result<(), Box<Overloaded>>
where
    S: Service<R> + Clone,
{
    const ASKS: usize = 4;
    for _ in 0..ASKS {
        match shed::reject(full, |cx| inner.poll_ready(cx)) {
            Answer::Rejected(rejection, is_ready) => {
                if is_ready {
                    *inner = inner.clone(); // what it has reserved goes back
                }
                return Err(rejection);
            }
            Answer::NotRejected(Poll::Ready(Ok(())), _) => return Ok(()),
            Answer::NotRejected(Poll::Pending, Some(other)) => full = other,
            // It is dead, as `poll_ready` will tell, or what holds it up is not ours.
            Answer::NotRejected(..) => break,
        }
    }
    Err(not_ready())
}

impl<S: Clone> Clone for LoadShed<S> {
    fn clone(&self) -> Self {
        LoadShedLayer.layer(self.inner.clone())
    }
}
