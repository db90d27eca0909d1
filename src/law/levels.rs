//! How full the fullest queue is, as one of four levels, and when the level can be expected to fall.
//!
//! A ratio is a queue's depth over its soft limit, which is advisory: it may be above 1. A level is
//! reached at its threshold at once, and left only when the ratio has fallen some way below it, so that a
//! queue that hovers around a threshold does not switch admission on and off.

use std::time::Duration;

/// How full the fullest queue is.
///
/// | level | ratio | refused |
/// | --- | --- | --- |
/// | normal | < 70 % | nothing |
/// | warning | 70–85 % | nothing, but it is logged |
/// | critical | 85–95 % | new work |
/// | overflow | > 95 % | new work and writes |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// There is room.
    #[default]
    Normal,
    /// It fills up. Everything passes.
    Warning,
    /// New work is refused, so that what has been begun can be finished.
    Critical,
    /// All writes are refused; reads, which put nothing into a queue, pass.
    Overflow,
}

impl Level {
    const ALL: [Self; 4] = [Self::Normal, Self::Warning, Self::Critical, Self::Overflow];

    /// The level as one word, for labels of logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Overflow => "overflow",
        }
    }

    /// The reverse of `as usize`.
    #[inline]
    pub(crate) fn from_index(index: usize) -> Self {
        *Self::ALL.get(index).unwrap_or(&Self::Normal)
    }
}

/// At which ratios of depth to soft limit the levels begin.
///
/// ```
/// use tower_backpressure::saturation::{SaturationLayer, Thresholds};
///
/// // New work is refused when a queue is more than half full.
/// let thresholds = Thresholds::default().warning(0.4).critical(0.5).overflow(0.8);
/// let layer = SaturationLayer::new().thresholds(thresholds);
/// # let _ = layer;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    pub(crate) warning: f64,
    pub(crate) critical: f64,
    pub(crate) overflow: f64,
    pub(crate) hysteresis: f64,
}

impl Default for Thresholds {
    /// 0.70, 0.85 and 0.95, and a hysteresis of 0.05: half of the narrowest level, so that each of them
    /// can be left without leaving the next one too.
    fn default() -> Self {
        Self {
            warning: 0.70,
            critical: 0.85,
            overflow: 0.95,
            hysteresis: 0.05,
        }
    }
}

impl Thresholds {
    /// From this ratio on it is a warning.
    pub fn warning(mut self, ratio: f64) -> Self {
        self.warning = ratio;
        self
    }

    /// From this ratio on it is critical.
    pub fn critical(mut self, ratio: f64) -> Self {
        self.critical = ratio;
        self
    }

    /// Above this ratio it is an overflow.
    pub fn overflow(mut self, ratio: f64) -> Self {
        self.overflow = ratio;
        self
    }

    /// How far the ratio has to fall below the threshold of a level until the level is left. It must be
    /// less than the threshold of the warning, or that would never be left.
    pub fn hysteresis(mut self, ratio: f64) -> Self {
        self.hysteresis = ratio;
        self
    }

    /// The first field that is not allowed, and what it must be.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        // What is not a number fails every comparison.
        let checks = [
            (self.warning > 0.0, "warning", "more than 0"),
            (
                self.critical > self.warning,
                "critical",
                "more than warning",
            ),
            (
                self.overflow > self.critical && self.overflow.is_finite(),
                "overflow",
                "more than critical, and finite",
            ),
            (
                self.hysteresis >= 0.0 && self.hysteresis < self.warning,
                "hysteresis",
                "at least 0, and less than warning",
            ),
        ];
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, expected)) => Err((field, expected)),
            None => Ok(()),
        }
    }

    /// Whether a ratio is at this level or above, with the threshold lowered by that much.
    fn reaches(&self, level: Level, ratio: f64, lowered: f64) -> bool {
        match level {
            Level::Normal => true,
            // The levels of the table share their edges: 85 % is critical, but 95 % is not overflow.
            Level::Overflow => ratio > self.threshold(level, lowered),
            _ => ratio >= self.threshold(level, lowered),
        }
    }

    fn threshold(&self, level: Level, lowered: f64) -> f64 {
        let threshold = match level {
            Level::Normal => 0.0,
            Level::Warning => self.warning,
            Level::Critical => self.critical,
            Level::Overflow => self.overflow,
        };
        // 0.95 - 0.05 is not 0.9 in binary: to the nearest of what a person would write.
        ((threshold - lowered) * 1e9).round() / 1e9
    }
}

/// A queue's depth over its soft limit. Nothing is in no queue too full, whatever its limit; anything at
/// all is too much for a limit of 0.
pub(crate) fn ratio(depth: usize, soft_limit: usize) -> f64 {
    match depth {
        0 => 0.0,
        depth => depth as f64 / soft_limit as f64,
    }
}

