//! What a unary call costs through a lameduck channel over four endpoints, beside what people use
//! today: tonic's `Channel` to one endpoint, its `Channel::balance_list` over the four, and a choice
//! of two written by hand over four bare hyper connections. At one call at a time and at 64.
//!
//! Servers (plain tonic, one thread) run in another process: this program itself, told to `serve`.
//! The callers run on a runtime of one thread, so that a call's CPU time is this process's. Told
//! `once WHO CONCURRENT CALLS`, it makes so many calls and ends: for instruction counts.

mod by_hand;
mod callers;
mod servers;

use lameduck_pairs::{Side, compare};

use callers::{Callers, Meter};

/// Who calls, ours first.
const WHO: [&str; 4] = ["channel", "tonic-balance-list", "tonic-channel", "by-hand"];

/// Calls in flight at once.
const CONCURRENT: [u64; 2] = [1, 64];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["serve"] => servers::serve(),
        ["once", who, concurrent, calls] => {
            let count = |text: &str| text.parse().expect("a number");
            let servers = servers::start();
            let callers = Callers::connect(&servers.addresses);
            callers.run(who, count(concurrent), count(calls), Meter::Wall);
        }
        _ => measure(),
    }
}

fn measure() {
    let servers = servers::start();
    let callers = Callers::connect(&servers.addresses);
    for (meter, suffix) in [(Meter::Wall, ""), (Meter::Cpu, "-cpu")] {
        for concurrent in CONCURRENT {
            let name = |who: &str| format!("{who}{suffix}/{concurrent}");
            let names = WHO.map(name);
            let callers = &callers;
            let side = |index: usize| {
                let run = move |calls| callers.run(WHO[index], concurrent, calls, meter);
                Side::new(&names[index], run)
            };
            for other in 1..WHO.len() {
                println!("{}", compare(side(0), side(other)));
            }
        }
    }
}
