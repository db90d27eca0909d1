//! Counts what passes between two layers, independently of what they count themselves.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
};

use tower::{BoxError, Service};
use tower_backpressure::Overloaded;

use crate::world::{Answer, Asked, Stack, TENANTS, Ticket, World};

/// What was counted at one place.
#[derive(Debug, Default)]
pub struct Counts {
    /// Also where `call` panicked.
    pub calls: AtomicU64,
    /// Rejections that came past and were made in this stack, by the layer whose name was asked for.
    pub rejections: AtomicU64,
    /// Errors that are a rejection, wherever it was made.
    pub errors_of_rejection: AtomicU64,
    live: AtomicUsize,
    pub most_live: AtomicUsize,
    live_of: [AtomicUsize; TENANTS + 1],
    /// The most there were of one tenant.
    pub most_live_of_one: AtomicUsize,
}

impl Counts {
    pub fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }
}

/// Where a meter is, as far as it can be told there what was called inside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inside {
    /// Of several attempts, only the last one is seen.
    pub retry: bool,
    /// A rejection from behind it counts as from further in.
    pub buffer: bool,
    /// There is a layer of ours: what the service passes on is marked.
    pub marks: bool,
}

#[derive(Clone)]
pub struct Meter {
    pub inner: Stack,
    pub world: Arc<World>,
    pub counts: Arc<Counts>,
    pub name: &'static str,
    pub inside: Inside,
}

impl Service<Asked> for Meter {
    type Response = Answer;
    type Error = BoxError;
    type Future = MeterFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Asked) -> MeterFuture {
        let ticket = Ticket::of(&request);
        self.counts.calls.fetch_add(1, SeqCst);
        let live = Live::new(&self.counts, ticket.tenant);
        let calls_before = ticket.attempt.load(SeqCst);
        MeterFuture {
            future: self.inner.call(request),
            live: Some(live),
            ticket,
            calls_before,
            world: Arc::clone(&self.world),
            counts: Arc::clone(&self.counts),
            name: self.name,
            inside: self.inside,
        }
    }
}

pub struct MeterFuture {
    future: Pin<Box<dyn Future<Output = Result<Answer, BoxError>> + Send>>,
    live: Option<Live>,
    ticket: Ticket,
    calls_before: u32,
    world: Arc<World>,
    counts: Arc<Counts>,
    name: &'static str,
    inside: Inside,
}

impl Future for MeterFuture {
    type Output = Result<Answer, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.future.as_mut().poll(cx));
        self.live = None;
        let rejection = match &result {
            Ok(response) => response.extensions().get(),
            Err(error) => Overloaded::find(error.as_ref()),
        };
        if let Some(rejection) = rejection {
            let is_error = u64::from(result.is_err());
            (self.counts.errors_of_rejection).fetch_add(is_error, SeqCst);
            self.judge(rejection);
        }
        Poll::Ready(result)
    }
}

impl MeterFuture {
    fn judge(&self, rejection: &Overloaded) {
        if rejection.rejected_here() && rejection.layer() == self.name {
            self.counts.rejections.fetch_add(1, SeqCst);
        }
        let called = self.ticket.attempt.load(SeqCst) > self.calls_before;
        let Inside {
            retry,
            buffer,
            marks,
        } = self.inside;
        if !marks || retry {
            return;
        }
        if called && rejection.rejected_here() {
            self.world.violated(format!(
                "above {}: rejected here, though the service was called: {rejection:?}",
                self.name
            ));
        }
        if !called && !rejection.rejected_here() && !buffer {
            self.world.violated(format!(
                "above {}: from further in, though the service was not called: {rejection:?}",
                self.name
            ));
        }
    }
}

/// A call that has not ended.
struct Live {
    counts: Arc<Counts>,
    tenant: usize,
}

impl Live {
    fn new(counts: &Arc<Counts>, tenant: usize) -> Self {
        let live = counts.live.fetch_add(1, SeqCst) + 1;
        counts.most_live.fetch_max(live, SeqCst);
        let live = counts.live_of[tenant].fetch_add(1, SeqCst) + 1;
        counts.most_live_of_one.fetch_max(live, SeqCst);
        Self {
            counts: Arc::clone(counts),
            tenant,
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.counts.live.fetch_sub(1, SeqCst);
        self.counts.live_of[self.tenant].fetch_sub(1, SeqCst);
    }
}
