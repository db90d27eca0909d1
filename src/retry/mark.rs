//! What a caller says about a request: extensions that it puts into it.

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
