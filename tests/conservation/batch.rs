//! A full batch of requests, through layers that have been used.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Empty};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tower::{BoxError, ServiceExt, service_fn, util::BoxCloneService};
use tower_backpressure::{Overloaded, WfqConfig};

use crate::{
    checks,
    driver::let_go,
    handles::{self, Control},
    stack::Plan,
    support::now,
    world::{Asked, Rng, Stack, TENANTS, Tasks, Ticket, World, spawn},
};

/// As many as the layers let in at once, of one tenant; and those who wait, when there is room for them.
pub async fn gets_in(world: &Arc<World>, plan: &Plan, rng: &mut Rng) {
    for grows in [false, true] {
        let room = rng.between(1, 4) as usize;
        for own in plan.layers() {
            handles::open(own, room);
            if let Err(found) = checks::all_permits(own) {
                world.violated(format!("{}: {found}", own.text));
                return;
            }
        }
        let batch = Batch {
            world,
            plan,
            room,
            way: rng.below(2),
        };
        batch.run(rng, grows).await;
    }
}

struct Batch<'a> {
    world: &'a Arc<World>,
    plan: &'a Plan,
    room: usize,
    /// Which branch of a `Steer`.
    way: u64,
}

/// How many wait for those who are inside.
const MORE: usize = 3;

impl Batch<'_> {
    async fn run(&self, rng: &mut Rng, grows: bool) {
        let Self {
            world, plan, room, ..
        } = *self;
        let inside = Arc::new(AtomicUsize::new(0));
        let rejected = Arc::new(AtomicUsize::new(0));
        let (open, opened) = watch::channel(false);
        let stack = plan.build(waits(&inside, opened), world, true);
        let mut send = |tasks: &Tasks| {
            let request = self.request(rng);
            let (world, rejected) = (Arc::clone(world), Arc::clone(&rejected));
            spawn(tasks, insist(world, stack.clone(), request, rejected));
        };
        let [first, more, cancelled] = [(); 3].map(|()| Tasks::default());
        (0..room).for_each(|_| send(&first));
        if !reaches(&inside, room).await {
            let inside = inside.load(SeqCst);
            world.violated(format!("{inside} of a batch of {room} got in"));
            return first.abort();
        }
        if grows {
            plan.layers().for_each(|own| handles::choke(own));
        }
        for _ in 0..MORE {
            send(&more);
            send(&cancelled);
        }
        sleep(Duration::from_millis(1)).await;
        cancelled.abort();
        let from = now();
        if grows {
            for own in plan.layers() {
                handles::open(own, room + MORE);
            }
            if !reaches(&inside, room + MORE).await {
                let inside = inside.load(SeqCst);
                let found =
                    format!("{inside} got in when the limits had grown from {room} by {MORE}");
                world.violated(found);
            }
            self.check_time(now() - from, &rejected);
        }
        let _ = open.send(true);
        for tasks in [first, more, cancelled] {
            if tasks.finish(PATIENCE).await > 0 {
                world.violated("a batch does not end");
            }
        }
        self.check_time(now() - from, &rejected);
        let_go(stack);
    }

    fn request(&self, rng: &mut Rng) -> Asked {
        let mut request = self.world.request(rng, false);
        let ticket = Ticket {
            seed: self.way,
            tenant: 0,
            ..Ticket::of(&request)
        };
        request.extensions_mut().insert(ticket);
        request
    }

    /// On paused time, who is woken at once has taken none. Who is rejected comes again after a while.
    fn check_time(&self, took: Duration, rejected: &AtomicUsize) {
        let takes_time = self.plan.layers().any(|own| own.kind.takes_time());
        let excused = takes_time || rejected.load(SeqCst) > 0 || !self.world.mode.is_paused();
        if !excused && took > Duration::from_millis(4) {
            let found = format!("what waited for a batch was not woken for {took:?}");
            self.world.violated(found);
        }
    }
}

async fn reaches(count: &AtomicUsize, wanted: usize) -> bool {
    let reached = async {
        while count.load(SeqCst) < wanted {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, reached).await.is_ok()
}

/// On the real clock it is more than any of it takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A service in which requests meet, until they are let out.
fn waits(inside: &Arc<AtomicUsize>, opened: watch::Receiver<bool>) -> Stack {
    let inside = Arc::clone(inside);
    BoxCloneService::new(service_fn(move |request: Asked| {
        let (inside, mut opened) = (Arc::clone(&inside), opened.clone());
        Ticket::of(&request).attempt.fetch_add(1, SeqCst);
        async move {
            inside.fetch_add(1, SeqCst);
            let _ = opened.wait_for(|opened| *opened).await;
            let body = Empty::<Bytes>::new().map_err(Into::into).boxed_unsync();
            Ok::<_, BoxError>(Response::new(body))
        }
    }))
}

/// One that is rejected comes again: a queue may yet be thought to stand, or a `Buffer` have no room for a moment.
async fn insist(world: Arc<World>, stack: Stack, request: Asked, rejected: Arc<AtomicUsize>) {
    loop {
        let mut request = request.clone();
        let ticket = Ticket {
            attempt: Arc::default(),
            ..Ticket::of(&request)
        };
        request.extensions_mut().insert(ticket);
        match stack.clone().oneshot(request).await {
            Ok(response) if response.extensions().get::<Overloaded>().is_none() => return,
            Err(error) if Overloaded::find(error.as_ref()).is_none() => {
                world.violated(format!("a request of a batch failed: {error}"));
                return;
            }
            _ => {
                rejected.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// A fair queue forgets the tenants that have nothing in it, where it needs room for others. To be asked last: nobody
/// meters it.
pub async fn forgets(world: &Arc<World>, plan: &Plan, rng: &mut Rng) {
    for own in plan.layers() {
        let config = WfqConfig::default().max_tenants(TENANTS);
        match &own.control {
            Control::Wfq(handle) => handle.apply(&config).unwrap(),
            Control::Edge(handle) => handles::open_edge(handle, 1, config),
            _ => continue,
        }
        let overflowed = || match &own.control {
            Control::Wfq(handle) => handle.snapshot().overflowed,
            Control::Edge(handle) => handle.snapshot().overflowed,
            _ => unreachable!("it has no tenants"),
        };
        let before = overflowed();
        for newcomer in NEWCOMERS {
            let (_open, opened) = watch::channel(true);
            let stack = own.wrap(waits(&Arc::default(), opened));
            let mut request = world.request(rng, false);
            let ticket = Ticket {
                newcomer: Some(newcomer),
                ..Ticket::of(&request)
            };
            request.extensions_mut().insert(ticket);
            insist(Arc::clone(world), stack, request, Arc::default()).await;
        }
        let newly = overflowed() - before;
        if newly > 0 {
            world.violated(format!("{} does not forget: {newly} overflowed", own.text));
        }
    }
}

const NEWCOMERS: [&str; 6] = ["eve", "fay", "gus", "hal", "ivy", "jim"];
