//! Who starts before whom: ties, tenants that come once, and how often a waiter can be overtaken.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{bounds::Random, *};

const MS: u64 = 1_000_000;

/// One seat. Keeps `outstanding` requests waiting, each of a tenant that was never seen before, and serves `rounds` of
/// them. Returns the request numbers in the order in which they started.
fn one_time_tenants(outstanding: usize, rounds: usize) -> Vec<usize> {
    let mut queue = FairQueue::new();
    let mut now = 0;
    let mut arrived = 0;
    let mut started = Vec::new();
    while started.len() < rounds {
        while queue.waiting() < outstanding {
            let tenant = queue.add_tenant(1);
            queue.push(tenant, cost(1), now, arrived);
            arrived += 1;
        }
        let (ticket, mut charge) = queue.next(now).expect("some wait");
        let (_, number) = queue.begin(&ticket, &mut charge, now);
        started.push(number);
        now += MS;
        queue.finish(charge, now);
    }
    started
}

#[test]
fn requests_of_tenants_that_tie_are_served_in_the_order_of_arrival() {
    let started = one_time_tenants(10, 2000);
    let overtaken = started.iter().enumerate().find(|(i, number)| i != *number);
    assert_eq!(overtaken, None, "(turn, request)");
}

/// A tenant that was served before competes with tenants that were not. It waits its turn, but not for ever.
#[test]
fn a_tenant_that_comes_back_is_not_starved_by_tenants_that_come_once() {
    for backlogged_before in [0, 10, 1000] {
        let most = most_overtaken_when_back(backlogged_before);
        assert!(most <= 25, "overtaken by {most} of ten");
    }
}

/// At first ten tenants always have requests waiting, until `backlogged` are served. Then ten requests wait at all times, of
/// one tenant that comes back and of others that come once.
fn most_overtaken_when_back(backlogged: u32) -> u32 {
    let mut queue = FairQueue::new();
    let mut now = 0;
    let regulars: Vec<_> = (0..10).map(|_| queue.add_tenant(1)).collect();
    // Two each, so that none of them ever has nothing waiting, and begins anew.
    for &tenant in regulars.iter().chain(&regulars) {
        queue.push(tenant, cost(1), now, false);
    }
    for _ in 0..backlogged {
        let (ticket, mut charge) = queue.next(now).expect("all wait");
        queue.begin(&ticket, &mut charge, now);
        now += MS;
        let tenant = charge.tenant();
        queue.finish(charge, now);
        queue.push(tenant, cost(1), now, false);
    }
    let regular = queue.add_tenant(1);
    queue.push(regular, cost(1), now, true);
    let (mut since_last, mut most) = (0, 0);
    for _ in 0..5000 {
        while queue.waiting() < 10 {
            let tenant = queue.add_tenant(1);
            queue.push(tenant, cost(1), now, false);
        }
        if queue.state(regular).waiting == 0 {
            queue.push(regular, cost(1), now, true);
            since_last = 0;
        }
        let (ticket, mut charge) = queue.next(now).expect("some wait");
        queue.begin(&ticket, &mut charge, now);
        now += MS;
        queue.finish(charge, now);
        since_last += 1;
        most = most.max(since_last);
    }
    most
}

