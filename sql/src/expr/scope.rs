//! Resolution of column names.

use std::sync::Arc;

use super::bind::{Scope, ScopeColumn};
use crate::error::{SqlError, code};
use crate::syntax;

/// The qualifier before a column name: table, and schema if given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qualifier<'a> {
    pub schema: Option<&'a str>,
    pub table: &'a str,
}

impl Qualifier<'_> {
    /// Whether a column belongs to the qualified relation.
    pub(crate) fn is_of(&self, column: &ScopeColumn) -> bool {
        column.table == self.table
            && (self.schema.is_none() || column.schema.as_deref() == self.schema)
    }
}

impl Scope {
    pub(super) fn find(&self, table: Option<Qualifier<'_>>, name: &str) -> Result<usize, SqlError> {
        let is_match = |column: &ScopeColumn| {
            let is_of = match table {
                Some(table) => table.is_of(column),
                None => !column.is_merged,
            };
            !column.is_hidden && column.name == name && is_of
        };
        let mut found = (0..self.columns.len()).filter(|&at| is_match(&self.columns[at]));
        let Some(first) = found.next() else { return Err(self.missing(table, name)) };
        let schema = |at: usize| &self.columns[at].schema;
        let second = found.next();
        if let (Some(table), Some(second)) = (table, second)
            && schema(first) != schema(second)
        {
            let message = format!("table reference \"{}\" is ambiguous", table.table);
            return Err(SqlError::new(code::AMBIGUOUS_ALIAS, message));
        }
        if second.is_some() {
            let message = format!("column reference \"{name}\" is ambiguous");
            return Err(SqlError::new(code::AMBIGUOUS_COLUMN, message));
        }
        Ok(first)
    }

    fn missing(&self, table: Option<Qualifier<'_>>, name: &str) -> SqlError {
        if let Some(error) = syntax::system_column(name) {
            return error;
        }
        let Some(table) = table else {
            let message = format!("column \"{name}\" does not exist");
            return SqlError::new(code::UNDEFINED_COLUMN, message);
        };
        let is_of = |column: &ScopeColumn| table.is_of(column);
        let is_there = self.columns.iter().any(is_of);
        let table = table.table;
        if is_there {
            let message = format!("column {table}.{name} does not exist");
            return SqlError::new(code::UNDEFINED_COLUMN, message);
        }
        let message = format!("missing FROM-clause entry for table \"{table}\"");
        SqlError::new(code::UNDEFINED_TABLE, message)
    }
}

impl Scope {
    /// Lets the columns be qualified with a schema too.
    pub(crate) fn is_of(&mut self, schema: &str) {
        let schema: Arc<str> = Arc::from(schema);
        self.columns.iter_mut().for_each(|column| column.schema = Some(schema.clone()));
    }
}
