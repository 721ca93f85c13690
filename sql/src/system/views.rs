//! Views of the catalog: queries over its tables, in SQL.

use std::sync::OnceLock;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Context, Scan, Stop, Visit};
use pangea_core::value::Value;
use sqlparser::ast;

use crate::plan::system_columns;
use crate::syntax;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::system::VIEWS;

/// OID of the first view. The OIDs of the others follow.
const OID_FIRST: u32 = 13_200;

/// A view of the catalog.
#[derive(Debug)]
pub(crate) struct SystemView {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    /// The text of the query.
    pub query: String,
}

/// Returns all views.
pub(super) fn all() -> &'static [SystemView] {
    static ALL: OnceLock<Vec<SystemView>> = OnceLock::new();
    ALL.get_or_init(|| {
        let statements = syntax::parse(VIEWS).expect("the catalog's views can be read");
        let view = |(oid, parsed): (u32, &syntax::Parsed)| {
            let ast::Statement::CreateView(create) = &*parsed.ast else {
                panic!("{} makes no view", parsed.text)
            };
            let parts = syntax::name_parts(&create.name).expect("a plain name");
            let [schema, name] = <[String; 2]>::try_from(parts).expect("a name with a schema");
            SystemView { oid, schema, name, query: create.query.to_string() }
        };
        (OID_FIRST..).zip(&statements).map(view).collect()
    })
}

/// Returns a view by name.
pub(crate) fn find(schema: &str, name: &str) -> Option<&'static SystemView> {
    all().iter().find(|view| view.name == name && view.schema == schema)
}

/// Returns the columns of each view, in the order of the views.
pub(super) fn columns() -> &'static [Vec<OutputColumn>] {
    static ALL: OnceLock<Vec<Vec<OutputColumn>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let columns = |view: &SystemView| system_columns(&view.name, &view.query, &mut Nowhere);
        let all = all().iter().map(|view| (view, columns(view)));
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
        assert_eq!(columns().len(), all().len());
        let names = all().iter().map(|view| (view.schema.as_str(), view.name.as_str()));
        assert!(names.eq(crate::vocabulary::system::views().iter().copied()));
        let roles = find("pg_catalog", "pg_roles").unwrap();
        let at = all().iter().position(|view| view.oid == roles.oid).unwrap();
        assert_eq!(columns()[at][0].name, "rolname");
    }
}
