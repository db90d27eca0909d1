//! A priority queue of numbered items whose keys may change: a heap with eight children to a node, and
//! where in it each item is.
//!
//! Eight rather than two make it a third as deep, and that many small keys are looked at in the time that
//! it takes to fetch the first. Positions are in an array of their own, which stays in the cache when the items'
//! records do not.

const CHILDREN: usize = 8;
const ABSENT: u32 = u32::MAX;

/// The smallest key is on top.
#[derive(Debug)]
pub(crate) struct Heap<K> {
    entries: Vec<Entry<K>>,
    /// Of each item: where it is in `entries`.
    positions: Vec<u32>,
    /// Whether the item on top was taken out. What is put in next, often with a small key, takes its place:
    /// that costs a fraction of filling the hole from the bottom.
    hole: bool,
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
            hole: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == usize::from(self.hole)
    }

    /// The item with the smallest key, and that.
    #[inline]
    pub(crate) fn top(&mut self) -> Option<(u32, K)> {
        if self.hole {
            self.fill_hole();
        }
        self.entries.first().map(|top| (top.item, top.key))
    }

    /// Puts an item in, or gives it another key.
    pub(crate) fn set(&mut self, item: u32, key: K) {
        let entry = Entry { key, item };
        match self.position(item) {
            Some(at) if self.entries[at].key < key => self.sift_down(at, entry),
            Some(at) => self.sift_up(at, entry),
            None => self.insert(item, key),
        }
    }

    /// Puts an item in that is not in.
    pub(crate) fn insert(&mut self, item: u32, key: K) {
        let entry = Entry { key, item };
        if self.positions.len() <= item as usize {
            self.positions.resize(item as usize + 1, ABSENT);
        }
        if self.hole {
            self.hole = false;
            self.sift_down(0, entry);
        } else {
            self.entries.push(entry);
            self.sift_up(self.entries.len() - 1, entry);
        }
    }

    /// Gives the item on top a larger key.
    pub(crate) fn set_top(&mut self, key: K) {
        let item = self.entries[0].item;
        self.sift_down(0, Entry { key, item });
    }

    /// Takes out the item on top.
    pub(crate) fn remove_top(&mut self) {
        self.positions[self.entries[0].item as usize] = ABSENT;
        self.hole = true;
    }

    /// Takes an item out, if it is in.
    pub(crate) fn remove(&mut self, item: u32) {
        let Some(at) = self.position(item) else {
            return;
        };
        if at == 0 {
            return self.remove_top();
        }
        self.positions[item as usize] = ABSENT;
        let last = self.entries.pop().expect("it is in");
        match self.entries.get(at) {
            None => {} // it was the last itself
            Some(removed) if removed.key < last.key => self.sift_down(at, last),
            Some(_) => self.sift_up(at, last),
        }
    }

    fn fill_hole(&mut self) {
        self.hole = false;
        let last = self.entries.pop().expect("there is a hole in it");
        if !self.entries.is_empty() {
            self.sift_down(0, last);
        }
    }

    /// Gives every item another key.
    pub(crate) fn rekey(&mut self, key: impl Fn(u32) -> K) {
        let hole = usize::from(std::mem::take(&mut self.hole));
        for entry in std::mem::take(&mut self.entries).into_iter().skip(hole) {
            self.positions[entry.item as usize] = ABSENT;
            self.set(entry.item, key(entry.item));
        }
    }

    /// The key of an item, if it is in.
    pub(crate) fn key(&self, item: u32) -> Option<K> {
        self.position(item).map(|at| self.entries[at].key)
    }

    #[inline]
    fn position(&self, item: u32) -> Option<usize> {
        let at = *self.positions.get(item as usize)?;
        (at != ABSENT).then_some(at as usize)
    }

    /// Puts the entry where it belongs, from `at` upwards. What is at `at` is overwritten.
    fn sift_up(&mut self, mut at: usize, entry: Entry<K>) {
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            // Nothing is above the hole, whatever was there before.
            if parent == 0 && self.hole || self.entries[parent].key <= entry.key {
                break;
            }
            self.place(at, self.entries[parent]);
            at = parent;
        }
        self.place(at, entry);
    }

    /// The same downwards.
    #[inline(always)]
    fn sift_down(&mut self, mut at: usize, entry: Entry<K>) {
        while let Some((child, smallest)) = self.smallest_child(at) {
            if entry.key < smallest.key {
                break;
            }
            self.place(at, smallest);
            at = child;
        }
        self.place(at, entry);
    }

    #[inline]
    fn smallest_child(&self, at: usize) -> Option<(usize, Entry<K>)> {
        let first = at * CHILDREN + 1;
        let children = self.entries.get(first..)?;
        let mut smallest = (0, *children.first()?);
        // In most nodes there are all of them, and the compiler knows how many that is.
        if let Some(all) = children.first_chunk::<CHILDREN>() {
            for (i, child) in all.iter().enumerate() {
                if child.key < smallest.1.key {
                    smallest = (i, *child);
                }
            }
        } else {
            for (i, child) in children.iter().enumerate() {
                if child.key < smallest.1.key {
                    smallest = (i, *child);
                }
            }
        }
        Some((first + smallest.0, smallest.1))
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
                if item == 0 {
                    heap.rekey(|item| (keys[item as usize].expect("it is in"), item));
                }
                prop_assert_eq!(heap.top(), model.first().map(|&(key, item)| (item, (key, item))));
                prop_assert_eq!(heap.is_empty(), model.is_empty());
            }
            while let Some(smallest) = model.pop_first() {
                prop_assert_eq!(heap.top().map(|(item, _)| item), Some(smallest.1));
                heap.remove(smallest.1);
            }
            prop_assert!(heap.top().is_none());
        }
    }
}
