//! One admitted request.

use std::fmt;

use super::{claim::Limiter, gate::Gate};
use crate::{Overloaded, Reason, sync::Arc};

/// The right to have one request, job or connection in flight.
///
/// It comes from a handle's `acquire` or `try_acquire`, is owned (`'static`, `Send`, `Sync`), and
/// lets the next one in when it is dropped: at the end of a scope, with a task that is cancelled,
/// or while a panic unwinds.
#[must_use = "a permit that is not kept is given back at once"]
pub struct Permit {
    gate: Arc<Gate>,
}

impl Permit {
    /// For a caller that the gate has admitted.
    #[inline]
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self { gate }
    }

    /// If one is free and nobody waits for it.
    #[inline]
    pub(crate) fn try_take(gate: &Arc<Gate>) -> Result<Self, Overloaded> {
        match gate.try_admit(()) {
            true => Ok(Self::new(Arc::clone(gate))),
            false => Err(*gate.refuse((), Reason::AtLimit)),
        }
    }

    #[inline]
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.gate.complete();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit")
            .field(&self.gate.bounds.name())
            .finish()
    }
}
