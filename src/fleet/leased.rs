//! A limit that this node shares with others: decides at once by what the node holds, lets requests wait in line, and has
//! a task ask the server while there is something to ask.
//!
//! Everything is under one short lock, because a decision changes several numbers of [`Node`]. The task runs while a call is
//! under way, while somebody waits, or while the server is away and this one is to find out when it is back. A request that
//! finds tokens starts no task, allocates nothing and wakes nobody.
//!
//! Nothing foreign runs under the lock. Wakers are cloned before it, and woken and dropped after it.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Weak,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use super::{
    link::{Link, NoAnswer},
    store::Script,
};
use crate::{
    Overloaded, Rate, Reason,
    gate::{
        bounds::{Bounds, SHORTEST_RETRY_AFTER, nanos},
        claim::{Entered, Limiter},
        foreign::Foreign,
        queue::{Queue, Ticket},
    },
    law::lease::{
        Answer,
        node::{Call, Fallback, LEASE, Law, Node, Waiting},
    },
    rate_limit,
    sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering::Relaxed, lock},
};

/// Nodes that were refused come back a little later than they may, so that they do not all come at once.
const REFUSED_JITTER: Duration = Duration::from_nanos(LEASE / 20);

/// Nothing is there to look at.
const NEVER: u64 = u64::MAX;

/// For whom requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// For tokens: as long as `max_wait` says, and without a bound if it says nothing.
    ForTokens,
    /// For an answer of the server, and for tokens only as long as `max_wait` says.
    ForAnswers,
}

/// What all keys of a limit have in common.
pub(super) struct Common {
    pub(super) link: Arc<Link>,
    pub(super) bounds: Bounds,
    pub(super) patience: Patience,
    /// How long a call may take.
    pub(super) timeout: Duration,
    pub(super) fallback: Fallback,
    pub(super) nodes: u32,
    waiting: AtomicUsize,
    /// Tokens that keys had lost which are forgotten.
    pub(super) lost: AtomicU64,
}

impl Common {
    pub(super) fn new(
        kind: &'static str,
        patience: Patience,
        (link, timeout, fallback, nodes): (Arc<Link>, Duration, Fallback, u32),
    ) -> Self {
        Self {
            link,
            bounds: Bounds::new(kind),
            patience,
            timeout,
            fallback,
            nodes,
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        }
    }

    pub(super) fn law(&self, rate: &Rate) -> Arc<Law> {
        Arc::new(Law::new(rate, self.nodes, self.fallback))
    }

