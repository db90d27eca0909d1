//! Random stacks: layers of this crate, and what tower has to put between them.

use std::{
    fmt,
    future::{Ready, ready},
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Poll},
    time::Duration,
};

use tower::{
    BoxError, Layer, Service,
    buffer::Buffer,
    layer::layer_fn,
    retry::{Policy, Retry},
    steer::Steer,
    timeout::Timeout,
    util::{BoxCloneService, Either, option_layer},
};
use tower_backpressure::SubmittedAtLayer;

use crate::{
    meter::{Inside, Meter},
    own::{Kind, Own},
    world::{Answer, Asked, Mode, Rng, Stack, Ticket, World, mix},
};

/// What a stack is made of, from the inside out.
pub struct Plan {
    pieces: Vec<Piece>,
}

enum Piece {
    Own(Arc<Own>),
    /// By `option_layer`, which makes an `Either` of it.
    Optional(Option<Arc<Own>>),
    /// In its left or its right.
    Either(bool),
    Timeout(Duration),
    Buffer(usize),
    Retry(u32),
    Steer([Arc<Own>; 2]),
    Stamp,
}

const LAYER_NAMES: [&str; 8] = [
    "own0", "own1", "own2", "own3", "own4", "own5", "own6", "own7",
];

impl Plan {
    /// With one to six layers of ours.
    pub fn draw(mode: Mode, rng: &mut Rng) -> Self {
        let wanted = rng.between(1, 6) as usize;
        let mut pieces = Vec::new();
        let mut owned = 0;
        // See `Steer` below.
        let mut reserves = false;
        while owned < wanted {
            if rng.once_in(3) {
                let piece = between(mode, rng);
                reserves |= matches!(piece, Piece::Buffer(_));
                pieces.push(piece);
            }
            let mut own = |kind, rng: &mut Rng| {
                owned += 1;
                Own::draw(kind, LAYER_NAMES[owned - 1], mode, rng)
            };
            if rng.once_in(10) {
                // A `Steer` waits until all its services are ready. If they reserve from one limit, each
                // holds what the other waits for.
                let fit = Kind::ALL
                    .into_iter()
                    .filter(|kind| !kind.reserves(reserves));
                let fit: Vec<_> = fit.collect();
                let branches = [(); 2].map(|()| own(rng.pick(&fit), rng));
                pieces.push(Piece::Steer(branches));
                reserves = false;
                continue;
            }
            let kind = rng.pick(&Kind::ALL);
            let layer = own(kind, rng);
            reserves = kind.reserves(reserves);
            pieces.push(match rng.once_in(6) {
                true => Piece::Optional(Some(layer)),
                false => Piece::Own(layer),
            });
        }
        Self { pieces }
    }

    pub fn layers(&self) -> impl Iterator<Item = &Arc<Own>> {
        self.pieces.iter().flat_map(Piece::layers)
    }

    pub fn has_buffer(&self) -> bool {
        let is_buffer = |piece: &Piece| matches!(piece, Piece::Buffer(_));
        self.pieces.iter().any(is_buffer)
    }

    /// How many requests the layers outside this one have refused without calling what is inside them, and
    /// may have refused on behalf of this one.
    pub fn shed_outside(&self, own: &Arc<Own>) -> u64 {
        let is_it = |piece: &Piece| piece.layers().any(|layer| Arc::ptr_eq(layer, own));
        let outside = self.pieces.iter().skip_while(|piece| !is_it(piece)).skip(1);
        let sheds = outside
            .flat_map(Piece::layers)
            .filter(|layer| layer.kind.sheds());
        sheds
            .map(|layer| layer.above.calls() - layer.below.calls())
            .sum()
    }

    /// Around this service. `patient` has tower's timeouts never end.
    pub fn build(&self, inner: Stack, world: &Arc<World>, patient: bool) -> Stack {
        let mut stack = inner;
        let mut inside = Inside::default();
        for piece in &self.pieces {
            stack = match piece {
                Piece::Own(own) => metered(own, stack, world, &mut inside, |it| own.wrap(it)),
                Piece::Optional(Some(own)) => {
                    let layer = option_layer(Some(layer_fn(|it| own.wrap(it))));
                    let wrap = |it| BoxCloneService::new(layer.layer(it));
                    metered(own, stack, world, &mut inside, wrap)
                }
                Piece::Optional(None) => {
                    let none = option_layer(None::<SubmittedAtLayer>);
                    BoxCloneService::new(none.layer(stack))
                }
                Piece::Either(true) => BoxCloneService::new(Either::<_, Stack>::Left(stack)),
                Piece::Either(false) => BoxCloneService::new(Either::<Stack, _>::Right(stack)),
                Piece::Timeout(_) if patient => stack,
                Piece::Timeout(after) => BoxCloneService::new(Timeout::new(stack, *after)),
                Piece::Buffer(bound) => {
                    inside.buffer = true;
                    let world = Arc::clone(world);
                    let worker = Worker {
                        inner: stack,
                        world,
                    };
                    BoxCloneService::new(Buffer::new(worker, *bound))
                }
                Piece::Retry(attempts) => {
                    inside.retry = true;
                    BoxCloneService::new(Retry::new(Attempts(*attempts), stack))
                }
                Piece::Steer(branches) => {
                    let below = inside;
                    let services = branches.each_ref().map(|own| {
                        inside = below;
                        let stack = stack.clone();
                        metered(own, stack, world, &mut inside, |it| own.wrap(it))
                    });
                    BoxCloneService::new(Steered::new(services))
                }
                Piece::Stamp => BoxCloneService::new(SubmittedAtLayer::new().layer(stack)),
            };
        }
        stack
    }
}

