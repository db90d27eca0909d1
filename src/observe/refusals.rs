//! Tells the log when a layer refuses requests, and when it no longer does.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::events;
use crate::{Reason, algorithm::episode::Episode, clock::Clock};

/// One refusal in so many is looked at, and the first one of an episode. It is by far not every layer that
/// has looked at the clock by then.
const LOOK_EVERY: u64 = 16;

/// What one layer has refused lately. It is the log's business alone, so the types are std's in models too.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Whether an episode runs.
    running: AtomicBool,
    episode: std::sync::Mutex<Episode>,
    clock: Clock,
}

impl Refusals {
    /// A request was refused; with it, `count` were for that reason, and `total` for any. What is called here may
    /// come back to the layer, so none of its locks may be held.
    #[inline]
    pub(crate) fn note(
        &self,
        layer: &'static str,
        reason: Reason,
        count: u64,
        total: impl FnOnce() -> u64,
    ) {
        if count % LOOK_EVERY == 1 || !self.running.load(Relaxed) {
            self.look(layer, Some(reason), total());
        }
    }

    /// Whether the episode is over, if there was one. It ends when nothing happens, so somebody has to look:
    /// whoever takes a snapshot, and every so many requests. The same about locks.
    #[inline]
    pub(crate) fn settle(&self, layer: &'static str, total: impl FnOnce() -> u64) {
        if self.running.load(Relaxed) {
            self.look(layer, None, total());
        }
    }

    #[cold]
    fn look(&self, layer: &'static str, refused: Option<Reason>, total: u64) {
        let now = self.clock.now();
        let mut episode = self
            .episode
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let news = match refused {
            Some(_) => episode.refused(now, total),
            None => [episode.look(now, total), None],
        };
        self.running.store(episode.is_running(), Relaxed);
        drop(episode);
        for news in news.into_iter().flatten() {
            events::refusals(layer, refused, news);
        }
    }
}
