//! What layers say, as numbers with names.

use std::time::Duration;

use super::names::*;
use crate::{Rate, Reason, Waits, concurrency_limit, keyed_rate_limit, priority, rate_limit};

/// What one layer says.
#[derive(Default)]
#[allow(unnameable_types, reason = "of a sealed trait")]
pub struct Samples(pub(super) Vec<Sample>);

pub(super) struct Sample {
    pub(super) family: &'static Family,
    /// The value of the family's label.
    pub(super) label: Option<&'static str>,
    pub(super) value: Value,
}

#[derive(Clone, Copy)]
pub(super) enum Value {
    Count(u64),
    Level(f64),
    Waits(Waits),
}

impl Samples {
    pub(super) fn count(&mut self, family: &'static Family, count: u64) {
        self.push(family, None, Value::Count(count));
    }

    pub(super) fn count_by(&mut self, family: &'static Family, label: &'static str, count: u64) {
        self.push(family, Some(label), Value::Count(count));
    }

    pub(super) fn level(&mut self, family: &'static Family, level: f64) {
        self.push(family, None, Value::Level(level));
    }

    pub(super) fn level_by(&mut self, family: &'static Family, label: &'static str, level: f64) {
        self.push(family, Some(label), Value::Level(level));
    }

    pub(super) fn waits(&mut self, family: &'static Family, waits: Waits) {
        self.push(family, None, Value::Waits(waits));
    }

    fn push(&mut self, family: &'static Family, label: Option<&'static str>, value: Value) {
        let kind = match value {
            Value::Count(_) => Kind::Counter,
            Value::Level(_) => Kind::Gauge,
            Value::Waits(_) => Kind::Histogram,
        };
        debug_assert_eq!(
            (family.kind, family.label.is_some()),
            (kind, label.is_some())
        );
        self.0.push(Sample {
            family,
            label,
            value,
        });
    }
}

/// What several layers say.
impl Samples {
    /// `rejected` are all reasons that the layer has, also those that nothing was refused for: a series that
    /// begins at its first refusal hides it from those who look for what is new.
    pub(super) fn requests<const N: usize>(&mut self, admitted: u64, rejected: [(Reason, u64); N]) {
        self.count_by(&REQUESTS, "admitted", admitted);
        let total = rejected.iter().map(|(_, count)| count).sum();
        self.count_by(&REQUESTS, "rejected", total);
        self.rejected(rejected);
    }

    pub(super) fn rejected<const N: usize>(&mut self, rejected: [(Reason, u64); N]) {
        for (reason, count) in rejected {
            self.count_by(&REJECTED, reason.as_str(), count);
        }
    }

    pub(super) fn limit(&mut self, limit: usize, in_flight: usize, peak: usize) {
        self.level(&LIMIT, limit as f64);
        self.level(&IN_FLIGHT, in_flight as f64);
        self.level(&IN_FLIGHT_MAX, peak as f64);
    }

    pub(super) fn limit_bounds(&mut self, min: usize, max: usize) {
        self.level(&LIMIT_MIN, min as f64);
        self.level(&LIMIT_MAX, max as f64);
    }

    pub(super) fn queue(&mut self, depth: usize, oldest: Option<Duration>) {
        self.level(&QUEUE_DEPTH, depth as f64);
        self.level(&QUEUE_OLDEST, oldest.unwrap_or_default().as_secs_f64());
    }

    pub(super) fn permits(&mut self, permits: &concurrency_limit::Snapshot) {
        let rejected = permits.rejected;
        self.requests(
            permits.admitted,
            [
                (Reason::AtLimit, rejected.at_limit),
                (Reason::QueueFull, rejected.queue_full),
                (Reason::WaitTimeout, rejected.wait_timeout),
            ],
        );
        self.limit(permits.limit, permits.in_flight, permits.peak_in_flight);
        self.queue(permits.waiting, permits.oldest_wait);
        self.queue_wait(permits.waits);
    }

    pub(super) fn rate(&mut self, limit: &rate_limit::Snapshot) {
        let rejected = limit.rejected;
        self.requests(
            limit.admitted,
            [
                (Reason::AtLimit, rejected.at_limit),
                (Reason::QueueFull, rejected.queue_full),
                (Reason::WaitTimeout, rejected.wait_timeout),
            ],
        );
        self.tokens(limit.tokens, &limit.rate);
        self.queue(limit.waiting, limit.oldest_wait);
        self.queue_wait(limit.waits);
    }

    pub(super) fn keyed_rate(&mut self, limit: &keyed_rate_limit::Snapshot) {
        let rejected = limit.rejected;
        self.requests(
            limit.admitted,
            [
                (Reason::Quota, rejected.quota),
                (Reason::AtLimit, rejected.at_limit),
                (Reason::QueueFull, rejected.queue_full),
                (Reason::Deadline, rejected.deadline),
                (Reason::WouldBeLate, rejected.would_be_late),
            ],
        );
        self.level(&QUEUE_DEPTH, limit.waiting as f64);
        self.queue_wait(limit.waits);
        self.level(&TENANTS, limit.keys as f64);
        self.level(&TENANTS_MAX, limit.max_keys as f64);
        self.count(&TENANT_OVERFLOW, limit.overflowed);
    }

    pub(super) fn queue_wait(&mut self, waits: Waits) {
        self.waits(&QUEUE_WAIT, waits);
    }

    /// Only where requests are told apart by their priority.
    pub(super) fn priorities(&mut self, priorities: &[priority::Snapshot]) {
        for of in priorities {
            let label = of.priority.as_str();
            self.count_by(&PRIORITY_ADMITTED, label, of.started);
            self.count_by(&PRIORITY_REJECTED, label, of.rejected);
            self.count_by(&PRIORITY_DISPLACED, label, of.displaced);
            self.level_by(&PRIORITY_QUEUE_DEPTH, label, of.waiting as f64);
            let oldest = of.oldest_wait.unwrap_or_default().as_secs_f64();
            self.level_by(&PRIORITY_QUEUE_OLDEST, label, oldest);
        }
    }

    pub(super) fn tokens(&mut self, tokens: u64, rate: &Rate) {
        self.level(&TOKENS, tokens as f64);
        self.level(&TOKENS_MAX, rate.burst_size() as f64);
        let per_second = rate.count() as f64 / rate.period().as_secs_f64();
        self.level(&TOKENS_PER_SECOND, per_second);
    }

    pub(super) fn breaker(&mut self, opened: u64, closed: u64, probes: u64, rejected: u64) {
        // How many passed is not counted: it would cost each of them.
        self.rejected([(Reason::CircuitOpen, rejected)]);
        self.count(&BREAKER_OPENED, opened);
        self.count(&BREAKER_CLOSED, closed);
        self.count(&BREAKER_PROBES, probes);
    }
}
