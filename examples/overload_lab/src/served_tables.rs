//! The chapter on who is served: a table for each thing that can be known of requests.

use crate::{
    findings::list,
    lab::{Results, spread_name},
    plot::{Axis, Figure, Mark, Panel, Series},
    protection::{Protection, limit_for},
    scenario::Case,
    served::{
        FLOOR, IMPATIENCE, LEVELS, Measured, QUEUE, SLOW_WORK, Served, Stack, Traffic, WORKERS,
        When,
    },
    simulation::Spread,
    table::{Table, latency, percent, tenths, times},
};

pub const TOLD: Stack = Stack::Priorities(FLOOR);

pub const WHEN: [When; 4] = [
    When::Steady(1.5),
    When::Steady(3.0),
    When::Onset,
    When::Spikes,
];
const LEVELLED: [Stack; 4] = [Stack::Tower, Stack::Queue, Stack::Edge, TOLD];

pub const FLOORS: [f64; 3] = [0.0, FLOOR, 0.05];
const FLOORED: [When; 2] = [When::Steady(3.0), When::Steady(6.0)];

pub const LOADS: [f64; 4] = [0.9, 1.2, 2.0, 5.0];
const PATIENT: [Stack; 3] = [Stack::Queue, Stack::Edge, Stack::Deadlines];

/// 64 workers with constant times are not among them: runs of those do not repeat exactly.
pub const SERVERS: [(Spread, usize); 5] = [
    (Spread::Exponential, 4),
    (Spread::Exponential, 16),
    (Spread::Exponential, 64),
    (Spread::Constant, 4),
    (Spread::Constant, 16),
];
const ORDERS: [Stack; 2] = [Stack::InOrder, Stack::Edge];

/// A table, and what its lines are of.
struct Part {
    name: &'static str,
    about: String,
    heads: &'static [&'static str],
    rows: Vec<(String, Served)>,
    cells: fn(&Measured) -> Vec<String>,
}

/// The lines of a table: each traffic with each stack.
fn rows<T: Copy, const N: usize>(
    traffics: impl IntoIterator<Item = T>,
    stacks: [Stack; N],
    traffic: impl Fn(T) -> Traffic,
    name: impl Fn(T, Stack) -> String,
) -> Vec<(String, Served)> {
    let mut rows = Vec::new();
    for it in traffics {
        for stack in stacks {
            let traffic = traffic(it);
            rows.push((name(it, stack), Served { traffic, stack }));
        }
    }
    rows
}

fn parts() -> [Part; 4] {
    let when = |when, stack| format!("{}: {}", shown(when), named(stack));
    let floor = |when, stack| match stack {
        Stack::Priorities(floor) => format!("{}: {}", shown(when), percent(floor)),
        _ => String::new(),
    };
    let load = |load, stack| format!("{}: {}", times(load), named(stack));
    let size = |(spread, size): (Spread, usize), stack| {
        let order = if stack == Stack::InOrder {
            "in order"
        } else {
            "newest first"
        };
        format!("{}, {size}: {order}", spread_name(spread))
    };
    [
        Part {
            name: "priorities",
            about: format!(
                "accepted by priority, use of the {WORKERS} workers, %;\nwait of critical requests, p99"
            ),
            heads: &["critical", "high", "normal", "background", "use", "wait"],
            rows: rows(WHEN, LEVELLED, Traffic::Levels, when),
            cells: |it| {
                let mut cells = accepted(it);
                cells.extend([tenths(it.used), latency(it.wait)]);
                cells
            },
        },
        Part {
            name: "the floor of each priority",
            about: "accepted by priority, use of the workers, %".into(),
            heads: &["critical", "high", "normal", "background", "use"],
            rows: rows(FLOORED, FLOORS.map(Stack::Priorities), Traffic::Levels, floor),
            cells: |it| {
                let mut cells = accepted(it);
                cells.push(tenths(it.used));
                cells
            },
        },
        Part {
            name: "deadlines",
            about: "answers in time, work on answers that are late, % of\nwhat the server can do; latency".into(),
            heads: &["goodput", "wasted", "p50", "p99"],
            rows: rows(LOADS, PATIENT, Traffic::Patiences, load),
            cells: |it| {
                vec![tenths(it.good), tenths(it.wasted), latency(it.p50), latency(it.p99)]
            },
        },
        Part {
            name: "newest first, at 3×",
            about: format!(
                "p50, as a multiple of the unloaded one;\nwork for clients that wait for {} ms, % of capacity; how long a rejection takes",
                IMPATIENCE.as_millis()
            ),
            heads: &["p50", "in time", "rejected in"],
            rows: rows(SERVERS, ORDERS, |(spread, size)| Traffic::Impatient(spread, size), size),
            cells: |it| {
                vec![format!("{:.1}×", it.slowed), tenths(it.useful), latency(it.rejection)]
            },
        },
    ]
}

fn accepted(measured: &Measured) -> Vec<String> {
    measured
        .accepted
        .iter()
        .map(|share| tenths(*share))
        .collect()
}

fn shown(when: When) -> String {
    match when {
        When::Steady(load) => times(load),
        When::Onset => "onset".into(),
        When::Spikes => "spikes".into(),
    }
}

fn named(stack: Stack) -> &'static str {
    match stack {
        Stack::Tower => "tower limit + shed",
        Stack::Queue => "fixed limit",
        Stack::Edge => "edge()",
        Stack::Priorities(_) => "edge(), priorities",
        Stack::Deadlines => "edge(), deadlines",
        Stack::InOrder => "edge(), in order",
    }
}

/// Each once, although some are in two tables.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (_, served) in parts().into_iter().flat_map(|part| part.rows) {
        let case = Case::Served(served);
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases
}

