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
    clock::Clock,
    gate::aside::{is_on_trial, on_trial},
    law::episode::{Episode, News},
};

/// A look takes longer than a rejection. In a flood so many are only counted, …
const MAX_UNSEEN: u64 = 15;
/// … and no more than come in this time. That bounds what is not known of an episode's end, and looks at no more
/// than about a thousand a second while there are fewer than 16 000 of them.
const UNSEEN_FOR: Duration = Duration::from_millis(1);

/// What one layer has refused lately. It is the log's business alone, so the types are std's in models too.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Whether an episode runs.
    running: AtomicBool,
    /// So many refusals need not be looked at. Threads may get it wrong by a few.
    unseen: AtomicU64,
    /// Whether it is on trial only.
    shadow: AtomicBool,
    episode: Mutex<Episode>,
    clock: Clock,
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

    /// Tells the log that an episode is over, if it is. It ends when nothing happens, so somebody has to look:
    /// each snapshot does, and one in so many requests. The same about locks.
    #[inline]
    pub(crate) fn settle(&self, layer: &'static str, total: impl FnOnce() -> u64) {
        if self.running.load(Relaxed) {
            self.look(layer, None, total());
        }
    }

    #[cold]
    fn look(&self, layer: &'static str, refused: Option<Reason>, total: u64) {
        let now = self.clock.now();
        let mut episode = self.episode.lock().unwrap_or_else(PoisonError::into_inner);
        let slows_down = episode.unseen_for(now) > UNSEEN_FOR;
        let news = match refused {
            Some(_) => episode.refused(now, total),
            None => [episode.look(now, total), None],
        };
        self.running.store(episode.is_running(), Relaxed);
        if refused.is_some() {
            // There is no pace yet where an episode begins.
            let begins = news[1] == Some(News::Begins);
            let unseen = if begins { 0 } else { episode.pace(UNSEEN_FOR) };
            self.unseen.store(unseen.min(MAX_UNSEEN), Relaxed);
        } else if slows_down {
            self.unseen.store(0, Relaxed);
        }
        drop(episode);
        if refused.is_some() {
            self.shadow.fetch_or(is_on_trial(), Relaxed);
        }
        let _told = on_trial(self.shadow.load(Relaxed));
        for news in news.into_iter().flatten() {
            events::refusals(layer, refused, news);
        }
    }
}
