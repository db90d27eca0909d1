//! Who waits is woken when it is its turn: once, in the right task, and not before.

use std::task::Context;

use super::{support::*, *};

pub fn one_that_waits_is_woken_once_and_never_wakes_itself<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        let (wakes, waker) = CountWakes::new();
        let mut cx = Context::from_waker(&waker);
        assert!(poll_ready(&mut service).is_ready());
        let in_flight = service.call(7);

        let mut other = request(&service);
        if second.waits() {
            for _ in 0..3 {
                assert!(other.as_mut().poll(&mut cx).is_pending());
            }
        } else {
            assert!(other.as_mut().poll(&mut cx).is_ready());
        }
        assert_eq!(wakes.count(), 0, "nothing has changed");
        finish(in_flight).unwrap();
        assert_eq!(wakes.count(), usize::from(second.waits()));
        if second.waits() {
            assert!(other.as_mut().poll(&mut cx).is_ready());
            assert_eq!(wakes.count(), 1, "no more to wake for");
        }
        assert_free(&service, &probe);
    });
}

pub fn the_task_that_polled_last_is_woken<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, _) = stack(&layer);
        let (wakes_before, before) = CountWakes::new();
        let (wakes_after, after) = CountWakes::new();
        assert!(poll_ready(&mut service).is_ready());
        let in_flight = service.call(7);

        let mut other = request(&service);
        if second.waits() {
            assert!(
                other
                    .as_mut()
                    .poll(&mut Context::from_waker(&before))
                    .is_pending()
            );
            assert!(
                other
                    .as_mut()
                    .poll(&mut Context::from_waker(&after))
                    .is_pending()
            );
        }
        finish(in_flight).unwrap();
        assert_eq!(wakes_before.count(), 0);
        assert_eq!(wakes_after.count(), usize::from(second.waits()));
    });
}

/// A lost wakeup is a test that never ends.
pub fn none_is_lost_between_threads<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let (service, probe) = stack(&layer);
    probe.set(|script| script.pending_polls = 1);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let service = service.clone();
        tasks.spawn_on(
            async move {
                let mut served = 0;
                for _ in 0..100 {
                    match request(&service).await {
                        Ok(_) => served += 1,
                        refused => drop(refusal(refused)),
                    }
                }
                served
            },
            runtime.handle(),
        );
    }
    let served: usize = runtime.block_on(tasks.join_all()).into_iter().sum();
    assert_eq!(probe.calls(), served);
    assert!(served == 1600 || second == IsRefused);
    assert!(second.is_served() || probe.most_live() == 1);
    let _entered = runtime.enter();
    assert_free(&service, &probe);
}
