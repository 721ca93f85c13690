//! Savepoints: partial rollback of a transaction.
//!
//! Writes and settings since the savepoint are undone. Reads since the savepoint remain recorded,
//! because the client has seen their results.

use std::sync::Arc;

use super::local::Mark;
use super::settings::Settings;
use super::{Response, Session};
use crate::error::{SqlError, code};

/// An operation on a savepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// SAVEPOINT.
    Set,
    /// RELEASE.
    Release,
    /// ROLLBACK TO.
    GoBack,
}

/// The state of a transaction that a savepoint restores.
pub(super) struct Savepoint {
    name: String,
    writes: Mark,
    /// Shared with the previous savepoint if no setting changed in between, because there can be
    /// many.
    settings: Arc<Settings>,
    local_settings: usize,
    is_read_only: bool,
    /// The number of cursors that the session had declared.
    cursors: u64,
}

impl Session {
    pub(super) async fn run_savepoint(
        &mut self,
        step: Step,
        name: &str,
    ) -> Result<Response, SqlError> {
        if self.transaction.as_ref().is_none_or(|open| open.is_implicit) {
            let what = match step {
                Step::Set => "SAVEPOINT",
                Step::Release => "RELEASE SAVEPOINT",
                Step::GoBack => "ROLLBACK TO SAVEPOINT",
            };
            let message = format!("{what} can only be used in transaction blocks");
            return Err(SqlError::new(code::NO_TRANSACTION, message));
        }
        let tag = match step {
            Step::Set => {
                self.open_snapshot().await?;
                self.set_savepoint(name);
                "SAVEPOINT"
            }
            Step::Release => {
                self.release(name)?;
                "RELEASE"
            }
            Step::GoBack => {
                self.go_back(name)?;
                "ROLLBACK"
            }
        };
        Ok(Response::Command { tag: tag.to_owned() })
    }

    /// Sets a savepoint. It hides an earlier one of the same name.
    fn set_savepoint(&mut self, name: &str) {
        let transaction = self.transaction.as_mut().expect("the caller has looked");
        let cx = transaction.cx.as_mut().expect("the snapshot is open");
        let before = transaction.savepoints.last().map(|before| &before.settings);
        let settings = match before.filter(|settings| ***settings == self.settings) {
            Some(same) => same.clone(),
            None => Arc::new(self.settings.clone()),
        };
        transaction.savepoints.push(Savepoint {
            name: name.to_owned(),
            writes: cx.mark(),
            settings,
            local_settings: transaction.local_settings.len(),
            is_read_only: transaction.is_read_only,
            cursors: self.cursors.declared,
        });
    }

    /// Releases a savepoint and those set after it, and keeps the writes.
    fn release(&mut self, name: &str) -> Result<(), SqlError> {
        let at = self.savepoint(name)?;
        let transaction = self.transaction.as_mut().expect("it has the savepoint");
        transaction.savepoints.truncate(at);
        if let (true, Some(cx)) = (at == 0, &mut transaction.cx) {
            cx.forget_marks();
        }
        Ok(())
    }

    /// Rolls back to a savepoint, also from a failed transaction. The savepoint remains.
    fn go_back(&mut self, name: &str) -> Result<(), SqlError> {
        let at = self.savepoint(name)?;
        let transaction = self.transaction.as_mut().expect("it has the savepoint");
        transaction.savepoints.truncate(at + 1);
        transaction.has_failed = false;
        let savepoint = transaction.savepoints.last().expect("it is this one");
        transaction.local_settings.truncate(savepoint.local_settings);
        transaction.is_read_only = savepoint.is_read_only;
        self.settings.clone_from(&*savepoint.settings);
        let cx = transaction.cx.as_mut().expect("it is kept while there are savepoints");
        let cursors = savepoint.cursors;
        cx.go_back(savepoint.writes);
        transaction.done.breaks();
        self.cursors.forget(cursors);
        Ok(())
    }

    fn savepoint(&self, name: &str) -> Result<usize, SqlError> {
        let savepoints = self.transaction.as_ref().map(|open| open.savepoints.as_slice());
        let found = savepoints.and_then(|all| all.iter().rposition(|one| one.name == name));
        found.ok_or_else(|| {
            SqlError::new(code::NO_SAVEPOINT, format!("savepoint \"{name}\" does not exist"))
        })
    }
}
