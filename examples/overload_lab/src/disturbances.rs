//! The chapter on disturbances: each of them with each protection that learns, and one that knows the number.

use crate::{
    disturbance::{Disturbance, Judged, SLICE, Step},
    findings::list,
    lab::Results,
    plot::{Axis, Figure, Mark, Panel, Series, escape},
    protection::Protection,
    scenario::{CAPACITY, Case, Outcome, Sample, WELL, WORKERS},
    simulation::{Server, Spread},
    table::{Table, percent},
};

pub const PROTECTIONS: [Protection; 5] = [
    Protection::Vegas,
    Protection::Edge,
    Protection::Gradient2,
    Protection::Aimd,
    Protection::Fixed,
];

/// The plan's seed, and those after it.
const SEEDS: u64 = 3;

/// Those that are drawn.
const DRAWN: [Disturbance; 6] = [
    Disturbance::Outage,
    Disturbance::Onset,
    Disturbance::FewerWorkers,
    Disturbance::Slower,
    Disturbance::Outside,
    Disturbance::Freezes,
];

pub fn cases() -> impl Iterator<Item = Case> {
    let seeds = |it| (0..SEEDS).map(move |later| Case::Disturbance(it, later));
    Disturbance::ALL.into_iter().flat_map(seeds)
}

fn server(disturbance: Disturbance) -> Server {
    disturbance.server(WORKERS, Spread::Exponential)
}

/// Runs one, with the seed that comes so much later.
pub fn run(disturbance: Disturbance, later: u64, protection: Protection, seed: u64) -> Outcome {
    let server = server(disturbance);
    let site = protection.protect(seed.wrapping_add(later), server);
    let mut samples = Vec::new();
    let judged = disturbance.run(server, site, |good, limit| {
        samples.push(Sample {
            at: (samples.len() as f64 + 0.5) * SLICE.as_secs_f64(),
            offered: f64::NAN,
            good,
            good_by_tenant: Vec::new(),
            limit,
        });
    });
    Outcome {
        protection,
        case: Case::Disturbance(disturbance, later),
        parts: Vec::new(),
        judged,
        samples,
        measured: None,
    }
}

/// A part of a disturbance that is judged.
pub struct Line<'a> {
    results: &'a Results,
    disturbance: Disturbance,
    part: usize,
}

/// All of them.
pub fn lines(results: &Results) -> Vec<Line<'_>> {
    let parts = |disturbance: Disturbance| {
        let steps = disturbance.steps(server(disturbance));
        0..steps.iter().filter(|step| step.judged.is_some()).count()
    };
    let line = |disturbance, part| Line {
        results,
        disturbance,
        part,
    };
    (Disturbance::ALL.into_iter())
        .flat_map(|disturbance| parts(disturbance).map(move |part| line(disturbance, part)))
        .collect()
}

impl Line<'_> {
    pub fn name(&self) -> String {
        let part = match self.refusals() {
            true => "refused",
            false => self.each(PROTECTIONS[0])[0].name,
        };
        format!("{}, {part}", self.disturbance.name())
    }

    /// Whether it is about refusals: nothing that comes after a short stall should be refused.
    pub fn refusals(&self) -> bool {
        self.disturbance == Disturbance::Stall
    }

    /// Of all seeds.
    pub fn mean(&self, protection: Protection) -> f64 {
        self.values(protection).iter().sum::<f64>() / SEEDS as f64
    }

    pub fn worst(&self, protection: Protection) -> f64 {
        let values = self.values(protection).into_iter();
        match self.refusals() {
            true => values.fold(0.0, f64::max),
            false => values.fold(f64::INFINITY, f64::min),
        }
    }

    fn values(&self, protection: Protection) -> Vec<f64> {
        let value = |judged: &Judged| match self.refusals() {
            true => judged.refused,
            // Work is counted as wasted once it is answered, which may be in a later part.
            false => judged.goodput.max(0.0),
        };
        self.each(protection).into_iter().map(value).collect()
    }

    fn each(&self, protection: Protection) -> Vec<&Judged> {
        let case = |later| Case::Disturbance(self.disturbance, later);
        (0..SEEDS)
            .map(|later| &self.results.of(case(later), protection).judged[self.part])
            .collect()
    }
}

pub fn table(results: &Results) -> Table {
    let row = |line: Line<'_>| {
        let cells = PROTECTIONS.map(|protection| {
            let (mean, worst) = (line.mean(protection), line.worst(protection));
            format!("{:.0} ({:.0})", 100.0 * mean, 100.0 * worst)
        });
        (line.name(), cells.into())
    };
    Table {
        name: format!("{WORKERS} workers, exponential service times"),
        about: format!(
            "goodput, %\nof what is possible: mean of {SEEDS} seeds (the worst of them); or % refused"
        ),
        lines: "",
        groups: Vec::new(),
        heads: PROTECTIONS.map(|it| it.name().to_owned()).into(),
        rows: lines(results).into_iter().map(row).collect(),
    }
}

