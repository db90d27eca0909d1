//! Where priorities usually come from.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName};

use super::{Priority, urgency};
use crate::{digits::digits, head::Head};

/// Finds the priority of an HTTP request by its route, by what a trusted client says, and by whether it is a retry.
///
/// ```
/// use http::HeaderName;
/// use tower_backpressure::{Priority, PriorityLayer, priority::Rules};
///
/// #[derive(Clone)]
/// struct Plan { premium: bool } // put into the extensions by the layer that knows the customer
///
/// let rules = Rules::new()
///     .route("/health", Priority::Critical)
///     .route("/reports", Priority::Background)
///     .dangerously_trust_urgency() // browsers and other clients say what is urgent to them,
///     .at_most(|head| match head.extensions.get::<Plan>() { // within what they pay for
///         Some(Plan { premium: true }) => Priority::High,
///         _ => Priority::Normal,
///     });
/// let priorities = PriorityLayer::new(move |head| rules.of(head));
/// # let _ = priorities;
/// ```
///
/// In this order; what comes first decides:
///
/// | source | priority |
/// | --- | --- |
/// | the [header](Self::dangerously_trust_header) that is trusted | the name in it, but at most what the client [can claim](Self::at_most) |
/// | the [urgency](Self::dangerously_trust_urgency), if it is trusted | the level of it, with the same bound |
/// | the [routes](Self::route) | that of the longest one that the path begins with |
/// | the [`Priority`] in the request's extensions | that one |
/// | none of them | [`Normal`](Priority::Normal) |
///
/// What cannot be read says nothing. A [retry](Self::keep_retries) is one step less important than that.
#[derive(Clone, Default)]
pub struct Rules {
    header: Option<HeaderName>,
    urgency: bool,
    at_most: Option<Arc<AtMost>>,
    routes: Vec<(String, Priority)>,
    keep_retries: bool,
}

// Made once: a name in a string is parsed each time that it is looked for.
static GRPC_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");
static ENVOY_ATTEMPTS: HeaderName = HeaderName::from_static("x-envoy-attempt-count");
static AMZ_REQUEST: HeaderName = HeaderName::from_static("amz-sdk-request");

