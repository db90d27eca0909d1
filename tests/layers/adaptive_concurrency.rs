//! What `AdaptiveConcurrency` does beyond the contract that all layers share: what it feeds to a law, and
//! what it does with the limit that comes out.

use crate::support;

use std::{
    convert::Infallible,
    future::{pending, ready},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use support::{Behaviour, Probe, assert_refused, finish, poll, poll_ready, refusal, request};
use tokio::time::advance;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ByStatus, ConcurrencyLimitLayer, LoadShedLayer, Outcome, Reason,
    adaptive_concurrency::{Bounds, Limit, Report, Sample},
};

const MS: Duration = Duration::from_millis(1);

/// A law that does as it is told, and remembers what it was told.
#[derive(Clone)]
struct Scripted(Arc<Mutex<Script>>);

struct Script {
    bounds: Bounds,
    limit: usize,
    samples: Vec<Sample>,
    probing: bool,
    admitted: Vec<usize>,
    panics: bool,
}

impl Scripted {
    fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Script {
            bounds: Bounds::new(1, limit.max(1), 100),
            limit,
            samples: Vec::new(),
            probing: false,
            admitted: Vec::new(),
            panics: false,
        })))
    }

    fn layer(&self) -> AdaptiveConcurrencyLayer {
        AdaptiveConcurrencyLayer::new(self.clone())
    }

    fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.0.lock().unwrap());
    }

    /// What it was fed since it was last asked.
    fn samples(&self) -> Vec<Sample> {
        std::mem::take(&mut self.0.lock().unwrap().samples)
    }
}

impl Limit for Scripted {
    fn limit(&self) -> usize {
        self.0.lock().unwrap().limit
    }

    fn sample(&mut self, sample: &Sample) {
        let panics = self.0.lock().unwrap().panics;
        assert!(!panics, "the law panics");
        self.set(|script| script.samples.push(*sample));
    }

    fn bounds(&self) -> Bounds {
        self.0.lock().unwrap().bounds
    }

    fn restart(&mut self, bounds: Bounds) {
        self.set(|script| (script.bounds, script.limit) = (bounds, bounds.initial()));
    }

    fn is_probing(&self) -> bool {
        self.0.lock().unwrap().probing
    }

    fn admitted(&mut self, _: Duration, in_flight: usize) {
        self.set(|script| {
            script.admitted.push(in_flight);
            if in_flight == 1 {
                (script.probing, script.limit) = (false, script.limit + 1);
            }
        });
    }

    fn report(&self) -> Report {
        Report::new(Some(5 * MS), None, None)
    }
}

