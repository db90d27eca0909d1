//! `edge()` in front of the [simulated server](crate::simulation): its requests as those of HTTP.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{BoxError, Layer, Service, ServiceBuilder, layer::layer_fn};
use tower_backpressure::{
    Edge,
    wfq::{ExtractTenant, TenantId},
};

use crate::simulation::{Inner, Job, Stack};

/// The part of an edge that decides, around the server.
pub fn edged<E>(edge: Edge<E>) -> impl Layer<Inner, Service = impl Stack + use<E>> + use<E>
where
    E: ExtractTenant<Request<Job>> + 'static,
{
    ServiceBuilder::new()
        .layer(layer_fn(Client))
        .layer(edge.gates())
        .layer(layer_fn(Handler))
        .into_inner()
}

#[derive(Clone)]
struct Client<S>(S);

impl<S> Service<Job> for Client<S>
where
    S: Service<Request<Job>, Response = Response<()>, Error = BoxError, Future: 'static>,
{
    type Response = ();
    type Error = BoxError;
    type Future = Answer<Pin<Box<S::Future>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, job: Job) -> Self::Future {
        let mut request = Request::new(job);
        let extensions = request.extensions_mut();
        if job.tenant > 0 {
            extensions.insert(TenantId::new(job.tenant.to_string()));
        }
        extensions.insert(job.priority);
        if let Some(deadline) = job.deadline {
            extensions.insert(deadline);
        }
        Answer(Box::pin(self.0.call(request)))
    }
}

pub struct Answer<F>(F);

impl<F> Future for Answer<F>
where
    F: Future<Output = Result<Response<()>, BoxError>> + Unpin,
{
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_ok(|_| ())
    }
}

#[derive(Clone)]
struct Handler(Inner);

impl Service<Request<Job>> for Handler {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = Handled;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Job>) -> Handled {
        Handled(self.0.call(request.into_body()))
    }
}

pub struct Handled(<Inner as Service<Job>>::Future);

impl Future for Handled {
    type Output = Result<Response<()>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map_ok(|()| Response::new(()))
    }
}
