//! A worker loop that claims a job only when it can work on it, most important first, and ends cleanly.
//!
//! `cargo run --example worker` ends by itself when all jobs are done. Ctrl-C ends it earlier: jobs that have begun are
//! finished, and the rest stay in the table.
//!
//! What to see: never more jobs in flight than permits, a job that panics gives its permit back, and nothing is claimed that
//! could not start. In a server the table is one in a database, and `claim` is an
//! `UPDATE … WHERE id = (SELECT … FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING …`. It is not one of the branches of a
//! `select!`: if it were dropped after it was committed, nobody would know of the job.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_backpressure::{
    BoxError, ConcurrencyLimitLayer, Permit,
    channel::{self, LossySender, Receiver, Sender},
    concurrency_limit,
};

const JOB_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Job {
    id: u32,
    priority: &'static str,
}

/// Jobs that wait in a database.
#[derive(Default)]
struct Table {
    new: Mutex<VecDeque<Job>>,
    inserted: Notify,
}

impl Table {
    /// Waits until there is a job. Another worker may be faster.
    async fn has_new(&self) {
        loop {
            let inserted = self.inserted.notified();
            if !self.new.lock().expect("no panic").is_empty() {
                return;
            }
            inserted.await;
        }
    }

    /// To be awaited to its end.
    async fn claim(&self) -> Option<Job> {
        self.new.lock().expect("no panic").pop_front()
    }

    fn insert(&self, jobs: impl IntoIterator<Item = Job>) {
        self.new.lock().expect("no panic").extend(jobs);
        self.inserted.notify_waiters();
    }
}

struct Worker {
    limit: concurrency_limit::Handle,
    shutdown: watch::Receiver<bool>,
    critical: Receiver<Job>,
    table: Arc<Table>,
    low: Receiver<Job>,
    completions: Sender<(Job, Result<(), String>)>,
    events: LossySender<String>,
    running: JoinSet<()>,
}

impl Worker {
    async fn work(mut self) {
        loop {
            // The permit comes first: a job that nobody can work on is left where it is.
            let permit = tokio::select! {
                biased;
                _ = self.shutdown.changed() => break,
                permit = self.limit.acquire() => permit.expect("one loop waits"),
            };
            // And as long as nobody takes the results, there is no point in more of them.
            let results_pile_up = self.completions.handle().saturation() >= 0.8;
            let job = tokio::select! {
                biased; // in this order
                _ = self.shutdown.changed() => break,
                () = sleep(Duration::from_millis(10)), if results_pile_up => continue,
                Some(job) = self.critical.recv() => job,
                () = self.table.has_new() => match self.table.claim().await {
                    Some(job) => job,
                    None => continue,
                },
                // Only while there is room to spare for what is more important.
                Some(job) = self.low.recv(), if self.limit.has_capacity(0.8) => job,
                () = sleep(Duration::from_millis(100)) => continue, // looks again
            };
            let (completions, events) = (self.completions.clone(), self.events.clone());
            self.running.spawn(run(job, permit, completions, events));
            while self.running.try_join_next().is_some() {}
        }
        // What nobody has begun is put where another worker finds it.
        for queue in [&mut self.critical, &mut self.low] {
            queue.close();
            self.table
                .insert(std::iter::from_fn(|| queue.try_recv().ok()));
        }
        while self.running.try_join_next().is_some() {}
        println!("draining: {} jobs still run", self.running.len());
        while self.running.join_next().await.is_some() {}
    }
}

async fn run(
    job: Job,
    permit: Permit,
    completions: Sender<(Job, Result<(), String>)>,
    events: LossySender<String>,
) {
    let mut work = tokio::spawn(handle(job.id));
    // However it ends, there is a result.
    let result = match timeout(JOB_TIMEOUT, &mut work).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(panicked)) => Err(panicked.to_string()),
        Err(_) => {
            work.abort(); // and is gone before its permit is
            let _ = work.await;
            Err("took too long".to_owned())
        }
    };
    drop(permit); // before the result is sent, which may have to wait
    events.offer(format!("{} job {} is over", job.priority, job.id)); // whoever listens, or nobody
    let _ = completions.send((job, result)).await; // waits for room; fails only if nobody is left
}

async fn handle(id: u32) {
    sleep(Duration::from_millis(20)).await;
    assert!(id % 40 != 7, "job {id} is malformed");
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    std::panic::set_hook(Box::new(|_| {})); // they are reported as results
    let limit = ConcurrencyLimitLayer::new(5).name("jobs").handle();
    let table = Arc::new(Table::default());
    let (critical, critical_jobs) = channel::bounded(100);
    let (low, low_jobs) = channel::bounded(100);
    let (completions, mut completed) = channel::bounded(50);
    let (events, _nobody_listens) = channel::bounded(10);
    let (stop, shutdown) = watch::channel(false);
    let events = events.lossy();
    let watched = events.handle();

    let (critical_count, normal_count, low_count) = (20, 60, 20);
    let all = critical_count + normal_count + low_count;
    for id in 0..low_count {
        low.send(Job {
            id,
            priority: "low",
        })
        .await?;
    }
    let rows = (0..normal_count).map(|id| Job {
        id,
        priority: "normal",
    });
    table.insert(rows);
    for id in 0..critical_count {
        critical
            .send(Job {
                id,
                priority: "critical",
            })
            .await?;
    }

    let worker = tokio::spawn(
        Worker {
            limit: limit.clone(),
            shutdown,
            critical: critical_jobs,
            table: Arc::clone(&table),
            low: low_jobs,
            completions,
            events,
            running: JoinSet::new(),
        }
        .work(),
    );

    let mut finished: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    let mut order = Vec::new();
    loop {
        tokio::select! {
            biased;
            result = tokio::signal::ctrl_c() => { result?; break }
            Some((job, result)) = completed.recv() => {
                let (ok, failed) = finished.entry(job.priority).or_default();
                match result {
                    Ok(()) => *ok += 1,
                    Err(error) => {
                        *failed += 1;
                        println!("{} job {}: {error}", job.priority, job.id);
                    }
                }
                order.push(job.priority);
                if order.len() == all as usize { break }
            }
        }
    }
    stop.send(true)?;
    while let Some((job, result)) = completed.recv().await {
        println!(
            "while draining: {} job {}: {result:?}",
            job.priority, job.id
        );
    }
    worker.await?;

    println!("{:>10} {:>6} {:>7}", "", "done", "failed");
    for (priority, (ok, failed)) in finished {
        println!("{priority:>10} {ok:>6} {failed:>7}");
    }
    let snapshot = limit.snapshot();
    println!(
        "at most {} at once; {} still in the table",
        snapshot.peak_in_flight,
        { table.new.lock().expect("no panic").len() }
    );
    println!(
        "{} events dropped, and no job noticed",
        watched.snapshot().dropped
    );
    let last_critical = order.iter().rposition(|priority| *priority == "critical");
    println!(
        "the last critical job was number {} to end",
        last_critical.map_or(0, |at| at + 1)
    );
    Ok(())
}
