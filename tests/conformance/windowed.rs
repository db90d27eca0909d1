//! What a law sees of a window.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_backpressure::adaptive_concurrency::{Bounds, Limit, Outcome, Sample, Windowed};

const MS: Duration = Duration::from_millis(1);

/// Remembers what it is fed.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Sample>>>);

impl Limit for Recorder {
    fn limit(&self) -> usize {
        7
    }

    fn sample(&mut self, sample: &Sample) {
        self.0.lock().unwrap().push(*sample);
    }

    fn bounds(&self) -> Bounds {
        Bounds::new(1, 7, 9)
    }

    fn restart(&mut self, _: Bounds) {}
}

impl Recorder {
    fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn sample(now: Duration, rtt: Duration, in_flight: usize, outcome: Outcome) -> Sample {
    Sample {
        now,
        rtt,
        in_flight,
        outcome,
        full: in_flight == 5,
    }
}

/// After a first sample, which opens the first window.
fn opened(windowed: &mut impl Limit) {
    windowed.sample(&sample(Duration::ZERO, MS, 1, Outcome::Success));
}

#[test]
fn it_is_fed_the_mean_time_and_the_most_in_flight_of_a_second() {
    let law = Recorder::default();
    let mut windowed = Windowed::new(law.clone());
    opened(&mut windowed);
    for i in 1..=11 {
        let in_flight = if i == 4 { 5 } else { 2 };
        windowed.sample(&sample(i * 100 * MS, i * MS, in_flight, Outcome::Success));
        assert_eq!(law.take().len(), usize::from(i == 10), "after {i}");
    }
    for i in 12..=20 {
        windowed.sample(&sample(i * 100 * MS, 10 * MS, 3, Outcome::Success));
    }
    // 11 ms in the second window's first, and nine of 10 ms.
    let fed = sample(
        2000 * MS,
        Duration::from_micros(10_100),
        3,
        Outcome::Success,
    );
    assert_eq!(law.take(), [fed]);
    let window = windowed.report().window.unwrap();
    assert_eq!((window.successes, window.failures), (10, 0));
    assert_eq!((window.mean_rtt, window.duration), (fed.rtt, 900 * MS));
    assert_eq!((windowed.limit(), windowed.bounds().max()), (7, 9));
}

#[test]
fn a_window_with_few_samples_is_passed_over() {
    let law = Recorder::default();
    let mut windowed = Windowed::new(law.clone());
    opened(&mut windowed);
    for i in 1..=100 {
        windowed.sample(&sample(i * 200 * MS, MS, 1, Outcome::Success));
    }
    assert_eq!(law.take(), []);
}

#[test]
fn a_window_has_failed_if_more_than_a_tenth_did() {
    for (failures, outcome) in [
        (0, Outcome::Success),
        (2, Outcome::Success),
        (3, Outcome::Failure),
    ] {
        let law = Recorder::default();
        let mut windowed = Windowed::new(law.clone());
        opened(&mut windowed);
        for i in 1..=20 {
            let (rtt, outcome) = match i <= failures {
                true => (Duration::from_secs(100), Outcome::Failure), // not timed
                false => (8 * MS, Outcome::Success),
            };
            windowed.sample(&sample(i * 50 * MS, rtt, 1, outcome));
            windowed.sample(&sample(i * 50 * MS, MS, 100, Outcome::Ignored));
        }
        assert_eq!(
            law.take(),
            [sample(1000 * MS, 8 * MS, 1, outcome)],
            "{failures}"
        );
    }
}

#[test]
fn where_all_failed_the_last_time_stands() {
    let law = Recorder::default();
    let mut windowed = Windowed::new(law.clone());
    opened(&mut windowed);
    let mut feed = |from: u32, outcome| {
        for i in 1..=10 {
            windowed.sample(&sample((from + i * 100) * MS, 9 * MS, 1, outcome));
        }
        law.take()
    };
    let fed = feed(0, Outcome::Failure);
    let untimed = sample(1000 * MS, Duration::ZERO, 1, Outcome::Failure);
    assert_eq!(fed, [untimed], "there is none yet");
    assert_eq!(feed(1000, Outcome::Success).len(), 1);
    let fed = feed(2000, Outcome::Failure);
    assert_eq!(fed, [sample(3000 * MS, 9 * MS, 1, Outcome::Failure)]);
}

#[test]
fn it_is_twice_the_shortest_time_within_bounds() {
    for (rtt, length) in [(10, 100), (150, 300), (1000, 400)] {
        let law = Recorder::default();
        let mut windowed = Windowed::between(law.clone(), 100 * MS, 400 * MS);
        for i in 0..1000 {
            windowed.sample(&sample(i * 5 * MS, rtt * MS, 1, Outcome::Success));
        }
        let fed = law.take();
        assert_eq!((fed[4].now - fed[3].now).as_millis(), length, "{rtt} ms");
    }
}

#[test]
fn a_restart_forgets_the_window() {
    let law = Recorder::default();
    let mut windowed = Windowed::new(law.clone());
    opened(&mut windowed);
    for i in 1..10 {
        windowed.sample(&sample(i * 100 * MS, 50 * MS, 9, Outcome::Success));
    }
    windowed.restart(Bounds::new(1, 7, 9));
    assert_eq!(windowed.report().window, None);
    opened(&mut windowed);
    for i in 10..=30 {
        windowed.sample(&sample(i * 100 * MS, 10 * MS, 1, Outcome::Success));
    }
    let fed = law.take();
    assert!(!fed.is_empty());
    assert!(
        fed.iter()
            .all(|sample| (sample.rtt, sample.in_flight) == (10 * MS, 1)),
        "{fed:?}"
    );
}
