//! COPY TO: rows of one snapshot, as they are asked for.

use std::sync::Arc;

use pangea_core::store::Header;

use super::copy::{Copy, no_copy};
use super::interrupt::Interruptible;
use super::local::LocalContext;
use super::sequences::{Borrowed, TRIES_MAX};
use super::{Session, now};
use crate::copy::{Messages, RowWriter};
use crate::engine::Engine;
use crate::error::{SqlError, code};
use crate::exec::{self, Fetching};
use crate::expr::Env;
use crate::plan::{CopyTo, Plan, Planned};

/// What a client is told of a COPY TO that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOutput {
    /// The next messages. There may be none.
    pub messages: Messages,
    /// PostgreSQL's tag, where these are the last.
    pub tag: Option<String>,
}

/// A COPY TO that is under way.
pub(super) struct CopyOut<H: Header> {
    planned: Arc<Planned>,
    /// Nothing where the transaction has one.
    cx: Option<LocalContext<H>>,
    env: Env,
    fetching: Fetching,
    writer: RowWriter,
    is_begun: bool,
    count: u64,
}

impl<E: Engine> Session<E> {
    pub(super) async fn open_copy_out(
        &mut self,
        planned: Arc<Planned>,
    ) -> Result<CopyOut<E::Header>, SqlError> {
        if planned.is_write() {
            return Err(SqlError::unsupported("COPY of a query that sets a sequence"));
        }
        // A query that takes numbers may have to be run again, so that it is run whole.
        let is_whole = !planned.sequences.is_empty();
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
            match self.open_fetching(&planned, own, is_whole, env, &borrowed) {
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
        mut own: Option<LocalContext<E::Header>>,
        is_whole: bool,
        env: Env,
        borrowed: &Borrowed,
    ) -> Result<CopyOut<E::Header>, SqlError> {
        let copy = query_of(planned);
        if let Some(open) = &mut self.transaction {
            // What its client is sent is not kept.
            open.done.breaks();
        }
        let transaction = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
        let cx = own.as_mut().or(transaction).expect("one of them is open");
        let mut cx = Interruptible::new(cx, &self.engine);
        let fetching = exec::read_catalog(planned, &env, &mut cx)
            .and_then(|()| Fetching::open(&copy.select, is_whole, &env, &mut cx));
        let current = if fetching.is_ok() { env.current() } else { Vec::new() };
        self.give_back(borrowed, &current);
        let fetching = fetching?;
        self.note_env(&env);
        self.apply_settings()?;
        let (options, columns) = (copy.options.clone(), copy.columns.clone());
        let zone = self.settings.zone().clone();
        let writer = RowWriter::new(options, columns, copy.quoted.clone(), zone);
        let (planned, is_begun, count) = (planned.clone(), false, 0);
        Ok(CopyOut { planned, cx: own, env, fetching, writer, is_begun, count })
    }

    /// The next rows of a COPY TO.
    ///
    /// # Errors
    /// When there is none under way, or the query fails.
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

    fn fetch(&mut self, copy: &mut CopyOut<E::Header>) -> Result<CopyOutput, SqlError> {
        self.check_interruption()?;
        let mut messages = Messages::default();
        if !copy.is_begun {
            copy.writer.begin(&mut messages);
            copy.is_begun = true;
        }
        let select = &query_of(&copy.planned).select;
        let transaction = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
        let cx = copy.cx.as_mut().or(transaction).expect("one of them is open");
        let mut cx = Interruptible::new(cx, &self.engine);
        let Some(rows) = copy.fetching.fetch(select, &copy.env, &mut cx)? else {
            copy.writer.finish(&mut messages);
            return Ok(CopyOutput { messages, tag: Some(format!("COPY {}", copy.count)) });
        };
        for row in &rows {
            copy.writer.row(row, &mut messages);
        }
        copy.count += rows.len() as u64;
        Ok(CopyOutput { messages, tag: None })
    }
}

fn query_of(planned: &Planned) -> &CopyTo {
    let Plan::CopyTo(copy) = &planned.plan else { panic!("it was planned as a COPY TO") };
    copy
}
