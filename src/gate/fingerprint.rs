//! What a key that clients choose is known by: 64 bits of a hash (SipHash), seeded at random.
//!
//! So a key costs the same however long it is, and so little that caches hold many. Nobody who does not know the
//! seed can find two that are taken for one; that it happens by chance is one in three billion for 100 000 keys.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Bits of it that a [`ByFingerprint`] does not go by: it takes the lowest for the place, and the topmost
    /// seven to tell those apart that are there.
    pub(crate) fn middle(self) -> usize {
        (self.0 >> 40) as u16 as usize
    }

    /// One of `n` places, at most 2^32, by other bits than [`middle`](Self::middle): those that have that in common are
    /// spread evenly.
    pub(crate) fn place(self, n: usize) -> usize {
        ((u64::from(self.0 as u32) * n as u64) >> 32) as usize
    }
}

/// Makes fingerprints; each of these makes others.
#[derive(Clone, Debug)]
pub(crate) struct Fingerprints(RandomState);

impl Fingerprints {
    pub(crate) fn new() -> Self {
        Self(RandomState::new())
    }

    #[inline]
    pub(crate) fn of<K: Hash + ?Sized>(&self, key: &K) -> Fingerprint {
        Fingerprint(self.0.hash_one(key))
    }
}

pub(crate) type ByFingerprint<T> = HashMap<Fingerprint, T, BuildHasherDefault<Uniform>>;

/// A fingerprint is a hash already.
#[derive(Default)]
pub(crate) struct Uniform(u64);

impl Hasher for Uniform {
    #[inline]
    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are u64")
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
