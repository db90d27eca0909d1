//! Three axum servers, and what they share.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use axum::{BoxError, Router, routing::get};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceBuilder;
use tower_backpressure::{Fleet, OverloadResponseLayer, Rate, fleet::Memory};

pub const RATE: u64 = 200;
pub const BURST: u64 = 20;

pub struct Nodes {
    addresses: [SocketAddr; 3],
    processes: Vec<Child>,
    redis: Option<Child>,
}

/// A server whose limit is the fleet's.
async fn serve(listener: TcpListener, fleet: Fleet) -> Result<(), BoxError> {
    let limit = fleet.rate_limit("orders", Rate::per_second(RATE).burst(BURST));
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(
        ServiceBuilder::new()
            .layer(OverloadResponseLayer::new()) // 503, and when to come back
            .layer(limit.max_wait(Duration::from_millis(100))),
    );
    Ok(axum::serve(listener, app).await?)
}

/// What this program is when it is started as a server: `told` is the URL of Redis.
pub async fn serve_until_killed(told: &str) -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    serve(listener, Fleet::redis(told, 3)?).await
}

impl Nodes {
    pub async fn start() -> Result<Self, BoxError> {
        match start_redis().await? {
            Some((redis, url)) => Self::in_processes(redis, &url),
            None => Self::in_this_process().await,
        }
    }

    fn in_processes(redis: Child, url: &str) -> Result<Self, BoxError> {
        let mut nodes = Self {
            addresses: [SocketAddr::from(([127, 0, 0, 1], 0)); 3],
            processes: Vec::new(),
            redis: Some(redis),
        };
        for address in &mut nodes.addresses {
            let mut command = Command::new(env::current_exe()?);
            let mut process = command.arg(url).stdout(Stdio::piped()).spawn()?;
            let stdout = process.stdout.take().expect("it is piped");
            nodes.processes.push(process);
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line)?;
            *address = line.trim().parse()?;
        }
        Ok(nodes)
    }

    async fn in_this_process() -> Result<Self, BoxError> {
        let memory = Memory::new();
        let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); 3];
        for address in &mut addresses {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            *address = listener.local_addr()?;
            tokio::spawn(serve(listener, Fleet::new(memory.clone(), 3)));
        }
        Ok(Self {
            addresses,
            processes: Vec::new(),
            redis: None,
        })
    }

    pub fn says(&self) -> &'static str {
        match self.redis {
            Some(_) => "Three axum servers, each a process, share a limit on a redis-server.",
            None => {
                "There is no redis-server on the PATH: three axum servers in this process share a limit in \
                 memory, and neither they nor it are stopped below."
            }
        }
    }

    pub fn addresses(&self) -> [SocketAddr; 3] {
        self.addresses
    }

    pub async fn kill_one(&mut self) {
        if let Some(mut process) = self.processes.pop() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn stop_server(&self) {
        self.signal("-STOP");
    }

    pub fn continue_server(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        if let Some(redis) = &self.redis {
            let _ = Command::new("kill")
                .args([signal, &redis.id().to_string()])
                .status();
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().chain(&mut self.redis) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// `None` if there is no such program.
async fn start_redis() -> Result<Option<(Child, String)>, BoxError> {
    let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    let mut command = Command::new("redis-server");
    command.args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
    ]);
    let Ok(redis) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return Ok(None);
    };
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            break;
        }
    }
    Ok(Some((redis, format!("redis://127.0.0.1:{port}/"))))
}
