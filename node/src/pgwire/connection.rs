//! One client's socket: what was read of it, what is to be written to it, and its startup.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::io;
use std::time::Duration;

use ::pgwire::messages::PgWireFrontendMessage;
use ::pgwire::messages::startup::Startup;
use bytes::BytesMut;
use pangea_core::txn::SqlState;
use pangea_sql::error::{SqlError, code};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::cancel::Cancels;
use super::guard::{self, Incoming, Malformed, Opening};
use super::reply::{Replies, Severity};

/// Replies are sent when they are this long, even when more are to come.
pub(super) const REPLY_BYTES: usize = 64 << 10;
/// What is read of a socket at a time.
const READ_BYTES: usize = 16 << 10;
/// The most that is kept of what a client sends while its statement waits.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// How long a client may take to say who it is.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a client may ask for encryption before it starts: once for each kind.
const ENCRYPTION_REQUESTS_MAX: usize = 2;
/// The most messages that are read ahead to see whether an Execute is alone before its Sync.
const READ_AHEAD_MAX: usize = 64;

/// A client's socket, with what was read of it and what is to be written to it.
pub(super) struct Connection {
    stream: TcpStream,
    input: BytesMut,
    ahead: VecDeque<Incoming>,
    pub replies: Replies,
    stopped: watch::Receiver<bool>,
}

/// Why a connection ends.
pub(super) enum End {
    /// The client left, or the socket broke.
    Gone(io::Error),
    /// It is told why.
    Fatal(SqlError),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<Malformed> for End {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Fatal(SqlError::new(code::PROTOCOL_VIOLATION, what))
    }
}

impl Connection {
    pub(super) fn new(stream: TcpStream, stopped: watch::Receiver<bool>) -> Self {
        let (input, ahead) = (BytesMut::new(), VecDeque::new());
        Self { stream, input, ahead, replies: Replies::default(), stopped }
    }

    /// Reads the startup of a session, and returns its parameters; nothing when none is wanted.
    pub(super) async fn start(
        &mut self,
        cancels: &Cancels,
    ) -> io::Result<Option<BTreeMap<String, String>>> {
        let started = tokio::time::timeout(STARTUP_TIMEOUT, self.read_startup(cancels)).await;
        match started {
            Err(_) => Ok(None),
            Ok(Ok(parameters)) => Ok(parameters),
            Ok(Err(end)) => self.end(end).await.map(|()| None),
        }
    }

    async fn read_startup(
        &mut self,
        cancels: &Cancels,
    ) -> Result<Option<BTreeMap<String, String>>, End> {
        for _ in 0..=ENCRYPTION_REQUESTS_MAX {
            match self.read(guard::opening).await? {
                Opening::Encryption => {
                    self.replies.no_encryption();
                    self.flush().await?;
                }
                Opening::Cancel(request) => {
                    cancels.cancel(&request);
                    return Ok(None);
                }
                Opening::Unsupported { major, minor } => {
                    let message = format!(
                        "unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.0"
                    );
                    return Err(End::Fatal(SqlError::new(code::FEATURE_NOT_SUPPORTED, message)));
                }
                Opening::Session(startup) => return Ok(Some(self.negotiate(startup))),
            }
        }
        Err(Malformed("too many requests for encryption".to_owned()).into())
    }

    /// Tells a client that asks for more than version 3.0 that it won't have it.
    fn negotiate(&mut self, startup: Startup) -> BTreeMap<String, String> {
        let names = startup.parameters.keys();
        let unknown: Vec<_> = names.filter(|name| name.starts_with("_pq_.")).cloned().collect();
        if startup.protocol_number_minor > 0 || !unknown.is_empty() {
            self.replies.negotiate(unknown);
        }
        startup.parameters
    }

    /// Ends the connection with an error.
    pub(super) async fn refuse(&mut self, code: SqlState, message: &str) -> io::Result<()> {
        self.end(End::Fatal(SqlError::new(code, message))).await
    }

    /// Ends the connection, and tells the client why.
    pub(super) async fn end(&mut self, end: End) -> io::Result<()> {
        match end {
            End::Gone(error) => Err(error),
            End::Fatal(error) => {
                self.replies.error(Severity::Fatal, &error);
                self.flush().await?;
                self.stream.shutdown().await
            }
        }
    }

    /// Sends the replies so far.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.replies.bytes().is_empty() {
            self.stream.write_all(self.replies.bytes()).await?;
            self.replies.clear();
        }
        Ok(())
    }

    /// Reads until the guard takes something from the front of the input.
    async fn read<T>(
        &mut self,
        take: impl Fn(&mut BytesMut) -> Result<Option<T>, Malformed>,
    ) -> Result<T, End> {
        loop {
            if let Some(taken) = take(&mut self.input)? {
                return Ok(taken);
            }
            self.input.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(End::Gone(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Reads a message. While it waits, the server may be told to stop.
    async fn receive(&mut self) -> Result<Incoming, End> {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            message = self.read(guard::message) => message,
            _ = stopped.wait_for(|&is_stopped| is_stopped) => {
                let message = "terminating connection due to administrator command";
                Err(End::Fatal(SqlError::new(code::ADMIN_SHUTDOWN, message)))
            }
        }
    }

    /// The next message. A client that has a transaction open may take so long to send it.
    pub(super) async fn next(&mut self, idle_max: Option<Duration>) -> Result<Incoming, End> {
        if let Some(message) = self.ahead.pop_front() {
            return Ok(message);
        }
        let Some(idle_max) = idle_max else { return self.receive().await };
        tokio::time::timeout(idle_max, self.receive()).await.unwrap_or_else(|_| {
            let message = "terminating connection due to idle-in-transaction timeout";
            Err(End::Fatal(SqlError::new(code::IDLE_IN_TRANSACTION, message)))
        })
    }

    /// Waits until the client has left, while its statement waits. What it sends meanwhile is kept,
    /// up to a limit: beyond it, whether it leaves is not seen.
    pub(super) async fn gone(&mut self) -> End {
        while self.input.len() < UNREAD_BYTES_MAX {
            self.input.reserve(READ_BYTES);
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) => return End::Gone(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => return End::Gone(error),
            }
        }
        pending().await
    }

    /// Whether a Sync comes next, but for Closes. A client that sent an Execute owes one, or
    /// something else that tells.
    pub(super) async fn is_sync_next(&mut self) -> Result<bool, End> {
        let mut at = 0;
        while at < READ_AHEAD_MAX {
            if at == self.ahead.len() {
                let message = self.receive().await?;
                self.ahead.push_back(message);
            }
            match &self.ahead[at] {
                Incoming::Message(PgWireFrontendMessage::Close(_)) => at += 1,
                Incoming::Message(message) => {
                    return Ok(matches!(message, PgWireFrontendMessage::Sync(_)));
                }
                Incoming::NotText { .. } => return Ok(false),
            }
        }
        Ok(false)
    }
}
