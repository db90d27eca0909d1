//! What the whole stack costs a server, in its own CPU time per request, over real connections that `wrk` makes:
//! `cargo bench --bench loopback` (needs Linux, and `wrk` on the PATH; says so where it is not).
//!
//! The program runs itself twice, as a bare axum server and as one with `edge()`, and has `wrk` send requests to one
//! and the other in turns. How long that takes says little on a machine that the client shares; what is compared is
//! how long the server's threads ran. The servers are started anew in each round: where in memory a process happens
//! to be makes it faster or slower by several percent for as long as it lives.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use axum::{Router, routing::get};
use tokio::net::TcpListener;

const ROUNDS: usize = 25;
const CONNECTIONS: &str = "-c16";
const A_TURN: &str = "-d1s";
/// Of a round. In this order a machine that gets faster or slower meanwhile does so for both alike.
const TURNS: [usize; 8] = [BARE, EDGE, EDGE, BARE, BARE, EDGE, EDGE, BARE];
const BARE: usize = 0;
const EDGE: usize = 1;

fn main() {
    let args: Vec<String> = env::args().collect();
    match &args[1..] {
        [serve, kind] if serve == "serve" => self::serve(kind),
        // `cargo bench -- --test`: see that both servers work.
        args if args.iter().any(|arg| arg == "--test") => drop([start("bare"), start("edge")]),
        _ if Command::new("wrk").arg("-v").output().is_err() => {
            println!("wrk is not installed: nothing was measured");
        }
        _ => compare(),
    }
}

/// Until it is killed.
fn serve(kind: &str) {
    let app = Router::new().route("/", get(|| async { "hello" }));
    let app = match kind {
        "edge" => app.layer(tower_backpressure::edge()),
        _ => app,
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("bound"));
        axum::serve(listener, app).await.expect("it serves");
    });
}

struct Server {
    process: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn start(kind: &str) -> Server {
    let mut process = Command::new(env::current_exe().expect("own path"))
        .args(["serve", kind])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut address = String::new();
    let output = process.stdout.take().expect("piped");
    BufReader::new(output)
        .read_line(&mut address)
        .expect("it says where it listens");
    let url = format!("http://{}/", address.trim());
    Server { process, url }
}

fn compare() {
    let (mut bares, mut edges, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let servers = [start("bare"), start("edge")];
        let _warm = servers.each_ref().map(Server::serve_a_turn);
        let mut sums = [(0.0, 0.0); 2];
        for turn in TURNS {
            let (used, requests) = servers[turn].serve_a_turn();
            sums[turn].0 += used;
            sums[turn].1 += requests;
        }
        let [without, with_edge] = sums.map(|(used, requests)| used / requests);
        println!("bare {without:.2} µs, edge {with_edge:.2} µs");
        bares.push(without);
        edges.push(with_edge);
        ratios.push(with_edge / without);
    }
    let [without, with_edge, ratio] = [bares, edges, ratios].map(median);
    println!(
        "medians of {ROUNDS} rounds: bare {without:.2} µs, edge {with_edge:.2} µs of CPU a request: {:.3}; of the \
         rounds' ratios {ratio:.3}",
        with_edge / without
    );
}

impl Server {
    /// How long its threads ran, in microseconds, and for how many requests.
    fn serve_a_turn(&self) -> (f64, f64) {
        let before = self.cpu();
        let output = Command::new("wrk")
            .args(["-t1", CONNECTIONS, A_TURN, &self.url])
            .output()
            .expect("wrk runs");
        let used = self.cpu() - before;
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(!report.contains("Non-2xx"), "{report}");
        let requests = report.lines().find_map(|line| {
            let (requests, _) = line.trim().split_once(" requests in ")?;
            requests.parse::<f64>().ok()
        });
        let requests = requests.unwrap_or_else(|| panic!("wrk says: {report}"));
        (used, requests)
    }

    /// How long its threads have run, in microseconds.
    fn cpu(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("Linux");
        let nanos = tasks.map(|task| {
            let path = task.expect("it runs").path().join("schedstat");
            let stat = fs::read_to_string(path).expect("it runs");
            let ran = stat.split_whitespace().next().expect("three numbers");
            ran.parse::<f64>().expect("a number")
        });
        nanos.sum::<f64>() / 1000.0
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
