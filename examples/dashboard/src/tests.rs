//! The dashboard in `dashboard`: what it says, what it does when it is told to, and the page in a browser.

#[path = "../../../tests/support/chromium.rs"]
mod chromium;

use std::{future::Future, io, time::Duration};

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tower::ServiceExt;

/// Events, one after the other, however they are cut into frames.
struct Events<B> {
    body: B,
    read: Vec<u8>,
}

impl<B> Events<B>
where
    B: http_body::Body<Data = bytes::Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    fn new(body: B) -> Self {
        let read = Vec::new();
        Self { body, read }
    }

    /// `None` when the stream has ended as it should.
    async fn try_next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.read.drain(..end + 2).collect();
                let json = event.strip_prefix(b"data: ");
                return Some(serde_json::from_slice(json.expect("an event")).unwrap());
            }
            let Some(frame) = self.body.frame().await else {
                assert_eq!(self.read, b"", "a part of an event");
                return None;
            };
            let frame = frame.expect("an orderly end");
            self.read.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    async fn next(&mut self) -> Value {
        self.try_next().await.expect("it has not ended")
    }

    /// The first event that is as it should be, within a minute of them.
    async fn until(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..300 {
            last = self.next().await;
            if is(&last) {
                return last;
            }
        }
        panic!("never: {what}; last: {last}")
    }
}

async fn get(app: &Router, path: &str) -> http::Response<Body> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

async fn events(app: &Router) -> Events<Body> {
    let response = get(app, "/events").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Events::new(response.into_body())
}

async fn set(app: &Router, change: &str) -> (StatusCode, String) {
    let request = Request::post("/set").body(Body::from(change.to_owned()));
    let response = app.clone().oneshot(request.unwrap()).await.unwrap();
    let (status, body) = (response.status(), response.into_body().collect().await);
    let body = body.unwrap().to_bytes().to_vec();
    (status, String::from_utf8(body).unwrap())
}

/// Of all tenants.
fn sum(event: &Value, what: &str) -> f64 {
    let tenants = event["tenants"].as_array().unwrap().iter();
    tenants.map(|tenant| tenant[what].as_f64().unwrap()).sum()
}

/// Everything that can be set.
fn settings(event: &Value) -> Value {
    let of = |tenant: &Value| json!([tenant["load"], tenant["weight"]]);
    let tenants = event["tenants"].as_array().unwrap();
    let names = [
        "protection",
        "workers",
        "service_ms",
        "pinned",
        "target_ms",
        "critical",
    ];
    json!([
        names.map(|name| event[name].clone()),
        tenants.iter().map(of).collect::<Vec<_>>()
    ])
}

