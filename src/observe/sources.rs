//! What each layer says, by its handle.

use super::{metrics::Observe, names::*, samples::Samples};
#[cfg(feature = "fleet")]
use crate::{Fleet, fleet};
use crate::{
    Reason, adaptive_concurrency, channel, circuit_breaker, codel, concurrency_limit, edge,
    keyed_circuit_breaker, keyed_concurrency_limit, keyed_rate_limit, rate_limit, saturation,
    shadow, submitted_at, wfq,
};

/// A handle on one layer.
#[allow(unnameable_types, reason = "it seals `Observe`")]
pub trait Source: Send + Sync {
    fn name(&self) -> &'static str;

    fn collect(&self, samples: &mut Samples);
}

impl Observe for adaptive_concurrency::Handle {}
impl Observe for channel::Handle {}
impl Observe for circuit_breaker::Handle {}
impl Observe for codel::Handle {}
impl Observe for concurrency_limit::Handle {}
impl Observe for edge::Handle {}
impl Observe for keyed_circuit_breaker::Handle {}
impl Observe for keyed_concurrency_limit::Handle {}
impl Observe for keyed_rate_limit::Handle {}
impl Observe for rate_limit::Handle {}
#[cfg(feature = "retry")]
impl Observe for crate::retry::Handle {}
impl Observe for saturation::Handle {}
impl Observe for shadow::Handle {}
impl Observe for submitted_at::Handle {}
impl Observe for wfq::Handle {}

#[cfg(feature = "fleet")]
impl Observe for Fleet {}
#[cfg(feature = "fleet")]
impl Observe for fleet::concurrency_limit::Handle {}
#[cfg(feature = "fleet")]
impl Observe for fleet::keyed_rate_limit::Handle {}
#[cfg(feature = "fleet")]
impl Observe for fleet::rate_limit::Handle {}

/// The way to the server, for all limits of a fleet.
#[cfg(feature = "fleet")]
impl Source for Fleet {
    fn name(&self) -> &'static str {
        "fleet"
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        let falls_back = snapshot.mode == fleet::Mode::Fallback;
        samples.level(&FLEET_FALLBACK, falls_back.into());
        samples.count(&FLEET_MODE_CHANGES, snapshot.mode_changes);
        samples.count(&FLEET_FALLBACK_SECONDS, snapshot.fallback_time.as_secs());
        samples.count_by(&FLEET_CALLS, "granted", snapshot.granted);
        samples.count_by(&FLEET_CALLS, "refused", snapshot.refused);
        samples.count_by(&FLEET_CALLS, "failed", snapshot.failed);
    }
}

#[cfg(feature = "fleet")]
impl Source for fleet::rate_limit::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.rate(&self.snapshot());
        samples.count(&FLEET_TOKENS_LOST, self.tokens_lost());
    }
}

#[cfg(feature = "fleet")]
impl Source for fleet::keyed_rate_limit::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.keyed_rate(&self.snapshot());
        samples.count(&FLEET_TOKENS_LOST, self.tokens_lost());
    }
}

#[cfg(feature = "fleet")]
impl Source for fleet::concurrency_limit::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.permits(&self.snapshot());
        samples.level(&LIMIT_MAX, self.limit() as f64);
    }
}

impl Source for concurrency_limit::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.permits(&self.snapshot());
    }
}

impl Source for adaptive_concurrency::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        samples.permits(&snapshot.permits);
        samples.limit_bounds(snapshot.bounds.min(), snapshot.bounds.max());
        samples.level(&LIMIT_PINNED, snapshot.pinned.into());
        if let Some(baseline) = snapshot.learned.baseline {
            samples.level(&MIN_RTT, baseline.as_secs_f64());
        }
    }
}

impl Source for codel::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        let rejected = snapshot.rejected;
        samples.requests(
            snapshot.admitted,
            [
                (Reason::AtLimit, rejected.at_limit),
                (Reason::TooOld, rejected.too_old),
            ],
        );
        samples.limit(snapshot.limit, snapshot.in_flight, snapshot.peak_in_flight);
        samples.limit_bounds(snapshot.min, snapshot.max);
        samples.count_by(&LIMIT_MOVES, "narrowed", snapshot.narrowings);
        samples.count_by(&LIMIT_MOVES, "widened", snapshot.widenings);
        samples.count_by(&LIMIT_MOVES, "undone", snapshot.undone);
        samples.level(&OVERLOADED, snapshot.overloaded.into());
        samples.level(&LOAD, f64::from(snapshot.load_percent) / 100.0);
        samples.level(&OVER_TARGET, snapshot.over_target);
        if let Some(p95) = snapshot.p95 {
            samples.level(&AGE_P95, p95.as_secs_f64());
        }
    }
}

