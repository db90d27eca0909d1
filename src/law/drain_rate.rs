//! How fast a limiter gets rid of work, estimated from nothing but its count of completions.
//!
//! It answers one question: if `n` requests are ahead of me, when is it worth coming back?
//! With a drain of `r` completions a second that is `n / r`. The count is looked at now and then
//! (when requests are refused), so the rate is an average between two looks.

use std::time::Duration;

/// Closer looks than this are put together: a handful of completions says little.
const SHORTEST_SPAN: Duration = Duration::from_millis(100);

/// Past this a look says more about an earlier calm than about the overload now.
const LONGEST_SPAN: Duration = Duration::from_secs(10);

/// The answer where the rate is not known.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(1);
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct DrainRate {
    /// When it was last looked at, and the count then.
    mark: Option<(Duration, u64)>,
    time_per_completion: Option<Duration>,
}

impl DrainRate {
    /// When it is worth coming back, if `ahead` requests have to complete until then.
    pub(crate) fn wait(&mut self, now: Duration, completed: u64, ahead: u64) -> Duration {
        self.known_wait(now, completed, ahead)
            .unwrap_or(DEFAULT_WAIT)
    }

    /// The same, or nothing where the rate is not known.
    pub(crate) fn known_wait(
        &mut self,
        now: Duration,
        completed: u64,
        ahead: u64,
    ) -> Option<Duration> {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        let each = self.look(now, completed)?;
        let wait = each.saturating_mul(ahead);
        Some(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT))
    }

    /// Looks at the count of completions at time `now`; gives the time that one completion takes
    /// at the present rate, or nothing where that is not known.
    pub(crate) fn look(&mut self, now: Duration, completed: u64) -> Option<Duration> {
        let Some((marked_at, count)) = self.mark else {
            self.mark = Some((now, completed));
            return None;
        };
        let span = now.saturating_sub(marked_at);
        let done = completed.saturating_sub(count);
        if span > LONGEST_SPAN {
            self.mark = Some((now, completed));
            self.time_per_completion = None;
        } else if span >= SHORTEST_SPAN && done > 0 {
            self.mark = Some((now, completed));
            let done = u32::try_from(done).unwrap_or(u32::MAX);
            self.time_per_completion = Some(span / done);
        }
        self.time_per_completion
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// (time, count, what is known of the time per completion)
    fn check(looks: &[(Duration, u64, Option<Duration>)]) {
        let mut rate = DrainRate::default();
        for &(now, completed, expected) in looks {
            assert_eq!(
                rate.look(now, completed),
                expected,
                "at {now:?}, {completed}"
            );
        }
    }

    #[test]
    fn the_first_look_knows_nothing() {
        check(&[(ms(5), 1000, None)]);
    }

    #[test]
    fn it_is_the_average_between_two_looks() {
        check(&[
            (ms(0), 0, None),
            (ms(200), 100, Some(ms(2))),
            (ms(1200), 200, Some(ms(10))),
        ]);
    }

    #[test]
    fn looks_that_are_too_close_are_put_together() {
        check(&[
            (ms(0), 0, None),
            (ms(50), 50, None),
            (ms(99), 99, None),
            (ms(100), 100, Some(ms(1))),
            (ms(150), 100, Some(ms(1))),
            (ms(300), 200, Some(ms(2))),
        ]);
    }

    #[test]
    fn a_stall_is_measured_when_it_ends_and_forgotten_when_it_lasts() {
        check(&[
            (ms(0), 0, None),
            (ms(1000), 1000, Some(ms(1))),
            (ms(9000), 1000, Some(ms(1))),
            (ms(9001), 1001, Some(ms(8001))),
            (ms(19_002), 1001, None),
            (ms(19_102), 1101, Some(ms(1))),
        ]);
    }

    #[test]
    fn the_wait_is_for_all_who_are_ahead_within_bounds() {
        let mut rate = DrainRate::default();
        assert_eq!(rate.wait(ms(0), 0, 5), DEFAULT_WAIT);
        assert_eq!(rate.wait(ms(200), 100, 5), ms(10));
        assert_eq!(rate.wait(ms(200), 100, 0), SHORTEST_WAIT);
        assert_eq!(rate.wait(ms(200), 100, u64::MAX), LONGEST_WAIT);
    }

    #[test]
    fn time_or_counts_that_go_back_and_huge_ones_do_no_harm() {
        check(&[(ms(500), 10, None), (ms(100), 5, None)]);
        check(&[(ms(0), 0, None), (ms(1000), u64::MAX, Some(Duration::ZERO))]);
    }
}