type AtMost = dyn Fn(Head<'_>) -> Priority + Send + Sync;

impl Rules {
    /// No routes, and no header is believed. Retries are one step less important than first tries.
    pub fn new() -> Self {
        Self::default()
    }

    /// The path, and all paths below it: `/orders` is `/orders` and `/orders/7`, but not `/orders-archive`. `/` is all
    /// paths. Of gRPC, `/shop.Orders` is all methods of a service, and `/shop.Orders/List` is one of them.
    pub fn route(mut self, path: impl Into<String>, priority: Priority) -> Self {
        let mut path = path.into();
        path.truncate(path.trim_end_matches('/').len());
        self.routes.push((path, priority));
        self
    }

    /// Believes a header that has the name of a priority, **which any client can set to whatever it likes**.
    ///
    /// Everybody's requests are critical then, unless only servers of your own can send them, or a proxy removes the header from
    /// what strangers send, or [`at_most`](Self::at_most) bounds it.
    pub fn dangerously_trust_header(mut self, name: HeaderName) -> Self {
        self.header = Some(name);
        self
    }

    /// Believes the urgency in the header `priority` of RFC 9218, **which any client can set to whatever it likes**, and which browsers
    /// set for themselves. The same about servers of your own, proxies and [`at_most`](Self::at_most).
    ///
    /// | `priority` | is |
    /// | --- | --- |
    /// | `u=0` | critical |
    /// | `u=1`, `u=2` | high |
    /// | `u=3` | normal |
    /// | `u=4`, `u=5`, `u=6` | low |
    /// | `u=7` | background |
    ///
    /// No `u`, one that is not an integer from 0 to 7, and a header that is not a structured field say nothing.
    pub fn dangerously_trust_urgency(mut self) -> Self {
        self.urgency = true;
        self
    }

    /// What a client can claim at most by a header, as this function says: by the plan of its tenant, for instance. It says nothing about
    /// priorities that do not come from a client.
    pub fn at_most<F>(mut self, most: F) -> Self
    where
        F: Fn(Head<'_>) -> Priority + Send + Sync + 'static,
    {
        self.at_most = Some(Arc::new(most));
        self
    }

    /// Retries are as important as first tries. By default they are one step less important, so that clients that try again
    /// do not keep others from being served for the first time.
    ///
    /// A retry is a request with `grpc-previous-rpc-attempts` of at least 1, or with `x-envoy-attempt-count` or the `attempt` of
    /// `amz-sdk-request` of at least 2.
    pub fn keep_retries(mut self) -> Self {
        self.keep_retries = true;
        self
    }

    /// The priority of the request with this head.
    pub fn of(&self, head: Head<'_>) -> Priority {
        let claimed = self
            .claimed(head.headers)
            .map(|claimed| match &self.at_most {
                Some(most) => claimed.min(most(head)),
                None => claimed,
            });
        let known = || {
            self.routed(head.uri.path())
                .unwrap_or_else(|| super::of(&head))
        };
        let priority = claimed.unwrap_or_else(known);
        match !self.keep_retries && is_retry(head.headers) {
            true => priority.lowered(),
            false => priority,
        }
    }

    /// What the client says, if it is believed.
    fn claimed(&self, headers: &HeaderMap) -> Option<Priority> {
        let named = self.header.as_ref().and_then(|name| {
            let mut values = headers.get_all(name).iter();
            let value = values.next()?.to_str().ok()?;
            // Of several, one may have been added by somebody else.
            values.next().is_none().then(|| value.trim().parse().ok())?
        });
        named.or_else(|| self.urgency.then(|| urgency::read(headers))?)
    }

    fn routed(&self, path: &str) -> Option<Priority> {
        let below = |route: &&(String, Priority)| {
            let rest = path.strip_prefix(route.0.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let longest = self
            .routes
            .iter()
            .filter(below)
            .max_by_key(|(route, _)| route.len());
        longest.map(|(_, priority)| *priority)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("header", &self.header)
            .field("urgency", &self.urgency)
            .field("routes", &self.routes)
            .field("keep_retries", &self.keep_retries)
            .finish_non_exhaustive()
    }
}

fn is_retry(headers: &HeaderMap) -> bool {
    let at_least = |name: &HeaderName, least: u64| {
        let value = headers.get(name).and_then(|value| digits(value.as_bytes()));
        value.is_some_and(|attempts| attempts >= least)
    };
    at_least(&GRPC_ATTEMPTS, 1)
        || at_least(&ENVOY_ATTEMPTS, 2)
        || headers.get(&AMZ_REQUEST).is_some_and(|value| {
            let mut pairs = value
                .as_bytes()
                .split(|byte| *byte == b';')
                .map(<[u8]>::trim_ascii);
            let attempt = pairs.find_map(|pair| digits(pair.strip_prefix(b"attempt=")?));
            attempt.is_some_and(|attempt| attempt >= 2)
        })
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use http::{HeaderValue, Request};
    use proptest::prelude::*;

    use super::{Priority::*, *};

    fn of(rules: &Rules, path: &str, headers: &[(&'static str, &str)]) -> Priority {
        let mut request = Request::get(path).body(()).unwrap();
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).unwrap();
            request.headers_mut().append(*name, value);
        }
        rules.of(Head::of(&request))
    }

    fn trusting() -> Rules {
        Rules::new().dangerously_trust_header(HeaderName::from_static("x-priority"))
    }

    #[test]
    fn the_longest_route_decides_wherever_it_stands() {
        let rules = Rules::new()
            .route("/orders/export", Background)
            .route("/orders", High)
            .route("/orders/export/status/", Critical)
            .route("/shop.Orders", Low);
        for (path, priority) in [
            ("/orders", High),
            ("/orders?all", High),
            ("/orders/7", High),
            ("/orders-archive", Normal),
            ("/orders/export", Background),
            ("/orders/export/7", Background),
            ("/orders/export/status", Critical),
            ("/shop.Orders/List", Low),
            ("/shop.OrdersAdmin/List", Normal),
            ("/", Normal),
        ] {
            assert_eq!(of(&rules, path, &[]), priority, "{path}");
        }
        let all = rules.route("/", Low);
        assert_eq!(of(&all, "/any", &[]), Low);
        assert_eq!(of(&all, "/orders", &[]), High);
    }

    #[test]
    fn no_header_raises_a_priority_unless_it_is_trusted() {
        let headers = [("x-priority", "critical"), ("priority", "u=0")];
        assert_eq!(of(&Rules::new(), "/", &headers), Normal);
        assert_eq!(of(&trusting(), "/", &headers), Critical);
        let urgency = Rules::new().dangerously_trust_urgency();
        assert_eq!(of(&urgency, "/", &headers), Critical);
        assert_eq!(of(&urgency, "/", &[("x-priority", "critical")]), Normal);
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        let rules = trusting().dangerously_trust_urgency().route("/low", Low);
        for unknown in [
            "urgent",
            "",
            "9",
            "critical high",
            "Critical;q=1",
            "\u{fffd}",
        ] {
            let headers = [("x-priority", unknown)];
            assert_eq!(of(&rules, "/", &headers), Normal, "{unknown:?}");
            assert_eq!(of(&rules, "/low", &headers), Low, "{unknown:?}");
        }
        let twice = [("x-priority", "low"), ("x-priority", "critical")];
        assert_eq!(of(&rules, "/", &twice), Normal);
        let next = [("x-priority", "urgent"), ("priority", "u=1")];
        assert_eq!(of(&rules, "/", &next), High);
        assert_eq!(of(&rules, "/", &[("x-priority", " High ")]), High);
    }

    #[test]
    fn a_claim_is_bounded_and_a_route_is_not() {
        let rules = trusting().route("/health", Critical).at_most(|_| High);
        assert_eq!(of(&rules, "/", &[("x-priority", "critical")]), High);
        assert_eq!(of(&rules, "/", &[("x-priority", "low")]), Low);
        assert_eq!(of(&rules, "/health", &[]), Critical);
        assert_eq!(of(&rules, "/health", &[("x-priority", "low")]), Low);
    }

    #[test]
    fn the_extension_is_what_it_is_unless_something_else_is_known() {
        let mut request = Request::new(());
        request.extensions_mut().insert(High);
        let rules = trusting().route("/reports", Background);
        assert_eq!(rules.of(Head::of(&request)), High);
        *request.uri_mut() = "/reports".parse().unwrap();
        assert_eq!(rules.of(Head::of(&request)), Background);
        let low = HeaderValue::from(Low);
        request.headers_mut().insert("x-priority", low);
        assert_eq!(rules.of(Head::of(&request)), Low);
    }

    #[test]
    fn a_retry_is_one_step_less_important() {
        for (header, value, is_retry) in [
            ("grpc-previous-rpc-attempts", "0", false),
            ("grpc-previous-rpc-attempts", "1", true),
            (
                "grpc-previous-rpc-attempts",
                "99999999999999999999999",
                true,
            ),
            ("grpc-previous-rpc-attempts", "-1", false),
            ("grpc-previous-rpc-attempts", "one", false),
            ("x-envoy-attempt-count", "1", false),
            ("x-envoy-attempt-count", "2", true),
            ("amz-sdk-request", "attempt=1; max=3", false),
            ("amz-sdk-request", "attempt=2; max=3", true),
            (
                "amz-sdk-request",
                "ttl=20260101T000000Z; attempt=3; max=3",
                true,
            ),
            ("amz-sdk-request", "max=3", false),
            ("amz-sdk-request", "attempt=; max=3", false),
        ] {
            let rules = trusting().route("/high", High);
            let headers = [(header, value)];
            let lowered = |priority: Priority| {
                if is_retry {
                    priority.lowered()
                } else {
                    priority
                }
            };
            assert_eq!(
                of(&rules, "/", &headers),
                lowered(Normal),
                "{header}: {value}"
            );
            assert_eq!(
                of(&rules, "/high", &headers),
                lowered(High),
                "{header}: {value}"
            );
            let claims = [headers[0], ("x-priority", "critical")];
            assert_eq!(
                of(&rules, "/", &claims),
                lowered(Critical),
                "{header}: {value}"
            );
            assert_eq!(of(&rules.keep_retries(), "/", &headers), Normal);
        }
    }

    proptest! {
        #[test]
        fn no_header_is_too_much_for_it(bytes in prop::collection::vec(32..=255_u8, 0..60)) {
            let rules = trusting().dangerously_trust_urgency().at_most(|_| High);
            let mut request = Request::new(());
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                for name in ["x-priority", "priority", "amz-sdk-request", "x-envoy-attempt-count"] {
                    request.headers_mut().insert(name, value.clone());
                }
            }
            prop_assert!(rules.of(Head::of(&request)) <= High);
        }
    }
}
