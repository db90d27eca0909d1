//! The layers of this crate, with random settings.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, ByStatus, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig,
    CoDelLayer, ConcurrencyLimitLayer, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer,
    KeyedRateLimitLayer, LoadShedLayer, Rate, RateLimitLayer, SaturationLayer, ShadowLayer,
    WfqConfig, WfqLayer, edge, saturation::Work,
};

use crate::{
    handles::Control,
    meter::Counts,
    world::{Answer, Asked, Mode, Rng, Stack, TENANTS, key, tenant},
};

/// One layer in a stack.
pub struct Own {
    pub name: &'static str,
    /// What it is, for whoever has to find out what went wrong.
    pub text: String,
    pub kind: Kind,
    pub control: Control,
    wrap: Box<dyn Fn(Stack) -> Stack + Send + Sync>,
    /// Outside the layer, and inside it.
    pub above: Arc<Counts>,
    pub below: Arc<Counts>,
    /// The highest limit that there has been.
    pub most: AtomicUsize,
    /// What handles have taken, and what they were refused.
    pub acquired: AtomicU64,
    pub refused: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Limit,
    Adaptive,
    Rate,
    KeyedLimit,
    KeyedRate,
    CoDel,
    Wfq,
    Edge,
    Shed,
    Breaker,
    KeyedBreaker,
    Saturation,
    Shadow,
}

impl Kind {
    pub const ALL: [Self; 13] = [
        Self::Limit,
        Self::Adaptive,
        Self::Rate,
        Self::KeyedLimit,
        Self::KeyedRate,
        Self::CoDel,
        Self::Wfq,
        Self::Edge,
        Self::Shed,
        Self::Breaker,
        Self::KeyedBreaker,
        Self::Saturation,
        Self::Shadow,
    ];

    /// Whether a service that was polled ready holds something for which others wait. `inner` is what the
    /// inner service does.
    pub fn reserves(self, inner: bool) -> bool {
        match self {
            Self::Limit | Self::Adaptive | Self::Rate => true,
            Self::KeyedLimit | Self::Wfq | Self::Edge => false,
            _ => inner,
        }
    }

    /// Whether requests wait for time to pass.
    pub fn takes_time(self) -> bool {
        matches!(self, Self::Rate | Self::KeyedRate)
    }

    /// Whether it can refuse on behalf of a limiter inside.
    pub fn sheds(self) -> bool {
        matches!(self, Self::Shed | Self::Edge)
    }
}

