//! Runs a script on any engine.

use std::future::ready;

use sqllogictest::{Record, RecordOutput, Runner};

use super::answer::{Engine, Failure, Scripted};
use super::script::{Script, Statement};

/// Runs a script, and returns all differences from the expected answers.
pub fn run<E: Engine + Send>(
    script: &Script,
    mut connect: impl FnMut() -> Result<E, Failure>,
) -> Vec<String> {
    let mut runner = Runner::new(|| ready(connect().map(Scripted)));
    runner.with_validator(|_, actual, expected| {
        actual.iter().map(|row| row.concat()).eq(expected.iter().cloned())
    });
    runner.with_column_validator(sqllogictest::strict_column_validator);
    let mut failures = Vec::new();
    for step in &script.steps {
        let Some(statement) = Statement::of(step) else { continue };
        match (step, runner.run(step.clone())) {
            (_, Err(error)) => failures.push(error.to_string()),
            (Record::Statement { .. }, Ok(RecordOutput::Query { types, .. })) => {
                let names: Vec<&str> = types.iter().map(|letter| letter.name()).collect();
                let what = format!("rows of ({}) where none are expected", names.join(", "));
                failures.push(format!("{what}\n[SQL] {}\nat {}\n", statement.sql, statement.place));
            }
            (Record::Query { .. }, Ok(RecordOutput::Statement { .. })) => {
                let what = "no rows where some are expected";
                failures.push(format!("{what}\n[SQL] {}\nat {}\n", statement.sql, statement.place));
            }
            (_, Ok(_)) => {}
        }
    }
    failures
}
