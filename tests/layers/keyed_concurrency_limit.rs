//! What is particular to a limit for each key: the order within a key, and that keys do not meet.

use crate::counting;
use crate::support;

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use support::{finish, noop, poll, refusal};
use tokio::{
    sync::oneshot,
    time::{advance, timeout},
};
use tower::{BoxError, Layer, Service, service_fn};
use tower_backpressure::{
    Deadline, KeyedConcurrencyLimit, KeyedConcurrencyLimitLayer, Reason, deadline::WithDeadline,
    keyed_concurrency_limit::Handle,
};

const SECOND: Duration = Duration::from_secs(1);

type Key = fn(&(u32, char)) -> Option<u32>;
type Running = Pin<Box<dyn Future<Output = Result<char, BoxError>> + Send>>;
type Answer = Pin<Box<dyn Future<Output = Result<char, BoxError>> + Send>>;
type Ends = Arc<Mutex<HashMap<char, oneshot::Sender<()>>>>;

/// Executions with a key and a name, which run until they are told to end.
struct Executor {
    layer: KeyedConcurrencyLimitLayer<Key>,
    handle: Handle,
    ends: Ends,
    started: Arc<Mutex<Vec<char>>>,
}

impl Executor {
    fn new(limit: usize) -> Self {
        let key: Key = |(key, _)| Some(*key);
        let layer = KeyedConcurrencyLimitLayer::new(limit, key);
        Self {
            handle: layer.handle(),
            layer,
            ends: Ends::default(),
            started: Arc::default(),
        }
    }

    fn with(limit: usize, set: impl FnOnce(&Handle)) -> Self {
        let executor = Self::new(limit);
        set(&executor.handle);
        executor
    }

    fn service(
        &self,
    ) -> KeyedConcurrencyLimit<
        impl Service<(u32, char), Response = char, Error = BoxError, Future = Answer>
        + Clone
        + Send
        + use<>,
        Key,
    > {
        let (ends, started) = (Arc::clone(&self.ends), Arc::clone(&self.started));
        self.layer.layer(service_fn(move |(_, name)| {
            let (end, ended) = oneshot::channel();
            ends.lock().unwrap().insert(name, end);
            started.lock().unwrap().push(name);
            Box::pin(async move {
                let _ = ended.await;
                Ok(name)
            }) as Answer
        }))
    }

    /// Comes, and is polled once.
    fn send(&self, key: u32, name: char) -> Running {
        let mut service = self.service();
        assert!(service.poll_ready(&mut noop()).is_ready());
        let mut running = Box::pin(service.call((key, name)));
        let polled = running.as_mut().poll(&mut noop());
        match polled {
            Poll::Pending => running,
            Poll::Ready(result) => Box::pin(async { result }),
        }
    }

    /// Ends one that runs, and looks at those that are left.
    fn end(&self, name: char, running: &mut Vec<(char, Running)>) {
        let end = self.ends.lock().unwrap().remove(&name);
        end.expect("it runs").send(()).unwrap();
        let at = running.iter().position(|(other, _)| *other == name);
        let (_, ended) = running.remove(at.unwrap());
        assert_eq!(finish(ended).unwrap(), name);
        for (_, other) in running {
            assert!(poll(other).is_pending());
        }
    }

    fn started(&self) -> String {
        self.started.lock().unwrap().iter().collect()
    }

    fn queue(&self, key: u32) -> (usize, usize) {
        let key = self.handle.key(&key).expect("it is in use");
        (key.in_flight, key.waiting)
    }
}

