//! Layers of this crate with random settings.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ByStatus, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig,
    CoDelLayer, ConcurrencyLimitLayer, Deadline, KeyedCircuitBreakerLayer,
    KeyedConcurrencyLimitLayer, KeyedRateLimitLayer, LoadShedLayer, Rate, RateLimitLayer,
    SaturationLayer, ShadowLayer, WfqConfig, WfqLayer,
    config::{AdaptiveConcurrencyConfig, EdgeConfig, Law},
    deadline::FromRequest,
    edge,
    saturation::Work,
};

use crate::{
    handles::Control,
    world::{Answer, Asked, Mode, Rng, Stack, TENANTS, key, tenant},
};

/// A layer that was drawn.
pub struct Drawn {
    pub text: String,
    pub control: Control,
    pub wrap: Box<dyn Fn(Stack) -> Stack + Send + Sync>,
    /// The highest limit that there has been.
    pub most: usize,
}

impl Drawn {
    fn new<F>(text: impl Into<String>, control: Control, wrap: F) -> Self
    where
        F: Fn(Stack) -> Stack + Send + Sync + 'static,
    {
        Self {
            text: text.into(),
            control,
            wrap: Box::new(wrap),
            most: usize::MAX,
        }
    }

    fn most(self, most: u64) -> Self {
        let most = most as usize;
        Self { most, ..self }
    }
}

fn boxed<S>(service: S) -> Stack
where
    S: Service<Asked, Response = Answer, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    BoxCloneService::new(service)
}

fn by_layer<L>(layer: L) -> impl Fn(Stack) -> Stack + Send + Sync + 'static
where
    L: Layer<Stack> + Send + Sync + 'static,
    L::Service: Service<Asked, Response = Answer, Error = BoxError, Future: Send>,
    L::Service: Clone + Send + 'static,
{
    move |inner| boxed(layer.layer(inner))
}

/// With a body that holds a permit, and possibly with no errors.
fn with_body<L, B>(layer: L) -> impl Fn(Stack) -> Stack + Send + Sync + 'static
where
    L: Layer<Stack> + Send + Sync + 'static,
    L::Service: Service<Asked, Response = Response<B>, Error: Into<BoxError>, Future: Send>,
    L::Service: Clone + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    move |inner| {
        let service = layer.layer(inner).map_err(Into::into);
        boxed(service.map_response(|response: Response<B>| {
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        }))
    }
}

fn to_body_end<L, B>(text: String, control: Control, layer: L) -> Drawn
where
    L: Layer<Stack> + Send + Sync + 'static,
    L::Service: Service<Asked, Response = Response<B>, Error: Into<BoxError>, Future: Send>,
    L::Service: Clone + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    Drawn::new(text + ", to body end", control, with_body(layer))
}

/// Most often nobody may wait, a few, or all of them; and most often for any time.
fn bounds(mode: Mode, rng: &mut Rng) -> (usize, Option<Duration>) {
    let waiting = rng.pick(&[0, 1, 3, 1024, 1024, 1024]);
    (waiting, rng.once_in(3).then(|| mode.bound(rng, 100)))
}

/// How long after it came a request's deadline is.
fn patience(mode: Mode, rng: &mut Rng) -> Option<Duration> {
    rng.once_in(3).then(|| mode.bound(rng, 100))
}

pub fn limit(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let max = rng.between(1, 4);
    let (waiting, wait) = bounds(mode, rng);
    let mut layer = ConcurrencyLimitLayer::new(max as usize)
        .max_waiting(waiting)
        .name(name);
    if let Some(wait) = wait {
        layer = layer.max_wait(wait);
    }
    let text = format!("{max}, waiting {waiting}, wait {wait:?}");
    let control = Control::Limit(layer.handle());
    match rng.once_in(3) {
        true => to_body_end(text, control, layer.hold_until_body_end()),
        false => Drawn::new(text, control, by_layer(layer)),
    }
    .most(max)
}

fn adaptive_config(rng: &mut Rng) -> (AdaptiveConcurrencyConfig, u64) {
    let max = rng.between(2, 8);
    let mut config = AdaptiveConcurrencyConfig::default();
    config.law = rng.pick(&[Law::Vegas, Law::Gradient2, Law::Aimd]);
    config.min = Some(1);
    config.initial = Some(rng.between(1, max) as usize);
    config.max = Some(max as usize);
    (config, max)
}

pub fn adaptive(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let (config, max) = adaptive_config(rng);
    let (waiting, wait) = bounds(mode, rng);
    let layer = AdaptiveConcurrencyLayer::from_config(&config).unwrap();
    let layer = layer.max_waiting(waiting).name(name);
    let handle = layer.handle();
    handle.set_max_wait(wait);
    let text = format!("to {max}, waiting {waiting}, wait {wait:?}");
    let control = Control::Adaptive(handle);
    match rng.below(3) {
        0 => to_body_end(
            text,
            control,
            layer.classify(ByStatus).hold_until_body_end(),
        ),
        1 => Drawn::new(text, control, by_layer(layer.classify(ByStatus))),
        _ => Drawn::new(text, control, by_layer(layer)),
    }
    .most(max)
}

