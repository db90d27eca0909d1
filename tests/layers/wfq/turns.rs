//! The turn is passed on, whatever becomes of those who have it.

use super::{support::*, *};

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_while_it_waits_never_runs() {
    let server = Server::new(1, patient());
    let running = server.pending("a", 0);
    let cancelled = server.send("a", 1);
    let begun = now();
    tokio::time::timeout(Duration::from_secs(1), cancelled)
        .await
        .unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 1);
    assert_eq!(server.handle.snapshot().waiting, 0);
    server.go.add_permits(5);
    running.await.unwrap();
    server.send("b", 2).await.unwrap();
    assert_eq!(server.begun(), [("a", 0), ("b", 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_passed_on_and_the_request_no_longer_runs() {
    let fair = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a"));
    let handle = fair.handle();
    let service = ServiceBuilder::new()
        .layer(fair)
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn({
            let handle = handle.clone();
            move |number: u32| {
                let handle = handle.clone();
                async move {
                    assert_eq!(handle.snapshot().running, 1);
                    assert_ne!(number, 13, "unlucky");
                    Ok::<_, BoxError>(number)
                }
            }
        });
    let panicked = tokio::spawn(boxed(service.clone().oneshot(13))).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!(handle.snapshot().running, 0);
    assert_eq!(service.oneshot(7).await.unwrap(), 7);
}

/// They hold a turn, and whatever the inner service gave them, and are never polled again.
#[tokio::test(start_paused = true)]
async fn futures_that_are_kept_but_not_polled_do_not_stop_the_others() {
    let server = Server::new(4, WfqConfig::default());
    let running: Vec<_> = (0..4).map(|number| server.pending("a", number)).collect();
    let mut kept = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..3 {
        kept.push(server.pending("kept", number));
    }
    for number in 0..10 {
        waiting.spawn(server.send("b", number));
    }
    tokio::task::yield_now().await;
    // Four seats get free. One after the other of those that are kept gets the turn, and the first of them
    // a seat, too; it is passed over when it has not been polled for a while, and so is the next.
    server.go.add_permits(100);
    for response in running {
        response.await.unwrap();
    }
    let begun = now();
    let served = waiting.join_all().await;
    assert_eq!(served.len(), 10);
    assert!(
        begun.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    drop(kept);
    assert_eq!(seats_taken(&server), 0);
    assert_eq!(server.handle.snapshot().waiting, 0);
}

/// Cancelled, refused, panicking and served, on several threads: nobody is stuck, and nothing is left.
#[test]
fn a_crowd_that_comes_and_goes_gets_through() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let config = WfqConfig::default()
        .max_waiting(40)
        .max_waiting_per_tenant(20);
    let fair = WfqLayer::new(config, tenant);
    let (handle, limit) = (fair.handle(), ConcurrencyLimitLayer::new(3));
    let seats = limit.handle();
    let service = ServiceBuilder::new().layer(fair).layer(limit).service_fn(
        |(_, number): Request| async move {
            for _ in 0..number % 5 {
                tokio::task::yield_now().await;
            }
            assert_ne!(number % 97, 13, "unlucky");
            match number % 7 {
                0 => Err(BoxError::from("failed")),
                _ => Ok(number),
            }
        },
    );
    let mut clients = JoinSet::new();
    for client in 0..60_u32 {
        let service = service.clone();
        clients.spawn_on(
            boxed(async move {
                for i in 0..300_u32 {
                    let number = client
                        .wrapping_mul(7919)
                        .wrapping_add(i.wrapping_mul(104_729))
                        % 10_000;
                    let tenant = ["a", "b", "c", "d"][number as usize % 4];
                    let mut response = boxed(service.clone().oneshot((tenant, number)));
                    if number % 10 < 3 {
                        // It is dropped after a few polls, wherever it is then.
                        for _ in 0..number % 4 {
                            let polled =
                                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                                    poll(&mut response).is_ready()
                                }));
                            if polled.unwrap_or(true) {
                                break;
                            }
                            tokio::task::yield_now().await;
                        }
                    } else {
                        let _ = tokio::spawn(response).await;
                    }
                }
                Ok::<_, BoxError>(0)
            }),
            runtime.handle(),
        );
    }
    let _ = runtime.block_on(clients.join_all());
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.running), (0, 0));
    assert_eq!(seats.snapshot().in_flight, 0);
    let _entered = runtime.enter();
    assert_eq!(finish(boxed(service.oneshot(("a", 1)))).unwrap(), 1);
}

