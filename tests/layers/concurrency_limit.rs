//! What is particular to the concurrency limit: its edges, its handle, and behaviour over time.

use crate::support;

use std::{
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use support::*;
use tokio::time;
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_backpressure::{
    ConcurrencyLimitLayer, Overloaded, Permit, Reason, concurrency_limit::Handle,
};

fn handle(limit: usize) -> Handle {
    ConcurrencyLimitLayer::new(limit).handle()
}

fn take_all(handle: &Handle) -> Vec<Permit> {
    std::iter::from_fn(|| handle.try_acquire().ok()).collect()
}

#[test]
fn a_limit_of_one_admits_one() {
    let handle = handle(1);
    let permit = handle.try_acquire().unwrap();
    let refused = handle.try_acquire().unwrap_err();
    assert_eq!(refused.reason(), Reason::AtLimit);
    drop(permit);
    assert!(handle.try_acquire().is_ok());
}

#[test]
fn the_largest_limit_is_held_at_what_can_be_counted() {
    let handle = handle(usize::MAX);
    assert_eq!(handle.snapshot().limit, 16_777_215);
    let permits: Vec<_> = (0..100_000).map(|_| handle.try_acquire()).collect();
    assert_eq!(handle.snapshot().in_flight, 100_000);
    drop(permits);
    handle.set_limit(1).unwrap();
    handle.set_limit(usize::MAX).unwrap();
    assert_eq!(handle.snapshot().limit, 16_777_215);
}

#[test]
#[should_panic(expected = "ConcurrencyLimitLayer::new(0): limit must be at least 1")]
fn a_limit_of_zero_panics_where_it_is_written() {
    let _ = ConcurrencyLimitLayer::new(0);
}

#[test]
fn a_limit_of_zero_at_run_time_is_an_error_and_changes_nothing() {
    let handle = handle(3);
    let error = handle.set_limit(0).unwrap_err();
    assert_eq!(error.field(), "limit");
    assert_eq!(error.to_string(), "limit must be at least 1");
    assert_eq!(take_all(&handle).len(), 3);
}

#[test]
fn a_limit_that_shrinks_below_what_is_in_flight_admits_nothing_until_less_is() {
    let handle = handle(10);
    let mut permits = take_all(&handle);
    let mut waiting = handle.acquire();
    assert!(poll(&mut waiting).is_pending());
    handle.set_limit(3).unwrap();
    while permits.len() > 3 {
        permits.pop();
        assert!(
            poll(&mut waiting).is_pending(),
            "{} in flight",
            permits.len()
        );
        assert!(handle.try_acquire().is_err());
    }
    permits.pop();
    assert!(poll(&mut waiting).is_ready());
    assert_eq!(handle.snapshot().in_flight, 2);
}

#[test]
fn a_limit_that_grows_lets_in_as_many_as_there_is_room_for_in_their_order() {
    let handle = handle(1);
    let _busy = handle.try_acquire().unwrap();
    let mut waiting: Vec<_> = (0..10).map(|_| handle.acquire()).collect();
    assert!(waiting.iter_mut().all(|acquire| poll(acquire).is_pending()));
    handle.set_limit(5).unwrap();
    let (mut first, mut rest) = (waiting, Vec::new());
    rest.extend(first.drain(4..));
    let _permits: Vec<_> = first
        .into_iter()
        .map(|acquire| finish(acquire).unwrap())
        .collect();
    assert!(rest.iter_mut().all(|acquire| poll(acquire).is_pending()));
    assert_eq!(handle.snapshot().waiting, 6);
}

#[test]
fn a_hundred_thousand_waiters_are_cancelled_in_any_order() {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(usize::MAX);
    let handle = limit.handle();
    let busy = handle.try_acquire().unwrap();
    let mut waiting: Vec<_> = (0..100_000).map(|_| handle.acquire()).collect();
    assert!(waiting.iter_mut().all(|acquire| poll(acquire).is_pending()));
    assert_eq!(handle.snapshot().waiting, 100_000);
    // In a fixed random order.
    let mut seed = 1u64;
    let mut last = waiting.pop().unwrap();
    while !waiting.is_empty() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (seed >> 33) as usize % waiting.len();
        drop(waiting.swap_remove(at));
    }
    assert_eq!(handle.snapshot().waiting, 1);
    assert!(poll(&mut last).is_pending());
    drop(busy);
    assert!(poll(&mut last).is_ready());
    assert_eq!(handle.snapshot().in_flight, 0);
}

