//! What requests do.

use super::*;

impl Naive {
    pub(in super::super) fn reject(&mut self, tenant: usize, reason: Reason) -> Answer {
        self.tenants[tenant].rejected += 1;
        let count = match reason {
            Reason::TooOld => &mut self.counts.too_old,
            Reason::AtLimit => &mut self.counts.at_limit,
            Reason::QueueFull => &mut self.counts.queue_full,
            Reason::WaitTimeout => &mut self.counts.wait_timeout,
            other => panic!("{other} is no reason of a fair room"),
        };
        *count += 1;
        Answer::Rejected(reason)
    }

    pub(in super::super) fn arrive(
        &mut self,
        id: usize,
        tenant: usize,
        cost: u32,
        age: u64,
    ) -> Answer {
        let is_open = !self.has_next() && self.in_flight() < self.limit;
        if is_open && self.is_quiet(age) {
            self.start(id, tenant, cost, None);
            self.note_peak();
            return Answer::Goes;
        }
        if is_open && self.may_run(tenant) {
            self.roll(self.in_flight());
            if let Err(reason) = self.judge(age, 0, self.in_flight(), None) {
                return self.reject(tenant, reason);
            }
            let charge = (self.cap != usize::MAX).then(|| {
                self.catch_up(tenant);
                self.virtual_time = self.tenants[tenant].tag;
                self.charge(tenant, cost)
            });
            self.start(id, tenant, cost, charge);
            self.note_peak();
            return Answer::Goes;
        }
        match self.has_place(tenant) {
            true => Answer::Waits,
            false => self.has_no_place(tenant),
        }
    }

    fn has_no_place(&mut self, tenant: usize) -> Answer {
        self.note_no_place(tenant, self.order());
        self.reject(tenant, Reason::QueueFull)
    }

    pub(super) fn start(
        &mut self,
        id: usize,
        tenant: usize,
        cost: u32,
        charge: Option<(u64, u64)>,
    ) {
        self.running.push(Running {
            id,
            tenant,
            cost,
            began: self.now,
            charge,
            is_counted: true,
        });
    }

    /// One that has started did so without the lock.
    pub(in super::super) fn uncount(&mut self, id: usize) {
        let mut running = self.running.iter_mut();
        let request = running.find(|request| request.id == id);
        request.expect("it has a permit").is_counted = false;
    }

    pub(super) fn backlog(&self, tenant: usize, more: usize) -> u64 {
        (self.waiting_of(tenant) + more) as u64 * (self.price(tenant) >> 12)
    }

    /// The tenant with the most waiting for its weight, unless a newcomer of this one made it that one.
    pub(super) fn hog(&self, newcomer: usize) -> Option<usize> {
        let most = (0..self.tenants.len()).map(|tenant| self.backlog(tenant, 0));
        let most = most.max().expect("there are tenants");
        let hog = (0..self.tenants.len()).find(|&tenant| self.backlog(tenant, 0) == most)?;
        (hog != newcomer && self.backlog(newcomer, 1) < most).then_some(hog)
    }

    /// The place of the one that has to make room for a newcomer of this tenant.
    fn makes_room(&self, newcomer: usize) -> Option<usize> {
        let of = |tenant: usize| move |waiter: &Waiter| waiter.tenant == tenant;
        match (self.hog(newcomer), self.newest_is_next()) {
            (Some(hog), true) => self.waiting.iter().position(of(hog)),
            (None, true) => self.waiting.iter().position(of(newcomer)),
            (Some(hog), false) => self.waiting.iter().rposition(of(hog)),
            (None, false) => None,
        }
    }

    pub(super) fn has_place(&self, tenant: usize) -> bool {
        self.waiting_of(tenant) < self.max_waiting_per_tenant
            && (self.waiting.len() < self.places() || self.makes_room(tenant).is_some())
    }

    pub(in super::super) fn enter(
        &mut self,
        id: usize,
        (tenant, cost): (usize, u32),
        (came, older): (u64, u64),
    ) -> Answer {
        if !self.has_place(tenant) {
            return self.has_no_place(tenant);
        }
        // By the same rule, although the windows may be closed in between.
        let places = self.places();
        let makes_room = self.makes_room(tenant);
        let order = self.order();
        self.roll(self.in_flight());
        if self.in_flight() >= self.limit {
            self.law.inner_pending(self.now);
        }
        if self.waiting.len() >= places {
            let evicted = makes_room.expect("there is a place");
            let evicted_of = self.waiting[evicted].tenant;
            self.turn_away(evicted, Reason::QueueFull);
            self.note_no_place(evicted_of, order);
        }
        if self.waiting.is_empty() {
            (self.pace, self.began_to_wait) = (self.virtual_time, self.virtual_time);
            self.used = 0;
        }
        let is_first = self.waiting_of(tenant) == 0;
        self.entered += 1;
        self.waiting.push(Waiter {
            id,
            tenant,
            cost,
            came,
            older,
            number: self.entered,
        });
        if is_first {
            self.catch_up(tenant);
        }
        self.note_busy();
        self.grant_free();
        self.fate(id)
    }

