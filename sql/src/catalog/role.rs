//! Roles, and who may do what with which relation.
//!
//! ```text
//!   02 name -> version u8, Role             what a role is, and what it is a member of
//!   03 name -> version u8, Access           whose a relation is, and what others may do with it
//!   04      -> version u8, Access           the same of the schema `public`
//!   04 name -> version u8, Access           the same of another schema
//!   05 name -> what is kept of its password, as PostgreSQL writes it
//!   06      -> a secret, from which logins of users that there are not get their salts
//! ```
//!
//! What a statement needs to know of its user is in the first two, so that a change of a password
//! conflicts with no statement. A relation without a record belongs to the bootstrap superuser, who
//! is there whether it has a record or not.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pangea_core::codec::DecodeError;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan, Stop};
use pangea_core::value::Value;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{CATALOG, PUBLIC, QualifiedName};
use crate::error::Failure;
use crate::syntax::quoted;

/// The superuser that is there from the beginning.
pub const BOOTSTRAP: &str = "pangea";

const ROLE_PREFIX: u8 = 2;
const ACCESS_PREFIX: u8 = 3;
const SCHEMA_PREFIX: u8 = 4;
const PASSWORD_PREFIX: u8 = 5;
const MOCK_KEY: &[u8] = &[6];
/// The layout of records that this code writes.
const VERSION: u8 = 1;

/// A role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Role {
    pub name: String,
    pub is_superuser: bool,
    pub creates_roles: bool,
    pub creates_databases: bool,
    pub can_login: bool,
    /// Whether it has the privileges of the roles that it is a member of.
    pub inherits: bool,
    /// The most sessions; no limit below 0.
    pub connection_limit: i32,
    /// Until when its password counts, in microseconds since 2000-01-01.
    pub valid_until: Option<i64>,
    /// In the order of their names.
    pub member_of: Vec<Membership>,
}

/// A role that another one is a member of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Membership {
    pub role: String,
    /// Whether the member may make others members.
    pub is_admin: bool,
}

impl Role {
    /// What `CREATE ROLE` makes of a name.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_superuser: false,
            creates_roles: false,
            creates_databases: false,
            can_login: false,
            inherits: true,
            connection_limit: -1,
            valid_until: None,
            member_of: Vec::new(),
        }
    }

    /// A role that may do everything.
    pub(crate) fn superuser(name: &str) -> Self {
        let (is_superuser, creates_roles, creates_databases, can_login) = (true, true, true, true);
        let new = Self::new(name);
        Self { is_superuser, creates_roles, creates_databases, can_login, ..new }
    }
}

/// A set of privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Privileges(pub u16);

/// Each privilege by its name, and its letter in a list of who may do what; in the order of such a
/// list.
pub(crate) const PRIVILEGES: [(&str, char, Privileges); 9] = [
    ("INSERT", 'a', Privileges::INSERT),
    ("SELECT", 'r', Privileges::SELECT),
    ("UPDATE", 'w', Privileges::UPDATE),
    ("DELETE", 'd', Privileges::DELETE),
    ("TRUNCATE", 'D', Privileges::TRUNCATE),
    ("REFERENCES", 'x', Privileges::REFERENCES),
    ("TRIGGER", 't', Privileges::TRIGGER),
    ("USAGE", 'U', Privileges::USAGE),
    ("CREATE", 'C', Privileges::CREATE),
];

impl Privileges {
    pub(crate) const SELECT: Self = Self(1);
    pub(crate) const INSERT: Self = Self(1 << 1);
    pub(crate) const UPDATE: Self = Self(1 << 2);
    pub(crate) const DELETE: Self = Self(1 << 3);
    pub(crate) const TRUNCATE: Self = Self(1 << 4);
    pub(crate) const REFERENCES: Self = Self(1 << 5);
    pub(crate) const TRIGGER: Self = Self(1 << 6);
    pub(crate) const USAGE: Self = Self(1 << 7);
    pub(crate) const CREATE: Self = Self(1 << 8);
    /// All that there are of a table.
    pub(crate) const TABLE: Self = Self(0x7f);
    /// All that there are of a sequence.
    pub(crate) const SEQUENCE: Self = Self(1 | 1 << 2 | 1 << 7);
    /// All that there are of a schema.
    pub(crate) const SCHEMA: Self = Self(1 << 7 | 1 << 8);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What somebody was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Given {
    /// The role; nothing for everybody.
    pub to: Option<String>,
    /// Who gave it.
    pub by: String,
    pub privileges: Privileges,
    /// Those of them that it may give on.
    pub with_option: Privileges,
}

/// Whose something is, and what others may do with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Access {
    pub owner: String,
    pub given: Vec<Given>,
}

impl Access {
    /// Of one owner, and nobody else.
    pub(crate) fn of(owner: &str) -> Self {
        Self { owner: owner.to_owned(), given: Vec::new() }
    }

