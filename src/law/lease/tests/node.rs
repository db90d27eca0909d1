//! One node, and answers that it is given.

use super::super::{
    Answer, grant,
    node::{Fallback, LEASE, Law, Node, RETURN, TTL, Waiting},
};
use crate::Rate;

const MS: u64 = 1_000_000;

/// Long after its clock began.
const START: u64 = 3600 * 1000 * MS;

/// A node, and a server that others use too.
struct World {
    law: Law,
    node: Node,
    now: u64,
    tat: Option<u64>,
    calls: usize,
}

impl World {
    /// 100 a second, 10 at once, two nodes.
    fn new(fallback: Fallback) -> Self {
        Self {
            law: Law::new(&Rate::per_second(100).burst(10), 2, fallback),
            node: Node::new(START),
            now: START,
            tat: None,
            calls: 0,
        }
    }

    fn server_now(&self) -> u64 {
        1_700_000_000_000_000 + self.now / 1000
    }

    fn take(&mut self) -> bool {
        self.node.take(&self.law, self.now, 1)
    }

    /// Asks if it wants to, and is answered at once.
    fn ask(&mut self) -> Option<Answer> {
        let call = self.node.call(&self.law, self.now, Waiting::default(), 0)?;
        self.calls += 1;
        let (after, answer) = grant(self.tat, self.server_now(), &call.ask);
        self.tat = after.or(self.tat);
        self.node.answered(&self.law, self.now, call, answer, 0);
        Some(answer)
    }

    /// Asks if it wants to, and is not answered.
    fn ask_in_vain(&mut self) -> bool {
        let call = self.node.call(&self.law, self.now, Waiting::default(), 0);
        if call.is_some() {
            self.calls += 1;
            self.node.failed(&self.law, self.now, self.now + 50 * MS);
        }
        call.is_some()
    }

    fn wait(&self) -> Option<u64> {
        self.node.wait(&self.law, self.now, 0, 1)
    }

    /// Others use up what there is, and what is reserved for the next while.
    fn others_take(&mut self, ahead: u64) {
        self.tat = Some(self.server_now() + 100_000 + ahead / 1000);
    }
}

#[test]
fn it_asks_when_it_has_nothing_and_when_half_is_spent() {
    let mut world = World::new(Fallback::Local);
    for _ in 0..6 {
        assert!(!world.take());
    }
    assert!(world.ask().unwrap().granted);
    // As many as were asked for.
    for spent in 1..=6 {
        assert!(world.take());
        assert_eq!(world.node.wants_call(world.now, 0), spent >= 3, "{spent}");
    }
    assert!(!world.take());
}

#[test]
fn it_asks_for_no_more_than_its_recent_demand() {
    let mut world = World::new(Fallback::Local);
    (0..8).for_each(|_| _ = world.take());
    world.now += 3 * LEASE; // long ago
    world.take();
    world.ask();
    assert_eq!(world.node.tokens(&world.law, world.now), 1);
}

#[test]
fn a_refusal_is_remembered_until_a_token_may_be_had() {
    let mut world = World::new(Fallback::Local);
    world.others_take(500 * MS);
    assert!(!world.take());
    assert!(!world.ask().unwrap().granted);
    // A single token is not reserved ahead, so it asks again when it would be due.
    assert_eq!(world.wait(), Some(510 * MS));
    for _ in 0..51 {
        assert!(!world.take() && world.ask().is_none());
        world.now += 10 * MS;
    }
    assert_eq!(world.calls, 1);
    assert!(!world.take());
    assert!(world.ask().unwrap().granted);
    assert!(world.take());
}

#[test]
fn tokens_that_lie_ahead_are_spent_when_they_are_due_and_not_before() {
    let mut world = World::new(Fallback::Local);
    world.others_take(100 * MS);
    (0..3).for_each(|_| _ = world.take());
    let answer = world.ask().unwrap();
    assert_eq!((answer.granted, answer.first), (true, 110_000));
    assert_eq!(world.wait(), Some(110 * MS));
    world.now += 110 * MS - 1;
    assert!(!world.take());
    world.now += 1;
    assert!(world.take() && !world.take());
    world.now += 20 * MS;
    assert!(world.take() && world.take() && !world.take());
}

