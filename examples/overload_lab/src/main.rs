//! The overload lab: what becomes of a server that is asked for more than it can do, with and without the
//! layers of this crate in front of it.
//!
//! `cargo run --release -p overload_lab`, and with `-- --help` what else there is.
//!
//! The layers are the real ones. The server, its clients and the clock are simulated
//! (`tests/support/simulation.rs`), so hours of traffic take seconds, and the same seed gives the same
//! numbers. It prints tables, and writes a report with plots. `--real` is the same idea with a real server.

mod disturbance;
mod disturbances;
mod figures;
mod findings;
mod lab;
mod numbers;
mod options;
mod plot;
mod protection;
mod questions;
#[cfg(feature = "real")]
mod real;
mod report;
mod scenario;
mod served;
mod served_tables;
mod settings;
#[path = "../../../tests/support/simulation.rs"]
mod simulation;
mod style;
mod table;
#[cfg(test)]
mod tests;
mod timelines;

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::{self, ExitCode},
};

use crate::options::{Command, HELP, Options};

fn main() -> ExitCode {
    let result = match Command::parse(env::args().skip(1)) {
        Ok(Command::Help) => {
            print!("{HELP}");
            Ok(())
        }
        Ok(Command::Real) => in_earnest(),
        Ok(Command::Simulate(options)) => simulate(&options),
        Err(error) => {
            eprintln!("overload_lab: {error}\nTry --help.");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overload_lab: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "real")]
fn in_earnest() -> Result<(), Box<dyn std::error::Error>> {
    real::run()
}

#[cfg(not(feature = "real"))]
fn in_earnest() -> Result<(), Box<dyn std::error::Error>> {
    Err(
        "--real needs a server: cargo run --release -p overload_lab --features real -- --real"
            .into(),
    )
}

fn simulate(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let Options {
        plan,
        output,
        open,
        plots,
    } = options;
    if cfg!(debug_assertions) {
        eprintln!("This is a debug build, which takes ten times as long: cargo run --release …");
    }
    let results = plan.run(progress);
    let output = output.clone().unwrap_or_else(usual_output);
    write(&output, &report::html(&results))?;
    // Whoever reads may have stopped: `| head`.
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{}\nThe report, with plots: {}",
        table::table(&results),
        output.display()
    )?;
    if let Some(folder) = plots {
        fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
        for (_, figure) in figures::figures(&results) {
            let file = folder.join(format!("{}.svg", figure.name));
            write(&file, &figure.svg(true))?;
            writeln!(out, "A plot: {}", file.display())?;
        }
        for &scenario in &plan.scenarios {
            let file = folder.join(format!("{}.md", scenario.name()));
            write(&file, &table::markdown(&results, scenario))?;
            writeln!(out, "Its tables: {}", file.display())?;
        }
    }
    drop(out);
    if *open || asked_to_open() {
        browse(&output)?;
    }
    Ok(())
}

/// Asks, where somebody is there to answer.
fn asked_to_open() -> bool {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return false;
    }
    print!("Open it in a browser? [y/N] ");
    let mut answer = String::new();
    let heard = io::stdout()
        .flush()
        .and_then(|()| io::stdin().read_line(&mut answer));
    heard.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// With what the system opens files with.
fn browse(file: &Path) -> Result<(), String> {
    let opener = if cfg!(target_os = "macos") {
        "open"
    } else if cfg!(windows) {
        "explorer"
    } else {
        "xdg-open"
    };
    let opened = process::Command::new(opener).arg(file).spawn();
    (opened.map(drop)).map_err(|error| format!("{opener} {}: {error}", file.display()))
}

/// On a line that is written over where somebody looks at it, every tenth elsewhere.
fn progress(done: usize, all: usize) {
    let mut out = io::stderr().lock();
    // Nobody is told twice, nor is it an error if nobody can be told.
    let _ = match (out.is_terminal(), done == all) {
        (true, false) => {
            let bar = "━".repeat(40 * done / all);
            write!(out, "\r{bar:┈<40} {done} of {all} runs")
        }
        (true, true) => write!(out, "\r{:70}\r", ""),
        (false, _) if 10 * done / all > 10 * (done - 1) / all => {
            writeln!(out, "{done} of {all} runs")
        }
        (false, _) => Ok(()),
    };
    let _ = out.flush();
}

/// In cargo's target directory if that is where this is run from, or else here.
fn usual_output() -> PathBuf {
    const NAME: &str = "overload_lab.html";
    let target = env::current_exe().ok().and_then(|program| {
        let target = program.parent()?.parent()?;
        target
            .join("CACHEDIR.TAG")
            .exists()
            .then(|| target.join(NAME))
    });
    let target = target.unwrap_or_else(|| NAME.into());
    let here = env::current_dir().unwrap_or_default();
    (target.strip_prefix(here)).map_or(target.clone(), Path::to_owned)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| named(file, &error))
}

fn named(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
