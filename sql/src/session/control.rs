//! Statements about the session itself: SET, SHOW, DISCARD and others.

use pangea_core::guarantee::Isolation;

use super::command::{Command, Modes};
use super::settings::{DEFAULT_ISOLATION, ISOLATION, Settings};
use super::{Response, Session};
use crate::error::{SqlError, code};
use crate::notice::Notice;
use crate::settings::isolation::{name_of, named};
use crate::settings::{checked, known};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;

impl Session {
    /// Sets or resets a setting; if `is_local`, until the transaction ends. Returns whether it had
    /// an effect: outside of a transaction a local setting has none.
    pub(super) fn set(
        &mut self,
        name: &str,
        value: Option<&str>,
        is_local: bool,
    ) -> Result<bool, SqlError> {
        if name == ISOLATION {
            let wanted = match value {
                Some(value) => named(&checked(known(name)?, value)?),
                None => None,
            };
            if self.transaction.is_some() {
                let wanted = self.settings.granted(wanted)?;
                self.set_isolation(wanted)?;
            }
            return Ok(true);
        }
        let old = self.settings.show(name).map(str::to_owned).unwrap_or_default();
        match value {
            Some(value) => self.settings.set(name, value)?,
            None => self.settings.reset(name)?,
        }
        if name == "transaction_read_only" {
            let is_read_only = self.settings.is_on("transaction_read_only");
            self.set_read_only(is_read_only)?;
        }
        self.follow_default_isolation();
        if is_local && let Some(transaction) = &mut self.transaction {
            transaction.local_settings.push((name.to_owned(), old));
        } else if is_local {
            self.settings.set(name, &old)?;
            return Ok(false);
        }
        Ok(true)
    }

    pub(super) async fn run_setting(&mut self, command: &Command) -> Result<Response, SqlError> {
        let done = |tag: &str| Ok(Response::Command { tag: tag.to_owned() });
        match command {
            Command::SetTransaction { as_of: Some(as_of), .. } => {
                match self.transaction {
                    Some(_) => self.begin_as_of(as_of).await?,
                    None => self.warn_of_no_block(),
                }
                done("SET")
            }
            Command::SetTransaction { modes, is_session, as_of: None } => {
                match (*is_session, &self.transaction) {
                    (true, _) => self.set_default_modes(*modes)?,
                    (false, Some(_)) => self.set_modes(*modes)?,
                    (false, None) => self.warn_of_no_block(),
                }
                done("SET")
            }
            Command::Set { name, value, is_local } => {
                if !self.set(name, value.as_deref(), *is_local)? {
                    let warning = "SET LOCAL can only be used in transaction blocks";
                    self.notices.push(Notice::warning(code::NO_TRANSACTION, warning));
                }
                done(if value.is_some() { "SET" } else { "RESET" })
            }
            Command::ResetAll => {
                self.settings.reset_all();
                self.follow_default_isolation();
                done("RESET")
            }
            Command::Show(name) => {
                let value = self.settings.show(name)?.to_owned();
                let name = Settings::shown_name(name).to_owned();
                Ok(text_rows(&[&name], vec![vec![value]], "SHOW"))
            }
            Command::ShowAll => {
                let row = |(name, value): (&str, &str)| {
                    vec![name.to_owned(), value.to_owned(), String::new()]
                };
                let rows = self.settings.all().map(row).collect();
                Ok(text_rows(&["name", "setting", "description"], rows, "SHOW"))
            }
            Command::Discard => {
                if self.transaction.is_some() {
                    let message = "DISCARD ALL cannot run inside a transaction block";
                    return Err(SqlError::new(code::ACTIVE_TRANSACTION, message));
                }
                self.discard();
                done("DISCARD ALL")
            }
            Command::Deallocate(name) => {
                self.deallocate(name.as_deref())?;
                done(if name.is_some() { "DEALLOCATE" } else { "DEALLOCATE ALL" })
            }
            Command::Nothing { tag } => done(tag),
            Command::Data(_)
            | Command::Copy(_)
            | Command::Explain(_)
            | Command::Cursor(_)
            | Command::Begin { .. }
            | Command::Commit { .. }
            | Command::Savepoint(..)
            | Command::SetUser(_)
            | Command::Prepare { .. }
            | Command::Execute { .. }
            | Command::Rollback { .. } => unreachable!("not a setting: {command:?}"),
        }
    }

    /// DISCARD ALL: drops the state of the session.
    fn discard(&mut self) {
        self.settings.reset_all();
        self.follow_default_isolation();
        self.settings.reset_authorization();
        self.statements.clear();
        self.portals.clear();
        self.cursors.clear();
    }

    /// Warns that a setting of the transaction has no effect, because no transaction is open.
    fn warn_of_no_block(&mut self) {
        let warning = "SET TRANSACTION can only be used in transaction blocks";
        self.notices.push(Notice::warning(code::NO_TRANSACTION, warning));
    }

    /// Sets modes of the session's later transactions.
    fn set_default_modes(&mut self, modes: Modes) -> Result<(), SqlError> {
        if let Some(is_read_only) = modes.is_read_only {
            let value = if is_read_only { "on" } else { "off" };
            self.set("default_transaction_read_only", Some(value), false)?;
        }
        if let Some(level) = modes.isolation {
            self.set(DEFAULT_ISOLATION, Some(name_of(level)), false)?;
        }
        Ok(())
    }

    /// Sets modes of the open transaction.
    pub(super) fn set_modes(&mut self, modes: Modes) -> Result<(), SqlError> {
        if let Some(level) = modes.isolation {
            self.set_isolation(level)?;
        }
        match modes.is_read_only {
            Some(is_read_only) => self.set_read_only(is_read_only),
            None => Ok(()),
        }
    }

    /// Sets the isolation level of the open transaction.
    fn set_isolation(&mut self, wanted: Isolation) -> Result<(), SqlError> {
        let level = self.settings.granted(Some(wanted))?;
        let is_change = level != self.settings.isolation();
        let wrong = match &self.transaction {
            Some(open) if is_change && !open.savepoints.is_empty() => {
                Some("must not be called in a subtransaction")
            }
            Some(open) if is_change && open.cx.is_some() => Some("must be called before any query"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            let message = format!("SET TRANSACTION ISOLATION LEVEL {wrong}");
            return Err(SqlError::new(code::ACTIVE_TRANSACTION, message));
        }
        self.settings.set_isolation(level);
        Ok(())
    }

    /// Outside of a transaction, the next one has the default level.
    fn follow_default_isolation(&mut self) {
        if self.transaction.is_none() {
            self.settings.follow_default_isolation();
        }
    }

    fn set_read_only(&mut self, is_read_only: bool) -> Result<(), SqlError> {
        let Some(transaction) = &mut self.transaction else {
            self.warn_of_no_block();
            return Ok(());
        };
        if transaction.is_read_only && !is_read_only && transaction.cx.is_some() {
            let message = "transaction read-write mode must be set before any query";
            return Err(SqlError::new(code::ACTIVE_TRANSACTION, message));
        }
        transaction.is_read_only = is_read_only;
        Ok(())
    }
}

/// Makes a response of text rows.
fn text_rows(names: &[&str], rows: Vec<Vec<String>>, tag: &str) -> Response {
    let column = |name: &&str| OutputColumn::new(*name, SqlType::Text);
    let datums = |row: Vec<String>| row.into_iter().map(Datum::Text).collect();
    Response::Rows {
        columns: names.iter().map(column).collect(),
        rows: rows.into_iter().map(datums).collect(),
        tag: tag.to_owned(),
    }
}
