//! What a setting that changes, or foreign code that comes back, must not break.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::law::fair_queues::MAIN;

#[tokio::test(start_paused = true)]
async fn a_cap_that_holds_back_all_who_wait_leaves_nobody_to_queue_behind() {
    let config = WfqConfig::default().max_in_flight_per_tenant(4);
    let gate = gate(3, config);
    let grants = [(); 3].map(|()| start(&gate, "a"));
    let waiter = Waiter::enters(&gate, "a");
    assert!(gate.load().queued());
    gate.set_max_in_flight_per_tenant(NonZeroU32::new(3));
    assert_consistent(&gate);
    waiter.leaves(&gate);
    for grant in grants {
        end(&gate, grant);
    }
    assert_empty(&gate);
}

/// A waker by which a newcomer comes, the first time.
struct Comes {
    gate: Arc<Gate<Fair>>,
    tenant: &'static str,
    looks: fn(&Gate<Fair>),
    came: AtomicBool,
    passed: AtomicBool,
}

impl Comes {
    fn new(gate: &Arc<Gate<Fair>>, tenant: &'static str, looks: fn(&Gate<Fair>)) -> Arc<Self> {
        Arc::new(Self {
            gate: Arc::clone(gate),
            tenant,
            looks,
            came: AtomicBool::new(false),
            passed: AtomicBool::new(false),
        })
    }

    /// So many requests wait, by which it comes.
    fn wait(self: &Arc<Self>, many: usize) -> Vec<(Arrival, u32)> {
        let waits = || {
            let arrival = Waiter::comes(&self.gate, self.tenant);
            let waker = Waker::from(Arc::clone(self));
            (arrival, enter(&self.gate, &arrival, waker))
        };
        (0..many).map(|_| waits()).collect()
    }

    fn assert_waited(&self) {
        assert!(self.came.load(SeqCst));
        assert!(!self.passed.load(SeqCst), "it passed those who are next");
    }
}

impl Wake for Comes {
    fn wake(self: Arc<Self>) {
        if self.came.swap(true, SeqCst) {
            return;
        }
        (self.looks)(&self.gate);
        match arrive(&self.gate, self.tenant, 0) {
            Arrived::Goes(grant) => {
                self.passed.store(true, SeqCst);
                end(&self.gate, grant);
            }
            Arrived::Waits(arrival) => self.gate.depart(&arrival),
            Arrived::Rejected(_) => panic!("it is young, and there are places"),
        }
    }
}

/// So many permits are new that the lock is released before all who wait have one. A newcomer could do without the room:
/// nobody is old, and there were as many in flight before.
#[tokio::test(start_paused = true)]
async fn no_newcomer_passes_those_who_are_next_while_new_permits_are_handed_out() {
    for tenant in ["", "a"] {
        let gate = Arc::new(gate(100, WfqConfig::default()));
        after(MS).await;
        let many: Vec<_> = (0..100).map(|_| start(&gate, tenant)).collect();
        many.into_iter().for_each(|grant| end(&gate, grant));
        gate.governor().pin(&gate, 1);
        let runs = start(&gate, tenant);
        let comes = Comes::new(&gate, tenant, |_| ());
        let waiters = comes.wait(40);
        gate.governor().pin(&gate, 100);
        comes.assert_waited();
        assert_eq!(gate.load().in_flight(), 41);
        for (arrival, seat) in waiters {
            gate.leave(&arrival, seat);
        }
        end(&gate, runs);
        assert_empty(&gate);
    }
}

/// Forty requests of one tenant became too old behind its only place, and one that is young is behind them. So many are
/// woken that the lock is released before it is the young one's turn.
#[tokio::test(start_paused = true)]
async fn no_newcomer_passes_those_who_are_next_while_others_are_woken() {
    let ages = Settings {
        max_sojourn: Some(1000 * MS),
        ..NEVER_OLD
    };
    let config = WfqConfig::default().max_in_flight_per_tenant(1);
    let gate = Arc::new(aged(10, config, ages));
    let runs = start(&gate, "a");
    // Permits may be free then, but only for those that are next.
    let comes = Comes::new(&gate, "a", |gate| assert!(gate.load().queued()));
    let old = comes.wait(40);
    after(2000 * MS).await;
    let young = Waiter::enters(&gate, "a");
    end(&gate, runs);
    comes.assert_waited();
    for (arrival, seat) in old {
        gate.leave(&arrival, seat);
    }
    let young = young.granted(&gate);
    end(&gate, young);
    assert_empty(&gate);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_because_another_needs_the_place_is_counted() {
    let gate = gate(1, WfqConfig::default().max_waiting(2));
    let runs = start(&gate, "a");
    let [first, last] = [(); 2].map(|()| Waiter::enters(&gate, "a"));
    after(7 * MS).await;
    let other = Waiter::enters(&gate, "b");
    assert_eq!(last.rejected(&gate), Reason::QueueFull);
    let waits = gate.snapshot().waits;
    assert_eq!((waits.count(), waits.sum), (1, Duration::from_millis(7)));
    first.leaves(&gate);
    other.leaves(&gate);
    assert_eq!(gate.snapshot().waits.count(), 3);
    end(&gate, runs);
    assert_empty(&gate);
}

/// What gives weights is foreign, and so is what it drops.
#[tokio::test(start_paused = true)]
async fn what_gives_weights_is_not_dropped_under_the_lock() {
    struct Looks {
        gate: Arc<Gate<Fair>>,
        dropped: Arc<AtomicUsize>,
    }
    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(self.gate.slow.try_lock().is_ok(), "dropped under the lock");
            self.dropped.fetch_add(1, SeqCst);
        }
    }
    let gate = Arc::new(gate(10, WfqConfig::default()));
    let dropped = Arc::new(AtomicUsize::new(0));
    let looks = Looks {
        gate: gate.clone(),
        dropped: dropped.clone(),
    };
    // It is replaced while it is asked.
    gate.set_tenants(&WfqConfig::default().weight_of(move |_| {
        looks
            .gate
            .set_tenants(&WfqConfig::default().weight_of(|_| 7));
        5
    }));
    let grant = start(&gate, "a");
    assert_eq!(dropped.load(SeqCst), 1);
    assert_eq!(gate.tenant(&"a".into()).expect("it has come").weight, 7);
    end(&gate, grant);
    assert_empty(&gate);
}

/// Its requests are rejected all the time, but there is no queue for anybody else.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_waits_for_its_own_others_does_not_make_a_queue_stand() {
    let ages = Settings {
        target: 100 * MS,
        interval: 1000 * MS,
        ..NEVER_OLD
    };
    let gate = aged(2, WfqConfig::default().max_in_flight_per_tenant(1), ages);
    gate.set_newest_first(true);
    let runs = start(&gate, "flood");
    let now = gate.clock.nanos();
    lock(&gate.slow).room.serves.law().set_excess(now, 2.0);
    let mut waiters = Vec::new();
    for _ in 0..100 {
        after(10 * MS).await;
        end(&gate, start(&gate, "other"));
        waiters.push(Waiter::enters(&gate, "flood"));
    }
    assert!(gate.bounds.rejected().queue_full > 0, "some made way");
    let now = gate.clock.nanos();
    let order = lock(&gate.slow).room.serves.order(now, MAIN);
    assert_eq!(order, Order::OldestFirst);
    for waiter in waiters {
        waiter.leaves(&gate);
    }
    end(&gate, runs);
    assert_empty(&gate);
}
