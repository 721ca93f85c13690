//! The user of a session: the login, SET ROLE and SET SESSION AUTHORIZATION.
//!
//! A session has three users. The user that logged in never changes. SET SESSION AUTHORIZATION,
//! which requires a superuser, replaces it by another session user. SET ROLE replaces the session
//! user by one of the roles that it is a member of. The last of the three determines the
//! privileges.

use std::collections::BTreeSet;
use std::sync::Arc;

use pangea_core::guarantee::Isolation;
use pangea_core::txn::{Context, Outcome, Program};

use super::command::Command;
use super::local::LocalContext;
use super::statement::submit;
use super::{Response, Session, now};
use crate::authorization::no_role;
use crate::catalog::BOOTSTRAP;
use crate::catalog::role::{self, Role};
use crate::engine::Engine;
use crate::error::{Failure, SqlError, code};
use crate::notice::Notice;
use crate::scram::Verifier;
use crate::syntax::{Parsed, RoleStatement};

/// SET ROLE and SET SESSION AUTHORIZATION, and the statements that reset them.
#[derive(Clone, Debug)]
pub(crate) enum SetUser {
    Role { role: Option<String>, is_local: bool, tag: &'static str },
    Session { user: Option<String>, is_local: bool, tag: &'static str },
}

/// The maximum number of attempts to set the first password, if the catalog changes concurrently.
const TRIES_MAX: u32 = 16;

/// The data needed to authenticate a user.
#[derive(Clone, Debug)]
pub struct Login {
    /// The verifier of the password; a mock if no password is accepted.
    pub verifier: Verifier,
    /// The reason why no password is accepted; only for the log.
    pub why_not: Option<&'static str>,
    /// Whether the role may log in once it is authenticated; `None` if it does not exist.
    can_login: Option<bool>,
    /// Whether the cluster has no role that can log in. Then trust admits names without a role.
    is_new_cluster: bool,
    /// The maximum number of sessions of the role on a node.
    pub connection_limit: Option<u32>,
}

impl Login {
    /// Reads the data of a user from this node's state.
    ///
    /// # Errors
    /// If a record is malformed.
    pub fn of(engine: &dyn Engine, user: &str) -> Result<Self, SqlError> {
        let mut cx = LocalContext::snapshot(engine.store().pin());
        Ok(Self::read(user, &mut cx)?)
    }

    fn read(user: &str, cx: &mut dyn Context) -> Result<Self, Failure> {
        let role = role::find(user, cx)?;
        let text = role::password(user, cx)?;
        let verifier = text.as_deref().and_then(Verifier::parse);
        let is_over = |role: &Role| role.valid_until.is_some_and(|until| until < now());
        let why_not = match (&role, &verifier) {
            (None, _) => Some("the role does not exist"),
            (Some(_), None) => Some("the role has no password"),
            (Some(role), Some(_)) if is_over(role) => Some("the password has expired"),
            (Some(_), Some(_)) => None,
        };
        let verifier = match verifier {
            Some(verifier) if why_not.is_none() => verifier,
            _ => Verifier::mock(user, &role::mock_secret(cx)?.unwrap_or_default()),
        };
        let limit = role.as_ref().filter(|role| !role.is_superuser);
        let connection_limit = limit.and_then(|role| u32::try_from(role.connection_limit).ok());
        // Read for every user, so that the time does not depend on whether the role exists.
        let is_new_cluster = !role::all(cx)?.iter().any(|role| role.can_login);
        let can_login = role.map(|role| role.can_login);
        Ok(Self { verifier, why_not, can_login, is_new_cluster, connection_limit })
    }

    /// Whether a role of this name exists.
    pub fn is_role(&self) -> bool {
        self.can_login.is_some()
    }

    /// Whether a user that is authenticated, or trusted, may have a session.
    ///
    /// # Errors
    /// 28000 if it may not, with PostgreSQL's message.
    pub fn admit(&self, user: &str) -> Result<(), SqlError> {
        match self.can_login {
            Some(true) => Ok(()),
            Some(false) => {
                let message = format!("role \"{user}\" is not permitted to log in");
                Err(SqlError::new(code::INVALID_AUTHORIZATION, message))
            }
            None if self.is_new_cluster => Ok(()),
            None => {
                let message = format!("role \"{user}\" does not exist");
                let hint = format!("Connect as {BOOTSTRAP}, the first superuser, to create it.");
                Err(SqlError::new(code::INVALID_AUTHORIZATION, message).with_hint(hint))
            }
        }
    }
}

/// Sets the password of the first superuser if it has none. Returns whether it did.
///
/// # Errors
/// If the cluster cannot commit the change.
pub async fn set_first_password(engine: &dyn Engine, password: &str) -> Result<bool, SqlError> {
    let verifier = Verifier::new(password).to_string();
    let unavailable = |reason| SqlError::new(code::UNAVAILABLE, reason);
    for _ in 0..TRIES_MAX {
        engine.fresh().await.map_err(|error| unavailable(error.reason))?;
        let mut cx = LocalContext::transaction(engine.store().pin(), Isolation::Serializable);
        if role::password(BOOTSTRAP, &mut cx)?.is_some() {
            return Ok(false);
        }
        cx.begin_statement(true);
        role::set_password(BOOTSTRAP, Some(&verifier), &mut cx).map_err(Failure::from)?;
        if role::mock_secret(&mut cx)?.is_none() {
            role::put_mock_secret(&crate::scram::secret(), &mut cx).map_err(Failure::from)?;
        }
        let certified = cx.into_certified().expect("it has written");
        let outcome = submit(engine, Program::Certified(certified)).await;
        if let Outcome::Committed { .. } = outcome.map_err(|error| unavailable(error.reason))? {
            return Ok(true);
        }
    }
    let message = format!(
        "the catalog changed during each of {TRIES_MAX} attempts; restart the node to try again"
    );
    Err(SqlError::new(code::UNAVAILABLE, message))
}

/// Whether any role has a password, in this node's state.
pub fn has_passwords(engine: &dyn Engine) -> bool {
    let mut cx = LocalContext::snapshot(engine.store().pin());
    // It is created with the first password, and is never deleted.
    matches!(role::mock_secret(&mut cx), Ok(Some(_)))
}

/// Returns the command for a statement about roles. A password is replaced by its verifier, so that
/// nothing after this point sees it.
pub(super) fn command(parsed: Parsed, role: &RoleStatement) -> Result<Command, SqlError> {
    let is_reset = parsed.text.get(..5).is_some_and(|word| word.eq_ignore_ascii_case("reset"));
    let tag = if is_reset { "RESET" } else { "SET" };
    let command = match role {
        RoleStatement::SetRole { role, is_local } => {
            Command::SetUser(SetUser::Role { role: role.clone(), is_local: *is_local, tag })
        }
        RoleStatement::SetAuthorization { user, is_local } => {
            Command::SetUser(SetUser::Session { user: user.clone(), is_local: *is_local, tag })
        }
        _ => Command::Data(conceal(parsed, role)?),
    };
    Ok(command)
}

fn conceal(parsed: Parsed, role: &RoleStatement) -> Result<Parsed, SqlError> {
    let Some((password, place)) = role.password() else { return Ok(parsed) };
    let is_md5 = password.len() == 35
        && password.starts_with("md5")
        && password.bytes().skip(3).all(|byte| byte.is_ascii_hexdigit());
    if is_md5 {
        return Err(SqlError::unsupported("a password hashed with MD5"));
    }
    let kept = match Verifier::parse(password) {
        Some(verifier) => verifier.to_string(),
        None if password.is_empty() => String::new(),
        None => Verifier::new(password).to_string(),
    };
    let text = format!("{}'{kept}'{}", &parsed.text[..place.start], &parsed.text[place.end..]);
    let again = crate::syntax::parse(&text)?.pop();
    again.ok_or_else(|| SqlError::new(code::INTERNAL, "a statement about roles is none any more"))
}

/// The user of a session. It is part of the settings because it is rolled back with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authorization {
    /// The user that logged in.
    authenticated: Arc<str>,
    /// Whether it was trusted under a name without a role.
    is_trusted: bool,
    /// Whether it was a superuser at login.
    first_is_superuser: bool,
    session_user: Arc<str>,
    session_is_superuser: bool,
    /// The role of SET ROLE, and whether it is a superuser.
    role: Option<(Arc<str>, bool)>,
}

impl Authorization {
    /// The authorization of a user that has just logged in; `role` is `None` if the user has no
    /// role.
    pub(super) fn new(user: &str, role: Option<&Role>) -> Self {
        let authenticated: Arc<str> = Arc::from(user);
        Self {
            session_user: authenticated.clone(),
            authenticated,
            is_trusted: role.is_none(),
            first_is_superuser: role.is_none_or(|role| role.is_superuser),
            session_is_superuser: role.is_none_or(|role| role.is_superuser),
            role: None,
        }
    }

