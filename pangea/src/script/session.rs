//! One client's session of PostgreSQL's protocol, which runs the transactions of a file.
//!
//! All statements are prepared when the session opens, so that statements that the server rejects
//! are found before the measurement. A transaction that is aborted because of another (40001,
//! 40P01) is retried immediately with the same parameters. Its latency counts from the first
//! attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::txn::{Abort, Outcome, SqlState};
use pangea_core::workload::Client as Place;
use pangea_node::client::ClientError;
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row, Statement as Handle};

use super::clients::Numbers;
use super::draw::Draw;
use super::value::{Bound, Received, Value, can_be_value};
use super::{
    ClientIdentity, Retries, Script, Statement, StatementKind, Step, Transaction, in_words,
};
use crate::failure::Failure;

/// After this number of consecutive aborts, retries are unlikely to succeed, and the abort is the
/// outcome.
const ATTEMPTS_MAX: u32 = 100;
/// Aborts caused by other transactions: a serialization failure, and a deadlock.
const UNDONE: [&str; 2] = ["40001", "40P01"];
/// The SQLSTATE of a transaction whose outcome is unknown.
const UNKNOWN: &str = "08007";
/// SQLSTATEs, or classes of them, of statements that fail with any parameters.
const REFUSED: [&str; 4] = ["42", "0A", "22P02", "08P01"];
/// The time limit for opening a session.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// The errors of a `\gset` with no row, and with several rows.
const NO_ROW: SqlState = SqlState(*b"02000");
const SEVERAL_ROWS: SqlState = SqlState(*b"21000");

/// One client's session, which runs one transaction at a time.
pub struct Session {
    script: Arc<Script>,
    region: String,
    clients: u32,
    regions: u32,
    retries: Arc<Retries>,
    open: Mutex<Open>,
    is_lost: AtomicBool,
}

/// A connection on which every statement is prepared.
pub struct Open {
    client: Client,
    /// By transaction and step; `None` for steps that are not prepared.
    prepared: Vec<Vec<Option<Prepared>>>,
}

struct Prepared {
    handle: Handle,
    /// The slots that the columns of the single row are stored in.
    gset: Vec<Option<usize>>,
}

/// The reason why an attempt ended early.
enum Stop {
    Server {
        error: tokio_postgres::Error,
        is_at_end: bool,
    },
    Abort(Abort),
    /// An expression of the file could not be computed.
    File(String),
}

impl Open {
    /// Connects and prepares all statements.
    ///
    /// # Errors
    /// The server's error, with the file's line if it concerns a statement.
    pub async fn new(script: &Script, config: &Config, region: &str) -> Result<Self, String> {
        let client = connect(config, region).await?;
        let mut prepared = Vec::with_capacity(script.transactions.len());
        for transaction in &script.transactions {
            let mut steps = Vec::with_capacity(transaction.steps.len());
            for step in &transaction.steps {
                steps.push(match step {
                    Step::Run(statement) if statement.kind == StatementKind::Data => {
                        Some(prepare(script, &client, transaction, statement).await?)
                    }
                    Step::Run(_) | Step::Set(..) | Step::Sleep(..) => None,
                });
            }
            is_all_set(script, transaction, &steps)?;
            prepared.push(steps);
        }
        Ok(Self { client, prepared })
    }
}

/// Opens a session without prepared statements.
///
/// # Errors
/// The reason why it cannot be opened.
pub(super) async fn connect(config: &Config, region: &str) -> Result<Client, String> {
    let connected = tokio::time::timeout(CONNECT_DEADLINE, config.connect(NoTls)).await;
    let connected = connected.map_err(|_| {
        format!("{region} accepted no session within {} s", CONNECT_DEADLINE.as_secs())
    })?;
    let (client, connection) = connected.map_err(|error| format!("{region}: {error}"))?;
    // The task ends with its client, and its error is reported by the statements.
    drop(tokio::spawn(connection));
    Ok(client)
}

async fn prepare(
    script: &Script,
    client: &Client,
    transaction: &Transaction,
    statement: &Statement,
) -> Result<Prepared, String> {
    let handle = client.prepare(&statement.rendered()).await;
    let handle = handle.map_err(|error| script.at(statement.line_of(&error), in_words(&error)))?;
    let mut gset = Vec::new();
    if let Some(prefix) = &statement.gset {
        for column in handle.columns() {
            let name = format!("{prefix}{}", column.name());
            let slot = transaction.names.iter().position(|known| *known == name);
            if slot.is_some() && !can_be_value(column.type_()) {
                let message = format!(
                    "column {} is of type {}, which a variable can't have; cast it to text",
                    column.name(),
                    column.type_()
                );
                return Err(script.at(statement.line, message));
            }
            gset.push(slot);
        }
    }
    Ok(Prepared { handle, gset })
}