pub fn rate(mode: Mode, rng: &mut Rng) -> Rate {
    let per_second = match mode {
        Mode::Paused => rng.pick(&[5, 50, 1000]),
        Mode::Threads(_) => rng.pick(&[2_000, 20_000]),
    };
    Rate::per_second(per_second).burst(rng.between(1, 20))
}

pub fn rate_limit(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let rate = rate(mode, rng);
    let (waiting, wait) = bounds(mode, rng);
    let layer = RateLimitLayer::new(rate).max_waiting(waiting).name(name);
    layer.handle().set_max_wait(wait);
    let text = format!("{rate:?}, waiting {waiting}, wait {wait:?}");
    Drawn::new(text, Control::Rate(layer.handle()), by_layer(layer))
}

pub fn keyed_limit(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let max = rng.between(1, 3);
    let (waiting, wait) = bounds(mode, rng);
    let patience = patience(mode, rng);
    let mut layer = KeyedConcurrencyLimitLayer::new(max as usize, key::<String>)
        .deadline(move |_: &Request<String>| patience.map(Deadline::within))
        .max_waiting(waiting)
        .name(name);
    if rng.once_in(3) {
        layer = layer.max_waiting_per_key(rng.below(4) as usize);
    }
    if let Some(wait) = wait {
        layer = layer.max_wait(wait);
    }
    let text = format!("{max}, waiting {waiting}, wait {wait:?}, patience {patience:?}");
    let control = Control::KeyedLimit(layer.handle());
    match rng.once_in(3) {
        true => to_body_end(text, control, layer.hold_until_body_end()),
        false => Drawn::new(text, control, by_layer(layer)),
    }
    .most(max)
}

pub fn keyed_rate(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let each = rate(mode, rng);
    let (waiting, wait) = bounds(mode, rng);
    // Which keys share an overflow bucket is not decided by the seed.
    let keys = match mode {
        Mode::Paused => TENANTS,
        Mode::Threads(_) => rng.below(TENANTS as u64) as usize,
    };
    let patience = patience(mode, rng);
    let mut layer = KeyedRateLimitLayer::new(each, key::<String>)
        .deadline(move |_: &Request<String>| patience.map(Deadline::within))
        .max_keys(keys)
        .max_waiting(waiting)
        .name(name);
    if rng.once_in(3) {
        layer = layer.global(rate(mode, rng));
    }
    layer.handle().set_max_wait(wait);
    let text = format!("{each:?}, waiting {waiting}, wait {wait:?}, patience {patience:?}");
    Drawn::new(text, Control::KeyedRate(layer.handle()), by_layer(layer))
}

/// It sees nothing but young requests unless it is given a short target.
pub fn codel_config(rng: &mut Rng) -> (CoDelConfig, u64) {
    let max = rng.between(2, 8);
    let mut config = CoDelConfig::default()
        .target(Duration::from_millis(rng.between(1, 20)))
        .interval(Duration::from_millis(100))
        .min_concurrency(rng.between(1, 2) as usize)
        .max_concurrency(max as usize);
    if rng.once_in(4) {
        config = config.max_sojourn(Duration::from_millis(rng.between(1, 200)));
    }
    (config, max)
}

pub fn codel(name: &'static str, _: Mode, rng: &mut Rng) -> Drawn {
    let (config, max) = codel_config(rng);
    let text = format!("{config:?}");
    let layer = CoDelLayer::new(config).name(name);
    let control = Control::CoDel(layer.handle());
    match rng.once_in(3) {
        true => to_body_end(text, control, layer.hold_until_body_end()),
        false => Drawn::new(text, control, by_layer(layer)),
    }
    .most(max)
}

pub fn wfq_config(mode: Mode, rng: &mut Rng) -> WfqConfig {
    let (waiting, wait) = bounds(mode, rng);
    let mut config = WfqConfig::default()
        .weight("bob", rng.between(1, 20) as u32)
        .max_waiting(waiting)
        .max_wait(wait)
        .max_tenants(rng.pick(&[0, 2, 100, 100]));
    if rng.once_in(3) {
        config = config.max_in_flight_per_tenant(rng.between(1, 3) as u32);
    }
    if rng.once_in(4) {
        config = config.max_waiting_per_tenant(rng.below(4) as usize);
    }
    config
}

