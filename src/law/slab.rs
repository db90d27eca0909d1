//! Things that are known by where they are, which stays the same for as long as they are in.

use std::mem;

const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// First unused slot; the unused ones are chained.
    free: u32,
}

#[derive(Debug)]
enum Slot<T> {
    Free { next: u32 },
    Taken(T),
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NIL,
        }
    }

    /// Says where it is: in a slot that is used again, if there is one.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let at = self.free;
        match self.slots.get_mut(at as usize) {
            Some(free) => {
                let Slot::Free { next } = *free else {
                    unreachable!("the free list holds free slots only")
                };
                *free = Slot::Taken(value);
                self.free = next;
                at
            }
            None => {
                // Whoever puts things in holds back long before.
                let at = u32::try_from(self.slots.len()).expect("fewer than 2^32");
                self.slots.push(Slot::Taken(value));
                at
            }
        }
    }

    /// Takes out what is there.
    pub(crate) fn remove(&mut self, at: u32) -> T {
        let free = Slot::Free { next: self.free };
        let Slot::Taken(value) = mem::replace(&mut self.slots[at as usize], free) else {
            unreachable!("{NOTHING}")
        };
        self.free = at;
        value
    }

    /// What is there, if anything is.
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        match self.slots.get_mut(at as usize) {
            Some(Slot::Taken(value)) => Some(value),
            _ => None,
        }
    }

    /// How many slots there are, used or not.
    #[cfg(all(test, not(backpressure_loom)))]
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// How many of them are used.
    #[cfg(all(test, not(backpressure_loom)))]
    pub(crate) fn taken(&self) -> usize {
        let taken = self.slots.iter();
        taken.filter(|slot| matches!(slot, Slot::Taken(_))).count()
    }
}

const NOTHING: &str = "nothing is there";

/// What is there, where something must be.
impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        match &self.slots[at as usize] {
            Slot::Taken(value) => value,
            Slot::Free { .. } => unreachable!("{NOTHING}"),
        }
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        match &mut self.slots[at as usize] {
            Slot::Taken(value) => value,
            Slot::Free { .. } => unreachable!("{NOTHING}"),
        }
    }
}
