//! Names in the place of numbers, where a client is told what a protocol found.

use std::ops::ControlFlow;

use pangea_core::key::Direction;
use pangea_core::txn::{Context, Scan};

use crate::catalog::{CATALOG, Table, table_keys};
use crate::syntax::quoted;

/// The text with `t1000` replaced by the name of table 1000, where there is one.
pub(crate) fn name_tables(text: &str, cx: &mut dyn Context) -> String {
    let mut names = Vec::new();
    let scan = Scan { table: CATALOG, range: table_keys(), direction: Direction::Forward };
    // A catalog that can't be read leaves numbers: the error itself is what matters.
    let _ = cx.scan(&scan, &mut |_, record| {
        if let Ok(table) = Table::decode(record) {
            names.push((table.id.to_string(), table.name));
        }
        ControlFlow::Continue(())
    });
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(len);
        match names.iter().find(|(number, _)| number == word) {
            Some((_, name)) => out.push_str(&quoted(name)),
            None => out.push_str(word),
        }
        let gap = after.find(is_part).unwrap_or(after.len());
        out.push_str(&after[..gap]);
        rest = &after[gap..];
    }
    out
}