/// The level, as ratios come in.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    pub(crate) thresholds: Thresholds,
    level: Level,
}

impl Levels {
    /// The level by this ratio, given the one before. A ratio that is not a number says nothing, and is
    /// no reason to refuse anything.
    pub(crate) fn update(&mut self, ratio: f64) -> Level {
        let at_least = |level: &Level| {
            let lowered = if *level <= self.level {
                self.thresholds.hysteresis
            } else {
                0.0
            };
            self.thresholds.reaches(*level, ratio, lowered)
        };
        self.level = Level::ALL
            .into_iter()
            .rfind(at_least)
            .unwrap_or(Level::Normal);
        self.level
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// How much has to leave a queue until this level is left, at least 1.
    pub(crate) fn excess(&self, level: Level, depth: usize, soft_limit: usize) -> u64 {
        let room = self.thresholds.threshold(level, self.thresholds.hysteresis) * soft_limit as f64;
        (depth as f64 - room).ceil().max(1.0) as u64
    }
}

/// Closer looks than this are put together: a handful of messages says little.
const SHORTEST_SPAN: Duration = Duration::from_millis(100);

/// Past this a look says more about earlier than about now.
const LONGEST_SPAN: Duration = Duration::from_secs(10);

const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How fast a queue gets shorter, by nothing but its depth now and then: what leaves it less what enters
/// it. That is what decides when a level is left, and all that a foreign queue tells us.
#[derive(Debug, Default)]
pub(crate) struct Fall {
    /// When it was last looked at, and the depth then.
    mark: Option<(Duration, usize)>,
    /// How long it takes to get shorter by one, if it gets shorter.
    each: Option<Duration>,
}

impl Fall {
    pub(crate) fn look(&mut self, now: Duration, depth: usize) {
        let Some((at, before)) = self.mark else {
            self.mark = Some((now, depth));
            return;
        };
        let span = now.saturating_sub(at);
        if span < SHORTEST_SPAN {
            return;
        }
        self.mark = Some((now, depth));
        let fallen = u32::try_from(before.saturating_sub(depth)).unwrap_or(u32::MAX);
        self.each = (fallen > 0 && span <= LONGEST_SPAN).then(|| span / fallen.max(1));
    }

    /// How long it takes to get shorter by so many, if that is known.
    pub(crate) fn wait(&self, excess: u64) -> Option<Duration> {
        let excess = u32::try_from(excess).unwrap_or(u32::MAX);
        let wait = self.each?.saturating_mul(excess);
        Some(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT))
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::{Level::*, *};

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// The level that is reached from rest.
    fn at(depth: usize, soft_limit: usize) -> Level {
        Levels::default().update(ratio(depth, soft_limit))
    }

    /// Normal < 70 %, warning 70–85 %, critical 85–95 %, overflow > 95 %.
    #[test]
    fn the_table_of_levels_to_its_edges() {
        for (depth, level) in [
            (0, Normal),
            (699, Normal),
            (700, Warning),
            (701, Warning),
            (849, Warning),
            (850, Critical),
            (851, Critical),
            (949, Critical),
            (950, Critical),
            (951, Overflow),
            (1000, Overflow),
            (5000, Overflow),
        ] {
            assert_eq!(at(depth, 1000), level, "{depth} of 1000");
        }
        // The same ratios of numbers that are no powers of ten.
        assert_eq!(
            [at(14, 20), at(17, 20), at(19, 20)],
            [Warning, Critical, Critical]
        );
    }

    #[test]
    fn no_limit_and_huge_numbers_do_no_harm() {
        assert_eq!((ratio(0, 0), at(0, 0)), (0.0, Normal));
        assert_eq!(at(1, 0), Overflow);
        assert_eq!(at(usize::MAX, 1), Overflow);
        assert_eq!(at(1, usize::MAX), Normal);
        assert_eq!(at(usize::MAX, usize::MAX), Overflow);
        let mut levels = Levels::default();
        assert_eq!(levels.update(f64::INFINITY), Overflow);
        assert_eq!(levels.excess(Overflow, usize::MAX, 0), u64::MAX);
        assert_eq!(levels.update(f64::NAN), Normal, "it says nothing");
        assert_eq!(levels.update(-1.0), Normal);
    }

    /// (ratio, level), one after the other.
    fn run(thresholds: Thresholds, ratios: &[(f64, Level)]) {
        let mut levels = Levels {
            thresholds,
            ..Levels::default()
        };
        for (n, &(ratio, level)) in ratios.iter().enumerate() {
            assert_eq!(levels.update(ratio), level, "{ratio} in place {n}");
            assert_eq!(levels.level(), level);
        }
    }

