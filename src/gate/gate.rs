//! The gate: resizable permits, taken without a lock while nobody waits, and a waiting [`Room`] that says who is next
//! when somebody does.
//!
//! # How it works
//! Everything but the room is in one atomic [`Word`]. A newcomer is admitted by one compare-and-swap if there is room
//! under the limit and nobody waits; a permit is released by one addition. Only if somebody waits is the lock taken, and
//! a free permit goes to the waiter that the room calls next.
//!
//! # Why it is right
//! - **Never too many.** In-flight is raised only by a compare-and-swap from a word that shows room
//!   under the limit *in that same word*, so an admission and a shrinking limit cannot miss each
//!   other, and shrinking needs no debt: nothing is admitted until in-flight is below the limit.
//! - **Nobody jumps the queue.** `QUEUED` is set exactly while the room [has a waiter that may be
//!   next](Room::has_next) (both change under the lock), and while it is set only the room's waiters are admitted.
//! - **No wakeup is lost.** `QUEUED` is set by a compare-and-swap on a word without room under the limit. A permit
//!   released before that shows up as room in that word; one released after it sees `QUEUED`, and settles.
//! - **A grant is never lost.** A waiter that was granted a permit owns it before it is woken. If it goes without having
//!   picked it up, the permit is released, which settles again.
//!
//! `models.rs` checks all four with loom. Wakers are cloned, woken and dropped outside the lock: any of
//! it may run code that comes back here.

#[cfg(all(test, backpressure_loom))]
mod models;

use std::{fmt, task::Waker, time::Duration};

use super::{
    bounds::{Bounds, Rejected, nanos},
    claim::{Entered, Limiter},
    fifo::Fifo,
    foreign::Foreign,
    governor::Governor,
    queue::Ticket,
    room::{Next, Room, Scene, Wakes},
    waits::{Uncounted, WaitCounts, Waits},
    word::{COMPLETED_ONE, FOLD, IN_FLIGHT_ONE, QUEUED, Word},
};
use crate::{
    ConfigError, Overloaded, Reason,
    clock::Clock,
    law::drain_rate::{DEFAULT_WAIT, DrainRate},
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering::*, lock},
};

/// A look at the clock costs more than a refusal at the limit does: one in so many looks, and whoever
/// finds that as many requests have completed since the last look.
const LOOK_EVERY: u64 = 16;

// In this order, so that what every request touches is in one cache line, with the counts of the
// `Arc` around it.
#[repr(C)]
pub(crate) struct Gate<R: Room = Fifo> {
    word: AtomicU64,
    peak: AtomicUsize,
    /// Changed under the lock.
    pub(super) published: R::Published,
    /// Changed before a grant is published, so that a waiter that sees its grant sees it.
    uncounted: Uncounted,
    /// The retry hint of the last look, in nanoseconds.
    retry_after: AtomicU64,
    /// The completions in the word at the last look.
    looked_at: AtomicU64,
    pub(crate) bounds: Bounds,
    pub(super) clock: Clock,
    pub(super) slow: Mutex<Slow<R>>,
    /// What moves the limit, where something does.
    governor: Option<Governor>,
}

/// What is only touched when somebody waits, is rejected, or looks.
pub(super) struct Slow<R> {
    pub(super) room: R,
    /// Completions that were folded out of the word.
    completed: u64,
    pub(super) drain_rate: DrainRate,
}

impl<R> Slow<R> {
    /// How many were admitted so far, with what the word says.
    fn admitted(&self, word: Word) -> u64 {
        self.completed + word.completed() + word.in_flight() as u64
    }
}

/// The state of a limiter at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many requests may be in flight.
    pub limit: usize,
    /// How many are in flight, services that were polled ready but not yet called included. After
    /// the limit was lowered it may be above the limit for a while.
    pub in_flight: usize,
    /// The most that were in flight at once since the last snapshot was taken, by whomever.
    pub peak_in_flight: usize,
    /// How many callers wait.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest_wait: Option<Duration>,
    /// How many requests were admitted so far: those that are over, however they ended, and those in
    /// flight. A service that was polled ready counts too, until it is dropped uncalled.
    pub admitted: u64,
    /// How many were refused so far, and why.
    pub rejected: Rejected,
    /// How long those waited who had to.
    pub waits: Waits,
}

impl Gate {
    /// `kind` is the name of the layer in its rejections, unless it is given one of its own.
    pub(crate) fn new(kind: &'static str, limit: usize) -> Result<Self, ConfigError> {
        Self::counting(kind, limit, WaitCounts::default())
    }

