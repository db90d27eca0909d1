//! Only what was polled ready is called, and what was made ready but not called is given back.

use std::task::Poll;

use super::{support::*, *};

pub fn only_what_was_polled_ready_is_called<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        // Three at a time, so that some wait or are refused. The probe itself panics if it is wrong.
        probe.set(|script| script.pending_polls = 2);
        for _ in 0..20 {
            let mut requests: Vec<_> = (0..3).map(|_| request(&service)).collect();
            for _ in 0..20 {
                requests.retain_mut(|request| poll(request).is_pending());
            }
            assert!(requests.is_empty());
        }
        let served = if second == IsRefused { 20 } else { 60 };
        assert_eq!(probe.calls(), served);
        assert_eq!(probe.most_live(), if second.is_served() { 3 } else { 1 });
    });
}

pub fn a_readied_service_that_is_dropped_gives_back<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        for _ in 0..3 {
            let mut readied = service.clone();
            assert!(poll_ready(&mut readied).is_ready());
            drop(readied);
            assert_free(&service, &probe);
        }
    });
}

pub fn a_clone_of_a_readied_service_holds_nothing<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        assert!(poll_ready(&mut service).is_ready());
        let mut clone = service.clone();
        // The one that was polled still has what it reserved, the clone has nothing.
        if second == Waits {
            assert!(poll_ready(&mut clone).is_pending());
        }
        drop(clone);
        assert_eq!(finish(service.call(7)).unwrap(), 7);
        assert_free(&service, &probe);
    });
}

/// tower's `LoadShed` fails here: a service that was refused and is kept is handed the next permit.
pub fn a_service_that_was_turned_away_and_is_kept_takes_nothing<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        assert!(poll_ready(&mut service).is_ready());
        let in_flight = service.call(7);
        let mut kept: Vec<_> = (0..10).map(|_| service.clone()).collect();
        for kept in &mut kept {
            assert_eq!(poll_ready(kept).is_pending(), second == Waits);
            if second == IsRefused {
                refusal(finish(kept.call(7)));
                assert!(poll_ready(kept).is_ready(), "refused again");
            }
        }
        finish(in_flight).unwrap();
        if second != IsRefused {
            kept.clear(); // what waits in the queue, or is ready, has a right to
        }
        assert_free(&service, &probe);
    });
}

pub fn an_inner_service_that_is_not_ready_is_not_called<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        probe.set(|script| script.ready = Behaviour::Pends);
        match poll_ready(&mut service) {
            Poll::Ready(Err(error)) => panic!("{error}"),
            // It refuses, or waits in its future.
            Poll::Ready(Ok(())) => match poll(&mut service.call(7)) {
                Poll::Ready(result) => drop(refusal(result)),
                Poll::Pending => assert_ne!(second, IsServedOrShed),
            },
            Poll::Pending => assert_ne!(second, IsServedOrShed),
        }
        assert_eq!(probe.calls(), 0);
        probe.set(|script| script.ready = Behaviour::Works);
        assert!(poll_ready(&mut service).is_ready());
        assert_eq!(finish(service.call(7)).unwrap(), 7);
        assert_free(&service, &probe);
    });
}

pub fn one_that_waits_for_its_inner_service_gives_back_when_dropped<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        probe.set(|script| script.ready = Behaviour::Pends);
        let mut clones: Vec<_> = (0..3).map(|_| service.clone()).collect();
        for clone in &mut clones {
            let _ = poll_ready(clone);
        }
        drop(clones);
        probe.set(|script| script.ready = Behaviour::Works);
        assert_free(&service, &probe);
    });
}
