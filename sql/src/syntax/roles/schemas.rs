//! CREATE SCHEMA, ALTER SCHEMA and DROP SCHEMA.

use super::super::words::Words;
use super::{RoleName, RoleStatement};
use crate::error::SqlError;
use crate::syntax::name;

/// A statement about schemas.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SchemaStatement {
    Create {
        /// If `None`, the schema has the name of its owner.
        name: Option<String>,
        /// If `None`, the current user.
        owner: Option<RoleName>,
        if_not_exists: bool,
    },
    Own {
        name: String,
        owner: RoleName,
    },
    Drop {
        names: Vec<String>,
        if_exists: bool,
        is_cascade: bool,
    },
}

impl SchemaStatement {
    /// Returns PostgreSQL's command tag.
    pub(super) fn tag(&self) -> &'static str {
        match self {
            Self::Create { .. } => "CREATE SCHEMA",
            Self::Own { .. } => "ALTER SCHEMA",
            Self::Drop { .. } => "DROP SCHEMA",
        }
    }
}

impl Words<'_> {
    /// Parses the rest of a statement after `CREATE SCHEMA`.
    pub(super) fn create_schema(&mut self) -> Result<RoleStatement, SqlError> {
        let if_not_exists = self.take("IF NOT EXISTS");
        let is_unnamed = self.take("AUTHORIZATION");
        let schema = if is_unnamed { None } else { Some(name(&self.ident()?)) };
        let has_owner = is_unnamed || self.take("AUTHORIZATION");
        let owner = if has_owner { Some(self.role_name()?) } else { None };
        if self.take_one(&["CREATE", "GRANT"]).is_some() {
            return Err(SqlError::unsupported("statements in CREATE SCHEMA"));
        }
        let create = SchemaStatement::Create { name: schema, owner, if_not_exists };
        Ok(RoleStatement::Schema(create))
    }

    /// Parses the rest of a statement after `ALTER SCHEMA`.
    pub(super) fn alter_schema(&mut self) -> Result<RoleStatement, SqlError> {
        let name = name(&self.ident()?);
        if self.take("RENAME TO") {
            return Err(SqlError::unsupported("ALTER SCHEMA .. RENAME TO"));
        }
        self.expect("OWNER TO")?;
        let owner = self.role_name()?;
        Ok(RoleStatement::Schema(SchemaStatement::Own { name, owner }))
    }

    /// Parses the rest of a statement after `DROP SCHEMA`.
    pub(super) fn drop_schemas(&mut self) -> Result<RoleStatement, SqlError> {
        let if_exists = self.take("IF EXISTS");
        let names = self.schemas()?;
        let is_cascade = self.take("CASCADE");
        let _ = !is_cascade && self.take("RESTRICT");
        Ok(RoleStatement::Schema(SchemaStatement::Drop { names, if_exists, is_cascade }))
    }
}
