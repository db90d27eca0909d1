//! The report: one page of HTML with everything in it, that needs nothing else.

use crate::{
    disturbances,
    figures::figures,
    findings,
    lab::{Results, Scenario, spread_name},
    numbers::{
        disturbance_numbers, judged, load_numbers, parts, put, served_numbers, settings_numbers,
        table,
    },
    plot::escape,
    protection::LIMIT,
    questions,
    scenario::{CAPACITY, Case, OUTAGE, PATIENCE, RETRY, WELL, WORK, WORKERS},
    served_tables,
    style::{PAGE, STYLE},
    table::percent,
};

pub fn html(results: &Results) -> String {
    let mut page = String::new();
    let out = &mut page;
    let version = env!("CARGO_PKG_VERSION");
    let command = results.plan.command();
    put(
        out,
        format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>The overload lab · tower-backpressure {version}</title>\n\
         <style>\n{STYLE}{PAGE}</style>\n</head>\n<body class=\"lab\">\n<main>"
        ),
    );
    put(
        out,
        format_args!(
            "<h1>The overload lab</h1>\n\
         <p class=\"lead\">What becomes of a server that is asked for more than it can do, with and without the layers of \
         tower-backpressure {version} in front of it.</p>\n\
         <pre><code>{command}</code></pre>"
        ),
    );
    if results.has(Scenario::Questions) {
        questions_first(out, results);
    }
    setting(out);
    if results.has(Scenario::Load) {
        in_short(out, results);
    }
    stacks(out);
    let chapters = results.plan.scenarios.iter().copied();
    for scenario in chapters.filter(|it| *it != Scenario::Questions) {
        let (title, text) = about(scenario);
        put(
            out,
            format_args!("<h2 id=\"{}\">{title}</h2>\n<p>{text}</p>", scenario.name()),
        );
        for (_, figure) in figures(results)
            .into_iter()
            .filter(|(of, _)| *of == scenario)
        {
            out.push_str(&figure.svg(false));
        }
        put(out, format_args!("<ul>"));
        for finding in findings::findings(results, scenario) {
            put(out, format_args!("<li>{}</li>", escape(&finding)));
        }
        put(out, format_args!("</ul>"));
        // Its tables are all there is.
        let open = if scenario == Scenario::Served {
            " open"
        } else {
            ""
        };
        put(
            out,
            format_args!("<details{open}><summary>All numbers</summary>"),
        );
        match scenario {
            Scenario::Questions => {}
            Scenario::Load => load_numbers(out, results),
            Scenario::Capacity => parts(out, results, Case::Capacity),
            Scenario::Tenants => parts(out, results, Case::Tenants),
            Scenario::Retries => parts(out, results, Case::Retries),
            Scenario::Settings => settings_numbers(out, results),
            Scenario::Disturbances => disturbance_numbers(out, results),
            Scenario::Served => served_numbers(out, results),
        }
        put(out, format_args!("</details>"));
    }
    measures(out);
    put(
        out,
        format_args!(
            "<footer>Made by tower-backpressure {version}, seed {}: <code>{command}</code>. The same command gives the \
         same page, to the byte.</footer>\n</main>\n</body>\n</html>",
            results.plan.seed
        ),
    );
    page
}

fn setting(out: &mut String) {
    let (work, patience) = (WORK.as_millis(), PATIENCE.as_secs());
    put(
        out,
        format_args!(
            "<p>The layers are the real ones. The server, its clients and the clock are simulated: {WORKERS} workers, \
         {work} ms of work in each request on average, so {CAPACITY} requests a second at most; requests come at random, \
         whatever became of those before; and a client gives up after {patience} s, while the server, which does not \
         notice, works on. Requests come at the same moments for all protections.</p>"
        ),
    );
}

/// What comes before everything else: who does best at what.
fn questions_first(out: &mut String, results: &Results) {
    put(
        out,
        format_args!("<h2 id=\"questions\">tower's own limit, or edge()?</h2>"),
    );
    let heads: String = (questions::PROTECTIONS.into_iter())
        .map(|it| format!("<th>{}</th>", questions::short(it)))
        .collect();
    put(
        out,
        format_args!(
            "<div class=\"scroll\"><table class=\"first\">\n<thead><tr><th></th>{heads}<th>best</th></tr></thead>\n\
             <tbody style=\"--c:var(--fg)\">"
        ),
    );
    for row in questions::rows() {
        let best = row.best(results);
        let cells: String = (questions::PROTECTIONS.into_iter())
            .map(|it| {
                let class = if best.contains(&it) { "good" } else { "fair" };
                format!("<td class=\"{class}\">{}</td>", row.shown(results, it))
            })
            .collect();
        let (asks, verdict) = (row.asks, row.verdict(results));
        put(
            out,
            format_args!("<tr><th>{asks}</th>{cells}<td class=\"words\">{verdict}</td></tr>"),
        );
    }
    put(out, format_args!("</tbody></table></div>"));
    put(out, format_args!("<ul>"));
    for finding in findings::findings(results, Scenario::Questions) {
        put(out, format_args!("<li>{}</li>", escape(&finding)));
    }
    put(out, format_args!("</ul>"));
    put(out, format_args!("<p>{}</p>", questions::about()));
}

