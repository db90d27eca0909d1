//! An allocator that counts, for each thread on its own, so that tests do not disturb each other.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static COUNT: Cell<Count> = const { Cell::new(Count { allocations: 0, bytes: 0, peak: 0 }) };
}

/// What a thread has allocated so far, what of it there is, and the most there was since [`counted`]
/// was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub allocations: usize,
    pub bytes: isize,
    pub peak: isize,
}

pub struct Counting;

fn count(allocations: usize, bytes: isize) {
    let mut count = COUNT.get();
    count.allocations += allocations;
    count.bytes += bytes;
    count.peak = count.peak.max(count.bytes);
    COUNT.set(count);
}

/// What it takes to run this: how many allocations, how many bytes that stay, and how many at the
/// most.
pub fn counted(run: impl FnOnce()) -> Count {
    let before = COUNT.get();
    COUNT.set(Count {
        peak: before.bytes,
        ..before
    });
    run();
    let after = COUNT.get();
    Count {
        allocations: after.allocations - before.allocations,
        bytes: after.bytes - before.bytes,
        peak: after.peak - before.bytes,
    }
}

// SAFETY: all work is left to the system's allocator; counting touches only a cell of this thread,
// which neither allocates nor has a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, new_size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
