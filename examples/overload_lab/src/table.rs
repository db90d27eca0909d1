//! The results as tables: as text for a terminal of 80 columns, and as Markdown.

use crate::{
    disturbances,
    lab::{Results, Scenario, spread_name},
    protection::Protection,
    questions,
    scenario::{Case, OUTAGE, WELL},
    served_tables, settings,
    simulation::Spread,
};

/// All tables as text, one after the other.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for &scenario in &results.plan.scenarios {
        for table in tables(results, scenario) {
            text += &format!("{}, ", scenario.name().to_uppercase());
            text += &table.text();
        }
    }
    if results.has(Scenario::Load) {
        text += &verdict(results);
    }
    text
}

/// Those of a scenario, as Markdown.
pub fn markdown(results: &Results, scenario: Scenario) -> String {
    let tables = tables(results, scenario);
    let tables: Vec<_> = tables.iter().map(Table::markdown).collect();
    tables.join("\n")
}

fn tables(results: &Results, scenario: Scenario) -> Vec<Table> {
    match scenario {
        Scenario::Questions => vec![questions::table(results)],
        Scenario::Load => {
            let spreads = results.plan.spreads.iter();
            let goodput = spreads.map(|spread| goodput(results, *spread));
            goodput.chain([overload(results)]).collect()
        }
        Scenario::Capacity => vec![capacity(results)],
        Scenario::Tenants => vec![tenants(results)],
        Scenario::Retries => vec![retries(results)],
        Scenario::Settings => settings::tables(results),
        Scenario::Disturbances => vec![disturbances::table(results)],
        Scenario::Served => served_tables::tables(results),
    }
}

/// Numbers, with a line for each protection or each value of a setting.
pub struct Table {
    pub name: String,
    /// What the numbers are, in lines for a terminal.
    pub about: String,
    /// What the lines are.
    pub lines: &'static str,
    /// What stands above the columns: of each group, if there are any, the same columns.
    pub groups: Vec<String>,
    pub heads: Vec<String>,
    pub rows: Vec<(String, Vec<String>)>,
}

impl Table {
    fn text(&self) -> String {
        let groups = self.groups.len().max(1);
        let heads = vec![self.heads.clone(); groups].concat();
        let wide = |text: &str| text.chars().count();
        let widest = |(column, head): (usize, &String)| {
            let cells = self.rows.iter().map(|(_, cells)| wide(&cells[column]));
            cells.fold(wide(head), usize::max)
        };
        let mut widths: Vec<_> = heads.iter().enumerate().map(widest).collect();
        let names = self
            .rows
            .iter()
            .map(|(name, _)| wide(name))
            .fold(20, usize::max);
        let room = (80 - names).saturating_sub(widths.iter().sum());
        let gap = (room / widths.len()).clamp(1, 3);
        widths.iter_mut().for_each(|width| *width += gap);
        let line = |name: &str, cells: &[String], widths: &[usize]| {
            let cells = cells.iter().zip(widths);
            let cells: String = cells.map(|(it, width)| format!("{it:>width$}")).collect();
            format!("{name:names$}{cells}").trim_end().to_owned() + "\n"
        };
        let mut text = format!("{}: {}\n", self.name, self.about);
        if !self.groups.is_empty() {
            let widths: Vec<usize> = (widths.chunks(self.heads.len()))
                .map(|widths| widths.iter().sum())
                .collect();
            text += &line("", &self.groups, &widths);
        }
        text += &line(self.lines, &heads, &widths);
        for (name, cells) in &self.rows {
            text += &line(name, cells, &widths);
        }
        text + "\n"
    }

    fn markdown(&self) -> String {
        let mut heads = vec![self.lines.to_owned()];
        match self.groups.len() {
            0 => heads.extend(self.heads.clone()),
            _ => heads.extend(self.groups.iter().flat_map(|group| {
                let heads = self.heads.iter();
                heads.map(move |head| format!("{group}: {head}"))
            })),
        }
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let about = self.about.replace('\n', " ");
        let mut text = format!("### {}\n\n{about}\n\n{}", self.name, line(&heads));
        text += &format!("|---|{}\n", "--:|".repeat(heads.len() - 1));
        for (name, cells) in &self.rows {
            text += &line(&[std::slice::from_ref(name), cells].concat());
        }
        text
    }
}

/// With a line for each protection.
fn by_protection(
    name: impl Into<String>,
    about: &str,
    heads: &[&str],
    cells: impl Fn(Protection) -> Vec<String>,
) -> Table {
    let row = |protection: Protection| (protection.name().to_owned(), cells(protection));
    Table {
        name: name.into(),
        about: about.into(),
        lines: "",
        groups: Vec::new(),
        heads: heads.iter().map(|&head| head.to_owned()).collect(),
        rows: Protection::ALL.map(row).into(),
    }
}

