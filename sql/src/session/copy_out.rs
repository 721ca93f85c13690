//! COPY TO: the rows of one snapshot, read on demand.

use std::sync::Arc;

use super::copy::{Copy, no_copy};
use super::local::LocalContext;
use super::sequences::{CachedValues, TRIES_MAX};
use super::stream::{On, Stream};
use super::{Session, now};
use crate::copy::{Messages, RowWriter};
use crate::error::{SqlError, code};
use crate::exec::BATCH_ROWS;
use crate::expr::Env;
use crate::plan::{CopyTo, Plan, Planned};

/// The next part of a COPY TO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOutput {
    /// The next messages; may be empty.
    pub messages: Messages,
    /// PostgreSQL's command tag if these messages are the last.
    pub tag: Option<String>,
}

/// A COPY TO in progress.
pub(super) struct CopyOut {
    stream: Stream,
    writer: RowWriter,
    is_begun: bool,
    count: u64,
}

impl Session {
    pub(super) async fn open_copy_out(
        &mut self,
        planned: Arc<Planned>,
    ) -> Result<CopyOut, SqlError> {
        if planned.is_write() {
            return Err(SqlError::unsupported("COPY of a query that sets a sequence"));
        }
        self.gather_facts(&planned).await;
        let mut tries = 0;
        loop {
            let own = match self.transaction {
                Some(_) => None,
                None => Some(LocalContext::snapshot(self.snapshot().await?)),
            };
            let (drawn, borrowed) = self.draw(&planned, 1, tries).await?;
            let started = self.transaction.as_ref().map_or_else(now, |open| open.started);
            let env = self.env(Vec::new(), started, drawn);
            match self.open_fetching(&planned, own, env, &borrowed) {
                Err(error) if error.code == code::TOO_FEW_NUMBERS && tries < TRIES_MAX => {
                    tries += 1;
                }
                opened => return opened,
            }
        }
    }

    fn open_fetching(
        &mut self,
        planned: &Arc<Planned>,
        own: Option<LocalContext>,
        env: Env,
        borrowed: &CachedValues,
    ) -> Result<CopyOut, SqlError> {
        let copy = query_of(planned);
        if let Some(open) = &mut self.transaction {
            // The rows sent to the client are not recorded, so the transaction cannot be replayed.
            open.done.breaks();
        }
        let open = self.transaction.as_ref().and_then(|open| open.cx.as_ref());
        let on = match (own, open) {
            (Some(own), _) => On::Snapshot(own),
            (None, Some(open)) => On::Transaction(open.view()),
            (None, None) => unreachable!("one of them is open"),
        };
        self.first_rows = Some(0);
        let stream = self.begin_stream(planned, on, env);
        let drawn = stream.as_ref().map_or(&[][..], |stream| &stream.drawn);
        self.give_back(borrowed, drawn);
        let stream = stream?;
        let (options, columns) = (copy.options.clone(), copy.columns.clone());
        let zone = self.settings.zone().clone();
        let writer = RowWriter::new(options, columns, copy.quoted.clone(), zone);
        Ok(CopyOut { stream, writer, is_begun: false, count: 0 })
    }

    /// Returns the next rows of a COPY TO.
    ///
    /// # Errors
    /// If no COPY TO is in progress, or the query fails.
    pub fn copy_next(&mut self) -> Result<CopyOutput, SqlError> {
        let mut copy = match self.copy.take() {
            Some(Copy::Out(copy)) => copy,
            _ => return Err(no_copy()),
        };
        match self.fetch(&mut copy) {
            Ok(output) => {
                if output.tag.is_none() {
                    self.copy.put(Copy::Out(copy));
                }
                Ok(output)
            }
            Err(error) => Err(self.fail_copy(error)),
        }
    }

    fn fetch(&mut self, copy: &mut CopyOut) -> Result<CopyOutput, SqlError> {
        let mut messages = Messages::default();
        if !copy.is_begun {
            copy.writer.begin(&mut messages);
            copy.is_begun = true;
        }
        let rows = self.pull(&mut copy.stream, BATCH_ROWS)?;
        for row in &rows {
            copy.writer.row(row, &mut messages);
        }
        copy.count += rows.len() as u64;
        let is_done = copy.stream.is_done();
        if is_done {
            copy.writer.finish(&mut messages);
        }
        let tag = is_done.then(|| format!("COPY {}", copy.count));
        Ok(CopyOutput { messages, tag })
    }
}

fn query_of(planned: &Planned) -> &CopyTo {
    let Plan::CopyTo(copy) = &planned.plan else { panic!("it was planned as a COPY TO") };
    copy
}
