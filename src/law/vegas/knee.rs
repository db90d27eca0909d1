//! The knee: how many requests keep the service busy.
//!
//! A service has workers, or connections, or processors. How many they are changes seldom, how long a request takes
//! changes often. So this number is remembered through a disturbance, and not a time.

/// How fast it follows what is at work while the queue is as long as it should be.
const WEIGHT: f64 = 0.3;
/// The limit grows to so many knees,
const IDLE: f64 = 2.0;
/// and to so many times 1 + ν more, for bursts where the knee is small. Less costs more than a point of goodput with four
/// workers at 0.95 times their capacity.
const BURST: f64 = 6.0;
/// Less than the knee is at work if it is less by this share at least, and by so many standard errors, but no more than
/// the other share.
const LESS: (f64, f64) = (0.25, 0.7);
const LESS_ERRORS: f64 = 4.0;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Knee {
    pub(super) at: f64,
    /// Completions, and seconds, of the windows in a row that had a queue although less than the knee was at work.
    less: (f64, f64),
}

impl Knee {
    /// So many were at work and hardly any waited.
    pub(super) fn at_least(&mut self, used: f64) {
        self.at = self.at.max(used);
        self.forget();
    }

    /// The queue was as long as it should be.
    pub(super) fn follow(&mut self, serving: f64) {
        self.at += WEIGHT * (serving - self.at);
        self.forget();
    }

    /// The windows before say nothing any more.
    pub(super) fn forget(&mut self) {
        self.less = (0.0, 0.0);
    }

    /// There was a queue in a window. Says whether less than the knee was at work, by this window and those just before
    /// it, where requests take `mean` seconds and vary by `variation`, and that is known with such an error.
    pub(super) fn is_above(
        &mut self,
        completed: f64,
        lasted: f64,
        mean: f64,
        variation: f64,
        error: f64,
    ) -> bool {
        if completed / lasted * mean >= self.at {
            self.forget();
            return false;
        }
        self.less.0 += completed;
        self.less.1 += lasted;
        let (completed, lasted) = self.less;
        let error = (variation * (1.0 / completed + error)).sqrt();
        let share = (LESS_ERRORS * error).clamp(LESS.0, LESS.1);
        completed / lasted * mean < self.at * (1.0 - share)
    }

    /// How far the limit may grow while the service is not busy. More would be a queue inside the service on the day when
    /// it gets slower.
    pub(super) fn idle_limit(&self, variation: f64) -> f64 {
        IDLE * self.at + BURST * (1.0 + variation)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    fn knee(at: f64) -> Knee {
        Knee {
            at,
            ..Knee::default()
        }
    }

    #[test]
    fn it_grows_at_once_and_falls_slowly() {
        let mut knee = knee(10.0);
        knee.at_least(8.0);
        assert_eq!(knee.at, 10.0);
        knee.at_least(12.0);
        assert_eq!(knee.at, 12.0);
        knee.follow(2.0);
        assert_eq!(knee.at, 9.0);
    }

    #[test]
    fn much_less_has_to_be_at_work_where_little_is_known() {
        // (at work of 100, completions, squared error of the mean, whether that is less)
        for (work, completed, error, less) in [
            (70.0, 10_000.0, 0.0, true),
            (80.0, 10_000.0, 0.0, false), // less than a quarter
            (70.0, 100.0, 0.0, false),    // three standard errors
            (55.0, 100.0, 0.0, true),
            (70.0, 10_000.0, 0.01, false),
            (29.0, 16.0, 1.0, true), // whatever is known
        ] {
            let mean = 0.01;
            let lasted = completed * mean / work;
            let said = knee(100.0).is_above(completed, lasted, mean, 1.0, error);
            assert_eq!(said, less, "{work} {completed} {error}");
        }
    }

    #[test]
    fn windows_that_say_the_same_are_added_up() {
        let mut knee = knee(100.0);
        let mut window = |work: f64| knee.is_above(100.0, 1.0 / work, 0.01, 1.0, 0.0);
        assert!(!window(70.0));
        assert!(window(70.0));
        assert!(!window(100.0), "as much as there was");
        assert!(!window(70.0), "the first of its row");
    }

    #[test]
    fn the_limit_may_idle_at_twice_the_knee_and_a_little_more() {
        assert_eq!(knee(64.0).idle_limit(1.0), 140.0);
        assert_eq!(knee(4.0).idle_limit(4.0), 38.0);
    }
}
