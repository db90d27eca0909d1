//! One rule a test.

use super::*;
use proptest::prelude::*;

const ONE_COST: NonZeroU32 = NonZeroU32::MIN;

/// A queue with tenants 0, 1, … of these weights.
fn queue<T>(weights: &[u32]) -> FairQueue<T> {
    let mut queue = FairQueue::new();
    for (i, &weight) in weights.iter().enumerate() {
        assert_eq!(queue.add_tenant(weight), i as u32);
    }
    queue
}

/// Serves one request, alone, for `lasts`; gives its tenant and what was kept with it.
fn serve<T>(queue: &mut FairQueue<T>, now: &mut u64, lasts: u64) -> (u32, T) {
    let (ticket, mut charge) = queue.next(*now).expect("somebody waits");
    let (_, with) = queue.begin(&ticket, &mut charge, *now);
    let tenant = charge.tenant();
    *now += lasts;
    queue.finish(charge, *now);
    (tenant, with)
}

/// Keeps two requests of each tenant waiting, and serves so many of 1 ms times the cost; says how many
/// of each.
fn ops(queue: &mut FairQueue<()>, now: &mut u64, costs: &[u32], ops: usize) -> Vec<usize> {
    let mut served = vec![0; costs.len()];
    for _ in 0..ops {
        for (tenant, &each) in costs.iter().enumerate() {
            while queue.state(tenant as u32).waiting < 2 {
                queue.push(tenant as u32, cost(each), *now, ());
            }
        }
        served[serve(queue, now, 1_000_000).0 as usize] += 1;
    }
    served
}

#[test]
fn service_is_in_proportion_to_weights() {
    let mut queue = queue(&[10, 20]);
    let served = ops(&mut queue, &mut 0, &[1, 1], 300);
    assert!(served[0].abs_diff(100) <= 1, "{served:?}");
}

#[test]
fn twice_the_cost_is_half_the_requests() {
    let mut queue = queue(&[1, 1]);
    let served = ops(&mut queue, &mut 0, &[2, 1], 300);
    assert!(served[0].abs_diff(100) <= 1, "{served:?}");
}

#[test]
fn weights_that_are_swapped_half_way_come_to_the_same() {
    let mut queue = queue(&[20, 10]);
    let now = &mut 0;
    let first = ops(&mut queue, now, &[1, 1], 250);
    queue.set_weight(0, 10);
    queue.set_weight(1, 20);
    let second = ops(&mut queue, now, &[1, 1], 250);
    assert!(
        (first[0] + second[0]).abs_diff(250) <= 2,
        "{first:?} {second:?}"
    );
}

#[test]
fn weights_that_are_changed_apply_from_then_on() {
    let mut queue = queue(&[1, 2]);
    let now = &mut 0;
    assert_eq!(ops(&mut queue, now, &[1, 1], 6), [2, 4]);
    queue.set_weight(0, 2);
    assert_eq!(ops(&mut queue, now, &[1, 1], 6), [3, 3]);
}

/// What the running requests of a tenant are over by costs it less from then on.
#[test]
fn a_weight_that_grows_is_in_the_order_at_once() {
    let mut queue = queue(&[1, 1]);
    queue.push(0, ONE_COST, 0, ());
    queue.push(1, ONE_COST, 0, ());
    let (ticket, mut runs) = queue.next(0).expect("two wait");
    queue.begin(&ticket, &mut runs, 0); // and was charged a nanosecond
    queue.push(0, ONE_COST, 0, ());
    queue.push(1, ONE_COST, 0, ());
    let now = &mut 0;
    assert_eq!(serve(&mut queue, now, 10_000_000).0, 1);
    *now = 100_000_000;
    let (top, _) = queue.fairest(*now).expect("one of each waits");
    assert_eq!(top.item(), 1, "the other's is over by ten times as much");
    queue.set_weight(0, 100);
    assert_eq!(serve(&mut queue, now, 1_000_000).0, 0);
    queue.finish(runs, *now);
}

#[test]
fn a_tenants_requests_are_served_in_their_order() {
    let mut queue = queue(&[1, 3]);
    for i in 0..100 {
        queue.push(i % 2, ONE_COST, 0, i);
    }
    let mut last = [None, None];
    let now = &mut 0;
    for i in 0..100_u64 {
        let (tenant, number) = serve(&mut queue, now, 1000 * (i % 7));
        assert!(last[tenant as usize].is_none_or(|last| last < number));
        last[tenant as usize] = Some(number);
    }
}

