//! Lets requests that are not work pass by a limit: long polls, event streams, WebSockets.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, BypassLayer, OverloadResponseLayer, edge};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), std::convert::Infallible> {
//! let polls = |request: &Request<String>| request.uri().path() == "/events";
//! let mut service = ServiceBuilder::new()
//!     .layer(BypassLayer::new(polls, edge()).through(OverloadResponseLayer::new()))
//!     .service(service_fn(|_| async { Ok::<_, BoxError>(Response::new("news".to_string())) }));
//!
//! let request = Request::get("/events").body(String::new()).unwrap();
//! assert_eq!(service.ready().await?.call(request).await?.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Around the limits of a service that has routes on which requests wait for news. Such a request holds a permit for as
//! long as it waits, and needs no worker. A fixed limit fills up with them. An adaptive limit takes them for slow work as
//! well. With one long poll of 30 s in ten requests, and the others at 0.8 times what the workers can do, it serves 63 % of
//! the others in front of 4 workers, 52 % in front of 16 and 8 % in front of 64. If the polls pass by it, it serves all.
//!
//! In axum it is not needed. [`Router::layer`] applies to the routes that were added before it:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_backpressure::edge;
//!
//! let app: Router = Router::new()
//!     .route("/work", get(|| async { "done" }))
//!     .layer(edge())
//!     .route("/events", get(|| async { "news" })); // not behind the edge
//! # let _ = app;
//! ```
//!
//! For downloads and other streams that are work while they last there is [`hold`](crate::hold) instead.
//!
//! # Behavior
//! A marked request goes to the service through the layers that [`through`](BypassLayer::through) was given, every other
//! request through those given to [`new`](BypassLayer::new). Both have the same service behind them. Marked requests are
//! neither counted nor sampled by the other layers, and do not wait for them.
//!
//! What passes by a limit needs a bound of its own, because each of these requests takes memory and a connection. That is
//! what `through` is for:
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_backpressure::{BypassLayer, ConcurrencyLimitLayer, LoadShedLayer};
//!
//! struct Job {
//!     polls: bool,
//! }
//!
//! let bounded = ServiceBuilder::new()
//!     .layer(LoadShedLayer::new())
//!     .layer(ConcurrencyLimitLayer::new(10_000).name("polls"));
//! let limit = ServiceBuilder::new()
//!     .layer(LoadShedLayer::new())
//!     .layer(ConcurrencyLimitLayer::new(100));
//! let bypass = BypassLayer::new(|job: &Job| job.polls, limit).through(bounded);
//! # let _ = bypass;
//! ```
//!
//! Always ready. A request waits in its response future, because only `call` sees the request. So put it outside all
//! layers that queue: a fair queue outside of it does not see that a limit inside is full. It does not look at
//! [deadlines](crate::deadline#behavior): the queues inside do.
//!
//! # Errors
//! Those of the layers. Both ways give the same type of response. The error of the marked way is converted to that of the
//! other. With [`edge()`](fn@crate::edge) there are no errors, so marked requests go through an
//! [`OverloadResponseLayer`](crate::OverloadResponseLayer) or something else that answers errors.
//!
//! # Cancellation
//! A response future that is dropped leaves whatever queue it is in, as those of the layers do.
//!
//! # Cloning
//! Clones share what the layers share.
//!
//! # Cost
//! A clone of the service, with its layers, for each request.
//!
//! [`Router::layer`]: https://docs.rs/axum/latest/axum/struct.Router.html#method.layer

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_layer::{Identity, Layer};
use tower_service::Service;

/// Lets marked requests pass by layers. See the [module](self) for all of it.
///
/// `P` tells which requests are marked. `L` is the layer that they pass by, or several by a
/// [`ServiceBuilder`](https://docs.rs/tower/latest/tower/struct.ServiceBuilder.html). `M` is what they go through instead.
#[derive(Clone)]
pub struct BypassLayer<P, L, M = Identity> {
    is_marked: P,
    layers: L,
    through: M,
}