/// Of what was run.
pub fn measured(results: &Results, traffic: Traffic, stack: Stack) -> &Measured {
    let served = Served { traffic, stack };
    let [protection] = *served.protection();
    let outcome = results.of(Case::Served(served), protection);
    outcome.measured.as_ref().expect("it was measured")
}

pub fn tables(results: &Results) -> Vec<Table> {
    let table = |part: Part| Table {
        name: part.name.into(),
        about: part.about,
        lines: "",
        groups: Vec::new(),
        heads: part.heads.iter().map(|&head| head.to_owned()).collect(),
        rows: (part.rows.into_iter())
            .map(|(name, it)| (name, (part.cells)(measured(results, it.traffic, it.stack))))
            .collect(),
    };
    parts().map(table).into()
}

/// Which requests are accepted, by priority.
pub fn figure(results: &Results) -> Figure {
    const DRAWN: [(Mark, Stack); 3] = [
        (Mark::Dotted, Stack::Queue),
        (Mark::Dashed, Stack::Edge),
        (Mark::Solid, TOLD),
    ];
    let ticks = LEVELS.iter().enumerate();
    let panel = |when: When| {
        let measured = |stack| measured(results, Traffic::Levels(when), stack);
        let series = DRAWN.map(|(mark, stack)| {
            let accepted = measured(stack).accepted;
            let says = LEVELS.iter().zip(accepted).map(|((_, priority), share)| {
                format!("{}, {priority}: {} %", named(stack), tenths(share))
            });
            Series {
                mark,
                says: says.collect(),
                points: (accepted.iter().enumerate())
                    .map(|(i, share)| (i as f64, *share))
                    .collect(),
            }
        });
        let use_of = |stack| percent(measured(stack).used);
        Panel {
            protection: Protection::Edge,
            title: match when {
                When::Steady(load) => format!("steady {}", times(load)),
                When::Onset => "first second of 4×".into(),
                When::Spikes => "spikes of 4×".into(),
            },
            note: format!(
                "used: {}, with priorities {}",
                use_of(Stack::Edge),
                use_of(TOLD)
            ),
            x: None,
            bands: Vec::new(),
            series: series.into(),
        }
    };
    Figure {
        name: "served",
        title: "Which requests are accepted, by their priority".into(),
        x: Axis {
            label: "priority",
            from: -0.4,
            to: LEVELS.len() as f64 - 0.6,
            log: false,
            ticks: ticks
                .map(|(i, (_, priority))| (i as f64, priority.to_string()))
                .collect(),
        },
        y: Axis::percent("accepted requests", 1.1),
        panels: WHEN.map(panel).into(),
        legend: DRAWN
            .map(|(mark, stack)| (mark, named(stack).into()))
            .into(),
    }
}

/// What the report says of the chapter.
pub fn about() -> String {
    let shares: Vec<_> = LEVELS
        .map(|(share, priority)| format!("{} {priority}", percent(share)))
        .into();
    format!(
        "Who is served depends on what the server knows of a request: how much it matters, and how long its client waits. \
         The first three parts have {WORKERS} workers and 10 ms of work in a request on average. <b>Priorities</b>: {} of the \
         requests. Onset is the first second of 4×, after 0.7×; spikes are 200 ms of 4× every two seconds, with 0.7× in \
         between. <b>Floor</b>: each priority that has waiters gets this share of the starts, at least. <b>Deadlines</b>: 70 % \
         of the clients wait for 100 ms, 20 % for 300 ms, 10 % for 2 s; if requests say so, an edge rejects what would be late. \
         The fixed limit is {}, with a queue in which no request waits for more than {} ms. <b>Newest first</b>: 4, 16 and 64 \
         workers, {} ms of work.",
        list(shares),
        limit_for(WORKERS),
        QUEUE.as_millis(),
        SLOW_WORK.as_millis()
    )
}

pub fn findings(results: &Results) -> Vec<String> {
    let levels = |when, stack| measured(results, Traffic::Levels(when), stack);
    let patient = |load, stack| measured(results, Traffic::Patiences(load), stack);
    let impatient = |stack| measured(results, Traffic::Impatient(Spread::Exponential, 16), stack);
    let top = |when, stack: Stack| {
        let it = levels(when, stack);
        format!("{} {} %", named(stack), tenths(it.accepted[0]))
    };
    let steady = When::Steady(3.0);
    let told = levels(steady, TOLD);
    let least = |stack: Stack| {
        let of_load = |load: &f64| patient(*load, stack).good;
        let least = (LOADS.iter().filter(|load| **load > 1.0)).map(of_load);
        format!(
            "{} {}",
            named(stack),
            percent(least.fold(f64::INFINITY, f64::min))
        )
    };
    let slowed = |stack: Stack| {
        let it = impatient(stack);
        format!(
            "{} {:.1} times, a rejection takes {}, and {} of the capacity goes to clients that wait for {} ms",
            named(stack),
            it.slowed,
            latency(it.rejection),
            percent(it.useful),
            IMPATIENCE.as_millis()
        )
    };
    vec![
        format!(
            "Critical requests that are accepted at 3×: {}. In the first second of 4×: {}.",
            list(LEVELLED.map(|stack| top(steady, stack))),
            list(LEVELLED.map(|stack| top(When::Onset, stack)))
        ),
        format!(
            "At 3× with priorities, the p99 wait of critical requests is {}, and the workers are used for {} of the time; \
             without priorities, for {}.",
            latency(told.wait),
            percent(told.used),
            percent(levels(steady, Stack::Edge).used)
        ),
        format!(
            "Least goodput above the capacity, where clients wait for different times: {}.",
            list(PATIENT.map(least))
        ),
        format!(
            "p50 at 3×, as a multiple of the unloaded one: {}.",
            list(ORDERS.map(slowed))
        ),
    ]
}
