//! Nodes in processes of their own: this test program, started once more for each.

use std::{
    env, fs,
    future::Future,
    io::Write,
    path::PathBuf,
    pin::Pin,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tower_backpressure::{Fleet, Rate, fleet::Mode};

use super::server::Server;

/// What a node is told, in the environment.
const NODE: &str = "BACKPRESSURE_FLEET_NODE";

/// No request waits longer than this.
pub(crate) const MAX_WAIT: Duration = Duration::from_millis(100);

/// What a fleet is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) nodes: usize,
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    /// Of the rate, all nodes together.
    pub(crate) load: f64,
    /// The share of it that comes to the first node; `None` is the same for all.
    pub(crate) first: Option<f64>,
    pub(crate) millis: u64,
}

/// What a fleet let through.
pub(crate) struct Outcome {
    load: Load,
    pub(crate) nodes: Vec<NodeOutcome>,
}

#[derive(Default)]
pub(crate) struct NodeOutcome {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) calls: u64,
    pub(crate) longest: Duration,
    pub(crate) mode_changes: u64,
    pub(crate) is_shared: bool,
    /// How many were admitted in each millisecond since the start.
    by_milli: Vec<(u64, u64)>,
}

/// The time on all nodes alike. They do not look at it otherwise.
fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is later")
}

/// Nodes that run.
pub(crate) struct Fleets {
    load: Load,
    nodes: Vec<(Child, PathBuf)>,
    pub(crate) start: Duration,
}

impl Load {
    fn of_node(&self, node: usize) -> f64 {
        let all = self.load * self.rate as f64;
        match self.first {
            None => all / self.nodes as f64,
            Some(share) if node == 0 => all * share,
            Some(share) => all * (1.0 - share) / (self.nodes - 1) as f64,
        }
    }

    /// Starts the nodes. They all begin at the same time, a little later.
    pub(crate) fn start(self, server: &Server) -> Fleets {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Relaxed);
        let start = since_1970() + Duration::from_millis(500 + 50 * self.nodes as u64);
        let nodes = (0..self.nodes).map(|node| {
            let file = env::temp_dir().join(format!("fleet-{}-{run}-{node}", std::process::id()));
            let Self {
                rate,
                burst,
                millis,
                nodes,
                ..
            } = self;
            let told = format!(
                "{} {node} {rate} {burst} {nodes} {} {} {millis} {}",
                server.url(),
                self.of_node(node),
                start.as_micros(),
                file.display(),
            );
            let mut command = Command::new(env::current_exe().expect("this program"));
            command.args(["--exact", "nodes::this_is_a_node_if_it_was_started_as_one"]);
            command.env(NODE, told).stdout(Stdio::null());
            (command.spawn().expect("it starts"), file)
        });
        Fleets {
            load: self,
            nodes: nodes.collect(),
            start,
        }
    }

    pub(crate) fn run(self, server: &Server) -> Outcome {
        self.start(server).finish()
    }
}

impl Fleets {
    pub(crate) fn sleep_until(&self, millis: u64) {
        let at = self.start + Duration::from_millis(millis);
        thread::sleep(at.saturating_sub(since_1970()));
    }

    pub(crate) fn process(&self, node: usize) -> u32 {
        self.nodes[node].0.id()
    }

    pub(crate) fn finish(mut self) -> Outcome {
        for (node, _) in &mut self.nodes {
            node.wait().expect("it runs");
        }
        let nodes = self.nodes.iter().map(|(_, file)| NodeOutcome::read(file));
        Outcome {
            load: self.load,
            nodes: nodes.collect(),
        }
    }
}

impl Drop for Fleets {
    fn drop(&mut self) {
        for (node, file) in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
            let _ = fs::remove_file(file);
        }
    }
}

impl NodeOutcome {
    /// The last line of each kind counts; one that is not whole was being written when the node was killed.
    fn read(file: &PathBuf) -> Self {
        let text = fs::read_to_string(file).expect("the node has written it");
        let mut outcome = Self::default();
        for line in text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
        {
            let numbers: Vec<u64> = line[1..]
                .split_whitespace()
                .map(|it| it.parse().unwrap())
                .collect();
            match (&line[..1], &*numbers) {
                ("m", [milli, count]) => outcome.by_milli.push((*milli, *count)),
                ("s", [offered, admitted, calls, longest, changes, shared]) => {
                    outcome.offered = *offered;
                    outcome.admitted = *admitted;
                    outcome.calls = *calls;
                    outcome.longest = Duration::from_micros(*longest);
                    outcome.mode_changes = *changes;
                    outcome.is_shared = *shared == 1;
                }
                _ => panic!("{line:?}"),
            }
        }
        outcome
    }
}

impl Outcome {
    pub(crate) fn offered(&self) -> u64 {
        self.nodes.iter().map(|node| node.offered).sum()
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.nodes.iter().map(|node| node.admitted).sum()
    }

    pub(crate) fn longest(&self) -> Duration {
        self.nodes.iter().map(|node| node.longest).max().unwrap()
    }

    pub(crate) fn calls_per_request(&self) -> f64 {
        let calls: u64 = self.nodes.iter().map(|node| node.calls).sum();
        calls as f64 / self.offered() as f64
    }

    /// Of what may be admitted, the share that was.
    pub(crate) fn of_allowed(&self) -> f64 {
        let Load {
            rate,
            burst,
            millis,
            ..
        } = self.load;
        self.admitted() as f64 / (rate as f64 * millis as f64 / 1000.0 + burst as f64)
    }

