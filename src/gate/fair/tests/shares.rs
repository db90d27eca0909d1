//! Who gets how much, and what is shown of it.

use super::*;
use crate::gate::tenants::{Tenant, TenantSnapshot};

/// Gives the request at the front of its tenant's line the permit that it was granted, if it was.
fn picked_up(gate: &Gate<Fair>, lines: &mut [VecDeque<Waiter>]) -> Vec<(usize, Grant)> {
    let mut granted = Vec::new();
    for (tenant, line) in lines.iter_mut().enumerate() {
        while line.front().is_some_and(|first| first.woken.times() > 0) {
            let first = line.pop_front().expect("it is there");
            granted.push((tenant, first.granted(gate)));
        }
    }
    granted
}

/// Service times are spread around a millisecond, and some tenants' requests take ten times as long as others'.
#[tokio::test(start_paused = true)]
async fn tenants_with_a_backlog_are_served_in_proportion_to_their_weights() {
    let tenants = [("a", 1, 1), ("b", 2, 10), ("c", 4, 1), ("d", 5, 3)];
    for limit in [1, 3, 10] {
        let gate = gate(limit, WfqConfig::default());
        for (name, weight, _) in tenants {
            gate.set_weight(name, weight).expect("a weight");
        }
        let hold: Vec<_> = (0..limit).map(|_| start(&gate, "first")).collect();
        let mut lines: [VecDeque<Waiter>; 4] = Default::default();
        let mut running: Vec<(u64, usize, Grant)> = Vec::new();
        let (mut had, mut now, mut random) = ([0_u64; 4], 0, 7_u64);
        let fill = |lines: &mut [VecDeque<Waiter>; 4]| {
            for (line, (name, ..)) in lines.iter_mut().zip(tenants) {
                while line.len() < limit + 2 {
                    line.push_back(Waiter::enters(&gate, name));
                }
            }
        };
        fill(&mut lines);
        hold.into_iter().for_each(|grant| end(&gate, grant));
        for _ in 0..5000 * limit {
            for (tenant, grant) in picked_up(&gate, &mut lines) {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let lasts = tenants[tenant].2 * (MS / 2 + (random >> 33) % MS);
                running.push((now + lasts, tenant, grant));
                had[tenant] += lasts;
            }
            fill(&mut lines);
            let ends = running.iter().enumerate();
            let (first, _) = ends.min_by_key(|(_, (ends, ..))| *ends).expect("some run");
            let (ends, _, grant) = running.swap_remove(first);
            after(ends - now).await;
            now = ends;
            end(&gate, grant);
        }
        let all: u64 = had.iter().sum();
        let weights: u64 = tenants
            .iter()
            .map(|(_, weight, _)| u64::from(*weight))
            .sum();
        for ((name, weight, _), had) in tenants.into_iter().zip(had) {
            let fair = all as f64 * f64::from(weight) / weights as f64;
            let off = (had as f64 / fair - 1.0).abs();
            assert!(off < 0.01, "{name} at limit {limit} is {off} off its share");
        }
    }
}

/// One place. The age law was told that nobody waits, so that requests without a name pass without the lock.
async fn calm() -> Gate<Fair> {
    let gate = gate(1, WfqConfig::default());
    after(MS).await;
    for _ in 0..2 {
        serve(&gate, start(&gate, ""));
    }
    gate
}

