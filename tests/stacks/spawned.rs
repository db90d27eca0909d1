//! Stacks over a service whose error is a `BoxError`, awaited in an async block that is spawned.
//!
//! Whether the block is `Send` is decided without its lifetimes: the compiler asks for
//! `Box<dyn Error + Send + Sync + 'a>: Into<BoxError>` for any `'a`, and says that "implementation of `From` is not
//! general enough". It asks where a type in the block has to be looked up by way of a service (`S::Future`) and the
//! type of that service names a `BoxError`. All of these compile because nothing has to be looked up so.

use std::{
    future::Future,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer,
    KeyedRateLimitLayer, LoadShedLayer, OverloadResponseLayer, Rate, RateLimitLayer,
    SaturationLayer, ShadowLayer, SubmittedAt, WfqConfig, WfqLayer, edge,
};

type Boxed<R, Res> = BoxCloneService<R, Res, BoxError>;

fn boxed() -> Boxed<u32, u32> {
    BoxCloneService::new(service_fn(|n: u32| async move { Ok(n) }))
}

async fn join<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    tokio::spawn(task).await.unwrap()
}

/// Each layer, with a limit in it whose own future must not be looked up either.
macro_rules! layers {
    ($($name:ident: $layer:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let service = ServiceBuilder::new()
                .layer($layer)
                .layer(ConcurrencyLimitLayer::new(4))
                .service(boxed());
            let mut kept = service.clone();
            let answer = join(async move { kept.ready().await?.call(3).await }).await;
            assert_eq!(answer.unwrap(), 3);
            // With a reference to it that is held while it is awaited.
            let answer: Result<_, BoxError> = join(async move {
                let mut service = service;
                let service = &mut service;
                let first = service.ready().await?.call(3).await?;
                Ok(first + service.ready().await?.call(4).await?)
            })
            .await;
            assert_eq!(answer.unwrap(), 7);
        }
    )*};
}

fn key(n: &u32) -> Option<u32> {
    Some(*n)
}

layers! {
    concurrency_limit: ConcurrencyLimitLayer::new(4);
    adaptive_concurrency: AdaptiveConcurrencyLayer::vegas();
    rate_limit: RateLimitLayer::new(Rate::per_second(100));
    load_shed: LoadShedLayer::new();
    codel: CoDelLayer::new(CoDelConfig::default()).submitted_at(|_: &u32| Some(SubmittedAt::now()));
    wfq: WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a".to_owned()));
    circuit_breaker: CircuitBreakerLayer::new(CircuitBreakerConfig::default());
    keyed_circuit_breaker: KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key);
    keyed_rate_limit: KeyedRateLimitLayer::new(Rate::per_second(100), key);
    keyed_concurrency_limit: KeyedConcurrencyLimitLayer::new(4, key);
    saturation: SaturationLayer::new().classify(|_: &u32| tower_backpressure::saturation::Work::New);
    shadow: ShadowLayer::new(ConcurrencyLimitLayer::new(1)).likeness(u32::clone);
}

fn http() -> Boxed<Request<String>, Response<String>> {
    BoxCloneService::new(service_fn(|_| async { Ok(Response::new(String::new())) }))
}

#[tokio::test]
async fn an_edge() {
    let service = ServiceBuilder::new()
        .layer(edge())
        .layer(ConcurrencyLimitLayer::new(4))
        .service(http());
    let request = Request::new(String::new());
    let status = join(async move {
        let mut service = service;
        let answer = service.ready().await.unwrap().call(request).await;
        answer.unwrap().status()
    });
    assert_eq!(status.await, 200);
}

#[tokio::test]
async fn layers_of_an_edge_by_hand() {
    let service = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new())
        .layer(edge().gates())
        .layer(ConcurrencyLimitLayer::new(4))
        .service(http());
    let request = Request::new(String::new());
    let status = join(async move {
        let mut service = service;
        let answer = service.ready().await.unwrap().call(request).await;
        answer.unwrap().status()
    });
    assert_eq!(status.await, 200);
}

macro_rules! stack {
    () => {
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(WfqLayer::new(WfqConfig::default(), |_: &u32| {
                Some("a".to_owned())
            }))
            .layer(AdaptiveConcurrencyLayer::vegas())
    };
}

/// It is `Oneshot`, of tower, that names the future of a service by way of the service. As a whole it may be
/// spawned; in a block it may be awaited if the stack is boxed.
#[tokio::test]
async fn one_shot() {
    let service = stack!().service(boxed());
    assert_eq!(join(service.clone().oneshot(3)).await.unwrap(), 3);

    let boxed: Boxed<u32, u32> = BoxCloneService::new(service.clone());
    let answer = join(async move { boxed.oneshot(3).await });
    assert_eq!(answer.await.unwrap(), 3);
}

/// The type of an inner service that is a struct names no `BoxError`, although its error is one.
#[derive(Clone)]
struct Named(Boxed<u32, u32>);

impl Service<u32> for Named {
    type Response = u32;
    type Error = BoxError;
    type Future = <Boxed<u32, u32> as Service<u32>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, n: u32) -> Self::Future {
        self.0.call(n)
    }
}

async fn ask<S>(mut service: S) -> Result<u32, BoxError>
where
    S: Service<u32, Response = u32, Error: Into<BoxError>>,
{
    let service = service.ready().await.map_err(Into::into)?;
    service.call(3).await.map_err(Into::into)
}

#[tokio::test]
async fn over_a_service_with_a_name() {
    let service = stack!().service(Named(boxed()));
    let asked = service.clone();
    let answer = join(async move { asked.oneshot(3).await });
    assert_eq!(answer.await.unwrap(), 3);
    let answer = join(async move { ask(service).await });
    assert_eq!(answer.await.unwrap(), 3);
}

fn made() -> impl Service<u32, Response = u32, Error = BoxError, Future: Send> + Clone + Send {
    stack!().service(boxed())
}

#[tokio::test]
async fn a_stack_that_a_function_has_made() {
    let mut service = made();
    let answer = join(async move { service.ready().await?.call(3).await });
    assert_eq!(answer.await.unwrap(), 3);
    assert_eq!(join(ask(made())).await.unwrap(), 3);
}
