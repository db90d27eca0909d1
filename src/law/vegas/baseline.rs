//! How long a request takes that does not have to wait, and how sure that is.

/// ν, the squared coefficient of variation of service times, is kept within this.
const VARIATION: (f64, f64) = (0.5, 4.0);
/// A baseline that is off by more than this share of it, and
const SIGNIFICANT: f64 = 0.2;
/// by more than so many standard errors, has changed; by less, it is averaged
const SIGNIFICANT_ERRORS: f64 = 3.0;
/// with this weight.
const WEIGHT: f64 = 0.2;
/// One that was not measured in a dip has changed if it is too high by this share: it was taken under load.
const UNVERIFIED: f64 = 0.1;
/// A baseline with a standard error above this share of it is in doubt.
const VAGUE: f64 = 0.08;

/// The fewest samples that a mean is taken of.
pub(super) const FEWEST: f64 = 16.0;

/// Samples of which the mean and the variance are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    pub(super) n: f64,
    pub(super) sum: f64,
    pub(super) squares: f64,
}

impl Mean {
    pub(super) fn add(&mut self, x: f64) {
        self.n += 1.0;
        self.sum += x;
        self.squares += x * x;
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.n
    }

    fn variance(&self) -> f64 {
        let mean = self.mean();
        (self.squares / self.n - mean * mean).max(0.0)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Baseline {
    /// 0 is unknown.
    pub(super) mean: f64,
    pub(super) variance: f64,
    /// How many measurements it is the average of.
    pub(super) batches: f64,
    /// The square of its standard error, in units of the variance: 1 / n for a mean of n samples.
    pub(super) error: f64,
}

/// What a measurement made of the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Confirmed,
    /// It is off by much, but that may be chance; or all that is known rests on few samples.
    InDoubt,
    Rose,
    Fell,
}

impl Baseline {
    pub(super) fn is_known(&self) -> bool {
        self.mean > 0.0
    }

    /// ν: the squared coefficient of variation.
    pub(super) fn variation(&self) -> f64 {
        self.full_variation().min(VARIATION.1)
    }

    /// The same, however large it is.
    pub(super) fn full_variation(&self) -> f64 {
        match self.is_known() {
            true => (self.variance / (self.mean * self.mean)).max(VARIATION.0),
            false => 1.0,
        }
    }

    /// Whether it was measured while nothing waited, and not only taken from a window.
    pub(super) fn is_verified(&self) -> bool {
        self.batches > 0.0
    }

    /// Takes the first window, in which requests took `rtt`: more than its mean if long ones have not completed.
    pub(super) fn start_with(&mut self, window: &Mean, rtt: f64) {
        self.set(window);
        self.variance *= (rtt / self.mean).powi(2);
        self.mean = rtt;
    }

    fn set(&mut self, measured: &Mean) {
        self.mean = measured.mean();
        self.variance = measured.variance();
        self.error = 1.0 / measured.n;
    }

    /// Whether it is much too high for a mean of so many.
    pub(super) fn is_above(&self, mean: f64, n: f64) -> bool {
        self.is_significant(self.mean - mean, self.variance / n)
    }

    /// Takes the window's mean in its place. How much requests differ, a loaded window does not tell.
    pub(super) fn lower_to(&mut self, window: &Mean) {
        self.mean = window.mean();
        self.error = 1.0 / window.n;
        self.batches = 1.0;
    }

    /// Takes a mean of so many in its place, and says what that made of it. How much requests differ, relative to the
    /// mean, stays.
    pub(super) fn replace(&mut self, mean: f64, n: f64) -> Verdict {
        let off = mean / self.mean - 1.0;
        self.variance *= (mean / self.mean).powi(2);
        self.mean = mean;
        self.error = 1.0 / n;
        self.batches = 1.0;
        match off {
            off if off > SIGNIFICANT => Verdict::Rose,
            off if off < -SIGNIFICANT => Verdict::Fell,
            _ => Verdict::Confirmed,
        }
    }

    /// Takes a measurement in.
    pub(super) fn take_in(&mut self, measured: &Mean) -> Verdict {
        let (mean, variance) = (measured.mean(), measured.variance());
        let off = mean - self.mean;
        let changed = self.is_significant(off.abs(), self.variance.max(variance) / measured.n);
        if changed || !self.is_verified() && off < -UNVERIFIED * self.mean {
            self.set(measured);
            self.batches = 1.0;
            return if off < 0.0 {
                Verdict::Fell
            } else {
                Verdict::Rose
            };
        }
        self.batches += 1.0;
        let weight = WEIGHT.max(1.0 / self.batches);
        let kept = 1.0 - weight;
        self.mean += weight * off;
        self.variance += weight * (variance - self.variance);
        self.error = kept * kept * self.error + weight * weight / measured.n;
        let suspect = off.abs() > SIGNIFICANT * self.mean;
        let vague = self.variance * self.error > (VAGUE * self.mean).powi(2);
        match suspect || vague {
            true => Verdict::InDoubt,
            false => Verdict::Confirmed,
        }
    }

    /// Whether it is off by that much: more than matters, and more than chance explains where what it is
    /// compared with has this variance.
    fn is_significant(&self, off: f64, variance: f64) -> bool {
        off > SIGNIFICANT * self.mean && off > SIGNIFICANT_ERRORS * variance.sqrt()
    }
}
