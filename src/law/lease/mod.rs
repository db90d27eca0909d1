//! One token bucket for many nodes, of which each holds a few of its tokens: reserved leases.
//!
//! The server keeps one number per limit, the *theoretical arrival time* (TAT) of GCRA: the time until which tokens are
//! spent, in microseconds of its own clock. A bucket of burst `B` at one token per `T` holds tokens as long as the TAT is
//! less than `B · T` ahead of now. A node asks for several tokens at once. They lie one after the other on the server's
//! time line, the first of them at
//!
//! ```text
//! base  = max(TAT, now)
//! first = base + T − B · T          then TAT' = base + want · T
//! ```
//!
//! which may be in the past, so that the first tokens are due already, or up to a horizon `H` in the future. The node
//! spends each token when it is due, not before. So in any window `w` at most `B + R · w` tokens fall due for the whole
//! fleet. What the fleet spends can exceed that only by tokens that fell due before the window and were still held.
//! Those are at most what was granted within the horizon and the time to live: `R · (H + TTL)`.
//!
//! If the first token is further away than `H`, nothing is granted and nothing is written: the node is told when its
//! token would be due, and asks again no earlier than `H` before. So nodes queue on the time line in the order in which
//! they asked, and how many calls are made does not grow with the overload.
//!
//! [`grant`] is what the script on the server computes (`lease.lua`; a property compares the two on a real server), in
//! integers that doubles hold exactly. What `want` tokens cost is rounded up and how much may be saved up is rounded
//! down, so that rounding never adds a token; it takes less than a microsecond for each call.
//!
//! [`node`] is the other side: what a node holds, when it asks, for how much, and what it does without an answer.

pub(crate) mod node;
#[cfg(all(test, not(backpressure_loom)))]
mod tests;

use self::node::{HORIZON, LEASE};
use crate::Rate;

/// As much as may be saved up, and as much as a call may cost, in microseconds: 30 years. With the time since 1970 the sum of
/// six of them stays below 2^53 until the year 2070, and a double holds it exactly.
const LONGEST: u64 = 30 * 365 * 24 * 3600 * 1_000_000;

/// A rate, in the server's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    count: u64,
    /// In nanoseconds.
    period: u64,
    burst: u64,
}

impl Terms {
    pub(crate) fn new(rate: &Rate) -> Self {
        Self {
            count: rate.count(),
            // A `Rate` has seen to it that it fits.
            period: u64::try_from(rate.period().as_nanos()).unwrap_or(u64::MAX),
            burst: rate.burst_size(),
        }
    }

    /// What so many tokens cost, in microseconds: how far they move the TAT.
    pub(crate) fn cost(&self, tokens: u64) -> u64 {
        let nanos = u128::from(tokens) * u128::from(self.period);
        let micros = nanos.div_ceil(u128::from(self.count) * 1000);
        u64::try_from(micros).map_or(LONGEST, |micros| micros.clamp(1, LONGEST))
    }

    /// How far the TAT may be ahead.
    fn depth(&self) -> u64 {
        let nanos = u128::from(self.burst) * u128::from(self.period);
        let micros = nanos / (u128::from(self.count) * 1000);
        u64::try_from(micros).map_or(LONGEST, |micros| micros.min(LONGEST))
    }

    /// How long after a token the next one is due, in nanoseconds.
    pub(crate) fn step(&self) -> i64 {
        i64::try_from(self.period.div_ceil(self.count)).unwrap_or(i64::MAX)
    }

