//! The slow loop: how many requests may be in flight.

use super::Settings;

/// A window is judged when so many requests came in it: with 20, two over the target are more than 5 %.
const ENOUGH: u64 = 20;

/// A tenth of `interval`; it grows up to `interval` until enough requests came.
const WINDOWS_PER_INTERVAL: u64 = 10;

/// After a long silence at most so many intervals are gone through.
const MOST_CATCHING_UP: u64 = 64;

/// After a narrowing that did not help none is tried for so many intervals; each time twice as many.
const SHORTEST_HOLD: u64 = 12;
const LONGEST_HOLD: u64 = 192;

/// `healthy` counts sixteenths, so that its mean moves by less than one request.
const SIXTEENTHS: u64 = 16;

#[derive(Debug)]
#[repr(C)] // what each request touches is together
pub(super) struct Width {
    limit: u64,
    window_start: u64,
    window: Window,
    /// How many requests had completed when this window began.
    completed: u64,
    /// Windows with the same verdict, one after the other.
    streak: Streak,
    verdict: Option<Verdict>,
    /// Since when there is a streak, or since its last move.
    since: u64,
    trial: Option<Trial>,
    hold_until: u64,
    /// How many intervals the next hold lasts.
    hold: u64,
    /// How many are in flight at the peak of a window in good times: a moving mean, in sixteenths.
    healthy: u64,
    last: Window,
    narrowings: u64,
    widenings: u64,
    undone: u64,
}

/// What is seen in a window.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)] // what each request touches is together
pub(super) struct Window {
    pub(super) seen: u64,
    /// Older than the target.
    over: u64,
    /// Of all ages.
    sum: u64,
    /// The most in flight.
    peak: u64,
    completed: u64,
    /// Refused at the limit.
    full: u64,
    /// Refused for their age.
    aged: u64,
    /// Requests waited for something else than our limit.
    waited_elsewhere: bool,
}

impl Window {
    /// Whether the p95 is over the target, exactly.
    pub(super) fn is_over(&self) -> bool {
        20 * self.over > self.seen
    }

    pub(super) fn share_over(&self) -> f64 {
        self.over as f64 / self.seen.max(1) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Over,
    Under,
    /// It says nothing about our limit.
    Hold,
}

/// Sums over windows.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    windows: u64,
    peaks: u64,
    seen: u64,
    sum: u64,
    completed: u64,
    full: u64,
    aged: u64,
}

impl Streak {
    fn add(&mut self, window: &Window) {
        self.windows += 1;
        self.peaks += window.peak;
        self.seen += window.seen;
        self.sum = self.sum.saturating_add(window.sum);
        self.completed += window.completed;
        self.full += window.full;
        self.aged += window.aged;
    }
}

/// How things were when the limit was narrowed first: what the narrowing is judged by.
#[derive(Clone, Copy, Debug)]
struct Trial {
    limit: u64,
    before: Streak,
    lasted: u64,
}

impl Trial {
    /// Requests are not a tenth younger than they were.
    fn no_younger(&self, now: &Streak) -> bool {
        let (sum, seen) = (u128::from(now.sum), u128::from(now.seen));
        let before = &self.before;
        10 * sum * u128::from(before.seen) > 9 * u128::from(before.sum) * seen
    }

    /// A twentieth less gets done, and it is the limit that refuses, not the fast loop.
    fn slower(&self, now: &Streak, lasted: u64) -> bool {
        let (completed, lasted) = (u128::from(now.completed), u128::from(lasted));
        let before = u128::from(self.before.completed);
        100 * completed * u128::from(self.lasted) < 95 * before * lasted && now.full >= now.aged
    }
}

