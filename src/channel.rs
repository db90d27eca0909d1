//! A bounded channel that says how full it is, and never loses a message without saying so.
//!
//! ```
//! use std::time::Duration;
//! use tower_backpressure::{Reason, channel};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let (commands, mut processor) = channel::bounded(2);
//! let handle = commands.handle(); // to look at it from elsewhere
//!
//! commands.send("create").await.unwrap(); // waits for room, as long as it takes
//! commands.send("start").await.unwrap();
//!
//! // It is full: waits for a second, and gives the message back.
//! let unsent = commands.send_within("stop", Duration::from_secs(1)).await.unwrap_err();
//! assert_eq!(unsent.overloaded().unwrap().reason(), Reason::WaitTimeout);
//! assert_eq!(unsent.into_message(), "stop");
//! assert_eq!(handle.snapshot().saturation, 1.0);
//! assert_eq!(handle.snapshot().oldest_age, Some(Duration::from_secs(1)));
//!
//! let events = commands.lossy(); // never waits
//! assert!(!events.offer("progress")); // dropped, and counted
//! assert_eq!(handle.snapshot().dropped, 1);
//!
//! assert_eq!(processor.recv().await, Some("create"));
//! # }
//! ```
//!
//! # When to use it
//! Between a service and the tasks that work for it. Put a [`SaturationLayer`](crate::SaturationLayer) over it, so that requests
//! are rejected before it is full.
//!
//! **When not to use it:** where the queue has to survive the process. Then it is a table or a broker, and a
//! [probe](crate::saturation) tells how full that is.
//!
//! # What to do when it is full
//! ```text
//! Is anything wrong if the message is lost?
//! ├── no ─────────────────────────────── LossySender::offer    never waits; drops, and counts it
//! └── yes: can whoever asked for it ask again?
//!     ├── yes ────────────────────────── Sender::send_within   waits; then gives it back, Overloaded
//!     └── no, the work has been done ─── Sender::send          waits until there is room
//! ```
//! A command that nobody has begun with is sent by `send_within`: its client is told when to come back.
//! The result of work that has been done must not be lost, or the work is done twice: it is sent by
//! `send`, and its worker takes on nothing new meanwhile. A domain event goes through `offer`: nobody who
//! does the work notices that it was dropped.
//!
//! The choice is made by the type of the sender, where the channel is made, not by each who sends. A
//! [`Sender`] loses nothing: whatever cannot be sent comes back. A [`LossySender`] never waits. A sender
//! of the one kind cannot be used as one of the other kind by mistake, and only what is handed a `Sender`
//! can make a `LossySender` of it.
//!
//! # Behaviour
//! It is tokio's bounded `mpsc`, so messages arrive in the order in which they were sent, and senders
//! that wait are served in the order in which they came; an `offer` does not overtake them. There is no
//! variant without a bound. How many senders wait is up to those who send, each with one message of its
//! own: [`waiting`](Snapshot::waiting) says how many there are.
//!
//! Each message is stamped when it gets into the queue, so the age of the oldest one is known at any
//! time, for a short lock and sixteen bytes a message. Counts are exact: what was sent was received, is
//! in the queue, or was discarded with the [`Receiver`].
//!
//! # Errors
//! [`Closed`] if the receiver is closed or gone, with the message. [`Unsent`] is either that, or
//! [`Overloaded`](crate::Overloaded) with [`Reason::WaitTimeout`](crate::Reason::WaitTimeout), with the
//! message too. Its `retry_after` is the depth of the queue over the rate at which messages were
//! received lately. Where that is not known, because nothing was received or this is the first refusal
//! for long, it is 5 seconds: a full buffer is short of room for seconds rather than minutes, and
//! whoever comes too early is refused once more, while nobody makes up for coming too late.
//!
//! # Cancellation
//! `recv`, `recv_many` and `reserve` lose nothing if they are dropped. `send` and `send_within` own their
//! message: if they are dropped before they are done, it was not sent, and is dropped with them. Where
//! that must not be, in a `select!` for instance, get a [`Slot`] first: [`Sender::reserve`].
//!
//! # Cloning
//! A [`Sender`] and a [`LossySender`] can be cloned, and made of each other's clones; all send into one
//! queue. The channel is open as long as one of either kind is left. A [`Handle`] does not keep it open.