/// Whether the room was told of a request that started uncharged.
fn is_counted(grant: &Grant) -> bool {
    match grant {
        Grant::Uncharged(one) => one.is_counted,
        Grant::Charged(_) => panic!("it was charged"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_while_which_others_waited_does_not_pass_the_room() {
    let gate = calm().await;
    let long = start(&gate, "");
    let waiter = Waiter::enters(&gate, "");
    assert!(!gate.passes(&long), "it is in somebody's way");
    after(MS).await;
    waiter.leaves(&gate);
    assert!(!gate.passes(&long), "it was");
    assert!(!serve(&gate, long));
    let calm = start(&gate, "");
    assert!(!is_counted(&calm));
    assert!(serve(&gate, calm), "nobody waited");
    assert_empty(&gate);
}

/// A request that takes a second started while nobody waited. Another tenant's wait from some moments to others, the last
/// of them until it ends. After
/// that both have a backlog of requests that take 10 ms, on one place.
///
/// Says how many of the other tenant's are served before it is the first one's turn again.
async fn served_first(name: &str, units: u32, waits: &[(u64, u64)]) -> usize {
    let gate = calm().await;
    let named = (!name.is_empty()).then_some(name);
    let long = match gate.arrive(named, cost(units), 0, &mut Now::default(), |_| {
        Urgency::default()
    }) {
        Arrived::Goes(grant) => grant,
        _ => panic!("it need not wait"),
    };
    assert_eq!(is_counted(&long), named.is_some());
    let mut now = 0;
    let mut others: VecDeque<Waiter> = VecDeque::new();
    for &(from, until) in waits {
        after((from - now) * MS).await;
        others.push_back(Waiter::enters(&gate, "other"));
        after((until - from) * MS).await;
        now = until;
        if now < 1000 {
            others.drain(..).for_each(|waiter| waiter.leaves(&gate));
        }
    }
    end(&gate, long);
    let own = Waiter::enters(&gate, name);
    for served in 0.. {
        if own.woken.times() > 0 {
            let own = own.granted(&gate);
            end(&gate, own);
            others.drain(..).for_each(|waiter| waiter.leaves(&gate));
            assert_empty(&gate);
            return served;
        }
        let other = others.pop_front().expect("one waits").granted(&gate);
        others.push_back(Waiter::enters(&gate, "other"));
        after(10 * MS).await;
        end(&gate, other);
    }
    unreachable!("it is its turn at some time");
}

/// One that has no name is started without the lock.
#[tokio::test(start_paused = true)]
async fn a_request_that_started_uncharged_is_charged_for_the_time_in_which_others_waited() {
    for name in ["", "a"] {
        for (units, waits, charged) in [
            (1, &[(999, 1000)][..], 1),
            (1, &[(900, 1000)], 100),
            (1, &[(500, 1000)], 500),
            (3, &[(900, 1000)], 300),
            (1, &[(0, 1000)], 1000),
            (1, &[(100, 200), (700, 1000)], 400),
        ] {
            let served = served_first(name, units, waits).await;
            let fair = charged / 10;
            assert!(
                served.abs_diff(fair) <= 1,
                "{served} by {name:?}, {units} × {waits:?}: expected {fair}"
            );
        }
    }
}

/// What is shown of it.
fn of(gate: &Gate<Fair>, tenant: &Tenant) -> TenantSnapshot {
    let alone = gate.tenant(tenant).expect("it has come");
    let all = gate.tenants();
    let among_all = all.iter().find(|one| one.tenant == *tenant);
    assert_eq!(among_all, Some(&alone));
    alone
}

fn assert_shown(gate: &Gate<Fair>, tenant: &Tenant, running: usize, served: u64, share: f64) {
    let shown = of(gate, tenant);
    assert_eq!((shown.running, shown.served), (running, served), "{tenant}");
    assert!((shown.share - share).abs() < 1e-9, "{shown:?}");
    assert_eq!((shown.waiting, shown.rejected, shown.refused), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_never_waited_is_shown_of_tenants_with_a_name() {
    let gate = gate(10, WfqConfig::default());
    let [a, b]: [Tenant; 2] = ["a", "b"].map(Tenant::from);
    let grants = [(); 3].map(|()| start(&gate, "a"));
    let other = start(&gate, "b");
    assert_shown(&gate, &a, 3, 0, 0.0);
    assert_shown(&gate, &b, 1, 0, 0.0);
    after(10 * MS).await;
    for grant in grants {
        assert!(!serve(&gate, grant), "it is counted by its tenant");
    }
    assert_shown(&gate, &a, 0, 3, 1.0);
    after(20 * MS).await;
    serve(&gate, other);
    assert_shown(&gate, &a, 0, 3, 0.5);
    assert_shown(&gate, &b, 0, 1, 0.5);
    assert_shown(&gate, &Tenant::Anonymous, 0, 0, 0.0);
    let shown = gate.shows().shown.counts;
    assert_eq!((shown.served, shown.anonymous, shown.tenants), (4, 0, 2));
    assert_empty(&gate);
}

#[tokio::test(start_paused = true)]
async fn what_never_waited_is_shown_of_those_without_a_name() {
    let gate = gate(10, WfqConfig::default());
    after(MS).await;
    // They tell the age law that nobody waits, and how many may be in flight.
    let first = [(); 5].map(|()| start(&gate, ""));
    assert_shown(&gate, &Tenant::Anonymous, 5, 0, 0.0);
    for grant in first {
        serve(&gate, grant);
    }
    let passing = [(); 4].map(|()| start(&gate, ""));
    assert!(!passing.iter().any(is_counted));
    assert_shown(&gate, &Tenant::Anonymous, 4, 5, 1.0);
    after(10 * MS).await;
    let [served, others @ ..] = passing;
    assert!(serve(&gate, served), "nobody waited");
    assert_shown(&gate, &Tenant::Anonymous, 3, 6, 1.0);
    let named = start(&gate, "a"); // from now on there is somebody to be fair to
    let late = start(&gate, "");
    assert!(is_counted(&late));
    assert_shown(&gate, &Tenant::Anonymous, 4, 6, 1.0);
    assert_shown(&gate, &"a".into(), 1, 0, 0.0);
    after(30 * MS).await;
    serve(&gate, named);
    // Four have had 10 ms, 0 of which at once: the first five took no time.
    let had = |shown: TenantSnapshot| (shown.running, shown.served);
    assert_eq!(had(of(&gate, &Tenant::Anonymous)), (4, 6));
    assert_eq!(had(of(&gate, &"a".into())), (0, 1));
    let shares = [Tenant::Anonymous, "a".into()].map(|tenant| of(&gate, &tenant).share);
    assert!((shares[0] - 0.25).abs() < 1e-6, "10 of 40 ms: {shares:?}");
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let ends = [End::Refused, End::ServiceRefused, End::NotSent];
    for (grant, how) in others.into_iter().zip(ends) {
        gate.end(grant, how, &mut Now::default());
    }
    serve(&gate, late);
    let shown = of(&gate, &Tenant::Anonymous);
    assert_eq!((shown.running, shown.served, shown.refused), (0, 7, 2));
    let shows = gate.shows();
    assert_eq!(
        (shows.shown.counts.served, shows.shown.counts.anonymous),
        (8, 7)
    );
    assert_eq!(shows.permits.admitted, 10, "one was not sent");
    assert_empty(&gate);
}

fn rejected(gate: &Gate<Fair>, tenant: &str) -> (Reason, Duration) {
    match arrive(gate, tenant, 0) {
        Arrived::Rejected(rejection) => (rejection.reason(), rejection.retry_after()),
        _ => panic!("there is no place"),
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_place_is_told_to_come_back_when_its_tenants_others_are_served() {
    let config = WfqConfig::default().max_waiting_per_tenant(2);
    let gate = gate(1, config);
    gate.set_weight("b", 3).expect("a weight");
    let names = ["a", "b"];
    let mut runs = vec![(0, start(&gate, "a"))];
    let enters = |tenant: usize| Waiter::enters(&gate, names[tenant]);
    let mut lines = [0, 1].map(|tenant| VecDeque::from([enters(tenant), enters(tenant)]));
    let full = |after| (Reason::QueueFull, Duration::from_millis(after));
    assert_eq!(rejected(&gate, "a"), full(1000), "nothing is known yet");
    for _ in 0..10 {
        after(100 * MS).await;
        runs.drain(..).for_each(|(_, grant)| end(&gate, grant));
        runs = picked_up(&gate, &mut lines);
        let (tenant, _) = runs[0];
        lines[tenant].push_back(enters(tenant));
    }
    // Three of its own, at a quarter of ten in a second; and at three quarters, which is taken for a half.
    assert_eq!(rejected(&gate, "a"), full(1200));
    assert_eq!(rejected(&gate, "b"), full(600));
    for waiter in lines.into_iter().flatten() {
        waiter.leaves(&gate);
    }
    runs.drain(..).for_each(|(_, grant)| end(&gate, grant));
    assert_empty(&gate);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_too_old_is_told_to_come_back_after_as_long_as_it_took_to_get_there() {
    let ages = Settings {
        max_sojourn: Some(100 * MS),
        ..NEVER_OLD
    };
    let gate = aged(1, WfqConfig::default(), ages);
    let runs = start(&gate, "a");
    let old = Waiter::enters(&gate, "b");
    after(50 * MS).await;
    let young = Waiter::enters(&gate, "b");
    after(100 * MS).await;
    end(&gate, runs);
    let Fate::Rejected(rejection) = old.look(&gate) else {
        panic!("it is too old");
    };
    let told = (rejection.reason(), rejection.retry_after());
    assert_eq!(told, (Reason::TooOld, Duration::from_millis(150)));
    let young = young.granted(&gate);
    end(&gate, young);
    assert_empty(&gate);
}
