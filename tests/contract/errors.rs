//! An error of the inner service is the caller's to see, and costs nobody else anything.

use std::task::Poll;

use tower_backpressure::Overloaded;

use super::{support::*, *};

pub fn errors_of_the_inner_service_are_passed_on_and_give_back<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        for _ in 0..3 {
            probe.set(|script| script.future = Behaviour::Fails);
            let error = finish(request(&service)).unwrap_err();
            assert_eq!(error.to_string(), "failed");
            assert_eq!(Overloaded::find(error.as_ref()), None);
            probe.set(|script| script.future = Behaviour::Works);
            assert_free(&service, &probe);
        }
    });
}

pub fn an_inner_service_that_is_dead_says_so_and_gives_back<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        probe.set(|script| script.ready = Behaviour::Fails);
        let mut kept: Vec<_> = (0..3).map(|_| service.clone()).collect();
        for kept in &mut kept {
            match poll_ready(kept) {
                Poll::Ready(Err(error)) => assert_eq!(error.to_string(), "not ready"),
                // One that is always ready says so when it is called.
                Poll::Ready(Ok(())) => {
                    let error = finish(kept.call(7)).unwrap_err();
                    assert_eq!(error.to_string(), "not ready");
                }
                Poll::Pending => panic!("waits for a dead service"),
            }
        }
        probe.set(|script| script.ready = Behaviour::Works);
        assert_free(&service, &probe);
    });
}