#[test]
fn where_the_newest_is_first_tenants_still_take_turns() {
    let mut queue = queue(&[1, 3]);
    for number in 0..10 {
        queue.push(0, ONE_COST, 0, number);
        queue.push(1, ONE_COST, 0, number);
    }
    let mut now = 0;
    let mut served = [Vec::new(), Vec::new()];
    for _ in 0..12 {
        let (ticket, mut charge) = queue.next_in(Order::NewestFirst, now).expect("some wait");
        let (_, number) = queue.begin(&ticket, &mut charge, now);
        served[charge.tenant() as usize].push(number);
        now += 1_000_000;
        queue.finish(charge, now);
    }
    let [first, second] = served;
    assert!(
        second.len().abs_diff(9) <= 1,
        "three times the weight: {second:?}"
    );
    assert!(
        first.is_sorted_by(|earlier, later| earlier > later),
        "{first:?}"
    );
    assert!(
        second.is_sorted_by(|earlier, later| earlier > later),
        "{second:?}"
    );
}

/// CockroachDB had one starve: https://github.com/cockroachdb/cockroach/issues/77443.
#[test]
fn tenants_that_are_equal_take_turns() {
    let mut queue = queue(&[1; 10]);
    let now = &mut 0;
    for round in 0..20 {
        for tenant in 0..10 {
            queue.push(tenant, ONE_COST, *now, ());
            queue.push(tenant, ONE_COST, *now, ());
        }
        // Service times of nothing leave the tags as they are but for the least charge.
        let mut served: Vec<_> = (0..10).map(|_| serve(&mut queue, now, 0).0).collect();
        served.sort_unstable();
        assert_eq!(served, Vec::from_iter(0..10), "round {round}");
        for _ in 0..10 {
            serve(&mut queue, now, 0);
        }
    }
}

#[test]
fn who_was_idle_has_no_claim_to_what_it_did_not_ask_for() {
    let mut queue = queue(&[1, 1]);
    let now = &mut 0;
    // One works for a while, the other comes and goes, then both compete.
    for i in 0..1000 {
        queue.push(0, ONE_COST, *now, ());
        queue.push(0, ONE_COST, *now, ());
        serve(&mut queue, now, 1_000_000);
        if i % 100 == 0 {
            queue.push(1, ONE_COST, *now, ());
        }
    }
    let served = ops(&mut queue, now, &[1, 1], 100);
    assert!(served[1].abs_diff(50) <= 1, "{served:?}");
}

/// Somebody always has a request running, so it is never idle, but asks for less than its share.
#[test]
fn who_asked_for_little_has_no_claim_either() {
    let mut queue = queue(&[1, 1]);
    let mut now = 0;
    let mut little = queue.begin_at_once(1, ONE_COST, now);
    for _ in 0..1000 {
        let many: Vec<_> = (0..4)
            .map(|_| queue.begin_at_once(0, ONE_COST, now))
            .collect();
        now += 1_000_000;
        many.into_iter()
            .for_each(|charge| assert_eq!(queue.finish(charge, now), 1_000_000));
        let next = queue.begin_at_once(1, ONE_COST, now);
        queue.finish(mem::replace(&mut little, next), now);
    }
    queue.finish(little, now);
    let served = ops(&mut queue, &mut now, &[1, 1], 100);
    assert!(served[1].abs_diff(50) <= 1, "{served:?}");
}

#[test]
fn a_refund_leaves_no_trace() {
    let mut queue = queue(&[3, 1]);
    let now = &mut 0;
    ops(&mut queue, now, &[1, 1], 10);
    while queue.waiting() > 1 {
        serve(&mut queue, now, 1_000_000);
    }
    let (ticket, mut charge) = queue.next(*now).expect("one is left");
    queue.begin(&ticket, &mut charge, *now); // and runs all the while
    queue.catch_up(0);
    let before = (
        queue.tenants[0].tag,
        queue.tenants[0].estimate,
        queue.estimate,
    );
    for _ in 0..1000 {
        queue.push(0, cost(7), *now, ());
        while let Some((ticket, mut charge)) = queue.next(*now) {
            queue.begin(&ticket, &mut charge, *now);
            *now += 12_345;
            queue.refund(charge);
        }
    }
    let after = (
        queue.tenants[0].tag,
        queue.tenants[0].estimate,
        queue.estimate,
    );
    assert_eq!((before.1, before.2), (after.1, after.2));
    assert_eq!(
        before.0 + (1000 << STEP),
        after.0,
        "a thousand of the smallest steps"
    );
}