/// Arrivals are counted in 32 bits, and there may be one that is older than all that.
#[test]
fn equal_tags_go_by_arrival_when_arrivals_are_counted_anew() {
    for edge in [REBASE, 2 * REBASE, 3 * REBASE] {
        let mut queue = FairQueue::new();
        let tenants: Vec<_> = (0..8).map(|_| queue.add_tenant(1)).collect();
        queue.push(tenants[7], cost(1), 0, 0); // it came long before the others
        queue.waiters = edge - 4;
        for (number, &tenant) in tenants[..7].iter().rev().enumerate() {
            queue.push(tenant, cost(1), 0, number + 1);
        }
        let order = std::iter::from_fn(|| {
            let (ticket, mut charge) = queue.next(0)?;
            let (_, number) = queue.begin(&ticket, &mut charge, 0);
            queue.finish(charge, 0);
            Some(number)
        });
        assert_eq!(order.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// Tenants that come once can be forgotten soon after, although the queue is never empty.
#[test]
fn tenants_that_come_once_are_forgotten_while_others_still_come() {
    let mut queue = FairQueue::new();
    let mut now = 0;
    let mut idle = VecDeque::new();
    for _ in 0..5000 {
        while queue.waiting() < 10 {
            let tenant = queue.add_tenant(1);
            queue.push(tenant, cost(1), now, ());
        }
        let (ticket, mut charge) = queue.next(now).expect("some wait");
        queue.begin(&ticket, &mut charge, now);
        idle.push_back(charge.tenant());
        now += MS;
        queue.finish(charge, now);
        while idle
            .front()
            .is_some_and(|&oldest| queue.remove_tenant(oldest))
        {
            idle.pop_front();
        }
        assert!(idle.len() <= 50, "{} cannot be forgotten", idle.len());
    }
}

/// What overtook one waiter: requests that arrived later and started earlier.
#[derive(Clone, Debug)]
struct Overtaken {
    requests: u32,
    /// How much service that was, by tenant.
    service: Vec<u64>,
}

/// One seat, service times spread exponentially around a millisecond, and a request of each tenant outstanding at all
/// times. Returns how often a waiter was overtaken at the most.
fn most_overtaken(tenants: usize, seed: u64) -> u32 {
    let mut random = Random(seed);
    let mut lasts = || {
        let uniform = (random.below(1 << 52) + 1) as f64 / (1_u64 << 52) as f64;
        (-uniform.ln() * MS as f64) as u64 + 1
    };
    let mut queue = FairQueue::new();
    let none = Overtaken {
        requests: 0,
        service: vec![0; tenants],
    };
    let mut overtaken = vec![none.clone(); tenants];
    let mut longest = vec![0_u64; tenants];
    let mut arrivals: Vec<_> = (0..tenants).collect();
    let (mut now, mut arrived, mut most) = (0, tenants, 0);
    for _ in 0..tenants {
        let tenant = queue.add_tenant(1);
        queue.push(tenant, cost(1), now, lasts());
    }
    for _ in 0..20_000 {
        let (ticket, mut charge) = queue.next(now).expect("all but one wait");
        let (_, lasts_this) = queue.begin(&ticket, &mut charge, now);
        let tenant = charge.tenant() as usize;
        longest[tenant] = longest[tenant].max(lasts_this);
        for other in (0..tenants).filter(|other| *other != tenant) {
            if arrivals[other] < arrivals[tenant] {
                overtaken[other].requests += 1;
                overtaken[other].service[tenant] += lasts_this;
            }
        }
        // It waits no more. No other tenant may have had more service meanwhile than the longest request of each.
        let Overtaken { requests, service } =
            std::mem::replace(&mut overtaken[tenant], none.clone());
        for (other, service) in service.into_iter().enumerate() {
            let bound = longest[tenant] + longest[other];
            assert!(
                service <= bound,
                "{service} ns by one tenant, at most {bound}"
            );
        }
        most = most.max(requests);
        now += lasts_this;
        queue.finish(charge, now);
        (arrivals[tenant], arrived) = (arrived, arrived + 1);
        queue.push(tenant as u32, cost(1), now, lasts());
    }
    most
}

/// A tenant whose last request took eight times as long as the others' waits until each of the others has had as much:
/// with fifty tenants that is some four hundred requests. What no tenant can do is overtake with more service than
/// the fairness bound allows, which `most_overtaken` asserts for every pair.
#[test]
fn a_waiter_is_overtaken_with_no_more_service_than_the_bound_of_fairness() {
    for seed in 0..20 {
        let most = most_overtaken(50, seed);
        assert!(most > 50, "long requests are paid back");
    }
}

/// Whether a request that starts now is ahead of all others that may: by tag, and by arrival where tags are equal.
fn assert_first(queue: &FairQueue<u64>, ticket: &Ticket, charge: &Charge, now: u64) {
    let key = |id: u32, tag: u128, number: u64| {
        let start = tag.saturating_add(queue.overrun(id, now));
        (start >> STEP, number)
    };
    let own_tag = queue.tenants[charge.tenant() as usize].tag - charge.amount();
    let own = key(charge.tenant(), own_tag, ticket.number);
    for id in (0..queue.tenants.len() as u32).filter(|id| queue.is_ready(*id)) {
        let Tenant { tag, head, .. } = queue.tenants[id as usize];
        let other = key(id, tag, queue.slots[head].number);
        assert!(own < other, "{own:?} starts before {other:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Regular tenants and ones that come once, on some seats, with service times that often tie.
    #[test]
    fn no_request_starts_before_an_earlier_one_whose_tag_is_not_above_its_own(
        seed in any::<u64>(),
        seats in 1_usize..8,
        come_once_percent in 0_u64..=100,
    ) {
        let mut random = Random(seed);
        let mut queue = FairQueue::new();
        let regulars: Vec<_> = (0..5).map(|i| queue.add_tenant(1 + i % 2)).collect();
        let mut running: Vec<(u64, Charge)> = Vec::new();
        let mut now = 0;
        for _ in 0..500 {
            while queue.waiting() < 20 {
                let tenant = match random.below(100) < come_once_percent {
                    true => queue.add_tenant(1),
                    false => regulars[random.below(5) as usize],
                };
                queue.push(tenant, cost(1), now, MS * (1 + random.below(3)));
            }
            while running.len() < seats {
                let (ticket, mut charge) = queue.next(now).expect("some wait");
                prop_assert!(!queue.yields(&ticket, &charge, now), "it was next just now");
                assert_first(&queue, &ticket, &charge, now);
                let (_, lasts) = queue.begin(&ticket, &mut charge, now);
                running.push((now + lasts, charge));
            }
            let ends = running.iter().map(|(ends, _)| *ends);
            let first = ends.enumerate().min_by_key(|(_, ends)| *ends).expect("some run").0;
            let (ends, charge) = running.swap_remove(first);
            now = ends;
            queue.finish(charge, now);
        }
    }
}
