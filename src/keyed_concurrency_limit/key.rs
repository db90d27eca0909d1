//! How a request's key is found, and its deadline.

use std::hash::Hash;

use super::Handle;
use crate::{
    Deadline,
    deadline::{ExtractDeadline, WithDeadline},
    gate::keyed_gates::Place,
};

/// What finds a request's key: a `Fn(&Request) -> Option<impl Hash>`, with or without
/// [`deadline`](super::KeyedConcurrencyLimitLayer::deadline).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the key of a `{R}`",
    note = "a closure needs the type of its argument written out: `|request: &Request<Body>| …`"
)]
pub trait Key<R>: sealed::Key<R> {}

impl<R, K: sealed::Key<R>> Key<R> for K {}

mod sealed {
    use super::*;

    pub trait Key<R> {
        /// At the gate of this request's key.
        fn place(&self, limit: &Handle, request: &R) -> Place;

        /// Of this request, if it has one.
        fn deadline(&self, request: &R) -> Option<Deadline>;
    }

    impl<R, K, F> Key<R> for F
    where
        F: Fn(&R) -> Option<K>,
        K: Hash,
    {
        #[inline]
        fn place(&self, limit: &Handle, request: &R) -> Place {
            let gates = &limit.gates;
            Place::new(gates, gates.fingerprint(self(request)))
        }

        #[inline]
        fn deadline(&self, _: &R) -> Option<Deadline> {
            None
        }
    }

    impl<R, K, D> Key<R> for WithDeadline<K, D>
    where
        K: Key<R>,
        D: ExtractDeadline<R>,
    {
        fn place(&self, limit: &Handle, request: &R) -> Place {
            self.key.place(limit, request)
        }

        fn deadline(&self, request: &R) -> Option<Deadline> {
            self.deadline.deadline(request)
        }
    }
}
