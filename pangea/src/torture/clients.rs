//! Clients that use PostgreSQL's protocol. Each works through one connection at a time. When that
//! is lost, it opens another under a new client number.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use pangea_core::guarantee::Isolation;
use pangea_sim::Levels;
use pangea_sim::record::Outcome;
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error, NoTls};

use super::history::{Attempt, History};
use super::levels;
use super::work::{Found, Numbers, Step, Work};
use crate::failure::Failure;

/// The delay before a client reconnects.
const RECONNECT: Duration = Duration::from_millis(100);
/// The maximum delay before a client retries a transaction that failed with a conflict; it is
/// multiplied by the number of the attempt.
const BACK_OFF: Duration = Duration::from_millis(20);
/// The maximum number of attempts of a transaction.
const ATTEMPTS_MAX: u32 = 5;
/// The statement timeout of the impatient clients, which is shorter than most faults.
const STATEMENT_TIMEOUT_MS: u32 = 1_500;
/// The maximum number of different unexpected errors that are recorded.
const SURPRISES_MAX: usize = 10;

/// A node as clients see it.
#[derive(Clone)]
pub struct Place {
    pub region: String,
    pub sql: Config,
}

/// Running clients.
pub struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    history: Arc<History>,
    places: Vec<Place>,
    /// The index of the first place that clients use.
    first: usize,
    /// The isolation levels of sessions.
    levels: Levels,
    numbers: Numbers,
    /// The next client number.
    clients: AtomicU64,
    conflicts: AtomicU64,
    connections_lost: AtomicU64,
    is_over: AtomicBool,
    /// Errors that no client should receive.
    surprises: Mutex<BTreeSet<String>>,
}

/// Statistics of the clients that are not in the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Transactions that failed with a conflict.
    pub conflicts: u64,
    /// Connections that were lost or could not be opened.
    pub connections_lost: u64,
}

impl Clients {
    /// Starts `each` clients for each node from `first` on.
    pub fn start(
        history: &Arc<History>,
        (places, first): (&[Place], usize),
        (each, levels): (usize, Levels),
        seed: u64,
    ) -> Self {
        let shared = Arc::new(Shared {
            history: history.clone(),
            places: places.to_vec(),
            first,
            levels,
            numbers: Numbers::default(),
            clients: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            connections_lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            surprises: Mutex::default(),
        });
        let mut rng = Rng::with_seed(seed);
        let mut tasks = JoinSet::new();
        let used = places.len() - first;
        for index in 0..used * each {
            let of_place = index / used;
            let runner = Runner {
                shared: shared.clone(),
                rng: rng.fork(),
                at: first + index % used,
                roams: of_place % 2 == 1,
                is_strict: of_place % 4 < 2,
                is_impatient: of_place % 3 == 2,
            };
            tasks.spawn(runner.run());
        }
        Self { shared, tasks }
    }

    /// Returns the statistics so far.
    pub fn counts(&self) -> ClientCounts {
        ClientCounts {
            conflicts: self.shared.conflicts.load(Ordering::Relaxed),
            connections_lost: self.shared.connections_lost.load(Ordering::Relaxed),
        }
    }

    /// Lets every client finish its transaction.
    ///
    /// # Errors
    /// If a client has no response by the deadline, or received an unexpected error.
    pub async fn end(mut self, deadline: Duration) -> Result<ClientCounts, Failure> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.expect("a client does not panic");
            }
        };
        if tokio::time::timeout(deadline, all).await.is_err() {
            return Err(Failure::Failed(format!(
                "{} clients have no response {} s after all faults were healed",
                self.tasks.len(),
                deadline.as_secs()
            )));
        }
        let surprises: Vec<String> = self.shared.surprises().iter().cloned().collect();
        match surprises.is_empty() {
            true => Ok(self.counts()),
            false => {
                Err(Failure::failed("clients received unexpected errors", surprises.join("; ")))
            }
        }
    }
}