mod error;
mod ledger;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{sync::mpsc, time::timeout};

use self::ledger::{Ledger, Waiting};
pub use self::{
    error::{Closed, TryRecvError, Unsent},
    ledger::{Handle, Snapshot},
};
use crate::sync::Arc;

/// A channel for so many messages.
///
/// # Panics
/// If `capacity` is 0, or more than tokio's channels can have (`usize::MAX >> 3`).
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(
        capacity > 0,
        "channel::bounded(0): capacity must be at least 1"
    );
    assert!(
        capacity <= usize::MAX >> 3,
        "channel::bounded({capacity}): capacity must be at most usize::MAX >> 3"
    );
    let (sender, receiver) = mpsc::channel(capacity);
    let ledger = Arc::new(Ledger::new(capacity));
    let receiver = Receiver {
        inner: receiver,
        ledger: Arc::clone(&ledger),
    };
    let sender = Sender {
        inner: sender,
        ledger,
    };
    (sender, receiver)
}

/// A message, and when it got into the queue.
struct Stamped<T> {
    at: u64,
    message: T,
}

/// Sends what must not be lost: each message gets into the queue or comes back.
pub struct Sender<T> {
    inner: mpsc::Sender<Stamped<T>>,
    ledger: Arc<Ledger>,
}

impl<T> Sender<T> {
    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer) and as a probe of a
    /// [`SaturationLayer`](crate::SaturationLayer). It is the channel's; the first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.ledger.name.set(name);
        self
    }

    /// Waits until there is room, as long as it takes.
    ///
    /// # Errors
    /// Only if the receiver is closed or gone.
    ///
    /// # Cancellation
    /// Dropped before it is done, it takes the message with it; [`reserve`](Self::reserve) does not.
    pub async fn send(&self, message: T) -> Result<(), Closed<T>> {
        match self.reserve().await {
            Ok(slot) => slot.send(message),
            Err(Closed(())) => Err(Closed(message)),
        }
    }

    /// Waits for room, but no longer than this. With a wait of 0 it does not wait at all.
    ///
    /// To wait it needs a tokio runtime with time enabled; without one it panics when the channel is
    /// full.
    ///
    /// # Errors
    /// If there was none, or the receiver is closed or gone; either way the message comes back.
    ///
    /// # Cancellation
    /// Dropped before it is done, it takes the message with it.
    pub async fn send_within(&self, message: T, wait: Duration) -> Result<(), Unsent<T>> {
        let mut reserve = pin!(self.reserve());
        let reserved = match poll_fn(|cx| Poll::Ready(reserve.as_mut().poll(cx))).await {
            Poll::Ready(reserved) => Ok(reserved),
            Poll::Pending => {
                // So that the drain is known by the time it is asked for.
                self.ledger.look();
                timeout(wait, reserve).await
            }
        };
        match reserved {
            Ok(Ok(slot)) => slot.send(message).map_err(Unsent::from),
            Ok(Err(Closed(()))) => Err(Unsent::Closed { message }),
            Err(_) => Err(Unsent::Overloaded {
                message,
                overloaded: self.ledger.timed_out(),
            }),
        }
    }

    /// Waits until there is room, and keeps it for a message that is yet to come. A slot that is not used
    /// is given back. It counts as full for others, but not as [`depth`](Snapshot::depth).
    ///
    /// # Errors
    /// If the receiver is closed or gone.
    ///
    /// # Cancellation
    /// Dropping it loses nothing but its place in line.
    ///
    /// ```
    /// # use tower_backpressure::channel;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let (results, mut results_of_others) = channel::bounded(10);
    /// let slot = results.reserve().await.unwrap(); // before the work is done
    /// let result = "done";
    /// slot.send(result).unwrap(); // does not wait
    /// # assert_eq!(results_of_others.recv().await, Some("done"));
    /// # }
    /// ```
    pub async fn reserve(&self) -> Result<Slot<'_, T>, Closed<()>> {
        let mut reserve = pin!(self.inner.reserve());
        let mut waiting = None;
        let reserved = poll_fn(|cx| {
            let polled = reserve.as_mut().poll(cx);
            if polled.is_pending() && waiting.is_none() {
                waiting = Some(Waiting::new(&self.ledger));
            }
            polled
        });
        match reserved.await {
            Ok(permit) => Ok(Slot {
                permit,
                ledger: &self.ledger,
            }),
            Err(_) => Err(Closed(())),
        }
    }

    /// A sender for messages that nobody misses, into the same queue.
    pub fn lossy(self) -> LossySender<T> {
        LossySender(self)
    }

    /// A handle on this channel, which does not keep it open.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.ledger)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            ledger: Arc::clone(&self.ledger),
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&self.ledger).finish()
    }
}

