//! How much more comes than can be served, and what follows from that for the order.
//!
//! # Newest first
//! In a standing queue, the order decides which requests are served, not how many. If the oldest is first, each request that
//! is served has waited for almost two targets. If the newest is first, those that are served have hardly waited, and the
//! others can be rejected early. So the newest is first while a queue stands and the overload is plain: at least a quarter
//! as many requests are rejected as served ([`PLAIN`]).
//!
//! Below that, the order of arrival stays. Near its capacity, a service works off its waiters whenever fewer requests come
//! for a while. If the newest is first, the oldest waiters wait until then, and some of them for too long. At exactly the
//! capacity that costs up to two percent of the goodput.
//!
//! It is different where requests have deadlines. In the order of arrival, a queue that stands is as long as the deadlines
//! are: those that are served have waited nearly all the time that they had, and many of them are done too late. So if more
//! than one waiter in ten misses its deadline ([`LATE`]), a queue stands, and until it has drained the newest is first.
//!
//! While the newest is first, only so many requests [may wait](Excess::places), and the oldest makes way for a newcomer.
//!
//! # Priorities
//! To the requests of one priority, only what matters as much or more is in the way. So each [lane](Lane) has an excess of its
//! own, in which less important requests do not count: the most important requests keep the order of arrival, and may wait,
//! as long as there are not too many of them.

use crate::law::{fair_queue::Lane, fair_queues::LANES};

/// From this excess on, the newest is first. Without such a bound, it costs 0.3 to 2 points of goodput at exactly the
/// capacity, and with it next to nothing. With 0.4, p50 at 1.5 times the capacity is 5.8 times the unloaded one, and with
/// 0.25 it is 2.4 times (16 workers, exponential service times).
const PLAIN: f64 = 0.25;

/// If more waiters than this miss their deadlines, for each that is served, the newest is first.
const LATE: f64 = 0.1;

/// At this excess, which is that of three times the capacity, as many requests may wait as are in flight: the oldest makes
/// way after about half a service time. At half the excess twice as many may wait.
const EXCESS: f64 = 2.0;
/// At most so many times as many: with 4 the goodput is no higher (overload lab, at the capacity).
const MOST_PLACES: f64 = 2.5;

/// By priority.
#[derive(Debug, Default)]
pub(super) struct Excess {
    /// Of this interval.
    counts: [Counts; LANES],
    seen: [Seen; LANES],
}

/// Of the requests of one lane.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// How many waiters were served.
    served: u32,
    /// How many requests were rejected because of the queue.
    rejected: u32,
    /// How many of those were waiters that missed their deadlines.
    late: u32,
}

impl Counts {
    fn are_late(self) -> bool {
        f64::from(self.late) > LATE * f64::from(self.served)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            served: self.served.saturating_add(other.served),
            rejected: self.rejected.saturating_add(other.rejected),
            late: self.late.saturating_add(other.late),
        }
    }
}

/// What a lane and those that matter more have seen together, since a queue stands.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// How many are rejected for each that is served: half of it is of the last interval, a quarter of the one before, and so
    /// on.
    excess: f64,
    /// Whether many waiters have missed their deadlines.
    late: bool,
}

impl Excess {
    fn count(&mut self, lane: Lane, one: Counts) {
        let counts = &mut self.counts[usize::from(lane)];
        *counts = counts.plus(one);
    }

    /// A waiter is served.
    pub(super) fn note_served(&mut self, lane: Lane) {
        let served = 1;
        self.count(
            lane,
            Counts {
                served,
                ..Counts::default()
            },
        );
    }

    /// A request was rejected because of the queue.
    pub(super) fn note_rejected(&mut self, lane: Lane) {
        let rejected = 1;
        self.count(
            lane,
            Counts {
                rejected,
                ..Counts::default()
            },
        );
    }

    /// A waiter was rejected because of its deadline.
    pub(super) fn note_late(&mut self, lane: Lane) {
        let (rejected, late) = (1, 1);
        self.count(
            lane,
            Counts {
                rejected,
                late,
                ..Counts::default()
            },
        );
    }

    /// Whether many waiters have missed their deadlines in this interval.
    pub(super) fn many_are_late(&self) -> bool {
        self.with_more_important()
            .any(|(_, counts)| counts.are_late())
    }

    /// The counts of each lane and of those that matter more, from the most important lane.
    fn with_more_important(&self) -> impl Iterator<Item = (usize, Counts)> {
        let lanes = self.counts.iter().enumerate().rev();
        lanes.scan(Counts::default(), |all, (lane, counts)| {
            *all = all.plus(*counts);
            Some((lane, *all))
        })
    }

    /// An interval is over, at the end of which a queue stands or does not.
    pub(super) fn close(&mut self, stands: bool) {
        let mut seen = [Seen::default(); LANES];
        if stands {
            for (lane, counts) in self.with_more_important() {
                let before = self.seen[lane];
                let excess = f64::from(counts.rejected) / f64::from(counts.served.max(1));
                seen[lane] = Seen {
                    excess: (before.excess + excess) / 2.0,
                    late: before.late || counts.are_late(),
                };
            }
        }
        self.seen = seen;
        self.counts = [Counts::default(); LANES];
    }

    /// Whether the overload is plain, if a queue stands.
    pub(super) fn is_plain(&self, lane: Lane) -> bool {
        let Seen { excess, late } = self.seen[usize::from(lane)];
        excess >= PLAIN || late
    }