#[tokio::test(start_paused = true)]
async fn a_sample_says_when_it_completed_how_long_it_took_and_beside_how_many() {
    let law = Scripted::new(3);
    let probe = Probe::new();
    let service = law.layer().layer(probe.clone());
    advance(100 * MS).await;
    probe.set(|script| script.pending_polls = 1);
    let mut requests = [request(&service), request(&service), request(&service)];
    for request in &mut requests {
        assert!(poll(request).is_pending());
        advance(10 * MS).await;
    }
    for request in requests.iter_mut().rev() {
        assert_eq!(finish(request).unwrap(), 7);
        advance(MS).await;
    }
    let sample = |now, rtt, in_flight, full| Sample {
        now: now * MS,
        rtt: rtt * MS,
        in_flight,
        outcome: Outcome::Success,
        full,
    };
    assert_eq!(
        law.samples(),
        [
            sample(130, 10, 3, true),
            sample(131, 21, 2, false),
            sample(132, 32, 1, false)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_permit_is_not_part_of_the_time() {
    let law = Scripted::new(1);
    let probe = Probe::new();
    let service = law.layer().layer(probe.clone());
    probe.set(|script| script.pending_polls = 1);
    let (mut first, mut second) = (request(&service), request(&service));
    assert!(poll(&mut first).is_pending());
    assert!(poll(&mut second).is_pending());
    advance(50 * MS).await;
    finish(&mut first).unwrap();
    advance(20 * MS).await;
    finish(&mut second).unwrap();
    let rtts: Vec<_> = law.samples().iter().map(|sample| sample.rtt).collect();
    assert_eq!(rtts, [50 * MS, Duration::ZERO]);
}

#[test]
fn what_is_cancelled_or_panics_is_not_learned_from() {
    let law = Scripted::new(1);
    let probe = Probe::new();
    let service = law.layer().layer(probe.clone());

    probe.set(|script| script.future = Behaviour::Pends);
    let mut cancelled = request(&service);
    assert!(poll(&mut cancelled).is_pending());
    drop(cancelled);

    probe.set(|script| script.future = Behaviour::Panics);
    let panics = std::panic::AssertUnwindSafe(|| finish(request(&service)));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(law.samples(), []);

    probe.set(|script| script.future = Behaviour::Works);
    assert_eq!(finish(request(&service)).unwrap(), 7);
    assert_eq!(law.samples().len(), 1);
}

#[test]
fn an_error_is_a_failure_and_a_refusal_from_further_in_says_nothing() {
    let law = Scripted::new(2);
    let probe = Probe::new();
    let inner = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let handle = inner.handle();
    let service = ServiceBuilder::new()
        .layer(law.layer())
        .layer(inner)
        .service(probe.clone());

    probe.set(|script| script.future = Behaviour::Fails);
    finish(request(&service)).unwrap_err();
    let outcomes: Vec<_> = law.samples().iter().map(|sample| sample.outcome).collect();
    assert_eq!(outcomes, [Outcome::Failure]);

    let _full = handle.try_acquire().unwrap();
    assert_refused(finish(request(&service)), Reason::QueueFull);
    assert_eq!(law.samples(), []);
}

#[test]
fn a_classifier_decides_what_is_learned_from() {
    let statuses = [200, 404, 500].map(|status| StatusCode::from_u16(status).unwrap());
    let law = Scripted::new(1);
    let mut service = law
        .layer()
        .classify(ByStatus)
        .layer(service_fn(|status: StatusCode| {
            let mut response = Response::new(());
            *response.status_mut() = status;
            ready(Ok::<_, Infallible>(response))
        }));
    for status in statuses {
        assert!(poll_ready(&mut service).is_ready());
        assert_eq!(finish(service.call(status)).unwrap().status(), status);
    }
    let outcomes: Vec<_> = law.samples().iter().map(|sample| sample.outcome).collect();
    assert_eq!(outcomes, [Outcome::Success, Outcome::Failure]);
}

/// A server that is too busy is best helped by fewer requests at once, however polite it is about it.
#[test]
fn a_polite_503_is_a_sign_of_too_much() {
    let law = Scripted::new(1);
    let mut service = law
        .layer()
        .classify(ByStatus)
        .layer(service_fn(|status: u16| {
            let response = Response::builder().status(status);
            ready(response.header("retry-after", 2).body(()))
        }));
    for status in [503, 429] {
        assert!(poll_ready(&mut service).is_ready());
        assert_eq!(finish(service.call(status)).unwrap().status(), status);
    }
    let outcomes: Vec<_> = law.samples().iter().map(|sample| sample.outcome).collect();
    assert_eq!(outcomes, [Outcome::Failure]);
}

#[tokio::test]
async fn a_body_holds_the_permit_but_is_not_timed() {
    let law = Scripted::new(1);
    let layer = law.layer().classify(ByStatus).hold_until_body_end();
    let handle = layer.handle();
    let service = layer.layer(service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(
            "hello",
        )))))
    }));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(law.samples().len(), 1);
    assert_eq!(handle.snapshot().permits.in_flight, 1);
    response.into_body().collect().await.unwrap();
    assert_eq!(handle.snapshot().permits.in_flight, 0);
    assert_eq!(law.samples().len(), 0);
}

#[test]
fn the_limit_shrinks_under_a_backlog_and_lets_those_who_wait_in_when_it_grows() {
    let law = Scripted::new(3);
    let layer = law.layer();
    let handle = layer.handle();
    let probe = Probe::new();
    let service = layer.layer(probe.clone());
    probe.set(|script| script.pending_polls = 1);
    let mut running: Vec<_> = (0..3).map(|_| request(&service)).collect();
    let mut waiting: Vec<_> = (0..3).map(|_| request(&service)).collect();
    for request in running.iter_mut().chain(&mut waiting) {
        assert!(poll(request).is_pending());
    }
    let mut complete = |limit| {
        law.set(|script| script.limit = limit);
        finish(running.pop().unwrap()).unwrap();
        let permits = handle.snapshot().permits;
        (permits.limit, permits.in_flight, permits.waiting)
    };
    assert_eq!(
        complete(1),
        (1, 2, 3),
        "the permit that came back went to nobody"
    );
    assert_eq!(complete(1), (1, 1, 3));
    assert_eq!(complete(2), (2, 2, 1), "two were let in");
    for request in waiting {
        finish(request).unwrap();
    }
}

