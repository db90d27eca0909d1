//! The service inside the stacks: it is slow, fails and panics wherever it can, as it is told.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::{Sleep, sleep};
use tower::{BoxError, Service};
use tower_backpressure::hold::KeepPermits;

use crate::{
    support::rejection,
    world::{Answer, Asked, Rng, Ticket, World, mix, throw},
};

/// Pending for a while: for a moment, or until a timer fires.
#[derive(Default)]
struct Delay(Option<Pin<Box<Sleep>>>, bool);

impl Delay {
    fn draw(world: &World, rng: &mut Rng) -> Self {
        let span = world.mode.span(rng, world.faults.slowness);
        match span.is_zero() {
            true => Self(None, true),
            false => Self(Some(Box::pin(sleep(span))), false),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = &mut self.0 {
            return timer.as_mut().poll(cx);
        }
        if std::mem::take(&mut self.1) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

pub struct Inner {
    world: Arc<World>,
    rng: Rng,
    delay: Option<Delay>,
    readied: bool,
}

impl Inner {
    pub fn new(world: &Arc<World>) -> Self {
        Self {
            world: Arc::clone(world),
            rng: world.instance_rng(),
            delay: None,
            readied: false,
        }
    }
}

impl Clone for Inner {
    fn clone(&self) -> Self {
        Self::new(&self.world)
    }
}

impl Service<Asked> for Inner {
    type Response = Answer;
    type Error = BoxError;
    type Future = InnerFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Self { world, rng, .. } = self;
        let faults = &world.faults;
        if !self.readied && self.delay.is_none() {
            if rng.once_in(faults.ready_panics) {
                throw();
            }
            if rng.once_in(faults.ready_fails) {
                return Poll::Ready(Err("not ready ever".into()));
            }
            if rng.once_in(faults.ready_pends) {
                self.delay = Some(Delay::draw(world, rng));
            }
        }
        if let Some(delay) = &mut self.delay {
            ready!(delay.poll(cx));
            self.delay = None;
        }
        self.readied = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Asked) -> InnerFuture {
        let ticket = Ticket::of(&request);
        ticket.attempt.fetch_add(1, SeqCst);
        if !std::mem::take(&mut self.readied) {
            self.world.violated("called without having been ready");
        }
        let mut rng = Rng::new(mix(ticket.seed ^ 1));
        if rng.once_in(self.world.faults.call_panics) {
            throw();
        }
        InnerFuture {
            steps: rng.below(4),
            hangs: ticket.may_hang && rng.once_in(self.world.faults.hangs),
            world: Arc::clone(&self.world),
            rng,
            delay: None,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.world.begun.load(SeqCst) {
            throw_once_in(self.world.faults.service_drop_panics, &mut self.rng);
        }
    }
}

/// Not while another panic unwinds: that would end the process.
fn throw_once_in(n: u64, rng: &mut Rng) {
    if !std::thread::panicking() && rng.once_in(n) {
        throw();
    }
}

pub struct InnerFuture {
    world: Arc<World>,
    rng: Rng,
    steps: u64,
    hangs: bool,
    delay: Option<Delay>,
}

impl Future for InnerFuture {
    type Output = Result<Answer, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            world,
            rng,
            steps,
            hangs,
            delay,
        } = &mut *self;
        let faults = &world.faults;
        while *steps > 0 {
            ready!(
                delay
                    .get_or_insert_with(|| Delay::draw(world, rng))
                    .poll(cx)
            );
            *delay = None;
            *steps -= 1;
        }
        if *hangs {
            return Poll::Pending;
        }
        if rng.once_in(faults.panics) {
            throw();
        }
        if rng.once_in(faults.passes_on_a_rejection) {
            return Poll::Ready(Err(rejection().into()));
        }
        if rng.once_in(faults.fails) {
            return Poll::Ready(Err("failed".into()));
        }
        let body = Frames {
            left: rng.below(4),
            world: Arc::clone(world),
            rng: rng.fork(),
            delay: None,
        };
        let mut response = Response::new(body.boxed_unsync());
        if rng.once_in(8) {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        if rng.once_in(8) {
            response.extensions_mut().insert(KeepPermits::new());
        }
        Poll::Ready(Ok(response))
    }
}

impl Drop for InnerFuture {
    fn drop(&mut self) {
        throw_once_in(self.world.faults.drop_panics, &mut self.rng);
    }
}

/// A body of some frames.
struct Frames {
    world: Arc<World>,
    rng: Rng,
    left: u64,
    delay: Option<Delay>,
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self {
            world, rng, delay, ..
        } = &mut *self;
        let delay = delay.get_or_insert_with(|| Delay::draw(world, rng));
        ready!(delay.poll(cx));
        self.delay = None;
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        let faults = self.world.faults.clone();
        if self.rng.once_in(faults.panics) {
            throw();
        }
        Poll::Ready(Some(match self.rng.once_in(faults.body_fails) {
            true => Err("the body failed".into()),
            false => Ok(Frame::data(Bytes::from_static(b"frame"))),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        throw_once_in(self.world.faults.drop_panics, &mut self.rng);
    }
}
