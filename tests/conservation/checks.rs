//! What has to hold when everybody has gone.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use tower_backpressure::{
    Rejected, concurrency_limit,
    wfq::{self, TenantSnapshot},
};

use crate::{
    handles::{Control, Taken, WITH_OWN_LIMIT},
    own::Own,
    stack::Plan,
    world::{TENANTS, World},
};

pub fn all(world: &World, plan: &Plan, own: &Arc<Own>) -> Result<(), String> {
    idle(&own.control).map_err(|found| format!("not idle: {found}"))?;
    counts(world, plan, own).map_err(|found| format!("counts wrongly: {found}"))
}

/// Nothing is in flight, and nothing waits. What is wrong, if anything is.
pub fn idle(control: &Control) -> Result<(), String> {
    match control {
        Control::Limit(handle) => idle_gate(&handle.snapshot()),
        Control::Adaptive(handle) => idle_gate(&handle.snapshot().permits),
        Control::Rate(handle) => is(handle.snapshot().waiting == 0, &handle.snapshot()),
        Control::KeyedRate(handle) => is(handle.snapshot().waiting == 0, &handle.snapshot()),
        Control::KeyedLimit(handle) => {
            let seen = handle.snapshot();
            is(
                (seen.in_flight, seen.waiting, seen.keys) == (0, 0, 0),
                &seen,
            )?;
            let known = (WITH_OWN_LIMIT..TENANTS).find_map(|key| handle.key(&key));
            is(known.is_none(), &known)
        }
        Control::CoDel(handle) => is(handle.snapshot().in_flight == 0, &handle.snapshot()),
        Control::Wfq(handle) => idle_wfq(handle),
        Control::Edge(handle) => {
            idle_gate(&handle.snapshot().permits)?;
            idle_tenants(handle.tenants())
        }
        Control::Shadow(_, trial) => trial.iter().try_for_each(idle),
        Control::Shed
        | Control::Breaker(_)
        | Control::KeyedBreaker(_)
        | Control::Saturation(..) => Ok(()),
    }
}

fn is(right: bool, seen: &impl std::fmt::Debug) -> Result<(), String> {
    match right {
        true => Ok(()),
        false => Err(format!("{seen:?}")),
    }
}

fn idle_gate(seen: &concurrency_limit::Snapshot) -> Result<(), String> {
    is(
        (seen.in_flight, seen.waiting) == (0, 0) && seen.oldest_wait.is_none(),
        seen,
    )
}

fn idle_wfq(handle: &wfq::Handle) -> Result<(), String> {
    let seen = handle.snapshot();
    is(
        (seen.running, seen.waiting) == (0, 0) && seen.oldest_wait.is_none(),
        &seen,
    )?;
    idle_tenants(handle.tenants())
}

fn idle_tenants(tenants: Vec<TenantSnapshot>) -> Result<(), String> {
    let mut tenants = tenants.iter();
    tenants.try_for_each(|tenant| is((tenant.running, tenant.waiting) == (0, 0), tenant))
}