    /// How many may wait while the newest is first.
    pub(super) fn places(&self, lane: Lane, in_flight: u64) -> u64 {
        let Seen { excess, .. } = self.seen[usize::from(lane)];
        let times = (EXCESS / excess).clamp(1.0, MOST_PLACES); // infinite without an excess
        ((in_flight as f64 * times) as u64).max(1)
    }
}

#[cfg(all(test, not(backpressure_loom)))]
impl Excess {
    /// That of all lanes.
    pub(super) fn set(&mut self, excess: f64) {
        let late = false;
        *self = Self {
            seen: [Seen { excess, late }; LANES],
            ..Self::default()
        };
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::{super::standing::Standing, *};
    use crate::law::fair_queues::MAIN;

    const TARGET: u64 = 100_000_000;
    const MS: u64 = 1_000_000;
    const LOW: Lane = 0;
    const HIGH: Lane = 4;

    /// A queue that may stand.
    struct Queue {
        standing: Standing,
        excess: Excess,
        now: u64,
    }

    impl Queue {
        fn new() -> Self {
            Self {
                standing: Standing::new(0),
                excess: Excess::default(),
                now: 0,
            }
        }

        /// So many are served in an interval, all of this age, and after each of them `rejects` says what happens to others.
        fn interval(&mut self, served: u32, age: u64, mut rejects: impl FnMut(&mut Self, u32)) {
            for one in 0..served {
                self.now += 101 * MS / u64::from(served);
                (self.standing).look(self.now, age, Some(age), TARGET, &mut self.excess);
                self.excess.note_served(MAIN);
                rejects(self, one);
            }
        }

        /// So many make way meanwhile.
        fn makes_way(&mut self, served: u32, rejected: u32, age: u64) {
            self.interval(served, age, |queue, one| {
                for _ in 0..rejected * (one + 1) / served - rejected * one / served {
                    queue.standing.note_made_way();
                    queue.excess.note_rejected(MAIN);
                }
            });
        }

        fn stands(&self) -> bool {
            self.standing.is_overloaded(self.now, TARGET, TARGET)
        }
    }

    #[test]
    fn the_newest_is_first_from_a_quarter_more_than_can_be_served() {
        for (rejected, expected) in [(0, false), (2, false), (4, false), (6, true), (40, true)] {
            let mut queue = Queue::new();
            (0..12).for_each(|_| queue.makes_way(20, rejected, 2 * TARGET));
            assert!(queue.stands());
            let Queue { excess, .. } = queue;
            assert_eq!(excess.is_plain(MAIN), expected, "{rejected}: {excess:?}");
        }
    }

    #[test]
    fn more_have_a_place_where_fewer_are_rejected() {
        let mut excess = Excess::default();
        for (set, places) in [(0.0, 50), (0.25, 50), (1.0, 40), (2.0, 20), (9.0, 20)] {
            excess.set(set);
            assert_eq!(excess.places(MAIN, 20), places, "{set}");
        }
        assert_eq!(excess.places(MAIN, 0), 1, "there is always a place");
        assert!(excess.places(MAIN, u64::MAX) >= u64::MAX - 1);
    }

    /// Those that are served have not waited: what shows that the queue stands are those that make way.
    #[test]
    fn a_queue_stands_as_long_as_some_make_way() {
        let mut queue = Queue::new();
        (0..4).for_each(|_| queue.makes_way(20, 40, 2 * TARGET));
        (0..100).for_each(|_| queue.makes_way(20, 40, MS));
        assert!(queue.stands() && queue.excess.is_plain(MAIN));
        (0..2).for_each(|_| queue.makes_way(20, 0, MS));
        assert!(!queue.stands());
        queue.makes_way(20, 0, MS);
        assert!(!queue.excess.is_plain(MAIN), "the next queue starts anew");
    }

    /// As many as have deadlines are rejected before they are old, so their ages do not show that the queue stands.
    #[test]
    fn where_many_miss_their_deadlines_the_newest_is_first_until_the_queue_has_drained() {
        for (late, expected) in [(0, false), (2, false), (5, true), (20, true)] {
            let mut queue = Queue::new();
            for _ in 0..3 {
                queue.interval(20, MS, |queue, one| {
                    if one < late {
                        queue.excess.note_late(MAIN);
                    }
                });
            }
            let plain = queue.excess.is_plain(MAIN);
            assert_eq!((queue.stands(), plain), (expected, expected), "{late}");
            // Then some make way, and none is late.
            (0..4).for_each(|_| queue.makes_way(20, 4, MS));
            assert_eq!(queue.excess.is_plain(MAIN), expected, "{late}");
            (0..2).for_each(|_| queue.makes_way(20, 0, MS));
            assert!(!queue.excess.is_plain(MAIN), "it has drained");
        }
    }

    #[test]
    fn what_matters_less_does_not_count() {
        let mut queue = Queue::new();
        for _ in 0..12 {
            queue.interval(20, 2 * TARGET, |queue, _| {
                queue.excess.note_served(HIGH);
                (0..4).for_each(|_| queue.excess.note_rejected(LOW));
            });
        }
        let Queue { excess, .. } = queue;
        assert!(excess.is_plain(LOW));
        assert!(!excess.is_plain(MAIN) && !excess.is_plain(HIGH));
    }
}
