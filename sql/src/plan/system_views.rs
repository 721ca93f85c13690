//! Planning of the views of the system catalog.

use std::sync::OnceLock;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Context, Scan, Stop, Visit};
use pangea_core::value::Value;

use super::system_columns;
use crate::system::{SystemView, views};
use crate::vocabulary::column::OutputColumn;

/// Returns the columns of each view, in the order of the views.
pub(crate) fn system_view_columns() -> &'static [Vec<OutputColumn>] {
    static ALL: OnceLock<Vec<Vec<OutputColumn>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let columns = |view: &SystemView| system_columns(&view.name, &view.query, &mut Nowhere);
        let all = views().iter().map(|view| (view, columns(view)));
        all.map(|(view, found)| found.unwrap_or_else(|error| panic!("{}: {error:?}", view.name)))
            .collect()
    })
}

/// A context without data. The views of the catalog are planned in it, because they read no
/// records.
struct Nowhere;

impl Context for Nowhere {
    fn get(&mut self, _: TableId, _: &[u8]) -> Result<Option<Value>, Stop> {
        Ok(None)
    }

    fn scan(&mut self, _: &Scan, _: &mut Visit<'_>) -> Result<(), Stop> {
        Ok(())
    }

    fn put(&mut self, _: TableId, _: Key, _: Value) -> Result<(), Stop> {
        unreachable!("nothing is written where there is nothing")
    }

    fn delete(&mut self, _: TableId, _: Key) -> Result<(), Stop> {
        unreachable!("nothing is deleted where there is nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_views_can_be_planned() {
        assert_eq!(system_view_columns().len(), views().len());
        let at = views().iter().position(|view| view.name == "pg_roles").unwrap();
        assert_eq!(system_view_columns()[at][0].name, "rolname");
    }
}
