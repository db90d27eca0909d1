//! A request that waits for its token.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::{Handle, Reserved};
use crate::{
    BoxError, Deadline,
    gate::waiting::{PollSent, Waiter, WaitingFuture, send},
};

/// The response of the inner service, once the request has its token; or the rejection.
pub type KeyedResponseFuture<S, F, R> = WaitingFuture<ForToken, S, F, R, ()>;

pin_project! {
    /// A request that waits for its token.
    #[allow(unnameable_types, reason = "it is waited for, and nothing else can be done with it")]
    pub struct ForToken {
        #[pin]
        timer: Sleep,
        // Until the token is there.
        put_back: Option<PutBack>,
        // With what rejects it when it has passed.
        deadline: Option<(Deadline, Handle)>,
    }
}

impl ForToken {
    pub(super) fn new(put_back: PutBack, deadline: Option<Deadline>) -> Self {
        let deadline = deadline.map(|deadline| (deadline, put_back.handle.clone()));
        Self {
            timer: sleep(put_back.reserved.taken.wait()),
            deadline,
            put_back: Some(put_back),
        }
    }
}

impl Waiter for ForToken {
    type Held = ();

    fn poll_send<S, R>(
        self: Pin<&mut Self>,
        inner: &mut S,
        request: &mut Option<R>,
        cx: &mut Context<'_>,
    ) -> PollSent<S::Future, ()>
    where
        S: Service<R, Error: Into<BoxError>> + Clone,
        R: 'static,
    {
        let mut this = self.project();
        if let Some(put_back) = this.put_back {
            ready!(this.timer.as_mut().poll(cx));
            put_back.disarm();
            *this.put_back = None;
            // The token came in time. It still waits for the inner service.
            if let Some((deadline, _)) = this.deadline {
                this.timer.as_mut().reset(deadline.instant());
            }
        }
        let polled = inner.poll_ready(cx).map_err(Into::into);
        if let Some((deadline, limit)) = this.deadline {
            let expired = match &polled {
                Poll::Pending => this.timer.poll(cx).is_ready(),
                Poll::Ready(Ok(())) => deadline.has_passed(),
                Poll::Ready(Err(_)) => false,
            };
            if expired {
                return Poll::Ready(Err(limit.buckets.expire()));
            }
        }
        ready!(polled)?;
        Poll::Ready(Ok(send(inner, request, ())))
    }
}

/// Puts a token back that is not waited for to its end.
pub(super) struct PutBack {
    handle: Handle,
    reserved: Reserved,
    /// Then it is too late.
    spent: bool,
}

impl PutBack {
    pub(super) fn new(handle: Handle, reserved: Reserved) -> Self {
        Self {
            handle,
            reserved,
            spent: false,
        }
    }

    /// The token is there, and is spent.
    fn disarm(&mut self) {
        self.spent = true;
    }
}

impl Drop for PutBack {
    fn drop(&mut self) {
        let buckets = &self.handle.buckets;
        let Reserved { key, taken } = self.reserved;
        buckets.stop_waiting(taken);
        if !self.spent {
            buckets.put_back(key, taken);
        }
    }
}
