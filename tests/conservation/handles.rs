//! What can be asked of a layer's handle, and done to it.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tower_backpressure::{
    CoDelConfig, Permit, Rate, SubmittedAt, WfqConfig, adaptive_concurrency, circuit_breaker,
    codel, concurrency_limit, config::EdgeConfig, edge, keyed_circuit_breaker,
    keyed_concurrency_limit, keyed_rate_limit, rate_limit, saturation, shadow, wfq,
};

use crate::{
    draw,
    own::Own,
    world::{Mode, NAMES, Rng, TENANTS},
};

pub enum Control {
    Limit(concurrency_limit::Handle),
    Adaptive(adaptive_concurrency::Handle),
    Rate(rate_limit::Handle),
    KeyedLimit(keyed_concurrency_limit::Handle),
    KeyedRate(keyed_rate_limit::Handle),
    CoDel(codel::Handle),
    Wfq(wfq::Handle),
    Edge(edge::Handle),
    Shed,
    Breaker(circuit_breaker::Handle),
    KeyedBreaker(keyed_circuit_breaker::Handle),
    /// With how much is in its queue, of 10.
    Saturation(saturation::Handle, Arc<AtomicUsize>),
    /// With those of the layers on trial.
    Shadow(shadow::Handle, Vec<Control>),
}

/// So many keys may have a limit of their own. The others are known only while they are in use.
pub const WITH_OWN_LIMIT: usize = 2;

/// Changes something while the layer is in use.
pub fn change(own: &Own, mode: Mode, rng: &mut Rng) {
    let limit = rng.between(1, 5) as usize;
    let raise = || _ = own.most.fetch_max(limit, SeqCst);
    let waiting = rng.pick(&[0, 2, 1024]);
    let wait = rng.once_in(3).then(|| mode.bound(rng, 100));
    let tenant = rng.below(TENANTS as u64) as usize;
    match &own.control {
        Control::Limit(handle) => match rng.below(4) {
            0 => handle.set_max_waiting(waiting),
            1 => handle.set_max_wait(wait),
            _ => {
                raise();
                handle.set_limit(limit).unwrap();
            }
        },
        Control::Adaptive(handle) => change_adaptive(handle, rng, raise, limit),
        Control::Rate(handle) => match rng.below(3) {
            0 => handle.set_max_waiting(waiting),
            1 => handle.set_max_wait(wait),
            _ => handle.set_rate(draw::rate(mode, rng)),
        },
        Control::KeyedLimit(handle) => match rng.below(6) {
            0 => handle.set_max_waiting(waiting),
            1 => handle.set_max_wait(wait),
            2 => handle.remove_limit_of(&tenant),
            3 => {
                raise();
                let key = tenant % WITH_OWN_LIMIT;
                handle.set_limit_of(&key, limit).unwrap();
            }
            // In what order the waiters of several keys are woken is not decided by the seed.
            _ if mode.is_paused() && keys_with_waiters(handle) > 1 => {}
            _ => {
                raise();
                handle.set_limit(limit).unwrap();
            }
        },
        Control::KeyedRate(handle) => match rng.below(3) {
            0 => handle.set_max_wait(wait),
            _ => handle.set_rate(draw::rate(mode, rng)),
        },
        Control::CoDel(handle) => {
            let (config, max) = draw::codel_config(rng);
            own.most.fetch_max(max as usize, SeqCst);
            handle.apply(&config).unwrap();
        }
        Control::Wfq(handle) => change_wfq(handle, mode, rng),
        Control::Edge(handle) => match rng.below(9) {
            0 => handle.unpin(),
            1 | 2 => {
                raise();
                handle.pin(limit).unwrap();
            }
            3 | 4 => {
                let (config, max) = draw::edge_config(mode, rng);
                own.most.fetch_max(max as usize, SeqCst);
                handle.apply(&config).unwrap();
            }
            5 => handle.set_max_waiting(rng.pick(&[0, 2, 1024])),
            6 => handle.set_max_in_flight_per_tenant(NonZeroU32::new(rng.below(3) as u32)),
            7 => handle.set_default_weight(rng.between(1, 9) as u32).unwrap(),
            _ => {
                let weight = rng.between(1, 100) as u32;
                handle.set_weight(rng.pick(&NAMES), weight).unwrap();
            }
        },
        Control::Breaker(handle) => match rng.below(4) {
            0 => handle.force_open(),
            1 => handle.apply(&draw::breaker_config(mode, rng)).unwrap(),
            _ => handle.reset(),
        },
        Control::KeyedBreaker(handle) => match rng.below(3) {
            0 => handle.force_open(&tenant).unwrap(),
            _ => handle.reset(&tenant),
        },
        Control::Saturation(_, depth) => depth.store(rng.pick(&[0, 5, 12]), SeqCst),
        Control::Shed | Control::Shadow(..) => {}
    }
}

fn change_adaptive(
    handle: &adaptive_concurrency::Handle,
    rng: &mut Rng,
    raise: impl Fn(),
    limit: usize,
) {
    match rng.below(3) {
        0 => handle.unpin(),
        _ => {
            raise();
            handle.pin(limit).unwrap();
        }
    }
}

fn change_wfq(handle: &wfq::Handle, mode: Mode, rng: &mut Rng) {
    match rng.below(5) {
        0 => handle.apply(&draw::wfq_config(mode, rng)).unwrap(),
        1 => handle.set_max_waiting(rng.pick(&[0, 2, 1024])),
        2 => handle.set_max_in_flight_per_tenant(NonZeroU32::new(rng.below(3) as u32)),
        3 => handle.set_default_weight(rng.between(1, 9) as u32).unwrap(),
        _ => {
            let weight = rng.between(1, 100) as u32;
            handle.set_weight(rng.pick(&NAMES), weight).unwrap();
        }
    }
}

