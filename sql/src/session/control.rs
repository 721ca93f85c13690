//! Statements about the session itself: SET, SHOW, DISCARD and others.

use super::command::Command;
use super::settings::Settings;
use super::{Response, Session};
use crate::error::{SqlError, code};
use crate::notice::Notice;
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
        let old = self.settings.show(name).map(str::to_owned).unwrap_or_default();
        match value {
            Some(value) => self.settings.set(name, value)?,
            None => self.settings.reset(name)?,
        }
        if name == "transaction_read_only" {
            let is_read_only = self.settings.is_on("transaction_read_only");
            self.set_read_only(is_read_only, false)?;
        }
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
            Command::SetTransaction { is_read_only, is_session, as_of: None } => {
                match *is_read_only {
                    Some(is_read_only) => self.set_read_only(is_read_only, *is_session)?,
                    None if !is_session && self.transaction.is_none() => self.warn_of_no_block(),
                    None => {}
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

    fn set_read_only(&mut self, is_read_only: bool, is_session: bool) -> Result<(), SqlError> {
        if is_session {
            let value = if is_read_only { "on" } else { "off" };
            return self.settings.set("default_transaction_read_only", value);
        }
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
