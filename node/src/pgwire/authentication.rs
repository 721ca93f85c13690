//! Client authentication, by trust or by password.
//!
//! ```text
//!   startup --> encrypted, or from this machine? --> its password, if required
//!                        | no: 28000                            | wrong: a pause, then 28P01
//!                                                               | right: may it log in? 28000
//!                                                               +-- below its limit?    53300
//! ```
//!
//! The error and the duration of a failed login are the same whether the role does not exist, has
//! no password or has a different one; the log tells them apart. The password itself is never
//! transmitted.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::pgwire::messages::startup::Authentication as Message;
use bytes::{Bytes, BytesMut};
use pangea_sql::engine::Engine;
use pangea_sql::error::{SqlError, code};
use pangea_sql::scram::{Binding, Exchange, Refusal};
use pangea_sql::session::Session;
use pangea_sql::session::authorization::Login;
use serde::{Deserialize, Serialize};

use super::connection::{Connection, End};
use super::guard::Malformed;
use super::tls::Tls;

/// The maximum length of a login message, as in PostgreSQL.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// The type byte of all login messages.
const MESSAGE_TYPE: u8 = b'p';
/// The delay of the first failed login from an address. Each further one takes twice as long as the
/// one before.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum delay.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The time after which an address's failures are forgotten.
const FORGIVEN: Duration = Duration::from_secs(60);
/// The maximum number of addresses that are tracked.
const ADDRESSES_MAX: usize = 4_096;

/// The authentication method of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Authentication {
    /// Clients are believed without proof.
    #[default]
    #[serde(rename = "trust")]
    Trust,
    /// Clients prove that they know their password, with SCRAM-SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
}

/// A server's security settings for its clients.
#[derive(Clone, Debug)]
pub struct Security {
    /// The authentication method of clients.
    pub authentication: Authentication,
    /// The certificate and the key; without them no connection is encrypted.
    pub tls: Option<Tls>,
    /// Whether clients on other machines may connect without TLS.
    pub allows_plaintext: bool,
    /// The time limit for a client's authentication, including the TLS handshake.
    pub timeout: Duration,
    /// The memory limit for unread results of all clients, in bytes.
    pub results_bytes_max: usize,
}

/// The default time limit for authentication, as in PostgreSQL.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

impl Default for Security {
    /// Clients on this machine are trusted.
    fn default() -> Self {
        let (authentication, timeout) = (Authentication::Trust, TIMEOUT_DEFAULT);
        let results_bytes_max = pangea_sql::RESULTS_BYTES_DEFAULT;
        Self { authentication, tls: None, allows_plaintext: false, timeout, results_bytes_max }
    }
}

impl Security {
    /// Checks that a client at this address may have a session with or without encryption.
    pub(super) fn check_encryption(
        &self,
        address: SocketAddr,
        is_encrypted: bool,
    ) -> Result<(), SqlError> {
        let ip = address.ip().to_canonical();
        if is_encrypted || self.allows_plaintext || ip.is_loopback() {
            return Ok(());
        }
        let message = format!("no encryption: connections from {ip} must use SSL");
        let error = SqlError::new(code::INVALID_AUTHORIZATION, message);
        Err(match self.tls {
            Some(_) => error.with_hint("Connect with sslmode=require."),
            None => error.with_hint(
                "Neither tls_certificate nor tls_key is set in the node's configuration file.",
            ),
        })
    }
}