    /// The schema `public` as it is at first: its owner alone makes things there, as since
    /// PostgreSQL 15.
    fn of_schema() -> Self {
        let (to, by) = (None, BOOTSTRAP.to_owned());
        let (privileges, with_option) = (Privileges::USAGE, Privileges::default());
        let given = vec![Given { to, by, privileges, with_option }];
        Self { owner: BOOTSTRAP.to_owned(), given }
    }
}

/// What has an [`Access`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    Table(QualifiedName),
    Sequence(QualifiedName),
    View(QualifiedName),
    /// A type of `public`.
    Type(String),
    Schema(String),
}

impl Object {
    /// What PostgreSQL calls it in messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Table(_) => "table",
            Self::Sequence(_) => "sequence",
            Self::View(_) => "view",
            Self::Type(_) => "type",
            Self::Schema(_) => "schema",
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Table(name) | Self::Sequence(name) | Self::View(name) => name.name(),
            Self::Type(name) | Self::Schema(name) => name,
        }
    }

    /// The relation that it is.
    pub(crate) fn relation(&self) -> Option<&QualifiedName> {
        match self {
            Self::Table(name) | Self::Sequence(name) | Self::View(name) => Some(name),
            Self::Type(_) | Self::Schema(_) => None,
        }
    }

    fn is_public(&self) -> bool {
        matches!(self, Self::Schema(name) if name == PUBLIC)
    }

    fn key(&self) -> Key {
        match self {
            Self::Table(name) | Self::Sequence(name) | Self::View(name) => {
                named(ACCESS_PREFIX, name.as_kept())
            }
            // No relation has the name of a type.
            Self::Type(name) => named(ACCESS_PREFIX, QualifiedName::public(name).as_kept()),
            Self::Schema(name) => named(SCHEMA_PREFIX, if name == PUBLIC { "" } else { name }),
        }
    }
}

/// What a key of these records is of, as it is called in messages.
pub(crate) fn described_key(key: &[u8]) -> Option<String> {
    let (&prefix, name) = key.split_first()?;
    let name = quoted(std::str::from_utf8(name).ok()?);
    match prefix {
        ROLE_PREFIX => Some(format!("Role {name}")),
        PASSWORD_PREFIX => Some(format!("The password of role {name}")),
        ACCESS_PREFIX => Some(format!("The list of who may do what with {name}")),
        SCHEMA_PREFIX => Some("The list of who may do what in the schema".to_owned()),
        _ => None,
    }
}

fn named(prefix: u8, name: &str) -> Key {
    super::key_of(prefix, name)
}

fn encode(record: &impl Serialize) -> Value {
    let mut out = vec![VERSION];
    out.extend(postcard::to_stdvec(record).expect("a vector takes anything"));
    Value::from(out)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let malformed = || DecodeError::new("catalog record of a role");
    let (version, record) = bytes.split_first().ok_or_else(malformed)?;
    if *version != VERSION {
        return Err(DecodeError::new("version of a catalog record of a role"));
    }
    match postcard::take_from_bytes(record) {
        Ok((record, [])) => Ok(record),
        _ => Err(malformed()),
    }
}

/// A role of this name, if there is one.
pub(crate) fn find(name: &str, cx: &mut dyn Context) -> Result<Option<Role>, Failure> {
    match cx.get(CATALOG, &named(ROLE_PREFIX, name))? {
        Some(record) => Ok(Some(decode(&record)?)),
        None => Ok((name == BOOTSTRAP).then(|| Role::superuser(name))),
    }
}

pub(crate) fn put(role: &Role, cx: &mut dyn Context) -> Result<(), Stop> {
    cx.put(CATALOG, named(ROLE_PREFIX, &role.name), encode(role))
}

pub(crate) fn remove(name: &str, cx: &mut dyn Context) -> Result<(), Stop> {
    set_password(name, None, cx)?;
    cx.delete(CATALOG, named(ROLE_PREFIX, name))
}

/// What takes a record's name and its bytes.
type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), DecodeError> + 'a;

