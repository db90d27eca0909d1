//! Loom models of the door: every interleaving of a few requests.

use loom::thread;

use super::*;
use crate::{admission::model, sync::AtomicUsize};
use std::sync::atomic::Ordering::SeqCst;

const SEC: u64 = 1_000_000_000;

fn door(max: u64) -> Arc<AgeGate> {
    let settings = Settings {
        target: SEC / 10,
        interval: 5 * SEC,
        min: 1,
        max,
        max_sojourn: None,
    };
    Arc::new(AgeGate::new(settings, Clock::stopped()))
}

/// One request, with a look at how many are inside.
fn request(door: &AgeGate, inside: &AtomicUsize, most: usize, now: u64) -> bool {
    if door.decide(now, 0, 0, None).is_err() {
        return false;
    }
    assert!(inside.fetch_add(1, SeqCst) < most, "more than the limit");
    inside.fetch_sub(1, SeqCst);
    door.gate.complete();
    true
}

#[test]
fn never_more_than_the_limit_and_each_is_counted() {
    model::check(2, || {
        let (door, inside) = (door(1), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (door, inside) = (Arc::clone(&door), Arc::clone(&inside));
                thread::spawn(move || request(&door, &inside, 1, 0))
            })
            .collect();
        let mut admitted = u64::from(request(&door, &inside, 1, 0));
        for thread in threads {
            admitted += u64::from(thread.join().unwrap());
        }
        assert!(admitted >= 1);
        assert_eq!(door.gate.completed(), admitted);
        assert_eq!(door.gate.load_now().0, 0);
        assert_eq!(door.gate.bounds.rejected().at_limit, 3 - admitted);
    });
}

/// The window is over for both, and one of them closes it.
#[test]
fn a_window_is_closed_once() {
    model::check(2, || {
        let (door, inside) = (door(2), Arc::new(AtomicUsize::new(0)));
        door.law.lock().unwrap().set_limit(1);
        door.gate.resize(1);
        let other = {
            let (door, inside) = (Arc::clone(&door), Arc::clone(&inside));
            thread::spawn(move || request(&door, &inside, 2, 5 * SEC))
        };
        request(&door, &inside, 2, 5 * SEC);
        other.join().unwrap();
        assert_eq!(door.gate.limit(), 2);
        let report = door.law.lock().unwrap().report(5 * SEC);
        assert_eq!((report.widenings, report.narrowings), (1, 0));
    });
}
