//! Requests to a lab that runs in another process.

use std::process::Command;

use pangea_lab::control::{self, Request};

use super::{Cut, Heal, Isolate, Rtt, Run, Status, Which, failure, of_ms, views};
use crate::failure::Failure;
use crate::say;

/// Replaces this process with the command, in its region.
pub fn run(run: &Run) -> Result<(), Failure> {
    let status = ask(&run.which, &Request::Status)?;
    let (program, arguments) = run.command.split_first().expect("the command line requires one");
    Err(failure(status.become_program(&run.region, Command::new(program).args(arguments))))
}

/// Blocks all traffic between two regions.
pub fn cut(cut: &Cut) -> Result<(), Failure> {
    ask(&cut.which, &Request::Cut { a: cut.a.clone(), b: cut.b.clone() })?;
    say(&format!("{} and {} are cut off from each other", cut.a, cut.b))
}

/// Unblocks the traffic between two regions, or all traffic.
pub fn heal(heal: &Heal) -> Result<(), Failure> {
    let (Some(a), Some(b)) = (&heal.a, &heal.b) else {
        ask(&heal.which, &Request::HealAll)?;
        return say("all links are restored");
    };
    ask(&heal.which, &Request::Heal { a: a.clone(), b: b.clone() })?;
    say(&format!("the link between {a} and {b} is restored"))
}

/// Isolates a region from all others.
pub fn isolate(isolate: &Isolate) -> Result<(), Failure> {
    ask(&isolate.which, &Request::Isolate { region: isolate.region.clone() })?;
    say(&format!("{} is cut off from all others", isolate.region))
}

/// Changes a round trip.
pub fn rtt(rtt: &Rtt) -> Result<(), Failure> {
    let trip = of_ms("the round trip", rtt.ms)?;
    ask(&rtt.which, &Request::RoundTrip { a: rtt.a.clone(), b: rtt.b.clone(), trip })?;
    say(&format!("between {} and {}: {} ms", rtt.a, rtt.b, rtt.ms))
}

/// Prints the status of a lab.
pub fn status(status: &Status) -> Result<(), Failure> {
    let shown = ask(&status.which, &Request::Status)?;
    if !status.json {
        return say(&views::status(&shown));
    }
    let json = serde_json::to_string_pretty(&shown);
    say(&json.map_err(|error| Failure::failed("can't write JSON", error))?)
}

/// Removes the remains of killed labs.
pub fn clear() -> Result<(), Failure> {
    let cleared = pangea_lab::clear().map_err(failure)?;
    if cleared.labs.is_empty() {
        return say("there are no remains of labs");
    }
    say(&format!(
        "removed the remains of lab {}: {} regions, {} processes",
        cleared.labs.join(", "),
        cleared.namespaces,
        cleared.processes
    ))
}

fn ask(which: &Which, request: &Request) -> Result<control::Status, Failure> {
    let lab = control::find(which.lab.as_deref()).map_err(failure)?;
    control::ask(&lab, request).map_err(failure)
}
