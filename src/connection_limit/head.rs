//! Finds the end of the first request's head among the bytes of a connection.
//!
//! It keeps a few numbers and no bytes. It is not a parser: the server behind it is, and closes a connection that does
//! not speak HTTP.

/// What an HTTP/2 client sends before its first frame (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;
const TLS_HANDSHAKE: u8 = 0x16;

/// How far the first head has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// So many bytes, all of them those of an HTTP/2 preface.
    Preface(usize),
    /// HTTP/1: whether the line so far is empty. Only a line that follows another can end the head: servers skip empty
    /// lines before a request.
    Line {
        first: bool,
        empty: bool,
    },
    /// HTTP/2: the header of a frame, and how much of it is there.
    Frame([u8; 9], usize),
    /// HTTP/2: so many bytes are left of a frame, and whether it is the one that ends a head.
    Payload {
        left: u32,
        last: bool,
    },
    Complete,
}

impl Head {
    pub(super) const START: Self = Self::Preface(0);

    /// Takes more bytes.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while let [byte, rest @ ..] = bytes {
            if let Self::Payload { left, last } = *self {
                let skipped = bytes.len().min(left as usize);
                bytes = &bytes[skipped..];
                *self = Self::payload(left - skipped as u32, last);
                continue;
            }
            if *self == Self::Complete {
                return;
            }
            self.step(*byte);
            bytes = rest;
        }
    }

    fn step(&mut self, byte: u8) {
        *self = match *self {
            Self::Preface(at) if byte == PREFACE[at] => match at + 1 {
                24 => Self::Frame([0; 9], 0),
                at => Self::Preface(at),
            },
            // The record that begins a TLS handshake. What follows cannot be read here, and a server that speaks plain
            // HTTP ends the connection by itself: no head begins with this byte.
            Self::Preface(0) if byte == TLS_HANDSHAKE => Self::Complete,
            // What came before was no empty line: that is not how a preface begins.
            Self::Preface(0) => Self::line(true, true, byte),
            Self::Preface(at) => {
                let mut head = Self::line(true, true, PREFACE[0]);
                head.read(&PREFACE[1..at]);
                if head != Self::Complete {
                    head.step(byte);
                }
                head
            }
            Self::Line { first, empty } => Self::line(first, empty, byte),
            Self::Frame(mut header, at) => {
                header[at] = byte;
                match at + 1 {
                    9 => {
                        let [a, b, c, kind, flags, ..] = header;
                        let last =
                            matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0;
                        Self::payload(u32::from_be_bytes([0, a, b, c]), last)
                    }
                    at => Self::Frame(header, at),
                }
            }
            Self::Payload { .. } | Self::Complete => unreachable!("read elsewhere"),
        };
    }

    fn line(first: bool, empty: bool, byte: u8) -> Self {
        match byte {
            b'\r' => Self::Line { first, empty },
            b'\n' if empty && !first => Self::Complete,
            b'\n' => Self::Line {
                first: first && empty,
                empty: true,
            },
            _ => Self::Line {
                first,
                empty: false,
            },
        }
    }

    fn payload(left: u32, last: bool) -> Self {
        match (left, last) {
            (0, true) => Self::Complete,
            (0, false) => Self::Frame([0; 9], 0),
            _ => Self::Payload { left, last },
        }
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(9 + usize::from(length), b'\n');
        frame
    }

    fn http2(frames: &[Vec<u8>]) -> Vec<u8> {
        [PREFACE.to_vec(), frames.concat()].concat()
    }

    /// The head ends with the last of these bytes, and not before.
    fn complete() -> Vec<Vec<u8>> {
        let settings = frame(4, 0, 6);
        let texts = [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\nhost: a\n\n",
            "\r\n\r\n\r\nGET / HTTP/1.0\r\n\r\n",
            "\n\nGET /\n\n",
            "PRI * HTTP/1.1\r\n\r\n",
            "P / HTTP/1.1\r\n\r\n",
        ];
        let mut complete: Vec<_> = texts.map(|text| text.as_bytes().to_vec()).into();
        complete.extend([
            http2(&[settings.clone(), frame(HEADERS, END_HEADERS, 20)]),
            http2(&[frame(HEADERS, END_HEADERS | 1, 0)]),
            http2(&[
                settings,
                frame(HEADERS, 0, 3),
                frame(CONTINUATION, END_HEADERS, 1),
            ]),
            http2(&[frame(8, END_HEADERS, 4), frame(HEADERS, END_HEADERS, 1)]),
        ]);
        complete
    }

    fn read(pieces: &[&[u8]]) -> Head {
        let mut head = Head::START;
        pieces.iter().for_each(|piece| head.read(piece));
        head
    }

    #[test]
    fn a_head_is_complete_with_its_last_byte_and_not_before() {
        for bytes in complete() {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert_eq!(read(&[&bytes]), Head::Complete, "{text:?}");
            for at in 0..bytes.len() {
                assert_ne!(read(&[&bytes[..at]]), Head::Complete, "{text:?} {at}");
                let cut = [&bytes[..at], &bytes[at..]];
                assert_eq!(read(&cut), Head::Complete, "{text:?} {at}");
            }
        }
    }

    /// What is encrypted cannot be read, and a plain server ends such a connection itself.
    #[test]
    fn a_tls_handshake_is_not_waited_for() {
        assert_eq!(read(&[&[0x16, 3, 1, 0, 200]]), Head::Complete);
        assert_ne!(read(&[b"GET ", &[0x16]]), Head::Complete);
    }

    #[test]
    fn what_is_only_the_beginning_of_a_head_is_not_complete() {
        for bytes in [
            b"".to_vec(),
            b"\r\n\r\n\r\n\r\n\n\n".to_vec(),
            b"GET / HTTP/1.1\r\nx-a: b\r\n".to_vec(),
            b"PRI * HTTP/2.0\r\n\r\n".to_vec(),
            PREFACE.to_vec(),
            http2(&[frame(4, 0, 6), frame(4, 1, 0)]),
            http2(&[frame(HEADERS, 0, 20), frame(CONTINUATION, 0, 20)]),
            http2(&[vec![
                0xff,
                0xff,
                0xff,
                HEADERS,
                END_HEADERS,
                0,
                0,
                0,
                1,
                b'\n',
                b'\n',
            ]]),
        ] {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert_ne!(read(&[&bytes]), Head::Complete, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_bytes_are_cut(
            bytes in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'P'), any::<u8>()], 0..64),
            preface in any::<bool>(),
        ) {
            let bytes = if preface { http2(&[bytes]) } else { bytes };
            let one_by_one: Vec<_> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&[&bytes]), read(&one_by_one));
        }
    }
}
