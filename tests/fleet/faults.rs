//! What happens to nodes, and to the server.

use std::time::Duration;

use super::{
    nodes::{Load, MAX_WAIT},
    server::{Server, signal_to},
    with_others,
};

const FIVE: Load = Load {
    nodes: 5,
    rate: 500,
    burst: 50,
    load: 2.0,
    first: None,
    millis: 6000,
};

const KEY: &str = "backpressure:{orders}";

/// Two processors may be busy with other tests when a timer ends.
const LATE: Duration = Duration::from_millis(100);

/// Breaks the server after a second, mends it after another time, and goes on for a while after that. `changes` is how
/// often the mode of each node changes. With `lost` data there may be another burst.
fn survives(
    name: &str,
    broken_for: u64,
    (changes, lost): (u64, bool),
    break_it: impl FnOnce(&mut Server),
    mend_it: impl FnOnce(&mut Server),
) {
    let _others = with_others();
    let Some(mut server) = Server::start() else {
        return;
    };
    let load = Load {
        millis: 1000 + broken_for + 4500,
        ..FIVE
    };
    let fleet = load.start(&server);
    fleet.sleep_until(1000);
    break_it(&mut server);
    fleet.sleep_until(1000 + broken_for);
    mend_it(&mut server);
    let outcome = fleet.finish();
    let figures = outcome.figures(name);
    let broken = outcome.between(1000, 1000 + broken_for as usize);
    let after = outcome.between(1000 + broken_for as usize + 3500, load.millis as usize);
    println!("{figures}; {broken} while broken, {after} in the last second");

    for node in &outcome.nodes {
        assert_eq!(
            (node.mode_changes, node.is_shared),
            (changes, true),
            "{figures}"
        );
    }
    assert!(outcome.longest() <= MAX_WAIT + LATE, "{figures}");
    let allowed = load.burst + load.rate * load.millis / 1000;
    let extra = if lost { load.burst } else { 0 };
    assert!(outcome.admitted() <= allowed + extra, "{figures}");
    // At least what each node may do on its own, less the moments in which that begins; and all of it afterwards.
    // Where data is lost, nothing is granted for the time in which tokens may have been granted already.
    if changes > 0 {
        let share = load.rate * broken_for / 1000;
        assert!(broken >= share * 8 / 10, "{figures}: {broken}");
    }
    assert!(after >= load.rate * 95 / 100, "{figures}: {after}");
}

#[test]
fn a_server_that_stands_still_for_five_seconds() {
    survives(
        "stopped",
        5000,
        (2, false),
        |server| server.signal("STOP"),
        |server| server.signal("CONT"),
    );
}

#[test]
fn a_server_that_is_killed_and_comes_back_without_its_data() {
    survives("killed", 1500, (2, true), Server::kill, Server::restart);
}

#[test]
fn a_server_that_forgets_the_script() {
    let flush =
        |server: &mut Server| assert!(server.command(&["SCRIPT", "FLUSH"]).starts_with("+OK"));
    survives("SCRIPT FLUSH", 500, (0, false), flush, |_| ());
}

#[test]
fn a_server_that_forgets_everything() {
    let flush = |server: &mut Server| assert!(server.command(&["FLUSHALL"]).starts_with("+OK"));
    survives("FLUSHALL", 500, (0, true), flush, |_| ());
}

#[test]
fn a_server_that_becomes_a_replica() {
    let replica = |server: &mut Server| {
        assert!(
            server
                .command(&["REPLICAOF", "127.0.0.1", "1"])
                .starts_with("+OK")
        );
    };
    let primary = |server: &mut Server| {
        assert!(
            server
                .command(&["REPLICAOF", "NO", "ONE"])
                .starts_with("+OK")
        );
    };
    survives("READONLY", 1500, (2, false), replica, primary);
}

#[test]
fn a_server_without_memory() {
    let set = |limit: &'static str| {
        move |server: &mut Server| {
            let answer = server.command(&["CONFIG", "SET", "maxmemory", limit]);
            assert!(answer.starts_with("+OK"), "{answer}");
        }
    };
    survives("OOM", 1500, (2, false), set("1"), set("0"));
}

#[test]
fn a_list_under_the_key() {
    let list = |server: &mut Server| {
        server.command(&["RPUSH", "other", "x"]);
        assert!(server.command(&["RENAME", "other", KEY]).starts_with("+OK"));
    };
    let delete = |server: &mut Server| assert!(server.command(&["DEL", KEY]).starts_with(":1"));
    survives("WRONGTYPE", 1500, (2, true), list, delete);
}

#[test]
fn others_have_the_share_of_a_node_that_is_killed() {
    let _others = with_others();
    let Some(server) = Server::start() else {
        return;
    };
    let fleet = Load {
        millis: 4500,
        ..FIVE
    }
    .start(&server);
    fleet.sleep_until(1500);
    signal_to(fleet.process(0), "KILL");
    let outcome = fleet.finish();
    println!("{}", outcome.figures("a node is killed"));
    // A lease and its time to live, and a second is looked at.
    let share = outcome.between(1500 + 100 + 1000, 4500) as f64 / (FIVE.rate as f64 * 1.9);
    let others: u64 = outcome.nodes[1..].iter().map(|node| node.admitted).sum();
    println!("{share:.3} of the rate afterwards; {others} by the others in all");
    assert!((0.97..=1.03).contains(&share), "{share}");
}
