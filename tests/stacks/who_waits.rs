//! Which of those that wait are served, and what the others are told: priorities and deadlines in `edge()` and in a fair queue.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{HeaderName, Request, Response};
use tokio::{task::JoinHandle, time::sleep};
use tower::{BoxError, Layer, Service, ServiceBuilder, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, Deadline, DeadlineLayer, Edge, Overloaded, Priority, PriorityLayer,
    Reason, WfqConfig, WfqLayer, config::EdgeConfig, deadline::Unit, edge, priority::Rules,
};

use crate::support;

const MS: Duration = Duration::from_millis(1);

/// What becomes of a request: the place in the order in which requests were called, or why it was rejected.
type Fate = Result<usize, Reason>;

/// Sends requests to a handler that takes as many milliseconds as its request says, and sees in which order they are called.
#[derive(Clone)]
struct Sender<S> {
    service: S,
    calls: Arc<AtomicUsize>,
}

fn handler(
    calls: Arc<AtomicUsize>,
) -> impl Service<
    Request<u64>,
    Response = Response<usize>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<usize>, Infallible>> + Send,
> + Clone
+ Send {
    service_fn(move |request: Request<u64>| {
        let number = calls.fetch_add(1, SeqCst);
        async move {
            sleep(*request.body() as u32 * MS).await;
            Ok(Response::new(number))
        }
    })
}

impl<S> Sender<S>
where
    S: Service<Request<u64>, Response = Response<usize>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    fn new<L, H>(layer: &L, handler: impl FnOnce(Arc<AtomicUsize>) -> H) -> Self
    where
        L: Layer<H, Service = S>,
    {
        let calls = Arc::default();
        let service = layer.layer(handler(Arc::clone(&calls)));
        Self { service, calls }
    }

    async fn send(&self, request: Request<u64>) -> JoinHandle<Fate> {
        let mut service = self.service.clone();
        let sent = tokio::spawn(async move {
            match service.call(request).await {
                Ok(response) => Ok(response.into_body()),
                Err(error) => Err(Overloaded::find(error.as_ref())
                    .expect("a rejection")
                    .reason()),
            }
        });
        sleep(MS / 100).await; // so that it waits before the next one comes
        sent
    }

    fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }
}

fn one_at_a_time(edge: Edge) -> Edge {
    edge.handle().pin(1).expect("one is a limit");
    edge
}

fn of(priority: Priority) -> Request<u64> {
    Request::builder().extension(priority).body(10).unwrap()
}

fn by(left: Duration) -> Request<u64> {
    let deadline = Deadline::within(left);
    Request::builder().extension(deadline).body(10).unwrap()
}

async fn fate(sent: JoinHandle<Fate>) -> Fate {
    sent.await.expect("no panic")
}

