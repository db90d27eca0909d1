//! Whatever is stacked, and whatever happens: nothing is lost, and nothing is counted wrongly.
//!
//! Random stacks of this crate's layers, with tower's between them, around a service that pends, fails and
//! panics wherever it can. Clients cancel at any poll, keep services and futures, and change limits meanwhile.
//! When all of them have gone:
//!
//! - everything that was not cancelled has ended,
//! - nothing is in flight or waits,
//! - what the layers have counted is what was counted outside and inside them,
//! - nothing that was rejected here was ever called,
//! - as many requests get in at once as may, through the same layers.
//!
//! By default these are the same stacks each time. `BACKPRESSURE_FUZZ_SECONDS=60 cargo test --release --test
//! conservation -- --nocapture` tries others for so long. A failure names its seed, and `BACKPRESSURE_FUZZ_SEED=…`
//! tries that one alone; on paused time it does the same each time.

#[path = "../support/mod.rs"]
mod support;

mod batch;
mod checks;
mod draw;
mod driver;
mod handles;
mod meter;
mod own;
mod service;
mod stack;
mod world;

use std::{
    cell::Cell,
    env,
    hash::{BuildHasher, RandomState},
    mem,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use driver::{Client, Shelf, let_go};
use own::Kind;
use service::Inner;
use stack::Plan;
use tokio::runtime::{Builder, Runtime};
use tower::util::BoxCloneService;
use world::{Mode, Rng, Stack, Tasks, World, mix, spawn};

/// As many stacks as take some ten seconds; optimised, there is time for more.
const STACKS_ON_PAUSED_TIME: u64 = if cfg!(debug_assertions) {
    4_000
} else {
    20_000
};
const STACKS_ON_THREADS: u64 = if cfg!(debug_assertions) { 800 } else { 2_000 };

#[test]
fn nothing_is_lost_on_paused_time() {
    fuzz(
        "nothing_is_lost_on_paused_time",
        STACKS_ON_PAUSED_TIME,
        1,
        |_| Mode::Paused,
    );
}

#[test]
fn nothing_is_lost_on_threads() {
    // They wait for timers most of the time.
    fuzz("nothing_is_lost_on_threads", STACKS_ON_THREADS, 4, |rng| {
        Mode::Threads(rng.pick(&[2, 3, 4, 8]))
    });
}

#[test]
fn a_seed_repeats_its_run() {
    for seed in 0..100 {
        let [one, other] = [(); 2].map(|()| try_one(Mode::Paused, mix(seed)));
        assert_eq!(one, other, "{FOUND} seed {:#x}", mix(seed));
    }
}

/// Fixed seeds, or fresh ones for as long as it is told to. So many stacks at a time.
fn fuzz(test: &str, stacks: u64, at_once: usize, mode: impl Fn(&mut Rng) -> Mode + Sync) {
    let run = |number: u64, seed: u64| {
        let seen = try_one(mode(&mut Rng::new(mix(seed))), seed);
        seen.map_err(|failure| {
            format!(
                "{failure}\nstack {number}; again: BACKPRESSURE_FUZZ_SEED={seed:#x} cargo test --test conservation {test}"
            )
        })
    };
    if let Ok(seed) = env::var("BACKPRESSURE_FUZZ_SEED") {
        let seed = u64::from_str_radix(seed.trim_start_matches("0x"), 16);
        let seed = seed.expect("a seed is a hexadecimal number");
        return if let Err(failure) = run(0, seed) {
            panic!("{FOUND} {failure}");
        };
    }
    let began = support::now();
    let seconds = env::var("BACKPRESSURE_FUZZ_SECONDS").ok();
    let seconds = seconds.map(|seconds| seconds.parse().expect("a number of seconds"));
    let within = seconds.map(Duration::from_secs);
    let first = within.map_or(0, |_| RandomState::new().hash_one(0));
    let (next, operations) = (AtomicU64::new(0), AtomicU64::new(0));
    let failure = Mutex::new(None);
    let goes_on = || {
        let goes_on = within.map_or(next.load(SeqCst) < stacks, |within| {
            began.elapsed() < within
        });
        goes_on && failure.lock().unwrap().is_none()
    };
    let work = || {
        while goes_on() {
            let number = next.fetch_add(1, SeqCst);
            match run(number, mix(first.wrapping_add(number))) {
                Ok(seen) => _ = operations.fetch_add(seen.operations, SeqCst),
                Err(found) => *failure.lock().unwrap() = Some(found),
            }
        }
    };
    thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
    if let Some(failure) = failure.into_inner().unwrap() {
        panic!("{FOUND} {failure}");
    }
    let took = began.elapsed();
    println!("{test}: {operations:?} operations on {next:?} stacks in {took:.1?}");
}

/// Begins what a test says that has found something.
const FOUND: &str = "conservation:";

/// What is the same each time on paused time.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    operations: u64,
    digest: u64,
}

