//! Admission by how full queues are: what passes at which level, and what is said to the rest.

use crate::support;

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Empty;
use support::{Probe, finish, poll_ready, refusal};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    ConcurrencyLimitLayer, OverloadResponseLayer, Priority, Reason, Saturation, SaturationLayer,
    channel::{self, bounded},
    saturation::{Handle, Level, Thresholds, Work},
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// A queue that is as deep as it is told to be, and how often it was asked.
#[derive(Clone, Default)]
struct Queue(Arc<(AtomicUsize, AtomicUsize)>);

impl Queue {
    fn set(&self, depth: usize) {
        self.0.0.store(depth, SeqCst);
    }

    fn asked(&self) -> usize {
        self.0.1.load(SeqCst)
    }

    /// Of a soft limit of 1000.
    fn probe(&self) -> impl Fn() -> (usize, usize) + Send + Sync + 'static {
        let queue = self.clone();
        move || {
            queue.0.1.fetch_add(1, SeqCst);
            (queue.0.0.load(SeqCst), 1000)
        }
    }
}

const READ: u32 = 0;
const WRITE: u32 = 1;
const NEW: u32 = 2;

fn by_number(request: &u32) -> Work {
    match *request {
        READ => Work::Read,
        WRITE => Work::Write,
        _ => Work::New,
    }
}

type ByNumber = fn(&u32) -> Work;

/// Looks at its queue for each request.
fn layer(queue: &Queue) -> SaturationLayer<ByNumber> {
    SaturationLayer::new()
        .probe("queue", queue.probe())
        .sample_every(Duration::ZERO)
        .classify(by_number)
}

fn call(service: &mut Saturation<Probe, ByNumber>, request: u32) -> Result<u32, BoxError> {
    assert!(poll_ready(service).is_ready());
    finish(service.call(request))
}

/// What passes of a read, a write and new work.
fn passes(service: &mut Saturation<Probe, ByNumber>) -> [bool; 3] {
    [READ, WRITE, NEW].map(|request| call(service, request).is_ok())
}

/// The table of the module's docs, at both ends of each level.
#[test]
fn queue_depth_strategy() {
    for (depth, level, [read, write, new]) in [
        (0, Level::Normal, [true, true, true]),
        (699, Level::Normal, [true, true, true]),
        (700, Level::Warning, [true, true, true]),
        (849, Level::Warning, [true, true, true]),
        (850, Level::Critical, [true, true, false]),
        (950, Level::Critical, [true, true, false]),
        (951, Level::Overflow, [true, false, false]),
        (5000, Level::Overflow, [true, false, false]),
    ] {
        let queue = Queue::default();
        queue.set(depth);
        let layer = layer(&queue);
        let mut service = layer.layer(Probe::new());
        assert_eq!(passes(&mut service), [read, write, new], "{depth} of 1000");
        let snapshot = layer.handle().snapshot();
        assert_eq!((snapshot.level, snapshot.probe), (level, Some("queue")));
        assert_eq!(snapshot.ratio, depth as f64 / 1000.0);
    }
}

/// The table of `by_priority`'s docs, at each level.
#[test]
fn the_less_important_are_refused_earlier() {
    use Priority::{Background, Critical, High, Low, Normal};
    let queue = Queue::default();
    let layer = SaturationLayer::new()
        .probe("queue", queue.probe())
        .sample_every(Duration::ZERO)
        .by_priority();
    let mut service = layer.layer(service_fn(|_: Request<()>| {
        Box::pin(async { Ok::<_, BoxError>(Response::new(())) })
    }));
    let mut passes = |method: Method, priority: Option<Priority>| {
        let mut request = Request::builder().method(method).body(()).unwrap();
        if let Some(priority) = priority {
            request.extensions_mut().insert(priority);
        }
        assert!(poll_ready::<_, Request<()>>(&mut service).is_ready());
        finish(service.call(request)).is_ok()
    };
    for (priority, new_at_critical, write_at_critical, new_at_overflow, write_at_overflow) in [
        (Some(Background), false, false, false, false),
        (Some(Low), false, false, false, false),
        (Some(Normal), false, true, false, false),
        (None, false, true, false, false),
        (Some(High), true, true, false, false),
        (Some(Critical), true, true, true, true),
    ] {
        for (depth, [read, new, write]) in [
            (849, [true, true, true]),
            (850, [true, new_at_critical, write_at_critical]),
            (951, [true, new_at_overflow, write_at_overflow]),
        ] {
            queue.set(0);
            assert!(passes(Method::GET, None)); // it falls
            queue.set(depth);
            assert_eq!(passes(Method::GET, priority), read, "{depth} {priority:?}");
            assert_eq!(passes(Method::POST, priority), new, "{depth} {priority:?}");
            assert_eq!(passes(Method::PUT, priority), write, "{depth} {priority:?}");
        }
    }
}

