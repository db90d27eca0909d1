//! What a caller says about a request: extensions that it puts into it.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock;

/// The request may be sent twice, whatever its method: it does the same as once, or it has a key by
/// which the server can tell. An extension of HTTP requests.
///
/// ```
/// use http::Request;
/// use tower_backpressure::retry::Idempotent;
///
/// let request = Request::post("/payments")
///     .header("idempotency-key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
///     .extension(Idempotent)
///     .body("…");
/// # let _ = request;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idempotent;

/// The moment after which nobody waits for the answer any more. An extension of HTTP requests.
///
/// No retry is waited for that could not be made before then; the answer that there is, is given at
/// once. It does not end a request that is on its way: that is what a timeout is for.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tower_backpressure::retry::Deadline;
///
/// let request = Request::get("/").extension(Deadline::within(Duration::from_secs(5))).body(());
/// # let _ = request;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub(super) Instant);

impl Deadline {
    /// So long from now. What is too long to be counted is 30 years.
    pub fn within(time: Duration) -> Self {
        const LONG: Duration = Duration::from_secs(30 * 365 * 86_400);
        let now = clock::instant();
        Self(now.checked_add(time).unwrap_or_else(|| now + LONG))
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