#[tokio::test(start_paused = true)]
async fn the_more_important_go_first_in_an_edge() {
    let sender = Sender::new(&one_at_a_time(edge()).gates(), handler);
    let runs = sender.send(of(Priority::Background)).await;
    let mut waiting = Vec::new();
    for priority in [
        Priority::Background,
        Priority::Normal,
        Priority::Critical,
        Priority::Normal,
        Priority::High,
    ] {
        waiting.push(sender.send(of(priority)).await);
    }
    assert_eq!(fate(runs).await, Ok(0));
    let mut order = Vec::new();
    for sent in waiting {
        order.push(fate(sent).await.expect("it is served"));
    }
    assert_eq!(order, [5, 3, 1, 4, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_more_important_go_first_in_a_fair_queue() {
    let priority = |request: &Request<u64>| request.extensions().get().copied();
    let wfq = WfqLayer::new(WfqConfig::default(), |_: &Request<u64>| None::<String>)
        .priority(move |request: &Request<u64>| priority(request).unwrap_or_default());
    let handle = wfq.handle();
    let stack = ServiceBuilder::new()
        .layer(wfq)
        .layer(ConcurrencyLimitLayer::new(1));
    let sender = Sender::new(&stack, handler);
    let runs = sender.send(of(Priority::Low)).await;
    let low = sender.send(of(Priority::Low)).await;
    let high = sender.send(of(Priority::High)).await;
    assert_eq!(fate(runs).await, Ok(0));
    assert_eq!((fate(high).await, fate(low).await), (Ok(1), Ok(2)));
    let started: Vec<_> = handle
        .snapshot()
        .priorities
        .iter()
        .map(|of| of.started)
        .collect();
    assert_eq!(started, [0, 1, 0, 2, 0]);
}

/// Of the tenant that waits most, the one that would be served last. It is answered at once, and was never called.
#[tokio::test(start_paused = true)]
async fn a_more_important_newcomer_displaces_the_least_important_waiter() {
    let edge = one_at_a_time(edge().wfq(WfqConfig::default().max_waiting(3)));
    let sender = Sender::new(&edge.clone().gates(), handler);
    let runs = sender.send(of(Priority::Normal)).await;
    let first = sender.send(of(Priority::Low)).await;
    let last = sender.send(of(Priority::Low)).await;
    let normal = sender.send(of(Priority::Normal)).await;
    let equal = sender.send(of(Priority::Low)).await;
    assert!(equal.is_finished(), "there is no place for it");
    let critical = sender.send(of(Priority::Critical)).await;
    assert!(last.is_finished() && !first.is_finished());
    assert_eq!(fate(last).await, Err(Reason::Displaced));
    assert_eq!(fate(equal).await, Err(Reason::QueueFull));
    for (sent, number) in [(runs, 0), (critical, 1), (normal, 2), (first, 3)] {
        assert_eq!(fate(sent).await, Ok(number));
    }
    assert_eq!(sender.calls(), 4);
    let rejected = edge.handle().snapshot().permits.rejected;
    assert_eq!((rejected.displaced, rejected.queue_full), (1, 1));
    assert_eq!(rejected.total(), 2);
}

/// By a timer, while the service hangs.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_rejected_when_its_deadline_passes() {
    let wfq = |_: &()| {
        let layer = WfqLayer::new(WfqConfig::default(), |_: &Request<u64>| None::<String>);
        layer.deadline(|request: &Request<u64>| request.extensions().get().copied())
    };
    let fair = ServiceBuilder::new()
        .layer(wfq(&()))
        .layer(ConcurrencyLimitLayer::new(1));
    let gates = one_at_a_time(edge()).gates();
    waits_for_its_deadline(Sender::new(&gates, handler)).await;
    waits_for_its_deadline(Sender::new(&fair, handler)).await;
}

async fn waits_for_its_deadline<S>(sender: Sender<S>)
where
    S: Service<Request<u64>, Response = Response<usize>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    let hangs = sender.send(Request::new(500)).await;
    let expires = sender.send(by(30 * MS)).await;
    let stays = sender.send(by(Duration::from_secs(2))).await;
    let begun = support::now();
    assert_eq!(fate(expires).await, Err(Reason::Deadline));
    let took = begun.elapsed();
    assert!((28 * MS..=32 * MS).contains(&took), "{took:?}");
    assert_eq!(fate(hangs).await, Ok(0));
    assert_eq!(fate(stays).await, Ok(1));
    assert_eq!(sender.calls(), 2);
}

/// Requests have taken ten milliseconds, so one that has five left at its turn is not called.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_done_in_time_is_not_called() {
    let sender = Sender::new(&one_at_a_time(edge()).gates(), handler);
    let learns: Vec<_> = [(); 5].into();
    for () in learns {
        let runs = sender.send(Request::new(10)).await;
        let waits = sender.send(Request::new(10)).await;
        fate(runs).await.unwrap();
        fate(waits).await.unwrap();
    }
    let calls = sender.calls();
    let runs = sender.send(Request::new(10)).await;
    let late = sender.send(by(15 * MS)).await;
    let in_time = sender.send(by(60 * MS)).await;
    assert_eq!(fate(late).await, Err(Reason::WouldBeLate));
    assert_eq!(fate(runs).await, Ok(calls));
    assert_eq!(fate(in_time).await, Ok(calls + 1));
}

