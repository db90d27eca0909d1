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
            Reason::Displaced => &mut self.counts.displaced,
            Reason::Deadline => &mut self.counts.deadline,
            Reason::WouldBeLate => &mut self.counts.would_be_late,
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
        urgency: Urgency,
    ) -> Answer {
        let is_open = !self.has_next() && self.in_flight() < self.limit;
        // Where nobody is told apart, what can start need not say how urgent it is.
        let lane = if self.asks { urgency.lane } else { MAIN };
        if is_open && self.is_quiet(age) {
            self.start(id, (tenant, lane), cost, None);
            self.note_peak();
            return Answer::Goes;
        }
        if is_open && self.may_run(tenant) {
            self.roll(self.in_flight());
            if let Err(reason) = self.judge(age, 0, self.in_flight(), None) {
                return self.reject(tenant, reason);
            }
            let charge = (self.cap != usize::MAX).then(|| {
                self.catch_up((tenant, lane));
                self.lane(lane).virtual_time = self.tag((tenant, lane));
                self.charge((tenant, lane), cost)
            });
            self.start(id, (tenant, lane), cost, charge);
            self.note_peak();
            return Answer::Goes;
        }
        match self.may_wait((tenant, urgency.lane), urgency.deadline) {
            Ok(_) => Answer::Waits,
            Err(reason) => self.reject(tenant, reason),
        }
    }

    /// Which waiter has to make room, if one has to.
    fn may_wait(&mut self, who: Who, deadline: Option<u64>) -> Result<Option<usize>, Reason> {
        if let Some(deadline) = deadline {
            self.misses(deadline)?;
            self.would_miss(who, deadline)?;
        }
        if self.waiting_of(who.0) >= self.max_waiting_per_tenant {
            let own = all_lanes().find(|&lane| self.waiting_of_in((who.0, lane)) > 0);
            if let Some(own) = own.filter(|own| *own < who.1) {
                return Ok(Some(self.served_last((who.0, own))));
            }
        } else if self.waiting.len() < self.places(who.1) {
            return Ok(None);
        } else if let Some(at) = self.makes_room(who) {
            return Ok(Some(at));
        }
        self.note_no_place(who);
        Err(Reason::QueueFull)
    }

    fn misses(&self, deadline: u64) -> Result<(), Reason> {
        if deadline <= self.now {
            return Err(Reason::Deadline);
        }
        match deadline - self.now < self.least_service {
            true => Err(Reason::WouldBeLate),
            false => Ok(()),
        }
    }

    /// If all that is ahead is served first.
    fn would_miss(&mut self, who: Who, deadline: u64) -> Result<(), Reason> {
        if self.order(who.1) == Order::NewestFirst {
            return Ok(());
        }
        if self.now - self.looked > 10_000 * MS {
            self.turnover = DrainRate::default();
        }
        self.looked = self.now;
        let busy = Duration::from_nanos(self.busy(0));
        let each = self.turnover.look(busy, self.started_waiters);
        let wait = each.map_or(0, |each| each.as_nanos() as u64) * self.ahead(who);
        match self.now + wait + self.least_service > deadline {
            true => {
                self.note_late(who);
                Err(Reason::WouldBeLate)
            }
            false => Ok(()),
        }
    }

    /// All that matter more, and for each of the tenant's own and for the newcomer a round of all tenants, by their weights.
    fn ahead(&self, (tenant, lane): Who) -> u64 {
        let more = (self.waiting.iter())
            .filter(|waiter| waiter.lane > lane)
            .count();
        let competing = (0..self.tenants.len())
            .filter(|&other| other == tenant || self.waiting_of_in((other, lane)) > 0)
            .map(|other| u64::from(self.tenants[other].weight));
        let parts = (competing.sum::<u64>()).div_ceil(self.tenants[tenant].weight.into());
        (self.waiting_of_in((tenant, lane)) as u64 + 1) * parts + more as u64
    }

    pub(super) fn start(&mut self, id: usize, who: Who, cost: u32, charge: Option<(u64, u64)>) {
        let (tenant, lane) = who;
        self.running.push(Running {
            id,
            tenant,
            lane,
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

    pub(super) fn backlog(&self, who: Who, more: usize) -> u64 {
        (self.waiting_of_in(who) + more) as u64 * (self.price(who.0) >> 12)
    }

    /// The tenant with the most waiting in this lane for its weight.
    fn largest_backlog(&self, lane: Lane) -> usize {
        let tenants = 0..self.tenants.len();
        let most = tenants
            .clone()
            .map(|tenant| self.backlog((tenant, lane), 0));
        let most = most.max().expect("there are tenants");
        let mut tenants = tenants.into_iter();
        let largest = tenants.find(|&tenant| self.backlog((tenant, lane), 0) == most);
        largest.expect("one has the most")
    }

    /// That tenant, unless a newcomer of this one made it that one.
    pub(super) fn hog(&self, (newcomer, lane): Who) -> Option<usize> {
        let hog = self.largest_backlog(lane);
        let most = self.backlog((hog, lane), 0);
        (hog != newcomer && self.backlog((newcomer, lane), 1) < most).then_some(hog)
    }

    /// The place of the tenant's waiter in this lane that would be served last.
    fn served_last(&self, who: Who) -> usize {
        let mut waiting = self.waiting.iter();
        let of = |waiter: &Waiter| (waiter.tenant, waiter.lane) == who;
        let last = match self.order(who.1) {
            Order::NewestFirst => waiting.position(of),
            Order::OldestFirst => waiting.rposition(of),
        };
        last.expect("it has one")
    }

    /// The place of the one that has to make room for a newcomer.
    fn makes_room(&self, newcomer: Who) -> Option<usize> {
        let (tenant, lane) = newcomer;
        let of_lane = |least| self.served_last((self.largest_backlog(least), least));
        let less = || all_lanes().take_while(|less| *less < lane);
        // Where there is a floor, each lane keeps one, if another can make room.
        let kept = usize::from(self.floor > 0);
        if let Some(least) = less().find(|&lane| self.waiting_in(lane) > kept) {
            return Some(of_lane(least));
        }
        let newest_first = self.order(lane) == Order::NewestFirst;
        let own = newest_first && self.waiting_of_in(newcomer) > 0;
        let equal = match self.waiting_in(lane) {
            0 => None,
            _ => self.hog(newcomer).or(own.then_some(tenant)),
        };
        if let Some(equal) = equal {
            return Some(self.served_last((equal, lane)));
        }
        less().find(|&lane| self.waiting_in(lane) > 0).map(of_lane)
    }

    pub(in super::super) fn enter(
        &mut self,
        id: usize,
        (who, cost): (Who, u32),
        (came, older): (u64, u64),
        deadline: Option<u64>,
    ) -> Answer {
        let (tenant, lane) = who;
        let makes_room = match self.may_wait(who, deadline) {
            Ok(makes_room) => makes_room,
            Err(reason) => return self.reject(tenant, reason),
        };
        // By the same rule, although the windows may be closed in between.
        let order = makes_room.map(|at| self.order(self.waiting[at].lane));
        self.roll(self.in_flight());
        if self.in_flight() >= self.limit {
            self.law.inner_pending(self.now);
        }
        if let (Some(at), Some(order)) = (makes_room, order) {
            let evicted = self.waiting[at];
            let reason = match evicted.lane < lane {
                true => Reason::Displaced,
                false => Reason::QueueFull,
            };
            self.turn_away(at, reason);
            if self.may_run(evicted.tenant) {
                self.law.note_no_place(evicted.lane, order);
            }
        }
        self.asks |= lane != MAIN;
        if self.waiting_in(lane) == 0 {
            let lane = self.lane(lane);
            (lane.pace, lane.began_to_wait) = (lane.virtual_time, lane.virtual_time);
            lane.used = 0;
        }
        let is_first = self.waiting_of_in(who) == 0;
        self.entered += 1;
        self.waiting.push(Waiter {
            id,
            tenant,
            lane,
            cost,
            deadline,
            came,
            older,
            number: self.entered,
        });
        if is_first {
            self.catch_up(who);
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
        self.note_idle(waiter.lane);
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
            let Waiter {
                tenant,
                lane,
                deadline,
                ..
            } = self.waiting[at];
            let has_passed = |deadline| deadline <= self.now + MS;
            let reason = match deadline.is_some_and(has_passed) {
                true => Reason::Deadline,
                false => Reason::WaitTimeout,
            };
            self.turn_away(at, reason);
            self.note_busy();
            if reason == Reason::Deadline {
                self.note_late((tenant, lane));
            } else if self.is_spared(lane) {
                self.note_no_place((tenant, lane));
            }
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
            let who = (self.waiting[at].tenant, self.waiting[at].lane);
            let order = self.order(who.1);
            if order == Order::NewestFirst {
                let of = |waiter: &Waiter| (waiter.tenant, waiter.lane) == who;
                at = self.waiting.iter().rposition(of).expect("it has one");
            }
            let waiter = self.waiting.remove(at);
            let own = self.now - waiter.came;
            self.waits.push(own);
            let start = self.tag(who);
            let charge = self.charge(who, waiter.cost);
            let lane = self.lane(who.1);
            lane.virtual_time = lane.virtual_time.max(start);
            self.start(waiter.id, who, waiter.cost, Some(charge));
            let in_time = waiter
                .deadline
                .map_or(Ok(()), |deadline| self.misses(deadline));
            if in_time.is_err() {
                self.note_late(who);
            }
            let spared = order == Order::NewestFirst || self.is_spared(who.1);
            let judged = in_time
                .and_then(|()| self.judge(waiter.older + own, own, others, Some((who.1, spared))));
            match judged {
                Ok(()) => {
                    self.note_started(who.1);
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
        let (tenant, lane) = (request.tenant, request.lane);
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
                self.learn((tenant, lane), took);
                let used = took.max(1) * cost;
                self.lane(lane).used += used;
                self.settle_charge(&request, charge, used);
            }
            (Some(charge), End::ServiceRefused) => {
                self.settle_charge(&request, charge, took * cost);
            }
            (Some(charge), _) => self.settle_charge(&request, charge, 0),
            (None, End::Served) => {
                self.learn((tenant, lane), took);
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
