//! The queues that are looked at.

use std::{
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use crate::{channel, law::levels::ratio};

/// Tells how full a queue is. A closure `|| (depth, soft_limit)` is one, and so is the
/// [`Handle`](channel::Handle) of a channel, whose soft limit is its capacity.
///
/// It is asked within a request, by one thread at a time and under no lock, so it must not block. It may
/// look at the layer's own handle.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell how full a queue is",
    note = "take the handle of a `channel`, or a closure that returns the depth and the soft limit: `move || (queue.len(), 1000)`"
)]
pub trait Probe: Send + Sync + 'static {
    /// How much is in the queue, and how much should be at most.
    fn depth_and_limit(&self) -> (usize, usize);
}

#[diagnostic::do_not_recommend]
impl<F> Probe for F
where
    F: Fn() -> (usize, usize) + Send + Sync + 'static,
{
    fn depth_and_limit(&self) -> (usize, usize) {
        self()
    }
}

impl Probe for channel::Handle {
    fn depth_and_limit(&self) -> (usize, usize) {
        (self.depth(), self.capacity())
    }
}

/// What one probe has said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) probe: &'static str,
    /// Which one it was; others may have the same name.
    pub(super) index: usize,
    pub(super) depth: usize,
    pub(super) soft_limit: usize,
    pub(super) ratio: f64,
}

/// All of a layer's. They can be added to at any time and are gone through without a lock.
#[derive(Default)]
pub(super) struct Probes(OnceLock<Box<Link>>);

struct Link {
    name: &'static str,
    probe: Box<dyn Probe>,
    rest: Probes,
}

impl Probes {
    pub(super) fn add(&self, name: &'static str, probe: Box<dyn Probe>) {
        let mut last = self;
        let mut link = Box::new(Link {
            name,
            probe,
            rest: Self::default(),
        });
        // Another one may have been put there first.
        while let Err(back) = last.0.set(link) {
            link = back;
            last = &last.0.get().expect("it is set").rest;
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Link> {
        let first = self.0.get().map(Box::as_ref);
        iter::successors(first, |link| link.rest.0.get().map(Box::as_ref))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.iter().map(|link| link.name)
    }

    /// Asks all of them. Gives the one with the worst ratio, the first of those that are as bad, and
    /// tells which ones have panicked.
    pub(super) fn worst(&self, mut panicked: impl FnMut(&'static str)) -> Option<Said> {
        let mut worst: Option<Said> = None;
        for (index, link) in self.iter().enumerate() {
            let asked = catch_unwind(AssertUnwindSafe(|| link.probe.depth_and_limit()));
            let Ok((depth, soft_limit)) = asked else {
                panicked(link.name);
                continue;
            };
            let ratio = ratio(depth, soft_limit);
            if worst.is_none_or(|worst| ratio > worst.ratio) {
                worst = Some(Said {
                    index,
                    probe: link.name,
                    depth,
                    soft_limit,
                    ratio,
                });
            }
        }
        worst
    }
}
