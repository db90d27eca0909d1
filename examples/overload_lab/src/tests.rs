//! The overload lab's own promises: the same seed gives the same report, what is protected stays useful and
//! what is not does not, and the report needs nothing but itself.

#[path = "../../../tests/support/chromium.rs"]
mod chromium;

use std::sync::LazyLock;

use crate::{
    disturbance, figures, findings,
    lab::{Plan, Results, Scenario},
    options::{self, Command, Options},
    protection::{Clients, Protection},
    questions, report,
    scenario::{Case, WELL},
    settings::{self, Setting},
    simulation::{MS, SEC, Server, Spread},
    table,
};

fn parse(args: &str) -> Result<Command, String> {
    Command::parse(args.split_whitespace().map(str::to_owned))
}

fn plan(args: &str) -> Plan {
    match parse(args) {
        Ok(Command::Simulate(Options { plan, .. })) => plan,
        other => panic!("{args}: {other:?}"),
    }
}

fn run(args: &str) -> Results {
    plan(args).run(|_, _| {})
}

/// What most tests look at.
static SHORT: LazyLock<Results> = LazyLock::new(|| run("--short"));

#[tokio::test]
async fn in_a_browser_the_report_opens_without_errors() {
    let name = format!("overload-lab-{}.html", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, report::html(&SHORT)).unwrap();
    if let Some(mut page) = chromium::open(&format!("file://{}", file.display())).await {
        page.until("document.readyState === 'complete'").await;
        let plots = page.eval("document.querySelectorAll('svg').length").await;
        assert!(plots.as_u64().unwrap() >= 6, "{plots}");
        // Nothing sticks out, and every plot has been laid out.
        page.until("document.documentElement.scrollWidth <= innerWidth")
            .await;
        let phone = serde_json::json!({ "width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": true });
        page.command("Emulation.setDeviceMetricsOverride", phone)
            .await;
        page.until("innerWidth == 390 && document.documentElement.scrollWidth <= 390")
            .await;
        // The summary is all to be seen, without scrolling sideways.
        page.until("(table => table.getBoundingClientRect().right <= 390)(document.querySelector('table.first'))")
            .await;
        page.until("[...document.querySelectorAll('svg')].every(plot => plot.getBoundingClientRect().height > 50)")
            .await;
        assert_eq!(page.errors(), [""; 0]);
        page.close().await;
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_seed_says_all() {
    let all = |args| {
        let results = run(args);
        let settings = table::markdown(&results, Scenario::Settings);
        (table::table(&results), report::html(&results), settings)
    };
    let first = all("--short --seconds 10 --seed 7");
    assert!(first == all("--short --seconds 10 --seed 7"));
    let other = all("--short --seconds 10 --seed 8");
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
    assert_ne!(first.2, other.2);
}

#[test]
fn what_is_protected_stays_useful_and_what_is_not_collapses() {
    for load in [2.0, 5.0, 10.0] {
        for protection in Protection::ALL {
            let outcome = SHORT.of(Case::Load(Spread::Exponential, load), protection);
            let (name, goodput) = (protection.name(), outcome.of_capacity());
            let refused = outcome.parts[1].refused;
            let case = format!("{load}x, {name}: good {goodput:.3}, refused {refused:.3}");
            println!("{case}");
            match protection {
                Protection::None => assert!(goodput < 0.2 && refused == 0.0, "{case}"),
                // What cannot be served is refused, and nothing else.
                _ => {
                    assert!(goodput >= WELL, "{case}");
                    assert!((refused - (1.0 - 1.0 / load)).abs() < 0.03, "{case}");
                }
            }
        }
    }
}

#[test]
fn those_that_learn_follow_a_capacity_that_grows_and_those_that_were_told_do_not() {
    for protection in Protection::ALL {
        let more = SHORT.of(Case::Capacity, protection).parts[3].goodput();
        let learns = matches!(protection, Protection::Vegas | Protection::Edge);
        assert_eq!(more >= WELL, learns, "{}: {more}", protection.name());
    }
}

/// In order of arrival p50 is 7 times the unloaded one whatever the load, a rejection takes 200 ms, and of clients that wait
/// for 100 ms two in five are served.
#[test]
fn under_plain_overload_an_edge_serves_the_newest_and_rejects_soon() {
    for (workers, most_p50) in [(4, 4.0), (16, 3.0), (64, 3.0)] {
        let server = Server::new(workers, 50 * MS, Spread::Exponential);
        let run = |patience| {
            let mut edge = Protection::Edge.protect(1, server);
            edge.clients(Clients {
                patience,
                retry: None,
                hang_up: false,
                polls: 0.0,
            });
            let rates = [3.0 * server.capacity()];
            edge.run(workers, &rates, 20 * SEC);
            let seen = edge.run(workers, &rates, 30 * SEC);
            let goodput = (seen.worked - seen.wasted) / (30.0 * workers as f64);
            (seen, goodput)
        };
        let (seen, goodput) = run(SEC);
        let p50 = seen.quantile(0.5) / (0.05 * Spread::Exponential.median());
        let rejection = seen.rejection(0.5);
        let case =
            format!("{workers}: {goodput:.3}, p50 {p50:.1} times, rejected in {rejection:.3}");
        println!("{case}");
        assert!(
            goodput >= 0.96 && p50 <= most_p50 && rejection <= 0.07,
            "{case}"
        );
        let (_, goodput) = run(100 * MS);
        assert!(goodput >= 0.6, "{workers}, impatient clients: {goodput:.3}");
    }
}

/// It is not to argue for anybody: where tower's own limit is better, the summary says so.
#[test]
fn the_summary_names_who_is_best_and_where_edge_is_not() {
    let rows = questions::rows();
    let best = |asks: &str| {
        let row = rows.iter().find(|row| row.asks.starts_with(asks));
        row.expect("a question").best(&SHORT)
    };
    for row in &rows {
        let value = row.value(&SHORT, Protection::Edge);
        assert!(value.is_finite() && value >= 0.0, "{}: {value}", row.asks);
        let best = row.best(&SHORT);
        assert!(!best.is_empty(), "{}", row.asks);
        println!("{}: {}", row.asks, row.verdict(&SHORT));
    }
    assert_eq!(best("noisy tenant"), [Protection::Edge]);
    assert_eq!(best("4 to 32 workers"), [Protection::Edge]);
    // A number that is too high moves the wait into the server.
    assert!(!best("steady 3× load: p50").contains(&Protection::Guess));
    let html = report::html(&SHORT);
    let (first, rest) = html.split_once("<h2").unwrap();
    assert!(!first.contains("<h2") && rest.starts_with(" id=\"questions\""));
    let lost = rows
        .iter()
        .filter(|row| !row.best(&SHORT).contains(&Protection::Edge));
    let said = findings::findings(&SHORT, Scenario::Questions);
    for row in lost {
        assert!(said[1].contains(row.asks), "{}: {}", row.asks, said[1]);
    }
}

#[test]
fn a_fair_queue_keeps_the_quiet_tenants_whole() {
    for protection in Protection::ALL {
        let part = &SHORT.of(Case::Tenants, protection).parts[1];
        let (quiet, fairness) = (part.quiet.unwrap(), part.fairness.unwrap_or(0.0));
        let fair = matches!(protection, Protection::Wfq | Protection::Edge);
        let case = format!("{}: {quiet}, {fairness}", protection.name());
        assert_eq!(quiet >= 0.99, fair, "{case}");
        assert_eq!(fairness >= 0.99, fair, "{case}");
    }
}

#[test]
fn only_the_unprotected_server_stays_down_after_an_outage() {
    for protection in Protection::ALL {
        let parts = &SHORT.of(Case::Retries, protection).parts;
        let (before, after) = (&parts[0], &parts[2]);
        assert!(before.goodput() >= WELL, "{}", protection.name());
        match protection {
            Protection::None => {
                assert_eq!(after.settled, None);
                assert!(after.goodput() < 0.01, "{after:?}");
                assert!(after.amplified > 3.5, "{after:?}");
            }
            _ => assert!(after.settled.is_some_and(|it| it <= 5.0), "{after:?}"),
        }
    }
}

#[test]
fn a_wrong_setting_does_what_the_guide_says() {
    let find = |setting: Setting, value: usize| {
        let mut outcomes = settings::outcomes(&SHORT, setting).into_iter();
        outcomes.find(|(it, _)| *it == value).unwrap().1
    };
    let goodput = |setting, value| find(setting, value).parts[1].goodput();
    let p99 = |setting, value| find(setting, value).parts[1].p99;
    // A limit wastes workers, is right, costs latency, costs everything.
    assert!(goodput(Setting::Limit, 4) < 0.4);
    assert!(goodput(Setting::Limit, 20) >= WELL);
    assert!(goodput(Setting::Limit, 128) >= WELL);
    assert!(p99(Setting::Limit, 128) > 2.0 * p99(Setting::Limit, 20));
    assert!(goodput(Setting::Limit, 512) < 0.1);
    // So does a queue.
    assert!(goodput(Setting::MaxWaiting, 160) >= WELL);
    assert!(goodput(Setting::MaxWaiting, 640) < 0.1);
    assert!(p99(Setting::Target, 400) > 2.0 * p99(Setting::Target, 100));
    // Where Vegas begins matters little in the end, where it has to stop matters a lot.
    for (initial, least) in [(1, WELL), (20, WELL), (200, 0.9)] {
        let outcome = find(Setting::Initial, initial);
        assert!(outcome.parts[1].goodput() >= least, "{:?}", outcome.parts);
        assert!(outcome.found().is_some(), "{initial}");
    }
    // Until then too low costs goodput, and too high is found out late.
    let [low, usual, high] = [1, 20, 200].map(|initial| find(Setting::Initial, initial));
    assert!(low.parts[0].goodput() < 0.8 * usual.parts[0].goodput());
    assert!(high.found() > usual.found());
    assert!(goodput(Setting::Max, 4) < 0.4);
    assert!(goodput(Setting::Max, 1000) >= WELL);
    for (weight, fair) in [
        (1, 1.0 / 2.0),
        (2, 2.0 / 3.0),
        (5, 5.0 / 6.0),
        (10, 10.0 / 11.0),
    ] {
        let share = find(Setting::Weight, weight).share();
        assert!((share / fair - 1.0).abs() < 0.02, "{weight}: {share}");
    }
}

#[test]
fn every_disturbance_is_in_the_table_and_a_seed_says_all_of_it() {
    let text = table::markdown(&SHORT, Scenario::Disturbances);
    for it in disturbance::Disturbance::ALL {
        assert!(text.contains(&format!("\n| {}, ", it.name())), "{it:?}");
    }
    // Whatever else is run.
    let again = run("--short --scenario disturbances");
    assert_eq!(text, table::markdown(&again, Scenario::Disturbances));
}

/// A server that stood still has no queue of its own: soon afterwards it does nearly all that it could.
#[test]
fn whoever_learns_recovers_when_a_server_stood_still() {
    use disturbance::Disturbance::{Freezes, Outage, OutageRetries, Stall};
    for protection in [Protection::Vegas, Protection::Edge] {
        for (case, k) in [Outage, OutageRetries, Freezes, Stall]
            .into_iter()
            .flat_map(|case| [(case, 16), (case, 64)])
        {
            let runs: Vec<_> = (201..207)
                .map(|seed| {
                    let server = case.server(k, Spread::Exponential);
                    let site = protection.protect(seed, server);
                    case.run(server, site, |_, _| {})[0]
                })
                .collect();
            let mean = |of: fn(&disturbance::Judged) -> f64| {
                runs.iter().map(of).sum::<f64>() / runs.len() as f64
            };
            let (goodput, refused) = (mean(|it| it.goodput), mean(|it| it.refused));
            let about = format!("{protection:?}, {case:?}, {k}: {goodput:.3}, {refused:.3}");
            println!("{about}");
            assert!(
                if case == Stall {
                    refused < 0.05
                } else {
                    goodput >= 0.9
                },
                "{about}"
            );
        }
    }
}

/// A service that changes is not taken for one with a queue: the limit follows, and what it can do is used.
#[test]
fn whoever_learns_follows_a_service_that_changes() {
    use disturbance::Disturbance::{FewerWorkers, Mix, Onset, Slower};
    for protection in [Protection::Vegas, Protection::Edge] {
        // (what happens, in its first five seconds, and in the rest)
        for (case, first, rest) in [
            (Onset, 0.98, 0.97),
            (FewerWorkers, 0.85, 0.93),
            (Slower, 0.75, 0.87),
            (Mix, 0.93, 0.95),
        ] {
            for k in [16, 64] {
                let mut sums = (0.0, 0.0);
                for seed in 201..207 {
                    let server = case.server(k, Spread::Exponential);
                    let site = protection.protect(seed, server);
                    let judged = case.run(server, site, |_, _| {});
                    sums.0 += judged[0].goodput / 6.0;
                    sums.1 += judged[1].goodput / 6.0;
                }
                let about = format!("{protection:?}, {case:?}, {k}: {sums:.3?}");
                println!("{about}");
                assert!(sums.0 >= first && sums.1 >= rest, "{about}");
            }
        }
    }
}

/// The same where all takes long: one of four workers is left, which serves twenty requests a second.
#[test]
fn whoever_learns_follows_a_small_service_that_gets_smaller() {
    for protection in [Protection::Vegas, Protection::Edge] {
        let rest = (201..207).map(|seed| {
            let case = disturbance::Disturbance::FewerWorkers;
            let server = case.server(4, Spread::LogNormal(1.0));
            let site = protection.protect(seed, server);
            case.run(server, site, |_, _| {})[1].goodput / 6.0
        });
        let rest: f64 = rest.sum();
        println!("{protection:?}: {rest:.3}");
        assert!(rest >= 0.91, "{protection:?}: {rest:.3}");
    }
}

#[test]
fn markdown_has_every_table() {
    for (scenario, tables) in Scenario::ALL.into_iter().zip([1, 2, 1, 1, 1, 6, 1, 4]) {
        let text = table::markdown(&SHORT, scenario);
        assert_eq!(text.matches("### ").count(), tables, "{text}");
        assert_eq!(text.matches("|---|").count(), tables, "{text}");
        assert!(!text.contains("NaN"), "{text}");
        // As many cells in a line as its table has columns.
        let mut columns = 0;
        for line in text.lines() {
            let cells = line.matches('|').count();
            assert!(cells == 0 || columns == 0 || cells == columns, "{line}");
            columns = cells;
        }
    }
}

#[test]
fn the_table_fits_a_terminal() {
    let table = table::table(&SHORT) + &table::table(&run("--seconds 10 --scenario load"));
    for line in table.lines().chain(options::HELP.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn the_report_needs_nothing_from_elsewhere() {
    let html = report::html(&SHORT);
    let alone = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for foreign in ["http", "src=", "url(", "@import", "<script", "//"] {
        assert!(!alone.contains(foreign), "{foreign}");
    }
    assert!(html.contains("cargo run --release -p overload_lab -- --short --seed 1"));
    assert!(html.contains(env!("CARGO_PKG_VERSION")));
    for missing in ["NaN", "inf ", "inf%"] {
        assert!(!html.contains(missing), "{missing}");
    }
}

#[test]
fn every_plot_is_well_formed_and_good_alone() {
    let figures = figures::figures(&SHORT);
    let names: Vec<_> = figures.iter().map(|(_, figure)| figure.name).collect();
    let all = "goodput latency capacity limit tenants retries settings disturbances disturbance_limits served";
    assert_eq!(names.join(" "), all);
    for (_, figure) in figures {
        let svg = figure.svg(true);
        assert_balanced(&svg);
        // Markdown ends a block of HTML at a blank line, and begins one with a tag alone on its line.
        assert!(svg.lines().all(|line| !line.trim().is_empty()));
        assert!(svg.lines().next().is_some_and(|line| line.ends_with('>')));
        assert!(svg.len() < 30_000, "{}: {}", figure.name, svg.len());
        assert!(svg.contains("prefers-color-scheme:dark"));
        assert!(!svg.contains("NaN"), "{}", figure.name);
    }
    let html = report::html(&SHORT);
    assert_balanced(
        html.split_once("<main>")
            .unwrap()
            .1
            .split_once("</main>")
            .unwrap()
            .0,
    );
}

/// Each tag that is opened is closed, in its order.
#[track_caller]
fn assert_balanced(xml: &str) {
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag that ends");
        assert!(!text.contains('>'), "{text}");
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "</{tag}>"),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn flags_say_what_is_run() {
    assert_eq!(plan(""), Plan::default());
    assert_eq!(plan("--short"), Plan::short());
    for scenario in Scenario::ALL {
        let line = format!("\n                       {} ", scenario.name());
        assert!(options::HELP.contains(&line), "{line}");
    }
    let chosen = plan("--scenario retries,load --seconds=10 --seed 3");
    assert_eq!(chosen.scenarios, [Scenario::Load, Scenario::Retries]);
    assert_eq!((chosen.seconds, chosen.seed), (10, 3));
    // What the report says made it, does.
    let command = chosen.command();
    assert_eq!(plan(command.split_once("-- ").unwrap().1), chosen);
    assert_eq!(parse("--real"), Ok(Command::Real));
    assert_eq!(parse("--seed 1 --help"), Ok(Command::Help));
    let Ok(Command::Simulate(options)) = parse("--output a.html --plots b") else {
        panic!("these are options")
    };
    assert_eq!(options.output, Some("a.html".into()));
    assert_eq!(options.plots, Some("b".into()));
    assert!(!options.open);
}

#[test]
fn wrong_flags_are_refused_with_a_reason() {
    for (args, reason) in [
        ("--fast", "there is no option \"--fast\""),
        ("load", "there is no option \"load\""),
        ("--short=yes", "there is no option \"yes\""),
        ("--seed", "--seed needs a value"),
        ("--seed --short", "--seed needs a value"),
        ("--output=", "--output needs a value"),
        (
            "--seed -1",
            "--seed is a number from 0 to 18446744073709551615, not \"-1\"",
        ),
        (
            "--seconds 9",
            "--seconds is a number from 10 to 3600, not \"9\"",
        ),
        (
            "--seconds forever",
            "--seconds is a number from 10 to 3600, not \"forever\"",
        ),
        (
            "--scenario load,floods",
            "there is no scenario \"floods\"; there are questions, load, capacity, tenants, retries, \
             settings, disturbances, served",
        ),
        ("--real --seed 1", "--seed cannot be combined with --real"),
    ] {
        assert_eq!(parse(args), Err(reason.to_owned()), "{args}");
    }
}
