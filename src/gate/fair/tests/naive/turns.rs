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

    /// What the tenant's running requests in this lane are over what was paid for them.
    pub(super) fn overrun(&mut self, (tenant, lane): Who) -> u128 {
        let mut over = 0;
        for (request, paid) in self.charged_of(tenant).filter(|one| one.0.lane == lane) {
            over += i128::from(request.cost) * i128::from(self.now - request.began);
            over -= i128::from(paid);
        }
        // Those that were not charged count from when others began to wait, and for no less than is expected.
        let busy_since = self.busy.last().map_or(0, |(since, _)| *since);
        let each = (self.now - busy_since)
            .max(self.expected((tenant, lane)))
            .max(1);
        let uncharged = self.running.iter();
        let uncharged = uncharged.filter(|request| {
            (request.tenant, request.lane) == (tenant, lane)
                && request.charge.is_none()
                && request.is_counted
        });
        let uncharged: u64 = uncharged
            .map(|request| u64::from(request.cost) * each)
            .sum();
        (over.max(0) as u128 + u128::from(uncharged)) * u128::from(self.price(tenant))
    }

    /// Of the lane that is next: of each tenant that may have another in flight the first; of those the one with the lowest
    /// tag, and of equals the first.
    pub(super) fn next_waiter(&mut self) -> Option<usize> {
        let lane = self.next_lane()?;
        let firsts = (0..self.tenants.len()).filter(|&tenant| self.may_run(tenant));
        let firsts: Vec<_> = firsts.collect();
        let firsts = firsts.into_iter().filter_map(|tenant| {
            let who = (tenant, lane);
            let at = self.first_of(who)?;
            let start = self.tag(who) + self.overrun(who);
            Some((start >> STEP, self.waiting[at].number, at))
        });
        firsts.min().map(|(_, _, at)| at)
    }

    fn first_of(&self, who: Who) -> Option<usize> {
        let mut waiting = self.waiting.iter();
        waiting.position(|one| (one.tenant, one.lane) == who)
    }

    fn has_next_in(&self, lane: Lane) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|one| one.lane == lane && self.may_run(one.tenant))
    }

    /// The most important one that has any, unless one behind it is owed a start.
    pub(super) fn next_lane(&self) -> Option<Lane> {
        let mut lanes = all_lanes().rev().filter(|&lane| self.has_next_in(lane));
        let first = lanes.next()?;
        let owed = lanes.find(|&lane| self.owed[usize::from(lane)] >= WHOLE);
        Some(owed.unwrap_or(first))
    }

    /// A waiter of this lane starts: each lane that waits is owed a part of a start.
    pub(super) fn note_started(&mut self, started: Lane) {
        self.started_waiters += 1;
        if !self.asks {
            return;
        }
        for lane in all_lanes() {
            let waits = self.waiting_in(lane) > 0;
            let due = self.owed[usize::from(lane)] + self.floor;
            self.owed[usize::from(lane)] = match (waits, lane == started) {
                (false, _) => 0,
                (true, false) => due.min(WHOLE),
                (true, true) => due.saturating_sub(WHOLE),
            };
        }
    }

    pub(in super::super) fn has_next(&self) -> bool {
        self.next_lane().is_some()
    }

    pub(super) fn oldest_that_may_run(&self) -> Option<u64> {
        let oldest = self.oldest_of(|waiter| self.may_run(waiter.tenant));
        oldest.map(|came| self.now - came)
    }

    pub(super) fn expected(&mut self, (tenant, lane): Who) -> u64 {
        match self.tenants[tenant].estimates[usize::from(lane)] {
            0 => self.lane(lane).estimate,
            known => known,
        }
    }

    /// A tenant that did not compete begins where the others are.
    pub(super) fn catch_up(&mut self, who: Who) {
        let expected = self.expected(who);
        let entry = self.entry(who, expected);
        let own = self.tag_mut(who);
        *own = (*own).max(entry);
    }

    pub(super) fn entry(&mut self, (tenant, lane): Who, expected: u64) -> u128 {
        if self.waiting_in(lane) == 0 {
            return self.lane(lane).virtual_time;
        }
        let one = u128::from(expected) * u128::from(self.price(tenant));
        let competing: u64 = (0..self.tenants.len())
            .filter(|&other| self.waiting_of_in((other, lane)) > 0)
            .map(|other| u64::from(self.tenants[other].weight))
            .sum();
        let own = u64::from(self.tenants[tenant].weight) * self.counted_in(lane) as u64;
        let lane = self.lane(lane);
        let moved = u128::from(lane.used) * u128::from(ONE / (competing + own).max(1));
        lane.used = 0;
        lane.pace = (lane.pace + moved).clamp(lane.virtual_time, lane.virtual_time + one);
        lane.latest = lane.latest.max(lane.pace);
        lane.pace
    }

    pub(super) fn charge(&mut self, who: Who, cost: u32) -> (u64, u64) {
        let paid = self.expected(who).max(1) * u64::from(cost);
        let price = self.price(who.0);
        *self.tag_mut(who) += u128::from(paid) * u128::from(price);
        (paid, price)
    }

    pub(super) fn note_idle(&mut self, lane: Lane) {
        if self.waiting_in(lane) == 0 && self.charged_in(lane) == 0 {
            let lane = self.lane(lane);
            lane.virtual_time = lane.virtual_time.max(lane.latest);
        }
    }

    /// Charges what was used instead of what was paid.
    pub(super) fn settle_charge(
        &mut self,
        request: &Running,
        (paid, price): (u64, u64),
        used: u64,
    ) {
        let who = (request.tenant, request.lane);
        let was_held_back = self.charged_of(who.0).count() + 1 == self.cap;
        let own = self.tag_mut(who);
        *own += u128::from(used) * u128::from(price) + (1 << STEP);
        *own -= u128::from(paid) * u128::from(price);
        let own = *own;
        let lane = self.lane(who.1);
        lane.latest = lane.latest.max(own);
        self.note_idle(who.1);
        if was_held_back {
            all_lanes().for_each(|lane| self.catch_up((who.0, lane)));
        }
    }

    /// Charges for service while others waited.
    pub(super) fn charge_late(&mut self, who: Who, charged: u64) {
        let price = self.price(who.0);
        let lane = self.lane(who.1);
        lane.used += charged;
        let began_to_wait = lane.began_to_wait;
        let own = self.tag_mut(who);
        *own = (*own).max(began_to_wait);
        *own += u128::from(charged) * u128::from(price) + (1 << STEP);
        let own = *own;
        let lane = self.lane(who.1);
        lane.latest = lane.latest.max(own);
        self.note_idle(who.1);
    }

    /// For the time in which somebody waited, which is not free however short it was.
    pub(super) fn charge_for_busy(&mut self, request: &Running) {
        let waited = self.busy(request.began);
        let still_waits = matches!(self.busy.last(), Some((_, None)));
        if waited > 0 || still_waits {
            let who = (request.tenant, request.lane);
            self.charge_late(who, waited.max(1) * u64::from(request.cost));
        }
    }

    pub(super) fn learn(&mut self, (tenant, lane): Who, took: u64) {
        let own = &mut self.tenants[tenant].estimates[usize::from(lane)];
        for estimate in [own, &mut self.lanes[usize::from(lane)].estimate] {
            *estimate = match *estimate {
                0 => took.max(1),
                known => known - known / 5 + took.max(1) / 5,
            };
        }
        if !matches!(self.busy.last(), Some((_, None))) {
            return; // nobody waits
        }
        // Three steps down for one of four, and one step up for each of the others.
        let least = self.least_service;
        let step = least / 64 + 1;
        self.least_service = match least {
            0 => took,
            _ if took < least => least.saturating_sub(3 * step),
            _ => (least + step).min(took).max(least),
        };
    }
}