    /// Returns the authorization as it was when the session began.
    pub(super) fn first(&self) -> Self {
        let (session_user, role) = (self.authenticated.clone(), None);
        let session_is_superuser = self.first_is_superuser;
        Self { session_user, session_is_superuser, role, ..self.clone() }
    }

    /// Returns the user that determines the privileges.
    pub(super) fn user(&self) -> &Arc<str> {
        self.role.as_ref().map_or(&self.session_user, |(role, _)| role)
    }

    pub(super) fn session_user(&self) -> &Arc<str> {
        &self.session_user
    }

    /// Whether the session's user has no role and all privileges.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted && self.session_user == self.authenticated
    }

    /// Returns the settings that SHOW displays for it.
    pub(super) fn shown(&self) -> [(&'static str, &str); 3] {
        let role = self.role.as_ref();
        let is_superuser =
            role.map_or(self.session_is_superuser, |(_, is_superuser)| *is_superuser);
        [
            ("is_superuser", if is_superuser { "on" } else { "off" }),
            ("role", role.map_or("none", |(role, _)| role)),
            ("session_authorization", &self.session_user),
        ]
    }
}

/// The role of a user, and all roles that it is a member of.
type Member = (Role, BTreeSet<String>);

fn unknown(name: &str) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER, no_role(name).message)
}

