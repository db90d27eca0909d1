//! The token bucket that everybody shares: tokens are taken without a lock while nobody waits, first
//! come first served when somebody does.
//!
//! # How it works
//! Tokens are spent (see [`token_bucket`](crate::algorithm::token_bucket)) by being used or by being
//! lost when the bucket overflows. What is used is one atomic word, with one bit, `QUEUED`, that says
//! that somebody waits: taking a token is one compare-and-swap, or where there are plenty one addition, and
//! counts it. What is lost is beside it, and changes only when a full bucket is drawn on; it only ever grows,
//! to what whoever draws on it computes from the same word, or an older one. The rate rarely changes; it is
//! read under a sequence lock, which costs a reader two loads.
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

use std::{fmt, task::Waker, time::Duration};

use self::shared_refill::SharedRefill;
use super::{
    bounds::{Bounds, Rejected, SHORTEST_RETRY_AFTER},
    claim::{Entered, Limiter},
    queue::{Queue, Ticket},
    waits::Waits,
};
use crate::{
    Clock, Overloaded, Rate, Reason,
    algorithm::token_bucket::Refill,
    sync::{AtomicU64, Mutex, Ordering::*, lock},
};

const QUEUED: u64 = 1;
const ONE: u64 = 2;

/// Where so many more are there, tokens are taken first and asked for then, which no other thread can get in the
/// way of. If they were not there after all, because as many threads did so at once, they are put back; in between,
/// others see fewer than there are.
const PLENTY: u64 = 256;

