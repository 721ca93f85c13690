//! Descriptions of conflicts for clients: rows by table, columns and values; winners by region.
//!
//! Protocols identify tables by number and rows by encoded key. The catalog gives them meaning.

use std::borrow::Cow;
use std::ops::ControlFlow;

use pangea_core::exec::Change;
use pangea_core::ids::{TableId, TxnId};
use pangea_core::key::Direction;
use pangea_core::topology::Topology;
use pangea_core::txn::{Context, Scan};

use crate::catalog::role;
use crate::catalog::{
    CATALOG, Index, Relation, Table, USER_TABLE_FIRST, enums, relation_keys, relation_of_key,
};
use crate::syntax::{quoted, quoted_ident, quoted_name};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::text;
use crate::types::zone::Zone;

/// Translates the detail of a conflict into SQL terms. A detail that describes no change of a row
/// is returned unchanged.
pub(crate) fn describe(
    detail: String,
    cx: &mut dyn Context,
    topology: &Topology,
    zone: &Zone,
) -> String {
    let Some(change) = Change::from_detail(&detail) else { return detail };
    let by = change.winner.map(|winner| by(winner, topology));
    let became = |verb: &str| match &by {
        Some(by) => format!("was {verb} {by}."),
        None => "was deleted.".to_owned(),
    };
    if change.table == CATALOG {
        return match relation_of_key(&change.key) {
            Some(name) => {
                format!("Table {} {}", quoted_name(&name), became("created, changed or dropped"))
            }
            None => {
                let what = role::described_key(&change.key);
                let what = what.unwrap_or_else(|| "The list of tables".to_owned());
                format!("{what} {}", became("changed"))
            }
        };
    }
    match table_of(change.table, cx) {
        Some((table, Some(index))) => {
            let (name, table) = (quoted(&index.name), quoted_name(&table.name));
            format!("A row in index {name} of table {table} {}", became("changed"))
        }
        Some((table, None)) if table.primary_key.is_empty() => {
            let name = quoted_name(&table.name);
            format!("A row of table {name}, which has no primary key, {}", became("changed"))
        }
        Some((table, None)) => {
            let columns = table.primary_key.iter().map(|&at| &table.columns[at]);
            let types = columns.clone().map(|column| column.ty.base);
            let values = table.key_values(&change.key);
            let names = columns.map(|column| column.name.as_str());
            let key = shown_key(names, types.zip(&values), zone);
            format!("{key} of table {} {}", quoted_name(&table.name), became("changed"))
        }
        None if change.table.0 >= USER_TABLE_FIRST => {
            format!("A row of a table that was dropped since then {}", became("changed"))
        }
        None => detail,
    }
}

fn by(winner: TxnId, topology: &Topology) -> String {
    let node = winner.node();
    if node.index() >= topology.node_count() {
        return format!("by transaction {winner}");
    }
    format!("by transaction {winner} of region {}", topology.region_name(node))
}

/// Finds the table with this number, or the table and the index if the number is an index's.
/// Returns `None` if the catalog can't be read, because the conflict is the error to report.
fn table_of(id: TableId, cx: &mut dyn Context) -> Option<(Table, Option<Index>)> {
    let mut found = None;
    let scan = Scan { table: CATALOG, range: relation_keys(), direction: Direction::Forward };
    let scanned = cx.scan(&scan, &mut |_, record| {
        if let Ok(Relation::Table(table)) = Relation::decode(record) {
            let index = table.indexes.iter().find(|index| index.id == id).cloned();
            found = (table.id == id || index.is_some()).then_some((table, index));
        }
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let (mut table, index) = scanned.ok().and(found)?;
    enums::attach(&mut table, cx).ok()?;
    Some((table, index))
}

/// Formats a key as PostgreSQL does: `Key (a, b)=(1, x)`. Missing trailing values are shown as
/// dots.
pub(crate) fn shown_key<'a>(
    names: impl Iterator<Item = &'a str>,
    values: impl Iterator<Item = (SqlType, &'a Datum)>,
    zone: &Zone,
) -> String {
    let names: Vec<Cow<'_, str>> = names.map(shown_name).collect();
    let mut shown: Vec<String> = values
        .map(|(base, value)| match value {
            Datum::Null => "null".to_owned(),
            value => text::format(base, value, zone),
        })
        .collect();
    if shown.len() < names.len() {
        shown.push("...".to_owned());
    }
    format!("Key ({})=({})", names.join(", "), shown.join(", "))
}

/// Quotes a column's name; the text of an index expression is left as it is.
fn shown_name(name: &str) -> Cow<'_, str> {
    if name.contains('(') { name.into() } else { quoted_ident(name).into() }
}
