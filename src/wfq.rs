//! Weighted fair queueing: whoever asks for too much waits, and nobody else does.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, ConcurrencyLimitLayer, WfqConfig, WfqLayer};
//!
//! struct Request { customer: &'static str }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let gold = ["acme", "initech"]; // customers that pay for ten times the share of others
//! let config = WfqConfig::default()
//!     .weight_of(move |customer| if gold.contains(&customer) { 10 } else { 1 });
//! let fair = WfqLayer::new(config, |request: &Request| Some(request.customer));
//! let handle = fair.handle();
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(fair)
//!     .layer(ConcurrencyLimitLayer::new(8)) // what there is to be shared
//!     .service(service_fn(|_: Request| async { Ok::<_, BoxError>("served") }));
//!
//! assert_eq!(service.ready().await?.call(Request { customer: "acme" }).await?, "served");
//! let acme = handle.tenant("acme").unwrap();
//! assert_eq!((acme.served, acme.weight), (1, 10));
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Where several tenants share what cannot serve all of them at once, and none of them is to suffer from
//! what another sends. A [rate for each](crate::keyed_rate_limit) wastes what others do not use, and does not
//! help when many keep to theirs; here everybody gets what it asks for while there is enough, and when there
//! is not, its share and no more.
//!
//! It goes outside the limit whose places it is to hand out, in the same `ServiceBuilder`: it schedules
//! whatever readiness the layers inside have, be it a fixed limit, an adaptive one, a rate, or any of
//! tower's. Without a limit inside, or with a service in between that is always ready (a `Buffer`, axum's
//! `Router::layer` called twice, a [`LoadShedLayer`](crate::LoadShedLayer)), nobody ever waits and there is
//! nothing to schedule.
//!
//! **When not to use it:** for a contract that says how much each may ask for: that is a [`KeyedRateLimitLayer`](crate::KeyedRateLimitLayer).
//! In an [`edge()`](fn@crate::edge) it is contained.
//!
//! # Behaviour
//! [`ExtractTenant`] finds whose request it is. Always ready; a request waits in its response future. It is
//! sent at once if nobody waits and the inner service is ready. Otherwise it queues behind its tenant's
//! others, and the next to be sent is the first one of the tenant that has had the least service for its
//! weight. Service is the time that requests take, times their [cost](WfqLayer::cost); `src/law/fair_queue.rs`
//! has the maths. No task is spawned.
//!
//! - **A tenant that was idle** begins where the others are: what it did not ask for is not saved up.
//! - **Priorities and deadlines** are honoured as in an [edge](mod@crate::edge#priorities), where the extractor
//!   finds them: see [`priority`](WfqLayer::priority) and [`deadline`](WfqLayer::deadline). The order within a tenant
//!   and a priority is always that of arrival.
//! - **A request that a layer further in refuses** costs its tenant nothing. One that the service worked on, and for which it passes
//!   on the [rejection of another](crate::Overloaded#rejected-here-or-further-in), costs the time that it took. Neither
//!   counts towards what its requests are expected to take.
//! - **Requests without a tenant** share one, [`Tenant::Anonymous`]. So do those whose name is empty or longer
//!   than 256 bytes.
//! - **Memory is bounded.** At most [`max_tenants`](WfqConfig::max_tenants) are remembered. One that has no
//!   requests, and is not ahead of the others, can be forgotten without loss, and is, when there is no room.
//!   Where nobody can be, tenants that are new share [`Tenant::Overflow`]. Weights given by name are bounded, too.
//!
//! The layers inside can ask how long a request has waited, and how long others have: [`Waited`].
//!
//! # Errors
//! [`Overloaded`] with [`Reason::QueueFull`] or [`Reason::WaitTimeout`] past the bounds of the [`WfqConfig`].
//! If the queue of all is full, it is the tenant with the most waiting for its weight that loses its last
//! request: a newcomer that asks for little gets in. `retry_after` is the time in which what the tenant has
//! waiting is served, at its share of the rate at which requests were served lately; one second where that
//! is not known. Errors of the inner service are passed on, those of its `poll_ready` too.
//!
//! # Cancellation
//! A future may be dropped at any point: one that waits leaves the queue, and one whose turn it is passes the
//! turn on. One that is kept, but not polled although it was woken, is passed over within a second, so that it
//! does not stop the others. It needs a tokio runtime with time enabled wherever the future is polled.
//!
//! A request that was sent is charged for, and what is charged in the end is the time that it really took, also if
//! its future is dropped before it is done. What began without a tenant before there was any is charged for when
//! it is done, and not before: while it hangs, others do not go first because of it.
//!
//! # Cloning
//! One layer value is one queue, however often [`Layer::layer`] is called and services are cloned. One request at
//! a time has the turn, so all of them should share one limit inside: where it is another for some, those wait for
//! each other.
//!
//! Use one value once on the path of a request, or the request waits for itself:
//! [`concurrency_limit`](crate::concurrency_limit#cloning) has the details. Debug builds panic where that happens, also if
//! what is inside is a rate, where the wait would end. In release builds [`max_wait`](WfqConfig::max_wait) ends it.
//!
//! [`Reason::QueueFull`]: crate::Reason::QueueFull
//! [`Reason::WaitTimeout`]: crate::Reason::WaitTimeout
//! [`Overloaded`]: crate::Overloaded
//! [`Waited`]: crate::Waited

