//! The layer that puts priorities into extensions.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use super::Priority;
use crate::head::Head;

/// Gives each request the priority that a function finds in its head. See the [module](super) for all of it.
pub struct PriorityLayer<F> {
    find: Arc<F>,
}

impl<F> PriorityLayer<F>
where
    F: Fn(Head<'_>) -> Priority,
{
    /// By this function. [`Rules`](super::Rules) is one with the usual sources: `move |head| rules.of(head)`.
    pub fn new(find: F) -> Self {
        Self {
            find: Arc::new(find),
        }
    }
}

impl<F> Clone for PriorityLayer<F> {
    fn clone(&self) -> Self {
        Self {
            find: Arc::clone(&self.find),
        }
    }
}

impl<F> fmt::Debug for PriorityLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PriorityLayer").finish_non_exhaustive()
    }
}

impl<S, F> Layer<S> for PriorityLayer<F> {
    type Service = StampPriority<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        StampPriority {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose requests have priorities. Made by [`PriorityLayer`].
#[derive(Debug)]
pub struct StampPriority<S, F> {
    inner: S,
    layer: PriorityLayer<F>,
}

impl<S: Clone, F> Clone for StampPriority<S, F> {
    fn clone(&self) -> Self {
        self.layer.layer(self.inner.clone())
    }
}

impl<S, B, F> Service<Request<B>> for StampPriority<S, F>
where
    S: Service<Request<B>>,
    F: Fn(Head<'_>) -> Priority,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let priority = (self.layer.find)(Head::of(&request));
        request.extensions_mut().insert(priority);
        self.inner.call(request)
    }
}
