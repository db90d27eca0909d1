//! What a request costs in memory: counted by the allocator, not guessed.
//! Counts are per thread, so tests do not disturb each other.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use support::{finish, poll, poll_ready};
use tower::{Layer, Service};
use tower_backpressure::{ConcurrencyLimitLayer, LoadShedLayer};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(allocations: usize, bytes: isize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
    BYTES.set(BYTES.get() + bytes);
}

// SAFETY: all work is left to the system's allocator; counting touches only cells of this thread,
// which neither allocate nor have destructors.
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

/// How many allocations, and how many bytes that stay.
fn counted(run: impl FnOnce()) -> (usize, isize) {
    let before = (ALLOCATIONS.get(), BYTES.get());
    run();
    (ALLOCATIONS.get() - before.0, BYTES.get() - before.1)
}

#[derive(Clone)]
struct Answers;

impl Service<u32> for Answers {
    type Response = u32;
    type Error = Infallible;
    type Future = Ready<Result<u32, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u32) -> Self::Future {
        ready(Ok(request))
    }
}

#[test]
fn an_accepted_request_allocates_nothing() {
    let limit = ConcurrencyLimitLayer::new(1);
    let service = LoadShedLayer::new().layer(limit.layer(Answers));
    let drive = || {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        finish(service.call(7)).is_ok()
    };
    assert!(drive());
    let (allocations, _) = counted(|| assert!((0..1000).all(|_| drive())));
    assert_eq!(allocations, 0);
}

#[test]
fn a_refused_request_allocates_its_error_and_nothing_else() {
    let limit = ConcurrencyLimitLayer::new(1);
    let service = LoadShedLayer::new().layer(limit.layer(Answers));
    let _busy = limit.handle().try_acquire().unwrap();
    let drive = || {
        let mut service = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        finish(service.call(7)).is_err()
    };
    assert!(drive());
    let (allocations, kept) = counted(|| assert!((0..1000).all(|_| drive())));
    assert_eq!((allocations, kept), (1000, 0));
}

/// Counted at any number of them, so also right after the slab has doubled. The service or future
/// that waits is its caller's own; this is what the gate keeps for it.
#[test]
fn a_waiting_caller_costs_at_most_100_bytes_of_the_gates_own() {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(usize::MAX);
    let handle = limit.handle();
    let _busy = handle.try_acquire().unwrap();
    let mut waiting: Vec<_> = (0..100_000).map(|_| handle.acquire()).collect();
    let before = BYTES.get();
    let mut most = 0.0_f64;
    for (index, acquire) in waiting.iter_mut().enumerate() {
        assert!(poll(acquire).is_pending());
        if index >= 10 {
            most = most.max((BYTES.get() - before) as f64 / (index + 1) as f64);
        }
    }
    assert!(most <= 100.0, "{most} bytes");
}

#[test]
fn handing_a_permit_on_allocates_nothing() {
    let handle = ConcurrencyLimitLayer::new(1).handle();
    let hand_over = || {
        let busy = handle.try_acquire().unwrap();
        let mut waiting = handle.acquire();
        assert!(poll(&mut waiting).is_pending());
        drop(busy);
        assert!(poll(&mut waiting).is_ready());
    };
    hand_over();
    let (allocations, _) = counted(|| (0..1000).for_each(|_| hand_over()));
    assert_eq!(allocations, 0);
}