#[test]
fn a_law_that_probes_is_told_of_requests_that_come() {
    let law = Scripted::new(2);
    let layer = law.layer();
    let handle = layer.handle();
    let probe = Probe::new();
    let service = layer.layer(probe.clone());
    let admitted = || law.0.lock().unwrap().admitted.clone();

    finish(request(&service)).unwrap();
    assert_eq!(admitted(), [], "it is not probing");

    // It begins to probe with a sample, and there is another request in flight.
    probe.set(|script| script.pending_polls = 1);
    let (mut first, mut second) = (request(&service), request(&service));
    assert!(poll(&mut first).is_pending());
    assert!(poll(&mut second).is_pending());
    law.set(|script| script.probing = true);
    finish(first).unwrap();
    finish(request(&service)).unwrap();
    assert_eq!(admitted(), [2]);
    finish(second).unwrap();

    let mut third = request(&service);
    assert!(poll(&mut third).is_pending());
    assert_eq!(admitted(), [2, 1]);
    assert_eq!(
        handle.snapshot().permits.limit,
        3,
        "and its new limit is in force"
    );
    finish(third).unwrap();
    finish(request(&service)).unwrap();
    assert_eq!(admitted(), [2, 1], "the probe is over");
}

#[test]
fn a_pinned_limit_stays_and_the_law_starts_over_from_it() {
    let law = Scripted::new(5);
    let layer = law.layer();
    let handle = layer.handle();
    let service = layer.layer(Probe::new());
    let limit = || handle.snapshot().permits.limit;

    let error = handle.pin(0).unwrap_err();
    assert_eq!(error.to_string(), "limit must be at least 1");
    assert_eq!((limit(), handle.snapshot().pinned), (5, false));
    handle.unpin();
    assert_eq!(limit(), 5, "it was not pinned");

    handle.pin(200).unwrap();
    law.set(|script| script.limit = 7);
    finish(request(&service)).unwrap();
    assert_eq!(law.samples(), []);
    assert_eq!((limit(), handle.snapshot().pinned), (200, true));
    handle.pin(50).unwrap();
    assert_eq!(limit(), 50);

    drop(layer.limits(1, 20, 100));
    assert_eq!(limit(), 50, "new bounds do not unpin it");

    handle.unpin();
    assert_eq!((limit(), handle.snapshot().pinned), (50, false));
    handle.pin(1000).unwrap();
    handle.unpin();
    assert_eq!(limit(), 100, "the nearest within its bounds");
    finish(request(&service)).unwrap();
    assert_eq!(law.samples().len(), 1);
}

#[test]
fn pinning_lets_those_who_wait_in() {
    let law = Scripted::new(1);
    let layer = law.layer();
    let handle = layer.handle();
    let service = layer.layer(service_fn(|_: u32| pending::<Result<u32, BoxError>>()));
    let mut requests: Vec<_> = (0..3).map(|_| request(&service)).collect();
    requests
        .iter_mut()
        .for_each(|request| assert!(poll(request).is_pending()));
    assert_eq!(handle.snapshot().permits.waiting, 2);
    handle.pin(3).unwrap();
    assert_eq!(
        (
            handle.snapshot().permits.waiting,
            handle.snapshot().permits.in_flight
        ),
        (0, 3)
    );
}

