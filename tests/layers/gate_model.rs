//! The gate against a simple sequential model of it: random runs of everything that a caller can do
//! to a limit, compared after every step.

use crate::support;

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use support::CountWakes;
use tower_backpressure::{
    ConcurrencyLimitLayer, Permit, Reason,
    concurrency_limit::{Acquire, Handle},
};

#[derive(Clone, Debug)]
enum Step {
    TryAcquire,
    Acquire,
    /// Polls, drops or gives back one of those there are.
    Poll(usize),
    Cancel(usize),
    Release(usize),
    SetLimit(usize),
    SetMaxWaiting(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::TryAcquire),
        4 => Just(Step::Acquire),
        2 => any::<usize>().prop_map(Step::Poll),
        2 => any::<usize>().prop_map(Step::Cancel),
        4 => any::<usize>().prop_map(Step::Release),
        1 => (0usize..6).prop_map(Step::SetLimit),
        1 => (0usize..6).prop_map(Step::SetMaxWaiting),
    ];
    prop::collection::vec(step, 1..200)
}

/// What the gate should do, in the plainest words.
struct Model {
    limit: usize,
    max_waiting: usize,
    in_flight: usize,
    completed: u64,
    rejected_at_limit: u64,
    rejected_queue_full: u64,
    peak: usize,
    queue: VecDeque<u32>,
    granted: Vec<u32>,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Admitted,
    Waits,
    Refused,
}

impl Model {
    fn admit(&mut self) {
        self.in_flight += 1;
        self.peak = self.peak.max(self.in_flight);
    }

    fn try_acquire(&mut self) -> Answer {
        if self.queue.is_empty() && self.in_flight < self.limit {
            self.admit();
            return Answer::Admitted;
        }
        self.rejected_at_limit += 1;
        Answer::Refused
    }

    fn acquire(&mut self, caller: u32) -> Answer {
        if self.queue.is_empty() && self.in_flight < self.limit {
            self.admit();
            Answer::Admitted
        } else if self.queue.len() < self.max_waiting {
            self.queue.push_back(caller);
            Answer::Waits
        } else {
            self.rejected_queue_full += 1;
            Answer::Refused
        }
    }

    fn poll(&mut self, caller: u32) -> Answer {
        match self.granted.iter().position(|&granted| granted == caller) {
            Some(position) => {
                self.granted.remove(position);
                Answer::Admitted
            }
            None => Answer::Waits,
        }
    }

    fn cancel(&mut self, caller: u32) {
        match self.poll(caller) {
            Answer::Admitted => self.in_flight -= 1,
            _ => self.queue.retain(|&waiting| waiting != caller),
        }
        self.settle();
    }

    fn release(&mut self) {
        self.in_flight -= 1;
        self.completed += 1;
        self.settle();
    }

    fn settle(&mut self) {
        while self.in_flight < self.limit {
            let Some(head) = self.queue.pop_front() else {
                return;
            };
            self.granted.push(head);
            self.admit();
        }
    }
}

struct Caller {
    id: u32,
    acquire: Acquire,
    wakes: Arc<CountWakes>,
    waker: Waker,
}

impl Caller {
    fn poll(&mut self) -> Poll<Result<Permit, tower_backpressure::Overloaded>> {
        let mut cx = Context::from_waker(&self.waker);
        Future::poll(Pin::new(&mut self.acquire), &mut cx)
    }
}

struct Run {
    handle: Handle,
    model: Model,
    callers: Vec<Caller>,
    permits: Vec<Permit>,
    next: u32,
}

