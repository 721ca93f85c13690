//! A client's socket: its input and output buffers, and its startup.

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

/// The length at which buffered replies are sent, even if more follow.
pub(super) const REPLY_BYTES: usize = 64 << 10;
/// The number of bytes read from a socket at a time.
const READ_BYTES: usize = 16 << 10;
/// The maximum number of bytes buffered while the client's statement waits.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// The maximum number of requests for encryption before the startup: one of each kind.
const ENCRYPTION_REQUESTS_MAX: usize = 2;
/// The maximum number of messages read ahead to find out whether an Execute is the only one before
/// its Sync.
const READ_AHEAD_MAX: usize = 64;

/// A client's socket with its input and output buffers.
pub(super) struct Connection {
    stream: Stream,
    address: SocketAddr,
    input: BytesMut,
    ahead: VecDeque<Incoming>,
    pub replies: Replies,
    stopped: watch::Receiver<bool>,
    /// Whether another session has terminated this one; `None` until the session exists.
    dismissed: Option<watch::Receiver<bool>>,
}

/// The reason why a connection ends.
pub(super) enum End {
    /// The client disconnected, or the socket failed.
    Gone(io::Error),
    /// A fatal error, which is sent to the client.
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

    /// Ends the connection when `dismissed` becomes true.
    pub(super) fn leave_when(&mut self, dismissed: watch::Receiver<bool>) {
        self.dismissed = Some(dismissed);
    }

    /// The client's address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Sends a message immediately.
    pub(super) async fn say(&mut self, message: impl Message) -> io::Result<()> {
        self.replies.put(message);
        self.flush().await
    }

    /// Reads the startup of a session, and returns its parameters; `None` if the client requests no
    /// session.
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

    /// Answers a request for encryption, and performs the handshake if TLS is configured.
    async fn encrypt(&mut self, tls: Option<&Tls>) -> Result<(), End> {
        let tls = tls.filter(|_| !self.is_encrypted());
        self.replies.encryption(tls.is_some());
        self.flush().await?;
        let Some(tls) = tls else { return Ok(()) };
        if !self.input.is_empty() {
            // An attacker in between may have injected these bytes, to have them treated as
            // encrypted.
            return Err(Malformed("received unencrypted data after SSL request".to_owned()).into());
        }
        if let Stream::Plain(stream) = std::mem::replace(&mut self.stream, Stream::Gone) {
            self.stream = tls.accept(stream).await?;
        }
        Ok(())
    }

    /// Answers a client that requests a version above 3.0 or unknown options.
    fn negotiate(&mut self, startup: Startup) -> BTreeMap<String, String> {
        let names = startup.parameters.keys();
        let unknown: Vec<_> = names.filter(|name| name.starts_with("_pq_.")).cloned().collect();
        if startup.protocol_number_minor > 0 || !unknown.is_empty() {
            self.replies.negotiate(unknown);
        }
        startup.parameters
    }

    /// Ends the connection, and sends the reason to the client.
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

    /// Sends the buffered replies.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.replies.bytes().is_empty() {
            self.stream.write_all(self.replies.bytes()).await?;
            self.replies.clear();
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Reads until `take` accepts something from the front of the input.
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

    /// Whether the server stops, or the session has been terminated.
    fn is_over(&self) -> bool {
        *self.stopped.borrow() || self.dismissed.as_ref().is_some_and(|it| *it.borrow())
    }

    /// Reads a message. Fails if the server stops, or the session is terminated, while it waits.
    async fn receive(&mut self) -> Result<Incoming, End> {
        // Most messages arrive behind others in one packet, and need no wait.
        if !self.is_over()
            && let Some(message) = guard::message(&mut self.input)?
        {
            return Ok(message);
        }
        let mut stopped = self.stopped.clone();
        // Before the session exists it can't be terminated, and the other channel is a placeholder.
        let mut dismissed = self.dismissed.clone().unwrap_or_else(|| stopped.clone());
        tokio::select! {
            // These come first: after a session has been terminated, none of its statements may
            // begin.
            biased;
            _ = stopped.wait_for(|&is_stopped| is_stopped) => {}
            _ = dismissed.wait_for(|&is_dismissed| is_dismissed) => {}
            message = self.read(guard::message) => return message,
        }
        let message = "terminating connection due to administrator command";
        Err(End::Fatal(SqlError::new(code::ADMIN_SHUTDOWN, message)))
    }

    /// Returns the next message. `idle_max` limits the wait of a client with an open transaction.
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

    /// Waits until the client disconnects, while its statement waits. Its input is buffered up to a
    /// limit, above which a disconnect is not noticed.
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

    /// Whether a Sync comes next, ignoring Closes. A client that sent an Execute will send a Sync,
    /// or another message that decides the question.
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
