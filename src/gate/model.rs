//! What the loom models of gate and bucket share.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use loom::{model::Builder, sync::Notify};

use super::claim::{Entered, Limiter};

/// Checks all interleavings with so many preemptions. Two find each classic bug (check-then-add, a
/// lost hand-off); with three it takes a minute.
pub(super) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Blocks a model's thread until it is woken; a lost wakeup is a deadlock, which loom reports.
pub(super) struct Parked(Notify);

impl Parked {
    pub(super) fn new() -> (Arc<Self>, Waker) {
        let parked = Arc::new(Self(Notify::new()));
        (Arc::clone(&parked), Waker::from(parked))
    }

    pub(super) fn wait(&self) {
        self.0.wait();
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Waits to be admitted as a task would, but for timers.
pub(super) fn acquire<L: Limiter>(limiter: &L, ask: L::Ask) {
    if limiter.try_admit(ask) {
        return;
    }
    let (parked, waker) = Parked::new();
    let ticket = match limiter.enter(ask, waker.clone()) {
        Entered::Admitted => return,
        Entered::Refused(_) => panic!("the queue is long enough"),
        Entered::Waiting(ticket, _) => ticket,
    };
    loop {
        parked.wait();
        if limiter.redeem(&ticket, &waker).is_ok() {
            return;
        }
    }
}

/// Comes, and goes again without having looked, whatever became of it.
pub(super) fn enter_and_leave<L: Limiter>(limiter: &L, ask: L::Ask) {
    let admitted = match limiter.enter(ask, Waker::noop().clone()) {
        Entered::Admitted => true,
        Entered::Refused(_) => panic!("the queue is long enough"),
        Entered::Waiting(ticket, _) => limiter.leave(ticket),
    };
    if admitted {
        limiter.give_back(ask);
    }
}
