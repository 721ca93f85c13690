//! Names: as written in statements, as stored in the catalog, and as displayed.

use std::fmt;

use sqlparser::ast;
use sqlparser::parser::Parser;

use super::{Postgres, reserved, unsupported};
use crate::catalog::{PUBLIC, QualifiedName, schema};
use crate::error::{SqlError, code};
use crate::system;

/// Returns the name that PostgreSQL gives an identifier: folded to lower case unless it was quoted.
pub(crate) fn name(ident: &ast::Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// Returns the parts of a possibly qualified name.
pub(crate) fn name_parts(object: &ast::ObjectName) -> Result<Vec<String>, SqlError> {
    object
        .0
        .iter()
        .map(|part| match part {
            ast::ObjectNamePart::Identifier(ident) => match name(ident) {
                name if name.contains('\0') => {
                    Err(SqlError::new(code::SYNTAX, "a name with a zero byte"))
                }
                name => Ok(name),
            },
            ast::ObjectNamePart::Function(_) => Err(SqlError::unsupported("a computed name")),
        })
        .collect()
}

/// A name as written in a statement. It is displayed as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Written {
    /// `None` if the name is looked up in the search path.
    pub schema: Option<String>,
    pub name: String,
}

impl Written {
    /// Returns a name without a schema.
    pub(crate) fn plain(name: &str) -> Self {
        Self { schema: None, name: name.to_owned() }
    }

    /// Returns a qualified name.
    pub(crate) fn whole(name: &QualifiedName) -> Self {
        Self { schema: Some(name.schema().to_owned()), name: name.name().to_owned() }
    }

    /// Returns the name that it denotes in a text stored in the catalog.
    pub(crate) fn kept(&self) -> QualifiedName {
        QualifiedName::new(self.schema.as_deref().unwrap_or(PUBLIC), &self.name)
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Returns the name of a relation that users create.
pub(crate) fn table_name(object: &ast::ObjectName) -> Result<Written, SqlError> {
    let mut parts = name_parts(object)?;
    let is_system = system::find(&parts).is_some();
    let table = parts.pop().unwrap_or_default();
    let denied = || {
        let message = format!("permission denied: \"{table}\" is a system catalog");
        Err(SqlError::new(code::NO_PRIVILEGE, message))
    };
    let unsupported = || SqlError::unsupported(format!("the catalog table {table}"));
    match parts.as_slice() {
        // Reads of system catalogs do not reach this function.
        [] | [_] if is_system => denied(),
        [] if unsupported::is_of_catalog(&table) => Err(unsupported()),
        [] => Ok(Written { schema: None, name: table }),
        [schema] if schema::SYSTEM.contains(&schema.as_str()) => {
            if unsupported::is_of_catalog(&table) {
                return Err(unsupported());
            }
            let message = format!("relation \"{schema}.{table}\" does not exist");
            Err(SqlError::new(code::UNDEFINED_TABLE, message))
        }
        [schema] => Ok(Written { schema: Some(schema.clone()), name: table }),
        _ => Err(SqlError::unsupported("a name with a database")),
    }
}

/// Parses a name as `regclass` does: folded unless it is quoted.
pub(crate) fn name_from_text(text: &str) -> Result<Written, SqlError> {
    table_name(&object_from_text(text)?)
}

/// Parses a name with all its parts.
pub(crate) fn object_from_text(text: &str) -> Result<ast::ObjectName, SqlError> {
    let invalid = |_| SqlError::new(code::INVALID_NAME, "invalid name syntax");
    let mut parser = Parser::new(&Postgres).try_with_sql(text).map_err(invalid)?;
    parser.parse_object_name(false).map_err(invalid)
}

/// Quotes an identifier as `quote_ident` does. Reserved words are quoted too.
pub(crate) fn quoted_ident(name: &str) -> String {
    let is_word = reserved::RESERVED.binary_search(&name).is_ok();
    if is_word || name.is_empty() { format!("\"{name}\"") } else { quoted(name) }
}

/// Formats a name as in stored texts: without the schema if that is `public`.
pub(crate) fn quoted_name(name: &QualifiedName) -> String {
    match name.schema() {
        PUBLIC => quoted(name.name()),
        schema => format!("{}.{}", quoted(schema), quoted(name.name())),
    }
}

/// Returns `"name"` if the identifier needs quotes, otherwise the name.
pub(crate) fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit();
    if name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && name.chars().all(is_plain)
    {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}
