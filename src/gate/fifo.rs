//! A waiting room that serves in order of arrival.

use std::task::Waker;

use super::{
    queue::{Queue, Ticket},
    room::{Next, Room, Scene, Wakes},
    waits::WaitCounts,
};
use crate::sync::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// Waiters are granted permits in the order of their tickets' numbers. So the number of the last grant tells each of
/// them whether it has a permit, without the lock: see [`Ticket::is_due`].
#[derive(Debug)]
pub(crate) struct Fifo {
    queue: Queue<()>,
    /// The number of the last ticket that was granted a permit.
    granted: u64,
}

impl Default for Fifo {
    fn default() -> Self {
        Self {
            queue: Queue::new(),
            granted: 0,
        }
    }
}

impl Fifo {
    pub(crate) fn push(&mut self, waker: Waker, now: u64) -> Ticket {
        self.queue.push(waker, now, ())
    }

    /// Whether nobody has ever waited.
    pub(crate) fn is_as_new(&self) -> bool {
        self.queue.last() == 0
    }

    /// Whether that waker is the one to be woken for this ticket, which must not be due.
    pub(crate) fn wakes(&self, ticket: &Ticket, waker: &Waker) -> bool {
        self.queue.wakes(ticket, waker)
    }

    /// Replaces the waker of a ticket, which must not be due. The one before is returned, to be dropped after the lock.
    pub(crate) fn wake_with(&mut self, ticket: &Ticket, waker: Waker) -> Waker {
        self.queue.wake_with(ticket, waker)
    }

    /// Takes out a ticket that must not be due. Its waker is returned, to be dropped after the lock.
    pub(crate) fn leave(&mut self, ticket: Ticket, now: u64, waits: &WaitCounts) -> Waker {
        let ((), since, waker) = self.queue.remove(ticket);
        waits.record(now.saturating_sub(since));
        waker
    }
}

/// The number of the last ticket that was granted a permit.
#[derive(Debug, Default)]
pub(crate) struct Granted(AtomicU64);

impl Granted {
    /// Whether this ticket has a permit.
    #[inline]
    pub(crate) fn includes(&self, ticket: &Ticket) -> bool {
        ticket.is_due(self.0.load(Acquire))
    }
}

impl Room for Fifo {
    const NEEDS_TIME: bool = false;

    type Published = Granted;

    #[inline]
    fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn oldest(&self) -> Option<u64> {
        self.queue.oldest()
    }

    #[inline]
    fn has_next(&self) -> bool {
        !self.queue.is_empty()
    }

    #[inline]
    fn next(&mut self, _: &Scene<'_>, wakes: &mut Wakes) -> Next {
        let Some((number, since, waker)) = self.queue.pop() else {
            return Next::Nobody;
        };
        self.granted = number;
        wakes.uncounted = Some(since);
        wakes.push(waker);
        Next::Goes
    }

    fn published(&self) -> Granted {
        Granted::default()
    }

    #[inline]
    fn publish(&self, published: &Granted) {
        published.0.store(self.granted, Release);
    }
}
