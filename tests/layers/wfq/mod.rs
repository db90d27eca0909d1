//! What is particular to weighted fair queueing: bounds, turns, tenants, costs, and what a handle shows.

use crate::support;

mod bounds;
mod calm;
mod order;
mod tenants;
mod turns;
mod waited;

use std::{
    future::{Future, pending},
    num::NonZeroU32,
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use support::poll;
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, KeyedConcurrencyLimitLayer, LoadShedLayer, Overloaded, Reason, Waited,
    WfqConfig, WfqLayer, edge,
    wfq::{self, FromExtension, FromHeader, Handle, Tenant, TenantId},
};

const MS: Duration = Duration::from_millis(1);

/// A tenant, if it has a name, and a number, which is given back.
type Request = (&'static str, u32);
type Response = Pin<Box<dyn Future<Output = Result<u32, BoxError>> + Send>>;

fn tenant(request: &Request) -> Option<&'static str> {
    Some(request.0).filter(|name| !name.is_empty())
}

/// Requests wait for as long as it takes.
fn patient() -> WfqConfig {
    WfqConfig::default().max_wait(None)
}

/// A fair queue over some seats, in front of requests that take until they are let go.
struct Server {
    handle: Handle,
    seats: tower_backpressure::concurrency_limit::Handle,
    send: Box<dyn Fn(&'static str, u32) -> Response>,
    /// Lets one go for each permit.
    go: Arc<Semaphore>,
    /// In the order in which they were begun.
    begun: Arc<Mutex<Vec<Request>>>,
    waited: Arc<Mutex<Vec<Waited>>>,
}

impl Server {
    fn new(seats: usize, config: WfqConfig) -> Self {
        let fair = WfqLayer::new(config, tenant);
        let limit = ConcurrencyLimitLayer::new(seats);
        let (handle, seats) = (fair.handle(), limit.handle());
        let go = Arc::new(Semaphore::new(0));
        let begun: Arc<Mutex<Vec<Request>>> = Arc::default();
        let waited: Arc<Mutex<Vec<Waited>>> = Arc::default();
        let handler = {
            let (go, begun, waited) = (go.clone(), begun.clone(), waited.clone());
            move |request: Request| {
                begun.lock().unwrap().push(request);
                waited.lock().unwrap().extend(Waited::current());
                let go = go.clone();
                async move {
                    go.acquire().await.unwrap().forget();
                    Ok::<_, BoxError>(request.1)
                }
            }
        };
        let service = ServiceBuilder::new()
            .layer(fair)
            .layer(limit)
            .service_fn(handler);
        Self {
            handle,
            seats,
            send: Box::new(move |tenant, number| {
                Box::pin(service.clone().oneshot((tenant, number)))
            }),
            go,
            begun,
            waited,
        }
    }

    fn send(&self, tenant: &'static str, number: u32) -> Response {
        (self.send)(tenant, number)
    }

    /// Sent and polled once, which must not be enough.
    #[track_caller]
    fn pending(&self, tenant: &'static str, number: u32) -> Response {
        let mut response = self.send(tenant, number);
        assert!(poll(&mut response).is_pending());
        response
    }

    fn begun(&self) -> Vec<Request> {
        self.begun.lock().unwrap().clone()
    }
}

fn seats_taken(server: &Server) -> usize {
    server.seats.snapshot().in_flight
}
