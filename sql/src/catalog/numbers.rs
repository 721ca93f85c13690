//! The names of tables that a message knows only by their numbers in the store.

use std::ops::ControlFlow;

use pangea_core::ids::TableId;
use pangea_core::key::Direction;
use pangea_core::store::Store;

use super::{CATALOG, Relation, relation_keys, sequence::SEQUENCES};

/// Describes those of these tables that the catalog of a store has, as in `1004 is orders`.
pub fn describe_tables(store: &Store, tables: &[TableId]) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |table: TableId, what: String| {
        if tables.contains(&table) {
            found.push(format!("{} is {what}", table.0));
        }
    };
    note(CATALOG, "the catalog".to_owned());
    note(SEQUENCES, "the values of sequences".to_owned());
    let range = relation_keys();
    store.scan(CATALOG, &range, Direction::Forward, store.published(), |_, version| {
        let record = version.value.as_ref().map(|value| Relation::decode(value));
        if let Some(Ok(Relation::Table(table))) = record {
            note(table.id, format!("{:?}", table.name));
            for index in &table.indexes {
                note(index.id, format!("the index {} of {:?}", index.name, table.name));
            }
        }
        ControlFlow::Continue(())
    });
    found
}