    /// With waits that are counted there.
    pub(crate) fn counting(
        kind: &'static str,
        limit: usize,
        waits: WaitCounts,
    ) -> Result<Self, ConfigError> {
        check_limit(limit)?;
        let (bounds, clock) = (Bounds::counting(kind, waits), Clock::default());
        Ok(Self::with(bounds, clock, limit, None, Fifo::default()))
    }

    /// With a limit that a law moves.
    pub(crate) fn governed(kind: &'static str, governor: Governor) -> Self {
        let (bounds, limit) = (Bounds::new(kind), governor.limit());
        Self::with(
            bounds,
            Clock::default(),
            limit,
            Some(governor),
            Fifo::default(),
        )
    }

    fn is_granted(&self, ticket: &Ticket) -> bool {
        self.published.includes(ticket)
    }

    /// Whether the ticket has been granted. If not, this waker is woken when it is.
    fn is_granted_or_wakes(&self, ticket: &Ticket, waker: &Waker) -> bool {
        if self.is_granted(ticket) {
            return true;
        }
        let slow = lock(&self.slow);
        if self.is_granted(ticket) {
            return true;
        }
        if slow.room.wakes(ticket, waker) {
            return false;
        }
        drop(slow);
        let waker = waker.clone();
        let mut slow = lock(&self.slow);
        if self.is_granted(ticket) {
            return true;
        }
        let replaced = slow.room.wake_with(ticket, waker);
        drop(slow);
        drop(replaced);
        false
    }

    /// Whether nobody ever waited or was rejected: then it has allocated nothing, and guesses nothing.
    pub(crate) fn is_as_new(&self) -> bool {
        lock(&self.slow).room.is_as_new() && self.bounds.rejected().total() == 0
    }

    /// Brings the retry hint up to date: the time that it takes to work off the waiters and one more, at the rate at
    /// which permits come back.
    #[cold]
    fn look(&self) {
        let now = self.clock.now();
        let mut slow = lock(&self.slow);
        let completed = slow.completed + self.load().completed();
        let ahead = slow.room.waiting() as u64 + 1;
        let retry_after = slow.drain_rate.wait(now, completed, ahead);
        self.retry_after.store(nanos(retry_after), Relaxed);
    }
}

impl<R: Room> Gate<R> {
    pub(crate) fn with(
        bounds: Bounds,
        clock: Clock,
        limit: usize,
        governor: Option<Governor>,
        room: R,
    ) -> Self {
        Self {
            word: AtomicU64::new(Word::new(limit).0),
            peak: AtomicUsize::new(0),
            published: room.published(),
            uncounted: Uncounted::default(),
            retry_after: AtomicU64::new(nanos(DEFAULT_WAIT)),
            looked_at: AtomicU64::new(0),
            bounds,
            clock,
            slow: Mutex::new(Slow {
                room,
                completed: 0,
                drain_rate: DrainRate::default(),
            }),
            governor,
        }
    }

    /// Of a gate that was made with one.
    ///
    /// # Panics
    /// If it was not.
    #[inline]
    pub(crate) fn governor(&self) -> &Governor {
        let governor = self.governor.as_ref();
        governor.expect("only layers whose limit adapts ask, and their gates are governed")
    }

    /// Gives a permit back after its request was dispatched.
    #[inline]
    pub(crate) fn complete(&self) {
        self.release(1);
    }

    pub(crate) fn set_limit(&self, limit: usize) -> Result<(), ConfigError> {
        check_limit(limit)?;
        self.resize(limit);
        self.settle();
        Ok(())
    }

    /// Changes the limit, but wakes nobody: if it grows, [`settle`](Self::settle) has to follow.
    pub(crate) fn resize(&self, limit: usize) {
        self.resize_under(&lock(&self.slow), limit);
    }

    #[cfg(all(test, backpressure_loom))]
    pub(crate) fn limit(&self) -> usize {
        self.load().limit()
    }

    /// How many permits were given back after their requests were dispatched, so far.
    pub(crate) fn completed(&self) -> u64 {
        self.completed_by(&lock(&self.slow)) // nothing is folded meanwhile
    }

