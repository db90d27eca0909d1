//! What one caller has at a gate.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Sleep, sleep};

use super::{
    gate::{Entered, Gate},
    permit::Permit,
    queue::Ticket,
    shed,
};
use crate::{Overloaded, Reason, sync::Arc};

/// One caller at a gate: it has nothing, waits, holds a permit that it has not used yet, or was
/// refused. Dropping it gives back whatever it has.
pub(crate) struct Claim {
    gate: Arc<Gate>,
    state: State,
    /// Ends the wait at `max_wait`. Apart from the state, which every request changes, so that
    /// changing it has nothing to drop.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Waiting(Ticket),
    Held,
    Refused(Reason),
}

impl Claim {
    #[inline]
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self {
            gate,
            state: State::Idle,
            timer: None,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Ready when it is decided: the claim [is held](Self::is_held), or is refused, which is judged
    /// anew at the next poll.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.state {
            State::Held => return Poll::Ready(()),
            State::Idle | State::Refused(_) if self.gate.try_admit() => {
                self.state = State::Held;
                return Poll::Ready(());
            }
            _ => {}
        }
        self.poll_slow(cx)
    }

    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.state, State::Held)
    }

    /// Uses up the claim: its permit, or its refusal.
    ///
    /// # Panics
    /// If it was not polled ready.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Permit, Box<Overloaded>> {
        match mem::take(&mut self.state) {
            State::Held => Ok(Permit::new(Arc::clone(&self.gate))),
            State::Refused(reason) => Err(self.gate.refuse(reason)),
            State::Idle | State::Waiting(_) => {
                panic!(
                    "`call` without `poll_ready`: a service must be polled ready before each call"
                )
            }
        }
    }

    /// Gives back whatever it has.
    pub(crate) fn reset(&mut self) {
        let granted = match mem::take(&mut self.state) {
            State::Waiting(ticket) => self.gate.leave(ticket),
            State::Held => true,
            State::Idle | State::Refused(_) => false,
        };
        if granted {
            self.gate.give_back();
        }
    }

    #[cold]
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if shed::is_shedding(cx) {
            return self.poll_shedding();
        }
        if let State::Waiting(ticket) = mem::take(&mut self.state) {
            self.state = match self.gate.redeem(ticket, cx.waker()) {
                Ok(()) => State::Held,
                Err(ticket) => State::Waiting(ticket),
            };
        } else {
            self.state = match self.gate.enter(cx.waker().clone()) {
                Entered::Admitted => State::Held,
                Entered::Refused => State::Refused(Reason::QueueFull),
                Entered::Waiting(ticket) => State::Waiting(ticket),
            };
            // After the state is set: `sleep` panics without a runtime, and no ticket may be lost.
            self.timer = self.gate.max_wait().map(|wait| Box::pin(sleep(wait)));
        }
        if let State::Waiting(_) = self.state {
            match self.timer.as_mut().map(|timer| timer.as_mut().poll(cx)) {
                Some(Poll::Ready(())) => self.stop_waiting(Reason::WaitTimeout),
                Some(Poll::Pending) | None => return Poll::Pending,
            }
        }
        self.timer = None;
        Poll::Ready(())
    }

    /// Leaves no trace: a caller that sheds does not come back for what is set aside for it.
    fn poll_shedding(&mut self) -> Poll<()> {
        self.stop_waiting(Reason::AtLimit);
        if self.is_held() {
            return Poll::Ready(());
        }
        self.state = State::Idle;
        shed::leave(self.gate.refuse(Reason::AtLimit));
        Poll::Pending
    }

    /// If it waits: takes the permit if that has been granted, else gives up for that reason.
    fn stop_waiting(&mut self, reason: Reason) {
        self.state = match mem::take(&mut self.state) {
            State::Waiting(ticket) => match self.gate.leave(ticket) {
                true => State::Held,
                false => State::Refused(reason),
            },
            state => state,
        };
    }
}

impl Drop for Claim {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, State::Idle) {
            self.reset();
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Idle => "idle",
            State::Waiting(_) => "waiting",
            State::Held => "held",
            State::Refused(_) => "refused",
        };
        f.debug_struct("Claim")
            .field("gate", &self.gate)
            .field("state", &state)
            .finish()
    }
}