/// Two that flood, weights 2 to 1, of which most is refused further in: what is served is still 2 to 1.
#[test]
fn refusals_do_not_change_the_shares() {
    for refused_of_first in [2, 5, 9] {
        let mut queue = queue(&[2, 1]);
        let mut now = 0;
        let mut served = [0; 2];
        for i in 0_u64..30_000 {
            for tenant in 0..2 {
                while queue.state(tenant).waiting < 5 {
                    queue.push(tenant, ONE_COST, now, ());
                }
            }
            let (ticket, mut charge) = queue.next(now).expect("both flood");
            queue.begin(&ticket, &mut charge, now);
            let tenant = charge.tenant();
            let refused = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
            if refused < if tenant == 0 { refused_of_first } else { 4 } {
                queue.refund(charge);
            } else {
                now += 1_000_000;
                queue.finish(charge, now);
                served[tenant as usize] += 1;
            }
        }
        let ratio = f64::from(served[0]) / f64::from(served[1]);
        assert!((ratio - 2.0).abs() < 0.01, "{served:?}");
    }
}

/// CockroachDB's heap was not: https://github.com/cockroachdb/cockroach/issues/108364.
#[test]
fn a_correction_is_in_the_order_at_once() {
    let mut queue = queue(&[1, 1, 1]);
    for tenant in [0, 0, 1, 1, 2, 2] {
        queue.push(tenant, ONE_COST, 0, ());
    }
    let (ticket, mut charge) = queue.next(0).expect("six wait");
    queue.begin(&ticket, &mut charge, 0);
    let late = charge.tenant();
    queue.finish(charge, 1_000_000_000); // it was charged a nanosecond
    let now = &mut 1_000_000_000;
    let order: Vec<_> = (0..5)
        .map(|_| serve(&mut queue, now, 1_000_000).0)
        .collect();
    assert_eq!(order.last(), Some(&late));
    assert_eq!(order.iter().filter(|&&tenant| tenant == late).count(), 1);
}

#[test]
fn a_turn_that_is_anothers_by_now_is_put_back_ahead_of_its_tenants_others() {
    let mut queue = queue(&[1, 1]);
    let now = 1_000_000;
    let running = queue.begin_at_once(1, ONE_COST, 0);
    queue.push(0, ONE_COST, 0, "first");
    queue.push(0, ONE_COST, 0, "second");
    queue.push(1, ONE_COST, 0, "other");
    queue.tenants[1].tag += 100; // it was charged more than it will turn out to have used
    queue.latest += 100;
    let (ticket, charge) = queue.next(0).expect("three wait");
    assert_eq!(
        (charge.tenant(), queue.yields(&ticket, &charge, 0)),
        (0, false)
    );
    queue.tenants[0].tag += u128::from(ONE) * 1_000_000; // settled meanwhile
    queue.refund(running);
    assert!(queue.yields(&ticket, &charge, now));
    queue.put_back(&ticket, charge);
    let now = &mut { now };
    assert_eq!(serve(&mut queue, now, 10_000_000).1, "other");
    assert_eq!(serve(&mut queue, now, 10).1, "first");
    assert_eq!(serve(&mut queue, now, 10).1, "second");
}

#[test]
fn whose_requests_hang_does_not_get_seat_after_seat() {
    let mut server = Server::new(4, &[1, 1]);
    for _ in 0..20 {
        let hangs = Job {
            tenant: 0,
            id: 0,
            width: 1,
            lasts: u64::MAX / 2,
        };
        server.queue.push(0, ONE_COST, 0, hangs);
    }
    let job = Job {
        tenant: 1,
        id: 0,
        width: 1,
        lasts: 1_000_000,
    };
    for _ in 0..10 {
        server.arrive(job);
    }
    for _ in 0..1000 {
        server.end();
        server.arrive(job);
    }
    assert!(
        server.queue.state(0).running <= 3,
        "{:?}",
        server.queue.state(0)
    );
    assert!(server.now < 1_000_000 * 1001);
}

#[test]
fn a_tenant_has_no_more_running_than_it_may() {
    let mut queue = queue(&[1, 1]);
    queue.set_max_running(2);
    for tenant in [0, 0, 0, 0, 1] {
        queue.push(tenant, ONE_COST, 0, ());
    }
    let mut charges: Vec<_> = std::iter::from_fn(|| queue.next(0)).collect();
    assert_eq!(charges.len(), 3, "two of the first, one of the second");
    assert!(!queue.has_next() && queue.waiting() == 2);
    assert!(!queue.may_run(0) && queue.may_run(1));

    let (ticket, mut charge) = charges.remove(0);
    queue.begin(&ticket, &mut charge, 0);
    queue.finish(charge, 1_000_000);
    assert!(queue.next(0).is_some(), "one is done, one more may run");
    assert!(queue.next(0).is_none());
    queue.set_max_running(u32::MAX);
    assert!(queue.next(0).is_some());
}

