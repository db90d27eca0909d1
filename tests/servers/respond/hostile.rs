//! Whatever a request looks like, it gets a well-formed answer.

use http_body_util::BodyExt;
use proptest::prelude::*;
use tower::ServiceExt;

use super::*;

fn header() -> impl Strategy<Value = (String, Vec<u8>)> {
    let name = prop_oneof![
        Just("content-type"),
        Just("connection"),
        Just("upgrade"),
        Just("sec-websocket-key"),
        Just("sec-websocket-version"),
        Just("sec-websocket-protocol"),
        Just("connect-protocol-version"),
        Just("x-anything"),
    ];
    let sensible = prop_oneof![
        Just("application/grpc"),
        Just("application/grpc-web+proto"),
        Just("Application/GRPC+json; charset=utf-8"),
        Just("application/connect+proto"),
        Just("application/json"),
        Just("application/proto;;;"),
        Just("upgrade, keep-alive"),
        Just("websocket"),
        Just("dGhlIHNhbXBsZSBub25jZQ=="),
        Just("13"),
        Just("1"),
        Just(","),
    ];
    let value = prop_oneof![
        4 => sensible.prop_map(|value| value.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
        1 => (1..20_000_usize).prop_map(|length| vec![b'a'; length]),
    ];
    (name.prop_map(String::from), value)
}

proptest! {
    #[test]
    fn any_request_gets_a_well_formed_answer(
        method in prop_oneof![
            Just("GET"), Just("POST"), Just("HEAD"), Just("OPTIONS"), Just("CONNECT"), Just("PRI"), Just("BREW"),
        ],
        version in prop_oneof![
            Just(::http::Version::HTTP_09), Just(::http::Version::HTTP_10), Just(::http::Version::HTTP_11),
            Just(::http::Version::HTTP_2), Just(::http::Version::HTTP_3),
        ],
        query in "(\\?[a-z0-9=&%]{0,20})?|\\?connect=v1|\\?a&connect=v1&b",
        headers in prop::collection::vec(header(), 0..8),
        fails in any::<bool>(),
    ) {
        let mut request = Request::builder().method(method).version(version).uri(format!("/{query}"));
        for (name, value) in headers {
            if let Ok(value) = ::http::HeaderValue::from_bytes(&value) {
                request = request.header(name, value);
            }
        }
        let request = request.body(String::new()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (head, body) = runtime.block_on(async {
            let response = match fails {
                false => refusing!(OverloadResponseLayer::new()).oneshot(request).await,
                true => failing!(OverloadResponseLayer::new()).oneshot(request).await,
            };
            let (head, body) = response.unwrap().into_parts();
            (head, body.collect().await.unwrap().to_bytes())
        });
        let content_type = head.headers["content-type"].as_bytes();
        let text = |name| head.headers.get(name).map(|value| value.to_str().unwrap());
        match head.status.as_u16() {
            // gRPC, gRPC-Web, or a Connect stream.
            200 if content_type.to_ascii_lowercase().starts_with(b"application/grpc") => {
                prop_assert!(body.is_empty());
                prop_assert_eq!(text("grpc-status"), Some(if fails { "13" } else { "8" }));
                prop_assert_eq!(text("grpc-retry-pushback-ms").is_some(), !fails);
            }
            200 => {
                prop_assert_eq!(body[0], 2);
                let length = u32::from_be_bytes(body[1..5].try_into().unwrap());
                prop_assert_eq!(length as usize, body.len() - 5);
                prop_assert!(std::str::from_utf8(&body[5..]).is_ok());
            }
            503 | 429 => {
                prop_assert!(!fails);
                prop_assert!(text("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
            }
            500 => prop_assert!(fails && text("retry-after").is_none()),
            status => prop_assert!(false, "{}", status),
        }
    }
}
