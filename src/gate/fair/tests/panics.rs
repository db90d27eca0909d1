//! Foreign code that panics: wakers, and what listens to the log. A request that it happens to is gone, and no other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// A waker that panics when it is dropped.
struct PanicsWhenDropped;

impl Wake for PanicsWhenDropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

fn panics(run: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
}

/// The request still owns its seat: it is dropped, and leaves.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_when_its_request_expires_leaves_the_seat_to_its_owner() {
    let gate = gate(1, WfqConfig::default());
    let runs = start(&gate, "a");
    let arrival = Waiter::comes(&gate, "b");
    let seat = enter(&gate, &arrival, Waker::from(Arc::new(PanicsWhenDropped)));
    panics(|| drop(gate.expire(&arrival, seat)));
    // Whose seat would it be by now?
    let other = Waiter::enters(&gate, "c");
    gate.leave(&arrival, seat);
    assert_eq!(gate.snapshot().waiting, 1);
    end(&gate, runs);
    let other = other.granted(&gate);
    end(&gate, other);
    assert_empty(&gate);
}
