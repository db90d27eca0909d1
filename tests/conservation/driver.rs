//! The clients of a stack: they ask, wait, give up, keep what they have for a while, and turn its knobs.

use std::{
    any::Any,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    task::Poll,
    time::Duration,
};

use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::sleep;
use tower::Service;
use tower_backpressure::{Overloaded, hold::KeepPermits};

use crate::{
    handles::{self, Control},
    own::Own,
    world::{Answer, Rng, Stack, Tasks, World, caught, pause, spawn},
};

/// One of those who use a stack at the same time.
pub struct Client {
    pub world: Arc<World>,
    /// The same layers, built more than once.
    pub stacks: Vec<Stack>,
    pub layers: Vec<Arc<Own>>,
    pub tasks: Tasks,
    /// Where to keep what should hold nothing any more.
    pub shelf: Option<Shelf>,
    pub rng: Rng,
}

/// Services that were called, and bodies that have ended, until all clients have gone.
pub type Shelf = Arc<Mutex<Vec<Box<dyn Any + Send>>>>;

impl Client {
    pub async fn run(mut self, operations: u64) {
        for _ in 0..operations {
            self.world.operations.fetch_add(1, SeqCst);
            match self.rng.below(12) {
                0 => self.change(),
                1 => self.acquire().await,
                _ => self.request().await,
            }
            if self.rng.once_in(3) {
                pause(self.world.mode.span(&mut self.rng, 20)).await;
            }
        }
        self.stacks.into_iter().for_each(let_go);
    }

    fn change(&mut self) {
        let own = self.rng.pick(&self.layers);
        handles::change(&own, self.world.mode, &mut self.rng);
    }

    /// By a handle, and holds it for a while.
    async fn acquire(&mut self) {
        let Self { world, rng, .. } = self;
        let own = rng.pick(&self.layers);
        let held = world.mode.span(rng, 20);
        if rng.once_in(2) {
            let permit = handles::try_acquire(&own, rng);
            pause(held).await;
            drop(permit);
            return;
        }
        // Never for good: a `Buffer` keeps a permit for the next request, if it got one for a request that has
        // been cancelled.
        let cut = Cut::draw(world, rng, true);
        let acquired = match &own.control {
            Control::Limit(handle) => limited(&mut handle.acquire(), cut, world).await,
            Control::Adaptive(handle) => limited(&mut handle.acquire(), cut, world).await,
            Control::Rate(handle) => {
                let acquired = limited(&mut handle.acquire(1), cut, world).await;
                note_acquired(&own, &acquired);
                return;
            }
            _ => return,
        };
        note_acquired(&own, &acquired);
        pause(held).await;
        drop(acquired);
    }

    /// Or several, one after the other, through the same service. In a task of its own, or not.
    async fn request(&mut self) {
        let stack = self.rng.pick(&self.stacks);
        let requests = Requests {
            world: Arc::clone(&self.world),
            rng: self.rng.fork(),
            tasks: self.tasks.clone(),
            shelf: self.shelf.clone(),
        };
        match self.rng.once_in(2) {
            true => spawn(&self.tasks, requests.run(stack)),
            false => requests.run(stack).await,
        }
    }
}

fn note_acquired<T>(own: &Own, acquired: &Ended<Result<T, Overloaded>>) {
    match acquired {
        Ended::Done(Ok(_)) => _ = own.acquired.fetch_add(1, SeqCst),
        Ended::Done(Err(_)) => _ = own.refused.fetch_add(1, SeqCst),
        Ended::Cut | Ended::Panicked => {}
    }
}

struct Requests {
    world: Arc<World>,
    rng: Rng,
    tasks: Tasks,
    shelf: Option<Shelf>,
}

impl Requests {
    async fn run(mut self, mut service: Stack) {
        let last = loop {
            let outcome = self.one(&mut service).await;
            self.world.note(outcome as u64);
            if !self.rng.once_in(4) || outcome == Outcome::Panicked {
                break outcome;
            }
            self.world.operations.fetch_add(1, SeqCst);
        };
        match last.was_called() {
            true => self.shelve(service),
            false => let_go(service),
        }
    }

