//! One number of permits for many nodes, of which each holds a block for a while.
//!
//! The server knows of each node how many permits it holds, how many it would like, and until when. A node renews its block
//! several times in its life, and says how many permits are in use, which it cannot give back now. It then holds
//!
//! ```text
//! min(what the others leave, max(in use, min(wanted, its fair share)))
//! ```
//!
//! and admits no more than its fair share from then on, so that what is in use above that comes back as requests end. The
//! shares are max-min fair: who wants less than an equal part gets what it wants, and the others divide the rest.
//! So the blocks never add up to more than the limit, a node that wants nothing keeps nothing, and one that has none gets
//! its share as soon as the others have renewed theirs, which they do without being asked.
//!
//! A node that dies does not renew its block, and the permits are free when its life is over.
//!
//! [`Blocks::renew`] is what the script on the server computes (`block.lua`).

use std::collections::BTreeMap;

/// How long a block lives that is not renewed.
pub(crate) const LIFE: u64 = 3_000_000_000;

/// How often it is renewed.
pub(crate) const RENEW: u64 = LIFE / 3;

/// The arguments of the script, times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) node: u64,
    pub(crate) in_use: u64,
    pub(crate) want: u64,
    pub(crate) limit: u64,
    pub(crate) life: u64,
}

/// No argument is above this: a gate has no more permits, and a double holds sums of them.
const MOST: u64 = 1 << 40;

impl Renewal {
    pub(crate) fn args(&self) -> [i64; 5] {
        let number = |number: u64| number.min(MOST) as i64;
        [
            (self.node & (i64::MAX as u64)) as i64,
            number(self.in_use),
            number(self.want),
            number(self.limit),
            number(self.life),
        ]
    }

    pub(crate) fn from_args(args: &[i64]) -> Option<Self> {
        let number = |number: i64| u64::try_from(number).ok();
        match *args {
            [node, in_use, want, limit, life] => Some(Self {
                node: number(node)?,
                in_use: number(in_use)?,
                want: number(want)?,
                limit: number(limit)?,
                life: number(life)?,
            }),
            _ => None,
        }
    }
}

/// The answer of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// How many permits the node holds from now on.
    pub(crate) held: u64,
    /// How many it should hold: with those that are in use it may hold more, which it is to give back as they come back.
    pub(crate) target: u64,
    /// How many nodes there are, this one included.
    pub(crate) nodes: u64,
}

impl Block {
    pub(crate) fn numbers(&self) -> [i64; 3] {
        [self.held, self.target, self.nodes].map(|number| number as i64)
    }

    /// `None` if that is no answer of the script.
    pub(crate) fn from_numbers(numbers: &[i64]) -> Option<Self> {
        let number = |number: i64| u64::try_from(number).ok().filter(|number| *number <= MOST);
        match *numbers {
            [held, target, nodes] => Some(Self {
                held: number(held)?,
                target: number(target)?,
                nodes: number(nodes)?,
            }),
            _ => None,
        }
    }
}

/// What the server knows of a limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks(BTreeMap<u64, Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    held: u64,
    want: u64,
    ends: u64,
}

impl Blocks {
    /// A node renews its block at `now`, in microseconds.
    pub(crate) fn renew(&mut self, now: u64, renewal: &Renewal) -> Block {
        let Renewal {
            node,
            in_use,
            want,
            limit,
            life,
        } = *renewal;
        self.0
            .retain(|other, entry| *other != node && entry.ends > now);
        let others = self.0.values().map(|entry| entry.held).sum();
        let nodes = self.0.len() as u64 + 1;
        let target = want.min(self.share(want, limit));
        let held = limit.saturating_sub(others).min(in_use.max(target));
        if held > 0 || want > 0 {
            let ends = now.saturating_add(life);
            self.0.insert(node, Entry { held, want, ends });
        }
        Block {
            held,
            target,
            nodes,
        }
    }

    /// What is left for one that wants so much, when those that want no more were given theirs.
    fn share(&self, want: u64, limit: u64) -> u64 {
        let wants = self.0.values().map(|entry| entry.want);
        let (mut less, more): (Vec<_>, Vec<_>) = wants.partition(|wants| *wants <= want);
        less.sort_unstable();
        let mut parts = (less.len() + more.len() + 1) as u64;
        let mut left = limit;
        for wants in less {
            left -= wants.min(left / parts);
            parts -= 1;
        }
        left / parts
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn renewal(node: u64, in_use: u64, want: u64) -> Renewal {
        Renewal {
            node,
            in_use,
            want,
            limit: 20,
            life: 3,
        }
    }

    #[test]
    fn shares_are_max_min_fair() {
        for (wants, mine, share) in [
            (&[][..], 50, 20),
            (&[0, 0], 50, 20),
            (&[20], 20, 10),
            (&[3], 20, 17),
            (&[20, 20], 20, 7), // the last of those that are alike gets what is left over
            (&[2, 20, 20], 20, 6),
            (&[20, 20], 2, 6),  // more than it wants
            (&[20; 40], 20, 1), // there are not so many: who comes first
        ] {
            let mut blocks = Blocks::default();
            for (node, want) in wants.iter().enumerate() {
                let entry = Entry {
                    held: 0,
                    want: *want,
                    ends: 1,
                };
                blocks.0.insert(node as u64, entry);
            }
            assert_eq!(blocks.share(mine, 20), share, "{wants:?} {mine}");
        }
    }

    #[test]
    fn a_node_that_has_none_gets_its_share_when_the_others_have_renewed_theirs() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.renew(0, &renewal(1, 0, 20)).held, 20);
        assert_eq!(blocks.renew(0, &renewal(2, 0, 20)).held, 0);
        assert_eq!(blocks.renew(1, &renewal(1, 15, 20)).held, 15); // those are in use
        assert_eq!(blocks.renew(1, &renewal(2, 0, 20)).held, 5);
        assert_eq!(blocks.renew(2, &renewal(1, 0, 20)).held, 10);
        assert_eq!(blocks.renew(2, &renewal(2, 5, 20)).held, 10);
    }

    #[test]
    fn a_node_that_dies_leaves_its_block_when_its_life_is_over() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.renew(0, &renewal(1, 20, 20)).held, 20);
        assert_eq!(blocks.renew(2, &renewal(2, 0, 20)).held, 0);
        let block = blocks.renew(3, &renewal(2, 0, 20));
        assert_eq!((block.held, block.target, block.nodes), (20, 20, 1));
    }

    proptest! {
        #[test]
        fn blocks_never_add_up_to_more_than_the_limit(
            steps in prop::collection::vec((0..5u64, 0..30u64, 0..40u64, 0..3u64), 1..60),
        ) {
            let mut blocks = Blocks::default();
            let mut now = 0;
            for (node, in_use, want, passed) in steps {
                now += passed;
                // Nothing is in use beyond what is held.
                let held = blocks.0.get(&node).filter(|entry| entry.ends > now).map_or(0, |entry| entry.held);
                let block = blocks.renew(now, &renewal(node, in_use.min(held), want));
                prop_assert!(block.held >= in_use.min(held));
                let alive = blocks.0.values().filter(|entry| entry.ends > now);
                prop_assert!(alive.map(|entry| entry.held).sum::<u64>() <= 20);
            }
        }
    }
}