/// Recent failed logins by address, and the number of sessions by role.
#[derive(Debug, Default)]
pub(super) struct Logins {
    failed: Mutex<BTreeMap<IpAddr, (u32, Instant)>>,
    sessions: Mutex<BTreeMap<String, u32>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Logins {
    /// Records a failed login, and returns the delay before its answer.
    fn failed(&self, address: IpAddr, now: Instant) -> Duration {
        let mut failed = lock(&self.failed);
        if failed.len() >= ADDRESSES_MAX {
            failed.retain(|_, (_, last)| now.duration_since(*last) < FORGIVEN);
        }
        if failed.len() >= ADDRESSES_MAX && !failed.contains_key(&address) {
            // Too many addresses to track: all others get the longest delay.
            return PAUSE_MAX;
        }
        let (count, last) = failed.entry(address).or_insert((0, now));
        if now.duration_since(*last) >= FORGIVEN {
            *count = 0;
        }
        let pause = PAUSE.saturating_mul(1 << (*count).min(10)).min(PAUSE_MAX);
        (*count, *last) = (count.saturating_add(1), now);
        pause
    }

    /// Counts a new session of a role, within the role's limit.
    fn take(
        self: &Arc<Self>,
        user: &str,
        most: Option<u32>,
        is_role: bool,
    ) -> Result<Place, SqlError> {
        let mut sessions = lock(&self.sessions);
        let count = sessions.entry(user.to_owned()).or_insert(0);
        if most.is_some_and(|most| *count >= most) {
            let message = format!("too many connections for role \"{user}\"");
            return Err(SqlError::new(code::TOO_MANY_CLIENTS, message));
        }
        *count += 1;
        Ok(Place { logins: self.clone(), user: user.to_owned(), is_role })
    }
}

/// A session counted against its role's limit on this node.
#[derive(Debug)]
pub(super) struct Place {
    logins: Arc<Logins>,
    user: String,
    is_role: bool,
}

impl Place {
    /// Checks that the session's user is still the one that logged in. A role dropped in the
    /// meantime must not turn into a user that `trust` admits without a role.
    pub(super) fn check(&self, session: &Session) -> Result<(), SqlError> {
        if self.is_role && session.is_trusted() {
            let message = format!("role \"{}\" does not exist", self.user);
            return Err(SqlError::new(code::INVALID_AUTHORIZATION, message));
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sessions = lock(&self.logins.sessions);
        if let Some(count) = sessions.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&self.user);
            }
        }
    }
}

/// Authenticates a client, and checks whether it may have a session.
pub(super) async fn authenticate(
    connection: &mut Connection,
    engine: &dyn Engine,
    security: &Security,
    logins: &Arc<Logins>,
    user: &str,
) -> Result<Place, End> {
    let address = connection.address();
    let checked = security.check_encryption(address, connection.is_encrypted());
    checked.map_err(|error| refused(address, user, error))?;
    let login = Login::of(engine, user).map_err(End::Fatal)?;
    if security.authentication == Authentication::ScramSha256 {
        let binding = match &security.tls {
            Some(tls) if connection.is_encrypted() => tls.binding().clone(),
            _ => Binding::None,
        };
        scram(connection, &login, binding, logins, user).await?;
    }
    login.admit(user).map_err(|error| refused(address, user, error))?;
    let place = logins.take(user, login.connection_limit, login.is_role());
    place.map_err(|error| refused(address, user, error))
}

fn refused(address: SocketAddr, user: &str, error: SqlError) -> End {
    tracing::warn!("client refused: {address}, user {user:?}: {}", error.message);
    End::Fatal(error)
}

fn malformed(what: &str) -> End {
    Malformed(format!("malformed SCRAM message: {what}")).into()
}

/// Runs the SCRAM exchange that proves the password.
async fn scram(
    connection: &mut Connection,
    login: &Login,
    binding: Binding,
    logins: &Logins,
    user: &str,
) -> Result<(), End> {
    let mechanisms = binding.mechanisms().iter().map(|&name| name.to_owned()).collect();
    connection.say(Message::SASL(mechanisms)).await?;
    let first = connection.read(message).await?;
    let (mechanism, data) = initial(&first)?;
    let exchange = Exchange::begin(mechanism, data, login.verifier.clone(), binding);
    let exchange = exchange.map_err(|refusal| match refusal {
        Refusal::Malformed(what) => malformed(what),
        Refusal::WrongPassword => unreachable!("no proof has been checked yet"),
    })?;
    connection.say(Message::SASLContinue(exchange.first().to_owned().into())).await?;
    let last = connection.read(message).await?;
    match exchange.last(&last) {
        Ok(proof) => Ok(connection.say(Message::SASLFinal(proof.into())).await?),
        Err(Refusal::Malformed(what)) => Err(malformed(what)),
        Err(Refusal::WrongPassword) => {
            let address = connection.address();
            let why = login.why_not.unwrap_or("wrong password");
            tracing::warn!("login failed: {address}, user {user:?}: {why}");
            tokio::time::sleep(logins.failed(address.ip().to_canonical(), Instant::now())).await;
            let message = format!("password authentication failed for user \"{user}\"");
            Err(End::Fatal(SqlError::new(code::WRONG_PASSWORD, message)))
        }
    }
}

