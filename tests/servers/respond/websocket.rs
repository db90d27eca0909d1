//! WebSockets: on HTTP/1.1 with tungstenite, on HTTP/2 with h2.

use ::http::Version;
use futures_util::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::{
    self, Message, client::IntoClientRequest, protocol::frame::coding::CloseCode,
};

use super::*;

#[tokio::test]
async fn a_socket_is_closed_with_1013_and_the_hint() {
    let server = serve(refusing!(layer())).await;
    let mut request = format!("ws://{server}/").into_client_request().unwrap();
    let protocols = "chat, superchat".parse().unwrap();
    (request.headers_mut()).insert("sec-websocket-protocol", protocols);
    let stream = TcpStream::connect(server).await.unwrap();
    let (mut socket, response) = tokio_tungstenite::client_async(request, stream)
        .await
        .unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert!(!response.headers().contains_key("sec-websocket-extensions"));
    // It has something to say first.
    socket.send(Message::text("hello")).await.unwrap();
    let Some(Ok(Message::Close(Some(close)))) = socket.next().await else {
        panic!("not closed")
    };
    assert_eq!(close.code, CloseCode::Again);
    assert_eq!(u16::from(close.code), 1013);
    assert_eq!(close.reason.as_str(), "overloaded; retry-after=2");
    // Both have said goodbye, and the connection ends in an orderly way.
    assert!(socket.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_is_left_after_two_seconds() {
    let server = serve(refusing!(layer())).await;
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(HANDSHAKE.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    // It does not close, and neither does it read any further than this.
    stream.read_to_end(&mut heard).await.unwrap();
    let heard = String::from_utf8_lossy(&heard).into_owned();
    assert!(heard.starts_with("HTTP/1.1 101 "), "{heard}");
    assert!(heard.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{heard}");
    assert!(heard.ends_with("overloaded; retry-after=2"), "{heard}");
}

const HANDSHAKE: &str = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive, Upgrade\r\n\
    upgrade: WebSocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// What a server answers to these bytes, up to the end of the head.
async fn head(server: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn what_is_no_valid_handshake_gets_a_plain_503() {
    let server = serve(refusing!(layer())).await;
    assert!(head(server, HANDSHAKE).await.starts_with("HTTP/1.1 101"));
    for (valid, invalid) in [
        ("GET /", "POST /"),
        ("HTTP/1.1", "HTTP/1.0"),
        ("Upgrade", "close"),
        ("WebSocket", "h2c"),
        ("version: 13", "version: 8"),
        ("sec-websocket-version: 13\r\n", ""),
        ("Q==", "Q="),
        ("dGhlIHNhbXBsZSBub25jZQ==", ""),
    ] {
        let answer = head(server, &HANDSHAKE.replace(valid, invalid)).await;
        let status = answer.split(' ').nth(1);
        assert_eq!(status, Some("503"), "{valid} -> {invalid}: {answer}");
    }
}

#[tokio::test]
async fn on_http_2_too() {
    let server = serve(refusing!(layer())).await;
    let stream = TcpStream::connect(server).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    // The server's settings say whether it can be asked for a protocol.
    while !sender.is_extended_connect_protocol_enabled() {
        tokio::task::yield_now().await;
        sender = sender.ready().await.unwrap();
    }
    let request = Request::connect(format!("https://{server}/chat"))
        .version(Version::HTTP_2)
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
        .extension(h2::ext::Protocol::from_static("websocket"))
        .body(())
        .unwrap();
    let (response, mut to_server) = sender.send_request(request, false).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert!(!response.headers().contains_key("sec-websocket-accept"));
    let mut from_server = response.into_body();
    let frame = from_server.data().await.unwrap().unwrap();
    assert_eq!(frame[..4], [0x88, 27, 0x03, 0xf5]);
    assert_eq!(frame[4..], *b"overloaded; retry-after=2");
    // A masked close frame, with the same code.
    let close = Bytes::from_static(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xf5]);
    to_server.send_data(close, false).unwrap();
    while let Some(data) = from_server.data().await {
        assert_eq!(data.unwrap(), "", "it has said goodbye");
    }
}

#[tokio::test]
async fn a_failure_is_no_reason_to_accept() {
    let server = serve(failing!(layer())).await;
    let stream = TcpStream::connect(server).await.unwrap();
    let error = tokio_tungstenite::client_async(format!("ws://{server}/"), stream).await;
    let Err(tungstenite::Error::Http(response)) = error else {
        panic!("accepted")
    };
    assert_eq!(response.status(), 500);
}

#[tokio::test]
async fn a_socket_that_is_too_late_is_closed_with_1013() {
    let server = serve(expired!(layer())).await;
    let stream = TcpStream::connect(server).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(format!("ws://{server}/"), stream)
        .await
        .unwrap();
    let Some(Ok(Message::Close(Some(close)))) = socket.next().await else {
        panic!("not closed")
    };
    assert_eq!(close.code, CloseCode::Again);
    assert_eq!(close.reason.as_str(), "deadline exceeded; retry-after=1");
}