impl<P, L> BypassLayer<P, L> {
    /// Requests for which `is_marked` is true pass by `layers`.
    pub fn new(is_marked: P, layers: L) -> Self {
        Self {
            is_marked,
            layers,
            through: Identity::new(),
        }
    }
}

impl<P, L, M> BypassLayer<P, L, M> {
    /// What marked requests go through instead: nothing by default.
    pub fn through<M2>(self, layers: M2) -> BypassLayer<P, L, M2> {
        BypassLayer {
            is_marked: self.is_marked,
            layers: self.layers,
            through: layers,
        }
    }
}

impl<S, P, L, M> Layer<S> for BypassLayer<P, L, M>
where
    S: Clone,
    P: Clone,
    L: Layer<S>,
    M: Layer<S>,
{
    type Service = Bypass<P, L::Service, M::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        Bypass {
            is_marked: self.is_marked.clone(),
            marked: self.through.layer(inner.clone()),
            others: self.layers.layer(inner),
        }
    }
}

impl<P, L: fmt::Debug, M: fmt::Debug> fmt::Debug for BypassLayer<P, L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BypassLayer")
            .field("layers", &self.layers)
            .field("through", &self.through)
            .finish_non_exhaustive()
    }
}

/// A service with layers that marked requests pass by. Made by [`BypassLayer`].
#[derive(Clone)]
pub struct Bypass<P, L, M> {
    is_marked: P,
    marked: M,
    others: L,
}

impl<R, P, L, M> Service<R> for Bypass<P, L, M>
where
    P: Fn(&R) -> bool,
    L: Service<R> + Clone,
    M: Service<R, Response = L::Response> + Clone,
    M::Error: Into<L::Error>,
{
    type Response = L::Response;
    type Error = L::Error;
    type Future = BypassFuture<L, M, R>;

    /// Always ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), L::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        BypassFuture {
            way: match (self.is_marked)(&request) {
                true => Way::Marked {
                    answer: Answer::to(&self.marked, request),
                },
                false => Way::Other {
                    answer: Answer::to(&self.others, request),
                },
            },
        }
    }
}

impl<P, L: fmt::Debug, M: fmt::Debug> fmt::Debug for Bypass<P, L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bypass")
            .field("marked", &self.marked)
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// The response future of [`Bypass`].
    pub struct BypassFuture<L, M, R>
    where
        L: Service<R>,
        M: Service<R>,
    {
        #[pin]
        way: Way<L, M, R>,
    }
}

pin_project! {
    #[project = WayProjected]
    enum Way<L, M, R>
    where
        L: Service<R>,
        M: Service<R>,
    {
        Marked { #[pin] answer: Answer<M, R> },
        Other { #[pin] answer: Answer<L, R> },
    }
}

pin_project! {
    /// A call of a service that first has to get ready.
    #[project = AnswerProjected]
    enum Answer<S, R>
    where
        S: Service<R>,
    {
        Waits { service: S, request: Option<R> },
        Called { #[pin] future: S::Future },
    }
}

impl<S: Service<R> + Clone, R> Answer<S, R> {
    fn to(service: &S, request: R) -> Self {
        Self::Waits {
            service: service.clone(),
            request: Some(request),
        }
    }
}

impl<S: Service<R>, R> Future for Answer<S, R> {
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let future = match self.as_mut().project() {
                AnswerProjected::Called { future } => return future.poll(cx),
                AnswerProjected::Waits { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    let request = request.take().expect("polled after completion");
                    service.call(request)
                }
            };
            self.set(Self::Called { future });
        }
    }
}

impl<L, M, R> Future for BypassFuture<L, M, R>
where
    L: Service<R>,
    M: Service<R, Response = L::Response>,
    M::Error: Into<L::Error>,
{
    type Output = Result<L::Response, L::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().way.project() {
            WayProjected::Marked { answer } => answer.poll(cx).map_err(Into::into),
            WayProjected::Other { answer } => answer.poll(cx),
        }
    }
}

impl<L, M, R> fmt::Debug for BypassFuture<L, M, R>
where
    L: Service<R>,
    M: Service<R>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BypassFuture").finish_non_exhaustive()
    }
}