fn try_one(mode: Mode, seed: u64) -> Result<Seen, String> {
    watch_panics();
    let mut rng = Rng::new(seed);
    SEED.set(seed);
    let runtime = runtime(mode, seed);
    let entered = runtime.enter();
    let world = World::new(mode, &mut rng);
    let plan = Plan::draw(mode, &mut rng);
    drop(entered);
    let run = run(&world, &plan, rng);
    let ran = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run)));
    runtime.shutdown_background();
    let mut violations = world.violations();
    let mut panics = PANICS.lock().unwrap();
    let is_ours = |(of, _): &(u64, String)| *of == seed;
    violations.extend(
        panics
            .iter()
            .filter(|it| is_ours(it))
            .map(|(_, panic)| panic.clone()),
    );
    panics.retain(|it| !is_ours(it));
    drop(panics);
    if ran.is_err() && violations.is_empty() {
        violations.push("the run itself panicked".into());
    }
    match violations.is_empty() {
        true => Ok(Seen {
            operations: world.operations.load(SeqCst),
            digest: world.digest(),
        }),
        false => Err(format!(
            "{}\nseed {seed:#x}, {mode:?}, from the outside in:\n{plan}{:?}",
            violations.join("\n"),
            world.faults
        )),
    }
}

async fn run(world: &Arc<World>, plan: &Plan, mut rng: Rng) {
    let paused = world.mode.is_paused();
    let enough = Duration::from_secs(if paused { 3600 } else { 30 });
    let inner = || BoxCloneService::new(Inner::new(world));
    let mut stacks: Vec<Stack> = vec![plan.build(inner(), world, false)];
    // Each `Buffer` keeps what it has reserved, and two on one limit keep it from each other.
    if !plan.has_buffer() && rng.once_in(3) {
        stacks.push(plan.build(inner(), world, false));
    }
    let tasks = Tasks::default();
    // A `Buffer` that is kept keeps what it has reserved for a request that was cancelled.
    let shelf = (!plan.has_buffer()).then(Shelf::default);
    for _ in 0..rng.between(1, 8) {
        let client = Client {
            world: Arc::clone(world),
            stacks: stacks.clone(),
            layers: plan.layers().cloned().collect(),
            tasks: tasks.clone(),
            shelf: shelf.clone(),
            rng: rng.fork(),
        };
        let operations = rng.between(1, 40);
        spawn(&tasks, client.run(operations));
    }
    world.begun.store(true, SeqCst);
    let first = Duration::from_secs(if paused { 600 } else { 1 });
    let mut left = tasks.finish(first).await;
    // What was sent to a `Buffer` whose worker has panicked may never complete. That is tower's.
    if left > 0 && !world.buffer_died.load(SeqCst) {
        left = tasks.finish(enough).await;
    }
    if left > 0 {
        if !world.buffer_died.load(SeqCst) {
            world.violated(format!("{left} clients never end\n{}", states(plan)));
        }
        tasks.abort();
        tasks.finish(enough).await;
    }
    stacks.into_iter().for_each(let_go);
    check(world, plan).await;
    for shelved in shelf
        .iter()
        .flat_map(|shelf| mem::take(&mut *shelf.lock().unwrap()))
    {
        let_go(shelved);
    }
    if world.violations().is_empty() {
        batch::gets_in(world, plan, &mut rng).await;
        check(world, plan).await;
        batch::forgets(world, plan, &mut rng).await;
    }
}

/// After all have gone. The tasks of `Buffer`s and of layers on trial are not ours to wait for, and end by
/// themselves: what is on trial, and a `Buffer`'s request that was cancelled, wait for as long as they would have. In
/// other stacks no time passes.
async fn check(world: &World, plan: &Plan) {
    let has_tasks = plan.has_buffer() || plan.layers().any(|own| own.kind == Kind::Shadow);
    for n in 0..2_000 {
        if n >= 20
            && plan
                .layers()
                .all(|own| checks::all(world, plan, own).is_ok())
        {
            return;
        }
        match world.mode {
            Mode::Paused if !has_tasks || n < 20 => tokio::task::yield_now().await,
            Mode::Paused => tokio::time::sleep(Duration::from_secs(1)).await,
            Mode::Threads(_) if n < 20 => tokio::task::yield_now().await,
            Mode::Threads(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    for own in plan.layers() {
        if let Err(found) = checks::all(world, plan, own) {
            world.violated(format!("{}: {found}", own.text));
        }
    }
}

fn states(plan: &Plan) -> String {
    let state = |own: &Arc<own::Own>| format!("{}: {:?}", own.text, checks::idle(&own.control));
    plan.layers().map(state).collect::<Vec<_>>().join("\n")
}

fn runtime(mode: Mode, seed: u64) -> Runtime {
    let mut builder = match mode {
        Mode::Paused => Builder::new_current_thread(),
        Mode::Threads(_) => Builder::new_multi_thread(),
    };
    match mode {
        Mode::Paused => builder.start_paused(true),
        Mode::Threads(workers) => builder.worker_threads(workers),
    };
    let builder = builder.on_thread_start(move || SEED.set(seed));
    builder.enable_time().build().unwrap()
}

/// What panicked that was not meant to, and in the run of which seed: anywhere, also in tasks that nobody waits for.
static PANICS: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());

thread_local! {
    /// Of the run that this thread belongs to.
    static SEED: Cell<u64> = const { Cell::new(0) };
}

fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !info.to_string().contains(FOUND) {
                let panic = (SEED.get(), info.to_string());
                PANICS.lock().unwrap().push(panic);
            }
            usual(info);
        }));
    });
}
