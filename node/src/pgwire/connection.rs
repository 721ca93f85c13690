//! One client, from startup to end.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pangea_sql::engine::Engine;
use pangea_sql::error::SqlError;
use pangea_sql::session::{Execution, Response, Session};
use pangea_sql::types::datum::Datum;
use pangea_sql::{OutputColumn, PlanCache};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::message::{self, Bind, Malformed, Message, Startup, Target};
use super::reply::{Replies, Severity};

/// The longest startup packet, as in PostgreSQL.
const STARTUP_BYTES_MAX: usize = 10_000;
/// The longest message: the longest statement and its parameters.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Replies are sent when they are this long, even when more are to come.
const REPLY_BYTES: usize = 64 << 10;
/// What is read of a socket at a time.
const READ_BYTES: usize = 16 << 10;
/// How long a client may take to say who it is.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a client may ask for encryption before it starts: once for each kind.
const ENCRYPTION_REQUESTS_MAX: usize = 2;
/// The most messages that are read ahead to see whether an Execute is alone before its Sync.
const READ_AHEAD_MAX: usize = 64;

/// A client's socket, with what was read of it and what is to be written to it.
pub(super) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    ahead: VecDeque<Message>,
    replies: Replies,
    stopped: watch::Receiver<bool>,
}

/// Why a connection ends.
enum End {
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
        Self::Fatal(SqlError::new("08P01", what))
    }
}

impl Connection {
    pub(super) fn new(stream: TcpStream, stopped: watch::Receiver<bool>) -> Self {
        let (input, ahead) = (Vec::new(), VecDeque::new());
        Self { stream, input, ahead, replies: Replies::default(), stopped }
    }

    /// Reads the startup of a session, and returns its parameters; nothing when none is wanted.
    pub(super) async fn start(&mut self) -> io::Result<Option<BTreeMap<String, String>>> {
        let started = tokio::time::timeout(STARTUP_TIMEOUT, self.read_startup()).await;
        match started {
            Err(_) => Ok(None),
            Ok(Ok(parameters)) => Ok(parameters),
            Ok(Err(end)) => self.end(end).await.map(|()| None),
        }
    }

    async fn read_startup(&mut self) -> Result<Option<BTreeMap<String, String>>, End> {
        for _ in 0..=ENCRYPTION_REQUESTS_MAX {
            self.read_at_least(4).await?;
            let len = be_length(&self.input[..4]);
            if !(8..=STARTUP_BYTES_MAX).contains(&len) {
                return Err(Malformed("invalid length of startup packet".to_owned()).into());
            }
            self.read_at_least(len).await?;
            let packet: Vec<u8> = self.input.drain(..len).collect();
            match message::startup(&packet[4..])? {
                Startup::Encryption => {
                    self.replies.no_encryption();
                    self.flush().await?;
                }
                // A query is short, or waits for the cluster, which can't be undone.
                Startup::Cancel => return Ok(None),
                Startup::Unsupported { major, minor } => {
                    let message = format!(
                        "unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.0"
                    );
                    return Err(End::Fatal(SqlError::new("0A000", message)));
                }
                Startup::Session { minor, parameters } => {
                    let unknown: Vec<&str> = parameters
                        .keys()
                        .filter(|name| name.starts_with("_pq_."))
                        .map(|name| name.as_str())
                        .collect();
                    if minor > 0 || !unknown.is_empty() {
                        self.replies.negotiate(&unknown);
                    }
                    return Ok(Some(parameters));
                }
            }
        }
        Err(Malformed("too many requests for encryption".to_owned()).into())
    }

    /// Ends the connection with an error.
    pub(super) async fn refuse(&mut self, code: &str, message: &str) -> io::Result<()> {
        self.end(End::Fatal(SqlError::new(code, message))).await
    }

    async fn end(&mut self, end: End) -> io::Result<()> {
        match end {
            End::Gone(error) => Err(error),
            End::Fatal(error) => {
                self.replies.error(Severity::Fatal, &error);
                self.flush().await?;
                self.stream.shutdown().await
            }
        }
    }

