//! How many retries a client may make, whatever fails.
//!
//! A retry takes one token. Each request brings a share of one, and so does time, so that a client that
//! sends little may retry too; and no more than a burst is saved up. In every stretch of time `t` in
//! which `n` requests are made there are then at most
//!
//! ```text
//! burst + share · n + floor · t
//! ```
//!
//! retries. A token is counted in thousand-millionths, which makes a percent of one and a nanosecond's
//! part of one a second whole numbers: nothing is rounded, so nothing drifts.

/// What a token is made of.
const TOKEN: u64 = 1_000_000_000;

/// Ten retries for each request.
pub(crate) const MAX_PERCENT: u32 = 1000;

/// How many retries there may be: a share of all requests, and a few each second.
///
/// When a server is down, a client that retries three times makes four requests of one, just when
/// the server can do least. A budget bounds that for all requests together: with the default of
/// `RetryBudget::percent(20)`, a server that answers nothing gets a fifth more than without retries,
/// not four times as much; and what fails now and then is retried all the same.
///
/// ```
/// use tower_backpressure::{RetryPolicy, retry::RetryBudget};
///
/// let policy = RetryPolicy::default().budget(RetryBudget::percent(10).per_second(2).burst(50));
/// # let _ = policy;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RetryBudget {
    /// What a request brings.
    share: u64,
    /// What a nanosecond brings: as many parts of a token as there are tokens each second.
    floor: u64,
    /// The most there can be.
    most: u64,
    there: u64,
    /// The time up to which time has brought what it brings, in nanoseconds.
    settled: u64,
}

impl RetryBudget {
    /// At most so many retries for each hundred requests, 0 among them: then there is only what time
    /// brings.
    ///
    /// By default time brings one each second, and 100 are saved up. A new budget is full: a client
    /// that has just been started may retry.
    ///
    /// # Panics
    /// If `percent` is above 1000, ten retries for each request.
    pub fn percent(percent: u32) -> Self {
        assert!(
            percent <= MAX_PERCENT,
            "percent of a retry budget must be at most 1000"
        );
        Self {
            share: u64::from(percent) * (TOKEN / 100),
            floor: 1,
            most: 100 * TOKEN,
            there: 100 * TOKEN,
            settled: 0,
        }
    }

    /// How many retries each second brings, however few requests there are. Each process has a
    /// budget of its own: a thousand clients of a server that is down bring it a thousand times this.
    /// Default: 1. It may be 0.
    pub fn per_second(self, retries: u32) -> Self {
        Self {
            floor: retries.into(),
            ..self
        }
    }

    /// How many retries are saved up at most, and may so come at once. Default: 100.
    ///
    /// # Panics
    /// If `retries` is 0, which would allow for none at all.
    pub fn burst(self, retries: u32) -> Self {
        assert!(retries > 0, "burst of a retry budget must be at least 1");
        let most = u64::from(retries) * TOKEN;
        Self {
            most,
            there: most,
            ..self
        }
    }

    /// These settings from now on. What is saved up stays, as far as they let it: no fresh burst is granted.
    pub(crate) fn set(&mut self, settings: Self, now: u64) {
        self.settle(now);
        *self = Self {
            there: self.there.min(settings.most),
            settled: self.settled,
            ..settings
        };
    }

    /// A request is made.
    pub(crate) fn deposit(&mut self) {
        self.there = self.there.saturating_add(self.share).min(self.most);
    }

    /// Whether a retry may be made; if so, it is.
    pub(crate) fn withdraw(&mut self, now: u64) -> bool {
        self.settle(now);
        let left = self.there.checked_sub(TOKEN);
        self.there = left.unwrap_or(self.there);
        left.is_some()
    }

    /// How many retries could be made now.
    pub(crate) fn left(&mut self, now: u64) -> u64 {
        self.settle(now);
        self.there / TOKEN
    }

    /// A clock that goes back brings nothing until it has caught up.
    fn settle(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.settled);
        let brought = elapsed.saturating_mul(self.floor);
        self.there = self.there.saturating_add(brought).min(self.most);
        self.settled = self.settled.max(now);
    }
}

