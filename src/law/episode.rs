//! What is worth a line in the log about a layer that rejects requests: that it begins to, how many it has
//! rejected every now and then, and that it has stopped.
//!
//! A rejection is cheap, and there may be a hundred thousand of them in a second; a line for each of them would
//! cost more than what was rejected. So they come in episodes. One begins with the first rejection, and ends when
//! there was none for [`QUIET`]; in between there is a line every [`SUMMARY_EVERY`] at most. No rejection is lost
//! in that: each is in the count of one line, or of the next.
//!
//! Reading the clock costs as much as a rejection, so in a flood most of them are only counted. The count shows
//! that there were some since the last look, but not when. An episode lasts until its last rejection, not until
//! the look that finds it, which may come much later. So those that were only counted are taken to have followed
//! the last look at the pace that it measured. That is wrong where a flood turns into a trickle and nobody looks:
//! the first few of the trickle count as the end of the flood.

use std::time::Duration;

/// An episode is over when nothing was rejected for so long.
pub(crate) const QUIET: Duration = Duration::from_secs(5);
/// There is at most one summary in so long.
pub(crate) const SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// Rejections that belong together.
#[derive(Debug, Default)]
pub(crate) struct Episode {
    running: Option<Running>,
    /// How many rejections there were, ever, when that was last looked at.
    known: u64,
    looked_at: Duration,
    /// When a rejection was last seen as it happened, and how many there had been, ever, with it.
    seen: (Duration, u64),
    /// The mean time from one rejection to the next until then, since the one that was seen before.
    apart: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    begun: Duration,
    /// When the last known rejection was.
    last: Duration,
    /// How many there had been, ever, when it began.
    before: u64,
    said_at: Duration,
    /// How many there had been, ever, when something was last said.
    said: u64,
}

/// What there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Begins,
    /// So many since something was last said.
    GoesOn {
        refused: u64,
        lasted: Duration,
    },
    /// So many in all.
    Ended {
        refused: u64,
        lasted: Duration,
    },
}

impl Episode {
    /// There was a rejection just now, and have been `total` ever. The end of the episode before may be told
    /// with the beginning of the next.
    pub(crate) fn refused(&mut self, now: Duration, total: u64) -> [Option<News>; 2] {
        // The others since the last look came before this one, and after those of the episode that runs.
        let others = self.running.map_or(self.known, |_| total.saturating_sub(1));
        let ended = self.look(now, others);
        let news = match &mut self.running {
            None => {
                self.running = Some(Running {
                    begun: now,
                    last: now,
                    before: self.known,
                    said_at: now,
                    said: self.known,
                });
                Some(News::Begins)
            }
            Some(running) => {
                running.last = running.last.max(now);
                let due = now.saturating_sub(running.said_at) >= SUMMARY_EVERY;
                due.then(|| {
                    running.said_at = now;
                    News::GoesOn {
                        refused: total.saturating_sub(std::mem::replace(&mut running.said, total)),
                        lasted: now.saturating_sub(running.begun),
                    }
                })
            }
        };
        self.known = self.known.max(total);
        let (seen_at, before) = std::mem::replace(&mut self.seen, (now, self.known));
        self.apart = now.saturating_sub(seen_at) / count(self.known, before).max(1);
        [ended, news]
    }

    /// Whether it is over by now. There have been `total` ever.
    pub(crate) fn look(&mut self, now: Duration, total: u64) -> Option<News> {
        if let (true, Some(running)) = (total > self.known, &mut self.running) {
            let (seen_at, before) = self.seen;
            let unseen = self.apart.saturating_mul(count(total, before));
            let likely = seen_at.saturating_add(unseen).max(self.looked_at).min(now);
            running.last = running.last.max(likely);
        }
        self.known = self.known.max(total);
        self.looked_at = self.looked_at.max(now);
        let over = |running: &mut Running| now.saturating_sub(running.last) >= QUIET;
        let running = self.running.take_if(over)?;
        Some(News::Ended {
            refused: self.known.saturating_sub(running.before),
            lasted: running.last.saturating_sub(running.begun),
        })
    }

    /// How long ago the last look was.
    pub(crate) fn unseen_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.looked_at)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// How many rejections come in this time, if they go on as those that were seen last.
    pub(crate) fn pace(&self, time: Duration) -> u64 {
        let pace = time.as_nanos() / self.apart.as_nanos().max(1);
        u64::try_from(pace).unwrap_or(u64::MAX)
    }
}

