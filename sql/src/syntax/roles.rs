//! Statements about roles, privileges and schemas, in PostgreSQL's grammar.
//!
//! The general parser knows some of these statements, each in a dialect's form, and does not report
//! the location of a password. The location is needed because a session replaces the password
//! before any other component sees the statement.

mod grants;
mod schemas;

use std::ops::Range;

use sqlparser::ast;
use sqlparser::tokenizer::{Token, TokenWithSpan};

pub(crate) use self::schemas::SchemaStatement;
use super::words::{Words, word};
use super::{Written, name, table_name};
use crate::catalog::role::Privileges;
use crate::error::{SqlError, byte_offset, code};

/// The kind of object that an ALTER .. OWNER TO names. A view may be called a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnedKind {
    Table,
    View,
    Sequence,
    Type,
}

/// A statement about roles, privileges or schemas.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RoleStatement {
    Create {
        name: String,
        options: Vec<RoleOption>,
    },
    Alter {
        role: RoleName,
        options: Vec<RoleOption>,
    },
    Rename {
        role: String,
        to: String,
    },
    Drop {
        roles: Vec<RoleName>,
        if_exists: bool,
    },
    GrantRoles {
        roles: Vec<String>,
        to: Vec<RoleName>,
        is_admin: bool,
    },
    RevokeRoles {
        roles: Vec<String>,
        from: Vec<RoleName>,
        is_admin_only: bool,
    },
    Schema(SchemaStatement),
    Grant(Grant),
    Revoke(Grant),
    /// ALTER TABLE, ALTER VIEW, ALTER SEQUENCE or ALTER TYPE .. OWNER TO.
    Own {
        kind: OwnedKind,
        relation: Written,
        if_exists: bool,
        owner: RoleName,
    },
    /// SET ROLE. `None` for NONE.
    SetRole {
        role: Option<String>,
        is_local: bool,
    },
    /// SET SESSION AUTHORIZATION. `None` for DEFAULT.
    SetAuthorization {
        user: Option<String>,
        is_local: bool,
    },
}

/// A role, given by its name or by a keyword.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoleName {
    Named(String),
    CurrentUser,
    SessionUser,
    Public,
}

/// An option of CREATE ROLE or ALTER ROLE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoleOption {
    Superuser(bool),
    CreateRole(bool),
    CreateDb(bool),
    Inherit(bool),
    Login(bool),
    ConnectionLimit(i32),
    /// The password, and the byte range of its literal in the statement. `None` for NULL.
    Password(Option<(String, Range<usize>)>),
    ValidUntil(String),
    InRoles(Vec<String>),
    Members(Vec<RoleName>),
    Admins(Vec<RoleName>),
}

/// A GRANT or REVOKE of privileges.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grant {
    /// `None` for ALL.
    pub privileges: Option<Vec<(&'static str, Privileges)>>,
    pub on: GrantOn,
    pub roles: Vec<RoleName>,
    /// WITH GRANT OPTION, or GRANT OPTION FOR.
    pub is_option: bool,
    pub is_cascade: bool,
}

/// The objects that a GRANT or REVOKE names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GrantOn {
    Tables(Vec<Written>),
    Sequences(Vec<Written>),
    /// All tables of these schemas.
    AllTables(Vec<String>),
    AllSequences(Vec<String>),
    Schemas(Vec<String>),
}

impl RoleStatement {
    /// Returns PostgreSQL's command tag.
    pub(crate) fn tag(&self) -> &'static str {
        match self {
            Self::Create { .. } => "CREATE ROLE",
            Self::Alter { .. } | Self::Rename { .. } => "ALTER ROLE",
            Self::Drop { .. } => "DROP ROLE",
            Self::GrantRoles { .. } => "GRANT ROLE",
            Self::RevokeRoles { .. } => "REVOKE ROLE",
            Self::Schema(statement) => statement.tag(),
            Self::Grant(_) => "GRANT",
            Self::Revoke(_) => "REVOKE",
            Self::Own { kind: OwnedKind::Table, .. } => "ALTER TABLE",
            Self::Own { kind: OwnedKind::View, .. } => "ALTER VIEW",
            Self::Own { kind: OwnedKind::Sequence, .. } => "ALTER SEQUENCE",
            Self::Own { kind: OwnedKind::Type, .. } => "ALTER TYPE",
            Self::SetRole { .. } | Self::SetAuthorization { .. } => "SET",
        }
    }

    /// Returns the password as typed, and the byte range of its literal in the statement's text.
    pub(crate) fn password(&self) -> Option<(&str, &Range<usize>)> {
        let (Self::Create { options, .. } | Self::Alter { options, .. }) = self else {
            return None;
        };
        options.iter().find_map(|option| match option {
            RoleOption::Password(Some((text, place))) => Some((text.as_str(), place)),
            _ => None,
        })
    }
}