mod config;
mod extract;
#[cfg(feature = "spiffe")]
mod spiffe;
mod waiter;

use std::{
    fmt,
    marker::PhantomData,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

#[cfg(feature = "spiffe")]
pub use self::spiffe::{FromSpiffe, spiffe_id};
use self::waiter::ForTurn;
pub(crate) use self::{config::WeightOf, waiter::Running};
pub use self::{
    config::WfqConfig,
    extract::{
        ExtractTenant, FromExtension, FromHead, FromHeader, TenantId, WithCost, WithDeadline,
        WithPriority, from_head,
    },
    waiter::WfqResponseFuture,
};
pub use crate::gate::{
    fair::TurnSnapshot as Snapshot,
    tenants::{Tenant, TenantSnapshot},
};
pub use crate::head::Head;
use crate::{
    BoxError, ConfigError, Hold, UntilBodyEnd, UntilResponse,
    clock::Now,
    gate::{
        aside::{self, LimiterId, hand_back, handover::Handover, shed, waited},
        fair::{Fair, Place, Turns, tenant_verbs},
        gate::Gate,
    },
    law::{fair_queue::Lane, fair_queues::MAIN},
    sync::Arc,
};

/// Weighted fair queueing by tenant. See the [module](self) for all of it.
///
/// `E` finds a request's tenant. `H` says how long a request takes service: until its response (the default) or,
/// after [`hold_until_body_end`](Self::hold_until_body_end), until the end of its body.
pub struct WfqLayer<E = FromExtension, H = UntilResponse<Running>> {
    fair: Arc<Shared<E>>,
    hold: PhantomData<fn() -> H>,
}

/// What all clones share, behind one pointer: servers clone a service for each request.
struct Shared<E> {
    gate: Arc<Gate<Fair<Turns>>>,
    extract: Arc<E>,
}

impl<E> WfqLayer<E> {
    /// A queue with these weights and bounds, for everything that is made from this value. `extract` is an
    /// [`ExtractTenant`], such as a `|request: &Request| Some(request.customer)`.
    ///
    /// # Panics
    /// If a field's value is not allowed: see [`WfqConfig::check`].
    pub fn new(config: WfqConfig, extract: E) -> Self {
        if let Err(error) = config.check() {
            panic!("WfqLayer::new: {error}");
        }
        Self::with(Arc::new(Gate::turns(config)), Arc::new(extract))
    }
}

impl<E, H> WfqLayer<E, H> {
    fn with(gate: Arc<Gate<Fair<Turns>>>, extract: Arc<E>) -> Self {
        Self {
            fair: Arc::new(Shared { gate, extract }),
            hold: PhantomData,
        }
    }

    /// What requests cost, where that is not only a matter of how long they take: `cost` is a
    /// `Fn(&Request) -> NonZeroU32`. One of cost 2 counts for as much as two that take as long.
    pub fn cost<C>(self, cost: C) -> WfqLayer<WithCost<E, C>, H> {
        self.extract(|extract| WithCost { extract, cost })
    }

    /// How much each request matters: it goes before those that matter less, whosever they are, and displaces one of them
    /// if the queue is full. `priority` is a `Fn(&Request) -> Priority`. Without it, HTTP requests have the [`Priority`](crate::Priority) in
    /// their extensions if an [extractor](ExtractTenant) for HTTP finds the tenant, and else all matter the same.
    pub fn priority<P>(self, priority: P) -> WfqLayer<WithPriority<E, P>, H> {
        self.fair.gate.ask_urgency();
        self.extract(|extract| WithPriority { extract, priority })
    }

    /// Requests have deadlines: a request that waits is rejected when its deadline passes, with
    /// [`Reason::Deadline`](crate::Reason::Deadline), and is not sent if it could not be done by then. `deadline` is an
    /// [`ExtractDeadline`](crate::deadline::ExtractDeadline), such as [`FromRequest`](crate::deadline::FromRequest) for HTTP,
    /// or a `Fn(&Request) -> Option<Deadline>`. Without it, HTTP requests have deadlines if an
    /// [extractor](ExtractTenant) for HTTP finds the tenant, and others have none.
    pub fn deadline<D>(self, deadline: D) -> WfqLayer<WithDeadline<E, D>, H> {
        self.extract(|extract| WithDeadline { extract, deadline })
    }

    fn extract<E2>(self, extract: impl FnOnce(Arc<E>) -> E2) -> WfqLayer<E2, H> {
        let gate = Arc::clone(&self.fair.gate);
        let extract = extract(Arc::clone(&self.fair.extract));
        WfqLayer::with(gate, Arc::new(extract))
    }

    /// Counts an HTTP request's service until its response's body ends, fails or is dropped: for responses that
    /// stream, where the limit inside holds on to its permit as long. See [`hold`](crate::hold).
    pub fn hold_until_body_end(self) -> WfqLayer<E, UntilBodyEnd<Running>> {
        WfqLayer {
            fair: self.fair,
            hold: PhantomData,
        }
    }

    /// A name of its own, for [`Overloaded::layer`](crate::Overloaded::layer). The first name given stays.
    pub fn name(self, name: &'static str) -> Self {
        self.fair.gate.bounds.set_name(name);
        self
    }

    /// A handle on this queue.
    pub fn handle(&self) -> Handle {
        Handle {
            gate: Arc::clone(&self.fair.gate),
        }
    }
}

impl<S, E, H> Layer<S> for WfqLayer<E, H> {
    type Service = Wfq<S, E, H>;

    fn layer(&self, inner: S) -> Wfq<S, E, H> {
        Wfq {
            inner,
            layer: self.clone(),
        }
    }
}

impl<E, H> Clone for WfqLayer<E, H> {
    fn clone(&self) -> Self {
        Self {
            fair: Arc::clone(&self.fair),
            hold: PhantomData,
        }
    }
}

impl<E, H> fmt::Debug for WfqLayer<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WfqLayer").field(&self.fair.gate).finish()
    }
}

