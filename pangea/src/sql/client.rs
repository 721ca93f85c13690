//! A minimal PostgreSQL client: one connection, simple queries, and all replies to them.
//!
//! tokio-postgres does not expose command tags, the transaction status, or the results that precede
//! an error, and a prompt needs them. Therefore this module decodes the messages itself, with the
//! crate that tokio-postgres is built on. tokio-postgres still parses the URL.
//!
//! ```text
//!   query ---> T columns, D row, D row, C tag, N notice, E error, ... Z state ---> replies, status
//! ```

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{
    DataRowBody, ErrorFields, Field, Message, RowDescriptionBody,
};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::Type;

use super::login::log_in;

/// The time limit for a server that does not respond at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default port of servers.
const PORT_DEFAULT: u16 = 5432;
/// The size of one read, in bytes.
const READ_BYTES: usize = 64 << 10;

/// The types that are right-aligned, the same as in psql.
const NUMBERS: [Type; 11] = [
    Type::INT2,
    Type::INT4,
    Type::INT8,
    Type::FLOAT4,
    Type::FLOAT8,
    Type::NUMERIC,
    Type::OID,
    Type::XID,
    Type::XID8,
    Type::CID,
    Type::MONEY,
];

/// A byte stream to a server.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Tcp(String, u16),
    Unix(std::path::PathBuf),
}

impl Address {
    /// Returns the addresses in a URL, in order.
    fn all(config: &Config) -> Vec<Self> {
        let ports = config.get_ports();
        let port = |index: usize| match ports {
            [] => PORT_DEFAULT,
            [port] => *port,
            ports => ports.get(index).copied().unwrap_or(PORT_DEFAULT),
        };
        if !config.get_hostaddrs().is_empty() {
            let tcp =
                |(index, ip): (usize, &std::net::IpAddr)| Self::Tcp(ip.to_string(), port(index));
            return config.get_hostaddrs().iter().enumerate().map(tcp).collect();
        }
        let address = |(index, host): (usize, &Host)| match host {
            Host::Tcp(name) => Self::Tcp(name.clone(), port(index)),
            Host::Unix(path) => Self::Unix(path.join(format!(".s.PGSQL.{}", port(index)))),
        };
        config.get_hosts().iter().enumerate().map(address).collect()
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The transaction status of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Not in a transaction block.
    #[default]
    Idle,
    /// In a transaction block.
    Open,
    /// In a failed transaction block, which can only be rolled back.
    Failed,
}

impl Status {
    fn from_byte(byte: u8) -> io::Result<Self> {
        match byte {
            b'I' => Ok(Self::Idle),
            b'T' => Ok(Self::Open),
            b'E' => Ok(Self::Failed),
            other => Err(io::Error::other(format!("unknown transaction state {other}"))),
        }
    }

    /// Returns whether a transaction block would be lost with the connection.
    pub fn is_open(self) -> bool {
        self != Self::Idle
    }
}

/// An error or a notice of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// ERROR, WARNING, NOTICE and so on.
    pub severity: String,
    /// The SQLSTATE.
    pub code: String,
    /// The primary message.
    pub message: String,
    /// The detail.
    pub detail: Option<String>,
    /// The hint.
    pub hint: Option<String>,
}

impl Report {
    /// Reads a report from the fields of its message.
    pub(super) fn read(fields: &mut ErrorFields<'_>) -> io::Result<Self> {
        let mut report = Self::default();
        while let Some(field) = fields.next()? {
            let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                // The field that is never translated (V) comes second, if it is present.
                b'S' | b'V' => report.severity = text,
                b'C' => report.code = text,
                b'M' => report.message = text,
                b'D' => report.detail = Some(text),
                b'H' => report.hint = Some(text),
                _ => {}
            }
        }
        Ok(report)
    }
}

/// A column of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// The name of the column.
    pub name: String,
    /// Whether its values are numbers.
    pub is_number: bool,
}

/// A reply to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The columns of the rows that follow.
    Columns(Vec<Column>),
    /// A row.
    Row(Vec<Option<String>>),
    /// The command tag of a completed statement.
    Done(String),
    /// A line written by COPY.
    Copied(String),
    /// A notice or warning.
    Notice(Report),
    /// The statement failed, and the statements after it were not run.
    Error(Report),
}

/// Cancels the query of a connection, from another connection.
#[derive(Clone, Debug)]
pub struct Canceller {
    address: Address,
    process: i32,
    secret: i32,
}

impl Canceller {
    /// Sends a cancel request. Only the query shows whether it was cancelled.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn cancel(&self) -> io::Result<()> {
        let ask = async {
            let mut stream = self.address.connect().await?;
            let mut request = BytesMut::new();
            frontend::cancel_request(self.process, self.secret, &mut request);
            stream.write_all(&request).await?;
            // The server closes the connection when it has processed the request.
            stream.read_to_end(&mut Vec::new()).await.map(drop)
        };
        tokio::time::timeout(CONNECT_TIMEOUT, ask).await?
    }
}

/// A connection to a server.
pub struct Client {
    stream: Box<dyn Stream>,
    input: BytesMut,
    status: Status,
    canceller: Option<Arc<Canceller>>,
}

