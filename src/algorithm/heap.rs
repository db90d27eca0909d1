//! A priority queue of numbered items whose keys may change: a heap with four children to a node, and
//! where in it each item is.
//!
//! Four rather than two halve the depth, and four keys of 24 bytes are looked at in the time that it takes
//! to fetch the first. Positions are in an array of their own, which stays in the cache when the items'
//! records do not.

const CHILDREN: usize = 4;
const ABSENT: u32 = u32::MAX;

/// The smallest key is on top.
#[derive(Debug)]
pub(crate) struct Heap<K> {
    entries: Vec<Entry<K>>,
    /// Of each item: where it is in `entries`.
    positions: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    item: u32,
}

impl<K: Ord + Copy> Heap<K> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            positions: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The item with the smallest key, and that.
    #[inline]
    pub(crate) fn top(&self) -> Option<(u32, K)> {
        self.entries.first().map(|top| (top.item, top.key))
    }

    /// Puts an item in, or gives it another key.
    pub(crate) fn set(&mut self, item: u32, key: K) {
        let at = match self.position(item) {
            Some(at) => at,
            None => {
                if self.positions.len() <= item as usize {
                    self.positions.resize(item as usize + 1, ABSENT);
                }
                self.entries.push(Entry { key, item });
                return self.sift_up(self.entries.len() - 1, Entry { key, item });
            }
        };
        let entry = Entry { key, item };
        if key < self.entries[at].key {
            self.sift_up(at, entry);
        } else {
            self.sift_down(at, entry);
        }
    }

    /// Takes an item out, if it is in.
    pub(crate) fn remove(&mut self, item: u32) {
        let Some(at) = self.position(item) else {
            return;
        };
        self.positions[item as usize] = ABSENT;
        let last = self.entries.pop().expect("it is in");
        let Some(removed) = self.entries.get(at) else {
            return; // it was the last itself
        };
        if last.key < removed.key {
            self.sift_up(at, last);
        } else {
            self.sift_down(at, last);
        }
    }

    fn position(&self, item: u32) -> Option<usize> {
        let at = *self.positions.get(item as usize)?;
        (at != ABSENT).then_some(at as usize)
    }

    /// Puts the entry where it belongs, from `at` upwards. What is at `at` is overwritten.
    fn sift_up(&mut self, mut at: usize, entry: Entry<K>) {
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.entries[parent].key <= entry.key {
                break;
            }
            self.place(at, self.entries[parent]);
            at = parent;
        }
        self.place(at, entry);
    }

    /// The same downwards.
    fn sift_down(&mut self, mut at: usize, entry: Entry<K>) {
        loop {
            let first = at * CHILDREN + 1;
            let children = self.entries.iter().enumerate().skip(first).take(CHILDREN);
            let Some((child, smallest)) = children.min_by_key(|(_, child)| child.key) else {
                break;
            };
            if entry.key <= smallest.key {
                break;
            }
            self.place(at, *smallest);
            at = child;
        }
        self.place(at, entry);
    }

    #[inline]
    fn place(&mut self, at: usize, entry: Entry<K>) {
        self.positions[entry.item as usize] = at as u32;
        self.entries[at] = entry;
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_top_is_the_smallest_whatever_was_done(
            steps in prop::collection::vec((0_u32..60, prop::option::weighted(0.8, 0_u64..100)), 1..400),
        ) {
            let mut heap = Heap::new();
            let mut model = BTreeSet::new();
            let mut keys = [None; 60];
            for (item, key) in steps {
                if let Some(old) = keys[item as usize].take() {
                    model.remove(&(old, item));
                }
                match key {
                    Some(key) => {
                        heap.set(item, (key, item));
                        model.insert((key, item));
                        keys[item as usize] = Some(key);
                    }
                    None => heap.remove(item),
                }
                prop_assert_eq!(heap.top().map(|(_, key)| key), model.first().copied());
                prop_assert_eq!(heap.is_empty(), model.is_empty());
            }
            while let Some(smallest) = model.pop_first() {
                prop_assert_eq!(heap.top(), Some((smallest.1, smallest)));
                heap.remove(smallest.1);
            }
            prop_assert!(heap.top().is_none());
        }
    }
}
