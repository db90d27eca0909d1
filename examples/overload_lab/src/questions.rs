//! The chapter that comes first: one line a question, with what tower has of its own beside `edge()`, and who does best.

use crate::{
    disturbance::{Disturbance, Judged},
    disturbances,
    findings::list,
    lab::Results,
    protection::{Clients, GUESS, LIMIT, Protection},
    scenario::{Case, Outcome, WORK, WORKERS},
    simulation::{MS, SEC, Seen, Server, Spread},
    table::{Table, latency, percent},
};

/// Side by side. The first two differ in their number alone.
pub const PROTECTIONS: [Protection; 3] = [Protection::Tower, Protection::Guess, Protection::Edge];

/// Shares that are no further apart are even.
const EVEN: f64 = 0.02;

/// How long impatient clients wait: twice what a request takes on average.
const IMPATIENCE: std::time::Duration = WORK.saturating_mul(2);

/// What is run for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Steady,
    Burst,
    Onset,
    Retries,
    Capacity,
    Tenants,
    Impatient,
    Disturbances,
}

impl Question {
    const ALL: [Self; 8] = [
        Self::Steady,
        Self::Burst,
        Self::Onset,
        Self::Retries,
        Self::Capacity,
        Self::Tenants,
        Self::Impatient,
        Self::Disturbances,
    ];

    pub fn run(self, protection: Protection, seed: u64, seconds: u64) -> Outcome {
        let outcome = match self {
            Self::Steady => Case::Load(Spread::Exponential, 3.0).run(protection, seed, seconds),
            Self::Retries => Case::Retries.run(protection, seed, seconds),
            Self::Capacity => Case::Capacity.run(protection, seed, seconds),
            Self::Tenants => Case::Tenants.run(protection, seed, seconds),
            Self::Burst => burst(protection, seed),
            Self::Onset => disturbances::run(Disturbance::Onset, 0, protection, seed),
            Self::Impatient => impatient(protection, seed),
            Self::Disturbances => disturbed(protection, seed),
        };
        Outcome {
            case: Case::Question(self),
            samples: Vec::new(),
            ..outcome
        }
    }
}

pub fn cases() -> impl Iterator<Item = Case> {
    Question::ALL.into_iter().map(Case::Question)
}

/// A stall of 200 ms and a tenth of a second's requests at once, at half of the load that the server can take. What is
/// rejected meanwhile counts: all of it could have been answered in time.
fn burst(protection: Protection, seed: u64) -> Outcome {
    const STALL: std::time::Duration = MS.saturating_mul(200);
    let server = Server::new(WORKERS, WORK / 5, Spread::Exponential);
    let mut site = protection.protect(seed, server);
    let rates = [0.5 * server.capacity()];
    site.run(WORKERS, &rates, 20 * SEC);
    site.burst((0.1 * server.capacity()) as usize);
    site.freeze(STALL);
    let seen = [STALL, 2 * SEC].map(|lasting| site.run(WORKERS, &rates, lasting));
    let seen = Seen::of(seen);
    let judged = Judged {
        name: "",
        goodput: seen.good as f64 / seen.offered as f64,
        refused: seen.refused as f64 / seen.sent as f64,
    };
    outcome(protection, vec![judged])
}

/// Clients that do not wait long, at three times the load that the server can take.
fn impatient(protection: Protection, seed: u64) -> Outcome {
    let server = Server::new(WORKERS, WORK, Spread::Exponential);
    let mut site = protection.protect(seed, server);
    site.clients(Clients {
        patience: IMPATIENCE,
        retry: None,
        hang_up: false,
        polls: 0.0,
    });
    let rates = [3.0 * server.capacity()];
    site.run(WORKERS, &rates, 20 * SEC);
    let seen = site.run(WORKERS, &rates, 40 * SEC);
    let judged = Judged {
        name: "",
        goodput: (seen.worked - seen.wasted) / (40.0 * WORKERS as f64),
        refused: seen.refused as f64 / seen.sent as f64,
    };
    outcome(protection, vec![judged])
}

/// Everything else that happens to the server, but long polls, which belong outside a limit.
fn disturbed(protection: Protection, seed: u64) -> Outcome {
    let others = (Disturbance::ALL.into_iter())
        .filter(|it| !matches!(it, Disturbance::Stall | Disturbance::LongPolls));
    let judged = others.flat_map(|it| disturbances::run(it, 0, protection, seed).judged);
    outcome(protection, judged.collect())
}

fn outcome(protection: Protection, judged: Vec<Judged>) -> Outcome {
    Outcome {
        protection,
        case: Case::Question(Question::Steady),
        parts: Vec::new(),
        judged,
        samples: Vec::new(),
        measured: None,
    }
}

/// A question, and the number that answers it.
pub struct Row {
    pub asks: &'static str,
    question: Question,
    number: Number,
    of: fn(&Outcome) -> f64,
}

enum Number {
    /// The more, the better.
    Share,
    /// The less, the better.
    Rejected,
    /// The less, the better.
    Latency,
}

