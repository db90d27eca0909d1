//! The token bucket that everybody shares: tokens are taken without a lock while nobody waits, first
//! come first served when somebody does.
//!
//! # How it works
//! Tokens are spent (see [`token_bucket`](crate::law::token_bucket)) by being used or by being
//! lost when the bucket overflows. What is spent, how many of those were used, and whether somebody waits
//! are one atomic [`Word`]. Taking a token is one compare-and-swap, which also writes off what has
//! overflowed; where there are plenty and none overflow it is one addition. The rate rarely changes; it is
//! read under a sequence lock, which costs a reader two loads.
//!
//! The word has room for some of the digits of both numbers. Used tokens are moved out of it every few
//! thousand requests (`fold`), and what is spent is counted from the refill's base, which moves on after
//! some hours at the highest rate, or years at usual ones (`current`). Both happen under the lock.
//!
//! Nobody gives tokens back as permits are given back: time brings them. Each caller that waits is told
//! when its tokens will be there, sets a timer for that, and when it fires gives what tokens there are
//! to those who wait, in their order (`settle`). So one caller is woken for each token, and one that
//! does not look when it is woken costs the others nothing but its own token. When somebody leaves the
//! queue, or the rate changes, the timers of those behind are no longer right; each of them is told once
//! more when it has become the head.

#[cfg(all(test, backpressure_loom))]
mod models;
mod shared_refill;
mod word;

use std::{fmt, task::Waker, time::Duration};

use self::{
    shared_refill::SharedRefill,
    word::{MOST_COUNTED, MOST_MADE, ONE, QUEUED, SPENT_ONE, Word},
};
use super::{
    bounds::{Bounds, Rejected, SHORTEST_RETRY_AFTER},
    claim::{Entered, Limiter},
    foreign::Foreign,
    queue::{Queue, Ticket},
    waits::Waits,
};
use crate::{
    Clock, Overloaded, Rate, Reason,
    law::token_bucket::Refill,
    sync::{AtomicU64, Mutex, Ordering::*, lock},
};

/// Where so many more are there, tokens are taken first and asked for then, which no other thread can get in the
/// way of. If they were not there after all, because as many threads did so at once, they are put back; in between,
/// others see fewer than there are.
const PLENTY: u64 = 256;

// In this order, so that threads that fight for the word's cache line do not lose what they only read.
#[repr(C)]
pub(crate) struct Bucket {
    /// A [`Word`].
    word: AtomicU64,
    refill: SharedRefill,
    clock: Clock,
    /// The number of the last ticket that got its tokens. Changed under the lock.
    granted: AtomicU64,
    pub(crate) bounds: Bounds,
    slow: Mutex<Slow>,
}

struct Slow {
    rate: Rate,
    /// With what each caller asks for.
    queue: Queue<u64>,
    /// What all of them ask for. Wide enough for any number of them.
    demand: u128,
    /// The timers of tickets up to this number may be late.
    stale: u64,
    /// The number of the head that was last told to set its timer anew.
    told: u64,
    /// How many tokens were used, but for those in the word.
    used: u64,
}

/// What became of an attempt to take tokens.
enum Attempt {
    /// This was the word before.
    Took(Word),
    NotThere,
    /// The word has changed meanwhile, or this is for [`Bucket::take_under_lock`].
    Again,
}

impl Slow {
    fn timers_are_stale(&mut self) {
        self.stale = self.queue.last();
        self.told = 0;
    }
}

/// The state of a rate limit at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The rate, with its burst.
    pub rate: Rate,
    /// How many tokens are there to be taken.
    pub tokens: u64,
    /// How many callers wait.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest_wait: Option<Duration>,
    /// How many tokens were used so far, one for each request. A service that was polled ready counts
    /// too, until it is dropped uncalled.
    pub admitted: u64,
    /// How many were refused so far, and why.
    pub rejected: Rejected,
    /// How long those waited who had to.
    pub waits: Waits,
}

impl Bucket {
    /// A full bucket. `kind` is the name of the layer in its refusals.
    pub(crate) fn new(kind: &'static str, rate: Rate, clock: Clock) -> Self {
        // Made at the clock's present time: it may have run for a while.
        let now = clock.nanos();
        let refill = Refill {
            origin: now,
            ..rate.refill()
        };
        Self {
            word: AtomicU64::new(Word::new().0),
            refill: SharedRefill::new(refill),
            clock,
            granted: AtomicU64::new(0),
            bounds: Bounds::new(kind),
            slow: Mutex::new(Slow {
                rate,
                queue: Queue::new(),
                demand: 0,
                stale: 0,
                told: 0,
                used: 0,
            }),
        }
    }

