//! The scheduler of `Wfq` by itself, with tenants that all have requests waiting.

#[allow(
    dead_code,
    unused_imports,
    reason = "a part of it is used, and none of its tests"
)]
#[path = "../../src/law/fair_queue.rs"]
pub mod fair_queue;
#[allow(unused_imports, reason = "its tests are not used")]
#[path = "../../src/law/heap.rs"]
pub mod heap;
#[path = "../../src/law/slab.rs"]
pub mod slab;

use std::{hint::black_box, num::NonZeroU32};

use fair_queue::{Charge, FairQueue, Order, Ticket};

pub struct Fair {
    queue: FairQueue<u64>,
    tenants: u32,
    now: u64,
    tenant: u32,
}

impl Fair {
    /// Each tenant has so many requests waiting, and weights are from 1 to 10.
    pub fn new(tenants: u32) -> Self {
        let mut queue = FairQueue::new();
        for tenant in 0..tenants {
            assert_eq!(queue.add_tenant(tenant % 10 + 1), tenant);
        }
        let mut fair = Self {
            queue,
            tenants,
            now: 0,
            tenant: 0,
        };
        // So many that nobody runs dry while it is looked at, twice for everybody to be served before that.
        let each = 2 + 20_000 / tenants;
        for i in 0..each * tenants {
            fair.push(i % tenants);
        }
        (0..2 * tenants).for_each(|_| fair.request());
        fair
    }

    /// One request comes, another one is next, begins, and is done.
    pub fn request(&mut self) {
        let charge = self.enqueue_and_dispatch();
        self.now += 1000 + u64::from(self.tenant % 1000);
        black_box(self.queue.finish(charge, self.now));
    }

    /// The same, but that it is not done.
    #[inline(always)]
    pub fn enqueue_and_dispatch(&mut self) -> Charge {
        // In no particular order, but all of them.
        self.tenant += 7919 % self.tenants;
        if self.tenant >= self.tenants {
            self.tenant -= self.tenants;
        }
        self.push(self.tenant);
        let (ticket, mut charge) = self
            .queue
            .next_in(Order::OldestFirst, self.now)
            .expect("many wait");
        self.queue.begin(&ticket, &mut charge, self.now);
        charge
    }

    #[inline(always)]
    pub fn push(&mut self, tenant: u32) -> Ticket {
        self.queue.push(tenant, NonZeroU32::MIN, self.now, 0)
    }

    /// One comes and leaves again.
    pub fn cancel(&mut self) {
        let ticket = self.push(self.tenant);
        black_box(self.queue.cancel(&ticket));
    }
}
