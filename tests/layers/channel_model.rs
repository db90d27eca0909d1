//! The channel against a simple sequential model of it: random runs of everything that its ends can do, in
//! paused time, compared after every step. No message is lost or doubled, and each comes back that was not
//! sent.

use crate::support;

use std::{collections::VecDeque, future::Future, pin::Pin, task::Poll, time::Duration};

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use support::{boxed, poll};
use tower_backpressure::channel::{Handle, Receiver, Sender, Unsent, bounded};

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Send,
    SendWithin(u64),
    Offer,
    Poll(usize),
    Cancel(usize),
    TryRecv,
    /// Polled once and dropped.
    Recv,
    RecvMany(usize),
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => (0..500u64).prop_map(Step::Advance),
        40 => Just(Step::Send),
        40 => (1..1000u64).prop_map(Step::SendWithin),
        20 => Just(Step::Offer),
        50 => any::<usize>().prop_map(Step::Poll),
        15 => any::<usize>().prop_map(Step::Cancel),
        20 => Just(Step::TryRecv),
        20 => Just(Step::Recv),
        15 => (0..4usize).prop_map(Step::RecvMany),
        1 => Just(Step::Close),
    ];
    prop::collection::vec(step, 1..200)
}

/// What the channel should do, in the plainest words. Times are milliseconds.
#[derive(Default)]
struct Model {
    now: u64,
    free: usize,
    /// Messages, and when they got there.
    queue: VecDeque<(u32, u64)>,
    /// Who waits, in that order, and whether there is room for it.
    waiting: Vec<(u32, bool)>,
    sent: u64,
    received: u64,
    dropped: u64,
    timed_out: u64,
    closed: bool,
}

impl Model {
    /// Whether a message is taken right away.
    fn take(&mut self, message: u32) -> bool {
        let taken = !self.closed && self.free > 0;
        if taken {
            self.free -= 1;
            self.enter(message);
        }
        taken
    }

    fn enter(&mut self, message: u32) {
        self.queue.push_back((message, self.now));
        self.sent += 1;
    }

    fn leave(&mut self) -> Option<u32> {
        let (message, _) = self.queue.pop_front()?;
        self.received += 1;
        self.make_room();
        Some(message)
    }

    /// For whoever waits first, or for anybody.
    fn make_room(&mut self) {
        match self.waiting.iter_mut().find(|(_, granted)| !granted) {
            Some((_, granted)) => *granted = true,
            None => self.free += 1,
        }
    }

    /// Says whether there was room for it.
    fn stop_waiting(&mut self, message: u32) -> bool {
        let place = self.waiting.iter().position(|(id, _)| *id == message);
        self.waiting.remove(place.expect("it waits")).1
    }
}

/// Whether it was sent, or why not, with what came back.
type Sent = Result<(), Unsent<u32>>;

struct Waiting {
    message: u32,
    deadline: Option<u64>,
    future: Pin<Box<dyn Future<Output = Sent> + Send>>,
}

struct Run {
    sender: Sender<u32>,
    receiver: Receiver<u32>,
    handle: Handle,
    model: Model,
    callers: Vec<Waiting>,
    next: u32,
}

impl Run {
    fn new(capacity: usize) -> Self {
        let (sender, receiver) = bounded(capacity);
        Self {
            handle: sender.handle(),
            sender,
            receiver,
            model: Model {
                free: capacity,
                ..Model::default()
            },
            callers: Vec::new(),
            next: 0,
        }
    }

