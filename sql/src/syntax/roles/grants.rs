//! GRANT and REVOKE.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::super::words::{Words, word};
use super::{Grant, GrantOn, RoleName, RoleStatement};
use crate::catalog::role::{PRIVILEGES, Privileges};
use crate::error::{SqlError, code};
use crate::syntax::name;

/// Names of PostgreSQL's other privileges, on kinds of objects that are not supported.
const OTHER_PRIVILEGES: [&str; 5] = ["connect", "execute", "set", "temp", "temporary"];
/// Other kinds of objects that GRANT names in PostgreSQL.
const OTHER_OBJECTS: [&str; 12] = [
    "DATABASE",
    "DOMAIN",
    "FOREIGN",
    "FUNCTION",
    "LANGUAGE",
    "LARGE",
    "PARAMETER",
    "PROCEDURE",
    "ROUTINE",
    "TABLESPACE",
    "TYPE",
    "FUNCTIONS",
];

impl Words<'_> {
    /// Parses GRANT and REVOKE, of privileges and of roles.
    pub(super) fn grant(&mut self, is_grant: bool) -> Result<RoleStatement, SqlError> {
        let direction = if is_grant { "TO" } else { "FROM" };
        let mut is_option = !is_grant && self.take("GRANT OPTION FOR");
        let is_admin_only = !is_grant && !is_option && self.take("ADMIN OPTION FOR");
        let is = |token: &&TokenWithSpan, wanted| word(&token.token).as_deref() == Some(wanted);
        let is_of_privileges = self.tokens.iter().any(|token| is(token, "ON"));
        if !is_of_privileges {
            let roles = self.list(Self::role)?;
            self.expect(direction)?;
            let to = self.list(Self::grantee)?;
            let is_admin = is_grant && self.take("WITH ADMIN OPTION");
            self.ending(is_grant)?;
            return Ok(match is_grant {
                true => RoleStatement::GrantRoles { roles, to, is_admin },
                false => RoleStatement::RevokeRoles { roles, from: to, is_admin_only },
            });
        }
        let privileges = self.privileges()?;
        self.expect("ON")?;
        let on = self.grant_on(is_grant)?;
        self.expect(direction)?;
        let roles = self.list(Self::grantee)?;
        is_option |= is_grant && self.take("WITH GRANT OPTION");
        let is_cascade = self.ending(is_grant)?;
        let grant = Grant { privileges, on, roles, is_option, is_cascade };
        Ok(if is_grant { RoleStatement::Grant(grant) } else { RoleStatement::Revoke(grant) })
    }

    fn grantee(&mut self) -> Result<RoleName, SqlError> {
        let is_group = self.tokens.get(self.at + 1).is_some_and(|next| {
            matches!(next.token, Token::Word(_)) && word(&next.token).as_deref() != Some("WITH")
        });
        let _ = is_group && self.take("GROUP");
        self.role_name()
    }

    /// Parses the clauses that may come last. Returns whether CASCADE is specified.
    fn ending(&mut self, is_grant: bool) -> Result<bool, SqlError> {
        if self.take("GRANTED BY") {
            return Err(SqlError::unsupported("GRANTED BY"));
        }
        let is_cascade = !is_grant && self.take("CASCADE");
        let _ = !is_grant && !is_cascade && self.take("RESTRICT");
        Ok(is_cascade)
    }

    fn privileges(&mut self) -> Result<Option<Vec<(&'static str, Privileges)>>, SqlError> {
        if self.take("ALL") {
            let _ = self.take("PRIVILEGES");
            self.refuse_columns()?;
            return Ok(None);
        }
        let one = |cursor: &mut Self| {
            let found = PRIVILEGES.iter().find(|(name, ..)| cursor.take(name));
            let Some(&(name, _, privilege)) = found else {
                let Some(Token::Word(word)) = cursor.token() else {
                    return Err(cursor.unexpected());
                };
                let name = word.value.to_lowercase();
                if OTHER_PRIVILEGES.contains(&&*name) {
                    return Err(SqlError::unsupported(format!("the privilege {name}")));
                }
                let message = format!("unrecognized privilege type \"{name}\"");
                return Err(SqlError::new(code::SYNTAX, message));
            };
            cursor.refuse_columns()?;
            Ok((name, privilege))
        };
        self.list(one).map(Some)
    }

    fn refuse_columns(&self) -> Result<(), SqlError> {
        if self.token() == Some(&Token::LParen) {
            return Err(SqlError::unsupported("a privilege on columns"));
        }
        Ok(())
    }

    fn grant_on(&mut self, is_grant: bool) -> Result<GrantOn, SqlError> {
        if let Some(kind) = self.take_one(&["ALL TABLES", "ALL SEQUENCES"]) {
            self.expect("IN SCHEMA")?;
            let schemas = self.schemas()?;
            let is_tables = kind == "ALL TABLES";
            return Ok(match is_tables {
                true => GrantOn::AllTables(schemas),
                false => GrantOn::AllSequences(schemas),
            });
        }
        if self.take("SCHEMA") {
            return Ok(GrantOn::Schemas(self.schemas()?));
        }
        if self.take("SEQUENCE") {
            return Ok(GrantOn::Sequences(self.list(Self::relation)?));
        }
        let is_name = self.tokens.get(self.at + 1).is_none_or(|next| {
            matches!(next.token, Token::Comma | Token::Period)
                || matches!(word(&next.token).as_deref(), Some("TO" | "FROM"))
        });
        let other = if is_name { None } else { self.take_one(&OTHER_OBJECTS) };
        let other = other.or_else(|| self.take_one(&["ALL FUNCTIONS", "ALL PROCEDURES"]));
        if let Some(other) = other {
            let verb = if is_grant { "GRANT" } else { "REVOKE" };
            return Err(SqlError::unsupported(format!("{verb} ON {other}")));
        }
        let _ = !is_name && self.take("TABLE");
        Ok(GrantOn::Tables(self.list(Self::relation)?))
    }

    pub(super) fn schemas(&mut self) -> Result<Vec<String>, SqlError> {
        Ok(self.list(Self::ident)?.iter().map(name).collect())
    }
}
