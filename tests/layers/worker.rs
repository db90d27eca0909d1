//! Worker loops that claim a job only when they can work on it: what happens when a thousand come at once,
//! one panics, one is slow, nobody takes the results, the database is away, or the API is flooded.
//!
//! Jobs wait in a table, which stands for a database: a job is claimed by one worker only, and stays where it
//! is until then.

use crate::support;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_backpressure::{
    CircuitBreakerLayer, ConcurrencyLimitLayer, LoadShedLayer, Overloaded,
    channel::{self, LossySender, Receiver, Sender},
    concurrency_limit::Handle,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
enum Job {
    Takes(Duration),
    Panics,
    Hangs,
}

/// Rows with a status, claimed oldest first.
#[derive(Default)]
struct Table {
    new: Mutex<VecDeque<(usize, Job)>>,
    inserted: Notify,
    claimed: AtomicUsize,
    /// How many claims fail yet.
    away: AtomicUsize,
}

impl Table {
    fn with(jobs: impl IntoIterator<Item = Job>) -> Arc<Self> {
        let table = Self::default();
        table
            .new
            .lock()
            .unwrap()
            .extend(jobs.into_iter().enumerate());
        Arc::new(table)
    }

    fn waiting(&self) -> usize {
        self.new.lock().unwrap().len()
    }

    fn claimed(&self) -> usize {
        self.claimed.load(SeqCst)
    }

    /// Waits for a job. Nothing is claimed if it is dropped.
    async fn claim(&self) -> Result<(usize, Job), &'static str> {
        let away = |left: usize| left.checked_sub(1);
        if self.away.fetch_update(SeqCst, SeqCst, away).is_ok() {
            return Err("connection timeout");
        }
        loop {
            let inserted = self.inserted.notified();
            if let Some(job) = self.new.lock().unwrap().pop_front() {
                self.claimed.fetch_add(1, SeqCst);
                return Ok(job);
            }
            inserted.await;
        }
    }
}

type Completion = (usize, Result<(), &'static str>);

/// What worker loops share.
#[derive(Clone)]
struct Workers {
    table: Arc<Table>,
    permits: Handle,
    completions: Sender<Completion>,
    events: LossySender<usize>,
    shutdown: watch::Receiver<bool>,
    running: Arc<AtomicUsize>,
    most_running: Arc<AtomicUsize>,
}

struct Ends {
    completions: Receiver<Completion>,
    events: Receiver<usize>,
    stop: watch::Sender<bool>,
    loops: Vec<JoinHandle<()>>,
}

impl Workers {
    /// So many loops with so many permits between them.
    fn start(loops: usize, permits: usize, completions: usize, table: &Arc<Table>) -> (Self, Ends) {
        let (sender, receiver) = channel::bounded(completions);
        let (events, event_receiver) = channel::bounded(1);
        let (stop, shutdown) = watch::channel(false);
        let workers = Self {
            table: Arc::clone(table),
            permits: ConcurrencyLimitLayer::new(permits).handle(),
            completions: sender,
            events: events.lossy(),
            shutdown,
            running: Arc::default(),
            most_running: Arc::default(),
        };
        let loops = (0..loops)
            .map(|_| tokio::spawn(workers.clone().work()))
            .collect();
        let ends = Ends {
            completions: receiver,
            events: event_receiver,
            stop,
            loops,
        };
        (workers, ends)
    }

    async fn work(mut self) {
        let mut jobs = JoinSet::new();
        loop {
            // First the permit, then the job: nothing is claimed that nobody can work on. And nothing
            // while results pile up, each of which has given its permit back.
            let permit = tokio::select! {
                biased;
                _ = self.shutdown.changed() => break,
                permit = self.permits.acquire() => permit.expect("few wait"),
            };
            if self.completions.handle().saturation() >= 0.8 {
                drop(permit);
                sleep(Duration::from_millis(100)).await;
                continue;
            }
            let job = tokio::select! {
                biased;
                _ = self.shutdown.changed() => break,
                job = self.table.claim() => job,
            };
            let Ok((id, job)) = job else {
                drop(permit); // while it backs off, others may try
                sleep(SECOND).await;
                continue;
            };
            let workers = self.clone();
            jobs.spawn(async move {
                let worker = workers.clone();
                let mut done = tokio::spawn(async move { worker.run(job).await });
                // A panic and a timeout are results too, and none is lost.
                let result = match timeout(30 * SECOND, &mut done).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(_)) => Err("panicked"),
                    Err(_) => {
                        done.abort(); // and is gone before its permit is
                        let _ = done.await;
                        Err("timed out")
                    }
                };
                drop(permit); // before the result is sent, for which it may have to wait
                workers.events.offer(id); // nobody waits for that
                workers.completions.send((id, result)).await.expect("open");
            });
        }
        while jobs.join_next().await.is_some() {}
    }

    async fn run(&self, job: Job) {
        struct Running(Arc<AtomicUsize>);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        let running = self.running.fetch_add(1, SeqCst) + 1;
        self.most_running.fetch_max(running, SeqCst);
        let _running = Running(Arc::clone(&self.running));
        match job {
            Job::Takes(time) => sleep(time).await,
            Job::Panics => panic!("the job panics"),
            Job::Hangs => std::future::pending().await,
        }
    }
}

