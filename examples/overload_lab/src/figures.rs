//! What is drawn of the results: all figures, and here those of steady loads, and of settings.

use crate::{
    disturbances,
    lab::{Results, Scenario, spread_name},
    plot::{Axis, Figure, Mark, Panel, Series},
    protection::Protection,
    scenario::{Case, FIRST, Outcome, PATIENCE},
    served_tables,
    settings::{Setting, fair, outcomes},
    simulation::Spread,
    table::{latency, tenths, times},
    timelines::{capacity, limits, retries, tenants},
};

/// All figures that there are results for, and what each is of.
pub fn figures(results: &Results) -> Vec<(Scenario, Figure)> {
    let mut figures = Vec::new();
    for &scenario in &results.plan.scenarios {
        match scenario {
            Scenario::Questions => {} // a table says it all
            Scenario::Load => {
                figures.extend([goodput(results), latencies(results)].map(|it| (scenario, it)));
            }
            Scenario::Capacity => {
                figures.extend([capacity(results), limits(results)].map(|it| (scenario, it)));
            }
            Scenario::Tenants => figures.push((scenario, tenants(results))),
            Scenario::Retries => figures.push((scenario, retries(results))),
            Scenario::Settings => figures.push((scenario, settings(results))),
            Scenario::Disturbances => {
                figures.extend(disturbances::figures(results).map(|it| (scenario, it)));
            }
            Scenario::Served => figures.push((scenario, served_tables::figure(results))),
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
                x: None,
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
                x: None,
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

/// Values at even distances, whatever they are. Where there are many, the last but one has no room for a label.
fn value_axis(values: &[usize]) -> Axis {
    let (count, beside) = (values.len(), 0.6);
    let room = |(i, _): &(usize, &usize)| count <= 8 || i + 2 != count;
    let ticks = values.iter().enumerate().filter(room);
    Axis {
        label: "value of the setting",
        from: -beside,
        to: count as f64 - 1.0 + beside,
        log: false,
        ticks: ticks.map(|(i, it)| (i as f64, it.to_string())).collect(),
    }
}

fn settings(results: &Results) -> Figure {
    let panel = |setting: Setting| {
        let outcomes = outcomes(results, setting);
        let series = |mark, name: &str, of: &dyn Fn(usize, &Outcome) -> (f64, String)| {
            let mut series = Series {
                mark,
                points: Vec::new(),
                says: Vec::new(),
            };
            for (i, (value, outcome)) in outcomes.iter().enumerate() {
                let (y, text) = of(*value, outcome);
                series.points.push((i as f64, y));
                let value = setting.shown(*value);
                series.says.push(format!("{value}, {name}: {text}"));
            }
            series
        };
        let share = |share: f64| (share, format!("{} %", tenths(share)));
        let p99 = series(Mark::Dashed, "p99", &|_, outcome| {
            let p99 = outcome.parts[1].p99;
            (p99 / PATIENCE.as_secs_f64(), latency(p99))
        });
        let goodput =
            |part: usize| move |_, outcome: &Outcome| share(outcome.parts[part].goodput());
        let good = series(Mark::Solid, "goodput", &goodput(1));
        let series = match setting {
            Setting::Initial => {
                let name = format!("goodput in the first {FIRST} s");
                vec![p99, series(Mark::Dotted, &name, &goodput(0)), good]
            }
            Setting::Weight => {
                let mut ideal = series(Mark::Ideal, "", &|weight, _| share(fair(weight)));
                ideal.says = vec!["w/(w+1)".into()];
                let got = series(Mark::Solid, "its share", &|_, it| share(it.share()));
                vec![got, ideal]
            }
            _ => vec![p99, good],
        };
        let values: Vec<_> = outcomes.iter().map(|(value, _)| *value).collect();
        let [protection] = *setting.protection();
        Panel {
            protection,
            title: match setting {
                Setting::Target => format!("{}, ms", setting.name()),
                Setting::Weight => format!("{}: share of the service", setting.name()),
                _ => setting.name().into(),
            },
            note: setting.stack(),
            x: Some(value_axis(&values)),
            bands: Vec::new(),
            series,
        }
    };
    Figure {
        name: "settings",
        title: "What a wrong setting does at 2× load".into(),
        x: value_axis(&[]),
        y: Axis::percent(
            "goodput as a share of capacity, and p99 as a share of the 1 s that clients wait",
            1.5,
        ),
        panels: Setting::ALL.map(panel).into(),
        legend: vec![
            (Mark::Solid, "goodput, or share of the service".into()),
            (Mark::Dotted, format!("goodput in the first {FIRST} s")),
            (Mark::Dashed, "p99 (at the top: 1.5 s or more)".into()),
            (Mark::Ideal, "by weight: w/(w+1)".into()),
        ],
    }
}
