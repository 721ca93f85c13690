//! Execution of GRANT and REVOKE of privileges.

use std::ops::ControlFlow;

use pangea_core::key::Direction;
use pangea_core::txn::Scan;

use super::roles::Running;
use crate::authorization::{denied, held};
use crate::catalog::role::{self, Access, Given, Object, Privileges};
use crate::catalog::{self, CATALOG, Relation, schema};
use crate::error::{Failure, SqlError, code};
use crate::notice::Notice;
use crate::syntax::Written;
use crate::syntax::roles::{Grant, GrantOn, RoleName};

impl Running<'_> {
    pub(super) fn grant(&mut self, grant: &Grant) -> Result<(), Failure> {
        let to = self.grantees(grant)?;
        for object in self.objects(&grant.on)? {
            let wanted = wanted(grant, &object)?;
            let mut access = role::access(&object, self.cx)?;
            let (by, privileges) = self.grantor(&access, &object, wanted)?;
            self.tell(grant, &object, wanted, privileges, "granted");
            if privileges.is_empty() {
                continue;
            }
            for to in &to {
                let is_it = |given: &&mut Given| given.to == *to && given.by == by;
                let option = if grant.is_option { privileges } else { Privileges::default() };
                match access.given.iter_mut().find(is_it) {
                    Some(given) => {
                        given.privileges = given.privileges.and(privileges);
                        given.with_option = given.with_option.and(option);
                    }
                    None => {
                        let (to, by) = (to.clone(), by.clone());
                        access.given.push(Given { to, by, privileges, with_option: option });
                    }
                }
            }
            role::put_access(&object, &access, self.cx)?;
        }
        Ok(())
    }

    pub(super) fn revoke(&mut self, grant: &Grant) -> Result<(), Failure> {
        let from = self.grantees(grant)?;
        for object in self.objects(&grant.on)? {
            let wanted = wanted(grant, &object)?;
            let mut access = role::access(&object, self.cx)?;
            let (by, privileges) = self.grantor(&access, &object, wanted)?;
            self.tell(grant, &object, wanted, privileges, "revoked");
            for from in &from {
                take(&mut access, from.as_deref(), &by, privileges, grant)?;
            }
            role::put_access(&object, &access, self.cx)?;
        }
        Ok(())
    }

    /// Returns the grantees: roles, or `None` for PUBLIC.
    fn grantees(&mut self, grant: &Grant) -> Result<Vec<Option<String>>, Failure> {
        let mut found = Vec::with_capacity(grant.roles.len());
        for role in &grant.roles {
            found.push(match role {
                RoleName::Public if grant.is_option => {
                    let message = "grant options can only be granted to roles";
                    return Err(SqlError::new(code::INVALID_GRANT, message).into());
                }
                RoleName::Public => None,
                role => Some(self.named(role)?),
            });
        }
        Ok(found)
    }

    fn objects(&mut self, on: &GrantOn) -> Result<Vec<Object>, Failure> {
        match on {
            GrantOn::Schemas(names) => names.iter().map(|name| self.schema(name)).collect(),
            GrantOn::Tables(names) => names.iter().map(|name| self.object(name, false)).collect(),
            GrantOn::Sequences(names) => names.iter().map(|name| self.object(name, true)).collect(),
            GrantOn::AllTables(schemas) => self.all(schemas, false),
            GrantOn::AllSequences(schemas) => self.all(schemas, true),
        }
    }

    fn schema(&mut self, name: &str) -> Result<Object, Failure> {
        if !schema::is_there(name, self.cx)? {
            return Err(SqlError::undefined_schema(name).into());
        }
        Ok(Object::Schema(name.to_owned()))
    }

    fn object(&mut self, written: &Written, is_sequence: bool) -> Result<Object, Failure> {
        let wrong = |message: String| Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into());
        let Some((name, relation)) = self.relation(written)? else {
            return Err(self.undefined(written)?.into());
        };
        match relation {
            Relation::Sequence(_) => Ok(Object::Sequence(name)),
            _ if is_sequence => wrong(format!("\"{name}\" is not a sequence")),
            Relation::Index { .. } => wrong(format!("\"{name}\" is an index")),
            Relation::Table(_) => Ok(Object::Table(name)),
            Relation::View(_) => Ok(Object::View(name)),
        }
    }

    fn all(&mut self, schemas: &[String], is_sequences: bool) -> Result<Vec<Object>, Failure> {
        for schema in schemas {
            self.schema(schema)?;
        }
        let (range, direction) = (catalog::relation_keys(), Direction::Forward);
        let mut records = Vec::new();
        self.cx.scan(&Scan { table: CATALOG, range, direction }, &mut |key, record| {
            let name = catalog::relation_of_key(key);
            let name = name.filter(|name| schemas.iter().any(|of| of == name.schema()));
            records.push((name, Relation::decode(record)));
            ControlFlow::Continue(())
        })?;
        let mut found = Vec::new();
        for (name, relation) in records {
            match (name, relation?) {
                (Some(name), Relation::Sequence(_)) if is_sequences => {
                    found.push(Object::Sequence(name));
                }
                (Some(name), Relation::Table(_)) if !is_sequences => {
                    found.push(Object::Table(name));
                }
                (Some(name), Relation::View(_)) if !is_sequences => {
                    found.push(Object::View(name));
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Returns the grantor and the subset of `wanted` that the user may grant or revoke.
    fn grantor(
        &self,
        access: &Access,
        object: &Object,
        wanted: Privileges,
    ) -> Result<(String, Privileges), Failure> {
        if self.is_superuser() || self.roles.contains(&access.owner) {
            return Ok((access.owner.clone(), wanted));
        }
        let mut best: Option<(String, Privileges)> = None;
        for role in &self.roles {
            let of_role = access.given.iter().filter(|given| given.to.as_ref() == Some(role));
            let options = of_role
                .fold(Privileges::default(), |all, given| all.and(given.with_option))
                .within(wanted);
            let count = |privileges: Privileges| privileges.0.count_ones();
            if best.as_ref().is_none_or(|(_, known)| count(*known) < count(options)) {
                best = Some((role.clone(), options));
            }
        }
        let best = best.unwrap_or_else(|| (self.env.user.to_string(), Privileges::default()));
        if best.1.is_empty() && held(access, &self.roles).is_empty() {
            return Err(denied(object).into());
        }
        Ok(best)
    }

    /// Adds a notice if privileges were skipped because the user lacks the grant option.
    fn tell(
        &mut self,
        grant: &Grant,
        object: &Object,
        wanted: Privileges,
        done: Privileges,
        verb: &str,
    ) {
        let name = object.name();
        let could = if verb == "granted" { "were" } else { "could be" };
        if done.is_empty() {
            self.notices
                .push(Notice::plain(format!("no privileges {could} {verb} for \"{name}\"")));
        } else if done != wanted && grant.privileges.is_some() {
            self.notices
                .push(Notice::plain(format!("not all privileges {could} {verb} for \"{name}\"")));
        }
    }
}

/// Returns the privileges that a statement names. All must be valid for the object's kind.
fn wanted(grant: &Grant, object: &Object) -> Result<Privileges, SqlError> {
    let all = match object {
        Object::Table(_) | Object::View(_) => Privileges::TABLE,
        Object::Sequence(_) => Privileges::SEQUENCE,
        Object::Schema(_) => Privileges::SCHEMA,
        Object::Type(_) => Privileges::default(),
    };
    let Some(named) = &grant.privileges else { return Ok(all) };
    let mut wanted = Privileges::default();
    for (name, privilege) in named {
        if privilege.without(all).is_empty() {
            wanted = wanted.and(*privilege);
            continue;
        }
        let kind = object.kind();
        let message = format!("invalid privilege type {name} for {kind}");
        return Err(SqlError::new(code::INVALID_GRANT, message));
    }
    Ok(wanted)
}

/// Revokes privileges that `by` granted to `from`. With CASCADE, also revokes the grants that
/// `from` made of them.
fn take(
    access: &mut Access,
    from: Option<&str>,
    by: &str,
    privileges: Privileges,
    grant: &Grant,
) -> Result<(), SqlError> {
    let is_it = |given: &Given| given.to.as_deref() == from && given.by == by;
    let Some(at) = access.given.iter().position(is_it) else { return Ok(()) };
    let given = &mut access.given[at];
    if !grant.is_option {
        given.privileges = given.privileges.without(privileges);
    }
    given.with_option = given.with_option.without(privileges);
    if given.privileges.is_empty() {
        access.given.remove(at);
    }
    let Some(from) = from.filter(|from| *from != access.owner) else { return Ok(()) };
    // Another grantor may still provide the grant option.
    let left = access.given.iter().filter(|given| given.to.as_deref() == Some(from));
    let left = left.fold(Privileges::default(), |all, given| all.and(given.with_option));
    let lost = privileges.without(left);
    let is_hanging = |given: &&Given| given.by == from && !given.privileges.within(lost).is_empty();
    let hanging: Vec<Given> = access.given.iter().filter(is_hanging).cloned().collect();
    if hanging.is_empty() {
        return Ok(());
    }
    if !grant.is_cascade {
        let error = SqlError::new(code::DEPENDENT_OBJECTS, "dependent privileges exist");
        return Err(error.with_hint("Use CASCADE to revoke them too."));
    }
    let whole = Grant { is_option: false, ..grant.clone() };
    for given in hanging {
        take(access, given.to.as_deref(), from, lost, &whole)?;
    }
    Ok(())
}
