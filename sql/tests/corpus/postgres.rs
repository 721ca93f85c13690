//! PostgreSQL 15 from its Debian package: a server for the tests, and a client of it.
//!
//! The server's files and its socket are in a temporary directory, so it needs no port. It is
//! stopped when its value is dropped. The server refuses to run as root; in that case it runs as
//! `postgres`, the user that the package creates.

use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields, Message};
use postgres_protocol::message::frontend;
use tempfile::TempDir;

use super::answer::{Answer, Engine, Failure, Letter, copied, line, rows_written, with_copied};

/// The directory of the programs of version 15 on Debian.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

/// The same bootstrap user, encoding, collation and character classes as a database of Pangea.
const INITDB: [&str; 9] = [
    "--username=pangea",
    "--auth=trust",
    "--no-sync",
    "--encoding=UTF8",
    "--lc-collate=C",
    "--lc-ctype=C.UTF-8",
    "--lc-messages=C",
    "--locale=C",
    "--no-instructions",
];

/// A running server.
pub struct Server {
    directory: TempDir,
    owner: Option<(u32, u32)>,
}

/// Returns the ids of the user `postgres` and of its group.
fn postgres_user() -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = users.lines().find(|line| line.starts_with("postgres:"))?.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

impl Server {
    /// Starts a server. If that fails, reports on standard error why, and that tests are skipped.
    pub fn start() -> Option<Self> {
        match Self::try_start() {
            Ok(server) => Some(server),
            Err(why) => {
                // Not a macro: the output of macros is shown only for tests that fail.
                let _ = writeln!(io::stderr(), "skipped: no PostgreSQL 15 to compare with: {why}");
                None
            }
        }
    }

    fn try_start() -> Result<Self, String> {
        if !Path::new(PROGRAMS).join("postgres").exists() {
            return Err(format!("{PROGRAMS} has no postgres (Debian's package postgresql-15)"));
        }
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let is_root = directory.path().metadata().map_err(|error| error.to_string())?.uid() == 0;
        let owner = if is_root {
            let user = postgres_user().ok_or("there is no user postgres")?;
            chown(directory.path(), Some(user.0), Some(user.1))
                .map_err(|error| error.to_string())?;
            Some(user)
        } else {
            None
        };
        let server = Self { directory, owner };
        server.run("initdb", &INITDB)?;
        server.run("pg_ctl", &["start", "-w", "-s", "-l", "log", "-o", &server.options()])?;
        Ok(server)
    }

    /// Only the socket, no fsync, the time zone of the tests, and no statistics, which would come
    /// after a minute and change plans: which of two equal numbers INTERSECT returns, for example.
    fn options(&self) -> String {
        let directory = self.directory.path().display();
        format!("-h '' -k {directory} -F -c autovacuum=off -c timezone=UTC -c log_timezone=UTC")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let mut command = Command::new(Path::new(PROGRAMS).join(program));
        command.args(["-D", "data"]).args(arguments).current_dir(self.directory.path());
        command.env_clear().env("LC_ALL", "C").env("TZ", "UTC");
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        // The server keeps its output open. It is a file, because a pipe would never reach its end.
        let says = self.directory.path().join(format!("{program}.says"));
        let file = std::fs::File::create(&says).map_err(|error| error.to_string())?;
        let copy = file.try_clone().map_err(|error| error.to_string())?;
        let ran = command.stdin(std::process::Stdio::null()).stdout(file).stderr(copy).status();
        match ran {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => {
                Err(format!("{program}: {}", std::fs::read_to_string(says).unwrap_or_default()))
            }
            Err(error) => Err(format!("{program}: {error}")),
        }
    }

    /// A session of a database.
    pub fn connect(&self, database: &str) -> Result<Postgres, Failure> {
        let path = self.directory.path().join(".s.PGSQL.5432");
        Postgres::connect(&path, database).map_err(broken)
    }

