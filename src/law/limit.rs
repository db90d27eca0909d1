//! The contract between an adaptive limit and the law that moves it.

use std::{fmt, time::Duration};

/// A law that learns how many requests should be in flight, from those that complete.
///
/// It is a pure state machine: samples go in, a limit comes out. It reads no clock, takes no lock and
/// has no random source of its own, so a run can be repeated exactly. It is called by one thread at a
/// time, under a lock, so it must not call back into the layer or its handle.
///
/// ```
/// use std::time::Duration;
/// use tower_backpressure::adaptive_concurrency::{AdaptiveConcurrencyLayer, Bounds, Limit, Outcome, Sample};
///
/// /// One more for each success, half as many for each failure.
/// struct Halving {
///     bounds: Bounds,
///     limit: usize,
/// }
///
/// impl Limit for Halving {
///     fn limit(&self) -> usize {
///         self.limit
///     }
///
///     fn sample(&mut self, sample: &Sample) {
///         self.limit = match sample.outcome {
///             Outcome::Success if sample.full => self.limit + 1,
///             Outcome::Failure => self.limit / 2,
///             _ => self.limit,
///         }
///         .clamp(self.bounds.min(), self.bounds.max());
///     }
///
///     fn bounds(&self) -> Bounds {
///         self.bounds
///     }
///
///     fn restart(&mut self, bounds: Bounds) {
///         *self = Self { bounds, limit: bounds.initial() };
///     }
/// }
///
/// let bounds = Bounds::new(1, 10, 100);
/// let layer = AdaptiveConcurrencyLayer::new(Halving { bounds, limit: 10 });
/// assert_eq!(layer.handle().snapshot().permits.limit, 10);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the law of an adaptive limit",
    note = "take `Vegas`, `Gradient2`, `Aimd`, one of them in `Windowed`, or a type of your own that implements `Limit`"
)]
pub trait Limit: Send + 'static {
    /// How many requests may be in flight now. 0 is taken as 1.
    fn limit(&self) -> usize;

    /// A request has completed, and its outcome is a success or a failure: the layer passes on no others. One that was
    /// [rejected](Outcome::Rejected) is passed on as a failure.
    fn sample(&mut self, sample: &Sample);

    /// Where it started, and how far it may go.
    fn bounds(&self) -> Bounds;

    /// Starts over within these bounds, as if nothing had been learned.
    fn restart(&mut self, bounds: Bounds);

    /// Whether the limit is held down for a while only to measure. Then [`admitted`](Self::admitted) is
    /// told of requests that come.
    fn is_probing(&self) -> bool {
        false
    }

    /// A request is handed to the service, and with it so many are in flight. Only called while it [is
    /// probing](Self::is_probing): a measurement must also end when the service falls idle, or when nothing
    /// completes any more that says anything.
    fn admitted(&mut self, now: Duration, in_flight: usize) {
        let _ = (now, in_flight);
    }

    /// What is known, for operators to look at.
    fn report(&self) -> Report {
        Report::default()
    }
}

/// A request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it completed: time since some moment in the past. It may stand still.
    pub now: Duration,
    /// How long the inner service took, from the call to the response.
    pub rtt: Duration,
    /// How many were in flight when it was handed to the inner service, with itself.
    pub in_flight: usize,
    /// What became of it.
    pub outcome: Outcome,
    /// Whether the limit was reached then: this one took the last place, or others waited.
    pub full: bool,
}

/// What a completed request says about the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The service did its work: the time that it took tells how loaded it is.
    Success,
    /// The service could not do its work: too much was asked of it, or it is broken. The time that it
    /// took says nothing.
    Failure,
    /// It says nothing about the service: refused further in, the client's own fault, cancelled.
    Ignored,
    /// The service is alive, but turned the request away and said when to come back. A breaker takes it for nothing,
    /// an adaptive limit for a failure: fewer requests at once are what helps.
    Rejected,
}

impl Outcome {
    /// What a law that moves a limit is told.
    #[inline(always)] // where the outcome is known, this is too
    pub(crate) fn for_limit(self) -> Self {
        match self {
            Self::Rejected => Self::Failure,
            outcome => outcome,
        }
    }
}

/// Where a limit starts, and how far it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    min: usize,
    initial: usize,
    max: usize,
}

impl Bounds {
    /// From `min` to `max`, starting with `initial`.
    ///
    /// # Panics
    /// Unless 1 ≤ `min` ≤ `initial` ≤ `max`.
    pub const fn new(min: usize, initial: usize, max: usize) -> Self {
        assert!(
            Self::fault(min, initial, max).is_none(),
            "the bounds of a limit must be 1 <= min <= initial <= max"
        );
        Self { min, initial, max }
    }

    /// Which of them is not allowed, if one is not.
    pub(crate) const fn fault(min: usize, initial: usize, max: usize) -> Option<&'static str> {
        if max == 0 {
            Some("max")
        } else if min == 0 || min > max {
            Some("min")
        } else if initial < min || initial > max {
            Some("initial")
        } else {
            None
        }
    }

    /// The limit never falls below this, not even to measure. At least 1.
    pub const fn min(&self) -> usize {
        self.min
    }

    /// The limit at the start.
    pub const fn initial(&self) -> usize {
        self.initial
    }

    /// The limit never rises above this.
    pub const fn max(&self) -> usize {
        self.max
    }

    /// The same bounds with another start, or the nearest that is within them.
    pub(crate) fn starting_with(self, initial: usize) -> Self {
        Self {
            initial: initial.clamp(self.min, self.max),
            ..self
        }
    }

    pub(crate) fn clamp(&self, limit: f64) -> f64 {
        limit.clamp(self.min as f64, self.max as f64)
    }
}

/// What a law has learned, as far as it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// How long a request takes when none has to wait inside the service, as it is estimated.
    pub baseline: Option<Duration>,
    /// The last window of samples that was judged.
    pub window: Option<Window>,
    /// Why the limit last moved.
    pub moved: Option<Moved>,
}

/// Samples that were judged together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Window {
    /// How long it took to collect them.
    pub duration: Duration,
    /// How many requests succeeded.
    pub successes: u64,
    /// How many failed.
    pub failures: u64,
    /// How long those that succeeded took on average.
    pub mean_rtt: Duration,
    /// How many requests, of those in flight, waited inside the service, as it is estimated.
    pub queued: f64,
}

impl Report {
    /// For laws outside this crate too, which cannot write it as a literal.
    pub fn new(baseline: Option<Duration>, window: Option<Window>, moved: Option<Moved>) -> Self {
        Self {
            baseline,
            window,
            moved,
        }
    }
}

/// Why a limit moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Moved {
    /// Up: requests took hardly longer than the baseline.
    Room,
    /// Down: requests waited inside the service.
    Queue,
    /// Down: too many requests failed.
    Failures,
    /// Down for a moment, to measure the baseline.
    Probe,
    /// Back up after that.
    ProbeOver,
}

impl Moved {
    /// The reason as one word, for labels of logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Queue => "queue",
            Self::Failures => "failures",
            Self::Probe => "probe",
            Self::ProbeOver => "probe_over",
        }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Room => "up: requests hardly had to wait",
            Self::Queue => "down: requests waited inside the service",
            Self::Failures => "down: too many requests failed",
            Self::Probe => "down for a moment: measures the baseline",
            Self::ProbeOver => "back up: the baseline is measured",
        })
    }
}

/// For the laws, which count in seconds.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
