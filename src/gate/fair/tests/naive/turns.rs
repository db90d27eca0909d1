//! Who is next, and what that costs.

use super::*;

impl Naive {
    pub(super) fn price(&self, tenant: usize) -> u64 {
        ONE / u64::from(self.tenants[tenant].weight)
    }

    pub(super) fn charged_of(&self, tenant: usize) -> impl Iterator<Item = (&Running, u64)> {
        let running = self.running.iter();
        running.filter_map(move |request| {
            let (paid, _) = request.charge?;
            (request.tenant == tenant).then_some((request, paid))
        })
    }

    pub(super) fn may_run(&self, tenant: usize) -> bool {
        self.charged_of(tenant).count() < self.cap
    }

    /// What the tenant's running requests are over what was paid for them.
    pub(super) fn overrun(&self, tenant: usize) -> u128 {
        let mut over = 0;
        for (request, paid) in self.charged_of(tenant) {
            over += i128::from(request.cost) * i128::from(self.now - request.began);
            over -= i128::from(paid);
        }
        // Those that were not charged count from when others began to wait, and for no less than is expected.
        let busy_since = self.busy.last().map_or(0, |(since, _)| *since);
        let each = (self.now - busy_since).max(self.expected(tenant)).max(1);
        let uncharged = self.running.iter();
        let uncharged = uncharged.filter(|request| {
            request.tenant == tenant && request.charge.is_none() && request.is_counted
        });
        let uncharged: u64 = uncharged
            .map(|request| u64::from(request.cost) * each)
            .sum();
        (over.max(0) as u128 + u128::from(uncharged)) * u128::from(self.price(tenant))
    }

    /// Of each tenant that may have another in flight the first; of those the one with the lowest tag, and of equals the
    /// first.
    pub(super) fn next_waiter(&self) -> Option<usize> {
        let firsts = (0..self.tenants.len()).filter(|&tenant| self.may_run(tenant));
        let firsts = firsts.filter_map(|tenant| {
            let at = self.waiting.iter().position(|one| one.tenant == tenant)?;
            let start = self.tenants[tenant].tag + self.overrun(tenant);
            Some((start >> STEP, self.waiting[at].number, at))
        });
        firsts.min().map(|(_, _, at)| at)
    }

    pub(in super::super) fn has_next(&self) -> bool {
        self.next_waiter().is_some()
    }

    pub(super) fn oldest_that_may_run(&self) -> Option<u64> {
        let mut waiting = self.waiting.iter();
        let oldest = waiting.find(|waiter| self.may_run(waiter.tenant));
        oldest.map(|waiter| self.now - waiter.came)
    }

    pub(super) fn expected(&self, tenant: usize) -> u64 {
        match self.tenants[tenant].estimate {
            0 => self.estimate,
            known => known,
        }
    }

    /// A tenant that did not compete begins where the others are.
    pub(super) fn catch_up(&mut self, tenant: usize) {
        let entry = self.entry(tenant, self.expected(tenant));
        let own = &mut self.tenants[tenant];
        own.tag = own.tag.max(entry);
    }

    pub(super) fn entry(&mut self, tenant: usize, expected: u64) -> u128 {
        if self.waiting.is_empty() {
            return self.virtual_time;
        }
        let one = u128::from(expected) * u128::from(self.price(tenant));
        let competing: u64 = (0..self.tenants.len())
            .filter(|&other| self.waiting_of(other) > 0)
            .map(|other| u64::from(self.tenants[other].weight))
            .sum();
        let own = u64::from(self.tenants[tenant].weight) * self.counted() as u64;
        let moved = u128::from(self.used) * u128::from(ONE / (competing + own).max(1));
        self.used = 0;
        self.pace = (self.pace + moved).clamp(self.virtual_time, self.virtual_time + one);
        self.latest = self.latest.max(self.pace);
        self.pace
    }

    pub(super) fn charge(&mut self, tenant: usize, cost: u32) -> (u64, u64) {
        let paid = self.expected(tenant).max(1) * u64::from(cost);
        let price = self.price(tenant);
        self.tenants[tenant].tag += u128::from(paid) * u128::from(price);
        (paid, price)
    }

    pub(super) fn note_idle(&mut self) {
        if self.waiting.is_empty() && self.charged() == 0 {
            self.virtual_time = self.virtual_time.max(self.latest);
        }
    }

    /// Charges what was used instead of what was paid.
    pub(super) fn settle_charge(
        &mut self,
        request: &Running,
        (paid, price): (u64, u64),
        used: u64,
    ) {
        let tenant = request.tenant;
        let was_held_back = self.charged_of(tenant).count() + 1 == self.cap;
        let own = &mut self.tenants[tenant];
        own.tag += u128::from(used) * u128::from(price) + (1 << STEP);
        own.tag -= u128::from(paid) * u128::from(price);
        self.latest = self.latest.max(own.tag);
        self.note_idle();
        if was_held_back {
            self.catch_up(tenant);
        }
    }

    /// Charges for service while others waited.
    pub(super) fn charge_late(&mut self, tenant: usize, charged: u64) {
        self.used += charged;
        let price = self.price(tenant);
        let own = &mut self.tenants[tenant];
        own.tag = own.tag.max(self.began_to_wait);
        own.tag += u128::from(charged) * u128::from(price) + (1 << STEP);
        self.latest = self.latest.max(own.tag);
        self.note_idle();
    }

    /// For the time in which somebody waited, which is not free however short it was.
    pub(super) fn charge_for_busy(&mut self, request: &Running) {
        let waited = self.busy(request.began);
        let still_waits = matches!(self.busy.last(), Some((_, None)));
        if waited > 0 || still_waits {
            self.charge_late(request.tenant, waited.max(1) * u64::from(request.cost));
        }
    }

    pub(super) fn learn(&mut self, tenant: usize, took: u64) {
        for estimate in [&mut self.tenants[tenant].estimate, &mut self.estimate] {
            *estimate = match *estimate {
                0 => took.max(1),
                known => known - known / 5 + took.max(1) / 5,
            };
        }
    }
}
