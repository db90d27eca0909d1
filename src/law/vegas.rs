//! Vegas with a baseline that is verified.
//!
//! # What it wants
//! Enough requests in flight to keep the service busy, and hardly any that wait inside it. With `k`
//! servers that is a limit a little above `k`; the law finds it without knowing `k`.
//!
//! # What it measures
//! Successful requests are put together in windows of at least 100 ms and about four round trips. A
//! window gives the mean round-trip time `r`, the rate of completions and the most that was in flight.
//! With the **baseline** `b`, the mean time of a request that does not have to wait, Little's law tells
//! how many requests wait inside the service:
//!
//! ```text
//! queue = rate · (r − b)
//! ```
//!
//! That is exact for any mix of fast and slow requests, because it speaks of means. (The minimum, which
//! Vegas takes in TCP, is a lucky draw where service times vary; a median does not see a queue that
//! fewer than half of the requests stand in.)
//!
//! # What it does
//! - `queue < α`: there is room. The limit grows, by 1 and twice as much each time that there is still room
//!   (at the start, and after a quiet time, by 8), at most by half.
//! - `queue > β`: it shrinks by half of what the queue is above the middle of the band, at most by 30 %.
//! - Between them, or if less than half of the limit was in use, it stays.
//! - More than 10 % failures: it shrinks by half of their share. Failures are never timed.
//!
//! `α` and `β` are a request or two (more where service times vary: the Pollaczek-Khinchine factor), plus
//! a share of the limit, plus the standard error of the queue's own estimate, so that noise is not taken
//! for a queue.
//!
//! # How the baseline stays true
//! A baseline taken under load contains the queue, and a limit that trusts it never finds out. So every
//! few windows, and before a limit is cut by a baseline that was never verified, the limit **dips**: for a few round
//! trips it is three quarters of what is needed to keep the service busy. Requests admitted *while so few were in
//! flight* did not wait; their mean is the new baseline. They are told by what was in flight when they
//! were admitted, not by when they complete: of those that complete during a dip the short ones would be
//! too many. If the baseline falls by much, the next dip follows at once and deeper, until it falls no
//! more. A dip is shallow and rare enough (one in 8 windows while the baseline is in doubt, one in 32 when
//! it is confirmed again and again) to cost 1 % of the throughput, or 2 % where a few workers have very
//! uneven requests. It ends early when the service falls idle. Requests that happen to find the service half
//! idle count as well, so at night no dip is needed.
//!
//! A window whose mean is far *below* the baseline also corrects it, but only if the next one says the same, and if
//! what is in flight says it too. After a sudden rush, and after each step up, the short requests complete first, and
//! such a window's mean is far too low: taken for the baseline at once, it makes the law see a queue that is not
//! there, and hold the limit at a fraction of what the service can do. For the same reason the first baseline is what
//! was in flight, divided by the rate.
//!
//! # How it recovers
//! - It remembers the **knee**, how many requests keep the service busy (`knee.rs`).
//! - If the limit is to be cut although less than the knee is at work, that is in **doubt**: a service that has become
//!   slower looks like one with a queue. A dip decides before anything is cut (`doubt.rs`).
//! - When nothing completes for long, the service stood still (`stall.rs`). What was in flight then took long, and that is
//!   no queue.
//! - While there is room, the limit grows to twice the knee and a little more, not further.
//!
//! # What it cannot do
//! - Several limiters in front of one service do not know of each other. None of them can drain by its own dip the queue
//!   that the others hold up, each takes it for the baseline, and the limits drift up. In front of 64 workers of 50 ms, at
//!   twice their capacity, one limiter settles at 74, two at 118 together, four at 295 and eight at 1198, which is 42, 76,
//!   214 and 784 ms for half of the requests. Give each a `max` (`.limits(…)`) of its share of what the service can do, or
//!   use [`Aimd`](super::aimd::Aimd), which goes by failures.
//! - A request that waits for news for half a minute and needs no worker looks like slow work. Let such requests
//!   [pass by](crate::bypass).
//! - A service that gets slower with each request although none waits (a contended lock) looks like one
//!   with a queue.

