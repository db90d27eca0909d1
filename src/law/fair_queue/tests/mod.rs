//! The scheduler in front of a simulated server with some seats, of which a request takes one or more.

#[path = "../../../../tests/support/fairness.rs"]
mod fairness;

mod bounds;
mod order;
mod rules;

use std::{cmp::Reverse, collections::BinaryHeap, num::NonZeroU32};

use self::fairness::{Client, SCENARIOS, Scenario, assert_fair, begins, fair_shares, jain};
use super::*;

fn cost(cost: u32) -> NonZeroU32 {
    NonZeroU32::new(cost).expect("a cost")
}

impl<T> FairQueue<T> {
    /// In the order of arrival.
    fn next(&mut self, now: u64) -> Option<(Ticket, Charge)> {
        self.next_in(Order::OldestFirst, now)
    }

    /// Says whose request it takes out, since when that has waited, and what was kept with it.
    fn make_room(&mut self, newcomer: u32, order: Order) -> Option<(u32, u64, T)> {
        let tenant = self.makes_room(newcomer, order)?;
        let (since, with) = self.evict(tenant, order);
        Some((tenant, since, with))
    }

    /// Forgets a tenant, if nothing is lost by it.
    fn remove_tenant(&mut self, tenant: u32) -> bool {
        let lossless = self.may_forget(tenant);
        if lossless {
            self.forget(tenant);
        }
        lossless
    }
}

/// As the layer has it: one request has the turn and waits for its seats, the others wait for the turn.
struct Server {
    now: u64,
    seats: u32,
    taken: u32,
    queue: FairQueue<Job>,
    turn: Option<(Ticket, Charge)>,
    running: Vec<Option<(Job, Charge)>>,
    /// (when, which of `running`)
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// What each tenant has had so far, in seat nanoseconds.
    had: Vec<u64>,
    /// Most that a request of each takes, of those that have begun.
    largest: Vec<u64>,
    completed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    tenant: u32,
    /// Whose it is.
    id: usize,
    width: u32,
    lasts: u64,
}

impl Server {
    fn new(seats: u32, weights: &[u32]) -> Self {
        let mut queue = FairQueue::new();
        for &weight in weights {
            queue.add_tenant(weight);
        }
        Self {
            now: 0,
            seats,
            taken: 0,
            queue,
            turn: None,
            running: Vec::new(),
            ends: BinaryHeap::new(),
            had: vec![0; weights.len()],
            largest: vec![0; weights.len()],
            completed: 0,
        }
    }

    fn arrive(&mut self, job: Job) -> Ticket {
        let ticket = self.queue.push(job.tenant, cost(job.width), self.now, job);
        self.dispatch();
        ticket
    }

    fn dispatch(&mut self) {
        loop {
            if self.turn.is_none() {
                self.turn = self.queue.next(self.now);
            }
            let Some((ticket, mut charge)) = self.turn.take() else {
                return;
            };
            let width = charge.cost.get();
            // What asks for more seats than there are gets all of them.
            if self.taken + width > self.seats && self.taken > 0 {
                self.turn = Some((ticket, charge));
                return;
            }
            if self.queue.yields(&ticket, &charge, self.now) {
                self.queue.put_back(&ticket, charge);
                continue;
            }
            let (_, job) = self.queue.begin(&ticket, &mut charge, self.now);
            self.taken += width;
            let largest = &mut self.largest[job.tenant as usize];
            *largest = (*largest).max(job.lasts * u64::from(width));
            let free = self.running.iter().position(Option::is_none);
            let slot = free.unwrap_or_else(|| {
                self.running.push(None);
                self.running.len() - 1
            });
            self.ends.push(Reverse((self.now + job.lasts, slot)));
            self.running[slot] = Some((job, charge));
        }
    }

    fn next_end(&self) -> Option<u64> {
        self.ends.peek().map(|Reverse((at, _))| *at)
    }

    /// Ends the request that is due next; says which that was.
    fn end(&mut self) -> Job {
        let Reverse((at, slot)) = self.ends.pop().expect("something runs");
        self.now = at;
        let (job, charge) = self.running[slot].take().expect("it runs");
        let used = self.queue.finish(charge, self.now);
        assert_eq!(used, job.lasts * u64::from(job.width));
        self.taken -= job.width;
        self.had[job.tenant as usize] += used;
        self.completed += 1;
        self.dispatch();
        job
    }

    /// What each has had until now, what still runs included.
    fn had(&self) -> Vec<u64> {
        let mut had = self.had.clone();
        for (job, charge) in self.running.iter().flatten() {
            let begun = charge.begun.expect("it runs");
            had[job.tenant as usize] += (self.now - begun) * u64::from(job.width);
        }
        had
    }
}

/// Average seats of each client, in each part that is watched.
fn run(scenario: &Scenario) -> Vec<Vec<f64>> {
    let weights: Vec<_> = scenario.clients.iter().map(|c| c.weight).collect();
    let mut server = Server::new(scenario.seats, &weights);
    // (when, client, how often its thread has yet to call)
    let mut sends = BinaryHeap::new();
    for (i, client) in scenario.clients.iter().enumerate() {
        for thread in 0..client.threads {
            sends.push(Reverse((begins(scenario, i, thread), i, client.calls)));
        }
    }
    let part = scenario.lasts / scenario.expect.len() as u64;
    let mut seats = Vec::new();
    let mut before = server.had();
    while seats.len() < scenario.expect.len() {
        let send = sends.peek().map(|Reverse((at, ..))| *at);
        let at = send.into_iter().chain(server.next_end()).min();
        let part_ends = part * (seats.len() as u64 + 1);
        match at {
            Some(at) if at < part_ends => server.now = at,
            _ => {
                server.now = part_ends;
                let had = server.had();
                let since = had.iter().zip(&before).map(|(had, before)| had - before);
                seats.push(since.map(|had| had as f64 / part as f64).collect());
                before = had;
                continue;
            }
        }
        if send == at {
            let Reverse((_, client, calls)) = sends.pop().expect("looked at just now");
            let Client { width, exec, .. } = scenario.clients[client];
            server.arrive(Job {
                tenant: client as u32,
                id: calls - 1,
                width: width.min(scenario.seats),
                lasts: exec,
            });
        } else {
            let Job {
                tenant, id: left, ..
            } = server.end();
            if left > 0 {
                let think = scenario.clients[tenant as usize].think;
                sends.push(Reverse((server.now + think, tenant as usize, left)));
            }
        }
    }
    seats
}

/// The table agrees with an oracle that has nothing to do with queues.
#[test]
fn what_is_expected_is_max_min_fair() {
    for scenario in SCENARIOS {
        for (part, expected) in scenario.expect.iter().enumerate() {
            let fair = fair_shares(scenario, part);
            assert_eq!(fair.len(), expected.len());
            for (fair, expected) in fair.iter().zip(*expected) {
                let off = (fair - expected).abs();
                assert!(off < 0.001, "{}: {fair}, not {expected}", scenario.name);
            }
        }
    }
}

#[test]
fn every_scenario_is_fair() {
    for scenario in SCENARIOS {
        assert_fair(scenario, run(scenario));
    }
}
