//! A refusal comes out of `call`, says what it is, and the inner service never hears of it.

use std::time::Duration;

use super::{support::*, *};

/// Makes the layer refuse, if it is one that does: by a request in flight, or by an inner service
/// that is not ready.
fn refuse<S: Subject>(service: &mut S, probe: &Probe, second: Second, check: impl FnOnce(&mut S)) {
    match second {
        Waits | WaitsInCall | IsServed => {}
        IsServedOrShed => {
            probe.set(|script| script.ready = Behaviour::Pends);
            check(service);
            probe.set(|script| script.ready = Behaviour::Works);
        }
        IsRefused => {
            let mut busy = service.clone();
            assert!(poll_ready(&mut busy).is_ready());
            let in_flight = busy.call(7);
            check(service);
            finish(in_flight).unwrap();
        }
    }
}

pub fn a_refused_request_never_reaches_the_inner_service<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        refuse(&mut service, &probe, second, |service| {
            let calls = probe.calls();
            for _ in 0..100 {
                // To tower an error of `poll_ready` is a dead service, so it must be ready.
                assert!(matches!(
                    poll_ready(service),
                    std::task::Poll::Ready(Ok(()))
                ));
                let overloaded = refusal(finish(service.call(7)));
                assert!(overloaded.retry_after() > Duration::ZERO);
                assert!(!overloaded.layer().is_empty());
                assert!(overloaded.rejected_here());
            }
            assert_eq!(probe.calls(), calls);
        });
        assert_free(&service, &probe);
    });
}

pub fn a_refusal_is_judged_anew<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        refuse(&mut service, &probe, second, |service| {
            assert!(poll_ready(service).is_ready());
        });
        // The very service that was about to refuse, polled again, serves.
        assert!(poll_ready(&mut service).is_ready());
        assert_eq!(finish(service.call(7)).unwrap(), 7);
        assert_free(&service, &probe);
    });
}

/// The service was called, and may have done something.
pub fn what_the_service_passes_on_is_not_taken_for_the_layers_own<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut service, probe) = stack(&layer);
        probe.set(|script| script.future = Behaviour::PassesOnARejection);
        for pending_polls in [0, 3] {
            probe.set(|script| script.pending_polls = pending_polls);
            let calls = probe.calls();
            assert!(poll_ready(&mut service).is_ready());
            let overloaded = refusal(finish(service.call(7)));
            assert_eq!(probe.calls(), calls + 1);
            assert_eq!(overloaded.layer(), "of a client");
            assert!(!overloaded.rejected_here());
        }
        probe.set(|script| *script = Default::default());
        assert_free(&service, &probe);
    });
}