#[tokio::test(start_paused = true)]
async fn events_say_all_that_there_is_to_show_and_their_numbers_move() {
    let (app, _tasks) = crate::app();
    let mut events = events(&app).await;
    let first = events.next().await;
    for field in [
        "t",
        "workers",
        "service_ms",
        "capacity",
        "limit",
        "in_flight",
        "target_ms",
        "queue_full",
        "too_old",
        "displaced",
        "critical",
    ] {
        assert!(first[field].is_number(), "{field} in {first}");
    }
    for (level, name) in ["critical", "normal", "background"].into_iter().enumerate() {
        let level = &first["levels"][level];
        assert_eq!(level["name"], name);
        for field in ["offered", "served", "refused", "lost", "waiting"] {
            assert!(level[field].is_number(), "{field} in {level}");
        }
    }
    for (tenant, name) in ["web", "mobile", "batch"].into_iter().enumerate() {
        let tenant = &first["tenants"][tenant];
        assert_eq!(tenant["name"], name);
        for field in [
            "load", "weight", "offered", "served", "refused", "lost", "waiting", "running",
        ] {
            assert!(tenant[field].is_number(), "{field} in {tenant}");
        }
    }
    assert_eq!(
        (&first["capacity"], &first["protection"]),
        (&json!(400), &json!("edge"))
    );

    let later = events
        .until("five seconds", |event| event["t"].as_f64() >= Some(5.0))
        .await;
    let (offered, served) = (sum(&later, "offered"), sum(&later, "served"));
    assert!(
        (180.0..380.0).contains(&offered),
        "{offered} of 280 a second"
    );
    assert!(
        (0.7..1.4).contains(&(served / offered)),
        "{served} of {offered}"
    );
    assert!(later["p99"].as_f64() > later["p50"].as_f64(), "{later}");
    assert!(later["p50"].as_f64() > Some(5.0), "{later}");
    assert_eq!((sum(&later, "refused"), sum(&later, "lost")), (0.0, 0.0));
    assert_ne!(first, later);
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_late_is_told_the_last_minute_without_a_gap() {
    let (app, _tasks) = crate::app();
    let mut early = events(&app).await;
    for _ in 0..350 {
        early.next().await;
    }
    let mut late = events(&app).await;
    let mut times = Vec::new();
    for _ in 0..310 {
        times.push(late.next().await["t"].as_f64().unwrap());
    }
    assert!((9.5..11.5).contains(&times[0]), "began at {}", times[0]);
    for pair in times.windows(2) {
        assert!((0.05..0.35).contains(&(pair[1] - pair[0])), "{pair:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_set_is_what_the_handles_say_then() {
    let (app, _tasks) = crate::app();
    let mut events = events(&app).await;
    events
        .until("everybody is known", |event| {
            event["t"].as_f64() > Some(1.0)
        })
        .await;
    for (change, field, value) in [
        ("workers=16", "/workers", json!(16)),
        ("service_ms=40", "/service_ms", json!(40)),
        ("target_ms=50", "/target_ms", json!(50)),
        ("limit=7", "/limit", json!(7)),
        ("limit=9", "/pinned", json!(true)),
        ("limit=auto", "/pinned", json!(false)),
        ("weight.mobile=9", "/tenants/1/weight", json!(9)),
        ("load.batch=0", "/tenants/2/load", json!(0)),
        ("critical=15", "/critical", json!(15)),
        ("protection=off", "/protection", json!("off")),
        ("protection=tower", "/protection", json!("tower")),
        ("protection=edge", "/protection", json!("edge")),
    ] {
        assert_eq!(set(&app, change).await.0, StatusCode::OK, "{change}");
        events.next().await; // may have been on its way
        assert_eq!(events.next().await.pointer(field), Some(&value), "{change}");
    }
    events
        .until("batch is silent", |event| {
            event["tenants"][2]["offered"] == 0
        })
        .await;
    set(&app, "load.batch=1000").await;
    let heard = |event: &Value| event["tenants"][2]["offered"].as_f64() > Some(700.0);
    events.until("batch is heard", heard).await;
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_refused_with_a_reason_and_changes_nothing() {
    let (app, _tasks) = crate::app();
    let mut events = events(&app).await;
    let before = settings(
        &events
            .until("everybody is known", |event| {
                event["t"].as_f64() > Some(1.0)
            })
            .await,
    );
    for (change, reason) in [
        ("", "say what to change"),
        ("limit", "say what to change"),
        ("limit=", "whole number"),
        ("limit=-1", "whole number"),
        ("limit=0", "limit must be at least 1"),
        ("limit=99999999999999999999", "whole number"),
        ("target_ms=0", "target must be"),
        ("target_ms=60000", "interval must be"),
        ("weight.web=0", "weight must be from 1 to 10 000"),
        ("weight.web=10001", "weight must be from 1 to 10 000"),
        ("weight.nobody=1", "no tenant"),
        ("load.web=2001", "from 0 to 2000"),
        ("load.web=NaN", "whole number"),
        ("load=5", "no tenant"),
        ("critical=41", "from 0 to 40"),
        ("workers=0", "from 1 to 64"),
        ("workers=65", "from 1 to 64"),
        ("service_ms=0", "from 1 to 1000"),
        ("protection=on", "off, tower or edge"),
        ("colour=red", "there is no \"colour\""),
    ] {
        let (status, body) = set(&app, change).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{change}");
        assert!(body.contains(reason), "{change}: {body}");
    }
    events.next().await;
    assert_eq!(settings(&events.next().await), before);
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_borne_with_protection_and_not_without() {
    let (app, _tasks) = crate::app();
    let mut events = events(&app).await;
    set(&app, "load.batch=2000").await;
    let settled = |after: f64| move |event: &Value| event["t"].as_f64() > Some(after);
    events.until("it has settled", settled(10.0)).await;
    let (mut served, mut others) = (0.0, 0.0);
    for _ in 0..50 {
        let event = events.next().await;
        served += sum(&event, "served") / 50.0;
        let refused = |tenant: usize| event["tenants"][tenant]["refused"].as_f64().unwrap();
        others += (refused(0) + refused(1)) / 50.0;
        assert!(event["p99"].as_f64() < Some(500.0), "{event}");
    }
    assert!(served > 0.85 * 400.0, "{served} of 400 a second");
    assert!(others < 10.0, "{others} a second of the others are refused");

    set(&app, "protection=off").await;
    let useless = |event: &Value| sum(event, "served") < 20.0 && sum(event, "lost") > 1000.0;
    let event = events.until("it collapses", useless).await;
    assert!(sum(&event, "waiting") > 500.0, "{event}");
    let most = events
        .until("its queue is full", |event| {
            event["in_flight"].as_u64() > Some(4000)
        })
        .await;
    assert!(
        most["in_flight"].as_u64() <= Some(4096 + 8),
        "and bounded: {most}"
    );

    set(&app, "protection=edge").await;
    let recovered = |event: &Value| sum(event, "served") > 300.0 && sum(event, "lost") == 0.0;
    let event = events.until("it recovers", recovered).await;
    let took = event["t"].as_f64().unwrap() - most["t"].as_f64().unwrap();
    assert!(took < 6.0, "nobody inherits a queue of ten seconds: {took}");
}

/// What tower's limit rejects does not depend on whose it is.
#[tokio::test(start_paused = true)]
async fn a_flood_behind_towers_limit_costs_the_others_most_of_theirs() {
    let (app, _tasks) = crate::app();
    let mut events = events(&app).await;
    set(&app, "protection=tower").await;
    set(&app, "load.batch=2000").await;
    let settled = |event: &Value| event["t"].as_f64() > Some(10.0);
    let event = events.until("it has settled", settled).await;
    assert!(sum(&event, "served") > 0.85 * 400.0, "{event}");
    assert!(event["in_flight"].as_u64() <= Some(10), "{event}");
    for tenant in [0, 1] {
        let of = |what: &str| event["tenants"][tenant][what].as_f64().unwrap();
        assert!(of("refused") > 0.5 * of("offered"), "{event}");
    }
}

#[tokio::test(start_paused = true)]
async fn critical_requests_are_served_if_the_server_knows_of_them() {
    let (app, _tasks) = crate::app();
    let mut events = events(&app).await;
    for change in ["web=860", "mobile=720", "batch=420"] {
        set(&app, &format!("load.{change}")).await;
    }
    set(&app, "critical=10").await;
    // Ten seconds later, of ten seconds: what was sent, answered and rejected, by priority.
    let mut watch = async |protection: &str| {
        set(&app, &format!("protection={protection}")).await;
        let mut seen = [[0.0; 3]; 3];
        for tick in 0..100 {
            let event = events.next().await;
            for (level, counts) in seen.iter_mut().enumerate().filter(|_| tick >= 50) {
                let of = |what: &str| event["levels"][level][what].as_f64().unwrap();
                for (count, what) in counts.iter_mut().zip(["offered", "served", "refused"]) {
                    *count += of(what);
                }
            }
        }
        seen
    };
    let [critical, normal, background] = watch("edge").await;
    let share = |[offered, served, _]: [f64; 3]| served / offered;
    println!("{critical:?}, {normal:?}, {background:?}");
    assert!(share(critical) >= 0.99 && critical[2] <= 0.005 * critical[0]);
    assert!((0.05..0.2).contains(&share(normal)), "{normal:?}");
    assert!(share(background) <= 0.05, "{background:?}");
    let rest = [critical, normal, background].map(|[_, served, _]| served);
    assert!(rest.iter().sum::<f64>() >= 50.0 * 0.85 * 400.0, "{rest:?}");

    let [critical, normal, _] = watch("tower").await;
    assert!(share(critical) <= 0.3, "{critical:?}");
    assert!((share(critical) - share(normal)).abs() < 0.05);
}

#[tokio::test(start_paused = true)]
async fn streams_that_there_is_no_room_for_are_refused_until_one_ends() {
    let (app, _tasks) = crate::app();
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(events(&app).await);
    }
    let full = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(get(&app, "/events").await.status(), full);
    streams.pop();
    events(&app).await;
}

/// A server on a socket, and what tells it to stop.
fn serve(listener: TcpListener) -> (JoinHandle<io::Result<()>>, oneshot::Sender<()>) {
    let (stop, stopped) = oneshot::channel();
    let stopped = async { drop(stopped.await) };
    (tokio::spawn(crate::serve(listener, stopped)), stop)
}

/// Events over a socket of their own.
async fn connect(listener: impl Future<Output = TcpStream>) -> Events<hyper::body::Incoming> {
    let stream = TokioIo::new(listener.await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/events").header("host", "localhost");
    let request = request.body(Body::empty()).unwrap();
    Events::new(sender.send_request(request).await.unwrap().into_body())
}

#[tokio::test(start_paused = true)]
async fn when_it_stops_event_streams_end_as_they_should() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (serving, stop) = serve(listener);
    let mut events = connect(async { TcpStream::connect(address).await.unwrap() }).await;
    events.next().await;
    stop.send(()).unwrap();
    let mut more = 0;
    while events.try_next().await.is_some() {
        more += 1;
        assert!(more < 1000, "it goes on for ever");
    }
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_waited_for_long() {
    // So small that an answer does not fit into what the kernel keeps.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(4096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1024).unwrap();
    let address = listener.local_addr().unwrap();
    let (serving, stop) = serve(listener);
    let mut client = socket.connect(address).await.unwrap();
    client
        .write_all(b"GET /script.js HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    client.read_u8().await.unwrap();
    stop.send(()).unwrap();
    let served = timeout(Duration::from_secs(30), serving).await;
    served.expect("it waits for ever").unwrap().unwrap();
    drop(client);
}

#[tokio::test]
async fn in_a_browser_numbers_move_and_sliders_change_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (serving, stop) = serve(listener);
    let Some(mut page) = chromium::open(&format!("http://{address}/")).await else {
        return;
    };
    let text = |id: &str| format!("document.getElementById('{id}').textContent");
    page.until("document.readyState == 'complete'").await;
    page.until(&format!("{} == 'live'", text("link"))).await;
    for id in ["offered", "served", "p99", "in_flight"] {
        page.until(&format!("parseInt({}) > 0", text(id))).await;
        let shown = page.eval(&text(id)).await;
        page.until(&format!("{} != {shown}", text(id))).await;
    }

    let mut events = connect(async { TcpStream::connect(address).await.unwrap() }).await;
    page.eval(
        "for (const [id, value] of [['limit-knob', 7], ['load-web', 300], ['weight-batch', 3]]) {
        const slider = document.getElementById(id);
        slider.value = value;
        slider.dispatchEvent(new Event('input', { bubbles: true }));
    }",
    )
    .await;
    let changed = |event: &Value| {
        let (web, batch) = (&event["tenants"][0], &event["tenants"][2]);
        event["limit"] == 7 && event["pinned"] == true && web["load"] == 300 && batch["weight"] == 3
    };
    events
        .until("the sliders have changed the server", changed)
        .await;
    page.until(&format!("{} == '7'", text("limit"))).await;
    page.until(&format!(
        "{}.includes('set_weight(\"batch\", 3)')",
        text("call")
    ))
    .await;

    // Somebody else changes something, and this page's slider follows.
    page.eval("fetch('/set', { method: 'POST', body: 'workers=5' }).then(answer => answer.status)")
        .await;
    page.until("document.getElementById('workers').value == '5'")
        .await;
    page.eval("document.getElementById('auto').click()").await;
    events
        .until("the limit is learned again", |event| {
            event["pinned"] == false
        })
        .await;

    page.eval("document.querySelector('[data-try=five]').click()")
        .await;
    events
        .until("five times the load", |event| {
            sum(event, "load") == 2000.0 && event["workers"] == 8
        })
        .await;
    page.until(&format!("{}.includes('under control')", text("verdict")))
        .await;
    page.eval("document.querySelector('[data-try=critical]').click()")
        .await;
    events
        .until("every tenth request is critical", |event| {
            let critical = &event["levels"][0];
            event["critical"] == 10 && critical["served"].as_f64() > Some(150.0)
        })
        .await;
    page.until("document.getElementById('critical').value == '10'")
        .await;
    page.until(&format!(
        "/^9[5-9]|^100 % of the critical/.test({})",
        text("because")
    ))
    .await;
    page.eval("document.querySelector('[data-protection=tower]').click()")
        .await;
    events
        .until("it is tower's limit", |event| {
            event["protection"] == "tower"
        })
        .await;
    page.until("document.getElementById('limit').textContent == '10'")
        .await;
    page.eval("document.querySelector('[data-protection=off]').click()")
        .await;
    events
        .until("protection is off", |event| event["protection"] == "off")
        .await;
    page.until("document.getElementById('story').dataset.mood == 'bad'")
        .await;

    for width in [1200, 400] {
        let screen =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        page.command("Emulation.setDeviceMetricsOverride", screen)
            .await;
        page.until(&format!(
            "innerWidth == {width} && document.documentElement.scrollWidth <= {width}"
        ))
        .await;
    }
    // Whoever asked for less motion sees a change a second, not five.
    let still = json!({ "features": [{ "name": "prefers-reduced-motion", "value": "reduce" }] });
    page.command("Emulation.setEmulatedMedia", still).await;
    page.until("calm.matches").await;
    page.eval("{ const was = tell, times = window.times = []; tell = sample => { times.push(drawn); was(sample); }; }")
        .await;
    page.until("times.length >= 4").await;
    let times: Vec<f64> = serde_json::from_value(page.eval("times").await).unwrap();
    let hurried = times.windows(2).find(|two| two[1] - two[0] < 1000.0);
    assert_eq!(hurried, None, "of {times:?}");
    let painted = "[...document.querySelectorAll('canvas')].every(canvas =>
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(byte => byte))";
    page.until(painted).await;
    assert_eq!(page.errors(), [""; 0]);

    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    page.until(&format!("{} == 'disconnected, retrying'", text("link")))
        .await;
    page.close().await;
}
