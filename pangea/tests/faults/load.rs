//! Clients that write continuously and record every acknowledgement.
//!
//! | work | how | what must hold |
//! |---|---|---|
//! | insert | autocommit `INSERT` of a unique row | if acknowledged: it exists once. If never sent: it does not exist |
//! | count | autocommit `UPDATE` of the one shared counter | it counts each acknowledgement once |
//! | transfer | `BEGIN`, read and raise a shared tally, insert a row, `COMMIT` | both or neither; a rejected one has no effect |
//!
//! No key is used twice, not even when an attempt is retried. Therefore each row found at the end
//! belongs to one attempt, whose fate is known or is known to be unknown.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls, Statement};

use crate::processes::Addresses;

/// The delay before a client reconnects, to the same node or to another.
const RECONNECT: Duration = Duration::from_millis(100);
/// The time limit for any operation at a live node: far longer than any takes.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);
/// The number of tallies that the transfers share: fewer than clients, so that they conflict.
pub const TALLIES: i64 = 3;
/// Clients of each kind in each region.
const PER_REGION: [(Work, usize); 3] = [(Work::Insert, 6), (Work::Count, 2), (Work::Transfer, 2)];

/// The tables of the load.
pub const SCHEMA: &str = "
    create table entries (client int, seq bigint, primary key (client, seq));
    create table counters (id int primary key, n bigint not null);
    create table tallies (id bigint primary key, n bigint not null);
    create table transfers (client int, seq bigint, tally bigint not null,
                            primary key (client, seq));
    insert into counters values (1, 0)";

/// The work of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Insert,
    Count,
    Transfer,
}

/// The fate of an attempt, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The node acknowledged the commit.
    Acknowledged,
    /// The node died before it responded.
    Ambiguous,
    /// The node rejected it, or died before a commit was requested.
    Never,
}

/// An acknowledged commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The time since the start of the load.
    pub at: Duration,
    /// The client that received it.
    pub client: i32,
    /// The node that sent it.
    pub node: usize,
}

/// The final report of a client.
#[derive(Debug)]
pub struct Record {
    pub client: i32,
    pub work: Work,
    /// The fate of each attempt, by its number.
    pub fates: BTreeMap<i64, AttemptOutcome>,
    /// Attempts that failed with 40001.
    pub conflicts: u64,
    /// The number of reconnections.
    pub connections_lost: u64,
    /// Unexpected events.
    pub wrong: Vec<String>,
}

impl Record {
    /// Returns the number of attempts with a fate.
    pub fn count(&self, fate: AttemptOutcome) -> usize {
        self.fates.values().filter(|it| **it == fate).count()
    }
}

/// The state shared by the clients and the test.
pub struct Load {
    pub addresses: Vec<Addresses>,
    pub started: Instant,
    is_over: AtomicBool,
    /// All acknowledged commits.
    acks: Mutex<Vec<Ack>>,
}

impl Load {
    /// Creates a load for the nodes at these addresses.
    pub fn new(addresses: &[Addresses]) -> Arc<Self> {
        Arc::new(Self {
            addresses: addresses.to_vec(),
            started: Instant::now(),
            is_over: AtomicBool::new(false),
            acks: Mutex::default(),
        })
    }

    /// Starts every client as a task.
    pub fn start(self: &Arc<Self>) -> Vec<tokio::task::JoinHandle<Record>> {
        let mut tasks = Vec::new();
        for home in 0..self.addresses.len() {
            let works = PER_REGION.iter().flat_map(|&(work, count)| vec![work; count]);
            for work in works {
                let client = i32::try_from(tasks.len()).expect("few clients");
                // Half of the clients move to another node when theirs is dead, the others wait for
                // it.
                let roams = client % 2 == 0;
                let runner = Runner::new(self.clone(), client, work, home, roams);
                tasks.push(tokio::spawn(runner.run()));
            }
        }
        tasks
    }