impl Default for RetryBudget {
    /// 20 %, as in Finagle; one each second; 100 saved up.
    fn default() -> Self {
        Self::percent(20)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEC: u64 = 1_000_000_000;

    fn withdrawn(budget: &mut RetryBudget, now: u64) -> u32 {
        let retries = std::iter::repeat_with(|| budget.withdraw(now));
        retries.take_while(|granted| *granted).count() as u32
    }

    #[test]
    fn a_new_one_is_full_and_is_spent() {
        let mut budget = RetryBudget::percent(20).burst(3);
        assert_eq!(budget.left(5 * SEC), 3);
        assert_eq!(withdrawn(&mut budget, 5 * SEC), 3);
        assert_eq!(budget.left(5 * SEC), 0);
    }

    #[test]
    fn five_requests_bring_a_retry() {
        let mut budget = RetryBudget::percent(20).per_second(0).burst(10);
        withdrawn(&mut budget, 0);
        for request in 1..=100_u32 {
            budget.deposit();
            assert_eq!(budget.withdraw(SEC), request % 5 == 0, "{request}");
        }
    }

    #[test]
    fn a_second_brings_as_many_as_it_is_said_to() {
        let mut budget = RetryBudget::percent(0).per_second(3).burst(10);
        withdrawn(&mut budget, 0);
        budget.deposit();
        assert_eq!(withdrawn(&mut budget, SEC / 3), 0);
        assert_eq!(withdrawn(&mut budget, SEC / 3 + 1), 1);
        assert_eq!(withdrawn(&mut budget, SEC), 2);
        assert_eq!(withdrawn(&mut budget, SEC), 0);
        assert_eq!(withdrawn(&mut budget, 3 * SEC), 6);
    }

    #[test]
    fn no_more_than_the_burst_is_saved_up() {
        let mut budget = RetryBudget::percent(1000).per_second(u32::MAX).burst(7);
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(withdrawn(&mut budget, 0), 7);
        assert_eq!(withdrawn(&mut budget, u64::MAX), 7);
    }

    #[test]
    fn a_clock_that_goes_back_brings_nothing() {
        let mut budget = RetryBudget::percent(0).per_second(1).burst(5);
        assert_eq!(withdrawn(&mut budget, 10 * SEC), 5);
        assert_eq!(withdrawn(&mut budget, SEC), 0);
        assert_eq!(withdrawn(&mut budget, 10 * SEC), 0);
        assert_eq!(withdrawn(&mut budget, 11 * SEC), 1);
    }

    #[test]
    #[should_panic(expected = "burst of a retry budget must be at least 1")]
    fn no_burst_is_no_budget() {
        let _ = RetryBudget::percent(20).burst(0);
    }

    #[test]
    #[should_panic(expected = "percent of a retry budget must be at most 1000")]
    fn there_is_a_most() {
        let _ = RetryBudget::percent(1001);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Request,
        Retry,
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            1 => Just(Step::Request),
            3 => Just(Step::Retry),
            1 => (0..2 * SEC).prop_map(Step::Pass),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// In every stretch of every run; and a retry is refused only if it would break that for one of
        /// them.
        #[test]
        fn retries_are_bounded_in_every_stretch(
            steps in steps(), percent in 0..200_u32, floor in 0..5_u32, burst in 1..8_u32,
        ) {
            let mut budget = RetryBudget::percent(percent).per_second(floor).burst(burst);
            let earned = |step: &Step| match step {
                Step::Request => u128::from(percent) * 10_000_000,
                Step::Pass(nanos) => u128::from(*nanos) * u128::from(floor),
                Step::Retry => 0,
            };
            let mut now = 0;
            // For the stretch from each step up to now: what it has earned, and its retries.
            let mut stretches: Vec<(u128, u128)> = vec![(0, 0)];
            for step in &steps {
                stretches.iter_mut().for_each(|stretch| stretch.0 += earned(step));
                match step {
                    Step::Request => budget.deposit(),
                    Step::Pass(nanos) => now += nanos,
                    Step::Retry => {
                        let room = |(earned, retries): &(u128, u128)| {
                            (retries + 1) * 1_000_000_000 <= u128::from(burst) * 1_000_000_000 + earned
                        };
                        let granted = budget.withdraw(now);
                        prop_assert_eq!(granted, stretches.iter().all(room));
                        if granted {
                            stretches.iter_mut().for_each(|stretch| stretch.1 += 1);
                        }
                    }
                }
                stretches.push((0, 0));
            }
        }
    }
}
