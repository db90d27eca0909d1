//! The fair room and its gate in the plainest words: lists that are searched from one end to the other, and the rules as
//! the documentation has them. Nothing is cached, postponed or kept in order.

use std::collections::HashMap;

use super::*;
use crate::{
    admission::bounds::Rejected,
    algorithm::codel::{CoDel, Entry, Verdict},
};

/// A nanosecond at weight 1, and the smallest step of a tag that counts in the order.
const ONE: u64 = 1 << 40;
const STEP: u32 = 24;

pub(super) const OVERFLOW: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Goes,
    Waits,
    Rejected(Reason),
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) weight: u32,
    tag: u128,
    estimate: u64,
    pub(super) served: u64,
    pub(super) rejected: u64,
    pub(super) refused: u64,
}

/// In the order in which they began to wait.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: usize,
    tenant: usize,
    cost: u32,
    came: u64,
    older: u64,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    id: usize,
    tenant: usize,
    cost: u32,
    began: u64,
    /// What was paid, and for what a nanosecond.
    charge: Option<(u64, u64)>,
    /// Whether the room knows of it.
    is_counted: bool,
}

pub(super) struct Naive {
    pub(super) now: u64,
    pub(super) limit: usize,
    pub(super) completed: u64,
    pub(super) cap: usize,
    pub(super) max_waiting: usize,
    pub(super) max_waiting_per_tenant: usize,
    pub(super) tenants: Vec<Tenant>,
    names: HashMap<&'static str, usize>,
    weights: HashMap<&'static str, u32>,
    default_weight: u32,
    waiting: Vec<Waiter>,
    running: Vec<Running>,
    /// Those that were rejected while they waited.
    rejected: HashMap<usize, Reason>,
    pub(super) counts: Rejected,
    pub(super) waits: Vec<u64>,
    /// From when to when somebody waited.
    busy: Vec<(u64, Option<u64>)>,
    entered: u64,
    virtual_time: u128,
    latest: u128,
    pace: u128,
    used: u64,
    began_to_wait: u128,
    estimate: u64,
    pub(super) law: CoDel,
    knows_of: u64,
    /// When one was last granted a permit that was too old.
    probed: Option<u64>,
}

impl Naive {
    pub(super) fn new(limit: usize, ages: Settings) -> Self {
        let mut naive = Self {
            now: 0,
            limit,
            completed: 0,
            cap: usize::MAX,
            max_waiting: usize::MAX,
            max_waiting_per_tenant: usize::MAX,
            tenants: Vec::new(),
            names: HashMap::new(),
            weights: HashMap::new(),
            default_weight: 1,
            waiting: Vec::new(),
            running: Vec::new(),
            rejected: HashMap::new(),
            counts: Rejected::default(),
            waits: Vec::new(),
            busy: Vec::new(),
            entered: 0,
            virtual_time: 0,
            latest: 0,
            pace: 0,
            used: 0,
            began_to_wait: 0,
            estimate: 0,
            law: CoDel::new(ages, 0),
            knows_of: 0,
            probed: None,
        };
        naive.add_tenant(1); // the anonymous one
        naive.add_tenant(1); // and the one for all for whom there is no room
        naive
    }

    fn add_tenant(&mut self, weight: u32) -> usize {
        self.tenants.push(Tenant {
            weight,
            tag: 0,
            estimate: 0,
            served: 0,
            rejected: 0,
            refused: 0,
        });
        self.tenants.len() - 1
    }

    /// The number of a tenant that comes.
    pub(super) fn tenant(&mut self, name: &'static str) -> usize {
        if name.is_empty() {
            return 0;
        }
        if let Some(&tenant) = self.names.get(name) {
            return tenant;
        }
        let weight = *self.weights.get(name).unwrap_or(&self.default_weight);
        let tenant = self.add_tenant(weight);
        self.names.insert(name, tenant);
        tenant
    }