impl Shared {
    fn surprises(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.surprises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_surprise(&self, what: String) {
        let mut surprises = self.surprises();
        if surprises.len() < SURPRISES_MAX {
            surprises.insert(what);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// The effect of an error on a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It conflicted with another transaction and may be retried.
    Conflict,
    /// It was aborted, and the session continues.
    Refused,
    /// The session has ended.
    Lost,
    /// It was submitted, and its outcome is unknown.
    Unknown,
}

impl Why {
    fn in_words(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Lost => "session ended",
            Self::Unknown => "unknown",
        }
    }

    /// Classifies an error, or returns it if no client should receive it. `is_submitted` is whether
    /// the transaction may have been submitted.
    fn of(error: &Error, is_submitted: bool) -> Result<Self, String> {
        let Some(code) = error.code() else {
            return Ok(if is_submitted { Self::Unknown } else { Self::Lost });
        };
        if *code == SqlState::T_R_SERIALIZATION_FAILURE {
            Ok(Self::Conflict)
        } else if *code == SqlState::TRANSACTION_RESOLUTION_UNKNOWN && is_submitted {
            Ok(Self::Unknown)
        } else if [SqlState::UNIQUE_VIOLATION, SqlState::QUERY_CANCELED].contains(code) {
            Ok(Self::Refused)
        } else if [SqlState::ADMIN_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW].contains(code) {
            Ok(Self::Lost)
        } else {
            Err(error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string))
        }
    }
}

/// One client.
struct Runner {
    shared: Arc<Shared>,
    rng: Rng,
    /// The index of its current node.
    at: usize,
    /// Whether it moves to the next node when its connection is lost.
    roams: bool,
    /// Whether its reads are strict.
    is_strict: bool,
    /// Whether its statements have a timeout.
    is_impatient: bool,
}

/// A connection.
struct Session {
    client: Client,
    number: u64,
    /// The description of the client in reports.
    note: String,
    is_strict: bool,
    level: Isolation,
}

impl Runner {
    async fn run(mut self) {
        while !self.shared.is_over() {
            if let Some(session) = self.open().await {
                self.use_session(&session).await;
            }
            if self.shared.is_over() {
                break;
            }
            self.shared.connections_lost.fetch_add(1, Ordering::Relaxed);
            if self.roams {
                let (first, places) = (self.shared.first, self.shared.places.len());
                self.at = if self.at + 1 == places { first } else { self.at + 1 };
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn open(&mut self) -> Option<Session> {
        let all: Vec<Isolation> = self.shared.levels.all().collect();
        let level = all[self.rng.usize(..all.len())];
        let Place { region, sql } = &self.shared.places[self.at];
        let reads = if self.is_strict { "strict" } else { "snapshot" };
        let timeout_ms = if self.is_impatient { STATEMENT_TIMEOUT_MS } else { 0 };
        let mut sql = sql.clone();
        sql.options(format!("-c reads={reads} -c statement_timeout={timeout_ms}"));
        // The node does not accept connections now.
        let (client, connection) = sql.connect(NoTls).await.ok()?;
        // The client sees how the connection ends.
        tokio::spawn(connection);
        client.batch_execute(&levels::statement(level)).await.ok()?;
        let number = self.shared.clients.fetch_add(1, Ordering::Relaxed);
        self.shared.history.on_client(number, self.at);
        Some(Session {
            client,
            number,
            note: format!("{region}, {reads}"),
            is_strict: self.is_strict,
            level,
        })
    }

    /// Works until the session is lost or the run ends.
    async fn use_session(&mut self, session: &Session) {
        while !self.shared.is_over() {
            let work = Work::draw(&self.shared.numbers, &mut self.rng);
            for attempt in 1..=ATTEMPTS_MAX {
                match self.try_once(session, &work).await {
                    Ok(()) | Err(Why::Refused) => break,
                    Err(Why::Lost | Why::Unknown) => return,
                    Err(Why::Conflict) => {
                        self.shared.conflicts.fetch_add(1, Ordering::Relaxed);
                        let most = BACK_OFF * attempt;
                        tokio::time::sleep(most.mul_f64(self.rng.f64())).await;
                    }
                }
            }
        }
    }

    async fn try_once(&mut self, session: &Session, work: &Work) -> Result<(), Why> {
        let shared = self.shared.clone();
        let mut attempt = session.begin(&shared, work);
        let done = match work {
            Work::Autocommit(step) => {
                let done = session.autocommit(&shared, *step, &mut attempt).await;
                match done {
                    Ok(Found::Something) => Ok(()),
                    Ok(Found::Nothing) => {
                        // The first attempt committed as a read that found no row.
                        attempt.end(Outcome::Committed);
                        attempt = session.begin(&shared, work);
                        let made = step.make(&session.client, &shared.numbers, &mut attempt);
                        made.await.map_err(|error| shared.why(&error, true))
                    }
                    Err(why) => Err(why),
                }
            }
            Work::Block(steps) => session.block(&shared, steps, &mut attempt).await,
        };
        let outcome = match done {
            Ok(()) => Outcome::Committed,
            Err(Why::Unknown) => Outcome::Unknown,
            Err(why) => {
                attempt.remark(why.in_words());
                Outcome::Aborted
            }
        };
        attempt.end(outcome);
        done
    }
}

impl Shared {
    fn why(&self, error: &Error, is_submitted: bool) -> Why {
        Why::of(error, is_submitted).unwrap_or_else(|what| {
            self.on_surprise(what);
            if is_submitted { Why::Unknown } else { Why::Lost }
        })
    }
}

impl Session {
    async fn autocommit(
        &self,
        shared: &Shared,
        step: Step,
        attempt: &mut Attempt,
    ) -> Result<Found, Why> {
        let done = step.run(&self.client, &shared.numbers, attempt).await;
        done.map_err(|error| shared.why(&error, step.is_write()))
    }

    async fn block(
        &self,
        shared: &Shared,
        steps: &[Step],
        attempt: &mut Attempt,
    ) -> Result<(), Why> {
        let done = async {
            self.client.batch_execute("begin").await?;
            for step in steps {
                if step.run(&self.client, &shared.numbers, attempt).await? == Found::Nothing {
                    step.make(&self.client, &shared.numbers, attempt).await?;
                }
            }
            Ok(())
        };
        if let Err(error) = done.await {
            let why = shared.why(&error, false);
            if why != Why::Lost {
                let back = self.client.batch_execute("rollback").await;
                back.map_err(|error| shared.why(&error, false))?;
            }
            return Err(why);
        }
        let committed = self.client.batch_execute("commit").await;
        committed.map_err(|error| shared.why(&error, true))
    }

    fn begin(&self, shared: &Shared, work: &Work) -> Attempt {
        // A transaction that only reads from a snapshot may see an older state.
        let is_held = self.is_strict || work.is_write();
        let level = levels::held_to(self.level, work);
        shared.history.begin(self.number, &self.note, (is_held, level))
    }
}