/// The command channel is refused new work before it is full, where that is what is asked for.
#[tokio::test(start_paused = true)]
async fn channel_saturation_over_80_percent_full() {
    let (commands, mut processor) = bounded(5000);
    let commands = commands.name("commands");
    let handle = SaturationLayer::new()
        .channel(&commands)
        .thresholds(Thresholds::default().critical(0.8))
        .sample_every(Duration::ZERO)
        .handle();
    fill(&commands, 3999).await;
    handle.check(Work::New).unwrap();
    fill(&commands, 2).await;
    assert!(commands.handle().snapshot().saturation > 0.8);
    let refused = handle.check(Work::New).unwrap_err();
    assert_eq!(
        (refused.layer(), refused.reason()),
        ("saturation", Reason::Saturated)
    );
    assert_eq!(
        refused.retry_after(),
        5 * SEC,
        "a short delay for the buffer to drain"
    );
    assert_eq!(handle.snapshot().probe, Some("commands"));

    let mut buffer = Vec::new();
    processor.recv_many(&mut buffer, 1000).await;
    handle.check(Work::New).unwrap();
    // Looking at it does not keep it open.
    drop(commands);
    while processor.recv().await.is_some() {}
}

#[test]
fn a_level_is_left_some_way_below_where_it_was_reached() {
    let queue = Queue::default();
    let layer = layer(&queue);
    let mut service = layer.layer(Probe::new());
    for (depth, new) in [
        (850, false),
        (849, false),
        (800, false),
        (799, true),
        (849, true),
        (850, false),
    ] {
        queue.set(depth);
        assert_eq!(call(&mut service, NEW).is_ok(), new, "{depth}");
    }
    assert_eq!(layer.handle().snapshot().changes, 3);
}

#[test]
fn the_worst_of_all_queues_decides() {
    let queues = [Queue::default(), Queue::default(), Queue::default()];
    let [first, second, third] = &queues;
    let layer = layer(first).probe("second", second.probe());
    let handle = layer.handle();
    let mut service = layer.clone().layer(Probe::new());
    let _ = layer.probe("third", third.probe()); // of all clones
    for (depths, level, probe) in [
        ([0, 0, 0], Level::Normal, "queue"),
        ([10, 960, 0], Level::Overflow, "second"),
        ([10, 20, 860], Level::Critical, "third"),
        ([700, 20, 700], Level::Warning, "queue"),
    ] {
        for (queue, depth) in queues.iter().zip(depths) {
            queue.set(depth);
        }
        call(&mut service, READ).unwrap();
        let snapshot = handle.snapshot();
        assert_eq!((snapshot.level, snapshot.probe), (level, Some(probe)));
    }
}

#[test]
fn no_probes_and_no_soft_limit_do_no_harm() {
    let layer = SaturationLayer::new().classify(by_number as ByNumber);
    let mut service = layer.layer(Probe::new());
    assert_eq!(passes(&mut service), [true; 3]);
    let snapshot = layer.handle().snapshot();
    assert_eq!(
        (snapshot.level, snapshot.ratio, snapshot.probe),
        (Level::Normal, 0.0, None)
    );

    let empty = SaturationLayer::new().probe("empty", || (0, 0)).handle();
    assert_eq!(empty.snapshot().level, Level::Normal);
    let full = SaturationLayer::new().probe("full", || (1, 0)).handle();
    assert_eq!(full.snapshot().level, Level::Overflow);
    assert_eq!(full.check(Work::New).unwrap_err().retry_after(), 10 * SEC);
}

#[test]
fn what_was_decided_is_counted() {
    let queue = Queue::default();
    let layer = layer(&queue);
    let mut service = layer.layer(Probe::new());
    for depth in [0, 900, 1000] {
        queue.set(depth);
        passes(&mut service);
    }
    let snapshot = layer.handle().snapshot();
    assert_eq!(snapshot.admitted, 3 + 2 + 1);
    assert_eq!(
        (snapshot.rejected_at_critical, snapshot.rejected_at_overflow),
        (1, 2)
    );
    assert_eq!((snapshot.changes, snapshot.probe_panics), (2, 0));
}

