//! Execution of statements about roles and privileges. Also maintains the owners of objects for
//! other statements.

use std::collections::BTreeSet;

use pangea_core::txn::Context;
use sha2::{Digest, Sha256};

use super::{Executed, procedures};
use crate::authorization::{self, Required, no_role, ordinary, privileged};
use crate::catalog::role::{self, Access, Membership, Object, Owned, Role};
use crate::catalog::{self, BOOTSTRAP, PUBLIC, QualifiedName, Relation, enums, procedure, schema};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::notice::Notice;
use crate::plan::Utility;
use crate::scram::Verifier;
use crate::search_path::shown;
use crate::syntax::roles::{RoleName, RoleOption, reserved};
use crate::syntax::{RoleStatement, Written};
use crate::types::datum::Datum;
use crate::types::{SqlType, text};

impl Utility for RoleStatement {
    fn command(&self) -> &'static str {
        self.tag()
    }

    fn run(&self, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
        run(self, env, cx)
    }
}

fn run(statement: &RoleStatement, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut running = Running::new(env, cx)?;
    match statement {
        RoleStatement::Create { name, options } => running.create(name, options)?,
        RoleStatement::Alter { role, options } => running.alter(role, options)?,
        RoleStatement::Rename { role, to } => running.rename(role, to)?,
        RoleStatement::Drop { roles, if_exists } => {
            roles.iter().try_for_each(|role| running.drop(role, *if_exists))?;
        }
        RoleStatement::GrantRoles { roles, to, is_admin } => {
            for role in roles {
                running.add_members(role, to, *is_admin)?;
            }
        }
        RoleStatement::RevokeRoles { roles, from, is_admin_only } => {
            for role in roles {
                running.remove_members(role, from, *is_admin_only)?;
            }
        }
        RoleStatement::Schema(statement) => running.schema_statement(statement)?,
        RoleStatement::Grant(grant) => running.grant(grant)?,
        RoleStatement::Revoke(grant) => running.revoke(grant)?,
        RoleStatement::Own { kind, relation, if_exists, owner } => {
            running.own(*kind, relation, *if_exists, owner)?;
        }
        RoleStatement::SetRole { .. } | RoleStatement::SetAuthorization { .. } => {
            unreachable!("a session runs it itself")
        }
    }
    Ok(Executed { notices: running.notices, ..Executed::default() })
}

/// A statement in progress, and the user who runs it.
pub(super) struct Running<'a> {
    pub(super) env: &'a Env,
    pub(super) cx: &'a mut dyn Context,
    /// `None` for a superuser.
    pub(super) role: Option<Role>,
    /// Roles whose privileges the user has.
    pub(super) roles: BTreeSet<String>,
    pub(super) notices: Vec<Notice>,
}

pub(super) fn refused(message: impl Into<String>) -> Failure {
    SqlError::new(code::NO_PRIVILEGE, message.into()).into()
}

impl<'a> Running<'a> {
    pub(super) fn new(env: &'a Env, cx: &'a mut dyn Context) -> Result<Self, Failure> {
        let role = ordinary(env.current_user(), cx)?;
        let roles = match &role {
            Some(role) => privileged(&role.name, cx)?,
            None => BTreeSet::new(),
        };
        Ok(Self { env, cx, role, roles, notices: Vec::new() })
    }

    pub(super) fn is_superuser(&self) -> bool {
        self.role.is_none()
    }

    fn creates_roles(&self) -> bool {
        self.role.as_ref().is_none_or(|role| role.creates_roles)
    }

    fn existing(&mut self, name: &str) -> Result<Role, Failure> {
        role::find(name, self.cx)?.ok_or_else(|| no_role(name).into())
    }

    /// Resolves a role name. The role must exist. The session's own user may have no role if
    /// `trust` authentication admitted it.
    pub(super) fn named(&mut self, name: &RoleName) -> Result<String, Failure> {
        let name = match name {
            RoleName::Named(name) => name.clone(),
            RoleName::CurrentUser => self.env.user.to_string(),
            RoleName::SessionUser => self.env.session_user.to_string(),
            RoleName::Public => "public".to_owned(),
        };
        Ok(self.existing(&name)?.name)
    }

