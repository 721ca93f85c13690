//! Views of the catalog: queries over its tables, in SQL.

use std::sync::OnceLock;

use sqlparser::ast;

use crate::syntax;
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
pub(crate) fn all() -> &'static [SystemView] {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_views_are_known_without_parsing_them() {
        let names = all().iter().map(|view| (view.schema.as_str(), view.name.as_str()));
        assert!(names.eq(crate::vocabulary::system::views().iter().copied()));
    }
}
