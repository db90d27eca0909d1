//! What is drawn of the cases that are watched over time.

use crate::{
    figures::panels,
    lab::Results,
    plot::{Axis, Figure, Mark, Panel, Series},
    protection::Protection,
    scenario::{CAPACITY, Case, OUTAGE, Outcome, Part, QUIET, Sample, WORK},
    table::{percent, seconds},
};

/// Of so many samples each, their mean.
fn over_time(outcome: &Outcome, every: usize, of: impl Fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    (outcome.samples.chunks(every))
        .map(|chunk| {
            let middle = (chunk[0].at + chunk[chunk.len() - 1].at) / 2.0;
            (
                middle,
                chunk.iter().map(&of).sum::<f64>() / chunk.len() as f64,
            )
        })
        .collect()
}

/// Steps, from phase to phase.
fn steps(outcome: &Outcome, values: &[f64]) -> Vec<(f64, f64)> {
    let phases = values.iter().zip(&outcome.parts).enumerate();
    phases
        .flat_map(|(i, (value, part))| {
            let begun = outcome.begins(i);
            [(begun, *value), (begun + part.lasts, *value)]
        })
        .collect()
}

fn end(outcome: &Outcome) -> f64 {
    outcome.begins(outcome.parts.len())
}

fn every_other(outcome: &Outcome) -> Vec<(f64, f64, String)> {
    let parts = outcome.parts.iter().enumerate().skip(1).step_by(2);
    let band = |(i, it): (usize, &Part)| {
        (
            outcome.begins(i),
            outcome.begins(i) + it.lasts,
            it.name.to_owned(),
        )
    };
    parts.map(band).collect()
}

pub fn capacity(results: &Results) -> Figure {
    let first = results.of(Case::Capacity, Protection::None);
    Figure {
        name: "capacity",
        title: "A server that loses three quarters of its workers, gets them back, and then as many more".into(),
        x: Axis::seconds(end(first)),
        y: Axis::percent("goodput at 1.5× load, as a share of the usual capacity", 1.7),
        panels: panels(|protection| {
            let outcome = results.of(Case::Capacity, protection);
            let possible: Vec<_> = outcome.parts.iter().map(|it| it.possible / CAPACITY).collect();
            let [.., slow, _, more] = &outcome.parts[..] else {
                unreachable!("it has four parts")
            };
            Panel {
                protection,
                title: protection.name().into(),
                note: format!(
                    "{} of what is possible, then {}",
                    percent(slow.goodput()),
                    percent(more.goodput())
                ),
                x: None,
                bands: every_other(outcome),
                series: vec![
                    Series {
                        mark: Mark::Ideal,
                        points: steps(outcome, &possible),
                        says: vec!["all that is possible".into()],
                    },
                    Series {
                        mark: Mark::Solid,
                        points: over_time(outcome, 4, |it| it.good / CAPACITY),
                        says: vec![format!("{}: goodput", protection.name())],
                    },
                ],
            }
        }),
        legend: vec![
            (Mark::Solid, "goodput".into()),
            (Mark::Ideal, "all that is possible".into()),
        ],
    }
}

pub fn limits(results: &Results) -> Figure {
    let panel = |protection: Protection, title: &str| {
        let outcome = results.of(Case::Capacity, protection);
        let workers: Vec<_> = (outcome.parts.iter()).map(|it| it.workers as f64).collect();
        let limit = |it: &Sample| it.limit.map_or(f64::NAN, |limit| limit as f64);
        let last = |phase: usize| {
            let (from, to) = (outcome.begins(phase), outcome.begins(phase + 1));
            let within = outcome
                .samples
                .iter()
                .filter(|it| it.at > (from + to) / 2.0 && it.at <= to);
            let limits: Vec<_> = within.map(limit).collect();
            limits.iter().sum::<f64>() / limits.len() as f64
        };
        Panel {
            protection,
            title: title.into(),
            note: format!(
                "in the end {:.0}, {:.0}, {:.0}, {:.0}",
                last(0),
                last(1),
                last(2),
                last(3)
            ),
            x: None,
            bands: every_other(outcome),
            series: vec![
                Series {
                    mark: Mark::Ideal,
                    points: steps(outcome, &workers),
                    says: vec!["workers that there are".into()],
                },
                Series {
                    mark: Mark::Solid,
                    points: over_time(outcome, 1, limit),
                    says: vec![format!("{}: limit", protection.name())],
                },
            ],
        }
    };
    let first = results.of(Case::Capacity, Protection::None);
    Figure {
        name: "limit",
        title: "The limit, while that happens".into(),
        x: Axis::seconds(end(first)),
        y: Axis::limit("requests in flight that are allowed"),
        panels: vec![
            panel(Protection::Fixed, "all with a fixed number"),
            panel(Protection::Vegas, Protection::Vegas.name()),
            panel(Protection::Edge, Protection::Edge.name()),
        ],
        legend: vec![
            (Mark::Solid, "limit".into()),
            (
                Mark::Ideal,
                format!("workers, of {} ms a request", WORK.as_millis()),
            ),
        ],
    }
}