    /// The number of a tenant that has come.
    pub(super) fn known(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.running.len()
    }

    pub(super) fn charged(&self) -> usize {
        let charged = self.running.iter();
        charged.filter(|request| request.charge.is_some()).count()
    }

    /// Those that the room knows of.
    pub(super) fn counted(&self) -> usize {
        let counted = self.running.iter();
        counted.filter(|request| request.is_counted).count()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn waiting_of(&self, tenant: usize) -> usize {
        let waiting = self.waiting.iter();
        waiting.filter(|waiter| waiter.tenant == tenant).count()
    }

    pub(super) fn running_of(&self, tenant: usize) -> usize {
        let running = self.running.iter();
        running.filter(|request| request.tenant == tenant).count()
    }

    /// Since when the one has waited that was first to.
    pub(super) fn oldest(&self, tenant: Option<usize>) -> Option<u64> {
        let mut waiting = self.waiting.iter();
        let oldest = waiting.find(|waiter| tenant.is_none_or(|tenant| waiter.tenant == tenant));
        oldest.map(|waiter| waiter.came)
    }

    /// What is known of a request that waited.
    pub(super) fn fate(&self, id: usize) -> Answer {
        if self.waiting.iter().any(|waiter| waiter.id == id) {
            return Answer::Waits;
        }
        match self.rejected.get(&id) {
            Some(&reason) => Answer::Rejected(reason),
            None => Answer::Goes,
        }
    }

    /// How long somebody has waited.
    pub(super) fn busy(&self, from: u64) -> u64 {
        let times = self.busy.iter();
        let times = times.map(|&(since, until)| (since.max(from), until.unwrap_or(self.now)));
        times
            .map(|(since, until)| until.saturating_sub(since))
            .sum()
    }
}

/// Who is next.
impl Naive {
    fn price(&self, tenant: usize) -> u64 {
        ONE / u64::from(self.tenants[tenant].weight)
    }

    fn charged_of(&self, tenant: usize) -> impl Iterator<Item = (&Running, u64)> {
        let running = self.running.iter();
        running.filter_map(move |request| {
            let (paid, _) = request.charge?;
            (request.tenant == tenant).then_some((request, paid))
        })
    }

    fn may_run(&self, tenant: usize) -> bool {
        self.charged_of(tenant).count() < self.cap
    }

