//! What one caller has at a limiter.

use std::{
    fmt,
    mem::{self, ManuallyDrop},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};
use tower_service::Service;

use super::{
    aside::{self, LimiterId, nested, shed},
    bounds::Bounds,
    queue::Ticket,
};
use crate::{BoxError, Overloaded, Reason, sync::Arc};

/// What a claim is made on: something that admits, lets wait, and refuses.
pub(crate) trait Limiter {
    /// Whether an admitted request holds something until it is done, for which others may wait.
    const HOLDS: bool;

    /// What a caller asks for, where that differs.
    type Ask: Copy;

    /// What a caller saw that was not admitted, where its rejection is made from that.
    type Seen: Copy + Default;

    fn bounds(&self) -> &Bounds;

    /// Admits the caller if that can be done without waiting or passing anybody who waits.
    fn try_admit(&self, ask: Self::Ask) -> bool;

    /// The same, with what was seen where it fails.
    #[inline(always)]
    fn attempt(&self, ask: Self::Ask) -> Result<(), Self::Seen> {
        match self.try_admit(ask) {
            true => Ok(()),
            false => Err(Self::Seen::default()),
        }
    }

    /// Admits the caller, else lets it wait, else refuses it.
    fn enter(&self, ask: Self::Ask, waker: Waker) -> Entered;

    /// Whether the ticket has been granted: then the caller is admitted, and the ticket is worth nothing
    /// any more. If not, `waker` is woken when something happens, and where nothing does, this is the
    /// time after which to look again.
    fn redeem(&self, ticket: &Ticket, waker: &Waker) -> Result<(), Option<Duration>>;

    /// Why a ticket that is not granted waits in vain, if that is known by now.
    fn gives_up(&self, _: &Ticket) -> Option<Reason> {
        None
    }

    /// Takes a ticket back that was not redeemed. If it had been granted, the caller is admitted.
    fn leave(&self, ticket: Ticket) -> bool;

    /// Takes an admission back that was not used, as if it had never been.
    fn give_back(&self, ask: Self::Ask);

    /// Makes the refusal, and counts it.
    fn refuse(&self, ask: Self::Ask, reason: Reason) -> Box<Overloaded>;

    /// The same after an [attempt](Self::attempt) that failed: it need not look again.
    fn refuse_as_seen(&self, ask: Self::Ask, reason: Reason, _: Self::Seen) -> Box<Overloaded> {
        self.refuse(ask, reason)
    }
}

/// What became of a caller that was not admitted at once.
pub(crate) enum Entered {
    Admitted,
    /// With the time after which to look again, as [`Limiter::redeem`] gives it.
    Waiting(Ticket, Option<Duration>),
    Refused(Reason),
}

/// One caller at a limiter: it has nothing, waits, is admitted but has made no use of it yet, or was
/// refused. Dropping it gives back whatever it has.
pub(crate) struct Claim<L: Limiter> {
    limiter: Arc<L>,
    ask: L::Ask,
    state: State<L::Seen>,
    /// Set while it waits, to the deadline or to when it has to look again. Apart from the state,
    /// which every request changes, so that changing it has nothing to drop.
    timer: Timer,
}

/// A timer that most requests never need: that there is none to drop costs them a comparison, not a call.
#[derive(Default)]
struct Timer(ManuallyDrop<Option<Pin<Box<Sleep>>>>);

impl Timer {
    #[inline]
    fn clear(&mut self) {
        if self.0.is_some() {
            self.take();
        }
    }

    #[cold]
    fn take(&mut self) {
        self.0.take();
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

#[derive(Default)]
enum State<Seen> {
    #[default]
    Idle,
    /// With the moment at which the wait ends at the latest.
    Waiting(Ticket, Option<Instant>),
    Held,
    /// With what was seen, if the attempt that failed decided it.
    Refused(Reason, Option<Seen>),
    /// A shed was told so, and what was seen. It may come back for the rejection.
    Full(Seen),
}

impl<L: Limiter> Claim<L> {
    #[inline]
    pub(crate) fn new(limiter: Arc<L>, ask: L::Ask) -> Self {
        Self {
            limiter,
            ask,
            state: State::Idle,
            timer: Timer::default(),
        }
    }

    #[inline]
    pub(crate) fn limiter(&self) -> &Arc<L> {
        &self.limiter
    }

    /// Another one that asks for the same and has nothing yet.
    #[inline]
    pub(crate) fn fresh(&self) -> Self {
        Self::new(Arc::clone(&self.limiter), self.ask)
    }

    /// Ready when it is decided: the claim is held, or is refused, which is judged
    /// anew at the next poll.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !matches!(self.state, State::Idle) {
            return self.poll_again(cx);
        }
        match self.limiter.attempt(self.ask) {
            Ok(()) => {
                self.state = State::Held;
                Poll::Ready(())
            }
            Err(seen) => self.poll_slow(cx, Some(seen)),
        }
    }

