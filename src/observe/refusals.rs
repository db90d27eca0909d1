//! Tells the log when a layer refuses requests, and when it no longer does.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::events;
use crate::{
    Reason,
    algorithm::episode::{Episode, News},
    clock::Clock,
};

/// A look takes longer than a refusal. While there are many of them, so many are not looked at, …
const MAX_UNSEEN: u64 = 15;
/// … and no more than come in this time.
const UNSEEN_FOR: Duration = Duration::from_millis(250);

/// What one layer has refused lately. It is the log's business alone, so the types are std's in models too.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Whether an episode runs.
    running: AtomicBool,
    /// So many refusals need not be looked at. Threads may get it wrong by a few.
    unseen: AtomicU64,
    /// Whether it is on trial only.
    shadow: AtomicBool,
    seen: Mutex<Seen>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Seen {
    episode: Episode,
    at: Duration,
    total: u64,
}

impl Refusals {
    /// A request was refused; with it, `total` were. What is called here may come back to the layer, so none of
    /// its locks may be held.
    #[inline]
    pub(crate) fn note(&self, layer: &'static str, reason: Reason, total: impl FnOnce() -> u64) {
        let unseen = self.unseen.load(Relaxed);
        if unseen > 0 && self.running.load(Relaxed) {
            self.unseen.store(unseen - 1, Relaxed);
        } else {
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
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let news = match refused {
            Some(_) => seen.episode.refused(now, total),
            None => [seen.episode.look(now, total), None],
        };
        self.running.store(seen.episode.is_running(), Relaxed);
        if refused.is_some() {
            let pace = seen.at_this_pace(now, total).min(MAX_UNSEEN);
            // Of one that begins there is no pace yet.
            let begins = news[1] == Some(News::Begins);
            self.unseen.store(if begins { 0 } else { pace }, Relaxed);
            self.shadow.fetch_or(events::is_shadow(), Relaxed);
        }
        drop(seen);
        events::in_shadow_if(self.shadow.load(Relaxed), || {
            for news in news.into_iter().flatten() {
                events::refusals(layer, refused, news);
            }
        });
    }
}

impl Seen {
    /// How many come in [`UNSEEN_FOR`], if they come as they did since the last look.
    fn at_this_pace(&mut self, now: Duration, total: u64) -> u64 {
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.at, now));
        let count = total.saturating_sub(std::mem::replace(&mut self.total, total));
        let nanos = elapsed.as_nanos().max(1);
        let pace = u128::from(count) * UNSEEN_FOR.as_nanos() / nanos;
        u64::try_from(pace).unwrap_or(u64::MAX)
    }
}
