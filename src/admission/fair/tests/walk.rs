//! The room in its gate against a [naive](super::naive) one: random runs of all that requests and handles can do, compared
//! after every step.
//!
//! They are the same in each run with a `PROPTEST_RNG_SEED`. `BACKPRESSURE_CASES=100000 cargo test --release --lib
//! fair::tests::walk` tries as many without one.

use proptest::prelude::*;

use super::{
    naive::{Answer, Naive, OVERFLOW},
    *,
};
use crate::admission::{
    room::Room as _,
    tenants::{Tenant, TenantSnapshot},
};

const NAMES: [&str; 5] = ["", "a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Step {
    /// A request comes, and enters if it has to wait.
    Comes {
        tenant: usize,
        cost: u32,
        age: u64,
    },
    /// It enters later.
    Arrives {
        tenant: usize,
        cost: u32,
    },
    TryStart,
    // One of those there are.
    Enter(usize),
    Depart(usize),
    Look(usize, bool),
    Expire(usize),
    Leave(usize),
    End(usize, End),
    Limit(usize),
    Cap(Option<u32>),
    Weight(usize, u32),
    DefaultWeight(u32),
    MaxWaiting(usize),
    MaxWaitingPerTenant(Option<usize>),
    Show,
    Pass(u64),
}

fn steps(old: bool) -> impl Strategy<Value = Vec<Step>> {
    let tenant = || 0..NAMES.len();
    let ages = match old {
        true => prop_oneof![3 => Just(0), 1 => 0..200 * MS].boxed(),
        false => Just(0).boxed(),
    };
    let ends = prop_oneof![
        6 => Just(End::Served),
        1 => Just(End::ServiceRefused),
        1 => Just(End::Refused),
        1 => Just(End::NotSent),
    ];
    let comes = (tenant(), 1..4_u32, ages);
    let step = prop_oneof![
        12 => comes.prop_map(|(tenant, cost, age)| Step::Comes { tenant, cost, age }),
        2 => (tenant(), 1..4_u32).prop_map(|(tenant, cost)| Step::Arrives { tenant, cost }),
        1 => Just(Step::TryStart),
        2 => any::<usize>().prop_map(Step::Enter),
        1 => any::<usize>().prop_map(Step::Depart),
        4 => any::<(usize, bool)>().prop_map(|(one, other_waker)| Step::Look(one, other_waker)),
        1 => any::<usize>().prop_map(Step::Expire),
        1 => any::<usize>().prop_map(Step::Leave),
        10 => (any::<usize>(), ends).prop_map(|(one, end)| Step::End(one, end)),
        1 => (1..7_usize).prop_map(Step::Limit),
        1 => prop::option::of(1..4_u32).prop_map(Step::Cap),
        1 => (tenant(), 1..6_u32).prop_map(|(tenant, weight)| Step::Weight(tenant, weight)),
        1 => (1..6_u32).prop_map(Step::DefaultWeight),
        1 => (0..9_usize).prop_map(Step::MaxWaiting),
        1 => prop::option::of(0..5_usize).prop_map(Step::MaxWaitingPerTenant),
        1 => Just(Step::Show),
        6 => prop_oneof![4 => 0..30 * MS, 1 => 0..300 * MS].prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..150)
}

