//! lab
#![allow(dead_code)]
mod lab;
mod options;
mod protection;
mod scenario;
mod table;
#[path = "../../tests/support/simulation.rs"]
mod simulation;
fn main() {
    match options::Command::parse(std::env::args().skip(1)).unwrap() {
        options::Command::Simulate(o) => {
            let r = o.plan.run(|a, b| eprint!("\r{a} of {b}"));
            println!("{}", table::table(&r));
        }
        _ => {}
    }
}
