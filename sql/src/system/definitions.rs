//! Objects as the statements that create them: `pg_get_indexdef`, `pg_get_constraintdef`.

use super::constraints::ConstraintKind;
use super::relations::rule_oid;
use super::{Entry, Kind, SystemCatalog};
use crate::access::path::Path;
use crate::access::text;
use crate::catalog::{Action, ForeignKey, Index, KeyTarget, PUBLIC, QualifiedName, Table};
use crate::expr::Expr;
use crate::syntax::{self, Written, quoted_ident};
use crate::types::{ColumnType, SqlType};
use pangea_core::key::encode::{Nulls, Order};

/// The updatable parts of a relation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Updatable {
    pub is_deletable: bool,
    /// For each column, whether it can be assigned a value.
    pub columns: Vec<bool>,
}

/// Returns the type of an expression over the columns of a table.
pub(super) fn type_of(table: &Table, expr: &str) -> ColumnType {
    let bound = text::over_table(table, expr, "index expressions");
    bound.map_or(SqlType::Text.into(), |bound| bound.ty)
}

/// Returns the columns that a condition over a table references.
pub(super) fn named_in(table: &Table, condition: &str) -> Vec<usize> {
    let bound = text::condition(table, condition, "CHECK");
    bound.map(|bound| bound.columns()).unwrap_or_default()
}

/// Returns the columns of an index.
pub(super) fn columns(index: &Index) -> Vec<usize> {
    let column = |target: &KeyTarget| match target {
        KeyTarget::Column(at) => Some(*at),
        KeyTarget::Expr(_) => None,
    };
    index.keys.iter().filter_map(|key| column(&key.target)).collect()
}

