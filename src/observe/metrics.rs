//! The registry: which layers are watched, and what they say.

use std::{collections::BTreeMap, fmt};

use super::{
    names::FAMILIES,
    prometheus,
    samples::{Sample, Samples, Value},
    sources::Source,
};
use crate::{
    ConfigError, Waits,
    sync::{Arc, Mutex, lock},
};

/// The numbers of all layers that it has been told to watch, by the names in the [module](super).
///
/// Clones are the same registry. It costs requests nothing: layers count anyway, and are asked when somebody
/// looks.
///
/// ```
/// use tower_backpressure::{ConcurrencyLimitLayer, observe::Metrics};
///
/// # fn main() -> Result<(), tower_backpressure::ConfigError> {
/// let limit = ConcurrencyLimitLayer::new(10).name("database");
///
/// let metrics = Metrics::new();
/// metrics.watch(&limit.handle())?;
///
/// let text = metrics.prometheus();
/// assert!(text.contains("backpressure_limit{layer=\"database\"} 10\n"));
/// # Ok(())
/// # }
/// ```
///
/// It holds the handles that it is given, and by them the state of layers that are long gone, until they are
/// [unwatched](Self::unwatch) or the last clone is dropped.
#[derive(Clone, Default)]
pub struct Metrics {
    layers: Arc<Mutex<Vec<Arc<Watched>>>>,
}

impl Metrics {
    /// What the answer to a scrape of [`prometheus`](Self::prometheus) has to have as its `content-type`.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Watches nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches this layer from now on, by the name that it has: the one that it was given
    /// (`.name("database")`), or that of its kind (`concurrency_limit`).
    ///
    /// # Errors
    /// If a layer of that name is watched already: two that are called the same could not be told apart, so
    /// one of them needs a name of its own, here or by [`watch_as`](Self::watch_as). Nothing is changed then.
    pub fn watch(&self, handle: &impl Observe) -> Result<(), ConfigError> {
        self.watch_as(handle.name(), handle)
    }

    /// Watches this layer from now on, by this name: for what has no name of its own, as a
    /// `RetryPolicy`.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn watch_as(&self, name: &str, handle: &impl Observe) -> Result<(), ConfigError> {
        let watched = Arc::new(Watched {
            name: name.into(),
            source: Box::new(handle.clone()),
            shown: Mutex::default(),
        });
        let mut layers = lock(&self.layers);
        if layers.iter().any(|layer| *layer.name == *name) {
            return Err(ConfigError::new("name", "one that no watched layer has"));
        }
        layers.push(watched);
        Ok(())
    }

    /// Watches the layer of this name no longer. Says whether it did.
    pub fn unwatch(&self, name: &str) -> bool {
        let mut layers = lock(&self.layers);
        let place = layers.iter().position(|layer| *layer.name == *name);
        let gone = place.map(|place| layers.remove(place));
        drop(layers);
        gone.is_some() // dropped after the lock: it may be the last to hold a probe, which is foreign
    }

    /// The numbers now, in the text format that Prometheus scrapes (0.0.4). It is to be served as
    /// [`CONTENT_TYPE`](Self::CONTENT_TYPE), and not through the layers that it is about: an overloaded
    /// server would refuse to say that it is.
    ///
    /// It asks every layer for a snapshot, so it starts a new interval for `backpressure_in_flight_max`.
    pub fn prometheus(&self) -> String {
        prometheus::text(&self.gather())
    }

    /// Hands the numbers to the recorder of the `metrics` crate, for those who export by it:
    /// counters are set to where they are (`absolute`), gauges too. Call it before each scrape, or every so
    /// many seconds from a task of yours. Without a recorder it does nothing.
    ///
    /// Waits are recorded as they fell into the buckets: each new one as the [bound](Waits::BOUNDS) of its
    /// bucket, those above the last as twice that. So give the exporter these bounds as its buckets; sums and
    /// means are too high by what that rounds up. A gauge that is not known any more stays as it was.
    pub fn publish(&self) {
        for (layer, samples) in self.gather() {
            for Sample {
                family,
                label,
                value,
            } in samples.0
            {
                let name = family.name;
                let second = family.label.zip(label);
                let labels: Vec<::metrics::Label> = [("layer", layer.name.to_string())]
                    .into_iter()
                    .chain(second.map(|(label, value)| (label, value.to_owned())))
                    .map(|(label, value)| ::metrics::Label::new(label, value))
                    .collect();
                match value {
                    Value::Count(count) => {
                        ::metrics::describe_counter!(name, family.help);
                        ::metrics::counter!(name, labels).absolute(count);
                    }
                    Value::Level(level) => {
                        ::metrics::describe_gauge!(name, family.help);
                        ::metrics::gauge!(name, labels).set(level);
                    }
                    Value::Waits(waits) => {
                        ::metrics::describe_histogram!(name, family.help);
                        let histogram = ::metrics::histogram!(name, labels);
                        for (wait, count) in layer.unpublished(&waits) {
                            histogram.record_many(wait, count);
                        }
                    }
                }
            }
        }
    }

    /// What each layer says now. No lock is held while they are asked: probes are foreign code.
    fn gather(&self) -> Vec<(Arc<Watched>, Samples)> {
        let layers = lock(&self.layers).clone();
        let ask = |layer: Arc<Watched>| {
            let mut samples = Samples::default();
            layer.source.collect(&mut samples);
            layer.hold_counters(&mut samples);
            (layer, samples)
        };
        layers.into_iter().map(ask).collect()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = lock(&self.layers);
        let names = layers.iter().map(|layer| &layer.name);
        f.debug_set().entries(names).finish()
    }
}

