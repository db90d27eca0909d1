//! The room in its gate against a [naive](super::naive) one: random runs of all that requests and handles can do, compared
//! after every step.
//!
//! They are the same in each run with a `PROPTEST_RNG_SEED`. `BACKPRESSURE_CASES=100000 cargo test --release --lib
//! fair::tests::walk` tries as many without one.

mod compare;
mod steps;

use proptest::prelude::*;

use self::steps::{NAMES, Step, some_ages, steps, tenants};
use super::{
    naive::{Answer, Naive, OVERFLOW},
    *,
};
use crate::gate::{
    room::Room as _,
    tenants::{Tenant, TenantSnapshot},
};

struct Request {
    id: usize,
    tenant: usize,
    stage: Stage,
}

enum Stage {
    Arrived(Arrival),
    Waits(Waiter),
    Runs(Grant),
}

struct Walk {
    gate: Gate<Fair>,
    naive: Naive,
    requests: Vec<Request>,
    came: usize,
}

impl Walk {
    fn new(limit: usize, max_tenants: usize, ages: Settings, asks: bool) -> Self {
        let config = WfqConfig::default().max_tenants(max_tenants);
        let gate = aged(limit, config, ages);
        if asks {
            gate.ask_urgency();
        }
        let mut naive = Naive::new(limit, ages);
        naive.max_waiting = gate.bounds.max_waiting();
        naive.max_tenants = max_tenants;
        naive.asks = asks;
        Self {
            gate,
            naive,
            requests: Vec::new(),
            came: 0,
        }
    }

    /// Takes out one of those that are at such a stage.
    fn one(&mut self, one: usize, stage: impl Fn(&Stage) -> bool) -> Option<Request> {
        let all = 0..self.requests.len();
        let at: Vec<_> = all.filter(|&at| stage(&self.requests[at].stage)).collect();
        (!at.is_empty()).then(|| self.requests.swap_remove(at[one % at.len()]))
    }

