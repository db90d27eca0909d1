//! Where layers for requests of any type find the deadline.

use http::Request;

use super::Deadline;
use crate::{clock, head::Head, sync::Arc};

/// Finds the deadline of a request. Implemented by [`FromRequest`], for HTTP, and by any `Fn(&Request) -> Option<Deadline>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the deadline of a `{R}`",
    note = "a closure needs the type of its argument written out: `|job: &Job| …`"
)]
pub trait ExtractDeadline<R> {
    /// The deadline, if it has one.
    fn deadline(&self, request: &R) -> Option<Deadline>;
}

impl<R, F> ExtractDeadline<R> for F
where
    F: Fn(&R) -> Option<Deadline>,
{
    fn deadline(&self, request: &R) -> Option<Deadline> {
        self(request)
    }
}

/// The [`Deadline`] in the extensions of an HTTP request, or else the one that its protocol states, by `grpc-timeout` or
/// `connect-timeout-ms`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromRequest;

impl<B> ExtractDeadline<Request<B>> for FromRequest {
    fn deadline(&self, request: &Request<B>) -> Option<Deadline> {
        super::of(&Head::of(request), clock::instant())
    }
}

/// The function that finds a request's key, and an [`ExtractDeadline`]. Made by the `deadline` of a keyed layer.
#[derive(Debug)]
pub struct WithDeadline<K, D> {
    pub(crate) key: Arc<K>,
    pub(crate) deadline: D,
}