    /// Changes the rate. What is in the bucket stays in it, but for what no longer fits.
    pub(crate) fn set_rate(&self, rate: Rate) {
        let mut slow = lock(&self.slow);
        self.change_refill(rate.refill());
        slow.rate = rate;
        slow.timers_are_stale();
        drop(slow);
        self.settle(0);
    }

    /// Tokens come at this rate from now on: under the lock. What has been made so far is the new base.
    fn change_refill(&self, rate: Refill) -> (Refill, u64) {
        let before = self.refill.load();
        self.refill.begin(); // a thread that still reads `before` has read the clock before us
        let now = self.clock.nanos();
        // What has overflowed so far is lost, even if more fits from now on.
        let mut word = self.load();
        while let Some(settled) = self.taken(&before, word, now, 0).filter(|&to| to != word) {
            match self.swap(word, settled) {
                Ok(()) => break,
                Err(now) => word = now,
            }
        }
        let refill = rate.following(&before, now);
        self.refill.finish(refill);
        (refill, now)
    }

    /// The rate, with a base that is recent enough for tokens to be spent, and the time: under the lock.
    fn current(&self, _: &Slow) -> (Refill, u64) {
        let refill = self.refill.load();
        let now = self.clock.nanos();
        match refill.made_since_base(now) as i64 > MOST_MADE {
            true => self.change_refill(refill),
            false => (refill, now),
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.bounds.settle_report();
        let slow = lock(&self.slow);
        let refill = self.refill.load();
        let word = self.load();
        let now = self.clock.nanos();
        let waited = |since| Duration::from_nanos(now.saturating_sub(since));
        Snapshot {
            rate: slow.rate,
            tokens: refill.tokens(word.spent(&refill), now),
            waiting: slow.queue.len(),
            oldest_wait: slow.queue.oldest().map(waited),
            admitted: slow.used.wrapping_add_signed(word.used().0),
            rejected: self.bounds.rejected(),
            waits: self.bounds.waits.snapshot(),
        }
    }

    #[cfg(all(test, backpressure_loom))]
    fn try_take_with(&self, n: u64, plenty: u64) -> bool {
        self.take(self.try_once(n, plenty), n, plenty).is_ok()
    }

    /// Tries once to take `n` tokens, and says when it looked.
    #[inline(always)]
    fn try_once(&self, n: u64, plenty: u64) -> (Attempt, u64) {
        let now = self.clock.nanos(); // a call, so before what is kept in registers
        let refill = self.refill.load();
        let word = self.load();
        (self.attempt_on(word, &refill, now, n, plenty), now)
    }

    /// Takes `n` tokens after a first attempt, if they are there and nobody waits for them; otherwise says when it
    /// looked.
    fn take(&self, first: (Attempt, u64), n: u64, plenty: u64) -> Result<(), u64> {
        let (mut attempt, now) = first;
        loop {
            match attempt {
                Attempt::Took(before) => {
                    if before.is_high() {
                        self.fold();
                    }
                    return Ok(());
                }
                Attempt::NotThere => return Err(now),
                Attempt::Again => {}
            }
            let refill = self.refill.load();
            if n > MOST_COUNTED || refill.made_since_base(now) as i64 > MOST_MADE {
                return self.take_under_lock(n);
            }
            attempt = self.attempt_on(self.load(), &refill, now, n, plenty);
        }
    }

    /// What [`attempt`](Self::attempt) does if its first attempt was not enough. Out of line, so that `attempt` is short
    /// where it is inlined.
    #[inline(never)]
    fn attempt_slowly(&self, first: (Attempt, u64), n: u64) -> Result<(), u64> {
        self.take(first, n, PLENTY).or_else(|now| {
            if !self.load().is_queued() {
                return Err(now);
            }
            // The tokens may be there already, and the waiters not polled yet.
            self.settle(0);
            self.take(self.try_once(n, PLENTY), n, PLENTY)
        })
    }

    /// Takes `n` tokens if the word is still this one.
    #[inline(always)]
    fn attempt_on(&self, word: Word, refill: &Refill, now: u64, n: u64, plenty: u64) -> Attempt {
        if word.is_queued() {
            return Attempt::NotThere;
        }
        let made = refill.made_since_base(now) as i64;
        let there = made.wrapping_sub(word.spent_since_base(refill));
        let taken = if there > refill.burst as i64 {
            if n > refill.burst {
                return Attempt::NotThere;
            }
            if n > MOST_COUNTED || made > MOST_MADE {
                return Attempt::Again;
            }
            let overflow = there - refill.burst as i64;
            word.spend(overflow as u64).take(n)
        } else if n > MOST_COUNTED {
            return Attempt::Again;
        } else if there >= (n + plenty) as i64 {
            let before = Word(self.word.fetch_add(n * ONE, AcqRel));
            let there = made.wrapping_sub(before.spent_since_base(refill));
            if before == word || !before.is_queued() && there >= n as i64 {
                return Attempt::Took(before);
            }
            self.take_back(n);
            return Attempt::Again;
        } else if there >= n as i64 {
            word.take(n)
        } else {
            return Attempt::NotThere;
        };
        match self.swap(word, taken) {
            Ok(()) => Attempt::Took(word),
            Err(_) => Attempt::Again,
        }
    }

    /// Tokens that were taken first and were not there.
    #[cold]
    #[inline(never)]
    fn take_back(&self, n: u64) {
        self.give_back(n);
    }

    /// For more tokens than are counted in the word, and where the refill needs a new base.
    #[cold]
    fn take_under_lock(&self, n: u64) -> Result<(), u64> {
        let mut slow = lock(&self.slow);
        let (refill, now) = self.current(&slow);
        let mut word = self.load();
        while !word.is_queued() {
            let Some(taken) = self.taken(&refill, word, now, n) else {
                break;
            };
            match self.swap(word, taken) {
                Ok(()) => {
                    slow.used += n;
                    return Ok(());
                }
                Err(now) => word = now,
            }
        }
        Err(now)
    }

    /// Moves the count of used tokens out of the word, and sees to it that the refill's base is recent enough for as
    /// many more to be spent. Under the lock, so that nothing is counted twice.
    #[cold]
    fn fold(&self) {
        let mut slow = lock(&self.slow);
        let _ = self.current(&slow);
        let (used, in_word) = self.load().used();
        self.word.fetch_sub(in_word, AcqRel);
        slow.used = slow.used.wrapping_add_signed(used);
    }

    /// How long until `n` tokens are there that are not now.
    pub(crate) fn wait(&self, n: u64) -> Duration {
        let refill = self.refill.load();
        let spent = self.load().spent(&refill);
        let wait = refill.wait(spent, self.clock.nanos(), n);
        Duration::from_nanos(wait)
    }

    /// The word with `n` more tokens spent, if they are there, and what has overflowed written off.
    fn taken(&self, refill: &Refill, word: Word, now: u64, n: u64) -> Option<Word> {
        let spent = word.spent(refill);
        let then = refill.take(spent, now, n)?;
        Some(word.spend(then.wrapping_sub(spent)))
    }

    /// Acquire, as where a swap fails: what was done before a token was put back happens before what is done by the
    /// request that takes it.
    #[inline]
    fn load(&self) -> Word {
        Word(self.word.load(Acquire))
    }

    #[inline]
    fn swap(&self, from: Word, to: Word) -> Result<(), Word> {
        match self
            .word
            .compare_exchange_weak(from.0, to.0, AcqRel, Acquire)
        {
            Ok(_) => Ok(()),
            Err(now) => Err(Word(now)),
        }
    }

    fn has_waited(&self, since: u64, now: u64) {
        self.bounds.waits.record(now.saturating_sub(since));
    }

    fn is_granted(&self, ticket: &Ticket) -> bool {
        ticket.is_due(self.granted.load(Acquire))
    }

    /// Gives what tokens are there to those who wait, in their order, and tells the next one to set its
    /// timer anew if it has to. All are woken but the caller itself, which is the one with ticket `me`.
    #[cold]
    fn settle(&self, me: u64) {
        let mut foreign = Foreign::default(); // a waker that panics keeps no tokens from the others
        let mut more = true;
        while more {
            let mut slow = lock(&self.slow);
            let Some((number, &n)) = slow.queue.head() else {
                break;
            };
            let (refill, now) = self.current(&slow);
            let word = self.load();
            // Whoever came before the burst was lowered below what it asks for takes a full bucket, and
            // the tokens that come next.
            let there = n.min(refill.burst);
            let waker = match self.taken(&refill, word, now, there) {
                Some(taken) => {
                    let others = slow.queue.len() > 1;
                    let taken = taken.spend(n - there).with_queued(others);
                    if self.swap(word, taken).is_err() {
                        continue;
                    }
                    slow.used += n;
                    self.granted.store(number, Release);
                    slow.demand -= u128::from(n);
                    slow.queue.pop().map(|(_, since, waker)| {
                        self.has_waited(since, now);
                        waker
                    })
                }
                None if number > slow.stale || number == slow.told => break,
                None => {
                    slow.told = number;
                    more = false;
                    slow.queue.take_head_waker()
                }
            };
            drop(slow);
            match waker {
                Some(waker) if number != me => foreign.run(|| waker.wake()),
                _ => {}
            }
        }
        foreign.finish();
    }
}

impl Limiter for Bucket {
    const HOLDS: bool = false;

