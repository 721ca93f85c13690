//! Roles, the database, and schemas.

use std::collections::BTreeSet;
use std::convert::Infallible;

use super::tables::{Rows, int, text};
use super::{PG_NAMESPACE, SystemCatalog, numbered};
use crate::authorization::held;
use crate::catalog::role::{self, Access, PRIVILEGES, Privileges, Role};
use crate::catalog::{BOOTSTRAP, schema};
use crate::expr::Env;
use crate::syntax::quoted;
use crate::types::datum::Datum;
use crate::vocabulary::system::{DATABASE, ENCODING};

/// OID of the tablespace that contains all data.
pub(super) const DEFAULT_TABLESPACE: u32 = 1_663;
/// Formats an access control list as PostgreSQL does: `role=privileges/grantor`. Returns NULL if
/// nothing was granted. `all` are the privileges of the owner.
pub(super) fn acl(access: &Access, all: Privileges) -> Datum {
    if access.given.is_empty() {
        return Datum::Null;
    }
    let item = |to: &str, by: &str, has: Privileges, may_give: Privileges| {
        let is_in = |it: Privileges, one: Privileges| !it.within(one).is_empty();
        let letters = PRIVILEGES.iter().filter(|(.., one)| is_in(has, *one));
        let letters = letters.map(|(_, letter, one)| {
            let star = if is_in(may_give, *one) { "*" } else { "" };
            format!("{letter}{star}")
        });
        Datum::Text(format!("{to}={}/{}", letters.collect::<String>(), quoted(by)))
    };
    let own = item(&quoted(&access.owner), &access.owner, all, Privileges::default());
    let given = access.given.iter().map(|given| {
        let to = given.to.as_deref().map(quoted).unwrap_or_default();
        item(&to, &given.by, given.privileges, given.with_option)
    });
    Datum::array(std::iter::once(own).chain(given).collect())
}

/// Returns the access control list of a system schema.
fn acl_of_system() -> Datum {
    Datum::array(vec![
        Datum::Text(format!("{BOOTSTRAP}=UC/{BOOTSTRAP}")),
        Datum::Text(format!("=U/{BOOTSTRAP}")),
    ])
}

impl SystemCatalog {
    /// Returns the schemas.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = (u32, &str)> {
        self.schemas.iter().map(|(oid, name)| (*oid, name.as_str()))
    }

    pub(super) fn pg_authid(&self, mut rows: Rows, env: &Env) -> Rows {
        // A trusted user whose name is not a role is a superuser.
        let is_known = self.roles.values().any(|role| *role.name == *env.user);
        let guest = (env.is_trusted && !is_known).then(|| Role::superuser(&env.user));
        let guest = numbered(guest.map(|role| (role.name.clone(), role)));
        for (oid, role) in self.roles.iter().chain(&guest) {
            rows.add(&[
                ("oid", int(*oid)),
                ("rolname", text(&role.name)),
                ("rolsuper", Datum::Bool(role.is_superuser)),
                ("rolinherit", Datum::Bool(role.inherits)),
                ("rolcreaterole", Datum::Bool(role.creates_roles)),
                ("rolcreatedb", Datum::Bool(role.creates_databases)),
                ("rolcanlogin", Datum::Bool(role.can_login)),
                ("rolconnlimit", int(role.connection_limit)),
                ("rolvaliduntil", role.valid_until.map_or(Datum::Null, Datum::Timestamp)),
            ]);
        }
        rows
    }

    pub(super) fn pg_auth_members(&self, mut rows: Rows) -> Rows {
        for (oid, role) in &self.roles {
            for membership in &role.member_of {
                rows.add(&[
                    ("roleid", int(self.role_oid(&membership.role))),
                    ("member", int(*oid)),
                    ("grantor", int(self.role_oid(BOOTSTRAP))),
                    ("admin_option", Datum::Bool(membership.is_admin)),
                ]);
            }
        }
        rows
    }

    /// Returns the database of the session. Every database name denotes the only database.
    pub(super) fn pg_database(&self, mut rows: Rows, env: &Env) -> Rows {
        rows.add(&[
            ("oid", int(DATABASE)),
            ("datname", text(&env.database)),
            ("datdba", int(self.role_oid(BOOTSTRAP))),
            ("encoding", int(ENCODING)),
            ("datlocprovider", text("c")),
            ("datallowconn", Datum::Bool(true)),
            ("datconnlimit", int(-1)),
            ("dattablespace", int(DEFAULT_TABLESPACE)),
            ("datcollate", text("C")),
            ("datctype", text("C.UTF-8")),
        ]);
        rows
    }

    /// Returns the initial privileges, which dumps omit.
    pub(super) fn pg_init_privs(&self, mut rows: Rows) -> Rows {
        for (oid, _) in self.namespaces().filter(|(_, name)| schema::SYSTEM.contains(name)) {
            rows.add(&[
                ("objoid", int(oid)),
                ("classoid", int(PG_NAMESPACE)),
                ("privtype", text("i")),
                ("initprivs", acl_of_system()),
            ]);
        }
        rows
    }

    pub(super) fn pg_namespace(&self, mut rows: Rows) -> Rows {
        for (oid, name) in self.namespaces().filter(|(_, name)| schema::SYSTEM.contains(name)) {
            rows.add(&[
                ("oid", int(oid)),
                ("nspname", text(name)),
                ("nspowner", int(self.role_oid(BOOTSTRAP))),
                ("nspacl", acl_of_system()),
            ]);
        }
        for (oid, name) in self.namespaces().filter(|(_, name)| !schema::SYSTEM.contains(name)) {
            let access = self.access_of_schema(name);
            let acl = match access.given.is_empty() {
                true => Datum::Null,
                false => acl(&access, Privileges::SCHEMA),
            };
            rows.add(&[
                ("oid", int(oid)),
                ("nspname", text(name)),
                ("nspowner", int(self.role_oid(&access.owner))),
                ("nspacl", acl),
            ]);
        }
        rows
    }
}

