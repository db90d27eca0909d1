//! What may happen, at random.

use super::*;
use crate::law::fair_queues::{MAIN, MAX_FLOOR};

pub(super) const NAMES: [&str; 5] = ["", "a", "b", "c", "d"];

/// Its lane, and how much time it has.
type Urgent = (Lane, Option<u64>);

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A request comes, and enters if it has to wait.
    Comes {
        tenant: usize,
        cost: u32,
        age: u64,
        urgency: Urgent,
    },
    /// It enters later.
    Arrives {
        tenant: usize,
        cost: u32,
        urgency: Urgent,
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
    Floor(u32),
    Ages(Settings),
    NewestFirst(bool),
    /// A queue stands from now on, with this excess.
    Excess(u32),
    Show,
    Pass(u64),
}

impl Step {
    pub(super) fn without_name(self) -> Self {
        match self {
            Self::Comes {
                cost, age, urgency, ..
            } => Self::Comes {
                tenant: 0,
                cost,
                age,
                urgency,
            },
            Self::Arrives { cost, urgency, .. } => Self::Arrives {
                tenant: 0,
                cost,
                urgency,
            },
            Self::Weight(_, weight) => Self::Weight(0, weight),
            other => other,
        }
    }
}

pub(super) fn steps(old: bool, urgent: bool) -> impl Strategy<Value = Vec<Step>> {
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
    let urgency = move || match urgent {
        true => {
            let lane = prop_oneof![2 => Just(MAIN), 3 => 0..LANES as Lane];
            (
                lane,
                prop_oneof![2 => Just(None), 1 => (0..300 * MS).prop_map(Some)],
            )
                .boxed()
        }
        false => Just((MAIN, None)).boxed(),
    };
    let floor = match urgent {
        true => (0..=MAX_FLOOR).prop_map(Step::Floor).boxed(),
        false => Just(Step::Show).boxed(),
    };
    let comes = (tenant(), 1..4_u32, ages, urgency());
    let newest = match old {
        true => prop_oneof![
            1 => any::<bool>().prop_map(Step::NewestFirst),
            2 => (0..300_u32).prop_map(Step::Excess),
        ]
        .boxed(),
        false => Just(Step::Show).boxed(),
    };
    let step = prop_oneof![
        12 => comes.prop_map(|(tenant, cost, age, urgency)| {
            Step::Comes { tenant, cost, age, urgency }
        }),
        2 => (tenant(), 1..4_u32, urgency()).prop_map(|(tenant, cost, urgency)| {
            Step::Arrives { tenant, cost, urgency }
        }),
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
        1 => some_ages().prop_map(move |ages| if old { Step::Ages(ages) } else { Step::Show }),
        1 => newest,
        1 => floor,
        1 => Just(Step::Show),
        6 => prop_oneof![4 => 0..30 * MS, 1 => 0..300 * MS].prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..150)
}

pub(super) fn some_ages() -> impl Strategy<Value = Settings> {
    let some = (1..20_u64, prop::option::of(20..300_u64), 1..4_u64);
    some.prop_map(|(target, max_sojourn, min)| Settings {
        target: target * MS,
        interval: 100 * MS,
        min,
        max: 5,
        max_sojourn: max_sojourn.map(|most| most * MS),
    })
}

pub(super) fn tenants() -> impl Strategy<Value = (usize, usize)> {
    let named_from = prop_oneof![2 => Just(0), 1 => 0..150_usize];
    (named_from, prop_oneof![1 => 1..4_usize, 2 => Just(100)])
}
