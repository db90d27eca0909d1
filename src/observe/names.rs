//! What every metric is called, and what it says.

/// All samples of one name.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    /// The label that samples have beside `layer`, if they have one.
    pub(super) label: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It never falls, but to 0 when the process starts anew.
    Counter,
    Gauge,
    Histogram,
}

macro_rules! families {
    ($($id:ident = $kind:ident $name:literal $(by $label:literal)?, $help:literal;)*) => {
        $(pub(super) static $id: Family = Family {
            name: $name,
            help: $help,
            kind: Kind::$kind,
            label: families!(@label $($label)?),
        };)*

        /// All of them, in the order in which they are shown.
        pub(super) static FAMILIES: &[&Family] = &[$(&$id),*];
    };
    (@label) => { None };
    (@label $label:literal) => { Some($label) };
}

families! {
    REQUESTS = Counter "backpressure_requests_total" by "outcome",
        "Requests that the layer has decided on.";
    REJECTED = Counter "backpressure_rejected_total" by "reason",
        "Requests that the layer has refused.";
    REFUSED_INSIDE = Counter "backpressure_refused_inside_total",
        "Requests that passed, and that a layer further in refused.";

    IN_FLIGHT = Gauge "backpressure_in_flight",
        "Requests in flight.";
    IN_FLIGHT_MAX = Gauge "backpressure_in_flight_max",
        "The most requests in flight at once since the layer was last looked at.";
    LIMIT = Gauge "backpressure_limit",
        "How many requests may be in flight.";
    LIMIT_MIN = Gauge "backpressure_limit_min",
        "The limit does not fall below this by itself.";
    LIMIT_MAX = Gauge "backpressure_limit_max",
        "The limit does not rise above this by itself.";
    LIMIT_PINNED = Gauge "backpressure_limit_pinned",
        "1 while somebody holds the limit where it is, else 0.";
    LIMIT_BY_AGE = Gauge "backpressure_limit_by_age",
        "How many requests may be in flight for requests not to get old, whatever the limit is.";
    LIMIT_MOVES = Counter "backpressure_limit_moves_total" by "direction",
        "How often the limit was narrowed and widened, and narrowings taken back.";
    MIN_RTT = Gauge "backpressure_min_rtt_seconds",
        "How long a request is thought to take when none waits inside the service.";

    QUEUE_DEPTH = Gauge "backpressure_queue_depth",
        "What waits: requests, or the messages in a channel.";
    QUEUE_CAPACITY = Gauge "backpressure_queue_capacity",
        "How many messages a channel has room for.";
    QUEUE_OLDEST = Gauge "backpressure_queue_oldest_seconds",
        "How long what has waited longest has waited, of what still waits.";
    QUEUE_WAIT = Histogram "backpressure_queue_wait_seconds",
        "How long requests waited that had to wait, however the wait ended.";
    PRIORITY_ADMITTED = Counter "backpressure_priority_admitted_total" by "priority",
        "Requests of this priority that the layer has let through.";
    PRIORITY_REJECTED = Counter "backpressure_priority_rejected_total" by "priority",
        "Requests of this priority that the layer has rejected, displaced ones included.";
    PRIORITY_DISPLACED = Counter "backpressure_priority_displaced_total" by "priority",
        "Requests of this priority that waited, and made room for a more important one.";
    PRIORITY_QUEUE_DEPTH = Gauge "backpressure_priority_queue_depth" by "priority",
        "Requests of this priority that wait.";
    PRIORITY_QUEUE_OLDEST = Gauge "backpressure_priority_queue_oldest_seconds" by "priority",
        "How long the request of this priority has waited that has waited longest, of those that still wait.";
    SENDERS_WAITING = Gauge "backpressure_senders_waiting",
        "Senders that wait for room in a channel.";
    MESSAGES_RECEIVED = Counter "backpressure_messages_received_total",
        "Messages that were taken out of a channel.";
    MESSAGES_DISCARDED = Counter "backpressure_messages_discarded_total",
        "Messages that were in a channel when its receiver went.";

    OVERLOADED = Gauge "backpressure_overloaded",
        "1 while a queue stands and what is too old is refused, else 0.";
    LOAD = Gauge "backpressure_load_ratio",
        "The least age lately, of the age at which requests are refused while a queue stands.";
    AGE_P95 = Gauge "backpressure_age_p95_seconds",
        "The age that nineteen in twenty requests did not exceed when they came.";
    OVER_TARGET = Gauge "backpressure_over_target_ratio",
        "The share of requests that were older than the target when they came.";

    BREAKER_STATE = Gauge "backpressure_breaker_state",
        "0 closed, 1 half-open, 2 open.";
    BREAKERS = Gauge "backpressure_breakers" by "state",
        "Circuits of a keyed breaker that are open or half-open.";
    BREAKER_FAILURES = Gauge "backpressure_breaker_failure_ratio",
        "The share of requests in the window that failed.";
    BREAKER_OPENED = Counter "backpressure_breaker_opened_total",
        "How often a circuit has opened.";
    BREAKER_CLOSED = Counter "backpressure_breaker_closed_total",
        "How often a circuit has closed after that.";
    BREAKER_PROBES = Counter "backpressure_breaker_probes_total",
        "Requests that were sent to see whether the service works again.";

    TENANTS = Gauge "backpressure_tenants_tracked",
        "Tenants, or other keys, that are remembered.";
    TENANTS_MAX = Gauge "backpressure_tenants_max",
        "How many there may be.";
    TENANT_OVERFLOW = Counter "backpressure_tenant_overflow_total",
        "Requests of tenants or keys that there was no room to remember.";

    TOKENS = Gauge "backpressure_tokens",
        "Tokens that are there to be taken.";
    TOKENS_MAX = Gauge "backpressure_tokens_max",
        "How many tokens there can be: the burst.";
    TOKENS_PER_SECOND = Gauge "backpressure_tokens_per_second",
        "How many tokens come in a second.";

    FLEET_FALLBACK = Gauge "backpressure_fleet_fallback",
        "1 while the fleet's server does not answer and limits fall back, else 0.";
    FLEET_MODE_CHANGES = Counter "backpressure_fleet_mode_changes_total",
        "How often limits began to fall back, or to be shared again.";
    FLEET_FALLBACK_SECONDS = Counter "backpressure_fleet_fallback_seconds_total",
        "For how long limits fell back, in whole seconds.";
    FLEET_CALLS = Counter "backpressure_fleet_calls_total" by "outcome",
        "Calls to the fleet's server.";
    FLEET_TOKENS_LOST = Counter "backpressure_fleet_tokens_lost_total",
        "Tokens that were granted to this node, and that no request wanted in time.";

    SATURATION_LEVEL = Gauge "backpressure_saturation_level",
        "0 normal, 1 warning, 2 critical, 3 overflow.";
    SATURATION_RATIO = Gauge "backpressure_saturation_ratio",
        "How full the fullest queue is, of its soft limit or its capacity.";
    SATURATION_CHANGES = Counter "backpressure_saturation_changes_total",
        "How often the level has changed.";
    PROBE_PANICS = Counter "backpressure_probe_panics_total",
        "How often a probe has panicked.";

    RETRY_REQUESTS = Counter "backpressure_retry_requests_total",
        "Requests of a client that retries, each counted once.";
    RETRIES = Counter "backpressure_retries_total",
        "Requests that were sent again.";
    RETRIES_RECOVERED = Counter "backpressure_retries_recovered_total",
        "Requests that went well at a retry.";
    RETRIES_WITHHELD = Counter "backpressure_retries_withheld_total" by "reason",
        "Requests that failed, or may have, and were not sent again.";
    RETRY_BUDGET = Gauge "backpressure_retry_budget",
        "Retries that the budget has left.";

    SUBMITTED_AT = Counter "backpressure_submitted_at_total" by "outcome",
        "What became of the header that says when a request came.";

    SHADOW_REQUESTS = Counter "backpressure_shadow_requests_total",
        "Requests that layers on trial were shown.";
    SHADOW_WAITED = Counter "backpressure_shadow_waited_total",
        "Requests that they would have had wait.";
    SHADOW_FAILED = Counter "backpressure_shadow_failed_total",
        "Requests that they failed, without saying that they refuse: the trial does not work.";
    SHADOW_REJECTED = Counter "backpressure_shadow_rejected_total" by "reason",
        "Requests that they would have refused.";
}