mod baseline;
mod doubt;
mod knee;
mod stall;
#[cfg(all(test, not(backpressure_loom)))]
mod tests;

use std::time::Duration;

use self::{
    baseline::{Baseline, FEWEST, Mean, Verdict},
    doubt::Doubt,
    knee::Knee,
    stall::Stall,
};
use super::{
    limit::{Bounds, Limit, Moved, Outcome, Report, Sample, Window, seconds},
    netflix_vegas::NetflixVegas,
};

/// A window is at least this long: shorter ones would follow the scheduler's noise, not the load.
const SHORTEST_WINDOW: f64 = 0.1;
/// A window that is this old closes with [`FEWEST`] samples, so that a low rate and a limit far above
/// what is used adapt too. With 5 s, a service that loses three of its four workers does 4 points less of what it can
/// until half a minute later. With 2 s, four workers with bimodal requests do 1.5 points less at twice their capacity.
const LONGEST_WINDOW: f64 = 2.5;
/// A window has this many samples for each that may be in flight: four round trips of a full service.
const WINDOW_ROUNDS: f64 = 4.0;
/// The same while the limit grows: the estimate need not be good, only soon.
const RAMP_ROUNDS: f64 = 1.5;

/// α and β: a request or so that waits, so that no server is ever idle. Times 1 + ν, where ν is the squared
/// coefficient of variation of service times.
const ALPHA: f64 = 0.7;
const BETA: f64 = 1.0;
/// … a share of the limit: an error of the baseline shows as a queue in proportion to it.
const ALPHA_SHARE: f64 = 0.04;
const BETA_SHARE: f64 = 0.08;
/// … and standard errors of the queue's estimate.
const ALPHA_ERRORS: f64 = 0.5;
const BETA_ERRORS: f64 = 1.0;

/// The first step up is 2 to this power: from idle to loaded in a few windows.
const FIRST_RUN: u32 = 3;
/// Steps double no further than this; half of the limit is the bound long before.
const LONGEST_RUN: u32 = 16;
/// A step up is at most this share of the limit,
const MOST_UP: f64 = 0.5;
/// and one down this share of what the queue is too long, damped because the window is a mean of the past,
const GAIN: f64 = 0.5;
/// at most this share of the limit.
const MOST_DOWN: f64 = 0.3;
/// With less than this share of the limit in use, the service was not tried, and the limit stays.
const USED: f64 = 0.5;

/// A dip's depth: so shallow that it costs nothing, so deep that a baseline a third too high is found out.
const DIP: f64 = 0.75;
/// The depth of one that is to find what a shallow one would not: after one that has just found the baseline too high,
/// and in doubt. When half of the workers are gone, three quarters of the knee still wait.
const NEXT_DIP: f64 = 0.5;
/// A dip collects this many samples for each that may be in flight in it (with 4, one run in eight leaves a service of
/// four workers that slows down under load below 90 %),
const DIP_ROUNDS: f64 = 5.0;
/// but no fewer than this, all times ν,
const FEWEST_IN_DIP: f64 = 32.0;
/// and is at least this long.
const SHORTEST_DIP: f64 = 0.025;
/// With the fewest samples that a mean is taken of, it ends after so many seconds times ν, or so many baselines: it may
/// hold the service at a part of what it can do.
const LONGEST_DIP: (f64, f64) = (0.5, 8.0);
/// A dip in which next to nothing completes ends after so many seconds, and two baselines.
const GIVEN_UP: f64 = 20.0;
/// Windows between dips: the first when the baseline is new, doubling while it is confirmed.
const DIP_EVERY: (f64, f64) = (8.0, 32.0);
/// For so many windows after a dip, requests that were admitted in it still complete and count for it.
const STRAGGLERS: f64 = 4.0;