fn ages() -> impl Strategy<Value = Option<Settings>> {
    let some = (1..20_u64, prop::option::of(20..300_u64), 1..4_u64);
    let some = some.prop_map(|(target, max_sojourn, min)| Settings {
        target: target * MS,
        interval: 100 * MS,
        min,
        max: 5,
        max_sojourn: max_sojourn.map(|most| most * MS),
    });
    prop::option::of(some)
}

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
    fn new(limit: usize, ages: Settings) -> Self {
        let gate = aged(limit, WfqConfig::default(), ages);
        let mut naive = Naive::new(limit, ages);
        naive.max_waiting = gate.bounds.max_waiting();
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
            Step::Comes { tenant, cost, age } => {
                if let Some(arrival) = self.arrive(NAMES[tenant], cost, age) {
                    self.enter(arrival);
                }
            }
            Step::Arrives { tenant, cost } => {
                if let Some(arrival) = self.arrive(NAMES[tenant], cost, 0) {
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
                let arrived = self.one(one, |stage| matches!(stage, Stage::Arrived(_)));
                if let Some(Stage::Arrived(arrival)) = arrived.map(|request| request.stage) {
                    self.gate.depart(&arrival);
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
                if let Some(Stage::Waits(waiter)) = self.waiter(one).map(|request| {
                    self.naive.leave(request.id);
                    request.stage
                }) {
                    waiter.leaves(&self.gate);
                }
            }
            Step::End(one, end) => {
                let runs = self.one(one, |stage| matches!(stage, Stage::Runs(_)));
                if let Some(Request { id, stage, .. }) = runs {
                    let Stage::Runs(grant) = stage else {
                        unreachable!("it runs");
                    };
                    self.end(id, grant, end);
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
    fn arrive(&mut self, name: &'static str, units: u32, age: u64) -> Option<Request> {
        self.came += 1;
        let id = self.came;
        let tenant = self.naive.tenant(name);
        let expected = self.naive.arrive(id, tenant, units, age);
        let named = (!name.is_empty()).then_some(name);
        let arrived = (self.gate).arrive(named, cost(units), age, &mut Now::default());
        match arrived {
            Arrived::Goes(grant) => {
                assert_eq!(expected, Answer::Goes);
                self.keep(id, tenant, Stage::Runs(grant));
            }
            Arrived::Rejected(rejection) => {
                assert_eq!(expected, Answer::Rejected(rejection.reason()));
            }
            Arrived::Waits(arrival) => {
                assert_eq!(expected, Answer::Waits);
                let stage = Stage::Arrived(arrival);
                return Some(Request { id, tenant, stage });
            }
        }
        None
    }

    fn try_start(&mut self) {
        self.came += 1;
        let id = self.came;
        let mut expected = self.naive.arrive(id, 0, 1, 0);
        if expected == Answer::Waits {
            expected = self.naive.reject(0, Reason::AtLimit);
        }
        match self.gate.try_start() {
            Ok(grant) => {
                assert_eq!(expected, Answer::Goes);
                self.keep(id, 0, Stage::Runs(grant));
            }
            Err(rejection) => assert_eq!(expected, Answer::Rejected(rejection.reason())),
        }
    }

    fn enter(&mut self, request: Request) {
        let Request { id, tenant, stage } = request;
        let Stage::Arrived(arrival) = stage else {
            unreachable!("it has come, and no more");
        };
        let came = (arrival.at, arrival.older);
        let expected = (self.naive).enter(id, (tenant, arrival.cost.get()), came);
        let (woken, waker) = Woken::new();
        match self.gate.enter(&arrival, waker.clone()) {
            Ok(entered) => {
                entered.after.run(&self.gate);
                assert_eq!(entered.is_decided, expected != Answer::Waits);
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
            }
        }
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
            }
            Fate::Waits => panic!("it is decided"),
        }
    }

    /// As an edge does it.
    fn end(&mut self, id: usize, grant: Grant, end: End) {
        if end != End::Served {
            self.gate.end(grant, end, &mut Now::default());
            return self.naive.end(id, end);
        }
        let (has_next, waiting) = (self.naive.has_next(), self.naive.waiting());
        let busy = self.naive.busy(self.naive.began(id));
        if serve(&self.gate, grant) {
            assert!(!has_next, "somebody waited for its permit");
            assert!(
                waiting > 0 || busy == 0,
                "somebody waited while it was served"
            );
            self.naive.pass(id);
        } else {
            self.naive.end(id, end);
        }
    }

    fn show(&mut self) {
        let shown = self.gate.shows().shown;
        self.naive.show();
        let tenants = self.naive.tenants.iter();
        let sums = tenants.fold((0, 0), |(served, refused), tenant| {
            (served + tenant.served, refused + tenant.refused)
        });
        assert_eq!((shown.served, shown.refused), sums);
        assert_eq!(shown.anonymous, self.naive.tenants[0].served);
        assert_eq!(shown.tenants, self.naive.tenants.len() - 2);
        assert_eq!((shown.overflowed, shown.width), (0, self.naive.law.limit()));
    }

    fn compare(&self) {
        assert_consistent(&self.gate);
        self.compare_fates();
        self.compare_room();
        self.compare_permits();
        for (tenant, name) in NAMES.iter().enumerate() {
            self.compare_tenant(tenant, name);
        }
    }

    fn compare_fates(&self) {
        let slow = lock(&self.gate.slow);
        for request in &self.requests {
            let Stage::Waits(waiter) = &request.stage else {
                continue;
            };
            let fate = match slow.room.seats[waiter.seat].state {
                State::Waits(_) => Answer::Waits,
                State::Goes(_) => Answer::Goes,
                State::Rejected(rejection) => Answer::Rejected(rejection.reason),
            };
            assert_eq!(fate, self.naive.fate(request.id), "request {}", request.id);
            let is_woken = usize::from(fate != Answer::Waits);
            assert_eq!(waiter.woken.times(), is_woken, "request {}", request.id);
        }
    }

    fn compare_room(&self) {
        let naive = &self.naive;
        let slow = lock(&self.gate.slow);
        let room = &slow.room;
        assert_eq!(self.gate.load().queued(), naive.has_next());
        assert_eq!(room.queue.running(), naive.charged());
        let counted = self.requests.iter().filter(|request| {
            matches!(&request.stage, Stage::Runs(Grant::Uncharged(one)) if one.is_counted)
        });
        assert_eq!(room.uncharged, counted.count());
        let waiters = self.requests.iter();
        let seats = waiters.filter(|request| matches!(request.stage, Stage::Waits(_)));
        assert_eq!(room.seats.taken(), seats.count());
        assert_eq!(room.busy.total(naive.now), naive.busy(0));
        assert_eq!(room.ages.report(naive.now), naive.law.report(naive.now));
        assert_eq!(room.ages.limit(), naive.law.limit());
    }

    fn compare_permits(&self) {
        let naive = &self.naive;
        let permits = self.gate.snapshot();
        assert_eq!(permits.limit, naive.limit);
        assert_eq!(permits.in_flight, naive.in_flight());
        assert_eq!(permits.waiting, naive.waiting());
        let waited = |since: u64| Duration::from_nanos(naive.now - since);
        assert_eq!(permits.oldest_wait, naive.oldest(None).map(waited));
        let admitted = naive.completed + naive.in_flight() as u64;
        assert_eq!(permits.admitted, admitted);
        assert_eq!(permits.rejected, naive.counts);
        assert_eq!(permits.waits.count(), naive.waits.len() as u64);
        let sum = Duration::from_nanos(naive.waits.iter().sum());
        assert_eq!(permits.waits.sum, sum);
    }

    fn compare_tenant(&self, tenant: usize, name: &str) {
        let naive = &self.naive;
        let (tenant, shown) = match tenant {
            0 => (Some(0), self.gate.tenant(&Tenant::Anonymous)),
            _ => (naive.known(name), self.gate.tenant(&name.into())),
        };
        let (Some(tenant), Some(shown)) = (tenant, &shown) else {
            assert!(
                tenant.is_none() && shown.is_none(),
                "{name} is known to one"
            );
            return;
        };
        let expected = &naive.tenants[tenant];
        let waited = |since: u64| Duration::from_nanos(naive.now - since);
        let &TenantSnapshot {
            weight,
            waiting,
            running,
            served,
            rejected,
            refused,
            oldest_wait,
            ..
        } = shown;
        assert_eq!(weight, expected.weight);
        assert_eq!(waiting, naive.waiting_of(tenant), "{name} waits");
        assert_eq!(running, naive.running_of(tenant), "{name} runs");
        assert_eq!(served, expected.served, "{name} was served");
        assert_eq!(rejected, expected.rejected, "{name} was rejected");
        assert_eq!(refused, expected.refused, "{name} was refused");
        assert_eq!(oldest_wait, naive.oldest(Some(tenant)).map(waited));
    }

    /// All go. Nothing is left, and all tenants can be forgotten.
    fn empties(mut self) {
        while let Some(Request { id, stage, .. }) = self.requests.pop() {
            match stage {
                Stage::Arrived(arrival) => self.gate.depart(&arrival),
                Stage::Waits(waiter) => {
                    waiter.leaves(&self.gate);
                    self.naive.leave(id);
                }
                Stage::Runs(grant) => self.end(id, grant, End::Served),
            }
            self.compare();
        }
        assert_empty(&self.gate);
        let mut slow = lock(&self.gate.slow);
        assert!(slow.room.oldest().is_none());
        for tenant in OVERFLOW + 1..self.naive.tenants.len() {
            assert!(slow.room.queue.remove_tenant(tenant as u32), "{tenant}");
        }
    }
}

fn cases() -> u32 {
    let cases = std::env::var("BACKPRESSURE_CASES").ok();
    cases.map_or(500, |cases| cases.parse().expect("a number"))
}

fn walk(limit: usize, ages: Option<Settings>, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(async {
        let mut walk = Walk::new(limit, ages.unwrap_or(NEVER_OLD));
        for step in steps {
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
        steps in steps(false),
    ) {
        walk(limit, None, steps);
    }

    #[test]
    fn a_fair_room_rejects_by_age_what_a_naive_one_does(
        limit in 1..6_usize,
        ages in ages(),
        steps in steps(true),
    ) {
        walk(limit, ages, steps);
    }
}
