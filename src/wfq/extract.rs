//! Whose request it is.

use std::{borrow::Cow, fmt, num::NonZeroU32};

use http::{HeaderName, Request};

use crate::{head::Head, sync::Arc};

/// Finds out whose request it is, and what it costs.
///
/// Any `Fn(&Request) -> Option<impl Into<Cow<'static, str>>>` is one: `|request: &MyRequest| …`, with the type
/// written out. For HTTP there are [`FromExtension`], [`from_head`] and [`FromHeader`]; and
/// `FromSpiffe`, with the feature `spiffe`.
///
/// `None`, an empty name, and one of more than 256 bytes are the one anonymous tenant that all such requests
/// share.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the tenant of a `{R}`",
    note = "a closure needs the type of its argument written out: `|request: &Request<Body>| …`"
)]
pub trait ExtractTenant<R> {
    /// The name of the request's tenant.
    fn tenant<'a>(&self, request: &'a R) -> Option<Cow<'a, str>>;

    /// What the request costs, compared with others that take as long. 1, unless
    /// [`cost`](super::WfqLayer::cost) says otherwise.
    fn cost(&self, request: &R) -> NonZeroU32 {
        let _ = request;
        NonZeroU32::MIN
    }
}

impl<R, K, F> ExtractTenant<R> for F
where
    F: Fn(&R) -> Option<K>,
    K: Into<Cow<'static, str>>,
{
    #[inline]
    fn tenant<'a>(&self, request: &'a R) -> Option<Cow<'a, str>> {
        self(request).map(Into::into)
    }
}

/// An identity that has been verified, as something further out puts it into a request's extensions: the
/// layer that checks who it is, or a handshake.
///
/// ```
/// use tower_backpressure::wfq::TenantId;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(TenantId::new("acme"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TenantId(std::sync::Arc<str>);

impl TenantId {
    /// For a tenant of that name.
    pub fn new(name: impl Into<std::sync::Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Takes the [`TenantId`] in the request's extensions, which clients cannot set.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromExtension;

impl<B> ExtractTenant<Request<B>> for FromExtension {
    fn tenant<'a>(&self, request: &'a Request<B>) -> Option<Cow<'a, str>> {
        let id: &TenantId = request.extensions().get()?;
        Some(id.as_str().into())
    }
}

/// Takes the value of a header, **which any client can set to whatever it likes**.
///
/// A client that sends another name with each request has as many shares as names. So this is for a server
/// that only a proxy can reach, and only if the proxy removes what clients send and sets the header itself.
#[derive(Clone, Debug)]
pub struct FromHeader(HeaderName);

impl FromHeader {
    /// Believes whoever sends the request.
    pub fn dangerously_trust_whoever_sends(header: HeaderName) -> Self {
        Self(header)
    }
}

impl<B> ExtractTenant<Request<B>> for FromHeader {
    fn tenant<'a>(&self, request: &'a Request<B>) -> Option<Cow<'a, str>> {
        let value = request.headers().get(&self.0)?;
        Some(value.to_str().ok()?.into())
    }
}

/// The tenant is what a function finds in the head of an HTTP request, whatever its body is. It is not
/// copied.
///
/// ```
/// use tower_backpressure::{WfqConfig, WfqLayer, wfq};
///
/// #[derive(Clone)]
/// struct User { customer: String } // put into the extensions by the layer that checks who it is
///
/// let layer = WfqLayer::new(
///     WfqConfig::default().weight("acme", 10),
///     wfq::from_head(|head| Some(&head.extensions.get::<User>()?.customer)),
/// );
/// # let _ = layer;
/// ```
pub fn from_head<F>(find: F) -> FromHead<F>
where
    F: for<'a> Fn(Head<'a>) -> Option<&'a str>,
{
    FromHead(find)
}

/// Made by [`from_head`].
#[derive(Clone, Copy)]
pub struct FromHead<F>(F);

impl<B, F> ExtractTenant<Request<B>> for FromHead<F>
where
    F: for<'a> Fn(Head<'a>) -> Option<&'a str>,
{
    fn tenant<'a>(&self, request: &'a Request<B>) -> Option<Cow<'a, str>> {
        (self.0)(Head::of(request)).map(Cow::Borrowed)
    }
}

impl<F> fmt::Debug for FromHead<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromHead").finish_non_exhaustive()
    }
}

/// An extractor, and a function that says what a request costs. Made by
/// [`WfqLayer::cost`](super::WfqLayer::cost).
pub struct WithCost<E, C> {
    pub(crate) extract: Arc<E>,
    pub(crate) cost: C,
}

impl<R, E, C> ExtractTenant<R> for WithCost<E, C>
where
    E: ExtractTenant<R>,
    C: Fn(&R) -> NonZeroU32,
{
    fn tenant<'a>(&self, request: &'a R) -> Option<Cow<'a, str>> {
        self.extract.tenant(request)
    }

    fn cost(&self, request: &R) -> NonZeroU32 {
        (self.cost)(request)
    }
}

impl<E, C> fmt::Debug for WithCost<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithCost").finish_non_exhaustive()
    }
}