/// What [`Metrics`] can watch: the handle of every layer, of a channel and of a retry policy, and that of
/// an [`edge`](mod@crate::edge).
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no numbers to watch",
    note = "watch the layer's handle: `metrics.watch(&layer.handle())`"
)]
pub trait Observe: Source + Clone + 'static {}

/// One layer that is watched.
pub(super) struct Watched {
    pub(super) name: Arc<str>,
    source: Box<dyn Source>,
    shown: Mutex<Shown>,
}

/// What has been told of a layer.
#[derive(Default)]
struct Shown {
    counts: BTreeMap<(&'static str, Option<&'static str>), u64>,
    /// To the recorder.
    waits: Waits,
}

impl Watched {
    /// A counter that falls, to those who read it, is one of a process that has just begun, and all that it
    /// counts is new to them. What layers have admitted does fall a little: a service that was polled ready
    /// counts until it is dropped uncalled. It stays where it was until that is made up for.
    fn hold_counters(&self, samples: &mut Samples) {
        let mut shown = lock(&self.shown);
        for sample in &mut samples.0 {
            if let Value::Count(count) = &mut sample.value {
                let most = shown.counts.entry((sample.family.name, sample.label));
                let most = most.or_insert(0);
                *most = (*most).max(*count);
                *count = *most;
            }
        }
    }

    /// What the recorder has not been told: so many waits of about so many seconds.
    fn unpublished(&self, waits: &Waits) -> Vec<(f64, usize)> {
        let mut shown = lock(&self.shown);
        let before = shown.waits;
        // Two that publish at once may come here in the other order.
        for (shown, now) in shown.waits.buckets.iter_mut().zip(waits.buckets) {
            *shown = now.max(*shown);
        }
        let longest = Waits::BOUNDS[Waits::BOUNDS.len() - 1] * 2;
        let bounds = Waits::BOUNDS.iter().chain([&longest]);
        let counts = waits.buckets.iter().zip(before.buckets);
        bounds
            .zip(counts)
            .map(|(bound, (now, before))| (bound.as_secs_f64(), now.saturating_sub(before)))
            .filter(|(_, count)| *count > 0)
            .map(|(bound, count)| (bound, usize::try_from(count).unwrap_or(usize::MAX)))
            .collect()
    }
}

/// Every name there is, whether or not a layer is watched that has it: for tools that check dashboards and
/// alert rules against them. A histogram has its name followed by `_bucket`, `_sum` and `_count`.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use crate::ConcurrencyLimitLayer;

    #[test]
    fn a_wait_is_told_once_when_two_publish_at_once() {
        let watched = Watched {
            name: "limit".into(),
            source: Box::new(ConcurrencyLimitLayer::new(1).handle()),
            shown: Mutex::default(),
        };
        let mut early = Waits::default();
        early.buckets[0] = 3;
        let mut late = early;
        late.buckets[0] = 5;
        assert_eq!(watched.unpublished(&late), [(0.001, 5)]);
        assert_eq!(watched.unpublished(&early), []);
        assert_eq!(watched.unpublished(&late), []);
    }
}