fn count(total: u64, before: u64) -> u32 {
    u32::try_from(total.saturating_sub(before)).unwrap_or(u32::MAX)
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_begins_is_summed_up_and_ends() {
        let mut episode = Episode::default();
        assert_eq!(episode.look(secs(1), 0), None);
        assert_eq!(episode.refused(secs(1), 1), [None, Some(News::Begins)]);
        for second in 2..11 {
            assert_eq!(episode.refused(secs(second), second * 100), [None, None]);
        }
        let (refused, lasted) = (1100, secs(10));
        let summary = News::GoesOn { refused, lasted };
        assert_eq!(episode.refused(secs(11), 1100), [None, Some(summary)]);
        assert_eq!(episode.refused(secs(12), 1200), [None, None]);
        // A hundred a second, so seven more took 70 ms.
        assert_eq!(episode.look(secs(17), 1207), None);
        let (refused, lasted) = (1207, secs(11) + Duration::from_millis(70));
        assert_eq!(
            episode.look(secs(22), 1207),
            Some(News::Ended { refused, lasted })
        );
        assert_eq!(episode.look(secs(23), 1207), None, "it is said once");
    }

    #[test]
    fn it_ends_at_the_last_rejection_not_at_the_look_that_finds_it() {
        for late in [5, 6, 100, 1_000_000] {
            let mut episode = Episode::default();
            let _ = episode.refused(secs(1), 1);
            let _ = episode.refused(secs(2), 101);
            let lasted = secs(1) + Duration::from_millis(50);
            let refused = 106; // five that were only counted
            let ended = Some(News::Ended { refused, lasted });
            assert_eq!(episode.look(secs(2 + late) + lasted, 106), ended);
        }
    }

    #[test]
    fn those_that_were_only_counted_belong_to_the_episode_that_they_followed() {
        let mut episode = Episode::default();
        let _ = episode.refused(secs(1), 1);
        let _ = episode.refused(secs(2), 101);
        let (refused, lasted) = (106, secs(1) + Duration::from_millis(50));
        let ended = News::Ended { refused, lasted };
        let both = [Some(ended), Some(News::Begins)];
        assert_eq!(episode.refused(secs(60), 107), both);
        let (refused, lasted) = (1, secs(0));
        let ended = Some(News::Ended { refused, lasted });
        assert_eq!(episode.look(secs(65), 107), ended);
    }

    #[test]
    fn none_is_taken_to_be_later_than_the_look() {
        let mut episode = Episode::default();
        let _ = episode.refused(secs(1), 1);
        let _ = episode.refused(secs(4), 2); // three seconds apart
        assert_eq!(episode.look(secs(5), 10), None);
        let (refused, lasted) = (10, secs(4));
        let ended = Some(News::Ended { refused, lasted });
        assert_eq!(episode.look(secs(10), 10), ended);
    }

    #[test]
    fn the_end_may_be_noticed_with_the_next_beginning() {
        let mut episode = Episode::default();
        let _ = episode.refused(secs(1), 1);
        let _ = episode.refused(secs(3), 7);
        let (refused, lasted) = (7, secs(2));
        let ended = News::Ended { refused, lasted };
        let both = [Some(ended), Some(News::Begins)];
        assert_eq!(episode.refused(secs(100), 8), both);
    }

    #[test]
    fn a_clock_that_steps_back_ends_nothing() {
        let mut episode = Episode::default();
        let _ = episode.refused(secs(100), 1);
        assert_eq!(episode.refused(secs(1), 2), [None, None]);
        assert_eq!(episode.look(Duration::ZERO, 2), None);
    }

    proptest! {
        /// However they come: every refusal is in exactly one episode's count, and there is never more
        /// than one line in ten seconds beside those of beginnings and ends.
        #[test]
        fn nothing_is_lost_and_little_is_said(
            steps in prop::collection::vec((0_u64..8_000, 1_u64..50), 1..200)
        ) {
            let mut episode = Episode::default();
            let (mut now, mut total, mut told) = (Duration::ZERO, 0, 0);
            let mut summed_at: Option<Duration> = None;
            let mut begun = 0;
            for (ms, more) in steps {
                now += Duration::from_millis(ms);
                total += more;
                for news in episode.refused(now, total).into_iter().flatten() {
                    match news {
                        News::Begins => begun += 1,
                        News::GoesOn { .. } => {
                            let early = |at| now - at < SUMMARY_EVERY;
                            prop_assert!(!summed_at.is_some_and(early));
                            summed_at = Some(now);
                        }
                        News::Ended { refused, .. } => {
                            begun -= 1;
                            told += refused;
                        }
                    }
                }
                prop_assert_eq!(begun, 1);
            }
            let ended = episode.look(now + QUIET, total);
            let Some(News::Ended { refused, .. }) = ended else {
                panic!("{ended:?}")
            };
            prop_assert_eq!(told + refused, total);
        }
    }
}
