//! Who may do what: the privileges that a statement needs, and whether its user has them.
//!
//! ```text
//!   planning:  a name is resolved ----> Required, kept with the plan, of no user
//!   running:   user of the run, Required ----> check, through the context of the run
//! ```
//!
//! A plan is shared by all users, so that it says what is needed and not whether somebody has it.
//! What the check reads is read like all else that a statement reads, so that a REVOKE and the
//! statements that it forbids are ordered.

use std::collections::BTreeSet;

use pangea_core::key::Key;
use pangea_core::txn::Context;

use crate::catalog::role::{self, Access, Object, Privileges, Role};
use crate::catalog::{CATALOG, QualifiedName, enums, relation_key};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;

/// What a statement does with something, of which its user must be allowed to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Required {
    pub object: Object,
    pub needs: Needs,
    /// The view that reads it: then its owner must be allowed to, and not the user.
    pub through: Option<QualifiedName>,
}

/// What a user must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Needs {
    All(Privileges),
    Any(Privileges),
    /// To be its owner. The index that is meant, where it is one of a table.
    Owner {
        index: Option<String>,
    },
}

impl Required {
    /// Privileges on a table, all of them.
    pub(crate) fn on_table(name: &QualifiedName, privileges: Privileges) -> Self {
        Self::new(Object::Table(name.clone()), Needs::All(privileges))
    }

    /// What a user must have of an object.
    pub(crate) fn new(object: Object, needs: Needs) -> Self {
        Self { object, needs, through: None }
    }

    /// To read something.
    pub(crate) fn select(object: Object) -> Self {
        Self::new(object, Needs::All(Privileges::SELECT))
    }

    /// To be the owner of something.
    pub(crate) fn owner(object: Object) -> Self {
        Self::new(object, Needs::Owner { index: None })
    }

    /// To make something in a schema.
    pub(crate) fn create(schema: &str) -> Self {
        Self::new(Object::Schema(schema.to_owned()), Needs::All(Privileges::CREATE))
    }

    /// To name something in a schema.
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
            // What there is not is for the statement to say.
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

/// The key of what the catalog has of an object that is no schema.
fn record_key(object: &Object) -> Option<Key> {
    match object {
        Object::Table(name) | Object::Sequence(name) | Object::View(name) => {
            Some(relation_key(name))
        }
        Object::Type(name) => Some(enums::name_key(name)),
        Object::Schema(_) => None,
    }
}

/// The privileges that somebody has who has those of some roles.
pub(crate) fn held(access: &Access, roles: &BTreeSet<String>) -> Privileges {
    if roles.contains(&access.owner) {
        return Privileges::TABLE.and(Privileges::SEQUENCE).and(Privileges::SCHEMA);
    }
    let is_meant = |to: &Option<String>| to.as_ref().is_none_or(|to| roles.contains(to));
    let given = access.given.iter().filter(|given| is_meant(&given.to));
    given.fold(Privileges::default(), |all, given| all.and(given.privileges))
}

/// The error of somebody who may not do something with an object.
pub(crate) fn denied(object: &Object) -> SqlError {
    let message = format!("permission denied for {} {}", object.kind(), object.name());
    SqlError::new(code::NO_PRIVILEGE, message)
}

/// The error of somebody who is not the owner of an object.
pub(crate) fn not_owner(object: &Object, index: Option<&str>) -> SqlError {
    let message = match index {
        Some(index) => format!("must be owner of index {index}"),
        None => format!("must be owner of {} {}", object.kind(), object.name()),
    };
    SqlError::new(code::NO_PRIVILEGE, message)
}

/// The role of the user, where it is no superuser. Who was let in by trust under a name that is no
/// role's is one, until a role has this name.
pub(crate) fn ordinary(env: &Env, cx: &mut dyn Context) -> Result<Option<Role>, Failure> {
    match role::find(&env.user, cx)? {
        Some(role) if role.is_superuser => Ok(None),
        Some(role) => Ok(Some(role)),
        None if env.is_trusted && env.user == env.session_user => Ok(None),
        None => Err(no_role(&env.user).into()),
    }
}

/// The error of a role that there is not.
pub(crate) fn no_role(name: &str) -> SqlError {
    SqlError::new(code::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))
}

/// The roles whose privileges a role has, with itself.
pub(crate) fn privileged(name: &str, cx: &mut dyn Context) -> Result<BTreeSet<String>, Failure> {
    role::roles_of(name, |role| role.inherits, cx)
}

/// Whether the user of a run may do what is required.
///
/// # Errors
/// 42501 when it may not.
pub(crate) fn check(required: &[Required], env: &Env, cx: &mut dyn Context) -> Result<(), Failure> {
    let (own, through): (Vec<_>, Vec<_>) = required.iter().partition(|it| it.through.is_none());
    if !own.is_empty()
        && let Some(role) = ordinary(env, cx)?
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
