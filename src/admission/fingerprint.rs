//! What a key that clients choose is known by: 128 bits of a hash (SipHash), seeded at random.
//!
//! So a key costs the same however long it is, and nobody who does not know the seed can find two that are
//! taken for one (by chance: one in 10²⁸ for 100 000 keys).

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint(u128);

impl Fingerprint {
    /// The half of it that a [`ByFingerprint`] does not look at.
    pub(crate) fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// Makes fingerprints; each of these makes others.
#[derive(Debug)]
pub(crate) struct Fingerprints(RandomState);

impl Fingerprints {
    pub(crate) fn new() -> Self {
        Self(RandomState::new())
    }

    pub(crate) fn of<K: Hash + ?Sized>(&self, key: &K) -> Fingerprint {
        // The hash of the key, and that of the key with a byte behind it: the bulk of the work is done
        // once, and the two have nothing to do with each other.
        let mut hasher = self.0.build_hasher();
        key.hash(&mut hasher);
        let high = u128::from(hasher.finish());
        hasher.write_u8(0xff);
        Fingerprint(high << 64 | u128::from(hasher.finish()))
    }
}

pub(crate) type ByFingerprint<T> = HashMap<Fingerprint, T, BuildHasherDefault<Uniform>>;

/// A fingerprint is a hash already.
#[derive(Default)]
pub(crate) struct Uniform(u64);

impl Hasher for Uniform {
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are u128")
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