/// A request that takes longer than so many baselines counts as that long: one that hangs is no queue.
/// Not less, because a mix of fast and slow requests is no outlier.
const LONGEST_RTT: f64 = 30.0;

/// More failures than this share shrink the limit: some fail on any day.
const TOLERATED: f64 = 0.1;
/// By this share of their share.
const FAILURE_GAIN: f64 = 0.5;

/// The default law: windowed Vegas, with a baseline that is verified by short dips of the limit.
///
/// See [`adaptive_concurrency`](crate::adaptive_concurrency) for what it does, and
/// [`Vegas::netflix`] for the law as Netflix published it.
// In this order, so that what a success writes is in one cache line, as long as it is no new peak: the threads of a
// server take it from each other.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Vegas {
    /// Requests that were admitted with at most `gate` in flight: none of them had to wait.
    unqueued: Mean,
    window: Collected,
    gate: f64,
    /// Samples to pass over: they were admitted in the dip that is over.
    skip: u64,
    limit: f64,
    /// How many samples the window needs: what [`Vegas::window_needs`] was when it was opened.
    window_needs: f64,
    phase: Phase,
    dipping: bool,
    /// A dip has ended, and what it measured has not been judged yet.
    dipped: bool,
    /// The last window was much faster than the baseline. That is confirmed by the next one, or not.
    low: bool,
    /// Steps up in a row.
    run: u32,
    base: Baseline,
    /// The last one, which goes on while it is `dipping`.
    dip: Option<Dip>,
    bounds: Bounds,
    /// Windows since the baseline was last verified,
    since: f64,
    /// and after how many it is verified again.
    interval: f64,
    stall: Stall,
    knee: Knee,
    /// The dip that goes on is one in doubt.
    doubt: Option<Doubt>,
    /// The limit when there last was no queue that was too long.
    calm: f64,
    report: Report,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has completed.
    New,
    /// In the first window, of which the short requests complete first: it is not judged.
    Warm,
    Running,
}

#[derive(Clone, Copy, Debug)]
struct Dip {
    /// What it holds the limit at.
    level: f64,
    since: f64,
    /// When a request last completed.
    last: f64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Collected {
    rtt: Mean,
    in_flight: f64,
    start: f64,
    failures: f64,
    peak: usize,
}

impl Collected {
    fn from(start: f64) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }
}

impl Vegas {
    /// Vegas exactly as Netflix' concurrency-limits runs it, with its vectors and its failures: for
    /// comparison, and for those who move a tuned service over. It wants to be [`Windowed`].
    ///
    /// [`Windowed`]: super::windowed::Windowed
    pub fn netflix() -> NetflixVegas {
        NetflixVegas::default()
    }

    /// Starts with `bounds.initial`.
    pub fn new(bounds: Bounds) -> Self {
        let limit = bounds.initial() as f64;
        let mut vegas = Self {
            bounds,
            limit,
            phase: Phase::New,
            base: Baseline::default(),
            window: Collected::default(),
            window_needs: 0.0,
            unqueued: Mean::default(),
            gate: limit / 2.0,
            dip: None,
            dipping: false,
            dipped: false,
            skip: 0,
            run: FIRST_RUN,
            low: false,
            since: 0.0,
            interval: DIP_EVERY.0,
            stall: Stall::default(),
            knee: Knee::default(),
            doubt: None,
            calm: limit,
            report: Report::default(),
        };
        vegas.window_needs = vegas.window_needs();
        vegas
    }

    /// How many samples a window needs with the limit and the baseline as they are.
    fn window_needs(&self) -> f64 {
        let ramps = self.run > 0 && self.base.is_known();
        let rounds = if ramps { RAMP_ROUNDS } else { WINDOW_ROUNDS };
        (rounds * self.limit).max(FEWEST) * self.base.variation().max(1.0)
    }

    /// How many samples a measurement of the baseline needs, of requests that were let in with at most `level` in flight.
    fn dip_needs(&self, rounds: f64, level: f64) -> f64 {
        (rounds * level).max(FEWEST_IN_DIP) * self.base.variation()
    }

