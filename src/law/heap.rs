//! A priority queue of numbered items whose order may change: a heap with eight children to a node, and
//! where in it each item is.
//!
//! Eight rather than two make it a third as deep, and that many small entries are looked at in the time that
//! it takes to fetch the first. Positions are in an array of their own, which stays in the cache when the items'
//! records do not.

const CHILDREN: usize = 8;
const ABSENT: u32 = u32::MAX;

/// An item and its order among others.
pub(crate) trait Entry: Ord + Copy {
    /// The number of the item. One item has one entry.
    fn item(self) -> u32;
}

/// The smallest entry is on top.
#[derive(Debug)]
pub(crate) struct Heap<E> {
    entries: Vec<E>,
    /// Of each item: where it is in `entries`.
    positions: Vec<u32>,
    /// Whether the entry on top was taken out. What is put in next is often small and takes its place, which costs
    /// a fraction of filling the hole from the bottom.
    hole: bool,
}

impl<E: Entry> Heap<E> {
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

    /// The smallest entry.
    #[inline]
    pub(crate) fn top(&mut self) -> Option<E> {
        if self.hole {
            self.fill_hole();
        }
        self.entries.first().copied()
    }

    /// Puts an item in, or gives it another entry.
    pub(crate) fn set(&mut self, entry: E) {
        match self.position(entry.item()) {
            Some(at) if self.entries[at] < entry => self.sift_down(at, entry),
            Some(at) => self.sift_up(at, entry),
            None => self.insert(entry),
        }
    }

    /// Puts an item in that is not in.
    pub(crate) fn insert(&mut self, entry: E) {
        let item = entry.item() as usize;
        if self.positions.len() <= item {
            self.positions.resize(item + 1, ABSENT);
        }
        if self.hole {
            self.hole = false;
            self.sift_down(0, entry);
        } else {
            self.entries.push(entry);
            self.sift_up(self.entries.len() - 1, entry);
        }
    }

    /// Gives the item on top a larger entry.
    pub(crate) fn set_top(&mut self, entry: E) {
        self.sift_down(0, entry);
    }

    /// Takes out the item on top.
    pub(crate) fn remove_top(&mut self) {
        self.positions[self.entries[0].item() as usize] = ABSENT;
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
            Some(removed) if *removed < last => self.sift_down(at, last),
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

    /// Gives every item another entry.
    pub(crate) fn rebuild(&mut self, entry: impl Fn(u32) -> E) {
        let hole = usize::from(std::mem::take(&mut self.hole));
        for old in std::mem::take(&mut self.entries).into_iter().skip(hole) {
            self.positions[old.item() as usize] = ABSENT;
            self.set(entry(old.item()));
        }
    }

    /// The entry of an item, if it is in.
    pub(crate) fn get(&self, item: u32) -> Option<E> {
        self.position(item).map(|at| self.entries[at])
    }

    #[inline]
    fn position(&self, item: u32) -> Option<usize> {
        let at = *self.positions.get(item as usize)?;
        (at != ABSENT).then_some(at as usize)
    }

    /// Puts the entry where it belongs, from `at` upwards. What is at `at` is overwritten.
    fn sift_up(&mut self, mut at: usize, entry: E) {
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            // Nothing is above the hole, whatever was there before.
            if parent == 0 && self.hole || self.entries[parent] <= entry {
                break;
            }
            self.place(at, self.entries[parent]);
            at = parent;
        }
        self.place(at, entry);
    }

    /// The same downwards.
    #[inline(always)]
    fn sift_down(&mut self, mut at: usize, entry: E) {
        while let Some((child, smallest)) = self.smallest_child(at) {
            if entry < smallest {
                break;
            }
            self.place(at, smallest);
            at = child;
        }
        self.place(at, entry);
    }

    #[inline]
    fn smallest_child(&self, at: usize) -> Option<(usize, E)> {
        let first = at * CHILDREN + 1;
        let children = self.entries.get(first..)?;
        let mut smallest = (0, *children.first()?);
        // In most nodes there are all of them, and the compiler knows how many that is.
        if let Some(all) = children.first_chunk::<CHILDREN>() {
            for (i, child) in all.iter().enumerate() {
                if *child < smallest.1 {
                    smallest = (i, *child);
                }
            }
        } else {
            for (i, child) in children.iter().enumerate() {
                if *child < smallest.1 {
                    smallest = (i, *child);
                }
            }
        }
        Some((first + smallest.0, smallest.1))
    }

    #[inline]
    fn place(&mut self, at: usize, entry: E) {
        self.positions[entry.item() as usize] = at as u32;
        self.entries[at] = entry;
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl Entry for (u64, u32) {
        fn item(self) -> u32 {
            self.1
        }
    }

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
                        heap.set((key, item));
                        model.insert((key, item));
                        keys[item as usize] = Some(key);
                    }
                    None => heap.remove(item),
                }
                prop_assert_eq!(heap.get(item), key.map(|key| (key, item)));
                if item == 0 {
                    heap.rebuild(|item| (keys[item as usize].expect("it is in"), item));
                }
                prop_assert_eq!(heap.top(), model.first().copied());
                prop_assert_eq!(heap.is_empty(), model.is_empty());
            }
            while let Some(smallest) = model.pop_first() {
                prop_assert_eq!(heap.top(), Some(smallest));
                heap.remove(smallest.1);
            }
            prop_assert!(heap.top().is_none());
        }
    }
}