/// Returns the names of columns of a table, separated by commas.
fn names(table: &Table, columns: &[usize]) -> String {
    let name = |at: &usize| quoted_ident(&table.columns[*at].name);
    columns.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Returns each key of an index, without and with its order.
fn parts(table: &Table, index: &Index) -> Vec<(String, String)> {
    let Ok(path) = Path::index(table, index) else { return Vec::new() };
    let part = |part: &crate::access::path::Part| {
        let shown = match part.expr {
            Expr::Column(_) => quoted_ident(&part.name),
            _ => part.name.clone(),
        };
        let is_descending = part.order == Order::Descending;
        let nulls = match part.nulls {
            Some(Nulls::First) if !is_descending => " NULLS FIRST",
            Some(Nulls::Last) if is_descending => " NULLS LAST",
            _ => "",
        };
        let order = if is_descending { " DESC" } else { "" };
        let whole = format!("{shown}{order}{nulls}");
        (shown, whole)
    };
    path.parts.iter().map(part).collect()
}

/// Returns an expression in one pair of parentheses.
fn in_parentheses(expr: &str) -> String {
    format!("({expr})")
}

fn statement(table: &Table, name: &str, is_unique: bool, parts: &str) -> String {
    let unique = if is_unique { "UNIQUE " } else { "" };
    let name = quoted_ident(name);
    let (schema, table) = (quoted_ident(table.name.schema()), quoted_ident(table.name.name()));
    format!("CREATE {unique}INDEX {name} ON {schema}.{table} USING btree ({parts})")
}

fn action(clause: &str, action: Action) -> String {
    let what = match action {
        Action::NoAction => return String::new(),
        Action::Restrict => "RESTRICT",
        Action::Cascade => "CASCADE",
        Action::SetNull => "SET NULL",
        Action::SetDefault => "SET DEFAULT",
    };
    format!(" ON {clause} {what}")
}

impl SystemCatalog {
    /// Returns the statement that creates an index, or `None` if the OID is not that of an index.
    pub(crate) fn index_definition(&self, oid: u32) -> Option<String> {
        match &self.relations.get(&oid)?.kind {
            Kind::PrimaryKey(table) => {
                let parts = names(table, &table.primary_key);
                Some(statement(table, &table.primary_key_name, true, &parts))
            }
            Kind::Index(table, at) => {
                let index = &table.indexes[*at];
                let parts: Vec<String> =
                    parts(table, index).into_iter().map(|(_, whole)| whole).collect();
                let mut text = statement(table, &index.name, index.is_unique, &parts.join(", "));
                if !index.is_nulls_distinct {
                    text.push_str(" NULLS NOT DISTINCT");
                }
                if let Some(predicate) = &index.predicate {
                    text.push_str(&format!(" WHERE {}", in_parentheses(predicate)));
                }
                Some(text)
            }
            _ => None,
        }
    }

    /// Returns the query of a view, or `None` if the OID is not that of a view.
    pub(crate) fn view_definition(&self, oid: u32) -> Option<String> {
        match &self.relations.get(&oid)?.kind {
            Kind::View(view) => {
                let shown = self.shown_query(&view.query);
                Some(format!(" {};", shown.as_deref().unwrap_or(&view.query)))
            }
            Kind::SystemView(view, _) => Some(format!(" {};", view.query)),
            _ => None,
        }
    }

    /// Returns the rule that is a view's query, as the statement that would create it.
    pub(crate) fn rule_definition(&self, oid: u32) -> Option<String> {
        let is_view = |entry: &&Entry| matches!(entry.kind, Kind::View(_));
        let views = self.relations.iter().filter(|(_, entry)| is_view(entry));
        let (view, entry) = views.into_iter().find(|(view, _)| rule_oid(**view) == oid)?;
        let schema = quoted_ident(self.namespace_name(entry.namespace));
        let (name, query) = (quoted_ident(&entry.name), self.view_definition(*view)?);
        Some(format!(
            "CREATE RULE \"_RETURN\" AS\n    ON SELECT TO {schema}.{name} DO INSTEAD {query}"
        ))
    }

    /// The updatable parts of a relation.
    pub(crate) fn updatable(&self, oid: u32) -> Updatable {
        match self.relations.get(&oid).map(|entry| &entry.kind) {
            Some(Kind::Table(table)) => {
                let columns = table.columns.iter().map(|column| !column.is_dropped).collect();
                Updatable { is_deletable: true, columns }
            }
            Some(Kind::System(table)) => {
                Updatable { is_deletable: true, columns: vec![true; table.all_columns().count()] }
            }
            Some(Kind::View(view)) => {
                let (Some(shows), Some((base, _))) = (&view.shows, view.reads.first()) else {
                    return Updatable::default();
                };
                let base = self.named(base);
                let base = base.map(|base| self.updatable(base)).unwrap_or_default();
                let is_one = |at: &Option<u32>| {
                    at.is_some_and(|at| base.columns.get(at as usize).is_some_and(|it| *it))
                };
                let columns = shows.iter().map(is_one).collect();
                Updatable { columns, ..base }
            }
            Some(Kind::PrimaryKey(_) | Kind::Index(..) | Kind::Sequence(_))
            | Some(Kind::SystemView(..))
            | None => Updatable::default(),
        }
    }

    /// Returns the text of a view's query with a schema for each relation that the search path does
    /// not find. Returns `None` if the text stays as it is.
    fn shown_query(&self, query: &str) -> Option<String> {
        let mut statement = syntax::parse(query).ok()?.pop()?.ast.as_ref().clone();
        let mut is_changed = false;
        let renamed = syntax::qualify(&mut statement, &mut |written| {
            let renamed = self.renamed(written);
            is_changed |= renamed.is_some();
            Ok(renamed)
        });
        (renamed.is_ok() && is_changed).then(|| statement.to_string())
    }

    /// Returns the displayed form of a name in a stored text, or `None` if it is displayed as it
    /// is.
    fn renamed(&self, written: &Written) -> Option<Written> {
        let schema = written.schema.as_deref().unwrap_or(PUBLIC);
        let name = QualifiedName::new(schema, &written.name);
        let found = self.named(&name)?;
        match (self.relation(None, name.name()) == Some(found), &written.schema) {
            (true, Some(_)) => Some(Written::plain(name.name())),
            (false, None) => Some(Written::whole(&name)),
            _ => None,
        }
    }

    /// Returns the displayed form of an expression in the catalog. A sequence that the search path
    /// does not find has its schema.
    pub(crate) fn shown_expr(&self, text: &str) -> String {
        const BEFORE: &str = "nextval('";
        let shown = || {
            let (name, after) = text.strip_prefix(BEFORE)?.split_once("'::regclass")?;
            let renamed = self.renamed(&syntax::name_from_text(name).ok()?)?;
            let parts = renamed.schema.iter().chain([&renamed.name]);
            let parts: Vec<String> = parts.map(|part| quoted_ident(part)).collect();
            Some(format!("{BEFORE}{}'::regclass{after}", parts.join(".")))
        };
        shown().unwrap_or_else(|| text.to_owned())
    }

    /// Returns a key of an index, counted from 1. The text is empty if the index has fewer keys.
    pub(crate) fn index_part(&self, oid: u32, column: i64) -> Option<String> {
        let at = usize::try_from(column).ok().and_then(|column| column.checked_sub(1));
        let parts: Vec<String> = match &self.relations.get(&oid)?.kind {
            Kind::PrimaryKey(table) => {
                let name = |at: &usize| quoted_ident(&table.columns[*at].name);
                table.primary_key.iter().map(name).collect()
            }
            Kind::Index(table, index) => {
                parts(table, &table.indexes[*index]).into_iter().map(|(shown, _)| shown).collect()
            }
            _ => return None,
        };
        Some(at.and_then(|at| parts.into_iter().nth(at)).unwrap_or_default())
    }

    /// Returns the definition of a constraint as ADD CONSTRAINT has it.
    pub(crate) fn constraint_definition(&self, oid: u32) -> Option<String> {
        let constraint = self.constraints.get(&oid)?;
        let table = &constraint.table;
        Some(match constraint.kind {
            ConstraintKind::PrimaryKey => {
                format!("PRIMARY KEY ({})", names(table, &table.primary_key))
            }
            ConstraintKind::Unique(at) => {
                let index = &table.indexes[at];
                let nulls = if index.is_nulls_distinct { "" } else { " NULLS NOT DISTINCT" };
                format!("UNIQUE{nulls} ({})", names(table, &columns(index)))
            }
            ConstraintKind::Check(at) => {
                format!("CHECK ({})", in_parentheses(&table.checks[at].condition))
            }
            ConstraintKind::ForeignKey(at) => self.foreign_key(table, &table.foreign_keys[at]),
        })
    }

    fn foreign_key(&self, table: &Table, key: &ForeignKey) -> String {
        let parent = self.named(&key.parent);
        let parent = parent.and_then(|oid| self.relations.get(&oid));
        let parent_columns = match parent {
            Some(Entry { kind: Kind::Table(parent), .. }) => names(parent, &key.parent_columns),
            _ => String::new(),
        };
        let columns = names(table, &key.columns);
        let parent = self.shown_name(&key.parent);
        let full = if key.is_full { " MATCH FULL" } else { "" };
        let update = action("UPDATE", key.on_update);
        let delete = action("DELETE", key.on_delete);
        let deferral = match key.deferral {
            (true, true) => " DEFERRABLE INITIALLY DEFERRED",
            (true, false) => " DEFERRABLE",
            _ => "",
        };
        format!(
            "FOREIGN KEY ({columns}) REFERENCES {parent}({parent_columns})\
             {full}{update}{delete}{deferral}"
        )
    }
}
