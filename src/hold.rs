//! How long a request counts as in flight: until its response, or until the end of its body.
//!
//! A response is often only headers, and the work is in the body that streams after them. A limit that
//! lets go at the headers does not limit that work at all. Every layer that holds a permit has
//! `hold_until_body_end()`, which keeps the permit inside the response's body:
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, ConcurrencyLimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let limit = ConcurrencyLimitLayer::new(10).hold_until_body_end();
//! let handle = limit.handle();
//! let mut service = ServiceBuilder::new().layer(limit).service(service_fn(
//!     |_: Request<()>| async { Ok::<_, BoxError>(Response::new(Full::new(Bytes::from("hello")))) },
//! ));
//!
//! let response = service.ready().await?.call(Request::new(())).await?;
//! assert_eq!(handle.snapshot().in_flight, 1); // the headers are here, the body is not
//!
//! let body = response.into_body().collect().await?.to_bytes();
//! assert_eq!(body, "hello");
//! assert_eq!(handle.snapshot().in_flight, 0);
//! # Ok(())
//! # }
//! ```
//!
//! A connection that is upgraded, such as a WebSocket, has a response whose body ends at once: see
//! [`KeepPermits`].

use std::{
    any::Any,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use self::sealed::Held;
use crate::{BoxError, Permit};

/// What becomes of a permit when its response is there. Implemented by [`UntilResponse`] and
/// [`UntilBodyEnd`].
#[diagnostic::on_unimplemented(
    message = "a permit cannot be held this way for a response of type `{Res}`",
    note = "`hold_until_body_end()` needs a service whose response is an `http::Response`"
)]
pub trait Hold<Res>: sealed::Sealed {
    /// The response that the layer gives.
    type Response;

    /// Lets go, or has the response hold on.
    fn until_done(self, response: Res) -> Self::Response;

    /// There is no response: lets go.
    fn failed(self, error: &BoxError)
    where
        Self: Sized,
    {
        let _ = error;
    }
}

/// The request is in flight until the inner future completes. The default.
///
/// `P` is what is held for it.
#[derive(Debug)]
pub struct UntilResponse<P = Permit>(P);

/// The request is in flight until the response's body ends, fails or is dropped.
#[derive(Debug)]
pub struct UntilBodyEnd<P = Permit>(P);

impl<P> From<P> for UntilResponse<P> {
    fn from(held: P) -> Self {
        Self(held)
    }
}

impl<P> From<P> for UntilBodyEnd<P> {
    fn from(held: P) -> Self {
        Self(held)
    }
}

impl<Res, P: Held> Hold<Res> for UntilResponse<P> {
    type Response = Res;

    #[inline(always)] // a response is large, and a call would copy it
    fn until_done(self, response: Res) -> Res {
        response
    }

    fn failed(self, error: &BoxError) {
        self.0.failed(error);
    }
}

impl<B: Body, P: Held> Hold<Response<B>> for UntilBodyEnd<P> {
    type Response = Response<HeldBody<B, P>>;

    fn until_done(self, response: Response<B>) -> Self::Response {
        let keep: Option<&KeepPermits> = response.extensions().get();
        let held = match keep {
            None => (!response.body().is_end_stream()).then_some(self.0),
            Some(keep) => {
                keep.deposit(self.0);
                None
            }
        };
        response.map(|body| HeldBody { held, body })
    }

    fn failed(self, error: &BoxError) {
        self.0.failed(error);
    }
}