impl Width {
    pub(super) fn new(settings: &Settings, now: u64) -> Self {
        Self {
            limit: settings.max,
            window: Window::default(),
            window_start: now,
            completed: 0,
            streak: Streak::default(),
            verdict: None,
            since: now,
            trial: None,
            hold_until: 0,
            hold: SHORTEST_HOLD,
            healthy: 0,
            last: Window::default(),
            narrowings: 0,
            widenings: 0,
            undone: 0,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// A limit that was not narrowed is not narrow with other settings either; one that was stays, as far as
    /// they let it.
    pub(super) fn rebound(&mut self, old: &Settings, new: &Settings) {
        let rebound = |limit: u64| match limit {
            limit if limit >= old.max => new.max,
            limit => limit.clamp(new.min, new.max),
        };
        self.limit = rebound(self.limit);
        if let Some(trial) = &mut self.trial {
            trial.limit = rebound(trial.limit);
        }
    }

    /// The last window that was closed.
    pub(super) fn last(&self) -> &Window {
        &self.last
    }

    /// How often the limit was narrowed and widened, and a narrowing undone.
    pub(super) fn moves(&self) -> (u64, u64, u64) {
        (self.narrowings, self.widenings, self.undone)
    }

    pub(super) fn healthy(&self) -> u64 {
        self.healthy / SIXTEENTHS
    }

    #[inline]
    pub(super) fn note(&mut self, age: u64, over: bool, in_flight: u64) {
        let window = &mut self.window;
        window.seen += 1;
        window.over += u64::from(over);
        window.sum = window.sum.saturating_add(age);
        window.peak = window.peak.max(in_flight.saturating_add(1).min(self.limit));
    }

    /// As many came that had not waited, and none of them found more in flight than were before.
    pub(super) fn note_calm(&mut self, many: u64) {
        self.window.seen += many;
    }

    /// The most in flight in the window that is open.
    pub(super) fn peak(&self) -> u64 {
        self.window.peak
    }

    pub(super) fn note_aged(&mut self) {
        self.window.aged += 1;
    }

    pub(super) fn note_full(&mut self) {
        self.window.full += 1;
    }

    /// A request waited for something else than our limit, for which none ever waits.
    pub(super) fn waited_elsewhere(&mut self) {
        self.window.waited_elsewhere = true;
    }

    /// Until when the window is not over, however many come.
    #[inline]
    pub(super) fn lasts_until(&self, settings: &Settings) -> u64 {
        let shortest = settings.interval / WINDOWS_PER_INTERVAL;
        self.window_start.saturating_add(shortest)
    }

    /// How long the window was that is over, if it is.
    #[inline]
    pub(super) fn due(&self, settings: &Settings, now: u64) -> Option<u64> {
        let interval = settings.interval;
        let lasted = now.saturating_sub(self.window_start);
        let enough = self.window.seen >= ENOUGH && now >= self.lasts_until(settings);
        (enough || lasted >= interval).then(|| lasted.min(interval))
    }

    /// Closes the windows that are over, and shows each.
    pub(super) fn roll(
        &mut self,
        settings: &Settings,
        now: u64,
        completed: u64,
        mut closes: impl FnMut(&Window),
    ) {
        let earliest = now.saturating_sub(settings.interval.saturating_mul(MOST_CATCHING_UP));
        self.window_start = self.window_start.max(earliest);
        while let Some(lasted) = self.due(settings, now) {
            self.window.completed = completed.saturating_sub(self.completed);
            self.completed = completed;
            self.window_start += lasted;
            self.last = std::mem::take(&mut self.window);
            closes(&self.last);
            self.judge(settings, self.window_start, lasted);
        }
    }

    /// Judges the last window, which ended at `now`.
    fn judge(&mut self, settings: &Settings, now: u64, lasted: u64) {
        let window = self.last;
        let enough = window.seen >= ENOUGH;
        let verdict = if window.waited_elsewhere {
            Verdict::Hold
        } else if enough && window.is_over() {
            Verdict::Over
        } else {
            Verdict::Under
        };
        if verdict == Verdict::Under && enough {
            let peak = window.peak * SIXTEENTHS;
            self.healthy = match peak >= self.healthy {
                true => self.healthy + (peak - self.healthy) / 4,
                false => self.healthy - (self.healthy - peak) / 4,
            };
        }
        if self.verdict != Some(verdict) {
            self.verdict = Some(verdict);
            self.since = now - lasted;
            self.streak = Streak::default();
        }
        self.streak.add(&window);
        if verdict == Verdict::Hold || now - self.since < settings.interval {
            return;
        }
        match verdict {
            Verdict::Over => self.narrow(settings, now),
            _ => self.widen(settings),
        }
        self.since = now;
        self.streak = Streak::default();
    }

    fn narrow(&mut self, settings: &Settings, now: u64) {
        let lasted = now - self.since;
        // What really is in flight: a ceiling that nobody uses does not bite for long.
        let base = self.limit.min(self.streak.peaks / self.streak.windows);
        let at_floor = base <= settings.min;
        if let Some(trial) = self.trial {
            let in_vain =
                trial.no_younger(&self.streak) && (at_floor || trial.slower(&self.streak, lasted));
            if in_vain {
                self.limit = trial.limit;
                self.trial = None;
                self.verdict = Some(Verdict::Hold);
                self.hold_until = now.saturating_add(settings.interval.saturating_mul(self.hold));
                self.hold = (2 * self.hold).min(LONGEST_HOLD);
                self.undone += 1;
                return;
            }
        }
        if now < self.hold_until || at_floor {
            return;
        }
        // Later narrowings are judged by how things were before the first.
        self.trial.get_or_insert(Trial {
            limit: self.limit,
            before: self.streak,
            lasted,
        });
        self.limit = (base * 3 / 4).min(base - 1).max(settings.min);
        self.narrowings += 1;
    }

    fn widen(&mut self, settings: &Settings) {
        if self.trial.take().is_some() {
            self.hold = SHORTEST_HOLD;
        }
        let wider = (self.limit * 5 / 4).max(self.limit + 1).min(settings.max);
        self.widenings += u64::from(wider > self.limit);
        self.limit = wider;
    }
}

#[cfg(all(test, backpressure_loom))]
impl Width {
    /// In the last window that was closed, and in the one that is open.
    pub(super) fn seen_of_late(&self) -> u64 {
        self.last.seen + self.window.seen
    }
}

#[cfg(test)]
impl Width {
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }
}

#[cfg(all(test, not(backpressure_loom)))]
impl Window {
    pub(super) fn of(seen: u64, over: u64) -> Self {
        Self {
            seen,
            over,
            ..Self::default()
        }
    }
}

#[cfg(all(test, not(backpressure_loom)))]
impl Width {
    /// In the window that is open.
    pub(super) fn seen(&self) -> u64 {
        self.window.seen
    }

    pub(super) fn moves_and_limit(&self) -> ((u64, u64, u64), u64) {
        (self.moves(), self.limit)
    }
}
