//! WebSocket: accepts the handshake, and closes with 1013 (try again later).
//!
//! A script in a browser learns of a handshake that fails only that it failed (1006). Of a socket that is
//! closed it learns the code and the reason.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{
        AsHeaderName, CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use hyper::{
    rt::{Read, ReadBuf, Write},
    upgrade::{OnUpgrade, Upgraded},
};
use tokio::{runtime::Handle, time::timeout};

use super::{Answer, encode::base64};

/// At most so many sockets are being closed at once, each for so long, and so much is read of each.
const MOST_SOCKETS: usize = 1024;
const LONGEST: Duration = Duration::from_secs(2);
const MOST_READ: usize = 4096;

const TRY_AGAIN_LATER: u16 = 1013;

/// A frame of this kind is the last of a connection. The topmost bit says that it is whole.
const CLOSE: u8 = 0x8;
const WHOLE: u8 = 0x80;
/// A control frame's payload is no longer, and a reason has two bytes less.
const LONGEST_PAYLOAD: usize = 125;

/// A valid handshake, of a connection that can be taken over.
#[derive(Debug)]
pub(crate) struct Handshake {
    on_upgrade: OnUpgrade,
    /// Only HTTP/1.1 has one.
    key: Option<HeaderValue>,
    /// The first that the client offers. A browser takes no other answer.
    protocol: Option<HeaderValue>,
}

impl Handshake {
    #[inline]
    pub(super) fn of<B>(request: &Request<B>) -> Option<Box<Self>> {
        // Of a connection that is not asked to be, hyper offers none to be taken over.
        let on_upgrade: &OnUpgrade = request.extensions().get()?;
        let (method, version) = (request.method(), request.version());
        Self::asked(on_upgrade, method, version, request.headers()).map(Box::new)
    }

    #[inline(never)]
    fn asked(
        on_upgrade: &OnUpgrade,
        method: &Method,
        version: Version,
        headers: &HeaderMap,
    ) -> Option<Self> {
        match (method, version) {
            (&Method::GET, Version::HTTP_11) => {
                let key = headers.get(SEC_WEBSOCKET_KEY)?;
                let upgrade = has_token(headers, CONNECTION, "upgrade")
                    && has_token(headers, UPGRADE, "websocket");
                (upgrade && is_key(key.as_bytes())).then_some(())?;
                Self::with(on_upgrade, headers, Some(key.clone()))
            }
            (&Method::CONNECT, Version::HTTP_2) => Self::with(on_upgrade, headers, None),
            _ => None,
        }
    }

    fn with(on_upgrade: &OnUpgrade, headers: &HeaderMap, key: Option<HeaderValue>) -> Option<Self> {
        let version = headers.get(SEC_WEBSOCKET_VERSION)?;
        (version == "13").then_some(())?;
        let offered = headers.get(SEC_WEBSOCKET_PROTOCOL);
        let first =
            offered.and_then(|offered| offered.as_bytes().split(|byte| *byte == b',').next());
        let protocol = first.and_then(|first| HeaderValue::from_bytes(first.trim_ascii()).ok());
        Some(Self {
            on_upgrade: on_upgrade.clone(),
            key,
            protocol: protocol.filter(|protocol| !protocol.is_empty()),
        })
    }