/// A service whose tenants get their share of it. Made by [`WfqLayer`].
#[derive(Debug)]
pub struct Wfq<S, E = FromExtension, H = UntilResponse<Running>> {
    inner: S,
    layer: WfqLayer<E, H>,
}

impl<S, R, E, H> Service<R> for Wfq<S, E, H>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    E: ExtractTenant<R>,
    H: Hold<S::Response> + From<Running>,
    R: 'static,
{
    type Response = H::Response;
    type Error = BoxError;
    type Future = WfqResponseFuture<S, S::Future, R, H>;

    /// Always ready. A request waits in its response future, because only `call` sees the request.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let Shared { gate, extract } = &*self.layer.fair;
        let cost = extract.cost(&request);
        let mut now = Now::default();
        let urgency = |now: &mut Now| {
            gate.urgency(extract.priority(&request), extract.deadline(&request), now)
        };
        let lane = match gate.asks_urgency() {
            true => extract.priority(&request) as Lane,
            false => MAIN,
        };
        let came = gate.come(extract.tenant(&request).as_deref(), cost, lane, &mut now);
        let mut after = None;
        let place = match came {
            Err(arrival) => gate.wait(arrival.with(urgency(&mut now))),
            Ok(began) => {
                let mut running = Running::new(Arc::clone(gate), began.grant);
                let id = LimiterId::of(gate);
                let polling = waited::poll_for(id);
                let (polled, _) = shed::poll(|cx| self.inner.poll_ready(cx));
                drop(polling);
                if let Poll::Ready(Ok(())) = polled {
                    running.send();
                    let _told = (began.waited.tell(id), aside::tell_time(&now));
                    let handover = Handover::<S::Error>::begin();
                    let future = self.inner.call(request);
                    return WfqResponseFuture::sent(future, running.into(), handover.end());
                }
                // Whatever it has reserved goes with it. A limiter of another crate may have given it a place in its
                // queue: whoever kept that would be handed what is for the one whose turn it is.
                self.inner = self.inner.clone();
                if let Poll::Ready(Err(error)) = polled {
                    hand_back::give(request);
                    return WfqResponseFuture::failed(error.into());
                }
                let (place, granted) = running.take_back(began.from, urgency(&mut now));
                after = Some(granted);
                place
            }
        };
        let place = place.map(|arrival| Place::new(Arc::clone(gate), arrival));
        if let Some(after) = after {
            after.run(gate);
        }
        match place {
            Ok(place) => WfqResponseFuture::waits(ForTurn::new(place), self.inner.clone(), request),
            Err(rejected) => {
                gate.bounds.report(rejected.reason());
                hand_back::give(request);
                WfqResponseFuture::failed(rejected)
            }
        }
    }
}