/// As many as can be told; those of requests without a key are one more.
fn keys_with_waiters(handle: &keyed_concurrency_limit::Handle) -> usize {
    let waiting = (0..TENANTS).filter_map(|key| Some(handle.key(&key)?.waiting));
    let waiting: Vec<_> = waiting.filter(|&waiting| waiting > 0).collect();
    let others = handle.snapshot().waiting - waiting.iter().sum::<usize>();
    waiting.len() + usize::from(others > 0)
}

/// What a handle has taken, until it is dropped.
#[allow(dead_code, reason = "it is held")]
pub enum Taken {
    Permit(Permit),
    OfEdge(edge::Permit),
}

impl From<Permit> for Taken {
    fn from(permit: Permit) -> Self {
        Self::Permit(permit)
    }
}

impl From<edge::Permit> for Taken {
    fn from(permit: edge::Permit) -> Self {
        Self::OfEdge(permit)
    }
}

/// Takes something by the handle, where that can be done without waiting.
pub fn try_acquire(own: &Own, rng: &mut Rng) -> Option<Taken> {
    let taken = match &own.control {
        Control::Limit(handle) => handle.try_acquire().map(|permit| Some(permit.into())),
        Control::Adaptive(handle) => handle.try_acquire().map(|permit| Some(permit.into())),
        Control::Edge(handle) => handle.try_acquire().map(|permit| Some(permit.into())),
        Control::CoDel(handle) => {
            let permit = handle.try_acquire(SubmittedAt::now());
            permit.map(|permit| Some(permit.into()))
        }
        Control::Rate(handle) => handle.try_acquire(1).map(|()| None),
        Control::KeyedRate(handle) => {
            let key = rng.below(TENANTS as u64) as usize;
            handle.try_acquire(&key).map(|()| None)
        }
        _ => return None,
    };
    match taken {
        Ok(permit) => {
            own.acquired.fetch_add(1, SeqCst);
            permit
        }
        Err(_) => {
            own.refused.fetch_add(1, SeqCst);
            None
        }
    }
}

/// Opens everything, but for limits on what is inside at once: those let in so many of one tenant.
pub fn open(own: &Own, room: usize) {
    let ample = Rate::per_second(1_000_000).burst(1000);
    own.most.fetch_max(room, SeqCst);
    match &own.control {
        Control::Limit(handle) => {
            handle.set_max_waiting(1024);
            handle.set_max_wait(None);
            handle.set_limit(room).unwrap();
        }
        Control::Adaptive(handle) => {
            open_adaptive(handle, room);
        }
        Control::Rate(handle) => {
            handle.set_max_waiting(1024);
            handle.set_max_wait(None);
            handle.set_rate(ample);
        }
        Control::KeyedLimit(handle) => {
            handle.set_max_waiting(1024);
            handle.set_max_waiting_per_key(1024);
            handle.set_max_wait(None);
            (0..TENANTS).for_each(|key| handle.remove_limit_of(&key));
            handle.set_limit(room).unwrap();
        }
        Control::KeyedRate(handle) => {
            handle.set_rate(ample);
            handle.set_max_wait(Some(Duration::from_secs(60)));
            if let Some(global) = handle.global() {
                global.set_rate(ample);
            }
        }
        Control::CoDel(handle) => {
            handle.apply(&open_codel(room)).unwrap();
        }
        Control::Wfq(handle) => open_wfq(handle),
        Control::Edge(handle) => {
            let wfq = WfqConfig::default().max_waiting_per_tenant(1024);
            open_edge(handle, room, wfq);
        }
        Control::Breaker(handle) => handle.reset(),
        Control::KeyedBreaker(handle) => (0..TENANTS).for_each(|key| handle.reset(&key)),
        Control::Saturation(_, depth) => depth.store(0, SeqCst),
        Control::Shed | Control::Shadow(..) => {}
    }
}

fn open_adaptive(handle: &adaptive_concurrency::Handle, limit: usize) {
    handle.set_max_waiting(1024);
    handle.set_max_wait(None);
    handle.pin(limit).unwrap();
}

fn open_codel(limit: usize) -> CoDelConfig {
    CoDelConfig::default()
        .min_concurrency(limit)
        .max_concurrency(limit)
}

pub fn open_edge(handle: &edge::Handle, limit: usize, wfq: WfqConfig) {
    let mut config = EdgeConfig::default();
    config.wfq = wfq.max_waiting(1024).max_wait(None);
    config.codel = open_codel(limit);
    config.adaptive.pinned = Some(limit);
    handle.apply(&config).unwrap();
}

fn open_wfq(handle: &wfq::Handle) {
    handle.set_max_waiting(1024);
    handle.set_max_waiting_per_tenant(1024);
    handle.set_max_wait(None);
    handle.set_max_in_flight_per_tenant(None);
}

/// Lets nothing more in, in those layers in which those who wait can be let in again later.
pub fn choke(own: &Own) {
    match &own.control {
        Control::Rate(handle) => handle.set_rate(Rate::per_hour(1).burst(1)),
        Control::Wfq(handle) => handle.set_max_in_flight_per_tenant(Some(NonZeroU32::MIN)),
        _ => {}
    }
}
