//! Stamps for hyper's own services.

use http::Request;
use hyper::service::Service;

use super::SubmittedAtLayer;

/// A hyper service that stamps each request at the moment hyper has decoded its head.
///
/// hyper calls a service when it has a request, ready or not: the wait for a tower service to be ready
/// comes after that, in `hyper_util::service::TowerToHyperService`, and so counts towards the request's
/// age.
///
/// ```
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use hyper::{body::{Bytes, Incoming}, service::service_fn};
/// use tower_backpressure::{BoxError, SubmittedAt, submitted_at::StampDecoded};
///
/// let service = StampDecoded::new(service_fn(|request: Request<Incoming>| async move {
///     let submitted: &SubmittedAt = request.extensions().get().expect("stamped");
///     Ok::<_, BoxError>(Response::new(Full::<Bytes>::from(format!("{:?}", submitted.elapsed()))))
/// }));
/// // hyper_util::server::conn::auto::Builder::new(executor).serve_connection(io, service)
/// # let _ = service;
/// ```
#[derive(Clone, Debug)]
pub struct StampDecoded<S> {
    inner: S,
    layer: SubmittedAtLayer,
}

impl<S> StampDecoded<S> {
    /// Around a hyper service: a `service_fn`, or a tower service in a `TowerToHyperService`.
    pub fn new(inner: S) -> Self {
        Self::with(SubmittedAtLayer::new(), inner)
    }

    /// Stamps as this layer does: for one that [trusts a
    /// header](SubmittedAtLayer::dangerously_trust_header).
    pub fn with(layer: SubmittedAtLayer, inner: S) -> Self {
        Self { inner, layer }
    }
}

impl<S, B> Service<Request<B>> for StampDecoded<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<B>) -> S::Future {
        self.layer.stamp(&mut request);
        self.inner.call(request)
    }
}
