//! The waiting room of a [`Gate`](super::gate::Gate): who waits, and who is next.
//!
//! A room is plain data under the gate's lock. It uses no atomics, reads no clock and wakes nobody: a waker is foreign
//! code, which may panic or call back into the gate. A room collects wakers in [`Wakes`], and the gate wakes them after
//! it has released the lock.

use std::{task::Waker, time::Duration};

use super::{aside::on_trial, bounds::Bounds, foreign::Foreign};
use crate::observe::events::{self, LimitMoved};

/// Decides who waits and who is next. [`Fifo`](super::fifo::Fifo) serves in order of arrival, [`Fair`](super::fair::Fair)
/// by tenant.
pub(crate) trait Room {
    /// Whether the time decides who is next. Otherwise [`Scene::now`] may be 0.
    const NEEDS_TIME: bool;

    /// What is known of the room without the lock.
    type Published;

    /// How many wait.
    fn waiting(&self) -> usize;

    /// Since when the one that has waited longest has waited, in nanoseconds of the gate's clock.
    fn oldest(&self) -> Option<u64>;

    /// Whether there is a waiter that may have the next free permit. While there is, newcomers do not pass it.
    fn has_next(&self) -> bool;

    /// A permit is free and [somebody is next](Self::has_next): gives it to the waiter that is next.
    fn next(&mut self, scene: &Scene<'_>, wakes: &mut Wakes) -> Next;

    fn published(&self) -> Self::Published;

    /// Brings up to date what is known without the lock. It is called before the lock is released, after each change.
    fn publish(&self, published: &Self::Published);
}

/// What a room knows of its gate.
pub(crate) struct Scene<'a> {
    /// In nanoseconds of the gate's clock.
    pub(crate) now: u64,
    /// How many others are in flight.
    pub(crate) in_flight: u64,
    /// How many were admitted so far, without the one that the room is asked about.
    pub(crate) admitted: u64,
    /// How many of those have completed.
    pub(crate) completed: u64,
    /// Where rejections and waits are counted.
    pub(crate) bounds: &'a Bounds,
}

/// What became of a free permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A waiter has it, and is to be woken.
    Goes,
    /// It is still free. The waiters that were next were rejected, and are to be woken. If
    /// [somebody is next](Room::has_next), enough were.
    Nobody,
}

/// What is to be done after the lock is released: waiters to be woken, and perhaps news for the log. Each of the waiters
/// already owns what it is woken for, so it does not matter if another one's waker panics.
#[derive(Default)]
#[must_use = "waiters that are not woken wait for ever"]
pub(crate) struct Wakes {
    // Nearly always there is one at most: no need to allocate for it.
    first: Option<Waker>,
    rest: Option<Box<Rest>>,
    /// When a wait began that is over and yet to be counted.
    pub(super) uncounted: Option<u64>,
}

#[derive(Default)]
struct Rest {
    wakers: Vec<Waker>,
    news: Option<News>,
}

/// What the log is to be told of an admission by age. What listens to the log is foreign, as wakers are.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) layer: &'static str,
    /// Whether a queue stands from now on, and the p95 of the ages.
    pub(crate) stands: Option<(bool, Option<Duration>)>,
    pub(crate) moved: Option<LimitMoved>,
    pub(crate) on_trial: bool,
}

impl News {
    pub(crate) fn tell(self) {
        let _told = on_trial(self.on_trial);
        if let Some((stands, p95)) = self.stands {
            events::queue(self.layer, stands, p95);
        }
        if let Some(moved) = self.moved {
            events::limit_moved(self.layer, moved);
        }
    }
}

/// Once so many are to be woken, the lock is released first, so that nobody waits long for it.
const ENOUGH: usize = 32;

impl Wakes {
    #[inline]
    pub(crate) fn push(&mut self, waker: Waker) {
        match self.first {
            None => self.first = Some(waker),
            Some(_) => self.rest.get_or_insert_default().wakers.push(waker),
        }
    }

    /// The log is to be told of this. Under one lock there are no news twice.
    pub(crate) fn tell(&mut self, news: News) {
        self.rest.get_or_insert_default().news = Some(news);
    }

    /// Whether there is nothing to be done.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    /// Whether the lock is to be released before there are more.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        (self.rest.as_ref()).is_some_and(|rest| rest.wakers.len() + 1 >= ENOUGH)
    }

    /// Does all of it. Not under a lock.
    #[inline]
    pub(crate) fn wake(self) {
        match (self.first, self.rest) {
            (first, Some(rest)) => rest.wake(first),
            (Some(waker), None) => waker.wake(),
            (None, None) => {}
        }
    }
}

impl Rest {
    #[cold]
    fn wake(self, first: Option<Waker>) {
        let mut foreign = Foreign::default();
        for waker in first.into_iter().chain(self.wakers) {
            foreign.run(|| waker.wake());
        }
        if let Some(news) = self.news {
            foreign.run(|| news.tell());
        }
        foreign.finish();
    }
}
