//! HTTP/1.1 clients that write the body of a request after its head, and are rejected meanwhile.
//!
//! A server that answers without having read the body has to close the connection, and a client that is still writing
//! then gets an error instead of the answer. So what is on its way is read before the answer is sent.

use std::{
    future::{Ready, pending},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use futures_util::FutureExt;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{Layer, ServiceExt};
use tower_backpressure::{
    AdaptiveConcurrencyLayer, CircuitBreakerConfig, CircuitBreakerLayer, CoDelConfig, CoDelLayer,
    ConcurrencyLimitLayer, KeyedCircuitBreakerLayer, KeyedConcurrencyLimitLayer, SaturationLayer,
    ShadowLayer, SubmittedAt, WfqConfig, WfqLayer, edge, wfq::FromExtension,
};

use super::*;

const KIB: usize = 1 << 10;

/// A client as most are: an error while it writes is an error of the request, whatever was answered.
struct Client {
    stream: TcpStream,
}

impl Client {
    async fn connect(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// Writes the head, and then the body piece by piece. Returns the status.
    async fn post(&mut self, body: usize, pause: Duration) -> io::Result<u16> {
        let head = format!("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {body}\r\n\r\n");
        self.stream.write_all(head.as_bytes()).await?;
        let mut left = body;
        for pieces in (1..=4).rev() {
            sleep(pause).await;
            let piece = left / pieces;
            self.stream.write_all(&vec![b'x'; piece]).await?;
            left -= piece;
        }
        self.status().await
    }

    /// Reads one whole answer.
    async fn status(&mut self) -> io::Result<u16> {
        let mut answer = Vec::new();
        while !answer.ends_with(b"overloaded") {
            if self.stream.read_buf(&mut answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let head = String::from_utf8_lossy(&answer);
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        status.ok_or_else(|| io::Error::other(head.into_owned()))
    }
}

/// Two requests on each of so many connections. Returns how many were not answered with 503.
async fn lost(server: SocketAddr, connections: usize) -> Vec<io::Error> {
    let at_once = Arc::new(Semaphore::new(50));
    let mut clients = JoinSet::new();
    for number in 0..connections {
        let at_once = Arc::clone(&at_once);
        clients.spawn(async move {
            let _permit = at_once.acquire_owned().await;
            let body = [1, KIB, 20 * KIB, 64 * KIB][number % 4];
            let pause = Duration::from_millis([0, 2, 5][number % 3]);
            let mut client = Client::connect(server).await?;
            for _ in 0..2 {
                let status = client.post(body, pause).await?;
                assert_eq!(status, 503);
            }
            Ok(())
        });
    }
    let results = clients.join_all().await;
    results.into_iter().filter_map(Result::err).collect()
}

#[track_caller]
fn assert_none(lost: &[io::Error]) {
    assert!(lost.is_empty(), "{} lost, such as: {}", lost.len(), lost[0]);
}

/// Long enough for a client that writes slowly on a busy machine.
fn patient() -> OverloadResponseLayer {
    layer().drain_body(64 << 10, Duration::from_secs(10))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_not_lost_to_a_client_that_is_still_writing() {
    let server = serve(refusing!(patient(), Duration::from_secs(3600))).await;
    assert_none(&lost(server, 250).await);
}

/// One request has the only permit, for ever. The others wait for 20 ms, or cannot even wait.
async fn busy_edge(max_waiting: usize) -> SocketAddr {
    let wfq = WfqConfig::default()
        .max_waiting(max_waiting)
        .max_waiting_per_tenant(max_waiting)
        .max_wait(Duration::from_millis(20));
    let edge = edge().wfq(wfq).limits(1, 1, 1).response(patient());
    let handle = edge.handle();
    let hangs = |_| pending::<Result<Response<Empty<Bytes>>, Infallible>>();
    let service = ServiceBuilder::new().layer(edge).service_fn(hangs);
    let first: Request<Incoming> = incoming().await;
    tokio::spawn(service.clone().oneshot(first));
    while handle.snapshot().permits.in_flight == 0 {
        tokio::task::yield_now().await;
    }
    serve(service).await
}

/// A request as hyper makes them, which cannot be made in any other way.
async fn incoming() -> Request<Incoming> {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    let service = service_fn(move |request| {
        let sender = sender.clone();
        async move {
            sender.send(request).await.unwrap();
            pending::<Result<Response<OverloadBody<Empty<Bytes>>>, Infallible>>().await
        }
    });
    let server = serve(service).await;
    let mut client = Client::connect(server).await.unwrap();
    let head = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
    client.stream.write_all(head).await.unwrap();
    receiver.recv().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_rejects_at_once_loses_no_answer() {
    assert_none(&lost(busy_edge(0).await, 100).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_rejects_after_a_wait_loses_no_answer() {
    assert_none(&lost(busy_edge(1000).await, 100).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_service_loses_no_answer() {
    #[derive(Clone)]
    struct Dead;
    impl Service<Request<Incoming>> for Dead {
        type Response = Response<Empty<Bytes>>;
        type Error = BoxError;
        type Future = std::future::Ready<Result<Self::Response, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Err("dead".into()))
        }

        fn call(&mut self, _: Request<Incoming>) -> Self::Future {
            unreachable!("it is dead")
        }
    }
    let answers = patient().on_error(|_| {
        let mut response = Response::new(Bytes::from("overloaded"));
        *response.status_mut() = ::http::StatusCode::SERVICE_UNAVAILABLE;
        response
    });
    let server = serve(answers.layer(Dead)).await;
    assert_none(&lost(server, 50).await);
}

type Sent = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

/// A request whose body is what is sent, and how many bytes of it were read.
fn uploading() -> (Request<Upload>, Sent, Arc<AtomicUsize>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let read = Arc::new(AtomicUsize::new(0));
    let body = Upload {
        receiver,
        read: Arc::clone(&read),
        length: None,
    };
    (Request::post("/").body(body).unwrap(), sender, read)
}

#[derive(Debug)]
struct Upload {
    receiver: mpsc::UnboundedReceiver<Result<Frame<Bytes>, BoxError>>,
    read: Arc<AtomicUsize>,
    length: Option<u64>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = self.receiver.poll_recv(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let length = frame.data_ref().map_or(0, Bytes::len);
            self.read.fetch_add(length, Relaxed);
        }
        polled
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

fn data(length: usize) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(vec![0; length].into()))
}

/// It reads a whole body before it answers, and the answer is a rejection.
async fn reads<S, C>(name: &str, service: S)
where
    S: Service<Request<Upload>, Response = Response<C>, Error = Infallible>,
{
    let (request, sender, read) = uploading();
    let answer = service.oneshot(request);
    let upload = async {
        for _ in 0..10 {
            sleep(Duration::from_millis(1)).await;
            sender.send(data(100)).expect(name);
        }
        drop(sender);
    };
    let (Ok(response), ()) = tokio::join!(answer, upload);
    assert!(matches!(response.status().as_u16(), 429 | 503), "{name}");
    assert_eq!(read.load(Relaxed), 1000, "{name}");
}

/// A service that rejects everything, as this layer does.
fn behind<L>(limit: L) -> impl Service<Request<Upload>, Response = Answer, Error = Infallible>
where
    L: Layer<Unreached>,
    L::Service: Service<Request<Upload>, Response = Response<Empty<Bytes>>, Error = BoxError>,
{
    layer().layer(limit.layer(Unreached))
}

type Answer = Response<OverloadBody<Empty<Bytes>>>;

#[derive(Clone)]
struct Unreached;

impl Service<Request<Upload>> for Unreached {
    type Response = Response<Empty<Bytes>>;
    type Error = BoxError;
    type Future = Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Upload>) -> Self::Future {
        unreachable!("it was rejected")
    }
}

#[tokio::test(start_paused = true)]
async fn every_layer_that_rejects_a_request_hands_its_body_back() {
    let hour = Duration::from_secs(3600);
    let key = |_: &Request<Upload>| Some("key");
    let wait = Duration::from_millis(1);

    let limit = RateLimitLayer::new(Rate::every(hour)).max_waiting(0);
    limit.handle().try_acquire(1).unwrap();
    reads("load_shed", behind((LoadShedLayer::new(), limit.clone()))).await;
    reads("rate_limit", behind(limit)).await;

    let limit = KeyedRateLimitLayer::new(Rate::every(hour), key);
    limit.handle().try_acquire("key").unwrap();
    reads("keyed_rate_limit", behind(limit)).await;

    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let _held = limit.handle().try_acquire().unwrap();
    reads("concurrency_limit", behind(limit)).await;

    let limit = AdaptiveConcurrencyLayer::vegas().limits(1, 1, 1);
    let limit = limit.max_waiting(0);
    let _held = limit.handle().try_acquire().unwrap();
    reads("adaptive_concurrency", behind(limit)).await;

    for (name, max_waiting) in [
        ("keyed_concurrency_limit", 0),
        ("keyed_concurrency_limit, later", 1),
    ] {
        let limit = KeyedConcurrencyLimitLayer::new(1, key);
        let limit = limit.max_waiting(max_waiting).max_wait(wait);
        let hangs = |_| pending::<Result<Response<Empty<Bytes>>, BoxError>>();
        let mut hanging = limit.layer(service_fn(hangs));
        let _held = hanging.ready().await.unwrap().call(uploading().0);
        reads(name, behind(limit)).await;
    }

    let codel = CoDelLayer::new(CoDelConfig::default().max_concurrency(1));
    let _held = codel.handle().try_acquire(SubmittedAt::now()).unwrap();
    reads("codel", behind(codel)).await;

    let breaker = CircuitBreakerLayer::default();
    breaker.handle().force_open();
    reads("circuit_breaker", behind(breaker)).await;

    let breaker = KeyedCircuitBreakerLayer::new(CircuitBreakerConfig::default(), key);
    breaker.handle().force_open("key").unwrap();
    reads("keyed_circuit_breaker", behind(breaker)).await;

    let saturation = SaturationLayer::new().probe("full", || (1, 1));
    let saturation = saturation.sample_every(Duration::ZERO);
    reads("saturation", behind(saturation)).await;

    let limit = ConcurrencyLimitLayer::new(1);
    let _held = limit.handle().try_acquire().unwrap();
    for (name, max_waiting) in [("wfq", 0), ("wfq, later", 1)] {
        let config = WfqConfig::default().max_waiting(max_waiting).max_wait(wait);
        let wfq = WfqLayer::new(config, FromExtension);
        reads(name, behind((wfq, limit.clone()))).await;
    }

    let edge = edge().limits(1, 1, 1);
    let _held = edge.handle().try_acquire().unwrap();
    edge.handle().set_max_wait(Some(wait));
    reads("edge, later", edge.layer(Unreached)).await;
    edge.handle().set_max_waiting(0);
    reads("edge", edge.layer(Unreached)).await;
    reads("gates", behind(edge.gates())).await;

    // What a layer inside an edge rejects that has let the request in.
    let limit = KeyedRateLimitLayer::new(Rate::every(hour), key);
    limit.handle().try_acquire("key").unwrap();
    let inside = tower_backpressure::edge().layer(limit.layer(Unreached));
    reads("inside an edge", inside).await;
}

/// Layers of others make errors and futures of their own, which have no room for a request.
#[tokio::test(start_paused = true)]
async fn layers_in_between_do_not_keep_the_body_back() {
    let limit = RateLimitLayer::new(Rate::every(Duration::from_secs(3600)));
    limit.handle().try_acquire(1).unwrap();
    let rejects = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(limit);
    let rejects = rejects.service(Unreached);
    let service = ServiceBuilder::new()
        .layer(layer())
        .timeout(Duration::from_secs(60))
        .service(service_fn(move |request| {
            let rejects = rejects.clone();
            async move { rejects.boxed().oneshot(request).await }
        }));
    reads("in a future", service).await;
}

/// What they reject is a likeness of the request, after the real one was.
#[tokio::test(start_paused = true)]
async fn layers_on_trial_do_not_take_the_place_of_the_real_request() {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let _held = limit.handle().try_acquire().unwrap();
    let trial = ShadowLayer::new(limit.clone());
    reads("shadow", layer().layer(trial.layer(limit.layer(Unreached)))).await;
    assert_eq!(trial.handle().snapshot().refused, 1);
}

async fn rejected(layer: OverloadResponseLayer, request: Request<Upload>) -> Duration {
    #[allow(clippy::disallowed_methods, reason = "the clock is paused")]
    let begun = tokio::time::Instant::now();
    let limit = RateLimitLayer::new(Rate::every(Duration::from_secs(3600)));
    limit.handle().try_acquire(1).unwrap();
    let service = layer.layer(LoadShedLayer::new().layer(limit.layer(Unreached)));
    assert_eq!(service.oneshot(request).await.unwrap().status(), 503);
    Duration::from_millis(begun.elapsed().as_millis() as u64)
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_is_waited_for_no_longer_than_100_ms() {
    let (request, sender, read) = uploading();
    sender.send(data(10)).unwrap();
    assert_eq!(rejected(layer(), request).await, Duration::from_millis(100));
    assert_eq!(read.load(Relaxed), 10);

    // However often a little comes.
    let (request, sender, _) = uploading();
    let trickle = tokio::spawn(async move {
        while sender.send(data(1)).is_ok() {
            sleep(Duration::from_millis(7)).await;
        }
    });
    assert_eq!(rejected(layer(), request).await, Duration::from_millis(100));
    trickle.await.unwrap();

    let (request, _sender, _) = uploading();
    let second = Duration::from_secs(1);
    let took = rejected(layer().drain_body(10, second), request).await;
    assert_eq!(took, second);
}

#[tokio::test(start_paused = true)]
async fn no_more_is_read_than_64_kib() {
    let (request, sender, read) = uploading();
    for _ in 0..100 {
        sender.send(data(KIB)).unwrap();
    }
    assert_eq!(rejected(layer(), request).await, Duration::ZERO);
    assert!((64 * KIB..=65 * KIB).contains(&read.load(Relaxed)));

    let (request, sender, read) = uploading();
    for _ in 0..100 {
        sender.send(data(KIB)).unwrap();
    }
    let layer = layer().drain_body(200 << 10, Duration::from_millis(100));
    drop(sender);
    assert_eq!(rejected(layer, request).await, Duration::ZERO);
    assert_eq!(read.load(Relaxed), 100 * KIB);
}

#[tokio::test(start_paused = true)]
async fn empty_pieces_do_not_go_on_for_ever() {
    struct Endless;
    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::new()))))
        }
    }
    let service = refusing!(layer());
    let response = service.oneshot(Request::new(Endless)).await.unwrap();
    assert_eq!(response.status(), 503);
}

#[tokio::test(start_paused = true)]
async fn what_need_not_or_must_not_be_read_is_answered_at_once() {
    type Change = fn(&mut Request<Upload>);
    let changes: [(&str, Change); 4] = [
        ("HTTP/2", |request| {
            *request.version_mut() = ::http::Version::HTTP_2;
        }),
        ("HTTP/3", |request| {
            *request.version_mut() = ::http::Version::HTTP_3;
        }),
        ("the client waits for permission", |request| {
            let value = ::http::HeaderValue::from_static("100-Continue");
            request.headers_mut().insert("expect", value);
        }),
        ("it is more than would be read", |request| {
            request.body_mut().length = Some((64 << 10) + 1);
        }),
    ];
    for (why, change) in changes {
        let (mut request, sender, read) = uploading();
        change(&mut request);
        sender.send(data(10)).unwrap();
        assert_eq!(rejected(layer(), request).await, Duration::ZERO, "{why}");
        assert_eq!(read.load(Relaxed), 0, "{why}");
        assert!(sender.is_closed(), "{why}");
    }
    let (request, sender, read) = uploading();
    sender.send(data(10)).unwrap();
    let took = rejected(layer().leave_body_unread(), request).await;
    assert_eq!((took, read.load(Relaxed)), (Duration::ZERO, 0));

    let (request, sender, _) = uploading();
    sender.send(Err("the client is gone".into())).unwrap();
    assert_eq!(rejected(layer(), request).await, Duration::ZERO);
}

/// Nothing but the body is left of a request whose body is being read.
#[tokio::test(start_paused = true)]
async fn nothing_is_held_while_a_body_is_read() {
    let limit = ConcurrencyLimitLayer::new(1);
    let held = limit.handle().try_acquire().unwrap();
    let wfq = WfqConfig::default().max_wait(Duration::from_millis(1));
    let wfq = WfqLayer::new(wfq, FromExtension);
    let queue = wfq.handle();
    let service = layer().layer(wfq.layer(limit.layer(Unreached)));
    let (mut request, _sender, _) = uploading();
    let extension = Arc::new(());
    request.extensions_mut().insert(Arc::clone(&extension));
    let mut answer = pin!(service.oneshot(request));
    let reading = timeout(Duration::from_millis(50), answer.as_mut()).await;
    assert!(reading.is_err());
    assert_eq!(queue.snapshot().waiting, 0);
    assert_eq!(Arc::strong_count(&extension), 1);
    drop(held);
    assert_eq!(limit.handle().snapshot().in_flight, 0);
    assert_eq!(answer.await.unwrap().status(), 503);
}

#[test]
fn without_a_runtime_it_does_not_wait() {
    let limit = ConcurrencyLimitLayer::new(1).max_waiting(0);
    let _held = limit.handle().try_acquire().unwrap();
    let (request, _sender, _) = uploading();
    let response = behind(limit).oneshot(request).now_or_never();
    assert_eq!(response.unwrap().unwrap().status(), 503);
}

/// curl waits a second for permission before it sends a body that is larger than a megabyte.
#[tokio::test]
async fn a_client_that_waits_for_permission_is_told_without_being_asked_for_the_body() {
    let server = serve(refusing!(layer(), Duration::from_secs(3600))).await;
    let mut client = Client::connect(server).await.unwrap();
    let head =
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\nexpect: 100-continue\r\n\r\n";
    client.stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(client.status().await.unwrap(), 503, "and not 100");
}

#[tokio::test]
async fn the_same_connection_serves_the_next_request() {
    let server = serve(refusing!(patient(), Duration::from_secs(3600))).await;
    let mut client = Client::connect(server).await.unwrap();
    for _ in 0..10 {
        let status = client.post(30 * KIB, Duration::from_millis(1)).await;
        assert_eq!(status.unwrap(), 503);
    }
}