impl Source for wfq::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        let rejected = snapshot.rejected;
        samples.requests(
            snapshot.served + snapshot.refused + snapshot.running as u64,
            [
                (Reason::QueueFull, rejected.queue_full),
                (Reason::WaitTimeout, rejected.wait_timeout),
                (Reason::Displaced, rejected.displaced),
                (Reason::Deadline, rejected.deadline),
                (Reason::WouldBeLate, rejected.would_be_late),
            ],
        );
        samples.count(&REFUSED_INSIDE, snapshot.refused);
        samples.level(&IN_FLIGHT, snapshot.running as f64);
        samples.queue(snapshot.waiting, snapshot.oldest_wait);
        samples.queue_wait(snapshot.waits);
        samples.level(&TENANTS, snapshot.tenants as f64);
        samples.count(&TENANT_OVERFLOW, snapshot.overflowed);
        samples.priorities(&snapshot.priorities);
    }
}

impl Source for edge::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        let (permits, age) = (&snapshot.permits, &snapshot.age);
        let rejected = permits.rejected;
        samples.requests(
            permits.admitted,
            [
                (Reason::AtLimit, rejected.at_limit),
                (Reason::QueueFull, rejected.queue_full),
                (Reason::WaitTimeout, rejected.wait_timeout),
                (Reason::TooOld, rejected.too_old),
                (Reason::Displaced, rejected.displaced),
                (Reason::Deadline, rejected.deadline),
                (Reason::WouldBeLate, rejected.would_be_late),
            ],
        );
        samples.limit(permits.limit, permits.in_flight, permits.peak_in_flight);
        samples.limit_bounds(snapshot.bounds.min(), snapshot.bounds.max());
        samples.level(&LIMIT_PINNED, snapshot.pinned.into());
        samples.level(&LIMIT_BY_AGE, age.limit as f64);
        if let Some(baseline) = snapshot.learned.baseline {
            samples.level(&MIN_RTT, baseline.as_secs_f64());
        }
        samples.queue(permits.waiting, permits.oldest_wait);
        samples.queue_wait(permits.waits);
        samples.count(&REFUSED_INSIDE, snapshot.refused);
        samples.level(&TENANTS, snapshot.tenants as f64);
        samples.count(&TENANT_OVERFLOW, snapshot.overflowed);
        samples.priorities(&snapshot.priorities);
        samples.count_by(&LIMIT_MOVES, "narrowed", age.narrowings);
        samples.count_by(&LIMIT_MOVES, "widened", age.widenings);
        samples.count_by(&LIMIT_MOVES, "undone", age.undone);
        samples.level(&OVERLOADED, age.overloaded.into());
        samples.level(&LOAD, f64::from(age.load_percent) / 100.0);
        samples.level(&OVER_TARGET, age.over_target);
        if let Some(p95) = age.p95 {
            samples.level(&AGE_P95, p95.as_secs_f64());
        }
    }
}

impl Source for rate_limit::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.rate(&self.snapshot());
    }
}

impl Source for keyed_rate_limit::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.keyed_rate(&self.snapshot());
        if let Some(global) = self.global().map(|global| global.snapshot()) {
            samples.tokens(global.tokens, &global.rate);
        }
    }
}

impl Source for keyed_concurrency_limit::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        let totals = snapshot.totals;
        samples.requests(
            totals.completed + snapshot.in_flight as u64,
            [
                (Reason::QueueFull, totals.rejected),
                (Reason::WaitTimeout, totals.timed_out),
                (Reason::Deadline, totals.expired),
            ],
        );
        samples.count_by(&REQUESTS, "cancelled", totals.cancelled);
        samples.level(&IN_FLIGHT, snapshot.in_flight as f64);
        samples.level(&QUEUE_DEPTH, snapshot.waiting as f64);
        samples.queue_wait(snapshot.waits);
        samples.level(&TENANTS, snapshot.keys as f64);
    }
}