    /// Creates an empty database.
    pub fn create_database(&self, name: &str) {
        let mut session = self.connect("postgres").unwrap();
        session.answer(&format!("create database {name}")).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(why) = self.run("pg_ctl", &["stop", "-m", "immediate", "-w", "-s"]) {
            let _ = writeln!(io::stderr(), "PostgreSQL was not stopped: {why}");
        }
    }
}

fn broken(error: io::Error) -> Failure {
    Failure { code: "08006".to_owned(), message: error.to_string() }
}

/// A session of a client.
pub struct Postgres {
    stream: UnixStream,
    unread: BytesMut,
}

impl Engine for Postgres {
    const NAME: &'static str = "postgres";

    fn answer(&mut self, sql: &str) -> Result<Answer, Failure> {
        self.run(sql).unwrap_or_else(|error| Err(broken(error)))
    }
}

impl Postgres {
    fn connect(path: &Path, database: &str) -> io::Result<Self> {
        let mut session =
            Self { stream: UnixStream::connect(path)?, unread: BytesMut::with_capacity(1 << 16) };
        let mut out = BytesMut::new();
        frontend::startup_message([("user", "pangea"), ("database", database)], &mut out)?;
        session.stream.write_all(&out)?;
        match session.outcome("")? {
            Ok(_) => Ok(session),
            Err(failure) => Err(io::Error::other(failure)),
        }
    }

    fn run(&mut self, sql: &str) -> io::Result<Result<Answer, Failure>> {
        let (sql, data) = with_copied(sql);
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out)?;
        self.stream.write_all(&out)?;
        self.outcome(data.unwrap_or_default())
    }

    fn message(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.unread)? {
                return Ok(message);
            }
            let mut bytes = [0; 1 << 14];
            let read = self.stream.read(&mut bytes)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.extend_from_slice(&bytes[..read]);
        }
    }

    fn send_copied(&mut self, data: &str) -> io::Result<()> {
        let mut out = BytesMut::new();
        for text in data.lines() {
            frontend::CopyData::new(format!("{text}\n").as_bytes())?.write(&mut out);
        }
        frontend::copy_done(&mut out);
        self.stream.write_all(&out)
    }

    /// Reads messages until the server is ready for the next query.
    fn outcome(&mut self, data: &str) -> io::Result<Result<Answer, Failure>> {
        let mut outcome = Ok(Answer::Done(None));
        let mut rows = None;
        let mut sent = Vec::new();
        loop {
            match self.message()? {
                Message::ReadyForQuery(_) => return Ok(outcome),
                Message::RowDescription(body) => {
                    let types = body.fields().map(|field| Ok(Letter::of(field.type_oid())));
                    rows = Some((types.collect()?, Vec::new()));
                }
                Message::DataRow(row) => {
                    let (_, lines) = rows.as_mut().expect("rows are described before they come");
                    lines.push(row_line(&row)?);
                }
                Message::CopyInResponse(_) => self.send_copied(data)?,
                Message::CopyOutResponse(_) => sent.clear(),
                Message::CopyData(body) => sent.extend_from_slice(body.data()),
                Message::CopyDone => rows = Some(copied(&sent)),
                Message::CommandComplete(body) => {
                    outcome = Ok(match rows.take() {
                        Some((types, lines)) => Answer::Rows { types, lines },
                        None => Answer::Done(rows_written(body.tag()?)),
                    });
                }
                Message::ErrorResponse(body) => outcome = Err(failure(body.fields())?),
                _ => {}
            }
        }
    }
}

fn row_line(row: &DataRowBody) -> io::Result<String> {
    let value = |range: Option<std::ops::Range<usize>>| {
        Ok(range.map(|range| String::from_utf8_lossy(&row.buffer()[range]).into_owned()))
    };
    Ok(line(row.ranges().map(value).collect::<Vec<_>>()?))
}

fn failure(mut fields: ErrorFields<'_>) -> io::Result<Failure> {
    let mut failure = Failure { code: String::new(), message: String::new() };
    while let Some(field) = fields.next()? {
        let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => failure.code = text,
            b'M' => failure.message = text,
            _ => {}
        }
    }
    Ok(failure)
}
