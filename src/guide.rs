//! How to choose, stack, tune and run the layers of this crate.
//!
//! | page | answers |
//! | --- | --- |
//! | [`choosing`] | which layer do I need, and which do I not need? |
//! | [`stacking`] | in which order do layers go, and what does another order do? |
//! | [`tuning`] | what is each setting for, and what does a wrong value do? |
//! | [`priorities_and_deadlines`] | who is served when not everybody can be, and what do clients send? |
//! | [`deploying`] | what goes around it in an axum, tonic or hyper server? |
//! | [`runbook`] | the server rejects requests, or is slow: what do I look at, and what do I change? |
//! | [`promises`] | what can I rely on, and what not? |
//! | [`questions`] | is it slower, what if it is wrong, can I turn it off? |
//! | [`migration`] | how do I come from tower's limit, `tower_governor`, tower-resilience or Envoy? |
//! | [`fleet`] | what does a limit that replicas share promise and cost, and what when its server is away? |
//! | [`comparison`] | what do tower and others do, and where do they differ? |
//! | [`decisions`] | why was it designed like this? |
//! | [`glossary`] | what do the words mean? |
//!
//! Numbers in these pages are measured. *lab* is `cargo run --release -p overload_lab`, by the name of
//! its scenario: its numbers repeat exactly. *bench* is a group of `cargo bench`, with the figures in
//! `benches/README.md`. *test* is a file in `tests/`, which fails if the number no longer holds.

macro_rules! pages {
    ($($page:ident: $first:literal $($more:literal)*;)*) => { $(
        #[doc = include_str!(concat!("guide/", $first))]
        $(
            #[doc = ""]
            #[doc = include_str!(concat!("guide/", $more))]
        )*
        pub mod $page {}
    )* };
}

pages! {
    choosing: "choosing.md";
    stacking: "stacking.md";
    tuning: "tuning.md"
        "plots/settings.svg" "plots/settings.md"
        "plots/goodput.svg" "plots/load.md" "plots/latency.svg"
        "plots/capacity.svg" "plots/capacity.md" "plots/limit.svg"
        "plots/tenants.svg" "plots/tenants.md"
        "plots/retries.svg" "plots/retries.md"
        "plots/disturbances.svg" "plots/disturbance_limits.svg" "plots/disturbances.md";
    priorities_and_deadlines: "priorities_and_deadlines.md";
    deploying: "deploying.md";
    runbook: "runbook.md";
    promises: "promises.md";
    questions: "questions.md";
    migration: "migration.md";
    fleet: "fleet.md";
    comparison: "comparison.md" "plots/questions.md";
    decisions: "decisions.md";
    glossary: "glossary.md";
}
