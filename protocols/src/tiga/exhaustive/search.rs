//! The search: visits each state once, breadth first, and remembers how it was reached.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pangea_core::hash::HashSet;

use super::cases::Case;
use super::world::{Choice, World};

/// The result of a search.
pub struct Outcome {
    pub states: usize,
    pub transitions: usize,
    pub ends: usize,
    pub is_complete: bool,
    pub found: Option<Found>,
}

/// A violation, and the choices that lead to it.
pub struct Found {
    pub what: String,
    pub choices: Vec<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, ends, is_complete, found } = self;
        write!(f, "{states} states, {transitions} transitions, {ends} ends")?;
        if let Some(Found { what, choices }) = found {
            write!(f, ", found: {what}\n    {}", choices.join("\n    "))
        } else {
            f.write_str(if *is_complete { "" } else { ", incomplete" })
        }
    }
}

/// Visits every state of a case, or stops at the first violation.
pub fn search(case: &Case) -> Outcome {
    let mut outcome =
        Outcome { states: 1, transitions: 0, ends: 0, is_complete: false, found: None };
    let first = World::new(case);
    let mut seen = HashSet::default();
    seen.insert(first.digest());
    let mut ways: Vec<(u32, Option<Choice>)> = vec![(0, None)];
    let mut open = VecDeque::from([(0, first)]);
    while let Some((at, world)) = open.pop_front() {
        let choices = world.choices(case);
        if choices.is_empty() {
            outcome.ends += 1;
            if let Err(what) = world.check_end(case) {
                outcome.found = Some(retell(case, &ways, at, None, what));
                return outcome;
            }
        }
        for choice in choices {
            let mut next = world.clone();
            outcome.transitions += 1;
            if let Err(what) = choose(case, &mut next, choice) {
                outcome.found = Some(retell(case, &ways, at, Some(choice), what));
                return outcome;
            }
            if !seen.insert(next.digest()) {
                continue;
            }
            if outcome.states >= case.states_max {
                return outcome;
            }
            ways.push((at as u32, Some(choice)));
            open.push_back((outcome.states, next));
            outcome.states += 1;
        }
    }
    outcome.is_complete = true;
    outcome
}

/// A panic of a leader is a violation, too.
fn choose(case: &Case, world: &mut World, choice: Choice) -> Result<(), String> {
    let chosen = catch_unwind(AssertUnwindSafe(|| world.choose(case, choice)));
    chosen.unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("panic: {}", what.unwrap_or_default()))
    })
}

fn retell(
    case: &Case,
    ways: &[(u32, Option<Choice>)],
    mut at: usize,
    last: Option<Choice>,
    what: String,
) -> Found {
    let mut choices: Vec<Choice> = last.into_iter().collect();
    while let (before, Some(choice)) = ways[at] {
        choices.push(choice);
        at = before as usize;
    }
    choices.reverse();
    let mut world = World::new(case);
    let told = choices.into_iter().map(|choice| {
        let told = world.describe(choice);
        let _ = choose(case, &mut world, choice);
        told
    });
    Found { what, choices: told.collect() }
}