pub fn rows() -> Vec<Row> {
    let row = |asks, question, number, of| Row {
        asks,
        question,
        number,
        of,
    };
    use Number::{Latency, Rejected, Share};
    vec![
        row("steady 3× load: goodput", Question::Steady, Share, |it| {
            it.parts[1].goodput()
        }),
        row("steady 3× load: p50", Question::Steady, Latency, |it| {
            it.parts[1].p50
        }),
        row(
            "200 ms stall, burst: rejected",
            Question::Burst,
            Rejected,
            |it| it.judged[0].refused,
        ),
        row(
            "onset of 5×, first 5 s: goodput",
            Question::Onset,
            Share,
            |it| it.judged[0].goodput,
        ),
        row(
            "outage, retries: goodput after",
            Question::Retries,
            Share,
            |it| it.parts[2].goodput(),
        ),
        row(
            "4 to 32 workers: least goodput",
            Question::Capacity,
            Share,
            |it| {
                let goodput = it.parts.iter().map(|part| part.goodput());
                goodput.fold(f64::INFINITY, f64::min)
            },
        ),
        row("4 workers left: p99", Question::Capacity, Latency, |it| {
            it.parts[1].p99
        }),
        row(
            "noisy tenant: the others get",
            Question::Tenants,
            Share,
            |it| it.parts[1].quiet.unwrap_or(0.0),
        ),
        row(
            "100 ms patience, 3×: goodput",
            Question::Impatient,
            Share,
            |it| it.judged[0].goodput,
        ),
        row(
            "disturbances: mean goodput",
            Question::Disturbances,
            Share,
            |it| capped(it).iter().sum::<f64>() / it.judged.len() as f64,
        ),
        row(
            "disturbances: least goodput",
            Question::Disturbances,
            Share,
            |it| capped(it).into_iter().fold(f64::INFINITY, f64::min),
        ),
    ]
}

/// Of each part. A backlog that is worked off makes up for nothing.
fn capped(outcome: &Outcome) -> Vec<f64> {
    let goodput = |judged: &Judged| judged.goodput.clamp(0.0, 1.0);
    outcome.judged.iter().map(goodput).collect()
}

impl Row {
    pub fn value(&self, results: &Results, protection: Protection) -> f64 {
        (self.of)(results.of(Case::Question(self.question), protection))
    }

    pub fn shown(&self, results: &Results, protection: Protection) -> String {
        let value = self.value(results, protection);
        match self.number {
            Number::Latency => latency(value),
            Number::Share | Number::Rejected => percent(value),
        }
    }

    /// All that are as good as the best.
    pub fn best(&self, results: &Results) -> Vec<Protection> {
        // The more, the better.
        let score = |protection: Protection| {
            let value = self.value(results, protection);
            match self.number {
                Number::Share => value.min(1.0),
                Number::Rejected => -value,
                // A tenth more is even.
                Number::Latency => -value.ln() * EVEN / 0.1,
            }
        };
        let best = PROTECTIONS.map(score).into_iter().fold(f64::MIN, f64::max);
        let good = |protection: &Protection| score(*protection) >= best - EVEN;
        PROTECTIONS.into_iter().filter(good).collect()
    }

    pub fn verdict(&self, results: &Results) -> String {
        let best = self.best(results);
        match best.len() {
            1 => short(best[0]),
            n if n == PROTECTIONS.len() => "even".into(),
            _ => list(best.into_iter().map(short)),
        }
    }
}

/// As a column is called.
pub fn short(protection: Protection) -> String {
    match protection {
        Protection::Tower => format!("tower {LIMIT}"),
        Protection::Guess => format!("tower {GUESS}"),
        _ => protection.name().into(),
    }
}

pub fn table(results: &Results) -> Table {
    let row = |row: Row| {
        let mut cells = PROTECTIONS
            .map(|protection| row.shown(results, protection))
            .to_vec();
        cells.push(row.verdict(results));
        (row.asks.to_owned(), cells)
    };
    Table {
        name: "tower's own layers beside edge()".into(),
        about: format!(
            "tower's shed\nand limit with {LIMIT}, the right number for {WORKERS} workers, and with {GUESS}, a round one"
        ),
        lines: "",
        groups: Vec::new(),
        heads: PROTECTIONS
            .map(short)
            .into_iter()
            .chain(["best".into()])
            .collect(),
        rows: rows().into_iter().map(row).collect(),
    }
}

pub fn findings(results: &Results) -> Vec<String> {
    let (lost, rest): (Vec<_>, Vec<_>) =
        (rows().into_iter()).partition(|row| !row.best(results).contains(&Protection::Edge));
    let alone = rest
        .iter()
        .filter(|row| row.best(results) == [Protection::Edge]);
    let beside = |row: &Row| {
        let shown = |protection| row.shown(results, protection);
        format!(
            "{} ({}; {} {})",
            row.asks,
            shown(Protection::Edge),
            short(Protection::Tower),
            shown(Protection::Tower)
        )
    };
    let named = |rows: Vec<String>| match rows.len() {
        0 => "nowhere".into(),
        _ => rows.join("; "),
    };
    vec![
        format!(
            "edge(), which is told no number, is best alone in: {}.",
            named(alone.map(beside).collect())
        ),
        format!(
            "It is worse than the best in: {}.",
            named(lost.iter().map(beside).collect())
        ),
    ]
}

/// What the report says of the chapter.
pub fn about() -> String {
    format!(
        "What tower has of its own is <code>LoadShed</code> over <code>ConcurrencyLimit</code>. It is here twice: with \
         {LIMIT}, which is right for {WORKERS} workers, and with {GUESS}, a round number. Goodput is answers in time, as a \
         share of what was possible; for disturbances of the parts in the table further down, but for long polls. Shares \
         within {} points, and latencies within a tenth, count as even. Clients wait for a second, or for {} ms where they \
         are impatient. The adaptive limit of tower-resilience measures with the system's clock, so that it cannot be \
         simulated.",
        100.0 * EVEN,
        IMPATIENCE.as_millis() / MS.as_millis()
    )
}
