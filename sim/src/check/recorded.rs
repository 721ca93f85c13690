//! Checks a recorded history against a model.
//!
//! ```text
//!   Recorded -> facts -> objects -> orders -> graph -> phenomena -> explain
//! ```
//!
//! `facts.rs` analyses each read and orders the versions of every key as far as their order is
//! known, lists by `lists.rs` and registers by `registers.rs`. After that, `objects.rs` represents
//! all kinds of data. `orders.rs` derives dependencies and searches for the unknown order of
//! versions. The result is a graph, with or without cycles, which `phenomena.rs` names and
//! `explain.rs` describes.

use super::facts::{Assumed, Facts, OpenDelete};
use super::model::Model;
use super::objects::LostUpdate;
use super::orders::{Answer, Orders};
use super::phenomena;
use super::{Violation, explain};
use crate::record::Recorded;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The history satisfies the model.
    Holds,
    /// The history violates the model.
    Broken(Violation),
    /// No anomaly was found, but reads do not determine the order of some writes, and the search
    /// for an order was abandoned.
    Open,
}

impl Verdict {
    /// Converts the verdict to a result; an open one is `Ok`.
    ///
    /// # Errors
    /// The violation.
    pub fn into_result(self) -> Result<(), Violation> {
        match self {
            Self::Holds | Self::Open => Ok(()),
            Self::Broken(violation) => Err(violation),
        }
    }
}

/// The maximum number of deletes of unknown outcome for which every combination is tried. If there
/// are more, only the usual one and all are tried.
const DELETES_MAX: usize = 6;

/// Checks a history against a model. Violations name `checker`.
pub fn check(recorded: &Recorded, model: Model, checker: &'static str) -> Verdict {
    let check = |assumed| check_assumed(recorded, model, checker, assumed);
    let (first, open) = check(Assumed::Usual);
    if first == Verdict::Holds || open.is_empty() {
        return first;
    }
    if let (Verdict::Broken(violation), _) = check(Assumed::Nothing) {
        return Verdict::Broken(violation);
    }
    let choices: Vec<Vec<OpenDelete>> = if open.len() <= DELETES_MAX {
        let chosen = |choice: u32| {
            let all = open.iter().zip(0..);
            all.filter(|(_, at)| choice >> at & 1 == 1).map(|(delete, _)| *delete).collect()
        };
        (0..1 << open.len()).map(chosen).collect()
    } else {
        vec![open.clone()]
    };
    let mut is_certain = first != Verdict::Open && open.len() <= DELETES_MAX;
    for choice in &choices {
        match check(Assumed::Only(choice)).0 {
            Verdict::Holds => return Verdict::Holds,
            Verdict::Open => is_certain = false,
            Verdict::Broken(_) => {}
        }
    }
    if is_certain { first } else { Verdict::Open }
}

/// Checks under an assumption. Also returns the deletes that assumptions are about.
fn check_assumed(
    recorded: &Recorded,
    model: Model,
    checker: &'static str,
    assumed: Assumed<'_>,
) -> (Verdict, Vec<OpenDelete>) {
    let mut facts = Facts::new(recorded, model, checker, assumed);
    let violation = facts.arrange(model).err();
    let open = facts.open_deletes().to_vec();
    let verdict = match violation {
        Some(violation) => Verdict::Broken(violation),
        None => check_facts(&facts, model),
    };
    (verdict, open)
}

fn check_facts(facts: &Facts<'_>, model: Model) -> Verdict {
    let (orders, graph) = Orders::new(facts, model);
    if let Some(fork) = facts.fork {
        // A worse anomaly is reported first.
        let worse = phenomena::worst(&graph, Model::ReadCommitted);
        return Verdict::Broken(match worse {
            Some((anomaly, walk)) => facts.violation(anomaly, story(facts, &walk, false)),
            None => lost_update(facts, fork),
        });
    }
    match orders.solve(graph) {
        Answer::Fine => Verdict::Holds,
        Answer::Open => Verdict::Open,
        Answer::Broken { graph, is_inferred } => {
            let worst = phenomena::worst(&graph, model);
            let (anomaly, walk) = worst.expect("a graph that breaks the model has a cycle");
            Verdict::Broken(facts.violation(anomaly, story(facts, &walk, is_inferred)))
        }
    }
}

fn story(facts: &Facts<'_>, walk: &super::graph::Walk, is_inferred: bool) -> String {
    let story = explain::cycle(facts.recorded, &|key| facts.class(key), walk);
    let note = "\n    The order of some writes here is inferred, but every other order makes a \
                cycle as well.";
    if is_inferred { story + note } else { story }
}

fn lost_update(facts: &Facts<'_>, fork: LostUpdate) -> Violation {
    let names = &facts.recorded.names;
    let key = names.atom(fork.key);
    let seen = fork.version.value.map_or("nothing".to_owned(), |v| names.atom(v).to_string());
    let [first, second] = fork.writers.map(|writer| facts.name(writer));
    let story = format!(
        "2 transactions replaced the version that both had read:\n    {first}: it read {seen} at \
         {key}, and changed it\n    {second}: it read {seen} at {key}, and changed it"
    );
    facts.violation("lost update", story)
}