/// Many tasks poll what is not theirs to drive: a waker that changes is the one that is woken.
#[tokio::test(start_paused = true)]
async fn one_that_moves_to_another_task_with_the_turn_is_woken_there() {
    let server = Server::new(1, WfqConfig::default());
    let running = server.pending("a", 0);
    let mut moves = server.pending("a", 1); // has the turn, and waits for the seat
    assert!(poll(&mut moves).is_pending());
    let elsewhere = tokio::spawn(moves);
    tokio::task::yield_now().await;
    server.go.add_permits(2);
    running.await.unwrap();
    assert_eq!(elsewhere.await.unwrap().unwrap(), 1);
}

#[test]
fn an_unpolled_future_is_in_nobodys_way() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let layer = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(ConcurrencyLimitLayer::new(1));
    let mut service =
        layer.service_fn(|(_, number): Request| async move { Ok::<_, BoxError>(number) });
    let first = boxed(service.call(("a", 0)));
    let unpolled: Vec<_> = (1..10).map(|number| service.call(("b", number))).collect();
    let mut last = boxed(service.call(("c", 10)));
    assert!(poll(&mut last).is_pending());
    assert_eq!(finish(first).unwrap(), 0);
    assert!(matches!(poll(&mut last), Poll::Ready(Ok(10))));
    drop(unpolled);
}

/// A limiter of another crate gives whoever polls it a place in its queue, and cannot be told not to.
#[tokio::test(start_paused = true)]
async fn one_that_was_tried_before_it_had_to_wait_keeps_nothing_of_a_foreign_limiter() {
    let mut service = ServiceBuilder::new()
        .layer(WfqLayer::new(WfqConfig::default(), tenant))
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1))
        .service_fn(|(_, number): Request| async move {
            sleep(MS).await;
            Ok::<_, BoxError>(number)
        });
    // All called before any is polled, as servers do that spawn a task for each response.
    let responses: Vec<_> = (0..5).map(|number| service.call(("a", number))).collect();
    let mut tasks = JoinSet::new();
    for response in responses.into_iter().rev() {
        tasks.spawn(boxed(response));
    }
    let served = tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await;
    assert_eq!(served.expect("nobody is stuck").len(), 5);
}

/// It holds a seat through a foreign `Buffer` too, whose worker waits for it.
#[tokio::test(start_paused = true)]
async fn a_buffer_inside_is_no_obstacle() {
    let inner = tower::buffer::Buffer::new(
        tower::limit::ConcurrencyLimit::new(
            service_fn(|number: u32| async move {
                sleep(MS).await;
                Ok::<_, BoxError>(number)
            }),
            1,
        ),
        1,
    );
    let mut service = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a")).layer(inner);
    let responses: Vec<_> = (0..40).map(|number| service.call(number)).collect();
    let mut tasks = JoinSet::new();
    for response in responses {
        tasks.spawn(boxed(response));
    }
    let served = tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await;
    assert_eq!(served.expect("nobody is stuck").len(), 40);
}

/// The inner service fails or panics once, while it is polled by the one whose turn it is. That future is done,
/// but is kept.
#[tokio::test(start_paused = true)]
async fn a_future_that_failed_and_is_kept_has_passed_its_turn_on() {
    for behaviour in [Behaviour::Fails, Behaviour::Panics] {
        let probe = Probe::new();
        let service = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a")).layer(probe.clone());
        probe.set(|script| script.ready = Behaviour::Pends);
        let mut first = request(&service);
        assert!(poll(&mut first).is_pending()); // has the turn
        let second = tokio::spawn(request(&service));
        tokio::task::yield_now().await;
        probe.set(|script| script.ready = behaviour);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut first)));
        assert_eq!(polled.is_err(), behaviour == Behaviour::Panics);
        probe.set(|script| script.ready = Behaviour::Works);
        let begun = now();
        assert_eq!(second.await.unwrap().unwrap(), 7);
        assert!(begun.elapsed() <= Duration::from_secs(1));
        drop(first);
    }
}