    /// The `poll_ready` of a layer that reserves: its own claim first, then the inner service.
    #[inline]
    pub(crate) fn poll_ready<S, R>(
        &mut self,
        inner: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BoxError>>
    where
        S: Service<R, Error: Into<BoxError>>,
    {
        ready!(self.poll(cx));
        if !self.is_held() {
            aside::ready_in_vain(); // `call` says so
            return Poll::Ready(Ok(()));
        }
        let held = nested::hold(|| L::HOLDS.then(|| LimiterId::of(&self.limiter)));
        let polled = inner.poll_ready(cx).map_err(Into::into);
        drop(held);
        // An admission is kept while the inner service gets ready, but not for a caller that sheds:
        // it would hoard it, idle, until it happens to be polled again.
        let keep = match polled {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(_)) => false,
            Poll::Pending => !shed::is_not_waiting(cx),
        };
        if !keep {
            self.reset();
        }
        polled
    }

    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.state, State::Held)
    }

    /// Makes use of the claim: from now on the admission is the caller's to give back.
    ///
    /// # Panics
    /// If it was not polled ready.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<(), Box<Overloaded>> {
        if !self.is_held() {
            return Err(self.take_rejection());
        }
        self.state = State::Idle;
        Ok(())
    }

    #[cold]
    fn take_rejection(&mut self) -> Box<Overloaded> {
        match mem::take(&mut self.state) {
            State::Refused(reason, None) => self.limiter.refuse(self.ask, reason),
            State::Refused(reason, Some(seen)) => {
                self.limiter.refuse_as_seen(self.ask, reason, seen)
            }
            State::Idle | State::Waiting(..) | State::Held | State::Full(_) => {
                panic!(
                    "`call` without `poll_ready`: a service must be polled ready before each call"
                )
            }
        }
    }

    /// Gives back whatever it has.
    pub(crate) fn reset(&mut self) {
        let granted = match mem::take(&mut self.state) {
            State::Waiting(ticket, _) => self.limiter.leave(ticket),
            State::Held => true,
            State::Idle | State::Refused(..) | State::Full(_) => false,
        };
        if granted {
            self.limiter.give_back(self.ask);
        }
    }

    #[cold]
    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.state {
            State::Held => Poll::Ready(()),
            State::Refused(..) => {
                self.state = State::Idle; // it is judged anew
                self.poll(cx)
            }
            State::Full(seen) => {
                self.state = State::Idle;
                match self.give_rejection(cx, Some(seen)) {
                    true => Poll::Pending,
                    false => self.poll(cx),
                }
            }
            State::Idle | State::Waiting(..) => self.poll_slow(cx, None),
        }
    }

    /// If it is idle, an attempt was made just now that failed, and this is what was seen.
    #[cold]
    fn poll_slow(&mut self, cx: &mut Context<'_>, seen: Option<L::Seen>) -> Poll<()> {
        if shed::is_not_waiting(cx) {
            return self.poll_shedding(cx, seen);
        }
        // The ticket stays where it is all the while: what is foreign here, wakers and timers, may
        // panic, and no ticket may be lost.
        let mut waiting = if let State::Waiting(ticket, _) = &self.state {
            self.limiter.redeem(ticket, cx.waker())
        } else if self.limiter.bounds().max_waiting() == 0 {
            // Nobody may wait: there is no need of a waker, a timer, a lock, or another look at the clock.
            self.state = State::Refused(Reason::QueueFull, seen);
            return Poll::Ready(());
        } else {
            let bounds = self.limiter.bounds();
            nested::check(LimiterId::of(&self.limiter), bounds.name());
            let max_wait = bounds.max_wait();
            let deadline = max_wait.map(|wait| sleep(wait).deadline());
            match self.limiter.enter(self.ask, cx.waker().clone()) {
                Entered::Admitted => Ok(()),
                Entered::Waiting(ticket, look_again) => {
                    self.state = State::Waiting(ticket, deadline);
                    Err(look_again)
                }
                Entered::Refused(reason) => {
                    self.state = State::Refused(reason, None);
                    return Poll::Ready(());
                }
            }
        };
        // Until it is decided, or there is nothing to do but wait.
        while let Err(look_again) = waiting {
            if let Some(reason) = self.gives_up() {
                self.stop_waiting(reason);
                return Poll::Ready(());
            }
            if self.poll_timer(cx, look_again).is_pending() {
                return Poll::Pending;
            }
            let State::Waiting(ticket, _) = &self.state else {
                return Poll::Ready(());
            };
            waiting = self.limiter.redeem(ticket, cx.waker());
        }
        self.state = State::Held;
        self.timer.clear();
        Poll::Ready(())
    }

    fn gives_up(&self) -> Option<Reason> {
        match &self.state {
            State::Waiting(ticket, _) => self.limiter.gives_up(ticket),
            _ => None,
        }
    }

    /// Ready when it is worth another look, or when the deadline has ended the wait.
    fn poll_timer(&mut self, cx: &mut Context<'_>, look_again: Option<Duration>) -> Poll<()> {
        let deadline = match self.state {
            State::Waiting(_, deadline) => deadline,
            _ => None,
        };
        let look_again = look_again.map(|after| sleep(after).deadline());
        let Some(at) = deadline.into_iter().chain(look_again).min() else {
            self.timer.clear();
            return Poll::Pending;
        };
        let timer = self
            .timer
            .0
            .get_or_insert_with(|| Box::pin(sleep(Duration::ZERO)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        let polled = timer.as_mut().poll(cx);
        if polled.is_ready() && Some(at) == deadline {
            self.stop_waiting(Reason::WaitTimeout);
        }
        polled
    }

    /// Leaves no trace: a caller that sheds does not come back for what is set aside for it.
    fn poll_shedding(&mut self, cx: &Context<'_>, seen: Option<L::Seen>) -> Poll<()> {
        self.stop_waiting(Reason::AtLimit);
        if self.is_held() {
            return Poll::Ready(());
        }
        // It may be a clone of the one that was full before, made by a service in between.
        if !self.give_rejection(cx, seen) {
            self.state = seen.map_or(State::Idle, State::Full);
            shed::tell_full(cx, LimiterId::of(&self.limiter));
        }
        Poll::Pending
    }

    #[inline]
    fn give_rejection(&self, cx: &Context<'_>, seen: Option<L::Seen>) -> bool {
        shed::give_rejection(cx, LimiterId::of(&self.limiter), || match seen {
            Some(seen) => (self.limiter).refuse_as_seen(self.ask, Reason::AtLimit, seen),
            None => self.limiter.refuse(self.ask, Reason::AtLimit),
        })
    }

    /// If it waits: is admitted if that has been granted, else gives up for that reason. To be called
    /// where nothing is decided yet: it waits, or is idle and stays so.
    fn stop_waiting(&mut self, reason: Reason) {
        if let State::Waiting(ticket, _) = mem::take(&mut self.state) {
            self.state = match self.limiter.leave(ticket) {
                true => State::Held,
                false => State::Refused(reason, None),
            };
            self.timer.clear();
        }
    }
}

impl<L: Limiter> Drop for Claim<L> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, State::Idle) {
            self.reset();
        }
    }
}

