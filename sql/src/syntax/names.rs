//! Names in syntax trees and texts.

use sqlparser::ast;
use sqlparser::parser::Parser;

use super::{Postgres, Written, unsupported};
use crate::catalog::schema;
use crate::error::{SqlError, code};
use crate::vocabulary::system;

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

/// Returns the name of a relation that users create.
pub(crate) fn table_name(object: &ast::ObjectName) -> Result<Written, SqlError> {
    let mut parts = name_parts(object)?;
    let is_system = system::is_name(&parts);
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
