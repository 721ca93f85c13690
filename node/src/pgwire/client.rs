//! One client: passes its messages to its session, and sends the session's answers.
//!
//! Replies are buffered, and sent at the end of a Query, at Sync, at Flush and at an error, or when
//! the buffer is large. A pipeline therefore costs one write, however many messages it has.

use std::io;
use std::sync::Arc;

use ::pgwire::messages::PgWireFrontendMessage;
use ::pgwire::messages::copy::MESSAGE_TYPE_BYTE_COPY_FAIL;
use ::pgwire::messages::data::NoData;
use ::pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete,
    PortalSuspended, TARGET_TYPE_BYTE_STATEMENT,
};
use ::pgwire::messages::response::EmptyQueryResponse;
use ::pgwire::messages::simplequery::MESSAGE_TYPE_BYTE_QUERY;
use pangea_sql::OutputColumn;
use pangea_sql::error::SqlError;
use pangea_sql::session::{Execution, Reported, Response, Session};
use pangea_sql::types::datum::Datum;

use super::cancel::Cancellable;
use super::connection::{Connection, End, REPLY_BYTES};
use super::guard::{Incoming, Malformed};
use super::reply::Severity;
use super::wait_notice::with_wait_notice;

/// A session and its client.
pub(super) struct Client<'a> {
    pub(super) session: Session,
    pub(super) engine: Arc<Cancellable>,
    pub(super) connection: &'a mut Connection,
    /// The settings as last reported to the client.
    settings: Reported,
    /// The client has sent nothing since the last ReadyForQuery.
    is_ready: bool,
    /// An error occurred in the extended protocol: messages are skipped until the next Sync.
    is_skipping: bool,
    /// The number of Executes since the last Sync.
    executed: usize,
}

/// A name as the session represents it: the crate has `None` for the unnamed statement or portal.
fn named(name: Option<&String>) -> &str {
    name.map_or("", String::as_str)
}

impl<'a> Client<'a> {
    pub(super) fn new(
        session: Session,
        engine: Arc<Cancellable>,
        connection: &'a mut Connection,
    ) -> Self {
        let settings = Reported::default();
        let (is_ready, is_skipping, executed) = (false, false, 0);
        Self { session, engine, connection, settings, is_ready, is_skipping, executed }
    }

    /// Welcomes an authenticated client, and serves it until it disconnects.
    pub(super) async fn run(&mut self, process: i32, secret: i32) -> Result<(), End> {
        self.connection.replies.authenticated();
        self.report_settings();
        self.connection.replies.backend_key(process, secret);
        self.ready().await?;
        loop {
            let idle_max = self.session.idle_max().filter(|_| self.is_ready);
            let incoming = self.connection.next(idle_max).await?;
            self.is_ready = false;
            self.engine.switch.reset();
            let message = match incoming {
                Incoming::Message(message) => message,
                Incoming::NotText { kind, error } => {
                    self.refuse(kind, error).await?;
                    continue;
                }
            };
            if matches!(message, PgWireFrontendMessage::Terminate(_)) {
                return Ok(());
            }
            if !self.is_skipping || matches!(message, PgWireFrontendMessage::Sync(_)) {
                self.handle(message).await?;
            }
        }
    }

    async fn handle(&mut self, message: PgWireFrontendMessage) -> Result<(), End> {
        use PgWireFrontendMessage as M;
        let result = match message {
            M::Query(query) => {
                self.query(&query.query).await?;
                return Ok(self.ready().await?);
            }
            M::Sync(_) => return self.sync().await,
            M::Flush(_) => return Ok(self.connection.flush().await?),
            M::Parse(parse) => self.parse(&parse).await?,
            M::Bind(bind) => self.bind(&bind),
            M::Describe(describe) => self.describe(&describe),
            M::Close(close) => self.close(&close),
            M::Execute(execute) => {
                let is_alone = self.executed == 0 && self.connection.is_sync_next().await?;
                self.executed += 1;
                self.execute(&execute, is_alone).await?
            }
            // Messages of a COPY that was never begun are ignored, as in PostgreSQL.
            M::CopyData(_) | M::CopyDone(_) | M::CopyFail(_) => Ok(()),
            M::Terminate(_)
            | M::SslNegotiation(_)
            | M::Startup(_)
            | M::CancelRequest(_)
            | M::PasswordMessageFamily(_)
            | M::PortalSuspended(_) => {
                return Err(Malformed("unexpected message in a session".to_owned()).into());
            }
        };
        if let Err(error) = result {
            self.send_error(error);
            self.is_skipping = true;
            // The client may be waiting for replies that it asked to flush, and any Flush until the
            // next Sync is skipped.
            self.connection.flush().await?;
        }
        Ok(())
    }