    type Ask = u64;
    /// When it looked.
    type Seen = u64;

    fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    #[inline(always)]
    fn try_admit(&self, n: u64) -> bool {
        self.attempt(n).is_ok()
    }

    #[inline(always)] // a call saves and restores more than it does
    fn attempt(&self, n: u64) -> Result<(), u64> {
        match self.try_once(n, PLENTY) {
            (Attempt::Took(before), _) if !before.is_high() => Ok(()),
            first => self.attempt_slowly(first, n),
        }
    }

    #[cold]
    fn enter(&self, n: u64, waker: Waker) -> Entered {
        let mut slow = lock(&self.slow);
        let (refill, now) = self.current(&slow);
        loop {
            let word = self.load();
            if !word.is_queued() {
                if let Some(taken) = self.taken(&refill, word, now, n) {
                    if self.swap(word, taken).is_ok() {
                        slow.used += n;
                        return Entered::Admitted;
                    }
                    continue;
                }
            }
            let wait =
                Duration::from_nanos(refill.wait(word.spent(&refill), now, behind(slow.demand, n)));
            let reason = if n > refill.burst {
                Reason::ExceedsBurst
            } else if slow.queue.len() >= self.bounds.max_waiting() {
                Reason::QueueFull
            } else if self.bounds.max_wait().is_some_and(|most| most < wait) {
                Reason::WaitTimeout // known beforehand, so there is no need to wait for it
            } else if word.is_queued() || self.swap(word, word.with_queued(true)).is_ok() {
                slow.demand += u128::from(n);
                let ticket = slow.queue.push(waker, now, n);
                return Entered::Waiting(ticket, Some(wait));
            } else {
                continue;
            };
            return Entered::Refused(reason);
        }
    }