    fn accept(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if let Some(key) = &self.key {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(SEC_WEBSOCKET_ACCEPT, accepts(key.as_bytes()));
        }
        if let Some(protocol) = self.protocol.clone() {
            response
                .headers_mut()
                .insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        response
    }
}

/// One of the values of a header, which may be a list.
fn has_token(headers: &HeaderMap, header: impl AsHeaderName, token: &str) -> bool {
    let values = headers.get_all(header);
    let mut tokens = values
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.any(|found| found.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// 16 bytes in base64: 22 digits, of which the last has only two bits, and padding.
fn is_key(key: &[u8]) -> bool {
    let Some(digits) = key.strip_suffix(b"==") else {
        return false;
    };
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    digits.len() == 22
        && digits.iter().all(is_digit)
        && matches!(digits[21], b'A' | b'Q' | b'g' | b'w')
}

fn accepts(key: &[u8]) -> HeaderValue {
    let mut hash = sha1_smol::Sha1::from(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accepts = base64(&hash.digest().bytes()) + "=";
    HeaderValue::try_from(accepts).expect("base64")
}

/// Sockets that are being closed.
#[derive(Debug, Default)]
pub(super) struct Closing(AtomicUsize);

struct Place(Arc<Closing>);

impl Closing {
    fn place(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self));
        // Counted first, and given back by the place if it was one too many.
        (self.0.fetch_add(1, Relaxed) < MOST_SOCKETS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// Accepts, and closes in a task of its own. `None` where that cannot be done: without a hint, without a
/// runtime, or if too many are being closed.
pub(super) fn close(
    answer: &Answer,
    handshake: Handshake,
    closing: &Arc<Closing>,
) -> Option<Response<Bytes>> {
    let frame = close_frame(answer.message, answer.retry_after_seconds()?);
    let runtime = Handle::try_current().ok()?;
    let place = closing.place()?;
    let response = handshake.accept();
    let on_upgrade = handshake.on_upgrade;
    runtime.spawn(async move {
        let _place = place;
        let _ = timeout(LONGEST, say_goodbye(on_upgrade, &frame)).await;
    });
    Some(response)
}

/// The hint is what matters, so it is the message that is cut.
fn close_frame(message: &str, seconds: u64) -> Vec<u8> {
    let hint = format!("; retry-after={seconds}");
    let room = LONGEST_PAYLOAD - 2 - hint.len();
    let cut = (0..=room.min(message.len())).rfind(|at| message.is_char_boundary(*at));
    let message = &message[..cut.unwrap_or(0)];
    let length = 2 + message.len() + hint.len();
    let mut frame = vec![WHOLE | CLOSE, length as u8];
    frame.extend_from_slice(&TRY_AGAIN_LATER.to_be_bytes());
    frame.extend_from_slice(message.as_bytes());
    frame.extend_from_slice(hint.as_bytes());
    frame
}

async fn say_goodbye(on_upgrade: OnUpgrade, frame: &[u8]) -> Option<()> {
    let mut socket = on_upgrade.await.ok()?;
    let mut left = frame;
    while !left.is_empty() {
        let written = poll_fn(|cx| Pin::new(&mut socket).poll_write(cx, left))
            .await
            .ok()?;
        left = left.get(written..).filter(|_| written > 0)?;
    }
    poll_fn(|cx| Pin::new(&mut socket).poll_flush(cx))
        .await
        .ok()?;
    // Who closes a socket on which something was sent to it that it has not read cuts off what it has said.
    hear_goodbye(&mut socket).await;
    poll_fn(|cx| Pin::new(&mut socket).poll_shutdown(cx))
        .await
        .ok()
}

/// Reads until the client has closed too, or said too much.
async fn hear_goodbye(socket: &mut Upgraded) -> Option<()> {
    let mut heard = [0; MOST_READ];
    let mut length = 0;
    while length < MOST_READ && !is_closed(&heard[..length]) {
        let mut buffer = ReadBuf::new(&mut heard[length..]);
        poll_fn(|cx| Pin::new(&mut *socket).poll_read(cx, buffer.unfilled()))
            .await
            .ok()?;
        let read = buffer.filled().len();
        (read > 0).then_some(())?;
        length += read;
    }
    Some(())
}

/// Whether there is a close frame among them.
fn is_closed(mut frames: &[u8]) -> bool {
    while let [kind, length, rest @ ..] = frames {
        let masked = if length & 0x80 == 0 { 0 } else { 4 };
        let (length, extra) = match (length & 0x7f, rest) {
            (126, [a, b, ..]) => (u64::from(u16::from_be_bytes([*a, *b])), 2),
            (127, [a, b, c, d, e, f, g, h, ..]) => {
                (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), 8)
            }
            (126 | 127, _) => return false,
            (length, _) => (length.into(), 0),
        };
        let whole = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .saturating_add(extra + masked);
        let Some(rest) = rest.get(whole..) else {
            return false;
        };
        if kind & 0x0f == CLOSE {
            return true;
        }
        frames = rest;
    }
    false
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_key_is_answered_as_rfc_6455_has_it() {
        let key = b"dGhlIHNhbXBsZSBub25jZQ==";
        assert!(is_key(key));
        assert_eq!(accepts(key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_key_that_is_not_sixteen_bytes_is_none() {
        for key in [
            "",
            "==",
            "dGhlIHNhbXBsZSBub25jZQ",
            "dGhlIHNhbXBsZSBub25jZQ=",
            "dGhlIHNhbXBsZSBub25jZR==",
            "dGhlIHNhbXBsZSBub25j==",
            "dGhlIHNhbXBsZSBub25jZQ Q==",
            "dGhlIHNhbXBsZSBub25jZ\u{ff}==",
        ] {
            assert!(!is_key(key.as_bytes()), "{key}");
        }
    }

    #[test]
    fn the_frame_is_1013_with_the_hint_as_its_reason() {
        let frame = close_frame("overloaded", 2);
        assert_eq!(frame[..4], [0x88, 27, 0x03, 0xf5]);
        assert_eq!(&frame[4..], b"overloaded; retry-after=2");
        assert!(is_closed(&frame));
    }

    #[test]
    fn a_message_that_is_too_long_is_cut_between_characters() {
        let frame = close_frame(&"ü".repeat(100), u64::MAX);
        assert!(frame.len() <= 2 + LONGEST_PAYLOAD);
        assert_eq!(usize::from(frame[1]), frame.len() - 2);
        let reason = std::str::from_utf8(&frame[4..]).unwrap();
        assert!(reason.starts_with('ü') && reason.ends_with("; retry-after=18446744073709551615"));
    }

    #[test]
    fn a_close_frame_is_found_after_others() {
        let close = [0x88, 0x80, 1, 2, 3, 4];
        let mut short = vec![0x81, 0x85, 9, 9, 9, 9, 1, 2, 3, 4, 5];
        assert!(!is_closed(&short));
        short.extend(close);
        assert!(is_closed(&short));
        assert!(!is_closed(&short[..short.len() - 1]));
        let mut long = vec![0x82, 126, 1, 0];
        long.extend([0x88; 256]);
        assert!(!is_closed(&long), "that is in its payload");
        long.extend(close);
        assert!(is_closed(&long));
        let mut huge = vec![0x82, 127];
        huge.extend([0xff; 8]);
        assert!(!is_closed(&huge));
    }

    #[test]
    fn no_more_sockets_are_closed_at_once_than_may_be() {
        let closing = Arc::new(Closing::default());
        let mut places: Vec<_> = (0..MOST_SOCKETS)
            .map(|_| closing.place().unwrap())
            .collect();
        assert!(closing.place().is_none());
        assert!(closing.place().is_none(), "who was refused has none");
        places.pop();
        assert!(closing.place().is_some());
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much_for_it(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = is_closed(&bytes);
            let _ = is_key(&bytes);
        }
    }
}
