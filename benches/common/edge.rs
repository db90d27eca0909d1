//! `edge()` over an HTTP service that does nothing, beside that service alone.

#![allow(dead_code, reason = "each bench uses a part of it")]

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
};

use http::{Method, Request, Response, StatusCode};
use tower::Service;
use tower_backpressure::wfq::TenantId;

/// Always ready, answers 200 at once.
#[derive(Clone, Debug)]
pub struct Answers;

impl Service<Request<String>> for Answers {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

/// `n` requests without a tenant, each through a clone of the service, as servers make them.
pub fn drive_http<S, B>(service: &S, n: u64)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone,
{
    (0..n).for_each(|_| serve(service, Request::new(String::new())));
}

/// The same, each with a body.
pub fn drive_http_post<S, B>(service: &S, n: u64)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone,
{
    for _ in 0..n {
        let mut request = Request::new(String::from("body"));
        *request.method_mut() = Method::POST;
        serve(service, request);
    }
}

/// The same, of 1000 tenants in turn.
pub fn drive_http_tenants<S, B>(service: &S, n: u64)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone,
{
    let tenants: Vec<_> = (0..1000)
        .map(|tenant| TenantId::new(format!("tenant-{tenant}")))
        .collect();
    for tenant in tenants.iter().cycle().take(n as usize) {
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(tenant.clone());
        serve(service, request);
    }
}

#[inline]
fn serve<S, B>(service: &S, request: Request<String>)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone,
{
    let mut cx = Context::from_waker(Waker::noop());
    let mut service = service.clone();
    assert!(service.poll_ready(&mut cx).is_ready());
    match pin!(service.call(black_box(request))).poll(&mut cx) {
        Poll::Ready(Ok(response)) => assert_eq!(response.status(), StatusCode::OK),
        Poll::Pending => panic!("pending"),
    }
}

/// Something that requests can be sent through by several threads, without a tenant or of these in turn.
#[allow(dead_code, reason = "not all benches have threads")]
pub trait Driver: 'static {
    fn requests(&self, tenants: &[String]) -> impl FnMut() -> bool + Send + 'static;
}

impl<S, B> Driver for S
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
{
    fn requests(&self, tenants: &[String]) -> impl FnMut() -> bool + Send + 'static {
        let tenants: Vec<_> = tenants
            .iter()
            .map(|name| TenantId::new(name.as_str()))
            .collect();
        let (service, mut next) = (self.clone(), 0);
        move || {
            let mut request = Request::new(String::new());
            if let Some(tenant) = tenants.get(next) {
                request.extensions_mut().insert(tenant.clone());
                next = (next + 1) % tenants.len();
            }
            serve(&service, request);
            true
        }
    }
}