impl Piece {
    fn layers(&self) -> impl Iterator<Item = &Arc<Own>> {
        let layers = match self {
            Self::Own(own) | Self::Optional(Some(own)) => std::slice::from_ref(own),
            Self::Steer(branches) => branches,
            _ => &[],
        };
        layers.iter()
    }
}

fn between(mode: Mode, rng: &mut Rng) -> Piece {
    match rng.below(7) {
        0 => Piece::Timeout(mode.bound(rng, 300)),
        1 => Piece::Buffer(rng.between(1, 8) as usize),
        2 => Piece::Retry(rng.between(1, 2) as u32),
        3 => Piece::Either(true),
        4 => Piece::Either(false),
        5 => Piece::Optional(None),
        _ => Piece::Stamp,
    }
}

/// A layer, with a meter outside and another inside.
fn metered(
    own: &Arc<Own>,
    inner: Stack,
    world: &Arc<World>,
    inside: &mut Inside,
    wrap: impl FnOnce(Stack) -> Stack,
) -> Stack {
    let meter = |inner, counts: &_, inside: Inside| {
        BoxCloneService::new(Meter {
            inner,
            world: Arc::clone(world),
            counts: Arc::clone(counts),
            name: own.name,
            inside,
        })
    };
    let stack = wrap(meter(inner, &own.below, *inside));
    // What the service passes on is not marked by a layer on trial.
    inside.marks |= own.kind != Kind::Shadow;
    meter(stack, &own.above, *inside)
}

/// `Steer` clones its knowledge that its services are ready, and their clones are not. So clones are made of
/// one that was never polled.
struct Steered<F> {
    unpolled: Steer<Stack, F, Asked>,
    polled: Option<Steer<Stack, F, Asked>>,
}

type Picks = fn(&Asked, &[Stack]) -> usize;

impl Steered<Picks> {
    fn new(services: [Stack; 2]) -> Self {
        let by_seed: Picks = |request, services| Ticket::of(request).seed as usize % services.len();
        Self {
            unpolled: Steer::new(services, by_seed),
            polled: None,
        }
    }
}

impl<F: Clone> Clone for Steered<F> {
    fn clone(&self) -> Self {
        Self {
            unpolled: self.unpolled.clone(),
            polled: None,
        }
    }
}

impl<F> Service<Asked> for Steered<F>
where
    F: Fn(&Asked, &[Stack]) -> usize + Clone,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = <Stack as Service<Asked>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let polled = self.polled.get_or_insert_with(|| self.unpolled.clone());
        polled.poll_ready(cx)
    }

    fn call(&mut self, request: Asked) -> Self::Future {
        self.polled.as_mut().expect("polled").call(request)
    }
}

/// Tries again what failed, so many times. Each attempt has a ticket of its own.
#[derive(Clone)]
struct Attempts(u32);

impl Policy<Asked, Answer, BoxError> for Attempts {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Asked, result: &mut Result<Answer, BoxError>) -> Option<Ready<()>> {
        let again = result.is_err() && self.0 > 0;
        again.then(|| {
            self.0 -= 1;
            ready(())
        })
    }

    fn clone_request(&mut self, request: &Asked) -> Option<Asked> {
        let mut ticket = Ticket::of(request);
        ticket.attempt = Arc::default();
        ticket.seed = mix(ticket.seed);
        let mut again = request.clone();
        again.extensions_mut().insert(ticket);
        Some(again)
    }
}

/// Notes whether what a `Buffer`'s worker calls panics, and so the worker.
struct Worker {
    inner: Stack,
    world: Arc<World>,
}

impl Worker {
    fn watched<T>(&mut self, run: impl FnOnce(&mut Stack) -> T) -> T {
        struct Died<'a>(&'a World);
        impl Drop for Died<'_> {
            fn drop(&mut self) {
                self.0.buffer_died.store(true, SeqCst);
            }
        }
        let died = Died(&self.world);
        let ran = run(&mut self.inner);
        std::mem::forget(died);
        ran
    }
}

impl Service<Asked> for Worker {
    type Response = Answer;
    type Error = BoxError;
    type Future = <Stack as Service<Asked>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.watched(|inner| inner.poll_ready(cx))
    }

    fn call(&mut self, request: Asked) -> Self::Future {
        self.watched(|inner| inner.call(request))
    }
}

/// From the outside in.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.pieces.iter().rev() {
            match piece {
                Piece::Own(own) => writeln!(f, "  {}", own.text)?,
                Piece::Optional(Some(own)) => writeln!(f, "  option_layer {}", own.text)?,
                Piece::Optional(None) => writeln!(f, "  option_layer None")?,
                Piece::Either(left) => writeln!(f, "  Either, left: {left}")?,
                Piece::Timeout(after) => writeln!(f, "  Timeout({after:?})")?,
                Piece::Buffer(bound) => writeln!(f, "  Buffer({bound})")?,
                Piece::Retry(attempts) => writeln!(f, "  Retry({attempts})")?,
                Piece::Steer([one, other]) => {
                    writeln!(f, "  Steer of\n    {}\n    {}", one.text, other.text)?;
                }
                Piece::Stamp => writeln!(f, "  SubmittedAt")?,
            }
        }
        Ok(())
    }
}
