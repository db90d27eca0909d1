//! How long a request counts as in flight: until its response, or until the end of its body.
//!
//! A response is often only headers, and the work is in the body that streams after them. A limit
//! that lets go at the headers does not limit that work at all. Every layer that holds a permit
//! has `hold_until_body_end()`, which keeps the permit inside the response's body:
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

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

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
#[derive(Debug)]
pub struct UntilResponse(#[allow(dead_code, reason = "held for its drop")] Permit);

/// The request is in flight until the response's body ends, fails or is dropped.
#[derive(Debug)]
pub struct UntilBodyEnd(Permit);

impl From<Permit> for UntilResponse {
    fn from(permit: Permit) -> Self {
        Self(permit)
    }
}

impl From<Permit> for UntilBodyEnd {
    fn from(permit: Permit) -> Self {
        Self(permit)
    }
}

impl<Res> Hold<Res> for UntilResponse {
    type Response = Res;

    fn until_done(self, response: Res) -> Res {
        response
    }
}

impl<B: Body> Hold<Response<B>> for UntilBodyEnd {
    type Response = Response<HeldBody<B>>;

    fn until_done(self, response: Response<B>) -> Self::Response {
        response.map(|body| HeldBody {
            permit: (!body.is_end_stream()).then_some(self.0),
            body,
        })
    }
}

/// Layers that hold nothing.
impl<Res> Hold<Res> for () {
    type Response = Res;

    fn until_done(self, response: Res) -> Res {
        response
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::UntilResponse {}
    impl Sealed for super::UntilBodyEnd {}
    impl Sealed for () {}
}

pin_project! {
    /// A response body that holds its request's permit until it ends, fails or is dropped.
    ///
    /// Otherwise it is the body that it wraps: same frames, same size, same end.
    #[derive(Debug, Default)]
    pub struct HeldBody<B> {
        #[pin]
        body: B,
        permit: Option<Permit>,
    }
}

impl<B: Body> Body for HeldBody<B> {
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
            *this.permit = None;
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