fn in_short(out: &mut String, results: &Results) {
    put(
        out,
        format_args!(
            "<h2>In short</h2>\n<p>{}</p>",
            escape(&findings::in_short(results))
        ),
    );
    let heads: Vec<_> = (results.plan.spreads.iter())
        .map(|spread| format!("{} times", spread_name(*spread)))
        .collect();
    let caption = "Least goodput from 2× to 10× load, as a share of capacity";
    table(out, caption, &heads, |protection| {
        let worst = (results.plan.spreads.iter()).map(|spread| results.worst(*spread, protection));
        worst.map(judged).collect()
    });
}

fn stacks(out: &mut String) {
    let number = format!(
        "Those that have to be told a number are told {LIMIT}: the {WORKERS} workers, and a few requests more that are \
         there when one gets free."
    );
    put(
        out,
        format_args!("<h2>What stands in front of the server</h2>\n<p>{number}</p>"),
    );
    let heads = ["from the outside in", ""].map(str::to_owned);
    table(out, "", &heads, |protection| {
        let (stack, what) = protection.stack();
        vec![
            format!("<td class=\"words\"><code>{}</code></td>", escape(&stack)),
            format!("<td class=\"words\">{what}</td>"),
        ]
    });
}

fn about(scenario: Scenario) -> (&'static str, String) {
    match scenario {
        Scenario::Questions => ("tower's own limit, or edge()?", questions::about()),
        Scenario::Load => (
            "Too much load",
            "A steady load, from half to ten times what the server can do. Service times are all the same (constant), \
             exponential, or bimodal: nine in ten requests take 10 ms, one takes 410 ms."
                .into(),
        ),
        Scenario::Capacity => (
            "A capacity that changes",
            "One and a half times the load that the server can usually take. It loses three quarters of its workers: a \
             neighbour, a slow disk. It gets them back. Then it is given as many more, and could serve everybody."
                .into(),
        ),
        Scenario::Tenants => (
            "A noisy tenant",
            "Eight tenants ask for 8 % of the capacity each. Then one of them asks for five times all there is. The \
             others have not changed, and there would be enough for them."
                .into(),
        ),
        Scenario::Retries => (
            "A retry storm",
            format!(
                "Nine tenths of the load that the server can take. It stands still for {OUTAGE} seconds, and is as good \
                 as ever afterwards. Clients send a request up to {} times: again at once if they have no answer after \
                 {} s; if they are refused, when they are told to, or after {} ms and then twice as long each time.",
                RETRY.attempts,
                PATIENCE.as_secs(),
                RETRY.pause.as_millis()
            ),
        ),
        Scenario::Settings => (
            "A wrong setting",
            "Twice the load that the server can take, exponential service times, and one setting that is changed, from \
             far too low to far too high. Each value is tried for ten seconds before it is measured. Weights are those of \
             one of two tenants, each of which asks for twice what there is; the other has a weight of 1."
                .into(),
        ),
        Scenario::Disturbances => ("A sudden change", disturbances::about()),
        Scenario::Served => ("Who is served", served_tables::about()),
    }
}

fn measures(out: &mut String) {
    put(
        out,
        format_args!(
            "<h2>What is measured</h2>\n<ul>\n\
         <li><b>Goodput</b>: answers that come while the client still waits, as a share of what the server can do; where \
         capacity or clients change, of what was possible, which is all that was asked for or all that the server can do. \
         It can be a little over 100 %: chance, or a backlog.</li>\n\
         <li><b>p50, p99</b>: from a request to its answer, of all that were served, in time or not. Without protection they \
         grow for as long as the overload lasts.</li>\n\
         <li><b>Well after, back after</b>: from when on five seconds brought {} of what was possible in them.</li>\n\
         <li><b>Fair share</b>: nobody gets more than it asks for, and whoever gets less than that gets as much as anybody \
         (max-min). <b>Fairness</b> is Jain's index of what tenants get, each as a share x of its fair share: (Σx)² / (n·Σx²). \
         It is 1 if all get the same share of it, and 1/8 if one gets everything. It says how evenly, not how much.</li>\n\
         </ul>\n\
         <p>What is not in it: refusals cost nothing here, and neither does the network. The server's work is not cancelled \
         when a client gives up. <code>--real</code> runs a real server.</p>",
            percent(WELL)
        ),
    );
}