    /// Answers a message with invalid text, which the session never sees.
    async fn refuse(&mut self, kind: u8, error: SqlError) -> Result<(), End> {
        if self.is_skipping || kind == MESSAGE_TYPE_BYTE_COPY_FAIL {
            return Ok(());
        }
        let is_query = kind == MESSAGE_TYPE_BYTE_QUERY;
        let error = self.session.refuse(error);
        self.send_error(error);
        if is_query {
            return Ok(self.ready().await?);
        }
        self.is_skipping = true;
        Ok(self.connection.flush().await?)
    }

    fn send_error(&mut self, error: SqlError) {
        self.connection.replies.error(Severity::Error, &error);
    }

    fn report_settings(&mut self) {
        let now = self.session.reported_settings();
        for (name, value) in now.since(&self.settings) {
            self.connection.replies.parameter(name, value);
        }
        self.settings = now;
    }

    async fn ready(&mut self) -> io::Result<()> {
        for notice in self.session.take_notices() {
            self.connection.replies.notice(&notice);
        }
        self.report_settings();
        self.connection.replies.ready(self.session.transaction_status());
        self.is_ready = true;
        self.connection.flush().await
    }

    async fn sync(&mut self) -> Result<(), End> {
        self.executed = 0;
        self.is_skipping = false;
        let synced = with_wait_notice(&*self.engine, self.connection, self.session.sync()).await?;
        if let Err(error) = synced {
            self.send_error(error);
        }
        Ok(self.ready().await?)
    }

    async fn query(&mut self, text: &str) -> Result<(), End> {
        let answer = self.session.simple_query(text);
        let mut responses = with_wait_notice(&*self.engine, self.connection, answer).await?;
        while self.answer(responses).await? {
            let answer = self.session.continue_query();
            responses = with_wait_notice(&*self.engine, self.connection, answer).await?;
        }
        Ok(())
    }

    /// Sends responses. Returns whether the query may have more responses, because one of these was
    /// a COPY or a stream.
    async fn answer(&mut self, responses: Vec<Response>) -> Result<bool, End> {
        let mut waits = false;
        for response in responses {
            match response {
                Response::CopyIn(start) => {
                    waits = true;
                    let copied = self.copy_in(start).await?;
                    self.end_copy(copied);
                }
                Response::CopyOut(start) => {
                    waits = true;
                    let copied = self.copy_out(start).await?;
                    self.end_copy(copied);
                }
                Response::Empty => self.connection.replies.put(EmptyQueryResponse::new()),
                Response::Command { tag } => self.connection.replies.complete(&tag),
                Response::Error(error) => self.send_error(error),
                Response::Stream { columns } => {
                    waits = true;
                    self.connection.replies.row_description(&columns, &[]);
                    let streamed = self.stream(&columns).await?;
                    self.end_copy(streamed);
                }
                Response::Rows { columns, rows, tag } => {
                    self.connection.replies.row_description(&columns, &[]);
                    match self.rows(&rows, &columns, &[]).await? {
                        Ok(()) => self.connection.replies.complete(&tag),
                        Err(error) => self.send_error(error),
                    }
                }
            }
        }
        Ok(waits)
    }

    fn end_copy(&mut self, copied: Result<String, SqlError>) {
        match copied {
            Ok(tag) => self.connection.replies.complete(&tag),
            Err(error) => self.send_error(error),
        }
    }

    /// Sends the rows of a stream, as fast as the client reads them, and returns the command tag.
    async fn stream(&mut self, columns: &[OutputColumn]) -> Result<Result<String, SqlError>, End> {
        loop {
            let batch = match self.session.next_rows() {
                Ok(batch) => batch,
                Err(error) => return Ok(Err(error)),
            };
            if let Err(error) = self.rows(&batch.rows, columns, &[]).await? {
                return Ok(Err(self.session.end_rows(error)));
            }
            if let Some(tag) = batch.tag {
                return Ok(Ok(tag));
            }
            // Lets other tasks run, however fast the client is.
            tokio::task::yield_now().await;
        }
    }