    /// It has to look again when its tokens are there. How many are wanted before it is taken from the
    /// numbers: one for each, which may be too few, and then it looks again; where some have left it is
    /// too many, and then it is told when it is the head.
    fn redeem(&self, ticket: &Ticket, waker: &Waker) -> Result<(), Option<Duration>> {
        if self.is_granted(ticket) {
            return Ok(());
        }
        self.settle(ticket.number());
        let waker = waker.clone();
        let mut slow = lock(&self.slow);
        if self.is_granted(ticket) {
            return Ok(());
        }
        let replaced = slow.queue.wake_with(ticket, waker);
        let n = (*slow.queue.with(ticket)).min(self.refill.load().burst);
        let head = slow.queue.head().map_or(0, |(number, _)| number);
        if head == ticket.number() {
            slow.told = head;
        }
        let look_again = self.wait(behind((ticket.number() - head).into(), n));
        drop(slow);
        drop(replaced);
        Err(Some(look_again))
    }

    fn leave(&self, ticket: Ticket) -> bool {
        let mut slow = lock(&self.slow);
        if self.is_granted(&ticket) {
            return true;
        }
        let (n, since, waker) = slow.queue.remove(ticket);
        self.has_waited(since, self.clock.nanos());
        slow.demand -= u128::from(n);
        slow.timers_are_stale();
        if slow.queue.is_empty() {
            self.word.fetch_and(!QUEUED, AcqRel);
        }
        drop(slow);
        drop(waker);
        self.settle(0);
        false
    }

    fn give_back(&self, n: u64) {
        let before = if n <= MOST_COUNTED {
            Word(self.word.fetch_sub(n * ONE, AcqRel))
        } else {
            lock(&self.slow).used -= n;
            Word(self.word.fetch_sub(n * SPENT_ONE, AcqRel))
        };
        if before.is_low() {
            self.fold();
        }
        if before.is_queued() {
            lock(&self.slow).timers_are_stale();
            self.settle(0);
        }
    }

    fn refuse(&self, n: u64, reason: Reason) -> Box<Overloaded> {
        self.refuse_as_seen(n, reason, self.clock.nanos())
    }

    /// With the time from then after which its tokens would be there, exactly.
    fn refuse_as_seen(&self, n: u64, reason: Reason, then: u64) -> Box<Overloaded> {
        let refill = self.refill.load();
        let reason = match n > refill.burst {
            true => Reason::ExceedsBurst,
            false => reason,
        };
        self.bounds.count(reason);
        self.bounds.report(reason);
        let word = self.load();
        let ahead = match word.is_queued() {
            false => 0,
            true => lock(&self.slow).demand,
        };
        let wait = refill.wait(word.spent(&refill), then, behind(ahead, n));
        let retry_after = Duration::from_nanos(wait).max(SHORTEST_RETRY_AFTER);
        let rejection = Overloaded::new(self.bounds.name(), reason, retry_after);
        // More than the burst is never there.
        Box::new(match reason {
            Reason::ExceedsBurst => rejection,
            _ => rejection.exact(),
        })
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket")
            .field("name", &self.bounds.name())
            .field("rate", &lock(&self.slow).rate)
            .finish_non_exhaustive()
    }
}

/// `n` tokens, and those before them.
fn behind(demand: u128, n: u64) -> u64 {
    u64::try_from(demand + u128::from(n)).unwrap_or(u64::MAX)
}
