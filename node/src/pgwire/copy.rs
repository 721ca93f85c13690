//! COPY on the wire, in a simple query or a portal.
//!
//! ```text
//!   COPY FROM   <- CopyInResponse    CopyData.. CopyDone | CopyFail ->
//!   COPY TO     <- CopyOutResponse CopyData, one a row .. CopyDone
//! ```
//!
//! As in PostgreSQL, an error is sent immediately, and data that the client sends after it is
//! skipped. A Flush or a Sync before the data is skipped too, because libraries send them if they
//! do not know that their statement is a COPY.

use ::pgwire::messages::PgWireFrontendMessage;
use ::pgwire::messages::copy::{CopyDone, CopyInResponse, CopyOutResponse};
use pangea_sql::error::{SqlError, code};
use pangea_sql::session::CopyStart;

use super::client::Client;
use super::connection::{End, REPLY_BYTES};
use super::guard::Incoming;
use super::wait_notice::with_wait_notice;

impl Client<'_> {
    /// Receives the rows of a COPY FROM, and returns PostgreSQL's command tag.
    pub(super) async fn copy_in(
        &mut self,
        start: CopyStart,
    ) -> Result<Result<String, SqlError>, End> {
        use PgWireFrontendMessage as M;
        let (format, columns, formats) = shape(start);
        self.connection.replies.put(CopyInResponse::new(format, columns, formats));
        self.connection.flush().await?;
        loop {
            let incoming = tokio::select! {
                biased;
                incoming = self.connection.next(None) => incoming?,
                // The session knows the reason, and no further row is passed to it.
                () = self.engine.interrupted() => return Ok(self.interrupt_copy().await),
            };
            let message = match incoming {
                Incoming::Message(message) => message,
                Incoming::NotText { error, .. } => {
                    return Ok(Err(self.session.copy_fail(&error.message).await));
                }
            };
            match message {
                M::CopyData(data) => {
                    let taken = self.session.copy_data(&data.data);
                    if let Err(error) =
                        with_wait_notice(&*self.engine, self.connection, taken).await?
                    {
                        return Ok(Err(error));
                    }
                }
                M::CopyDone(_) => {
                    let done = self.session.copy_done();
                    return with_wait_notice(&*self.engine, self.connection, done).await;
                }
                M::CopyFail(fail) => {
                    return Ok(Err(self.session.copy_fail(&fail.message).await));
                }
                M::Flush(_) | M::Sync(_) => {}
                M::Terminate(_) => return Err(std::io::Error::from(ABORTED).into()),
                _ => {
                    self.session.copy_fail("").await;
                    let message = "unexpected message type during COPY from stdin";
                    return Err(End::Fatal(SqlError::new(code::PROTOCOL_VIOLATION, message)));
                }
            }
        }
    }

    async fn interrupt_copy(&mut self) -> Result<String, SqlError> {
        match self.session.copy_data(&[]).await {
            Ok(()) => Err(self.session.copy_fail("interrupted").await),
            Err(error) => Err(error),
        }
    }

    /// Sends the buffered replies. A client that does not read can't delay the server's stop.
    pub(super) async fn send(&mut self) -> Result<(), End> {
        tokio::select! {
            biased;
            sent = self.connection.flush() => Ok(sent?),
            () = self.engine.ending() => Err(std::io::Error::from(ABORTED).into()),
        }
    }

    /// Sends the rows of a COPY TO, as fast as the client reads them, and returns the command tag.
    pub(super) async fn copy_out(
        &mut self,
        start: CopyStart,
    ) -> Result<Result<String, SqlError>, End> {
        let (format, columns, formats) = shape(start);
        self.connection.replies.put(CopyOutResponse::new(format, columns, formats));
        loop {
            let output = match self.session.copy_next() {
                Ok(output) => output,
                Err(error) => return Ok(Err(error)),
            };
            let mut begin = 0;
            for end in output.messages.ends {
                self.connection.replies.copy_data(&output.messages.bytes[begin..end]);
                begin = end;
                if self.connection.replies.bytes().len() >= REPLY_BYTES {
                    self.send().await?;
                }
            }
            if let Some(tag) = output.tag {
                self.connection.replies.put(CopyDone::new());
                return Ok(Ok(tag));
            }
            // Lets other tasks run, however fast the client is.
            tokio::task::yield_now().await;
        }
    }
}

/// The error of a client that disconnects during its data.
const ABORTED: std::io::ErrorKind = std::io::ErrorKind::ConnectionAborted;

/// The overall format, the number of columns, and the format of each.
fn shape(start: CopyStart) -> (i8, i16, Vec<i16>) {
    let format = i8::from(start.is_binary);
    (format, start.columns as i16, vec![format.into(); start.columns])
}