/// The table of the document that asked for this layer, line by line.
#[tokio::test(start_paused = true)]
async fn executions_a_to_e_with_two_at_once_proceed_in_the_order_in_which_they_came() {
    let executor = Executor::new(2);
    let mut running = Vec::new();
    for (name, active, queued) in [
        ('A', 1, 0),
        ('B', 2, 0),
        ('C', 2, 1),
        ('D', 2, 2),
        ('E', 2, 3),
    ] {
        running.push((name, executor.send(1, name)));
        assert_eq!(executor.queue(1), (active, queued), "{name} arrives");
        advance(SECOND).await;
    }
    let oldest = executor.handle.key(&1u32).unwrap().oldest_wait;
    assert_eq!(oldest, Some(3 * SECOND)); // C's
    for (name, started, active, queued) in [
        ('A', "ABC", 2, 2),
        ('B', "ABCD", 2, 1),
        ('C', "ABCDE", 2, 0),
        ('D', "ABCDE", 1, 0),
    ] {
        executor.end(name, &mut running);
        assert_eq!(executor.started(), started, "{name} completes");
        assert_eq!(executor.queue(1), (active, queued), "{name} completes");
        let all = executor.handle.snapshot();
        assert_eq!((all.in_flight, all.waiting), (active, queued));
    }
    let totals = executor.handle.key(&1u32).unwrap().totals;
    assert_eq!((totals.enqueued, totals.completed), (5, 4));
    executor.end('E', &mut running);
    assert_eq!(executor.handle.key(&1u32), None);
    let snapshot = executor.handle.snapshot();
    assert_eq!(
        (snapshot.keys, snapshot.waiting, snapshot.in_flight),
        (0, 0, 0)
    );
    assert_eq!(
        (snapshot.totals.enqueued, snapshot.totals.completed),
        (5, 5)
    );
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_wait_for_each_other() {
    let executor = Executor::new(1);
    let mut running = vec![('a', executor.send(1, 'a')), ('b', executor.send(1, 'b'))];
    running.push(('c', executor.send(2, 'c')));
    assert_eq!(executor.started(), "ac");
    assert_eq!(executor.handle.snapshot().keys, 2);
    executor.end('a', &mut running);
    assert_eq!(executor.started(), "acb");
}

#[tokio::test(start_paused = true)]
async fn no_newcomer_passes_those_who_wait() {
    let executor = Executor::new(1);
    let first = executor.send(1, 'a');
    let mut second = executor.send(1, 'b');
    executor.ends.lock().unwrap().remove(&'a');
    finish(first).unwrap();
    // The permit is b's already, though b has not looked.
    let mut third = executor.send(1, 'c');
    assert_eq!(executor.started(), "a");
    assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
    assert_eq!(executor.started(), "ab");
}

#[tokio::test(start_paused = true)]
async fn whoever_is_called_first_is_first_whoever_is_polled_first() {
    let executor = Executor::new(1);
    let first = executor.send(1, 'a');
    let mut second = Box::pin(executor.service().call((1, 'b'))); // not polled yet
    assert_eq!(executor.queue(1), (1, 1));
    executor.ends.lock().unwrap().remove(&'a');
    finish(first).unwrap();
    let mut third = executor.send(1, 'c');
    assert_eq!(executor.started(), "a");
    assert!(poll(&mut third).is_pending() && poll(&mut second).is_pending());
    assert_eq!(executor.started(), "ab");
    drop(second);
    assert!(poll(&mut third).is_pending());
    assert_eq!(executor.started(), "abc");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_wait_and_more_if_that_is_set() {
    for (set, most) in [(None, 10_000), (Some(20_000), 20_000)] {
        let executor = Executor::new(1);
        if let Some(set) = set {
            executor.handle.set_max_waiting(set);
        }
        let waiting: Vec<_> = (0..=most).map(|_| executor.send(1, 'a')).collect();
        assert_eq!(executor.queue(1), (1, most));
        let refused = refusal(finish(executor.send(1, 'b')));
        assert_eq!(refused.reason(), Reason::QueueFull);
        drop(waiting);
        assert_eq!(executor.handle.snapshot().keys, 0);
    }
}

/// A thousand executions, five at once, on several threads.
#[test]
fn no_thread_ever_sees_more_than_may_run_and_all_are_served() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_time().build().unwrap();
    let limit = KeyedConcurrencyLimitLayer::new(5, |key: &usize| Some(*key));
    let running: Arc<[AtomicUsize; 3]> = Arc::default();
    struct Leaves(Arc<[AtomicUsize; 3]>, usize);
    impl Drop for Leaves {
        fn drop(&mut self) {
            self.0[self.1].fetch_sub(1, SeqCst);
        }
    }
    let service = limit.layer(service_fn(move |key: usize| {
        let running = Arc::clone(&running);
        async move {
            let now = running[key].fetch_add(1, SeqCst) + 1;
            let _leaves = Leaves(running, key); // also if its client gives up
            tokio::task::yield_now().await;
            Ok::<_, BoxError>(now)
        }
    }));
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for request in 0..3000 {
            let mut service = service.clone();
            tasks.spawn(async move {
                let response = service.call(request % 3);
                match request % 10 {
                    9 => drop(timeout(Duration::from_micros(50), response).await), // gives up
                    _ => assert!(response.await.unwrap() <= 5),
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    });
    let snapshot = limit.handle().snapshot();
    assert_eq!(
        (snapshot.keys, snapshot.waiting, snapshot.in_flight),
        (0, 0, 0)
    );
    let totals = snapshot.totals;
    assert_eq!(totals.enqueued, 3000);
    assert_eq!(totals.completed + totals.cancelled, 3000);
    assert!(totals.completed >= 2700);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_of_one_key_and_of_all_together() {
    let executor = Executor::with(1, |handle| {
        handle.set_max_waiting_per_key(2);
        handle.set_max_waiting(3);
    });
    let _running: Vec<_> = "abc".chars().map(|name| executor.send(1, name)).collect();
    let refused = refusal(finish(executor.send(1, 'd')));
    assert_eq!(refused.reason(), Reason::QueueFull);
    assert_eq!(refused.layer(), "keyed_concurrency_limit");
    let _others: Vec<_> = "ef".chars().map(|name| executor.send(2, name)).collect();
    let refused = refusal(finish(executor.send(2, 'g'))); // three wait
    assert_eq!(refused.reason(), Reason::QueueFull);
    assert_eq!(executor.handle.key(&1u32).unwrap().totals.rejected, 1);
    assert_eq!(executor.handle.key(&2u32).unwrap().totals.rejected, 1);
    assert_eq!(executor.handle.snapshot().totals.rejected, 2);
    assert_eq!(executor.handle.snapshot().waiting, 3);
}

#[tokio::test(start_paused = true)]
async fn whoever_has_waited_too_long_is_refused_and_makes_room() {
    let executor = Executor::with(1, |handle| handle.set_max_wait(Some(10 * SECOND)));
    let mut running = vec![('a', executor.send(1, 'a'))];
    let waits = executor.send(1, 'b');
    let refused = refusal(timeout(11 * SECOND, waits).await.unwrap());
    assert_eq!(refused.reason(), Reason::WaitTimeout);
    assert_eq!(executor.queue(1), (1, 0));
    running.push(('c', executor.send(1, 'c')));
    executor.end('a', &mut running);
    assert_eq!(executor.started(), "ac");
    assert_eq!(executor.handle.snapshot().totals.timed_out, 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_makes_way() {
    let executor = Executor::new(1);
    let mut running = vec![('a', executor.send(1, 'a'))];
    let gives_up = executor.send(1, 'b');
    running.push(('c', executor.send(1, 'c')));
    drop(gives_up);
    assert_eq!(executor.queue(1), (1, 1));
    executor.end('a', &mut running);
    assert_eq!(executor.started(), "ac");
    assert_eq!(executor.handle.snapshot().totals.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn limits_change_at_run_time() {
    let executor = Executor::new(1);
    let mut running: Vec<_> = "abcd"
        .chars()
        .map(|name| (name, executor.send(1, name)))
        .collect();
    let mut others: Vec<_> = "xy"
        .chars()
        .map(|name| (name, executor.send(2, name)))
        .collect();
    let look = |running: &mut Vec<(char, Running)>| {
        for (_, running) in running {
            assert!(poll(running).is_pending());
        }
    };
    executor.handle.set_limit_of(&1u32, 3).unwrap();
    look(&mut running);
    assert_eq!(executor.started(), "axbc");
    assert_eq!(executor.handle.key(&1u32).unwrap().limit, 3);
    executor.handle.set_limit(2).unwrap(); // for key 2; key 1 has its own
    look(&mut running);
    look(&mut others);
    assert_eq!(executor.started(), "axbcy");
    executor.handle.remove_limit_of(&1u32); // back to two
    executor.end('a', &mut running);
    assert_eq!(executor.started(), "axbcy");
    executor.end('b', &mut running);
    assert_eq!(executor.started(), "axbcyd");
    assert!(executor.handle.set_limit(0).is_err());
    assert!(executor.handle.set_limit_of(&1u32, 0).is_err());
    assert_eq!(executor.handle.key(&1u32).unwrap().limit, 2);
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_all_is_not_that_of_a_key_with_its_own() {
    let executor = Executor::with(1, |handle| handle.set_limit_of(&1u32, 1).unwrap());
    let _running = executor.send(1, 'a');
    let mut waits = executor.send(1, 'b');
    executor.handle.set_limit(5).unwrap();
    assert!(poll(&mut waits).is_pending());
    assert_eq!(executor.started(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_key_with_a_limit_of_its_own_is_remembered_with_its_totals() {
    let executor = Executor::with(1, |handle| handle.set_limit_of(&1u32, 2).unwrap());
    for name in ['a', 'b', 'c'] {
        let mut running = vec![(name, executor.send(1, name))];
        executor.end(name, &mut running);
    }
    let key = executor.handle.key(&1u32).unwrap();
    assert_eq!((key.limit, key.in_flight, key.totals.completed), (2, 0, 3));
    let _both = (executor.send(1, 'd'), executor.send(1, 'e'));
    assert_eq!(executor.started(), "abcde");
    executor.handle.remove_limit_of(&1u32);
    assert_eq!(executor.handle.key(&1u32).unwrap().limit, 1);
}

#[test]
fn a_key_that_nobody_uses_costs_nothing() {
    let limit = KeyedConcurrencyLimitLayer::new(1, |key: &u64| Some(*key));
    let service = limit.layer(service_fn(|key: u64| async move { Ok::<_, BoxError>(key) }));
    let run = |key| finish(Box::pin(service.clone().call(key))).unwrap();
    run(0);
    let count = counting::counted(|| {
        for key in 0..100_000 {
            run(key);
        }
    });
    assert_eq!(count.bytes, 0, "nothing stays");
    assert_eq!(limit.handle().snapshot().keys, 0);
    assert_eq!(limit.handle().snapshot().totals.completed, 100_001);
}

#[tokio::test]
async fn a_permit_is_held_to_the_end_of_the_body_if_asked() {
    let limit = KeyedConcurrencyLimitLayer::new(1, |_: &Request<()>| Some("key"));
    let handle = limit.handle();
    let answers = service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(Response::new(Full::<bytes::Bytes>::from("hello")))
    });
    let mut service = limit.hold_until_body_end().layer(answers);
    let response = service.call(Request::new(())).await.unwrap();
    assert_eq!(handle.snapshot().in_flight, 1);
    response.into_body().collect().await.unwrap();
    assert_eq!(handle.snapshot().in_flight, 0);
}

#[test]
#[should_panic(expected = "limit must be")]
fn a_limit_of_nothing_is_refused() {
    let _ = KeyedConcurrencyLimitLayer::new(0, |key: &u32| Some(*key));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32),
    End(prop::sample::Index),
    Drop(prop::sample::Index),
    Limit(u32, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u32..3).prop_map(Step::Send),
        4 => any::<prop::sample::Index>().prop_map(Step::End),
        2 => any::<prop::sample::Index>().prop_map(Step::Drop),
        1 => (0_u32..3, 1_usize..4).prop_map(|(key, limit)| Step::Limit(key, limit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Whatever comes, ends and gives up, each key starts its executions in the order in which they came,
    /// never more than may run, and never fewer than could.
    #[test]
    fn each_key_is_first_come_first_served(steps in prop::collection::vec(step(), 1..80)) {
        let executor = Executor::new(2);
        let mut limits = [2; 3];
        let mut names = '\u{100}'..;
        // What is there of each key, in the order in which it came: (name, runs).
        let mut model: [Vec<(char, bool)>; 3] = Default::default();
        let mut there: Vec<(u32, char, Running)> = Vec::new();
        for step in steps {
            match step {
                Step::Send(key) => {
                    let name = names.next().unwrap();
                    there.push((key, name, executor.send(key, name)));
                    model[key as usize].push((name, false));
                }
                Step::End(index) if !there.is_empty() => {
                    let at = index.index(there.len());
                    let (key, name, _) = there[at];
                    let runs = model[key as usize].iter().any(|(other, runs)| *other == name && *runs);
                    if runs {
                        executor.ends.lock().unwrap().remove(&name);
                        let (_, _, running) = there.remove(at);
                        prop_assert_eq!(finish(running).unwrap(), name);
                        model[key as usize].retain(|(other, _)| *other != name);
                    }
                }
                Step::Drop(index) if !there.is_empty() => {
                    let (key, name, _) = there.remove(index.index(there.len()));
                    model[key as usize].retain(|(other, _)| *other != name);
                }
                Step::End(_) | Step::Drop(_) => {}
                Step::Limit(key, limit) => {
                    limits[key as usize] = limit;
                    executor.handle.set_limit_of(&key, limit).unwrap();
                }
            }
            for (_, _, running) in &mut there {
                prop_assert!(poll(running).is_pending());
            }
            for (key, queue) in model.iter_mut().enumerate() {
                let mut running = queue.iter().filter(|(_, runs)| *runs).count();
                for (_, runs) in queue.iter_mut() {
                    if !*runs && running < limits[key] {
                        *runs = true;
                        running += 1;
                    }
                }
                let started = executor.started.lock().unwrap();
                for (name, runs) in queue.iter() {
                    prop_assert_eq!(started.contains(name), *runs);
                }
                let waiting = queue.len() - running;
                let now = executor.handle.key(&(key as u32));
                let now = now.map_or((0, 0), |key| (key.in_flight, key.waiting));
                prop_assert_eq!(now, (running, waiting));
            }
        }
    }
}

/// A request with a number, a deadline, and the time that it takes.
#[derive(Clone, Copy, Debug)]
struct Timed {
    number: usize,
    deadline: Option<Deadline>,
    takes: Duration,
}

type TimedKey = fn(&Timed) -> Option<()>;
type TimedDeadline = fn(&Timed) -> Option<Deadline>;

fn one_key(_: &Timed) -> Option<()> {
    Some(())
}

fn own_deadline(timed: &Timed) -> Option<Deadline> {
    timed.deadline
}

fn timed(limit: usize) -> KeyedConcurrencyLimitLayer<WithDeadline<TimedKey, TimedDeadline>> {
    KeyedConcurrencyLimitLayer::new(limit, one_key as TimedKey)
        .deadline(own_deadline as TimedDeadline)
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_rejected_when_its_deadline_passes_and_the_order_of_the_others_stays() {
    let limit = timed(1);
    let started = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&started);
    let service = limit.layer(service_fn(move |request: Timed| {
        seen.lock().unwrap().push(request.number);
        async move {
            tokio::time::sleep(request.takes).await;
            Ok::<_, BoxError>(support::now())
        }
    }));
    let came = support::now();
    let send = |number, deadline: Option<u64>| {
        let deadline = deadline.map(|seconds| Deadline::from(came + seconds as u32 * SECOND));
        let request = Timed {
            number,
            deadline,
            takes: 10 * SECOND,
        };
        tokio::spawn(service.clone().call(request))
    };
    let [a, b, c, d, e] = [
        send(0, None),
        send(1, Some(60)),
        send(2, Some(3)),
        send(3, None),
        send(4, Some(20)), // the moment at which it would be its turn
    ];
    let rejected = refusal(c.await.unwrap().map(drop));
    assert_eq!(support::now() - came, 3 * SECOND);
    assert_eq!(rejected.layer(), "keyed_concurrency_limit");
    assert_eq!(rejected.reason(), Reason::Deadline);
    assert!(rejected.rejected_here());
    assert_eq!(limit.handle().snapshot().waiting, 3);
    let rejected = refusal(e.await.unwrap().map(drop));
    assert_eq!(
        (support::now() - came, rejected.reason()),
        (20 * SECOND, Reason::Deadline)
    );
    for (request, seconds) in [(a, 10), (b, 20), (d, 30)] {
        assert_eq!(request.await.unwrap().unwrap() - came, seconds * SECOND);
    }
    assert_eq!(*started.lock().unwrap(), [0, 1, 3]);
    let snapshot = limit.handle().snapshot();
    assert_eq!(
        (snapshot.keys, snapshot.waiting, snapshot.in_flight),
        (0, 0, 0)
    );
    assert_eq!((snapshot.totals.completed, snapshot.totals.expired), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_too_late_is_rejected_although_there_is_room() {
    let limit = timed(1);
    let mut service = limit.layer(service_fn(|_: Timed| async {
        Err::<(), BoxError>("called".into())
    }));
    let deadline = Some(Deadline::within(SECOND));
    advance(SECOND).await;
    let late = Timed {
        number: 0,
        deadline,
        takes: SECOND,
    };
    let rejected = refusal(finish(Box::pin(service.call(late))));
    assert_eq!(rejected.reason(), Reason::Deadline);
    let snapshot = limit.handle().snapshot();
    assert_eq!((snapshot.totals.enqueued, snapshot.totals.expired), (1, 1));
    assert_eq!((snapshot.keys, snapshot.waits.count()), (0, 0));
}

/// It has the permit, and waits for a service that is not ready.
#[tokio::test(start_paused = true)]
async fn one_that_was_let_in_and_not_sent_hands_its_permit_on_when_its_deadline_passes() {
    let limit = KeyedConcurrencyLimitLayer::new(1, |_: &u32| Some(()))
        .deadline(|seconds: &u32| (*seconds > 0).then(|| Deadline::within(*seconds * SECOND)));
    let probe = support::Probe::new();
    probe.set(|script| script.ready = support::Behaviour::Pends);
    let mut service = limit.layer(probe.clone());
    let first = tokio::spawn(service.call(5));
    let second = tokio::spawn(service.call(0));
    let rejected = refusal(first.await.unwrap());
    assert_eq!(rejected.reason(), Reason::Deadline);
    probe.set(|script| script.ready = support::Behaviour::Works);
    assert_eq!(second.await.unwrap().unwrap(), 0);
    assert_eq!(probe.calls(), 1);
    assert_eq!(limit.handle().snapshot().totals.expired, 1);
}

#[tokio::test(start_paused = true)]
async fn of_http_requests_the_protocols_deadline_is_known() {
    let limit = KeyedConcurrencyLimitLayer::new(1, |_: &Request<()>| Some("key"))
        .deadline(tower_backpressure::deadline::FromRequest);
    let mut service = limit.layer(service_fn(|_: Request<()>| async {
        tokio::time::sleep(SECOND).await;
        Ok::<_, BoxError>(Response::new(()))
    }));
    let send = |timeout: &str| {
        Request::get("/")
            .header("grpc-timeout", timeout)
            .body(())
            .unwrap()
    };
    let first = tokio::spawn(service.call(send("1H")));
    let rejected = refusal(service.call(send("250m")).await.map(drop));
    assert_eq!(rejected.reason(), Reason::Deadline);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

proptest! {
    /// Whatever the deadlines are, requests start in the order in which they came and none after its deadline; each is rejected at
    /// its deadline if it has not started, and all are counted once.
    #[test]
    fn deadlines_take_nothing_from_the_order(
        limit in 1..4_usize,
        requests in prop::collection::vec((prop::option::of(0..200_u64), 1..40_u64, 0..10_u64), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let layer = timed(limit);
        let started = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&started);
        let service = layer.layer(service_fn(move |request: Timed| {
            assert!(request.deadline.is_none_or(|deadline| !deadline.has_passed()));
            seen.lock().unwrap().push((request.number, support::now()));
            async move {
                tokio::time::sleep(request.takes).await;
                Ok::<_, BoxError>(())
            }
        }));
        let (mut served, mut expired) = (0, 0);
        runtime.block_on(async {
            let mut tasks = Vec::new();
            for (number, (deadline, takes, pause)) in requests.iter().enumerate() {
                let ends = deadline.map(|millis| support::now() + Duration::from_millis(millis));
                let takes = Duration::from_millis(*takes);
                let request = Timed { number, deadline: ends.map(Deadline::from), takes };
                let response = service.clone().call(request);
                tasks.push(tokio::spawn(async move {
                    let result = response.await;
                    (result, ends, support::now())
                }));
                tokio::time::sleep(Duration::from_millis(*pause)).await;
            }
            for task in tasks {
                match task.await.unwrap() {
                    (Ok(()), ..) => served += 1,
                    (Err(error), ends, at) => {
                        let rejected = refusal(Err::<(), _>(error));
                        assert_eq!((rejected.reason(), Some(at)), (Reason::Deadline, ends));
                        expired += 1;
                    }
                }
            }
        });
        // Two that start at the same moment are polled in any order.
        let mut started = started.lock().unwrap();
        started.sort();
        prop_assert!(started.is_sorted_by_key(|(_, at)| *at));
        let snapshot = layer.handle().snapshot();
        prop_assert_eq!((snapshot.keys, snapshot.waiting), (0, 0));
        let totals = snapshot.totals;
        prop_assert_eq!((totals.enqueued, totals.completed, totals.expired), (requests.len() as u64, served, expired));
        prop_assert_eq!(started.len() as u64, served);
    }
}