/// Keeps what is held for a request until this, and all its clones, are dropped.
///
/// A handler puts one into the extensions of its response and takes another along. With
/// `hold_until_body_end()`, all layers further out leave their permits with it, instead of giving them
/// back at the end of the response's body.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Empty;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_backpressure::{BoxError, ConcurrencyLimitLayer, hold::KeepPermits};
///
/// async fn upgrade(_: Request<()>) -> Result<Response<Empty<Bytes>>, BoxError> {
///     let keep = KeepPermits::new();
///     let mut response = Response::new(Empty::new());
///     response.extensions_mut().insert(keep.clone());
///     tokio::spawn(async move {
///         let _keep = keep; // as long as there is something to do on the connection
///     });
///     Ok(response)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let limit = ConcurrencyLimitLayer::new(10).hold_until_body_end();
/// let handle = limit.handle();
/// let mut service = ServiceBuilder::new().layer(limit).service(service_fn(upgrade));
///
/// let response = service.ready().await?.call(Request::new(())).await?;
/// drop(response);
/// assert_eq!(handle.snapshot().in_flight, 1); // the task has it
/// tokio::task::yield_now().await;
/// assert_eq!(handle.snapshot().in_flight, 0); // and is done
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct KeepPermits(Arc<Mutex<Vec<Box<dyn Any + Send>>>>);

impl KeepPermits {
    /// One that keeps nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn deposit(&self, held: impl Any + Send) {
        let mut kept = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        kept.push(Box::new(held));
    }
}

impl fmt::Debug for KeepPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepPermits").finish_non_exhaustive()
    }
}

/// Layers that hold nothing.
impl<Res> Hold<Res> for () {
    type Response = Res;

    #[inline(always)]
    fn until_done(self, response: Res) -> Res {
        response
    }
}

/// How long requests count as in flight, whatever is held for them. Implemented by [`UntilResponse`] and
/// [`UntilBodyEnd`].
pub trait HoldKind: sealed::Sealed {
    /// The hold of this kind, for what is held.
    type Of<P>;
}

impl HoldKind for UntilResponse {
    type Of<P> = UntilResponse<P>;
}

impl HoldKind for UntilBodyEnd {
    type Of<P> = UntilBodyEnd<P>;
}

pub(crate) mod sealed {
    use crate::{BoxError, Permit, gate::aside::LimiterId};

    pub trait Sealed {
        /// The inner service has panicked. What is held may yet be kept, if the panic is caught.
        fn panicked(&mut self) {}

        /// The limiter of which a permit is held, if it is one at which requests can wait.
        fn limiter(&self) -> Option<LimiterId> {
            None
        }

        /// If it holds nothing. Then there is nothing to let go of, and no need to drop the inner future before the
        /// response is passed on: `load_shed_accept` takes 124 instructions instead of 134, `respond, GET` 29 less.
        fn nothing() -> Option<Self>
        where
            Self: Sized,
        {
            None
        }
    }
    impl<P: Held> Sealed for super::UntilResponse<P> {
        fn limiter(&self) -> Option<LimiterId> {
            self.0.limiter()
        }
    }
    impl<P: Held> Sealed for super::UntilBodyEnd<P> {
        fn limiter(&self) -> Option<LimiterId> {
            self.0.limiter()
        }
    }
    impl Sealed for () {
        fn nothing() -> Option<Self> {
            Some(())
        }
    }

    /// What is held for a request, and let go of by being dropped.
    pub trait Held: Send + Sized + 'static {
        /// See [`Sealed::limiter`].
        fn limiter(&self) -> Option<LimiterId>;

        /// There is no response: lets go.
        fn failed(self, error: &BoxError) {
            let _ = error;
        }
    }
    impl Held for Permit {
        fn limiter(&self) -> Option<LimiterId> {
            Some(LimiterId::of(self.gate()))
        }
    }
}

pin_project! {
    /// A response body that holds its request's permit until it ends, fails or is dropped.
    ///
    /// Otherwise it is the body that it wraps: same frames, same size, same end.
    #[derive(Debug)]
    pub struct HeldBody<B, P = Permit> {
        #[pin]
        body: B,
        held: Option<P>,
    }
}

impl<B: Default, P> Default for HeldBody<B, P> {
    fn default() -> Self {
        Self {
            body: B::default(),
            held: None,
        }
    }
}

impl<B: Body, P> Body for HeldBody<B, P> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        // A server need not poll again after the last frame, so it is looked for here.
        let last = match &frame {
            Some(Ok(frame)) => frame.is_trailers() || this.body.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if last {
            *this.held = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
