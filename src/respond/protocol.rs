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

impl Protocol {
    /// Whether its clients know the codes of gRPC.
    pub(super) fn calls_procedures(self) -> bool {
        !matches!(self, Self::WebSocket | Self::Http)
    }
}

/// What has to be known of a request in order to answer it. In two words: it is in the future of every request, which is
/// moved several times.
#[derive(Debug)]
pub(crate) enum Caller {
    #[cfg(feature = "ws")]
    WebSocket(Box<super::websocket::Handshake>),
    /// gRPC-Web and Connect streaming are answered in the content type of the request, which is one of [`USUAL`].
    Usual {
        protocol: Protocol,
        content_type: u8,
    },
    /// The same with any other content type.
    Unusual {
        protocol: Protocol,
        content_type: Box<HeaderValue>,
    },
    Grpc,
    ConnectUnary,
    Http,
}

/// The content types that clients of gRPC-Web and Connect streaming send, without parameters.
const USUAL: [&str; 6] = [
    GRPC_WEB,
    "application/grpc-web+proto",
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
    CONNECT_STREAMING,
    "application/connect+json",
];

/// For those that a `Protocol` among the extensions says to be such, and that send no content type.
const GRPC_WEB: &str = "application/grpc-web";
const CONNECT_STREAMING: &str = "application/connect+proto";

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
        let without = match protocol {
            Protocol::Grpc => return Self::Grpc,
            Protocol::GrpcWeb => GRPC_WEB,
            _ => CONNECT_STREAMING,
        };
        let sent = headers.get(CONTENT_TYPE);
        let content_type = sent.map_or(without.as_bytes(), HeaderValue::as_bytes);
        let mut usual = (0..).zip(USUAL);
        match (usual.find(|(_, it)| it.as_bytes() == content_type), sent) {
            (None, Some(sent)) => Self::Unusual {
                protocol,
                content_type: Box::new(sent.clone()),
            },
            (found, _) => Self::Usual {
                protocol,
                content_type: found.map_or(0, |(number, _)| number),
            },
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        match self {
            #[cfg(feature = "ws")]
            Self::WebSocket(_) => Protocol::WebSocket,
            Self::Usual { protocol, .. } | Self::Unusual { protocol, .. } => *protocol,
            Self::Grpc => Protocol::Grpc,
            Self::ConnectUnary => Protocol::ConnectUnary,
            Self::Http => Protocol::Http,
        }
    }

    /// The content type of an answer that has that of the request, and of one to gRPC.
    pub(super) fn content_type(self) -> HeaderValue {
        match self {
            Self::Usual { content_type, .. } => {
                HeaderValue::from_static(USUAL[usize::from(content_type)])
            }
            Self::Unusual { content_type, .. } => *content_type,
            _ => HeaderValue::from_static("application/grpc"),
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

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    fn answered_in(content_type: Option<&str>, protocol: Option<Protocol>) -> HeaderValue {
        let mut request = Request::post("/").body(()).unwrap();
        if let Some(content_type) = content_type {
            let content_type = content_type.parse().unwrap();
            request.headers_mut().insert(CONTENT_TYPE, content_type);
        }
        if let Some(protocol) = protocol {
            request.extensions_mut().insert(protocol);
        }
        let caller = Caller::of(&request);
        if let Some(protocol) = protocol {
            assert_eq!(caller.protocol(), protocol);
        }
        caller.content_type()
    }

    #[test]
    fn grpc_web_and_connect_streams_are_answered_in_their_own_content_type() {
        let unusual = [
            "application/grpc-web+json",
            "application/grpc-web+proto; charset=utf-8",
            "Application/gRPC-Web",
            "application/connect+thrift",
        ];
        for content_type in USUAL.into_iter().chain(unusual) {
            assert_eq!(answered_in(Some(content_type), None), content_type);
        }
    }

    #[test]
    fn one_that_is_said_to_speak_a_protocol_need_not_send_its_content_type() {
        let told = |protocol| answered_in(None, Some(protocol));
        assert_eq!(told(Protocol::GrpcWeb), "application/grpc-web");
        assert_eq!(
            told(Protocol::ConnectStreaming),
            "application/connect+proto"
        );
        assert_eq!(told(Protocol::Grpc), "application/grpc");
        let said = answered_in(Some("application/grpc+proto"), None);
        assert_eq!(said, "application/grpc");
    }

    #[test]
    fn what_the_future_of_every_request_has_is_small() {
        assert_eq!(size_of::<Option<Caller>>(), 16);
    }
}