    pub(crate) fn jain_from(&self, first: usize) -> f64 {
        let admitted: Vec<f64> = self.nodes[first..]
            .iter()
            .map(|node| node.admitted as f64)
            .collect();
        let sum: f64 = admitted.iter().sum();
        let squares: f64 = admitted.iter().map(|admitted| admitted * admitted).sum();
        sum * sum / squares / admitted.len() as f64
    }

    fn by_milli(&self) -> Vec<u64> {
        let all = || self.nodes.iter().flat_map(|node| &node.by_milli);
        let last = all().map(|(milli, _)| *milli).max().unwrap_or(0);
        let mut sum = vec![0; last as usize + 1];
        all().for_each(|(milli, count)| sum[*milli as usize] += count);
        sum
    }

    /// How many were admitted between these milliseconds since the start.
    pub(crate) fn between(&self, from: usize, to: usize) -> u64 {
        self.by_milli().into_iter().take(to).skip(from).sum()
    }

    /// How much more than `B + R · w` was admitted in any window of so many milliseconds; below 0 if it was less.
    pub(crate) fn over_in(&self, window: usize) -> i64 {
        let by_milli = self.by_milli();
        let mut sum: u64 = by_milli.iter().take(window).sum();
        let mut most = sum;
        for i in window..by_milli.len() {
            sum = sum + by_milli[i] - by_milli[i - window];
            most = most.max(sum);
        }
        most as i64 - (self.load.burst + self.load.rate * window as u64 / 1000) as i64
    }

    pub(crate) fn figures(&self, name: &str) -> String {
        format!(
            "{name}: {} of {} admitted, {:.4} of R·t + B; {:.4} calls a request; over B + R·w in 0.1, 1, 5 s: {}, {}, {}; \
             Jain {:.3}; longest wait {:?}",
            self.admitted(),
            self.offered(),
            self.of_allowed(),
            self.calls_per_request(),
            self.over_in(100),
            self.over_in(1000),
            self.over_in(5000),
            self.jain_from(usize::from(self.load.first.is_some())),
            self.longest(),
        )
    }
}

/// The test program is started as a node by other tests. On its own this does nothing.
#[test]
fn this_is_a_node_if_it_was_started_as_one() {
    if let Ok(told) = env::var(NODE) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("it builds").block_on(node(&told));
    }
}

type Waiting = Pin<Box<dyn Future<Output = (bool, Duration)>>>;

async fn node(told: &str) {
    let mut told = told.split(' ');
    let mut next = || told.next().expect("it was told all");
    let url = next();
    let node: f64 = next().parse().unwrap();
    let rate = Rate::new(
        next().parse().unwrap(),
        Duration::from_secs(1),
        next().parse().unwrap(),
    );
    let nodes = next().parse().unwrap();
    let phase = (node + 1.0) / f64::from(nodes); // they do not all send at the same moment
    let per_second: f64 = next().parse().unwrap();
    let start = Duration::from_micros(next().parse().unwrap());
    let end = Duration::from_millis(next().parse().unwrap());
    let mut file = fs::File::create(next()).expect("a file");

    let fleet = Fleet::redis(url, nodes).expect("a server");
    let limit = fleet
        .rate_limit("orders", rate.expect("a rate"))
        .max_wait(MAX_WAIT);
    let handle = limit.handle();
    tokio::time::sleep(start.saturating_sub(since_1970())).await;

    let mut tally = Tally {
        start,
        admitted: 0,
        longest: Duration::ZERO,
        by_milli: Vec::new(),
    };
    let mut waiting = FuturesUnordered::<Waiting>::new();
    let (mut offered, mut told) = (0, 0);
    loop {
        let now = since_1970().saturating_sub(start);
        // Even if this process was not scheduled for a while, as many come as in that time.
        let due = (now.min(end).as_secs_f64() * per_second + phase) as u64;
        while offered < due {
            offered += 1;
            let since = since_1970();
            let mut request = Box::pin(handle.acquire(1));
            match (&mut request).now_or_never() {
                Some(answer) => tally.ended(answer.is_ok(), Duration::ZERO),
                None => waiting.push(Box::pin(async move {
                    let admits = request.await.is_ok();
                    (admits, since_1970().saturating_sub(since))
                })),
            }
        }
        let milli = now.as_millis() as u64;
        if now >= end || milli >= told + 50 {
            told = milli;
            let mut text = String::new();
            for (milli, count) in tally.by_milli.drain(..) {
                text += &format!("m {milli} {count}\n");
            }
            let fleet = handle.fleet();
            let calls = fleet.granted + fleet.refused + fleet.failed;
            let shared = u64::from(fleet.mode == Mode::Shared);
            text += &format!(
                "s {offered} {} {calls} {} {} {shared}\n",
                tally.admitted,
                tally.longest.as_micros(),
                fleet.mode_changes,
            );
            file.write_all(text.as_bytes()).expect("it is written");
        }
        if now >= end {
            return;
        }
        let tick = tokio::time::sleep(Duration::from_millis(1));
        tokio::pin!(tick);
        loop {
            tokio::select! {
                () = &mut tick => break,
                Some((admits, wait)) = waiting.next(), if !waiting.is_empty() => tally.ended(admits, wait),
            }
        }
    }
}

/// What became of requests.
struct Tally {
    start: Duration,
    admitted: u64,
    longest: Duration,
    by_milli: Vec<(u64, u64)>,
}

impl Tally {
    fn ended(&mut self, admits: bool, wait: Duration) {
        self.longest = self.longest.max(wait);
        if admits {
            self.admitted += 1;
            let milli = since_1970().saturating_sub(self.start).as_millis() as u64;
            match self.by_milli.last_mut() {
                Some((at, count)) if *at == milli => *count += 1,
                _ => self.by_milli.push((milli, 1)),
            }
        }
    }
}
