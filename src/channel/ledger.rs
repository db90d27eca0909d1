//! What is known of a channel, whatever its messages are.

use std::{collections::VecDeque, fmt, time::Duration};

use crate::{
    Clock, Overloaded, Reason,
    gate::bounds::Name,
    law::{drain_rate::DrainRate, levels::ratio},
    sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering::Relaxed, lock},
};

/// What a sender is told to wait where the drain is not known. A full buffer drains within five to ten
/// seconds; whoever comes too early is refused once more, while nobody makes up for coming too late.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(5);

pub(super) struct Ledger {
    capacity: usize,
    pub(super) name: Name,
    clock: Clock,
    /// As in the book, for those who look without its lock.
    depth: AtomicUsize,
    waiting: AtomicUsize,
    dropped: AtomicU64,
    timed_out: AtomicU64,
    book: Mutex<Book>,
}

/// `sent` is `received`, `discarded` and what is in `stamps`, always.
#[derive(Default)]
struct Book {
    /// Of the messages in the queue, oldest first; never more than the capacity and one.
    ///
    /// A message's stamp is entered before the message itself, and taken out after it: a message that is
    /// received has its stamp in here. Two senders may enter their stamps in one order and their messages
    /// in the other, so what is taken out is not always the first, but it is no further back than senders
    /// were at it at once.
    stamps: VecDeque<u64>,
    sent: u64,
    received: u64,
    discarded: u64,
    closed: bool,
    /// The receiver is: nothing can be entered.
    gone: bool,
    drain: DrainRate,
}