fn scan(prefix: u8, cx: &mut dyn Context, visit: &mut Visitor<'_>) -> Result<(), Failure> {
    let (range, direction) = (KeyRange::prefix(&[prefix]), Direction::Forward);
    let mut result = Ok(());
    cx.scan(&Scan { table: CATALOG, range, direction }, &mut |key, record| {
        result = visit(&key[1..], record);
        if result.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(result?)
}

/// All roles that have a record.
pub(crate) fn all(cx: &mut dyn Context) -> Result<Vec<Role>, Failure> {
    let mut roles = Vec::new();
    scan(ROLE_PREFIX, cx, &mut |_, record| {
        roles.push(decode(record)?);
        Ok(())
    })?;
    Ok(roles)
}

/// Whose an object is, and what others may do with it.
pub(crate) fn access(object: &Object, cx: &mut dyn Context) -> Result<Access, Failure> {
    match cx.get(CATALOG, &object.key())? {
        Some(record) => Ok(decode(&record)?),
        None if object.is_public() => Ok(Access::of_schema()),
        None => Ok(Access::of(BOOTSTRAP)),
    }
}

pub(crate) fn put_access(
    object: &Object,
    access: &Access,
    cx: &mut dyn Context,
) -> Result<(), Stop> {
    cx.put(CATALOG, object.key(), encode(access))
}

/// Forgets whose something was, if that is known.
pub(crate) fn remove_access(object: &Object, cx: &mut dyn Context) -> Result<(), Stop> {
    let key = object.key();
    if cx.get(CATALOG, &key)?.is_some() {
        cx.delete(CATALOG, key)?;
    }
    Ok(())
}

/// What a record is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Relation(QualifiedName),
    Schema(String),
}

/// The records of all relations and schemas that have one, and that of `public`, by their keys.
pub(crate) fn all_access(cx: &mut dyn Context) -> Result<Vec<(Key, Owned, Access)>, Failure> {
    let mut found = Vec::new();
    scan(ACCESS_PREFIX, cx, &mut |name, record| {
        let name = QualifiedName::kept(name)?;
        let key = named(ACCESS_PREFIX, name.as_kept());
        found.push((key, Owned::Relation(name), decode(record)?));
        Ok(())
    })?;
    let public = Object::Schema(PUBLIC.to_owned());
    found.push((public.key(), Owned::Schema(PUBLIC.to_owned()), access(&public, cx)?));
    scan(SCHEMA_PREFIX, cx, &mut |name, record| {
        let name = std::str::from_utf8(name).map_err(|_| DecodeError::new("name of a schema"))?;
        if !name.is_empty() {
            let key = named(SCHEMA_PREFIX, name);
            found.push((key, Owned::Schema(name.to_owned()), decode(record)?));
        }
        Ok(())
    })?;
    Ok(found)
}

pub(crate) fn put_access_at(key: Key, access: &Access, cx: &mut dyn Context) -> Result<(), Stop> {
    cx.put(CATALOG, key, encode(access))
}

/// What is kept of a role's password, as PostgreSQL writes it.
pub(crate) fn password(name: &str, cx: &mut dyn Context) -> Result<Option<String>, Failure> {
    let Some(bytes) = cx.get(CATALOG, &named(PASSWORD_PREFIX, name))? else { return Ok(None) };
    let text = std::str::from_utf8(&bytes).map_err(|_| DecodeError::new("verifier"))?;
    Ok(Some(text.to_owned()))
}

pub(crate) fn set_password(
    name: &str,
    verifier: Option<&str>,
    cx: &mut dyn Context,
) -> Result<(), Stop> {
    let key = named(PASSWORD_PREFIX, name);
    match verifier {
        Some(verifier) => cx.put(CATALOG, key, Value::from(verifier.as_bytes())),
        None if cx.get(CATALOG, &key)?.is_some() => cx.delete(CATALOG, key),
        None => Ok(()),
    }
}

/// The secret from which logins of users that there are not get their salts, if there is one yet.
pub(crate) fn mock_secret(cx: &mut dyn Context) -> Result<Option<Vec<u8>>, Failure> {
    Ok(cx.get(CATALOG, MOCK_KEY)?.map(|secret| secret.to_vec()))
}

pub(crate) fn put_mock_secret(secret: &[u8], cx: &mut dyn Context) -> Result<(), Stop> {
    cx.put(CATALOG, Key::from(MOCK_KEY), Value::from(secret))
}

/// The roles that a role is a member of, at once or by way of others, with itself. `is_followed`
/// says of whose memberships that goes on: `inherits` for privileges, all for SET ROLE.
pub(crate) fn roles_of(
    name: &str,
    is_followed: impl Fn(&Role) -> bool,
    cx: &mut dyn Context,
) -> Result<BTreeSet<String>, Failure> {
    memberships_of(name, is_followed, |name| find(name, cx))
}

/// The same, where roles are found otherwise.
///
/// # Errors
/// Those of finding a role.
pub(crate) fn memberships_of<E>(
    name: &str,
    is_followed: impl Fn(&Role) -> bool,
    mut find: impl FnMut(&str) -> Result<Option<Role>, E>,
) -> Result<BTreeSet<String>, E> {
    let mut found = BTreeSet::from([name.to_owned()]);
    let mut open = vec![name.to_owned()];
    while let Some(name) = open.pop() {
        let Some(role) = find(&name)? else { continue };
        if !is_followed(&role) {
            continue;
        }
        for membership in role.member_of {
            if found.insert(membership.role.clone()) {
                open.push(membership.role);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_encoding_and_no_part_of_it_is_one() {
        let membership = Membership { role: "r".to_owned(), is_admin: true };
        let role = Role { member_of: vec![membership], ..Role::superuser("s") };
        let bytes = encode(&role);
        assert_eq!(decode::<Role>(&bytes), Ok(role));
        for len in 0..bytes.len() {
            assert!(decode::<Role>(&bytes[..len]).is_err(), "cut at {len}");
        }
        let access = Access::of_schema();
        assert_eq!(decode::<Access>(&encode(&access)), Ok(access));
    }
}
