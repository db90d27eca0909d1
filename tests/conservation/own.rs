//! The layers of this crate in a stack.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize},
};

use crate::{
    draw,
    handles::Control,
    meter::Counts,
    world::{Mode, Rng, Stack},
};

/// One layer in a stack.
pub struct Own {
    pub name: &'static str,
    /// Its name in the report of a failure.
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
            Kind::Limit => draw::limit(name, mode, rng),
            Kind::Adaptive => draw::adaptive(name, mode, rng),
            Kind::Rate => draw::rate_limit(name, mode, rng),
            Kind::KeyedLimit => draw::keyed_limit(name, mode, rng),
            Kind::KeyedRate => draw::keyed_rate(name, mode, rng),
            Kind::CoDel => draw::codel(name, mode, rng),
            Kind::Wfq => draw::wfq(name, mode, rng),
            Kind::Edge => draw::whole_edge(name, mode, rng),
            Kind::Shed => draw::shed(),
            Kind::Breaker => draw::breaker(name, mode, rng),
            Kind::KeyedBreaker => draw::keyed_breaker(name, mode, rng),
            Kind::Saturation => draw::saturation(name),
            Kind::Shadow => draw::shadow(mode, rng),
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