/// The more wait, the less often each of them looks whether the turn is used. When most have left, the others
/// find out all the same.
#[tokio::test(start_paused = true)]
async fn after_a_burst_too_a_turn_that_is_not_used_is_passed_on_within_a_second() {
    let server = Server::new(1, WfqConfig::default().max_waiting_per_tenant(1000));
    let running = server.pending("a", 0);
    let _kept = server.pending("kept", 1); // has the turn, and is not polled again
    let burst: Vec<_> = (0..1000)
        .map(|number| server.pending("burst", number))
        .collect();
    let last = tokio::spawn(server.send("last", 2));
    tokio::task::yield_now().await;
    drop(burst);
    server.seats.set_limit(2).unwrap(); // a seat for the one that is kept, and later one more
    server.go.add_permits(2);
    running.await.unwrap();
    let begun = now();
    last.await.unwrap().unwrap();
    assert!(
        begun.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}

/// A waker is foreign code: if it panics, that is the caller's to see, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_loses_nothing() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let panics = std::task::Waker::from(Arc::new(Panics));
    let server = Server::new(1, WfqConfig::default());
    let running = server.pending("a", 0);
    let mut turn = server.pending("a", 1);
    let mut behind = server.send("b", 2);
    assert!(
        behind
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&panics))
            .is_pending()
    );
    server.go.add_permits(1);
    running.await.unwrap();
    // It begins, and passes the turn on.
    let passed_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut turn)));
    assert!(passed_on.is_err());
    drop(turn);
    drop(behind);
    assert_eq!(
        (
            server.handle.snapshot().running,
            server.handle.snapshot().waiting
        ),
        (0, 0)
    );
    assert_eq!(seats_taken(&server), 0);
}

/// What it has reserved inside is given back before the turn is passed on: else whoever gets the turn finds it
/// taken, and has to wait for it again.
#[tokio::test(start_paused = true)]
async fn one_that_leaves_with_the_turn_gives_back_first() {
    /// Never ready. Says, when it is dropped after it was polled, how often the other was woken by then.
    struct Reserves {
        polled: bool,
        wakes: Arc<CountWakes>,
        wakes_when_dropped: Arc<Mutex<Option<usize>>>,
    }
    impl Clone for Reserves {
        fn clone(&self) -> Self {
            let (wakes, wakes_when_dropped) = (self.wakes.clone(), self.wakes_when_dropped.clone());
            Self {
                polled: false,
                wakes,
                wakes_when_dropped,
            }
        }
    }
    impl Drop for Reserves {
        fn drop(&mut self) {
            if self.polled {
                *self.wakes_when_dropped.lock().unwrap() = Some(self.wakes.count());
            }
        }
    }
    impl Service<u32> for Reserves {
        type Response = u32;
        type Error = BoxError;
        type Future = std::future::Ready<Result<u32, BoxError>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
            self.polled = true;
            Poll::Pending
        }

        fn call(&mut self, _: u32) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let (wakes, waker) = CountWakes::new();
    let wakes_when_dropped = Arc::default();
    let inner = Reserves {
        polled: false,
        wakes: wakes.clone(),
        wakes_when_dropped: Arc::clone(&wakes_when_dropped),
    };
    let service = WfqLayer::new(WfqConfig::default(), |_: &u32| Some("a")).layer(inner);
    let mut turn = request(&service);
    assert!(poll(&mut turn).is_pending());
    let mut next = request(&service);
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(next.as_mut().poll(&mut cx).is_pending());
    drop(turn);
    assert_eq!(*wakes_when_dropped.lock().unwrap(), Some(0));
    assert_eq!(wakes.count(), 1);
}