pub fn tenants(results: &Results) -> Figure {
    let first = results.of(Case::Tenants, Protection::None);
    Figure {
        name: "tenants",
        title: "One of eight tenants asks for five times what there is".into(),
        x: Axis::seconds(end(first)),
        y: Axis::percent("who gets how much, as a share of capacity", 1.1),
        panels: panels(|protection| {
            let outcome = results.of(Case::Tenants, protection);
            let part = &outcome.parts[1];
            let good =
                |it: &Sample, tenant: usize| it.good_by_tenant.get(tenant).copied().unwrap_or(0.0);
            // What is behind comes first: the noisy one on top of all, then one quiet one less each time.
            let stack = |upto: usize, mark, text: String| Series {
                mark,
                points: over_time(outcome, 5, |it| {
                    let quiet: f64 = (1..=upto.min(7)).map(|tenant| good(it, tenant)).sum();
                    let noisy = if upto == 8 { good(it, 0) } else { 0.0 };
                    (quiet + noisy) / CAPACITY
                }),
                says: vec![text],
            };
            let quiet = (1..=7)
                .rev()
                .map(|i| stack(i, Mark::Quiet(i), format!("a quiet tenant, {i} of 7")));
            let mut series = vec![stack(8, Mark::Noisy, "the noisy tenant".into())];
            series.extend(quiet);
            let level = 7.0 * QUIET;
            series.push(Series {
                mark: Mark::Ideal,
                points: vec![(0.0, level), (end(outcome), level)],
                says: vec!["what the quiet ones ask for".into()],
            });
            Panel {
                protection,
                title: protection.name().into(),
                note: format!(
                    "quiet tenants get {} of theirs",
                    percent(part.quiet.unwrap_or(0.0))
                ),
                x: None,
                bands: every_other(outcome),
                series,
            }
        }),
        legend: vec![
            (Mark::Noisy, "the noisy tenant".into()),
            (Mark::Quiet(0), "seven quiet tenants".into()),
            (Mark::Ideal, "what the quiet ones ask for".into()),
        ],
    }
}

pub fn retries(results: &Results) -> Figure {
    let first = results.of(Case::Retries, Protection::None);
    Figure {
        name: "retries",
        title: format!("The server stands still for {OUTAGE} seconds, and clients try again"),
        x: Axis::seconds(end(first)),
        y: Axis::percent("goodput at 0.9× load, as a share of capacity", 1.2),
        panels: panels(|protection| {
            let outcome = results.of(Case::Retries, protection);
            let after = &outcome.parts[2];
            let back = match after.settled {
                Some(_) => format!("back in {} s", seconds(after.settled)),
                None => "never back".into(),
            };
            let asked = [0.0, end(outcome)].map(|at| (at, 0.9));
            Panel {
                protection,
                title: protection.name().into(),
                note: format!("{back}, {:.1} tries a request", after.amplified),
                x: None,
                bands: vec![(outcome.begins(1), outcome.begins(2), String::new())],
                series: vec![
                    Series {
                        mark: Mark::Ideal,
                        points: asked.into(),
                        says: vec!["what is asked for".into()],
                    },
                    Series {
                        mark: Mark::Solid,
                        points: over_time(outcome, 2, |it| it.good / CAPACITY),
                        says: vec![format!("{}: goodput", protection.name())],
                    },
                ],
            }
        }),
        legend: vec![
            (Mark::Solid, "goodput".into()),
            (Mark::Ideal, "what is asked for".into()),
        ],
    }
}