    /// The middle between α and β, as far as it is known without a window.
    fn middle(&self) -> f64 {
        (ALPHA + BETA) / 2.0 * (1.0 + self.base.variation())
            + (ALPHA_SHARE + BETA_SHARE) / 2.0 * self.limit
    }

    /// A whole number, and no less than the limit may be.
    fn floor(&self, level: f64) -> f64 {
        level.floor().max(self.bounds.min() as f64)
    }

    fn move_to(&mut self, limit: f64, why: Moved) {
        let limit = self.bounds.clamp(limit);
        if limit != self.limit {
            self.limit = limit;
            self.report.moved = Some(why);
        }
    }

    #[inline]
    fn collect(&mut self, now: f64, rtt: f64, in_flight: usize) {
        let rtt = match self.base.is_known() {
            true => rtt.min(LONGEST_RTT * self.base.mean),
            false => rtt,
        };
        if in_flight as f64 <= self.gate {
            self.unqueued.add(rtt);
        }
        if !self.dipping && !self.skips(now) {
            self.window.rtt.add(rtt);
            self.window.in_flight += in_flight as f64;
            if in_flight > self.window.peak {
                self.window.peak = in_flight;
            }
        }
    }

    /// Whether a request is passed over that completes after a dip, because it was admitted in it. The
    /// window begins after the last of them.
    #[inline]
    fn skips(&mut self, now: f64) -> bool {
        let skips = self.skip > 0;
        if skips {
            self.skip -= 1;
            self.window = Collected::from(now);
        }
        skips
    }

    /// Ends the dip when enough was measured, or when it cannot be.
    #[cold]
    fn watch(&mut self, dip: Dip, now: f64) {
        self.dip = Some(Dip { last: now, ..dip });
        let lasted = now - dip.since;
        let (measured, needs) = (self.unqueued.n, self.dip_needs(DIP_ROUNDS, dip.level));
        if measured >= needs && lasted >= SHORTEST_DIP
            || self.window.failures > needs
            || measured >= FEWEST && lasted > self.longest_dip()
            || self.gives_up(dip, now)
        {
            self.skip = dip.level as u64;
            self.end_dip(dip, now);
        }
    }

    fn longest_dip(&self) -> f64 {
        (LONGEST_DIP.0 * self.base.variation()).max(LONGEST_DIP.1 * self.base.mean)
    }

    /// Where nothing completes that says anything.
    fn gives_up(&self, dip: Dip, now: f64) -> bool {
        now - dip.since > GIVEN_UP + 2.0 * self.base.mean
    }

    fn end_dip(&mut self, dip: Dip, now: f64) {
        self.dipping = false;
        self.dipped = true;
        self.since = 0.0;
        self.window = Collected::from(now);
        if dip.level < self.limit {
            self.report.moved = Some(Moved::ProbeOver);
        }
    }

    fn start_dip(&mut self, now: f64, level: f64) {
        self.dip = Some(Dip {
            level,
            since: now,
            last: now,
        });
        self.dipping = true;
        self.gate = level;
        if level < self.limit {
            self.report.moved = Some(Moved::Probe);
        }
    }

    /// Judges the window.
    #[cold]
    fn close(&mut self, now: f64) {
        let window = std::mem::replace(&mut self.window, Collected::from(now));
        let lasted = (now - window.start).max(1e-9);
        let n = window.rtt.n + window.failures;
        self.report.window = Some(Window {
            duration: seconds(lasted),
            successes: window.rtt.n as u64,
            failures: window.failures as u64,
            ..Window::default()
        });
        if window.failures > TOLERATED * n {
            let share = window.failures / n;
            self.move_to(self.limit * (1.0 - FAILURE_GAIN * share), Moved::Failures);
            self.run = 0;
        } else if self.phase == Phase::Warm {
            self.phase = Phase::Running;
            self.unqueued = Mean::default();
        } else {
            self.judge(now, lasted, &window);
        }
        self.window_needs = self.window_needs();
    }