impl SystemCatalog {
    /// Returns whether a user is a superuser.
    pub(crate) fn is_superuser(&self, user: &str, env: &Env) -> bool {
        let found = self.roles.values().find(|role| role.name == user);
        found.map_or(env.is_trusted && *env.user == *user, |role| role.is_superuser)
    }

    /// Returns whether a user has the privileges of a role.
    pub(crate) fn has_role(&self, user: &str, role: &str) -> bool {
        self.privileged(user).contains(role)
    }

    /// Returns the roles whose privileges a user has.
    fn privileged(&self, user: &str) -> BTreeSet<String> {
        let find = |name: &str| {
            let found = self.roles.values().find(|role| role.name == name);
            Ok::<_, Infallible>(found.cloned())
        };
        let Ok(all) = role::memberships_of(user, |role| role.inherits, find);
        all
    }

    /// Returns whether a user has privileges on a relation. Returns `None` if the relation does not
    /// exist.
    pub(crate) fn may(
        &self,
        user: &str,
        relation: u32,
        (wanted, with_option): (Privileges, bool),
        env: &Env,
    ) -> Option<bool> {
        let entry = self.relations.get(&relation)?;
        if self.is_superuser(user, env) {
            return Some(true);
        }
        if !entry.is_of_user() {
            return Some(wanted == Privileges::SELECT && !with_option);
        }
        let owner = || Access::of(BOOTSTRAP);
        let name = self.owned_as(entry);
        let mut access = self.access.get(&name).cloned().unwrap_or_else(owner);
        if with_option {
            access.given.iter_mut().for_each(|given| given.privileges = given.with_option);
        }
        Some(may(&access, &self.privileged(user), wanted))
    }

    /// Returns whether a user has privileges in a schema. Returns `None` if the schema does not
    /// exist.
    pub(crate) fn may_in_schema(
        &self,
        user: &str,
        schema: u32,
        (wanted, with_option): (Privileges, bool),
        env: &Env,
    ) -> Option<bool> {
        let name = self.schemas.get(&schema)?;
        if self.is_superuser(user, env) {
            return Some(true);
        }
        if schema::SYSTEM.contains(&name.as_str()) {
            return Some(wanted == Privileges::USAGE && !with_option);
        }
        let mut access = self.access_of_schema(name);
        if with_option {
            access.given.iter_mut().for_each(|given| given.privileges = given.with_option);
        }
        Some(may(&access, &self.privileged(user), wanted))
    }

    /// Returns the owner of a schema and the privileges granted on it.
    fn access_of_schema(&self, name: &str) -> Access {
        let nobodys = || Access::of(BOOTSTRAP);
        self.schema_access.get(name).cloned().unwrap_or_else(nobodys)
    }
}

fn may(access: &Access, roles: &BTreeSet<String>, wanted: Privileges) -> bool {
    wanted.without(held(access, roles)).is_empty()
}

impl SystemCatalog {
    /// Expands an item of an access control list to rows: grantor, grantee, privilege, and whether
    /// it may be granted to others.
    pub(crate) fn privileges_of(&self, item: &str) -> Vec<Vec<Datum>> {
        let Some((to, rest)) = item.split_once('=') else { return Vec::new() };
        let (letters, by) = rest.split_once('/').unwrap_or((rest, ""));
        let number = |name: &str| int(self.role_oid(name.trim_matches('"')));
        let mut rows: Vec<Vec<Datum>> = Vec::new();
        for letter in letters.chars() {
            let found = PRIVILEGES.iter().find(|(_, known, _)| *known == letter);
            match (found, rows.last_mut()) {
                (Some((name, ..)), _) => {
                    rows.push(vec![number(by), number(to), text(name), Datum::Bool(false)]);
                }
                (None, Some(row)) => row[3] = Datum::Bool(true),
                (None, None) => {}
            }
        }
        rows
    }
}