#[test]
fn limits_are_where_it_starts_and_how_far_it_goes() {
    let layer = AdaptiveConcurrencyLayer::vegas();
    assert_eq!(layer.handle().snapshot().permits.limit, 20);
    let layer = layer.limits(5, 30, 40);
    assert_eq!(layer.handle().snapshot().permits.limit, 30);
    assert_eq!(
        AdaptiveConcurrencyLayer::gradient2()
            .handle()
            .snapshot()
            .permits
            .limit,
        20
    );
    assert_eq!(
        AdaptiveConcurrencyLayer::aimd()
            .handle()
            .snapshot()
            .permits
            .limit,
        20
    );
    for (min, initial, max) in [(0, 1, 1), (2, 1, 3), (1, 4, 3), (3, 2, 1)] {
        let made = std::panic::catch_unwind(|| {
            AdaptiveConcurrencyLayer::vegas().limits(min, initial, max)
        });
        let message = *made.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(
            message,
            "the bounds of a limit must be 1 <= min <= initial <= max"
        );
    }
}

#[test]
fn a_law_that_says_zero_is_taken_to_say_one() {
    let law = Scripted::new(0);
    let layer = law.layer();
    let service = layer.layer(Probe::new());
    assert_eq!(layer.handle().snapshot().permits.limit, 1);
    finish(request(&service)).unwrap();
    assert_eq!(layer.handle().snapshot().permits.limit, 1);
}

#[test]
fn a_law_that_panics_takes_no_permit_with_it() {
    let law = Scripted::new(1);
    let layer = law.layer();
    let service = layer.layer(Probe::new());
    law.set(|script| script.panics = true);
    for _ in 0..3 {
        let panics = std::panic::AssertUnwindSafe(|| finish(request(&service)));
        assert!(std::panic::catch_unwind(panics).is_err());
    }
    law.set(|script| script.panics = false);
    assert_eq!(finish(request(&service)).unwrap(), 7);
    assert_eq!(layer.handle().snapshot().permits.in_flight, 0);
}

#[test]
fn a_snapshot_has_what_the_law_reports() {
    let snapshot = Scripted::new(4).layer().handle().snapshot();
    assert_eq!((snapshot.permits.limit, snapshot.permits.in_flight), (4, 0));
    assert_eq!(snapshot.learned, Report::new(Some(5 * MS), None, None));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_carries_its_name_and_a_hint_from_the_drain_rate() {
    let law = Scripted::new(1);
    let probe = Probe::new();
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(law.layer().name("database"))
        .service(probe.clone());
    probe.set(|script| script.pending_polls = 1);
    let mut hint = Duration::ZERO;
    for _ in 0..100 {
        // 20 ms for each request, and one that is refused meanwhile.
        let mut served = request(&service);
        assert!(poll(&mut served).is_pending());
        advance(20 * MS).await;
        let overloaded = refusal(finish(request(&service)));
        assert_eq!(
            (overloaded.layer(), overloaded.reason()),
            ("database", Reason::AtLimit)
        );
        hint = overloaded.retry_after();
        finish(served).unwrap();
    }
    assert_eq!(hint.as_millis(), 20);
}

#[test]
fn permits_for_other_work_count_but_are_not_learned_from() {
    let law = Scripted::new(2);
    let layer = law.layer();
    let handle = layer.handle();
    let service = layer.layer(Probe::new());
    let first = handle.try_acquire().unwrap();
    let second = finish(handle.acquire()).unwrap();
    assert_eq!(handle.try_acquire().unwrap_err().reason(), Reason::AtLimit);
    let mut waiting = request(&service);
    assert!(poll(&mut waiting).is_pending());
    drop(first);
    finish(waiting).unwrap();
    drop(second);
    assert_eq!(law.samples().len(), 1);
    assert_eq!(handle.snapshot().permits.in_flight, 0);
}

#[test]
fn waits_are_bounded() {
    let layer = Scripted::new(1).layer().max_waiting(1);
    let service = layer.layer(service_fn(|_: u32| pending::<Result<u32, BoxError>>()));
    let mut requests: Vec<_> = (0..2).map(|_| request(&service)).collect();
    requests
        .iter_mut()
        .for_each(|request| assert!(poll(request).is_pending()));
    assert_refused(finish(request(&service)), Reason::QueueFull);
    layer.handle().set_max_waiting(2);
    assert!(poll(&mut request(&service)).is_pending());
}

#[cfg(feature = "quanta")]
#[test]
fn it_can_be_given_a_clock() {
    use tower_backpressure::{Clock, Vegas};
    let layer = AdaptiveConcurrencyLayer::with_clock(Vegas::default(), Clock::tsc());
    let service = layer.layer(Probe::new());
    assert_eq!(finish(request(&service)).unwrap(), 7);
}