    /// What the tenant's running requests are over what was paid for them.
    fn overrun(&self, tenant: usize) -> u128 {
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
    fn next_waiter(&self) -> Option<usize> {
        let firsts = (0..self.tenants.len()).filter(|&tenant| self.may_run(tenant));
        let firsts = firsts.filter_map(|tenant| {
            let at = self.waiting.iter().position(|one| one.tenant == tenant)?;
            let start = self.tenants[tenant].tag + self.overrun(tenant);
            Some((start >> STEP, self.waiting[at].number, at))
        });
        firsts.min().map(|(_, _, at)| at)
    }

    pub(super) fn has_next(&self) -> bool {
        self.next_waiter().is_some()
    }

    fn oldest_that_may_run(&self) -> Option<u64> {
        let mut waiting = self.waiting.iter();
        let oldest = waiting.find(|waiter| self.may_run(waiter.tenant));
        oldest.map(|waiter| self.now - waiter.came)
    }

    fn expected(&self, tenant: usize) -> u64 {
        match self.tenants[tenant].estimate {
            0 => self.estimate,
            known => known,
        }
    }

    /// A tenant that did not compete begins where the others are.
    fn catch_up(&mut self, tenant: usize) {
        if self.waiting.is_empty() {
            let own = &mut self.tenants[tenant];
            own.tag = own.tag.max(self.virtual_time);
            return;
        }
        let one = u128::from(self.expected(tenant)) * u128::from(self.price(tenant));
        let competing: u64 = (0..self.tenants.len())
            .filter(|&other| self.waiting_of(other) > 0)
            .map(|other| u64::from(self.tenants[other].weight))
            .sum();
        let own = u64::from(self.tenants[tenant].weight) * self.counted() as u64;
        let moved = u128::from(self.used) * u128::from(ONE / (competing + own).max(1));
        self.used = 0;
        self.pace = (self.pace + moved).clamp(self.virtual_time, self.virtual_time + one);
        self.latest = self.latest.max(self.pace);
        let own = &mut self.tenants[tenant];
        own.tag = own.tag.max(self.pace);
    }

    fn charge(&mut self, tenant: usize, cost: u32) -> (u64, u64) {
        let paid = self.expected(tenant).max(1) * u64::from(cost);
        let price = self.price(tenant);
        self.tenants[tenant].tag += u128::from(paid) * u128::from(price);
        (paid, price)
    }

    fn note_idle(&mut self) {
        if self.waiting.is_empty() && self.charged() == 0 {
            self.virtual_time = self.virtual_time.max(self.latest);
        }
    }

    /// Charges what was used instead of what was paid.
    fn settle_charge(&mut self, request: &Running, (paid, price): (u64, u64), used: u64) {
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
    fn charge_late(&mut self, tenant: usize, charged: u64) {
        self.used += charged;
        let price = self.price(tenant);
        let own = &mut self.tenants[tenant];
        own.tag = own.tag.max(self.began_to_wait);
        own.tag += u128::from(charged) * u128::from(price) + (1 << STEP);
        self.latest = self.latest.max(own.tag);
        self.note_idle();
    }

    /// For the time in which somebody waited, which is not free however short it was.
    fn charge_for_busy(&mut self, request: &Running) {
        let waited = self.busy(request.began);
        let still_waits = matches!(self.busy.last(), Some((_, None)));
        if waited > 0 || still_waits {
            self.charge_late(request.tenant, waited.max(1) * u64::from(request.cost));
        }
    }

    fn learn(&mut self, tenant: usize, took: u64) {
        for estimate in [&mut self.tenants[tenant].estimate, &mut self.estimate] {
            *estimate = match *estimate {
                0 => took.max(1),
                known => known - known / 5 + took.max(1) / 5,
            };
        }
    }
}

/// Admission by age.
impl Naive {
    /// Closes the windows that are over. So many of those in flight were admitted before.
    fn roll(&mut self, in_flight: usize) {
        if !self.law.may_be_due(self.now) {
            return;
        }
        let admitted = self.completed + in_flight as u64;
        self.law.note_calm(admitted.saturating_sub(self.knows_of));
        self.knows_of = admitted;
        if self.law.is_due(self.now) {
            self.law.roll(self.now, self.completed);
        }
    }

    /// Whether the law need not be told of a request.
    fn is_quiet(&self, age: u64) -> bool {
        let below = self.law.peak().min(self.law.limit());
        age == 0
            && self.cap == usize::MAX
            && self.now < self.law.calm_until()
            && (self.in_flight() as u64) < below
    }

    /// One that is too old is let in while a queue stands, to see whether it still does: one in a tenth of a second.
    fn note_probe(&mut self) {
        let last = self.probed.replace(self.now);
        assert!(
            last.is_none_or(|last| self.now - last > 100 * MS),
            "it is too old"
        );
    }

    fn judge(&mut self, age: u64, own: u64, others: usize) -> Result<(), Reason> {
        let oldest = self.oldest_that_may_run();
        let entry = Entry {
            age,
            own,
            oldest,
            in_flight: others as u64,
        };
        let Settings {
            target,
            max_sojourn,
            ..
        } = self.law.settings;
        let is_old = age > target.saturating_mul(2);
        let stands = self.law.report(self.now).overloaded;
        let verdict = self.law.enter(self.now, &entry);
        let still_stands = stands && self.law.report(self.now).overloaded;
        let in_the_way = own > target && (others > 0 || oldest.is_some());
        match verdict {
            Verdict::Admit => {
                if still_stands && is_old && in_the_way {
                    self.note_probe();
                }
                self.knows_of += 1;
                Ok(())
            }
            Verdict::TooOld => {
                assert!(is_old || max_sojourn.is_some_and(|max| age > max));
                Err(Reason::TooOld)
            }
            Verdict::Full => Err(Reason::AtLimit),
        }
    }
}

/// What requests do.
impl Naive {
    pub(super) fn reject(&mut self, tenant: usize, reason: Reason) -> Answer {
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

    pub(super) fn arrive(&mut self, id: usize, tenant: usize, cost: u32, age: u64) -> Answer {
        let is_open = !self.has_next() && self.in_flight() < self.limit;
        if is_open && self.is_quiet(age) {
            self.start(id, tenant, cost, None);
            return Answer::Goes;
        }
        if is_open && self.may_run(tenant) {
            self.roll(self.in_flight());
            if let Err(reason) = self.judge(age, 0, self.in_flight()) {
                return self.reject(tenant, reason);
            }
            let charge = (self.cap != usize::MAX).then(|| {
                self.catch_up(tenant);
                self.virtual_time = self.tenants[tenant].tag;
                self.charge(tenant, cost)
            });
            self.start(id, tenant, cost, charge);
            return Answer::Goes;
        }
        match self.has_place(tenant) {
            true => Answer::Waits,
            false => self.reject(tenant, Reason::QueueFull),
        }
    }

    fn start(&mut self, id: usize, tenant: usize, cost: u32, charge: Option<(u64, u64)>) {
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
    pub(super) fn uncount(&mut self, id: usize) {
        let mut running = self.running.iter_mut();
        let request = running.find(|request| request.id == id);
        request.expect("it has a permit").is_counted = false;
    }

    fn backlog(&self, tenant: usize, more: usize) -> u64 {
        (self.waiting_of(tenant) + more) as u64 * (self.price(tenant) >> 12)
    }

    /// The tenant with the most waiting for its weight, unless a newcomer of this one made it that one.
    fn hog(&self, newcomer: usize) -> Option<usize> {
        let most = (0..self.tenants.len()).map(|tenant| self.backlog(tenant, 0));
        let most = most.max().expect("there are tenants");
        let hog = (0..self.tenants.len()).find(|&tenant| self.backlog(tenant, 0) == most)?;
        (hog != newcomer && self.backlog(newcomer, 1) < most).then_some(hog)
    }

    fn has_place(&self, tenant: usize) -> bool {
        self.waiting_of(tenant) < self.max_waiting_per_tenant
            && (self.waiting.len() < self.max_waiting || self.hog(tenant).is_some())
    }

    pub(super) fn enter(
        &mut self,
        id: usize,
        (tenant, cost): (usize, u32),
        (came, older): (u64, u64),
    ) -> Answer {
        if !self.has_place(tenant) {
            return self.reject(tenant, Reason::QueueFull);
        }
        self.roll(self.in_flight());
        if self.in_flight() >= self.limit {
            self.law.inner_pending(self.now);
        }
        if self.waiting.len() >= self.max_waiting {
            let hog = self.hog(tenant).expect("there is a place");
            let mut waiting = self.waiting.iter();
            let last = waiting.rposition(|waiter| waiter.tenant == hog);
            self.turn_away(last.expect("it has some"), Reason::QueueFull);
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

    fn note_busy(&mut self) {
        let is_noted = matches!(self.busy.last(), Some((_, None)));
        match (self.waiting.is_empty(), is_noted) {
            (false, false) => self.busy.push((self.now, None)),
            (true, true) => self.busy.last_mut().expect("it is noted").1 = Some(self.now),
            _ => {}
        }
    }

    /// Takes out one that waits.
    fn take_out(&mut self, at: usize) -> Waiter {
        let waiter = self.waiting.remove(at);
        self.waits.push(self.now - waiter.came);
        self.note_idle();
        waiter
    }

    fn turn_away(&mut self, at: usize, reason: Reason) {
        let waiter = self.take_out(at);
        self.reject(waiter.tenant, reason);
        self.rejected.insert(waiter.id, reason);
    }

    fn position(&self, id: usize) -> Option<usize> {
        self.waiting.iter().position(|waiter| waiter.id == id)
    }

    pub(super) fn expire(&mut self, id: usize) -> Answer {
        if let Some(at) = self.position(id) {
            self.turn_away(at, Reason::WaitTimeout);
            self.note_busy();
        }
        self.fate(id)
    }

    pub(super) fn leave(&mut self, id: usize) {
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
    fn grant(&mut self, others: usize, admitted: usize) -> bool {
        self.roll(admitted);
        let mut goes = false;
        while !goes {
            let Some(at) = self.next_waiter() else { break };
            let waiter = self.waiting.remove(at);
            let own = self.now - waiter.came;
            self.waits.push(own);
            let start = self.tenants[waiter.tenant].tag;
            let charge = self.charge(waiter.tenant, waiter.cost);
            self.virtual_time = self.virtual_time.max(start);
            self.start(waiter.id, waiter.tenant, waiter.cost, Some(charge));
            match self.judge(waiter.older + own, own, others) {
                Ok(()) => goes = true,
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

    pub(super) fn grant_free(&mut self) {
        while self.in_flight() < self.limit && self.has_next() {
            let in_flight = self.in_flight();
            self.grant(in_flight, in_flight);
        }
    }

    /// An admitted request is over of which the room need not be told.
    pub(super) fn pass(&mut self, id: usize) {
        let request = self.take_running(id);
        self.tenants[request.tenant].served += 1;
        self.completed += 1;
        self.grant_free();
    }

    fn take_running(&mut self, id: usize) -> Running {
        let mut running = self.running.iter();
        let at = running.position(|request| request.id == id);
        self.running.swap_remove(at.expect("it has a permit"))
    }

    pub(super) fn began(&self, id: usize) -> u64 {
        let mut running = self.running.iter();
        let request = running.find(|request| request.id == id);
        request.expect("it has a permit").began
    }

    pub(super) fn end(&mut self, id: usize, end: End) {
        let in_flight = self.in_flight();
        let request = self.take_running(id);
        let tenant = request.tenant;
        let took = self.now - request.began;
        let cost = u64::from(request.cost);
        self.tenants[tenant].served += u64::from(end == End::Served);
        let is_refused = matches!(end, End::Refused | End::ServiceRefused);
        self.tenants[tenant].refused += u64::from(is_refused);
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

/// What is set.
impl Naive {
    pub(super) fn set_weight(&mut self, name: &'static str, weight: u32) {
        self.weights.insert(name, weight);
        if let Some(tenant) = self.known(name) {
            self.tenants[tenant].weight = weight;
        }
        self.grant_free();
    }

    pub(super) fn set_default_weight(&mut self, weight: u32) {
        self.default_weight = weight;
        self.tenants[0].weight = weight;
        self.tenants[OVERFLOW].weight = weight;
        for (name, &tenant) in &self.names {
            if !self.weights.contains_key(name) {
                self.tenants[tenant].weight = weight;
            }
        }
        self.grant_free();
    }

    pub(super) fn set_cap(&mut self, cap: Option<NonZeroU32>) {
        let cap = cap.map_or(usize::MAX, |cap| cap.get() as usize);
        let before = std::mem::replace(&mut self.cap, cap);
        for tenant in 0..self.tenants.len() {
            if self.charged_of(tenant).count() >= before {
                self.catch_up(tenant);
            }
        }
        self.grant_free();
    }

    pub(super) fn show(&mut self) {
        self.roll(self.in_flight());
    }
}
