//! What a saturation layer logs. It is a test binary of its own, since a subscriber of one thread misses what
//! another thread was the first to log.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tower_backpressure::{SaturationLayer, saturation::Work};

#[test]
fn a_change_is_logged_once_with_the_probe_and_the_ratio() {
    let lines = Lines::default();
    let log = Arc::clone(&lines.0);
    tracing::subscriber::with_default(lines, || {
        let queue = Arc::new(AtomicUsize::new(0));
        let depth = Arc::clone(&queue);
        let handle = SaturationLayer::new()
            .name("orders")
            .probe("queue", move || (depth.load(SeqCst), 1000))
            .sample_every(Duration::ZERO)
            .handle();
        for depth in [0, 750, 760, 860, 820, 960, 960, 100, 100] {
            queue.store(depth, SeqCst);
            let _ = handle.check(Work::New);
        }
    });
    assert_eq!(
        *log.lock().unwrap(),
        [
            "WARN layer=orders probe=queue ratio=0.75 from=normal to=warning",
            "WARN layer=orders probe=queue ratio=0.86 from=warning to=critical",
            "WARN layer=orders probe=queue ratio=0.96 from=critical to=overflow",
            "INFO layer=orders probe=queue ratio=0.1 from=overflow to=normal",
        ]
    );
}

/// A subscriber that keeps what is logged.
#[derive(Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_backpressure")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0 += &format!(" {field}={value}");
    }

    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        if field.name() != "message" {
            self.0 += &format!(" {field}={value:?}");
        }
    }
}
