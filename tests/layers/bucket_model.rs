//! The shared bucket against a simple sequential model of it: random runs of everything that a caller
//! can do to a rate limit, in paused time, compared after every step.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use tower_backpressure::{
    Rate, RateLimitLayer, Reason,
    rate_limit::{Acquire, Handle},
};

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    TryAcquire(u64),
    Acquire(u64),
    Poll(usize),
    Cancel(usize),
    SetRate(u64, u64),
}

/// Rates whose tokens come at whole milliseconds or far from them, so that the model is exact.
const RATES: [u64; 7] = [1, 2, 4, 5, 8, 10, 40];

fn rate() -> impl Strategy<Value = (u64, u64)> {
    (prop::sample::select(&RATES[..]), 1..8u64)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..500u64).prop_map(Step::Advance),
        3 => (1..9u64).prop_map(Step::TryAcquire),
        5 => (1..9u64).prop_map(Step::Acquire),
        3 => any::<usize>().prop_map(Step::Poll),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => rate().prop_map(|(count, burst)| Step::SetRate(count, burst)),
    ];
    prop::collection::vec(step, 1..150)
}

/// What the bucket should do, in the plainest words. Tokens are counted in thousandths, so that each
/// millisecond brings a whole number of them.
struct Model {
    rate: u64,
    burst: u64,
    /// Below zero when somebody took more than the bucket holds, see `settle`.
    level: i64,
    /// Who waits, and for how many.
    queue: VecDeque<(u32, u64)>,
    granted: Vec<u32>,
    admitted: u64,
}

const TOKEN: i64 = 1000;

impl Model {
    fn advance(&mut self, ms: u64) {
        self.level += (ms * self.rate) as i64;
        self.overflow();
    }

    fn overflow(&mut self) {
        // The part of a token that is being made is not lost when the bucket is full.
        let part = self.level.rem_euclid(TOKEN);
        self.level = self.level.min(self.burst as i64 * TOKEN + part);
    }

    fn take(&mut self, n: u64) -> bool {
        n <= self.burst && self.take_if(n, n)
    }

    fn take_if(&mut self, there: u64, n: u64) -> bool {
        let enough = there as i64 * TOKEN <= self.level;
        if enough {
            self.level -= n as i64 * TOKEN;
            self.admitted += n;
        }
        enough
    }

    /// Those who wait are served when anybody looks. One that came before the burst was lowered below
    /// what it asks for needs a full bucket, and pays the rest later.
    fn settle(&mut self) {
        while let Some(&(id, n)) = self.queue.front() {
            if !self.take_if(n.min(self.burst), n) {
                break;
            }
            self.granted.push(id);
            self.queue.pop_front();
        }
    }

    fn is_granted(&mut self, id: u32) -> bool {
        let position = self.granted.iter().position(|&granted| granted == id);
        position
            .map(|position| self.granted.remove(position))
            .is_some()
    }
}

struct Run {
    handle: Handle,
    model: Model,
    callers: Vec<(u32, u64, Acquire)>,
    next: u32,
}

fn poll(acquire: &mut Acquire) -> Poll<Result<(), tower_backpressure::Overloaded>> {
    Future::poll(Pin::new(acquire), &mut Context::from_waker(Waker::noop()))
}

impl Run {
    async fn step(&mut self, step: &Step) {
        match *step {
            Step::Advance(ms) => {
                tokio::time::advance(Duration::from_millis(ms)).await;
                self.model.advance(ms);
            }
            Step::TryAcquire(n) => {
                self.model.settle();
                let expected = self.model.queue.is_empty() && self.model.take(n);
                match self.handle.try_acquire(n) {
                    Ok(()) => assert!(expected, "{n} taken that are not there"),
                    Err(refused) => {
                        assert!(!expected, "{n} refused that are there");
                        let never = n > self.model.burst;
                        assert_eq!(refused.reason() == Reason::ExceedsBurst, never);
                    }
                }
            }
            Step::Acquire(n) => {
                self.model.settle();
                let mut acquire = self.handle.acquire(n);
                let id = self.next;
                self.next += 1;
                match poll(&mut acquire) {
                    Poll::Ready(Ok(())) => {
                        assert!(self.model.queue.is_empty() && self.model.take(n));
                    }
                    Poll::Ready(Err(refused)) => {
                        assert_eq!(refused.reason(), Reason::ExceedsBurst);
                        assert!(n > self.model.burst);
                    }
                    Poll::Pending => {
                        assert!(n <= self.model.burst);
                        assert!(!self.model.queue.is_empty() || !self.model.take(n));
                        self.model.queue.push_back((id, n));
                        self.callers.push((id, n, acquire));
                    }
                }
            }
            Step::Poll(of) => {
                if let Some((id, n, mut acquire)) = take(&mut self.callers, of) {
                    // One whose tokens have been set aside just takes them; others look.
                    let set_aside = self.model.is_granted(id);
                    if !set_aside {
                        self.model.settle();
                    }
                    match poll(&mut acquire) {
                        Poll::Ready(Ok(())) => assert!(set_aside || self.model.is_granted(id)),
                        Poll::Ready(Err(refused)) => panic!("{refused}"),
                        Poll::Pending => {
                            assert!(!set_aside && self.model.queue.iter().any(|w| w.0 == id));
                            self.callers.push((id, n, acquire));
                        }
                    }
                }
            }
            Step::Cancel(of) => {
                if let Some((id, n, acquire)) = take(&mut self.callers, of) {
                    drop(acquire);
                    if self.model.is_granted(id) {
                        // Put back, as if they had never been taken.
                        self.model.level += n as i64 * TOKEN;
                        self.model.admitted -= n;
                        self.model.overflow();
                    } else {
                        self.model.queue.retain(|waiting| waiting.0 != id);
                    }
                    self.model.settle();
                }
            }
            Step::SetRate(count, burst) => {
                self.handle.set_rate(Rate::per_second(count).burst(burst));
                (self.model.rate, self.model.burst) = (count, burst);
                self.model.overflow();
                self.model.settle();
            }
        }
        let snapshot = self.handle.snapshot();
        assert_eq!(
            snapshot.tokens,
            (self.model.level / TOKEN).max(0) as u64,
            "tokens after {step:?}"
        );
        assert_eq!(
            snapshot.waiting,
            self.model.queue.len(),
            "waiting after {step:?}"
        );
        assert_eq!(
            snapshot.admitted, self.model.admitted,
            "admitted after {step:?}"
        );
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
    fn the_bucket_does_what_the_model_does((count, burst) in rate(), steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut run = Run {
                handle: RateLimitLayer::new(Rate::per_second(count).burst(burst)).handle(),
                model: Model {
                    rate: count,
                    burst,
                    level: burst as i64 * TOKEN,
                    queue: VecDeque::new(),
                    granted: Vec::new(),
                    admitted: 0,
                },
                callers: Vec::new(),
                next: 0,
            };
            // A little ahead of the model, for each change of the rate may cost a nanosecond.
            tokio::time::advance(Duration::from_nanos(500)).await;
            for step in &steps {
                run.step(step).await;
            }
        });
    }
}