/// Else it would have everything for itself once the cap is gone.
#[test]
fn what_a_cap_held_back_is_no_claim() {
    let mut queue = queue(&[1, 1]);
    queue.set_max_running(1);
    let mut now = 0;
    let mut hangs = None;
    for _ in 0..1000 {
        for tenant in 0..2 {
            queue.push(tenant, ONE_COST, now, ());
        }
        while let Some((ticket, mut charge)) = queue.next(now) {
            queue.begin(&ticket, &mut charge, now);
            if charge.tenant() == 0 {
                hangs = Some(charge);
            } else {
                now += 1_000_000;
                queue.finish(charge, now);
            }
        }
    }
    queue.refund(hangs.expect("the first had a turn"));
    queue.set_max_running(u32::MAX);
    let served = ops(&mut queue, &mut now, &[1, 1], 100);
    assert!(served[0].abs_diff(50) <= 1, "{served:?}");
}

#[test]
fn what_was_held_back_is_no_claim_when_the_cap_is_raised_either() {
    let mut queue = queue(&[100, 1]);
    queue.set_max_running(1);
    let mut now = 0;
    let _hangs = queue.begin_at_once(0, ONE_COST, now);
    queue.push(0, ONE_COST, now, ());
    for _ in 0..1000 {
        queue.push(1, ONE_COST, now, ());
        assert_eq!(serve(&mut queue, &mut now, 1_000_000).0, 1);
    }
    queue.set_max_running(u32::MAX);
    // One in a hundred, and ten more for each of the two seconds that the one that hangs has had.
    let served = ops(&mut queue, &mut now, &[1, 1], 1010);
    assert!(served[1].abs_diff(10 + 20) <= 2, "{served:?}");
}

/// One that had much is not let catch up because another request of its had to wait.
#[test]
fn what_was_not_begun_after_all_leaves_no_trace() {
    let mut queue: FairQueue<()> = queue(&[1, 1]);
    let running: Vec<_> = (0..8)
        .map(|_| queue.begin_at_once(0, ONE_COST, 0))
        .collect();
    for (i, charge) in running.into_iter().enumerate().skip(1) {
        queue.finish(charge, 1_000_000 * i as u64);
    }
    let before = (queue.virtual_time, queue.tenants[0].tag);
    let charge = queue.begin_at_once(0, ONE_COST, 9_000_000);
    assert!(queue.virtual_time > before.0);
    queue.take_back(charge, before.0);
    assert_eq!((queue.virtual_time, queue.tenants[0].tag), before);

    // Unless others have begun since.
    let taken_back = queue.begin_at_once(0, ONE_COST, 9_000_000);
    let begun = queue.begin_at_once(1, ONE_COST, 9_000_000);
    let _next = queue.begin_at_once(1, ONE_COST, 9_000_000);
    let now = queue.virtual_time;
    assert!(now > before.0);
    queue.take_back(taken_back, before.0);
    assert_eq!(queue.virtual_time, now);
    queue.finish(begun, 9_000_000);
}

