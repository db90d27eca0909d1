//! What can be asked for on the command line.

use std::path::PathBuf;

use crate::lab::{Plan, Scenario};

pub const HELP: &str = "\
The overload lab: what becomes of a server that is asked for more than it can
do, with and without the layers of tower-backpressure in front of it.

The layers are the real ones. The server, its clients and the clock are
simulated, so hours of traffic take seconds, and the same seed gives the same
numbers.

usage: cargo run --release -p overload_lab -- [options]

  --scenario NAMES   which of these, separated by commas (all of them):
                       questions     tower's limit and edge(), side by side
                       load          0.5 to 10 times what the server can do
                       capacity      the server gets slower, and faster again
                       tenants       one of eight tenants asks for everything
                       retries       a five-second outage, clients that retry
                       settings      what wrong settings do, at 2 times
                       disturbances  outages, freezes, fewer or slower workers
                       served        priorities, deadlines, newest first
  --seconds N        how long each load is measured, in simulated seconds, from
                     10 to 3600 (240); other scenarios last in proportion,
                     but disturbances always as long
  --seed N           other chances (1)
  --output FILE      where the report goes (overload_lab.html in target/)
  --open             opens the report in a browser, without asking
  --plots DIR        also write each plot into DIR, as an SVG file, and
                     the tables of each scenario, as Markdown
  --short            a few loads, exponential service times, 40 seconds each
  --real             instead of all that: a real axum server, real connections
                     and the real clock, for less than a minute; it needs
                     `--features real` before the `--`
  --help             this
";

/// What was asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Help,
    Real,
    Simulate(Options),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub plan: Plan,
    pub output: Option<PathBuf>,
    pub open: bool,
    pub plots: Option<PathBuf>,
}

impl Command {
    /// What follows the name of the program.
    ///
    /// # Errors
    /// What is wrong with an option, in words for whoever wrote it.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        // `--seed=1` is `--seed 1`.
        let split = |arg: String| match arg.split_once('=') {
            Some((flag, value)) if arg.starts_with("--") => vec![flag.into(), value.into()],
            _ => vec![arg],
        };
        let mut args = args.into_iter().flat_map(split);
        let (mut short, mut real, mut open, mut others) = (false, false, false, None);
        let (mut scenarios, mut seconds, mut seed) = (None, None, None);
        let (mut output, mut plots) = (None, None);
        while let Some(flag) = args.next() {
            let mut value = || {
                let value = args.next().filter(|value| !value.starts_with("--"));
                (value.filter(|value| !value.is_empty())).ok_or(format!("{flag} needs a value"))
            };
            match flag.as_str() {
                "--help" | "-h" => return Ok(Self::Help),
                "--real" => {
                    real = true;
                    continue;
                }
                "--short" => short = true,
                "--open" => open = true,
                "--scenario" => scenarios = Some(scenarios_of(&value()?)?),
                "--seconds" => seconds = Some(number(&flag, &value()?, 10, 3600)?),
                "--seed" => seed = Some(number(&flag, &value()?, 0, u64::MAX)?),
                "--output" => output = Some(PathBuf::from(value()?)),
                "--plots" => plots = Some(PathBuf::from(value()?)),
                _ => return Err(format!("there is no option {flag:?}")),
            }
            others = Some(flag);
        }
        match (real, others) {
            (true, Some(flag)) => return Err(format!("{flag} cannot be combined with --real")),
            (true, None) => return Ok(Self::Real),
            (false, _) => {}
        }
        let mut plan = match short {
            true => Plan::short(),
            false => Plan::default(),
        };
        plan.scenarios = scenarios.unwrap_or(plan.scenarios);
        plan.seconds = seconds.unwrap_or(plan.seconds);
        plan.seed = seed.unwrap_or(plan.seed);
        Ok(Self::Simulate(Options {
            plan,
            output,
            open,
            plots,
        }))
    }
}

fn scenarios_of(names: &str) -> Result<Vec<Scenario>, String> {
    let known = || Scenario::ALL.map(Scenario::name).join(", ");
    let find = |name: &str| {
        let found = Scenario::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or_else(|| format!("there is no scenario {name:?}; there are {}", known()))
    };
    let asked: Vec<_> = names.split(',').map(find).collect::<Result<_, _>>()?;
    // In their own order, each once.
    let wanted = Scenario::ALL.into_iter().filter(|it| asked.contains(it));
    Ok(wanted.collect())
}

fn number(flag: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = value.parse().ok();
    (number.filter(|number| (least..=most).contains(number)))
        .ok_or_else(|| format!("{flag} is a number from {least} to {most}, not {value:?}"))
}
