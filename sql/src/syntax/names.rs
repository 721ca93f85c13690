//! Names: as statements have them, as the catalog keeps them, and as texts show them.

use std::fmt;

use sqlparser::ast;
use sqlparser::parser::Parser;

use super::{Postgres, refused, reserved};
use crate::catalog::{PUBLIC, QualifiedName, schema};
use crate::error::{SqlError, code};
use crate::system;

/// The name that PostgreSQL gives an identifier: folded to lower case unless it was quoted.
pub(crate) fn name(ident: &ast::Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// The parts of a possibly qualified name.
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

/// A name as a statement has it. It is shown as it was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Written {
    /// Nothing where it is looked for.
    pub schema: Option<String>,
    pub name: String,
}

impl Written {
    /// A name without a schema.
    pub(crate) fn plain(name: &str) -> Self {
        Self { schema: None, name: name.to_owned() }
    }

    /// One that says all.
    pub(crate) fn whole(name: &QualifiedName) -> Self {
        Self { schema: Some(name.schema().to_owned()), name: name.name().to_owned() }
    }

    /// What it stands for in a text that the catalog keeps.
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

/// The name of what users make.
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
        // Who asks for one of them to be read does not come here.
        [] | [_] if is_system => denied(),
        [] if refused::is_of_catalog(&table) => Err(unsupported()),
        [] => Ok(Written { schema: None, name: table }),
        [schema] if schema::SYSTEM.contains(&schema.as_str()) => {
            if refused::is_of_catalog(&table) {
                return Err(unsupported());
            }
            let message = format!("relation \"{schema}.{table}\" does not exist");
            Err(SqlError::new(code::UNDEFINED_TABLE, message))
        }
        [schema] => Ok(Written { schema: Some(schema.clone()), name: table }),
        _ => Err(SqlError::unsupported("a name with a database")),
    }
}

/// The name that a text says, as `regclass` reads it: folded unless it is quoted.
pub(crate) fn name_from_text(text: &str) -> Result<Written, SqlError> {
    table_name(&object_from_text(text)?)
}

/// The name that a text says, with all its parts.
pub(crate) fn object_from_text(text: &str) -> Result<ast::ObjectName, SqlError> {
    let invalid = |_| SqlError::new(code::INVALID_NAME, "invalid name syntax");
    let mut parser = Parser::new(&Postgres).try_with_sql(text).map_err(invalid)?;
    parser.parse_object_name(false).map_err(invalid)
}

/// An identifier as `quote_ident` writes it: what is a reserved word needs its quotes too.
pub(crate) fn quoted_ident(name: &str) -> String {
    let is_word = reserved::RESERVED.binary_search(&name).is_ok();
    if is_word || name.is_empty() { format!("\"{name}\"") } else { quoted(name) }
}

/// A name as a kept text has it: without a schema where that is `public`.
pub(crate) fn quoted_name(name: &QualifiedName) -> String {
    match name.schema() {
        PUBLIC => quoted(name.name()),
        schema => format!("{}.{}", quoted(schema), quoted(name.name())),
    }
}

/// `"name"` where an identifier needs its quotes.
pub(crate) fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit();
    if name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && name.chars().all(is_plain)
    {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}
