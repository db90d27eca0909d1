//! 1000 tasks on a limit of 10, so that practically every permit goes to a request that waited.
//!
//! Each task sends requests one after another, and each request yields once while it holds its permit.
#![allow(dead_code, reason = "each bench uses a part of it")]

use std::{
    convert::Infallible,
    fs,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{Request, Response};
use tokio::{
    runtime::{self, Runtime},
    task::JoinSet,
};
use tower::{Service, ServiceExt};
use tower_backpressure::{Edge, edge, wfq::TenantId};

pub const TASKS: u64 = 1000;
pub const LIMIT: usize = 10;

/// Always ready; answers at the second poll.
#[derive(Clone)]
pub struct YieldOnce;

pub struct Yielding<T>(Option<T>, bool);

impl<T> Unpin for Yielding<T> {}

impl Service<()> for YieldOnce {
    type Response = ();
    type Error = Infallible;
    type Future = Yielding<()>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        Yielding(Some(()), false)
    }
}

impl Service<Request<String>> for YieldOnce {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Yielding<Response<()>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        Yielding(Some(Response::new(())), false)
    }
}

impl<T> Future for Yielding<T> {
    type Output = Result<T, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::replace(&mut self.1, true) {
            return Poll::Ready(Ok(self.0.take().expect("polled after it completed")));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

pub fn one_thread() -> Runtime {
    let mut builder = runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
}

pub fn two_threads() -> Runtime {
    let mut builder = runtime::Builder::new_multi_thread();
    let builder = builder.worker_threads(2).enable_time();
    builder.build().expect("a runtime")
}

/// How long it takes until the tasks have made `requests` requests together.
pub fn hand_over<S>(runtime: &Runtime, service: &S, requests: u64) -> Duration
where
    S: Service<(), Response = (), Future: Send> + Clone + Send + 'static,
{
    hand_over_by(TASKS, runtime, service, requests)
}

/// The same by so many tasks.
pub fn hand_over_by<S>(tasks: u64, runtime: &Runtime, service: &S, requests: u64) -> Duration
where
    S: Service<(), Response = (), Future: Send> + Clone + Send + 'static,
{
    run(runtime, tasks, service, requests, |_| ())
}

/// The same through an edge, which has a limit of its own, by so many tasks: of one tenant, or each of its own.
pub fn edge_hand_over(runtime: &Runtime, tasks: u64, tenants: bool, requests: u64) -> Duration {
    let service = tower::Layer::layer(&waiting_edge(), YieldOnce);
    run(runtime, tasks, &service, requests, move |task| {
        let mut request = Request::new(String::new());
        if tenants {
            let tenant = TenantId::new(format!("tenant-{task}"));
            request.extensions_mut().insert(tenant);
        }
        request
    })
}

/// At most [`LIMIT`] are in flight, and all others wait.
fn waiting_edge() -> Edge {
    let edge = edge().max_wait(None);
    edge.handle().set_max_waiting(1_000_000);
    edge.handle().pin(LIMIT).expect("ten is a limit");
    edge
}

fn run<S, R>(
    runtime: &Runtime,
    tasks: u64,
    service: &S,
    requests: u64,
    request: impl Fn(u64) -> R + Copy + Send + 'static,
) -> Duration
where
    S: Service<R, Future: Send> + Clone + Send + 'static,
    R: Send + 'static,
{
    let each = requests.div_ceil(tasks);
    runtime.block_on(async {
        #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
        let begun = Instant::now();
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let mut service = service.clone();
            running.spawn(async move {
                for _ in 0..each {
                    let Ok(ready) = service.ready().await else {
                        panic!("never fails")
                    };
                    assert!(ready.call(request(task)).await.is_ok());
                }
            });
        }
        running.join_all().await;
        // The time is taken to be for `requests`.
        begun
            .elapsed()
            .mul_f64(requests as f64 / (each * tasks) as f64)
    })
}

/// The processor time that this process has used, in steps of a hundredth of a second. `None` where the system does not
/// say.
pub fn cpu_time() -> Option<Duration> {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let times: Vec<u64> = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    Some(Duration::from_millis(
        times.iter().sum::<u64>() * 1000 / TICKS_PER_SECOND,
    ))
}