#[test]
fn a_runtime_may_be_dropped_with_waiters_in_it() {
    let layer = ConcurrencyLimitLayer::new(1).max_wait(Duration::from_secs(60));
    let handle = layer.handle();
    let busy = handle.try_acquire().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    for _ in 0..100 {
        let handle = handle.clone();
        runtime.spawn(async move {
            let _permit = handle.acquire().await;
            std::future::pending::<()>().await;
        });
    }
    while handle.snapshot().waiting < 100 {
        std::thread::yield_now();
    }
    drop(runtime);
    assert_eq!(handle.snapshot().waiting, 0);
    drop(busy);
    assert!(handle.try_acquire().is_ok());
}

/// `max_wait` needs a timer. Without a runtime that is a panic, but one that loses nothing.
#[test]
fn a_missing_runtime_does_not_cost_a_permit() {
    let layer = ConcurrencyLimitLayer::new(1).max_wait(Duration::from_secs(60));
    let handle = layer.handle();
    let busy = handle.try_acquire().unwrap();
    let mut waiting = handle.acquire();
    let poll = std::panic::AssertUnwindSafe(|| poll(&mut waiting).is_pending());
    assert!(std::panic::catch_unwind(poll).is_err());
    drop(waiting);
    drop(busy);
    assert_eq!(handle.snapshot().in_flight, 0);
    assert!(handle.try_acquire().is_ok());
}

#[test]
fn nobody_jumps_the_queue() {
    let handle = handle(1);
    let busy = handle.try_acquire().unwrap();
    let mut first = handle.acquire();
    assert!(poll(&mut first).is_pending());
    drop(busy);
    // The permit is the first one's now, whether or not it has looked.
    assert!(handle.try_acquire().is_err());
    let mut second = handle.acquire();
    assert!(poll(&mut second).is_pending());
    let permit = finish(first).unwrap();
    drop(permit);
    assert!(finish(second).is_ok());
}

#[tokio::test]
async fn callers_are_served_in_the_order_in_which_they_came() {
    let handle = handle(1);
    let busy = handle.try_acquire().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..100 {
        let (handle, order) = (handle.clone(), Arc::clone(&order));
        tasks.spawn(async move {
            let _permit = handle.acquire().await.unwrap();
            order.lock().unwrap().push(caller);
            tokio::task::yield_now().await;
        });
    }
    while handle.snapshot().waiting < 100 {
        tokio::task::yield_now().await;
    }
    drop(busy);
    tasks.join_all().await;
    assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
}

#[test]
fn past_max_waiting_the_next_one_is_refused_out_of_call() {
    let layer = ConcurrencyLimitLayer::new(1).max_waiting(2);
    let service = layer.layer(Probe::new());
    let _busy = layer.handle().try_acquire().unwrap();
    let mut waiting: Vec<_> = (0..2).map(|_| request(&service)).collect();
    assert!(waiting.iter_mut().all(|request| poll(request).is_pending()));
    let overloaded = refusal(finish(request(&service)));
    assert_eq!(overloaded.reason(), Reason::QueueFull);
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.waiting, snapshot.rejected.queue_full), (2, 1));
    assert_eq!(snapshot.rejected.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_max_wait() {
    let layer = ConcurrencyLimitLayer::new(1).max_wait(Duration::from_millis(250));
    let probe = Probe::new();
    let mut service = layer.layer(probe.clone());
    let _busy = layer.handle().try_acquire().unwrap();
    let begun = now();
    let refused = service.ready().await.unwrap().call(7).await;
    assert_eq!(begun.elapsed(), Duration::from_millis(250));
    assert_refused(refused, Reason::WaitTimeout);
    assert_eq!(probe.calls(), 0);
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.waiting, snapshot.rejected.wait_timeout), (0, 1));
}

