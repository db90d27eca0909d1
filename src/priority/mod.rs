//! Which requests matter more than others.

pub use crate::gate::fair::PrioritySnapshot as Snapshot;
use crate::head::Head;

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

impl Priority {
    /// All of them, from the least important.
    pub const ALL: [Self; 5] = [
        Self::Background,
        Self::Low,
        Self::Normal,
        Self::High,
        Self::Critical,
    ];
}

/// The priority of a request: the one in its extensions.
pub(crate) fn of(head: &Head<'_>) -> Priority {
    head.extensions.get().copied().unwrap_or_default()
}
