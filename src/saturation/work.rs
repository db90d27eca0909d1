//! What a request is, as far as queues are concerned.

use http::{Method, Request};

use super::Level;
use crate::{Priority, head::Head, priority};

/// What a request means to the queues behind a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// It puts nothing into them. It always passes.
    Read,
    /// It changes something that is there already, and may let it be finished. Refused at overflow.
    Write,
    /// It begins something that was not there. Refused when critical.
    New,
}

/// Tells what a request is.
///
/// [`ByMethod`] is the default, for HTTP; any closure will do:
///
/// ```
/// use tower_backpressure::{SaturationLayer, saturation::Work};
///
/// struct Command { name: &'static str }
///
/// let layer = SaturationLayer::new().classify(|command: &Command| match command.name {
///     "create" => Work::New,
///     "show" => Work::Read,
///     _ => Work::Write,
/// });
/// # let _ = layer;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell what work a request of type `{R}` is",
    note = "take a closure `|request: &{R}| Work::New`"
)]
pub trait ClassifyWork<R> {
    /// What it is.
    fn classify(&self, request: &R) -> Work;

    /// How much it matters. All requests matter alike, unless [`by_priority`](super::SaturationLayer::by_priority) says
    /// otherwise.
    fn priority(&self, request: &R) -> Priority {
        let _ = request;
        Priority::Normal
    }
}

#[diagnostic::do_not_recommend]
impl<R, F> ClassifyWork<R> for F
where
    F: Fn(&R) -> Work,
{
    fn classify(&self, request: &R) -> Work {
        self(request)
    }
}

/// For HTTP.
///
/// | method | is |
/// | --- | --- |
/// | GET, HEAD, OPTIONS, TRACE | a read |
/// | POST, CONNECT | new work |
/// | PUT, PATCH, DELETE, any other | a write |
///
/// gRPC calls are all POST, and so all new work: tell them from each other by their path.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByMethod;

impl<B> ClassifyWork<Request<B>> for ByMethod {
    fn classify(&self, request: &Request<B>) -> Work {
        match *request.method() {
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE => Work::Read,
            Method::POST | Method::CONNECT => Work::New,
            _ => Work::Write,
        }
    }
}

/// By the [`Priority`] in an HTTP request's extensions too. Made by [`by_priority`](super::SaturationLayer::by_priority).
#[derive(Clone, Copy, Debug, Default)]
pub struct ByPriority<C = ByMethod>(pub(super) C);

impl<B, C: ClassifyWork<Request<B>>> ClassifyWork<Request<B>> for ByPriority<C> {
    fn classify(&self, request: &Request<B>) -> Work {
        self.0.classify(request)
    }

    fn priority(&self, request: &Request<B>) -> Priority {
        priority::of(&Head::of(request))
    }
}

/// The lowest level at which it is refused.
pub(super) fn refused_from(work: Work, priority: Priority) -> Option<Level> {
    use Priority::{Background, Critical, High, Low, Normal};
    match (work, priority) {
        (Work::Read, _) | (_, Critical) => None,
        (Work::New, Normal) | (_, Low | Background) => Some(Level::Critical),
        (Work::Write, Normal) | (_, High) => Some(Level::Overflow),
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn http_goes_by_the_method() {
        for (method, work) in [
            ("GET", Work::Read),
            ("HEAD", Work::Read),
            ("OPTIONS", Work::Read),
            ("TRACE", Work::Read),
            ("POST", Work::New),
            ("CONNECT", Work::New),
            ("PUT", Work::Write),
            ("PATCH", Work::Write),
            ("DELETE", Work::Write),
            ("MKCOL", Work::Write),
            ("get", Work::Write), // methods are case-sensitive, so this one is not known
        ] {
            let request = Request::builder().method(method).body(()).unwrap();
            assert_eq!(ByMethod.classify(&request), work, "{method}");
        }
    }
}
