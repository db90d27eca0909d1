//! The rate limit: how many pass in which time, who waits for how long, and what is given back.

use crate::support;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use support::*;
use tokio::time;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_backpressure::{
    LoadShedLayer, Rate, RateLimitLayer, Reason,
    rate_limit::{Acquire, Handle},
};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn handle(rate: Rate) -> Handle {
    RateLimitLayer::new(rate).handle()
}

/// Everything that is in the bucket now.
fn drain(handle: &Handle) -> usize {
    std::iter::from_fn(|| handle.try_acquire(1).ok()).count()
}

fn pending(acquire: &mut Acquire) -> bool {
    poll(acquire).is_pending()
}

#[tokio::test(start_paused = true)]
async fn it_starts_full_refills_steadily_and_holds_no_more_than_the_burst() {
    let handle = handle(Rate::per_second(100).burst(20));
    assert_eq!(drain(&handle), 20);
    time::advance(ms(9)).await;
    assert_eq!(drain(&handle), 0);
    time::advance(ms(1)).await;
    assert_eq!(drain(&handle), 1);
    time::advance(ms(55)).await;
    assert_eq!(drain(&handle), 5);
    time::advance(Duration::from_secs(3600)).await;
    assert_eq!(drain(&handle), 20);
}

#[tokio::test(start_paused = true)]
async fn there_is_no_window_at_whose_edge_twice_as_many_pass() {
    let handle = handle(Rate::per_second(10));
    time::advance(ms(900)).await;
    let mut passed = drain(&handle);
    time::advance(ms(200)).await; // over the edge of the first second
    passed += drain(&handle);
    assert_eq!(passed, 12, "the burst, and what 200 ms bring");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_exactly_when_the_tokens_would_be_there() {
    let handle = handle(Rate::per_second(10).burst(5));
    handle.try_acquire(5).unwrap();
    for (n, wait) in [(1, 100), (3, 300), (5, 500)] {
        let refused = handle.try_acquire(n).unwrap_err();
        assert_eq!(
            (refused.reason(), refused.retry_after()),
            (Reason::AtLimit, ms(wait))
        );
    }
    time::advance(ms(70)).await;
    let wait = handle.try_acquire(1).unwrap_err().retry_after();
    assert_eq!(wait, ms(30));
    time::advance(wait).await;
    assert!(handle.try_acquire(1).is_ok());
    assert_eq!(handle.snapshot().rejected.at_limit, 4);
}

#[tokio::test(start_paused = true)]
async fn more_than_the_burst_is_refused_for_good() {
    let handle = handle(Rate::per_second(10).burst(5));
    for refused in [handle.try_acquire(6), handle.acquire(6).await] {
        assert_eq!(refused.unwrap_err().reason(), Reason::ExceedsBurst);
    }
    assert!(handle.try_acquire(u64::MAX).is_err());
    assert!(handle.acquire(u64::MAX).await.is_err());
    assert!(handle.try_acquire(5).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_service_waits_for_its_token_and_uses_it_in_call() {
    let layer = RateLimitLayer::new(Rate::per_second(10).burst(1));
    let mut service = layer.layer(Probe::new());
    let begun = now();
    for request in 0..5 {
        service.ready().await.unwrap().call(7).await.unwrap();
        assert_eq!(begun.elapsed(), ms(100) * request);
    }
    assert_eq!(layer.handle().snapshot().admitted, 5);
}

#[tokio::test(start_paused = true)]
async fn a_readied_service_that_is_dropped_puts_its_token_back_but_a_call_does_not() {
    let layer = RateLimitLayer::new(Rate::per_second(1).burst(1));
    let service = layer.layer(Probe::new());
    for _ in 0..3 {
        let mut readied = service.clone();
        assert!(poll_ready(&mut readied).is_ready());
        assert_eq!(layer.handle().snapshot().tokens, 0);
        drop(readied);
        assert_eq!(layer.handle().snapshot().tokens, 1);
    }
    assert_eq!(layer.handle().snapshot().admitted, 0);
    let mut called = service.clone();
    assert!(poll_ready(&mut called).is_ready());
    drop(called.call(7)); // reset by its client
    assert_eq!(layer.handle().snapshot().tokens, 0);
    assert_eq!(layer.handle().snapshot().admitted, 1);
}

#[tokio::test(start_paused = true)]
async fn callers_are_served_in_their_order_one_each_interval() {
    let handle = handle(Rate::per_second(100).burst(1));
    handle.try_acquire(1).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    let begun = now();
    for caller in 0..50u32 {
        let (handle, order) = (handle.clone(), Arc::clone(&order));
        tasks.spawn(async move {
            handle.acquire(1).await.unwrap();
            order.lock().unwrap().push((caller, begun.elapsed()));
        });
    }
    tasks.join_all().await;
    let expected: Vec<_> = (0..50)
        .map(|caller| (caller, ms(10) * (caller + 1)))
        .collect();
    assert_eq!(*order.lock().unwrap(), expected);
}

/// A large request at the head is not passed by small ones that could be served before it.
#[tokio::test(start_paused = true)]
async fn a_large_request_is_not_starved_by_small_ones() {
    let handle = handle(Rate::per_second(10).burst(5));
    drain(&handle);
    let mut large = handle.acquire(5);
    assert!(pending(&mut large));
    let mut small = handle.acquire(1);
    assert!(pending(&mut small));
    time::advance(ms(400)).await;
    assert!(handle.try_acquire(1).is_err());
    assert!(pending(&mut small) && pending(&mut large));
    time::advance(ms(100)).await;
    assert!(poll(&mut large).is_ready());
    assert!(pending(&mut small));
    time::advance(ms(100)).await;
    assert!(poll(&mut small).is_ready());
}

/// No herd: for each token one caller is woken, the one whose token it is.
#[tokio::test(start_paused = true)]
async fn one_caller_is_woken_for_each_token() {
    let handle = handle(Rate::per_second(10).burst(1));
    handle.try_acquire(1).unwrap();
    let mut callers: Vec<_> = (0..100)
        .map(|_| (handle.acquire(1), CountWakes::new()))
        .collect();
    let poll_with = |acquire: &mut Acquire, waker: &std::task::Waker| {
        let mut cx = std::task::Context::from_waker(waker);
        Future::poll(std::pin::Pin::new(acquire), &mut cx)
    };
    for (acquire, (_, waker)) in &mut callers {
        assert!(poll_with(acquire, waker).is_pending());
    }
    for served in 0..100 {
        time::sleep(ms(100)).await;
        let wakes: usize = callers.iter().map(|(_, (wakes, _))| wakes.count()).sum();
        assert_eq!(wakes, served + 1);
        let (acquire, (_, waker)) = &mut callers[served];
        assert!(poll_with(acquire, waker).is_ready());
    }
}

/// Whoever stood behind one that has left is served as much earlier.
#[tokio::test(start_paused = true)]
async fn those_behind_one_that_leaves_move_up() {
    let handle = handle(Rate::per_second(10).burst(1));
    handle.try_acquire(1).unwrap();
    let begun = now();
    let mut tasks: Vec<_> = (0..10).map(|_| tokio::spawn(handle.acquire(1))).collect();
    tokio::task::yield_now().await;
    for leaver in [7, 4, 2] {
        tasks.remove(leaver).abort();
    }
    tokio::task::yield_now().await;
    for (position, task) in tasks.into_iter().enumerate() {
        task.await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), ms(100) * (position as u32 + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_put_back_brings_those_who_wait_forward() {
    let layer = RateLimitLayer::new(Rate::per_second(10).burst(2));
    let mut readied = layer.layer(Probe::new());
    assert!(poll_ready(&mut readied).is_ready());
    drain(&layer.handle());
    let begun = now();
    let waiting = tokio::spawn(layer.handle().acquire(2)); // 200 ms
    time::sleep(ms(50)).await;
    drop(readied);
    waiting.await.unwrap().unwrap();
    assert_eq!(
        begun.elapsed(),
        ms(100),
        "one came with time, one was put back"
    );
}

/// One that waits in the queue and is never polled again takes its own token with it, and no other.
#[tokio::test(start_paused = true)]
async fn an_abandoned_head_does_not_stop_those_behind_it() {
    let layer = RateLimitLayer::new(Rate::per_second(10).burst(5));
    let handle = layer.handle();
    drain(&handle);
    let mut abandoned: Vec<_> = (0..3).map(|_| layer.layer(Probe::new())).collect();
    assert!(
        abandoned
            .iter_mut()
            .all(|service| poll_ready(service).is_pending())
    );
    let begun = now();
    handle.acquire(1).await.unwrap();
    assert_eq!(begun.elapsed(), ms(400), "after the three that are ahead");
    // And one that does not want to wait gets what is there.
    let mut another = handle.acquire(1);
    assert!(poll(&mut another).is_pending());
    time::advance(ms(300)).await;
    assert_eq!(drain(&handle), 2);
    assert!(poll(&mut another).is_ready());
}

#[test]
fn no_wakeup_is_lost_between_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let handle = handle(Rate::per_second(20_000).burst(20));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let handle = handle.clone();
        tasks.spawn_on(
            async move {
                for request in 0..50u32 {
                    let mut acquire = handle.acquire(1);
                    if (task + request) % 3 == 0 && poll(&mut acquire).is_pending() {
                        drop(acquire); // some give up
                        acquire = handle.acquire(1);
                    } else if (task + request) % 3 == 0 {
                        continue;
                    }
                    acquire.await.unwrap();
                }
            },
            runtime.handle(),
        );
    }
    runtime.block_on(tasks.join_all());
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.admitted), (0, 800));
}

/// In every window of a random schedule, through changes of the rate, as seen from outside.
#[tokio::test(start_paused = true)]
async fn no_window_lets_more_pass_than_it_should() {
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for _ in 0..50 {
        let (mut rate, mut burst) = (20, 5);
        let handle = handle(Rate::per_second(rate).burst(burst));
        let mut brought = 0;
        let mut log = vec![(0, burst, 0)]; // in thousandths of tokens; the burst; how many passed
        for _ in 0..200 {
            let pause = random(100);
            time::advance(ms(pause)).await;
            brought += pause * rate;
            if random(10) == 0 {
                (rate, burst) = (1 + random(100), 1 + random(20));
                handle.set_rate(Rate::per_second(rate).burst(burst));
            }
            log.push((brought, burst, drain(&handle) as u64));
        }
        for from in 1..log.len() {
            let (mut passed, mut most) = (0, log[from - 1].1);
            for &(brought, burst, drained) in &log[from..] {
                passed += drained;
                most = most.max(burst);
                assert!(passed <= most + (brought - log[from].0).div_ceil(1000) + 1);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_gives_up_passes_its_turn_on() {
    let handle = handle(Rate::per_second(10).burst(1));
    handle.try_acquire(1).unwrap();
    let mut head = handle.acquire(1);
    assert!(pending(&mut head));
    let second = tokio::spawn(handle.acquire(1));
    tokio::task::yield_now().await;
    drop(head);
    let begun = now();
    second.await.unwrap().unwrap();
    assert_eq!(
        begun.elapsed(),
        ms(100),
        "the head's token, not the one after it"
    );
    assert_eq!(handle.snapshot().waiting, 0);
}

/// A head that is not polled although its timer woke it does not keep its tokens from being set
/// aside when anybody else looks.
#[tokio::test(start_paused = true)]
async fn a_head_that_is_slow_to_look_finds_its_token_set_aside() {
    let handle = handle(Rate::per_second(10).burst(2));
    drain(&handle);
    let mut head = handle.acquire(1);
    let mut second = handle.acquire(1);
    assert!(pending(&mut head) && pending(&mut second));
    time::advance(ms(200)).await;
    assert!(poll(&mut second).is_ready());
    assert!(poll(&mut head).is_ready());
    assert_eq!(handle.snapshot().tokens, 0);
}

#[tokio::test(start_paused = true)]
async fn past_max_waiting_the_next_one_is_refused_with_the_wait_behind_the_others() {
    let layer = RateLimitLayer::new(Rate::per_second(10).burst(1)).max_waiting(2);
    let service = layer.layer(Probe::new());
    layer.handle().try_acquire(1).unwrap();
    let mut waiting: Vec<_> = (0..2).map(|_| request(&service)).collect();
    assert!(waiting.iter_mut().all(|request| poll(request).is_pending()));
    let refused = refusal(finish(request(&service)));
    assert_eq!(
        (refused.reason(), refused.retry_after()),
        (Reason::QueueFull, ms(300))
    );
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.waiting, snapshot.rejected.queue_full), (2, 1));
    assert_eq!(snapshot.oldest_wait, Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_be_too_long_is_refused_at_once() {
    let layer = RateLimitLayer::new(Rate::per_second(10).burst(1)).max_wait(ms(250));
    let service = layer.layer(Probe::new());
    layer.handle().try_acquire(1).unwrap();
    let mut waiting: Vec<_> = (0..2).map(|_| request(&service)).collect();
    assert!(waiting.iter_mut().all(|request| poll(request).is_pending()));
    // It would be the third, after 300 ms.
    let refused = refusal(finish(request(&service)));
    assert_eq!(
        (refused.reason(), refused.retry_after()),
        (Reason::WaitTimeout, ms(300))
    );
    for request in waiting {
        request.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_gets_too_long_because_the_rate_was_lowered_ends_at_max_wait() {
    let handle = RateLimitLayer::new(Rate::per_second(10).burst(1))
        .max_wait(ms(250))
        .handle();
    handle.try_acquire(1).unwrap();
    let begun = now();
    let head = tokio::spawn(handle.acquire(1));
    let second = tokio::spawn(handle.acquire(1));
    tokio::task::yield_now().await;
    handle.set_rate(Rate::per_hour(1));
    for task in [head, second] {
        assert_eq!(
            task.await.unwrap().unwrap_err().reason(),
            Reason::WaitTimeout
        );
        assert_eq!(begun.elapsed(), ms(250));
    }
    assert_eq!(handle.snapshot().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_rate_grants_no_fresh_burst() {
    let handle = handle(Rate::per_second(10).burst(10));
    assert_eq!(drain(&handle), 10);
    handle.set_rate(Rate::per_second(1000).burst(1000));
    assert_eq!(drain(&handle), 0);
    time::advance(ms(5)).await;
    assert_eq!(drain(&handle), 5);

    // A bucket that has been full for long is as full as it was, not as the new burst allows.
    handle.set_rate(Rate::per_second(10).burst(10));
    time::advance(Duration::from_secs(3600)).await;
    handle.set_rate(Rate::per_second(10).burst(1000));
    assert_eq!(handle.snapshot().tokens, 10);
    // And what no longer fits is lost.
    handle.set_rate(Rate::per_second(10).burst(3));
    assert_eq!(drain(&handle), 3);
    assert_eq!(handle.snapshot().rate, Rate::per_second(10).burst(3));
}

#[tokio::test(start_paused = true)]
async fn a_new_rate_reaches_those_who_wait() {
    let handle = handle(Rate::per_hour(1));
    handle.try_acquire(1).unwrap();
    let begun = now();
    let head = tokio::spawn(handle.acquire(1));
    let second = tokio::spawn(handle.acquire(1));
    tokio::task::yield_now().await;
    time::advance(ms(50)).await;
    handle.set_rate(Rate::per_second(10).burst(1));
    head.await.unwrap().unwrap();
    assert!(
        (ms(149)..=ms(151)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    second.await.unwrap().unwrap();
    assert!(
        (ms(249)..=ms(251)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_more_than_a_lowered_burst_gets_through_when_it_is_full() {
    let handle = handle(Rate::per_second(10).burst(5));
    drain(&handle);
    let waiting = tokio::spawn(handle.acquire(5));
    tokio::task::yield_now().await;
    handle.set_rate(Rate::per_second(10).burst(2));
    let begun = now();
    waiting.await.unwrap().unwrap();
    assert_eq!(begun.elapsed(), ms(200));
    handle.acquire(1).await.unwrap();
    assert_eq!(begun.elapsed(), ms(600), "three more are paid first");
}

#[tokio::test(start_paused = true)]
async fn under_load_shed_it_refuses_at_once_with_the_same_hint() {
    let layer = RateLimitLayer::new(Rate::per_second(10).burst(2)).name("upstream");
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(layer.clone())
        .service(Probe::new());
    for _ in 0..2 {
        service.clone().oneshot(7).await.unwrap();
    }
    for _ in 0..1000 {
        let refused = refusal(service.clone().oneshot(7).await);
        assert_eq!(
            (refused.layer(), refused.reason()),
            ("upstream", Reason::AtLimit)
        );
        assert_eq!(refused.retry_after(), ms(100));
    }
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.waiting, snapshot.rejected.at_limit), (0, 1000));
    time::advance(ms(100)).await;
    assert!(service.clone().oneshot(7).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn all_clones_and_all_layers_draw_on_one_bucket() {
    let layer = RateLimitLayer::new(Rate::per_second(1).burst(4));
    let one = layer.layer(Probe::new());
    let other = layer.clone().layer(Probe::new());
    let from_handle = layer.handle().layer().layer(Probe::new());
    for service in [&one, &other, &from_handle, &one.clone()] {
        assert!(finish(request(service)).is_ok());
    }
    assert!(poll(&mut request(&other)).is_pending());
}

/// The longest rates, in paused time.
#[tokio::test(start_paused = true)]
async fn ten_days_and_ten_years() {
    const DAY: Duration = Duration::from_secs(86_400);
    let slow = handle(Rate::every(10 * DAY));
    let fast = handle(Rate::per_second(1_000_000_000).burst(1000));
    assert_eq!((drain(&slow), drain(&fast)), (1, 1000));
    time::advance(10 * DAY - ms(1)).await;
    assert_eq!(drain(&slow), 0);
    time::advance(ms(1)).await;
    assert_eq!(drain(&slow), 1);
    time::advance(3650 * DAY).await;
    assert_eq!((drain(&slow), drain(&fast)), (1, 1000));
}

/// So many tokens come that no counter of a bucket is wide enough for all of them.
#[tokio::test(start_paused = true)]
async fn at_the_highest_rate_a_bucket_is_exact_after_any_time() {
    const HOUR: u64 = 3600;
    for burst in [1, 40, 1000, 1 << 40] {
        let handle = handle(Rate::per_second(1_000_000_000).burst(burst));
        let mut admitted = 0;
        for hours in [0, 1, 18, 20, 38, 40, 77, 79, 156, 157, 20_000, 900_000] {
            time::advance(Duration::from_secs(hours * HOUR)).await;
            // Full again: with the largest burst that takes 18 minutes.
            let tokens = handle.snapshot().tokens;
            assert_eq!(tokens, burst, "{burst} after {hours} hours");
            for n in [1, burst - 1].into_iter().filter(|&n| n > 0) {
                handle.try_acquire(n).unwrap();
                admitted += n;
            }
            let snapshot = handle.snapshot();
            assert_eq!((snapshot.tokens, snapshot.admitted), (0, admitted));
            let wait = handle.try_acquire(1).unwrap_err().retry_after();
            assert!(wait <= Duration::from_nanos(2), "{wait:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_token_is_counted_that_is_used_and_none_that_is_put_back() {
    let layer = RateLimitLayer::new(Rate::per_second(1).burst(1 << 30));
    let handle = layer.handle();
    let mut admitted = 0;
    for n in [1, 2, 31, 32, 33, 1000, 1_000_000] {
        for _ in 0..20_000 / n.min(1000) {
            handle.try_acquire(n).unwrap();
            admitted += n;
            assert_eq!(handle.snapshot().admitted, admitted);
        }
    }
    // More is put back than was ever taken in the same way: these had to wait.
    let everything = handle.snapshot().tokens;
    handle.try_acquire(everything).unwrap();
    admitted += everything;
    let mut waiting: Vec<_> = (0..1000).map(|_| handle.acquire(32)).collect();
    assert!(waiting.iter_mut().all(pending));
    time::advance(Duration::from_secs(32_000)).await;
    assert!(handle.try_acquire(1).is_err()); // gives them what has come
    assert_eq!(handle.snapshot().admitted, admitted + 32_000);
    drop(waiting);
    assert_eq!(handle.snapshot().admitted, admitted);
    assert_eq!(handle.snapshot().tokens, 32_000);
}

/// Threads draw on a bucket that is full at every request, and on one that never is.
#[test]
fn threads_count_every_token_and_take_none_twice() {
    const EACH: u64 = 50_000;
    let full = Rate::per_second(1_000_000_000).burst(1_000_000_000);
    let saved_up = Rate::per_hour(1).burst(3 * EACH);
    for rate in [full, saved_up] {
        let handle = handle(rate);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|_| drop(handle.try_acquire(1))));
            }
        });
        let snapshot = handle.snapshot();
        let admitted = 4 * EACH - snapshot.rejected.at_limit;
        assert_eq!(snapshot.admitted, admitted);
        assert_eq!(admitted, if rate == full { 4 } else { 3 } * EACH);
    }
}

#[cfg(feature = "quanta")]
#[tokio::test]
async fn it_can_be_given_the_tsc_clock() {
    use tower_backpressure::Clock;
    let limit = RateLimitLayer::with_clock(Rate::per_second(1000).burst(10), Clock::tsc());
    let handle = limit.handle();
    handle.acquire(10).await.unwrap();
    assert!(handle.snapshot().tokens < 10);
    handle.acquire(10).await.unwrap(); // 10 ms later, by that clock
    assert_eq!(handle.snapshot().admitted, 20);
}

/// Every feature on, and the default is still a clock that a test can pause.
#[tokio::test(start_paused = true)]
async fn features_only_add() {
    let handle = handle(Rate::per_hour(1));
    drain(&handle);
    time::advance(Duration::from_secs(3600)).await;
    assert_eq!(drain(&handle), 1);
}
