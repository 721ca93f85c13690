//! A client's session with a server.

use std::fmt;

use pangea_core::codec::Writer;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::txn::{Abort, Outcome, SqlState};

use crate::calls::Work;
use crate::retries::{ATTEMPTS_MAX, Retries};
use crate::{etcd, galera, postgres};

/// One client's session, which runs one call after the other.
#[derive(Debug)]
pub struct Session {
    way: Way,
    retries: Retries,
    is_lost: bool,
}

#[derive(Debug)]
pub(crate) enum Way {
    Galera(galera::Session),
    Postgres(postgres::Session),
    Etcd(etcd::Session),
}

/// A call with an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost(pub String);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lost {}

/// The result of one attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// Committed, with the values read.
    Committed(Vec<u8>),
    /// Rolled back because of a conflict: a retry may commit.
    Undone(Abort),
    /// Aborted, and not to be retried.
    Aborted(Abort),
    /// The outcome is unknown.
    Lost(String),
}

impl Attempt {
    /// An abort with the five-character code of any database.
    pub fn abort(code: &str, message: &str) -> Abort {
        let code = code.as_bytes().try_into().map_or(SqlState::INTERNAL_ERROR, SqlState);
        Abort::new(code, message)
    }
}

impl Session {
    pub(crate) fn new(way: Way, retries: Retries) -> Self {
        Self { way, retries, is_lost: false }
    }

    /// Calls a procedure of a workload with Pangea's arguments. Retries transactions that the
    /// database rolls back because of conflicts.
    ///
    /// # Errors
    /// When the outcome is unknown. The session is then unusable.
    pub async fn call(&mut self, procedure: &str, args: &[u8]) -> Result<Outcome, Lost> {
        let work = match Work::read(procedure, args) {
            Ok(work) => work,
            Err(error) => {
                let abort = Abort::new(SqlState::INTERNAL_ERROR, error.to_string());
                return Ok(Outcome::Aborted(abort));
            }
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let ended = match &mut self.way {
                Way::Galera(session) => session.run(&work).await,
                Way::Postgres(session) => session.run(&work).await,
                Way::Etcd(session) => session.run(&work).await,
            };
            match ended {
                Attempt::Committed(result) => {
                    let (txn, version) = (TxnId::default(), SnapshotVersion(0));
                    return Ok(Outcome::Committed { txn, version, result });
                }
                Attempt::Undone(abort) if attempts < ATTEMPTS_MAX => {
                    self.retries.count(abort.code.as_str());
                }
                Attempt::Undone(abort) | Attempt::Aborted(abort) => {
                    return Ok(Outcome::Aborted(abort));
                }
                Attempt::Lost(why) => {
                    self.is_lost = true;
                    return Err(Lost(why));
                }
            }
        }
    }

    /// Whether the session is usable.
    pub fn is_connected(&self) -> bool {
        !self.is_lost
    }
}

/// The result of a call: values, each with its length, as Pangea's YCSB procedure returns them.
pub(crate) fn encode_values<'v>(values: impl IntoIterator<Item = &'v [u8]>) -> Vec<u8> {
    let mut result = Vec::new();
    values.into_iter().for_each(|value| result.put_bytes(value));
    result
}
