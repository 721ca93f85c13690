//! Writes histories to files, in the form that [`super::read`] reads.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Atom, Name, Names, Op, Outcome, Recorded, Seen, Txn};

/// Writes a history: one JSON object per line, one line per transaction.
///
/// # Errors
/// If the output can't be written.
pub fn write(recorded: &Recorded, output: &mut dyn Write) -> io::Result<()> {
    for txn in &recorded.txns {
        write_txn(txn, &recorded.names, output)?;
    }
    output.flush()
}

/// Writes one transaction as a line, for histories that are written while they happen.
///
/// # Errors
/// If the output can't be written.
pub fn write_txn(txn: &Txn, names: &Names, output: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *output, &transaction(txn, names))?;
    output.write_all(b"\n")
}

fn transaction(txn: &Txn, names: &Names) -> Value {
    let Txn { client, begin, end, outcome, is_held, is_final, at, level, note, ops, .. } = txn;
    let outcome = match outcome {
        Outcome::Committed => "committed",
        Outcome::Aborted => "aborted",
        Outcome::Unknown => "unknown",
    };
    let mut fields = Map::new();
    let mut field = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    field("client", atom(client));
    field("begin", json!(begin));
    if let Some(end) = end {
        field("end", json!(end));
    }
    field("outcome", json!(outcome));
    if !is_held && !is_final {
        field("real_time", json!(false));
    }
    if *is_final {
        field("final", json!(true));
    }
    if let Some(at) = at {
        field("at", json!(at));
    }
    if let Some(level) = level {
        field("level", json!(level.name()));
    }
    if let Some(note) = note {
        field("note", json!(note));
    }
    field("ops", ops.iter().map(|op| operation(op, names)).collect());
    Value::Object(fields)
}

fn atom(atom: &Atom) -> Value {
    match atom {
        Atom::Number(number) => json!(number),
        Atom::Text(text) => json!(text),
    }
}

fn operation(op: &Op, names: &Names) -> Value {
    let value = |name: Name| atom(names.atom(name));
    match op {
        Op::Append { key, value: to } => {
            json!({ "append": { "key": value(*key), "value": value(*to) } })
        }
        Op::Write { key, value: to } => {
            json!({ "write": { "key": value(*key), "value": value(*to) } })
        }
        Op::Delete { key } => json!({ "delete": { "key": value(*key) } }),
        Op::Read { key, seen } => {
            let seen = match seen {
                Seen::Nothing => Value::Null,
                Seen::Value(seen) => value(*seen),
                Seen::List(values) => values.iter().map(|name| value(*name)).collect(),
            };
            json!({ "read": { "key": value(*key), "value": seen } })
        }
        Op::Scan { range, rows } => {
            let rows: Vec<[Value; 2]> =
                rows.iter().map(|(key, to)| [value(*key), value(*to)]).collect();
            let mut fields = Map::new();
            for (name, bound) in [("from", range.from), ("to", range.to)] {
                if let Some(bound) = bound {
                    fields.insert(name.to_owned(), value(bound));
                }
            }
            fields.insert("rows".to_owned(), json!(rows));
            json!({ "scan": fields })
        }
    }
}