/// Parses a statement about roles or privileges from tokens without blanks. Returns `None` for any
/// other statement. `start` is the byte offset of the statement's own text.
///
/// # Errors
/// 42601 if the statement is malformed, 0A000 with the name of an unsupported feature.
pub(super) fn parse(
    source: &str,
    start: usize,
    tokens: &[&TokenWithSpan],
) -> Result<Option<RoleStatement>, SqlError> {
    let mut cursor = Words { source, start, tokens, at: 0 };
    let Some(statement) = cursor.statement()? else { return Ok(None) };
    match tokens.get(cursor.at) {
        None => Ok(Some(statement)),
        Some(_) => Err(cursor.unexpected()),
    }
}

impl Words<'_> {
    pub(super) fn relation(&mut self) -> Result<Written, SqlError> {
        let mut parts = vec![self.ident()?];
        while self.take_token(&Token::Period) {
            parts.push(self.ident()?);
        }
        let start = parts[0].span.start;
        table_name(&ast::ObjectName::from(parts)).map_err(|error| error.at(self.source, start))
    }

    /// Parses the name of a role. Refuses keywords such as PUBLIC.
    fn role(&mut self) -> Result<String, SqlError> {
        let place = self.place();
        match self.role_name()? {
            RoleName::Named(name) => Ok(name),
            RoleName::Public => Err(reserved("public").at(self.source, place)),
            RoleName::CurrentUser | RoleName::SessionUser => {
                let word = self.tokens[self.at - 1].token.to_string();
                let message = format!("{} cannot be used as a role name here", word.to_uppercase());
                Err(SqlError::new(code::RESERVED_NAME, message).at(self.source, place))
            }
        }
    }

    pub(super) fn role_name(&mut self) -> Result<RoleName, SqlError> {
        let place = self.place();
        if self.take_one(&["CURRENT_USER", "CURRENT_ROLE"]).is_some() {
            return Ok(RoleName::CurrentUser);
        }
        if self.take("SESSION_USER") {
            return Ok(RoleName::SessionUser);
        }
        if self.take("NONE") {
            return Err(reserved("none").at(self.source, place));
        }
        let role = name(&self.ident()?);
        match role.as_str() {
            "public" => Ok(RoleName::Public),
            "none" => Err(reserved("none").at(self.source, place)),
            _ => Ok(RoleName::Named(role)),
        }
    }

    /// Parses a string. Returns its text, and the byte range of its literal in the statement.
    fn text(&mut self) -> Result<(String, Range<usize>), SqlError> {
        let text = match self.token() {
            Some(
                Token::SingleQuotedString(text)
                | Token::EscapedStringLiteral(text)
                | Token::UnicodeStringLiteral(text),
            ) => text.clone(),
            Some(Token::DollarQuotedString(text)) => text.value.clone(),
            _ => return Err(self.unexpected()),
        };
        let span = self.tokens[self.at].span;
        let [start, end] =
            [span.start, span.end].map(|at| byte_offset(self.source, at) - self.start);
        self.at += 1;
        Ok((text, start..end))
    }

    fn statement(&mut self) -> Result<Option<RoleStatement>, SqlError> {
        const KINDS: &[&str] = &["ROLE", "USER", "GROUP"];
        let verb = self.take_one(&["CREATE", "ALTER", "DROP", "GRANT", "REVOKE", "SET", "RESET"]);
        match verb {
            Some("CREATE") if self.take_one(&["USER MAPPING"]).is_some() => Ok(None),
            Some("CREATE") if self.take("SCHEMA") => self.create_schema().map(Some),
            Some("ALTER") if self.take("SCHEMA") => self.alter_schema().map(Some),
            Some("DROP") if self.take("SCHEMA") => self.drop_schemas().map(Some),
            Some("CREATE") => match self.take_one(KINDS) {
                Some(kind) => self.create(kind == "USER").map(Some),
                None => Ok(None),
            },
            Some("ALTER") if self.take_one(&["USER MAPPING"]).is_some() => Ok(None),
            Some("ALTER") => match self.take_one(KINDS) {
                Some(_) => self.alter().map(Some),
                None => self.own(),
            },
            Some("DROP") if self.take_one(&["USER MAPPING"]).is_some() => Ok(None),
            Some("DROP") if self.take_one(KINDS).is_some() => {
                let if_exists = self.take("IF EXISTS");
                let roles = self.list(Self::role_name)?;
                Ok(Some(RoleStatement::Drop { roles, if_exists }))
            }
            Some("GRANT") => self.grant(true).map(Some),
            Some("REVOKE") => self.grant(false).map(Some),
            Some("SET") => self.set(),
            Some("RESET") if self.take("ROLE") => {
                Ok(Some(RoleStatement::SetRole { role: None, is_local: false }))
            }
            Some("RESET") if self.take("SESSION AUTHORIZATION") => {
                Ok(Some(RoleStatement::SetAuthorization { user: None, is_local: false }))
            }
            _ => Ok(None),
        }
    }

    fn create(&mut self, is_user: bool) -> Result<RoleStatement, SqlError> {
        let name = self.role()?;
        let mut options = self.options()?;
        let says_login = options.iter().any(|option| matches!(option, RoleOption::Login(_)));
        if is_user && !says_login {
            options.push(RoleOption::Login(true));
        }
        Ok(RoleStatement::Create { name, options })
    }

    fn alter(&mut self) -> Result<RoleStatement, SqlError> {
        if self.take("ALL") {
            return Err(SqlError::unsupported("ALTER ROLE ALL"));
        }
        let role = self.role_name()?;
        if self.take("RENAME TO") {
            let to = self.role()?;
            let RoleName::Named(role) = role else { return Err(self.unexpected()) };
            return Ok(RoleStatement::Rename { role, to });
        }
        match self.take_one(&["SET", "RESET", "IN DATABASE", "ADD USER", "DROP USER"]) {
            Some(what) => Err(SqlError::unsupported(format!("ALTER ROLE .. {what}"))),
            None => Ok(RoleStatement::Alter { role, options: self.options()? }),
        }
    }

    fn options(&mut self) -> Result<Vec<RoleOption>, SqlError> {
        let mut options: Vec<RoleOption> = Vec::new();
        let _ = self.take("WITH");
        while self.at < self.tokens.len() {
            if self.take_one(&["NOREPLICATION", "NOBYPASSRLS"]).is_some() {
                // Every role has these properties.
                continue;
            }
            let place = self.place();
            let option = self.option()?;
            let is_twice = |other: &RoleOption| {
                std::mem::discriminant(other) == std::mem::discriminant(&option)
            };
            if options.iter().any(is_twice) {
                let error = SqlError::new(code::SYNTAX, "conflicting or redundant options");
                return Err(error.at(self.source, place));
            }
            options.push(option);
        }
        Ok(options)
    }

    fn option(&mut self) -> Result<RoleOption, SqlError> {
        type Of = fn(bool) -> RoleOption;
        const FLAGS: [(&str, &str, Of); 5] = [
            ("SUPERUSER", "NOSUPERUSER", RoleOption::Superuser),
            ("CREATEROLE", "NOCREATEROLE", RoleOption::CreateRole),
            ("CREATEDB", "NOCREATEDB", RoleOption::CreateDb),
            ("INHERIT", "NOINHERIT", RoleOption::Inherit),
            ("LOGIN", "NOLOGIN", RoleOption::Login),
        ];
        for (yes, no, of) in FLAGS {
            if self.take(yes) {
                return Ok(of(true));
            }
            if self.take(no) {
                return Ok(of(false));
            }
        }
        if let Some(what) = self.take_one(&["REPLICATION", "BYPASSRLS", "SYSID"]) {
            return Err(SqlError::unsupported(what));
        }
        if self.take("CONNECTION LIMIT") {
            return self.connection_limit();
        }
        if self.take("VALID UNTIL") {
            return Ok(RoleOption::ValidUntil(self.text()?.0));
        }
        if self.take("PASSWORD NULL") {
            return Ok(RoleOption::Password(None));
        }
        if self.take("PASSWORD") || self.take("ENCRYPTED PASSWORD") {
            return Ok(RoleOption::Password(Some(self.text()?)));
        }
        if self.take_one(&["IN ROLE", "IN GROUP"]).is_some() {
            return Ok(RoleOption::InRoles(self.list(Self::role)?));
        }
        match self.take_one(&["ROLE", "USER", "ADMIN"]) {
            Some("ADMIN") => Ok(RoleOption::Admins(self.list(Self::role_name)?)),
            Some(_) => Ok(RoleOption::Members(self.list(Self::role_name)?)),
            None => match self.token().and_then(word) {
                Some(other)
                    if matches!(self.token(), Some(Token::Word(word)) if word.keyword
                    == sqlparser::keywords::Keyword::NoKeyword) =>
                {
                    let message = format!("unrecognized role option \"{}\"", other.to_lowercase());
                    Err(SqlError::new(code::SYNTAX, message).at(self.source, self.place()))
                }
                _ => Err(self.unexpected()),
            },
        }
    }

    fn connection_limit(&mut self) -> Result<RoleOption, SqlError> {
        let place = self.place();
        let sign = if self.take_token(&Token::Minus) { "-" } else { "" };
        let Some(Token::Number(digits, _)) = self.token() else { return Err(self.unexpected()) };
        let text = format!("{sign}{digits}");
        let Ok(limit) = text.parse::<i32>() else { return Err(self.unexpected()) };
        self.at += 1;
        if limit < -1 {
            let message = format!("invalid connection limit: {limit}");
            return Err(SqlError::new(code::INVALID_PARAMETER, message).at(self.source, place));
        }
        Ok(RoleOption::ConnectionLimit(limit))
    }

    /// Parses ALTER TABLE .. OWNER TO and the like. Returns `None` for other forms of ALTER.
    fn own(&mut self) -> Result<Option<RoleStatement>, SqlError> {
        let kind = match self.take_one(&["TABLE", "VIEW", "SEQUENCE", "TYPE"]) {
            Some("TABLE") => OwnedKind::Table,
            Some("VIEW") => OwnedKind::View,
            Some("TYPE") => OwnedKind::Type,
            Some(_) => OwnedKind::Sequence,
            None => return Ok(None),
        };
        let if_exists = self.take("IF EXISTS");
        let _ = self.take("ONLY");
        let Ok(relation) = self.relation() else { return Ok(None) };
        if !self.take("OWNER TO") {
            return Ok(None);
        }
        let owner = self.role_name()?;
        Ok(Some(RoleStatement::Own { kind, relation, if_exists, owner }))
    }

    fn set(&mut self) -> Result<Option<RoleStatement>, SqlError> {
        let is_plain_session = self.take("SESSION AUTHORIZATION");
        let is_local = !is_plain_session && self.take("LOCAL");
        if is_plain_session
            || self.take("SESSION SESSION AUTHORIZATION")
            || (is_local && self.take("SESSION AUTHORIZATION"))
        {
            let user = self.set_to("DEFAULT")?;
            return Ok(Some(RoleStatement::SetAuthorization { user, is_local }));
        }
        let _ = !is_local && self.take("SESSION");
        if !self.take("ROLE") {
            return Ok(None);
        }
        let role = self.set_to("NONE")?;
        Ok(Some(RoleStatement::SetRole { role, is_local }))
    }

    /// Parses a name, written as a name or as a string. Returns `None` for DEFAULT and for the word
    /// `none`.
    fn set_to(&mut self, none: &str) -> Result<Option<String>, SqlError> {
        let _ = self.take_token(&Token::Eq) || self.take("TO");
        if self.take(none) || self.take("DEFAULT") {
            return Ok(None);
        }
        match self.token() {
            Some(Token::Word(_)) => Ok(Some(name(&self.ident()?))),
            _ => Ok(Some(self.text()?.0).filter(|text| !text.eq_ignore_ascii_case(none))),
        }
    }
}

/// Returns the error of a name that no role can have.
pub(crate) fn reserved(name: &str) -> SqlError {
    SqlError::new(code::RESERVED_NAME, format!("role name \"{name}\" is reserved"))
}
