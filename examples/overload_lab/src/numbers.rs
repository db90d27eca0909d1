//! The numbers as tables, for the report.

use std::fmt::Write;

use crate::{
    disturbances::{PROTECTIONS, lines},
    lab::{Results, spread_name},
    plot::key,
    protection::Protection,
    scenario::{CAPACITY, Case, Part, WELL},
    served_tables,
    settings::{self, Setting},
    table::{Table, latency, percent, seconds, times},
};

/// Of all loads.
pub fn load_numbers(out: &mut String, results: &Results) {
    let loads = &results.plan.loads;
    let heads: Vec<_> = loads.iter().map(|load| times(*load)).collect();
    for &spread in &results.plan.spreads {
        let name = spread_name(spread);
        let mut each = |caption: &str, cell: &dyn Fn(&[Part]) -> String| {
            table(
                out,
                &format!("{caption}, {name} service times"),
                &heads,
                |protection| {
                    let parts =
                        |load: &f64| &results.of(Case::Load(spread, *load), protection).parts;
                    loads.iter().map(|load| cell(parts(load))).collect()
                },
            );
        };
        each("Goodput, share of capacity", &|it| {
            judged_of(it[1].good / CAPACITY, it[1].goodput())
        });
        each("p50 of what was served", &|it| plain(latency(it[1].p50)));
        each("p99 of what was served", &|it| plain(latency(it[1].p99)));
        each("Refused", &|it| plain(percent(it[1].refused)));
        each("Seconds until all is well, once the load is 0.5×", &|it| {
            plain(seconds(it[2].settled))
        });
    }
}

/// A table for each phase.
pub fn parts(out: &mut String, results: &Results, case: Case) {
    let first = results.of(case, Protection::None);
    for (i, phase) in first
        .parts
        .iter()
        .enumerate()
        .filter(|(_, part)| part.possible > 0.0)
    {
        let mut heads = vec!["goodput", "p50", "p99", "refused", "well after"];
        let tenants = phase.quiet.is_some();
        if tenants {
            heads.extend(["quiet get", "fairness"]);
        }
        if case == Case::Retries {
            heads.push("sent per request");
        }
        let heads: Vec<_> = heads.into_iter().map(str::to_owned).collect();
        let caption = format!("{}, {} s", phase.name, phase.lasts);
        table(out, &caption, &heads, |protection| {
            let part = &results.of(case, protection).parts[i];
            let mut cells = vec![
                judged(part.goodput()),
                plain(latency(part.p50)),
                plain(latency(part.p99)),
                plain(percent(part.refused)),
                plain(
                    part.settled
                        .map_or("never".into(), |it| format!("{it:.1} s")),
                ),
            ];
            if tenants {
                let fairness = part.fairness.map_or("–".into(), |it| format!("{it:.3}"));
                cells.extend([judged(part.quiet.unwrap_or(0.0)), plain(fairness)]);
            }
            if case == Case::Retries {
                cells.push(plain(format!("{:.2}", part.amplified)));
            }
            cells
        });
    }
}

/// A table for each setting.
pub fn settings_numbers(out: &mut String, results: &Results) {
    for (setting, table) in Setting::ALL.into_iter().zip(settings::tables(results)) {
        as_it_is(out, table, key(setting.protection()[0]));
    }
}

/// A table for each thing that is known of requests.
pub fn served_numbers(out: &mut String, results: &Results) {
    for table in served_tables::tables(results) {
        as_it_is(out, table, "fg");
    }
}

/// A table that is the same on a terminal.
fn as_it_is(out: &mut String, table: Table, colour: &str) {
    let heads: String = (table.heads.iter())
        .map(|head| format!("<th>{head}</th>"))
        .collect();
    put(
        out,
        format_args!(
            "<div class=\"scroll\"><table>\n<caption>{}: {}</caption>\n\
             <thead><tr><th></th>{heads}</tr></thead>\n<tbody style=\"--c:var(--{colour})\">",
            table.name, table.about
        ),
    );
    for (name, cells) in table.rows {
        let cells: String = cells.into_iter().map(plain).collect();
        put(out, format_args!("<tr><th>{name}</th>{cells}</tr>"));
    }
    put(out, format_args!("</tbody></table></div>"));
}

/// A row for each part of a disturbance that is judged.
pub fn disturbance_numbers(out: &mut String, results: &Results) {
    let heads = PROTECTIONS.map(|it| format!("<th>{}</th>", it.name()));
    put(
        out,
        format_args!(
            "<div class=\"scroll\"><table>\n<caption>Goodput on average, as a share of what is possible, and the worst of \
             the seeds; where it says so, what was refused</caption>\n\
             <thead><tr><th></th>{}</tr></thead>\n<tbody style=\"--c:var(--fg)\">",
            heads.concat()
        ),
    );
    for line in lines(results) {
        let cells = PROTECTIONS.map(|protection| {
            let (mean, worst) = (line.mean(protection), line.worst(protection));
            let text = format!("{:.1} % ({:.1} %)", 100.0 * mean, 100.0 * worst);
            match line.refusals() {
                true => plain(text),
                false => format!("<td class=\"{}\">{text}</td>", class(mean)),
            }
        });
        let (name, cells) = (line.name(), cells.concat());
        put(out, format_args!("<tr><th>{name}</th>{cells}</tr>"));
    }
    put(out, format_args!("</tbody></table></div>"));
}

/// A table with a row for each protection, in its colour.
pub fn table(
    out: &mut String,
    caption: &str,
    heads: &[String],
    cells: impl Fn(Protection) -> Vec<String>,
) {
    put(out, format_args!("<div class=\"scroll\"><table>"));
    if !caption.is_empty() {
        put(out, format_args!("<caption>{caption}</caption>"));
    }
    let heads: String = heads
        .iter()
        .map(|head| format!("<th>{head}</th>"))
        .collect();
    put(
        out,
        format_args!("<thead><tr><th></th>{heads}</tr></thead>\n<tbody>"),
    );
    for protection in Protection::ALL {
        let (colour, name) = (key(protection), protection.name());
        let cells = cells(protection).concat();
        put(
            out,
            format_args!("<tr style=\"--c:var(--{colour})\"><th>{name}</th>{cells}</tr>"),
        );
    }
    put(out, format_args!("</tbody></table></div>"));
}

fn plain(text: String) -> String {
    format!("<td>{text}</td>")
}

/// A cell with a share, and whether it is good or bad.
pub fn judged(share: f64) -> String {
    judged_of(share, share)
}

/// Shows one share, and whether another is good or bad.
fn judged_of(shown: f64, share: f64) -> String {
    let class = class(share);
    format!("<td class=\"{class}\">{:.1} %</td>", 100.0 * shown)
}

fn class(share: f64) -> &'static str {
    match share {
        share if share >= WELL => "good",
        share if share < 0.5 => "bad",
        _ => "fair",
    }
}

/// A line more.
pub fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("a string");
}