/// What a layer has counted is what meters saw outside and inside it.
fn counts(world: &World, plan: &Plan, own: &Arc<Own>) -> Result<(), String> {
    let (came, sent) = (own.above.calls(), own.below.calls());
    let delivered = own.above.rejections.load(SeqCst);
    let refused_inside = own.below.errors_of_rejection.load(SeqCst);
    // A future that panics when it is dropped takes along what it has ended with.
    let may_panic = world.faults.drop_panics + world.faults.service_drop_panics > 0;
    let least_refused_inside = if may_panic { 0 } else { refused_inside };
    let is_refused_inside = |refused| (least_refused_inside..=refused_inside).contains(&refused);
    let acquired = own.acquired.load(SeqCst);
    let refused = own.refused.load(SeqCst);
    let most_live = own.below.most_live.load(SeqCst);
    let most = own.most.load(SeqCst);
    let stopped = came.checked_sub(sent);
    let stopped = stopped.ok_or(format!("{came} came, and {sent} were sent"))?;
    let found = |what: &str, seen: &dyn std::fmt::Debug| {
        format!(
            "{what}: {came} came, {sent} were sent, {most_live} at once, {refused_inside} were refused inside, {delivered} rejections were delivered; \
             handles acquired {acquired} and were refused {refused}; {seen:?}"
        )
    };
    let check = |right: bool, what: &str, seen: &dyn std::fmt::Debug| match right {
        true => Ok(()),
        false => Err(found(what, seen)),
    };
    let within = |rejected: Rejected, seen: &dyn std::fmt::Debug| {
        let least = stopped + refused;
        let most = least + plan.shed_outside(own);
        check((least..=most).contains(&rejected.total()), "rejected", seen)
    };
    match &own.control {
        Control::Limit(handle) => {
            let seen = handle.snapshot();
            check(seen.admitted == sent + acquired, "admitted", &seen)?;
            within(seen.rejected, &seen)?;
            check(most_live <= most, "more than the limit", &seen)
        }
        Control::Adaptive(handle) => {
            let seen = handle.snapshot().permits;
            check(seen.admitted == sent + acquired, "admitted", &seen)?;
            within(seen.rejected, &seen)?;
            check(most_live <= most, "more than the limit", &seen)
        }
        Control::Rate(handle) => {
            let seen = handle.snapshot();
            check(seen.admitted == sent + acquired, "admitted", &seen)?;
            within(seen.rejected, &seen)
        }
        Control::KeyedLimit(handle) => {
            let seen = handle.snapshot();
            let totals = seen.totals;
            let rejected = totals.rejected + totals.timed_out + totals.expired;
            let ended = totals.completed + rejected + totals.cancelled;
            check(
                (totals.enqueued, totals.completed) == (came, sent),
                "totals",
                &seen,
            )?;
            check(ended == came, "the sum of totals", &seen)?;
            check(rejected >= delivered, "rejected", &seen)?;
            let most_live = own.below.most_live_of_one.load(SeqCst);
            check(most_live <= most, "more than the limit", &(most_live, seen))
        }
        Control::KeyedRate(handle) => {
            // One that has waited may be dropped before it is sent, after its token was spent or before.
            let seen = handle.snapshot();
            let rejected = seen.rejected.total();
            check(seen.admitted >= sent + acquired, "admitted", &seen)?;
            check(
                // One that had its token may have been rejected when its deadline passed.
                seen.admitted + rejected <= came + acquired + refused + seen.rejected.deadline,
                "admitted or rejected",
                &seen,
            )?;
            check(rejected >= delivered + refused, "rejected", &seen)
        }
        Control::CoDel(handle) => {
            let seen = handle.snapshot();
            check(seen.admitted == sent + acquired, "admitted", &seen)?;
            check(
                seen.rejected.total() == stopped + refused,
                "rejected",
                &seen,
            )?;
            check(most_live <= most, "more than the limit", &seen)
        }
        Control::Wfq(handle) => {
            let seen = handle.snapshot();
            let rejected = seen.rejected.total();
            check(
                seen.served + seen.refused == sent,
                "served or refused",
                &seen,
            )?;
            check(is_refused_inside(seen.refused), "refused", &seen)?;
            let priorities = &seen.priorities;
            let sum = priorities.iter().map(|of| of.rejected).sum::<u64>();
            check(sum == rejected, "priorities", &seen)?;
            check((delivered..=stopped).contains(&rejected), "rejected", &seen)
        }
        Control::Edge(handle) => {
            let seen = handle.snapshot();
            let tenants = handle.tenants();
            let permits = &seen.permits;
            check(seen.refused >= least_refused_inside, "refused", &seen)?;
            // What the service was not ready for was admitted, and is refused.
            check(
                permits.admitted == seen.served + seen.refused + acquired,
                "admitted",
                &seen,
            )?;
            let admitted = permits.admitted - acquired;
            check(
                (sent..=came).contains(&admitted),
                "served or refused",
                &seen,
            )?;
            let priorities = &seen.priorities;
            let sums = priorities.iter().fold((0, 0), |(rejected, waits), of| {
                (rejected + of.rejected, waits + of.waits.count())
            });
            let all = (permits.rejected.total(), permits.waits.count());
            check(priorities.is_empty() || sums == all, "priorities", &seen)?;
            let rejected = permits.rejected.total().checked_sub(refused);
            let rejected = rejected.ok_or_else(|| found("refused by the handle", &seen))?;
            check(
                (delivered..=came - admitted).contains(&rejected),
                "rejected",
                &seen,
            )?;
            // Tenants that were forgotten take their counts along.
            let of_tenants = |count: fn(&TenantSnapshot) -> u64| tenants.iter().map(count).sum();
            let (served, refused): (u64, u64) =
                (of_tenants(|one| one.served), of_tenants(|one| one.refused));
            check(
                served <= seen.served && refused <= seen.refused,
                "of all tenants",
                &(&seen, tenants),
            )?;
            check(most_live <= most, "more than the limit", &seen)
        }
        Control::Breaker(handle) => {
            let seen = handle.snapshot();
            check(seen.rejected == stopped, "rejected", &seen)
        }
        Control::KeyedBreaker(handle) => {
            let seen = handle.snapshot();
            check(seen.rejected == stopped, "rejected", &seen)
        }
        Control::Saturation(handle, _) => {
            let seen = handle.snapshot();
            let rejected = seen.rejected_at_critical + seen.rejected_at_overflow;
            check(
                (seen.admitted, rejected) == (sent, stopped),
                "admitted, rejected",
                &seen,
            )
        }
        Control::Shadow(handle, _) => {
            let seen = handle.snapshot();
            let right = seen.requests == came && stopped == 0;
            check(
                right && seen.waited + seen.refused <= 2 * came,
                "requests",
                &seen,
            )
        }
        Control::Shed => Ok(()),
    }
}

/// All permits of a limit can be had at once, and no more. To be asked of one that is idle.
pub fn all_permits(own: &Own) -> Result<(), String> {
    let (limit, permits): (_, Vec<_>) = match &own.control {
        Control::Limit(handle) => {
            let limit = handle.snapshot().limit;
            let permits = (0..=limit).map_while(|_| handle.try_acquire().ok());
            (limit, permits.map(Taken::from).collect())
        }
        Control::Adaptive(handle) => {
            let limit = handle.snapshot().permits.limit;
            let permits = (0..=limit).map_while(|_| handle.try_acquire().ok());
            (limit, permits.map(Taken::from).collect())
        }
        Control::Edge(handle) => {
            let limit = handle.snapshot().permits.limit;
            let permits = (0..=limit).map_while(|_| handle.try_acquire().ok());
            (limit, permits.map(Taken::from).collect())
        }
        _ => return Ok(()),
    };
    own.acquired.fetch_add(permits.len() as u64, SeqCst);
    own.refused
        .fetch_add((permits.len() <= limit).into(), SeqCst);
    match permits.len() == limit {
        true => Ok(()),
        false => Err(format!("{} of {limit} permits can be had", permits.len())),
    }
}