/// What the report says of the chapter.
pub fn about() -> String {
    let stack = |protection: Protection| {
        let (stack, _) = protection.stack();
        format!("{} is <code>{}</code>", protection.name(), escape(&stack))
    };
    format!(
        "Something else than the load changes, or the load changes at once: the server stands still, loses workers, gets \
         slower, waits for another service, or starts under load. Most begin with twenty seconds at 0.9×. The seconds after \
         the change are judged apart from the rest. Each is run with {SEEDS} seeds. \
         Under more load than the server can take, goodput is the share of the workers' time that is spent on answers in \
         time. Not in the table above: {}. The fixed limit is \
         right for {WORKERS} workers.",
        list([Protection::Gradient2, Protection::Aimd].map(stack))
    )
}

pub fn findings(results: &Results) -> Vec<String> {
    let (refusals, goodput): (Vec<_>, Vec<_>) =
        lines(results).into_iter().partition(Line::refusals);
    let well = |protection: Protection| {
        let well = (goodput.iter()).filter(|line| line.mean(protection) >= WELL);
        format!("{} {}", protection.name(), well.count())
    };
    let least = |protection: Protection| {
        let mean = |line: &&Line<'_>| line.mean(protection);
        let least = (goodput.iter()).min_by(|a, b| mean(a).total_cmp(&mean(b)));
        let least = least.expect("there are some");
        let (name, mean) = (least.name(), percent(least.mean(protection)));
        format!("{} {mean} ({name})", protection.name())
    };
    let refused = |protection: Protection| {
        let refused = refusals.iter().map(|line| line.mean(protection));
        format!("{} {}", protection.name(), percent(refused.sum()))
    };
    vec![
        format!(
            "In how many of the {} parts goodput is {} of what is possible, or more: {}.",
            goodput.len(),
            percent(WELL),
            list(PROTECTIONS.map(well))
        ),
        format!(
            "The part with the least goodput: {}.",
            list(PROTECTIONS.map(least))
        ),
        format!(
            "Refused after a stall of 200 ms and a burst, at half of the load that the server can take: {}.",
            list(PROTECTIONS.map(refused))
        ),
    ]
}

/// Goodput and the limit over time, of the plan's seed.
pub fn figures(results: &Results) -> [Figure; 2] {
    let goodput = |it: &Sample| it.good / CAPACITY;
    let limit = |it: &Sample| it.limit.map_or(f64::NAN, |limit| limit as f64);
    [
        Figure {
            name: "disturbances",
            title: "Goodput, when something happens to the server".into(),
            x: Axis::seconds(50.0),
            y: Axis::percent("goodput, as a share of the usual capacity", 1.2),
            panels: DRAWN
                .map(|it| panel(results, it, 2, goodput, |step| step.possible() / CAPACITY))
                .into(),
            legend: legend("all that is possible"),
        },
        Figure {
            name: "disturbance_limits",
            title: "The limit, while that happens".into(),
            x: Axis::seconds(50.0),
            y: Axis::limit("requests in flight that are allowed (at the top: 100 or more)"),
            panels: DRAWN
                .map(|it| Panel {
                    note: String::new(),
                    ..panel(results, it, 1, limit, Step::needed)
                })
                .into(),
            legend: legend("workers, and requests outside"),
        },
    ]
}

fn legend(ideal: &str) -> Vec<(Mark, String)> {
    vec![
        (Mark::Solid, Protection::Edge.name().into()),
        (Mark::Dotted, Protection::Vegas.name().into()),
        (Mark::Ideal, ideal.into()),
    ]
}

/// What there is over time, of so many samples each the mean; and what there should be.
fn panel(
    results: &Results,
    disturbance: Disturbance,
    every: usize,
    of: impl Fn(&Sample) -> f64,
    ideal: impl Fn(&Step) -> f64,
) -> Panel {
    let steps = disturbance.steps(server(disturbance));
    let mut end = 0.0;
    let mut possible = Vec::new();
    for step in &steps {
        possible.extend([(end, ideal(step)), (end + step.seconds, ideal(step))]);
        end += step.seconds;
    }
    // The first step is the usual, the second is what happens.
    let from = steps[0].seconds;
    let name = steps[1].judged.unwrap_or_default().to_owned();
    let line = |mark, protection: Protection| {
        let outcome = results.of(Case::Disturbance(disturbance, 0), protection);
        let mean = |chunk: &[Sample]| {
            let middle = (chunk[0].at + chunk[chunk.len() - 1].at) / 2.0;
            (
                middle,
                chunk.iter().map(&of).sum::<f64>() / chunk.len() as f64,
            )
        };
        Series {
            mark,
            points: outcome.samples.chunks(every).map(mean).collect(),
            says: vec![protection.name().into()],
        }
    };
    let judged = |protection: Protection| {
        let lines = lines(results).into_iter();
        let lines = lines.filter(|line| line.disturbance == disturbance);
        let means: Vec<_> = lines.map(|line| percent(line.mean(protection))).collect();
        format!("{} {}", protection.name(), means.join(", "))
    };
    Panel {
        protection: Protection::Edge,
        title: disturbance.name().into(),
        note: [Protection::Edge, Protection::Vegas].map(judged).join("; "),
        x: Some(Axis::seconds(end)),
        bands: vec![(from, from + steps[1].seconds, name)],
        series: vec![
            Series {
                mark: Mark::Ideal,
                points: possible,
                says: Vec::new(),
            },
            line(Mark::Dotted, Protection::Vegas),
            line(Mark::Solid, Protection::Edge),
        ],
    }
}
