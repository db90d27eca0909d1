//! What is to be seen in the results, in words. The numbers and who is named are worked out from them, so that it
//! holds for any seed.

use crate::{
    disturbances,
    lab::{Results, Scenario},
    protection::{LIMIT, Protection},
    questions,
    scenario::{Case, FIRST, Outcome, Part, WELL},
    served_tables,
    settings::{self, Setting},
    table::{latency, percent, seconds},
};

/// The main result, of the steady loads.
pub fn in_short(results: &Results) -> String {
    let (well, badly) = results.verdict();
    let worst = |protection: &Protection| {
        let spreads = results.plan.spreads.iter();
        let worst = spreads.map(|spread| results.worst(*spread, *protection));
        let worst = worst.fold(f64::INFINITY, f64::min);
        format!("{} ({:.1} %)", protection.name(), 100.0 * worst)
    };
    let mut text = match well.len() {
        0 => "Nothing keeps the server at 95 % of its capacity at 2× to 10× load.".to_owned(),
        _ => format!(
            "From twice to ten times the load that the server can take, at least {} of its capacity goes into answers \
             that somebody still waits for, with {}.",
            percent(WELL),
            list(well.iter().map(worst))
        ),
    };
    if !badly.is_empty() {
        text += &format!(" Less than that: {}.", list(badly.iter().map(worst)));
    }
    text
}

pub fn findings(results: &Results, scenario: Scenario) -> Vec<String> {
    match scenario {
        Scenario::Questions => questions::findings(results),
        Scenario::Load => load(results),
        Scenario::Capacity => capacity(results),
        Scenario::Tenants => tenants(results),
        Scenario::Retries => retries(results),
        Scenario::Settings => settings(results),
        Scenario::Disturbances => disturbances::findings(results),
        Scenario::Served => served_tables::findings(results),
    }
}

fn load(results: &Results) -> Vec<String> {
    let spread = results.main_spread();
    let part = |load: f64, protection| &results.of(Case::Load(spread, load), protection).parts[1];
    let run = |load: &f64| results.plan.loads.contains(load);
    let mut found = Vec::new();
    if let Some(load) = [2.0].into_iter().find(run) {
        let none = part(load, Protection::None);
        found.push(format!(
            "Without protection the queue only grows. At 2× the server is as busy as ever, but {} of what is possible is \
             answered in time: half of the answers take longer than {}.",
            percent(none.goodput()),
            latency(none.p50)
        ));
        let p50 = |protection: Protection| {
            format!(
                "{} {}",
                protection.name(),
                latency(part(load, protection).p50)
            )
        };
        found.push(format!(
            "Waiting costs latency. p50 at 2×, of those that refuse at once: {}; of those that let requests wait for a \
             moment: {}.",
            list([Protection::Tower, Protection::Vegas].into_iter().map(p50)),
            list([Protection::Fixed, Protection::CoDel, Protection::Wfq, Protection::Edge].into_iter().map(p50))
        ));
    }
    if let Some(load) = [1.0].into_iter().find(run) {
        let share = |protection| format!("{:.0} %", 100.0 * part(load, protection).goodput());
        found.push(format!(
            "That is what it buys: at exactly 1× requests still come in bursts. {} answers {} in time, the fixed limit with \
             a short queue {}, edge() {}.",
            Protection::Tower.name(),
            share(Protection::Tower),
            share(Protection::Fixed),
            share(Protection::Edge)
        ));
    }
    let mean = |protection: Protection| {
        let goodput = results.goodput(spread, protection).into_iter();
        let overload: Vec<_> = goodput.filter(|(load, _)| *load >= 2.0).collect();
        let sum: f64 = overload.iter().map(|(_, goodput)| goodput).sum();
        let mean = 100.0 * sum / overload.len() as f64;
        format!("{} {mean:.1} %", protection.name())
    };
    found.push(format!(
        "Goodput from 2× on, on average, of those that were told the right number: {}; of those that found one by \
         themselves: {}. These pay for looking: now and then the limit dips, to measure how long requests take that do \
         not wait.",
        list([Protection::Tower, Protection::Fixed].into_iter().map(mean)),
        list([Protection::Vegas, Protection::Edge].into_iter().map(mean))
    ));
    found
}

fn capacity(results: &Results) -> Vec<String> {
    let parts = |protection| &results.of(Case::Capacity, protection).parts;
    let below = |phase: usize| {
        let less = |protection: &Protection| parts(*protection)[phase].goodput() < WELL;
        let name = move |protection: Protection| {
            let goodput = parts(protection)[phase].goodput();
            format!("{} ({})", protection.name(), percent(goodput))
        };
        let protections = Protection::ALL.into_iter().filter(less).map(name);
        let names: Vec<_> = protections.collect();
        match names.len() {
            0 => "nobody".into(),
            _ => list(names),
        }
    };
    let p50 = |protection: Protection| {
        let Part { p50, .. } = parts(protection)[1];
        format!("{} {}", protection.name(), latency(p50))
    };
    let back = |protection: Protection| {
        let settled = |phase: usize| seconds(parts(protection)[phase].settled);
        format!("{} {} and {} s", protection.name(), settled(1), settled(2))
    };
    vec![
        format!(
            "With four workers, less than {} of what is possible: {}.",
            percent(WELL),
            below(1)
        ),
        format!(
            "A number that was right for sixteen workers lets too many in then, who wait inside the server. p50: {}.",
            list(
                [
                    Protection::Tower,
                    Protection::Fixed,
                    Protection::Vegas,
                    Protection::Edge
                ]
                .into_iter()
                .map(p50)
            )
        ),
        format!(
            "With twice the workers there is room for all, and the old number turns them away. Less than {}: {}.",
            percent(WELL),
            below(3)
        ),
        format!(
            "Seconds until those that learn do well again, after the loss and after the return: {}.",
            list([Protection::Vegas, Protection::Edge].into_iter().map(back))
        ),
    ]
}

