//! A panic in the inner service is that request's alone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{support::*, *};

pub fn a_panic_anywhere_in_the_inner_service_gives_back<L>(layer: L, _: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (service, probe) = stack(&layer);
        for place in PLACES {
            for _ in 0..3 {
                probe.set(|script| *place(script) = Behaviour::Panics);
                let panicked = catch_unwind(AssertUnwindSafe(|| finish(request(&service))));
                assert!(panicked.is_err());
                probe.set(|script| *place(script) = Behaviour::Works);
                assert_free(&service, &probe);
            }
        }
    });
}