// In this order, so that threads that fight for the word's cache line do not lose what they only read.
#[repr(C)]
pub(crate) struct Bucket {
    /// How many tokens were used, and whether somebody waits: then only the head of the queue takes.
    word: AtomicU64,
    refill: SharedRefill,
    /// How many overflowed. Apart from the word, like the rate: under load it is only read.
    lost: AtomicU64,
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
            word: AtomicU64::new(0),
            lost: AtomicU64::new(0),
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
            }),
        }
    }

    /// Changes the rate. What is in the bucket stays in it, but for what no longer fits.
    pub(crate) fn set_rate(&self, rate: Rate) {
        let mut slow = lock(&self.slow);
        let before = self.refill.load();
        self.refill.begin(); // so that whoever still reads `before` has read the clock before us
        let now = self.clock.nanos();
        // What has overflowed so far is lost, even if more fits from now on.
        let _ = self.taken(&before, self.word.load(Acquire), now, 0);
        self.refill.finish(rate.refill().following(&before, now));
        slow.rate = rate;
        slow.timers_are_stale();
        drop(slow);
        self.settle(0);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.bounds.settle_report();
        let slow = lock(&self.slow);
        let now = self.clock.nanos();
        let word = self.word.load(Acquire);
        let waited = |since| Duration::from_nanos(now).saturating_sub(since);
        Snapshot {
            rate: slow.rate,
            tokens: self.refill.load().tokens(self.spent(word), now),
            waiting: slow.queue.len(),
            oldest_wait: slow.queue.oldest().map(waited),
            admitted: word / ONE,
            rejected: self.bounds.rejected(),
            waits: self.bounds.waits.snapshot(),
        }
    }

    #[inline(always)]
    fn try_take(&self, n: u64) -> bool {
        self.try_take_with(n, PLENTY)
    }

    #[inline(always)]
    fn try_take_with(&self, n: u64, plenty: u64) -> bool {
        let now = self.clock.nanos(); // a call, so before what is kept in registers
        let refill = self.refill.load();
        let mut word = self.word.load(Acquire);
        while word & QUEUED == 0 {
            if self
                .taken(&refill, word, now, n.saturating_add(plenty))
                .is_some()
            {
                let before = self.word.fetch_add(n * ONE, AcqRel);
                if before == word || self.had(&refill, before, now, n) {
                    return true;
                }
                self.give_back(n);
                word = self.word.load(Acquire);
                continue;
            }
            let Some(taken) = self.taken(&refill, word, now, n) else {
                return false;
            };
            match self.swap(word, taken) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Whether `n` tokens were there to be taken, when they have been.
    #[inline]
    fn had(&self, refill: &Refill, before: u64, now: u64, n: u64) -> bool {
        before & QUEUED == 0 && refill.take(self.spent(before), now, n).is_some()
    }

    /// Where others wait, they may only have been slow to look.
    #[cold]
    fn try_take_after_others(&self, n: u64) -> bool {
        self.word.load(Relaxed) & QUEUED != 0 && {
            self.settle(0);
            self.try_take(n)
        }
    }

    /// How long until `n` tokens are there that are not now.
    pub(crate) fn wait(&self, n: u64) -> Duration {
        let spent = self.spent(self.word.load(Acquire));
        let wait = self.refill.load().wait(spent, self.clock.nanos(), n);
        Duration::from_nanos(wait)
    }

    #[inline]
    fn spent(&self, word: u64) -> u64 {
        word / ONE + self.lost.load(Relaxed)
    }

    /// The word with `n` more tokens used, if they are there. Writes off what has overflowed.
    #[inline]
    fn taken(&self, refill: &Refill, word: u64, now: u64, n: u64) -> Option<u64> {
        let spent = self.spent(word);
        let then = refill.take(spent, now, n)?;
        let overflow = then - n - spent;
        if overflow > 0 {
            let lost = spent - word / ONE + overflow;
            self.lost.fetch_max(lost, Relaxed);
        }
        Some(word + n * ONE)
    }

    /// Acquire, also where it fails, as every load of the word: whoever sees a word sees what had been
    /// lost when it was written. Release for that, and for what was done before a token was put back.
    #[inline]
    fn swap(&self, from: u64, to: u64) -> Result<(), u64> {
        self.word
            .compare_exchange_weak(from, to, AcqRel, Acquire)
            .map(drop)
    }

    fn has_waited(&self, since: Duration, now: u64) {
        let wait = Duration::from_nanos(now).saturating_sub(since);
        self.bounds.waits.record(wait);
    }

    fn is_granted(&self, ticket: &Ticket) -> bool {
        ticket.is_due(self.granted.load(Acquire))
    }

    /// Gives what tokens are there to those who wait, in their order, and tells the next one to set its
    /// timer anew if it has to. All are woken but the caller itself, which is the one with ticket `me`.
    #[cold]
    fn settle(&self, me: u64) {
        let mut more = true;
        while more {
            let mut slow = lock(&self.slow);
            let Some((number, &n)) = slow.queue.head() else {
                return;
            };
            let refill = self.refill.load();
            let word = self.word.load(Acquire);
            // Whoever came before the burst was lowered below what it asks for takes a full bucket, and
            // the tokens that come next.
            let there = n.min(refill.burst);
            let now = self.clock.nanos();
            let waker = match self.taken(&refill, word, now, there) {
                Some(taken) => {
                    let taken = (taken + (n - there) * ONE) & !QUEUED;
                    let queued = if slow.queue.len() > 1 { QUEUED } else { 0 };
                    if self.swap(word, taken | queued).is_err() {
                        continue;
                    }
                    self.granted.store(number, Release);
                    slow.demand -= u128::from(n);
                    slow.queue.pop().map(|(_, since, waker)| {
                        self.has_waited(since, now);
                        waker
                    })
                }
                None if number > slow.stale || number == slow.told => return,
                None => {
                    slow.told = number;
                    more = false;
                    slow.queue.take_head_waker()
                }
            };
            drop(slow);
            match waker {
                Some(waker) if number != me => waker.wake(),
                _ => {}
            }
        }
    }
}

impl Limiter for Bucket {
    type Ask = u64;

    fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    #[inline(always)] // a call saves and restores more than it does
    fn try_admit(&self, n: u64) -> bool {
        self.try_take(n) || self.try_take_after_others(n)
    }

    #[cold]
    fn enter(&self, n: u64, waker: Waker) -> Entered {
        let mut slow = lock(&self.slow);
        let refill = self.refill.load();
        let now = self.clock.nanos();
        loop {
            let word = self.word.load(Acquire);
            if word & QUEUED == 0 {
                if let Some(taken) = self.taken(&refill, word, now, n) {
                    if self.swap(word, taken).is_ok() {
                        return Entered::Admitted;
                    }
                    continue;
                }
            }
            let wait =
                Duration::from_nanos(refill.wait(self.spent(word), now, behind(slow.demand, n)));
            let reason = if n > refill.burst {
                Reason::ExceedsBurst
            } else if slow.queue.len() >= self.bounds.max_waiting() {
                Reason::QueueFull
            } else if self.bounds.max_wait().is_some_and(|most| most < wait) {
                Reason::WaitTimeout // known beforehand, so there is no need to wait for it
            } else if word & QUEUED != 0 || self.swap(word, word | QUEUED).is_ok() {
                slow.demand += u128::from(n);
                let ticket = slow.queue.push(waker, Duration::from_nanos(now), n);
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
        let before = self.word.fetch_sub(n * ONE, AcqRel);
        if before & QUEUED != 0 {
            lock(&self.slow).timers_are_stale();
            self.settle(0);
        }
    }

    /// With the time after which its tokens would be there, exactly.
    fn refuse(&self, n: u64, reason: Reason) -> Box<Overloaded> {
        let reason = match n > self.refill.load().burst {
            true => Reason::ExceedsBurst,
            false => reason,
        };
        self.bounds.count(reason);
        self.bounds.report(reason);
        let ahead = match self.word.load(Acquire) & QUEUED {
            0 => 0,
            _ => lock(&self.slow).demand,
        };
        let retry_after = self.wait(behind(ahead, n)).max(SHORTEST_RETRY_AFTER);
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
