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
