//! What the server does: some workers, and one queue in front of them, as a pool of threads or of database
//! connections has it.
//!
//! A job that was handed in is worked on, whether or not anybody waits for it still. That is what makes an
//! overloaded server useless: it is busy, and nobody is there to take what it produces.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{
    load::{LEVELS, Level, Random, TENANTS, Tenant},
    now,
};

/// More jobs than this do not wait, so that memory is bounded: ten seconds' work at the start.
pub const MAX_JOBS: usize = 4096;

pub struct Workers {
    state: Mutex<State>,
}

struct State {
    workers: usize,
    busy: usize,
    service_time: Duration,
    jobs: VecDeque<Job>,
    random: Random,
}

struct Job {
    kind: Option<(Tenant, Level)>,
    service_time: Option<Duration>,
    done: oneshot::Sender<()>,
}

/// Why a job was not done.
#[derive(Debug)]
pub enum Undone {
    /// As many wait as may.
    Full,
    /// It waited when the workers were restarted.
    Restarted,
}

/// The workers at one moment.
pub struct Snapshot {
    pub workers: usize,
    /// On average.
    pub service_time: Duration,
    /// Jobs, waiting or worked on.
    pub jobs: usize,
    /// Those that wait, by tenant.
    pub waiting: [usize; TENANTS.len()],
    /// By how much they matter.
    pub waiting_by_level: [usize; LEVELS.len()],
}

impl Workers {
    pub fn new(workers: usize, service_time: Duration) -> Self {
        let state = State {
            workers,
            busy: 0,
            service_time,
            jobs: VecDeque::new(),
            random: Random::new(0),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Waits for a worker, and until it is done: in `service_time`, or a random time around the usual one.
    pub async fn work(
        self: &Arc<Self>,
        kind: Option<(Tenant, Level)>,
        service_time: Option<Duration>,
    ) -> Result<(), Undone> {
        let (done, is_done) = oneshot::channel();
        {
            let mut state = self.state.lock().unwrap();
            if state.jobs.len() >= MAX_JOBS {
                return Err(Undone::Full);
            }
            state.jobs.push_back(Job {
                kind,
                service_time,
                done,
            });
            self.employ(&mut state);
        }
        is_done.await.map_err(|_| Undone::Restarted)
    }

    /// How many work from now on. Those that are too many finish what they are at.
    pub fn set_workers(self: &Arc<Self>, workers: usize) {
        let mut state = self.state.lock().unwrap();
        state.workers = workers;
        self.employ(&mut state);
    }

    /// How long a job takes on average, from now on.
    pub fn set_service_time(&self, service_time: Duration) {
        self.state.lock().unwrap().service_time = service_time;
    }

    /// Forgets the jobs that wait.
    pub fn restart(&self) {
        self.state.lock().unwrap().jobs.clear();
    }

    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.lock().unwrap();
        let (mut waiting, mut waiting_by_level) = ([0; TENANTS.len()], [0; LEVELS.len()]);
        for (Tenant(tenant), Level(level)) in state.jobs.iter().filter_map(|job| job.kind) {
            waiting[tenant] += 1;
            waiting_by_level[level] += 1;
        }
        Snapshot {
            workers: state.workers,
            service_time: state.service_time,
            jobs: state.busy + state.jobs.len(),
            waiting,
            waiting_by_level,
        }
    }

    /// A task for each worker that has something to do.
    fn employ(self: &Arc<Self>, state: &mut State) {
        while let Some((job, time)) = state.next() {
            state.busy += 1;
            tokio::spawn(Arc::clone(self).worker(job, now() + time));
        }
    }

    async fn worker(self: Arc<Self>, mut job: Job, mut until: Instant) {
        loop {
            sleep_until(until).await;
            let _ = job.done.send(()); // nobody may wait for it any more
            let mut state = self.state.lock().unwrap();
            state.busy -= 1;
            let Some((next, time)) = state.next() else {
                return;
            };
            state.busy += 1;
            job = next;
            until += time; // from when it should have woken up: timers are late by up to a millisecond
        }
    }
}

impl State {
    /// The next job, and how long it takes, if there is one and a worker for it.
    fn next(&mut self) -> Option<(Job, Duration)> {
        if self.busy >= self.workers {
            return None;
        }
        let job = self.jobs.pop_front()?;
        let random = self.service_time.mul_f64(self.random.exponential());
        let time = job.service_time.unwrap_or(random);
        Some((job, time))
    }
}