impl<S: Clone, E, H> Clone for Wfq<S, E, H> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

/// Looks at a fair queue and changes it while it is in use.
///
/// ```
/// use tower_backpressure::{WfqConfig, WfqLayer};
///
/// # fn main() -> Result<(), tower_backpressure::ConfigError> {
/// let handle = WfqLayer::new(WfqConfig::default(), |_: &()| Some("someone")).handle();
/// handle.set_weight("acme", 20)?; // from now on
/// assert!(handle.set_weight("acme", 0).is_err()); // and stays at 20
/// for tenant in handle.tenants() {
///     println!("{}: {} waiting, {:.0} %", tenant.tenant, tenant.waiting, 100.0 * tenant.share);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    gate: Arc<Gate<Fair<Turns>>>,
}

impl Handle {
    /// The name that the layer was given, or that of its kind, as in its refusals.
    pub fn name(&self) -> &'static str {
        self.gate.bounds.name()
    }

    /// The state of the queue now.
    pub fn snapshot(&self) -> Snapshot {
        self.gate.queue_snapshot()
    }

    /// Changes everything but the clock to what this config says. A tenant that it does not name has the weight that
    /// [`weight_of`](WfqConfig::weight_of) gives, or else the default weight, even if it was given another by hand. A
    /// config without a `weight_of` leaves that as it is. Tenants that are remembered are not forgotten before
    /// others come.
    ///
    /// # Errors
    /// If a field's value is not allowed; nothing changes.
    pub fn apply(&self, config: &WfqConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.gate.set_tenants(config);
        Ok(())
    }

    tenant_verbs!();
}
