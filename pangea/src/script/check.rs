//! The checks of a file, which run after all clients have finished.

use std::collections::BTreeMap;

use pangea_core::workload::Commits;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, Row};

use super::read::{COMMITTED, UNKNOWN};
use super::session::connect;
use super::value::{Received, Value, can_be_value};
use super::{Check, ClientIdentity, Script, in_words};
use crate::failure::Failure;

/// The number of columns of an unexpected row that are shown.
const COLUMNS_SHOWN: usize = 8;

/// Runs all checks, with the numbers of transactions of each kind that have committed since the
/// load phase. If the outcome of some transactions of a kind is unknown, a check that uses its
/// count is skipped, unless it also uses the unknown count.
///
/// # Errors
/// The first check with an unexpected result, or that the server rejects.
pub async fn run(
    script: &Script,
    config: &Config,
    identity: &ClientIdentity,
    commits: &Commits,
) -> Result<String, Failure> {
    if script.checks.is_empty() {
        return Ok("the file has no checks".to_owned());
    }
    let client = connect(config, &identity.region).await.map_err(Failure::Failed)?;
    let (mut held, mut left) = (Vec::new(), Vec::new());
    for check in &script.checks {
        let Some(values) = values(script, check, identity, commits) else {
            left.push(check.name.as_str());
            continue;
        };
        let line = |message: String| {
            let what = format!("check {}: {message}", check.name);
            Failure::Failed(format!("check failed: {}", script.at(check.query.line, what)))
        };
        let rows = client.query(check.query.inlined(&values).as_str(), &[]).await;
        let rows = rows.map_err(|error| line(in_words(&error)))?;
        if let Some(wrong) = rows.iter().find(|row| !is_true(row)) {
            let count = rows.len();
            let shown = shown(wrong);
            return Err(line(match count {
                1 => format!("expected no rows or `true`, found {shown}"),
                _ => format!("expected no rows or `true`, found {count} rows, with {shown}"),
            }));
        }
        held.push(check.name.as_str());
    }
    let mut facts = match held.is_empty() {
        true => "no check was run".to_owned(),
        false => format!("checks passed: {}", held.join(", ")),
    };
    if !left.is_empty() {
        facts.push_str(&format!(
            "; not run, because calls without an outcome may have committed: {}",
            left.join(", ")
        ));
    }
    Ok(facts)
}

/// Returns the values of a check's variables. Returns `None` if the check uses a count that is not
/// exact, and does not use the number of unknown outcomes.
fn values(
    script: &Script,
    check: &Check,
    identity: &ClientIdentity,
    commits: &Commits,
) -> Option<Vec<Value>> {
    let mut values = script.constants(identity);
    let first = values.len();
    let asks = |name: &str| {
        let mut holes = check.query.holes.iter();
        holes.any(|(_, slot)| *slot >= first && check.names[*slot] == name)
    };
    let count = |of: &BTreeMap<String, u64>, label| of.get(label).copied().unwrap_or(0);
    for name in &check.names[first..] {
        let (label, counts) = match name.strip_prefix(COMMITTED) {
            Some(label) => (label, &commits.committed),
            None => (name.strip_prefix(UNKNOWN).unwrap_or(name), &commits.unknown),
        };
        values.push(Value::Int(count(counts, label) as i64));
        let (committed, unknown) = (format!("{COMMITTED}{label}"), format!("{UNKNOWN}{label}"));
        let is_exact = asks(&committed) && !asks(&unknown);
        if is_exact && count(&commits.unknown, label) > 0 {
            return None;
        }
    }
    Some(values)
}

fn is_true(row: &Row) -> bool {
    row.len() == 1
        && *row.columns()[0].type_() == Type::BOOL
        && row.try_get::<_, Option<bool>>(0).is_ok_and(|value| value == Some(true))
}

/// Returns a row as text.
fn shown(row: &Row) -> String {
    let columns = row.columns().iter().enumerate().take(COLUMNS_SHOWN).map(|(at, column)| {
        let value = match can_be_value(column.type_()) {
            true => row
                .try_get::<_, Received>(at)
                .map_or_else(|error| error.to_string(), |Received(value)| value.to_string()),
            false => format!("a {}", column.type_()),
        };
        format!("{} = {value}", column.name())
    });
    let columns: Vec<String> = columns.collect();
    columns.join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read;
    use super::*;

    const SCRIPT: &str = "
CREATE TABLE t (n int);
-- transaction add
UPDATE t SET n = n + 1;
-- transaction take
UPDATE t SET n = n - 1;
-- check exact
SELECT n = :committed_add FROM t;
-- check between
SELECT n BETWEEN :committed_add AND :committed_add + :unknown_add FROM t;
-- check neither
SELECT n FROM t WHERE n < 0;
";

    #[test]
    fn a_count_that_is_not_known_is_asked_for_with_its_bounds_alone() {
        let script = read::script(Path::new("s.sql"), SCRIPT, &[]).unwrap();
        let client = pangea_core::workload::Client::new(0, 1, 1);
        let identity = ClientIdentity { client, region: "eu".to_owned() };
        let asked = |commits: &Commits| -> Vec<Option<String>> {
            let asked = |check: &Check| {
                let values = values(&script, check, &identity, commits)?;
                Some(check.query.inlined(&values))
            };
            script.checks.iter().map(asked).collect()
        };
        let [exact, between, neither] = [
            "SELECT n = 7 FROM t",
            "SELECT n BETWEEN 7 AND 7 + 0 FROM t",
            "SELECT n FROM t WHERE n < 0",
        ]
        .map(|text| Some(text.to_owned()));
        let committed = [("add".to_owned(), 7)].into();
        let known = Commits { committed, ..Commits::default() };
        assert_eq!(asked(&known), [exact.clone(), between, neither.clone()]);
        let of_another = Commits { unknown: [("take".to_owned(), 2)].into(), ..known.clone() };
        assert_eq!(asked(&of_another)[0], exact, "those are not needed");
        let unknown = Commits { unknown: [("add".to_owned(), 2)].into(), ..known };
        let between = Some("SELECT n BETWEEN 7 AND 7 + 2 FROM t".to_owned());
        assert_eq!(asked(&unknown), [None, between, neither]);
    }
}