    fn judge(&mut self, now: f64, lasted: f64, window: &Collected) {
        let (rate, rtt) = (window.rtt.n / lasted, window.rtt.mean());
        let in_flight = window.in_flight / window.rtt.n;
        // Little's law counts requests that have not completed.
        let fell = self.verify(&window.rtt, ((in_flight - 1.0) / rate).max(rtt));
        self.stall.window(rate, self.base.variation());

        let queue = rate * (rtt - self.base.mean);
        let n = window.rtt.n + window.failures;
        let error = rate * (self.base.variance * (1.0 / n + self.base.error)).sqrt();
        let waits = 1.0 + self.base.variation();
        let alpha = ALPHA * waits + ALPHA_SHARE * self.limit + ALPHA_ERRORS * error;
        let beta = BETA * waits + BETA_SHARE * self.limit + BETA_ERRORS * error;
        let middle = (alpha + beta) / 2.0;

        // What is at work, by the rate, and by what does not wait.
        let serving = (rate * self.base.mean).min(self.limit);
        let used = in_flight - queue.max(0.0);
        // What is in flight when nothing waits: the limit without the queue. Right after a stall the queue seems longer
        // than the limit, so it is no less than what the rate says is at work.
        let busy = (self.limit - queue.clamp(0.0, self.limit)).max(serving);
        // No deeper than a dip in doubt: in a dip to one, a single request that takes seconds shuts the service off.
        let half_the_knee = NEXT_DIP * self.knee.at.min(in_flight);
        let level = self.floor((DIP * busy.min(in_flight)).max(half_the_knee));
        self.gate = match self.dip {
            Some(dip) if self.since < STRAGGLERS => level.max(dip.level),
            _ => level,
        };
        if let Some(reported) = &mut self.report.window {
            reported.mean_rtt = seconds(rtt);
            reported.queued = queue.max(0.0);
        }
        if queue <= beta {
            self.calm = self.limit;
        }

        if (window.peak as f64) < USED * self.limit {
            self.run = FIRST_RUN; // the service was not tried
            self.knee.at_least(used);
            return;
        }
        let mut dip_to = level;
        if fell {
            // What was taken for the service's own time was its queue: back to where none is.
            self.run = 0;
            dip_to = self.floor(NEXT_DIP * busy);
            self.knee.at = self.knee.at.min(busy);
            self.move_to((busy + middle).min(self.limit), Moved::Queue);
        } else if queue < alpha {
            self.knee.at_least(used);
            let step = f64::from(1_u32 << self.run.min(LONGEST_RUN));
            let step = step.min(MOST_UP * self.limit).max(1.0);
            self.run += 1;
            let most = self.knee.idle_limit(self.base.variation());
            self.move_to((self.limit + step).min(most.max(self.limit)), Moved::Room);
        } else if queue <= beta {
            self.run = 0;
            self.knee.follow(serving);
        } else {
            self.run = 0;
            if self.doubts(n, lasted, in_flight) {
                return self.start_doubt(now, self.knee.at.min(self.limit), rate, in_flight);
            }
            // It does not fall while the queue is too long, or it would follow the limit down.
            if serving > self.knee.at {
                self.knee.follow(serving);
            }
            let step = (GAIN * (queue - middle)).min(MOST_DOWN * self.limit);
            self.move_to(self.limit - step, Moved::Queue);
        }
        self.since += 1.0;
        let unverified = !self.base.is_verified() && queue >= alpha;
        if unverified
            || self.since >= self.interval
            || fell && self.dip.is_some_and(|dip| dip.level > 1.0)
        {
            self.start_dip(now, dip_to);
        }
    }

