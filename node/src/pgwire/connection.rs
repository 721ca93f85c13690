//! One client's socket: what was read of it, what is to be written to it, and its startup.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ::pgwire::messages::startup::Startup;
use ::pgwire::messages::{Message, PgWireFrontendMessage};
use bytes::BytesMut;
use pangea_sql::error::{SqlError, code};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::cancel::Cancels;
use super::guard::{self, Incoming, Malformed, Opening};
use super::reply::{Replies, Severity};
use super::tls::{Stream, Tls};

/// Replies are sent when they are this long, even when more are to come.
pub(super) const REPLY_BYTES: usize = 64 << 10;
/// What is read of a socket at a time.
const READ_BYTES: usize = 16 << 10;
/// The most that is kept of what a client sends while its statement waits.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// How often a client may ask for encryption before it starts: once for each kind.
const ENCRYPTION_REQUESTS_MAX: usize = 2;
/// The most messages that are read ahead to see whether an Execute is alone before its Sync.
const READ_AHEAD_MAX: usize = 64;

/// A client's socket, with what was read of it and what is to be written to it.
pub(super) struct Connection {
    stream: Stream,
    address: SocketAddr,
    input: BytesMut,
    ahead: VecDeque<Incoming>,
    pub replies: Replies,
    stopped: watch::Receiver<bool>,
    /// Whether another session has ended this one, once it is one.
    dismissed: Option<watch::Receiver<bool>>,
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
    pub(super) fn new(stream: TcpStream, stopped: watch::Receiver<bool>) -> io::Result<Self> {
        let (input, ahead, address) = (BytesMut::new(), VecDeque::new(), stream.peer_addr()?);
        let (stream, replies) = (Stream::Plain(stream), Replies::default());
        Ok(Self { stream, address, input, ahead, replies, stopped, dismissed: None })
    }

    /// Leaves the client when somebody says so.
    pub(super) fn leave_when(&mut self, dismissed: watch::Receiver<bool>) {
        self.dismissed = Some(dismissed);
    }

    /// Where the client is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Tells the client something at once.
    pub(super) async fn say(&mut self, message: impl Message) -> io::Result<()> {
        self.replies.put(message);
        self.flush().await
    }

    /// Reads the startup of a session, and returns its parameters; nothing when none is wanted.
    pub(super) async fn start(
        &mut self,
        cancels: &Cancels,
        tls: Option<&Tls>,
    ) -> Result<Option<BTreeMap<String, String>>, End> {
        for _ in 0..=ENCRYPTION_REQUESTS_MAX {
            match self.read(guard::opening).await? {
                Opening::Encryption { is_tls } => self.encrypt(tls.filter(|_| is_tls)).await?,
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

    /// Answers a request for encryption, and shakes hands where it is granted.
    async fn encrypt(&mut self, tls: Option<&Tls>) -> Result<(), End> {
        let tls = tls.filter(|_| !self.is_encrypted());
        self.replies.encryption(tls.is_some());
        self.flush().await?;
        let Some(tls) = tls else { return Ok(()) };
        if !self.input.is_empty() {
            // Somebody in between may have put it there, as if it came by way of TLS.
            return Err(Malformed("received unencrypted data after SSL request".to_owned()).into());
        }
        if let Stream::Plain(stream) = std::mem::replace(&mut self.stream, Stream::Gone) {
            self.stream = tls.accept(stream).await?;
        }
        Ok(())
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
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Reads until the guard takes something from the front of the input.
    pub(super) async fn read<T>(
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
        // Its own session's end is never told to a client that is none yet.
        let mut dismissed = self.dismissed.clone().unwrap_or_else(|| stopped.clone());
        tokio::select! {
            // Whoever ended a session has seen its last statement begin.
            biased;
            _ = stopped.wait_for(|&is_stopped| is_stopped) => {}
            _ = dismissed.wait_for(|&is_dismissed| is_dismissed) => {}
            message = self.read(guard::message) => return message,
        }
        let message = "terminating connection due to administrator command";
        Err(End::Fatal(SqlError::new(code::ADMIN_SHUTDOWN, message)))
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