    /// Serves a session until the client leaves.
    pub(super) async fn serve<E: Engine>(
        &mut self,
        engine: E,
        plans: Arc<PlanCache>,
        parameters: &BTreeMap<String, String>,
        number: i32,
    ) -> io::Result<()> {
        if !parameters.contains_key("user") {
            return self
                .refuse("28000", "no PostgreSQL user name specified in startup packet")
                .await;
        }
        let session = match Session::new(engine, plans, parameters) {
            Ok(session) => session,
            Err(error) => return self.end(End::Fatal(error)).await,
        };
        self.replies.authenticated();
        let secret = RandomState::new().build_hasher().finish() as u32;
        let mut client =
            Client { session, connection: self, settings: BTreeMap::new(), is_skipping: false };
        client.report_settings();
        client.connection.replies.backend_key(number, secret);
        match client.run().await {
            Ok(()) => Ok(()),
            Err(end) => self.end(end).await,
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.replies.bytes().is_empty() {
            self.stream.write_all(self.replies.bytes()).await?;
            self.replies.clear();
        }
        Ok(())
    }

    async fn read_at_least(&mut self, len: usize) -> io::Result<()> {
        while self.input.len() < len {
            self.input.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// The next message, from the socket.
    async fn read_message(&mut self) -> Result<Message, End> {
        const HEADER: usize = 5;
        self.read_at_least(HEADER).await?;
        let kind = self.input[0];
        let len = be_length(&self.input[1..HEADER]);
        if !(4..=MESSAGE_BYTES_MAX).contains(&len) {
            let message = format!("invalid message length {len}: at most {MESSAGE_BYTES_MAX}");
            return Err(Malformed(message).into());
        }
        self.read_at_least(len + 1).await?;
        let message = message::decode(kind, &self.input[HEADER..=len]);
        self.input.drain(..=len);
        Ok(message?)
    }

    /// The next message. While it waits, the server may be told to stop.
    async fn next(&mut self) -> Result<Message, End> {
        if let Some(message) = self.ahead.pop_front() {
            return Ok(message);
        }
        let mut stopped = self.stopped.clone();
        tokio::select! {
            message = self.read_message() => message,
            _ = stopped.wait_for(|&is_stopped| is_stopped) => {
                let message = "terminating connection due to administrator command";
                Err(End::Fatal(SqlError::new("57P01", message)))
            }
        }
    }

    /// Whether a Sync comes next, but for Closes. A client that sent an Execute owes one, or
    /// something else that tells.
    async fn is_sync_next(&mut self) -> Result<bool, End> {
        let mut at = 0;
        while at < READ_AHEAD_MAX {
            if at == self.ahead.len() {
                let message = self.read_message().await?;
                self.ahead.push_back(message);
            }
            match &self.ahead[at] {
                Message::Close(_) => at += 1,
                message => return Ok(*message == Message::Sync),
            }
        }
        Ok(false)
    }
}

fn be_length(bytes: &[u8]) -> usize {
    let bytes = <[u8; 4]>::try_from(bytes).expect("a length has four bytes");
    u32::from_be_bytes(bytes) as usize
}

/// A session and the client that it belongs to.
struct Client<'a, E: Engine> {
    session: Session<E>,
    connection: &'a mut Connection,
    /// The settings as the client was last told of them.
    settings: BTreeMap<String, String>,
    /// After an error in the extended protocol: nothing counts up to the next Sync.
    is_skipping: bool,
}

impl<E: Engine> Client<'_, E> {
    async fn run(&mut self) -> Result<(), End> {
        self.ready().await?;
        let mut executed = 0;
        loop {
            let message = self.connection.next().await?;
            if self.is_skipping && !matches!(message, Message::Sync | Message::Terminate) {
                continue;
            }
            match message {
                Message::Terminate => return Ok(()),
                Message::Copy => {}
                Message::Flush => self.connection.flush().await?,
                Message::Query(text) => {
                    self.query(&text).await?;
                    self.ready().await?;
                }
                Message::Sync => {
                    executed = 0;
                    self.is_skipping = false;
                    if let Err(error) = self.session.sync().await {
                        self.connection.replies.error(Severity::Error, &error);
                    }
                    self.ready().await?;
                }
                Message::Execute { portal, row_max } => {
                    let is_alone = executed == 0 && self.connection.is_sync_next().await?;
                    executed += 1;
                    let result = self.execute(&portal, row_max, is_alone).await?;
                    self.skip_after(result);
                }
                other => {
                    let result = self.prepare(other).await;
                    self.skip_after(result);
                }
            }
        }
    }

    fn skip_after(&mut self, result: Result<(), SqlError>) {
        if let Err(error) = result {
            self.connection.replies.error(Severity::Error, &error);
            self.is_skipping = true;
        }
    }

    fn report_settings(&mut self) {
        let now = self.session.reported_settings();
        for (name, value) in &now {
            if self.settings.get(name) != Some(value) {
                self.connection.replies.parameter(name, value);
            }
        }
        self.settings = now;
    }

    async fn ready(&mut self) -> io::Result<()> {
        for notice in self.session.take_notices() {
            self.connection.replies.notice(&notice);
        }
        self.report_settings();
        self.connection.replies.ready(self.session.transaction_status());
        self.connection.flush().await
    }

    async fn query(&mut self, text: &str) -> io::Result<()> {
        for response in self.session.simple_query(text).await {
            match response {
                Response::Empty => self.connection.replies.signal(b'I'),
                Response::Command { tag } => self.connection.replies.complete(&tag),
                Response::Error(error) => {
                    self.connection.replies.error(Severity::Error, &error);
                }
                Response::Rows { columns, rows, tag } => {
                    self.connection.replies.row_description(&columns, &[]);
                    self.rows(&rows, &columns, &[]).await?;
                    self.connection.replies.complete(&tag);
                }
            }
        }
        Ok(())
    }

    async fn rows(
        &mut self,
        rows: &[Vec<Datum>],
        columns: &[OutputColumn],
        formats: &[bool],
    ) -> io::Result<()> {
        for row in rows {
            self.connection.replies.row(row, columns, formats, self.session.zone());
            if self.connection.replies.bytes().len() >= REPLY_BYTES {
                self.connection.flush().await?;
            }
        }
        Ok(())
    }

    /// Parse, Bind, Describe and Close.
    async fn prepare(&mut self, message: Message) -> Result<(), SqlError> {
        match message {
            Message::Parse { name, query, types } => {
                self.session.parse(&name, &query, &types).await?;
                self.connection.replies.signal(b'1');
            }
            Message::Bind(Bind { portal, statement, value_formats, values, result_formats }) => {
                let values: Vec<_> = values.iter().map(Option::as_deref).collect();
                let session = &mut self.session;
                session.bind(&portal, &statement, &values, &value_formats, &result_formats)?;
                self.connection.replies.signal(b'2');
            }
            Message::Describe(target) => {
                let described = match &target {
                    Target::Statement(name) => {
                        let described = self.session.describe_statement(name)?;
                        self.connection.replies.parameter_types(&described.params);
                        described
                    }
                    Target::Portal(name) => self.session.describe_portal(name)?,
                };
                if described.columns.is_empty() {
                    self.connection.replies.signal(b'n');
                } else {
                    let (columns, formats) = (&described.columns, &described.formats);
                    self.connection.replies.row_description(columns, formats);
                }
            }
            Message::Close(target) => {
                match &target {
                    Target::Statement(name) => self.session.close_statement(name),
                    Target::Portal(name) => self.session.close_portal(name),
                }
                self.connection.replies.signal(b'3');
            }
            other => unreachable!("{other:?} is not prepared"),
        }
        Ok(())
    }

    async fn execute(
        &mut self,
        portal: &str,
        row_max: usize,
        is_alone: bool,
    ) -> io::Result<Result<(), SqlError>> {
        let described = match self.session.describe_portal(portal) {
            Ok(described) => described,
            Err(error) => return Ok(Err(error)),
        };
        let execution = match self.session.execute(portal, row_max, is_alone).await {
            Ok(execution) => execution,
            Err(error) => return Ok(Err(error)),
        };
        match execution {
            Execution::Empty => self.connection.replies.signal(b'I'),
            Execution::Complete { rows, tag } => {
                self.rows(&rows, &described.columns, &described.formats).await?;
                self.connection.replies.complete(&tag);
            }
            Execution::Suspended { rows } => {
                self.rows(&rows, &described.columns, &described.formats).await?;
                self.connection.replies.signal(b's');
            }
        }
        Ok(Ok(()))
    }
}
