//! Vegas as Netflix' concurrency-limits runs it, sample by sample.
//!
//! The baseline is the smallest round-trip time seen since the last probe; the queue is estimated as
//! `L · (1 − base / rtt)`. Every `probe_multiplier · L` samples or so (a jitter from a seed keeps many
//! limiters apart) the next sample is taken for the baseline, whatever it is.
//!
//! It is here to be compared with, and for services that were tuned to it. What goes wrong with it: fast
//! errors that count as successes pull the limit down, a baseline taken under load lets it drift up, and
//! service times that vary make it collapse unless it is [`Windowed`](super::windowed::Windowed).

use super::limit::{Bounds, Limit, Moved, Outcome, Report, Sample, seconds};

/// Vegas as Netflix' concurrency-limits runs it. Made by [`Vegas::netflix`](super::vegas::Vegas::netflix).
#[derive(Clone, Debug)]
pub struct NetflixVegas {
    bounds: Bounds,
    limit: f64,
    alpha: Option<f64>,
    beta: Option<f64>,
    /// The limit is lowered to this share of it instead of by log₁₀.
    decrease_to: Option<f64>,
    smoothing: f64,
    probe_multiplier: f64,
    probe_gate: Option<f64>,
    random: u64,
    jitter: f64,
    samples: u64,
    base: f64,
    moved: Option<Moved>,
}

impl Default for NetflixVegas {
    fn default() -> Self {
        let bounds = Bounds::new(1, 20, 1000);
        Self {
            bounds,
            limit: bounds.initial() as f64,
            alpha: None,
            beta: None,
            decrease_to: None,
            smoothing: 1.0,
            probe_multiplier: 30.0,
            probe_gate: None,
            random: 0,
            jitter: 0.0,
            samples: 0,
            base: 0.0,
            moved: None,
        }
        .seed(0)
    }
}

/// Settings, for before it is used.
impl NetflixVegas {
    /// Below this estimated queue the limit grows. Default: 3 · log₁₀ of the limit.
    pub fn alpha(mut self, alpha: usize) -> Self {
        self.alpha = Some(alpha as f64);
        self
    }

    /// Above this estimated queue the limit shrinks. Default: 6 · log₁₀ of the limit.
    pub fn beta(mut self, beta: usize) -> Self {
        self.beta = Some(beta as f64);
        self
    }

    /// The limit shrinks to this share of it, instead of by log₁₀ of it.
    ///
    /// # Panics
    /// Unless 0 ≤ `share` < 1.
    pub fn decrease_to(mut self, share: f64) -> Self {
        assert!(
            (0.0..1.0).contains(&share),
            "decrease_to must be at least 0 and below 1"
        );
        self.decrease_to = Some(share);
        self
    }

    /// How much of each step is taken. Default: 1.
    ///
    /// # Panics
    /// Unless 0 < `smoothing` ≤ 1.
    pub fn smoothing(mut self, smoothing: f64) -> Self {
        assert!(
            smoothing > 0.0 && smoothing <= 1.0,
            "smoothing must be above 0 and at most 1"
        );
        self.smoothing = smoothing;
        self
    }

    /// The baseline is taken anew after about so many samples for each that may be in flight. 30 unless
    /// set.
    pub fn probe_multiplier(mut self, multiplier: u32) -> Self {
        self.probe_multiplier = f64::from(multiplier);
        self
    }

    /// The baseline is only taken anew while at most this share of the limit is in flight, as OpenSearch
    /// does. Without it, it is taken under any load.
    pub fn probe_gate(mut self, share: f64) -> Self {
        self.probe_gate = Some(share);
        self
    }

    /// The seed of the jitter between probes. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.random = seed;
        self.draw_jitter();
        self
    }

    /// From [0.5, 1), by SplitMix64.
    fn draw_jitter(&mut self) {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.random;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        self.jitter = 0.5 + (z >> 11) as f64 / (1_u64 << 54) as f64;
    }

    fn probes(&mut self, in_flight: f64) -> bool {
        self.samples += 1;
        let due = self.jitter * self.probe_multiplier * self.limit <= self.samples as f64;
        let calm = self
            .probe_gate
            .is_none_or(|share| in_flight <= share * self.limit);
        if due && calm {
            self.draw_jitter();
            self.samples = 0;
        }
        due && calm
    }

    /// The limit that this sample asks for, and why.
    fn judge(&self, rtt: f64, in_flight: f64, failed: bool) -> Option<(f64, Moved)> {
        let limit = self.limit;
        let log = log10(limit);
        let (alpha, beta) = (
            self.alpha.unwrap_or(3.0 * log),
            self.beta.unwrap_or(6.0 * log),
        );
        let decreased = self.decrease_to.map_or(limit - log, |share| share * limit);
        let queue = (limit * (1.0 - self.base / rtt)).ceil();
        if failed {
            Some((decreased, Moved::Failures))
        } else if 2.0 * in_flight < limit {
            None
        } else if queue <= log {
            Some((limit + beta, Moved::Room))
        } else if queue < alpha {
            Some((limit + log, Moved::Room))
        } else if queue > beta {
            Some((decreased, Moved::Queue))
        } else {
            None
        }
    }
}

/// The logarithm of the truncated limit, truncated, at least 1.
fn log10(limit: f64) -> f64 {
    f64::from((limit as u64).max(1).ilog10().max(1))
}

impl Limit for NetflixVegas {
    fn limit(&self) -> usize {
        self.limit as usize
    }

    fn sample(&mut self, sample: &Sample) {
        if matches!(sample.outcome, Outcome::Ignored | Outcome::Rejected) {
            return;
        }
        let (rtt, in_flight) = (sample.rtt.as_secs_f64(), sample.in_flight as f64);
        if self.probes(in_flight) || self.base == 0.0 || rtt < self.base {
            self.base = rtt;
            return;
        }
        let failed = sample.outcome == Outcome::Failure;
        if let Some((limit, why)) = self.judge(rtt, in_flight, failed) {
            let limit = self.bounds.clamp(limit);
            let limit = (1.0 - self.smoothing) * self.limit + self.smoothing * limit;
            if limit != self.limit {
                self.limit = limit;
                self.moved = Some(why);
            }
        }
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn restart(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        self.limit = self.bounds.initial() as f64;
        (self.samples, self.base, self.moved) = (0, 0.0, None);
    }

    fn report(&self) -> Report {
        let baseline = (self.base > 0.0).then(|| seconds(self.base));
        Report::new(baseline, None, self.moved)
    }
}