    fn keep(&mut self, id: usize, tenant: usize, stage: Stage) {
        self.requests.push(Request { id, tenant, stage });
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Comes {
                tenant,
                cost,
                age,
                urgency,
            } => {
                if let Some(arrival) = self.arrive(NAMES[tenant], cost, age, urgency) {
                    self.enter(arrival);
                }
            }
            Step::Arrives {
                tenant,
                cost,
                urgency,
            } => {
                if let Some(arrival) = self.arrive(NAMES[tenant], cost, 0, urgency) {
                    let Request { id, tenant, stage } = arrival;
                    self.keep(id, tenant, stage);
                }
            }
            Step::TryStart => self.try_start(),
            Step::Enter(one) => {
                if let Some(request) = self.one(one, |stage| matches!(stage, Stage::Arrived(_))) {
                    self.enter(request);
                }
            }
            Step::Depart(one) => {
                if let Some(request) = self.one(one, |stage| matches!(stage, Stage::Arrived(_))) {
                    self.goes_away(request);
                }
            }
            Step::Look(one, other_waker) => {
                if let Some(request) = self.waiter(one) {
                    self.look(request, other_waker);
                }
            }
            Step::Expire(one) => {
                if let Some(Request { id, tenant, stage }) = self.waiter(one) {
                    let Stage::Waits(waiter) = stage else {
                        unreachable!("it waits");
                    };
                    let fate = self.gate.expire(&waiter.arrival, waiter.seat);
                    let expected = self.naive.expire(id);
                    self.take_fate((id, tenant), fate, expected);
                }
            }
            Step::Leave(one) => {
                if let Some(request) = self.waiter(one) {
                    self.goes_away(request);
                }
            }
            Step::End(one, end) => {
                if let Some(request) = self.one(one, |stage| matches!(stage, Stage::Runs(_))) {
                    self.end(request, end);
                }
            }
            Step::Limit(limit) => {
                self.gate.governor().pin(&self.gate, limit);
                self.naive.limit = limit;
                self.naive.grant_free();
            }
            Step::Cap(cap) => {
                let cap = cap.and_then(NonZeroU32::new);
                self.gate.set_max_in_flight_per_tenant(cap);
                self.naive.set_cap(cap);
            }
            Step::Weight(0, weight) | Step::DefaultWeight(weight) => {
                self.gate.set_default_weight(weight).expect("a weight");
                self.naive.set_default_weight(weight);
            }
            Step::Weight(tenant, weight) => {
                let name = NAMES[tenant];
                self.gate.set_weight(name, weight).expect("a weight");
                self.naive.set_weight(name, weight);
            }
            Step::MaxWaiting(max) => {
                self.gate.bounds.set_max_waiting(max);
                self.naive.max_waiting = max;
            }
            Step::MaxWaitingPerTenant(max) => {
                self.gate.set_max_waiting_per_tenant(max);
                self.naive.max_waiting_per_tenant = max.unwrap_or(usize::MAX);
                self.naive.grant_free();
            }
            Step::Floor(floor) => {
                lock(&self.gate.slow).room.queue.set_floor(floor);
                self.naive.set_floor(floor);
            }
            Step::Ages(ages) => {
                self.gate.set_ages(ages);
                self.naive.set_ages(ages);
            }
            Step::NewestFirst(newest_first) => {
                self.gate.set_newest_first(newest_first);
                self.naive.newest_first = newest_first;
            }
            Step::Excess(percent) => {
                let excess = f64::from(percent) / 100.0;
                let mut slow = lock(&self.gate.slow);
                slow.room.serves.law().set_excess(self.naive.now, excess);
                drop(slow);
                self.naive.law.set_excess(self.naive.now, excess);
                self.show(); // until when it is quiet is published
            }
            Step::Show => self.show(),
            Step::Pass(time) => {
                after(time).await;
                self.naive.now += time;
            }
        }
        self.compare();
    }

    fn waiter(&mut self, one: usize) -> Option<Request> {
        self.one(one, |stage| matches!(stage, Stage::Waits(_)))
    }

    /// A request comes. If it has to wait, it is returned.
    fn arrive(
        &mut self,
        name: &'static str,
        units: u32,
        age: u64,
        (lane, left): (Lane, Option<u64>),
    ) -> Option<Request> {
        self.came += 1;
        let id = self.came;
        let tenant = self.naive.attach(name);
        let deadline = left.map(|left| self.naive.now + left);
        let urgency = Urgency { lane, deadline };
        let expected = self.naive.arrive(id, tenant, units, age, urgency);
        let named = (!name.is_empty()).then_some(name);
        let (units, mut now) = (cost(units), Now::default());
        let arrived = (self.gate).arrive(named, units, age, &mut now, |_| urgency);
        match arrived {
            Arrived::Goes(grant) => {
                assert_eq!(expected, Answer::Goes);
                self.goes(id, tenant, grant);
            }
            Arrived::Rejected(rejection) => {
                assert_eq!(expected, Answer::Rejected(rejection.reason()));
                self.naive.detach(tenant);
            }
            Arrived::Waits(arrival) => {
                assert_eq!(expected, Answer::Waits);
                let stage = Stage::Arrived(arrival);
                return Some(Request { id, tenant, stage });
            }
        }
        None
    }

    /// A request has started at once.
    fn goes(&mut self, id: usize, tenant: usize, grant: Grant) {
        if matches!(&grant, Grant::Uncharged(request) if !request.is_counted) {
            self.naive.uncount(id);
        }
        self.keep(id, tenant, Stage::Runs(grant));
    }

    fn try_start(&mut self) {
        self.came += 1;
        let id = self.came;
        self.naive.attach("");
        let mut expected = self.naive.arrive(id, 0, 1, 0, Urgency::default());
        if expected == Answer::Waits {
            expected = self.naive.reject(0, Reason::AtLimit);
        }
        match self.gate.try_start() {
            Ok(grant) => {
                assert_eq!(expected, Answer::Goes);
                self.goes(id, 0, grant);
            }
            Err(rejection) => {
                assert_eq!(expected, Answer::Rejected(rejection.reason()));
                self.naive.detach(0);
            }
        }
    }

    fn enter(&mut self, request: Request) {
        let Request { id, tenant, stage } = request;
        let Stage::Arrived(arrival) = stage else {
            unreachable!("it has come, and no more");
        };
        let came = (arrival.at, arrival.older);
        let who = ((tenant, arrival.lane), arrival.cost.get());
        let expected = (self.naive).enter(id, who, came, arrival.deadline);
        let (woken, waker) = Woken::new();
        match self.gate.enter(&arrival, waker.clone()) {
            Ok(entered) => {
                entered.after.run(&self.gate);
                assert_eq!(entered.is_decided, expected != Answer::Waits);
                assert_eq!(woken.times(), 0, "it is being polled");
                if entered.is_decided {
                    waker.wake_by_ref(); // as if it had been
                }
                let seat = entered.seat;
                let waiter = Waiter {
                    arrival,
                    seat,
                    woken,
                    waker,
                };
                self.keep(id, tenant, Stage::Waits(waiter));
            }
            Err(rejection) => {
                assert_eq!(expected, Answer::Rejected(rejection.reason()));
                self.gate.depart(&arrival);
                self.naive.detach(tenant);
            }
        }
    }

    /// Before it has a permit, or has picked it up.
    fn goes_away(&mut self, request: Request) {
        match request.stage {
            Stage::Arrived(arrival) => self.gate.depart(&arrival),
            Stage::Waits(waiter) => {
                waiter.leaves(&self.gate);
                self.naive.leave(request.id);
            }
            Stage::Runs(_) => unreachable!("it has not"),
        }
        self.naive.detach(request.tenant);
    }

    fn look(&mut self, request: Request, other_waker: bool) {
        let Request { id, tenant, stage } = request;
        let Stage::Waits(mut waiter) = stage else {
            unreachable!("it waits");
        };
        let expected = self.naive.fate(id);
        if other_waker && expected == Answer::Waits {
            (waiter.woken, waiter.waker) = Woken::new();
        }
        match waiter.look(&self.gate) {
            Fate::Waits => {
                assert_eq!(expected, Answer::Waits);
                self.keep(id, tenant, Stage::Waits(waiter));
            }
            fate => self.take_fate((id, tenant), fate, expected),
        }
    }

    fn take_fate(&mut self, (id, tenant): (usize, usize), fate: Fate, expected: Answer) {
        match fate {
            Fate::Goes(grant) => {
                assert_eq!(expected, Answer::Goes);
                self.keep(id, tenant, Stage::Runs(grant));
            }
            Fate::Rejected(rejection) => {
                assert_eq!(expected, Answer::Rejected(rejection.reason()));
                self.naive.detach(tenant);
            }
            Fate::Waits => panic!("it is decided"),
        }
    }

    fn end(&mut self, request: Request, end: End) {
        let Request { id, tenant, stage } = request;
        let Stage::Runs(grant) = stage else {
            unreachable!("it runs");
        };
        let (has_next, waiting) = (self.naive.has_next(), self.naive.waiting());
        let busy = self.naive.busy(self.naive.began(id));
        if end != End::Served {
            self.gate.end(grant, end, &mut Now::default());
            self.naive.end(id, end);
        } else if serve(&self.gate, grant) {
            assert!(!has_next, "somebody waited for its permit");
            assert!(
                waiting > 0 || busy == 0,
                "somebody waited while it was served"
            );
            self.naive.pass(id);
        } else {
            self.naive.end(id, end);
        }
        self.naive.detach(tenant);
    }

    /// All go. Nothing is left, and all tenants can be forgotten.
    fn empties(mut self) {
        while let Some(request) = self.requests.pop() {
            match request.stage {
                Stage::Runs(_) => self.end(request, End::Served),
                _ => self.goes_away(request),
            }
            self.compare();
        }
        assert_empty(&self.gate);
        let mut slow = lock(&self.gate.slow);
        assert!(slow.room.oldest().is_none());
        for tenant in self.naive.names() {
            assert!(slow.room.queue.remove_tenant(tenant as u32), "{tenant}");
        }
    }
}