    fn create(&mut self, name: &str, options: &[RoleOption]) -> Result<(), Failure> {
        if name.starts_with("pg_") {
            let detail = "Role names starting with \"pg_\" are reserved.";
            return Err(reserved(name).with_detail(detail).into());
        }
        crate::plan::check_name(name)?;
        if options.contains(&RoleOption::Superuser(true)) && !self.is_superuser() {
            return Err(refused("must be superuser to create superusers"));
        }
        if !self.creates_roles() {
            return Err(refused("permission denied to create role"));
        }
        if role::find(name, self.cx)?.is_some() {
            let message = format!("role \"{name}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_OBJECT, message).into());
        }
        let mut role = Role::new(name);
        self.apply(&mut role, options)?;
        role::put(&role, self.cx)?;
        for option in options {
            match option {
                RoleOption::InRoles(roles) => {
                    for parent in roles {
                        self.add_members(parent, &[RoleName::Named(name.to_owned())], false)?;
                    }
                }
                RoleOption::Members(members) => self.add_members(name, members, false)?,
                RoleOption::Admins(members) => self.add_members(name, members, true)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn alter(&mut self, name: &RoleName, options: &[RoleOption]) -> Result<(), Failure> {
        let name = self.named(name)?;
        let before = self.existing(&name)?;
        let mut role = before.clone();
        let touches_superuser =
            role.is_superuser || options.iter().any(|it| matches!(it, RoleOption::Superuser(_)));
        if touches_superuser && !self.is_superuser() {
            let message =
                "must be superuser to alter superuser roles or change superuser attribute";
            return Err(refused(message));
        }
        let is_own_password = *name == *self.env.user
            && options.iter().all(|option| matches!(option, RoleOption::Password(_)));
        if !self.creates_roles() && !is_own_password {
            return Err(refused("permission denied"));
        }
        if name == BOOTSTRAP && options.contains(&RoleOption::Superuser(false)) {
            let message = "permission denied to alter role";
            let detail = "The bootstrap user must have the SUPERUSER attribute.";
            let error = SqlError::unsupported("").with_detail(detail);
            return Err(SqlError { message: message.to_owned(), ..error }.into());
        }
        self.apply(&mut role, options)?;
        for option in options {
            match option {
                RoleOption::Members(members) => self.add_members(&name, members, false)?,
                RoleOption::InRoles(_) | RoleOption::Admins(_) => {
                    return Err(SqlError::unsupported("ALTER ROLE with members").into());
                }
                _ => {}
            }
        }
        // A change of only the password does not write the role's record, so it conflicts with no
        // statement.
        if role == before { Ok(()) } else { Ok(role::put(&role, self.cx)?) }
    }

    fn apply(&mut self, role: &mut Role, options: &[RoleOption]) -> Result<(), Failure> {
        for option in options {
            match option {
                RoleOption::Superuser(is) => role.is_superuser = *is,
                RoleOption::CreateRole(is) => role.creates_roles = *is,
                RoleOption::CreateDb(is) => role.creates_databases = *is,
                RoleOption::Inherit(is) => role.inherits = *is,
                RoleOption::Login(is) => role.can_login = *is,
                RoleOption::ConnectionLimit(limit) => role.connection_limit = *limit,
                RoleOption::Password(password) => {
                    let text = password.as_ref().map(|(text, _)| text.as_str());
                    self.set_password(&role.name, text)?;
                }
                RoleOption::ValidUntil(until) => {
                    role.valid_until = match until.trim() {
                        "infinity" => None,
                        until => match text::parse(SqlType::Timestamptz, until, &self.env.zone)? {
                            Datum::Timestamp(until) => Some(until),
                            other => unreachable!("a time is {other:?}"),
                        },
                    };
                }
                RoleOption::InRoles(_) | RoleOption::Members(_) | RoleOption::Admins(_) => {}
            }
        }
        Ok(())
    }

    /// Stores the password verifier that the session computed. Passwords themselves are never
    /// stored.
    fn set_password(&mut self, name: &str, verifier: Option<&str>) -> Result<(), Failure> {
        let verifier = match verifier {
            None => None,
            Some("") => {
                let notice = "empty string is not a valid password, clearing password";
                self.notices.push(Notice::plain(notice));
                None
            }
            Some(text) if Verifier::parse(text).is_some() => Some(text),
            Some(_) => {
                let message = "a password reached the database as it was typed";
                return Err(SqlError::new(code::INTERNAL, message).into());
            }
        };
        if let Some(text) = verifier
            && role::mock_secret(self.cx)?.is_none()
        {
            let secret = Sha256::new()
                .chain_update(text)
                .chain_update(self.env.random().to_be_bytes())
                .chain_update(self.env.row_seed.to_be_bytes())
                .finalize();
            role::put_mock_secret(&secret, self.cx)?;
        }
        Ok(role::set_password(name, verifier, self.cx)?)
    }

    fn rename(&mut self, name: &str, to: &str) -> Result<(), Failure> {
        let old = self.existing(name)?;
        let kind = match name {
            _ if *name == *self.env.session_user => Some("session"),
            _ if *name == *self.env.user => Some("current"),
            _ => None,
        };
        if let Some(kind) = kind {
            let error = SqlError::unsupported("");
            let message = format!("{kind} user cannot be renamed");
            return Err(SqlError { message, ..error }.into());
        }
        if name == BOOTSTRAP {
            return Err(SqlError::unsupported("RENAME of the bootstrap superuser").into());
        }
        if to.starts_with("pg_") {
            let detail = "Role names starting with \"pg_\" are reserved.";
            return Err(reserved(to).with_detail(detail).into());
        }
        crate::plan::check_name(to)?;
        if role::find(to, self.cx)?.is_some() {
            let message = format!("role \"{to}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_OBJECT, message).into());
        }
        if old.is_superuser && !self.is_superuser() {
            return Err(refused("must be superuser to rename superusers"));
        }
        if !self.creates_roles() {
            return Err(refused("permission denied to rename role"));
        }
        let password = role::password(name, self.cx)?;
        role::remove(name, self.cx)?;
        role::put(&Role { name: to.to_owned(), ..old }, self.cx)?;
        role::set_password(to, password.as_deref(), self.cx)?;
        self.rename_in_records(name, to)
    }

    /// Renames a role in all records that refer to it.
    fn rename_in_records(&mut self, name: &str, to: &str) -> Result<(), Failure> {
        for mut role in role::all(self.cx)? {
            let is_it = |membership: &&mut Membership| membership.role == name;
            let Some(membership) = role.member_of.iter_mut().find(is_it) else { continue };
            membership.role = to.to_owned();
            role.member_of.sort();
            role::put(&role, self.cx)?;
        }
        procedures::change_owner(name, to, self.cx)?;
        for (key, _, mut access) in role::all_access(self.cx)? {
            let before = access.clone();
            let replace = |known: &mut String| {
                if known == name {
                    *known = to.to_owned();
                }
            };
            replace(&mut access.owner);
            for given in &mut access.given {
                replace(&mut given.by);
                given.to.iter_mut().for_each(replace);
            }
            if access != before {
                role::put_access_at(key, &access, self.cx)?;
            }
        }
        Ok(())
    }

    fn drop(&mut self, name: &RoleName, if_exists: bool) -> Result<(), Failure> {
        if !self.creates_roles() {
            return Err(refused("permission denied to drop role"));
        }
        let RoleName::Named(name) = name else {
            let message = "cannot use special role specifier in DROP ROLE";
            return Err(SqlError::new(code::INVALID_PARAMETER, message).into());
        };
        let Some(role) = role::find(name, self.cx)? else {
            if if_exists {
                self.notices
                    .push(Notice::plain(format!("role \"{name}\" does not exist, skipping")));
                return Ok(());
            }
            return Err(no_role(name).into());
        };
        let in_use = [("current", &self.env.user), ("session", &self.env.session_user)];
        if let Some((kind, _)) = in_use.iter().find(|(_, user)| ***user == **name) {
            let message = format!("{kind} user cannot be dropped");
            return Err(SqlError::new(code::OBJECT_IN_USE, message).into());
        }
        if role.is_superuser && !self.is_superuser() {
            return Err(refused("must be superuser to drop superusers"));
        }
        if name == BOOTSTRAP {
            let message =
                format!("cannot drop role {name} because it is required by the database system");
            return Err(SqlError::new(code::DEPENDENT_OBJECTS, message).into());
        }
        let dependents = self.owned_by(name)?;
        if !dependents.is_empty() {
            let message =
                format!("role \"{name}\" cannot be dropped because some objects depend on it");
            let error = SqlError::new(code::DEPENDENT_OBJECTS, message);
            return Err(error.with_detail(dependents.join("\n")).into());
        }
        for mut member in role::all(self.cx)? {
            let before = member.member_of.len();
            member.member_of.retain(|membership| membership.role != *name);
            if member.member_of.len() < before {
                role::put(&member, self.cx)?;
            }
        }
        Ok(role::remove(name, self.cx)?)
    }

    /// Describes the objects that a role owns, or has granted or been granted privileges on, as
    /// PostgreSQL does.
    fn owned_by(&mut self, name: &str) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for procedure in procedure::all(self.cx)?.iter().filter(|it| it.owner == name) {
            found.push(format!("owner of function {}", procedure.signature()));
        }
        for (_, relation, access) in role::all_access(self.cx)? {
            let object = match relation {
                Owned::Schema(name) => Object::Schema(name),
                Owned::Relation(relation) => match catalog::find(&relation, self.cx)? {
                    Some(Relation::Sequence(_)) => Object::Sequence(relation),
                    Some(Relation::View(_)) => Object::View(relation),
                    None if relation.schema() == PUBLIC
                        && enums::find_named(relation.name(), self.cx)?.is_some() =>
                    {
                        Object::Type(relation.name().to_owned())
                    }
                    _ => Object::Table(relation),
                },
            };
            let kind = object.kind();
            let object = match object.relation() {
                Some(relation) => shown(relation, &self.env.path_setting(), self.cx)?,
                None => object.name().to_owned(),
            };
            if access.owner == name {
                found.push(format!("owner of {kind} {object}"));
            }
            let is_of = |given: &role::Given| given.to.as_deref() == Some(name) || given.by == name;
            if access.owner != name && access.given.iter().any(is_of) {
                found.push(format!("privileges for {kind} {object}"));
            }
        }
        // Owned schemas come first, because they are older than their contents.
        found.sort_by_key(|line| !line.starts_with("owner of schema"));
        Ok(found)
    }

    /// Checks that the user may change the members of a role.
    fn check_admin(&mut self, role: &Role) -> Result<(), Failure> {
        if role.is_superuser && !self.is_superuser() {
            return Err(refused("must be superuser to alter superusers"));
        }
        if self.creates_roles() {
            return Ok(());
        }
        let mine = role::roles_of(&self.env.user, |_| true, self.cx)?;
        for mine in mine {
            let Some(mine) = role::find(&mine, self.cx)? else { continue };
            let is_it = |it: &Membership| it.role == role.name && it.is_admin;
            if mine.member_of.iter().any(is_it) {
                return Ok(());
            }
        }
        Err(refused(format!("must have admin option on role \"{}\"", role.name)))
    }

    fn add_members(
        &mut self,
        role: &str,
        members: &[RoleName],
        is_admin: bool,
    ) -> Result<(), Failure> {
        let role = self.existing(role)?;
        self.check_admin(&role)?;
        for member in members {
            let member = self.named(member)?;
            if role::roles_of(&role.name, |_| true, self.cx)?.contains(&member) {
                let message = format!("role \"{}\" is a member of role \"{member}\"", role.name);
                return Err(SqlError::new(code::INVALID_GRANT, message).into());
            }
            let mut member = self.existing(&member)?;
            let known = member.member_of.iter_mut().find(|it| it.role == role.name);
            match known {
                Some(known) if known.is_admin || !is_admin => {
                    let (member, role) = (&member.name, &role.name);
                    let notice =
                        format!("role \"{member}\" is already a member of role \"{role}\"");
                    self.notices.push(Notice::plain(notice));
                    continue;
                }
                Some(known) => known.is_admin = true,
                None => member.member_of.push(Membership { role: role.name.clone(), is_admin }),
            }
            member.member_of.sort();
            role::put(&member, self.cx)?;
        }
        Ok(())
    }

    fn remove_members(
        &mut self,
        role: &str,
        members: &[RoleName],
        is_admin_only: bool,
    ) -> Result<(), Failure> {
        let role = self.existing(role)?;
        self.check_admin(&role)?;
        for member in members {
            let member = self.named(member)?;
            let mut member = self.existing(&member)?;
            let Some(at) = member.member_of.iter().position(|it| it.role == role.name) else {
                let (member, role) = (&member.name, &role.name);
                self.notices.push(Notice::plain(format!(
                    "role \"{member}\" is not a member of role \"{role}\""
                )));
                continue;
            };
            if is_admin_only {
                member.member_of[at].is_admin = false;
            } else {
                member.member_of.remove(at);
            }
            role::put(&member, self.cx)?;
        }
        Ok(())
    }

    /// Resolves the name of a relation.
    pub(super) fn relation(
        &mut self,
        written: &Written,
    ) -> Result<Option<(QualifiedName, Relation)>, Failure> {
        if let Some(schema) = &written.schema
            && schema::is_there(schema, self.cx)?
        {
            let of = Required::to_use(Object::Schema(schema.clone()));
            authorization::check(&[of], self.env.current_user(), self.cx)?;
        }
        let path = self.env.path_setting().resolve(self.cx)?;
        path.find(written, self.cx)
    }

    /// The error for a name that can't be resolved.
    pub(super) fn undefined(&mut self, written: &Written) -> Result<SqlError, Failure> {
        match &written.schema {
            Some(schema) if !schema::is_there(schema, self.cx)? => {
                Ok(SqlError::undefined_schema(schema))
            }
            _ => Ok(SqlError::undefined_table(written)),
        }
    }
}

/// Makes a role the owner of an object. Grants by the old owner become grants by the new one.
pub(super) fn give(object: &Object, owner: &str, cx: &mut dyn Context) -> Result<(), Failure> {
    let mut access = role::access(object, cx)?;
    let before = std::mem::replace(&mut access.owner, owner.to_owned());
    for given in access.given.iter_mut().filter(|given| given.by == before) {
        given.by = owner.to_owned();
    }
    access.given.retain(|given| given.to.as_deref() != Some(owner));
    Ok(role::put_access(object, &access, cx)?)
}

/// Returns the owner of an object that the user creates: the user, or the bootstrap superuser if
/// the user has no role.
pub(super) fn owner_of_new(env: &Env, cx: &mut dyn Context) -> Result<String, Failure> {
    let is_role = role::find(&env.user, cx)?.is_some();
    Ok(if is_role { env.user.to_string() } else { BOOTSTRAP.to_owned() })
}

/// Records the owner of a new relation. A relation without a record belongs to the bootstrap
/// superuser.
pub(super) fn adopt(name: &QualifiedName, env: &Env, cx: &mut dyn Context) -> Result<(), Failure> {
    match owner_of_new(env, cx)? {
        owner if owner == BOOTSTRAP => Ok(()),
        owner => Ok(role::put_access(&Object::Table(name.clone()), &Access::of(&owner), cx)?),
    }
}

/// Deletes the access record of a dropped relation.
pub(super) fn forget(name: &QualifiedName, cx: &mut dyn Context) -> Result<(), Failure> {
    Ok(role::remove_access(&Object::Table(name.clone()), cx)?)
}

/// Moves the access record of a renamed table.
pub(super) fn follow_name(
    before: &QualifiedName,
    after: &QualifiedName,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let [before, after] = [before, after].map(|name| Object::Table(name.clone()));
    follow(&before, &after, cx)
}

/// Moves the access record of a renamed object.
pub(super) fn follow(before: &Object, after: &Object, cx: &mut dyn Context) -> Result<(), Failure> {
    let access = role::access(before, cx)?;
    if access != Access::of(BOOTSTRAP) {
        role::put_access(after, &access, cx)?;
    }
    Ok(role::remove_access(before, cx)?)
}