    #[test]
    fn a_level_is_left_five_points_below_where_it_was_reached() {
        run(
            Thresholds::default(),
            &[
                (0.96, Overflow),
                (0.95, Overflow),
                (0.901, Overflow),
                (0.90, Critical), // it is overflow above a threshold, not at it
                (0.95, Critical),
                (0.951, Overflow),
                (0.80, Critical),
                (0.799, Warning),
                (0.849, Warning),
                (0.85, Critical),
                (0.65, Warning),
                (0.649, Normal),
                (0.699, Normal),
                (0.70, Warning),
            ],
        );
    }

    #[test]
    fn several_levels_may_be_risen_or_fallen_at_once() {
        run(
            Thresholds::default(),
            &[
                (0.5, Normal),
                (2.0, Overflow),
                (0.5, Normal),
                (0.9, Critical),
                (0.66, Warning),
            ],
        );
    }

    #[test]
    fn without_hysteresis_a_level_is_left_where_it_was_reached() {
        run(
            Thresholds::default().hysteresis(0.0),
            &[
                (0.951, Overflow),
                (0.95, Critical),
                (0.849, Warning),
                (0.699, Normal),
            ],
        );
    }

    #[test]
    fn thresholds_rise_and_can_be_left() {
        let default = Thresholds::default();
        assert_eq!(default.check(), Ok(()));
        assert_eq!(
            default.overflow(3.0).check(),
            Ok(()),
            "a soft limit may be exceeded"
        );
        for (thresholds, field) in [
            (default.warning(0.0), "warning"),
            (default.warning(-0.1), "warning"),
            (default.warning(f64::NAN), "warning"),
            (default.warning(0.85), "critical"),
            (default.critical(f64::NAN), "critical"),
            (default.critical(0.95), "overflow"),
            (default.overflow(f64::INFINITY), "overflow"),
            (default.overflow(f64::NAN), "overflow"),
            (default.hysteresis(-0.01), "hysteresis"),
            (default.hysteresis(0.7), "hysteresis"),
            (default.hysteresis(f64::NAN), "hysteresis"),
        ] {
            assert_eq!(thresholds.check().unwrap_err().0, field, "{thresholds:?}");
        }
    }

    #[test]
    fn levels_survive_as_numbers() {
        for level in Level::ALL {
            assert_eq!(Level::from_index(level as usize), level);
        }
        assert_eq!(Level::from_index(4), Normal);
    }

    #[test]
    fn what_has_to_leave_until_a_level_is_left() {
        let levels = Levels::default();
        for (level, depth, soft_limit, excess) in [
            (Overflow, 96, 100, 6),
            (Critical, 96, 100, 16),
            (Critical, 80, 100, 1),
            (Critical, 0, 100, 1),
            (Critical, 1000, 0, 1000),
        ] {
            assert_eq!(levels.excess(level, depth, soft_limit), excess);
        }
    }

    /// (time, depth, how long one takes)
    fn fall(looks: &[(Duration, usize, Option<Duration>)]) {
        let mut fall = Fall::default();
        for &(now, depth, each) in looks {
            fall.look(now, depth);
            assert_eq!(fall.wait(1), each, "{depth} at {now:?}");
        }
    }

    #[test]
    fn a_queue_that_gets_shorter_says_how_fast() {
        fall(&[
            (ms(0), 1000, None),
            (ms(99), 900, None),
            (ms(200), 900, Some(ms(2))),
            (ms(250), 500, Some(ms(2))), // too close to the last
            (ms(300), 890, Some(ms(10))),
        ]);
    }

    #[test]
    fn one_that_does_not_get_shorter_says_nothing() {
        fall(&[
            (ms(0), 1000, None),
            (ms(100), 900, Some(ms(1))),
            (ms(200), 900, None),
            (ms(300), 950, None),
            (ms(400), 900, Some(ms(2))),
            (ms(10_401), 100, None), // that long ago says nothing about now
            (ms(500), 0, None),      // and neither does a time that goes back
        ]);
    }

    #[test]
    fn the_wait_is_for_all_that_have_to_leave_within_bounds() {
        let mut fall = Fall::default();
        assert_eq!(fall.wait(10), None);
        fall.look(ms(0), 1000);
        fall.look(ms(200), 900);
        assert_eq!(fall.wait(10), Some(ms(20)));
        assert_eq!(fall.wait(0), Some(SHORTEST_WAIT));
        assert_eq!(fall.wait(u64::MAX), Some(LONGEST_WAIT));
        fall.look(ms(400), 0);
        fall.look(ms(600), usize::MAX);
        fall.look(ms(800), 0);
        assert_eq!(fall.wait(1), Some(SHORTEST_WAIT));
    }
}