    fn message(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn send(&mut self, within: Option<u64>) {
        let message = self.message();
        let sender = self.sender.clone();
        let mut future = boxed(async move {
            match within {
                None => sender.send(message).await.map_err(Unsent::from),
                Some(ms) => sender.send_within(message, Duration::from_millis(ms)).await,
            }
        });
        match poll(&mut future) {
            Poll::Ready(Ok(())) => assert!(self.model.take(message), "there is no room"),
            Poll::Ready(Err(unsent)) => {
                assert!(self.model.closed && unsent == Unsent::Closed { message });
            }
            Poll::Pending => {
                assert!(
                    !self.model.closed && !self.model.take(message),
                    "there is room"
                );
                self.model.waiting.push((message, false));
                self.callers.push(Waiting {
                    message,
                    deadline: within.map(|ms| self.model.now + ms),
                    future,
                });
            }
        }
    }

    fn poll(&mut self, mut caller: Waiting) {
        let polled = poll(&mut caller.future);
        let Waiting {
            message, deadline, ..
        } = caller;
        let granted = self.model.waiting.contains(&(message, true));
        let late = deadline.is_some_and(|deadline| deadline <= self.model.now);
        match polled {
            Poll::Pending => {
                assert!(!granted && !late && !self.model.closed);
                self.callers.push(caller);
                return;
            }
            Poll::Ready(Ok(())) => {
                assert!(granted && !self.model.closed);
                self.model.enter(message);
            }
            Poll::Ready(Err(unsent)) => {
                assert_eq!(unsent.overloaded().is_none(), self.model.closed);
                assert!(self.model.closed || (late && !granted));
                assert_eq!(unsent.into_message(), message, "it comes back");
                self.model.timed_out += u64::from(!self.model.closed);
            }
        }
        self.model.stop_waiting(message);
    }

    async fn step(&mut self, step: &Step) {
        tokio::task::yield_now().await; // tokio has no more than so much be done at once
        match *step {
            Step::Advance(ms) => {
                tokio::time::advance(Duration::from_millis(ms)).await;
                self.model.now += ms;
            }
            Step::Send => self.send(None),
            Step::SendWithin(ms) => self.send(Some(ms)),
            Step::Offer => {
                let message = self.message();
                let taken = self.sender.clone().lossy().offer(message);
                assert_eq!(taken, self.model.take(message));
                self.model.dropped += u64::from(!taken);
            }
            Step::Poll(of) => {
                if let Some(caller) = take(&mut self.callers, of) {
                    self.poll(caller);
                }
            }
            Step::Cancel(of) => {
                if let Some(caller) = take(&mut self.callers, of) {
                    let message = caller.message;
                    drop(caller);
                    if self.model.stop_waiting(message) {
                        self.model.make_room();
                    }
                }
            }
            Step::TryRecv => assert_eq!(self.receiver.try_recv().ok(), self.model.leave()),
            Step::Recv => {
                let received = match poll(&mut Box::pin(self.receiver.recv())) {
                    Poll::Ready(received) => {
                        assert!(received.is_some() || self.model.closed);
                        received
                    }
                    Poll::Pending => None,
                };
                assert_eq!(received, self.model.leave());
            }
            Step::RecvMany(limit) => {
                let mut buffer = Vec::new();
                let polled = poll(&mut Box::pin(self.receiver.recv_many(&mut buffer, limit)));
                let expected: Vec<_> = (0..limit).map_while(|_| self.model.leave()).collect();
                assert_eq!(buffer, expected);
                if let Poll::Ready(count) = polled {
                    assert_eq!(count, buffer.len());
                }
            }
            Step::Close => {
                self.receiver.close();
                self.model.closed = true;
            }
        }
        self.compare(step);
    }

    fn compare(&self, step: &Step) {
        let (now, model) = (self.handle.snapshot(), &self.model);
        let oldest = model.queue.front();
        let oldest = oldest.map(|(_, at)| Duration::from_millis(model.now - at));
        assert_eq!(now.oldest_age, oldest, "oldest after {step:?}");
        assert_eq!(now.depth, model.queue.len(), "depth after {step:?}");
        assert_eq!(self.handle.depth(), now.depth);
        assert_eq!(now.waiting, model.waiting.len(), "waiting after {step:?}");
        assert_eq!(
            (
                now.sent,
                now.received,
                now.dropped,
                now.timed_out,
                now.closed
            ),
            (
                model.sent,
                model.received,
                model.dropped,
                model.timed_out,
                model.closed
            ),
            "sent, received, dropped, timed out, closed after {step:?}"
        );
    }

    /// In the end all is accounted for.
    fn end(self) {
        let left = self.model.queue.len() as u64;
        drop((self.receiver, self.callers, self.sender));
        let end = self.handle.snapshot();
        assert_eq!((end.depth, end.discarded, end.waiting), (0, left, 0));
        assert_eq!(end.sent, end.received + end.discarded);
    }
}

fn take<T>(from: &mut Vec<T>, of: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(of % from.len()))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_channel_does_what_the_model_does(capacity in 1..6usize, steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut run = Run::new(capacity);
            for step in &steps {
                run.step(step).await;
            }
            run.end();
        });
    }
}