fn cases() -> u32 {
    let cases = std::env::var("BACKPRESSURE_CASES").ok();
    cases.map_or(500, |cases| cases.parse().expect("a number"))
}

/// Names come from a step on: before that there is nobody to be fair to.
fn walk(limit: usize, tenants: (usize, usize), ages: Settings, asks: bool, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let (named_from, max_tenants) = tenants;
    runtime.expect("a runtime").block_on(async {
        let mut walk = Walk::new(limit, max_tenants, ages, asks);
        for (number, mut step) in steps.into_iter().enumerate() {
            if number < named_from {
                step = step.without_name();
            }
            walk.step(step).await;
        }
        walk.empties();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn a_fair_room_does_what_a_naive_one_does(
        limit in 1..6_usize,
        tenants in tenants(),
        steps in steps(false, false),
    ) {
        walk(limit, tenants, NEVER_OLD, false, steps);
    }

    #[test]
    fn a_fair_room_rejects_by_age_what_a_naive_one_does(
        limit in 1..6_usize,
        tenants in tenants(),
        ages in some_ages(),
        steps in steps(true, false),
    ) {
        walk(limit, tenants, ages, false, steps);
    }

    #[test]
    fn a_fair_room_goes_by_priorities_and_deadlines_as_a_naive_one_does(
        limit in 1..6_usize,
        tenants in tenants(),
        ages in some_ages(),
        asks in any::<bool>(),
        steps in steps(true, true),
    ) {
        walk(limit, tenants, ages, asks, steps);
    }
}
