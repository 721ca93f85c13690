//! `[[fault]]`: faults of nodes during a measured run, converted to the option `fault`.

use super::read::{Bound, Table};
use crate::options::Value;
use crate::plan_error::PlanError;

/// The kinds of faults, and the possible numbers of regions: one, or also two that are cut from
/// each other.
const KINDS: [(&str, &[usize]); 3] = [("kill", &[1]), ("cut", &[1, 2]), ("slow", &[1])];

/// Returns the faults as one option, if there are any.
pub fn read(tables: &[Table<'_>]) -> Result<Option<Bound>, PlanError> {
    let Some(first) = tables.first() else { return Ok(None) };
    let faults = tables.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    let value = Value::Text(faults.join(","));
    Ok(Some(Bound { name: "fault".to_owned(), value, line: first.line() }))
}

/// Formats a fault as `kill:region-1@3+2`: its kind, region, start and duration in seconds.
fn one(table: &Table<'_>) -> Result<String, PlanError> {
    table.allow(&["what", "at", "for", "node", "regions"])?;
    let missing = |key: &str| PlanError::new(table.line(), format!("[[fault]] has no {key}"));
    let what = table.find("what").ok_or_else(|| missing("what"))?;
    let names = KINDS.map(|(name, _)| name);
    let find = |name: &str| KINDS.into_iter().find(|(kind, _)| *kind == name);
    let (kind, counts) = what.one_of(find, &names)?;
    let whom = table.find("regions").or_else(|| table.find("node"));
    let whom = whom.ok_or_else(|| missing("regions"))?;
    let regions = whom.texts()?;
    if !counts.contains(&regions.len()) {
        let message = format!("{kind} has one region (cut: one or two)");
        return Err(PlanError::new(whom.line, message));
    }
    let at = table.find("at").ok_or_else(|| missing("at"))?.number()?;
    let lasts = table.find("for").ok_or_else(|| missing("for"))?.number()?;
    Ok(format!("{kind}:{}@{at}+{lasts}", regions.join("/")))
}