impl Source for circuit_breaker::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        samples.breaker(
            snapshot.opened,
            snapshot.closed,
            snapshot.probes,
            snapshot.rejected,
        );
        samples.level(&BREAKER_STATE, f64::from(snapshot.state as u8));
        if let Some(rate) = snapshot.failure_rate {
            samples.level(&BREAKER_FAILURES, rate);
        }
    }
}

impl Source for keyed_circuit_breaker::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        samples.breaker(
            snapshot.opened,
            snapshot.closed,
            snapshot.probes,
            snapshot.rejected,
        );
        samples.level_by(&BREAKERS, "open", snapshot.open as f64);
        samples.level_by(&BREAKERS, "half_open", snapshot.half_open as f64);
        samples.level(&TENANTS, snapshot.tracked as f64);
        samples.count(&TENANT_OVERFLOW, snapshot.untracked);
    }
}

impl Source for saturation::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        let rejected = snapshot.rejected_at_critical + snapshot.rejected_at_overflow;
        samples.requests(snapshot.admitted, [(Reason::Saturated, rejected)]);
        samples.level(&SATURATION_LEVEL, f64::from(snapshot.level as u8));
        samples.level(&SATURATION_RATIO, snapshot.ratio);
        samples.count(&SATURATION_CHANGES, snapshot.changes);
        samples.count(&PROBE_PANICS, snapshot.probe_panics);
    }
}

impl Source for channel::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        samples.requests(
            snapshot.sent,
            [
                (Reason::QueueFull, snapshot.dropped),
                (Reason::WaitTimeout, snapshot.timed_out),
            ],
        );
        samples.queue(snapshot.depth, snapshot.oldest_age);
        samples.level(&QUEUE_CAPACITY, snapshot.capacity as f64);
        samples.level(&SATURATION_RATIO, snapshot.saturation);
        samples.level(&SENDERS_WAITING, snapshot.waiting as f64);
        samples.count(&MESSAGES_RECEIVED, snapshot.received);
        samples.count(&MESSAGES_DISCARDED, snapshot.discarded);
    }
}

#[cfg(feature = "retry")]
impl Source for crate::retry::Handle {
    fn name(&self) -> &'static str {
        "retry"
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        samples.count(&RETRY_REQUESTS, snapshot.requests);
        samples.count(&RETRIES, snapshot.retries);
        samples.count(&RETRIES_RECOVERED, snapshot.recovered);
        for (reason, count) in [
            ("permanent", snapshot.permanent),
            ("gone", snapshot.gone),
            ("not_idempotent", snapshot.not_idempotent),
            ("not_replayable", snapshot.not_replayable),
            ("forbidden", snapshot.forbidden),
            ("exhausted", snapshot.exhausted),
            ("circuit_open", snapshot.circuit_open),
            ("too_late", snapshot.too_late),
            ("over_budget", snapshot.over_budget),
        ] {
            samples.count_by(&RETRIES_WITHHELD, reason, count);
        }
        samples.level(&RETRY_BUDGET, snapshot.budget as f64);
    }
}

impl Source for shadow::Handle {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        samples.count(&SHADOW_REQUESTS, snapshot.requests);
        samples.count(&SHADOW_WAITED, snapshot.waited);
        samples.count(&SHADOW_FAILED, snapshot.failed);
        // Several layers may have the same reason.
        let mut by_reason: Vec<(Reason, u64)> = Vec::new();
        for refusals in snapshot.refusals {
            let known = by_reason
                .iter_mut()
                .find(|(reason, _)| *reason == refusals.reason);
            match known {
                Some((_, count)) => *count += refusals.count,
                None => by_reason.push((refusals.reason, refusals.count)),
            }
        }
        for (reason, count) in by_reason {
            samples.count_by(&SHADOW_REJECTED, reason.as_str(), count);
        }
    }
}

impl Source for submitted_at::Handle {
    fn name(&self) -> &'static str {
        "submitted_at"
    }

    fn collect(&self, samples: &mut Samples) {
        let snapshot = self.snapshot();
        let in_range = snapshot.believed.saturating_sub(snapshot.capped);
        samples.count_by(&SUBMITTED_AT, "believed", in_range);
        samples.count_by(&SUBMITTED_AT, "capped", snapshot.capped);
        samples.count_by(&SUBMITTED_AT, "future", snapshot.future);
        samples.count_by(&SUBMITTED_AT, "invalid", snapshot.invalid);
    }
}