fn read_roles(
    name: &str,
    user: &str,
    cx: &mut dyn Context,
) -> Result<(Option<Role>, Option<Member>), Failure> {
    let target = role::find(name, cx)?;
    let member = match role::find(user, cx)? {
        Some(role) => Some((role, role::roles_of(user, |_| true, cx)?)),
        None => None,
    };
    Ok((target, member))
}

impl Session {
    /// Whether the user has no role, and has all privileges because it was trusted.
    pub fn is_trusted(&self) -> bool {
        self.settings.authorization().is_trusted()
    }

    /// Runs SET ROLE and SET SESSION AUTHORIZATION.
    pub(super) async fn set_user(&mut self, set: &SetUser) -> Result<Response, SqlError> {
        let who = self.settings.authorization().clone();
        let (who, is_local, tag) = match set {
            SetUser::Role { role, is_local, tag } => {
                (self.with_role(who, role.as_deref()).await?, *is_local, *tag)
            }
            SetUser::Session { user, is_local, tag } => {
                (self.with_session_user(who, user.as_deref()).await?, *is_local, *tag)
            }
        };
        match &mut self.transaction {
            Some(open) if is_local => {
                let before = self.settings.authorization().clone();
                open.local_authorization.get_or_insert(before);
                self.settings.set_authorization(who);
            }
            None if is_local => {
                let warning = "SET LOCAL can only be used in transaction blocks";
                self.notices.push(Notice::warning(code::NO_TRANSACTION, warning));
            }
            _ => self.settings.set_authorization(who),
        }
        Ok(Response::Command { tag: tag.to_owned() })
    }

    async fn with_role(
        &mut self,
        who: Authorization,
        name: Option<&str>,
    ) -> Result<Authorization, SqlError> {
        let Some(name) = name else { return Ok(Authorization { role: None, ..who }) };
        let (target, member) = self.roles(name, &who.session_user).await?;
        let target = target.ok_or_else(|| unknown(name))?;
        let is_member = match &member {
            None => who.is_trusted(),
            Some((session, roles)) => session.is_superuser || roles.contains(name),
        };
        if !is_member {
            let message = format!("permission denied to set role \"{name}\"");
            return Err(SqlError::new(code::NO_PRIVILEGE, message));
        }
        Ok(Authorization { role: Some((Arc::from(name), target.is_superuser)), ..who })
    }