impl Run {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::TryAcquire => match (self.handle.try_acquire(), self.model.try_acquire()) {
                (Ok(permit), Answer::Admitted) => self.permits.push(permit),
                (Err(overloaded), Answer::Refused) => {
                    assert_eq!(overloaded.reason(), Reason::AtLimit);
                }
                (real, model) => panic!("{real:?}, but {model:?}"),
            },
            Step::Acquire => {
                let (wakes, waker) = CountWakes::new();
                let caller = Caller {
                    id: self.next,
                    acquire: self.handle.acquire(),
                    wakes,
                    waker,
                };
                self.next += 1;
                let answer = self.model.acquire(caller.id);
                self.answer(caller, answer);
            }
            Step::Poll(of) => {
                if let Some(caller) = take(&mut self.callers, of) {
                    let answer = self.model.poll(caller.id);
                    self.answer(caller, answer);
                }
            }
            Step::Cancel(of) => {
                if let Some(caller) = take(&mut self.callers, of) {
                    self.model.cancel(caller.id);
                }
            }
            Step::Release(of) => {
                if let Some(permit) = take(&mut self.permits, of) {
                    self.model.release();
                    drop(permit);
                }
            }
            Step::SetLimit(limit) => match self.handle.set_limit(limit) {
                Ok(()) => {
                    self.model.limit = limit;
                    self.model.settle();
                }
                Err(error) => {
                    assert_eq!(limit, 0);
                    assert_eq!(error.to_string(), "limit must be at least 1");
                }
            },
            Step::SetMaxWaiting(max_waiting) => {
                self.handle.set_max_waiting(max_waiting);
                self.model.max_waiting = max_waiting;
            }
        }
        self.compare();
    }

    /// Polls a caller, which must be answered as the model says.
    fn answer(&mut self, mut caller: Caller, answer: Answer) {
        match (caller.poll(), answer) {
            (Poll::Ready(Ok(permit)), Answer::Admitted) => self.permits.push(permit),
            (Poll::Pending, Answer::Waits) => self.callers.push(caller),
            (Poll::Ready(Err(overloaded)), Answer::Refused) => {
                assert_eq!(overloaded.reason(), Reason::QueueFull);
            }
            (real, model) => panic!("{real:?}, but {model:?}"),
        }
    }

    fn compare(&mut self) {
        let (real, model) = (self.handle.snapshot(), &mut self.model);
        assert_eq!(real.limit, model.limit);
        assert_eq!(real.in_flight, model.in_flight);
        assert_eq!(real.waiting, model.queue.len());
        assert_eq!(real.admitted, model.completed + model.in_flight as u64);
        assert_eq!(real.rejected.at_limit, model.rejected_at_limit);
        assert_eq!(real.rejected.queue_full, model.rejected_queue_full);
        assert_eq!(real.peak_in_flight, model.peak);
        assert_eq!(real.oldest_wait.is_some(), !model.queue.is_empty());
        model.peak = model.in_flight; // a snapshot starts a new interval

        // In the order of the queue, each granted one is woken exactly once, the others never.
        let wakes: HashMap<u32, usize> = self
            .callers
            .iter()
            .map(|caller| (caller.id, caller.wakes.count()))
            .collect();
        assert!(model.granted.iter().all(|id| wakes[id] == 1), "{wakes:?}");
        assert!(model.queue.iter().all(|id| wakes[id] == 0), "{wakes:?}");
    }
}

fn take<T>(from: &mut Vec<T>, of: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(of % from.len()))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_gate_does_what_the_model_does(limit in 1usize..5, steps in steps()) {
        let mut run = Run {
            handle: ConcurrencyLimitLayer::new(limit).handle(),
            model: Model {
                limit,
                max_waiting: 1024,
                in_flight: 0,
                completed: 0,
                rejected_at_limit: 0,
                rejected_queue_full: 0,
                peak: 0,
                queue: VecDeque::new(),
                granted: Vec::new(),
            },
            callers: Vec::new(),
            permits: Vec::new(),
            next: 0,
        };
        for step in &steps {
            run.step(step);
        }
        // Whatever happened, in the end everything is given back.
        run.callers.clear();
        run.permits.clear();
        let end = run.handle.snapshot();
        prop_assert_eq!((end.in_flight, end.waiting), (0, 0));
    }
}
