//! The same with nothing simulated: an axum server, connections over loopback, and the clock on the wall.
//!
//! The server has so many workers, and a request that finds none free waits for one; work goes on if its
//! client gives up, as that of a database or of a thread does. Clients send requests at random, whatever
//! became of those before, each on a connection of its own that is used again if the answer came in time.

use std::{
    error::Error,
    fmt,
    io::Write,
    net::SocketAddr,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use axum::{Router, routing::get};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};
use tower_backpressure::{BoxError, edge};

use crate::{
    simulation::Random,
    table::{latency, percent, times},
};

const WORKERS: usize = 8;
const WORK: Duration = Duration::from_millis(40);
const CAPACITY: f64 = WORKERS as f64 / 0.04;
const PATIENCE: Duration = Duration::from_millis(400);
const LOADS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const BEFORE: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(4);

pub fn run() -> Result<(), Box<dyn Error>> {
    let (work, patience) = (WORK.as_millis(), PATIENCE.as_millis());
    println!(
        "A real axum server on loopback: {WORKERS} workers, {work} ms of work in each request on\n\
         average, {CAPACITY} requests a second at most. Clients give up after {patience} ms. It takes\n\
         50 s. The clock is the real one: no other run has quite these numbers.\n"
    );
    let head = "   good     p50     p99 refused  late";
    println!("{:6}{:>37}{:>37}", "", "no protection", "edge()");
    println!("{:6}{head}{head}", "load");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    for load in LOADS {
        print!("{:6}", times(load));
        for protected in [false, true] {
            std::io::stdout().flush()?;
            print!("{}", runtime.block_on(measure(protected, load))?);
        }
        println!();
    }
    println!("\ngood: answered in time, as a share of what the server can do");
    println!("late: given up by its client, as a share of what was sent");
    Ok(())
}

/// A server, and a while of load on it.
async fn measure(protected: bool, load: f64) -> Result<Seen, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = app();
    let app = if protected { app.layer(edge()) } else { app };
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let clients = Arc::new(Clients {
        address,
        idle: Mutex::default(),
    });
    let mut random = Random::new(1);
    let mut requests = JoinSet::new();
    let mut next = now();
    let measured = next + BEFORE;
    let end = measured + MEASURED;
    while next < end {
        sleep_until(next).await;
        let (clients, sent) = (Arc::clone(&clients), next);
        requests.spawn(async move { (sent, clients.send(sent).await) });
        next += Duration::from_secs_f64(random.exponential() / (load * CAPACITY));
    }
    let mut seen = Seen::default();
    for (sent, answer) in requests.join_all().await {
        if sent >= measured {
            seen.count(answer);
        }
    }
    server.abort();
    Ok(seen)
}

/// A handler that has its work done by one of the workers, which are threads: those sleep to the tenth of a
/// millisecond. They end when the server has gone and nothing is left to do.
fn app() -> Router {
    let (queue, jobs) = mpsc::channel::<(Duration, oneshot::Sender<()>)>();
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..WORKERS {
        let jobs = Arc::clone(&jobs);
        let next = move || jobs.lock().unwrap().recv();
        thread::spawn(move || {
            while let Ok((work, done)) = next() {
                thread::sleep(work);
                // Whether or not somebody still waits for it.
                let _ = done.send(());
            }
        });
    }
    let random = Arc::new(Mutex::new(Random::new(2)));
    let handler = move || {
        let work = WORK.mul_f64(random.lock().unwrap().exponential());
        let (done, answer) = oneshot::channel();
        let queued = queue.send((work, done));
        async move {
            let done = queued.is_ok() && answer.await.is_ok();
            done.then_some("done")
                .ok_or(StatusCode::INTERNAL_SERVER_ERROR)
        }
    };
    Router::new().route("/", get(handler))
}

type Connection = SendRequest<Empty<Bytes>>;

struct Clients {
    address: SocketAddr,
    idle: Mutex<Vec<Connection>>,
}

enum Answer {
    InTime(Duration),
    Refused,
    Late,
    Failed,
}

impl Clients {
    async fn send(&self, sent: Instant) -> Answer {
        match timeout_at(sent + PATIENCE, self.exchange()).await {
            Ok(Ok(StatusCode::OK)) => Answer::InTime(now() - sent),
            Ok(Ok(StatusCode::SERVICE_UNAVAILABLE)) => Answer::Refused,
            Ok(_) => Answer::Failed,
            Err(_) => Answer::Late,
        }
    }

    async fn exchange(&self) -> Result<StatusCode, BoxError> {
        let idle = self.idle.lock().unwrap().pop();
        let mut connection = match idle.filter(|it| !it.is_closed()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.ready().await?;
        let request = Request::get("/").header("host", "localhost");
        let response = connection.send_request(request.body(Empty::new())?).await?;
        let status = response.status();
        response.into_body().collect().await?;
        self.idle.lock().unwrap().push(connection);
        Ok(status)
    }

    async fn connect(&self) -> Result<Connection, BoxError> {
        let stream = TokioIo::new(TcpStream::connect(self.address).await?);
        let (connection, driver) = handshake(stream).await?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

/// What became of requests.
#[derive(Default)]
struct Seen {
    /// Of what was answered in time, how long it took.
    good: Vec<Duration>,
    refused: usize,
    late: usize,
    failed: usize,
}

impl Seen {
    fn count(&mut self, answer: Answer) {
        match answer {
            Answer::InTime(latency) => self.good.push(latency),
            Answer::Refused => self.refused += 1,
            Answer::Late => self.late += 1,
            Answer::Failed => self.failed += 1,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.good.clone();
        sorted.sort_unstable();
        let quantile = |share: f64| {
            let index = (sorted.len().saturating_sub(1) as f64 * share) as usize;
            latency(sorted.get(index).map_or(f64::NAN, Duration::as_secs_f64))
        };
        let sent = sorted.len() + self.refused + self.late + self.failed;
        let share = |count: usize| percent(count as f64 / sent as f64);
        let good = percent(sorted.len() as f64 / MEASURED.as_secs_f64() / CAPACITY);
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        let (refused, late) = (share(self.refused), share(self.late + self.failed));
        write!(f, "{good:>7}{p50:>8}{p99:>8}{refused:>8}{late:>6}")
    }
}

#[allow(clippy::disallowed_methods, reason = "a client measures real time")]
fn now() -> Instant {
    Instant::now()
}
