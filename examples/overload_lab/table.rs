//! The results as text, for a terminal of 80 columns.

use std::fmt::Write;

use crate::{
    lab::{Results, Scenario, spread_name},
    protection::Protection,
    scenario::{Case, OUTAGE, Part, WELL},
    simulation::Spread,
};

/// All tables, one after the other.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for scenario in &results.plan.scenarios {
        match scenario {
            Scenario::Load => {
                for spread in &results.plan.spreads {
                    text += &goodput(results, *spread);
                }
                text += &overload(results);
            }
            Scenario::Capacity => text += &capacity(results),
            Scenario::Tenants => text += &tenants(results),
            Scenario::Retries => text += &retries(results),
        }
    }
    if results.has(Scenario::Load) {
        text += &verdict(results);
    }
    text
}

/// A table with a line for each protection.
fn lines(
    title: &str,
    heads: &[&str],
    line: impl Fn(Protection, &mut String) -> std::fmt::Result,
) -> String {
    let mut text = format!("{title}\n");
    for head in heads {
        writeln!(text, "{:20}{head}", "").expect("a string");
    }
    for protection in Protection::ALL {
        write!(text, "{:20}", protection.name()).expect("a string");
        line(protection, &mut text).expect("a string");
        text.push('\n');
    }
    text + "\n"
}

fn goodput(results: &Results, spread: Spread) -> String {
    let name = spread_name(spread);
    let loads = &results.plan.loads;
    let head: String = (loads.iter())
        .map(|load| format!("{:>6}", times(*load)))
        .collect();
    let title = format!("LOAD, {name} service times: goodput, % of capacity");
    lines(&title, &[&head], |protection, text| {
        for (_, goodput) in results.goodput(spread, protection) {
            write!(text, "{:6.1}", 100.0 * goodput)?;
        }
        Ok(())
    })
}

fn overload(results: &Results) -> String {
    let spread = results.main_spread();
    let name = spread_name(spread);
    let loads: Vec<f64> = (results.plan.loads.iter().copied())
        .filter(|load| [2.0, 10.0].contains(load))
        .collect();
    let above: String = (loads.iter())
        .map(|load| format!("{:>29}", format!("{} load", times(*load))))
        .collect();
    let head = "     p50     p99 refused  back".repeat(loads.len());
    let title = format!("LOAD, {name}: latency, refused, seconds until all is well afterwards");
    lines(&title, &[above.trim_end(), &head], |protection, text| {
        for load in &loads {
            let parts = &results.of(Case::Load(spread, *load), protection).parts;
            let Part {
                p50, p99, refused, ..
            } = parts[1];
            let back = seconds(parts[2].settled);
            let (p50, p99, refused) = (latency(p50), latency(p99), percent(refused));
            write!(text, "{p50:>8}{p99:>8}{refused:>8}{back:>6}")?;
        }
        Ok(())
    })
}

fn capacity(results: &Results) -> String {
    let first = results.of(Case::Capacity, Protection::None);
    let above: String = (first.parts.iter())
        .map(|part| format!("{:>15}", part.name))
        .collect();
    let head = "   good     p99".repeat(first.parts.len());
    let title = "CAPACITY at 1.5× load: goodput, % of what is possible, and p99";
    lines(title, &[&above, &head], |protection, text| {
        for part in &results.of(Case::Capacity, protection).parts {
            write!(
                text,
                "{:7.1}{:>8}",
                100.0 * part.goodput(),
                latency(part.p99)
            )?;
        }
        Ok(())
    })
}

fn tenants(results: &Results) -> String {
    let head = " goodput  quiet get  fairness       p50       p99  refused";
    let title = "TENANTS, one of which is noisy: goodput, % of capacity; what quiet ones get,\n\
                 % of what they ask for; fairness from 1/8 to 1";
    lines(title, &[head], |protection, text| {
        let part = &results.of(Case::Tenants, protection).parts[1];
        let fairness = part.fairness.map_or("–".into(), |it| format!("{it:.2}"));
        write!(
            text,
            "{:8.1}{:11.1}{fairness:>10}{:>10}{:>10}{:>9}",
            100.0 * part.goodput(),
            100.0 * part.quiet.unwrap_or(f64::NAN),
            latency(part.p50),
            latency(part.p99),
            percent(part.refused)
        )
    })
}

fn retries(results: &Results) -> String {
    let head = "  before   after    back    sent       p50       p99 refused";
    let title = format!(
        "RETRIES at 0.9× load, {OUTAGE} s outage: goodput, % of what is asked for; seconds\n\
         until all is well; requests sent for each that was meant, afterwards"
    );
    lines(&title, &[head], |protection, text| {
        let parts = &results.of(Case::Retries, protection).parts;
        let (before, after) = (&parts[0], &parts[2]);
        write!(
            text,
            "{:8.1}{:8.1}{:>8}{:8.2}{:>10}{:>10}{:>8}",
            100.0 * before.goodput(),
            100.0 * after.goodput(),
            seconds(after.settled),
            after.amplified,
            latency(after.p50),
            latency(after.p99),
            percent(after.refused)
        )
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

pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

pub fn seconds(settled: Option<f64>) -> String {
    settled.map_or("never".into(), |it| format!("{it:.1}"))
}