    /// How long requests wait for tokens that are known to come.
    fn patience(&self) -> u64 {
        match (self.bounds.max_wait(), self.patience) {
            (Some(max_wait), _) => nanos(max_wait),
            (None, Patience::ForTokens) => NEVER,
            (None, Patience::ForAnswers) => 0,
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    fn start_waiting(&self) -> bool {
        let most = self.bounds.max_waiting();
        let more = |waiting| (waiting < most).then_some(waiting + 1);
        self.waiting.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

pub(super) struct Leased {
    common: Arc<Common>,
    /// What it is called on the server.
    key: Box<[u8]>,
    slow: Mutex<Slow>,
    /// The task sleeps, and there is something to ask.
    nudge: Notify,
    me: Weak<Self>,
}

struct Slow {
    node: Node,
    law: Arc<Law>,
    queue: Queue<Wanted>,
    /// What all that wait want together.
    demand: u64,
    /// The number of the last ticket that got its tokens.
    granted: u64,
    /// The number of the head that was told that it waits in vain.
    told: u64,
    used: u64,
    /// Whether its task runs.
    tasked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    n: u64,
    since: u64,
}

/// What a limit has done so far.
pub(super) struct Counts {
    pub(super) used: u64,
    pub(super) lost: u64,
}

type Calling = Pin<Box<dyn Future<Output = Result<Answer, NoAnswer>> + Send>>;

/// What the task has to do next.
enum Step {
    Call(Call),
    /// Until then, or until something happens.
    Sleep(u64),
    Nothing,
}

impl Slow {
    fn waiting(&self) -> Waiting {
        Waiting {
            tokens: self.demand,
            first: self.queue.head().map_or(0, |(_, wanted)| wanted.n),
        }
    }

    /// Whether this request cannot have its tokens in time, wherever it is in the line.
    fn is_hopeless(&self, wanted: &Wanted, now: u64, patience: u64) -> bool {
        let wait = self.node.wait(&self.law, now, 0, wanted.n);
        let until = wanted.since.saturating_add(patience);
        wait.is_some_and(|wait| wait > 0 && now.saturating_add(wait) > until)
    }
}

impl Leased {
    pub(super) fn new(common: Arc<Common>, key: Box<[u8]>, law: Arc<Law>) -> Arc<Self> {
        let now = common.link.clock.nanos();
        Arc::new_cyclic(|me| Self {
            common,
            key,
            slow: Mutex::new(Slow {
                node: Node::new(now),
                law,
                queue: Queue::new(),
                demand: 0,
                granted: 0,
                told: 0,
                used: 0,
                tasked: false,
            }),
            nudge: Notify::new(),
            me: Weak::clone(me),
        })
    }

    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    fn now(&self) -> u64 {
        self.common.link.clock.nanos()
    }

    /// Changes the rate. Tokens that are held stay.
    pub(super) fn set_law(&self, law: &Arc<Law>) {
        let now = self.now();
        let slow = &mut *lock(&self.slow);
        slow.node.changes(&slow.law, law, now);
        slow.law = Arc::clone(law);
    }

    pub(super) fn tokens(&self) -> u64 {
        let now = self.now();
        let slow = lock(&self.slow);
        slow.node.tokens(&slow.law, now)
    }

    pub(super) fn counts(&self) -> Counts {
        let slow = lock(&self.slow);
        Counts {
            used: slow.used,
            lost: slow.node.lost(),
        }
    }

    pub(super) fn snapshot(&self, rate: Rate) -> rate_limit::Snapshot {
        self.common.bounds.settle_report();
        let now = self.now();
        let slow = lock(&self.slow);
        let waited = |since| Duration::from_nanos(now.saturating_sub(since));
        rate_limit::Snapshot {
            rate,
            tokens: slow.node.tokens(&slow.law, now),
            waiting: slow.queue.len(),
            oldest_wait: slow.queue.oldest().map(waited),
            admitted: slow.used,
            rejected: self.common.bounds.rejected(),
            waits: self.common.bounds.waits.snapshot(),
        }
    }

    /// Whether a new one would do the same. Nobody else may have it.
    pub(super) fn is_forgettable(&self) -> bool {
        let now = self.now();
        let slow = lock(&self.slow);
        slow.queue.is_empty() && !slow.tasked && slow.node.is_forgettable(now)
    }

    /// Whether a request that got no token may wait for one: it will be there in time, or nobody knows.
    pub(super) fn is_worth_waiting(&self, n: u64) -> bool {
        let now = self.now();
        let slow = lock(&self.slow);
        let wait = slow.node.wait(&slow.law, now, slow.demand, n);
        wait.is_none_or(|wait| wait <= self.common.patience())
    }

    /// Sees to it that the server is asked, if that is of use.
    #[cold]
    fn work(&self, slow: &mut Slow, now: u64) -> bool {
        let wants = slow.node.wants_call(now, slow.demand);
        if slow.tasked {
            if wants {
                self.nudge.notify_one();
            }
            return false;
        }
        slow.tasked = wants || !slow.queue.is_empty();
        slow.tasked
    }

    /// Starts the task: not under the lock.
    #[cold]
    fn start(&self) {
        let Some(me) = self.me.upgrade() else {
            return; // it is being dropped
        };
        let task = Task {
            leased: me,
            ended: false,
        };
        match self.common.link.runtime() {
            Some(runtime) => _ = runtime.spawn(task.run()),
            None => drop(task), // as if there was no answer
        }
    }

    /// Gives tokens to those who wait, in their order; tells the first one that it waits in vain, if it does.
    fn settle(&self) {
        let mut foreign = Foreign::default(); // a waker that panics keeps no tokens from the others
        loop {
            let now = self.now();
            let patience = self.common.patience();
            let mut locked = lock(&self.slow);
            let slow = &mut *locked;
            let Some((number, wanted)) = slow.queue.head().map(|(number, it)| (number, *it)) else {
                break;
            };
            let waker = if slow.node.take_waiting(&slow.law, now, wanted.n) {
                slow.used += wanted.n;
                slow.demand -= wanted.n;
                slow.granted = number;
                self.common.waiting.fetch_sub(1, Relaxed);
                let waited = now.saturating_sub(wanted.since);
                self.common.bounds.waits.record(waited);
                slow.queue.pop().map(|(_, _, waker)| waker)
            } else if slow.told != number && slow.is_hopeless(&wanted, now, patience) {
                slow.told = number;
                slow.queue.take_head_waker()
            } else {
                break;
            };
            drop(locked);
            foreign.run(|| waker.into_iter().for_each(Waker::wake));
        }
        foreign.finish();
    }

    fn hint(&self, slow: &Slow, now: u64, n: u64) -> (Duration, bool) {
        let known = slow.node.wait(&slow.law, now, slow.demand, n);
        let wait = known.map_or(self.common.timeout, Duration::from_nanos);
        let exact = known.is_some() && !slow.node.is_closed(&slow.law);
        (wait.max(SHORTEST_RETRY_AFTER), exact)
    }
}

/// The task of a limit, while there is something to do.
struct Task {
    leased: Arc<Leased>,
    /// Whether it has nothing to do any more. Another may run by then.
    ended: bool,
}

impl Task {
    async fn run(mut self) {
        let mut calling: Option<(Call, Calling)> = None;
        let mut revives = Reviving(None);
        loop {
            self.leased.settle();
            let until = match self.step(calling.is_some(), revives.0.is_some()) {
                Step::Call(call) => {
                    calling = Some((call, self.call(&call)));
                    continue;
                }
                Step::Sleep(until) => until,
                Step::Nothing => {
                    self.ended = true;
                    return;
                }
            };
            if calling.is_none() && revives.0.is_some() && Arc::strong_count(&self.leased) == 1 {
                return; // nobody has the limit any more
            }
            if let Some(answer) = self.wait(&mut calling, until).await {
                let Some((call, _)) = calling.take() else {
                    continue;
                };
                self.answered(call, answer);
                if answer.is_ok() {
                    revives.0 = None;
                } else if revives.0.is_none() && self.leased.common.link.revives() {
                    revives.0 = Some(Arc::clone(&self.leased.common));
                }
            }
        }
    }

    fn step(&self, calling: bool, revives: bool) -> Step {
        let now = self.leased.now();
        let patience = self.leased.common.patience();
        let slow = &mut *lock(&self.leased.slow);
        let waiting = slow.waiting();
        let waited = slow
            .queue
            .oldest()
            .map_or(0, |since| now.saturating_sub(since));
        let patience = patience.saturating_sub(waited);
        if !calling {
            let law = Arc::clone(&slow.law);
            if let Some(call) = slow.node.call(&law, now, waiting, patience) {
                return Step::Call(call);
            }
        }
        let look = match waiting.first {
            0 => NEVER,
            first => slow.node.look_again(&slow.law, now, first),
        };
        let look = match revives {
            true => look.min(slow.node.quiet_until()),
            false => look,
        };
        if look == NEVER && !calling {
            slow.tasked = !slow.queue.is_empty();
            if !slow.tasked {
                return Step::Nothing;
            }
        }
        // Timers tick in milliseconds. What is due now was due when it was settled.
        Step::Sleep(look.max(now.saturating_add(1)))
    }

    fn call(&self, call: &Call) -> Calling {
        let (leased, args) = (Arc::clone(&self.leased), call.ask.args());
        Box::pin(async move {
            let common = &leased.common;
            let read = |numbers: &[i64]| {
                let answer = Answer::from_numbers(numbers)?;
                Some((answer, answer.granted))
            };
            let run = (Script::Lease, &*leased.key, &args[..]);
            common.link.call(common.timeout, run, read).await
        })
    }

    /// The answer, if it has come; `None` if it is time to look, or something has happened.
    async fn wait(
        &self,
        calling: &mut Option<(Call, Calling)>,
        until: u64,
    ) -> Option<Result<Answer, NoAnswer>> {
        let left = until.saturating_sub(self.leased.now());
        let mut timer = pin!((until != NEVER).then(|| sleep(Duration::from_nanos(left))));
        let mut nudged = pin!(self.leased.nudge.notified());
        poll_fn(|cx| {
            if let Some((_, call)) = calling {
                if let Poll::Ready(answer) = call.as_mut().poll(cx) {
                    return Poll::Ready(Some(answer));
                }
            }
            let timer = timer.as_mut().as_pin_mut();
            let is_time = timer.is_some_and(|timer| timer.poll(cx).is_ready());
            match is_time || nudged.as_mut().poll(cx).is_ready() {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
        .await
    }

    fn answered(&self, call: Call, answer: Result<Answer, NoAnswer>) {
        let jitter = nanos(self.leased.common.link.jitter.up_to(REFUSED_JITTER));
        let now = self.leased.now();
        let slow = &mut *lock(&self.leased.slow);
        let law = Arc::clone(&slow.law);
        match answer {
            Ok(answer) => slow.node.answered(&law, now, call, answer, jitter),
            Err(NoAnswer { until }) => slow.node.failed(&law, now, until),
        }
    }
}

impl Drop for Task {
    /// It has ended, or its runtime has, or there is none.
    fn drop(&mut self) {
        if !self.ended {
            let now = self.leased.now();
            let slow = &mut *lock(&self.leased.slow);
            slow.tasked = false;
            let law = Arc::clone(&slow.law);
            let until = now.saturating_add(nanos(self.leased.common.timeout));
            slow.node.failed(&law, now, until);
        }
    }
}

/// Of the task that finds out when the server is back.
struct Reviving(Option<Arc<Common>>);

impl Drop for Reviving {
    fn drop(&mut self) {
        if let Some(common) = &self.0 {
            common.link.stop_reviving();
        }
    }
}

impl Limiter for Leased {
    const HOLDS: bool = false;

    type Ask = u64;
    type Seen = ();

    fn bounds(&self) -> &Bounds {
        &self.common.bounds
    }

    #[inline]
    fn try_admit(&self, n: u64) -> bool {
        let now = self.now();
        let mut locked = lock(&self.slow);
        let slow = &mut *locked;
        let takes = if n > slow.law.burst() {
            return false; // there are never so many
        } else if slow.queue.is_empty() {
            slow.node.take(&slow.law, now, n)
        } else {
            slow.node.wanted(now, n);
            false
        };
        if takes {
            slow.used += n;
        }
        if slow.node.may_call(now) && self.work(slow, now) {
            drop(locked);
            self.start();
        }
        takes
    }

    #[cold]
    fn enter(&self, n: u64, waker: Waker) -> Entered {
        let now = self.now();
        let mut locked = lock(&self.slow);
        let slow = &mut *locked;
        if slow.queue.is_empty() && slow.node.take_waiting(&slow.law, now, n) {
            slow.used += n;
            return Entered::Admitted;
        }
        let wait = slow.node.wait(&slow.law, now, slow.demand, n);
        if n > slow.law.burst() {
            return Entered::Refused(Reason::ExceedsBurst);
        }
        if wait.is_some_and(|wait| wait > self.common.patience()) {
            return Entered::Refused(Reason::WaitTimeout); // known beforehand
        }
        if !self.common.start_waiting() {
            return Entered::Refused(Reason::QueueFull);
        }
        slow.demand = slow.demand.saturating_add(n);
        slow.node.waits();
        let ticket = slow.queue.push(waker, now, Wanted { n, since: now });
        let start = self.work(slow, now);
        if !start {
            self.nudge.notify_one(); // it has to look when the first one's tokens are there
        }
        drop(locked);
        if start {
            self.start();
        }
        Entered::Waiting(ticket, None)
    }

    fn redeem(&self, ticket: &Ticket, waker: &Waker) -> Result<(), Option<Duration>> {
        let waker = waker.clone();
        let mut slow = lock(&self.slow);
        if ticket.is_due(slow.granted) {
            return Ok(());
        }
        let replaced = slow.queue.wake_with(ticket, waker);
        drop(slow);
        drop(replaced);
        Err(None)
    }

    fn gives_up(&self, ticket: &Ticket) -> Option<Reason> {
        let now = self.now();
        let slow = lock(&self.slow);
        if ticket.is_due(slow.granted) {
            return None;
        }
        let wanted = slow.queue.with(ticket);
        (slow.is_hopeless(wanted, now, self.common.patience())).then_some(Reason::WaitTimeout)
    }

    fn leave(&self, ticket: Ticket) -> bool {
        let now = self.now();
        let mut locked = lock(&self.slow);
        let slow = &mut *locked;
        if ticket.is_due(slow.granted) {
            return true;
        }
        let (wanted, since, waker) = slow.queue.remove(ticket);
        slow.demand -= wanted.n;
        slow.told = 0;
        self.common.waiting.fetch_sub(1, Relaxed);
        self.common.bounds.waits.record(now.saturating_sub(since));
        drop(locked);
        drop(waker);
        self.settle();
        false
    }

    fn give_back(&self, n: u64) {
        let mut locked = lock(&self.slow);
        let slow = &mut *locked;
        let law = Arc::clone(&slow.law);
        slow.node.put_back(&law, n);
        slow.used -= n;
        drop(locked);
        self.settle();
    }

    fn refuse(&self, n: u64, reason: Reason) -> Box<Overloaded> {
        let now = self.now();
        let slow = lock(&self.slow);
        let reason = match (reason, self.common.patience) {
            _ if n > slow.law.burst() => Reason::ExceedsBurst,
            (Reason::AtLimit | Reason::WaitTimeout, Patience::ForAnswers) => Reason::Quota,
            (reason, _) => reason,
        };
        let (retry_after, exact) = self.hint(&slow, now, n);
        drop(slow);
        let bounds = &self.common.bounds;
        bounds.count(reason);
        bounds.report(reason);
        let rejection = Overloaded::new(bounds.name(), reason, retry_after);
        Box::new(match exact && reason != Reason::ExceedsBurst {
            true => rejection.exact(),
            false => rejection,
        })
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("name", &self.common.bounds.name())
            .field("key", &String::from_utf8_lossy(&self.key))
            .finish_non_exhaustive()
    }
}