#[test]
fn room_is_made_by_the_one_with_most_for_its_weight() {
    // (weight, waiting) of each, whose newcomer it is, and whose request goes: its last where the oldest is first, its
    // first where the newest is.
    type Row = (&'static [(u32, u32)], u32, [Option<u32>; 2]);
    let table: [Row; 7] = [
        (&[(1, 10), (1, 3), (1, 0)], 2, [Some(0), Some(0)]),
        (&[(10, 10), (1, 3), (1, 0)], 2, [Some(1), Some(1)]),
        (&[(10, 10), (1, 3), (1, 0)], 1, [None, Some(1)]),
        (&[(1, 10), (1, 3)], 0, [None, Some(0)]),
        (&[(1, 3), (1, 2)], 1, [None, Some(1)]), // it would have as many
        (&[(1, 1), (1, 0)], 1, [None, None]),
        (&[(10_000, 1000), (1, 0)], 1, [None, None]),
    ];
    let orders = [Order::OldestFirst, Order::NewestFirst];
    let table = table.into_iter().flat_map(|(tenants, newcomer, expected)| {
        let both = orders.into_iter().zip(expected);
        both.map(move |(order, expected)| (tenants, newcomer, order, expected))
    });
    for (tenants, newcomer, order, expected) in table {
        let weights: Vec<_> = tenants.iter().map(|(weight, _)| *weight).collect();
        let mut queue = queue(&weights);
        let mut last = vec![0; tenants.len()];
        let most = tenants.iter().map(|(_, waiting)| *waiting).max().unwrap();
        for i in 0..most {
            for (tenant, (_, waiting)) in tenants.iter().enumerate() {
                if i < *waiting {
                    queue.push(tenant as u32, ONE_COST, u64::from(i) + 5, i);
                    last[tenant] = i;
                }
            }
        }
        assert_eq!(queue.makes_room(newcomer, order), expected);
        let made = queue.make_room(newcomer, order);
        assert_eq!(
            made,
            expected.map(|tenant| {
                let goes = match order {
                    Order::OldestFirst => last[tenant as usize],
                    Order::NewestFirst => 0,
                };
                (tenant, u64::from(goes) + 5, goes)
            }),
            "{tenants:?}, {order:?}"
        );
    }
}

#[test]
fn a_tenant_is_forgotten_only_when_it_would_be_the_same_if_it_were_new() {
    let mut queue = queue(&[1, 1]);
    let mut now = 0;
    let ticket = queue.push(0, ONE_COST, now, ());
    assert!(!queue.remove_tenant(0), "it waits");
    queue.cancel(&ticket);
    let first = queue.begin_at_once(0, ONE_COST, now);
    let other = queue.begin_at_once(1, ONE_COST, now);
    assert!(!queue.remove_tenant(0), "it runs");
    now += 1_000_000;
    queue.finish(first, now);
    assert!(!queue.remove_tenant(0), "it had more than others");
    queue.finish(other, now);
    assert!(queue.remove_tenant(0), "nobody has anything left");
    assert_eq!(queue.add_tenant(5), 0, "its number is used again");
    assert_eq!(queue.state(0).weight, 5);
}

#[test]
fn the_parts_of_a_tenant() {
    let mut queue = queue(&[1, 3, 10]);
    assert_eq!(queue.parts(0), 1, "nobody else waits");
    queue.push(1, ONE_COST, 0, ());
    queue.push(1, ONE_COST, 0, ());
    assert_eq!((queue.parts(0), queue.parts(1)), (4, 1));
    queue.push(2, ONE_COST, 0, ());
    assert_eq!((queue.parts(0), queue.parts(1), queue.parts(2)), (14, 5, 2));
    queue.set_weight(2, 1);
    assert_eq!((queue.parts(1), queue.parts(2)), (2, 4));
}

/// The largest of everything: nobody starves, and nothing overflows.
#[test]
fn numbers_that_are_far_too_large_do_no_harm() {
    let mut queue = queue(&[1, MAX_WEIGHT]);
    let mut now = 0;
    for round in 0..1000_u64 {
        for tenant in 0..2 {
            queue.push(tenant, NonZeroU32::MAX, now, ());
        }
        for _ in 0..2 {
            let (ticket, mut charge) = queue.next(now).expect("two wait");
            queue.begin(&ticket, &mut charge, now);
            now = [u64::MAX, 0, now / 2, now][round as usize % 4];
            queue.finish(charge, now);
        }
    }
    for _ in 0..10 {
        queue.push(0, NonZeroU32::MAX, 0, ());
        queue.push(1, NonZeroU32::MAX, 0, ());
    }
    queue.tenants[0].tag = u128::MAX;
    queue.tenants[1].tag = u128::MAX;
    let mut served: Vec<_> = (0..20).map(|_| serve(&mut queue, &mut now, 1).0).collect();
    served.sort_unstable();
    assert_eq!(served, [[0; 10], [1; 10]].concat());
}

impl<T> FairQueue<T> {
    /// Everything that is kept twice agrees.
    fn assert_consistent(&self) {
        let mut waiting = 0;
        let mut weights = 0;
        for (id, tenant) in self.tenants.iter().enumerate() {
            let (mut slot, mut previous, mut count, mut last) = (tenant.head, NIL, 0, 0);
            while slot != NIL {
                let waiter = &self.slots[slot];
                assert_eq!(waiter.previous, previous);
                assert!(waiter.number > last, "in the order of arrival");
                last = waiter.number;
                (previous, slot) = (slot, waiter.next);
                count += 1;
            }
            assert_eq!((tenant.tail, tenant.waiting), (previous, count));
            waiting += count as usize;
            weights += if count > 0 {
                u64::from(tenant.weight)
            } else {
                0
            };
            let latest = self.latest.max(self.virtual_time);
            assert!(tenant.running > 0 || tenant.tag <= latest);
            assert!(self.running + self.waiting > 0 || tenant.tag <= self.virtual_time);
            let known = self.ready.get(id as u32);
            assert_eq!(
                known.is_some(),
                count > 0 && tenant.running < self.max_running
            );
            assert!(known.is_none_or(|known| known <= self.head(id as u32)));
            assert!(tenant.counted >= count);
            let known = self.backlogs.get(id as u32);
            assert_eq!(known.is_some(), tenant.counted > 0);
        }
        assert_eq!((waiting, weights), (self.waiting, self.weight_waiting));
        let running: usize = self.tenants.iter().map(|t| t.running as usize).sum();
        assert_eq!(running, self.running);
        let (mut slot, mut older, mut last) = (self.oldest, NIL, 0);
        while slot != NIL {
            let waiter = &self.slots[slot];
            assert_eq!(waiter.older, older);
            assert!(waiter.number > last);
            last = waiter.number;
            (older, slot) = (slot, waiter.newer);
        }
        assert_eq!(self.newest, older);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push { tenant: u32, cost: u32 },
    Next(Order),
    Begin(usize),
    PutBack,
    Withdraw(usize),
    Finish(usize),
    Refund(usize),
    Cancel(usize),
    MakeRoom(u32, Order),
    SetWeight { tenant: u32, weight: u32 },
    SetMaxRunning(u32),
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![2 => Just(Order::OldestFirst), 1 => Just(Order::NewestFirst)]
}

fn step() -> impl Strategy<Value = Step> {
    let any_of = 0_usize..1000;
    prop_oneof![
        8 => (0_u32..4, 1_u32..4).prop_map(|(tenant, cost)| Step::Push { tenant, cost }),
        8 => order().prop_map(Step::Next),
        6 => any_of.clone().prop_map(Step::Begin),
        2 => Just(Step::PutBack),
        1 => any_of.clone().prop_map(Step::Withdraw),
        4 => any_of.clone().prop_map(Step::Finish),
        1 => any_of.clone().prop_map(Step::Refund),
        2 => any_of.prop_map(Step::Cancel),
        1 => (0_u32..4, order()).prop_map(|(tenant, order)| Step::MakeRoom(tenant, order)),
        1 => (0_u32..4, 1_u32..20).prop_map(|(tenant, weight)| Step::SetWeight { tenant, weight }),
        1 => (1_u32..4).prop_map(Step::SetMaxRunning),
    ]
}

proptest! {
    #[test]
    fn whatever_is_done_everything_agrees(steps in prop::collection::vec(step(), 1..300)) {
        let mut queue = queue(&[1, 2, 3, 10]);
        let mut now = 0;
        let mut waiting: Vec<Ticket> = Vec::new();
        let mut turns: Vec<(Ticket, Charge)> = Vec::new();
        let mut running: Vec<Charge> = Vec::new();
        let mut newest = Vec::new(); // those that were next as such
        // The time stands still but at a completion, so none is over its charge meanwhile.
        let pick = |len: usize, n: usize| (len > 0).then(|| n % len);
        for step in steps {
            match step {
                Step::Push { tenant, cost: each } => {
                    waiting.push(queue.push(tenant, cost(each), now, ()));
                }
                Step::Next(order) => {
                    // No request is over its charge in this test, so it is simply the smallest tag.
                    let ready = (0..4).filter(|id| queue.is_ready(*id));
                    let keys = ready.map(|id| queue.head(id));
                    let smallest = keys.min();
                    prop_assert_eq!(queue.fairest(now).map(|(head, _)| head), smallest);
                    if let Some((ticket, charge)) = queue.next_in(order, now) {
                        waiting.retain(|waiting| *waiting != ticket);
                        let own = waiting.iter().filter(|one| queue.slots[one.slot].tenant == charge.tenant);
                        let is_in_order = own.map(|one| one.number).all(|other| match order {
                            Order::OldestFirst => ticket.number < other,
                            Order::NewestFirst => ticket.number > other,
                        });
                        prop_assert!(is_in_order);
                        if order == Order::NewestFirst {
                            newest.push(ticket.number);
                        }
                        turns.push((ticket, charge));
                    }
                }
                Step::Begin(n) => if let Some(i) = pick(turns.len(), n) {
                    let (ticket, mut charge) = turns.remove(i);
                    queue.begin(&ticket, &mut charge, now);
                    running.push(charge);
                },
                // One that has the turn is put back before a later one of its tenant's is next.
                Step::PutBack => if let Some((ticket, charge)) = turns.pop_if(|(ticket, _)| !newest.contains(&ticket.number)) {
                    queue.put_back(&ticket, charge);
                    waiting.push(ticket);
                },
                Step::Withdraw(n) => if let Some(i) = pick(turns.len(), n) {
                    let (ticket, charge) = turns.remove(i);
                    queue.withdraw(&ticket, charge);
                },
                Step::Finish(n) => if let Some(i) = pick(running.len(), n) {
                    let charge = running.swap_remove(i);
                    now += 10 * (n as u64 % 100);
                    queue.finish(charge, now);
                    // Whatever else runs has only begun now.
                    for charge in &mut running {
                        let begun = &mut queue.tenants[charge.tenant as usize].begun;
                        let since = charge.begun.replace(now).unwrap();
                        begun.since += u128::from(now - since) * u128::from(charge.cost.get());
                    }
                },
                Step::Refund(n) => if let Some(i) = pick(running.len(), n) {
                    queue.refund(running.swap_remove(i));
                },
                Step::Cancel(n) => if let Some(i) = pick(waiting.len(), n) {
                    queue.cancel(&waiting.swap_remove(i));
                },
                Step::MakeRoom(tenant, order) => {
                    let backlogs = queue.tenants.iter().map(|t| backlog(t.waiting, t.price));
                    let largest = backlogs.max().filter(|backlog| *backlog > 0);
                    prop_assert_eq!(queue.largest_backlog().map(|(_, backlog)| backlog), largest);
                    if queue.make_room(tenant, order).is_some() {
                        let gone = waiting.iter().position(|waiting| queue.with(waiting).is_none());
                        waiting.swap_remove(gone.expect("one of those that wait"));
                    }
                }
                Step::SetWeight { tenant, weight } => queue.set_weight(tenant, weight),
                Step::SetMaxRunning(max) => queue.set_max_running(max),
            }
            queue.assert_consistent();
            prop_assert_eq!(queue.waiting(), waiting.len());
            prop_assert_eq!(queue.running(), turns.len() + running.len());
        }
    }
}

#[test]
fn what_begins_at_once_catches_up_and_virtual_time_never_goes_back() {
    let mut queue: FairQueue<()> = queue(&[1, 1]);
    let mut now = 0;
    let hangs = queue.begin_at_once(0, ONE_COST, now);
    for _ in 0..10 {
        let charge = queue.begin_at_once(0, ONE_COST, now);
        now += 1_000_000;
        queue.finish(charge, now);
    }
    let before = queue.virtual_time;
    assert!(before > 0);
    let charge = queue.begin_at_once(1, ONE_COST, now);
    assert_eq!(queue.virtual_time, before);
    assert_eq!(queue.tenants[1].tag, before + charge.amount());
    queue.finish(charge, now);
    queue.finish(hangs, now);
}

#[test]
fn what_began_uncharged_is_charged_late_at_the_weight_of_then_from_where_the_others_were() {
    let mut queue: FairQueue<()> = queue(&[1, 1]);
    let charge = queue.begin_at_once(1, ONE_COST, 0);
    queue.finish(charge, 1000);
    queue.begin_uncharged(0, cost(3));
    assert_eq!((queue.running(), queue.state(0).running), (1, 1));
    queue.push(1, ONE_COST, 1000, ());
    let began = queue.virtual_time;
    queue.set_weight(0, 2);
    queue.end_uncharged(0, cost(3));
    queue.charge_late(0, 1500);
    let used = 1500 * u128::from(ONE) / 2;
    assert_eq!(queue.tenants[0].tag, began + used + (1 << STEP));
    assert_eq!((queue.running(), queue.state(0).running), (0, 0));
}

#[test]
fn a_tenant_whose_requests_began_uncharged_waits_behind_one_that_has_none() {
    let mut queue: FairQueue<()> = queue(&[1, 1]);
    queue.begin_uncharged(0, ONE_COST);
    queue.set_busy_since(1000);
    queue.push(0, ONE_COST, 1000, ());
    queue.push(1, ONE_COST, 1000, ());
    let (_, charge) = queue.next(1000).expect("some wait");
    assert_eq!(charge.tenant(), 1, "it came later, and has had nothing");
    queue.refund(charge);
    // As long as it lasts, it counts for what it uses.
    queue.push(1, ONE_COST, 1000, ());
    let (_, charge) = queue.next(500_000).expect("some wait");
    assert_eq!(charge.tenant(), 1);
    queue.refund(charge);
    queue.push(1, ONE_COST, 500_000, ());
    queue.end_uncharged(0, ONE_COST); // and is refunded
    let (_, charge) = queue.next(500_000).expect("some wait");
    assert_eq!(charge.tenant(), 0);
    queue.refund(charge);
}

#[test]
fn one_that_gives_up_its_turn_is_charged_nothing() {
    let mut queue = queue(&[1, 1]);
    let mut now = 0;
    ops(&mut queue, &mut now, &[1, 1], 10);
    let (ticket, charge) = queue.next(now).expect("some wait");
    let tenant = charge.tenant();
    let before = queue.tenants[tenant as usize].tag - charge.amount();
    queue.withdraw(&ticket, charge);
    assert_eq!(queue.tenants[tenant as usize].tag, before + (1 << STEP));
}

#[test]
fn what_was_begun_is_settled_at_the_weight_of_then() {
    let mut queue: FairQueue<()> = queue(&[1, 1]);
    let charge = queue.begin_at_once(0, ONE_COST, 0);
    let before = queue.tenants[0].tag - charge.amount();
    queue.set_weight(0, 100);
    queue.finish(charge, 1_000_000);
    let used = u128::from(ONE) * 1_000_000;
    assert_eq!(queue.tenants[0].tag - before, used + (1 << STEP));
}

/// And what it is over by, at the weight of now: the two must not leave it too far behind.
#[test]
fn a_weight_that_is_lowered_while_a_request_overruns_starves_nobody() {
    let mut queue = queue(&[10, 1]);
    let hangs = queue.begin_at_once(0, ONE_COST, 0);
    let mut now = 1_000_000_000;
    queue.set_weight(0, 1);
    (0..3).for_each(|_| assert!(queue.push(0, ONE_COST, now, ()).number > 0));
    queue.push(1, ONE_COST, now, ());
    assert_eq!(serve(&mut queue, &mut now, 1_000_000).0, 1);
    queue.push(1, ONE_COST, now, ());
    assert_eq!(serve(&mut queue, &mut now, 1_000_000).0, 1); // what hangs was looked at
    assert!(queue.ready.get(0) > Some(queue.head(0)));
    queue.finish(hangs, now);
    let mut served = 0;
    loop {
        queue.push(1, ONE_COST, now, ());
        if serve(&mut queue, &mut now, 1_000_000).0 == 0 {
            break;
        }
        served += 1;
        assert!(
            served <= 110,
            "it used a second at weight 10: a hundred requests at weight 1"
        );
    }
}

#[test]
fn a_tenant_of_which_nothing_is_known_is_expected_to_be_like_the_others() {
    let mut queue: FairQueue<()> = queue(&[1, 1]);
    let charge = queue.begin_at_once(0, ONE_COST, 0);
    queue.finish(charge, 5_000_000);
    let charge = queue.begin_at_once(1, ONE_COST, 5_000_000);
    assert_eq!(charge.paid, 5_000_000);
    queue.refund(charge);
}

/// It takes a while until steps are counted anew; the order stays.
#[test]
fn the_order_stays_when_steps_are_counted_anew() {
    let far = 1_u128 << (STEP + 64);
    let mut queue = queue(&[1; 9]);
    for (tenant, ahead) in [5, 2, 8, 1, 9, 3, 7, 6, 4].into_iter().enumerate() {
        queue.tenants[tenant].tag = far + ahead * u128::from(ONE) * 1_000_000_000;
        queue.push(tenant as u32, ONE_COST, 0, ());
    }
    let now = &mut 0;
    let first = serve(&mut queue, now, 1).0; // all were as far ahead as can be counted
    assert!(queue.origin > 0);
    let rest: Vec<_> = (1..9).map(|_| serve(&mut queue, now, 1).0).collect();
    let behind = queue.tenants[first as usize].tag;
    let tags = rest
        .iter()
        .map(|tenant| queue.tenants[*tenant as usize].tag);
    // Those that the first one was ahead of are as good as equal now; the others come in their order.
    let tags: Vec<_> = tags.filter(|tag| *tag > behind).collect();
    assert!(tags.is_sorted(), "{first} {rest:?}");
}

#[test]
fn a_number_that_is_used_again_has_no_backlog() {
    let mut queue = queue(&[1, 1, 1]);
    let tickets: Vec<_> = (0..9).map(|_| queue.push(0, ONE_COST, 0, ())).collect();
    tickets.iter().for_each(|ticket| queue.cancel(ticket));
    assert!(queue.remove_tenant(0));
    assert_eq!(queue.backlogs.get(0), None);
    queue.add_tenant(1);
    (0..3).for_each(|_| assert!(queue.push(1, ONE_COST, 0, ()).number > 0));
    assert_eq!(queue.make_room(2, Order::OldestFirst), Some((1, 0, ())));
}

#[test]
fn one_that_nobody_is_known_to_be_ahead_of_keeps_its_turn() {
    let tenants = 3 * LOOKS as u32; // too many to look at all of them: once for the turn, once more to keep it
    let mut queue = queue(&vec![1; tenants as usize]);
    // Each has one request that is far over what was charged for it, and one that waits.
    for tenant in 0..tenants {
        let _hangs = queue.begin_at_once(tenant, ONE_COST, 0);
        queue.push(tenant, ONE_COST, 0, ());
    }
    let now = 1_000_000_000;
    let (ticket, charge) = queue.next(now).expect("all wait");
    assert!(
        !queue.yields(&ticket, &charge, now),
        "all are as far over, as far as is known"
    );
}
