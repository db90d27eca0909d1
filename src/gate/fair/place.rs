//! What a request owns at a fair gate: a place while it waits, and then a permit and a charge.

use std::{fmt, task::Context};

use super::{
    Fair, Grant, Serves,
    waiters::{Arrival, End},
};
use crate::{
    BoxError,
    clock::Now,
    gate::{
        aside::{LimiterId, nested},
        gate::Gate,
    },
    sync::Arc,
};

/// A request that has come and has to wait, until it is granted a permit or rejected. Dropping it leaves.
pub(crate) struct Place<S: Serves> {
    gate: Arc<Gate<Fair<S>>>,
    arrival: Arrival,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// It waits from its first poll on: until then it is in nobody's way.
    Arrived,
    Waits(u32),
    Gone,
}

impl<S: Serves> Place<S> {
    pub(crate) fn new(gate: Arc<Gate<Fair<S>>>, arrival: Arrival) -> Self {
        Self {
            gate,
            arrival,
            stage: Stage::Arrived,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate<Fair<S>>> {
        &self.gate
    }

    pub(crate) fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    pub(crate) fn id(&self) -> LimiterId {
        LimiterId::of(&self.gate)
    }

    /// Where it waits. The first time it takes that place, before `begin` runs. Says also whether it may be decided what
    /// becomes of it.
    #[inline]
    pub(crate) fn seat(
        &mut self,
        cx: &Context<'_>,
        begin: impl FnOnce(&Gate<Fair<S>>, &Arrival),
    ) -> Result<(u32, bool), BoxError> {
        match self.stage {
            Stage::Waits(seat) => Ok((seat, true)),
            Stage::Arrived => {
                nested::check(self.id(), self.gate.bounds.name());
                let entered = self.gate.enter(&self.arrival, cx.waker().clone());
                // As it is: `?` would box the box, and a rejection that is boxed twice is not found.
                let entered = entered.map_err(|rejection| rejection as BoxError)?;
                self.stage = Stage::Waits(entered.seat);
                begin(&self.gate, &self.arrival);
                entered.after.run(&self.gate);
                Ok((entered.seat, entered.is_decided))
            }
            Stage::Gone => panic!("polled after it completed"),
        }
    }

    /// It is decided, and the gate keeps nothing for it any more.
    pub(crate) fn gone(&mut self) {
        self.stage = Stage::Gone;
    }

    /// The same, of a request that was granted a permit.
    pub(crate) fn granted(&mut self, grant: Grant) -> Granted<S> {
        self.gone();
        Granted::new(Arc::clone(&self.gate), grant)
    }
}

impl<S: Serves> Drop for Place<S> {
    fn drop(&mut self) {
        match self.stage {
            Stage::Arrived => self.gate.depart(&self.arrival),
            Stage::Waits(seat) => self.gate.leave(&self.arrival, seat),
            Stage::Gone => {}
        }
    }
}

/// One request that was admitted. Dropping it hands its permit on, if it has one, and settles what its tenant is charged.
pub(crate) struct Granted<S: Serves> {
    gate: Arc<Gate<Fair<S>>>,
    /// Until it is over.
    grant: Option<Grant>,
    pub(crate) end: End,
}

impl<S: Serves> Granted<S> {
    #[inline]
    pub(crate) fn new(gate: Arc<Gate<Fair<S>>>, grant: Grant) -> Self {
        Self {
            gate,
            grant: Some(grant),
            end: End::NotSent,
        }
    }

    #[inline]
    pub(crate) fn gate(&self) -> &Arc<Gate<Fair<S>>> {
        &self.gate
    }

    #[inline]
    pub(crate) fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// The caller owns the permit and the charge from now on.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Grant> {
        self.grant.take()
    }

    #[inline]
    pub(crate) fn over(&mut self, now: &mut Now) {
        if let Some(grant) = self.grant.take() {
            S::over(&self.gate, grant, self.end, now);
        }
    }
}

impl<S: Serves> Drop for Granted<S> {
    #[inline]
    fn drop(&mut self) {
        if self.grant.is_some() {
            self.over(&mut Now::default());
        }
    }
}

impl<S: Serves> fmt::Debug for Granted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Granted").field(&self.grant).finish()
    }
}
