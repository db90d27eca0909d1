//! How a request's key is found, its rate, and its deadline.

use std::hash::Hash;

use super::Handle;
use crate::{
    Deadline, Overloaded, Rate,
    deadline::{ExtractDeadline, WithDeadline},
    gate::{fingerprint::Fingerprint, keyed_buckets::Taken},
    sync::Arc,
};

/// What finds a request's key: a `Fn(&Request) -> Option<impl Hash>`, with or without
/// [`rate_of`](super::KeyedRateLimitLayer::rate_of) and [`deadline`](super::KeyedRateLimitLayer::deadline).
pub trait Key<R>: sealed::Key<R> {}

impl<R, K: sealed::Key<R>> Key<R> for K {}

/// A function that finds the key, and one that finds the key's rate.
#[derive(Debug)]
pub struct WithRate<K, G> {
    pub(super) key: Arc<K>,
    pub(super) rate_of: G,
}

/// A token that was taken for a request, and for which key.
#[derive(Clone, Copy)]
#[allow(unnameable_types, reason = "of a sealed trait")]
pub struct Reserved {
    pub(super) key: Option<Fingerprint>,
    pub(super) taken: Taken,
}

mod sealed {
    use super::*;

    pub trait Key<R> {
        /// Of this request, if it has one.
        fn deadline(&self, _: &R) -> Option<Deadline> {
            None
        }

        /// Takes a token for this request, now or ahead of its time.
        fn take(
            &self,
            limit: &Handle,
            request: &R,
            deadline: Option<Deadline>,
        ) -> Result<Reserved, Box<Overloaded>>;
    }

    impl<R, K, F> Key<R> for F
    where
        F: Fn(&R) -> Option<K>,
        K: Hash,
    {
        fn take(
            &self,
            limit: &Handle,
            request: &R,
            deadline: Option<Deadline>,
        ) -> Result<Reserved, Box<Overloaded>> {
            let buckets = &limit.buckets;
            let key = self(request).map(|key| buckets.fingerprint(&key));
            limit.reserve(key, deadline, || None)
        }
    }

    impl<R, K, F, G> Key<R> for WithRate<F, G>
    where
        F: Fn(&R) -> Option<K>,
        K: Hash,
        G: Fn(&K) -> Option<Rate>,
    {
        fn take(
            &self,
            limit: &Handle,
            request: &R,
            deadline: Option<Deadline>,
        ) -> Result<Reserved, Box<Overloaded>> {
            let buckets = &limit.buckets;
            let key = (self.key)(request);
            let fingerprint = key.as_ref().map(|key| buckets.fingerprint(key));
            limit.reserve(fingerprint, deadline, || (self.rate_of)(key.as_ref()?))
        }
    }

    impl<R, K, D> Key<R> for WithDeadline<K, D>
    where
        K: Key<R>,
        D: ExtractDeadline<R>,
    {
        fn deadline(&self, request: &R) -> Option<Deadline> {
            self.deadline.deadline(request)
        }

        fn take(
            &self,
            limit: &Handle,
            request: &R,
            deadline: Option<Deadline>,
        ) -> Result<Reserved, Box<Overloaded>> {
            self.key.take(limit, request, deadline)
        }
    }
}