/// Checks that every variable has been set by an earlier `\gset` when it is used.
fn is_all_set(
    script: &Script,
    transaction: &Transaction,
    steps: &[Option<Prepared>],
) -> Result<(), String> {
    for (slot, line, step) in &transaction.wanted {
        let sets = |prepared: &Prepared| prepared.gset.contains(&Some(*slot));
        if !steps[..*step].iter().flatten().any(sets) {
            let columns = steps[..*step].iter().flatten().flat_map(|it| it.handle.columns());
            let columns = columns.map(tokio_postgres::Column::name);
            let known = transaction.names.iter().filter(|it| **it != transaction.names[*slot]);
            let known = columns.chain(known.map(String::as_str));
            let name = &transaction.names[*slot];
            return Err(
                script.at(*line, pangea_sweep::plan_error::unknown("variable", name, known))
            );
        }
    }
    Ok(())
}

impl Session {
    /// Opens a session for clients of a region.
    ///
    /// # Errors
    /// If the server cannot be reached or rejects a statement.
    pub async fn open(
        script: &Arc<Script>,
        config: &Config,
        identity: &ClientIdentity,
        retries: &Arc<Retries>,
    ) -> Result<Self, Failure> {
        let ClientIdentity { client: Place { clients, regions, .. }, region } = identity.clone();
        let open = Open::new(script, config, &region).await.map_err(Failure::Failed)?;
        Ok(Self {
            script: script.clone(),
            region,
            clients,
            regions,
            retries: retries.clone(),
            open: Mutex::new(open),
            is_lost: AtomicBool::new(false),
        })
    }

    /// Returns whether the session was lost at the last call.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Runs a call of [`super::Clients`].
    ///
    /// # Errors
    /// If the outcome is not known.
    pub async fn call(&self, procedure: &str, args: &[u8]) -> Result<Outcome, ClientError> {
        let refused = |error: &dyn std::fmt::Display| ClientError::Refused(error.to_string());
        let numbers = Numbers::decode(args).map_err(|error| refused(&error))?;
        let found = self.script.transactions.iter().position(|it| it.name == procedure);
        let index = found.ok_or_else(|| refused(&"no such transaction"))?;
        let client = Place::new(numbers.client, self.clients, self.regions);
        let identity = ClientIdentity { client, region: self.region.clone() };
        let values = self.script.constants(&identity);
        let open = self.open.lock().await;
        if open.client.is_closed() {
            self.is_lost.store(true, Ordering::Relaxed);
            return Err(ClientError::NotSent("the session is lost".to_owned()));
        }
        let ended = self.attempts(&open, index, &numbers, &values).await;
        let is_lost = open.client.is_closed() || matches!(ended, Err(ClientError::Ambiguous(_)));
        self.is_lost.store(is_lost, Ordering::Relaxed);
        ended
    }

    async fn attempts(
        &self,
        open: &Open,
        index: usize,
        numbers: &Numbers,
        values: &[Value],
    ) -> Result<Outcome, ClientError> {
        let transaction = &self.script.transactions[index];
        let mut attempt = 1;
        loop {
            let mut draw = numbers.draw(values.to_vec());
            let run = Run { script: &self.script, open, index, is_rehearsal: false };
            let stop = match run.run(&mut draw).await {
                Ok(()) => {
                    let (txn, version) = (TxnId::default(), SnapshotVersion(0));
                    return Ok(Outcome::Committed { txn, version, result: Vec::new() });
                }
                Err(stop) => stop,
            };
            let (error, is_at_end) = match stop {
                Stop::Abort(abort) => return Ok(Outcome::Aborted(abort)),
                Stop::File(message) => return Err(ClientError::Refused(message)),
                Stop::Server { error, is_at_end } => (error, is_at_end),
            };
            let shown = || format!("{}: {error}", self.region);
            let Some(known) = error.as_db_error() else {
                return Err(match is_at_end {
                    true => ClientError::Ambiguous(shown()),
                    // A block that did not reach its COMMIT is rolled back.
                    false => ClientError::NotSent(shown()),
                });
            };
            let code = known.code().code();
            if code == UNKNOWN {
                return Err(ClientError::Ambiguous(shown()));
            }
            if !UNDONE.contains(&code) || attempt == ATTEMPTS_MAX {
                let state = code.as_bytes().try_into();
                let state = state.map_or(SqlState::INTERNAL_ERROR, SqlState);
                return Ok(Outcome::Aborted(Abort::new(state, known.message())));
            }
            self.retries.count(transaction.name, code);
            attempt += 1;
        }
    }
}

/// One attempt of a transaction.
struct Run<'a> {
    script: &'a Script,
    open: &'a Open,
    index: usize,
    /// In a rehearsal, everything is rolled back at the end, and sleeps are skipped.
    is_rehearsal: bool,
}

