//! Execution of ALTER .. OWNER TO.

use pangea_core::txn::Context;

use super::roles::{Running, give, refused};
use crate::authorization::{not_owner, privileged};
use crate::catalog::role::{self, Object, Privileges};
use crate::catalog::{PUBLIC, QualifiedName, Relation, enums};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::notice::Notice;
use crate::syntax::Written;
use crate::syntax::roles::{OwnedKind, RoleName};

impl Running<'_> {
    /// Changes the owner of a relation or a type.
    pub(super) fn own(
        &mut self,
        kind: OwnedKind,
        written: &Written,
        if_exists: bool,
        owner: &RoleName,
    ) -> Result<(), Failure> {
        if kind == OwnedKind::Type {
            return self.own_type(written, owner);
        }
        let found = self.relation(written)?;
        let name = &found.as_ref().map_or(QualifiedName::default(), |(name, _)| name.clone());
        let (object, sequences) = match found.map(|(_, relation)| relation) {
            Some(Relation::Table(table)) if kind == OwnedKind::Table => {
                let sequences = table.sequences.into_iter().map(|(_, name)| name).collect();
                (Object::Table(name.clone()), sequences)
            }
            Some(Relation::View(_)) if kind != OwnedKind::Sequence => {
                (Object::View(name.clone()), Vec::new())
            }
            Some(Relation::Sequence(sequence)) if kind != OwnedKind::View => match sequence.owner {
                None => (Object::Sequence(name.clone()), Vec::new()),
                Some(table) => {
                    let error = SqlError::unsupported("");
                    let message = format!("cannot change owner of sequence \"{name}\"");
                    let detail = format!("Sequence \"{name}\" is linked to table \"{table}\".");
                    return Err(SqlError { message, ..error }.with_detail(detail).into());
                }
            },
            Some(_) => {
                let kind = match kind {
                    OwnedKind::Table => "table",
                    OwnedKind::View => "view",
                    OwnedKind::Sequence => "sequence",
                    OwnedKind::Type => "type",
                };
                let message = format!("\"{name}\" is not a {kind}");
                return Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into());
            }
            None if if_exists => {
                self.notices.push(Notice::plain(format!(
                    "relation \"{}\" does not exist, skipping",
                    written.name
                )));
                return Ok(());
            }
            None => return Err(self.undefined(written)?.into()),
        };
        self.check_own(&object)?;
        let owner = self.new_owner(owner, name.schema())?;
        give(&object, &owner, self.cx)?;
        for sequence in sequences {
            give(&Object::Sequence(sequence), &owner, self.cx)?;
        }
        Ok(())
    }

    /// Changes the owner of a type. All types are in `public`.
    fn own_type(&mut self, written: &Written, owner: &RoleName) -> Result<(), Failure> {
        let is_of_public = written.schema.as_deref().is_none_or(|schema| schema == PUBLIC);
        let known = enums::all(self.cx)?;
        if !is_of_public || !known.iter().any(|it| it.name == written.name) {
            return Err(SqlError::undefined_type(&written.to_string()).into());
        }
        let object = Object::Type(written.name.clone());
        self.check_own(&object)?;
        let owner = self.new_owner(owner, PUBLIC)?;
        give(&object, &owner, self.cx)
    }

    /// Checks that the user owns an object.
    fn check_own(&mut self, object: &Object) -> Result<(), Failure> {
        if self.is_superuser() {
            return Ok(());
        }
        let access = role::access(object, self.cx)?;
        match self.roles.contains(&access.owner) {
            true => Ok(()),
            false => Err(not_owner(object, None).into()),
        }
    }

    /// Returns the name of the new owner of an object in a schema, if the user may make it the
    /// owner.
    fn new_owner(&mut self, owner: &RoleName, schema: &str) -> Result<String, Failure> {
        let owner = self.named(owner)?;
        if self.is_superuser() {
            return Ok(owner);
        }
        if !role::roles_of(&self.env.user, |_| true, self.cx)?.contains(&owner) {
            return Err(refused(format!("must be member of role \"{owner}\"")));
        }
        let theirs = privileged(&owner, self.cx)?;
        let of = Object::Schema(schema.to_owned());
        let schema = role::access(&of, self.cx)?;
        let held = crate::authorization::held(&schema, &theirs);
        match held.within(Privileges::CREATE).is_empty() {
            true => Err(crate::authorization::denied(&of).into()),
            false => Ok(owner),
        }
    }
}

/// Returns the name of the new owner of an object of this name, if the user may make it the owner.
pub(super) fn new_owner(
    owner: &RoleName,
    name: &QualifiedName,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<String, Failure> {
    Running::new(env, cx)?.new_owner(owner, name.schema())
}