    /// Brings the baseline up to date by a window in which requests took `rtt`. Says whether a dip has found it to be
    /// much too high.
    fn verify(&mut self, window: &Mean, rtt: f64) -> bool {
        if !self.base.is_known() {
            self.base.start_with(window, rtt);
        }
        let low = self.base.is_above(rtt, window.n);
        if low && self.low {
            // Under load it is faster than it was thought to be without.
            self.base.lower_to(window);
            self.interval = DIP_EVERY.0;
            self.unqueued = Mean::default();
        }
        self.low = low && !self.low;
        let dipped = std::mem::take(&mut self.dipped);
        let needs = match dipped {
            true => FEWEST,
            false => self.dip_needs(DIP_ROUNDS, self.gate),
        };
        self.unqueued.n >= needs && self.rebase() == Verdict::Fell && dipped
    }

    /// Takes what was measured into the baseline.
    fn rebase(&mut self) -> Verdict {
        let verdict = self.base.take_in(&std::mem::take(&mut self.unqueued));
        self.interval = match verdict {
            Verdict::Confirmed => (2.0 * self.interval).min(DIP_EVERY.1),
            Verdict::InDoubt | Verdict::Rose | Verdict::Fell => DIP_EVERY.0,
        };
        self.since = 0.0;
        verdict
    }
}

impl Default for Vegas {
    /// From 1 to 1000, starting with 20.
    fn default() -> Self {
        Self::new(Bounds::new(1, 20, 1000))
    }
}

impl Limit for Vegas {
    #[inline]
    fn limit(&self) -> usize {
        let limit = match self.dip {
            Some(dip) if self.dipping => self.limit.min(dip.level),
            _ => self.limit,
        };
        (limit as usize).max(1)
    }

    #[inline(always)] // into `Governs::learn`, which is all that is called of a boxed law
    fn sample(&mut self, sample: &Sample) {
        let (now, rtt) = (sample.now.as_secs_f64(), sample.rtt.as_secs_f64());
        if self.phase == Phase::New {
            self.phase = Phase::Warm;
            self.window.start = now - rtt;
        }
        if self.stall.ends(now, rtt) && self.dipping {
            if let Some(doubt) = &mut self.doubt {
                doubt.begin_again(now);
            }
            return;
        }
        if let (true, Some(_), Some(dip)) = (self.dipping, &self.doubt, self.dip) {
            return self.watch_doubt(dip, now, sample.outcome == Outcome::Failure);
        }
        if !self.dipping && self.stall.held_up(now, rtt) {
            self.window = Collected::from(now);
            return;
        }
        if sample.outcome == Outcome::Success {
            self.collect(now, rtt, sample.in_flight);
        } else if sample.outcome != Outcome::Failure {
            return;
        } else if self.dipping || !self.skips(now) {
            self.window.failures += 1.0;
        }
        if let Some(dip) = self.dip.filter(|_| self.dipping) {
            return self.watch(dip, now);
        }
        let n = self.window.rtt.n + self.window.failures;
        let lasted = now - self.window.start;
        if lasted >= SHORTEST_WINDOW
            && (n >= self.window_needs || lasted >= LONGEST_WINDOW && n >= FEWEST)
        {
            self.close(now);
        }
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn restart(&mut self, bounds: Bounds) {
        *self = Self::new(bounds);
    }

    fn is_probing(&self) -> bool {
        self.dipping
    }

    fn admitted(&mut self, now: Duration, in_flight: usize) {
        let Some(dip) = self.dip.filter(|_| self.dipping) else {
            return;
        };
        let now = now.as_secs_f64();
        if let Some(doubt) = &mut self.doubt {
            doubt.admitted(now, in_flight);
        }
        // With one or two in flight a service is idle all the time, between one request and the next.
        let idle = in_flight <= 1 && now - dip.last >= SHORTEST_WINDOW;
        if idle || self.gives_up(dip, now) {
            match self.doubt {
                Some(_) => self.end_doubt(dip, now),
                None => self.end_dip(dip, now),
            }
        }
    }

    fn report(&self) -> Report {
        Report {
            baseline: self.base.is_known().then(|| seconds(self.base.mean)),
            ..self.report
        }
    }
}