/// With ten waiters of ten milliseconds ahead of it.
#[tokio::test(start_paused = true)]
async fn what_the_queue_would_make_late_is_told_so_when_it_comes() {
    let sender = Sender::new(&one_at_a_time(edge()).gates(), handler);
    // How fast waiters are served is known after 100 ms of it.
    let mut sent = Vec::new();
    for _ in 0..20 {
        sent.push(sender.send(by(Duration::from_secs(1))).await);
    }
    sleep(150 * MS).await;
    for _ in 0..10 {
        sent.push(sender.send(by(Duration::from_secs(1))).await);
    }
    let late = sender.send(by(60 * MS)).await;
    assert!(late.is_finished(), "it is told at once");
    assert_eq!(fate(late).await, Err(Reason::WouldBeLate));
    let patient = sender.send(by(300 * MS)).await;
    assert!(!patient.is_finished());
    for sent in sent {
        fate(sent).await.expect("in time");
    }
    fate(patient).await.expect("in time");
}

/// What a gRPC client says, and what a layer reads from another header.
#[tokio::test(start_paused = true)]
async fn deadlines_and_priorities_come_from_headers() {
    let rules = Rules::new().dangerously_trust_header(HeaderName::from_static("x-priority"));
    let stack = ServiceBuilder::new()
        .layer(DeadlineLayer::new().header(HeaderName::from_static("x-timeout"), Unit::Millis))
        .layer(PriorityLayer::new(move |head| rules.of(head)))
        .layer(one_at_a_time(edge()).gates());
    let sender = Sender::new(&stack, handler);
    let header = |name, value| Request::builder().header(name, value).body(10).unwrap();
    let runs = sender.send(Request::new(100)).await;
    let low = sender.send(header("x-priority", "low")).await;
    let high = sender.send(header("x-priority", "high")).await;
    let grpc = sender.send(header("grpc-timeout", "40m")).await;
    let own = sender.send(header("x-timeout", "50")).await;
    assert_eq!(fate(grpc).await, Err(Reason::Deadline));
    assert_eq!(fate(own).await, Err(Reason::Deadline));
    assert_eq!(fate(runs).await, Ok(0));
    assert_eq!((fate(high).await, fate(low).await), (Ok(1), Ok(2)));
    let expired = sender.send(header("x-timeout", "0")).await;
    assert_eq!(fate(expired).await, Err(Reason::Deadline));
    assert_eq!(sender.calls(), 3);
}

/// In calm times neither decides anything.
#[tokio::test(start_paused = true)]
async fn a_request_that_need_not_wait_is_served_whatever_it_says() {
    let edge = one_at_a_time(edge());
    let sender = Sender::new(&edge.clone().gates(), handler);
    for request in [of(Priority::Background), by(MS), of(Priority::Critical)] {
        let sent = sender.send(request).await;
        fate(sent).await.expect("it is served");
    }
    assert!(
        edge.handle().snapshot().priorities.is_empty(),
        "nobody was asked"
    );
}

#[tokio::test(start_paused = true)]
async fn the_floor_is_set_by_config_and_by_handle() {
    let mut config = EdgeConfig::default();
    config.wfq = config.wfq.priority_floor(0.2);
    let edge = one_at_a_time(edge())
        .configured(&config)
        .expect("it is allowed");
    let handle = edge.handle();
    handle.pin(1).expect("one is a limit");
    for (share, problem) in [
        (0.21, "priority_floor must be from 0 to 0.2, not 0.21"),
        (-0.1, "priority_floor must be from 0 to 0.2, not -0.1"),
        (f64::NAN, "priority_floor must be from 0 to 0.2, not NaN"),
    ] {
        let error = handle.set_priority_floor(share).unwrap_err();
        assert_eq!(error.to_string(), problem);
    }
    // With a fifth of the starts, it is next after five others; without a floor, after all of them.
    for (floor, number) in [(None, 6), (Some(0.0), 9)] {
        if let Some(floor) = floor {
            handle.set_priority_floor(floor).expect("it is allowed");
        }
        let sender = Sender::new(&edge.clone().gates(), handler);
        let mut sent = vec![sender.send(of(Priority::High)).await];
        let low = sender.send(of(Priority::Low)).await;
        for _ in 0..8 {
            sent.push(sender.send(of(Priority::High)).await);
        }
        assert_eq!(fate(low).await, Ok(number), "{floor:?}");
        for sent in sent {
            fate(sent).await.expect("it is served");
        }
    }
}
