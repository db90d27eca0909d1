//! What one node holds of a limit that it shares, and when it asks for more.
//!
//! ```text
//!            half of the lease is spent, or a request finds nothing
//!  HOLDS ──────────────────────────────────────────────────────────► CALLS ──► granted: holds the next lease as well
//!    ▲                                                                 │ └───► refused: quiet until `first − H`, and no
//!    │                                                                 │       call before that
//!    └── a later call is answered: what was spent ◄── FALLS BACK ◄─────┘ no answer
//!        meanwhile is paid for first
//! ```
//!
//! A node asks for as many tokens as requests asked it for lately, in the time of a lease. With one call under way at a
//! time and a second lease at most, it never holds more than two. What it has not spent by the time that the last token
//! of a lease is due and a time to live after that, is lost, and counted.
//!
//! All times are the node's own, in nanoseconds of a clock that does not go back. Only differences come from the server,
//! so what time it is elsewhere does not matter. A token is due no earlier here than there, because its wait is counted from
//! the arrival of the answer; and a lease ends no later, because its life is counted from before the call was sent.

use super::{Answer, Ask, Terms};
use crate::{
    Rate,
    law::token_bucket::{Refill, TokenBucket},
};

/// How long a lease lasts, by the node's own recent rate. Shorter leases cost more calls, longer ones leave more tokens with
/// nodes that do not need them.
pub(crate) const LEASE: u64 = 100_000_000;

/// How far ahead a token may be granted. Three leases: whoever has just been granted one is asked again only when the others
/// had theirs.
pub(crate) const HORIZON: u64 = 3 * LEASE;

/// How long a lease lives on after its last token was due. A node whose load pauses for no longer loses nothing.
pub(crate) const TTL: u64 = 1_000_000_000;

/// When the server is back after a while, each node notices within this time. Until then it holds to its own share, so that it
/// does not spend what others spend who have not noticed yet.
pub(crate) const RETURN: u64 = 1_500_000_000;

/// Of the tokens that the fleet gets in a lease's time, the share that one node may ask for at once when others ask for
/// more than there is: 1/4 rather than all. Smaller leases make turns shorter, so that all nodes get theirs within a second
/// (Jain's index at 10 × the rate, 10 nodes, 5 s: 0.999 rather than 0.96), and calls are rare under overload anyway.
const CROWDED: u64 = 4;

/// What a node does while the server does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fallback {
    /// It holds to its own share, by a limit of its own: the limit divided by the number of nodes. The default: all
    /// nodes together keep to the limit, although one of them cannot use what another leaves.
    #[default]
    Local,
    /// It lets everything pass: for a limit that saves money rather than lives.
    Open,
    /// It refuses everything: for a limit that must never be exceeded.
    Closed,
}

/// What all keys of one limit have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law {
    pub(crate) terms: Terms,
    /// How long after a token the next one is due.
    step: i64,
    /// As many tokens come in the time of a lease.
    most: u64,
    /// The node's own share, for when the server does not answer.
    share: Refill,
    pub(crate) fallback: Fallback,
}

impl Law {
    /// Of one node of so many.
    pub(crate) fn new(rate: &Rate, nodes: u32, fallback: Fallback) -> Self {
        let terms = Terms::new(rate);
        let nodes = u64::from(nodes.max(1));
        // A `Rate` has seen to it that the period fits, and 292 years are enough for a share of it.
        let period = u64::try_from(rate.period().as_nanos()).unwrap_or(u64::MAX);
        let period = period.saturating_mul(nodes).min(i64::MAX as u64);
        let burst = (rate.burst_size() / nodes).max(1);
        Self {
            terms,
            step: terms.step(),
            most: terms.tokens_in(LEASE).max(1),
            share: Refill::new(rate.count(), period, burst),
            fallback,
        }
    }
}

impl Law {
    /// The most that is ever there at once.
    pub(crate) fn burst(&self) -> u64 {
        self.terms.burst
    }
}

/// Tokens in a row: the next one is due then, and each other a step later.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    left: u64,
    due: i64,
    /// What is left then is lost.
    ends: i64,
}

impl Lease {
    /// How many tokens are due.
    fn due(&self, step: i64, now: i64) -> u64 {
        match now - self.due {
            since if since < 0 || now >= self.ends => 0,
            since => self.left.min((since / step) as u64 + 1),
        }
    }

    fn spend(&mut self, n: u64, step: i64) {
        self.left -= n;
        self.due += step.saturating_mul(n as i64);
    }
}

/// How many tokens were asked for in the last lease's time: of the present one, and as much of the one before as is left.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    since: i64,
    present: u64,
    before: u64,
}

impl Demand {
    #[inline]
    fn count(&mut self, n: u64, now: i64) {
        if now - self.since >= LEASE as i64 {
            self.roll(now);
        }
        self.present += n;
    }