    /// Lets every client finish its current attempt and end.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns all commits acknowledged so far.
    pub fn acks(&self) -> Vec<Ack> {
        self.acks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of commits that a node has acknowledged so far.
    pub fn acks_of(&self, node: usize) -> usize {
        self.acks().iter().filter(|ack| ack.node == node).count()
    }

    fn on_ack(&self, client: i32, node: usize) {
        let ack = Ack { at: self.started.elapsed(), client, node };
        self.acks.lock().unwrap_or_else(PoisonError::into_inner).push(ack);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Opens a session with a node.
pub async fn connect(address: &Addresses) -> Result<Client, Error> {
    let sql = address.sql;
    let config = format!("host={} port={} user=pangea dbname=pangea", sql.ip(), sql.port());
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
    // The client sees how the connection ends.
    tokio::spawn(connection);
    Ok(client)
}

/// A session with its prepared statements.
struct Session {
    client: Client,
    statements: Vec<Statement>,
}

/// The reason why an attempt did not commit.
enum Trouble {
    /// 40001: a conflicting transaction won.
    Conflict,
    /// The connection was lost, before or after a commit was requested.
    Lost { may_be_committed: bool },
    /// Any other error.
    Wrong(String),
}

impl Trouble {
    fn of(error: &Error, may_be_committed: bool) -> Self {
        match error.code() {
            Some(code) if *code == SqlState::T_R_SERIALIZATION_FAILURE => Self::Conflict,
            Some(_) => Self::Wrong(format!("{:?}", error.as_db_error())),
            None => Self::Lost { may_be_committed },
        }
    }
}

/// One client.
struct Runner {
    load: Arc<Load>,
    node: usize,
    roams: bool,
    next_seq: i64,
    record: Record,
}

impl Runner {
    fn new(load: Arc<Load>, client: i32, work: Work, home: usize, roams: bool) -> Self {
        let record = Record {
            client,
            work,
            fates: BTreeMap::new(),
            conflicts: 0,
            connections_lost: 0,
            wrong: Vec::new(),
        };
        Self { load, node: home, roams, next_seq: 0, record }
    }

    async fn run(mut self) -> Record {
        while !self.load.is_over() {
            match timeout(ANSWER_DEADLINE, self.open()).await {
                Ok(Ok(session)) => self.use_session(&session).await,
                // The node has not fetched its lost data yet.
                Ok(Err(error)) if error.code() == Some(&SqlState::CANNOT_CONNECT_NOW) => {}
                Ok(Err(error)) if error.code().is_some() => {
                    self.record.wrong.push(format!("connecting: {error:?}"));
                }
                // The node does not accept connections now.
                Ok(Err(_)) => {}
                Err(_) => self.record.wrong.push("no answer to a new connection".to_owned()),
            }
            if self.load.is_over() {
                break;
            }
            self.record.connections_lost += 1;
            if self.roams {
                self.node = (self.node + 1) % self.load.addresses.len();
            }
            sleep(RECONNECT).await;
        }
        self.record
    }

    async fn open(&self) -> Result<Session, Error> {
        let client = connect(&self.load.addresses[self.node]).await?;
        let texts: &[&str] = match self.record.work {
            Work::Insert => &["insert into entries values ($1, $2)"],
            Work::Count => &["update counters set n = n + 1 where id = 1"],
            Work::Transfer => &[
                "select n from tallies where id = $1",
                "update tallies set n = $2 where id = $1",
                "insert into transfers values ($1, $2, $3)",
            ],
        };
        let mut statements = Vec::new();
        for text in texts {
            statements.push(client.prepare(text).await?);
        }
        Ok(Session { client, statements })
    }

    /// Works until the session is lost or the load ends.
    async fn use_session(&mut self, session: &Session) {
        while !self.load.is_over() {
            let seq = self.next_seq;
            self.next_seq += 1;
            let client = self.record.client;
            let attempt = timeout(ANSWER_DEADLINE, attempt(session, self.record.work, client, seq));
            let result = attempt.await.unwrap_or_else(|_| {
                Err(Trouble::Wrong(format!("no answer in {} s", ANSWER_DEADLINE.as_secs())))
            });
            let fate = match &result {
                Ok(()) => AttemptOutcome::Acknowledged,
                Err(Trouble::Conflict | Trouble::Lost { may_be_committed: false }) => {
                    AttemptOutcome::Never
                }
                Err(Trouble::Lost { may_be_committed: true } | Trouble::Wrong(_)) => {
                    AttemptOutcome::Ambiguous
                }
            };
            self.record.fates.insert(seq, fate);
            match result {
                Ok(()) => self.load.on_ack(client, self.node),
                Err(Trouble::Conflict) => self.record.conflicts += 1,
                Err(Trouble::Lost { .. }) => return,
                Err(Trouble::Wrong(what)) => {
                    let (work, node) = (self.record.work, self.node);
                    self.record.wrong.push(format!("{work:?} {seq} at node {node}: {what}"));
                    return;
                }
            }
        }
    }
}

/// Runs one attempt of a transaction.
async fn attempt(session: &Session, work: Work, client: i32, seq: i64) -> Result<(), Trouble> {
    let Session { client: connection, statements } = session;
    let sent = |error: Error| Trouble::of(&error, true);
    let changed = match work {
        Work::Insert => connection.execute(&statements[0], &[&client, &seq]).await,
        Work::Count => connection.execute(&statements[0], &[]).await,
        Work::Transfer => return transfer(session, client, seq).await,
    };
    match changed.map_err(sent)? {
        1 => Ok(()),
        rows => Err(Trouble::Wrong(format!("changed {rows} rows, not 1"))),
    }
}

async fn transfer(session: &Session, client: i32, seq: i64) -> Result<(), Trouble> {
    let Session { client: connection, statements } = session;
    let result = async {
        connection.batch_execute("begin").await?;
        let tally = (seq + i64::from(client)) % TALLIES;
        let n: i64 = connection.query_one(&statements[0], &[&tally]).await?.try_get(0)?;
        connection.execute(&statements[1], &[&tally, &(n + 1)]).await?;
        connection.execute(&statements[2], &[&client, &seq, &tally]).await
    };
    let before = |error: Error| Trouble::of(&error, false);
    match result.await.map_err(before) {
        Ok(_) => {}
        Err(Trouble::Conflict) => {
            connection.batch_execute("rollback").await.map_err(before)?;
            return Err(Trouble::Conflict);
        }
        Err(trouble) => return Err(trouble),
    }
    connection.batch_execute("commit").await.map_err(|error| Trouble::of(&error, true))
}
