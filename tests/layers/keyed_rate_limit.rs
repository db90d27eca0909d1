//! A rate for each key: keys apart, memory bounded, nothing gained by being forgotten.

use crate::counting;
use crate::support;

use std::{
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use counting::counted;
use proptest::prelude::*;
use support::*;
use tokio::time;
use tower::{BoxError, Layer, Service, ServiceBuilder};
use tower_backpressure::{
    ConcurrencyLimitLayer, Deadline, KeyedRateLimitLayer, LoadShedLayer, Rate, Reason,
    keyed_rate_limit::{self, Handle},
};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Requests are their own keys; 0 has none.
fn key(request: &u32) -> Option<u32> {
    Some(*request).filter(|&key| key != 0)
}

fn layer(rate: Rate) -> KeyedRateLimitLayer<fn(&u32) -> Option<u32>> {
    KeyedRateLimitLayer::new(rate, key)
}

fn drain(handle: &Handle, key: u32) -> usize {
    std::iter::from_fn(|| handle.try_acquire(&key).ok()).count()
}

#[tokio::test(start_paused = true)]
async fn each_key_has_a_bucket_of_its_own() {
    let handle = layer(Rate::per_second(10).burst(3)).handle();
    for key in 1..100 {
        assert_eq!(drain(&handle, key), 3);
    }
    time::advance(ms(100)).await;
    assert_eq!(drain(&handle, 5), 1);
    assert_eq!(handle.tokens(&5), Some(0));
    assert_eq!(handle.tokens(&6), Some(1));
    assert_eq!(handle.tokens(&1000), None);
    assert_eq!(handle.snapshot().keys, 99);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_out_of_call_and_tells_whose_fault_it_is_and_when_to_come_back() {
    let layer = layer(Rate::per_second(10).burst(1)).name("api");
    let probe = Probe::new();
    let mut service = layer.layer(probe.clone());
    for expected in [None, Some(Reason::Quota), Some(Reason::Quota)] {
        assert!(poll_ready(&mut service).is_ready());
        match (finish(service.call(1)), expected) {
            (Ok(1), None) => {}
            (result, Some(reason)) => {
                let refused = refusal(result);
                assert_eq!((refused.layer(), refused.reason()), ("api", reason));
                assert_eq!(refused.retry_after(), ms(100));
            }
            (result, None) => panic!("{result:?}"),
        }
    }
    assert_eq!(probe.calls(), 1);
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.admitted, snapshot.rejected.quota), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_gives_back_what_the_inner_service_had_reserved() {
    let limit = ConcurrencyLimitLayer::new(1);
    let mut service = ServiceBuilder::new()
        .layer(layer(Rate::per_second(10).burst(1)))
        .layer(limit.clone())
        .service(Probe::new());
    assert!(poll_ready(&mut service).is_ready());
    finish(service.call(1)).unwrap();
    assert!(poll_ready(&mut service).is_ready());
    assert_eq!(limit.handle().snapshot().in_flight, 1);
    assert_refused(finish(service.call(1)), Reason::Quota);
    assert_eq!(limit.handle().snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_key_share_one_bucket() {
    let layer = layer(Rate::per_second(10).burst(2));
    let service = layer.layer(Probe::new());
    let send = |request: u32| {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        finish(service.call(request))
    };
    assert!(send(0).is_ok() && send(0).is_ok());
    assert_refused(send(0), Reason::Quota);
    assert!(send(1).is_ok());
    assert_eq!(layer.handle().snapshot().keys, 1);
    assert_eq!(layer.handle().snapshot().admitted, 3);
}

#[tokio::test(start_paused = true)]
async fn a_key_may_have_a_rate_of_its_own() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let layer = layer(Rate::per_second(10).burst(2)).rate_of(move |key: &u32| {
        count.fetch_add(1, SeqCst);
        (*key == 7).then(|| Rate::per_second(100).burst(20))
    });
    let service = layer.layer(Probe::new());
    let served = |key: u32| {
        let serve = || {
            let mut service = service.clone();
            assert!(poll_ready(&mut service).is_ready());
            finish(service.call(key)).is_ok()
        };
        (0..30).filter(|_| serve()).count()
    };
    assert_eq!((served(7), served(8)), (20, 2));
    assert_eq!(asked.load(SeqCst), 2, "once for each key that is new");
    // A new rate of all leaves those alone that have their own.
    layer.handle().set_rate(Rate::per_second(1).burst(1));
    time::advance(ms(100)).await;
    assert_eq!((served(7), served(8)), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn a_new_rate_grants_no_fresh_burst() {
    let handle = layer(Rate::per_second(10).burst(5)).handle();
    assert_eq!(drain(&handle, 1), 5);
    handle.try_acquire(&2).unwrap();
    handle.set_rate(Rate::per_second(100).burst(50));
    assert_eq!((drain(&handle, 1), drain(&handle, 2)), (0, 4));
    assert_eq!(drain(&handle, 3), 50, "a new key starts full");
    time::advance(ms(100)).await;
    assert_eq!(drain(&handle, 1), 10);
    assert_eq!(handle.snapshot().rate, Rate::per_second(100).burst(50));
}

#[tokio::test(start_paused = true)]
async fn both_buckets_are_charged_or_neither() {
    let layer = layer(Rate::per_second(1).burst(10)).global(Rate::per_second(1).burst(4));
    let handle = layer.handle();
    assert_eq!(drain(&handle, 1), 4, "the global bucket is empty");
    let refused = handle.try_acquire(&1).unwrap_err();
    assert_eq!(
        (refused.reason(), refused.retry_after()),
        (Reason::AtLimit, ms(1000))
    );
    assert_eq!(
        handle.tokens(&1),
        Some(6),
        "and the key is not charged for it"
    );

    let layer = self::layer(Rate::per_second(1).burst(2)).global(Rate::per_second(1).burst(10));
    let handle = layer.handle();
    assert_eq!(drain(&handle, 1), 2);
    for _ in 0..100 {
        assert_eq!(handle.try_acquire(&1).unwrap_err().reason(), Reason::Quota);
    }
    let others: usize = (2..100).map(|key| drain(&handle, key)).sum();
    assert_eq!(
        others, 8,
        "what key 1 was refused did not cost the others anything"
    );
    assert_eq!(handle.snapshot().rejected.quota, 101 + 4);
}

#[tokio::test(start_paused = true)]
async fn under_load_shed_it_is_the_same() {
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(layer(Rate::per_second(10).burst(1)))
        .service(Probe::new());
    let send = || {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        finish(service.call(1))
    };
    assert!(send().is_ok());
    assert_refused(send(), Reason::Quota);
}

// Waiting, if it is asked for.

#[tokio::test(start_paused = true)]
async fn with_max_wait_requests_wait_in_line_with_others_of_their_key() {
    let layer = layer(Rate::per_second(10).burst(1)).max_wait(ms(300));
    let service = layer.layer(Probe::new());
    let begun = now();
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        tasks.push(tokio::spawn(service.call(1)));
    }
    for (position, task) in tasks.into_iter().enumerate() {
        let result = task.await.unwrap();
        if position == 4 {
            // Its token would be there after 400 ms.
            let refused = refusal(result);
            assert_eq!(
                (refused.reason(), refused.retry_after()),
                (Reason::Quota, ms(400))
            );
        } else {
            result.unwrap();
            assert_eq!(begun.elapsed(), ms(100) * position as u32);
        }
    }
    // Another key has nothing to do with it.
    assert!(layer.handle().try_acquire(&2).is_ok());
    assert_eq!(layer.handle().snapshot().admitted, 5);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_holds_nothing_of_the_inner_service_and_waits_for_it_in_the_end() {
    let limit = ConcurrencyLimitLayer::new(1);
    let service = ServiceBuilder::new()
        .layer(layer(Rate::per_second(10).burst(1)).max_wait(ms(300)))
        .layer(limit.clone())
        .service(Probe::new());
    let call = || {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        service.call(1)
    };
    finish(call()).unwrap();
    let mut waiting = call();
    assert!(poll(&mut waiting).is_pending());
    let busy = limit
        .handle()
        .try_acquire()
        .expect("nothing is held while it waits");
    time::advance(ms(150)).await;
    assert!(
        poll(&mut waiting).is_pending(),
        "it has its token, but no permit"
    );
    assert_eq!(limit.handle().snapshot().waiting, 1);
    drop(busy);
    assert_eq!(waiting.await.unwrap(), 1);
    assert_eq!(limit.handle().snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_stops_waiting_puts_its_token_back_unless_others_wait_behind_it() {
    let layer = layer(Rate::per_second(10).burst(1))
        .global(Rate::per_hour(1).burst(100))
        .max_wait(ms(1000));
    let service = layer.layer(Probe::new());
    let call = || {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        service.call(1)
    };
    finish(call()).unwrap();
    let begun = now();
    for _ in 0..100 {
        drop(call()); // the last in line: as if it had never been
    }
    assert_eq!(layer.handle().snapshot().admitted, 1);
    let (first, second) = (call(), call());
    drop(first); // somebody waits behind it, whose token this is not
    second.await.unwrap();
    assert_eq!(begun.elapsed(), ms(200));
    // Once its time has come a token is spent.
    let late = call();
    time::advance(ms(100)).await;
    drop(late);
    assert_eq!(layer.handle().tokens(&1), Some(0));
}

/// A clock that lags behind the timers, as one does that stepped back: here tokio's time flies while the
/// counter's does not. What was sent is spent all the same.
#[cfg(feature = "quanta")]
#[tokio::test(start_paused = true)]
async fn a_token_that_was_waited_for_is_spent_whatever_the_clock_says() {
    let rate = Rate::per_hour(60).burst(1);
    let layer = KeyedRateLimitLayer::with_clock(rate, key, tower_backpressure::Clock::tsc())
        .max_wait(Duration::from_secs(3600));
    let mut service = layer.layer(Probe::new());
    for served in 1..=10 {
        assert!(poll_ready(&mut service).is_ready());
        service.call(1).await.unwrap();
        assert_eq!(layer.handle().snapshot().admitted, served);
    }
}

#[tokio::test(start_paused = true)]
async fn not_more_wait_than_may_wait() {
    let layer = layer(Rate::per_second(10).burst(1))
        .max_wait(Duration::MAX)
        .max_waiting(2);
    let service = layer.layer(Probe::new());
    let call = |key| {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        service.call(key)
    };
    for key in [1, 2, 3] {
        finish(call(key)).unwrap();
    }
    let waiting = [call(1), call(2)];
    assert_eq!(layer.handle().snapshot().waiting, 2);
    assert_refused(finish(call(3)), Reason::QueueFull);
    for response in waiting {
        response.await.unwrap();
    }
    assert_eq!(layer.handle().snapshot().waiting, 0);
    drop(call(3));
    assert_eq!(layer.handle().snapshot().waiting, 0);
}

/// The layer replaces its inner service where a request has to wait, which runs foreign code.
#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_if_the_inner_service_panics_when_it_is_dropped() {
    #[derive(Clone)]
    struct PanicsWhenDropped(Probe);

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("the service panics when it is dropped");
        }
    }

    impl Service<u32> for PanicsWhenDropped {
        type Response = u32;
        type Error = BoxError;
        type Future = ProbeFuture;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            self.0.poll_ready(cx)
        }

        fn call(&mut self, request: u32) -> ProbeFuture {
            self.0.call(request)
        }
    }

    let layer = layer(Rate::per_second(10).burst(1)).max_wait(ms(1000));
    let handle = layer.handle();
    let mut service = ManuallyDrop::new(layer.layer(PanicsWhenDropped(Probe::new())));
    assert!(poll_ready(&mut *service).is_ready());
    finish(service.call(1)).unwrap();
    assert!(poll_ready(&mut *service).is_ready());
    let call = std::panic::AssertUnwindSafe(|| drop(service.call(1)));
    assert!(std::panic::catch_unwind(call).is_err());
    assert_eq!(handle.snapshot().waiting, 0);
    assert_eq!(handle.snapshot().admitted, 1);
}

/// What is asked of the user is asked outside the locks.
#[tokio::test(start_paused = true)]
async fn the_function_that_finds_a_rate_may_use_the_limit_and_may_panic() {
    let slot: Arc<std::sync::OnceLock<Handle>> = Arc::default();
    let handle = Arc::clone(&slot);
    let layer = layer(Rate::per_second(10))
        .max_keys(1)
        .rate_of(move |key: &u32| {
            assert_ne!(*key, 13, "the function panics");
            let handle = handle.get().expect("set below");
            let _ = handle.tokens(key);
            (handle.snapshot().keys < 1000).then(|| Rate::per_second(1).burst(1))
        });
    slot.set(layer.handle()).unwrap();
    let service = layer.layer(Probe::new());
    for _ in 0..3 {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        let call = std::panic::AssertUnwindSafe(|| drop(service.call(13)));
        assert!(std::panic::catch_unwind(call).is_err());
    }
    assert_eq!(layer.handle().snapshot().keys, 0, "no key is lost");
    let mut service = service.clone();
    assert!(poll_ready(&mut service).is_ready());
    finish(service.call(7)).unwrap();
    assert_eq!(layer.handle().tokens(&7), Some(0), "with a rate of its own");
}

#[tokio::test(start_paused = true)]
async fn the_global_rate_has_a_handle() {
    let layer = layer(Rate::per_second(10).burst(10));
    assert!(layer.handle().global().is_none());
    let layer = layer.global(Rate::per_second(1).burst(2));
    let handle = layer.handle();
    assert_eq!(drain(&handle, 1), 2);
    // Both tokens are needed: the key's is there, everybody's is not for a second.
    assert_eq!(handle.try_acquire(&1).unwrap_err().retry_after(), ms(1000));
    handle
        .global()
        .unwrap()
        .set_rate(Rate::per_second(100).burst(2));
    time::advance(ms(10)).await;
    assert_eq!(drain(&handle, 1), 1);
}

// Bounded memory.

#[tokio::test(start_paused = true)]
async fn past_the_bound_new_keys_share_a_bucket_and_known_ones_are_not_touched() {
    let handle = layer(Rate::per_second(1).burst(5)).max_keys(10).handle();
    for key in 1..=10 {
        handle.try_acquire(&key).unwrap();
    }
    // A flood of keys: 32 shards, so at most 32 shared buckets of 5.
    let flood: usize = (1000..11_000)
        .filter(|key| handle.try_acquire(key).is_ok())
        .count();
    assert!(flood <= 32 * 5, "{flood}");
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.keys, snapshot.overflowed), (10, 10_000));
    assert_eq!(snapshot.rejected.at_limit, 10_000 - flood as u64);
    assert_eq!(snapshot.rejected.quota, 0);
    for key in 1..=10 {
        assert_eq!(handle.tokens(&key), Some(4), "key {key}");
        assert_eq!(drain(&handle, key), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_forgotten_only_when_its_bucket_is_full_again() {
    let handle = layer(Rate::per_second(1).burst(5)).max_keys(2).handle();
    assert_eq!(drain(&handle, 1), 5);
    handle.try_acquire(&2).unwrap();
    time::advance(ms(1000)).await;
    // Key 2 is full again, so key 3 takes its place; key 1 is not, so it stays.
    handle.try_acquire(&3).unwrap();
    assert_eq!((handle.tokens(&2), handle.tokens(&3)), (None, Some(4)));
    assert_eq!(drain(&handle, 1), 1);
    assert_eq!(handle.snapshot().keys, 2);
    assert_eq!(handle.snapshot().overflowed, 0);
}

/// Evicting by age or use, as a cache does, would let a client in with a full bucket again and again.
#[tokio::test(start_paused = true)]
async fn no_key_gains_tokens_by_a_flood_of_others() {
    let handle = layer(Rate::per_second(1).burst(5)).max_keys(100).handle();
    assert_eq!(drain(&handle, 1), 5);
    for round in 1..=4u32 {
        for key in 0..1000 {
            let _ = handle.try_acquire(&(round * 1000 + key));
        }
        time::advance(ms(1000)).await;
        assert_eq!(drain(&handle, 1), 1, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_moves_out_of_a_shared_bucket_brings_no_full_one() {
    let handle = layer(Rate::per_second(1).burst(5)).max_keys(1).handle();
    handle.try_acquire(&1).unwrap();
    let shared = drain(&handle, 2);
    assert_eq!(shared, 5);
    time::advance(ms(1000)).await; // key 1 is full again and may be forgotten
    assert_eq!(
        drain(&handle, 2),
        1,
        "what one second brought, not a fresh burst"
    );
    assert_eq!(
        handle.tokens(&2),
        Some(0),
        "and it has a bucket of its own now"
    );
}

/// Requests of the key may still wait for tokens of the shared bucket.
#[tokio::test(start_paused = true)]
async fn a_key_that_moves_out_of_a_shared_bucket_waits_behind_its_requests_there() {
    let layer = layer(Rate::per_second(10).burst(1))
        .max_keys(1)
        .max_wait(ms(1000));
    let service = layer.layer(Probe::new());
    let call = |key: u32| {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        service.call(key)
    };
    let begun = now();
    finish(call(1)).unwrap();
    finish(call(2)).unwrap();
    let waiting: Vec<_> = (0..5).map(|_| call(2)).collect(); // until 100, 200 .. 500 ms
    time::advance(ms(150)).await; // key 1 is full again and may be forgotten
    let next = call(2);
    assert_eq!(layer.handle().tokens(&2), Some(0), "a bucket of its own");
    next.await.unwrap();
    let elapsed = begun.elapsed(); // a token that was half made is made anew
    assert!((ms(600)..=ms(700)).contains(&elapsed), "{elapsed:?}");
    for request in waiting {
        request.await.unwrap();
    }
}

/// Others of its shard are full all the time.
#[tokio::test(start_paused = true)]
async fn an_overflow_bucket_is_not_forgotten_before_it_is_full_again() {
    let handle = layer(Rate::per_second(1).burst(5)).max_keys(320).handle(); // ten overflow buckets a shard
    for key in 0..320 {
        assert_eq!(drain(&handle, key), 5);
    }
    assert_eq!(drain(&handle, 1000), 5);
    time::advance(ms(20)).await; // until full buckets are looked for again
    assert_eq!(drain(&handle, 1000), 0);
}

/// One client has filled the map with made-up keys. New clients come, each with one request.
#[tokio::test(start_paused = true)]
async fn made_up_keys_that_fill_the_map_do_not_shut_newcomers_out() {
    const NEWCOMERS: u32 = 10_000;
    let handle = layer(Rate::per_hour(60)).handle();
    let filled = (0..100_000u32).filter(|key| handle.try_acquire(&("made up", key)).is_ok());
    assert_eq!(filled.count(), 100_000);
    assert_eq!(handle.snapshot().keys, 100_000);
    let serve = |turn: &str| {
        let newcomers = (0..NEWCOMERS).filter(|key| handle.try_acquire(&(turn, key)).is_ok());
        newcomers.count() as u32
    };
    assert_eq!(serve("newcomer"), NEWCOMERS);
    assert_eq!(handle.snapshot().overflowed, u64::from(NEWCOMERS));
    // And when it goes on with new keys, for each newcomer fifty.
    for key in 0..50 * NEWCOMERS {
        let _ = handle.try_acquire(&("made up later", key));
    }
    assert_eq!(serve("newcomer later"), NEWCOMERS);
    assert_eq!(handle.snapshot().keys, 100_000);
}

/// What remains: with enough requests all overflow buckets are drained, and then newcomers get a share of what comes.
#[tokio::test(start_paused = true)]
async fn made_up_keys_that_drain_all_overflow_buckets_leave_newcomers_their_share() {
    const KEYS: u32 = 3200;
    let handle = layer(Rate::per_second(1).burst(20))
        .max_keys(KEYS as usize)
        .handle();
    for key in 0..KEYS {
        assert_eq!(drain(&handle, key), 20, "not full again for 20 seconds");
    }
    let made_up = |keys: std::ops::Range<u32>| {
        keys.for_each(|key| drop(handle.try_acquire(&("made up", key))));
    };
    made_up(0..60 * KEYS);
    let mut served = 0;
    for newcomer in 0..10 * KEYS {
        if newcomer % (KEYS / 10) == 0 {
            time::advance(ms(100)).await;
        }
        let key = 100 * KEYS + newcomer * 9;
        made_up(key..key + 9);
        served += u32::from(handle.try_acquire(&("newcomer", newcomer)).is_ok());
    }
    // In ten seconds ten tokens came for each bucket, and one request in ten was a newcomer's.
    assert!(
        (KEYS * 9 / 10..=KEYS * 11 / 10).contains(&served),
        "{served}"
    );
    assert_eq!(handle.snapshot().keys, KEYS as usize);
}

/// Counted by the allocator: what stays, and what there was at most.
#[test]
fn a_million_keys_stay_within_the_stated_memory() {
    let long = "x".repeat(100);
    let count = counted(|| {
        let handle = layer(Rate::per_hour(1).burst(2)).handle();
        for key in 0..1_000_000u32 {
            let _ = handle.try_acquire(&(key, &long)); // what they are long does not count
        }
        let snapshot = handle.snapshot();
        assert_eq!((snapshot.keys, snapshot.overflowed), (100_000, 900_000));
    });
    assert!(count.peak <= 80 * 100_000, "{count:?}");
    assert_eq!(count.bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Below the bound a key fares exactly as if it were alone.
    #[test]
    fn keys_do_not_affect_each_other_below_the_bound(
        steps in prop::collection::vec((0..40u64, 1..6u32), 1..300),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let rate = Rate::per_second(40).burst(3);
            let together = layer(rate).max_keys(5).handle();
            let alone: Vec<Handle> = (0..6).map(|_| layer(rate).handle()).collect();
            for (pause, key) in steps {
                time::advance(ms(pause)).await;
                let expected = alone[key as usize].try_acquire(&key);
                let served = together.try_acquire(&key);
                assert_eq!(served.map_err(|e| e.retry_after()), expected.map_err(|e| e.retry_after()));
            }
        });
    }

    /// A key passes no more than its rate allows, in any window, also where it shares a bucket, gets one of its own,
    /// is forgotten, and shares again.
    #[test]
    fn no_key_passes_more_than_its_rate_past_the_bound_either(
        max_keys in 0..6usize,
        steps in prop::collection::vec((0..60u64, 1..9u32, 1..6usize), 1..300),
    ) {
        const RATE: u64 = 40;
        const BURST: u64 = 3;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let handle = layer(Rate::per_second(RATE).burst(BURST)).max_keys(max_keys).handle();
            let mut passed = vec![Vec::new(); 9];
            let mut at = 0;
            for (pause, key, requests) in steps {
                time::advance(ms(pause)).await;
                at += pause;
                for _ in 0..requests {
                    if handle.try_acquire(&key).is_ok() {
                        passed[key as usize].push(at);
                    }
                }
            }
            for times in passed {
                for (from, &begin) in times.iter().enumerate() {
                    for (to, &end) in times.iter().enumerate().skip(from) {
                        let count = (to - from + 1) as u64;
                        let most = BURST + ((end - begin) * RATE).div_ceil(1000) + 1;
                        assert!(count <= most, "{times:?}");
                    }
                }
            }
        });
    }
}

/// A request and the milliseconds that it has left.
type Timed = (u32, Option<u64>);

fn timed(rate: Rate) -> KeyedRateLimitLayer<impl keyed_rate_limit::Key<Timed>> {
    KeyedRateLimitLayer::new(rate, |(key, _): &Timed| Some(*key))
        .deadline(|(_, left): &Timed| left.map(|left| Deadline::within(ms(left))))
        .max_wait(ms(1000))
}

#[tokio::test(start_paused = true)]
async fn one_whose_token_would_come_too_late_takes_none_and_says_when_it_would() {
    let layer = timed(Rate::per_second(10).burst(1));
    let handle = layer.handle();
    let probe = Probe::new();
    let mut service = layer.layer(tower::util::MapRequest::new(probe.clone(), |(key, _)| key));
    let mut call = |left| {
        assert!(poll_ready::<_, Timed>(&mut service).is_ready());
        service.call((1, left))
    };
    assert_eq!(call(Some(1)).await.unwrap(), 1); // a token is there
    let mut in_time = call(Some(101)); // a token is there after 100 ms
    assert!(poll(&mut in_time).is_pending());
    for left in [1, 150, 200] {
        let late = refusal(finish(call(Some(left))));
        assert_eq!(late.reason(), Reason::WouldBeLate, "{left}");
        assert_eq!(late.retry_after(), ms(200));
    }
    let expired = refusal(finish(call(Some(0))));
    assert_eq!(expired.reason(), Reason::Deadline);
    assert_eq!(in_time.await.unwrap(), 1);
    assert_eq!(probe.calls(), 2);
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.admitted, snapshot.waiting), (2, 0));
    assert_eq!(
        (snapshot.rejected.would_be_late, snapshot.rejected.deadline),
        (3, 1)
    );
    time::advance(ms(100)).await;
    assert_eq!(
        call(Some(1)).await.unwrap(),
        1,
        "those that were late have taken nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_has_its_token_is_rejected_if_the_service_is_not_ready_in_time() {
    let layer = timed(Rate::per_second(10).burst(1));
    let probe = Probe::new();
    let service = layer.layer(tower::util::MapRequest::new(probe.clone(), |(key, _)| key));
    let call = |left| {
        let mut service = service.clone();
        assert!(poll_ready::<_, Timed>(&mut service).is_ready());
        service.call((1, left))
    };
    call(None).await.unwrap();
    let (waits, patient) = (call(Some(150)), call(None));
    probe.set(|script| script.ready = Behaviour::Pends);
    let began = now();
    let rejected = refusal(waits.await);
    assert_eq!(
        (rejected.reason(), now() - began),
        (Reason::Deadline, ms(150))
    );
    let patient = tokio::spawn(patient);
    time::sleep(ms(500)).await;
    probe.set(|script| script.ready = Behaviour::Works);
    assert_eq!(patient.await.unwrap().unwrap(), 1);
    assert_eq!(probe.calls(), 2);
    assert_eq!(layer.handle().snapshot().rejected.deadline, 1);
}