    #[cold]
    fn roll(&mut self, now: i64) {
        let passed = (now - self.since) / LEASE as i64;
        self.before = if passed == 1 { self.present } else { 0 };
        self.present = 0;
        self.since += passed * LEASE as i64;
    }

    fn recent(&mut self, now: i64) -> u64 {
        self.count(0, now);
        let left = (LEASE as i64 - (now - self.since)) as u128;
        let before = u128::from(self.before) * left / u128::from(LEASE);
        self.present.saturating_add(before as u64)
    }
}

/// Who waits for tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    /// How many tokens all of them want.
    pub(crate) tokens: u64,
    /// How many the first of them wants at once.
    pub(crate) first: u64,
}

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) ask: Ask,
    /// How many tokens are asked for, …
    want: u64,
    /// … of which so many were spent while there was no answer.
    owed: u64,
    horizon: i64,
    /// Before it was sent.
    at: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The one that is being spent, the next, and one more for somebody who wants more at once than both have.
    held: [Lease; 3],
    /// It asks for the next lease when no more than so many tokens are left.
    low: u64,
    calling: bool,
    /// No call before this: the server has said so, or has not answered.
    quiet_until: i64,
    /// When the token would have been due that was refused.
    refused_until: i64,
    /// The server's TAT, as it was told last.
    seen: u64,
    /// All tokens that are due before this are granted to somebody.
    reserved_until: i64,
    /// Until then it keeps falling back, although the server answers: others may not have noticed yet.
    returns_at: Option<i64>,
    /// Whether others ask, too, for more than there is.
    crowded: bool,
    /// As many tokens were wanted at once that were not there, since the last answer.
    short: u64,
    demand: Demand,
    /// Whether it falls back, because it has had no answer.
    away: bool,
    /// When that began.
    away_since: i64,
    local: TokenBucket,
    /// Spent without an answer, and not yet paid for.
    owed: u64,
    lost: u64,
}

