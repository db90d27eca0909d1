//! The head of an HTTP request, for functions that do not care about its body.

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// All of an HTTP request but its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The address that is asked for.
    pub uri: &'a Uri,
    /// The headers, which clients can set.
    pub headers: &'a HeaderMap,
    /// The extensions, which they cannot.
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    #[inline]
    pub(crate) fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// A request that has a [`Head`]. Implemented by [`http::Request`], and by nothing else.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no HTTP request",
    note = "an edge takes an `http::Request`; for other requests, put the layers together by hand"
)]
pub trait HasHead: sealed::Sealed {
    #[doc(hidden)]
    fn head(&self) -> Head<'_>;
}

impl<B> HasHead for Request<B> {
    #[inline]
    fn head(&self) -> Head<'_> {
        Head::of(self)
    }
}

mod sealed {
    pub trait Sealed {}

    impl<B> Sealed for http::Request<B> {}
}
