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
use tower_backpressure::Overloaded;

use crate::{
    checks,
    driver::let_go,
    handles,
    stack::Plan,
    support::now,
    world::{Asked, Rng, Stack, Tasks, Ticket, World, spawn},
};

/// As many as the layers let in at once, of one tenant.
pub async fn gets_in(world: &Arc<World>, plan: &Plan, rng: &mut Rng) {
    let mut room = rng.between(1, 6) as usize;
    for own in plan.layers() {
        if let Some(limit) = handles::open(own, rng) {
            room = room.min(limit);
        }
        if let Err(found) = checks::all_permits(own) {
            world.violated(format!("{}: {found}", own.text));
            return;
        }
    }
    // A `Steer` goes by the seed.
    for way in 0..2 {
        batch(world, plan, rng, (room, way)).await;
    }
}

/// So many at once, and some that have to wait for them.
async fn batch(world: &Arc<World>, plan: &Plan, rng: &mut Rng, (room, way): (usize, u64)) {
    let inside = Arc::new(AtomicUsize::new(0));
    let rejected = Arc::new(AtomicUsize::new(0));
    let (open, opened) = watch::channel(false);
    let stack = plan.build(waits(&inside, opened), world, true);
    let mut send = |tasks: &Tasks| {
        let mut request = world.request(rng, false);
        let ticket = Ticket {
            seed: way,
            tenant: 0,
            ..Ticket::of(&request)
        };
        request.extensions_mut().insert(ticket);
        let (world, rejected) = (Arc::clone(world), Arc::clone(&rejected));
        spawn(tasks, insist(world, stack.clone(), request, rejected));
    };
    let [first, more, cancelled] = [(); 3].map(|()| Tasks::default());
    (0..room).for_each(|_| send(&first));
    let all_inside = async {
        while inside.load(SeqCst) < room {
            sleep(Duration::from_millis(1)).await;
        }
    };
    if timeout(PATIENCE, all_inside).await.is_err() {
        let inside = inside.load(SeqCst);
        world.violated(format!("{inside} of a batch of {room} got in"));
        return first.abort();
    }
    for _ in 0..3 {
        send(&more);
        send(&cancelled);
    }
    sleep(Duration::from_millis(1)).await;
    cancelled.abort();
    let opened = now();
    let _ = open.send(true);
    for tasks in [first, more, cancelled] {
        if tasks.finish(PATIENCE).await > 0 {
            world.violated("a batch does not end");
        }
    }
    let took = now() - opened;
    let takes_time = plan.layers().any(|own| own.kind.takes_time());
    let none_rejected = rejected.load(SeqCst) == 0;
    if world.mode.is_paused() && none_rejected && !takes_time && took > Duration::from_millis(2) {
        world.violated(format!(
            "what waited for a batch was not woken for {took:?}"
        ));
    }
    let_go(stack);
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