impl Client {
    /// Connects to the first server of a URL that accepts a session.
    ///
    /// # Errors
    /// The reason why no server does, for humans.
    pub async fn connect(config: &Config) -> Result<Self, String> {
        if config.get_ssl_mode() == SslMode::Require {
            return Err(
                "the URL requires encryption, but this client does not support TLS".to_owned()
            );
        }
        let mut why = "the URL names no host".to_owned();
        for address in Address::all(config) {
            let connecting = Self::connect_to(&address, config);
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) => why = format!("{address}: {error}"),
                Err(_) => why = format!("{address}: no response"),
            }
        }
        Err(why)
    }

    async fn connect_to(address: &Address, config: &Config) -> io::Result<Self> {
        let stream = address.connect().await?;
        let (input, status) = (BytesMut::new(), Status::Idle);
        let mut client = Self { stream, input, status, canceller: None };
        log_in(&mut client, config).await?;
        loop {
            match client.receive().await? {
                Message::BackendKeyData(key) => {
                    let (process, secret) = (key.process_id(), key.secret_key());
                    let address = address.clone();
                    client.canceller = Some(Arc::new(Canceller { address, process, secret }));
                }
                Message::ReadyForQuery(ready) => {
                    client.status = Status::from_byte(ready.status())?;
                    return Ok(client);
                }
                Message::ErrorResponse(error) => return Err(refused(&mut error.fields())),
                Message::ParameterStatus(_) | Message::NoticeResponse(_) => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// Returns the transaction status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the canceller of this connection's queries, if the server supports it.
    pub fn canceller(&self) -> Option<Arc<Canceller>> {
        self.canceller.clone()
    }

    /// Sends SQL. All replies must be received before the next query.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn query(&mut self, sql: &str) -> io::Result<()> {
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out)?;
        self.send(&out).await
    }

    /// Waits for the next reply to the query. Returns `None` after the last reply.
    ///
    /// # Errors
    /// If the connection is lost. Errors of the SQL are replies.
    pub async fn reply(&mut self) -> io::Result<Option<Reply>> {
        loop {
            let reply = match self.receive().await? {
                Message::RowDescription(body) => Reply::Columns(columns(&body)?),
                Message::DataRow(body) => Reply::Row(values(&body)?),
                Message::CommandComplete(body) => Reply::Done(body.tag()?.to_owned()),
                Message::NoticeResponse(body) => Reply::Notice(Report::read(&mut body.fields())?),
                Message::ErrorResponse(body) => Reply::Error(Report::read(&mut body.fields())?),
                Message::CopyInResponse(_) => {
                    let mut out = BytesMut::new();
                    frontend::copy_fail("this client does not support COPY FROM STDIN", &mut out)?;
                    self.send(&out).await?;
                    continue;
                }
                Message::CopyData(body) => {
                    let text = String::from_utf8_lossy(body.data());
                    Reply::Copied(text.trim_end_matches('\n').to_owned())
                }
                Message::ReadyForQuery(ready) => {
                    self.status = Status::from_byte(ready.status())?;
                    return Ok(None);
                }
                Message::EmptyQueryResponse
                | Message::CopyOutResponse(_)
                | Message::CopyDone
                | Message::ParameterStatus(_)
                | Message::NotificationResponse(_) => continue,
                _ => return Err(unexpected()),
            };
            return Ok(Some(reply));
        }
    }

    /// Returns whether the server has closed the connection, as far as that is known without
    /// waiting.
    pub async fn is_lost(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            let mut bytes = [0; 1 << 10];
            loop {
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                    std::task::Poll::Pending => return std::task::Poll::Ready(false),
                    std::task::Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                        self.input.extend_from_slice(buffer.filled());
                    }
                    std::task::Poll::Ready(_) => return std::task::Poll::Ready(true),
                }
            }
        })
        .await
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    pub(super) async fn receive(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.input)? {
                return Ok(message);
            }
            self.input.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Returns the error of a server that rejects a session.
pub(super) fn refused(fields: &mut ErrorFields<'_>) -> io::Error {
    match Report::read(fields) {
        Ok(report) => io::Error::other(format!("{} {}", report.code, report.message)),
        Err(error) => error,
    }
}

pub(super) fn unexpected() -> io::Error {
    io::Error::other("the server sent an unexpected message")
}

fn columns(body: &RowDescriptionBody) -> io::Result<Vec<Column>> {
    let is_number = |oid| Type::from_oid(oid).is_some_and(|kind| NUMBERS.contains(&kind));
    let column = |field: Field<'_>| {
        Ok(Column { name: field.name().to_owned(), is_number: is_number(field.type_oid()) })
    };
    body.fields().map(column).collect()
}

fn values(body: &DataRowBody) -> io::Result<Vec<Option<String>>> {
    let value = |range: Option<std::ops::Range<usize>>| {
        Ok(range.map(|range| String::from_utf8_lossy(&body.buffer()[range]).into_owned()))
    };
    body.ranges().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_one_address_or_several() {
        let all = |url: &str| Address::all(&url.parse().unwrap());
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        assert_eq!(all("postgres://me@a/db"), [tcp("a", 5432)]);
        assert_eq!(all("postgres://me@a:1,b:2/db"), [tcp("a", 1), tcp("b", 2)]);
        assert_eq!(all("host=a,b port=7"), [tcp("a", 7), tcp("b", 7)]);
        assert_eq!(all("host=/run/pg"), [Address::Unix("/run/pg/.s.PGSQL.5432".into())]);
        assert_eq!(all("host=a hostaddr=10.0.0.1"), [tcp("10.0.0.1", 5432)]);
    }
}