    /// How many tokens come in so many nanoseconds.
    pub(crate) fn tokens_in(&self, nanos: u64) -> u64 {
        let tokens = u128::from(nanos) * u128::from(self.count) / u128::from(self.period);
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// A call for so many tokens, the first of them due within this time, in nanoseconds, by a node that was last told of
    /// this TAT.
    pub(crate) fn ask(&self, want: u64, horizon: u64, seen: u64) -> Ask {
        let depth = self.depth();
        Ask {
            cost: self.cost(want),
            step: self.cost(1),
            depth,
            horizon: (horizon / 1000).min(LONGEST),
            // A lease is of no more tokens than come in its time, or than are wanted at once, and as many may be owed.
            reach: 3 * depth + (HORIZON + 2 * LEASE) / 1000,
            seen,
        }
    }
}

/// The arguments of the script, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// What the tokens that are asked for cost together.
    pub(crate) cost: u64,
    /// What one costs.
    pub(crate) step: u64,
    /// What all that may be saved up cost.
    pub(crate) depth: u64,
    /// How long after now the first may be due.
    pub(crate) horizon: u64,
    /// No grant leaves the TAT further ahead.
    pub(crate) reach: u64,
    /// The TAT that the node was told last; 0 if it never was.
    pub(crate) seen: u64,
}

impl Ask {
    pub(crate) fn args(&self) -> [i64; 6] {
        let Self {
            cost,
            step,
            depth,
            horizon,
            reach,
            seen,
        } = *self;
        // All are far below 2^53.
        [cost, step, depth, horizon, reach, seen].map(|micros| micros as i64)
    }

    pub(crate) fn from_args(args: &[i64]) -> Option<Self> {
        let micros = |arg: i64| u64::try_from(arg).ok().filter(|micros| *micros < 1 << 53);
        match *args {
            [cost, step, depth, horizon, reach, seen] => Some(Self {
                cost: micros(cost)?,
                step: micros(step)?,
                depth: micros(depth)?,
                horizon: micros(horizon)?,
                reach: micros(reach)?,
                seen: micros(seen)?,
            }),
            _ => None,
        }
    }
}

/// The answer of the script, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) granted: bool,
    /// How long after the answer the first token is due, or would have been; below zero if it was due before.
    pub(crate) first: i64,
    /// The TAT from now on.
    pub(crate) tat: i64,
}

impl Answer {
    pub(crate) fn numbers(&self) -> [i64; 3] {
        [self.granted.into(), self.first, self.tat]
    }

    /// `None` if that is no answer of the script.
    pub(crate) fn from_numbers(numbers: &[i64]) -> Option<Self> {
        let most = 4 * LONGEST as i64;
        match *numbers {
            [granted @ (0 | 1), first, tat]
                if (-most..=most).contains(&first) && (0..1 << 53).contains(&tat) =>
            {
                Some(Self {
                    granted: granted == 1,
                    first,
                    tat,
                })
            }
            _ => None,
        }
    }
}

/// What the script does at `now`, in microseconds since 1970, with the TAT that it finds, if it finds one: the new TAT if it
/// grants, and the answer.
///
/// A key expires when its bucket is full, so one that is not there is a full bucket; or the server has lost its data. Then the
/// node may know better: it was told a TAT that the server would still have. If that says that tokens were reserved for later
/// (so others have some, too), the new ones come after the horizon, and nothing is granted twice. If not, what was
/// granted is due, and a full bucket is one more burst at most.
///
/// A TAT that no grant can have left is of a server with another clock, and is taken for the latest that makes sense. It
/// would be refused for as long as the clocks differ.
pub(crate) fn grant(tat: Option<u64>, now: u64, ask: &Ask) -> (Option<u64>, Answer) {
    let latest = now + ask.depth + ask.horizon - ask.step.min(ask.depth);
    let known = |tat: u64| if tat > now + ask.reach { latest } else { tat };
    let seen = if ask.seen > now + ask.reach {
        0
    } else {
        ask.seen
    };
    let tat = match tat {
        Some(tat) => known(tat).max(seen),
        None if seen > now + ask.depth => latest,
        None => seen,
    };
    let base = tat.max(now);
    let first = base as i64 + ask.step as i64 - ask.depth as i64 - now as i64;
    let granted = first <= ask.horizon as i64;
    let after = if granted { base + ask.cost } else { base };
    let answer = Answer {
        granted,
        first,
        tat: after as i64,
    };
    (granted.then_some(after), answer)
}
