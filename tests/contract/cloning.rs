//! One layer value is one state, for whatever is made from it.

use super::{support::*, *};

pub fn clones_and_repeated_layers_share_one_state<L>(layer: L, second: Second)
where
    L: Layer<Probe, Service: Subject>,
{
    with_runtime(|| {
        let (mut first, probe) = stack(&layer);
        assert!(poll_ready(&mut first).is_ready());
        let in_flight = first.call(7);
        // axum calls `layer()` for each route, and for each connection.
        for mut other in [
            first.clone(),
            layer.layer(probe.clone()),
            layer.layer(Probe::new()),
        ] {
            match second {
                Waits => assert!(poll_ready(&mut other).is_pending()),
                WaitsInCall => assert!(poll(&mut request(&other)).is_pending()),
                IsRefused => drop(refusal(finish(request(&other)))),
                IsServed | IsServedOrShed => drop(finish(request(&other)).unwrap()),
            }
        }
        finish(in_flight).unwrap();
        assert_free(&layer.layer(probe.clone()), &probe);
    });
}