    async fn with_session_user(
        &mut self,
        who: Authorization,
        name: Option<&str>,
    ) -> Result<Authorization, SqlError> {
        let name = Arc::from(name.unwrap_or(&who.authenticated));
        let is_own = name == who.authenticated;
        let (target, member) = self.roles(&name, &who.authenticated).await?;
        let is_superuser = match &target {
            Some(target) => target.is_superuser,
            None if is_own => who.is_trusted,
            None => return Err(unknown(&name)),
        };
        let may = member.map_or(who.is_trusted, |(own, _)| own.is_superuser);
        if !is_own && !may {
            let message = format!("permission denied to set session authorization \"{name}\"");
            return Err(SqlError::new(code::NO_PRIVILEGE, message));
        }
        let (session_user, session_is_superuser) = (name, is_superuser);
        Ok(Authorization { session_user, session_is_superuser, role: None, ..who })
    }

    /// Returns a role, and a user with its memberships. If this node does not know the role yet,
    /// waits for a fresh snapshot.
    async fn roles(
        &mut self,
        name: &str,
        user: &str,
    ) -> Result<(Option<Role>, Option<Member>), SqlError> {
        let open = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
        if let Some(cx) = open {
            return Ok(read_roles(name, user, cx)?);
        }
        // Before the snapshot is pinned: what it lacks may be published meanwhile.
        let is_behind = self.is_behind();
        let mut cx = LocalContext::snapshot(self.engine.store().pin());
        let found = read_roles(name, user, &mut cx)?;
        if found.0.is_some() && !is_behind {
            return Ok(found);
        }
        self.wait_fresh().await?;
        let mut cx = LocalContext::snapshot(self.engine.store().pin());
        Ok(read_roles(name, user, &mut cx)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryEngine;

    fn concealed(text: &str) -> Parsed {
        let parsed = crate::syntax::parse(text).unwrap().pop().unwrap();
        match Command::new(parsed) {
            Ok(Command::Data(parsed)) => parsed,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn nobody_after_the_session_sees_a_password() {
        let literals =
            ["'ge heim'", "e'ge\\x20heim'", "U&'ge\\0020heim'", "$$ge heim$$", "$a$ge heim$a$"];
        for literal in literals {
            for (before, after) in [
                ("select 'é';\n create user \"é\" password ", " valid until 'infinity'"),
                ("ALTER ROLE a ENCRYPTED PASSWORD ", ""),
                (" /* é */ alter user \"é\" /* x */ with login password ", "\n nocreatedb -- x\n;"),
            ] {
                let text = format!("{before}{literal}{after}");
                let parsed = concealed(&text);
                let shown = format!("{parsed:?}");
                assert!(!shown.contains("heim"), "{text}: {shown}");
                let role = parsed.role.expect("it is about roles");
                let (kept, _) = role.password().unwrap();
                assert!(Verifier::parse(kept).unwrap().is_of("ge heim"), "{text}: {kept}");
                assert!(parsed.text.contains(kept));
            }
        }
    }

    #[test]
    fn what_is_kept_of_a_password_stays_as_it_is() {
        let kept = Verifier::new("x").to_string();
        let parsed = concealed(&format!("create role a password '{kept}'"));
        assert_eq!(&*parsed.text, format!("create role a password '{kept}'"));
        assert!(concealed("alter role a password null").role.unwrap().password().is_none());
    }

    #[test]
    fn who_dropped_its_own_name_is_no_superuser() {
        let engine = MemoryEngine::new();
        let login = |user| Login::of(&engine, user).unwrap();
        assert_eq!(login("anybody").admit("anybody"), Ok(()));
        let mut cx = LocalContext::transaction(engine.store().pin(), Isolation::Serializable);
        cx.begin_statement(true);
        role::put(&Role { can_login: true, ..Role::new("a") }, &mut cx).unwrap();
        role::put(&Role::new("b"), &mut cx).unwrap();
        for (user, is_let_in) in [("a", true), ("b", false), ("c", false), (BOOTSTRAP, true)] {
            let login = Login::read(user, &mut cx).unwrap();
            assert_eq!(login.admit(user).is_ok(), is_let_in, "{user}");
            assert!(login.why_not.is_some(), "nobody has a password");
        }
        let trusted = Authorization::new("me", None);
        assert!(trusted.is_trusted());
        let role = Some((Arc::from("a"), false));
        let other = Authorization { role, session_user: Arc::from("a"), ..trusted };
        assert!(!other.is_trusted() && other.first().is_trusted());
    }
}
