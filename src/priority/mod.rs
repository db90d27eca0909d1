//! Which requests matter more than others.

use crate::{head::Head, sync::Arc};

/// How much a request matters, compared with others. An extension of HTTP requests.
///
/// The order is that of importance: `Priority::Critical > Priority::Normal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Nobody waits for it: batches, prefetching, reports.
    Background,
    /// Less than others.
    Low,
    /// What a request has that says nothing.
    #[default]
    Normal,
    /// More than others.
    High,
    /// What has to work when nothing else does: health checks, payments, logging in.
    Critical,
}

/// How the priority of a request is found.
#[derive(Clone)]
pub struct Priorities(#[allow(dead_code)] Arc<dyn Fn(Head<'_>) -> Priority + Send + Sync>);

impl Priorities {
    #[allow(dead_code, reason = "the edge will ask")]
    pub(crate) fn of(&self, head: Head<'_>) -> Priority {
        (self.0)(head)
    }
}