impl Ledger {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            name: Name::new("channel"),
            clock: Clock::default(),
            depth: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            book: Mutex::default(),
        }
    }

    /// A message is about to be put into the queue; gives its stamp, or nothing if nobody would receive
    /// it.
    pub(super) fn enter(&self) -> Option<u64> {
        let now = self.clock.nanos();
        let mut book = lock(&self.book);
        if book.gone {
            return None;
        }
        // Whoever read the clock first may get the lock last.
        let at = book.stamps.back().map_or(now, |last| now.max(*last));
        book.stamps.push_back(at);
        book.sent += 1;
        self.depth.store(book.stamps.len(), Relaxed);
        Some(at)
    }

    /// The message with this stamp has been taken out of the queue.
    pub(super) fn leave(&self, at: u64) {
        let mut book = lock(&self.book);
        if let Some(place) = book.stamps.iter().position(|stamp| *stamp == at) {
            book.stamps.remove(place);
        }
        book.received += 1;
        self.depth.store(book.stamps.len(), Relaxed);
    }

    pub(super) fn close(&self) {
        lock(&self.book).closed = true;
    }

    /// There is no receiver any more, and what is in the queue goes with it.
    pub(super) fn gone(&self) {
        let mut book = lock(&self.book);
        book.closed = true;
        book.gone = true;
        book.discarded += book.stamps.len() as u64;
        book.stamps = VecDeque::new();
        self.depth.store(0, Relaxed);
    }

    pub(super) fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// A sender has waited for long enough.
    pub(super) fn timed_out(&self) -> Overloaded {
        self.timed_out.fetch_add(1, Relaxed);
        let wait = self.look().unwrap_or(DEFAULT_RETRY_AFTER);
        Overloaded::new(self.name.get(), Reason::WaitTimeout, wait)
    }

    /// How long what is in the queue takes to drain, if that is known.
    pub(super) fn look(&self) -> Option<Duration> {
        let now = self.clock.now();
        let mut book = lock(&self.book);
        let (received, depth) = (book.received, book.stamps.len() as u64);
        book.drain.known_wait(now, received, depth)
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.clock.nanos();
        let book = lock(&self.book);
        // A message that is received frees its place before its stamp is taken out. If another one has
        // that place by now, there is a stamp too many, of one that is as good as received.
        let depth = book.stamps.len().min(self.capacity);
        let leaving = book.stamps.len() - depth;
        let oldest = book.stamps.get(leaving);
        Snapshot {
            capacity: self.capacity,
            depth,
            saturation: ratio(depth, self.capacity),
            waiting: self.waiting.load(Relaxed),
            sent: book.sent,
            received: book.received + leaving as u64,
            discarded: book.discarded,
            dropped: self.dropped.load(Relaxed),
            timed_out: self.timed_out.load(Relaxed),
            oldest_age: oldest.map(|at| Duration::from_nanos(now.saturating_sub(*at))),
            closed: book.closed,
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("name", &self.name.get())
            .field("depth", &self.depth.load(Relaxed))
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// One that waits for room, until it is dropped.
pub(super) struct Waiting<'a>(&'a Ledger);

impl<'a> Waiting<'a> {
    pub(super) fn new(ledger: &'a Ledger) -> Self {
        ledger.waiting.fetch_add(1, Relaxed);
        Self(ledger)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// Looks at a channel. It can neither send nor receive, and does not keep the channel open.
///
/// It is a [`Probe`](crate::saturation::Probe) of a [`SaturationLayer`](crate::SaturationLayer).
#[derive(Clone, Debug)]
pub struct Handle {
    ledger: Arc<Ledger>,
}

impl Handle {
    pub(super) fn new(ledger: &Arc<Ledger>) -> Self {
        Self {
            ledger: Arc::clone(ledger),
        }
    }

    /// The name that the channel was given, or `"channel"`.
    pub fn name(&self) -> &'static str {
        self.ledger.name.get()
    }

    /// How many messages it has room for.
    pub fn capacity(&self) -> usize {
        self.ledger.capacity
    }

    /// How many are in it. It takes no lock.
    #[inline]
    pub fn depth(&self) -> usize {
        self.ledger.depth.load(Relaxed).min(self.ledger.capacity)
    }

    /// How full it is, from 0 to 1. It takes no lock.
    pub fn saturation(&self) -> f64 {
        ratio(self.depth(), self.ledger.capacity)
    }

    /// The state of the channel now.
    pub fn snapshot(&self) -> Snapshot {
        self.ledger.snapshot()
    }
}

/// The state of a channel at one moment. `sent` is `received + depth + discarded`, always.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// How many messages it has room for.
    pub capacity: usize,
    /// How many are in it.
    pub depth: usize,
    /// `depth` over `capacity`, from 0 to 1. Above 0.8 it is time to look for the reason.
    pub saturation: f64,
    /// How many senders wait for room.
    pub waiting: usize,
    /// How many messages got into the queue so far.
    pub sent: u64,
    /// How many were received so far.
    pub received: u64,
    /// How many were in the queue when the receiver was dropped.
    pub discarded: u64,
    /// How many were offered and not taken.
    pub dropped: u64,
    /// How many came back because there was no room in time.
    pub timed_out: u64,
    /// How long the oldest message has been in the queue; `None` if there is none.
    pub oldest_age: Option<Duration>,
    /// Whether the receiver is closed or gone, and nothing more can be sent.
    pub closed: bool,
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    /// The receiver has the first one, and the third one has its place, but its stamp is still there.
    #[tokio::test(start_paused = true)]
    async fn a_message_on_its_way_out_is_as_good_as_received() {
        let ledger = Arc::new(Ledger::new(2));
        let mut first = 0;
        for n in 0..3 {
            let at = ledger.enter().unwrap();
            first = if n == 0 { at } else { first };
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let expected = |snapshot: &Snapshot| {
            assert_eq!((snapshot.depth, snapshot.saturation), (2, 1.0));
            assert_eq!((snapshot.sent, snapshot.received), (3, 1));
            assert_eq!(snapshot.oldest_age, Some(Duration::from_secs(2)));
        };
        expected(&ledger.snapshot());
        assert_eq!(Handle::new(&ledger).depth(), 2);
        ledger.leave(first);
        expected(&ledger.snapshot());
    }

    /// Two senders that are at it at once may enter their stamps in one order, and their messages in the
    /// other.
    #[tokio::test(start_paused = true)]
    async fn what_leaves_takes_its_own_stamp_along() {
        let ledger = Ledger::new(3);
        let first = ledger.enter().unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = ledger.enter().unwrap();
        ledger.leave(second);
        let oldest = ledger.snapshot().oldest_age;
        assert_eq!(
            oldest,
            Some(Duration::from_secs(1)),
            "the first is there still"
        );
        ledger.leave(first);
        assert_eq!(ledger.snapshot().oldest_age, None);
    }
}
