//! Authorization: the privileges that a statement requires, and the check that its user has them.
//!
//! ```text
//!   planning:  a name is resolved ----> Required, part of the plan, independent of the user
//!   running:   user of the run, Required ----> check, through the context of the run
//! ```
//!
//! All users share a plan, so it records the requirements and not the outcome of the check. The
//! check reads roles and access lists through the context of the run, like any other data. A REVOKE
//! is therefore ordered against the statements that it forbids.

use std::collections::BTreeSet;

use pangea_core::key::Key;
use pangea_core::txn::Context;

use crate::catalog::role::{self, Access, Object, Privileges, Role};
use crate::catalog::{CATALOG, QualifiedName, enums, relation_key};
use crate::error::{Failure, SqlError, code};

/// The user of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User<'a> {
    pub name: &'a str,
    /// Whether `trust` authentication admitted the user under a name that no role had.
    pub is_trusted: bool,
}

/// A permission that a statement requires on an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Required {
    pub object: Object,
    pub needs: Needs,
    /// The view through which the object is read. The view's owner needs the permission then,
    /// instead of the user.
    pub through: Option<QualifiedName>,
}

/// The kind of permission that is required.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Needs {
    All(Privileges),
    Any(Privileges),
    /// Ownership of the object. `index` names the index if the statement is about one of a table.
    Owner {
        index: Option<String>,
    },
}

impl Required {
    /// Requires all of `privileges` on a table.
    pub(crate) fn on_table(name: &QualifiedName, privileges: Privileges) -> Self {
        Self::new(Object::Table(name.clone()), Needs::All(privileges))
    }

    /// Requires `needs` on an object.
    pub(crate) fn new(object: Object, needs: Needs) -> Self {
        Self { object, needs, through: None }
    }

    /// Requires SELECT on an object.
    pub(crate) fn select(object: Object) -> Self {
        Self::new(object, Needs::All(Privileges::SELECT))
    }

    /// Requires ownership of an object.
    pub(crate) fn owner(object: Object) -> Self {
        Self::new(object, Needs::Owner { index: None })
    }

    /// Requires CREATE on a schema.
    pub(crate) fn create(schema: &str) -> Self {
        Self::new(Object::Schema(schema.to_owned()), Needs::All(Privileges::CREATE))
    }

    /// Requires USAGE on a schema.
    pub(crate) fn to_use(schema: Object) -> Self {
        Self::new(schema, Needs::All(Privileges::USAGE))
    }

    fn check(&self, roles: &BTreeSet<String>, cx: &mut dyn Context) -> Result<(), Failure> {
        let Self { object, needs, .. } = self;
        let access = role::access(object, cx)?;
        match needs {
            Needs::All(wanted) if wanted.without(held(&access, roles)).is_empty() => Ok(()),
            Needs::Any(wanted) if !wanted.within(held(&access, roles)).is_empty() => Ok(()),
            Needs::All(_) | Needs::Any(_) => Err(denied(object).into()),
            Needs::Owner { .. } if roles.contains(&access.owner) => Ok(()),
            // The statement itself reports a missing object.
            Needs::Owner { index: None }
                if let Some(key) = record_key(object)
                    && cx.get(CATALOG, &key)?.is_none() =>
            {
                Ok(())
            }
            Needs::Owner { index } => Err(not_owner(object, index.as_deref()).into()),
        }
    }
}

/// Returns the key of the catalog record of an object; `None` for a schema.
fn record_key(object: &Object) -> Option<Key> {
    match object {
        Object::Table(name) | Object::Sequence(name) | Object::View(name) => {
            Some(relation_key(name))
        }
        Object::Type(name) => Some(enums::name_key(name)),
        Object::Schema(_) => None,
    }
}

/// Returns the privileges that `access` grants to a set of roles. The owner has all privileges.
pub(crate) fn held(access: &Access, roles: &BTreeSet<String>) -> Privileges {
    if roles.contains(&access.owner) {
        return Privileges::TABLE.and(Privileges::SEQUENCE).and(Privileges::SCHEMA);
    }
    let is_meant = |to: &Option<String>| to.as_ref().is_none_or(|to| roles.contains(to));
    let given = access.given.iter().filter(|given| is_meant(&given.to));
    given.fold(Privileges::default(), |all, given| all.and(given.privileges))
}

/// The error for a user who lacks a privilege on an object.
pub(crate) fn denied(object: &Object) -> SqlError {
    let message = format!("permission denied for {} {}", object.kind(), object.name());
    SqlError::new(code::NO_PRIVILEGE, message)
}

/// The error for a user who is not the owner of an object.
pub(crate) fn not_owner(object: &Object, index: Option<&str>) -> SqlError {
    let message = match index {
        Some(index) => format!("must be owner of index {index}"),
        None => format!("must be owner of {} {}", object.kind(), object.name()),
    };
    SqlError::new(code::NO_PRIVILEGE, message)
}

/// Returns the role of the user, or `None` for a superuser. A user whom `trust` authentication
/// admitted under a name without a role counts as a superuser until a role of this name exists.
pub(crate) fn ordinary(user: User<'_>, cx: &mut dyn Context) -> Result<Option<Role>, Failure> {
    match role::find(user.name, cx)? {
        Some(role) if role.is_superuser => Ok(None),
        Some(role) => Ok(Some(role)),
        None if user.is_trusted => Ok(None),
        None => Err(no_role(user.name).into()),
    }
}

/// The error for a role that does not exist.
pub(crate) fn no_role(name: &str) -> SqlError {
    SqlError::new(code::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))
}

/// Returns a role and the roles whose privileges it inherits.
pub(crate) fn privileged(name: &str, cx: &mut dyn Context) -> Result<BTreeSet<String>, Failure> {
    role::roles_of(name, |role| role.inherits, cx)
}

/// Checks that the user of a run has all required permissions.
///
/// # Errors
/// Fails with 42501 if a permission is missing.
pub(crate) fn check(
    required: &[Required],
    user: User<'_>,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let (own, through): (Vec<_>, Vec<_>) = required.iter().partition(|it| it.through.is_none());
    if !own.is_empty()
        && let Some(role) = ordinary(user, cx)?
    {
        let roles = privileged(&role.name, cx)?;
        own.iter().try_for_each(|required| required.check(&roles, cx))?;
    }
    for required in through {
        let view = required.through.clone().unwrap_or_default();
        let owner = role::access(&Object::View(view), cx)?.owner;
        if role::find(&owner, cx)?.is_none_or(|role| !role.is_superuser) {
            required.check(&privileged(&owner, cx)?, cx)?;
        }
    }
    Ok(())
}
