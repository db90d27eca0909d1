//! Which requests matter more than others when not all of them can be served.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_backpressure::{BoxError, Priority, PriorityLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let priorities = PriorityLayer::new(|head| match head.uri.path() {
//!     "/checkout" => Priority::High,
//!     "/recommendations" => Priority::Low,
//!     _ => Priority::Normal,
//! });
//! let mut service = ServiceBuilder::new()
//!     .layer(priorities) // outside the layers that queue
//!     .service(service_fn(|request: Request<()>| async move {
//!         let priority: Priority = *request.extensions().get().expect("the layer sets it");
//!         Ok::<_, BoxError>(Response::new(priority))
//!     }));
//!
//! let request = Request::get("/recommendations").body(())?;
//! assert_eq!(*service.ready().await?.call(request).await?.body(), Priority::Low);
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Where some requests have to be served under overload and others can be rejected: logging in before searching, people
//! before batches. To share a server between customers, there are [tenants](crate::wfq): a priority is not a weight, and a
//! level gets next to nothing while a higher one needs everything.
//!
//! # Behavior
//! A [`Priority`] is one of five levels, in the request's extensions. [`PriorityLayer`] puts it there, by what a function
//! finds in the request's head. [`Rules`] is such a function with the usual sources.
//!
//! A request without one is [`Normal`](Priority::Normal). If nobody waits, priorities decide nothing.
//!
//! | layer | what it does with a priority |
//! | --- | --- |
//! | [`edge()`](fn@crate::edge), [`Wfq`](crate::Wfq) | the more important go first, and take the places of the less important in a full queue: see the [guide](crate::guide::priorities_and_deadlines) |
//! | [`Saturation`](crate::Saturation) | with [`by_priority`](crate::SaturationLayer::by_priority), the less important are rejected earlier |
//!
//! A function replaces the priority that a request has. It sees it in the extensions of the head.
//!
//! # Trust
//! A client that can choose its priority chooses the highest. So nothing that a client sends is looked at, unless one of the
//! `dangerously_` switches of [`Rules`] says so, and [`at_most`](Rules::at_most) bounds what a client can claim. That a
//! request is a retry is believed from anybody: it can only lower the priority.
//!
//! # Errors, cancellation, cloning
//! [`PriorityLayer`] rejects nothing and holds nothing. It is as ready as its inner service.
//!
//! # Cost
//! The extension of each request is allocated. `edge().priority(…)` does without.
//!
//! # Passing it on
//! The calls that a handler makes are as important as the request that they are made for. A priority can be written as
//! the value of a header: by its name ([`From<Priority>`](Priority#impl-From<Priority>-for-HeaderValue)), or as RFC 9218 has it
//! ([`Priority::urgency`]).

mod layer;
mod level;
mod rules;
mod urgency;

pub use self::{
    layer::{PriorityLayer, StampPriority},
    level::Priority,
    rules::Rules,
};
pub use crate::{gate::fair::PrioritySnapshot as Snapshot, head::Head};

/// The priority of a request: the one in its extensions, or else the default.
#[inline]
pub(crate) fn of(head: &Head<'_>) -> Priority {
    head.extensions.get().copied().unwrap_or_default()
}