impl Own {
    pub fn draw(kind: Kind, name: &'static str, mode: Mode, rng: &mut Rng) -> Arc<Self> {
        let drawn = match kind {
            Kind::Limit => limit(name, mode, rng),
            Kind::Adaptive => adaptive(name, mode, rng),
            Kind::Rate => rate_limit(name, mode, rng),
            Kind::KeyedLimit => keyed_limit(name, mode, rng),
            Kind::KeyedRate => keyed_rate(name, mode, rng),
            Kind::CoDel => codel(name, mode, rng),
            Kind::Wfq => wfq(name, mode, rng),
            Kind::Edge => whole_edge(name, mode, rng),
            Kind::Shed => Drawn::new("", Control::Shed, |inner| {
                boxed(LoadShedLayer::new().layer(inner))
            }),
            Kind::Breaker => {
                let layer = CircuitBreakerLayer::new(breaker_config(mode, rng)).name(name);
                let control = Control::Breaker(layer.handle());
                match rng.once_in(2) {
                    true => Drawn::new("by status", control, by_layer(layer.classify(ByStatus))),
                    false => Drawn::new("by result", control, by_layer(layer)),
                }
            }
            Kind::KeyedBreaker => {
                let config = breaker_config(mode, rng);
                let layer = KeyedCircuitBreakerLayer::new(config, key::<String>).name(name);
                let control = Control::KeyedBreaker(layer.handle());
                Drawn::new("", control, by_layer(layer))
            }
            Kind::Saturation => {
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
            Kind::Shadow => shadow(mode, rng),
        };
        Arc::new(Self {
            name,
            text: format!("{kind:?}({}) {name}", drawn.text),
            kind,
            control: drawn.control,
            wrap: drawn.wrap,
            above: Arc::default(),
            below: Arc::default(),
            most: AtomicUsize::new(drawn.most),
            acquired: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    pub fn wrap(&self, inner: Stack) -> Stack {
        (self.wrap)(inner)
    }
}

struct Drawn {
    text: String,
    control: Control,
    wrap: Box<dyn Fn(Stack) -> Stack + Send + Sync>,
    most: usize,
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

/// Most often nobody may wait, a few, or all of them; and most often for any time.
fn bounds(mode: Mode, rng: &mut Rng) -> (usize, Option<Duration>) {
    let waiting = rng.pick(&[0, 1, 3, 1024, 1024, 1024]);
    (waiting, rng.once_in(3).then(|| mode.bound(rng, 100)))
}

fn limit(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
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
        true => Drawn::new(
            text + ", to body end",
            control,
            with_body(layer.hold_until_body_end()),
        ),
        false => Drawn::new(text, control, by_layer(layer)),
    }
    .most(max)
}

fn adaptive_layer(name: &'static str, rng: &mut Rng) -> (AdaptiveConcurrencyLayer, u64) {
    let max = rng.between(2, 8);
    let layer = match rng.below(3) {
        0 => AdaptiveConcurrencyLayer::vegas(),
        1 => AdaptiveConcurrencyLayer::gradient2(),
        _ => AdaptiveConcurrencyLayer::aimd(),
    };
    let initial = rng.between(1, max);
    let layer = layer.limits(1, initial as usize, max as usize).name(name);
    (layer, max)
}

fn adaptive(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let (layer, max) = adaptive_layer(name, rng);
    let (waiting, wait) = bounds(mode, rng);
    let layer = layer.max_waiting(waiting);
    let handle = layer.handle();
    handle.set_max_wait(wait);
    let text = format!("to {max}, waiting {waiting}, wait {wait:?}");
    let control = Control::Adaptive(handle);
    match rng.below(3) {
        0 => Drawn::new(
            text + ", to body end",
            control,
            with_body(layer.classify(ByStatus).hold_until_body_end()),
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

fn rate_limit(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let rate = rate(mode, rng);
    let (waiting, wait) = bounds(mode, rng);
    let layer = RateLimitLayer::new(rate).max_waiting(waiting).name(name);
    layer.handle().set_max_wait(wait);
    let text = format!("{rate:?}, waiting {waiting}, wait {wait:?}");
    Drawn::new(text, Control::Rate(layer.handle()), by_layer(layer))
}

fn keyed_limit(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let max = rng.between(1, 3);
    let (waiting, wait) = bounds(mode, rng);
    let mut layer = KeyedConcurrencyLimitLayer::new(max as usize, key::<String>)
        .max_waiting(waiting)
        .name(name);
    if rng.once_in(3) {
        layer = layer.max_waiting_per_key(rng.below(4) as usize);
    }
    if let Some(wait) = wait {
        layer = layer.max_wait(wait);
    }
    let text = format!("{max}, waiting {waiting}, wait {wait:?}");
    let control = Control::KeyedLimit(layer.handle());
    match rng.once_in(3) {
        true => Drawn::new(
            text + ", to body end",
            control,
            with_body(layer.hold_until_body_end()),
        ),
        false => Drawn::new(text, control, by_layer(layer)),
    }
    .most(max)
}

fn keyed_rate(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let each = rate(mode, rng);
    let (waiting, wait) = bounds(mode, rng);
    // Which keys share an overflow bucket is not decided by the seed.
    let keys = match mode {
        Mode::Paused => TENANTS,
        Mode::Threads(_) => rng.below(TENANTS as u64) as usize,
    };
    let mut layer = KeyedRateLimitLayer::new(each, key::<String>)
        .max_keys(keys)
        .max_waiting(waiting)
        .name(name);
    if rng.once_in(3) {
        layer = layer.global(rate(mode, rng));
    }
    layer.handle().set_max_wait(wait);
    let text = format!("{each:?}, waiting {waiting}, wait {wait:?}");
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

fn codel(name: &'static str, _: Mode, rng: &mut Rng) -> Drawn {
    let (config, max) = codel_config(rng);
    let text = format!("{config:?}");
    let layer = CoDelLayer::new(config).name(name);
    let control = Control::CoDel(layer.handle());
    match rng.once_in(3) {
        true => Drawn::new(
            text + ", to body end",
            control,
            with_body(layer.hold_until_body_end()),
        ),
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

fn wfq(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let config = wfq_config(mode, rng);
    let text = format!("{config:?}");
    // Alone, those without a tenant go past the queue.
    let find = match rng.once_in(4) {
        true => |_: &Asked| None,
        false => tenant::<String>,
    };
    let layer = WfqLayer::new(config, find).name(name);
    let control = Control::Wfq(layer.handle());
    match rng.once_in(3) {
        true => Drawn::new(
            text + ", to body end",
            control,
            with_body(layer.hold_until_body_end()),
        ),
        false => Drawn::new(text, control, by_layer(layer)),
    }
}

fn whole_edge(name: &'static str, mode: Mode, rng: &mut Rng) -> Drawn {
    let (adaptive, max) = adaptive_layer(name, rng);
    let (codel, _) = codel_config(rng);
    let wfq = WfqLayer::new(wfq_config(mode, rng), tenant::<String>).name(name);
    let text = format!("to {max}, {codel:?}, {:?}", wfq.handle());
    let edge = edge().wfq(wfq).codel(codel).adaptive(adaptive);
    let control = Control::Edge(edge.handle());
    match rng.below(4) {
        0 => Drawn::new(text, control, with_body(edge)),
        1 => Drawn::new(
            text + ", to body end",
            control,
            with_body(edge.hold_until_body_end()),
        ),
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

fn shadow(mode: Mode, rng: &mut Rng) -> Drawn {
    let limit = ConcurrencyLimitLayer::new(rng.between(1, 3) as usize);
    let limit = limit.max_waiting(bounds(mode, rng).0);
    let trial = Control::Limit(limit.handle());
    let wfq = WfqLayer::new(wfq_config(mode, rng), tenant::<()>);
    let queue = Control::Wfq(wfq.handle());
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
            let layer = ServiceBuilder::new().layer(wfq).layer(limit);
            let layer = ShadowLayer::new(layer.into_inner());
            let control = Control::Shadow(layer.handle(), vec![queue, trial]);
            Drawn::new("Wfq, Limit", control, by_layer(layer))
        }
        _ => {
            let edge = edge().wfq(wfq).adaptive(adaptive_layer("trial", rng).0);
            let parts = vec![Control::Edge(edge.handle())];
            let layer = edge.shadow();
            let control = Control::Shadow(layer.handle(), parts);
            Drawn::new("Edge", control, by_layer(layer))
        }
    }
}