impl Node {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            held: [Lease::default(); 3],
            low: 0,
            calling: false,
            quiet_until: 0,
            refused_until: 0,
            seen: 0,
            reserved_until: 0,
            returns_at: None,
            crowded: false,
            short: 0,
            demand: Demand {
                since: now as i64,
                ..Demand::default()
            },
            away: false,
            away_since: 0,
            local: TokenBucket::new(now),
            owed: 0,
            lost: 0,
        }
    }

    /// A request asks for `n` tokens: takes them if they are there.
    #[inline]
    pub(crate) fn take(&mut self, law: &Law, now: u64, n: u64) -> bool {
        let now = now as i64;
        self.demand.count(n, now);
        let lease = &mut self.held[0];
        if n == 1 && lease.left > 0 && lease.due <= now && now < lease.ends {
            lease.spend(1, law.step);
            return true;
        }
        let takes = self.take_slowly(law, now, n);
        if !takes {
            self.short = self.short.max(n);
        }
        takes
    }

    /// A request that found nothing waits from now on, and counts among [`Waiting`].
    pub(crate) fn waits(&mut self) {
        self.short = 0;
    }

    /// A request asks for `n` tokens, but others wait already.
    pub(crate) fn wanted(&mut self, now: u64, n: u64) {
        self.demand.count(n, now as i64);
    }

    /// Takes tokens for a request that was counted when it came.
    pub(crate) fn take_waiting(&mut self, law: &Law, now: u64, n: u64) -> bool {
        self.take_slowly(law, now as i64, n)
    }

    #[inline(never)]
    fn take_slowly(&mut self, law: &Law, now: i64, n: u64) -> bool {
        self.tidy(now);
        let due = self.held.map(|lease| lease.due(law.step, now));
        if due.iter().sum::<u64>() >= n {
            let mut left = n;
            for (lease, due) in self.held.iter_mut().zip(due) {
                let spent = due.min(left);
                lease.spend(spent, law.step);
                left -= spent;
            }
            return true;
        }
        let takes = self.away
            && match law.fallback {
                Fallback::Local => self.local.take_all(&law.share, now as u64, n),
                Fallback::Open => true,
                Fallback::Closed => false,
            };
        if takes {
            // While it is away, no more than its share of the burst is saved up at the server in its name.
            let most = match self.returns_at {
                None => law.share.burst,
                Some(_) => law.terms.burst,
            };
            self.owed = self.owed.saturating_add(n).min(most);
        }
        takes
    }

    /// Tokens that were taken and not used.
    pub(crate) fn put_back(&mut self, law: &Law, n: u64) {
        if self.away {
            self.local.put_back_all(n);
            self.owed = self.owed.saturating_sub(n);
        } else {
            let lease = &mut self.held[0];
            lease.left = lease.left.saturating_add(n);
            lease.due = lease.due.saturating_sub(law.step.saturating_mul(n as i64));
        }
    }

    /// Drops what has ended, and goes on to the next lease.
    fn tidy(&mut self, now: i64) {
        for lease in &mut self.held {
            if lease.left > 0 && lease.ends <= now {
                self.lost = self.lost.saturating_add(lease.left);
                lease.left = 0;
            }
        }
        // One that is spent stays where it is until there is another: its last token may be put back.
        while self.held[0].left == 0 && self.left() > 0 {
            self.held.rotate_left(1);
        }
    }

    fn left(&self) -> u64 {
        self.held.iter().map(|lease| lease.left).sum()
    }

    /// Whether it is worth to ask [`wants_call`](Self::wants_call), for those in a hurry.
    #[inline]
    pub(crate) fn may_call(&self, now: u64) -> bool {
        (self.held[0].left <= self.low || self.short > 0)
            && !self.calling
            && now as i64 >= self.quiet_until
    }

    /// Whether a call would be of use: less is held than is wanted at once, no more than half of a lease, or there was no
    /// answer last time.
    pub(crate) fn wants_call(&self, now: u64, waiting: u64) -> bool {
        let left = self.left();
        let short = left < waiting.max(self.short) && self.held[2].left == 0;
        let low = self.low > 0 && left <= self.low && self.held[1].left == 0;
        let may = !self.calling && now as i64 >= self.quiet_until;
        may && (short || low || self.away)
    }

    /// Asks for tokens, if it needs any, and may. Those who wait are patient for so long.
    pub(crate) fn call(
        &mut self,
        law: &Law,
        now: u64,
        waiting: Waiting,
        patience: u64,
    ) -> Option<Call> {
        let (at, now) = (now as i64, now as i64);
        self.tidy(now);
        if !self.wants_call(now as u64, waiting.tokens) {
            return None;
        }
        let left = self.left();
        let needs = waiting.tokens.max(self.short);
        let crowded = law.most.div_ceil(CROWDED);
        let most = if self.crowded { crowded } else { law.most };
        let at_once = waiting.first.max(self.short).max(1);
        let wanted = match self.only_pays(law, now) {
            false => (self.demand.recent(now))
                .max(needs - left.min(needs))
                .min(most)
                .max(at_once),
            true => u64::from(self.owed == 0),
        };
        let want = wanted.saturating_add(self.owed);
        // A single token is for somebody who is here: it is not reserved for longer than they stay.
        let horizon = match want {
            1 => (patience - patience / 8).min(HORIZON), // the answer takes some of it
            _ => HORIZON,
        };
        self.calling = true;
        Some(Call {
            ask: law.terms.ask(want, horizon, self.seen),
            want,
            owed: self.owed,
            horizon: horizon as i64,
            at,
        })
    }

    /// The server has answered. Refused nodes come back a little later than they may, by chance, so that they do not all come
    /// at once.
    pub(crate) fn answered(
        &mut self,
        law: &Law,
        now: u64,
        call: Call,
        answer: Answer,
        jitter: u64,
    ) {
        let now = now as i64;
        self.calling = false;
        self.short = 0;
        self.seen = answer.tat.max(0) as u64;
        let first = answer.first.saturating_mul(1000);
        let due = now.saturating_add(first);
        let cost = if answer.granted { call.ask.cost } else { 0 };
        self.reserved_until = due.saturating_add((cost as i64).saturating_mul(1000));
        self.crowded = !answer.granted || first > 0;
        self.returns(law, now);
        if !answer.granted {
            self.refused_until = due;
            self.quiet_until = due
                .saturating_sub(call.horizon)
                .saturating_add(jitter as i64);
            return;
        }
        self.quiet_until = match self.returns_at {
            None => 0,
            Some(_) => now.saturating_add(LEASE as i64 / 2),
        };
        self.owed -= call.owed;
        self.tidy(now);
        let span = law.step.saturating_mul(call.want as i64);
        let mut lease = Lease {
            left: call.want,
            due,
            // Tokens of a full bucket may have been due for long.
            ends: (call.at)
                .saturating_add(first.saturating_add(span).max(0))
                .saturating_add(TTL as i64),
        };
        lease.spend(call.owed, law.step);
        self.low = lease.left / 2;
        let free = self.held.iter().position(|held| held.left == 0);
        self.held[free.unwrap_or(2)] = lease; // it does not call while there is none
    }

    /// Whether a call is to pay for what is spent by its share, and not for more: there was no answer for a while, so others
    /// may have had none, either.
    fn only_pays(&self, law: &Law, now: i64) -> bool {
        let was_long = now - self.away_since > HORIZON as i64;
        self.away && was_long && law.fallback == Fallback::Local
    }

    /// There is an answer. After a while without, it goes on by its share until all others must have noticed, and pays for
    /// it as it goes.
    fn returns(&mut self, law: &Law, now: i64) {
        if !self.away {
            return;
        }
        match self.returns_at {
            None if self.only_pays(law, now) => {
                self.returns_at = Some(now.saturating_add(RETURN as i64));
            }
            Some(at) if now < at => {}
            _ => {
                self.away = false;
                if self.returns_at.take().is_some() {
                    // What the last of them spent before they noticed was saved up at the server.
                    self.owed = self.owed.saturating_add(law.share.burst);
                }
            }
        }
    }

    /// There was no answer, or none is to be had: it falls back, and does not ask again until then.
    pub(crate) fn failed(&mut self, law: &Law, now: u64, until: u64) {
        self.calling = false;
        self.short = 0;
        self.quiet_until = until as i64;
        self.returns_at = None;
        if !self.away {
            self.away = true;
            self.away_since = now as i64;
            // Nothing is saved up yet: what was saved up at the server may be spent already. What was granted for a time to
            // come, to this node or to others, is that time's.
            let held = self.held.iter().filter(|lease| lease.left > 0);
            let held = held.map(|lease| {
                let span = law.step.saturating_mul(lease.left as i64);
                lease.due.saturating_add(span)
            });
            let granted = held.max().unwrap_or(0).max(self.reserved_until);
            let from = now.max(granted.max(0) as u64);
            self.local = TokenBucket::new(from);
            self.local.leave(&law.share, 0, from);
        }
    }

    /// How long until `n` more tokens are there than are asked for by those `ahead`; `None` if only the server knows, which
    /// was not asked yet or has not answered.
    pub(crate) fn wait(&self, law: &Law, now: u64, ahead: u64, n: u64) -> Option<u64> {
        let now = now as i64;
        let mut missing = ahead.saturating_add(n);
        for lease in self.held.iter().filter(|lease| now < lease.ends) {
            if missing <= lease.left {
                let last = (law.step).saturating_mul(missing.saturating_sub(1) as i64);
                let at = lease.due.saturating_add(last);
                return Some(at.saturating_sub(now).max(0) as u64);
            }
            missing -= lease.left;
        }
        let until = |at: i64| Some(at.saturating_sub(now).max(0) as u64);
        match law.fallback {
            _ if !self.away && now < self.quiet_until => {
                let more = law.step.saturating_mul(missing.saturating_sub(1) as i64);
                until(self.refused_until.saturating_add(more))
            }
            _ if !self.away => None,
            Fallback::Local => Some(self.local.wait_for(&law.share, now as u64, missing)),
            Fallback::Open => Some(0),
            Fallback::Closed => until(self.quiet_until),
        }
    }

    /// When to look again for those who wait, of whom the first wants so many, if nothing happens before.
    pub(crate) fn look_again(&self, law: &Law, now: u64, first: u64) -> u64 {
        let wait = self.wait(law, now, 0, first);
        let ends = || {
            let held = self.held.iter().filter(|lease| lease.left > 0);
            held.map(|lease| lease.ends.max(0) as u64).min()
        };
        let at = match wait {
            Some(wait) => now.saturating_add(wait),
            None => ends().unwrap_or(u64::MAX),
        };
        let quiet = self.quiet_until();
        match self.calling || quiet <= now {
            true => at,
            false => at.min(quiet),
        }
    }

    /// No call is made before this.
    pub(crate) fn quiet_until(&self) -> u64 {
        self.quiet_until.max(0) as u64
    }

    /// Whether everything is refused until there is an answer.
    pub(crate) fn is_closed(&self, law: &Law) -> bool {
        self.away && law.fallback == Fallback::Closed
    }

    /// How many tokens are there.
    pub(crate) fn tokens(&self, law: &Law, now: u64) -> u64 {
        let held = self
            .held
            .iter()
            .map(|lease| lease.due(law.step, now as i64));
        let local = match self.away && law.fallback == Fallback::Local {
            true => self.local.tokens(&law.share, now),
            false => 0,
        };
        held.sum::<u64>() + local
    }

    /// The law has changed. Tokens that are held were paid for.
    pub(crate) fn changes(&mut self, before: &Law, law: &Law, now: u64) {
        self.local.set_rate(&before.share, &law.share, now);
        self.owed = self.owed.min(law.share.burst);
    }

    /// How many tokens were lost so far, because nobody wanted them in time.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether a new one would do the same.
    pub(crate) fn is_forgettable(&self, now: u64) -> bool {
        let now = now as i64;
        let holds = |lease: &Lease| lease.left > 0 && now < lease.ends;
        let idle = !self.calling && !self.away && self.owed == 0;
        idle && self.quiet_until <= now && !self.held.iter().any(holds)
    }
}