#[test]
fn a_refusal_never_reaches_the_inner_service_and_gives_its_reservation_back() {
    let queue = Queue::default();
    queue.set(1000);
    let limit = ConcurrencyLimitLayer::new(1);
    let handle = limit.handle();
    let probe = Probe::new();
    let mut service = ServiceBuilder::new()
        .layer(layer(&queue).name("orders"))
        .layer(limit)
        .service(probe.clone());
    for _ in 0..3 {
        assert!(poll_ready(&mut service).is_ready());
        assert_eq!(handle.snapshot().in_flight, 1);
        let response = service.call(NEW);
        assert_eq!(handle.snapshot().in_flight, 0);
        let refused = refusal(finish(response));
        assert_eq!(
            (refused.layer(), refused.reason()),
            ("orders", Reason::Saturated)
        );
    }
    assert_eq!(probe.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn probes_are_asked_every_ten_milliseconds() {
    let queue = Queue::default();
    let layer = SaturationLayer::new()
        .probe("queue", queue.probe())
        .classify(by_number as ByNumber);
    let mut service = layer.layer(Probe::new());
    queue.set(1000);
    assert_eq!(
        passes(&mut service),
        [true, false, false],
        "the first one looks"
    );
    queue.set(0);
    advance(10 * MS - Duration::from_nanos(1)).await;
    assert_eq!(passes(&mut service), [true, false, false]);
    assert_eq!(queue.asked(), 1);
    advance(Duration::from_nanos(1)).await;
    assert_eq!(
        passes(&mut service),
        [true, true, true],
        "before it is decided on"
    );
    assert_eq!(queue.asked(), 2);

    // A handle looks too.
    queue.set(1000);
    advance(10 * MS).await;
    assert_eq!(layer.handle().snapshot().level, Level::Overflow);

    let layer = layer.sample_every(SEC);
    layer.handle().snapshot();
    advance(999 * MS).await;
    layer.handle().snapshot();
    assert_eq!(queue.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_classifier_is_asked_only_where_it_matters() {
    let queue = Queue::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let layer = layer(&queue).classify(move |request: &u32| {
        count.fetch_add(1, SeqCst);
        by_number(request)
    });
    let service = layer.layer(Probe::new());
    service.clone().oneshot(NEW).await.unwrap();
    assert_eq!(asked.load(SeqCst), 0);
    queue.set(900);
    refusal(service.oneshot(NEW).await);
    assert_eq!(asked.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn the_hint_is_how_long_the_queue_takes_to_get_short_enough() {
    let queue = Queue::default();
    let handle = layer(&queue).handle();
    let hint = |handle: &Handle, work| handle.check(work).unwrap_err().retry_after();
    queue.set(1000);
    assert_eq!(hint(&handle, Work::New), 10 * SEC, "nothing is known");
    // It gets shorter by 20 in a second.
    advance(SEC).await;
    queue.set(980);
    assert_eq!(hint(&handle, Work::Write), 4 * SEC, "80 until 900");
    assert_eq!(hint(&handle, Work::New), 9 * SEC, "180 until 800");
    advance(SEC).await;
    queue.set(900);
    assert_eq!(hint(&handle, Work::New), 1250 * MS, "100 at 80 a second");
    // And now it does not.
    advance(SEC).await;
    queue.set(900);
    assert_eq!(hint(&handle, Work::New), 5 * SEC);
}

/// What is known of one queue says nothing about another.
#[tokio::test(start_paused = true)]
async fn another_worst_queue_is_measured_anew() {
    let (first, second) = (Queue::default(), Queue::default());
    let handle = layer(&first).probe("second", second.probe()).handle();
    first.set(1000);
    handle.check(Work::New).unwrap_err();
    advance(SEC).await;
    first.set(900);
    second.set(910);
    let refused = handle.check(Work::New).unwrap_err();
    assert_eq!(refused.retry_after(), 10 * SEC, "not ninety in a second");
}

/// It says nothing, so it is no reason to refuse; others still are.
#[test]
fn a_probe_that_panics_is_left_out_and_wedges_nothing() {
    let queue = Queue::default();
    let broken = Arc::new(AtomicUsize::new(0));
    let breaks = Arc::clone(&broken);
    let layer = layer(&queue).probe("broken", move || match breaks.load(SeqCst) {
        0 => (1000, 1000),
        _ => panic!("the probe panics"),
    });
    let mut service = layer.layer(Probe::new());
    assert_eq!(passes(&mut service), [true, false, false]);
    broken.store(1, SeqCst);
    assert_eq!(passes(&mut service), [true, true, true]);
    queue.set(900);
    assert_eq!(passes(&mut service), [true, true, false]);
    broken.store(0, SeqCst);
    assert_eq!(
        passes(&mut service),
        [true, false, false],
        "it is asked again"
    );
    assert_eq!(layer.handle().snapshot().probe_panics, 6);
}

/// A probe is asked under no lock: it may ask the layer.
#[test]
fn a_probe_may_look_at_its_own_layer() {
    let handle: Arc<Mutex<Option<Handle>>> = Arc::default();
    let own = Arc::clone(&handle);
    let layer = SaturationLayer::new()
        .sample_every(Duration::ZERO)
        .probe("own", move || {
            let handle = own.lock().unwrap().clone().unwrap();
            handle.set_thresholds(Thresholds::default()).unwrap();
            handle.check(Work::Read).unwrap();
            (usize::try_from(handle.snapshot().admitted).unwrap(), 1)
        });
    *handle.lock().unwrap() = Some(layer.handle());
    assert_eq!(layer.handle().snapshot().level, Level::Overflow);
}

/// While one thread asks the probes, others decide by the last level, and none of them waits.
#[test]
fn one_that_looks_holds_nobody_up() {
    let (begun, wait_for_it) = std::sync::mpsc::channel();
    let (go_on, told_to) = std::sync::mpsc::channel();
    let told_to = Mutex::new((begun, told_to));
    let handle = SaturationLayer::new()
        .sample_every(Duration::ZERO)
        .probe("slow", move || {
            let slow = told_to.lock().unwrap();
            slow.0.send(()).unwrap();
            slow.1.recv().unwrap()
        })
        .handle();
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| handle.check(Work::New));
        wait_for_it.recv().unwrap();
        for _ in 0..3 {
            handle.check(Work::New).unwrap();
        }
        go_on.send((1, 1)).unwrap();
        looking.join().unwrap().unwrap_err();
    });
    go_on.send((0, 1)).unwrap();
    handle.check(Work::New).unwrap();
}

#[test]
fn thresholds_change_at_run_time_or_stay_as_they_were() {
    let queue = Queue::default();
    queue.set(600);
    // Also if the last look is good for long.
    let layer = layer(&queue).sample_every(3600 * SEC);
    let handle = layer.handle();
    handle.check(Work::New).unwrap();
    handle
        .set_thresholds(Thresholds::default().warning(0.3).critical(0.5))
        .unwrap();
    handle.check(Work::New).unwrap_err();
    let error = handle
        .set_thresholds(Thresholds::default().overflow(0.8))
        .unwrap_err();
    assert_eq!(error.field(), "overflow");
    assert_eq!(
        error.to_string(),
        "overflow must be more than critical, and finite"
    );
    handle.check(Work::New).unwrap_err();
}

#[test]
#[should_panic(
    expected = "SaturationLayer::thresholds: hysteresis must be at least 0, and less than warning"
)]
fn thresholds_that_are_never_left_are_nonsense() {
    let _ = SaturationLayer::new().thresholds(Thresholds::default().hysteresis(0.7));
}

/// What POST is told while GET passes.
#[tokio::test(start_paused = true)]
async fn an_http_server_says_503_to_new_tasks_when_critical_and_to_all_writes_at_overflow() {
    async fn answers(_: Request<String>) -> Result<Response<Empty<Bytes>>, Infallible> {
        Ok(Response::new(Empty::new()))
    }
    let (steps, mut worker) = bounded(100);
    let service = ServiceBuilder::new()
        .layer(OverloadResponseLayer::new().jitter(false))
        .layer(
            SaturationLayer::new()
                .channel(&steps)
                .sample_every(Duration::ZERO),
        )
        .service(service_fn(answers));
    let answer = async |method| {
        let request = Request::builder()
            .method(method)
            .body(String::new())
            .unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        let retry_after = response.headers().get("retry-after").cloned();
        let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
        (response.status().as_u16(), retry_after)
    };
    let ok = (200, None);
    assert_eq!(answer(Method::POST).await, ok);

    fill(&steps, 90).await;
    assert_eq!(answer(Method::GET).await, ok);
    assert_eq!(answer(Method::PUT).await, ok);
    assert_eq!(answer(Method::POST).await, (503, Some("5".into())));

    fill(&steps, 10).await;
    assert_eq!(answer(Method::GET).await, ok);
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert_eq!(answer(method).await, (503, Some("10".into())));
    }

    let mut buffer = Vec::new();
    worker.recv_many(&mut buffer, 50).await;
    assert_eq!(answer(Method::POST).await, ok);
}

async fn fill(steps: &channel::Sender<u32>, count: u32) {
    for step in 0..count {
        steps.send(step).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn probes_of_the_same_name_are_told_apart() {
    let depths = Arc::new([AtomicUsize::new(99), AtomicUsize::new(0)]);
    let layer = (0..2).fold(SaturationLayer::new(), |layer, i| {
        let depths = Arc::clone(&depths);
        layer.probe("queue", move || (depths[i].load(SeqCst), 100))
    });
    let handle = layer.sample_every(Duration::ZERO).handle();
    assert!(handle.check(Work::New).is_err());
    advance(Duration::from_secs(1)).await;
    // The one is empty now, the other has been full all the time, and is not getting any shorter.
    depths[0].store(0, SeqCst);
    depths[1].store(90, SeqCst);
    let refused = handle.check(Work::New).unwrap_err();
    assert_eq!(refused.retry_after(), Duration::from_secs(5));
}
