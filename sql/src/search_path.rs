//! `search_path`: the schemas that resolve unqualified names, and in which new objects are created.
//!
//! ```text
//!   setting, user --resolve, through the context of the run--> SearchPath, a part of each plan
//! ```
//!
//! Schemas that do not exist, or that the user may not use, are skipped. Therefore a path depends
//! on the catalog and is resolved for each statement; plans are cached by the resolved path. Names
//! in `pg_catalog` are always found first, wherever the path lists it.

use std::collections::BTreeSet;
use std::sync::Arc;

use pangea_core::txn::Context;

use crate::authorization::{held, privileged};
use crate::catalog::role::{self, Access, Object, Privileges};
use crate::catalog::{self, PUBLIC, QualifiedName, Relation, schema};
use crate::error::{Failure, SqlError, code};
use crate::settings::search_path::parsed;
use crate::syntax::{Written, quoted};

/// The path before there were schemas besides `public`.
pub(crate) const BEFORE_SCHEMAS: &str = PUBLIC;
/// Stands for the schema with the user's name, if it exists.
const OF_USER: &str = "$user";

/// The setting of a session, and the user that it is resolved for.
#[derive(Clone, Debug)]
pub(crate) struct PathSetting {
    pub text: Arc<str>,
    pub user: Arc<str>,
    pub is_trusted: bool,
}

impl PathSetting {
    /// Returns the schemas in it that exist and that the user may use.
    ///
    /// # Errors
    /// If a record is malformed, or the executor interrupts the run.
    pub(crate) fn resolve(&self, cx: &mut dyn Context) -> Result<SearchPath, Failure> {
        let mut names: Vec<String> = Vec::new();
        for name in parsed(&self.text).unwrap_or_default() {
            let is_of_user = name == OF_USER;
            let name = if is_of_user { self.user.to_string() } else { name };
            let is_system = schema::SYSTEM.contains(&name.as_str());
            // A system schema that happens to have the user's name is not the user's schema.
            if names.contains(&name) || is_system && is_of_user || !Self::is_name(&name) {
                continue;
            }
            if is_system || schema::is_there(&name, cx)? && self.may_use(&name, cx)? {
                names.push(name);
            }
        }
        Ok(SearchPath(names.into()))
    }

    fn is_name(name: &str) -> bool {
        !name.is_empty() && !name.contains('\0')
    }

    fn may_use(&self, schema: &str, cx: &mut dyn Context) -> Result<bool, Failure> {
        let object = Object::Schema(schema.to_owned());
        let access = role::access(&object, cx)?;
        let is_everybodys = held(&access, &BTreeSet::new());
        if !is_everybodys.within(Privileges::USAGE).is_empty() {
            return Ok(true);
        }
        self.has_usage(&access, cx)
    }

    fn has_usage(&self, access: &Access, cx: &mut dyn Context) -> Result<bool, Failure> {
        match role::find(&self.user, cx)? {
            Some(role) if role.is_superuser => Ok(true),
            None if self.is_trusted => Ok(true),
            _ => {
                let held = held(access, &privileged(&self.user, cx)?);
                Ok(!held.within(Privileges::USAGE).is_empty())
            }
        }
    }
}

/// The schemas that resolve unqualified names, in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SearchPath(Arc<[String]>);

impl SearchPath {
    pub(crate) fn names(&self) -> &[String] {
        &self.0
    }

    /// Returns the schema in which new objects are created.
    ///
    /// # Errors
    /// 3F000 if the path is empty.
    pub(crate) fn first(&self) -> Result<&str, SqlError> {
        let message = "no schema has been selected to create in";
        let none = || SqlError::new(code::UNDEFINED_SCHEMA, message);
        self.0.first().map(String::as_str).ok_or_else(none)
    }

    /// Returns the qualified names that a name may stand for. The first one that exists is used.
    pub(crate) fn candidates(&self, written: &Written) -> Vec<QualifiedName> {
        match &written.schema {
            Some(schema) => vec![QualifiedName::new(schema, &written.name)],
            None => {
                let own = self.0.iter().filter(|name| !schema::SYSTEM.contains(&name.as_str()));
                own.map(|schema| QualifiedName::new(schema, &written.name)).collect()
            }
        }
    }

    /// Returns the relation of a name.
    ///
    /// # Errors
    /// If a record is malformed, or the executor interrupts the run.
    pub(crate) fn find(
        &self,
        written: &Written,
        cx: &mut dyn Context,
    ) -> Result<Option<(QualifiedName, Relation)>, Failure> {
        for name in self.candidates(written) {
            if let Some(relation) = catalog::find(&name, cx)? {
                return Ok(Some((name, relation)));
            }
        }
        Ok(None)
    }
}

/// Formats the name of a dependency for a message. The name is qualified unless the user's path
/// resolves it unqualified.
///
/// # Errors
/// If a record is malformed, or the executor interrupts the run.
pub(crate) fn shown(
    name: &QualifiedName,
    setting: &PathSetting,
    cx: &mut dyn Context,
) -> Result<String, Failure> {
    let path = setting.resolve(cx)?;
    let found = path.find(&Written::plain(name.name()), cx)?;
    Ok(match found {
        Some((found, _)) if found == *name => quoted(name.name()),
        _ => format!("{}.{}", quoted(name.schema()), quoted(name.name())),
    })
}

/// Only `public`, in which names in stored texts are resolved.
impl Default for SearchPath {
    fn default() -> Self {
        Self(Arc::from([PUBLIC.to_owned()]))
    }
}