    /// Drops what should hold nothing, or keeps it.
    fn shelve<T: Send + 'static>(&mut self, it: T) {
        match &self.shelf {
            Some(shelf) if self.rng.once_in(4) => shelf.lock().unwrap().push(Box::new(it)),
            _ => let_go(it),
        }
    }

    async fn one(&mut self, service: &mut Stack) -> Outcome {
        let Self { world, rng, .. } = self;
        let cut = Cut::draw(world, rng, false);
        let mut ready = poll_fn(|cx| service.poll_ready(cx));
        let mut readied = limited(&mut ready, cut, world).await;
        if let Ended::Cut = readied {
            // It has its place in a queue, and is not polled.
            pause(world.mode.span(rng, 30)).await;
            if rng.once_in(2) {
                return Outcome::CutWhileUnready;
            }
            readied = limited(&mut ready, Cut::default(), world).await;
        }
        match readied {
            Ended::Done(Ok(())) => {}
            Ended::Done(Err(_)) => return Outcome::NeverReady,
            Ended::Cut => return Outcome::CutWhileUnready,
            Ended::Panicked => return Outcome::Panicked,
        }
        if rng.once_in(6) {
            pause(world.mode.span(rng, 30)).await; // it is kept ready
        }
        if rng.once_in(10) {
            return Outcome::NotCalled;
        }
        let cut = Cut::draw(world, rng, false);
        let request = world.request(rng, cut.deadline.is_some());
        match caught(|| service.call(request)) {
            Some(future) => self.answer(future, cut).await,
            None => Outcome::Panicked,
        }
    }

    async fn answer(&mut self, mut future: ResponseFuture, cut: Cut) -> Outcome {
        let Self {
            world, rng, tasks, ..
        } = self;
        let mut result = limited(&mut future, cut, world).await;
        if let (Ended::Cut, None) = (&result, cut.deadline) {
            if rng.once_in(2) {
                pause(world.mode.span(rng, 1500)).await; // it is not polled, even if it is woken
                result = limited(&mut future, Cut::default(), world).await;
            }
        }
        match rng.once_in(4) {
            true => spawn(tasks, async move { let_go(future) }), // by another thread
            false => let_go(future),
        }
        match result {
            Ended::Done(Ok(response)) => self.read(response).await,
            Ended::Done(Err(error)) if Overloaded::find(error.as_ref()).is_some() => {
                Outcome::Rejected
            }
            Ended::Done(Err(_)) => Outcome::Failed,
            Ended::Cut => Outcome::Cut,
            Ended::Panicked => Outcome::Panicked,
        }
    }

    /// Some frames, or all of them.
    async fn read(&mut self, mut response: Answer) -> Outcome {
        let Self { world, rng, .. } = self;
        let keep = response.extensions_mut().remove::<KeepPermits>();
        let frames = rng.below(5);
        let mut ended = response.is_end_stream();
        for _ in 0..frames {
            let mut frame = response.frame();
            match limited(&mut frame, Cut::draw(world, rng, false), world).await {
                Ended::Done(Some(Ok(_))) => ended = response.is_end_stream(),
                Ended::Done(_) => {
                    ended = true;
                    break;
                }
                Ended::Cut | Ended::Panicked => {
                    ended = false;
                    break;
                }
            }
        }
        let kept_for = world.mode.span(rng, 30);
        match ended {
            true => self.shelve(response),
            false => let_go(response),
        }
        if keep.is_some() {
            pause(kept_for).await;
        }
        let_go(keep);
        Outcome::Served
    }
}

type ResponseFuture = <Stack as Service<crate::world::Asked>>::Future;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    CutWhileUnready = 1,
    NeverReady,
    NotCalled,
    Served,
    Rejected,
    Failed,
    Cut,
    Panicked,
}

impl Outcome {
    fn was_called(self) -> bool {
        matches!(
            self,
            Self::Served | Self::Rejected | Self::Failed | Self::Cut
        )
    }
}

/// Drops it, also if that panics.
pub fn let_go<T>(it: T) {
    let _ = caught(|| drop(it));
}

/// When a caller gives up.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    polls: Option<u32>,
    deadline: Option<Duration>,
}

impl Cut {
    fn draw(world: &World, rng: &mut Rng, surely: bool) -> Self {
        let deadline = surely || rng.once_in(5);
        Self {
            polls: rng.once_in(5).then(|| rng.below(5) as u32),
            deadline: deadline.then(|| world.mode.bound(rng, 300)),
        }
    }
}

enum Ended<T> {
    Done(T),
    Cut,
    Panicked,
}

/// More polls than anything takes that does not wake itself all the time.
const BUSY: u32 = 20_000;

async fn limited<F>(future: &mut F, cut: Cut, world: &World) -> Ended<F::Output>
where
    F: Future + Unpin,
{
    let mut deadline = cut.deadline.map(|after| Box::pin(sleep(after)));
    let mut polls = 0;
    poll_fn(|cx| {
        let gives_up = |polls| cut.polls.is_some_and(|most| polls >= most);
        let over = (deadline.as_mut()).is_some_and(|at| at.as_mut().poll(cx).is_ready());
        if over || gives_up(polls) {
            return Poll::Ready(Ended::Cut);
        }
        polls += 1;
        match caught(|| Pin::new(&mut *future).poll(cx)) {
            None => Poll::Ready(Ended::Panicked),
            Some(Poll::Ready(output)) => Poll::Ready(Ended::Done(output)),
            Some(Poll::Pending) if gives_up(polls) => Poll::Ready(Ended::Cut),
            Some(Poll::Pending) if polls > BUSY => {
                world.violated("polled without end");
                Poll::Ready(Ended::Cut)
            }
            Some(Poll::Pending) => Poll::Pending,
        }
    })
    .await
}