impl Ends {
    async fn take(&mut self, count: usize) -> Vec<Completion> {
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.push(self.completions.recv().await.expect("workers run"));
        }
        taken.sort_unstable();
        taken
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_thousand_jobs_that_come_at_once_five_are_claimed_and_the_others_stay_where_they_are()
{
    let table = Table::with([Job::Takes(SECOND); 1000]);
    let (workers, mut ends) = Workers::start(3, 5, 1000, &table);
    sleep(SECOND / 2).await;
    assert_eq!((table.claimed(), table.waiting()), (5, 995));
    assert_eq!(workers.running.load(SeqCst), 5); // three loops keep five permits busy
    sleep(SECOND).await;
    assert_eq!((table.claimed(), table.waiting()), (10, 990));
    let done = ends.take(1000).await;
    assert!(done.iter().all(|(_, result)| result.is_ok()));
    assert_eq!(workers.most_running.load(SeqCst), 5);
    assert_eq!(workers.permits.snapshot().admitted, 1000 + 3); // the loops wait for more
}

#[tokio::test(start_paused = true)]
async fn a_job_that_panics_gives_its_permit_back_and_has_failed_and_the_others_go_on() {
    let table = Table::with((0..20).map(|id| match id % 2 {
        0 => Job::Panics,
        _ => Job::Takes(SECOND),
    }));
    let (workers, mut ends) = Workers::start(2, 2, 100, &table);
    let done = ends.take(20).await;
    for (id, result) in done {
        assert_eq!(result, if id % 2 == 0 { Err("panicked") } else { Ok(()) });
    }
    assert_eq!(workers.running.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_hangs_is_given_up_and_is_a_failure_not_a_loss() {
    let table = Table::with([Job::Hangs, Job::Takes(SECOND)]);
    let (workers, mut ends) = Workers::start(1, 1, 10, &table);
    let started = support::now();
    assert_eq!(ends.take(2).await, [(0, Err("timed out")), (1, Ok(()))]);
    assert_eq!(started.elapsed(), 31 * SECOND);
    assert_eq!(workers.most_running.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn slow_jobs_slow_everything_down_and_nothing_piles_up() {
    for takes in [3, 25] {
        let table = Table::with([Job::Takes(takes * SECOND); 100]);
        let (workers, mut ends) = Workers::start(3, 5, 100, &table);
        let started = support::now();
        ends.take(100).await;
        assert_eq!(started.elapsed(), 20 * takes * SECOND); // twenty rounds of five
        assert_eq!(workers.most_running.load(SeqCst), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn while_nobody_takes_results_permits_are_free_but_nothing_more_is_claimed_and_nothing_is_lost()
 {
    let table = Table::with([Job::Takes(SECOND); 100]);
    let (workers, mut ends) = Workers::start(3, 5, 10, &table);
    sleep(600 * SECOND).await;
    let completions = workers.completions.handle().snapshot();
    assert!(completions.saturation >= 0.8);
    assert_eq!(workers.running.load(SeqCst), 0);
    // At most what was claimed below 80 % of ten, and is in the channel or waits for room in it.
    assert!((8..=13).contains(&table.claimed()), "{}", table.claimed());
    let permits = workers.permits.snapshot();
    assert!(
        permits.in_flight <= 3,
        "held by loops that look, not by results"
    );
    let done = ends.take(100).await;
    let ids: Vec<_> = done.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    assert_eq!(workers.completions.handle().snapshot().dropped, 0);
}

#[tokio::test(start_paused = true)]
async fn domain_events_are_dropped_and_counted_and_no_job_notices() {
    let table = Table::with([Job::Takes(SECOND); 10]);
    let (workers, mut ends) = Workers::start(1, 1, 100, &table);
    let started = support::now();
    ends.take(10).await;
    assert_eq!(started.elapsed(), 10 * SECOND);
    let events = workers.events.handle().snapshot();
    assert_eq!((events.sent, events.dropped), (1, 9));
    assert_eq!(ends.events.recv().await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn while_the_database_is_away_workers_wait_and_try_again() {
    let table = Table::with([Job::Takes(SECOND); 2]);
    table.away.store(5, SeqCst);
    let (workers, mut ends) = Workers::start(1, 1, 10, &table);
    sleep(SECOND / 2).await;
    assert_eq!(workers.permits.snapshot().in_flight, 0); // whoever waits holds nothing
    let started = support::now();
    ends.take(2).await;
    assert_eq!(started.elapsed(), 5 * SECOND - SECOND / 2 + 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn while_the_circuit_of_the_database_is_open_nothing_is_claimed_and_acks_go_past_it() {
    let started = support::now();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let database = service_fn(move |()| {
        count.fetch_add(1, SeqCst);
        let down = started.elapsed() < 60 * SECOND;
        async move {
            if down {
                Err("connection timeout")
            } else {
                Ok(())
            }
        }
    });
    let breaker = CircuitBreakerLayer::default();
    let claims = breaker.layer(database.clone());
    let claimed_after = loop {
        match claims.clone().oneshot(()).await {
            Ok(()) => break started.elapsed(),
            Err(error) => match Overloaded::find(error.as_ref()) {
                Some(refused) => {
                    // What is not to be held up by the circuit is not sent through it.
                    assert_eq!(
                        database.clone().oneshot(()).await.is_ok(),
                        started.elapsed() >= 60 * SECOND
                    );
                    sleep(refused.retry_after()).await;
                }
                None => sleep(SECOND).await,
            },
        }
    };
    assert_eq!(claimed_after, 64 * SECOND); // five failures a second apart, two cooldowns
    assert_eq!(asked.load(SeqCst), 5 + 1 + 1 + 2); // with two acks, and not once a second
}

/// workers + jobs + a buffer for the API: 3 + 5 + 7 = 15 connections.
#[tokio::test(start_paused = true)]
async fn a_flood_of_api_requests_leaves_the_workers_their_connections() {
    let pool = ConcurrencyLimitLayer::new(15);
    let api = LoadShedLayer::new().layer(ConcurrencyLimitLayer::new(7).layer(pool.layer(
        service_fn(|()| async {
            sleep(SECOND).await;
            Ok::<_, BoxError>(())
        }),
    )));
    let mut flood = JoinSet::new();
    for _ in 0..1000 {
        flood.spawn(api.clone().oneshot(()));
    }
    tokio::task::yield_now().await;
    let pool = pool.handle();
    assert_eq!(pool.snapshot().in_flight, 7);
    let connections: Vec<_> = (0..8).map(|_| pool.try_acquire()).collect();
    assert!(connections.iter().all(Result::is_ok)); // for three workers and five jobs
    let served = flood.join_all().await;
    assert_eq!(served.iter().filter(|result| result.is_ok()).count(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_worker_at_eighty_percent_leaves_claims_to_others() {
    let busy = ConcurrencyLimitLayer::new(10).handle();
    let mut permits = Vec::new();
    for in_flight in 0..10 {
        assert_eq!(busy.has_capacity(0.8), in_flight < 8, "with {in_flight}");
        assert!(busy.has_capacity(1.0) && busy.has_capacity(9.0));
        assert!(!busy.has_capacity(0.0) && !busy.has_capacity(-1.0));
        assert!(!busy.has_capacity(f64::NAN));
        permits.push(busy.try_acquire().unwrap());
    }
    assert!(!busy.has_capacity(1.0) && !busy.has_capacity(9.0));
    // Nor while somebody waits, though there is room at the moment.
    let one = ConcurrencyLimitLayer::new(1).handle();
    let permit = one.try_acquire().unwrap();
    let mut waits = one.acquire();
    assert!(support::poll(&mut waits).is_pending());
    drop(permit);
    assert!(!one.has_capacity(1.0));
    drop(waits);
    assert!(one.has_capacity(1.0));
}

#[tokio::test(start_paused = true)]
async fn on_shutdown_what_was_claimed_is_finished_and_the_rest_stays() {
    let table = Table::with([Job::Takes(10 * SECOND); 100]);
    let (workers, mut ends) = Workers::start(3, 5, 100, &table);
    sleep(SECOND).await;
    ends.stop.send(true).unwrap();
    for worker in ends.loops.drain(..) {
        worker.await.unwrap();
    }
    assert_eq!((table.claimed(), table.waiting()), (5, 95));
    assert_eq!(ends.take(5).await.len(), 5);
    assert_eq!(workers.permits.snapshot().in_flight, 0);
}

/// The connections of one pool, the workers that claim and the jobs that run, as they are deployed.
#[tokio::test(start_paused = true)]
async fn every_deployment_of_the_table_keeps_its_permits_busy() {
    for (loops, permits) in [(2, 3), (3, 5), (5, 10), (2, 4), (5, 20)] {
        let table = Table::with(vec![Job::Takes(SECOND); 10 * permits]);
        let (workers, mut ends) = Workers::start(loops, permits, 1000, &table);
        let started = support::now();
        ends.take(10 * permits).await;
        assert_eq!(
            started.elapsed(),
            10 * SECOND,
            "{loops} loops, {permits} permits"
        );
        assert_eq!(workers.most_running.load(SeqCst), permits);
    }
}
