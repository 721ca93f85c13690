//! Rewrites expectations: to PostgreSQL's answers, and to Pangea's for a known difference.
//!
//! A difference that no longer exists is removed from the script. Differences are never added
//! automatically: their two statements, and the description, are written by hand.

use std::collections::BTreeMap;

use sqllogictest::{Condition, Connection, Record};

use super::answer::{Answer, Engine, Failure};
use super::script::{Script, Statement, Step, expecting};

/// The sessions of a database, by their names in a script.
struct Sessions<E, C> {
    connect: C,
    open: BTreeMap<String, E>,
}

impl<E: Engine, C: FnMut() -> Result<E, Failure>> Sessions<E, C> {
    fn new(connect: C) -> Self {
        Self { connect, open: BTreeMap::new() }
    }

    /// Returns the result of a statement, if this engine runs it.
    fn answer(&mut self, statement: &Statement<'_>) -> Option<Result<Answer, Failure>> {
        if !statement.is_for(E::NAME) {
            return None;
        }
        let name = match statement.connection {
            Connection::Default => String::new(),
            Connection::Named(name) => name.clone(),
        };
        let session = self.open.entry(name).or_insert_with(|| (self.connect)().unwrap());
        Some(session.answer(statement.sql))
    }
}

/// Returns the steps of a script with the answers of both engines.
pub fn rewritten<P: Engine, O: Engine>(
    script: &Script,
    postgres: impl FnMut() -> Result<P, Failure>,
    pangea: impl FnMut() -> Result<O, Failure>,
) -> Vec<Step> {
    let (mut postgres, mut pangea) = (Sessions::new(postgres), Sessions::new(pangea));
    let mut steps: Vec<Step> = Vec::new();
    // The start of a known difference, and PostgreSQL's answer.
    let mut difference: Option<(usize, Step)> = None;
    for step in &script.steps {
        let Some(statement) = Statement::of(step) else {
            if matches!(step, Record::Condition(Condition::SkipIf { .. })) {
                difference = Some((steps.len(), step.clone()));
            }
            steps.push(step.clone());
            continue;
        };
        let by_pangea = pangea.answer(&statement);
        match (postgres.answer(&statement), by_pangea) {
            (Some(answer), Some(_)) => steps.push(expecting(step, answer)),
            (Some(answer), None) => {
                let step = expecting(step, answer);
                difference = difference.map(|(start, _)| (start, step.clone()));
                steps.push(step);
            }
            (None, Some(answer)) => {
                let (start, twin) = difference.take().expect("a difference is from something");
                if expecting(&twin, answer.clone()) == twin {
                    steps.truncate(start);
                    no_difference(&mut steps);
                    steps.extend(connection(&statement));
                    steps.push(unconditional(twin));
                } else {
                    steps.push(expecting(step, answer));
                }
            }
            (None, None) => steps.push(step.clone()),
        }
    }
    steps
}

/// Removes the description of a difference from the last comment.
fn no_difference(steps: &mut Vec<Step>) {
    if let Some(Record::Comment(lines)) = steps.last_mut() {
        lines.retain(|line| !line.trim().starts_with("Difference:"));
        if lines.is_empty() {
            steps.pop();
        }
    }
}

fn connection(statement: &Statement<'_>) -> Option<Step> {
    let is_named = matches!(statement.connection, Connection::Named(_));
    is_named.then(|| Record::Connection(statement.connection.clone()))
}

fn unconditional(mut step: Step) -> Step {
    if let Record::Statement { conditions, .. } | Record::Query { conditions, .. } = &mut step {
        conditions.clear();
    }
    step
}
