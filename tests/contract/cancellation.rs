//! Dropping a request at any point loses nothing.

use super::{support::*, *};

const MOST_POLLS: usize = 6;

pub fn a_request_may_be_dropped_after_any_poll<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        probe.set(|script| script.pending_polls = MOST_POLLS - 1);
        for polls in 0..=MOST_POLLS {
            let mut dropped = request(&service);
            let done = (0..polls).any(|_| poll(&mut dropped).is_ready());
            assert_eq!(done, polls == MOST_POLLS);
            drop(dropped);
            assert_free(&service, &probe);
        }
    });
}

/// Polled so often before the one ahead of it is done, and so often after.
pub fn a_request_that_waits_may_be_dropped_after_any_poll<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        probe.set(|script| script.pending_polls = 2);
        for (before, after, behind) in (0..3)
            .flat_map(|before| (0..MOST_POLLS).map(move |after| (before, after)))
            .flat_map(|(before, after)| [0, 2].map(|behind| (before, after, behind)))
        {
            let mut ahead = service.clone();
            assert!(poll_ready(&mut ahead).is_ready());
            let ahead = ahead.call(7);
            let mut dropped = request(&service);
            let done = (0..before).any(|_| poll(&mut dropped).is_ready());
            let mut behind: Vec<_> = (0..behind).map(|_| request(&service)).collect();
            behind.retain_mut(|request| poll(request).is_pending());
            finish(ahead).unwrap();
            let _ = done || (0..after).any(|_| poll(&mut dropped).is_ready());
            drop(dropped);
            // Whoever stood behind it is served in its stead.
            for request in behind {
                finish(request).unwrap();
            }
            assert_free(&service, &probe);
        }
    });
}

pub fn a_response_future_may_be_dropped_unpolled<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        for _ in 0..3 {
            assert!(poll_ready(&mut service).is_ready());
            drop(service.call(7));
            assert_free(&service, &probe);
        }
    });
}
