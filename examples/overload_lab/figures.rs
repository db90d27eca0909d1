//! What is drawn of the results: all figures, and here those of steady loads.

use crate::{
    lab::{Results, Scenario, spread_name},
    plot::{Axis, Figure, Mark, Panel, Series},
    protection::Protection,
    scenario::{Case, PATIENCE},
    simulation::Spread,
    table::{latency, times},
    timelines::{capacity, limits, retries, tenants},
};

/// All figures that there are results for, and what each is of.
pub fn figures(results: &Results) -> Vec<(Scenario, Figure)> {
    let mut figures = Vec::new();
    for &scenario in &results.plan.scenarios {
        match scenario {
            Scenario::Load => {
                figures.extend([goodput(results), latencies(results)].map(|it| (scenario, it)));
            }
            Scenario::Capacity => {
                figures.extend([capacity(results), limits(results)].map(|it| (scenario, it)));
            }
            Scenario::Tenants => figures.push((scenario, tenants(results))),
            Scenario::Retries => figures.push((scenario, retries(results))),
        }
    }
    figures
}

/// A panel for each protection.
pub fn panels(of: impl Fn(Protection) -> Panel) -> Vec<Panel> {
    Protection::ALL.map(of).into()
}

fn load_axis(results: &Results) -> Axis {
    let loads = &results.plan.loads;
    let shown = |load: &&f64| [0.5, 1.0, 2.0, 5.0, 10.0].contains(*load);
    Axis {
        label: "offered load, as a multiple of capacity",
        from: loads[0],
        to: loads[loads.len() - 1],
        log: true,
        ticks: (loads.iter().filter(shown))
            .map(|load| (*load, times(*load)))
            .collect(),
    }
}

fn goodput(results: &Results) -> Figure {
    let mark = |spread| match spread {
        Spread::Constant => Mark::Dotted,
        Spread::Exponential => Mark::Solid,
        _ => Mark::Dashed,
    };
    let spreads = &results.plan.spreads;
    let ideal = || Series {
        mark: Mark::Ideal,
        points: (results.plan.loads.iter())
            .map(|load| (*load, load.min(1.0)))
            .collect(),
        says: vec!["all that is possible".into()],
    };
    let mut legend: Vec<_> = (spreads.iter())
        .map(|spread| {
            (
                mark(*spread),
                format!("{} service times", spread_name(*spread)),
            )
        })
        .collect();
    legend.push((Mark::Ideal, "all that is possible".into()));
    Figure {
        name: "goodput",
        title: "Goodput against load".into(),
        x: load_axis(results),
        y: Axis::percent("answers in time, as a share of capacity", 1.1),
        panels: panels(|protection| {
            let worst = (spreads.iter()).map(|spread| results.worst(*spread, protection));
            let worst = worst.fold(f64::INFINITY, f64::min);
            let series = spreads.iter().map(|&spread| {
                let points = results.goodput(spread, protection);
                let says = points.iter().map(|(load, goodput)| {
                    let (load, name) = (times(*load), spread_name(spread));
                    format!("{load}, {name}: {:.1} %", 100.0 * goodput)
                });
                Series {
                    mark: mark(spread),
                    says: says.collect(),
                    points,
                }
            });
            Panel {
                protection,
                title: protection.name().into(),
                note: format!("at worst {:.1} % from 2× on", 100.0 * worst),
                bands: Vec::new(),
                series: std::iter::once(ideal()).chain(series).collect(),
            }
        }),
        legend,
    }
}

fn latencies(results: &Results) -> Figure {
    let spread = results.main_spread();
    let loads = &results.plan.loads;
    let ticks = [0.01, 0.1, 1.0, 10.0, 100.0];
    let ends = [loads[0], loads[loads.len() - 1]];
    Figure {
        name: "latency",
        title: format!(
            "Latency against load, {} service times",
            spread_name(spread)
        ),
        x: load_axis(results),
        y: Axis {
            label: "time from a request to its answer, of those that were served",
            from: 0.01,
            to: 400.0,
            log: true,
            ticks: ticks.map(|it| (it, latency(it))).into(),
        },
        panels: panels(|protection| {
            let parts: Vec<_> = (loads.iter())
                .map(|load| &results.of(Case::Load(spread, *load), protection).parts[1])
                .collect();
            let series = |mark, name: &str, of: Vec<f64>| Series {
                mark,
                says: (loads.iter().zip(&of))
                    .map(|(load, it)| format!("{}, {name}: {}", times(*load), latency(*it)))
                    .collect(),
                points: loads.iter().copied().zip(of).collect(),
            };
            let worst = parts[parts.len() - 1];
            Panel {
                protection,
                title: protection.name().into(),
                note: format!(
                    "at {}: p50 {}, p99 {}",
                    times(ends[1]),
                    latency(worst.p50),
                    latency(worst.p99)
                ),
                bands: Vec::new(),
                series: vec![
                    Series {
                        mark: Mark::Ideal,
                        points: ends.map(|load| (load, PATIENCE.as_secs_f64())).into(),
                        says: vec!["nobody waits any longer than this".into()],
                    },
                    series(Mark::Dashed, "p50", parts.iter().map(|it| it.p50).collect()),
                    series(Mark::Solid, "p99", parts.iter().map(|it| it.p99).collect()),
                ],
            }
        }),
        legend: vec![
            (Mark::Solid, "p99".into()),
            (Mark::Dashed, "p50".into()),
            (Mark::Ideal, "clients have given up".into()),
        ],
    }
}