/// Takes a login message from the front of the input; `None` if more bytes are needed.
fn message(input: &mut BytesMut) -> Result<Option<Bytes>, Malformed> {
    let Some(&kind) = input.first() else { return Ok(None) };
    if kind != MESSAGE_TYPE {
        return Err(Malformed(format!("expected SASL response, got message type {kind}")));
    }
    let Some(len) = input.get(1..).and_then(|rest| rest.first_chunk::<4>()) else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*len) as usize;
    if !(4..=MESSAGE_BYTES_MAX).contains(&len) {
        return Err(Malformed(format!(
            "invalid message length {len}: at most {MESSAGE_BYTES_MAX}"
        )));
    }
    if input.len() < len + 1 {
        return Ok(None);
    }
    let frame = input.split_to(len + 1).freeze();
    Ok(Some(frame.slice(5..)))
}

/// Parses the mechanism that a client chose, and its first message.
fn initial(body: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let bad = |what: &str| Malformed(what.to_owned());
    let end = body.iter().position(|&byte| byte == 0);
    let end = end.ok_or_else(|| bad("invalid string in message"))?;
    let mechanism = std::str::from_utf8(&body[..end]);
    let mechanism = mechanism.map_err(|_| bad("client selected an invalid SASL mechanism"))?;
    let (len, data) = body[end + 1..]
        .split_first_chunk::<4>()
        .ok_or_else(|| bad("insufficient data left in message"))?;
    if u32::from_be_bytes(*len) as usize != data.len() {
        return Err(bad("invalid message format"));
    }
    Ok((mechanism, data))
}

#[cfg(test)]
mod tests {
    use pangea_sql::memory::MemoryEngine;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_fails_again_and_again_waits_longer_each_time_and_nobody_else_does() {
        let logins = Logins::default();
        let now = Instant::now();
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let pauses: Vec<u128> = (0..4).map(|_| logins.failed(a, now).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800]);
        assert_eq!(logins.failed(b, now), PAUSE);
        assert_eq!(logins.failed(a, now + FORGIVEN), PAUSE);
        for _ in 0..100 {
            assert!(logins.failed(b, now) <= PAUSE_MAX);
        }
        for at in 0..=ADDRESSES_MAX as u32 {
            logins.failed(IpAddr::from(at.to_be_bytes()), now);
        }
        assert!(lock(&logins.failed).len() <= ADDRESSES_MAX);
    }

    #[test]
    fn a_role_has_no_more_sessions_than_it_may() {
        let logins = Arc::new(Logins::default());
        let first = logins.take("a", Some(1), true).unwrap();
        assert_eq!(logins.take("a", Some(1), true).unwrap_err().code, code::TOO_MANY_CLIENTS);
        let _other = logins.take("b", None, true).unwrap();
        drop(first);
        let _next = logins.take("a", Some(1), true).unwrap();
        assert_eq!(lock(&logins.sessions).len(), 2);
    }

    /// A role that is dropped between its login and its session must not become a superuser.
    #[test]
    fn a_role_that_is_dropped_while_it_logs_in_is_let_in_by_nobody() {
        let logins = Arc::new(Logins::default());
        let user = BTreeMap::from([("user".to_owned(), "a".to_owned())]);
        let session = Session::new(Arc::new(MemoryEngine::new()), Arc::default(), &user).unwrap();
        assert!(session.is_trusted(), "the user has no role");
        let was_role = logins.take("a", None, true).unwrap();
        assert_eq!(was_role.check(&session).unwrap_err().code, code::INVALID_AUTHORIZATION);
        assert_eq!(logins.take("a", None, false).unwrap().check(&session), Ok(()));
    }

    #[test]
    fn other_machines_must_encrypt_unless_the_file_says_otherwise() {
        let mut security = Security::default();
        let check = |security: &Security, ip: &str, is_encrypted| {
            let address = SocketAddr::new(ip.parse().unwrap(), 1);
            security.check_encryption(address, is_encrypted).map_err(|error| error.code)
        };
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(check(&security, ip, false), Ok(()), "{ip}");
        }
        for ip in ["10.0.0.1", "::ffff:10.0.0.1", "fd00::1"] {
            assert_eq!(check(&security, ip, false), Err(code::INVALID_AUTHORIZATION), "{ip}");
            assert_eq!(check(&security, ip, true), Ok(()), "{ip}");
        }
        security.allows_plaintext = true;
        assert_eq!(check(&security, "10.0.0.1", false), Ok(()));
    }

    proptest! {
        #[test]
        fn no_message_of_a_login_brings_the_server_down(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            len in 0u32..60,
        ) {
            let frame = [&[MESSAGE_TYPE][..], &len.to_be_bytes(), &bytes].concat();
            for input in [&frame[..], &bytes] {
                let mut input = BytesMut::from(input);
                if let Ok(Some(body)) = message(&mut input) {
                    let _ = initial(&body);
                }
            }
        }
    }
}