/// Room for one message: from [`Sender::reserve`].
#[must_use = "a slot that is dropped is given back"]
pub struct Slot<'a, T> {
    permit: mpsc::Permit<'a, Stamped<T>>,
    ledger: &'a Ledger,
}

impl<T> Slot<'_, T> {
    /// Sends without waiting.
    ///
    /// # Errors
    /// If the receiver has gone meanwhile. One that is closed still takes what has a slot.
    pub fn send(self, message: T) -> Result<(), Closed<T>> {
        match self.ledger.enter() {
            Some(at) => {
                self.permit.send(Stamped { at, message });
                Ok(())
            }
            None => Err(Closed(message)),
        }
    }
}

impl<T> fmt::Debug for Slot<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slot").field(&self.ledger).finish()
    }
}

/// Sends what nobody misses, and never waits. Made by [`Sender::lossy`].
pub struct LossySender<T>(Sender<T>);

impl<T> LossySender<T> {
    /// Sends the message if there is room. If there is none, or the receiver is closed or gone, drops it
    /// and counts it. Says whether it was taken.
    pub fn offer(&self, message: T) -> bool {
        let Sender { inner, ledger } = &self.0;
        let slot = inner.try_reserve().map(|permit| Slot { permit, ledger });
        let taken = slot.is_ok_and(|slot| slot.send(message).is_ok());
        if !taken {
            ledger.dropped();
        }
        taken
    }

    /// A handle on this channel, which does not keep it open.
    pub fn handle(&self) -> Handle {
        self.0.handle()
    }
}

impl<T> Clone for LossySender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for LossySender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LossySender").field(&self.0.ledger).finish()
    }
}

/// Receives what was sent, in that order. If it is dropped, what is in the queue is discarded, and
/// counted.
pub struct Receiver<T> {
    inner: mpsc::Receiver<Stamped<T>>,
    ledger: Arc<Ledger>,
}

impl<T> Receiver<T> {
    /// The next message, or `None` if the channel is empty and no sender is left, or it was closed.
    ///
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The same, for those who write futures by hand.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let stamped = ready!(self.inner.poll_recv(cx));
        Poll::Ready(stamped.map(|stamped| self.received(stamped)))
    }

    /// Waits for a message and takes it, and with it whatever else is there, `limit` at most. Says how
    /// many it has put into `buffer`; that is 0 only if `limit` is, or if `recv` gave `None`.
    ///
    /// Dropping the future loses nothing.
    pub async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        let Some(first) = self.recv().await else {
            return 0;
        };
        // From here to the end nothing waits, so nothing can be cancelled.
        buffer.push(first);
        let mut count = 1;
        while count < limit {
            let Ok(message) = self.try_recv() else { break };
            buffer.push(message);
            count += 1;
        }
        count
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// If there is none yet, or there will not be any more.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.inner.try_recv() {
            Ok(stamped) => Ok(self.received(stamped)),
            Err(mpsc::error::TryRecvError::Empty) => Err(TryRecvError::Empty),
            Err(mpsc::error::TryRecvError::Disconnected) => Err(TryRecvError::Closed),
        }
    }

    /// Takes no more messages, but for those that have a slot. What is in the queue can still be
    /// received: `recv` until it gives `None`.
    pub fn close(&mut self) {
        self.ledger.close();
        self.inner.close();
    }

    /// A handle on this channel.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.ledger)
    }

    fn received(&self, stamped: Stamped<T>) -> T {
        self.ledger.leave(stamped.at);
        stamped.message
    }
}

impl<T> Drop for Receiver<T> {
    /// What is left in the queue goes with `inner`.
    fn drop(&mut self) {
        self.ledger.gone();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&self.ledger).finish()
    }
}