    pub(super) fn note_busy(&mut self) {
        let is_noted = matches!(self.busy.last(), Some((_, None)));
        match (self.waiting.is_empty(), is_noted) {
            (false, false) => self.busy.push((self.now, None)),
            (true, true) => self.busy.last_mut().expect("it is noted").1 = Some(self.now),
            _ => {}
        }
    }

    /// Takes out one that waits.
    pub(super) fn take_out(&mut self, at: usize) -> Waiter {
        let waiter = self.waiting.remove(at);
        self.waits.push(self.now - waiter.came);
        self.note_idle();
        waiter
    }

    pub(super) fn turn_away(&mut self, at: usize, reason: Reason) {
        let waiter = self.take_out(at);
        self.reject(waiter.tenant, reason);
        self.rejected.insert(waiter.id, reason);
    }

    pub(super) fn position(&self, id: usize) -> Option<usize> {
        self.waiting.iter().position(|waiter| waiter.id == id)
    }

    pub(in super::super) fn expire(&mut self, id: usize) -> Answer {
        if let Some(at) = self.position(id) {
            self.turn_away(at, Reason::WaitTimeout);
            self.note_busy();
        }
        self.fate(id)
    }

    pub(in super::super) fn leave(&mut self, id: usize) {
        match self.position(id) {
            Some(at) => {
                self.take_out(at);
                self.note_busy();
            }
            None if self.rejected.contains_key(&id) => {}
            None => self.end(id, End::NotSent),
        }
    }

    /// A permit is free, and as many others are in flight.
    pub(super) fn grant(&mut self, others: usize, admitted: usize) -> bool {
        self.roll(admitted);
        let mut goes = false;
        while !goes {
            let Some(mut at) = self.next_waiter() else {
                break;
            };
            let order = self.order();
            if order == Order::NewestFirst {
                let tenant = self.waiting[at].tenant;
                let newest = (self.waiting.iter()).rposition(|waiter| waiter.tenant == tenant);
                at = newest.expect("it has one");
            }
            let waiter = self.waiting.remove(at);
            let own = self.now - waiter.came;
            self.waits.push(own);
            let start = self.tenants[waiter.tenant].tag;
            let charge = self.charge(waiter.tenant, waiter.cost);
            self.virtual_time = self.virtual_time.max(start);
            self.start(waiter.id, waiter.tenant, waiter.cost, Some(charge));
            match self.judge(waiter.older + own, own, others, Some(order)) {
                Ok(()) => {
                    self.note_peak();
                    goes = true;
                }
                Err(reason) => {
                    let request = self.running.pop().expect("it was the last");
                    self.settle_charge(&request, charge, 0);
                    self.reject(waiter.tenant, reason);
                    self.rejected.insert(waiter.id, reason);
                }
            }
        }
        if !self.waiting.is_empty() {
            self.law.inner_pending(self.now);
        }
        self.note_busy();
        goes
    }

    pub(in super::super) fn grant_free(&mut self) {
        while self.in_flight() < self.limit && self.has_next() {
            let in_flight = self.in_flight();
            self.grant(in_flight, in_flight);
        }
    }

    /// An admitted request is over of which the room need not be told.
    pub(in super::super) fn pass(&mut self, id: usize) {
        let request = self.take_running(id);
        self.tenants[request.tenant].served += 1;
        self.served += 1;
        self.completed += 1;
        self.grant_free();
    }

    pub(super) fn take_running(&mut self, id: usize) -> Running {
        let mut running = self.running.iter();
        let at = running.position(|request| request.id == id);
        self.running.swap_remove(at.expect("it has a permit"))
    }

    pub(in super::super) fn began(&self, id: usize) -> u64 {
        let mut running = self.running.iter();
        let request = running.find(|request| request.id == id);
        request.expect("it has a permit").began
    }

    pub(in super::super) fn end(&mut self, id: usize, end: End) {
        let in_flight = self.in_flight();
        let request = self.take_running(id);
        let tenant = request.tenant;
        let took = self.now - request.began;
        let cost = u64::from(request.cost);
        let is_served = u64::from(end == End::Served);
        let is_refused = u64::from(matches!(end, End::Refused | End::ServiceRefused));
        self.tenants[tenant].served += is_served;
        self.tenants[tenant].refused += is_refused;
        self.served += is_served;
        self.refused += is_refused;
        match (request.charge, end) {
            (Some(charge), End::Served) => {
                self.learn(tenant, took);
                let used = took.max(1) * cost;
                self.used += used;
                self.settle_charge(&request, charge, used);
            }
            (Some(charge), End::ServiceRefused) => {
                self.settle_charge(&request, charge, took * cost);
            }
            (Some(charge), _) => self.settle_charge(&request, charge, 0),
            (None, End::Served) => {
                self.learn(tenant, took);
                self.charge_for_busy(&request);
            }
            (None, End::ServiceRefused) => self.charge_for_busy(&request),
            (None, _) => {}
        }
        let completed = u64::from(end != End::NotSent);
        if in_flight <= self.limit && self.has_next() {
            self.grant(in_flight - 1, in_flight);
        }
        self.completed += completed;
        self.grant_free();
    }
}
