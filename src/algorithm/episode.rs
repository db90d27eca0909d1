//! What is worth a line in the log about a layer that refuses requests: that it begins to, how many it has
//! refused every now and then, and that it has stopped.
//!
//! A refusal is cheap, and there may be a hundred thousand of them in a second; a line for each of them would
//! cost more than what was refused. So they come in episodes. One begins with the first refusal, and ends when
//! there was none for [`QUIET`]; in between there is a line every [`SUMMARY_EVERY`] at most. No refusal is lost
//! in that: each is in the count of one line, or of the next.

use std::time::Duration;

/// An episode is over when nothing was refused for so long.
pub(crate) const QUIET: Duration = Duration::from_secs(5);
/// There is at most one summary in so long.
pub(crate) const SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// Refusals that belong together.
#[derive(Debug, Default)]
pub(crate) struct Episode {
    running: Option<Running>,
    /// How many refusals there were, ever, when that was last looked at.
    known: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    begun: Duration,
    /// When there was last known to be one.
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
    /// There was a refusal just now, and have been `total` ever. The end of the episode before may be told
    /// with the beginning of the next.
    pub(crate) fn refused(&mut self, now: Duration, total: u64) -> [Option<News>; 2] {
        let ended = self.look(now, self.known);
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
        [ended, news]
    }

    /// Whether it is over by now. There have been `total` ever.
    ///
    /// If there were some since the last look, nobody knows when: it may have been just now.
    pub(crate) fn look(&mut self, now: Duration, total: u64) -> Option<News> {
        if let (true, Some(running)) = (total > self.known, &mut self.running) {
            running.last = running.last.max(now);
        }
        self.known = self.known.max(total);
        let over = |running: &mut Running| now.saturating_sub(running.last) >= QUIET;
        let running = self.running.take_if(over)?;
        Some(News::Ended {
            refused: self.known.saturating_sub(running.before),
            lasted: running.last.saturating_sub(running.begun),
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }
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
        assert_eq!(episode.look(secs(17), 1207), None, "when were those seven?");
        assert_eq!(episode.look(secs(21), 1207), None);
        let (refused, lasted) = (1207, secs(16));
        assert_eq!(
            episode.look(secs(22), 1207),
            Some(News::Ended { refused, lasted })
        );
        assert_eq!(episode.look(secs(23), 1207), None, "it is said once");
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
