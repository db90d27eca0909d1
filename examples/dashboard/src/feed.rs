//! What the page is told, five times a second: one line of JSON with everything that it shows.

use std::{
    collections::VecDeque,
    fmt::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{Stream, StreamExt, stream};
use tokio::{sync::watch, time::interval};

use super::{
    load::{Counts, LEVELS, Outcomes, TENANTS, Tally, Tenant},
    now,
    settings::{Protection, Settings, TOWER_LIMIT},
};

const EVERY: Duration = Duration::from_millis(200);
/// A second: rates and latencies are of this many samples.
const WINDOW: usize = 5;
/// A minute, for whoever opens the page now.
const HISTORY: usize = 300;

/// The last minute, and what comes. Readers cost the writer nothing: one that is slow misses what came in between.
#[derive(Clone)]
pub struct Feed {
    history: Arc<Mutex<VecDeque<Arc<str>>>>,
    latest: watch::Receiver<Arc<str>>,
}

impl Feed {
    /// And the future that writes it. The feed ends when that is dropped.
    pub fn new(settings: Arc<Settings>, tally: Arc<Tally>) -> (Self, impl Future<Output = ()>) {
        let (write, latest) = watch::channel("{}".into());
        let history = Arc::default();
        let feed = Self {
            history: Arc::clone(&history),
            latest,
        };
        let writing = async move {
            let begun = now();
            let mut window = Window::default();
            let mut ticks = interval(EVERY);
            ticks.tick().await; // at once
            loop {
                ticks.tick().await;
                window.push(&settings, &tally);
                let event: Arc<str> = window
                    .event(begun.elapsed().as_secs_f64(), &settings)
                    .into();
                let mut history = history.lock().unwrap();
                if history.len() == HISTORY {
                    history.pop_front();
                }
                history.push_back(Arc::clone(&event));
                write.send_replace(event);
            }
        };
        (feed, writing)
    }

    /// The last minute, and then everything until the feed ends.
    pub fn read(&self) -> impl Stream<Item = Arc<str>> + use<> {
        let mut latest = self.latest.clone();
        let history: Vec<_> = {
            let history = self.history.lock().unwrap();
            latest.mark_unchanged(); // it is in the history
            history.iter().cloned().collect()
        };
        let live = stream::unfold(latest, async |mut latest| {
            latest.changed().await.ok()?;
            let event = Arc::clone(&latest.borrow_and_update());
            Some((event, latest))
        });
        stream::iter(history).chain(live)
    }
}

/// What happened in each of the last few intervals.
#[derive(Default)]
struct Window {
    outcomes: VecDeque<Counts>,
    /// How many the edge had rejected by then.
    rejected: VecDeque<Rejected>,
}

/// By the edge so far, and why.
struct Rejected {
    queue_full: u64,
    too_old: u64,
    /// A more important request took the place.
    displaced: u64,
}

impl Window {
    fn push(&mut self, settings: &Settings, tally: &Tally) {
        if self.outcomes.len() == WINDOW {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(tally.take());
        if self.rejected.len() > WINDOW {
            self.rejected.pop_front();
        }
        let rejected = settings.edge.snapshot().permits.rejected;
        self.rejected.push_back(Rejected {
            queue_full: rejected.queue_full,
            too_old: rejected.too_old,
            displaced: rejected.displaced,
        });
    }

    fn event(&self, time: f64, settings: &Settings) -> String {
        let seconds = EVERY.as_secs_f64() * self.outcomes.len() as f64;
        let a_second = |count: u64| (count as f64 / seconds).round();
        let (edge, protection) = (settings.edge.snapshot(), settings.protection());
        let workers = settings.workers.snapshot();
        let service_time = workers.service_time.as_secs_f64();
        let in_flight = match protection {
            // All that comes is in flight at once.
            Protection::Off => workers.jobs,
            Protection::Tower => TOWER_LIMIT.saturating_sub(settings.tower.available_permits()),
            Protection::Edge => edge.permits.in_flight,
        };
        let (first, last) = (self.rejected.front(), self.rejected.back());
        let rejected = |of: fn(&Rejected) -> u64| {
            a_second(last.map_or(0, of).saturating_sub(first.map_or(0, of)))
        };
        let (all_p50, all_p99) = percentiles(self.outcomes.iter().flatten().flatten());
        let mut json = format!(
            r#"{{"t":{time:.1},"protection":"{}","workers":{},"service_ms":{:.0},"capacity":{:.0},"#,
            protection.name(),
            workers.workers,
            1000.0 * service_time,
            workers.workers as f64 / service_time,
        );
        let _ = write!(
            json,
            r#""limit":{},"tower_limit":{TOWER_LIMIT},"pinned":{},"in_flight":{in_flight},"moved":"{}","baseline":{},"target_ms":{},"overloaded":{},"#,
            edge.permits.limit,
            edge.pinned,
            edge.learned
                .moved
                .map(|why| why.to_string())
                .unwrap_or_default(),
            millis(edge.learned.baseline),
            settings.target_ms(),
            protection == Protection::Edge && edge.age.overloaded,
        );
        let _ = write!(
            json,
            r#""queue_full":{},"too_old":{},"displaced":{},"p50":{},"p99":{},"critical":{},"levels":["#,
            rejected(|it| it.queue_full),
            rejected(|it| it.too_old),
            rejected(|it| it.displaced),
            millis(all_p50),
            millis(all_p99),
            settings.critical(),
        );
        for (i, priority) in LEVELS.into_iter().enumerate() {
            let of_level = self.outcomes.iter().flatten().map(|levels| &levels[i]);
            let queued = edge.priorities.iter().find(|it| it.priority == priority);
            let _ = write!(
                json,
                r#"{}{{"name":"{priority}",{},"waiting":{}}}"#,
                comma(i),
                rates(of_level, a_second),
                queued.map_or(0, |it| it.waiting) + workers.waiting_by_level[i],
            );
        }
        json.push_str(r#"],"tenants":["#);
        for (i, name) in TENANTS.iter().enumerate() {
            let of_tenant = || self.outcomes.iter().flat_map(|outcomes| &outcomes[i]);
            let tenant = settings.edge.tenant(*name);
            let (queued, running) =
                tenant.map_or((0, 0), |tenant| (tenant.waiting, tenant.running));
            let (p50, p99) = percentiles(of_tenant());
            let _ = write!(
                json,
                r#"{}{{"name":"{name}","load":{},"weight":{},{},"waiting":{},"running":{running},"p50":{},"p99":{}}}"#,
                comma(i),
                settings.load(Tenant(i)),
                settings.weight(Tenant(i)),
                rates(of_tenant(), a_second),
                queued + workers.waiting[i],
                millis(p50),
                millis(p99),
            );
        }
        json.push_str("]}");
        json
    }
}

/// Before all but the first.
fn comma(i: usize) -> &'static str {
    if i == 0 { "" } else { "," }
}

/// How many a second were sent, and what became of them.
fn rates<'a>(
    outcomes: impl Iterator<Item = &'a Outcomes> + Clone,
    a_second: impl Fn(u64) -> f64,
) -> String {
    let rate = |count: fn(&Outcomes) -> u64| a_second(outcomes.clone().map(count).sum());
    format!(
        r#""offered":{},"served":{},"refused":{},"lost":{}"#,
        rate(|outcomes| outcomes.offered),
        rate(|outcomes| outcomes.served.len() as u64),
        rate(|outcomes| outcomes.refused),
        rate(|outcomes| outcomes.lost),
    )
}

/// The median, and what only one in a hundred exceeded, of what was served.
fn percentiles<'a>(
    outcomes: impl Iterator<Item = &'a Outcomes>,
) -> (Option<Duration>, Option<Duration>) {
    let mut served: Vec<_> = outcomes.flat_map(|outcomes| &outcomes.served).collect();
    served.sort_unstable();
    let at = |percent: usize| served.get(served.len() * percent / 100).map(|time| **time);
    (at(50), at(99))
}

fn millis(duration: Option<Duration>) -> String {
    duration.map_or("null".into(), |duration| {
        format!("{:.1}", 1000.0 * duration.as_secs_f64())
    })
}