impl Run<'_> {
    async fn run(&self, draw: &mut Draw) -> Result<(), Stop> {
        let transaction = &self.script.transactions[self.index];
        draw.values.resize(transaction.names.len(), Value::Null);
        let mut is_in_block = false;
        for (at, step) in transaction.steps.iter().enumerate() {
            let done = self.step(at, step, draw, &mut is_in_block).await;
            if done.is_err() && is_in_block {
                // If that fails, the session is lost, and its transaction block with it.
                let _ = self.open.client.batch_execute("ROLLBACK").await;
            }
            done?;
        }
        Ok(())
    }

    async fn step(
        &self,
        at: usize,
        step: &Step,
        draw: &mut Draw,
        is_in_block: &mut bool,
    ) -> Result<(), Stop> {
        match step {
            Step::Set(line, slot, value) => {
                draw.values[*slot] =
                    value.evaluate(draw).map_err(|error| self.file(*line, error))?;
            }
            Step::Sleep(line, us) => {
                let us = us.evaluate(draw).and_then(|it| it.double());
                let us = us.map_err(|error| self.file(*line, error))?;
                if !self.is_rehearsal {
                    tokio::time::sleep(Duration::from_micros(us.max(0.0) as u64)).await;
                }
            }
            Step::Run(statement) => {
                let is_at_end = match statement.kind {
                    StatementKind::Begin => false,
                    StatementKind::Commit => true,
                    StatementKind::Control | StatementKind::Data => !*is_in_block,
                };
                let server = |error| Stop::Server { error, is_at_end };
                if statement.kind == StatementKind::Data {
                    return self.query(at, statement, draw).await.map_err(|stop| match stop {
                        Stop::Server { error, .. } => server(error),
                        other => other,
                    });
                }
                let text = match statement.kind {
                    StatementKind::Commit if self.is_rehearsal => "ROLLBACK",
                    _ => &statement.text,
                };
                self.open.client.batch_execute(text).await.map_err(server)?;
                match statement.kind {
                    StatementKind::Begin => *is_in_block = true,
                    StatementKind::Commit => *is_in_block = false,
                    StatementKind::Control | StatementKind::Data => {}
                }
            }
        }
        Ok(())
    }

    fn file(&self, line: usize, error: String) -> Stop {
        Stop::File(self.script.at(line, error))
    }

    async fn query(&self, at: usize, statement: &Statement, draw: &mut Draw) -> Result<(), Stop> {
        let prepared = self.open.prepared[self.index][at].as_ref();
        let prepared = prepared.expect("statements with data are prepared");
        let rows = {
            let bound = statement.holes.iter().map(|(_, slot)| Bound(&draw.values[*slot]));
            let bound: Vec<Bound<'_>> = bound.collect();
            let params: Vec<&(dyn ToSql + Sync)> =
                bound.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
            let rows = self.open.client.query(&prepared.handle, &params).await;
            rows.map_err(|error| Stop::Server { error, is_at_end: false })?
        };
        if statement.gset.is_none() {
            return Ok(());
        }
        let abort = |state, what: &str| {
            let message = format!("\\gset: the query returned {what}");
            Stop::Abort(Abort::new(state, self.script.at(statement.line, message)))
        };
        let row: &Row = match &rows[..] {
            [row] => row,
            [] => return Err(abort(NO_ROW, "no row")),
            _ => return Err(abort(SEVERAL_ROWS, "several rows")),
        };
        for (column, slot) in prepared.gset.iter().enumerate() {
            if let Some(slot) = slot {
                let received = row.try_get::<_, Received>(column);
                let Received(value) =
                    received.map_err(|error| self.file(statement.line, error.to_string()))?;
                draw.values[*slot] = value;
            }
        }
        Ok(())
    }
}

/// Runs every transaction once and rolls it back. This detects errors that the server reports only
/// when a statement runs.
///
/// # Errors
/// The statement that cannot work, with the file's line.
pub async fn rehearse(
    script: &Script,
    config: &Config,
    identity: &ClientIdentity,
    seed: u64,
) -> Result<(), Failure> {
    let open = Open::new(script, config, &identity.region).await.map_err(Failure::Failed)?;
    for (index, transaction) in script.transactions.iter().enumerate() {
        let client = identity.client.index;
        let numbers = Numbers { client, sequence: 1, seed: seed ^ index as u64, now_us: 0 };
        let mut draw = numbers.draw(script.constants(identity));
        let is_one = !transaction
            .steps
            .iter()
            .any(|step| matches!(step, Step::Run(Statement { kind: StatementKind::Begin, .. })));
        if is_one {
            let begun = open.client.batch_execute("BEGIN").await;
            begun.map_err(|error| Failure::failed(&identity.region, error))?;
        }
        let run = Run { script, open: &open, index, is_rehearsal: true };
        let ran = run.run(&mut draw).await;
        if is_one {
            let undone = open.client.batch_execute("ROLLBACK").await;
            undone.map_err(|error| Failure::failed(&identity.region, error))?;
        }
        match ran {
            Ok(()) | Err(Stop::Abort(_)) => {}
            Err(Stop::File(message)) => return Err(Failure::Failed(message)),
            Err(Stop::Server { error, .. }) => {
                let code = error.code().map_or("", |code| code.code());
                if error.as_db_error().is_none() || REFUSED.iter().any(|it| code.starts_with(it)) {
                    let name = transaction.name;
                    let message = format!("transaction {name}: {}", in_words(&error));
                    return Err(Failure::Failed(script.at(transaction.line, message)));
                }
            }
        }
    }
    Ok(())
}
