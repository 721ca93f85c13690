//! OIDs as names, and names as OIDs: `regclass` and similar types.

use super::{Entry, Kind, SystemCatalog, types};
use crate::catalog::{Enums, PUBLIC, QualifiedName};
use crate::error::{SqlError, code};
use crate::expr::bind::column_type;
use crate::syntax::{self, quoted_ident};
use crate::types::{ColumnType, Reg, SqlType};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

/// The schema that is searched first, whatever the search path.
const PG_CATALOG_NAME: &str = "pg_catalog";
/// Displayed in place of a name for OID 0.
const NOTHING: &str = "-";

/// Formats a built-in type as in declarations, by its OID.
fn format_type(oid: u32, modifier: i32) -> String {
    if oid == 0 {
        return NOTHING.to_owned();
    }
    // The vector types of the catalog are displayed by their own names, not as arrays.
    for base in [SqlType::Int2Vector, SqlType::OidVector] {
        if base.oid() == oid {
            return base.internal_name().into_owned();
        }
    }
    let known = SqlType::from_oid(oid).filter(|base| base.enumeration().is_none());
    match (known, types::row(oid)) {
        (Some(base), _) => ColumnType { base, modifier }.to_string(),
        (None, Some(row)) => {
            let element = types::row(row.name.strip_prefix('_').map_or(0, |_| row.element));
            element.map_or_else(|| row.name.clone(), |element| format!("{}[]", element.name))
        }
        (None, None) => "???".to_owned(),
    }
}

/// Maximum length in bytes of a text that is parsed as a name. It is far longer than any name.
const NAME_TEXT_MAX: usize = 500;

/// Returns the OID of the type that a text names.
pub(super) fn type_named(text: &str, enums: &Enums) -> Result<u32, SqlError> {
    check_length(text)?;
    if let Some(row) = types::named(text) {
        return Ok(row.oid);
    }
    let array = text.strip_prefix('_').and_then(|name| enums.named(name)?.base().array());
    if let Some(array) = array {
        return Ok(array.oid());
    }
    let malformed = |_| SqlError::new(code::SYNTAX, format!("invalid type name \"{text}\""));
    let mut parser = Parser::new(&PostgreSqlDialect {}).try_with_sql(text).map_err(malformed)?;
    let parsed = parser.parse_data_type().map_err(malformed)?;
    // A type that is not supported yet does not exist.
    let absent = |_| {
        let message = format!("type \"{text}\" does not exist");
        SqlError::new(code::UNDEFINED_OBJECT, message)
    };
    Ok(column_type(&parsed, enums).map_err(absent)?.base.oid())
}

/// # Errors
/// If a text is too long to be a name.
fn check_length(text: &str) -> Result<(), SqlError> {
    if text.len() <= NAME_TEXT_MAX {
        return Ok(());
    }
    let message = format!("a name of more than {NAME_TEXT_MAX} bytes");
    Err(SqlError::new(code::LIMIT_EXCEEDED, message))
}

/// Parses a name to its schema and the object's own name.
fn parts_of(text: &str) -> Result<(Option<String>, String), SqlError> {
    check_length(text)?;
    let mut parts = syntax::name_parts(&syntax::object_from_text(text)?)?;
    let name = parts.pop().unwrap_or_default();
    Ok((parts.pop(), name))
}

impl SystemCatalog {
    /// Formats a type as in declarations, by its OID: `format_type`.
    pub(crate) fn format_type(&self, oid: u32, modifier: i32) -> String {
        match self.enum_of(oid) {
            Some((one, false)) => self.shown_type(&one.name),
            Some((one, true)) => format!("{}[]", self.shown_type(&one.name)),
            None => format_type(oid, modifier),
        }
    }

    /// Formats a user's type, with its schema if the search path does not find it.
    fn shown_type(&self, name: &str) -> String {
        let is_found = self.path.names().iter().any(|schema| schema == PUBLIC);
        let name = quoted_ident(name);
        if is_found { name } else { format!("{PUBLIC}.{name}") }
    }

