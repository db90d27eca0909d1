//! The few encodings that answers need: base64, percent, JSON strings, and two messages of protobuf.

use std::{fmt::Write, time::Duration};

use super::Code;

/// With the standard alphabet and no padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let group = u32::from_be_bytes(group);
        for digit in 0..=chunk.len() {
            let index = group >> (18 - 6 * digit) & 63;
            text.push(ALPHABET[index as usize].into());
        }
    }
    text
}

/// As `grpc-message` has it: what is not printable ASCII, and `%`, as `%XX`.
pub(super) fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | ..=0x1f | 0x7f.. => write!(encoded, "%{byte:02X}").expect("into a string"),
            _ => encoded.push(byte.into()),
        }
    }
    encoded
}

/// A JSON string, with its quotes.
pub(super) fn json(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() + 2);
    encoded.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => encoded.extend(['\\', c]),
            '\0'..='\u{1f}' => {
                write!(encoded, "\\u{:04x}", u32::from(c)).expect("into a string");
            }
            _ => encoded.push(c),
        }
    }
    encoded.push('"');
    encoded
}

/// `google.rpc.RetryInfo { retry_delay: Duration { seconds, nanos } }`.
pub(super) fn retry_info(retry_after: Duration) -> Vec<u8> {
    // What the message can hold: 10 000 years.
    let seconds = retry_after.as_secs().min(315_576_000_000);
    let mut duration = Vec::new();
    number(&mut duration, 1, seconds);
    number(&mut duration, 2, retry_after.subsec_nanos().into());
    let mut info = Vec::new();
    bytes(&mut info, 1, &duration);
    info
}

/// `google.rpc.Status`, with a `RetryInfo` among its details if there is one.
pub(super) fn status(code: Code, message: &str, retry_after: Option<Duration>) -> Vec<u8> {
    let mut status = Vec::new();
    number(&mut status, 1, code.number());
    bytes(&mut status, 2, message.as_bytes());
    if let Some(retry_after) = retry_after {
        let mut any = Vec::new();
        bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
        bytes(&mut any, 2, &retry_info(retry_after));
        bytes(&mut status, 3, &any);
    }
    status
}

impl Code {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::DeadlineExceeded => 4,
            Self::ResourceExhausted => 8,
            Self::Internal => 13,
            Self::Unavailable => 14,
        }
    }
}

/// A field that is 0 is left out.
fn number(message: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        message.push(field << 3);
        varint(message, value);
    }
}

fn bytes(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648_without_padding() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8");
    }

    #[test]
    fn what_is_not_printable_is_percent_encoded() {
        assert_eq!(percent("over 100 %"), "over 100 %25");
        assert_eq!(percent("zu viel für\n"), "zu viel f%C3%BCr%0A");
    }

    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(json("a \"b\" \\ \n ü"), r#""a \"b\" \\ \u000a ü""#);
    }

    #[test]
    fn details_are_a_status_with_a_retry_info() {
        let two_seconds = Some(Duration::from_secs(2));
        assert_eq!(
            base64(&status(Code::ResourceExhausted, "overloaded", two_seconds)),
            "CAgSCm92ZXJsb2FkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAg"
        );
        assert_eq!(base64(&retry_info(Duration::from_secs(2))), "CgIIAg");
        // 300 s and 500 000 000 ns are varints of several bytes.
        let info = retry_info(Duration::from_millis(300_500));
        assert_eq!(info, [10, 9, 8, 0xac, 2, 16, 0x80, 0xca, 0xb5, 0xee, 1]);
        assert_eq!(status(Code::Internal, "", None), [8, 13, 18, 0]);
        let _ = retry_info(Duration::MAX);
    }
}