#[test]
fn what_is_not_spent_in_its_time_is_lost() {
    let mut world = World::new(Fallback::Local);
    (0..4).for_each(|_| _ = world.take());
    world.ask();
    assert!(world.take());
    world.now += TTL - 1;
    assert!(world.take());
    world.now += 1;
    assert!(!world.take());
    assert_eq!(world.node.lost(), 2);
}

#[test]
fn without_an_answer_it_has_its_share_from_when_all_that_was_granted_is_over() {
    let mut world = World::new(Fallback::Local);
    world.others_take(200 * MS);
    world.take();
    world.ask(); // refused: it knows that the next 210 ms are others'
    world.now += 211 * MS;
    world.take();
    assert!(world.ask_in_vain());
    let mut admitted = 0;
    for _ in 0..1000 {
        world.now += MS;
        admitted += u64::from(world.take());
    }
    assert_eq!(admitted, 50);
    assert!(world.wait().unwrap() <= 20 * MS);
}

#[test]
fn after_an_outage_it_keeps_to_its_share_until_others_have_noticed_and_pays_for_it() {
    let mut world = World::new(Fallback::Local);
    world.take();
    assert!(world.ask_in_vain());
    for _ in 0..100 {
        world.now += 10 * MS;
        world.take();
        world.ask_in_vain();
    }
    let tat = |world: &World| world.tat.unwrap_or(0).saturating_sub(world.server_now()) / 10_000;
    world.now += 50 * MS;
    assert!(world.ask().unwrap().granted);
    assert_eq!(tat(&world), 5, "its share of the burst");
    let (mut admitted, start) = (0, world.now);
    while world.now < start + RETURN {
        world.now += 10 * MS;
        admitted += u64::from(world.take());
        world.ask();
    }
    // Half of the rate, and what its share had saved up.
    assert!((74..=80).contains(&admitted), "{admitted}");
    // From here on it has what it asks for.
    for _ in 0..20 {
        world.now += 10 * MS;
        world.take();
        world.ask();
    }
    let before = world.now;
    let mut admitted = 0;
    while world.now < before + 1000 * MS {
        world.now += 10 * MS;
        admitted += u64::from(world.take());
        world.ask();
    }
    assert!(admitted >= 98, "{admitted}");
}

#[test]
fn a_single_answer_that_is_missing_changes_nothing_for_long() {
    let mut world = World::new(Fallback::Local);
    world.take();
    assert!(world.ask_in_vain());
    assert!(!world.node.wants_call(world.now, 0), "it waits a little");
    world.now += 50 * MS;
    world.take();
    assert!(world.ask().unwrap().granted);
    assert!(world.take());
}

#[test]
fn open_and_closed_are_what_they_say() {
    for (fallback, admits, wait) in [(Fallback::Open, 100, 0), (Fallback::Closed, 0, 50 * MS)] {
        let mut world = World::new(fallback);
        world.take();
        assert!(world.ask_in_vain());
        assert_eq!(world.wait(), Some(wait));
        assert_eq!((0..100).filter(|_| world.take()).count(), admits);
    }
}

#[test]
fn a_token_that_is_put_back_is_there_again() {
    let mut world = World::new(Fallback::Local);
    world.take();
    world.ask();
    for _ in 0..3 {
        assert!(world.take() && !world.take());
        world.node.put_back(&world.law, 1);
    }
}

#[test]
fn a_node_that_holds_nothing_and_owes_nothing_can_be_forgotten() {
    let mut world = World::new(Fallback::Local);
    assert!(world.node.is_forgettable(world.now));
    world.take();
    world.ask();
    assert!(!world.node.is_forgettable(world.now));
    assert!(world.take());
    assert!(world.node.is_forgettable(world.now));
    world.others_take(500 * MS);
    world.take();
    world.ask();
    assert!(!world.node.is_forgettable(world.now), "it was refused");
    world.now += 600 * MS;
    assert!(world.node.is_forgettable(world.now));
}