/// A permit is handed on without reading the clock. The wait is counted when the clock is read next.
#[tokio::test(start_paused = true)]
async fn a_wait_is_counted_once_and_for_its_length_whoever_counts_it() {
    /// Gives how many others have waited meanwhile, each for no time.
    type Then = fn(&Handle) -> u64;
    // The permit is handed on after 40 ms, and the waiter is polled a second later. What happens in between?
    let cases: [(&str, u64, Then); 5] = [
        ("nothing: the waiter counts it", 1040, |_| 0),
        ("a snapshot", 40, |handle| {
            assert_eq!(handle.snapshot().waits.count(), 1);
            0
        }),
        ("another comes to wait", 40, |handle| {
            assert!(poll(&mut Box::pin(handle.acquire())).is_pending());
            1
        }),
        ("another waits, and the limit grows", 40, |handle| {
            let mut next = Box::pin(handle.acquire());
            assert!(poll(&mut next).is_pending());
            handle.set_limit(2).unwrap();
            assert!(poll(&mut next).is_ready());
            1
        }),
        ("another waits, and leaves", 40, |handle| {
            let mut next = Box::pin(handle.acquire());
            assert!(poll(&mut next).is_pending());
            drop(next);
            1
        }),
    ];
    for (case, expected, then) in cases {
        let handle = handle(1);
        let busy = handle.try_acquire().unwrap();
        let mut waits = Box::pin(handle.acquire());
        assert!(poll(&mut waits).is_pending());
        time::advance(Duration::from_millis(40)).await;
        drop(busy);
        let others = then(&handle);
        time::advance(Duration::from_secs(1)).await;
        assert!(poll(&mut waits).is_ready(), "{case}");
        let waits = handle.snapshot().waits;
        assert_eq!(waits.count(), 1 + others, "{case}");
        assert_eq!(waits.sum, Duration::from_millis(expected), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_counted_where_the_permit_is_not_picked_up() {
    let handle = handle(1);
    let busy = handle.try_acquire().unwrap();
    let [mut first, mut second, mut third] = [(); 3].map(|()| Box::pin(handle.acquire()));
    for waiter in [&mut first, &mut second, &mut third] {
        assert!(poll(waiter).is_pending());
    }
    time::advance(Duration::from_millis(10)).await;
    drop(busy); // the first has it,
    time::advance(Duration::from_millis(10)).await;
    drop(first); // is dropped with it, and hands it to the second,
    let Poll::Ready(permit) = poll(&mut second) else {
        panic!("it has the permit")
    };
    time::advance(Duration::from_millis(10)).await;
    drop(permit);
    assert!(poll(&mut third).is_ready());
    let waits = handle.snapshot().waits;
    assert_eq!(
        (waits.count(), waits.sum),
        (3, Duration::from_millis(20 + 20 + 30))
    );
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_comes_in_time_is_not_refused() {
    let layer = ConcurrencyLimitLayer::new(1).max_wait(Duration::from_millis(250));
    let mut service = layer.layer(Probe::new());
    for wait in [0, 1, 249] {
        let busy = layer.handle().try_acquire().unwrap();
        tokio::spawn(async move {
            time::sleep(Duration::from_millis(wait)).await;
            drop(busy);
        });
        assert_eq!(service.ready().await.unwrap().call(7).await.unwrap(), 7);
    }
    // Granted and timed out at once: the permit wins, since it is there.
    let busy = layer.handle().try_acquire().unwrap();
    assert!(poll_ready(&mut service).is_pending());
    time::sleep(Duration::from_secs(1)).await;
    drop(busy);
    assert!(poll_ready(&mut service).is_ready());
    assert_eq!(service.call(7).await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn bounds_can_be_changed_at_run_time() {
    let handle = handle(1);
    let _busy = handle.try_acquire().unwrap();
    let mut unbounded = Box::pin(handle.acquire());
    assert!(poll(&mut unbounded).is_pending());
    handle.set_max_wait(Some(Duration::from_secs(1)));
    handle.set_max_waiting(2);
    assert_eq!(
        handle.acquire().await.unwrap_err().reason(),
        Reason::WaitTimeout
    );
    handle.set_max_waiting(1);
    assert_eq!(
        handle.acquire().await.unwrap_err().reason(),
        Reason::QueueFull
    );
    handle.set_max_waiting(2);
    handle.set_max_wait(None);
    let mut another = Box::pin(handle.acquire());
    assert!(poll(&mut another).is_pending());
    time::sleep(Duration::from_secs(3600)).await;
    assert!(poll(&mut unbounded).is_pending() && poll(&mut another).is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_tells_the_age_of_the_oldest_waiter_and_the_peak() {
    let handle = handle(2);
    let first = handle.try_acquire().unwrap();
    drop(handle.try_acquire().unwrap());
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.in_flight, snapshot.peak_in_flight), (1, 2));
    assert_eq!((snapshot.oldest_wait, snapshot.admitted), (None, 2));
    assert_eq!(handle.snapshot().peak_in_flight, 1, "since the last one");

    let second = handle.try_acquire().unwrap();
    let mut old = handle.acquire();
    assert!(poll(&mut old).is_pending());
    time::advance(Duration::from_secs(2)).await;
    let mut young = handle.acquire();
    assert!(poll(&mut young).is_pending());
    time::advance(Duration::from_secs(3)).await;
    assert_eq!(handle.snapshot().oldest_wait, Some(Duration::from_secs(5)));
    drop(first);
    assert_eq!(handle.snapshot().oldest_wait, Some(Duration::from_secs(3)));
    drop((old, young, second));
    assert_eq!(handle.snapshot().in_flight, 0);
}

/// More completions than the atomic word has bits for.
#[test]
fn counts_stay_exact_over_a_long_run() {
    let handle = handle(2);
    let _other = handle.try_acquire().unwrap();
    for _ in 0..100_000 {
        drop(handle.try_acquire().unwrap());
    }
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.in_flight, snapshot.admitted), (1, 100_001));
}

#[tokio::test(start_paused = true)]
async fn the_retry_hint_is_the_queue_over_the_rate_at_which_it_drains() {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(9);
    let handle = limit.handle();
    let busy = handle.try_acquire().unwrap();
    let mut waiting: Vec<_> = (0..9).map(|_| handle.acquire()).collect();
    assert!(waiting.iter_mut().all(|acquire| poll(acquire).is_pending()));
    // Nothing is known yet: the documented constant.
    let refused = handle.acquire().await.unwrap_err();
    assert_eq!(refused.retry_after(), Duration::from_secs(1));
    drop((busy, waiting));
    // 20 completions a second.
    for _ in 0..20 {
        let permit = handle.acquire().await.unwrap();
        time::advance(Duration::from_millis(50)).await;
        drop(permit);
    }
    let _busy = handle.try_acquire().unwrap();
    let mut waiting: Vec<_> = (0..9).map(|_| handle.acquire()).collect();
    assert!(waiting.iter_mut().all(|acquire| poll(acquire).is_pending()));
    // Nine wait, and one more: ten completions of about 50 ms (the first permit counts too).
    let refused = handle.acquire().await.unwrap_err();
    let about = Duration::from_secs(10) / 21;
    assert!(
        refused.retry_after().abs_diff(about) < Duration::from_millis(1),
        "{refused}"
    );
}

#[tokio::test]
async fn a_layer_made_from_a_handle_is_on_the_same_limit() {
    let handle = handle(1);
    let mut service = handle.layer().layer(Probe::new());
    let permit = handle.acquire().await.unwrap();
    assert!(poll_ready(&mut service).is_pending());
    drop(permit);
    assert_eq!(service.ready().await.unwrap().call(7).await.unwrap(), 7);
}

#[test]
fn a_name_of_its_own_tells_two_limits_apart() {
    let database = ConcurrencyLimitLayer::new(1).name("database");
    let _busy = database.handle().try_acquire().unwrap();
    let refused: Overloaded = database.handle().try_acquire().unwrap_err();
    assert_eq!(refused.layer(), "database");
    assert!(refused.to_string().contains("database refused the request"));
    assert!(format!("{database:?}").contains("\"database\""));
}

#[test]
#[should_panic(expected = "polled ready before each call")]
fn a_call_without_readiness_panics() {
    let mut service = ConcurrencyLimitLayer::new(1).layer(Probe::new());
    drop(service.call(7));
}

/// Under tower's Buffer one error of `poll_ready` fails every request after it.
#[tokio::test]
async fn refusals_do_not_kill_a_buffer() {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let handle = limit.handle();
    let mut service = tower::buffer::Buffer::new(limit.layer(Probe::new()), 8);
    let busy = handle.try_acquire().unwrap();
    for _ in 0..4 {
        let refused = service.ready().await.unwrap().call(7).await;
        assert_refused(refused, Reason::QueueFull);
    }
    drop(busy);
    let served: Result<u32, BoxError> = service.ready().await.unwrap().call(7).await;
    assert_eq!(served.unwrap(), 7);
}

/// Whatever is done with a waker may come back to the limit, so none of it is done under its lock.
/// Where it is, these hang.
mod a_waker_may_use_the_limit {
    use std::{
        pin::Pin,
        task::{Context, Wake, Waker},
    };

    use super::*;

    struct Uses(Handle);

    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            self.0.snapshot();
        }
    }

    impl Drop for Uses {
        fn drop(&mut self) {
            self.0.snapshot();
        }
    }

    fn waiting(handle: &Handle) -> tower_backpressure::concurrency_limit::Acquire {
        let waker = Waker::from(Arc::new(Uses(handle.clone())));
        let mut acquire = handle.acquire();
        let mut cx = Context::from_waker(&waker);
        assert!(Future::poll(Pin::new(&mut acquire), &mut cx).is_pending());
        acquire
    }

    #[test]
    fn when_it_is_woken_by_a_permit_that_is_given_back() {
        let handle = handle(1);
        let busy = handle.try_acquire().unwrap();
        let mut acquire = waiting(&handle);
        drop(busy);
        assert!(poll(&mut acquire).is_ready());
    }

    #[test]
    fn when_it_is_woken_by_a_limit_that_grows() {
        let handle = handle(1);
        let _busy = handle.try_acquire().unwrap();
        let mut both = [waiting(&handle), waiting(&handle)];
        handle.set_limit(3).unwrap();
        assert!(both.iter_mut().all(|acquire| poll(acquire).is_ready()));
    }

    #[test]
    fn when_it_is_dropped_by_a_caller_that_leaves() {
        let handle = handle(1);
        let _busy = handle.try_acquire().unwrap();
        drop(waiting(&handle));
        assert_eq!(handle.snapshot().waiting, 0);
    }

    #[test]
    fn when_it_is_replaced_by_another() {
        let handle = handle(1);
        let _busy = handle.try_acquire().unwrap();
        let mut acquire = waiting(&handle);
        assert!(poll(&mut acquire).is_pending());
    }

    #[test]
    fn when_its_caller_is_refused() {
        let handle = handle(1);
        handle.set_max_waiting(0);
        let _busy = handle.try_acquire().unwrap();
        let waker = Waker::from(Arc::new(Uses(handle.clone())));
        let mut acquire = handle.acquire();
        let mut cx = Context::from_waker(&waker);
        assert!(Future::poll(Pin::new(&mut acquire), &mut cx).is_ready());
    }
}

/// The hint is not older than what it speaks of.
#[tokio::test(start_paused = true)]
async fn a_hint_from_a_slow_spell_does_not_outlive_it() {
    let handle = handle(1);
    let slowly = |handle: Handle| async move {
        for _ in 0..2 {
            let permit = handle.try_acquire().unwrap();
            time::advance(Duration::from_secs(4)).await;
            assert!(handle.try_acquire().is_err());
            drop(permit);
        }
    };
    slowly(handle.clone()).await;
    for _ in 0..100 {
        let permit = handle.try_acquire().unwrap();
        time::advance(Duration::from_secs(36)).await;
        drop(permit);
    }
    let _busy = handle.try_acquire().unwrap();
    let refused = handle.try_acquire().unwrap_err();
    assert_eq!(
        refused.retry_after(),
        Duration::from_secs(1),
        "nothing is known of late"
    );
}
