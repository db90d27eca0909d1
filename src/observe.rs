//! What an operator wants to know: how much is asked, served and refused, why, and how near the limits are.
//!
//! Every handle has a `snapshot()`, for code that looks at one layer. With the feature `metrics`, a `Metrics`
//! shows the numbers of all layers, under one set of names, to Prometheus or to whatever the `metrics` crate
//! exports to. And the log has a line when something begins and when it is over: [events](#events).
//!
#![cfg_attr(feature = "metrics", doc = "```")]
#![cfg_attr(not(feature = "metrics"), doc = "```ignore")]
//! use axum::{Router, http::header::CONTENT_TYPE, routing::get};
//! use tower_backpressure::{edge, observe::Metrics};
//!
//! # fn main() -> Result<(), tower_backpressure::ConfigError> {
//! let edge = edge();
//! let metrics = Metrics::new();
//! metrics.watch(&edge.handle())?; // as the layer "edge", or by the name that it was given
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(edge)
//!     // After the layer, so outside it: it answers when the server is overloaded, too.
//!     .route(
//!         "/metrics",
//!         get(move || async move { ([(CONTENT_TYPE, Metrics::CONTENT_TYPE)], metrics.prometheus()) }),
//!     );
//! # let _ = app;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/prometheus` is a server that does so, with a dashboard for Grafana (`dashboard.json`) and alert
//! rules (`alerts.yml`) that a test holds to the names below.
//!
//! # Names
//! Every sample has the label `layer`: the name that the layer was given, or that of its kind. Those with
//! another have it in braces. There is no label for tenants or keys: there may be a hundred thousand of them,
//! and a series for each would cost more than the server. `tenants()` of an edge's handle, or a fair queue's, tells them apart.
//!
//! | name | type | of | says |
//! | --- | --- | --- | --- |
//! | `backpressure_requests_total{outcome}` | counter | all that refuse, but breakers | what was decided: `admitted`, `rejected`; of keyed concurrency limits also `cancelled`, before it was decided. Of a channel, messages |
//! | `backpressure_rejected_total{reason}` | counter | all that refuse | why it was refused, as [`Reason::as_str`](crate::Reason::as_str) has it. A rate limit counts `exceeds_burst` as `at_limit`; a channel counts what was offered in vain as `queue_full` |
//! | `backpressure_refused_inside_total` | counter | edge, wfq | admitted here, refused by a layer further in |
//! | `backpressure_in_flight` | gauge | edge, concurrency limits (fixed, adaptive, keyed), codel, wfq | requests in flight; of wfq, with the one that is next |
//! | `backpressure_in_flight_max` | gauge | edge, concurrency limits (fixed, adaptive), codel | the most at once since the layer was last looked at: a burst between two scrapes shows here, and nowhere else |
//! | `backpressure_limit` | gauge | as above | how many may be in flight |
//! | `backpressure_limit_min` | gauge | edge, adaptive, codel | the limit does not fall below this by itself |
//! | `backpressure_limit_max` | gauge | edge, adaptive, codel, concurrency limit of a fleet | nor rise above this |
//! | `backpressure_limit_pinned` | gauge | edge, adaptive | 1 while an operator holds the limit |
//! | `backpressure_limit_by_age` | gauge | edge | at most so many may be in flight for requests not to get old, whatever the limit is. More are rejected with `at_limit` |
//! | `backpressure_limit_moves_total{direction}` | counter | edge, codel | how often the limit was `narrowed`, `widened`, and narrowings `undone`. Of an edge, that by age |
//! | `backpressure_min_rtt_seconds` | gauge | edge, adaptive | the baseline: how long a request takes when none waits inside the service. Missing until it is known |
//! | `backpressure_queue_depth` | gauge | all that let wait, channel | how many wait, or how many messages are in the channel |
//! | `backpressure_queue_capacity` | gauge | channel | how many it has room for |
//! | `backpressure_queue_oldest_seconds` | gauge | edge, concurrency limits (fixed, adaptive), rate limit, wfq, channel | how long what has waited longest has waited; 0 if nothing waits |
//! | `backpressure_queue_wait_seconds` | histogram | all that let wait | how long those waited who had to ([`Waits`](crate::Waits)) |
//! | `backpressure_priority_admitted_total{priority}` | counter | edge, wfq, if requests have [priorities](crate::priority) | requests of this priority that were let through: `critical`, `high`, `normal`, `low`, `background` |
//! | `backpressure_priority_rejected_total{priority}` | counter | as above | those that were rejected |
//! | `backpressure_priority_displaced_total{priority}` | counter | as above | those of them that waited, and made room for a more important request |
//! | `backpressure_priority_queue_depth{priority}` | gauge | as above | how many wait |
//! | `backpressure_priority_queue_oldest_seconds{priority}` | gauge | as above | how long the one has waited that has waited longest; 0 if none waits |
//! | `backpressure_senders_waiting` | gauge | channel | senders that wait for room |
//! | `backpressure_messages_received_total` | counter | channel | messages taken out |
//! | `backpressure_messages_discarded_total` | counter | channel | messages that went with the receiver |
//! | `backpressure_overloaded` | gauge | edge, codel | 1 while a queue stands, and what is too old is refused |
//! | `backpressure_load_ratio` | gauge | edge, codel | the least age lately, of the age at which it refuses; at most 1 |
//! | `backpressure_age_p95_seconds` | gauge | edge, codel | the age that nineteen in twenty did not exceed. Missing if none came |
//! | `backpressure_over_target_ratio` | gauge | edge, codel | the share that was older than the target |
//! | `backpressure_breaker_state` | gauge | breaker | 0 closed, 1 half-open, 2 open |
//! | `backpressure_breakers{state}` | gauge | keyed breaker | how many circuits are `open`, `half_open` |
//! | `backpressure_breaker_failure_ratio` | gauge | breaker | the share that failed, where that is what opens it |
//! | `backpressure_breaker_opened_total` | counter | breakers | how often a circuit has opened |
//! | `backpressure_breaker_closed_total` | counter | breakers | how often it has closed after that |
//! | `backpressure_breaker_probes_total` | counter | breakers | requests that were sent as probes |
//! | `backpressure_tenants_tracked` | gauge | edge, wfq, keyed limits, keyed breaker | tenants or keys that are remembered |
//! | `backpressure_tenants_max` | gauge | keyed rate limit | how many there may be |
//! | `backpressure_tenant_overflow_total` | counter | edge, wfq, keyed rate limit, keyed breaker | requests of those that there was no room to remember |
//! | `backpressure_tokens` | gauge | rate limit, global rate of a keyed one | tokens that are there; of a fleet, on this node |
//! | `backpressure_tokens_max` | gauge | as above | the burst |
//! | `backpressure_tokens_per_second` | gauge | as above | the rate |
//! | `backpressure_fleet_fallback` | gauge | `Fleet` | 1 while the server does not answer and limits fall back |
//! | `backpressure_fleet_mode_changes_total` | counter | `Fleet` | how often that has begun, or ended |
//! | `backpressure_fleet_fallback_seconds_total` | counter | `Fleet` | for how long it was so, in whole seconds |
//! | `backpressure_fleet_calls_total{outcome}` | counter | `Fleet` | calls to the server: `granted` what they asked for, `refused`, and `failed` without an answer |
//! | `backpressure_fleet_tokens_lost_total` | counter | rate limits of a fleet | tokens that were granted to this node, and that no request wanted in time |
//! | `backpressure_saturation_level` | gauge | saturation | 0 normal, 1 warning, 2 critical, 3 overflow |
//! | `backpressure_saturation_ratio` | gauge | saturation, channel | how full the fullest queue is |
//! | `backpressure_saturation_changes_total` | counter | saturation | how often the level has changed |
//! | `backpressure_probe_panics_total` | counter | saturation | how often a probe has panicked |
//! | `backpressure_retry_requests_total` | counter | retry | requests, each counted once |
//! | `backpressure_retries_total` | counter | retry | requests that were sent again |
//! | `backpressure_retries_recovered_total` | counter | retry | requests that went well at a retry |
//! | `backpressure_retries_withheld_total{reason}` | counter | retry | why not: `permanent`, `gone`, `not_idempotent`, `not_replayable`, `forbidden`, `exhausted`, `circuit_open`, `too_late`, `over_budget` |
//! | `backpressure_retry_budget` | gauge | retry | retries that the budget has left |
//! | `backpressure_shadow_requests_total` | counter | shadow | requests that layers on trial were shown |
//! | `backpressure_shadow_waited_total` | counter | shadow | requests that they would have had wait |
//! | `backpressure_shadow_failed_total` | counter | shadow | requests that they failed, without saying that they refuse: the trial does not work |
//! | `backpressure_shadow_rejected_total{reason}` | counter | shadow | requests that they would have refused. Layers that are on trial and watched themselves count what they would do as if they did it: watch the trial instead, or by another name |
//! | `backpressure_submitted_at_total{outcome}` | counter | submitted_at, with a trusted header | the header was `believed`, `capped`, of the `future`, `invalid` |
//!
//! A request that passes three layers is counted by each of them, so sums over layers say little: divide by
//! layer. How many a breaker let through is not counted, because it would cost each of them; count them at the
//! limit beside it.
//!
//! # What to alert on
//! To start from; the rules in `examples/prometheus/alerts.yml` are these, with what to do about each.
//!
//! | what | when |
//! | --- | --- |
//! | a layer refuses more than 1 % of what it is asked for | for 5 minutes: somebody should look |
//! | … more than 10 % | for 5 minutes: somebody is woken |
//! | more than 90 % of a limit is in use | for 10 minutes |
//! | an adaptive limit is as low as it may be | for 5 minutes |
//! | a circuit is open | for 5 minutes |
//! | a fleet's server does not answer | for 2 minutes |
//! | half of those who wait do so for longer than a second | for 5 minutes |
//! | tenants have to share, because there are too many | for 10 minutes |
//! | a queue is critically full | for 5 minutes |
//!
//! # What it costs
//! Requests nothing: layers count what they count anyway, those who wait are timed where they are being put to
//! sleep and woken, and nothing is asked until somebody looks. A look is a snapshot of each layer, which takes
//! that layer's lock for a moment; of the keyed concurrency limit and the keyed breaker it goes through the keys in
//! use. A layer has 35 series at most, an edge 44, a histogram's buckets counted, and a `Metrics` a few hundred bytes for each.
//!
//! # Two who look
//! `backpressure_in_flight_max` is the most since the *last* look, by whomever: a second scraper, or code that takes
//! snapshots of the same layer, ends the first one's interval. Each sees less then, never more. Where two
//! Prometheus servers scrape, take the larger of both. All other numbers are the same for everybody.
//!
//! # Events
//! They go to [`tracing`](https://docs.rs/tracing). Each has the field `layer`: the layer's own name, if it was given one,
//! else the name of its kind.
//!
//! | level | message | from | fields |
//! | --- | --- | --- | --- |
//! | WARN | `requests are refused` | every layer with a limit, a rate or a queue | `reason` of the first |
//! | WARN | `requests are still refused` | the same, once in ten seconds at most | how many were `refused` since the last line, and how long it has `lasted` |
//! | INFO | `requests are no longer refused` | the same, when there was no refusal for five seconds | how many were `refused` in all, and how long it `lasted`, from the first to the last of them |
//! | DEBUG | `the limit has moved` | `AdaptiveConcurrency`, once a second at most; `CoDel`; an edge both, the limit by age with `why` `narrowed`, `widened` or `undone` | `from`, `to`, in how many `moves`, and `why` the last |
//! | WARN | `a queue stands` | `CoDel`, an edge | `p95` of how old requests are |
//! | INFO | `the queue is gone` | `CoDel` | the same |
//! | WARN | `circuit opened` | `CircuitBreaker`, `KeyedCircuitBreaker` | |
//! | INFO | `circuit half-open: requests probe` | the same | |
//! | INFO | `circuit closed` | the same | |
//! | WARN | `the fleet's server does not answer: limits fall back` | a `Fleet`, without `layer` | |
//! | INFO | `the fleet's server answers: limits are shared` | the same | how long it `lasted` |
//! | WARN | `saturation has risen` | `Saturation` | which `probe`, its `ratio`, the levels `from` and `to` |
//! | INFO | `saturation has fallen` | the same | the same |
//! | ERROR | `a saturation probe panicked` | the same, once until none does | `probe` |
//! | WARN | `no request has a tenant, although there are weights for some` | `Wfq`, an edge, once, when a hundred requests or more were `served` | how many were `served` |
//! | ERROR | `request failed` | `OverloadResponse`, where it answers for a service that fails | `error` |
//!
//! A flood of refusals is a few lines: one when it begins, at most one in ten seconds while it goes on, and one
//! when it is over, and the counts in them leave nothing out. In a flood one refusal in sixteen is looked at, so a
//! line may come fifteen refusals late. That it is over has to be noticed by somebody: whoever takes a snapshot, the
//! next one that is refused, and for limits also every 16 384th request that completes. A layer by key tells
//! of all its keys together, but for a keyed breaker, which has a line for each circuit that changes.
//!
//! Layers that are [on trial](crate::shadow) write the same lines, with the field `shadow=true`.
//!
//! Lines are written outside all locks: what listens may take a snapshot.

pub(crate) mod events;
pub(crate) mod refusals;

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "metrics")]
mod names;
#[cfg(feature = "metrics")]
mod prometheus;
#[cfg(feature = "metrics")]
mod samples;
#[cfg(feature = "metrics")]
mod sources;

#[cfg(feature = "metrics")]
pub use self::metrics::{Metrics, Observe, names};