impl<L: Limiter + fmt::Debug> fmt::Debug for Claim<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Idle => "idle",
            State::Waiting(..) => "waiting",
            State::Held => "held",
            State::Refused(..) => "refused",
            State::Full(_) => "full",
        };
        f.debug_struct("Claim")
            .field("limiter", &self.limiter)
            .field("state", &state)
            .finish()
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use std::convert::Infallible;

    use tower::{Layer, service_fn};

    use super::*;
    use crate::{
        AdaptiveConcurrencyLayer, ConcurrencyLimitLayer, Rate, RateLimitLayer, clock::READS,
    };

    const REJECTIONS: usize = 160;

    /// How often the clock is read for so many rejections, after the first few.
    fn reads(layer: impl Layer<Inner, Service: Service<(), Error = BoxError>>) -> usize {
        let mut service = layer.layer(service_fn(served));
        let mut cx = Context::from_waker(Waker::noop());
        let mut reject = || {
            assert!(service.poll_ready(&mut cx).is_ready());
            let response = std::pin::pin!(service.call(()));
            assert!(matches!(response.poll(&mut cx), Poll::Ready(Err(_))));
        };
        (0..40).for_each(|_| reject());
        let before = READS.get();
        (0..REJECTIONS).for_each(|_| reject());
        READS.get() - before
    }

    type Inner = tower::util::ServiceFn<fn(()) -> std::future::Ready<Result<(), Infallible>>>;

    fn served((): ()) -> std::future::Ready<Result<(), Infallible>> {
        std::future::ready(Ok(()))
    }

    /// One rejection in sixteen looks for the log, and one for the hint.
    const FOR_THE_LOG: usize = REJECTIONS / 16 + 1;
    const FOR_THE_HINT: usize = REJECTIONS / 16 + 1;

    #[test]
    fn where_nobody_may_wait_a_limit_rejects_without_the_clock() {
        let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
        let _taken = limit.handle().try_acquire().unwrap();
        assert!(reads(limit) <= FOR_THE_LOG + FOR_THE_HINT);

        let limit = AdaptiveConcurrencyLayer::vegas().max_waiting(0);
        let handle = limit.handle();
        let _taken: Vec<_> = std::iter::from_fn(|| handle.try_acquire().ok()).collect();
        assert!(reads(limit) <= FOR_THE_LOG + FOR_THE_HINT);
    }

    #[test]
    fn where_nobody_may_wait_a_rate_limit_rejects_with_one_look_at_the_clock() {
        let limit = RateLimitLayer::new(Rate::per_hour(1)).max_waiting(0);
        limit.handle().try_acquire(1).unwrap();
        let reads = reads(limit);
        assert!(reads <= REJECTIONS + FOR_THE_LOG, "{reads}");
    }

    /// A waiter gets a timer, which needs a runtime. There is no runtime here.
    #[test]
    fn where_nobody_may_wait_no_timer_is_made() {
        let limit = ConcurrencyLimitLayer::new(1)
            .max_waiting(0)
            .max_wait(Duration::from_secs(1));
        let _taken = limit.handle().try_acquire().unwrap();
        reads(limit);
    }
}
