//! Loom models of the door: every interleaving of a few requests.

use loom::thread;

use super::*;
use crate::{gate::model, sync::AtomicUsize};
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
    if door.admit_at(now, 0, 0, None).is_err() {
        return false;
    }
    assert!(inside.fetch_add(1, SeqCst) < most, "more than the limit");
    inside.fetch_sub(1, SeqCst);
    door.gate.complete();
    true
}

/// The same in a thread of its own.
fn beside(
    door: &Arc<AgeGate>,
    inside: &Arc<AtomicUsize>,
    most: usize,
    now: u64,
) -> thread::JoinHandle<bool> {
    let (door, inside) = (Arc::clone(door), Arc::clone(inside));
    thread::spawn(move || request(&door, &inside, most, now))
}

#[test]
fn never_more_than_the_limit_and_each_is_counted() {
    model::check(2, || {
        let (door, inside) = (door(1), Arc::new(AtomicUsize::new(0)));
        let threads = [(); 2].map(|()| beside(&door, &inside, 1, 0));
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
        door.law.lock().unwrap().law().set_limit(1);
        door.gate.resize(1);
        let other = beside(&door, &inside, 2, 5 * SEC);
        request(&door, &inside, 2, 5 * SEC);
        other.join().unwrap();
        assert_eq!(door.gate.limit(), 2);
        let report = door.law.lock().unwrap().report(5 * SEC);
        assert_eq!((report.widenings, report.narrowings), (1, 0));
    });
}

/// A door at which it is calm from 1 to `SEC / 10`, with up to `max` in flight. One more than that has come.
fn calm(max: u64) -> Arc<AgeGate> {
    let door = door(max);
    for many in [1, max] {
        for _ in 0..many {
            door.admit_at(1, 0, 0, None).expect("room");
        }
        (0..many).for_each(|_| door.gate.complete());
    }
    assert!(door.is_calm(2));
    door
}

fn came(door: &AgeGate) -> u64 {
    let mut law = door.law.lock().unwrap();
    law.hear_of(door.gate.admitted());
    law.law().seen_of_late()
}

#[test]
fn where_it_is_calm_the_limit_holds_and_the_law_hears_of_each() {
    model::check(2, || {
        let (door, inside) = (calm(1), Arc::new(AtomicUsize::new(0)));
        let other = beside(&door, &inside, 1, 2);
        let admitted = [request(&door, &inside, 1, 2), other.join().unwrap()];
        let admitted = admitted.into_iter().filter(|admitted| *admitted).count();
        assert!(admitted >= 1);
        assert_eq!(door.gate.admitted(), 2 + admitted as u64);
        assert_eq!(came(&door), 2 + 2);
    });
}

/// One comes when the window is over, and closes it, while another for which it is not comes as well.
#[test]
fn what_comes_while_a_window_is_closed_is_counted_once() {
    model::check(2, || {
        let (door, inside) = (calm(2), Arc::new(AtomicUsize::new(0)));
        let other = beside(&door, &inside, 2, 2);
        assert!(request(&door, &inside, 2, 5 * SEC));
        assert!(other.join().unwrap());
        assert_eq!(came(&door), 3 + 2);
    });
}

/// One that passes is not taken for one that came while it was calm.
#[test]
fn one_that_passes_is_never_heard_of() {
    model::check(2, || {
        let (door, inside) = (calm(2), Arc::new(AtomicUsize::new(0)));
        let other = {
            let door = Arc::clone(&door);
            thread::spawn(move || {
                let fresh = Age {
                    all: 0,
                    own: 0,
                    oldest: None,
                };
                door.passed(&door.try_pass_at(2, fresh).expect("room"), true);
                door.gate.complete();
            })
        };
        assert!(request(&door, &inside, 2, 5 * SEC));
        other.join().unwrap();
        assert_eq!(came(&door), 3 + 1);
    });
}

/// Threads that come at once are seen to be as many, if not by the first of them.
#[test]
fn where_it_is_calm_the_law_knows_of_the_most_in_flight() {
    model::check(2, || {
        let (door, most) = (door(2), Arc::new(AtomicUsize::new(0)));
        for _ in 0..2 {
            door.admit_at(1, 0, 0, None).expect("room");
            door.gate.complete();
        }
        assert!(door.is_calm(2));
        let run = |door: &AgeGate, most: &AtomicUsize| {
            door.admit_at(2, 0, 0, None).expect("room");
            most.fetch_max(door.gate.load_now().0, SeqCst);
            door.gate.complete();
        };
        let other = {
            let (door, most) = (Arc::clone(&door), Arc::clone(&most));
            thread::spawn(move || run(&door, &most))
        };
        run(&door, &most);
        other.join().unwrap();
        assert!(door.law.lock().unwrap().law().peak() >= most.load(SeqCst) as u64);
    });
}