    /// Returns the OID of the object that a text names, or `None` if it does not exist.
    ///
    /// # Errors
    /// If the text is not a name.
    pub(crate) fn found(&self, kind: Reg, text: &str) -> Result<Option<u32>, SqlError> {
        let trimmed = text.trim();
        if trimmed == NOTHING {
            return Ok(Some(0));
        }
        if !trimmed.is_empty() && trimmed.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = trimmed.parse::<u32>().map(Some);
            return number.map_err(|_| {
                let message = format!("value \"{text}\" is out of range for type oid");
                SqlError::new(code::NUMERIC_OUT_OF_RANGE, message)
            });
        }
        if kind == Reg::Type {
            return match type_named(trimmed, &self.enums) {
                Ok(oid) => Ok(Some(oid)),
                Err(error) if error.code == code::UNDEFINED_OBJECT => Ok(None),
                Err(error) => Err(error),
            };
        }
        let (trimmed, types) = match kind {
            Reg::Signature => self.signature_named(trimmed)?,
            _ => (trimmed, Vec::new()),
        };
        let (schema, name) = parts_of(trimmed)?;
        let namespace = schema.as_deref().map(|schema| self.namespace(schema));
        if let (Some(None), Some(schema)) = (namespace, &schema) {
            let message = format!("schema \"{schema}\" does not exist");
            return Err(SqlError::new(code::UNDEFINED_SCHEMA, message));
        }
        Ok(match kind {
            Reg::Class => self.relation(namespace.flatten(), &name),
            Reg::Namespace => self.namespace(&name),
            Reg::Procedure => self.procedure_named(namespace.flatten(), &name)?,
            Reg::Signature => self.procedure_given(namespace.flatten(), &name, &types),
            Reg::Role => Some(self.role_oid(&name)).filter(|oid| *oid != 0),
            Reg::Type => unreachable!("a type is no plain name"),
        })
    }

    /// Returns the OID of the object that a text names.
    ///
    /// # Errors
    /// If it does not exist.
    pub(crate) fn number(&self, kind: Reg, text: &str) -> Result<u32, SqlError> {
        if let Some(oid) = self.found(kind, text)? {
            return Ok(oid);
        }
        let (what, code) = match kind {
            Reg::Class => ("relation", code::UNDEFINED_TABLE),
            Reg::Namespace => ("schema", code::UNDEFINED_SCHEMA),
            Reg::Procedure | Reg::Signature => ("function", code::UNDEFINED_FUNCTION),
            Reg::Role => ("role", code::UNDEFINED_OBJECT),
            Reg::Type => ("type", code::UNDEFINED_OBJECT),
        };
        Err(SqlError::new(code, format!("{what} \"{text}\" does not exist")))
    }

    /// Formats an OID as the name of its object, or as a number if there is no object.
    pub(crate) fn shown(&self, kind: Reg, oid: u32) -> String {
        let found = match kind {
            _ if oid == 0 => Some(NOTHING.to_owned()),
            Reg::Class => self.relations.get(&oid).map(|entry| {
                let name = quoted_ident(&entry.name);
                match self.relation(None, &entry.name) == Some(oid) {
                    true => name,
                    false => {
                        format!("{}.{name}", quoted_ident(self.namespace_name(entry.namespace)))
                    }
                }
            }),
            Reg::Namespace => {
                Some(self.namespace_name(oid)).filter(|it| !it.is_empty()).map(quoted_ident)
            }
            Reg::Procedure | Reg::Signature => self.procedure_shown(oid, kind == Reg::Signature),
            Reg::Role => self.roles.get(&oid).map(|role| quoted_ident(&role.name)),
            Reg::Type => {
                let is_known = types::row(oid).is_some() || self.enum_of(oid).is_some();
                is_known.then(|| self.format_type(oid, -1))
            }
        };
        found.unwrap_or_else(|| oid.to_string())
    }

    /// Returns the qualified name of the sequence that a column owns, or `None` if it owns none.
    ///
    /// # Errors
    /// If the column does not exist.
    pub(crate) fn serial_sequence(
        &self,
        table: &str,
        column: &str,
    ) -> Result<Option<String>, SqlError> {
        let oid = self.number(Reg::Class, table)?;
        let Some(Entry { kind: Kind::Table(table), .. }) = self.relations.get(&oid) else {
            return Ok(None);
        };
        let at = table.position(column).ok_or_else(|| {
            let name = &table.name;
            let message = format!("column \"{column}\" of relation \"{name}\" does not exist");
            SqlError::new(code::UNDEFINED_COLUMN, message)
        })?;
        let found = table.sequences.iter().find(|(of, _)| *of == at);
        let whole = |name: &QualifiedName| {
            format!("{}.{}", quoted_ident(name.schema()), quoted_ident(name.name()))
        };
        Ok(found.map(|(_, name)| whole(name)))
    }

    /// Returns the name of a role, as `pg_get_userbyid` does.
    pub(crate) fn role_name(&self, oid: u32) -> String {
        let unknown = || format!("unknown (OID={oid})");
        self.roles.get(&oid).map_or_else(unknown, |role| role.name.clone())
    }

    /// Returns whether the search path finds a relation by its name. Returns `None` if it does not
    /// exist.
    pub(crate) fn is_visible(&self, oid: u32) -> Option<bool> {
        let entry = self.relations.get(&oid)?;
        Some(self.relation(None, &entry.name) == Some(oid))
    }

    /// Returns whether a relation is a table that users created.
    pub(crate) fn is_user_table(&self, oid: u32) -> bool {
        matches!(self.relations.get(&oid), Some(entry) if matches!(entry.kind, Kind::Table(_)))
    }

    /// Returns the schemas of the search path. If `is_whole`, includes the one that is always
    /// searched.
    pub(crate) fn search_path(&self, is_whole: bool) -> Vec<&str> {
        let path = self.path.names().iter().map(String::as_str);
        let is_first = is_whole && !path.clone().any(|name| name == PG_CATALOG_NAME);
        is_first.then_some(PG_CATALOG_NAME).into_iter().chain(path).collect()
    }

    /// Returns the OID of a schema.
    ///
    /// # Errors
    /// If it does not exist.
    pub(crate) fn schema_named(&self, name: &str) -> Result<u32, SqlError> {
        self.namespace(name).ok_or_else(|| SqlError::undefined_schema(name))
    }

    /// Returns the OID of a schema.
    pub(super) fn namespace(&self, name: &str) -> Option<u32> {
        self.namespaces().find(|(_, of)| *of == name).map(|(oid, _)| oid)
    }

    /// Returns the name of a schema.
    pub(super) fn namespace_name(&self, oid: u32) -> &str {
        self.namespaces().find(|(of, _)| *of == oid).map_or("", |(_, name)| name)
    }
}