fn tenants(results: &Results) -> Vec<String> {
    let part = |protection| &results.of(Case::Tenants, protection).parts[1];
    let quiet = |protection: Protection| {
        let got = part(protection).quiet.unwrap_or(0.0);
        format!("{} {}", protection.name(), percent(got))
    };
    let (fair, unfair): (Vec<_>, Vec<_>) = (Protection::ALL.into_iter())
        .partition(|protection| part(*protection).quiet.unwrap_or(0.0) >= WELL);
    let mut found = vec![format!(
        "A limit alone shares what there is by who asks most. What quiet tenants get of the little that they ask for: {}.",
        list(unfair.into_iter().map(quiet))
    )];
    if !fair.is_empty() {
        found.push(format!(
            "With a queue for each tenant the flood is its sender's own concern: {}. The noisy one gets what is left.",
            list(fair.into_iter().map(quiet))
        ));
    }
    found
}

fn retries(results: &Results) -> Vec<String> {
    let after = |protection| &results.of(Case::Retries, protection).parts[2];
    let (back, lost): (Vec<_>, Vec<_>) =
        (Protection::ALL.into_iter()).partition(|protection| after(*protection).settled.is_some());
    let sent = |protection: Protection| {
        let Part {
            amplified, lasts, ..
        } = after(protection);
        format!(
            "{}: {amplified:.1} requests are sent for each one that was meant, for as long as it was watched ({lasts} s)",
            protection.name()
        )
    };
    let took = |protection: Protection| {
        let settled = seconds(after(protection).settled);
        format!("{} {settled} s", protection.name())
    };
    let mut found = Vec::new();
    if !lost.is_empty() {
        found.push(format!(
            "The cause has gone and the outage goes on: what the server works on has been given up, so all of it is sent \
             again, and waits in line behind what was given up before. {}.",
            list(lost.into_iter().map(sent))
        ));
    }
    if !back.is_empty() {
        found.push(format!(
            "Where the queue is short, what is answered is answered in time, and is not sent again. Time until all is \
             well: {}.",
            list(back.into_iter().map(took))
        ));
    }
    found
}

fn settings(results: &Results) -> Vec<String> {
    let part = |setting, value| {
        let mut outcomes = settings::outcomes(results, setting).into_iter();
        let found = outcomes.find(|(it, _)| *it == value).expect("it was tried");
        &found.1.parts[1]
    };
    let both = |setting, unit: &'static str| {
        move |value: usize| {
            let Part { p99, .. } = part(setting, value);
            let goodput = percent(part(setting, value).goodput());
            format!("{value}{unit}: {goodput} (p99 {})", latency(*p99))
        }
    };
    let found = |(initial, outcome): &(usize, &Outcome)| {
        let (first, found) = (outcome.parts[0].goodput(), seconds(outcome.found()));
        format!("{initial}: {found} s, {}", percent(first))
    };
    let found = settings::outcomes(results, Setting::Initial)
        .iter()
        .map(found)
        .collect::<Vec<_>>();
    let (least, most) = (settings::outcomes(results, Setting::Initial).iter())
        .map(|(_, outcome)| outcome.parts[1].goodput())
        .fold((f64::INFINITY, 0.0_f64), |(least, most), it| {
            (least.min(it), most.max(it))
        });
    let off = (settings::outcomes(results, Setting::Weight).iter())
        .map(|(weight, outcome)| (outcome.share() - settings::fair(*weight)).abs())
        .fold(0.0, f64::max);
    vec![
        format!(
            "A limit that is too low leaves workers idle. One that is too high moves the queue into the server, and costs \
             latency first, then everything: {}.",
            [4, LIMIT, 128, 512]
                .map(both(Setting::Limit, ""))
                .join("; ")
        ),
        format!(
            "A queue is good for as many as get done while clients wait, and no more. Of max_waiting: {}.",
            [0, 64, 160, 640]
                .map(both(Setting::MaxWaiting, ""))
                .join("; ")
        ),
        format!(
            "CoDel's target is about the latency: {}.",
            [5, 25, 100, 400]
                .map(both(Setting::Target, " ms"))
                .join("; ")
        ),
        format!(
            "How long Vegas takes to find the limit, and goodput in the first {FIRST} s, by where it begins: {}. Too low costs \
             goodput until then, too high costs latency. Afterwards goodput is from {:.1} to {:.1} %.",
            found.join("; "),
            100.0 * least,
            100.0 * most
        ),
        format!(
            "A max that is too low is a fixed limit that is too low: {}.",
            [4, 8, 16, 1000].map(both(Setting::Max, "")).join("; ")
        ),
        format!(
            "By weight a tenant should get w/(w+1) of the service. It does, to within {:.1} %.",
            100.0 * off
        ),
    ]
}

/// `a, b and c`.
pub fn list(items: impl IntoIterator<Item = String>) -> String {
    let mut items: Vec<_> = items.into_iter().collect();
    let last = items.pop().unwrap_or_default();
    match items.len() {
        0 => last,
        _ => format!("{} and {last}", items.join(", ")),
    }
}
