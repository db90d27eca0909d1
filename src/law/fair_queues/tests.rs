//! Several fair queues as one. Random runs against a naive one are those of the [fair room](crate::gate::fair).

use super::*;

const LOW: Lane = 0;
const HIGH: Lane = 4;
const MS: u64 = 1_000_000;

type Queues = FairQueues<&'static str>;

fn queues(tenants: usize) -> Queues {
    let mut queues = FairQueues::new();
    for id in 0..tenants {
        assert_eq!(queues.add_tenant(1), id as u32);
    }
    queues
}

fn push(queues: &mut Queues, who: (u32, Lane), with: &'static str) -> Ticket {
    queues.push(who, NonZeroU32::MIN, 0, with)
}

/// The next one starts.
fn start(queues: &mut Queues) -> Option<(&'static str, Charge)> {
    let lane = queues.next_lane()?;
    let (ticket, mut charge) = queues.next_in(lane, Order::OldestFirst, 0)?;
    let (_, with) = queues.begin(&ticket, &mut charge, 0);
    queues.note_started(lane);
    Some((with, charge))
}

/// The next one is served.
fn serve(queues: &mut Queues) -> Option<&'static str> {
    let (with, charge) = start(queues)?;
    queues.finish(charge, MS);
    Some(with)
}

#[test]
fn the_most_important_are_next_and_then_whoever_has_had_least() {
    let mut queues = queues(2);
    queues.set_weight(0, 10_000); // which makes up for nothing
    for (who, with) in [
        ((0, LOW), "low"),
        ((0, MAIN), "main"),
        ((0, HIGH), "high 1"),
        ((0, HIGH), "high 2"),
        ((1, HIGH), "high of another"),
    ] {
        push(&mut queues, who, with);
    }
    queues.set_weight(0, 1);
    let served: Vec<_> = std::iter::from_fn(|| serve(&mut queues)).collect();
    assert_eq!(
        served,
        ["high 1", "high of another", "high 2", "main", "low"]
    );
}

/// Of a thousand starts, how many each of the three lanes has that always have waiters.
fn starts(floor: u32) -> [u32; 3] {
    let mut queues = queues(1);
    queues.set_floor(floor);
    let lanes = [("low", LOW), ("main", MAIN), ("high", HIGH)];
    for (name, lane) in lanes.into_iter().chain(lanes) {
        push(&mut queues, (0, lane), name);
    }
    let mut starts = [0; 3];
    for _ in 0..1000 {
        let served = serve(&mut queues).expect("some wait");
        let lane = lanes.iter().position(|(name, _)| *name == served);
        let lane = lane.expect("one of three");
        starts[lane] += 1;
        push(&mut queues, (0, lanes[lane].1), served);
    }
    starts
}

#[test]
fn each_lane_that_waits_gets_its_share_of_the_starts() {
    assert_eq!(starts(0), [0, 0, 1000]);
    let [low, main, high] = starts(DEFAULT_FLOOR);
    assert!(
        (9..=10).contains(&low) && (9..=10).contains(&main),
        "{low} {main} {high}"
    );
    let [low, main, high] = starts(MAX_FLOOR);
    assert!(
        (199..=200).contains(&low) && (199..=200).contains(&main),
        "{low} {main} {high}"
    );
    assert!(high >= 600, "{high}");
}

#[test]
fn nothing_is_owed_for_the_time_before_a_lane_waits() {
    let mut queues = queues(1);
    for _ in 0..1000 {
        push(&mut queues, (0, HIGH), "high");
        assert_eq!(serve(&mut queues), Some("high"));
    }
    push(&mut queues, (0, LOW), "low");
    for _ in 0..50 {
        push(&mut queues, (0, HIGH), "high");
        assert_eq!(serve(&mut queues), Some("high"));
    }
    assert_eq!(serve(&mut queues), Some("low"), "nobody else is left");
}

