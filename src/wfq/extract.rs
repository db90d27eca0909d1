//! Whose request it is.

use std::{borrow::Cow, fmt, num::NonZeroU32};

use http::{HeaderName, Request};

use crate::{
    Deadline, Priority, clock,
    deadline::{self, ExtractDeadline},
    head::Head,
    priority,
    sync::Arc,
};

/// Finds out whose request it is, what it costs, and how urgent it is.
///
/// Any `Fn(&Request) -> Option<impl Into<Cow<'static, str>>>` is one: `|request: &MyRequest| …`, with the type
/// written out. For HTTP there are [`FromExtension`], [`from_head`] and [`FromHeader`]; and
/// `FromSpiffe`, with the feature `spiffe`. Those for HTTP also find the request's [`Priority`] and [`Deadline`];
/// a function does not, see [`WfqLayer::priority`](super::WfqLayer::priority) and
/// [`WfqLayer::deadline`](super::WfqLayer::deadline).
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

    /// How much the request matters. A [`WfqLayer`](super::WfqLayer) asks for it where the request may have to wait.
    fn priority(&self, request: &R) -> Priority {
        let _ = request;
        Priority::default()
    }

    /// When nobody waits for the answer any more. A [`WfqLayer`](super::WfqLayer) asks for it where the request may have
    /// to wait.
    fn deadline(&self, request: &R) -> Option<Deadline> {
        let _ = request;
        None
    }
}

#[diagnostic::do_not_recommend]
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

    fn priority(&self, request: &Request<B>) -> Priority {
        priority::of(&Head::of(request))
    }

    fn deadline(&self, request: &Request<B>) -> Option<Deadline> {
        deadline::of(&Head::of(request), clock::instant())
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

    fn priority(&self, request: &Request<B>) -> Priority {
        priority::of(&Head::of(request))
    }

    fn deadline(&self, request: &Request<B>) -> Option<Deadline> {
        deadline::of(&Head::of(request), clock::instant())
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

    fn priority(&self, request: &Request<B>) -> Priority {
        priority::of(&Head::of(request))
    }

    fn deadline(&self, request: &Request<B>) -> Option<Deadline> {
        deadline::of(&Head::of(request), clock::instant())
    }
}

impl<F> fmt::Debug for FromHead<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromHead").finish_non_exhaustive()
    }
}

/// An extractor, and something that finds one more thing in a request.
macro_rules! with {
    (
        $doc:literal
        $with:ident by $finds:path {
            $own:ident -> $says:ty = |$find:ident, $request:ident| $found:expr;
            $($other:ident -> $other_says:ty;)*
        }
    ) => {
        #[doc = $doc]
        pub struct $with<E, F> {
            pub(crate) extract: Arc<E>,
            pub(crate) $own: F,
        }

        impl<R, E, F> ExtractTenant<R> for $with<E, F>
        where
            E: ExtractTenant<R>,
            F: $finds,
        {
            fn tenant<'a>(&self, request: &'a R) -> Option<Cow<'a, str>> {
                self.extract.tenant(request)
            }

            fn $own(&self, $request: &R) -> $says {
                let $find = &self.$own;
                $found
            }

            $(fn $other(&self, request: &R) -> $other_says {
                self.extract.$other(request)
            })*
        }

        impl<E, F> fmt::Debug for $with<E, F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($with)).finish_non_exhaustive()
            }
        }
    };
}

with! {
    "An extractor, and a function that says what a request costs. Made by [`WfqLayer::cost`](super::WfqLayer::cost)."
    WithCost by Fn(&R) -> NonZeroU32 {
        cost -> NonZeroU32 = |find, request| find(request);
        priority -> Priority;
        deadline -> Option<Deadline>;
    }
}

with! {
    "An extractor, and a function that says how much a request matters. Made by
    [`WfqLayer::priority`](super::WfqLayer::priority)."
    WithPriority by Fn(&R) -> Priority {
        priority -> Priority = |find, request| find(request);
        cost -> NonZeroU32;
        deadline -> Option<Deadline>;
    }
}

with! {
    "An extractor, and an [`ExtractDeadline`]. Made by [`WfqLayer::deadline`](super::WfqLayer::deadline)."
    WithDeadline by ExtractDeadline<R> {
        deadline -> Option<Deadline> = |find, request| find.deadline(request);
        cost -> NonZeroU32;
        priority -> Priority;
    }
}
