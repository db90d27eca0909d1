//! What a client speaks.

use http::{HeaderMap, HeaderValue, Method, Request, header::CONTENT_TYPE};

/// What a client speaks, as its request's head tells. In this order: what comes first is looked for
/// first.
///
/// As an extension of a request it overrules what the head tells; [`WebSocket`](Self::WebSocket) only for
/// a request that is a valid handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// A WebSocket's handshake, on HTTP/1.1 or HTTP/2. Without the feature `ws` it is not looked for.
    WebSocket,
    /// `POST` with a content type `application/grpc-web…`.
    GrpcWeb,
    /// `POST` with a content type `application/grpc` or `application/grpc+…`.
    Grpc,
    /// `POST` with a content type `application/connect+…`.
    ConnectStreaming,
    /// `POST` with a content type `application/proto` or `application/json` and
    /// `connect-protocol-version: 1`, or `GET` with `connect=v1` in the query.
    ConnectUnary,
    /// Anything else.
    Http,
}

/// What has to be known of a request in order to answer it.
#[derive(Debug)]
pub(crate) enum Caller {
    #[cfg(feature = "ws")]
    WebSocket(Box<super::websocket::Handshake>),
    Grpc {
        web: bool,
        content_type: HeaderValue,
    },
    ConnectStreaming {
        content_type: HeaderValue,
    },
    ConnectUnary,
    Http,
}

impl Caller {
    /// Nearly every request pays for this, and few are refused: what is looked up for all is little, and what is not for
    /// all is not in line.
    #[inline(always)]
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let told: Option<&Protocol> = request.extensions().get();
        #[cfg(feature = "ws")]
        if told.is_none_or(|told| *told == Protocol::WebSocket) {
            if let Some(handshake) = super::websocket::Handshake::of(request) {
                return Self::WebSocket(handshake);
            }
        }
        match told.copied().unwrap_or_else(|| protocol(request)) {
            Protocol::Http | Protocol::WebSocket => Self::Http,
            Protocol::ConnectUnary => Self::ConnectUnary,
            told => Self::with_content_type(told, request.headers()),
        }
    }

    #[inline(never)]
    fn with_content_type(protocol: Protocol, headers: &HeaderMap) -> Self {
        let content_type = |usual| {
            let content_type = headers.get(CONTENT_TYPE).cloned();
            content_type.unwrap_or(HeaderValue::from_static(usual))
        };
        match protocol {
            Protocol::GrpcWeb => Self::Grpc {
                web: true,
                content_type: content_type("application/grpc-web"),
            },
            Protocol::Grpc => Self::Grpc {
                web: false,
                content_type: HeaderValue::from_static("application/grpc"),
            },
            _ => Self::ConnectStreaming {
                content_type: content_type("application/connect+proto"),
            },
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        match self {
            #[cfg(feature = "ws")]
            Self::WebSocket(_) => Protocol::WebSocket,
            Self::Grpc { web: true, .. } => Protocol::GrpcWeb,
            Self::Grpc { web: false, .. } => Protocol::Grpc,
            Self::ConnectStreaming { .. } => Protocol::ConnectStreaming,
            Self::ConnectUnary => Protocol::ConnectUnary,
            Self::Http => Protocol::Http,
        }
    }
}

#[inline]
fn protocol<B>(request: &Request<B>) -> Protocol {
    match *request.method() {
        Method::POST => posted(request.headers()),
        Method::GET if request.uri().query().is_some_and(asks_for_connect) => {
            Protocol::ConnectUnary
        }
        _ => Protocol::Http,
    }
}

fn posted(headers: &HeaderMap) -> Protocol {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let mut media_type = content_type.unwrap_or_default().split(|byte| *byte == b';');
    let media_type = media_type.next().unwrap_or_default().trim_ascii();
    let starts = |with: &str| {
        let start = media_type.get(..with.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
    };
    let is = |what: &str| media_type.eq_ignore_ascii_case(what.as_bytes());
    if !starts("application/") {
        Protocol::Http
    } else if starts("application/grpc-web") {
        Protocol::GrpcWeb
    } else if is("application/grpc") || starts("application/grpc+") {
        Protocol::Grpc
    } else if starts("application/connect+") {
        Protocol::ConnectStreaming
    } else if (is("application/proto") || is("application/json"))
        && headers
            .get("connect-protocol-version")
            .is_some_and(|version| version == "1")
    {
        Protocol::ConnectUnary
    } else {
        Protocol::Http
    }
}

fn asks_for_connect(query: &str) -> bool {
    query.split('&').any(|pair| pair == "connect=v1")
}