#[test]
fn the_least_important_makes_room_and_never_for_one_that_matters_less() {
    let mut queues = queues(3);
    queues.set_floor(0);
    push(&mut queues, (0, LOW), "1");
    push(&mut queues, (0, LOW), "2");
    push(&mut queues, (1, LOW), "of another");
    push(&mut queues, (2, HIGH), "high");
    let makes_room = |queues: &mut Queues, who| queues.makes_room(who, Order::OldestFirst);
    assert_eq!(
        makes_room(&mut queues, (2, MAIN)),
        Some((0, LOW)),
        "it has the most"
    );
    assert_eq!(
        queues.evict((0, LOW), Order::OldestFirst),
        (0, "2"),
        "served last"
    );
    assert_eq!(
        queues.evict((0, LOW), Order::NewestFirst),
        (0, "1"),
        "the only one"
    );
    assert_eq!(makes_room(&mut queues, (2, MAIN)), Some((1, LOW)));
    queues.set_floor(DEFAULT_FLOOR);
    assert_eq!(
        makes_room(&mut queues, (2, MAIN)),
        Some((1, LOW)),
        "nobody else could"
    );
    let own = push(&mut queues, (2, MAIN), "own");
    let newest = queues.makes_room((2, MAIN), Order::NewestFirst);
    assert_eq!(
        newest,
        Some((2, MAIN)),
        "the last one of a lane stays, for its floor"
    );
    queues.cancel(&own);
    assert!(queues.lacks_waiter(MAIN) && !queues.lacks_waiter(LOW));
    queues.set_floor(0);
    assert_eq!(
        queues.evict((1, LOW), Order::OldestFirst),
        (0, "of another")
    );
    assert_eq!(
        makes_room(&mut queues, (2, MAIN)),
        None,
        "who is left matters more"
    );
    assert_eq!(
        makes_room(&mut queues, (0, HIGH)),
        None,
        "an equal does not make room"
    );
    assert!(!queues.lacks_waiter(MAIN), "there is no floor");
    assert_eq!(queues.own_less_important(2, HIGH), None);
    push(&mut queues, (2, MAIN), "own");
    assert_eq!(queues.own_less_important(2, HIGH), Some(MAIN));
    assert_eq!(queues.own_less_important(2, MAIN), None);
}

#[test]
fn a_tenant_is_held_to_its_cap_in_all_lanes_together() {
    let mut queues = queues(2);
    queues.set_max_running(2);
    for lane in [LOW, MAIN, HIGH] {
        push(&mut queues, (0, lane), "first");
        push(&mut queues, (1, lane), "second");
    }
    let started: Vec<_> = (0..4)
        .map(|_| start(&mut queues).expect("two of each"))
        .collect();
    assert!(start(&mut queues).is_none());
    assert!(!queues.may_run(0) && !queues.may_run(1));
    for (_, charge) in started {
        queues.finish(charge, MS);
    }
    // A lane that is made later knows of those that run elsewhere.
    let held: Vec<_> = (0..2)
        .map(|_| start(&mut queues).expect("one of each"))
        .collect();
    let charge = queues.begin_at_once((0, MAIN), NonZeroU32::MIN, 0);
    push(&mut queues, (0, 3), "held back");
    assert!(queues.next_lane().is_none());
    queues.refund(charge);
    assert_eq!(queues.next_lane(), Some(3));
    for (_, charge) in held {
        queues.finish(charge, MS);
    }
}

#[test]
fn a_tenant_is_forgotten_when_no_lane_needs_it() {
    let mut queues = queues(1);
    let ticket = push(&mut queues, (0, HIGH), "waits");
    assert!(!queues.remove_tenant(0));
    assert_eq!(queues.cancel(&ticket), "waits");
    assert!(queues.remove_tenant(0));
    assert_eq!(queues.add_tenant(7), 0, "its number is free");
    assert_eq!(queues.state(0).weight, 7);
}

#[test]
fn a_request_whose_turn_it_was_yields_to_one_that_matters_more() {
    let mut queues = queues(1);
    push(&mut queues, (0, MAIN), "main");
    let (ticket, charge) = queues
        .next_in(MAIN, Order::OldestFirst, 0)
        .expect("it waits");
    assert!(!queues.yields(&ticket, &charge, 0));
    push(&mut queues, (0, LOW), "low");
    assert!(!queues.yields(&ticket, &charge, 0));
    push(&mut queues, (0, HIGH), "high");
    assert!(queues.yields(&ticket, &charge, 0));
    queues.put_back(&ticket, charge);
    let served: Vec<_> = std::iter::from_fn(|| serve(&mut queues)).collect();
    assert_eq!(served, ["high", "main", "low"]);
}