    /// Admits if there is room, nobody waits, and fewer than so many are in flight.
    #[inline]
    pub(crate) fn try_admit_below(&self, most: usize) -> bool {
        let mut word = self.load();
        while word.is_open() && word.in_flight() < most {
            match self.swap(word, word.admitted()) {
                Ok(admitted) => {
                    self.raise_peak(admitted.in_flight());
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// How many requests were admitted so far: those that are over, and those in flight. It sinks only where a
    /// permit is given back unused.
    pub(crate) fn admitted(&self) -> u64 {
        let slow = lock(&self.slow); // nothing is folded meanwhile
        slow.admitted(self.load())
    }

    /// How many are in flight, and whether one more had to wait.
    #[inline]
    pub(crate) fn load_now(&self) -> (usize, bool) {
        let word = self.load();
        (word.in_flight(), !word.is_open())
    }

    /// How many wait.
    #[cfg(feature = "fleet")]
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.slow).room.waiting()
    }

    /// Whether less than this share of the limit is in flight, and nobody waits.
    pub(crate) fn has_capacity(&self, share: f64) -> bool {
        let word = self.load();
        word.is_open() && (word.in_flight() as f64) < share * word.limit() as f64
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot_with(|_, _| ()).0
    }

    /// With a look at the room, which may change there.
    pub(super) fn snapshot_with<T>(
        &self,
        look: impl FnOnce(&mut Slow<R>, &Scene<'_>) -> T,
    ) -> (Snapshot, T) {
        self.bounds.settle_report();
        let now = self.clock.nanos();
        self.count_wait(now);
        let mut slow = lock(&self.slow);
        let peak = self.peak.swap(0, Relaxed);
        let word = self.load();
        self.raise_peak(word.in_flight());
        let snapshot = Snapshot {
            limit: word.limit(),
            in_flight: word.in_flight(),
            peak_in_flight: peak.max(word.in_flight()),
            waiting: slow.room.waiting(),
            oldest_wait: (slow.room.oldest())
                .map(|since| Duration::from_nanos(now.saturating_sub(since))),
            admitted: slow.admitted(word),
            rejected: self.bounds.rejected(),
            waits: self.bounds.waits.snapshot(),
        };
        let scene = self.scene(&slow, word.in_flight(), word.in_flight(), now);
        let looked = look(&mut slow, &scene);
        slow.room.publish(&self.published);
        (snapshot, looked)
    }

    #[inline]
    pub(super) fn load(&self) -> Word {
        Word(self.word.load(Relaxed))
    }

    /// Acquire and release: what was done under a permit happens before what is done under the
    /// permit that takes its place.
    #[inline]
    fn swap(&self, from: Word, to: Word) -> Result<Word, Word> {
        match self
            .word
            .compare_exchange_weak(from.0, to.0, AcqRel, Relaxed)
        {
            Ok(_) => Ok(to),
            Err(now) => Err(Word(now)),
        }
    }

    #[inline]
    fn raise_peak(&self, in_flight: usize) {
        if in_flight > self.peak.load(Relaxed) {
            self.peak.fetch_max(in_flight, Relaxed);
        }
    }

    /// `completed` is 1 for a permit that was used, else 0.
    #[inline]
    pub(super) fn release(&self, completed: u64) {
        if self.load().0 & (QUEUED | FOLD) == 0 {
            self.free(completed);
        } else {
            self.hand_over(completed);
        }
    }

    #[inline]
    pub(super) fn free(&self, completed: u64) {
        let change = (completed * COMPLETED_ONE).wrapping_sub(IN_FLIGHT_ONE);
        let before = Word(self.word.fetch_add(change, AcqRel));
        debug_assert!(before.in_flight() > 0, "a permit was given back twice");
        if before.0 & (QUEUED | FOLD) != 0 {
            self.settle();
        }
    }

    /// Gives a permit straight to the waiter that is next. It stays in flight and the word as it is: under load, when
    /// somebody always waits, the threads do not fight for its cache line.
    #[cold]
    fn hand_over(&self, completed: u64) {
        let now = match R::NEEDS_TIME {
            true => self.clock.nanos(), // not under the lock
            false => 0,
        };
        let mut wakes = Wakes::default();
        let mut slow = lock(&self.slow);
        let handed_over = self.pass_on(&mut slow, completed, now, &mut wakes);
        drop(slow);
        self.count_rest(&mut wakes);
        match handed_over {
            true => wakes.wake(),
            false => self.free_and_wake(completed, wakes),
        }
    }

    /// Nobody may have the permit, but some may have been rejected.
    #[cold]
    pub(super) fn free_and_wake(&self, completed: u64, wakes: Wakes) {
        let mut foreign = Foreign::default();
        foreign.run(|| self.free(completed));
        foreign.run(|| wakes.wake());
        foreign.finish();
    }

    /// Gives a permit that is released to the waiter that is next. If it does not, the permit is still to be
    /// [freed](Self::free).
    #[inline]
    pub(super) fn pass_on(
        &self,
        slow: &mut Slow<R>,
        completed: u64,
        now: u64,
        wakes: &mut Wakes,
    ) -> bool {
        // While `QUEUED` is set in-flight can only sink, and the limit stays: both need the lock.
        let word = self.load();
        if word.in_flight() > word.limit() || !slow.room.has_next() {
            return false;
        }
        let scene = self.scene(slow, word.in_flight() - 1, word.in_flight(), now);
        let goes = self.next(slow, &scene, wakes) == Next::Goes;
        if goes {
            slow.completed += completed;
        }
        self.note_left(slow);
        goes
    }

    /// Releases a permit under the lock, to the waiter that is next if there is one. Says what
    /// [`grant_free`](Self::grant_free) says.
    pub(super) fn release_under(
        &self,
        slow: &mut Slow<R>,
        completed: u64,
        now: u64,
        wakes: &mut Wakes,
    ) -> bool {
        if !self.pass_on(slow, completed, now, wakes) {
            self.word.fetch_sub(IN_FLIGHT_ONE, AcqRel);
            slow.completed += completed;
        }
        slow.room.has_next() && self.grant_free(slow, now, wakes)
    }

    /// Changes the limit under the lock; [`grant_free`](Self::grant_free) has to follow.
    pub(super) fn resize_under(&self, _: &Slow<R>, limit: usize) {
        let mut word = self.load();
        while word != word.with_limit(limit) {
            match self.swap(word, word.with_limit(limit)) {
                Ok(now) | Err(now) => word = now,
            }
        }
    }

    /// Asks the room who gets a permit that is in flight already.
    #[inline]
    fn next(&self, slow: &mut Slow<R>, scene: &Scene<'_>, wakes: &mut Wakes) -> Next {
        if let Some(since) = wakes.uncounted.take() {
            self.has_waited(since, scene.now); // only where several are granted, and the time is known
        }
        let next = slow.room.next(scene, wakes);
        if let Some(since) = wakes.uncounted {
            wakes.uncounted = self.uncounted.put(since);
        }
        slow.room.publish(&self.published);
        next
    }

    #[inline]
    fn has_waited(&self, since: u64, now: u64) {
        self.bounds.waits.record(now.saturating_sub(since));
    }

    /// Counts a wait that was over before, now that the time is known.
    #[inline]
    fn count_wait(&self, now: u64) {
        if let Some(since) = self.uncounted.take() {
            self.has_waited(since, now);
        }
    }

    /// Counts a wait that nobody else will. Not under the lock.
    #[inline]
    fn count_rest(&self, wakes: &mut Wakes) {
        if let Some(since) = wakes.uncounted.take() {
            self.has_waited(since, self.clock.nanos());
        }
    }

    /// A waiter has left.
    #[inline]
    pub(super) fn note_left(&self, slow: &Slow<R>) {
        if !slow.room.has_next() {
            self.word.fetch_and(!QUEUED, AcqRel);
        }
    }

    /// How many permits were released after their requests were dispatched, by one who holds the lock.
    pub(super) fn completed_by(&self, slow: &Slow<R>) -> u64 {
        slow.completed + self.load().completed()
    }

    /// Describes the gate to the room. `in_flight` is without the request that the room is asked about, `admitted` is how
    /// many of those in flight were admitted before it.
    #[inline]
    pub(super) fn scene(
        &self,
        slow: &Slow<R>,
        in_flight: usize,
        admitted: usize,
        now: u64,
    ) -> Scene<'_> {
        let completed = self.completed_by(slow);
        Scene {
            now,
            in_flight: in_flight as u64,
            admitted: completed + admitted as u64,
            completed,
            bounds: &self.bounds,
        }
    }

    /// Hands what is free to the waiters that are next. A waker that panics keeps no other waiter from what is free, or
    /// from being woken.
    #[cold]
    pub(crate) fn settle(&self) {
        let mut foreign = Foreign::default();
        let mut folded = false;
        let mut more = true;
        while more {
            let now = self.clock.nanos(); // not under the lock
            let mut wakes = Wakes::default();
            let mut slow = lock(&self.slow);
            folded |= self.fold(&mut slow);
            more = self.grant_free(&mut slow, now, &mut wakes);
            drop(slow);
            self.count_rest(&mut wakes);
            foreign.run(|| wakes.wake());
        }
        if folded {
            foreign.run(|| self.bounds.settle_report());
        }
        foreign.finish();
    }

    /// Grants what is free to the waiters that are next, and sets `QUEUED` if one is left. Says whether it stopped
    /// early, because enough are to be woken: then it is to be called again after that.
    pub(super) fn grant_free(&self, slow: &mut Slow<R>, now: u64, wakes: &mut Wakes) -> bool {
        loop {
            let word = self.load();
            if !slow.room.has_next() {
                if word.queued() {
                    self.word.fetch_and(!QUEUED, AcqRel);
                }
                return false;
            }
            if wakes.is_full() {
                // Until it is called again, nobody passes those that are next.
                self.word.fetch_or(QUEUED, AcqRel);
                return true;
            }
            if word.has_room() {
                let Ok(word) = self.swap(word, word.admitted().with_queued(true)) else {
                    continue;
                };
                let others = word.in_flight() - 1;
                let scene = self.scene(slow, others, others, now);
                match self.next(slow, &scene, wakes) {
                    Next::Goes => self.raise_peak(word.in_flight()),
                    Next::Nobody => {
                        self.word.fetch_sub(IN_FLIGHT_ONE, AcqRel);
                    }
                }
            } else if word.queued() || self.swap(word, word.with_queued(true)).is_ok() {
                return false;
            }
        }
    }

    /// Moves the completions out of the word, if it is time to. Under the lock, so that nothing is counted
    /// twice.
    fn fold(&self, slow: &mut Slow<R>) -> bool {
        let word = self.load();
        let due = word.0 & FOLD != 0;
        if due {
            let completed = word.completed();
            self.word.fetch_sub(completed * COMPLETED_ONE, AcqRel);
            slow.completed += completed;
        }
        due
    }
}

impl Limiter for Gate {
    const HOLDS: bool = true;

    type Ask = ();
    type Seen = ();

    fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    #[inline]
    fn try_admit(&self, (): ()) -> bool {
        self.try_admit_below(usize::MAX)
    }

    #[cold]
    fn enter(&self, (): (), waker: Waker) -> Entered {
        let since = self.clock.nanos();
        self.count_wait(since);
        let mut slow = lock(&self.slow);
        if !slow.room.has_next() {
            let mut word = self.load();
            loop {
                let next = match word.has_room() {
                    true => word.admitted(),
                    false if self.bounds.max_waiting() == 0 => {
                        return Entered::Refused(Reason::QueueFull);
                    }
                    false => word.with_queued(true),
                };
                match self.swap(word, next) {
                    Ok(word) if word.queued() => break,
                    Ok(word) => {
                        self.raise_peak(word.in_flight());
                        return Entered::Admitted;
                    }
                    Err(now) => word = now,
                }
            }
        } else if slow.room.waiting() >= self.bounds.max_waiting() {
            return Entered::Refused(Reason::QueueFull);
        }
        Entered::Waiting(slow.room.push(waker, since), None)
    }

    fn redeem(&self, ticket: &Ticket, waker: &Waker) -> Result<(), Option<Duration>> {
        if !self.is_granted_or_wakes(ticket, waker) {
            return Err(None);
        }
        if let Some(since) = self.uncounted.take() {
            self.has_waited(since, self.clock.nanos());
        }
        Ok(())
    }

    fn leave(&self, ticket: Ticket) -> bool {
        let now = self.clock.nanos(); // not under the lock
        let mut slow = lock(&self.slow);
        if self.is_granted(&ticket) {
            self.count_wait(now);
            return true;
        }
        let waker = slow.room.leave(ticket, now, &self.bounds.waits);
        self.note_left(&slow);
        drop(slow);
        drop(waker);
        false
    }

    fn give_back(&self, (): ()) {
        self.release(0);
    }

    fn refuse(&self, (): (), reason: Reason) -> Box<Overloaded> {
        let before = self.bounds.count(reason);
        self.bounds.report(reason);
        let word = self.load();
        let completed = word.completed();
        let news = completed.abs_diff(self.looked_at.load(Relaxed)) >= LOOK_EVERY;
        // Where nobody waits, a caller that may not and one that does not want to are told the same.
        let nobody_waits =
            reason == Reason::AtLimit || reason == Reason::QueueFull && !word.queued();
        if !nobody_waits || before % LOOK_EVERY == 0 || news {
            self.looked_at.store(completed, Relaxed);
            self.look();
        }
        let retry_after = Duration::from_nanos(self.retry_after.load(Relaxed));
        Box::new(Overloaded::new(self.bounds.name(), reason, retry_after))
    }
}

impl<R: Room> fmt::Debug for Gate<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.load();
        f.debug_struct("Gate")
            .field("name", &self.bounds.name())
            .field("limit", &word.limit())
            .field("in_flight", &word.in_flight())
            .finish_non_exhaustive()
    }
}

pub(crate) fn check_limit(limit: usize) -> Result<(), ConfigError> {
    match limit {
        0 => Err(ConfigError::new("limit", "at least 1")),
        _ => Ok(()),
    }
}