pub fn wfq(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let config = wfq_config(mode, rng);
    let text = format!("{config:?}");
    // Alone, those without a tenant go past the queue.
    let find = match rng.once_in(4) {
        true => |_: &Asked| None,
        false => tenant::<String>,
    };
    let layer = WfqLayer::new(config, find)
        .priority(|request: &Asked| request.extensions().get().copied().unwrap_or_default())
        .deadline(FromRequest)
        .name(name);
    let control = Control::Wfq(layer.handle());
    match rng.once_in(3) {
        true => to_body_end(text, control, layer.hold_until_body_end()),
        false => Drawn::new(text, control, by_layer(layer)),
    }
}

/// And the highest limit that it can have.
pub fn edge_config(mode: Mode, rng: &mut Rng) -> (EdgeConfig, u64) {
    let mut config = EdgeConfig::default();
    let (adaptive, max) = adaptive_config(rng);
    config.adaptive = adaptive;
    config.codel = codel_config(rng).0;
    config.wfq = wfq_config(mode, rng);
    (config, max)
}

pub fn whole_edge(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let (config, max) = edge_config(mode, rng);
    let text = format!("{config:?}");
    let edge = edge().tenant(tenant::<String>).name(name);
    let mut edge = edge.configured(&config).unwrap();
    if rng.once_in(2) {
        edge = edge.priority(|head| head.extensions.get().copied().unwrap_or_default());
    }
    let control = Control::Edge(edge.handle());
    match rng.below(4) {
        0 => Drawn::new(text, control, with_body(edge)),
        1 => to_body_end(text, control, edge.hold_until_body_end()),
        2 => Drawn::new(
            text + ", gates, to body end",
            control,
            with_body(edge.hold_until_body_end().gates()),
        ),
        _ => Drawn::new(text + ", gates", control, by_layer(edge.gates())),
    }
    .most(max)
}

pub fn breaker_config(mode: Mode, rng: &mut Rng) -> CircuitBreakerConfig {
    let config = CircuitBreakerConfig::default()
        .cooldown(mode.bound(rng, 100))
        .successes(rng.between(1, 2) as u32)
        .probe_lease(mode.bound(rng, 100));
    match rng.once_in(2) {
        true => config.failures(rng.between(1, 4) as u32),
        false => config.failure_rate(0.5, Duration::from_millis(50), 3),
    }
}

pub fn shed() -> Drawn {
    Drawn::new("", Control::Shed, by_layer(LoadShedLayer::new()))
}

pub fn breaker(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let layer = CircuitBreakerLayer::new(breaker_config(mode, rng)).name(name);
    let control = Control::Breaker(layer.handle());
    match rng.once_in(2) {
        true => Drawn::new("by status", control, by_layer(layer.classify(ByStatus))),
        false => Drawn::new("by result", control, by_layer(layer)),
    }
}

pub fn keyed_breaker(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let config = breaker_config(mode, rng);
    let layer = KeyedCircuitBreakerLayer::new(config, key::<String>).name(name);
    let control = Control::KeyedBreaker(layer.handle());
    Drawn::new("", control, by_layer(layer))
}

pub fn saturation(name: &'static str) -> Drawn {
    let depth = Arc::new(AtomicUsize::new(0));
    let probed = Arc::clone(&depth);
    let layer = SaturationLayer::new()
        .probe("queue", move || (probed.load(SeqCst), 10))
        .sample_every(Duration::ZERO)
        .name(name)
        .classify(|_: &Asked| Work::New);
    let control = Control::Saturation(layer.handle(), depth);
    Drawn::new("", control, by_layer(layer))
}

pub fn shadow(mode: Mode, rng: &mut Rng) -> Drawn {
    let limit = ConcurrencyLimitLayer::new(rng.between(1, 3) as usize);
    let limit = limit.max_waiting(bounds(mode, rng).0);
    let trial = Control::Limit(limit.handle());
    let config = wfq_config(mode, rng);
    match rng.below(3) {
        0 => {
            let layer = ServiceBuilder::new()
                .layer(LoadShedLayer::new())
                .layer(limit);
            let layer = ShadowLayer::new(layer.into_inner());
            let control = Control::Shadow(layer.handle(), vec![trial]);
            Drawn::new("Shed, Limit", control, by_layer(layer))
        }
        1 => {
            let wfq = WfqLayer::new(config, tenant::<()>);
            let queue = Control::Wfq(wfq.handle());
            let layer = ServiceBuilder::new().layer(wfq).layer(limit);
            let layer = ShadowLayer::new(layer.into_inner());
            let control = Control::Shadow(layer.handle(), vec![queue, trial]);
            Drawn::new("Wfq, Limit", control, by_layer(layer))
        }
        _ => {
            let edge = edge().tenant(tenant::<()>).wfq(config);
            let edge = edge.adaptive(adaptive_config(rng).0).name("trial");
            let parts = vec![Control::Edge(edge.handle())];
            let layer = edge.shadow();
            let control = Control::Shadow(layer.handle(), parts);
            Drawn::new("Edge", control, by_layer(layer))
        }
    }
}
