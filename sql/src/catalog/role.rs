//! Roles, and the access lists of schema objects.
//!
//! ```text
//!   02 name -> version u8, Role             attributes and memberships of a role
//!   03 name -> version u8, Access           owner and grants of a relation
//!   04      -> version u8, Access           owner and grants of the schema `public`
//!   04 name -> version u8, Access           owner and grants of another schema
//!   05 name -> password verifier, in PostgreSQL's format
//!   06      -> a secret, from which salts for logins of unknown users are derived
//! ```
//!
//! A statement reads only the first two kinds of record about its user, so changing a password
//! conflicts with no statement. A relation without an access record belongs to the bootstrap
//! superuser. This role exists whether or not it has a record.

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
use crate::vocabulary::quoting::quoted;

/// The superuser that always exists.
pub const BOOTSTRAP: &str = "pangea";

const ROLE_PREFIX: u8 = 2;
const ACCESS_PREFIX: u8 = 3;
const SCHEMA_PREFIX: u8 = 4;
const PASSWORD_PREFIX: u8 = 5;
const MOCK_KEY: &[u8] = &[6];
/// Version of the record layout that this code writes.
const VERSION: u8 = 1;

/// A role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Role {
    pub name: String,
    pub is_superuser: bool,
    pub creates_roles: bool,
    pub creates_databases: bool,
    pub can_login: bool,
    /// Whether the role has the privileges of the roles that it is a member of.
    pub inherits: bool,
    /// Maximum number of sessions; unlimited if negative.
    pub connection_limit: i32,
    /// Expiry of the password, in microseconds since 2000-01-01.
    pub valid_until: Option<i64>,
    /// Sorted by name.
    pub member_of: Vec<Membership>,
}

/// Membership in another role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Membership {
    pub role: String,
    /// Whether the member may grant the membership to others (ADMIN OPTION).
    pub is_admin: bool,
}

impl Role {
    /// Creates a role with the default attributes of `CREATE ROLE`.
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

    /// Creates a superuser.
    pub(crate) fn superuser(name: &str) -> Self {
        let (is_superuser, creates_roles, creates_databases, can_login) = (true, true, true, true);
        let new = Self::new(name);
        Self { is_superuser, creates_roles, creates_databases, can_login, ..new }
    }
}

/// A set of privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Privileges(pub u16);

/// Names of the privileges and their letters in an access list (`aclitem`), in the order of the
/// letters there.
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
    /// All privileges on a table.
    pub(crate) const TABLE: Self = Self(0x7f);
    /// All privileges on a sequence.
    pub(crate) const SEQUENCE: Self = Self(1 | 1 << 2 | 1 << 7);
    /// All privileges on a schema.
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

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Given {
    /// The grantee; `None` means PUBLIC.
    pub to: Option<String>,
    /// The grantor.
    pub by: String,
    pub privileges: Privileges,
    /// The subset of `privileges` that carries GRANT OPTION.
    pub with_option: Privileges,
}

/// The owner of an object and the grants on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Access {
    pub owner: String,
    pub given: Vec<Given>,
}

impl Access {
    /// Access of the owner, without grants to others.
    pub(crate) fn of(owner: &str) -> Self {
        Self { owner: owner.to_owned(), given: Vec::new() }
    }

    /// The initial access of the schema `public`. Only its owner creates objects there, as in
    /// PostgreSQL 15 and later.
    fn of_schema() -> Self {
        let (to, by) = (None, BOOTSTRAP.to_owned());
        let (privileges, with_option) = (Privileges::USAGE, Privileges::default());
        let given = vec![Given { to, by, privileges, with_option }];
        Self { owner: BOOTSTRAP.to_owned(), given }
    }
}

/// An object that has an [`Access`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    Table(QualifiedName),
    Sequence(QualifiedName),
    View(QualifiedName),
    /// A type in `public`.
    Type(String),
    Schema(String),
}

impl Object {
    /// Returns the word for this kind of object in PostgreSQL's messages.
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

    /// Returns the relation's name; `None` for types and schemas.
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
            // A type never has the name of a relation, so they can share the prefix.
            Self::Type(name) => named(ACCESS_PREFIX, QualifiedName::public(name).as_kept()),
            Self::Schema(name) => named(SCHEMA_PREFIX, if name == PUBLIC { "" } else { name }),
        }
    }
}

/// Describes the subject of a key with one of these prefixes, for use in messages.
pub(crate) fn described_key(key: &[u8]) -> Option<String> {
    let (&prefix, name) = key.split_first()?;
    let name = quoted(std::str::from_utf8(name).ok()?);
    match prefix {
        ROLE_PREFIX => Some(format!("Role {name}")),
        PASSWORD_PREFIX => Some(format!("The password of role {name}")),
        ACCESS_PREFIX => Some(format!("The access control list of {name}")),
        SCHEMA_PREFIX => Some("The access control list of the schema".to_owned()),
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

/// Finds the role of this name.
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

/// Callback that receives the name and the bytes of a record.
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

/// Returns all roles that have a record.
pub(crate) fn all(cx: &mut dyn Context) -> Result<Vec<Role>, Failure> {
    let mut roles = Vec::new();
    scan(ROLE_PREFIX, cx, &mut |_, record| {
        roles.push(decode(record)?);
        Ok(())
    })?;
    Ok(roles)
}

/// Returns the owner of an object and the grants on it.
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

/// Deletes the access record of an object, if it exists.
pub(crate) fn remove_access(object: &Object, cx: &mut dyn Context) -> Result<(), Stop> {
    let key = object.key();
    if cx.get(CATALOG, &key)?.is_some() {
        cx.delete(CATALOG, key)?;
    }
    Ok(())
}

/// The subject of an access record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Relation(QualifiedName),
    Schema(String),
}

/// Returns all access records of relations and schemas, with their keys. The list always includes
/// `public`.
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

/// Returns the password verifier of a role, in PostgreSQL's format.
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

/// Returns the secret from which salts for logins of unknown users are derived, if it exists.
pub(crate) fn mock_secret(cx: &mut dyn Context) -> Result<Option<Vec<u8>>, Failure> {
    Ok(cx.get(CATALOG, MOCK_KEY)?.map(|secret| secret.to_vec()))
}

pub(crate) fn put_mock_secret(secret: &[u8], cx: &mut dyn Context) -> Result<(), Stop> {
    cx.put(CATALOG, Key::from(MOCK_KEY), Value::from(secret))
}

/// Returns a role and all roles that it is a direct or indirect member of. `is_followed` selects
/// the roles whose memberships count: those with `inherits` for privileges, all for SET ROLE.
pub(crate) fn roles_of(
    name: &str,
    is_followed: impl Fn(&Role) -> bool,
    cx: &mut dyn Context,
) -> Result<BTreeSet<String>, Failure> {
    memberships_of(name, is_followed, |name| find(name, cx))
}

/// Like [`roles_of`], with a custom lookup of roles.
///
/// # Errors
/// Fails if the lookup of a role fails.
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