    async fn rows(
        &mut self,
        rows: &[Vec<Datum>],
        columns: &[OutputColumn],
        formats: &[bool],
    ) -> Result<Result<(), SqlError>, End> {
        for row in rows {
            let zone = self.session.zone();
            if let Err(error) = self.connection.replies.row(row, columns, formats, zone) {
                return Ok(Err(error));
            }
            if self.connection.replies.bytes().len() >= REPLY_BYTES {
                self.send().await?;
            }
        }
        Ok(Ok(()))
    }

    async fn parse(&mut self, parse: &Parse) -> Result<Result<(), SqlError>, End> {
        let name = named(parse.name.as_ref());
        let answer = self.session.parse(name, &parse.query, &parse.type_oids);
        let parsed = with_wait_notice(&*self.engine, self.connection, answer).await?;
        if parsed.is_ok() {
            self.connection.replies.put(ParseComplete::new());
        }
        Ok(parsed)
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), SqlError> {
        let values: Vec<_> = bind.parameters.iter().map(Option::as_deref).collect();
        self.session.bind(
            named(bind.portal_name.as_ref()),
            named(bind.statement_name.as_ref()),
            &values,
            &bind.parameter_format_codes,
            &bind.result_column_format_codes,
        )?;
        self.connection.replies.put(BindComplete::new());
        Ok(())
    }

    fn describe(&mut self, describe: &Describe) -> Result<(), SqlError> {
        let name = named(describe.name.as_ref());
        let described = if describe.target_type == TARGET_TYPE_BYTE_STATEMENT {
            let described = self.session.describe_statement(name)?;
            self.connection.replies.parameter_types(&described.params);
            described
        } else {
            self.session.describe_portal(name)?
        };
        if described.columns.is_empty() {
            self.connection.replies.put(NoData::new());
        } else {
            self.connection.replies.row_description(&described.columns, &described.formats);
        }
        Ok(())
    }

    fn close(&mut self, close: &Close) -> Result<(), SqlError> {
        let name = named(close.name.as_ref());
        if close.target_type == TARGET_TYPE_BYTE_STATEMENT {
            self.session.close_statement(name);
        } else {
            self.session.close_portal(name);
        }
        self.connection.replies.put(CloseComplete::new());
        Ok(())
    }

    async fn execute(
        &mut self,
        execute: &Execute,
        is_alone: bool,
    ) -> Result<Result<(), SqlError>, End> {
        let portal = named(execute.name.as_ref());
        let described = match self.session.describe_portal(portal) {
            Ok(described) => described,
            Err(error) => return Ok(Err(error)),
        };
        // A negative limit means no limit, as 0 does.
        let row_max = usize::try_from(execute.max_rows).unwrap_or(0);
        let answer = self.session.execute(portal, row_max, is_alone);
        let mut execution = with_wait_notice(&*self.engine, self.connection, answer).await?;
        loop {
            let (rows, end) = match execution {
                Ok(Execution::Empty) => {
                    self.connection.replies.put(EmptyQueryResponse::new());
                    return Ok(Ok(()));
                }
                Ok(Execution::Complete { rows, tag }) => (rows, Some(Some(tag))),
                Ok(Execution::Suspended { rows }) => (rows, Some(None)),
                Ok(Execution::Partial { rows }) => (rows, None),
                Ok(Execution::CopyIn(start)) => {
                    let copied = self.copy_in(start).await?;
                    return Ok(copied.map(|tag| self.connection.replies.complete(&tag)));
                }
                Ok(Execution::CopyOut(start)) => {
                    let copied = self.copy_out(start).await?;
                    return Ok(copied.map(|tag| self.connection.replies.complete(&tag)));
                }
                Err(error) => return Ok(Err(error)),
            };
            let (columns, formats) = (&described.columns, &described.formats);
            if let Err(error) = self.rows(&rows, columns, formats).await? {
                return Ok(Err(self.session.end_rows(error)));
            }
            match end {
                Some(Some(tag)) => self.connection.replies.complete(&tag),
                Some(None) => self.connection.replies.put(PortalSuspended::new()),
                None => {
                    // Lets other tasks run, however fast the client is.
                    tokio::task::yield_now().await;
                    execution = self.session.execute_next(portal);
                    continue;
                }
            }
            return Ok(Ok(()));
        }
    }
}