fn goodput(results: &Results, spread: Spread) -> Table {
    let name = format!("{} service times", spread_name(spread));
    let loads: Vec<_> = results.plan.loads.iter().map(|it| times(*it)).collect();
    let loads: Vec<_> = loads.iter().map(String::as_str).collect();
    by_protection(name, "goodput, % of capacity", &loads, |protection| {
        let goodput = results.goodput(spread, protection);
        goodput.into_iter().map(|(_, it)| tenths(it)).collect()
    })
}

fn overload(results: &Results) -> Table {
    let spread = results.main_spread();
    let loads: Vec<f64> = (results.plan.loads.iter().copied())
        .filter(|load| [2.0, 10.0].contains(load))
        .collect();
    let about = format!(
        "{} service times; and seconds until all is\nwell afterwards",
        spread_name(spread)
    );
    let heads = ["p50", "p99", "refused", "back"];
    let table = by_protection("latency and refusals", &about, &heads, |protection| {
        let cells = loads.iter().flat_map(|load| {
            let parts = &results.of(Case::Load(spread, *load), protection).parts;
            let (part, back) = (&parts[1], seconds(parts[2].settled));
            [
                latency(part.p50),
                latency(part.p99),
                percent(part.refused),
                back,
            ]
        });
        cells.collect()
    });
    Table {
        groups: loads.iter().map(|load| times(*load)).collect(),
        ..table
    }
}

fn capacity(results: &Results) -> Table {
    let about = "goodput, % of what is possible, and p99";
    let table = by_protection("1.5× load", about, &["good", "p99"], |protection| {
        let parts = results.of(Case::Capacity, protection).parts.iter();
        let cells = parts.flat_map(|part| [tenths(part.goodput()), latency(part.p99)]);
        cells.collect()
    });
    let first = results.of(Case::Capacity, Protection::None);
    Table {
        groups: first.parts.iter().map(|part| part.name.into()).collect(),
        ..table
    }
}

fn tenants(results: &Results) -> Table {
    let about = "goodput, % of capacity; what quiet ones get,\n\
                 % of what they ask for; fairness from 1/8 to 1";
    let heads = ["goodput", "quiet get", "fairness", "p50", "p99", "refused"];
    by_protection("one of eight is noisy", about, &heads, |protection| {
        let part = &results.of(Case::Tenants, protection).parts[1];
        vec![
            tenths(part.goodput()),
            tenths(part.quiet.unwrap_or(f64::NAN)),
            part.fairness.map_or("–".into(), |it| format!("{it:.2}")),
            latency(part.p50),
            latency(part.p99),
            percent(part.refused),
        ]
    })
}

fn retries(results: &Results) -> Table {
    let name = format!("0.9× load, {OUTAGE} s outage");
    let about = "goodput, % of what is asked for; seconds\n\
                 until all is well; requests sent for each that was meant, afterwards";
    let heads = ["before", "after", "back", "sent", "p50", "p99", "refused"];
    by_protection(name, about, &heads, |protection| {
        let parts = &results.of(Case::Retries, protection).parts;
        let (before, after) = (&parts[0], &parts[2]);
        vec![
            tenths(before.goodput()),
            tenths(after.goodput()),
            seconds(after.settled),
            format!("{:.2}", after.amplified),
            latency(after.p50),
            latency(after.p99),
            percent(after.refused),
        ]
    })
}

/// Who keeps to 95 % from 2× on, and who does not.
pub fn verdict(results: &Results) -> String {
    let names = |of: &[Protection]| {
        let worst = |protection: &Protection| {
            let spreads = results.plan.spreads.iter();
            let worst = spreads.map(|spread| results.worst(*spread, *protection));
            format!(
                "{} {:.1} %",
                protection.name(),
                100.0 * worst.fold(f64::INFINITY, f64::min)
            )
        };
        let names: Vec<_> = of.iter().map(worst).collect();
        match names.len() {
            0 => "none of them".to_owned(),
            _ => names.join("\n  "),
        }
    };
    let (well, badly) = results.verdict();
    format!(
        "Least goodput at 2× to 10×, whatever the service times:\n  {}\nLess than {:.0} %:\n  {}\n",
        names(&well),
        100.0 * WELL,
        names(&badly)
    )
}

pub fn times(load: f64) -> String {
    format!("{load}×")
}

/// Of three digits or so.
pub fn latency(seconds: f64) -> String {
    match seconds {
        it if it.is_nan() => "–".into(),
        it if it < 1.0 => format!("{:.0} ms", 1e3 * it),
        it if it < 10.0 && it != 1.0 => format!("{it:.1} s"),
        it => format!("{it:.0} s"),
    }
}

/// Percent, to a tenth, of a column that says so.
pub fn tenths(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

pub fn seconds(settled: Option<f64>) -> String {
    settled.map_or("never".into(), |it| format!("{it:.1}"))
}
