//! The callers that wait at a gate: a first-in-first-out list inside a slab.
//!
//! Pushing, popping the head and leaving from anywhere are O(1). Callers are numbered as they come
//! and leave at the head in that order, so "the last number that was popped" says of each of them
//! whether its turn has come, without looking at its slot.

use std::{mem, task::Waker};

use crate::law::slab::Slab;

/// A caller's place in a [`Queue`], until its number has been popped.
#[derive(Debug)]
pub(crate) struct Ticket {
    number: u64,
    slot: u32,
}

impl Ticket {
    /// Whether its turn has come, when `popped` was the last number to be popped.
    #[inline]
    pub(crate) fn is_due(&self, popped: u64) -> bool {
        self.number <= popped
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

/// Most callers that a queue can hold.
pub(crate) const MAX_WAITING: usize = NIL as usize;

const NIL: u32 = u32::MAX;

/// `T` is what a gate keeps with each caller.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    slots: Slab<Waiter<T>>,
    head: u32,
    tail: u32,
    len: usize,
    /// The number of the caller that came last; the first one is 1.
    last: u64,
}

#[derive(Debug)]
struct Waiter<T> {
    number: u64,
    with: T,
    waker: Waker,
    since: u64,
    previous: u32,
    next: u32,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Slab::new(),
            head: NIL,
            tail: NIL,
            len: 0,
            last: 0,
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Since when the head has waited, in nanoseconds of the limiter's clock.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (self.head != NIL).then(|| self.slots[self.head].since)
    }

    pub(crate) fn push(&mut self, waker: Waker, since: u64, with: T) -> Ticket {
        self.last += 1;
        let waiter = Waiter {
            number: self.last,
            with,
            waker,
            since,
            previous: self.tail,
            next: NIL,
        };
        let index = self.slots.insert(waiter);
        match self.tail {
            NIL => self.head = index,
            tail => self.slots[tail].next = index,
        }
        self.tail = index;
        self.len += 1;
        Ticket {
            number: self.last,
            slot: index,
        }
    }

    /// The number of the caller that came last.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// What is kept with a ticket, which must not be due.
    pub(crate) fn with(&self, ticket: &Ticket) -> &T {
        &self.slots[ticket.slot].with
    }

    /// The number of the head, and what is kept with it.
    pub(crate) fn head(&self) -> Option<(u64, &T)> {
        (self.head != NIL).then(|| {
            let head = &self.slots[self.head];
            (head.number, &head.with)
        })
    }

    /// Takes the head out: its number, since when it has waited, and its waker, to be woken after the lock.
    pub(crate) fn pop(&mut self) -> Option<(u64, u64, Waker)> {
        (self.head != NIL).then(|| {
            let waiter = self.unlink(self.head);
            (waiter.number, waiter.since, waiter.waker)
        })
    }

    /// Whether that waker is the one to be woken for this ticket, which must not be due.
    pub(crate) fn wakes(&self, ticket: &Ticket, waker: &Waker) -> bool {
        self.slots[ticket.slot].waker.will_wake(waker)
    }

    /// Has `waker` woken when it is the turn of this ticket, which must not be due. The waker that it
    /// replaces is given back, to be dropped after the lock.
    pub(crate) fn wake_with(&mut self, ticket: &Ticket, waker: Waker) -> Waker {
        mem::replace(&mut self.slots[ticket.slot].waker, waker)
    }

    /// The waker of the head, to be woken after the lock. The head has to leave another.
    pub(crate) fn take_head_waker(&mut self) -> Option<Waker> {
        let head = self.head;
        (head != NIL).then(|| mem::replace(&mut self.slots[head].waker, Waker::noop().clone()))
    }

    /// Takes a ticket out that must not be due, with since when it has waited. Its waker is to be dropped
    /// after the lock.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> (T, u64, Waker) {
        let waiter = self.unlink(ticket.slot);
        (waiter.with, waiter.since, waiter.waker)
    }

    fn unlink(&mut self, index: u32) -> Waiter<T> {
        let waiter = self.slots.remove(index);
        match waiter.previous {
            NIL => self.head = waiter.next,
            previous => self.slots[previous].next = waiter.next,
        }
        match waiter.next {
            NIL => self.tail = waiter.previous,
            next => self.slots[next].previous = waiter.previous,
        }
        self.len -= 1;
        waiter
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    fn push(queue: &mut Queue<()>, at: u64) -> Ticket {
        queue.push(Waker::noop().clone(), at, ())
    }

    #[test]
    fn slots_are_used_again() {
        let mut queue = Queue::new();
        for round in 0..100 {
            let a = push(&mut queue, round);
            let b = push(&mut queue, round);
            let popped = queue.pop().unwrap().0;
            assert!(a.is_due(popped) && !b.is_due(popped));
            queue.remove(b);
        }
        assert_eq!((queue.slots.slots(), queue.len()), (2, 0));
    }

    #[test]
    fn leaving_from_anywhere_keeps_the_order_of_the_others() {
        for leaver in 0..4 {
            let mut queue = Queue::new();
            let mut tickets: Vec<_> = (0..4).map(|i| push(&mut queue, i)).collect();
            queue.remove(tickets.remove(leaver));
            let mut left: Vec<u64> = (0..4).collect();
            left.remove(leaver);
            for (ticket, since) in tickets.iter().zip(left) {
                assert_eq!(queue.oldest(), Some(since));
                assert_eq!(queue.pop().unwrap().0, ticket.number);
            }
            assert!(queue.pop().is_none());
            assert_eq!(queue.oldest(), None);
        }
    }

    #[test]
    fn a_ticket_stays_due_when_its_slot_is_used_by_another() {
        let mut queue = Queue::new();
        let due = push(&mut queue, 0);
        let popped = queue.pop().unwrap().0;
        let newcomer = push(&mut queue, 1);
        assert_eq!(due.slot, newcomer.slot);
        assert!(due.is_due(popped) && !newcomer.is_due(popped));
    }
}
